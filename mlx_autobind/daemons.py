"""Have the threads that did MLX work end for good before the interpreter does.

Up to Python 3.12 a thread counts as joined before the system has ended it. What mlx keeps
for each thread is destroyed last, in C++, and wants the interpreter (the compile cache does:
``mx.clear_streams`` clears it from mlx 0.32.1 on, read: #4248). If that is finalising by then,
the process is aborted.

A daemon thread that is still running when the interpreter finalises is killed, up to
Python 3.13, as it next asks for the GIL. mlx's clean-up then runs in a thread that may not
take the GIL any more and aborts the process, exit code 134, after its work was done.
Python 3.14 lets such threads hang instead, which harms nobody.
"""

import ctypes
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from types import CodeType, FrameType
from typing import NoReturn, Protocol

from mlx_autobind.shield import shielded

logger = logging.getLogger("mlx_autobind")

# All daemons together; one that polls sees its exception within its poll interval.
PATIENCE_S = 1.0
_POLL_S = 0.002

KILLS_DAEMONS = sys.version_info < (3, 14)


class Ending(Protocol):
    """Something that lives in a thread's locals, and so until that thread has ended."""

    thread_id: int
    native_id: int
    # Of a daemon: its name, and what its outermost frame runs.
    thread_name: str
    root: CodeType


_daemons: dict[int, "weakref.ref[Ending]"] = {}
_lock = threading.Lock()


# The threads that ended last, as the system numbers them, and when: each notes itself as it is
# about to end. More than these do not end at once.
ENDED: "deque[tuple[int, float]]" = deque(maxlen=256)

# Where the system shows its threads, and how long one takes to end where it does not.
_TASKS = "/proc/self/task"
_LINGER_S = 0.05


def wait_until_gone() -> None:
    """Wait until the system has ended the threads that ended last. Runs at exit.

    They take the interpreter while this thread waits.
    """
    deadline = time.monotonic() + PATIENCE_S
    shown = os.path.isdir(_TASKS)  # noqa: PTH112 - pathlib is not loaded otherwise
    for native_id, when in list(ENDED):
        while time.monotonic() < deadline:
            if shown and not os.path.exists(f"{_TASKS}/{native_id}"):  # noqa: PTH110
                break
            if not shown and time.monotonic() > when + _LINGER_S:
                break
            time.sleep(_POLL_S)


# True once the interpreter ends.
_ends = False

# The daemons that end by themselves then.
_leaving: set[int] = set()


def watch(ending: Ending) -> None:
    """Remember that the calling thread, if it is a daemon, has something that mlx cleans up.

    Raises:
        SystemExit: the interpreter ends, and this thread was about to begin.
    """
    thread = threading.current_thread()
    if thread.daemon:
        if _ends:
            leave()
        ending.thread_name, ending.root = thread.name, outermost(sys._getframe()).f_code
        key = id(ending)
        with _lock:
            _daemons[key] = weakref.ref(ending, lambda _dead: _daemons.pop(key, None))


def leave() -> NoReturn:
    """End the calling thread, a daemon, since the interpreter ends."""
    _leaving.add(threading.get_ident())
    raise SystemExit


def after_fork_in_child() -> None:
    """Forget the parent's threads, and a lock that one of them may have held."""
    global _lock, _ends
    _lock = threading.Lock()
    _ends = False
    _daemons.clear()
    _leaving.clear()
    ENDED.clear()


@shielded
def end() -> None:
    """Have the threads that did MLX work end, daemons by themselves. Runs at exit.

    ``SystemExit`` is raised in each, which ends a thread without a word, and lets it clear
    its streams. One that waits without a time-out never asks for the GIL again; it is
    left alone. One that does not end in time is named in the log.
    """
    global _ends
    if KILLS_DAEMONS:
        _ends = True
        _end_daemons()
    wait_until_gone()


def _end_daemons() -> None:
    with _lock:
        left = dict.fromkeys(_daemons.values(), False)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        _raise_in(left)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)  # a thread that has ended tells nobody but its locals
    running = [ending.thread_name for ending in (reference() for reference in left) if ending]
    if running:
        logger.warning(
            "daemon threads still run as the interpreter ends, and mlx may abort it: %s",
            ", ".join(running),
        )


def _raise_in(left: "dict[weakref.ref[Ending], bool]") -> None:
    """Raise ``SystemExit``, once, in each thread that can take it; drop those that are done.

    `left` tells for each whether it was raised. Nothing that keeps a thread's locals alive
    outlives this call, since that is what is waited for.
    """
    frames = sys._current_frames()
    for reference, raised in list(left.items()):
        ending = reference()
        if ending is None:
            del left[reference]
            continue
        frame = frames.get(ending.thread_id)
        if frame is None and gone(ending):
            del left[reference]
            continue
        if raised or frame is None or ending.thread_id in _leaving:
            continue
        if _finalises(frame, ending.root):
            continue
        if _waits_for_ever(frame):
            del left[reference]
            continue
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ending.thread_id), ctypes.py_object(SystemExit)
        )
        left[reference] = True


def gone(ending: Ending) -> bool:
    """Tell whether the thread of `ending` has ended and left its locals behind.

    A finaliser that generates as the locals of its thread go has new ones made, which nobody
    takes away any more.
    """
    return os.path.isdir(_TASKS) and not os.path.exists(  # noqa: PTH110, PTH112
        f"{_TASKS}/{ending.native_id}"
    )


def outermost(frame: FrameType) -> FrameType:
    """Return the frame that the thread of `frame` began with."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _finalises(frame: FrameType, root: CodeType) -> bool:
    """Tell whether a thread is in a finaliser, from which no exception can leave.

    So it is in the middle of its work, if ``__del__`` is on its stack, and at its very end,
    when its locals go: its stack then begins with a finaliser, and no more with `root`.
    """
    while True:
        if frame.f_code.co_name == "__del__":
            return True
        if frame.f_back is None:
            return frame.f_code is not root
        frame = frame.f_back


def _waits_for_ever(frame: FrameType) -> bool:
    """Tell whether a thread is in `threading.Condition.wait`, as in Event and Queue, for good."""
    return (
        frame.f_code is threading.Condition.wait.__code__ and frame.f_locals.get("timeout") is None
    )
