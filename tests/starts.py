"""How Python starts, and whether the agent is there: the table of docs/starting.md.

``python -m tests.starts`` runs every way of starting and writes the page.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import harness
from tests.harness import PROGRAMS, ROOT

PAGE = ROOT / "docs" / "starting.md"
PRESENCE = str(PROGRAMS / "presence.py")
PATIENCE_S = 60.0

Command = Callable[[str], list[str]]


@dataclasses.dataclass(frozen=True)
class Start:
    """One way to start Python.

    Attributes:
        title: as a user would say it.
        command: makes the command, given the interpreter.
        reports: how many processes have the agent looked for in them.
        serves: True if the command goes on until it is stopped.
        needs: the package that it needs.
        other: a module of another agent that has to be there as well.
        outer: what ``mlx-autobind run`` is started by, given the interpreter.
    """

    title: str
    command: Command
    reports: int = 1
    serves: bool = False
    needs: str | None = None
    other: str | None = None
    outer: Command | None = None


def script(way: str, *options: str) -> Command:
    return lambda python: [python, *options, PRESENCE, way]


def module(name: str, *arguments: str) -> Command:
    return lambda python: [python, "-m", name, *arguments]


def tool(start: str, *arguments: str) -> Command:
    """Return a command that runs a tool whose console script does `start`."""
    text = "import sys; sys.argv[0] = 'tool'; "
    return lambda python: [
        python,
        "-c",
        text + start,
        *(python if each == "python" else each for each in arguments),
    ]


OTEL = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
DDTRACE = "from ddtrace.commands.ddtrace_run import main; main()"
COVERAGE = "from coverage.cmdline import main; sys.exit(main())"
MLX = "from mlx._distributed_utils.launch import main; main()"
UVICORN = ("--app-dir", str(PROGRAMS), "--port", "0", "--log-level", "error")
GUNICORN = ("--chdir", str(PROGRAMS), "--bind", "127.0.0.1:0", "--log-level", "error")

STARTS = (
    Start("`python app.py`", script("here")),
    Start("`python -m app`", module("presence", "here")),
    Start("`python -E app.py`", script("here", "-E")),
    Start("`python -I app.py`", script("here", "-I")),
    Start("`python -S app.py`", script("here", "-S")),
    Start("a child by `subprocess`", script("subprocess")),
    Start("a child with an environment of its own", script("cleared")),
    Start("`multiprocessing`, fork", script("fork")),
    Start("`multiprocessing`, spawn", script("spawn")),
    Start("`multiprocessing`, forkserver", script("forkserver")),
    Start("`ProcessPoolExecutor`", script("pool")),
    Start("uvicorn", module("uvicorn", "presence:asgi", *UVICORN), serves=True, needs="uvicorn"),
    Start(
        "uvicorn --reload",
        module("uvicorn", "presence:asgi", *UVICORN, "--reload"),
        serves=True,
        needs="uvicorn",
    ),
    Start(
        "uvicorn --workers 2",
        module("uvicorn", "presence:asgi", *UVICORN, "--workers", "2"),
        reports=2,
        serves=True,
        needs="uvicorn",
    ),
    Start(
        "gunicorn, two sync workers",
        module("gunicorn", "presence:application", *GUNICORN, "--workers", "2"),
        reports=2,
        serves=True,
        needs="gunicorn",
    ),
    Start(
        "gunicorn, two threaded workers",
        module("gunicorn", "presence:application", *GUNICORN, "-w", "2", "--threads", "2"),
        reports=2,
        serves=True,
        needs="gunicorn",
    ),
    Start(
        "gunicorn, two uvicorn workers",
        module(
            "gunicorn", "presence:asgi", *GUNICORN, "-w", "2", "-k", "uvicorn_worker.UvicornWorker"
        ),
        reports=2,
        serves=True,
        needs="uvicorn_worker",
    ),
    Start(
        "gunicorn --preload",
        module("gunicorn", "presence:application", *GUNICORN, "--preload"),
        serves=True,
        needs="gunicorn",
    ),
    Start("a Jupyter kernel", script("kernel"), needs="ipykernel"),
    Start(
        "`mlx.launch -n 2`",
        tool(MLX, "-n", "2", "--python", "python", PRESENCE, "here"),
        reports=2,
        needs="mlx",
    ),
    Start(
        "`opentelemetry-instrument python app.py`",
        tool(OTEL, "python", PRESENCE, "here"),
        needs="opentelemetry.instrumentation",
        other="opentelemetry.sdk.trace",
    ),
    Start(
        "`opentelemetry-instrument` of `mlx-autobind run`",
        script("here"),
        needs="opentelemetry.instrumentation",
        other="opentelemetry.sdk.trace",
        outer=tool(OTEL, "python"),
    ),
    Start(
        "`ddtrace-run python app.py`",
        tool(DDTRACE, "python", PRESENCE, "here"),
        needs="ddtrace",
        other="ddtrace",
    ),
    Start(
        "`ddtrace-run` of `mlx-autobind run`",
        script("here"),
        needs="ddtrace",
        other="ddtrace",
        outer=tool(DDTRACE, "python"),
    ),
    Start(
        "`coverage run app.py`",
        tool(COVERAGE, "run", PRESENCE, "here"),
        needs="coverage",
        other="coverage",
    ),
    Start(
        "`coverage run` of `mlx-autobind run`",
        script("here"),
        needs="coverage",
        outer=tool(COVERAGE, "run"),
    ),
)

# How the agent is enabled: the column of the table, and how a command is started in it.
RUN = "`mlx-autobind run`"
HOOK = "`mlx-autobind install-hook`"
WAYS = (RUN, HOOK)


def environment(folder: Path, way: str) -> str:
    """Make a virtual environment that sees all that this one has; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    seen = [each for each in sys.path if each.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({each!r})\n" for each in seen]
    (site / "base.pth").write_text("".join(lines))
    python = str(folder / "bin" / "python")
    if way == HOOK:
        subprocess.run([python, "-m", "mlx_autobind", "install-hook"], check=True)
    return python


def start(each: Start, way: str, python: str, folder: Path) -> list[dict[str, Any]]:
    """Start `each` in the way `way`, and return what its processes have reported."""
    command = each.command(python)
    launcher = ["-m", "mlx_autobind", "run", "--"] if way == RUN else []
    if each.outer is not None:
        command = [*each.outer(python), *launcher, *command[0 if launcher else 1 :]]
    elif launcher:
        command = [python, *launcher, *command]
    env = harness.environ({"PRESENCE": str(folder), "DD_TRACE_ENABLED": "false"})
    env["COVERAGE_FILE"] = str(folder / "coverage")
    env["OTEL_TRACES_EXPORTER"] = env["OTEL_METRICS_EXPORTER"] = env["OTEL_LOGS_EXPORTER"] = "none"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=PROGRAMS,
            start_new_session=True,
        )
        try:
            _wait(process, each, folder)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_S)
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert len(found) == each.reports, (folder / "output").read_text()
    return found


def _wait(process: "subprocess.Popen[bytes]", each: Start, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        # A file is the only sign that a worker gives.
        if each.serves and len(list(folder.glob("*.json"))) >= each.reports:
            return
        if process.poll() is not None:
            return
        time.sleep(0.02)


def cell(each: Start, found: Sequence[dict[str, Any]]) -> str:
    """Return what the table says of the processes that `each` has started."""
    counts = {process["finders"] for process in found}
    if counts == {0}:
        return "no"
    if counts != {1} or any(process["bootstrap"] > 1 for process in found):
        return f"wrong: {found}"
    if each.other is not None and not all(each.other in process["others"] for process in found):
        return f"without {each.other}"
    return "yes"


# Why the agent is not there, below the table.
REASONS = {
    ("`python -E app.py`", RUN): "Python does not look at PYTHONPATH; `run` says so",
    ("`python -I app.py`", RUN): "Python does not look at PYTHONPATH; `run` says so",
    ("`python -S app.py`", RUN): "Python runs nothing at its start; `run` says so",
    ("`python -S app.py`", HOOK): "Python runs nothing at its start",
    ("a child with an environment of its own", RUN): "PYTHONPATH does not reach it",
}

HEAD = """# How Python starts

Where the agent is, by how a Python is started. Generated by `python -m tests.starts`, which starts
each with the real tool and looks for the agent in every process that comes of it;
`tests/test_starts.py` does so again and compares.
"""


def page(cells: dict[tuple[str, str], str]) -> str:
    """Return the page that says `cells`, by title and way."""
    lines = [HEAD, f"| | {' | '.join(WAYS)} |", "|---" * (len(WAYS) + 1) + "|"]
    notes: list[str] = []
    for each in STARTS:
        row = [each.title]
        for way in WAYS:
            said = cells[each.title, way]
            reason = REASONS.get((each.title, way)) if said == "no" else None
            if reason is not None:
                if reason not in notes:
                    notes.append(reason)
                said = f"no ({notes.index(reason) + 1})"
            row.append(said)
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", *(f"{at}. {note}." for at, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


def main() -> None:
    """Run every way of starting and write the page."""
    cells: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            python = environment(Path(folder) / way.strip("`"), way)
            for at, each in enumerate(STARTS):
                own = Path(folder) / f"{way.strip('`')} {at}"
                own.mkdir()
                cells[each.title, way] = cell(each, start(each, way, python, own))
                print(f"{way}: {each.title}: {cells[each.title, way]}", file=sys.stderr)
    PAGE.write_text(page(cells))


if __name__ == "__main__":
    main()
