"""S19: children of a program under the agent are under it as well, with real generations."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli.spans import Reading
from tests import harness
from tests.harness import PROGRAMS
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong


def start(*command: str, folder: Path, agent: bool, **env: str) -> list[dict[str, Any]]:
    """Run `command`, under the agent or not; return what its children have left in `folder`."""
    folder.mkdir()
    launcher = [sys.executable, "-m", "mlx_autobind", "run", "--"] if agent else []
    done = subprocess.run(
        [*launcher, *command, str(folder)],
        capture_output=True,
        text=True,
        env=harness.environ(env),
        cwd=PROGRAMS,
        timeout=harness.TIMEOUT_S,
        check=False,
    )
    if agent:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "subprocess"])
def test_a_child(
    method: str, checkpoint: Path, reference: Reference, tmp_path: Path, stack: Stack
) -> None:
    command = (sys.executable, str(PROGRAMS / "children.py"), method, str(checkpoint))
    (steps,) = start(*command, folder=tmp_path / "with", agent=True)
    assert wrong(steps, reference) == {}
    if stack.fails:
        (steps,) = start(*command, folder=tmp_path / "without", agent=False)
        assert "There is no Stream" in steps["worker"]["error"]


def test_each_rank_of_mlx_launch(
    checkpoint: Path, reference: Reference, tmp_path: Path, stack: Stack
) -> None:
    pytest.importorskip("mlx._distributed_utils.launch", reason="this mlx has no mlx.launch")
    pytest.importorskip(
        "opentelemetry.exporter.otlp.json.file",
        reason="the exporter is not installed: pip install 'mlx-autobind[trace]'",
    )
    trace = tmp_path / "trace.jsonl"
    launch = "import sys; sys.argv[0] = 'mlx.launch'; " + (
        "from mlx._distributed_utils.launch import main; main()"
    )
    program = (str(PROGRAMS / "children.py"), "here", str(checkpoint))
    # Releases differ in whether they start a script by Python unless they are told.
    command = (sys.executable, "-c", launch, "-n", "2", "--python", sys.executable, *program)
    env = {"MLX_AUTOBIND_TRACE": str(trace)}
    ranks = start(*command, folder=tmp_path / "with", agent=True, **env)
    assert [wrong(steps, reference) for steps in ranks] == [{}, {}]
    if not stack.inert:
        spans = list(Reading().files([trace]))
        assert sorted(span.rank for span in spans if span.rank is not None) == [0, 1]
        assert len({span.process for span in spans}) == 2
