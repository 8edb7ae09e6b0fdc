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
from types import FrameType
from typing import Protocol

from mlx_autobind.shield import shielded

logger = logging.getLogger("mlx_autobind")

# All daemons together; one that polls sees its exception within its poll interval.
PATIENCE_S = 1.0
_POLL_S = 0.002

KILLS_DAEMONS = sys.version_info < (3, 14)


class Ending(Protocol):
    """Something that lives in a thread's locals, and so until that thread has ended."""

    thread_id: int
    thread_name: str


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


def watch(ending: Ending) -> None:
    """Remember that the calling thread, if it is a daemon, has something that mlx cleans up.

    Raises:
        SystemExit: the interpreter ends, and this thread was about to begin.
    """
    if threading.current_thread().daemon:
        if _ends:
            raise SystemExit
        key = id(ending)
        with _lock:
            _daemons[key] = weakref.ref(ending, lambda _dead: _daemons.pop(key, None))


def after_fork_in_child() -> None:
    """Forget the parent's threads, and a lock that one of them may have held."""
    global _lock, _ends
    _lock = threading.Lock()
    _ends = False
    _daemons.clear()
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
    frames = sys._current_frames()
    with _lock:
        references = list(_daemons.values())
    running = []
    for reference in references:
        ending = reference()
        if ending is None or ending.thread_id not in frames:
            continue
        if not _waits_for_ever(frames[ending.thread_id]):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(ending.thread_id), ctypes.py_object(SystemExit)
            )
            running.append((ending.thread_name, reference))
    # Neither may keep a thread's locals alive, which is what is waited for.
    ending = None
    frames.clear()
    deadline = time.monotonic() + PATIENCE_S
    left = []
    for name, reference in running:
        while reference() is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # a thread that has ended tells nobody but its locals
        if reference() is not None:
            left.append(name)
    if left:
        logger.warning(
            "daemon threads still run as the interpreter ends, and mlx may abort it: %s",
            ", ".join(left),
        )


def _waits_for_ever(frame: FrameType) -> bool:
    """Tell whether a thread is in `threading.Condition.wait`, as in Event and Queue, for good."""
    return (
        frame.f_code is threading.Condition.wait.__code__ and frame.f_locals.get("timeout") is None
    )
