"""Other MLX libraries that have rows in the table: what breaks in them, and that it is cured."""

from pathlib import Path

import pytest

from tests.conftest import Run
from tests.harness import PROGRAMS
from tests.stacks import Stack, version
from tests.test_scenarios import NO_STREAM

# What fails without the agent, by library.
FAIL = {
    "mlx_audio": ("loaded by a worker", "the handle on a worker"),
    "mlx_embeddings": ("embeddings of a worker",),
    "mlx_whisper": ("loaded by a worker", "heard by a worker"),
}


@pytest.mark.parametrize("library", FAIL)
def test_what_crosses_threads(library: str, run: Run, tmp_path: Path, stack: Stack) -> None:
    package = library.replace("_", "-")
    if version(package) is None:
        pytest.skip(f"{package} is not installed")
    path = PROGRAMS / "other_libraries.py"
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    off = {"MLX_AUTOBIND": "off"}
    without = run(path, library, tmp_path / "without", agent="none", env=off).result
    if stack.binds_on_cpu:
        assert [name for name in FAIL[library] if NO_STREAM not in without[name]] == []
    found = run(path, library, tmp_path / "with", agent="import").clean()
    assert {name: step for name, step in found.items() if step != "right"} == {}
