"""End the daemon threads that did MLX work, before the interpreter kills them.

A daemon thread that is still running when the interpreter finalises is killed, up to
Python 3.13, as it next asks for the GIL. mlx's clean-up then runs in a thread that may not
take the GIL any more and aborts the process, exit code 134, after its work was done.
Python 3.14 lets such threads hang instead, which harms nobody.
"""

import ctypes
import sys
import threading
import time
import weakref
from types import FrameType

from mlx_autobind.shield import shielded

# All daemons together; one that polls sees its exception within its poll interval.
PATIENCE_S = 1.0

KILLS_DAEMONS = sys.version_info < (3, 14)

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def watch() -> None:
    """Remember that the calling thread has something that mlx will clean up."""
    thread = threading.current_thread()
    if thread.daemon:
        _threads.add(thread)


@shielded
def end() -> None:
    """Have the daemon threads that did MLX work end by themselves. Runs at exit.

    ``SystemExit`` is raised in each, which ends a thread without a word, and lets it clear
    its streams. One that waits without a time-out never asks for the GIL again; it is
    left alone.
    """
    if not KILLS_DAEMONS:
        return
    frames = sys._current_frames()
    ending = []
    for thread in list(_threads):
        ident = thread.ident
        if ident is None or not thread.is_alive() or _waits_for_ever(frames.get(ident)):
            continue
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(SystemExit)
        )
        ending.append(thread)
    del frames
    deadline = time.monotonic() + PATIENCE_S
    for thread in ending:
        thread.join(max(0.0, deadline - time.monotonic()))


def _waits_for_ever(frame: FrameType | None) -> bool:
    """Tell whether a thread is in `threading.Condition.wait`, as in Event and Queue, for good."""
    return (
        frame is not None
        and frame.f_code is threading.Condition.wait.__code__
        and frame.f_locals.get("timeout") is None
    )
