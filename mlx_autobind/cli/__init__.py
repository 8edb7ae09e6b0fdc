"""The command line, ``mlx-autobind`` or ``python -m mlx_autobind``."""

import argparse
import importlib
import sys
from collections.abc import Sequence

import mlx_autobind

# By command, the module here that has it: `add_to` adds the commands of the module and their
# options, and `run` takes the options and returns the exit code. Neither imports mlx, nor anything
# of an extra, before `run` needs it.
COMMANDS = {
    "demo": "demo",
    "doctor": "doctor",
    "install-hook": "hook",
    "remove-hook": "hook",
    "run": "run",
    "status-hook": "hook",
    "traces": "traces",
}

# As a shell says it.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="mlx-autobind",
        description="Lets every thread run MLX, with no change to the program.",
    )
    parser.add_argument("--version", action="version", version=mlx_autobind.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names = dict.fromkeys(COMMANDS.values())
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    for module in modules.values():
        module.add_to(commands)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # With the usage of the command that it was given to, which argparse does not show.
        usage_error = getattr(options, "usage_error", parser.error)
        usage_error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = modules[COMMANDS[options.command]].run(options)
    except KeyboardInterrupt:
        # A line of its own: one of progress may stand there.
        print("\nmlx-autobind: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code
