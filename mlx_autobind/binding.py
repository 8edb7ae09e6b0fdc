"""Give the calling thread its stream, once.

Every handle means "the calling thread's default stream" (see `mlx_autobind.handles`), so
to bind a thread is to make a fresh stream that thread's default. One lock is held while
that happens, and nothing is imported under it: an import lock taken inside it could be
held by a thread that waits for this one.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlx_autobind import records
from mlx_autobind.handles import (
    HANDLES,
    StreamHandle,
    device_name,
    device_of,
    restore,
    stream_index,
)
from mlx_autobind.records import Stopwatch
from mlx_autobind.shield import report, shielded

logger = logging.getLogger("mlx_autobind")

_STREAM_REBIND_LOCK = threading.Lock()

# Set where this mlx binds streams to threads. It came with 0.31.2, as did the streams
# that belong to one thread; before that any thread could use any stream.
BINDS_STREAMS = hasattr(mx, "new_thread_local_stream")


class ThreadState(threading.local):
    """What the agent knows of the calling thread. Nothing is keyed by identifier.

    Attributes:
        bound: True once the thread has its stream.
        exit: what cleans up when the thread ends.
        chosen: default streams that the program itself set, by device name.
    """

    bound = False
    exit: "ThreadExit | None" = None

    def __init__(self) -> None:
        self.chosen: dict[str, Any] = {}


THREAD = ThreadState()


class Site:
    """Where a thread can enter: one entry point of one library.

    Attributes:
        name: fully qualified, such as ``mlx_lm.generate.generate``.
        namespace: the globals of its module.
        handle: the name of the handle in there; None if it has none.
        late: True if the module had been imported before the agent was installed.
        active: False once the agent is uninstalled; a wrapper that could not be removed
            (another agent's closure holds it) then passes calls straight through.
    """

    __slots__ = ("active", "handle", "late", "name", "namespace")

    def __init__(
        self, name: str, namespace: dict[str, Any], handle: str | None, late: bool
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.handle = handle
        self.late = late
        self.active = True


class ThreadExit:
    """Clears the streams of its thread as that thread ends.

    Held by a ``threading.local``, it is finalised by the dying thread itself, while that
    still may take the GIL. mlx's own clean-up runs later, in C++, and aborts the process
    if the interpreter is finalising by then ("terminate called without an active
    exception", exit code 134; mlx 0.32.4).

    One per thread: to replace it would run it, and clear the stream just made.
    """

    __slots__ = ("_clear", "_get_ident", "_thread_id")

    def __init__(self, clear: Callable[[], None]) -> None:
        # Held here, since module globals may be gone when a finaliser runs.
        self._clear = clear
        self._get_ident = threading.get_ident
        self._thread_id = threading.get_ident()

    def disarm(self) -> None:
        """Clear nothing: the thread does not exist in this process."""
        self._thread_id = 0

    def __del__(self) -> None:
        # On any other thread, or in a forked child, there is nothing of ours to clear.
        if self._get_ident() == self._thread_id:
            try:
                self._clear()
            except Exception as error:  # noqa: BLE001 - the seam, see shield.py
                report("mlx_autobind.binding.ThreadExit", error)


@shielded
def clear_main_thread() -> None:
    """Do for the main thread what `ThreadExit` does for the others. Runs at exit.

    mlx takes an entry out of a thread's compile cache when the compiled function dies,
    but only of the thread that called it last. What is left in the main thread's cache
    is destroyed after the interpreter, and wants the GIL: exit code 139 (mlx 0.32.4).
    """
    if not THREAD.bound:
        return
    _clear_streams()
    # For handlers that run after this one and use MLX.
    for device in HANDLES.devices.values():
        _set_default_stream(_new_stream(device))


def _no_clear() -> None:
    """Stand in for ``mx.clear_streams`` on an mlx that has none."""


_new_stream = mx.new_stream
_default_stream = mx.default_stream
_set_default_stream = mx.set_default_stream
_clear_streams: Callable[[], None] = getattr(mx, "clear_streams", _no_clear)


def bind(entry_point: str, *, late: bool) -> None:
    """Give the calling thread a stream of its own on each device that a handle stands for.

    A default stream that the program chose itself is kept if this thread can use it.
    Thread-safe.
    """
    devices = HANDLES.devices or {device_name(mx.default_device()): mx.default_device()}
    stopwatch = Stopwatch()
    streams = {}
    with _STREAM_REBIND_LOCK:
        for name, device in devices.items():
            stream = THREAD.chosen.get(name)
            if stream is None or not _usable(stream):
                stream = _new_stream(device)
                _set_default_stream(stream)
            streams[name] = stream
        THREAD.bound = True
    clear_at_exit()
    duration_ns = stopwatch.elapsed_ns()
    for name, stream in streams.items():
        records.emit(
            "bind",
            entry_point,
            HANDLES.changes,
            stopwatch,
            duration_ns,
            device=name,
            stream_index=stream_index(stream),
            late=late,
        )


def clear_at_exit() -> None:
    """Have the calling thread's streams cleared as it ends.

    The main thread's locals are finalised too late for that; see `clear_main_thread`.
    """
    if THREAD.exit is None and threading.current_thread() is not threading.main_thread():
        THREAD.exit = ThreadExit(_clear_streams)


def _usable(stream: Any) -> bool:
    """Tell whether the calling thread can evaluate on `stream`, which mlx tells by failing."""
    try:
        mx.eval(mx.zeros((1,), stream=stream))
    except RuntimeError:
        return False
    return True


@shielded
def enter(site: Site) -> None:
    """Bind the calling thread, which is about to step `site`, if it needs it.

    The slow path of every wrapper: called where the thread is not bound or the handle of
    the module is not ours. Thread-safe.
    """
    if not site.active:
        return
    if site.handle is not None:
        restore(site.namespace, site.handle, site.name, late=site.late)
    if not THREAD.bound:
        bind(site.name, late=site.late)


def set_default_stream(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``mx.set_default_stream`` that takes a handle too, as it took the stream."""

    @functools.wraps(original)
    def wrapper(stream: Any) -> None:
        if isinstance(stream, StreamHandle):
            if not THREAD.bound:
                bind("mlx.core.set_default_stream", late=False)
            return
        original(stream)
        _choose(stream)

    return wrapper


@shielded
def _choose(stream: Any) -> None:
    name = device_name(device_of(stream))
    if name not in THREAD.chosen or THREAD.chosen[name] != stream:
        THREAD.chosen[name] = stream
        # Bound again at the next entry, which finds out whether the stream is usable.
        THREAD.bound = False


def clear_streams(original: Callable[[], None]) -> Callable[[], None]:
    """Return ``mx.clear_streams`` after which the calling thread is bound again."""

    @functools.wraps(original)
    def wrapper() -> None:
        original()
        THREAD.bound = False
        THREAD.chosen.clear()

    return wrapper


# What `mlx_autobind.patching` wraps in mlx.core, by name.
CORE_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "clear_streams": clear_streams,
    "set_default_stream": set_default_stream,
}


def _after_fork_in_child() -> None:
    """Start over: the lock may have been held, and no stream outlives a fork."""
    global _STREAM_REBIND_LOCK
    _STREAM_REBIND_LOCK = threading.Lock()
    if THREAD.exit is not None:
        THREAD.exit.disarm()
        THREAD.exit = None
    THREAD.bound = False
    THREAD.chosen.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
