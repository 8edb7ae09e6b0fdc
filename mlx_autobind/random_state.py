"""Go on with one sequence of random numbers, as far as generations follow one another.

Up to mlx 0.31.1 the process had one random state. From 0.31.2 on each thread has its own
(read: python/src/random.cpp), which starts from the time at which the process drew its first
number, the same for every thread, and ``mx.random.seed`` seeds the calling thread alone. So
a seed set by the main thread means nothing to a worker, and two workers sample the same.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx

from mlx_autobind.shield import shielded

_BITS = 32
_MASK = (1 << 2 * _BITS) - 1


class _Thread(threading.local):
    """What is known of the calling thread.

    Attributes:
        seeded: the program has seeded this thread, whose state is the program's own then.
        of_all: this thread works for all others, so that a seed set on it is theirs.
        handed: this thread has handed its state over to the one that works for it.
        open: the generations that began on this thread and go on drawing.
    """

    seeded = of_all = handed = False

    def __init__(self) -> None:
        self.identity = object()
        self.open: set[Drawing] = set()


class Drawing:
    """One generation that draws.

    Attributes:
        among: those of the thread that it began on; any thread may end it.
    """

    __slots__ = ("among",)

    def __init__(self, among: "set[Drawing]") -> None:
        self.among = among
        among.add(self)


class RandomState:
    """The random state of the process. One instance, `RANDOM_STATE`.

    A thread takes the state as a generation begins and gives it back as it ends. What begins
    in between gets one derived from it, which is another for each. Thread-safe.

    Attributes:
        holder: the identity of the thread that has the newest state.
        lent: that thread is drawing from it.
    """

    def __init__(self) -> None:
        # Re-entrant, for a signal handler that generates.
        self._lock = threading.RLock()
        self._thread = _Thread()
        # A key as one number, in which form it can be handed to any thread.
        self._key: int | None = None
        self.holder: object = None
        self.lent = False

    @shielded
    def identity(self) -> object:
        """Return what tells the calling thread from any other."""
        return self._thread.identity

    @shielded
    def take(self) -> None:
        """Have the calling thread go on where the process is, unless it was seeded itself."""
        thread = self._thread
        if self.holder is thread.identity:
            self.lent = True
        elif not thread.seeded:
            self._take()

    def _take(self) -> None:
        # By the first thread alone: what any other had of its own before counts for nothing.
        # Not under the lock: it evaluates, which in `shared` mode takes that mode's lock.
        key = self._key
        if key is None:
            key = _read()
        with self._lock:
            if self._key is not None:
                key = self._key
            if self.lent:
                key = _derive(key)
            self._key, self.holder, self.lent = key, self._thread.identity, True
        _seed(key)

    @shielded
    def begin(self) -> Drawing:
        """Take the state for a generation."""
        self.take()
        return Drawing(self._thread.open)

    @shielded
    def end(self, drawing: Drawing) -> None:
        """Give the state back if no other generation of the calling thread draws from it."""
        drawing.among.discard(drawing)
        if not self._thread.open:
            self.give_back()

    def give_back(self) -> None:
        """Have the process go on where the calling thread is, if nothing else has begun."""
        if self.holder is self._thread.identity:
            key = _read()
            with self._lock:
                if self.holder is self._thread.identity:
                    self._key, self.lent = key, False

    @shielded
    def hand_over(self) -> None:
        """Let the thread that works for the calling one go on from its state."""
        if self.holder is None:  # nobody has drawn yet, as far as is known
            self.holder = self._thread.identity
        if self.holder is self._thread.identity:
            self.give_back()
            self._thread.handed = True

    @shielded
    def take_over(self) -> None:
        """Go on where that thread has ended, if it has."""
        thread = self._thread
        if thread.handed and not self.lent:
            thread.handed = False
            if self.holder is not thread.identity:
                self._take()
                self.lent = False

    def work_for_all(self) -> None:
        """Note that the calling thread works for all others."""
        self._thread.of_all = True

    @shielded
    def leave(self) -> None:
        """Give the state back: that of the calling thread is about to be reset."""
        self.give_back()
        with self._lock:
            if self.holder is self._thread.identity:
                self.holder = None
        self._thread.seeded = False

    @shielded
    def seeded(self, seed: int) -> None:
        """Note that the program has seeded the calling thread."""
        key = int(seed) & _MASK
        thread = self._thread
        thread.seeded = not thread.of_all
        with self._lock:
            self._key, self.holder, self.lent = key, thread.identity, bool(thread.open)

    def clear(self) -> None:
        """Start over, with a lock that another thread may have held."""
        self._lock = threading.RLock()
        self._key, self.holder, self.lent = None, None, False


def _read() -> int:
    """Return the key of the calling thread."""
    state: Any = mx.random.state
    key = state[0]
    # By name, which in `shared` mode takes the lock: `tolist` would evaluate without it.
    mx.eval(key)
    high, low = key.tolist()
    return int(high) << _BITS | int(low)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have the calling thread go on afterwards as if nothing inside had drawn."""
    key = _read()
    try:
        yield
    finally:
        _seed(key)


def _derive(key: int) -> int:
    """Return another key, which comes again after 2**64 steps.

    mlx's generator is a counter-based one (Threefry): the sequences of two keys have nothing
    to do with each other, however near the keys are. The constants are Knuth's, of MMIX.
    """
    return (key * 6364136223846793005 + 1442695040888963407) & _MASK


# ``mx.random.seed(n)`` makes ``n`` the key itself: its upper and lower half.
_seed: Callable[[int], None] = mx.random.seed

RANDOM_STATE = RandomState()


def seed(original: Callable[..., None]) -> Callable[..., None]:
    """Return ``mx.random.seed`` that other threads hear of."""

    @functools.wraps(original)
    def wrapper(seed: int) -> None:
        original(seed)
        RANDOM_STATE.seeded(seed)

    return wrapper


def after_fork_in_child() -> None:
    """Start over in a forked child."""
    RANDOM_STATE.clear()
