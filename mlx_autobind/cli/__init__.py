"""The command line, ``mlx-autobind`` or ``python -m mlx_autobind``."""

import argparse
from collections.abc import Sequence

import mlx_autobind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="mlx-autobind",
        description="Lets every thread run MLX, with no change to the program.",
    )
    parser.add_argument("--version", action="version", version=mlx_autobind.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="run threaded programs and a real server without and with the agent",
        description=(
            "Makes a tiny random-weight checkpoint in a temporary folder, runs four programs "
            "(worker threads, alternating threads, 16 generations on 4 threads, mlx_lm.server) "
            "without and with the agent, and prints what came of each. Needs no network."
        ),
    )
    demo.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long one program may take before it counts as hung (default: %(default)s)",
    )
    from mlx_autobind.cli import traces

    traces.add_to(commands)
    options = parser.parse_args(arguments)
    if options.command == "traces":
        return traces.run(options)

    from mlx_autobind.cli import demo as demo_command

    return demo_command.run(options.timeout)
