"""Run parts of the soak in child interpreters."""

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import harness
from tests.harness import OFF, ROOT, Agent

# What the package is loaded from is decided before the sources beside the tests are on the path.
_PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.soak import {{module}}
{{module}}.main(*sys.argv[1:])
"""

# How long a child takes beyond what it is told to.
PATIENCE_S = 150.0


def prepare(folder: Path) -> None:
    """Make the checkpoint and the references, without the agent, in `folder`."""
    tiny = harness.make_checkpoint(folder)
    referred = harness.run(
        _PROGRAM.format(module="work"),
        tiny,
        folder / "references.json",
        agent="none",
        folder=folder,
        env=OFF,
    )
    assert referred.code == 0, referred.stderr


def run(options: dict[str, Any], prepared: Path, seconds: float) -> dict[str, Any]:
    """Run what `options` ask for in a child, and return what came of it.

    A child that hangs, dies or says anything on stderr is a failure.

    Args:
        options: of one part; ``mode`` None is without the agent.
        prepared: the folder that `prepare` has filled.
        seconds: how long it may take, besides `PATIENCE_S`.
    """
    mode = options["mode"]
    given = {
        "checkpoint": str(prepared / "tiny"),
        "references": str(prepared / "references.json"),
        **options,
    }
    agent: Agent = "none" if mode is None else "import"
    env = OFF if mode is None else {"MLX_AUTOBIND_MODE": mode}
    with folder() as own:
        outcome = harness.run(
            _PROGRAM.format(module="child"),
            json.dumps(given),
            agent=agent,
            folder=own,
            env=env,
            timeout=seconds + PATIENCE_S,
        )
    found: dict[str, Any] = outcome.result if isinstance(outcome.result, dict) else {}
    failures = list(found.get("failures", []))
    if mode is None:
        return _without(found, outcome)
    if outcome.code is None:
        failures.append(f"hangs:\n{outcome.stderr[-6000:]}")
    elif outcome.code != 0 or outcome.stderr:
        failures.append(f"exit code {outcome.code}:\n{outcome.stderr[-3000:]}")
    elif not found:
        failures.append("has printed no result")
    return {**found, "failures": failures}


def _without(found: dict[str, Any], outcome: harness.Outcome) -> dict[str, Any]:
    """Return what came of a child without the agent: its failures are not ours, but counted."""
    counts = Counter(found.get("operations", {}))
    counts["other errors"] += len(found.get("failures", []))
    counts["exit codes but 0"] += outcome.code != 0
    return {**found, "operations": dict(counts), "failures": []}


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Give a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="mlx-autobind-soak-") as path:
        yield Path(path)
