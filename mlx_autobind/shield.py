"""The isolation seam: an error of the agent's own never reaches the program."""

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import ParamSpec, TypeVar

from mlx_autobind import settings

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("mlx_autobind")

_reported: set[str] = set()
_reported_lock = threading.Lock()


def after_fork_in_child() -> None:
    """Start over with a lock that another thread may have held."""
    global _reported_lock
    _reported_lock = threading.Lock()


def report(place: str, error: Exception) -> None:
    """Log `error` the first time `place` fails; raise it under ``MLX_AUTOBIND_STRICT=1``.

    Thread-safe.
    """
    if settings.current().strict:
        raise error
    with _reported_lock:
        if place in _reported:
            return
        _reported.add(place)
    logger.warning(
        "%s failed; the program goes on as if the agent were absent there "
        "(further failures at this place are not logged)",
        place,
        exc_info=error,
    )


def raised_by_signal(error: BaseException) -> bool:
    """Tell whether a signal handler of the program raised `error`.

    Python runs handlers between any two instructions, those of the agent included. Such an
    error is the program's, often a time-out, and would be lost here for good.
    """
    traceback, codes = error.__traceback__, set()
    while traceback is not None:
        codes.add(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return not codes.isdisjoint(_handler_codes())


def _handler_codes() -> Iterator[CodeType]:
    """Yield what the signal handlers of the process run."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for each in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004 - what it runs
            code = getattr(each, "__code__", None)
            if isinstance(code, CodeType):
                yield code


def shielded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function that the agent runs inside somebody else's call.

    Returns:
        A function that returns None where `function` raises an ``Exception``, unless a signal
        handler raised it.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if raised_by_signal(error):
                raise
            report(f"{function.__module__}.{function.__qualname__}", error)
            return None

    return guarded
