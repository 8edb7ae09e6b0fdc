"""The test suite on other stacks: `nox -f .ci/noxfile.py`, or one of them with `-s NAME`."""

from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = False

# mlx and mlx-lm that pip resolves together, and what is particular about them.
STACKS = {
    "inert": ("0.31.1", "0.31.1"),  # any thread can use any stream
    "metal-only": ("0.31.2", "0.31.3"),  # bound on Metal and CUDA; may abort as it ends
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
