"""Find out what the doctor reports. What needs mlx is done in children, never here."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import mlx_autobind
from mlx_autobind import settings, targets
from mlx_autobind.cli import children, demo, launch, report
from mlx_autobind.cli.launch import Outcome
from mlx_autobind.cli.spans import Reading, Span
from mlx_autobind.cli.text import last_line

CHILDREN = ("-m", "mlx_autobind.cli.children")
# Only the mode of the settings is probed: a bad value would warn in every child, and the
# trace file is for the user's programs.
NEUTRAL = dict.fromkeys(mlx_autobind.VARIABLES, "")
OFF = {"MLX_AUTOBIND": "off"}

# What a plain child says of itself. It imports nothing of ours.
ASK_START = """
import json, sys
agent = sys.modules.get("mlx_autobind")
ran = sys.modules.get("sitecustomize")
from importlib.machinery import PathFinder
specs = [PathFinder.find_spec("sitecustomize", [entry]) for entry in sys.path if entry]
files = [spec.origin for spec in specs if spec is not None and spec.origin]
site = sys.modules.get("site")
folders = [*site.getsitepackages(), site.getusersitepackages()] if site is not None else []
print("\\n" + json.dumps({
    "imported": agent is not None,
    "installed": getattr(agent, "_finder", None) in sys.meta_path,
    "agent_file": getattr(agent, "__file__", None),
    "ran": getattr(ran, "__file__", None),
    "files": list(dict.fromkeys(files)),
    "folders": folders,
}))
"""

EXTENSIONS = re.compile(r"opentelemetry_\w*(exporter|configurator|distro)$")

# As much as is worth keeping of what a child says.
LONGEST = 2000

Step = Callable[[str], None]


class Prober:
    """Finds everything out.

    Args:
        timeout: seconds that one child may take.
        step: is told what begins; from more than one thread.
    """

    def __init__(self, timeout: float, step: Step) -> None:
        self._timeout = timeout
        self._step = step

    def facts(self) -> report.Facts:
        """Return all of it. Takes as long as some ten starts of Python with mlx-lm."""
        configuration = read_configuration()
        self._step("starting a child, as a program starts")
        start = self.start()
        self._step("importing mlx.core in a child")
        mlx = self.mlx()
        libraries: tuple[report.Library, ...] = ()
        probe: report.Probe | None = None
        if mlx.importable:
            names = [name for name in targets.PACKAGES if version_of(name) is not None]
            # Each child takes a core for seconds, and most machines have more than one.
            with ThreadPoolExecutor(2) as pool:
                generation = pool.submit(self.generation, configuration.mode, mlx)
                libraries = tuple(pool.map(self.library, names))
                generated = generation.result()
            probe = (
                self.handle(configuration.mode, mlx, libraries, reason=generated)
                if isinstance(generated, str)
                else generated
            )
        return report.Facts(
            interpreter=read_interpreter(),
            packages=read_packages(),
            configuration=configuration,
            start=start,
            mlx=mlx,
            libraries=libraries,
            telemetry=read_telemetry(configuration.trace),
            probe=probe,
            failures=read_failures(configuration.trace),
        )

    def _run(self, command: Iterable[str], agent: bool, environ: dict[str, str]) -> Outcome:
        return launch.run([*command], agent=agent, timeout=self._timeout, environ=environ)

    def start(self) -> report.Start:
        """Return how a plain child of this interpreter starts."""
        # `launch` takes this one out of the environment: here it is part of the question.
        kept = {key: os.environ[key] for key in OFF if key in os.environ}
        outcome = self._run(["-c", ASK_START], False, kept)
        answer = outcome.result()
        found = answer if isinstance(answer, dict) else {}
        files = found.get("files", [])
        ran = found.get("ran")
        # Whoever runs the next one leaves it in sys.modules in its own stead.
        last = files.index(ran) if ran in files else -1
        return report.Start(
            pythonpath=tuple(map(_path_entry, _pythonpath())),
            customizes=tuple(
                report.Customize(file, at <= last, _names_agent(Path(file)))
                for at, file in enumerate(files)
            ),
            pth_files=tuple(_pth_files(found.get("folders", []))),
            imported=found.get("imported", False),
            installed=found.get("installed", False),
            agent_file=found.get("agent_file"),
            exit=exit_of(outcome.code),
            stderr=outcome.stderr[-LONGEST:],
        )

    def mlx(self) -> report.Mlx:
        """Return what mlx does in a child without the agent."""
        outcome = self._run([*CHILDREN, "mlx", ""], False, OFF)
        found = outcome.result()
        installed = version_of("mlx") is not None
        if not isinstance(found, dict):
            error = f"{exit_of(outcome.code)}: {last_line(outcome.stderr)}"
            return report.Mlx(installed, False, error, version=version_of("mlx"))
        if "error" in found:
            return report.Mlx(
                not found["missing"], False, found["error"], version=version_of("mlx")
            )
        return report.Mlx(True, True, None, binds=found["evidence"] is not None, **found)

    def library(self, name: str) -> report.Library:
        """Return what the agent finds in the library `name`."""
        self._step(f"importing {name} under the agent")
        outcome = self._run([*CHILDREN, "library", name], True, _neutral(read_configuration().mode))
        found = outcome.result()
        if outcome.code == 0 and isinstance(found, dict):
            return report.Library(
                name=name,
                imported=True,
                error=None,
                missing=tuple(found["missing"]),
                mode=found["mode"],
                inert=found["inert"],
                handles=tuple(report.Handle(**each) for each in found["handles"]),
                entry_points=tuple(report.EntryPoint(**each) for each in found["entry_points"]),
                problems=tuple(found["problems"]),
                unprotected=found["unprotected"],
                stderr=outcome.stderr[-LONGEST:],
            )
        self._step(f"importing {name} without the agent")
        without = self._run([*CHILDREN, "library", name], False, {**NEUTRAL, **OFF})
        return report.Library(
            name=name,
            imported=False,
            error=f"{exit_of(outcome.code)}: {last_line(outcome.stderr)}",
            without_agent=without.code == 0,
            stderr=outcome.stderr[-LONGEST:],
        )

    def generation(self, mode: str, mlx: report.Mlx) -> report.Probe | str:
        """Generate on threads with mlx-lm; return why not if that cannot be done."""
        if version_of("mlx_lm") is None:
            return "mlx-lm is not installed"
        what = "mlx-lm: load a tiny model on the main thread, generate on three others"
        with tempfile.TemporaryDirectory(prefix="mlx-autobind-doctor-") as folder:
            self._step("making a tiny checkpoint with random weights")
            checkpoint = str(Path(folder) / "tiny")
            made = self._run(
                ["-m", "mlx_autobind.cli.checkpoint", checkpoint], False, {**NEUTRAL, **OFF}
            )
            if made.code != 0:
                return f"no checkpoint could be made: {last_line(made.stderr)}"
            program = str(demo.PROGRAMS)
            return self._probe(
                what,
                None,
                reference=[program, "reference", checkpoint],
                program=[program, "S1", checkpoint],
                mode=mode,
                mlx=mlx,
            )

    def handle(
        self,
        mode: str,
        mlx: report.Mlx,
        libraries: tuple[report.Library, ...],
        *,
        reason: str,
    ) -> report.Probe:
        """Use a handle on two threads, where generating cannot be probed.

        Args:
            mode: of the settings.
            mlx: what it does.
            libraries: whose handles may be used; the first that there is.
            reason: why generating cannot be probed.
        """
        names = [
            each.where.rpartition(".")[0]
            for library in libraries
            for each in library.handles
            if each.where.rpartition(".")[2] == targets.HANDLE
        ]
        name = next(iter(names), children.OWN_MODULE)
        whose = "a stream of its own" if name == children.OWN_MODULE else f"the stream of {name}"
        return self._probe(
            f"compute on two threads with {whose}",
            f"generating was not probed: {reason}",
            reference=[*CHILDREN, "handle-alone", name],
            program=[*CHILDREN, "handle", name],
            mode=mode,
            mlx=mlx,
        )

    def _probe(
        self,
        what: str,
        left_out: str | None,
        *,
        reference: list[str],
        program: list[str],
        mode: str,
        mlx: report.Mlx,
    ) -> report.Probe:
        self._step("the probe on one thread, for the right answer")
        asked = self._run(reference, False, {**NEUTRAL, **OFF})
        right = asked.result()
        wrong = _wrong_reference(asked)
        if wrong is not None:
            return report.Probe(what, left_out, wrong, ())
        runs = [self._once(program, right, None)]
        if mode == "shared" and not mlx.unsafe_streams:
            mode = "thread"  # as the agent itself does
        runs.append(self._once(program, right, mode))
        if not runs[-1].right:
            others = [each for each in settings.MODES if each != mode]
            if not mlx.unsafe_streams:
                others.remove("shared")
            runs += [self._once(program, right, each) for each in others]
        return report.Probe(what, left_out, None, tuple(runs))

    def _once(self, program: list[str], right: dict[str, Any], mode: str | None) -> report.Run:
        self._step(f"the probe {'without the agent' if mode is None else f'in mode {mode}'}")
        began = time.monotonic()
        environ = {**NEUTRAL, **OFF} if mode is None else _neutral(mode)
        outcome = self._run(program, mode is not None, environ)
        seconds = time.monotonic() - began
        # Libraries warn of all sorts of things; the report shows it, and it is no failure.
        quiet = dataclasses.replace(outcome, stderr="") if outcome.code == 0 else outcome
        verdict = demo.judge(quiet, right)
        return report.Run(
            mode=mode,
            verdict=verdict,
            right=verdict == demo.RIGHT,
            exit=exit_of(outcome.code),
            seconds=round(seconds, 3),
            bound=tuple(
                record["thread_name"] for record in outcome.records if record["kind"] == "bind"
            ),
            stderr=last_line(outcome.stderr) if outcome.stderr.strip() else "",
        )


def _neutral(mode: str) -> dict[str, str]:
    return {**NEUTRAL, "MLX_AUTOBIND_MODE": mode}


def _wrong_reference(asked: Outcome) -> str | None:
    """Say what went wrong on one thread, without the agent."""
    steps = asked.result()
    if not isinstance(steps, dict) or not steps:
        return f"{exit_of(asked.code)}: {last_line(asked.stderr)}"
    return next((step["error"] for step in steps.values() if "error" in step), None)


def exit_of(code: int | None) -> str:
    """Say how a child ended."""
    if code is None:
        return "ran out of time"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def read_interpreter() -> report.Interpreter:
    """Return what this interpreter is."""
    found = [each for each in launch.OPTIONS if each[1] in launch.options()]
    return report.Interpreter(
        executable=sys.executable,
        version=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        options=launch.options(),
        effects=tuple(effect for _flag, _option, effect in found),
    )


def version_of(package: str) -> str | None:
    """Return the installed version of `package`, by its import name; None if there is none."""
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None


def read_packages() -> tuple[report.Package, ...]:
    """Return the versions of what matters here."""
    found = [report.Package("mlx-autobind", mlx_autobind.__version__)]
    found += [report.Package(name, version_of(name)) for name in ("wrapt", "mlx")]
    for package in targets.PACKAGES:
        first, last = targets.TESTED[package]
        version = version_of(package)
        found.append(
            report.Package(
                package.replace("_", "-"),
                version,
                first if first == last else f"{first} to {last}",
                version is not None and not targets.tested(package, version),
            )
        )
    return tuple(found)


def read_configuration() -> report.Configuration:
    """Return what the environment asks for."""
    variables = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith("MLX_AUTOBIND")
    }
    found = settings.read(os.environ)
    unknown = [name for name in variables if name not in mlx_autobind.VARIABLES]
    return report.Configuration(
        variables=variables,
        enabled=found.enabled,
        mode=found.mode,
        modules=found.modules,
        trace=found.trace,
        problems=(*found.problems, *(f"{name} is no setting of the agent" for name in unknown)),
    )


def _pythonpath() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _path_entry(entry: str) -> report.PathEntry:
    path = Path(entry)
    return report.PathEntry(
        entry, "folder" if path.is_dir() else "file" if path.exists() else "missing"
    )


def _names_agent(file: Path) -> bool:
    try:
        return b"mlx_autobind" in file.read_bytes()
    except OSError:
        return False


def _pth_files(folders: Iterable[str]) -> Iterator[str]:
    """Yield the ``.pth`` files that import the agent, and do not merely name its folder."""
    for folder in folders:
        for file in sorted(Path(folder).glob("*.pth")):
            lines = file.read_text(errors="replace").splitlines()
            if any(line.startswith("import") and "mlx_autobind" in line for line in lines):
                yield str(file)


def read_telemetry(trace: str | None) -> report.Telemetry:
    """Return which OpenTelemetry is there; nothing of it is imported."""
    extensions = {
        report.Extension(point.group, point.name, point.value, distribution.metadata["Name"])
        for distribution in importlib.metadata.distributions()
        for point in distribution.entry_points
        if EXTENSIONS.match(point.group)
    }
    return report.Telemetry(
        api=version_of("opentelemetry-api"),
        sdk=version_of("opentelemetry-sdk"),
        extensions=tuple(sorted(extensions, key=lambda each: (each.group, each.name))),
        variables=tuple(sorted(name for name in os.environ if name.startswith("OTEL_"))),
        trace_problem=None if trace is None else _trace_problem(Path(trace)),
    )


def _trace_problem(file: Path) -> str | None:
    for package in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-json-file"):
        if version_of(package) is None:
            return f"{package} is not installed"
    if file.is_dir():
        return f"{file} is a folder"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return f"{file} cannot be written"
    return None


def read_failures(trace: str | None) -> tuple[report.Failure, ...]:
    """Return the failures that the trace file has, by mode."""
    if trace is None or not Path(trace).is_file():
        return ()
    newest: dict[str, Span] = {}
    counts: dict[str, int] = {}
    try:
        for span in Reading().files([Path(trace)]):
            if span.kind == "explained":
                counts[span.mode] = counts.get(span.mode, 0) + 1
                newest[span.mode] = max(
                    newest.get(span.mode, span), span, key=lambda each: each.started_ns
                )
    except OSError:
        return ()  # `trace_problem` says so
    return tuple(
        report.Failure(
            mode=mode,
            count=counts[mode],
            newest=datetime.fromtimestamp(span.started_ns * 1e-9).isoformat(timespec="seconds"),
            error=span.error,
            cure=settings.CURED_BY.get(mode, ""),
        )
        for mode, span in newest.items()
    )


def as_json(found: report.Report) -> str:
    """Return `found` as one JSON object."""
    return json.dumps(dataclasses.asdict(found), indent=2)
