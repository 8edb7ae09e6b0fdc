"""The public surface, pinned."""

import subprocess
import sys
from pathlib import Path

import mlx_autobind
from tests import harness

PUBLIC = [
    "HandleChange",
    "Record",
    "Status",
    "Versions",
    "bind_generation_streams",
    "install",
    "rebinds",
    "status",
    "uninstall",
]


def test_the_public_names() -> None:
    assert mlx_autobind.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(mlx_autobind))
    for name in PUBLIC:
        assert getattr(mlx_autobind, name).__doc__, name


def test_a_name_that_is_not_there() -> None:
    assert not hasattr(mlx_autobind, "no_such_name")


def test_typed() -> None:
    assert (Path(mlx_autobind.__file__).parent / "py.typed").exists()


def test_run_time_dependencies_are_two() -> None:
    import importlib.metadata

    required = [
        line for line in importlib.metadata.requires("mlx-autobind") or [] if "extra ==" not in line
    ]
    assert sorted(line.partition(">")[0].partition("<")[0] for line in required) == [
        "opentelemetry-api",
        "wrapt",
    ]


def test_importing_the_public_names_imports_no_mlx() -> None:
    text = "import sys, mlx_autobind as m; m.status(); m.rebinds(); print('mlx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=harness.environ(),
        check=True,
    )
    assert done.stdout.strip() == "False"
