"""Start a program in a child process, without or with the agent, and read what it left."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Where a child leaves its records.
RECORDS = "MLX_AUTOBIND_CHILD_RECORDS"

# Options of the interpreter that change what runs as it starts, by their name in sys.flags,
# and what they do. Not -P: it changes nothing of that.
OPTIONS = (
    ("isolated", "-I", "PYTHONPATH and the user's own site-packages are ignored"),
    ("ignore_environment", "-E", "PYTHONPATH is ignored"),
    ("no_site", "-S", "no sitecustomize runs, no .pth file, and there are no site-packages"),
    ("no_user_site", "-s", "the user's own site-packages are ignored"),
)

# `import mlx_autobind` at start-up, then the program as `python PROGRAM` or
# `python -m MODULE` would run it.
WITH_AGENT = f"""
import atexit, dataclasses, json, os, runpy, signal, sys
# A job that a shell runs in the background ignores it, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
import mlx_autobind
def leave(path=os.environ.pop("{RECORDS}")):
    with open(path, "w") as file:
        json.dump([dataclasses.asdict(record) for record in mlx_autobind.rebinds()], file)
atexit.register(leave)
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Outcome:
    """What became of a child process.

    Attributes:
        code: its exit code, negative for a signal; None if it ran out of time.
        records: its records as dicts, oldest first; empty without the agent.
    """

    code: int | None
    stdout: str
    stderr: str
    records: list[dict[str, Any]] = field(default_factory=list)

    def result(self) -> Any:
        """Return the JSON value on the last line of stdout; None if there is none."""
        lines = self.stdout.splitlines()
        try:
            return json.loads(lines[-1])
        except (IndexError, ValueError):
            return None


def options() -> tuple[str, ...]:
    """Return those of `OPTIONS` that this interpreter was started with."""
    if sys.flags.isolated:  # which sets -E and -s as well
        return ("-I", "-S") if sys.flags.no_site else ("-I",)
    return tuple(option for name, option, _effect in OPTIONS if getattr(sys.flags, name))


class Child:
    """A started program, by the interpreter and the `options` of this process.

    Use as a context manager: it is killed if it still runs.
    """

    def __init__(
        self, command: Sequence[str], *, agent: bool, environ: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mlx-autobind-")
        self._records = Path(self._folder.name) / "records.json"
        env = {
            **{name: value for name, value in os.environ.items() if name != "MLX_AUTOBIND"},
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **(environ or {}),
        }
        start = [sys.executable, *options()]
        if agent:
            env[RECORDS] = str(self._records)
            start += ["-c", WITH_AGENT]
        self.process = subprocess.Popen(
            [*start, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._folder.cleanup()

    def finish(self, timeout: float) -> Outcome:
        """Wait for the program, at most `timeout` seconds, and return what became of it."""
        try:
            stdout, stderr = self.process.communicate(timeout=timeout)
            code: int | None = self.process.returncode
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            code = None
        records = json.loads(self._records.read_text()) if self._records.exists() else []
        return Outcome(code, stdout, stderr, records)


def run(
    command: Sequence[str],
    *,
    agent: bool,
    timeout: float,
    environ: Mapping[str, str] | None = None,
) -> Outcome:
    """Run ``python COMMAND…`` in a child process, at most `timeout` seconds."""
    with Child(command, agent=agent, environ=environ) as child:
        return child.finish(timeout)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
