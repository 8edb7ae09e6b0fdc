"""Spans as the JSON of Chrome's trace events, which ui.perfetto.dev opens."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlx_autobind.cli import output
from mlx_autobind.cli.spans import Lane, Span

# A track holds slices that lie in one another; all other kinds are shown as a moment.
SLICES = frozenset({"bind", "generation"})
# Perfetto takes 0 for the kernel's idle process, and keeps identifiers in 32 bits.
_PROCESSES = range(1, 2**31)

Event = dict[str, Any]


def write(spans: Sequence[Span], out: Path) -> None:
    """Write `spans` to `out` as trace events, whole or not at all.

    Args:
        spans: in any order.
        out: is replaced if it is there.

    Raises:
        OSError: `out` cannot be written.
    """
    output.write(out, _text(spans))


def _text(spans: Sequence[Span]) -> Iterator[str]:
    """Yield the file, an event a line."""
    first = min((span.started_ns for span in spans), default=0)
    head = {
        "displayTimeUnit": "ns",
        # Times are counted from it: as microseconds since 1970 they would lose the nanoseconds.
        "otherData": {"first_span_unix_nano": str(first)},
    }
    yield json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": ['
    separator = "\n"
    for event in events(spans):
        yield separator + json.dumps(event, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"


def events(spans: Sequence[Span]) -> Iterator[Event]:
    """Yield the names of processes and threads, and then the events by their time.

    A thread is a track with a small number of its own, whatever its identifier: Python's have 64
    bits, of which a number in JSON keeps 53, and they are reused. What overlaps on a thread, such
    as two generators that it steps in turn, is on a further track of the thread's name.
    """
    ordered = sorted(spans, key=lambda span: (span.started_ns, -span.duration_ns))
    first = ordered[0].started_ns if ordered else 0
    processes = _processes(ordered)
    tracks = _Tracks(set(processes.values()))
    found = [
        event
        for span in ordered
        for event in _events(span, first, processes[span.process], tracks.place(span))
    ]
    yield from _names(processes, tracks)
    # A slice comes before those in it, which may begin with it.
    yield from sorted(found, key=lambda event: (event["ts"], -event.get("dur", -1.0)))


class _Tracks:
    """Gives each thread as many tracks as its slices need in order to lie in one another."""

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken
        self._last = 0
        # Of a lane, by the number of each of its tracks: when the slices end that are open.
        self.lanes: dict[Lane, dict[int, list[int]]] = {}

    def place(self, span: Span) -> int:
        """Return the number of the track for `span`; they come by start, longer ones first."""
        tracks = self.lanes.setdefault(span.lane, {})
        if span.kind not in SLICES:
            return next(iter(tracks), 0) or self._add(tracks)
        end = span.started_ns + max(span.duration_ns, 0)
        for number, open_ends in tracks.items():
            while open_ends and open_ends[-1] <= span.started_ns:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1]:
                open_ends.append(end)
                return number
        number = self._add(tracks)
        tracks[number].append(end)
        return number

    def _add(self, tracks: dict[int, list[int]]) -> int:
        """Add a track, with a number that is no process's: that would be its main thread."""
        self._last += 1
        while self._last in self._taken:
            self._last += 1
        tracks[self._last] = []
        return self._last


def _processes(spans: Sequence[Span]) -> dict[int, int]:
    """Return a number for each process: its own if Perfetto can take it, else one that is free."""
    found = dict.fromkeys(span.process for span in spans)
    numbers = {process: process for process in found if process in _PROCESSES}
    free = (number for number in _PROCESSES if number not in numbers)
    return {process: numbers.get(process) or next(free) for process in found}


def _names(processes: dict[int, int], tracks: _Tracks) -> Iterator[Event]:
    for at, (process, pid) in enumerate(processes.items()):
        name = f"process {process}" if process else "process unknown"
        yield from _name("process", pid, 0, name, at)
    at = 0
    for (process, thread_id, thread), numbers in tracks.lanes.items():
        for copy, tid in enumerate(numbers):
            name = f"{thread} [{thread_id}]" + (f" ({copy + 1})" if copy else "")
            yield from _name("thread", processes[process], tid, name, at)
            at += 1


def _name(what: str, pid: int, tid: int, name: str, place: int) -> Iterator[Event]:
    common = {"ph": "M", "cat": "__metadata", "pid": pid, "tid": tid, "ts": 0}
    yield {**common, "name": f"{what}_name", "args": {"name": _scalar(name)}}
    yield {**common, "name": f"{what}_sort_index", "args": {"sort_index": place}}


def _events(span: Span, first: int, pid: int, tid: int) -> Iterator[Event]:
    common = {"cat": "mlx_autobind", "pid": pid, "tid": tid}
    event = {
        **common,
        "name": _title(span),
        "ts": (span.started_ns - first) / 1000,
        "args": _details(span),
    }
    duration = max(span.duration_ns, 0) / 1000
    if span.kind in SLICES:
        yield {**event, "ph": "X", "dur": duration}
    else:
        yield {**event, "ph": "i", "s": "t"}
    if span.generation is not None and span.generation.first_token_ns is not None:
        at = (span.started_ns - first + max(span.generation.first_token_ns, 0)) / 1000
        yield {**common, "name": "first token", "ph": "i", "s": "t", "ts": at, "args": {}}


def _title(span: Span) -> str:
    title = _scalar(span.kind)
    if span.generation is not None and span.generation.operation:
        title = f"{title} {_scalar(span.generation.operation)}"
    return title


def _details(span: Span) -> dict[str, Any]:
    """Return what Perfetto shows of the one that is selected."""
    found: dict[str, Any] = {
        "entry_point": span.entry_point,
        "mode": span.mode,
        "stream": span.stream,
        "thread_id": str(span.thread_id),
        "duration_us": max(span.duration_ns, 0) / 1000,
        "handles": "\n".join(span.handles),
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "error": span.error,
    }
    if span.generation is not None:
        generation = span.generation
        found |= {
            "model": generation.model,
            "input_tokens": generation.input_tokens,
            "output_tokens": generation.output_tokens,
            "tokens_per_second": generation.tokens_per_second,
            "finish": generation.finish,
            "end": generation.end,
        }
    return {name: _plain(value) for name, value in found.items() if _plain(value) not in {"", None}}


def _plain(value: Any) -> Any:
    """Return what JSON can say of `value`; other readers than Python know no NaN."""
    if isinstance(value, str):
        return _scalar(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _scalar(text: str) -> str:
    """Return `text` with halves of surrogate pairs replaced, which strict readers refuse."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
