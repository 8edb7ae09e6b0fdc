"""Read spans of the agent's back from files of OTLP JSON lines, whoever wrote them."""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mlx_autobind.telemetry import SCOPE

GENERATION = "generation"
_NS = 1e-9

# A thread of a trace: process, identifier and name. Identifiers are reused.
Lane = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Generation:
    """What is known of a generation besides when and where it ran.

    Attributes:
        operation: of the GenAI semantic conventions, such as ``text_completion``.
        model: its name; empty if it is not known.
        input_tokens: of the prompt; None if they are not known.
        output_tokens: that were generated.
        first_token_ns: nanoseconds until the first one; None if there is none.
        tokens_per_second: after the first; None if there are fewer than two.
        finish: why it ended, such as ``length``; empty if it did not by itself.
        end: ``exhausted``, ``closed``, ``collected``, ``error`` or ``exit``.
    """

    operation: str
    model: str
    input_tokens: int | None
    output_tokens: int
    first_token_ns: int | None
    tokens_per_second: float | None
    finish: str
    end: str


@dataclass(frozen=True, slots=True)
class Span:
    """One span.

    Attributes:
        kind: ``bind``, ``hop``, ``drift``, ``explained`` or ``generation``.
        started_ns: nanoseconds since the Unix epoch.
        duration_ns: nanoseconds that it took.
        process: identifier of the process; 0 if the file does not say.
        thread_id: Python's identifier of the thread.
        thread: name of the thread.
        mode: the agent's mode.
        stream: device and number of the stream, such as ``gpu:0 #3``.
        entry_point: what the thread called.
        handles: what was done to each handle.
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: the same of the span around it; empty if there is none.
        error: what was wrong, of an explained failure or a generation; else empty.
        generation: what is known of a generation; None of another kind.
        rank: of the process among those of ``mlx.launch``; None if it is none of them.
    """

    kind: str
    started_ns: int
    duration_ns: int
    process: int
    thread_id: int
    thread: str
    mode: str
    stream: str
    entry_point: str
    handles: tuple[str, ...]
    trace_id: str
    span_id: str
    parent_id: str
    error: str
    generation: Generation | None = None
    rank: int | None = None

    @property
    def lane(self) -> Lane:
        """The thread that it is on."""
        return self.process, self.thread_id, self.thread


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of `values`, and the 99th percentile, which lies within them."""
    one = len(values) == 1
    cuts = list(values) * 99 if one else statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


class Growing:
    """A file that others append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that came since the last time."""
        file = self._file
        if file is None or self._started_over(file):
            if file is not None:
                file.close()
            try:
                file = self._path.open("rb")
            except FileNotFoundError:
                self._file = None
                return
            self._file, self._rest = file, b""
        for line in file:
            # Half a line is the start of one that is being written.
            self._rest += line
            if self._rest.endswith(b"\n"):
                whole, self._rest = self._rest, b""
                yield whole

    def _started_over(self, file: BinaryIO) -> bool:
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        then = os.fstat(file.fileno())
        replaced = (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino)
        return replaced or now.st_size < file.tell()


@dataclass(slots=True)
class Reading:
    """What reading files came to.

    Attributes:
        foreign: spans of others.
        torn: lines that are no OTLP JSON, as the last one of a process that was killed.
    """

    foreign: int = 0
    torn: int = 0
    _names: dict[str, str] = field(default_factory=dict)

    def lines(self, lines: Iterable[bytes | str]) -> Iterator[Span]:
        """Yield the spans of the agent's in `lines`."""
        for line in lines:
            if not line.strip():
                continue
            try:
                found = list(self._spans(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self.torn += 1
            else:
                yield from found

    def files(self, paths: Iterable[Path]) -> Iterator[Span]:
        """Yield the spans of the agent's in the files `paths`.

        Raises:
            OSError: one cannot be read.
        """
        for path in paths:
            with path.open("rb") as file:
                yield from self.lines(file)

    def follow(self, paths: Iterable[Path]) -> Iterator[Span | None]:
        """Yield the spans of the agent's in the files `paths`, and None whenever there are no more.

        What is appended later comes later; a file that is not there yet, is emptied or is
        replaced is read from its start.
        """
        growing = [Growing(path) for path in paths]
        while True:
            for each in growing:
                yield from self.lines(each.lines())
            yield None

    def _spans(self, line: dict[str, Any]) -> Iterator[Span]:
        for resource in line["resourceSpans"]:
            process = _attributes(resource.get("resource", {})).get("process.pid", 0)
            for scope in resource.get("scopeSpans", ()):
                spans = scope.get("spans", ())
                if scope.get("scope", {}).get("name") != SCOPE:
                    self.foreign += len(spans)
                    continue
                for span in spans:
                    yield self._span(span, int(process))

    def _span(self, span: dict[str, Any], process: int) -> Span:
        found = _attributes(span)
        started = int(span["startTimeUnixNano"])
        name = self._name
        kind = name(found.get("mlx_autobind.kind", span["name"].partition(" ")[0]))
        device = found.get("mlx_autobind.device")
        return Span(
            kind=kind,
            started_ns=started,
            duration_ns=int(span["endTimeUnixNano"]) - started,
            process=process,
            thread_id=int(found.get("thread.id", 0)),
            thread=name(found.get("thread.name", "")),
            mode=name(found.get("mlx_autobind.mode", "")),
            stream=name(f"{device} #{found.get('mlx_autobind.stream.index')}") if device else "",
            entry_point=name(found.get("code.function.name", "")),
            handles=tuple(map(name, found.get("mlx_autobind.handles", ()))),
            trace_id=str(span["traceId"]),
            span_id=str(span["spanId"]),
            parent_id=str(span.get("parentSpanId", "")),
            error=name(span.get("status", {}).get("message") or found.get("error.type", "")),
            generation=self._generation(found) if kind == GENERATION else None,
            rank=None if "mlx_autobind.rank" not in found else int(found["mlx_autobind.rank"]),
        )

    def _generation(self, found: dict[str, Any]) -> Generation:
        first_s = found.get("gen_ai.response.time_to_first_chunk")
        rate = found.get("mlx_autobind.generation.tokens_per_second")
        prompt = found.get("gen_ai.usage.input_tokens")
        return Generation(
            operation=self._name(found.get("gen_ai.operation.name", "")),
            model=self._name(found.get("gen_ai.request.model", "")),
            input_tokens=None if prompt is None else int(prompt),
            output_tokens=int(found.get("gen_ai.usage.output_tokens", 0)),
            first_token_ns=None if first_s is None else round(float(first_s) / _NS),
            tokens_per_second=None if rate is None else float(rate),
            finish=self._name(", ".join(found.get("gen_ai.response.finish_reasons", ()))),
            end=self._name(found.get("mlx_autobind.generation.end", "")),
        )

    def _name(self, text: Any) -> str:
        """Return `text` as one object however often it comes: files repeat themselves."""
        return self._names.setdefault(str(text), str(text))


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in holder.get("attributes", ())}


def _value(value: dict[str, Any]) -> Any:
    for kind, held in value.items():
        if kind == "arrayValue":
            return [_value(each) for each in held.get("values", ())]
        if kind == "intValue":  # a string, for JSON has no 64-bit numbers
            return int(held)
        return held
    return None
