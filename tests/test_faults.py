"""Each function of the agent that takes part raises in turn: a new one is covered by itself."""

import os
from pathlib import Path

import pytest

from mlx_autobind.settings import MODES
from tests.conftest import Run
from tests.harness import PROGRAMS
from tests.stacks import Stack
from tests.test_vision import skip_if_the_mode_is_not_there

# What a step runs through by itself, where there is nobody to catch an error but the program:
# each only looks at something and calls what is shielded.
PATH = {
    "mlx_autobind.binding.Steps.__iter__",
    "mlx_autobind.binding.Steps.__next__",
    "mlx_autobind.binding.ThreadState.__init__",
    "mlx_autobind.binding.collected",
    "mlx_autobind.entries.GeneratorEntry.__call__",
    "mlx_autobind.generations.RecordedSteps.close",
    "mlx_autobind.generations.RecordedSteps.take",
    # The seam itself has to know whether errors are to be raised.
    "mlx_autobind.settings.current",
}
OF_MODES = {
    "thread": set(),
    "owner": {
        "mlx_autobind.owner.Owner.call",
        "mlx_autobind.owner.OwnedSteps.close",
        "mlx_autobind.owner.OwnedSteps.take",
        "mlx_autobind.owner.Task.run",
    },
    "shared": {
        "mlx_autobind.shared.LockedSteps.close",
        "mlx_autobind.shared.LockedSteps.take",
    },
}

# Nothing is said where Python does it, and where what others have on the heap is looked at.
SILENT = {
    "mlx_autobind.binding.ThreadExit.__del__",
    "mlx_autobind.handles.default_places",
    "mlx_autobind.handles.module_places",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_every_function_raises(mode: str, run: Run, checkpoint: Path, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    if mode != "thread" and not os.environ.get("MLX_AUTOBIND_TEST_ALL"):
        pytest.skip("takes minutes: MLX_AUTOBIND_TEST_ALL=1 has it run in every mode")
    env = {"MLX_AUTOBIND_MODE": mode, "MLX_AUTOBIND_GENERATIONS": "1"}
    path = PROGRAMS / "faults.py"
    outcome = run(path, checkpoint, agent="none", env=env, timeout=850)
    assert outcome.code == 0, outcome.stderr
    assert outcome.result["after"] == [True, True]
    report = outcome.result["report"]
    assert len(report) > 100
    on_the_path = PATH | OF_MODES[mode]
    assert report.keys() >= PATH
    for name, found in report.items():
        if name not in on_the_path:
            assert found["wrong"] == {}, name
            assert found["problems"] == [], name
            assert found["warnings"] > 0 or found["calls"] == 0 or name in SILENT, name
