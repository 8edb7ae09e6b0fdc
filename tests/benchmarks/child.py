"""What a child interpreter runs: ``python -m tests.benchmarks.child MODULE:FUNCTION ...``."""

import mlx_autobind  # noqa: F401, I001 - before anything else, as in a program

import importlib
import resource
import sys

from tests.benchmarks.measure import serve


def main() -> None:
    stage, *arguments = sys.argv[1:]
    module, _, function = stage.partition(":")
    # mlx-lm sets a limit that valgrind does not let it set.
    resource.setrlimit = lambda *_: None
    serve(getattr(importlib.import_module(module), function)(*arguments))


if __name__ == "__main__":
    main()
