"""A few of the soak's races: imports, first calls, installs and uninstalls at once."""

from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.settings import MODES
from tests.soak import children, imports
from tests.stacks import Stack

RACES = 4


@pytest.mark.parametrize("mode", MODES)
def test_races(mode: str, prepared: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("every mode is inert on this mlx")
    if stack.plain_handle:
        pytest.skip("while the agent is out, other threads fail as they do without it")
    if mode == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    options: dict[str, Any] = {"part": "races", "seed": 0, "first": 0, "count": RACES}
    found = children.run({**options, "mode": mode}, prepared, 60)
    assert found["failures"] == []
    assert found["operations"]["races"] == RACES
    assert found["operations"]["installs"] >= RACES // 2
    assert found["operations"]["uninstalls"] == RACES // 2


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (RuntimeError("There is no Stream(cpu, 1) in current thread."), False),
        (AttributeError("'NoneType' object has no attribute 'load'"), False),
        (AttributeError("module 'mlx_lm' has no attribute 'load'"), True),
        (ImportError("cannot import name 'a' from partially initialized module 'mlx_lm'"), True),
        (ImportError("cannot import name 'a' from 'mlx_lm.generate' (file)"), True),
        (ImportError("cannot import name 'a' from 'transformers' (file)"), True),
        (ImportError("cannot import name 'a' from 'mlx_autobind' (file)"), False),
    ],
)
def test_what_python_refuses(error: Exception, refused: bool) -> None:
    assert imports.refused(error) == refused
