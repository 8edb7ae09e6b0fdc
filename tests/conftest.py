"""What every test has: a tiny checkpoint, the right tokens, and what this stack is."""

import faulthandler
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The agent is tested in child interpreters; in this one its modules are only imported.
os.environ["MLX_AUTOBIND"] = "off"
faulthandler.enable()

from tests import harness, stacks  # noqa: E402 - after the variable is set

Run = Callable[..., harness.Outcome]


@pytest.fixture(scope="session")
def stack() -> stacks.Stack:
    """What the installed mlx and mlx-lm do without the agent."""
    return stacks.installed()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny random-weight checkpoint, made with the real libraries."""
    return harness.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return the right tokens by prompt: all calls one after another on one thread."""
    from mlx_autobind.cli import demo

    outcome = harness.run(
        demo.PROGRAMS,
        "reference",
        checkpoint,
        agent="none",
        folder=tmp_path_factory.mktemp("reference"),
    )
    steps: dict[str, Any] = outcome.clean()
    return {prompt: step["tokens"] for prompt, step in steps.items()}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the soak needs: a checkpoint, and the right answers without the agent."""
    from tests.soak import children

    folder = tmp_path_factory.mktemp("soak")
    children.prepare(folder)
    return folder


def documented(file: Path) -> Path:
    """Return `file`, a page or its data; skip the test where it runs without them."""
    if not file.exists():
        pytest.skip("tested without its documentation")
    return file


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return `harness.run` with a folder of this test's own."""
    return functools.partial(harness.run, folder=tmp_path)
