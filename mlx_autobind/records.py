"""What happened at one bind, hop, drift or explained failure, kept in the process."""

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlx_autobind import settings, targets
from mlx_autobind.shield import shielded

Kind = Literal["bind", "hop", "drift", "explained"]
Action = Literal["replaced", "copied", "kept", "restored"]


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of the libraries that were imported at the time of a record.

    Immutable, so that threads may share it. Since 0.1.0.

    Attributes:
        mlx: what ``mlx.core.__version__`` said; None if it was not imported.
        mlx_lm: what ``mlx_lm.__version__`` said; None if it was not imported.
        mlx_vlm: what ``mlx_vlm.__version__`` said; None if it was not imported.
    """

    mlx: str | None
    mlx_lm: str | None
    mlx_vlm: str | None


@dataclass(frozen=True, slots=True)
class HandleChange:
    """What was done to one handle.

    Immutable, so that threads may share it. Since 0.1.0.

    Attributes:
        where: the place, such as ``mlx_lm.generate.generation_stream`` or
            ``mlx_lm.generate.generate_step(stream=)``.
        action: ``replaced``; ``copied`` if it was taken from a replaced one;
            ``kept`` or ``restored`` if something else was assigned to it.
    """

    where: str
    action: Action


@dataclass(frozen=True, slots=True)
class Record:
    """One bind, hop, drift or explained failure.

    Nothing of a prompt, of an answer or of a file is in it. Immutable, so that threads may share
    it. Since 0.1.0.

    Attributes:
        kind: ``bind``, a thread got its stream; ``hop``, a generator was stepped by
            another thread than the step before; ``drift``, somebody assigned something
            to a handle; ``explained``, a "There is no Stream" error left the library.
        thread_name: the name of the thread it happened on.
        thread_id: Python's identifier of that thread (``threading.get_ident``), as in
            ``thread.id`` of OpenTelemetry's semantic conventions 1.44; identifiers are reused.
        device: device type and index, such as ``gpu:0``.
        stream_index: mlx's number of the stream: the thread's own at a bind or hop, the
            assigned one at a drift, the one that was asked for at an explained failure;
            -1 if it is not known. mlx tells it only in the text of a stream (read:
            ``mlx/utils.cpp`` and ``python/src/stream.cpp`` of 0.32.0).
        mode: the agent's mode: ``thread``, ``owner`` or ``shared``.
        entry_point: what the thread called, such as ``mlx_lm.generate.generate``.
        handles: every handle known so far (bind), or the one that drifted.
        started_ns: nanoseconds since the Unix epoch, on the wall clock (``time.time_ns``).
        duration_ns: nanoseconds that it took, on a clock that is not set back
            (``time.perf_counter_ns``).
        versions: of mlx, mlx-lm and mlx-vlm.
        late: True if the library had been imported before the agent was installed.
        error: what was wrong, of an explained failure; else None.
    """

    kind: Kind
    thread_name: str
    thread_id: int
    device: str
    stream_index: int
    mode: str
    entry_point: str
    handles: tuple[HandleChange, ...]
    started_ns: int
    duration_ns: int
    versions: Versions
    late: bool
    error: str | None = None


Listener = Callable[[Record], None]


class Stopwatch:
    """Start of an event on the wall clock, and its length on the monotonic one.

    Attributes:
        started_ns: nanoseconds since the Unix epoch.
        began_ns: the same moment on the clock of `time.perf_counter_ns`.
    """

    __slots__ = ("_length_ns", "began_ns", "started_ns")

    def __init__(self) -> None:
        self.started_ns = time.time_ns()
        self.began_ns = time.perf_counter_ns()
        self._length_ns: int | None = None

    def stop(self) -> int:
        """Return the nanoseconds from when it was made to when it was first stopped."""
        if self._length_ns is None:
            self._length_ns = time.perf_counter_ns() - self.began_ns
        return self._length_ns


class Ring:
    """The newest records of the process, and those who want to hear of each.

    Thread-safe: appending to a bounded deque is atomic, and no lock is held while the
    listeners run, so that a slow exporter delays only the thread that was bound.
    """

    def __init__(self, size: int) -> None:
        self._records: deque[Record] = deque(maxlen=size)
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Have `listener` called with each further record, on the thread it is about."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    def emit(self, record: Record) -> None:
        """Keep `record`, dropping the oldest if the ring is full."""
        self._records.append(record)
        for listener in self._listeners:
            listener(record)

    def snapshot(self) -> tuple[Record, ...]:
        """Return the records, oldest first."""
        while True:
            try:
                return tuple(self._records)
            except RuntimeError:  # appended to while it was being copied
                continue


RING = Ring(settings.current().records)


# The same object for as long as no library is imported: every record has one.
_versions = functools.lru_cache(maxsize=1)(Versions)


def versions() -> Versions:
    """Return the versions of the libraries that are imported now; imports none."""
    modules = sys.modules
    return _versions(
        *[getattr(modules.get(package), "__version__", None) for _, package in targets.VERSIONED]
    )


def imported(versions: Versions) -> dict[str, str]:
    """Return the versions of the libraries that were imported, by the names of the fields."""
    found = {field: getattr(versions, field) for field, _ in targets.VERSIONED}
    return {field: version for field, version in found.items() if version is not None}


@shielded
def emit(
    kind: Kind,
    entry_point: str,
    handles: tuple[HandleChange, ...],
    stopwatch: Stopwatch,
    *,
    device: str,
    stream_index: int,
    late: bool,
    error: str | None = None,
) -> None:
    """Keep a record of what the calling thread has just been through. Thread-safe."""
    duration_ns = stopwatch.stop()
    thread = threading.current_thread()
    RING.emit(
        Record(
            kind=kind,
            thread_name=thread.name,
            thread_id=threading.get_ident(),
            device=device,
            stream_index=stream_index,
            mode=settings.current().mode,
            entry_point=entry_point,
            handles=handles,
            started_ns=stopwatch.started_ns,
            duration_ns=duration_ns,
            versions=versions(),
            late=late,
            error=error,
        )
    )
