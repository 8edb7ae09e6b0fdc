"""Run a program in a child interpreter, without or with the agent, and see what became of it."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
SITECUSTOMIZE = ROOT / "sitecustomize_example"
PROGRAMS = Path(__file__).resolve().parent / "programs"

# How a program comes under the agent: not at all, by `import mlx_autobind` before
# anything else, or by the sitecustomize of the example.
Agent = Literal["none", "import", "sitecustomize"]

# A wedged child is a failure of the product. It dumps its threads, then is killed.
TIMEOUT_S = 120.0

LEAVE = """
import atexit, dataclasses, faulthandler, json, os, signal, sys
# A job that a shell runs in the background ignores it, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
faulthandler.dump_traceback_later({timeout})
def _leave(path={report!r}):
    import mlx_autobind
    found = {{"records": [dataclasses.asdict(record) for record in mlx_autobind.rebinds()]}}
    exporter = globals().get("_exporter")
    if exporter is not None:
        found["spans"] = [json.loads(span.to_json()) | {{
            "scope": span.instrumentation_scope.name,
            "scope_version": span.instrumentation_scope.version,
            "schema_url": span.instrumentation_scope.schema_url,
        }} for span in exporter.get_finished_spans()]
    with open(path, "w") as file:
        json.dump(found, file)
"""

WITH_SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))
trace.set_tracer_provider(_provider)
"""


@dataclasses.dataclass
class Outcome:
    """What became of a child interpreter.

    Attributes:
        code: exit code, negative for a signal; None if it ran out of time.
        result: the JSON value on the last line of stdout; None if there is none.
        records: what `rebinds()` gave as the interpreter ended.
        spans: what the SDK exported, if one was set up.
    """

    code: int | None
    stdout: str
    stderr: str
    result: Any
    records: list[dict[str, Any]]
    spans: list[dict[str, Any]]

    def clean(self) -> Any:
        """Return the result, once it is sure that nothing else came of the program."""
        assert self.code == 0, f"exit code {self.code}\n{self.stderr}"
        assert self.stderr == "", self.stderr
        return self.result


def environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without settings of ours, and with no network for the libraries."""
    kept = {name: value for name, value in os.environ.items() if "MLX_AUTOBIND" not in name}
    kept.pop("PYTHONPATH", None)
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore::UserWarning",
        **(extra or {}),
    }


@functools.cache
def installed() -> Path:
    """Return the folder of the package that children import: not always that of this process."""
    done = subprocess.run(
        [sys.executable, "-c", "import mlx_autobind; print(mlx_autobind.__file__)"],
        capture_output=True,
        text=True,
        env=environ(),
        cwd=sys.prefix,
        check=True,
    )
    return Path(done.stdout.strip()).parent


def run(
    program: str | Path,
    *arguments: object,
    agent: Agent,
    folder: Path,
    env: Mapping[str, str] | None = None,
    sdk: bool = False,
    timeout: float = TIMEOUT_S,
    python: Sequence[str] = (sys.executable,),
) -> Outcome:
    """Run `program`, a path or the text of one, in a child interpreter.

    Args:
        program: its last line of output may be a JSON value.
        arguments: its ``sys.argv[1:]``.
        agent: how the program comes under the agent.
        folder: an empty folder for what is left behind.
        env: variables on top of `environ`.
        sdk: have an OpenTelemetry SDK in the process, set up after the agent.
        timeout: seconds.
        python: the interpreter and its options.
    """
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    path = program if isinstance(program, Path) else folder / "program.py"
    if isinstance(program, str):
        path.write_text(textwrap.dedent(program))
    child = environ(env)
    start = ["import mlx_autobind"] if agent == "import" else []
    if agent != "none":
        start += [LEAVE.format(timeout=timeout - 5, report=str(report)), "atexit.register(_leave)"]
    if agent == "sitecustomize":
        paths = [str(SITECUSTOMIZE), child.get("PYTHONPATH", "")]
        child["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if sdk:
        start.append(WITH_SDK)
    start.append(
        "import runpy, sys; del sys.argv[0]; sys.path[0:0] = [sys.argv[0].rpartition('/')[0]]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [*python, "-c", "\n".join(start), str(path), *map(str, arguments)]
    if agent == "none" and not sdk:
        command = [*python, str(path), *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child,
        cwd=folder,
    )
    code: int | None
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        code = None
    found = json.loads(report.read_text()) if report.exists() else {}
    return Outcome(
        code,
        stdout,
        stderr,
        _last_json(stdout),
        found.get("records", []),
        found.get("spans", []),
    )


# For programs that import parts of the agent and are not to be under it.
OFF = {"MLX_AUTOBIND": "off"}

MAKE_CHECKPOINT = """
    import sys
    from pathlib import Path
    from mlx_autobind.cli import checkpoint
    checkpoint.make(Path(sys.argv[1]))
"""


def make_checkpoint(folder: Path) -> Path:
    """Make a tiny random-weight checkpoint with the real libraries, and return where it is."""
    tiny = folder / "tiny"
    made = run(MAKE_CHECKPOINT, tiny, agent="none", folder=folder, env=OFF)
    assert made.code == 0, made.stderr
    return tiny


def _last_json(text: str) -> Any:
    try:
        return json.loads(text.splitlines()[-1])
    except (IndexError, ValueError):
        return None


def program(text: str) -> str:
    """Return a program that finds the helpers in ``tests/programs``."""
    return f"import sys; sys.path.insert(0, {str(PROGRAMS)!r})\n{textwrap.dedent(text)}"
