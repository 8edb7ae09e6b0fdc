"""A few examples of the soak's state machine, always the same, in each mode."""

from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.settings import MODES
from tests.soak import children
from tests.stacks import Stack

EXAMPLES = 10


@pytest.mark.parametrize("mode", MODES)
def test_any_order_of_public_calls(mode: str, prepared: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("every mode is inert on this mlx")
    if mode == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    options: dict[str, Any] = {"part": "stateful", "seed": 0, "minutes": 0, "examples": EXAMPLES}
    options["shrink"] = True
    found = children.run({**options, "mode": mode}, prepared, 30)
    assert found["failures"] == []
    assert found["operations"]["examples"] >= EXAMPLES
    assert {"hand over", "step", "close", "die", "uninstall", "load"} <= set(found["operations"])
