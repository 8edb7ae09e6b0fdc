"""``mlx-autobind run``: the command as it is without, and the agent in it."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import run
from mlx_autobind.cli.run import environment, isolated
from tests import harness
from tests.test_scenarios import Reference, wrong

SEEN = """
import json, os, sys
import mlx_autobind
print(json.dumps({
    "agent": mlx_autobind.status().installed,
    "settings": {name: value for name, value in os.environ.items() if "MLX_AUTOBIND" in name},
    "path": os.environ["PYTHONPATH"].split(os.pathsep),
    "arguments": sys.argv[1:],
    "input": sys.stdin.read(),
}))
"""

BOOTSTRAP = str(harness.installed() / "bootstrap")


def launch(
    *arguments: str, env: dict[str, str] | None = None, text: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_autobind", "run", *arguments],
        input=text,
        capture_output=True,
        text=True,
        env=harness.environ(env),
        # Not beside the sources, which `-m` would find before the package that is installed.
        cwd=cwd or sys.prefix,
        timeout=60,
        check=False,
    )


def seen(*arguments: str, **more: Any) -> dict[str, Any]:
    done = launch(*arguments, **more)
    assert done.stderr == ""
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(SEEN)
    return path


def test_a_command_a_script_and_a_module(script: Path) -> None:
    as_module = {"cwd": script.parent}
    for command, more in (
        ([sys.executable, str(script)], {}),
        (["--", sys.executable, str(script)], {}),
        ([str(script)], {}),
        (["--", str(script)], {}),
        (["-m", "app"], as_module),
        (["--", "-m", "app"], as_module),
    ):
        found = seen(*command, "--mode", "-x", "--", "y z", text="some input", **more)
        assert found["agent"] is True
        assert found["path"] == [BOOTSTRAP]
        assert found["arguments"] == ["--mode", "-x", "--", "y z"]
        assert found["input"] == "some input"
        assert found["settings"] == {}


def test_the_settings(script: Path) -> None:
    options = ["--mode", "owner", "--modules", "a.b,c", "--records", "7", "--trace", "t.jsonl"]
    found = seen(*options, "--generations", "--strict", str(script), cwd=script.parent)
    assert found["settings"] == {
        "MLX_AUTOBIND_MODE": "owner",
        "MLX_AUTOBIND_MODULES": "a.b,c",
        "MLX_AUTOBIND_RECORDS": "7",
        "MLX_AUTOBIND_TRACE": str(script.parent / "t.jsonl"),
        "MLX_AUTOBIND_GENERATIONS": "on",
        "MLX_AUTOBIND_STRICT": "on",
    }
    given = {"MLX_AUTOBIND_MODE": "shared", "MLX_AUTOBIND_RECORDS": "5"}
    found = seen("--mode", "owner", str(script), env=given)
    assert found["settings"] == {**given, "MLX_AUTOBIND_MODE": "owner"}


def test_it_can_be_switched_off(script: Path) -> None:
    found = seen(str(script), env={"MLX_AUTOBIND": "off"})
    assert found["agent"] is False


def test_the_path_of_the_user_stays_in_its_order(script: Path) -> None:
    folders = os.pathsep.join(["/a", "", "/b", BOOTSTRAP, "/a"])
    assert seen(str(script), env={"PYTHONPATH": folders})["path"] == [
        BOOTSTRAP,
        "/a",
        "",
        "/b",
        "/a",
    ]
    # An empty path is none: an empty part of one is the folder that one is in.
    assert environment({"PYTHONPATH": ""}, {})["PYTHONPATH"] == run.BOOTSTRAP


def test_run_inside_run(script: Path) -> None:
    inner = [sys.executable, "-m", "mlx_autobind", "run", "--mode", "owner", str(script)]
    found = seen("--mode", "shared", *inner)
    assert found["path"] == [BOOTSTRAP]
    assert found["settings"] == {"MLX_AUTOBIND_MODE": "owner"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such-command"], 127, "no-such-command: command not found"),
        (["./missing.py"], 127, "./missing.py: No such file or directory"),
        (["/"], 126, "/: Permission denied"),
        (["./plain"], 126, "./plain: Permission denied"),
        ([], 2, "error: COMMAND is missing"),
        (["--"], 2, "error: COMMAND is missing"),
        (["-m"], 2, "error: COMMAND is missing"),
        (["--mode", "fast", "true"], 2, "MLX_AUTOBIND_MODE='fast': allowed is thread or owner"),
        (["--records", "0", "true"], 2, "MLX_AUTOBIND_RECORDS='0': allowed is a whole number"),
        (["--speed", "true"], 2, "unrecognized arguments: --speed"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    done = launch(*arguments, cwd=tmp_path)
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert lines[0].startswith("usage: mlx-autobind run")
    assert message in lines[-1]
    assert done.stdout == ""


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code(code: int) -> None:
    assert launch("sh", "-c", f"exit {code}").returncode == code


def test_a_signal_reaches_the_command_itself() -> None:
    """There is no process in between that could swallow it, nor one that outlives it."""
    text = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-m", "mlx_autobind", "run", sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        text=True,
        env=harness.environ(),
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_a_broken_pipe_ends_the_command_as_it_does_without() -> None:
    """Python ignores SIGPIPE, and what is ignored is inherited."""
    command = f"{sys.executable} -m mlx_autobind run yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=harness.environ(), check=True
    )
    assert done.stdout.split() == ["y", str(128 + signal.SIGPIPE)]
    assert done.stderr == ""


def test_the_terminal_is_the_commands() -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "mlx_autobind", "run", "sh", "-c", "test -t 0 && stty size"]
    subprocess.run(["stty", "rows", "12", "cols", "34"], stdin=child, check=True)
    done = subprocess.run(
        command, stdin=child, capture_output=True, text=True, env=harness.environ(), check=False
    )
    os.close(parent)
    os.close(child)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "12 34", "")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("python app.py -I", ""),
        ("python -I app.py", "-I"),
        ("python3.11 -u -sE -m app", "-E"),
        ("/usr/bin/python3 -W error -X dev -S app.py", "-S"),
        ("python -c -I", ""),
        ("python -Werror -uc pass -I", ""),
        ("python -m app -I", ""),
        ("uvicorn -I", ""),
        ("python", ""),
    ],
)
def test_a_python_without_sitecustomize_is_told(command: str, option: str) -> None:
    assert isolated(command.split()) == option


def test_told() -> None:
    text = "import sys; print('mlx_autobind' in sys.modules)"
    done = launch(sys.executable, "-I", "-c", text)
    assert done.stdout == "False\n"
    assert done.stderr.count("\n") == 1
    assert "the agent will not be there" in done.stderr
    assert "-I does not look at PYTHONPATH" in done.stderr


OTHER = """
import sys
sys.ran = ["own", __name__]
"""


def test_the_users_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER)
    text = "import sys; print('mlx_autobind' in sys.modules, *sys.ran)"
    done = launch(sys.executable, "-c", text, env={"PYTHONPATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("True own sitecustomize\n", "")


@pytest.mark.parametrize("mlx", [True, False])
def test_a_python_without_the_package(mlx: bool, tmp_path: Path) -> None:
    """Is told of only where there is something that the agent would be for."""
    site = tmp_path / "site"
    site.mkdir()
    if mlx:
        (site / "mlx").mkdir()
        (site / "mlx" / "__init__.py").touch()
    start = (
        f"import sys, runpy; sys.path[:] = [{BOOTSTRAP!r}, {str(site)!r}, "
        "*(each for each in sys.path if not each.endswith('site-packages') "
        f"and each != {str(harness.ROOT)!r})]; "
        "sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in repr(each)]; "
        f"runpy.run_path({BOOTSTRAP + '/sitecustomize.py'!r}, run_name='sitecustomize')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", start], capture_output=True, text=True, check=True
    )
    told = "mlx_autobind is not active: ModuleNotFoundError: No module named 'mlx_autobind'\n"
    assert done.stderr == (told if mlx else "")


def test_the_example_is_the_same() -> None:
    """But for what it says of itself."""
    texts = [
        path.read_text().split('"""', 2)[2]
        for path in (
            Path(BOOTSTRAP) / "sitecustomize.py",
            harness.SITECUSTOMIZE / "sitecustomize.py",
        )
    ]
    assert texts[0] == texts[1]


def test_a_program_that_fails_without_is_right(checkpoint: Path, reference: Reference) -> None:
    from mlx_autobind.cli import demo

    done = launch(str(demo.PROGRAMS), "S2", str(checkpoint))
    assert (done.returncode, done.stderr) == (0, "")
    assert wrong(json.loads(done.stdout), reference) == {}
