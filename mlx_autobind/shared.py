"""``shared`` mode: one stream for all threads, and one lock held during each step.

From mlx 0.32 on ``mx.new_thread_unsafe_stream`` makes a stream that any thread may use, and
leaves the races on it to the caller. It is made every bound thread's default stream, so that
an array that is pending on one thread can be evaluated on another, as up to mlx 0.31.1. The
lock is held for each step of an entry point and for each evaluation that the program asks
for by name; between steps it is free.
"""

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import mlx.core as mx

from mlx_autobind import binding
from mlx_autobind.arrays import LAZY_MODELS
from mlx_autobind.binding import Site, Steps, collected, relay
from mlx_autobind.handles import device_name
from mlx_autobind.shield import shielded

Function = Callable[..., Any]

# Re-entrant: an entry point evaluates, and calls others. In this mode it is the lock of binds
# and of lazy models as well: no order of several locks can be wrong.
LOCK = threading.RLock()

AVAILABLE = hasattr(mx, "new_thread_unsafe_stream")

# Said by `status`.
UNPROTECTED = (
    "evaluation that no call asks for by name (item(), tolist(), float(), numpy) takes no lock: "
    "on two threads at once outside of entry points it can crash the process"
)

PATIENCE_S = 1.0

_streams: dict[str, Any] = {}

# Generators that were collected while another thread held the lock.
_left: deque[Generator[Any, Any, Any]] = deque()


def stream_of(device: mx.Device) -> Any:
    """Return the one stream that all threads use on `device`."""
    name = device_name(device)
    with LOCK:
        if name not in _streams:
            _streams[name] = mx.new_thread_unsafe_stream(device)
        return _streams[name]


def locked(function: Function, site: Site | None = None) -> Function:
    """Return `function` with the lock held while it runs."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if site is not None and not site.active:
            return function(*args, **kwargs)
        with LOCK:
            return function(*args, **kwargs)

    return wrapper


def close_left() -> None:
    """Close the generators that were left. With the lock held."""
    while _left:
        with contextlib.suppress(IndexError):
            _left.popleft().close()


class LockedSteps(Steps):
    """A generator with the lock held during each step."""

    __slots__ = ()

    def take(self, step: Function, *arguments: Any) -> Any:
        """Take the step with the lock held."""
        with LOCK:
            if _left:
                close_left()
            return step(*arguments)

    def close(self) -> None:
        """Close the generator.

        If the collector does, whoever next takes a step does it: another thread may hold
        the lock and wait for what this one holds.
        """
        left: Any = _left
        if left is None:  # the interpreter ends: nothing of this module is there
            return
        if not LOCK.acquire(blocking=not collected(self.generator)):
            _left.append(self.inner)
            return
        try:
            self.inner.close()
        finally:
            LOCK.release()


def lock_steps(
    generator: Generator[Any, Any, Any], _site: Site, _arguments: tuple[Any, ...]
) -> Generator[Any, Any, Any]:
    """Return a generator whose steps are those of `generator`, with the lock held."""
    return relay(LockedSteps(generator))


# What `mlx_autobind.patching` wraps in mlx.core besides.
CORE_WRAPPERS: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("eval", "async_eval", "synchronize"), locked
)


def begin() -> None:
    """Have binds give every thread the one stream, under the one lock."""
    binding.new_stream, binding.keeps_chosen = stream_of, False
    binding._STREAM_REBIND_LOCK = LAZY_MODELS.lock = LOCK


def end() -> None:
    """Have binds make streams, and everything its own lock again."""
    binding.new_stream, binding.keeps_chosen = mx.new_stream, True
    binding._STREAM_REBIND_LOCK = threading.RLock()
    LAZY_MODELS.lock = threading.RLock()


@shielded
def finish() -> None:
    """Wait for what is under way on the shared streams. Runs at exit.

    Nobody clears them, and what their native threads do may need the interpreter, which
    aborts the process if that has gone. A step that never ends is not waited for.
    """
    if _streams and LOCK.acquire(timeout=PATIENCE_S):
        try:
            for stream in _streams.values():
                mx.synchronize(stream)
        finally:
            LOCK.release()


def after_fork_in_child() -> None:
    """Start over: the lock may have been held, and no stream outlives a fork."""
    global LOCK
    LOCK = threading.RLock()
    _streams.clear()
    _left.clear()
    if binding.new_stream is stream_of:
        begin()
