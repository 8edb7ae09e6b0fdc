"""Give the calling thread its stream, once.

Every handle means "the calling thread's default stream" (see `mlx_autobind.handles`), so
to bind a thread is to make a fresh stream that thread's default. One lock is held while
that happens, and nothing is imported under it: an import lock taken inside it could be
held by a thread that waits for this one.
"""

import contextlib
import functools
import logging
import os
import threading
import time
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any

import mlx.core as mx

from mlx_autobind import arrays, daemons, random_state, records, shield, state, targets
from mlx_autobind.handles import (
    HANDLES,
    StreamHandle,
    device_name,
    device_of,
    restore,
    stream_index,
)
from mlx_autobind.random_state import RANDOM_STATE
from mlx_autobind.records import Stopwatch
from mlx_autobind.shield import report, shielded

logger = logging.getLogger("mlx_autobind")

# Re-entrant, for a signal handler that generates in the middle of a bind.
_STREAM_REBIND_LOCK = threading.RLock()

# Set where this mlx binds streams to threads. It came with 0.31.2, as did the streams
# that belong to one thread; before that any thread could use any stream.
BINDS_STREAMS = hasattr(mx, "new_thread_local_stream")


class Alive:
    """Held by the locals of one bound thread alone."""

    __slots__ = ("__weakref__",)


class ThreadState(threading.local):
    """What the agent knows of the calling thread. Nothing is keyed by identifier.

    Attributes:
        bound: None until the thread has its stream, then an object that no other thread
            has, so that a generator can tell that another thread steps it.
        identity: that object.
        streams: the thread's streams by device name, once it is bound.
        chosen: default streams that the program itself set, by device name.
        exit: what cleans up when the thread ends.
        alive: what goes when the thread ends, once it was bound.
    """

    bound: object | None = None
    exit: "ThreadExit | None" = None
    alive: "Alive | None" = None

    def __init__(self) -> None:
        # The same as there: a wrapper then sees at one glance who has the random state.
        self.identity = RANDOM_STATE.identity() or object()
        self.streams: dict[str, Any] = {}
        self.chosen: dict[str, Any] = {}


THREAD = ThreadState()

_alive: "weakref.WeakSet[Alive]" = weakref.WeakSet()


def bound_threads() -> int:
    """Return how many threads that were bound are alive. Thread-safe."""
    return len(_alive)


NO_HANDLES: dict[str, Any] = {targets.HANDLE: StreamHandle(mx.default_device().type, 0)}


class Site:
    """Where a thread can enter: one entry point of one library.

    Attributes:
        name: fully qualified, such as ``mlx_lm.generate.generate``.
        namespace: the globals of its module.
        handle: the name of the handle in there.
        late: True if the module had been imported before the agent was installed.
        method: True if it is a method, whose first argument is the object.
        active: False once the agent is uninstalled; a wrapper that could not be removed
            (another agent's closure holds it) then passes calls straight through.
    """

    __slots__ = ("active", "handle", "late", "method", "name", "namespace")

    def __init__(
        self,
        name: str,
        namespace: dict[str, Any],
        handle: str | None,
        late: bool,
        *,
        method: bool = False,
    ) -> None:
        self.name = name
        # Wrappers look there at each step; where there is no handle, at one that stays.
        self.namespace = namespace if handle is not None else NO_HANDLES
        self.handle = handle or targets.HANDLE
        self.late = late
        self.method = method
        self.active = True


class Steps:
    """A generator each step of which a mode takes in its own way.

    Attributes:
        inner: the generator, which binds whoever steps it.
        generator: a weak reference to what the program has of it.
    """

    __slots__ = ("generator", "inner")

    def __init__(self, inner: Generator[Any, Any, Any]) -> None:
        self.inner = inner
        self.generator: weakref.ref[Any] | None = None

    def take(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `step`, a method of the generator, gives."""
        raise NotImplementedError

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> Any:
        """Take a step."""
        return self.take(self.inner.__next__)

    def send(self, value: Any) -> Any:
        """Take a step, with `value` for the generator."""
        return self.take(self.inner.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the generator."""
        # Emptied as it is used: a frame of its own traceback that held the error would keep
        # the whole generation until the collector comes.
        given, inner = [error], self.inner
        del error
        return self.take(lambda: inner.throw(*given.pop()))

    def close(self) -> None:
        """Close the generator."""
        raise NotImplementedError


def relay(steps: Steps) -> Generator[Any, Any, Any]:
    """Return a generator that yields what `steps` yields, and that `steps` knows of."""
    generator = _relay(steps)
    steps.generator = weakref.ref(generator)
    return generator


def _relay(steps: Steps) -> Generator[Any, Any, Any]:
    return (yield from steps)


def collected(generator: "weakref.ref[Any] | None") -> bool:
    """Tell whether a generator that is being closed is so because nobody has it any more.

    Python clears the weak references to a generator before it closes it for good.
    """
    return generator is not None and generator() is None


class ThreadExit:
    """Clears the streams of its thread as that thread ends.

    Held by a ``threading.local``, it is finalised by the dying thread itself, while that
    still may take the GIL. mlx's own clean-up runs later, in C++. It wants the GIL as
    well, for the Python objects in the thread's compile cache and random state, and if
    the interpreter is finalising or gone by then, it aborts the process or reads freed
    memory (exit codes 134 and 139; mlx 0.32.4). The main thread's locals go when its
    modules have gone, so that what the program does at exit still has its streams.
    ``mx.clear_streams`` clears the compile cache from mlx 0.32.1 on (read: #4248); for 0.31.2
    and 0.32.0 see `mlx_autobind.daemons`.

    One per thread: to replace it would run it, and clear the stream just made.
    """

    __slots__ = (
        "__weakref__",
        "_clear",
        "_get_ident",
        "_note",
        "_now",
        "_report",
        "native_id",
        "root",
        "thread_id",
        "thread_name",
    )

    # Of a daemon: see `mlx_autobind.daemons.watch`.
    thread_name: str
    root: types.CodeType

    def __init__(self, clear: Callable[[], None]) -> None:
        # Nothing to clear, until all that clearing takes is here.
        self.thread_id = 0
        # Held here, since module globals may be gone when a finaliser runs.
        self._get_ident = threading.get_ident
        self._clear = clear
        self._note = daemons.ENDED.append
        self._now = time.monotonic
        self.native_id = threading.get_native_id()
        self._report = report
        self.thread_id = threading.get_ident()

    def disarm(self) -> None:
        """Clear nothing: the thread does not exist in this process."""
        self.thread_id = 0

    def __del__(self) -> None:
        # On any other thread, or in a forked child, there is nothing of ours to clear.
        if self._get_ident() == self.thread_id:
            try:
                self._note((self.native_id, self._now()))
                self._clear()
            except Exception as error:  # noqa: BLE001 - the seam, see shield.py
                self._report("mlx_autobind.binding.ThreadExit", error)


def _no_clear() -> None:
    """Stand in for ``mx.clear_streams`` on an mlx that has none."""


# Replaced in `shared` mode, where every thread is given the same one, and keeps no other: what
# is pending on that could not be evaluated on another thread.
new_stream: Callable[[mx.Device], Any] = mx.new_stream
keeps_chosen = True
_set_default_stream = mx.set_default_stream
_clear_streams: Callable[[], None] = getattr(mx, "clear_streams", _no_clear)


def bind(entry_point: str, *, late: bool) -> None:
    """Give the calling thread a stream of its own on each device that a handle stands for.

    A default stream that the program chose itself is kept if this thread can use it, except in
    ``shared`` mode. Thread-safe.
    """
    devices = HANDLES.devices or {device_name(mx.default_device()): mx.default_device()}
    stopwatch = Stopwatch()
    # Tried before the lock is taken: it may wait for the work on that stream.
    chosen = THREAD.chosen if keeps_chosen else {}
    streams = {name: stream for name, stream in chosen.items() if _usable(stream)}
    with _STREAM_REBIND_LOCK:
        for name, device in devices.items():
            if name not in streams:
                streams[name] = new_stream(device)
                _set_default_stream(streams[name])
        THREAD.streams, THREAD.bound = streams, THREAD.identity
        if THREAD.alive is None:
            THREAD.alive = Alive()
            _alive.add(THREAD.alive)
    clear_at_exit()
    RANDOM_STATE.take()
    stopwatch.stop()
    for name, stream in streams.items():
        records.emit(
            "bind",
            entry_point,
            HANDLES.changes,
            stopwatch,
            device=name,
            stream_index=stream_index(stream),
            late=late,
        )


@shielded
def clear_at_exit() -> None:
    """Have the calling thread's streams cleared as it ends."""
    if THREAD.exit is None:
        THREAD.exit = ThreadExit(_clear_streams)
        daemons.watch(THREAD.exit)


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
    warn_if_forked(site)
    restore(site.namespace, site.handle, site.name, late=site.late)
    if THREAD.bound is None:
        bind(site.name, late=site.late)


# True once a thread has entered. mlx survives a fork before that: mlx-lm imports without any
# work from 0.31.3 on, and a server may well import it and then fork its workers.
_worked = False

# True in a child that was forked after that.
_forked = False


@shielded
def warn_if_forked(site: Site) -> None:
    """Warn, once, at the first entry in a child that was forked after others."""
    global _forked, _worked
    _worked = True
    if not _forked:
        return
    _forked = False
    logger.warning(
        "%s was called in a forked child: mlx does not survive a fork and may hang here. "
        'Start processes with multiprocessing.set_start_method("spawn") or subprocess.',
        site.name,
    )


@shielded
def hop(site: Site) -> None:
    """Record that the calling thread steps a generator that another one stepped before."""
    stopwatch = Stopwatch()
    for name, stream in THREAD.streams.items():
        records.emit(
            "hop",
            site.name,
            (),
            stopwatch,
            device=name,
            stream_index=stream_index(stream),
            late=site.late,
        )


# mlx's own context must be left by the thread that entered it. mlx-lm 0.32 keeps one open
# across the yields of a generator; left or collected on another thread it prints "Destroyed
# in a different thread" and leaves the first thread on a wrong stream. The thread is on the
# stream of a handle anyway.
_IN_STREAM = contextlib.nullcontext()


def stream(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``mx.stream`` whose context is empty for a handle of the default device."""

    @functools.wraps(original)
    def wrapper(s: Any) -> Any:
        if s.__class__ is StreamHandle:
            if THREAD.bound is None:
                _bind_user_of_handle("mlx.core.stream")
            if s == mx.default_device():
                return _IN_STREAM
        return original(s)

    return wrapper


@shielded
def _bind_user_of_handle(entry_point: str) -> None:
    bind(entry_point, late=False)


def set_default_stream(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``mx.set_default_stream`` that takes a handle too, as it took the stream."""

    @functools.wraps(original)
    def wrapper(stream: Any) -> None:
        if isinstance(stream, StreamHandle):
            if THREAD.bound is None:
                _bind_user_of_handle("mlx.core.set_default_stream")
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
        THREAD.bound = None


def clear_streams(original: Callable[[], None]) -> Callable[[], None]:
    """Return ``mx.clear_streams`` after which the calling thread is bound again."""

    @functools.wraps(original)
    def wrapper() -> None:
        RANDOM_STATE.leave()
        original()
        THREAD.bound = None
        THREAD.chosen.clear()

    return wrapper


# What `mlx_autobind.patching` wraps in mlx.core, by name.
CORE_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "clear_streams": clear_streams,
    "set_default_stream": set_default_stream,
    "stream": stream,
}


def _after_fork_in_child() -> None:
    """Start over: the lock may have been held, and no stream outlives a fork."""
    global _STREAM_REBIND_LOCK, _forked
    _STREAM_REBIND_LOCK = threading.RLock()
    for module in (shield, daemons, arrays, state, random_state):
        module.after_fork_in_child()
    if THREAD.exit is not None:
        THREAD.exit.disarm()
        THREAD.exit = None
    THREAD.bound = None
    THREAD.alive = None
    _alive.clear()
    THREAD.streams = {}
    THREAD.chosen.clear()
    _forked = _worked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
