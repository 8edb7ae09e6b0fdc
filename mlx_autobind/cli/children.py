"""What the doctor's children do: ``python -m mlx_autobind.cli.children WHAT [NAME]``.

Each prints one JSON value on its last line. A child because mlx can abort the interpreter
that imports it, and because what a library does as it is imported is its own affair.
"""

import dataclasses
import functools
import importlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import mlx_autobind
from mlx_autobind import targets

# A module with a handle, for where no library has one.
OWN_MODULE = "own_generation_stream"


def ask_mlx(_name: str) -> Any:
    """Import mlx.core, and use the main thread's stream on another thread."""
    try:
        import mlx.core as mx
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "mlx"
        return {"missing": missing, "error": f"{type(error).__name__}: {error}"}
    stream = mx.new_stream(mx.default_device())
    errors: list[str] = []

    def use() -> None:
        try:
            with mx.stream(stream):
                mx.eval(mx.zeros(1) + 1)
        except RuntimeError as error:
            errors.append(f"RuntimeError: {error}")

    on_thread(use)
    return {
        "version": getattr(mx, "__version__", None),
        "file": mx.__file__,
        "device": str(mx.default_device()),
        "evidence": errors[0] if errors else None,
        "acts": hasattr(mx, "new_thread_local_stream"),
        "unsafe_streams": hasattr(mx, "new_thread_unsafe_stream"),
    }


def ask_library(name: str) -> Any:
    """Import every module of the library `name` that has a row, and tell what was patched."""
    importlib.import_module(name)
    missing = []
    for row in targets.TARGETS:
        if row.module.partition(".")[0] != name:
            continue
        try:
            importlib.import_module(row.module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is told
            if not _not_in_this_release(error, row.module):
                missing.append(f"{row.module}: {type(error).__name__}: {error}")
    status = mlx_autobind.status()
    own = f"{name}."
    return {
        "missing": missing,
        "mode": status.mode,
        "inert": status.inert,
        "problems": status.problems,
        "unprotected": status.unprotected,
        "handles": [
            dataclasses.asdict(each) for each in status.handles if each.where.startswith(own)
        ],
        "entry_points": [
            {"name": each, "kind": _kind(each)}
            for each in status.entry_points
            if each.startswith(own)
        ],
    }


def _not_in_this_release(error: BaseException, module: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")


def _kind(name: str) -> str:
    for row in targets.TARGETS:
        for entry in row.entries:
            if name == f"{row.module}.{entry.path}":
                return entry.kind
    return next(
        (
            entry.kind
            for row in targets.FAMILIES
            for entry in row.entries
            if name.startswith(f"{row.module}.") and name.endswith(f".{entry.path}")
        ),
        "",
    )


def ask_handle(name: str, *, alone: bool = False) -> Any:
    """Compute on the stream that the module `name` holds, on two threads.

    As a program does that binds its threads by hand, if the agent is there.

    Args:
        name: of the module.
        alone: compute on the main thread instead: what is right.
    """
    import mlx.core as mx

    if name == OWN_MODULE:
        own: Any = types.ModuleType(name)
        own.generation_stream = mx.new_stream(mx.default_device())
        sys.modules[name] = own
    module = importlib.import_module(name)
    installed = mlx_autobind.status().installed

    def reckon(x: Any) -> Any:
        return (x * x + x).sum()

    compiled: Any = mx.compile(reckon)
    steps: dict[str, Any] = {}

    def compute(step: str) -> None:
        steps[step] = {"prompt": name}
        try:
            if installed:
                mlx_autobind.bind_generation_streams((name,))
            with mx.stream(vars(module)[targets.HANDLE]):
                result = compiled(mx.arange(8))
                mx.eval(result)
            steps[step]["tokens"] = [result.item()]
        except Exception as error:  # noqa: BLE001 - it is told
            steps[step]["error"] = f"{type(error).__name__}: {error}"

    for step in ("first thread", "second thread"):
        if alone:
            compute(step)
        else:
            on_thread(compute, step)
    return {name: steps["first thread"]} if alone else steps


def on_thread(work: Callable[..., None], *arguments: object) -> None:
    """Do `work` on a thread of its own, to its end."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


ASK: dict[str, Callable[[str], Any]] = {
    "mlx": ask_mlx,
    "library": ask_library,
    "handle": ask_handle,
    "handle-alone": functools.partial(ask_handle, alone=True),
}


def main() -> None:
    """Do what the command line says."""
    what, name = sys.argv[1:]
    print(f"\n{json.dumps(ASK[what](name))}", flush=True)
    if what == "mlx":
        # A thread did MLX work here without the agent: mlx may abort the interpreter as it
        # ends, which is no answer to what was asked.
        os._exit(0)


if __name__ == "__main__":
    main()
