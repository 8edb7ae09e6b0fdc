"""The example: its folder on PYTHONPATH, and every Python from there is under the agent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import harness

ASK = "import sys; print('mlx_autobind' in sys.modules, *getattr(sys, 'ran', []))"


def start(*path: Path | str, options: tuple[str, ...] = (), ask: str = ASK) -> tuple[str, str]:
    """Start Python with `path` on PYTHONPATH; return what it printed and its stderr."""
    env = harness.environ({"PYTHONPATH": os.pathsep.join(map(str, path))})
    done = subprocess.run(
        [sys.executable, *options, "-c", ask], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout.strip(), done.stderr


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Return a folder with a sitecustomize of the user's own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.ran = ['own', __name__]\n")
    return tmp_path / "own"


def test_alone() -> None:
    assert start(harness.SITECUSTOMIZE) == ("True", "")


def test_the_next_one_runs_as_well(others: Path) -> None:
    assert start(harness.SITECUSTOMIZE, others) == ("True own sitecustomize", "")
    assert start(f"{harness.SITECUSTOMIZE}/", others) == ("True own sitecustomize", "")


def test_behind_another_it_does_not_run(others: Path) -> None:
    # Python runs the first one alone, and that one does not know of ours.
    assert start(others, harness.SITECUSTOMIZE) == ("False own sitecustomize", "")


def test_the_next_one_may_be_a_package(tmp_path: Path) -> None:
    package = tmp_path / "own" / "sitecustomize"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import sys\nsys.ran = ['package']\n")
    assert start(harness.SITECUSTOMIZE, tmp_path / "own") == ("True package", "")


def test_the_folder_twice(others: Path) -> None:
    paths = (harness.SITECUSTOMIZE, harness.SITECUSTOMIZE, others)
    assert start(*paths) == ("True own sitecustomize", "")


def test_an_error_of_the_next_one_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    printed, stderr = start(harness.SITECUSTOMIZE, tmp_path)
    assert printed == "True"
    assert start(tmp_path)[1] == stderr
    assert "ZeroDivisionError" in stderr


@pytest.mark.parametrize(
    ("broken", "reason"),
    [("1 / 0", "ZeroDivisionError"), ("raise ImportError('not installed')", "not installed")],
)
def test_one_line_if_the_agent_fails(
    broken: str, reason: str, tmp_path: Path, others: Path
) -> None:
    package = tmp_path / "broken" / "mlx_autobind"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(broken)
    printed, stderr = start(harness.SITECUSTOMIZE, tmp_path / "broken", others)
    assert printed.endswith("own sitecustomize")
    assert stderr.startswith("mlx_autobind is not active: ")
    assert reason in stderr
    assert stderr.count("\n") == 1


def test_children_are_under_the_agent() -> None:
    ask = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    assert start(harness.SITECUSTOMIZE, ask=ask) == ("True", "")


def test_a_copy_of_the_file_is_enough(tmp_path: Path) -> None:
    shutil.copy(harness.SITECUSTOMIZE / "sitecustomize.py", tmp_path)
    assert start(tmp_path) == ("True", "")


@pytest.mark.parametrize("options", [("-E",), ("-I",), ("-S",)])
def test_where_python_looks_at_no_sitecustomize(options: tuple[str, ...]) -> None:
    printed, stderr = start(harness.SITECUSTOMIZE, options=options)
    assert (printed, stderr) == ("False", "")
