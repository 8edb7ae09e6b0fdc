"""``mlx-autobind doctor``: what is installed, what the agent would do, and what to do next."""

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from mlx_autobind import targets
from mlx_autobind.cli import findings
from mlx_autobind.cli.probe import Prober, as_json
from mlx_autobind.cli.report import Facts, Library, Report, Run, Start
from mlx_autobind.cli.text import Progress
from mlx_autobind.cli.traces import plain

WIDTH = 96
LABEL = 18

DESCRIPTION = """\
Shows the versions, the settings, how Python starts and whether children are under the agent,
what mlx does, every handle and entry point that the agent finds, and OpenTelemetry. Then runs
a small threaded program without and with the agent. Takes some ten seconds, and no network.
"""

EPILOG = """\
Run it with the Python, the options and the environment that the program has that fails:

    python -m mlx_autobind doctor
    mlx-autobind run -- python -m mlx_autobind doctor

Exit codes: 0 fine, 1 something to do, 2 broken. The last line says which, why, and the next
step. mlx is imported in child processes alone. The trace file gets nothing of the probe.

--json prints one object: format, level, verdict, exit_code, findings and facts. Its fields are
described in mlx_autobind/cli/report.py; `format` changes when one of them changes or goes.
"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "doctor",
        help="say what the agent would do here, whether it is active, and what to do next",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print it as one JSON object")
    command.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long one child process may take before it counts as hung (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the report, and return 0 if all is fine, 1 if there is something to do, 2 if broken."""
    progress = Progress(lines=False)
    try:
        facts = Prober(options.timeout, progress.step).facts()
    finally:
        progress.end()
    found = findings.conclude(facts)
    print(as_json(found) if options.json else "\n".join(text(found)))
    return found.exit_code


Row = tuple[str, str]


def text(found: Report) -> Iterator[str]:
    """Yield the lines of the report."""
    facts = found.facts
    sections = (
        ("Python", _python(facts)),
        ("Versions", _versions(facts)),
        ("Settings", _settings(facts)),
        ("Start", _start(facts.start)),
        ("mlx", _mlx(facts)),
        *((each.name, _library(each)) for each in facts.libraries),
        ("OpenTelemetry", _telemetry(facts)),
        ("Probe", _probe(facts)),
        # The first one is the verdict.
        (
            "Besides",
            ((each.level, f"{each.text}{_step(each.step)}") for each in found.findings[1:]),
        ),
    )
    for title, section in sections:
        rows = list(section)
        if not rows:
            continue
        yield title
        for label, value in rows:
            yield from _lines(label, plain(value))
        yield ""
    yield from _wrap(plain(found.verdict), "", "")


def _step(step: str) -> str:
    return f": {step}" if step else ""


def _lines(label: str, value: str) -> list[str]:
    first = f"  {label.ljust(LABEL)}" if len(label) <= LABEL else f"  {label}  "
    return _wrap(value, first, " " * (LABEL + 2))


def _wrap(value: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        value,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,  # paths are to be copied
        break_on_hyphens=False,
    ) or [first.rstrip()]


def _python(facts: Facts) -> Iterator[Row]:
    python = facts.interpreter
    yield "version", f"{python.version}, {python.platform}"
    yield "executable", python.executable
    for option, effect in zip(python.options, python.effects, strict=True):
        yield "option", f"{option}: {effect}"
    if not python.options:
        yield "options", "none of -E, -I, -S and -s"


def _versions(facts: Facts) -> Iterator[Row]:
    for each in facts.packages:
        if each.version is None:
            value = "not installed"
            if each.tested is not None:
                value += ": nothing to do"
        else:
            value = each.version
            if each.tested is not None:
                value += f"  (tested: {each.tested}{', not this one' if each.outside else ''})"
        yield each.name, value


def _settings(facts: Facts) -> Iterator[Row]:
    settings = facts.configuration
    yield "mode", settings.mode if settings.enabled else "none: switched off"
    for name, value in settings.variables.items():
        yield "variable", f"{name}={value}"
    for problem in settings.problems:
        yield "problem", problem
    for module in settings.modules:
        yield "module", f"{module}: patched when the program imports it, not looked at here"
    for each in facts.failures:
        yield "failures", f"{each.count} in mode {each.mode}, the last one at {each.newest}"


def _start(start: Start) -> Iterator[Row]:
    for entry in start.pythonpath:
        remark = {"folder": "", "file": " (no folder)", "missing": " (does not exist)"}
        yield "PYTHONPATH", f"{entry.path}{remark[entry.state]}"
    if not start.pythonpath:
        yield "PYTHONPATH", "not set"
    for each in start.customizes:
        agent = ", names the agent" if each.agent else ""
        yield "sitecustomize", f"{each.file}: {'runs' if each.runs else 'does not run'}{agent}"
    if not start.customizes:
        yield "sitecustomize", "none found"
    for file in start.pth_files:
        yield ".pth file", f"{file}: imports the agent"
    if start.installed:
        active = f"the agent is active ({start.agent_file})"
    elif start.imported:
        active = f"the agent is there and not active ({start.agent_file})"
    else:
        active = "the agent is not there"
    yield "in a child", active
    if start.exit != "exit code 0":
        yield "", start.exit
    for line in start.stderr.splitlines():
        yield "it says", line


def _mlx(facts: Facts) -> Iterator[Row]:
    mlx = facts.mlx
    if not mlx.importable:
        yield "import", f"fails: {mlx.error}"
        return
    yield "import", f"works: {mlx.file}"
    yield "device", str(mlx.device)
    if mlx.binds:
        yield "streams", f"belong to the thread that made them (tried: {mlx.evidence})"
    else:
        yield "streams", "can be used by any thread on this device (tried)"
    yield "agent", "acts on this mlx" if mlx.acts else "is inert on this mlx: nothing to bind"


def _library(library: Library) -> Iterator[Row]:
    if not library.imported:
        yield "import", f"fails: {library.error}"
        tried = "works" if library.without_agent else "fails as well"
        yield "without the agent", tried
        return
    if library.inert is not None:
        yield "inert", library.inert
    for handle in library.handles:
        yield "handle", f"{handle.where}: {handle.action}"
    yield "entry points", _count(library)
    for problem in library.missing:
        yield "not imported", problem
    if library.unprotected is not None:
        yield "mind", library.unprotected


def _count(library: Library) -> str:
    if not library.entry_points:
        return "none is wrapped"
    kinds = Counter(each.kind for each in library.entry_points)
    handing = kinds[targets.PRODUCER] + kinds[targets.PREPARER]
    stepped = len(library.entry_points) - handing
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return (
        f"{len(library.entry_points)} ({counted}): {stepped} have the thread that steps them "
        f"bound, {handing} have what they hand back evaluated"
    )


def _telemetry(facts: Facts) -> Iterator[Row]:
    found = facts.telemetry
    yield "API", found.api or "not installed"
    yield "SDK", found.sdk or "not installed: records stay in the process, no span is exported"
    for each in found.extensions:
        yield each.group.removeprefix("opentelemetry_"), f"{each.name} ({each.package})"
    if found.sdk and not found.extensions:
        yield "exporters", "none"
    for name in found.variables:
        yield "variable", f"{name} is set"
    if facts.configuration.trace is not None:
        problem = found.trace_problem
        yield "trace file", f"{facts.configuration.trace}{_step(problem or '')}"


def _probe(facts: Facts) -> Iterator[Row]:
    probe = facts.probe
    if probe is None:
        yield "", "none, since mlx.core cannot be imported"
        return
    yield "what", probe.what
    if probe.left_out is not None:
        yield "left out", probe.left_out
    if probe.error is not None:
        yield "failed", probe.error
    for run in probe.runs:
        yield ("without the agent" if run.mode is None else f"mode {run.mode}"), _run(run)


def _run(run: Run) -> str:
    parts: Iterable[str] = (
        f"{run.verdict} ({run.seconds:.1f} s)",
        f"bound: {', '.join(run.bound)}" if run.bound else "",
        f"on stderr: {run.stderr}" if run.right and run.stderr else "",
    )
    return "; ".join(part for part in parts if part)
