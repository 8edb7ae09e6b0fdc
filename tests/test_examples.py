"""docs/examples: each as it is, started as it says, on the tiny checkpoint."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlx_autobind.cli import launch
from tests import harness
from tests.conftest import Run
from tests.harness import ROOT, program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM

EXAMPLES = ROOT / "docs" / "examples"
SCRIPTS = Path(sys.executable).parent
MAX_TOKENS = 24

Texts = dict[str, str]

RIGHT = """
    import json, mlx_lm
    from asking import PROMPTS
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    def answer(prompt, max_tokens):
        return mlx_lm.generate(model, tokenizer, prompt, max_tokens=max_tokens)
    print(json.dumps([
        {prompt: answer(prompt, int(most)) for prompt in PROMPTS[:8]} for most in sys.argv[2:]
    ]))
"""


@pytest.fixture(scope="session")
def right(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Texts]:
    """Return the right texts by prompt, by how many tokens they may have: those of one thread."""
    limits = (MAX_TOKENS, 32, 256)
    folder = tmp_path_factory.mktemp("right")
    text = program(RIGHT)
    found = harness.run(text, checkpoint, *limits, agent="none", folder=folder).clean()
    return dict(zip(limits, found, strict=True))


@dataclass(frozen=True)
class Server:
    """How a server is started and stopped.

    Attributes:
        command: its words, with the port as ``{port}``.
        stop: what a supervisor sends it.
    """

    command: str
    stop: signal.Signals


GUNICORN = "gunicorn --bind=127.0.0.1:{port} --log-level=error"
SERVERS = {
    "uvicorn": Server(
        "uvicorn --port={port} --log-level=error fastapi_app:app",
        signal.SIGINT,
    ),
    "waitress": Server(
        "waitress-serve --threads=8 --listen=127.0.0.1:{port} flask_app:app",
        signal.SIGINT,
    ),
    "gunicorn": Server(f"{GUNICORN} --threads=8 flask_app:app", signal.SIGTERM),
    "gunicorn, two workers": Server(
        f"{GUNICORN} --threads=4 --workers=2 flask_app:app", signal.SIGTERM
    ),
}

# A job that a shell runs in the background ignores SIGINT, and so do its children.
START = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
# What a server says of itself, and cannot be kept from saying.
OWN = (
    "INFO:waitress:Serving on",
    "INFO:waitress:Client disconnected",
    "WARNING:waitress.queue:Task queue depth",
)


class Served:
    """An example that a real server serves. Use as a context manager."""

    def __init__(self, server: Server, model: Path, *, agent: bool) -> None:
        self.port = launch.free_port()
        self._stop = server.stop
        script, *options = server.command.format(port=self.port).split()
        run = [str(SCRIPTS / "mlx-autobind"), "run", "--"] if agent else []
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *run, str(SCRIPTS / script), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=EXAMPLES,
            env=harness.environ({"MODEL": str(model), "PYTHONDONTWRITEBYTECODE": "1"}),
            start_new_session=True,
        )

    def __enter__(self) -> "Served":
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)  # a server gives no other sign that it has started
            else:
                break
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the server and its workers, if they still run, and read what they said."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.communicate()

    def ask(self, path: str, prompt: str, leave_after: int | None = None) -> str:
        """Return the text that came, or why none did; leave after some bytes if told to."""
        body = json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if leave_after is not None:
                return response.read(leave_after).decode()
            found = response.read().decode()
            if response.status != 200:
                return f"HTTP {response.status}"
            return str(json.loads(found)["text"]) if path == "/generate" else found
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def ask_all(self, prompts: Sequence[str]) -> list[str]:
        """Return the answers to all `prompts` at once: by turns whole and streamed."""
        paths = ["/generate", "/stream"] * len(prompts)
        with ThreadPoolExecutor(len(prompts)) as clients:
            return list(clients.map(self.ask, paths, prompts))

    def leave(self, prompts: Sequence[str]) -> None:
        """Ask for streams of all `prompts` at once, and leave each after its first piece."""
        with ThreadPoolExecutor(len(prompts)) as clients:
            list(clients.map(lambda prompt: self.ask("/stream", prompt, 3), prompts))

    def stop(self) -> tuple[int, str]:
        """Stop the server as a supervisor does; return its exit code and stderr."""
        self.process.send_signal(self._stop)
        _stdout, stderr = self.process.communicate(timeout=60)
        lines = stderr.splitlines(keepends=True)
        return self.process.returncode, "".join(line for line in lines if not line.startswith(OWN))


@pytest.mark.parametrize("name", SERVERS)
def test_a_server(name: str, checkpoint: Path, right: dict[int, Texts]) -> None:
    """Eight clients at once, then some that leave, then the eight again, then its end."""
    expected = right[MAX_TOKENS]
    prompts = list(expected)
    with Served(SERVERS[name], checkpoint, agent=True) as served:
        assert served.ask_all(prompts) == list(expected.values())
        served.leave(prompts[:3])
        assert served.ask_all(prompts) == list(expected.values())
        code, stderr = served.stop()
    assert stderr == ""
    assert code == 0


@pytest.mark.parametrize("name", ["uvicorn", "waitress"])
def test_a_server_without_the_agent(
    name: str, checkpoint: Path, right: dict[int, Texts], stack: Stack
) -> None:
    """Fails where mlx-lm holds a plain stream; elsewhere it answers, and may abort as it ends."""
    expected = right[MAX_TOKENS]
    with Served(SERVERS[name], checkpoint, agent=False) as served:
        answers = served.ask_all(list(expected))
        code, stderr = served.stop()
    if stack.fails:
        assert all(answer != text for answer, text in zip(answers, expected.values(), strict=True))
        assert NO_STREAM in stderr
        return
    assert answers == list(expected.values())
    if code != 0:
        assert code in (-signal.SIGABRT, -signal.SIGSEGV), stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_preloading_is_warned_of(checkpoint: Path, stack: Stack) -> None:
    """The worker is a fork of a process that has loaded the model: mlx may hang in there."""
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing enters it")
    server = Server(f"{GUNICORN} --preload --threads=4 flask_app:app", signal.SIGTERM)
    with Served(server, checkpoint, agent=True) as served:
        client = threading.Thread(target=served.ask, args=("/generate", "w3 w4"))
        client.start()
        assert served.process.stderr is not None
        warning = served.process.stderr.readline()
        served.kill()
        client.join()
    assert "was called in a forked child: mlx does not survive a fork" in warning


def test_a_pool_of_threads(checkpoint: Path, right: dict[int, Texts], stack: Stack) -> None:
    expected = right[256]

    def batch(*agent: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*agent, sys.executable, str(EXAMPLES / "thread_pool.py")],
            input="\n".join(expected) + "\n\n",
            capture_output=True,
            text=True,
            env=harness.environ({"MODEL": str(checkpoint)}),
            timeout=100,
            check=False,
        )

    without = batch()
    if stack.fails:
        assert without.stdout == ""
        assert NO_STREAM in without.stderr
    done = batch(str(SCRIPTS / "mlx-autobind"), "run", "--")
    if not stack.fails:
        assert without.stdout == done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers == [{"prompt": prompt, "text": text} for prompt, text in expected.items()]


# The example's own prompts are English, of which the tiny tokenizer knows no word.
NOTEBOOK = """
    import json
    import nbclient, nbformat
    from jupyter_client.manager import AsyncKernelManager
    from asking import PROMPTS
    notebook = nbformat.read(sys.argv[1], 4)
    prompts = nbformat.v4.new_code_cell(f"prompts = {PROMPTS[:4]}")
    at = next(i for i, cell in enumerate(notebook.cells) if "ThreadPool" in cell.source)
    notebook.cells.insert(at, prompts)
    for text in sys.argv[2:]:
        where, _, cell = text.partition(": ")
        notebook.cells.insert(int(where), nbformat.v4.new_code_cell(cell))
    # Not TCP, whose ports another process may take between their choice and their use.
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=100, allow_errors=True)
    client.execute(cleanup_kc=True)
    print(json.dumps([
        "".join(
            output.get("text") or output.get("evalue")
            for output in cell.outputs if output.get("name") != "stderr"
        )
        for cell in notebook.cells if cell.cell_type == "code"
    ]))
"""

# What it says of its debugger is none of ours.
QUIET_KERNEL = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def executed(run: Run, model: Path, *cells: str, **env: str) -> list[str]:
    """Return what each cell of the notebook says, run by a real kernel.

    Args:
        run: starts the program that talks to the kernel.
        model: the checkpoint.
        cells: further ones, each as ``PLACE: TEXT``.
        env: variables of the kernel.
    """
    more = {"MODEL": str(model), **QUIET_KERNEL, **env}
    arguments = (EXAMPLES / "notebook.ipynb", *cells)
    outcome = run(program(NOTEBOOK), *arguments, agent="none", env=more)
    found: list[str] = outcome.clean()
    return found


def said(texts: Texts) -> str:
    """Return what the notebook prints of the first four answers."""
    return "".join(f"{text}\n" for text in list(texts.values())[:4])


def test_the_notebook(run: Run, checkpoint: Path, right: dict[int, Texts], stack: Stack) -> None:
    agent, load, _prompts, generate, records = executed(run, checkpoint)
    assert agent == load == ""
    assert generate == said(right[32])
    assert bool(records) is not stack.inert
    for record in records.splitlines():
        assert record.startswith("Record(kind='bind'")
        assert "late=False" in record


def test_the_notebook_without_the_agent(
    run: Run, checkpoint: Path, right: dict[int, Texts], stack: Stack
) -> None:
    generate = executed(run, checkpoint, MLX_AUTOBIND="off")[3]
    if stack.fails:
        assert NO_STREAM in generate
    else:
        assert generate == said(right[32])


BEFORE = """0: import mlx_lm, os
model, tokenizer = mlx_lm.load(os.environ["MODEL"])
mlx_lm.generate(model, tokenizer, "w3 w4", max_tokens=4)
from mlx_lm import generate, stream_generate
"""


def test_a_kernel_that_has_used_mlx_lm_before(
    run: Run, checkpoint: Path, right: dict[int, Texts], stack: Stack
) -> None:
    found = executed(run, checkpoint, BEFORE, "99: print(mlx_autobind.status().late)")
    _used, _agent, _load, _prompts, generate, _records, late = found
    assert generate == said(right[32])
    assert ("mlx_lm.generate" in late) is not stack.inert
