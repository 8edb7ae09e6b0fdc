"""What follows from the doctor's facts: findings, and a verdict in one sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx_autobind
from mlx_autobind.cli import report
from mlx_autobind.cli.report import Facts, Finding
from mlx_autobind.cli.run import BOOTSTRAP
from mlx_autobind.cli.text import last_line

REPORT = "please report it, with what `mlx-autobind doctor --json` prints"
IMPORT = "put `import mlx_autobind` first in the program"

_ORDER: tuple[report.Level, ...] = ("broken", "do", "fine", "note")


def conclude(facts: Facts) -> report.Report:
    """Return the report: what follows from `facts`, the most urgent first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    if not any(finding.level in ("broken", "do") for finding in found):
        found.append(_fine(facts))
    found.sort(key=lambda finding: _ORDER.index(finding.level))
    first = found[0]
    return report.Report(
        format=report.FORMAT,
        level=first.level,
        verdict=first.sentence,
        exit_code=report.EXIT_CODES[first.level],
        findings=tuple(found),
        facts=facts,
    )


def needed(facts: Facts) -> bool:
    """Tell whether there is anything here that the agent acts on."""
    return facts.mlx.acts and bool(facts.libraries or facts.configuration.modules)


def _fine(facts: Facts) -> Finding:
    if not facts.mlx.acts:
        text = f"mlx {facts.mlx.version} lets any thread use any stream"
        return Finding("fine", text, "nothing to do")
    if not needed(facts):
        names = ", ".join(each.name for each in facts.packages if each.tested is not None)
        return Finding("fine", f"none of {names} is installed here", "nothing to do")
    text = f"every Python that is started like this one has the agent, in mode {_mode(facts)}"
    return Finding("fine", text, "nothing to do")


def _mode(facts: Facts) -> str:
    modes = [each.mode for each in facts.libraries if each.mode is not None]
    return modes[0] if modes else facts.configuration.mode


def _mlx(facts: Facts) -> Iterator[Finding]:
    if not facts.mlx.installed:
        text = f"mlx is not installed for {facts.interpreter.executable}"
        step = "run the doctor with the Python, and the options, that your program has"
        yield Finding("do", text, step)
    elif not facts.mlx.importable:
        text = f"mlx.core cannot be imported ({facts.mlx.error})"
        step = "mend this first: reinstall mlx, or run it where there is a usable Metal device"
        yield Finding("broken", text, step)


def _libraries(facts: Facts) -> Iterator[Finding]:
    for each in facts.libraries:
        if each.imported:
            for missing in each.missing:
                yield Finding("note", f"not imported: {missing}", "")
        elif each.without_agent:
            text = f"with the agent {each.name} cannot be imported ({each.error})"
            yield Finding("broken", text, f"set MLX_AUTOBIND=off for now, and {REPORT}")
        else:
            text = f"{each.name} cannot be imported, with or without the agent ({each.error})"
            yield Finding("do", text, f"mend it or uninstall {each.name}")


def _probe(facts: Facts) -> Iterator[Finding]:
    probe = facts.probe
    if probe is None:
        return
    if probe.error is not None:
        text = f"the probe fails on one thread without the agent ({probe.error})"
        yield Finding("broken", text, "mend this first: the agent has no part in it")
    if probe.left_out is not None:
        yield Finding("note", probe.left_out, "")
    run, without = probe.with_agent, probe.without
    if run is None or without is None:
        return
    if not run.right:
        text = f"with the agent in mode {run.mode} the probe still fails ({run.verdict})"
        if probe.cured_by:
            mode = probe.cured_by[0]
            yield Finding(
                "do", f"{text}, and mode {mode} cures it", f"set MLX_AUTOBIND_MODE={mode}"
            )
        elif without.right:
            text = f"the probe is right without the agent and fails with it ({run.verdict})"
            yield Finding("broken", text, f"set MLX_AUTOBIND=off for now, and {REPORT}")
        else:
            yield Finding("broken", text, REPORT)
    elif needed(facts) and not run.bound:
        yield Finding("broken", "the agent bound no thread in the probe", REPORT)


def _settings(facts: Facts) -> Iterator[Finding]:
    for problem in facts.configuration.problems:
        yield Finding("do", problem, "correct it or unset it")
    shared = facts.configuration.mode == "shared"
    if shared and needed(facts) and not facts.mlx.unsafe_streams:
        text = f"mlx {facts.mlx.version} cannot do MLX_AUTOBIND_MODE=shared, 0.32 and later can"
        yield Finding("do", text, "use thread or owner")
    if needed(facts) and not facts.configuration.enabled:
        yield Finding("do", f"{_benefit(facts)}, but MLX_AUTOBIND=off keeps it out", "unset it")


def _benefit(facts: Facts) -> str:
    probe = facts.probe
    binds = "binds streams to threads" if facts.mlx.binds else "is one that the agent acts on"
    if probe is None or probe.without is None or probe.with_agent is None:
        return f"this mlx {binds}"
    if probe.without.right:
        # One program: others are wrong all the same, or abort as they end.
        return f"this mlx {binds}, and the agent works here"
    return "the agent cures it here" if probe.with_agent.right else "without the agent it fails"


def _start(facts: Facts) -> Iterator[Finding]:
    if facts.configuration.enabled and needed(facts) and not facts.start.installed:
        reason, step = next(reason for reason in map(_ask(facts), REASONS) if reason is not None)
        yield Finding("do", f"{_benefit(facts)}, but {reason}", step)


Reason = tuple[str, str] | None


def _ask(facts: Facts) -> Callable[[Callable[[Facts], Reason]], Reason]:
    return lambda reason: reason(facts)


def _options_hide_it(facts: Facts) -> Reason:
    hiding = [
        option
        for option in facts.interpreter.options
        if option == "-S" or (option in ("-E", "-I") and facts.start.pythonpath)
    ]
    if not hiding:
        return None
    effect = facts.interpreter.effects[facts.interpreter.options.index(hiding[0])]
    hook = "" if hiding[0] == "-S" else "`mlx-autobind install-hook`, or "
    return (
        f"this Python was started with {hiding[0]} and then {effect}",
        f"leave {hiding[0]} out, or {hook}{IMPORT}",
    )


def _another_hides_it(facts: Facts) -> Reason:
    customizes = facts.start.customizes
    hidden = [each for each in customizes if each.agent and not each.runs]
    ran = [each for each in customizes if each.runs]
    if not hidden or not ran or any(each.agent for each in ran):
        return None
    return (
        f"{ran[0].file} runs in place of {hidden[0].file}: Python runs the first one alone",
        f"put {Path(hidden[0].file).parent} first on PYTHONPATH",
    )


def _it_failed(facts: Facts) -> Reason:
    ran = [each.file for each in facts.start.customizes if each.runs and each.agent]
    ran += facts.start.pth_files
    if not ran:
        return None
    said = f" ({last_line(facts.start.stderr)})" if facts.start.stderr.strip() else ""
    return f"{ran[0]} runs and does not bring it into the process{said}", f"mend it, or {IMPORT}"


def _not_a_folder(facts: Facts) -> Reason:
    for entry in facts.start.pythonpath:
        if entry.state == "missing":
            return f"{entry.path} of PYTHONPATH does not exist", "correct PYTHONPATH"
        if entry.state == "file" and entry.path.endswith(".py"):
            folder = Path(entry.path).parent
            return f"{entry.path} of PYTHONPATH is no folder", f"put {folder} there"
    return None


def _nothing_starts_it(facts: Facts) -> Reason:
    rest = ":$PYTHONPATH" if facts.start.pythonpath else ""
    return (
        "nothing starts it in your programs",
        f"{IMPORT}, start it with `mlx-autobind run -- COMMAND`, or export "
        f"PYTHONPATH={BOOTSTRAP}{rest}",
    )


# Why the agent is not in a child, the likeliest first. The last one always has an answer.
REASONS: tuple[Callable[[Facts], Reason], ...] = (
    _options_hide_it,
    _another_hides_it,
    _it_failed,
    _not_a_folder,
    _nothing_starts_it,
)


def _trace(facts: Facts) -> Iterator[Finding]:
    problem = facts.telemetry.trace_problem
    if problem is not None:
        step = "pip install 'mlx-autobind[trace]'" if "installed" in problem else "correct it"
        yield Finding("do", f"MLX_AUTOBIND_TRACE writes nothing: {problem}", step)
    for each in facts.failures:
        text = (
            f"{each.count} failures in {facts.configuration.trace}, the last one at "
            f"{each.newest} in mode {each.mode} ({each.error})"
        )
        # One in another mode is history: the mode was changed since.
        level: report.Level = "do" if each.mode == _mode(facts) else "note"
        yield Finding(level, text, each.cure)


def _versions(facts: Facts) -> Iterator[Finding]:
    for each in facts.packages:
        if each.outside:
            text = f"{each.name} {each.version} is not among what was tested ({each.tested})"
            yield Finding("note", text, "")


def _copies(facts: Facts) -> Iterator[Finding]:
    file = facts.start.agent_file
    if file is not None and Path(file).resolve() != Path(mlx_autobind.__file__).resolve():
        text = f"children have another copy of the agent, {file}, than this doctor"
        yield Finding("note", text, f"the doctor's is {mlx_autobind.__file__}")


def _path(facts: Facts) -> Iterator[Finding]:
    for entry in facts.start.pythonpath:
        if entry.state == "missing":
            yield Finding("note", f"{entry.path} of PYTHONPATH does not exist", "")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _mlx,
    _libraries,
    _probe,
    _settings,
    _start,
    _trace,
    _versions,
    _copies,
    _path,
)
