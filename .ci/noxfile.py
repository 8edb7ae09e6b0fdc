"""The test suite on other stacks: `nox -f .ci/noxfile.py`, or one of them with `-s NAME`."""

import os
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = False

# mlx and mlx-lm that pip resolves together, and what is particular about them.
STACKS = {
    "inert": ("0.31.1", "0.31.1"),  # any thread can use any stream
    "metal-only": ("0.31.2", "0.31.3"),  # bound on Metal and CUDA alone
    "plain-handle": ("0.32.4", "0.31.2"),  # every worker fails without the agent
    "thread-local-handle": ("0.32.4", "0.31.3"),
    "default-arguments": ("0.32.4", "0.32.2"),  # the handle in default arguments
}


@nox.session(python=["3.11"])
@nox.parametrize("stack", [nox.param(name, id=name) for name in STACKS])
def tests(session: nox.Session, stack: str) -> None:
    """Run the whole suite against one stack."""
    session.chdir(ROOT)
    mlx, mlx_lm = STACKS[stack]
    session.install(".[test]", f"mlx[cpu]=={mlx}", f"mlx-lm=={mlx_lm}")
    session.run("python", "-m", "pytest", "--quiet", *session.posargs)


@nox.session(python=["3.10", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """Run the whole suite on another Python, with the newest libraries."""
    session.chdir(ROOT)
    session.install(".[test]")
    session.run("python", "-m", "pytest", "--quiet", *session.posargs)


def lower_bounds(*extras: str) -> list[str]:
    """Return the lowest versions that pyproject.toml allows, of the package and `extras`."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    # The SDK of `trace` wants the API of its own version.
    required = [] if "trace" in extras else [*project["dependencies"]]
    for extra in extras:
        required += project["optional-dependencies"][extra]
    return [line.partition(",")[0].replace(">=", "==") for line in required]


# What runs on the lowest versions of the extras in the first column, beside the newest libraries.
LOWEST = (
    (("cli",), ("public", "settings", "traces")),
    (("cli", "trace"), ("public", "telemetry")),
)


@nox.session(python=["3.10", "3.11"], venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Install the lowest versions that are allowed, and run some of the suite on them."""
    session.chdir(ROOT)
    for extras, files in LOWEST:
        asked = f".[{','.join(extras)}]"
        session.install("--resolution", "lowest-direct", asked)
        # Those of the tests are the newest, and leave the others as they are.
        pinned = lower_bounds(*extras)
        tools = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
        session.install(*pinned, *tools, "mlx[cpu]", "mlx-lm")
        session.run("uv", "pip", "check", external=True)
        session.run(
            *("python", "-m", "pytest", "--quiet"),
            *(f"tests/test_{name}.py" for name in files),
        )


# mlx, mlx-lm and mlx-vlm. Every mlx with every mlx-lm that runs on it, and every mlx with
# every mlx-vlm that pip puts beside it, are in it at least once.
MATRIX = (
    ("0.31.1", "0.28.4", "0.3.9"),
    ("0.31.1", "0.30.7", None),
    ("0.31.1", "0.31.1", "0.4.4"),
    ("0.31.1", "0.31.2", None),
    ("0.31.2", "0.28.4", "0.3.9"),
    ("0.31.2", "0.30.7", None),
    ("0.31.2", "0.31.1", None),
    ("0.31.2", "0.31.2", "0.4.4"),
    ("0.31.2", "0.31.3", "0.5.0"),
    ("0.31.2", "0.32.2", None),
    ("0.32.0", "0.28.4", "0.3.9"),
    ("0.32.0", "0.30.7", None),
    ("0.32.0", "0.31.1", None),
    ("0.32.0", "0.31.2", "0.4.4"),
    ("0.32.0", "0.31.3", "0.5.0"),
    ("0.32.0", "0.32.2", "0.6.15"),
    ("0.32.4", "0.28.4", "0.3.9"),
    ("0.32.4", "0.30.7", None),
    ("0.32.4", "0.31.1", "0.4.4"),
    ("0.32.4", "0.31.2", "0.4.4"),
    ("0.32.4", "0.31.3", "0.5.0"),
    ("0.32.4", "0.31.3", "0.6.5"),
    ("0.32.4", "0.32.2", "0.6.15"),
    ("0.32.4", "0.32.2", "0.7.10"),
)

# Of those, the ones that differ most from the newest, on which the test suite runs: for CI.
COVERING = (
    ("0.31.2", "0.28.4", "0.3.9"),
    ("0.32.0", "0.31.3", "0.5.0"),
    ("0.32.4", "0.31.2", "0.4.4"),
)

# Where the runs are collected; `table` reads them from there.
RUNS = Path(os.environ.get("MLX_AUTOBIND_RUNS", ROOT / ".nox" / "compatibility"))


def run_scenarios(
    session: nox.Session, stack: tuple[str, str, str | None], defects: bool = True
) -> None:
    """Run every scenario on one stack, and leave the result in `RUNS`.

    Args:
        session: where to install it.
        stack: its versions.
        defects: go on if something is not right, which the table will say.
    """
    mlx, mlx_lm, mlx_vlm = stack
    session.chdir(ROOT)
    vision = [f"mlx-vlm=={mlx_vlm}"] if mlx_vlm else []
    libraries = [f"mlx[cpu]=={mlx}", f"mlx-lm=={mlx_lm}", *vision]
    session.install(".", "pytest", "fastapi", "uvicorn", *libraries)
    command = ["python", "-m", "tests.compatibility", "run", str(RUNS), *session.posargs]
    session.run(*command, success_codes=[0, 1] if defects else [0])


@nox.session(python=["3.11"], tags=["matrix"])
@nox.parametrize("stack", [nox.param(stack, id="+".join(filter(None, stack))) for stack in MATRIX])
def matrix(session: nox.Session, stack: tuple[str, str, str | None]) -> None:
    """Run every scenario on one stack of the matrix."""
    run_scenarios(session, stack)


@nox.session(python=["3.11"])
def covering(session: nox.Session) -> None:
    """Run every scenario on the stacks that differ most."""
    for stack in COVERING:
        run_scenarios(session, stack, defects=False)


@nox.session(python=["3.10", "3.12", "3.13", "3.14", "3.14t"], tags=["matrix"])
def matrix_pythons(session: nox.Session) -> None:
    """Run every scenario on the newest stack, with another Python."""
    run_scenarios(session, MATRIX[-1])


@nox.session(python=["3.11"], tags=["matrix"])
def table(session: nox.Session) -> None:
    """Write docs/compatibility.md from what the other sessions have left."""
    session.chdir(ROOT)
    session.install(".[lm]", "pytest")
    session.run("python", "-m", "tests.compatibility", "table", str(RUNS), "--into", "docs")
