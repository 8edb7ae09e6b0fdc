"""What type checkers see of the installed package."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import mlx_autobind
from tests import harness
from tests.conftest import Run
from tests.harness import ROOT
from tests.test_release import build

CONSUMER = harness.PROGRAMS / "consumer.py"
TIMEOUT_S = 200

# Each line of it is an error. Without one a checker sees Any.
MISTAKEN = """
import mlx_autobind
mlx_autobind.install(mode=3)
mlx_autobind.status().no_such_field
mlx_autobind.rebinds()[0].kind == 3 and mlx_autobind.rebinds().append(1)
mlx_autobind.bind_generation_streams().no_such_method()
mlx_autobind.no_such_name
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment in which the built wheel is, beside the libraries.

    Whatever way the package is installed for the other tests, such as editable, which no type
    checker takes for an installed package.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (wheel,) = build(ROOT, tmp_path_factory.mktemp("dist"), "--wheel")
    # All that an installer does with a wheel of Python alone; it leaves the scripts out.
    zipfile.ZipFile(wheel).extractall(site)
    # After the wheel's, which is why the name sorts late.
    (site / "zz_libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def said(*command: str | Path, folder: Path | None = None, code: int | None = 0, **env: str) -> str:
    """Return what `command` prints, once it is sure that it ended with `code`."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=harness.environ({"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", **env}),
        cwd=folder,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert code in {None, done.returncode}, done.stdout + done.stderr
    return done.stdout


def mypy(program: Path, python: Path, *, code: int) -> str:
    options: list[str | Path] = [
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        program.parent / "cache",
    ]
    return said(sys.executable, "-m", "mypy", *options, program, folder=program.parent, code=code)


def pyright(program: Path, python: Path, *, code: int) -> str:
    (program.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    options: list[str | Path] = ["--pythonpath", python, program]
    return said(sys.executable, "-m", "pyright", *options, folder=program.parent, code=code)


CHECKERS = [mypy, pyright]


def test_the_environment_has_the_wheel(python: Path) -> None:
    where = said(
        python, "-c", "import mlx_autobind; print(mlx_autobind.__file__)", folder=ROOT.parent
    )
    assert Path(where.strip()).is_relative_to(python.parent.parent)


@pytest.mark.parametrize("check", CHECKERS)
def test_a_program_that_uses_every_public_name(
    check: Callable[..., str], python: Path, tmp_path: Path
) -> None:
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER.read_text())
    check(program, python, code=0)


@pytest.mark.parametrize("check", CHECKERS)
def test_mistakes_are_found(check: Callable[..., str], python: Path, tmp_path: Path) -> None:
    program = tmp_path / "mistaken.py"
    program.write_text(MISTAKEN)
    errors = re.findall(r"mistaken\.py:(\d+)[:\d]*(?: -|:) error", check(program, python, code=1))
    assert {int(line) for line in errors} == set(range(3, 8))


def test_the_program_runs(run: Run) -> None:
    assert run(CONSUMER, agent="import").code == 0


def test_all_types_of_the_public_names_are_known(python: Path, tmp_path: Path) -> None:
    text = said(
        *(sys.executable, "-m", "pyright", "--outputjson"),
        *("--verifytypes", "mlx_autobind", "--ignoreexternal"),
        folder=tmp_path,
        code=None,
        # It looks for the package with the first Python there.
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    )
    found = json.loads(text)["typeCompleteness"]
    # A type checker counts every module without an underscore; these are public.
    homes = {f"{getattr(mlx_autobind, name).__module__}.{name}" for name in mlx_autobind.__all__}
    homes.add("mlx_autobind.instrumentor.MLXAutobindInstrumentor")
    symbols = {symbol["name"]: symbol for symbol in found["symbols"] if symbol["isExported"]}
    assert homes <= set(symbols)
    assert [
        name
        for name, symbol in symbols.items()
        if any(name == home or name.startswith(f"{home}.") for home in homes)
        and not symbol["isTypeKnown"]
    ] == []
