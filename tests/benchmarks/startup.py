"""What the agent costs an interpreter that never sees MLX, and one that imports mlx-lm."""

import importlib.metadata
import os
import re
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlx_autobind.cli import hook
from tests.benchmarks.measure import Budget, Row, Take, cannot_count, interleave, rows
from tests.benchmarks.scale import Scale
from tests.harness import ROOT, SITECUSTOMIZE, environ

TITLE = "Start-up"
TEXT = """\
A whole process, from its start to its exit: `python -c pass` in a virtual environment that has
nothing of its own, with the installed packages on its path. The peers do more than the agent
does; they are here because they are started in the same way. No exporter and no instrumentation
is on in any of them."""

PACKAGES = sysconfig.get_path("purelib")
EAGER = "import wrapt, opentelemetry.trace\n"
HOOK_FILES = {file.name: file.text for file in hook.files()}
# The file that it installs.
AUTOWRAPT_FILES = {"autowrapt-init.pth": "import autowrapt; autowrapt.init()\n"}
BARE = "bare"
BUDGET = Budget(1.2)


@dataclass(frozen=True, slots=True)
class Start:
    """One way to start Python.

    Attributes:
        sitecustomize: the text of one; None for none.
        path: folders in front of the others on PYTHONPATH.
        files: what is installed in site-packages.
        through: a module that starts it, of another agent.
        env: further variables.
        needs: the package that it is about.
    """

    sitecustomize: str | None = None
    path: tuple[Path, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    through: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    needs: str | None = None


def _quiet_opentelemetry() -> dict[str, str]:
    names = importlib.metadata.entry_points(group="opentelemetry_instrumentor")
    none = dict.fromkeys(("TRACES", "METRICS", "LOGS"), "none")
    return {
        **{f"OTEL_{signal}_EXPORTER": value for signal, value in none.items()},
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(sorted(each.name for each in names)),
    }


AGENT = "the agent, by `sitecustomize`"
HOOK = "the agent, by its start-up hook"
STARTS = {
    BARE: Start(),
    "an empty `sitecustomize`": Start(sitecustomize=""),
    AGENT: Start(path=(SITECUSTOMIZE,)),
    HOOK: Start(files=HOOK_FILES),
    "wrapt and the OpenTelemetry API, imported at once": Start(sitecustomize=EAGER),
    "autowrapt, with the agent's hooks": Start(
        files=AUTOWRAPT_FILES, env={"AUTOWRAPT_BOOTSTRAP": "mlx_autobind"}, needs="autowrapt"
    ),
    "`opentelemetry-instrument`": Start(
        through=("-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()"),
        env=_quiet_opentelemetry(),
        needs="opentelemetry-distro",
    ),
    "`ddtrace-run`": Start(
        through=("-m", "ddtrace.commands.ddtrace_run"),
        env={"DD_TRACE_ENABLED": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"},
        needs="ddtrace",
    ),
}


class Starter:
    """Starts Python in the ways of `STARTS`, in environments that it makes in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _python(self, start: Start) -> str:
        folder = self._new()
        venv.EnvBuilder(symlinks=True).create(folder)
        (site,) = folder.glob("lib/python*/site-packages")
        for name, text in start.files.items():
            (site / name).write_text(text)
        return str(folder / "bin" / "python")

    def command(self, start: Start, program: str) -> tuple[list[str], dict[str, str]]:
        """Return the command that runs `program`, and its environment."""
        path = [*start.path, ROOT, PACKAGES]
        if start.sitecustomize is not None:
            site = self._new()
            (site / "sitecustomize.py").write_text(start.sitecustomize)
            path.insert(0, site)
        python = self._python(start)
        env = {**environ(), "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONHASHSEED": "0"}
        # Byte code is written and used, as in any installation.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        through = [python, *start.through] if start.through else []
        return [*through, python, "-c", program], {**env, **start.env}

    def take(self, start: Start, program: str = "pass") -> Take:
        """Return what gives the seconds of one start."""
        command, env = self.command(start, program)

        def seconds() -> float:
            began = time.perf_counter()
            subprocess.run(command, env=env, check=True, stderr=subprocess.DEVNULL)
            return time.perf_counter() - began

        return seconds

    def counted(self, start: Start) -> Take:
        """Return what gives the instructions of one start."""
        command, env = self.command(start, "pass")
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]

        def instructions() -> float:
            done = subprocess.run(
                [*valgrind, *command], env=env, check=True, capture_output=True, text=True
            )
            found = re.search(r"Collected : (\d+)", done.stderr)
            assert found is not None
            return float(found[1])

        return instructions


def _there(needs: str | None) -> bool:
    try:
        return needs is None or bool(importlib.metadata.version(needs))
    except importlib.metadata.PackageNotFoundError:
        return False


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each way to start Python."""
    there = {name: start for name, start in STARTS.items() if _there(start.needs)}
    with tempfile.TemporaryDirectory() as folder:
        starter = Starter(Path(folder))
        # The slow ones, whose ratio is no close call, need fewer.
        slow = {name for name, start in there.items() if start.needs is not None}
        light = {name: starter.take(each) for name, each in there.items() if name not in slow}
        found = interleave(light, scale.rounds(100))
        yield from rows(found, BARE, {AGENT: BUDGET, HOOK: BUDGET})
        heavy = {name: starter.take(there[name]) for name in (BARE, *sorted(slow))}
        yield from rows(interleave(heavy, scale.rounds(10)), BARE)
        if cannot_count() is None:
            names = (BARE, "an empty `sitecustomize`", AGENT, HOOK)
            takes: dict[str, Callable[[], float]] = {
                name: starter.counted(there[name]) for name in names
            }
            yield from rows(interleave(takes, scale.rounds(4)), BARE, unit="instructions")
        imports = {
            label: starter.take(there[name], "import mlx_lm")
            for label, name in (("`import mlx_lm`", BARE), ("`import mlx_lm`, the agent", AGENT))
        }
        yield from rows(interleave(imports, scale.rounds(8)), "`import mlx_lm`")
