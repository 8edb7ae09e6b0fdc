"""The isolation seam: an error of the agent's own never reaches the program."""

import functools
import logging
import threading
from collections.abc import Callable
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


def shielded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function that the agent runs inside somebody else's call.

    Returns:
        A function that returns None where `function` raises an ``Exception``.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - this is the seam
            report(f"{function.__module__}.{function.__qualname__}", error)
            return None

    return guarded
