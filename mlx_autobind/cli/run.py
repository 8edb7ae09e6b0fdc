"""``mlx-autobind run``: any command, with the agent in every Python that it starts."""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlx_autobind import settings

BOOTSTRAP = str(Path(__file__).resolve().parent.parent / "bootstrap")

# As a shell says it.
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126

# The option, the variable that it sets, and what stands for its value in the help.
OPTIONS = (
    ("--mode", "MLX_AUTOBIND_MODE", "MODE", "thread, owner or shared"),
    ("--modules", "MLX_AUTOBIND_MODULES", "NAMES", "further modules that hold a generation_stream"),
    ("--records", "MLX_AUTOBIND_RECORDS", "NUMBER", "how many records a process keeps"),
    ("--trace", "MLX_AUTOBIND_TRACE", "FILE", "append each span to FILE, as OTLP JSON lines"),
    ("--generations", "MLX_AUTOBIND_GENERATIONS", None, "make each generation a span"),
    ("--strict", "MLX_AUTOBIND_STRICT", None, "raise errors of the agent's own"),
)

# What a Python is called, and those of its options that keep sitecustomize from running.
_PYTHON = re.compile(r"(python|pypy)[\d.]*w?t?(\.exe)?")
_HOOK = "does not look at PYTHONPATH (mlx-autobind install-hook brings it in all the same)"
_ISOLATING = {"-E": _HOOK, "-I": _HOOK, "-S": "runs nothing at its start"}
_WITH_VALUE = ("-W", "-X")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "run",
        help="run a command under the agent",
        usage="%(prog)s [options] [--] COMMAND | SCRIPT.py | -m MODULE [ARGUMENT ...]",
        description=(
            "Runs COMMAND, or a Python script or module, with the agent in every Python that it "
            "starts, children included. Takes its place: signals, exit code, input and terminal "
            "are its own. A setting that is not given is what its variable says."
        ),
    )
    for option, variable, value, text in OPTIONS:
        kind = {"metavar": value} if value else {"action": "store_const", "const": "on"}
        command.add_argument(option, dest=variable, help=f"{text} ({variable})", **kind)  # type: ignore[arg-type]
    command.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS, default=[]
    )
    command.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    command.set_defaults(usage_error=command.error, usage=command.format_usage())


def run(options: argparse.Namespace) -> int:
    """Become the command, or return the exit code that a shell gives if there is none."""
    given = {
        variable: value
        for _option, variable, _value, _text in OPTIONS
        if (value := getattr(options, variable)) is not None
    }
    if "MLX_AUTOBIND_TRACE" in given:
        # From here, wherever the command goes.
        given["MLX_AUTOBIND_TRACE"] = os.path.abspath(given["MLX_AUTOBIND_TRACE"])  # noqa: PTH100
    problems = settings.read(given).problems
    if problems:
        options.usage_error("; ".join(problem.rpartition(";")[0] for problem in problems))
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    # What argparse takes for the end of the module's arguments is one of them.
    command = ["-m", *options.module, *options.words] if options.module else words
    if not command or command == ["-m"]:
        options.usage_error("COMMAND is missing")
    if command[0] == "-m" or command[0].endswith((".py", ".pyw")):
        if command[0] != "-m" and not os.path.exists(command[0]):  # noqa: PTH110
            return _refuse(options, command[0], "No such file or directory", _NOT_FOUND)
        command = [sys.executable, *command]
    isolating = isolated(command)
    if isolating:
        print(
            f"mlx-autobind run: the agent will not be there: {command[0]} {isolating} "
            f"{_ISOLATING[isolating]}",
            file=sys.stderr,
        )
    try:
        return _become(command, environment(os.environ, given))
    except FileNotFoundError:
        return _refuse(options, command[0], "command not found", _NOT_FOUND)
    except OSError as error:
        return _refuse(options, command[0], error.strerror or str(error), _NOT_EXECUTABLE)


def _refuse(options: argparse.Namespace, what: str, why: str, code: int) -> int:
    print(f"{options.usage}mlx-autobind run: {what}: {why}", file=sys.stderr)
    return code


def environment(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the settings `given`, and the bootstrap folder first on the path."""
    path = environ.get("PYTHONPATH")
    folders = path.split(os.pathsep) if path else []
    kept = [folder for folder in folders if os.path.normpath(folder) != BOOTSTRAP]
    return {
        **environ,
        **given,
        "PYTHONPATH": os.pathsep.join([BOOTSTRAP, *_other_agent(kept), *kept]),
    }


def _other_agent(folders: Sequence[str]) -> list[str]:
    """Return the folder of an agent that runs in here, if children would not find it.

    ``opentelemetry-instrument`` takes its folder off PYTHONPATH as soon as a Python has
    started: this one, where it was to be in the command.
    """
    module = sys.modules.get("sitecustomize")
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    folder = os.path.dirname(file)  # noqa: PTH120
    # Where every Python of this environment looks anyway.
    standard = [entry for entry in sys.path if os.path.basename(entry) == "site-packages"]  # noqa: PTH119
    standard.append(os.path.dirname(os.__file__))  # noqa: PTH120
    known = {os.path.normpath(each) for each in (BOOTSTRAP, *folders, *standard)}
    return [] if os.path.normpath(folder) in known else [folder]


def isolated(command: Sequence[str]) -> str:
    """Return the option by which a Python in `command` does without sitecustomize, or nothing."""
    if not _PYTHON.fullmatch(os.path.basename(command[0])):  # noqa: PTH119
        return ""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word.startswith(("-c", "-m", "--")) or word == "-":
            return ""
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith(_WITH_VALUE):
            for letter in word[1:]:
                if f"-{letter}" in _ISOLATING:
                    return f"-{letter}"
    return ""


def _become(command: Sequence[str], environ: Mapping[str, str]) -> int:  # noqa: RET503
    if os.name == "nt":
        return _wait_for(command, environ)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these, and what is ignored stays so in the program that takes its place.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Does not come back.
    os.execvpe(command[0], list(command), environ)  # noqa: S606 - the command is the user's


def _wait_for(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` where no process can take another's place, and return its exit code."""
    process = subprocess.Popen(command, env=environ)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the command has got it as well
            continue
