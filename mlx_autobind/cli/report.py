"""What the doctor found out, as data: the structure that ``doctor --json`` prints.

`FORMAT` is counted up when a field changes or goes; new ones may come without that.
"""

from dataclasses import dataclass
from typing import Literal

FORMAT = 1

Level = Literal["fine", "do", "broken", "note"]

EXIT_CODES: dict[Level, int] = {"fine": 0, "note": 0, "do": 1, "broken": 2}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that the doctor and all its children run in.

    Attributes:
        executable: its path.
        version: such as ``3.11.9``.
        platform: system and machine.
        options: those of -E, -I, -S and -s that it was started with.
        effects: what each of them does, a sentence each.
    """

    executable: str
    version: str
    platform: str
    options: tuple[str, ...]
    effects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that matters here.

    Attributes:
        name: as it is installed by.
        version: None if it is not installed.
        tested: the releases that the agent was tested with; None if that is not said.
        outside: True if the installed one is none of them.
    """

    name: str
    version: str | None
    tested: str | None = None
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the agent in the environment.

    Attributes:
        variables: what begins with ``MLX_AUTOBIND``, and its value.
        enabled: False if ``MLX_AUTOBIND=off``.
        mode: the mode that a process with these settings has.
        modules: further modules that hold a handle.
        trace: the file of ``MLX_AUTOBIND_TRACE``; None if there is none.
        problems: a sentence for each value that cannot be used.
    """

    variables: dict[str, str]
    enabled: bool
    mode: str
    modules: tuple[str, ...]
    trace: str | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One entry of ``PYTHONPATH``: `state` is ``folder``, ``file`` or ``missing``."""

    path: str
    state: Literal["folder", "file", "missing"]


@dataclass(frozen=True, slots=True)
class Customize:
    """A ``sitecustomize`` on the path.

    Attributes:
        file: its path.
        runs: True if the interpreter runs it, or the one before it does.
        agent: True if its text names ``mlx_autobind``.
    """

    file: str
    runs: bool
    agent: bool


@dataclass(frozen=True, slots=True)
class Start:
    """How a child of this interpreter, ``python -c``, starts.

    Attributes:
        pythonpath: ``PYTHONPATH``, in order.
        customizes: every ``sitecustomize`` on its path, in order.
        pth_files: ``.pth`` files of its site-packages that import the agent.
        imported: True if it has imported the agent by itself.
        installed: True if the agent is active in it.
        agent_file: where its agent is; None if it has none.
        exit: how it ended.
        stderr: what it printed there.
    """

    pythonpath: tuple[PathEntry, ...]
    customizes: tuple[Customize, ...]
    pth_files: tuple[str, ...]
    imported: bool
    installed: bool
    agent_file: str | None
    exit: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Mlx:
    """What mlx does in a child, without the agent.

    Attributes:
        installed: False if there is no such package.
        importable: True if ``import mlx.core`` works.
        error: why it does not, or how the child ended; None if it does.
        version: None if it is not known.
        file: of ``mlx.core``.
        device: the default device.
        binds: True if a thread cannot use the stream of another, which was tried; None if
            it could not be.
        evidence: the error it got; None if it got none.
        acts: True if the agent is not inert on this mlx.
        unsafe_streams: True if it has streams that any thread may use (``shared`` mode).
    """

    installed: bool
    importable: bool
    error: str | None
    version: str | None = None
    file: str | None = None
    device: str | None = None
    binds: bool | None = None
    evidence: str | None = None
    acts: bool = False
    unsafe_streams: bool = False


@dataclass(frozen=True, slots=True)
class Handle:
    """A place that holds a generation stream, and what the agent does to it."""

    where: str
    action: str


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """An entry point that the agent wraps, and of which kind of `mlx_autobind.targets` it is."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Library:
    """A library, imported under the agent in a child of its own.

    Attributes:
        name: of the package, such as ``mlx_lm``.
        imported: True if it could be.
        error: why it could not; None if it could.
        without_agent: True if it can be imported without the agent; None if that was not
            tried, since it can be with it.
        missing: modules of it that could not be imported, and why.
        mode: the mode in force.
        inert: why nothing is patched; None if something is.
        handles: every one that was found.
        entry_points: every one that was found.
        problems: settings that could not be used.
        unprotected: what the mode leaves to the program's own care.
        stderr: what the child printed there.
    """

    name: str
    imported: bool
    error: str | None
    without_agent: bool | None = None
    missing: tuple[str, ...] = ()
    mode: str | None = None
    inert: str | None = None
    handles: tuple[Handle, ...] = ()
    entry_points: tuple[EntryPoint, ...] = ()
    problems: tuple[str, ...] = ()
    unprotected: str | None = None
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point of OpenTelemetry's that a distribution registers."""

    group: str
    name: str
    value: str
    package: str


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Which OpenTelemetry is there.

    Attributes:
        api: version of opentelemetry-api.
        sdk: version of opentelemetry-sdk; None if there is none.
        extensions: exporters, configurators and distros.
        variables: names of the ``OTEL_*`` variables that are set. Their values may be
            secrets and are not shown.
        trace_problem: why nothing can be written to ``MLX_AUTOBIND_TRACE``; None if
            something can or it is not set.
    """

    api: str | None
    sdk: str | None
    extensions: tuple[Extension, ...]
    variables: tuple[str, ...]
    trace_problem: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """The live probe, run once in a child.

    Attributes:
        mode: the agent's mode; None without the agent.
        verdict: ``right``, or what was wrong.
        right: True if it is.
        exit: how the child ended.
        seconds: that it took.
        bound: the threads that the agent bound, by name.
        stderr: the last line of it; empty if there is none.
    """

    mode: str | None
    verdict: str
    right: bool
    exit: str
    seconds: float
    bound: tuple[str, ...]
    stderr: str


@dataclass(frozen=True, slots=True)
class Probe:
    """The live probe.

    Attributes:
        what: what it does.
        left_out: what was not probed, and why; None if nothing.
        error: why it could not be run; None if it could.
        runs: without the agent, with it in the mode of the settings, and, if that failed, in
            the other modes.
    """

    what: str
    left_out: str | None
    error: str | None
    runs: tuple[Run, ...]

    @property
    def without(self) -> Run | None:
        """The run without the agent."""
        return next((run for run in self.runs if run.mode is None), None)

    @property
    def with_agent(self) -> Run | None:
        """The run with the agent in the mode of the settings."""
        return next((run for run in self.runs if run.mode is not None), None)

    @property
    def cured_by(self) -> tuple[str, ...]:
        """The other modes in which it is right."""
        return tuple(
            run.mode
            for run in self.runs
            if run.right and run.mode is not None and run is not self.with_agent
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures that the agent explained, all in one mode, in the trace file.

    Attributes:
        mode: the mode of the processes that they happened in.
        count: how many there are.
        newest: when the last one was, in local time.
        error: what was wrong with the last one.
        cure: which other mode would have cured it.
    """

    mode: str
    count: int
    newest: str
    error: str
    cure: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the doctor found out."""

    interpreter: Interpreter
    packages: tuple[Package, ...]
    configuration: Configuration
    start: Start
    mlx: Mlx
    libraries: tuple[Library, ...]
    telemetry: Telemetry
    probe: Probe | None
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know: `text` says what, and `step` what to do about it (may be empty)."""

    level: Level
    text: str
    step: str

    @property
    def sentence(self) -> str:
        """Both in one sentence, with the level."""
        return f"{self.level}: {self.text}{': ' if self.step else ''}{self.step}"


@dataclass(frozen=True, slots=True)
class Report:
    """What ``doctor --json`` prints.

    Attributes:
        format: `FORMAT`.
        level: the worst of the findings; ``fine`` if there is nothing to do.
        verdict: one sentence, with the next step.
        exit_code: of the command: 0 fine, 1 something to do, 2 broken.
        findings: the most urgent first.
        facts: what they come from.
    """

    format: int
    level: Level
    verdict: str
    exit_code: int
    findings: tuple[Finding, ...]
    facts: Facts
