"""What a child interpreter of the soak runs: one part in one mode.

It has the agent before anything else, and prints one JSON object as its last line.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

Options = dict[str, Any]


def threads(options: Options) -> dict[str, Any]:
    """Run 64 threads."""
    from tests.soak.many import Program
    from tests.soak.work import Work

    work = Work(options["checkpoint"], options["references"])
    program = Program(work, options["seed"], options["mode"], options["slots"])
    return program.run(options["minutes"])


def short_lived(options: Options) -> dict[str, Any]:
    """Run threads that live for one generation."""
    from tests.soak import short
    from tests.soak.work import Work

    work = Work(options["checkpoint"], options["references"])
    return short.run(work, options["seed"], options["mode"], options["first"], options["count"])


def stateful(options: Options) -> dict[str, Any]:
    """Run the state machine."""
    from tests.soak import machine
    from tests.soak.work import Work

    work = Work(options["checkpoint"], options["references"])
    return machine.run(work, options)


def races(options: Options) -> dict[str, Any]:
    """Race for the imports."""
    from tests.soak import imports

    return imports.run(options)


PARTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "threads": threads,
    "short-lived": short_lived,
    "stateful": stateful,
    "races": races,
}


def main(text: str) -> None:
    """Run what `text` asks for."""
    options = json.loads(text)
    print(json.dumps(PARTS[options["part"]](options)), flush=True)
    sys.stdout.flush()
