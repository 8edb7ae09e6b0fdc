"""Put this folder on PYTHONPATH, and every Python started from there is under the agent.

    PYTHONPATH=/path/to/sitecustomize_example python server.py

Python runs the first ``sitecustomize`` on its path and no other, so this one runs the
next one as well. If the agent is missing or fails, it prints one line and the program
runs on. Child processes inherit PYTHONPATH, and with it the agent. ``mlx-autobind run``
does the same with the copy of this file that is in the package.
"""

import sys


def missing(error: BaseException) -> None:
    """Say that the agent is not there, where there is something that it would be for."""
    # Other Pythons may be started on the way, such as a system's own.
    from importlib.util import find_spec

    if not isinstance(error, ModuleNotFoundError) or find_spec("mlx") is not None:
        sys.stderr.write(f"mlx_autobind is not active: {type(error).__name__}: {error}\n")


def run_next() -> None:
    """Run the ``sitecustomize`` that this one hides, as the module of that name."""
    # By this name it is in every interpreter; importlib.machinery would have to be
    # imported, at each start, to say that there is no other sitecustomize.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = __file__.rpartition("sitecustomize.py")[0].rstrip("/\\")
    entries = [entry.rstrip("/\\") for entry in sys.path]
    after = entries.index(here) + 1 if here in entries else 0
    spec = PathFinder.find_spec("sitecustomize", sys.path[after:])
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    import mlx_autobind  # noqa: F401
except Exception as error:  # noqa: BLE001 - whatever it is, the program has to run
    missing(error)
run_next()
