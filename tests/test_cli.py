"""The command line, above all the demo."""

import os
import re
import signal
import subprocess
import sys

import pytest

import mlx_autobind
from mlx_autobind.cli import COMMANDS, demo
from mlx_autobind.cli.launch import Outcome
from tests import harness
from tests.stacks import Stack


def command(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run ``python -m mlx_autobind`` with `arguments`."""
    return subprocess.run(
        [sys.executable, "-m", "mlx_autobind", *arguments],
        capture_output=True,
        text=True,
        env=harness.environ(),
        timeout=timeout,
        check=False,
    )


@pytest.mark.timeout(600)
def test_demo(stack: Stack) -> None:
    done = command("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[:3].strip(): line for line in done.stdout.splitlines() if line[:1] == "S"}
    assert set(rows) == {"S1", "S2", "S3", "S11"}
    verdicts = {
        found[1]: found[2:]
        for found in re.findall(
            r"^(S\d+) +(.+?)  +(.+?)  +(right|.+)$",
            done.stdout.partition("rebind")[0],
            re.MULTILINE,
        )
    }
    assert len(verdicts) == 4
    assert {with_agent for _without, with_agent in verdicts.values()} == {"right"}
    if stack.fails:
        assert all("right" not in without for without, _with in verdicts.values()), done.stdout
        # S11 hangs the clients of a real server.
        assert "hung" in verdicts["mlx_lm.server, streaming and not"][0]
    if not stack.inert:
        assert "BatchGenerator" in done.stdout or "stream_generate" in done.stdout
    assert done.stderr.count("\n") == 10  # a line of progress for each step


def test_demo_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mlx_autobind", "demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=harness.environ(),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("[1/10]")
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        _, said = process.communicate(timeout=60)
    assert said == "\nmlx-autobind: interrupted\n"
    assert process.returncode == 130


def test_demo_without_mlx_lm_says_what_to_install() -> None:
    text = """
import sys
sys.modules["mlx_lm"] = None
sys.argv = ["mlx-autobind", "demo"]
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mlx_lm" else find(name, *rest)
from mlx_autobind.cli import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=harness.environ(),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ("The demo needs mlx-lm: python -m pip install 'mlx-autobind[demo]'\n")


REFERENCE = {"p": {"tokens": [1, 2]}, "q": {"tokens": [3]}}


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(0, '{"a": {"prompt": "p", "tokens": [1, 2]}}', ""), "right"),
        (
            Outcome(0, '{"a": {"prompt": "p", "tokens": [1, 3]}}', ""),
            "wrong tokens in 1 of 1 steps",
        ),
        (Outcome(0, '{"a": {"prompt": "q", "error": "no"}}', ""), "1 of 1: no"),
        (Outcome(None, "", ""), "hung"),
        (Outcome(0, "", ""), "wrong tokens in 0 of 0 steps"),
        (
            Outcome(-6, '{"a": {"prompt": "p", "tokens": [1, 2]}}', "x\nterminate called\n"),
            "right tokens, then exit code -6: terminate called",
        ),
        (
            Outcome(0, '{"a": {"prompt": "p", "tokens": [1, 2]}}', "Exception ignored\n"),
            "right tokens, but on stderr: Exception ignored",
        ),
    ],
)
def test_the_demo_can_say_that_something_is_wrong(outcome: Outcome, verdict: str) -> None:
    assert demo.judge(outcome, REFERENCE) == verdict


def test_help_and_version() -> None:
    assert "COMMAND" in command("--help").stdout
    assert "checkpoint" in command("demo", "--help").stdout
    assert command("--version").stdout.strip() == mlx_autobind.__version__


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command(name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(f"usage: mlx-autobind {name} ")
    assert max(map(len, done.stdout.splitlines())) <= 100
    # What it does, and what every option is for.
    description, _, options = done.stdout.partition("\n\n")[2].partition("options:")
    assert len(description.split()) > 8
    assert "--help" in options


def test_the_documentation_names_every_command() -> None:
    pages = [harness.ROOT / "README.md", *(harness.ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    for name in COMMANDS:
        assert f"mlx-autobind {name}" in text or f"python -m mlx_autobind {name}" in text


def test_no_command_and_an_unknown_one() -> None:
    for arguments in ((), ("no-such-command",)):
        done = command(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: mlx-autobind")
