"""Say what a "There is no Stream" error means, in the error itself."""

import logging
import re
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from mlx_autobind import records, settings
from mlx_autobind.arrays import arrays_in
from mlx_autobind.records import RING, Stopwatch
from mlx_autobind.shield import shielded

logger = logging.getLogger("mlx_autobind")

_NO_STREAM = re.compile(r"There is no Stream\((\w+), (\d+)\) in current thread")
_PREFIX = "mlx-autobind: "


@shielded
def explain(
    error: RuntimeError, entry_point: str, arguments: tuple[Any, ...], *, late: bool
) -> None:
    """Add a note to `error` if it says that a stream is not of this thread.

    Python 3.10 has no notes (PEP 678): there the text is logged. The failure is recorded
    with its description, so that it can be found even if the program swallows it.

    Args:
        error: what left the entry point.
        entry_point: its fully qualified name.
        arguments: what it was called with.
        late: whether the library had been imported before the agent was installed.
    """
    found = _NO_STREAM.search(str(error))
    if found is None or getattr(error, "_mlx_autobind_explained", False):
        return
    stopwatch = Stopwatch()
    error._mlx_autobind_explained = True  # type: ignore[attr-defined]
    device, index = found[1], int(found[2])
    escaped = next(_escaped(arguments), "an array that was left lazy on another thread")
    libraries = [
        f"{field.replace('_', '-')} {version}"
        for field, version in records.imported(records.versions()).items()
    ]
    own = mx.default_stream(mx.default_device())
    text = (
        f"{_PREFIX}thread {threading.current_thread().name!r} has {own}; asked for "
        f"was stream {index} ({device}), {_owner(index)}. What escaped from there: {escaped}. "
        f"Evaluate it with mx.eval() on the thread that made it, before another thread uses it, "
        f"or do both on one thread; {settings.CURED_BY[settings.current().mode]}. "
        f"({', '.join(libraries)})"
    )
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        logger.error("%s: %s", found[0], text)
    records.emit(
        "explained",
        entry_point,
        (),
        stopwatch,
        device=f"{device}:0",
        stream_index=index,
        late=late,
        # Not the whole message: who knows what a program puts into its errors.
        error=f"{found[0]}: {escaped}",
    )


def _owner(index: int) -> str:
    """Say whose stream it is, as far as the records go back."""
    for record in RING.snapshot():
        if record.kind == "bind" and record.stream_index == index:
            alive = any(
                thread.name == record.thread_name and thread.ident == record.thread_id
                for thread in threading.enumerate()
            )
            state = "which still runs" if alive else "which has ended"
            return f"which belongs to thread {record.thread_name!r}, {state}"
    return "of which it is not known whose it is: a thread that loaded or computed something"


def _escaped(arguments: tuple[Any, ...]) -> Iterator[str]:
    """Yield what among `arguments` this thread cannot evaluate, the likeliest first.

    mlx tells whether an array is pending by evaluating it. So one array after another is
    evaluated, up to the first that cannot be.
    """
    given = [each() if isinstance(each, weakref.ref) else each for each in arguments]
    given += [getattr(each, "model", None) for each in given]
    models = [each for each in given if isinstance(each, Module)]
    arrays = [each for each in given if isinstance(each, mx.array)]
    suspects: list[tuple[str, Iterable[mx.array]]] = [
        ("an array given as an argument", arrays),
        (
            "a private array of the model, which is no parameter",
            arrays_in(models, private_only=True),
        ),
        ("weights of the model, or what was computed from them", arrays_in(models)),
        (
            "a prompt cache, or what else was given as an argument",
            arrays_in([each for each in given if not isinstance(each, (Module, mx.array))]),
        ),
    ]
    for what, suspected in suspects:
        for array in suspected:
            try:
                mx.eval(array)
            except RuntimeError:
                yield what
