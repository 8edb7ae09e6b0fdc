"""``mlx-autobind install-hook``, ``remove-hook`` and ``status-hook``: the agent at every start.

The hook is a file in site-packages that Python runs as it starts, under ``-E`` and ``-I`` too,
which leave ``PYTHONPATH`` out, and where nobody can set a variable.
"""

import argparse
import importlib.util
import os
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import mlx_autobind
from mlx_autobind.cli import output

# Not the name of the package alone, which is that of several build backends' editable installs.
STEM = "mlx_autobind_hook"
PTH, START, MODULE = f"{STEM}.pth", f"{STEM}.start", f"{STEM}.py"

# What runs at each start. pip leaves the hook behind when it uninstalls the package, which must not
# be an error at each start from then on. The package imports only what every Python has, so that a
# missing module is the package itself.
_START = """\
import sys


def start():
    try:
        import mlx_autobind
    except ModuleNotFoundError:
        pass
    except Exception as error:
        sys.stderr.write(f"mlx_autobind is not active: {type(error).__name__}: {error}\\n")
"""

# Up to 3.14 Python executes a line of a .pth as it reads it, with half of its path: an editable
# install may be further down, what all users have comes after what one has, and a virtual
# environment before the system, which may hold our dependencies. So the line has `site` call the
# function once the path is complete, just before it looks for sitecustomize; once, though the
# site-packages of a virtual environment are read twice. So the place of the file among the others
# does not matter.
_ONCE_COMPLETE = """

def last(then):
    def run():
        start()
        then()

    return run


import site

if not hasattr(site, "mlx_autobind"):
    site.mlx_autobind = start
    site.execsitecustomize = last(site.execsitecustomize)
"""

# The first line of each file. One without it is not ours.
_MARK = (
    f"# mlx-autobind {mlx_autobind.__version__} start-up hook: made by `mlx-autobind install-hook`,"
    " taken out by `mlx-autobind remove-hook`\n"
)
_MARKED = re.compile(r"# mlx-autobind (\S+) start-up hook\b")

# A .pth is read by whoever starts Python in the environment, as the packages beside it are.
_MODE = 0o644

_ASK = "import sys; print(any(type(each).__module__ == 'mlx_autobind' for each in sys.meta_path))"
_TIMEOUT_S = 60


class Refused(Exception):  # noqa: N818 - the program is right to refuse
    """Nothing is changed, for the reason that the message gives."""


@dataclass(frozen=True, slots=True)
class HookFile:
    """A file of the hook.

    Attributes:
        name: in site-packages.
        text: what is in it.
    """

    name: str
    text: str


def files(python: tuple[int, ...] = tuple(sys.version_info[:2])) -> tuple[HookFile, ...]:
    """Return what the hook is made of on a version of Python; what Python reads comes last.

    From 3.15 on a ``.start`` file names a function, which is called once the path is complete, and
    import lines in a ``.pth`` are deprecated (PEP 829). A function of the package's own would be a
    traceback at each start once the package is uninstalled, so that it is in a module beside it.
    """
    if python < (3, 15):
        return (HookFile(PTH, f"{_MARK}import sys; exec({_START + _ONCE_COMPLETE!r}, {{}})\n"),)
    return HookFile(MODULE, f"{_MARK}{_START}"), HookFile(START, f"{_MARK}{STEM}:start\n")


@dataclass(frozen=True, slots=True)
class Hook:
    """The hook in one site-packages.

    Attributes:
        path: the file that Python reads.
        user: the site-packages are the user's, not those of the environment.
        present: the files that are there; what Python reads comes first.
        version: of the package that made them; None if there are none.
    """

    path: Path
    user: bool
    present: tuple[HookFile, ...]
    version: str | None

    @property
    def current(self) -> bool:
        """It is what `install` would make."""
        return set(self.present) == set(files())


def folder(*, user: bool) -> Path:
    """Return the site-packages of this interpreter's environment, or the user's.

    Raises:
        Refused: this interpreter does not look at the user's.
    """
    if not user:
        return Path(sysconfig.get_path("purelib"))
    if not site.ENABLE_USER_SITE:
        raise Refused(
            f"{sys.executable} does not look at the user's site-packages, as no virtual "
            "environment does, nor any Python with -s or -I"
        )
    return Path(site.getusersitepackages())


def find(*, user: bool) -> Hook:
    """Return the hook of the environment, or of the user.

    Raises:
        Refused: there is a file of that name which is not ours.
        OSError: it cannot be read.
    """
    where = folder(user=user)
    present, version = [], None
    for name in (START, PTH, MODULE):
        try:
            text = (where / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        marked = _MARKED.match(text)
        if marked is None:
            raise Refused(f"{where / name} was not made by mlx-autobind and is left as it is")
        version = version or marked[1]
        present.append(HookFile(name, text))
    return Hook(where / files()[-1].name, user, tuple(present), version)


def install(hook: Hook) -> int:
    """Write the files of the hook, each of which is whole or not there at any moment.

    Raises:
        OSError: one cannot be written.
    """
    if hook.current:
        print(f"{hook.path}: installed already")
        return 0
    hook.path.parent.mkdir(parents=True, exist_ok=True)
    wanted = files()
    for file in wanted:
        output.write(hook.path.with_name(file.name), (file.text,), mode=_MODE)
    # Those of another version of Python, whose site-packages these were.
    _unlink(hook, keep={file.name for file in wanted})
    print(f"{hook.path}: installed")
    return 0


def remove(hook: Hook) -> int:
    """Take the files of the hook out.

    Raises:
        OSError: one cannot be removed.
    """
    _unlink(hook)
    print(f"{hook.path}: {'removed' if hook.present else 'not installed'}")
    return 0


def _unlink(hook: Hook, keep: Collection[str] = ()) -> None:
    for file in hook.present:
        if file.name not in keep:
            path = hook.path.with_name(file.name)
            path.unlink(missing_ok=True)
            if file.name == MODULE:
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def status(hook: Hook) -> int:
    """Print whether the hook is there, and whether a fresh interpreter is under the agent."""
    if hook.current:
        said = f"installed, of version {hook.version}"
    elif hook.present:
        said = (
            f"installed, but not as version {mlx_autobind.__version__} does: made by "
            f"{hook.version}; run `mlx-autobind install-hook` again"
        )
    else:
        said = "not installed"
    # -I would leave the user's site-packages out.
    option = "-E" if hook.user else "-I"
    done = subprocess.run(
        [sys.executable, option, "-c", _ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    active = done.stdout.splitlines()[-1:] == ["True"]
    off = os.environ.get("MLX_AUTOBIND")
    because = f" (MLX_AUTOBIND={off})" if off is not None and not active else ""
    print(f"{hook.path}: {said}")
    print(f"{sys.executable} {option}: {'' if active else 'not '}under the agent{because}")
    return 0 if hook.current and active else 1


@dataclass(frozen=True, slots=True)
class Command:
    """One of the commands.

    Attributes:
        act: what it does, which returns the exit code.
        summary: a line for the list of all commands.
        description: for its own help.
    """

    act: Callable[[Hook], int]
    summary: str
    description: str


COMMANDS = {
    "install-hook": Command(
        install,
        "put every Python of this environment under the agent",
        "Writes a file into site-packages that has Python import mlx_autobind as it starts, under "
        "-E and -I too (not -S). MLX_AUTOBIND=off in the environment of a process keeps the agent "
        "out of it. A package that is uninstalled later leaves the hook behind, which then does "
        "nothing.",
    ),
    "remove-hook": Command(
        remove,
        "take out what install-hook has put in",
        "Removes what install-hook has written, and nothing that it has not written.",
    ),
    "status-hook": Command(
        status,
        "say whether the hook is installed and works",
        "Says where the hook is, whether this version has made it, and whether an interpreter that "
        "is started now is under the agent. The exit code is 0 if all is well, otherwise 1.",
    ),
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands and their options."""
    for name, command in COMMANDS.items():
        parser = commands.add_parser(name, help=command.summary, description=command.description)
        parser.add_argument(
            "--user",
            action="store_true",
            help="in the user's site-packages, not in those of the environment",
        )


def run(options: argparse.Namespace) -> int:
    """Do what was asked for, and return the exit code."""
    try:
        return COMMANDS[options.command].act(find(user=options.user))
    except (Refused, subprocess.TimeoutExpired) as error:
        said = str(error)
    except OSError as error:
        said = f"no way into {folder(user=options.user)}: {error.strerror}"
    print(f"mlx-autobind {options.command}: {said}", file=sys.stderr)
    return 1
