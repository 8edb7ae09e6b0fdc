"""Threads that all do the same thing at once."""

import threading
from collections.abc import Callable


class Pool:
    """Threads that all begin the same thing at once, and live on.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._begin = threading.Barrier(count + 1)
        self._end = threading.Barrier(count + 1)
        self._call: Callable[[], object] = int
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._begin.wait()
            self._call()
            self._end.wait()

    def run(self, call: Callable[[], object]) -> None:
        """Have each thread call `call`; return when all have."""
        self._call = call
        self._begin.wait()
        self._end.wait()
