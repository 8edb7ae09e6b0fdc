"""How much memory and how many native threads the process has."""

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")

# The system ends a thread later than Python says so.
PATIENCE_S = 5.0


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def available() -> bool:
    """Tell whether this system says what there is to measure."""
    return sys.platform == "linux" and _STATUS.exists()


def memory() -> int:
    """Return the resident memory, in KiB."""
    return _status("VmRSS")


def beside() -> int:
    """Return how many native threads there are besides those of Python."""
    return _status("Threads") - threading.active_count()


def settled(limit: int) -> int:
    """Return `beside`, read again for a while if it is more than `limit`."""
    until = time.monotonic() + PATIENCE_S
    while True:
        now = beside()
        if now <= limit or time.monotonic() > until:
            return now
        time.sleep(0.01)


@dataclasses.dataclass
class Reading:
    """What was read at one moment.

    Attributes:
        at: seconds since the start.
        memory: resident memory, in KiB.
        threads: native threads besides Python's.
        allowed: how many there may be.
    """

    at: float
    memory: int
    threads: int
    allowed: int


class Meter:
    """Reads now and then.

    Args:
        allowed: returns how many native threads besides Python's there may be now, above those
            at the start.
    """

    def __init__(self, allowed: Callable[[], int]) -> None:
        self._allowed = allowed
        self._began = time.monotonic()
        self.base = beside()
        self.readings: list[Reading] = []
        self.read()

    def read(self) -> None:
        """Read."""
        # What is allowed only grows, so that it is asked before what there is would be unjust.
        threads = beside()
        allowed = self.base + self._allowed()
        if threads > allowed:
            threads = settled(allowed)
        at = time.monotonic() - self._began
        self.readings.append(Reading(at, memory(), threads, allowed))

    def result(self) -> dict[str, int]:
        """Return what came of it, for the page."""
        self.read()
        last = self.readings[-1].at
        thirds: list[list[int]] = [[], [], []]
        for reading in self.readings:
            thirds[min(2, int(3 * reading.at / last) if last else 0)].append(reading.memory)
        # Of a short run a third may be without a reading.
        first, middle, end = (max(third or [self.readings[-1].memory]) for third in thirds)
        return {
            "memory_start": self.readings[0].memory,
            "memory_first": first,
            "memory_middle": middle,
            "memory_end": end,
            "threads_start": self.base,
            "threads_most": max(reading.threads for reading in self.readings),
            "threads_end": self.readings[-1].threads,
            "threads_allowed": self.readings[-1].allowed,
            "threads_over": max(
                max(0, reading.threads - reading.allowed) for reading in self.readings
            ),
        }
