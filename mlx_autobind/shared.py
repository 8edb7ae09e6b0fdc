"""``shared`` mode: one stream for all threads, and one lock held during each step.

From mlx 0.32 on ``mx.new_thread_unsafe_stream`` makes a stream that any thread may use, and
leaves the races on it to the caller. It is made every bound thread's default stream, so that
an array that is pending on one thread can be evaluated on another, as up to mlx 0.31.1. The
lock is held for each step of an entry point and for each evaluation that the program asks
for by name; between steps it is free.
"""

import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

import mlx.core as mx

from mlx_autobind.binding import Site, relay
from mlx_autobind.handles import device_name

Function = Callable[..., Any]

# Re-entrant: an entry point evaluates, and calls others.
LOCK = threading.RLock()

AVAILABLE = hasattr(mx, "new_thread_unsafe_stream")

# Said by `status`.
UNPROTECTED = (
    "evaluation that no call asks for by name (item(), tolist(), float(), numpy) takes no lock: "
    "on two threads at once outside of entry points it can crash the process"
)

_streams: dict[str, Any] = {}


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


class LockedSteps:
    """A generator with the lock held during each step."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Generator[Any, Any, Any]) -> None:
        self._inner = inner

    def __iter__(self) -> "LockedSteps":
        return self

    def __next__(self) -> Any:
        """Take a step."""
        with LOCK:
            return next(self._inner)

    def send(self, value: Any) -> Any:
        """Take a step, with `value` for the generator."""
        with LOCK:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the generator."""
        with LOCK:
            return self._inner.throw(*error)

    def close(self) -> None:
        """Close the generator."""
        with LOCK:
            self._inner.close()


def lock_steps(
    generator: Generator[Any, Any, Any], _site: Site, _arguments: tuple[Any, ...]
) -> Generator[Any, Any, Any]:
    """Return a generator whose steps are those of `generator`, with the lock held."""
    return relay(LockedSteps(generator))


# What `mlx_autobind.patching` wraps in mlx.core besides.
CORE_WRAPPERS: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("eval", "async_eval", "synchronize"), locked
)


def after_fork_in_child() -> None:
    """Start over: the lock may have been held, and no stream outlives a fork."""
    global LOCK
    LOCK = threading.RLock()
    _streams.clear()
