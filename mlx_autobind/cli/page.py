"""Spans as one page of HTML that needs no network: a timeline and a table.

Nothing of a span is part of the HTML. All of it is JSON that the script of the page reads and
puts into text nodes, and the policy of the page lets no other script run.
"""

import base64
import hashlib
import importlib.resources
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from mlx_autobind.cli import output
from mlx_autobind.cli.spans import Generation, Lane, Reading, Span, percentiles

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Nanoseconds that any reader can make a date of; files may say anything.
_LATEST_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """How a kind of span looks; the colour is a variable of the style sheet, ``--KIND``.

    Attributes:
        kind: of the spans.
        title: for one or several of them.
        meaning: what it stands for.
        path: SVG path data around 0,0, ten units wide; filled by the even-odd rule.
    """

    kind: str
    title: str
    meaning: str
    path: str


# Told apart by shape first: colours differ for few eyes.
MARKS = (
    Mark(
        "bind",
        "binds",
        "A thread got its stream.",
        "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    ),
    Mark(
        "hop",
        "hops",
        "A generator was stepped by another thread than before.",
        "M-4-5.5L6 0L-4 5.5Z",
    ),
    Mark(
        "drift",
        "drifts",
        "Something else was assigned to a handle.",
        "M0-6L6 0L0 6L-6 0ZM0-2.8L2.8 0L0 2.8L-2.8 0Z",
    ),
    Mark(
        "explained",
        "explained failures",
        "An error about streams, with what was wrong.",
        "M-5.5-3.5L-3.5-5.5L0-2L3.5-5.5L5.5-3.5L2 0L5.5 3.5L3.5 5.5L0 2L-3.5 5.5L-5.5 3.5L-2 0Z",
    ),
    Mark(
        "generation",
        "generations",
        "Pale until the first token, then solid.",
        "M-6.5-4H6.5V4H-6.5ZM-5.5-3V3H-2V-3Z",
    ),
    # Of a version to come, or of somebody else's making.
    Mark(
        "other",
        "others",
        "A kind that this version does not know.",
        "M-4.5-4.5H4.5V4.5H-4.5ZM-2.5-2.5V2.5H2.5V-2.5Z",
    ),
)
_KNOWN = {mark.kind for mark in MARKS}


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the summary.

    Attributes:
        title: what it is.
        value: the figure with its unit.
    """

    title: str
    value: str


def write(spans: Sequence[Span], reading: Reading, out: Path) -> None:
    """Write the page of `spans` to `out`, whole or not at all.

    Args:
        spans: in any order.
        reading: where they come from; what it left out is said on the page.
        out: is replaced if it is there.

    Raises:
        ModuleNotFoundError: jinja2 is not installed (the extra ``cli`` brings it).
        OSError: `out` cannot be written.
    """
    output.write(out, [render(spans, reading)])


def render(spans: Sequence[Span], reading: Reading) -> str:
    """Return the page of `spans`.

    Raises:
        ModuleNotFoundError: jinja2 is not installed.
    """
    import jinja2
    from markupsafe import Markup

    ordered = sorted(spans, key=lambda span: span.started_ns)
    style, script = _part("page.css"), _part("page.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    counts = Counter(span.kind if span.kind in _KNOWN else "other" for span in ordered)
    return environment.from_string(_part("page.html.jinja")).render(
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(_embedded(encode(ordered))),  # noqa: S704 - it has no character of HTML's
        count=len(ordered),
        began=_moment(ordered[0].started_ns) if ordered else "",
        marks=[
            (mark, counts[mark.kind]) for mark in MARKS if mark.kind != "other" or counts["other"]
        ],
        facts=list(facts(ordered)),
        reading=reading,
    )


def facts(spans: Sequence[Span]) -> Iterator[Fact]:
    """Yield the figures of the summary of `spans`."""
    counts = Counter(span.kind for span in spans)
    threads = {span.lane for span in spans}
    yield Fact("threads", f"{len(threads):,}")
    yield Fact("processes", f"{len({span.process for span in spans}):,}")
    for mark in MARKS:
        if mark.kind != "other":
            yield Fact(mark.title, f"{counts[mark.kind]:,}")
    binds = [span.duration_ns for span in spans if span.kind == "bind"]
    if binds:
        median, last = percentiles(binds)
        yield Fact("bind, median", duration(median))
        yield Fact("bind, 99th percentile", duration(last))
    first = [
        span.generation.first_token_ns
        for span in spans
        if span.generation is not None and span.generation.first_token_ns is not None
    ]
    if first:
        yield Fact("first token, median", duration(statistics.median(first)))


def duration(nanoseconds: float) -> str:
    """Return `nanoseconds` with three digits and a unit, as the script of the page does."""
    value = max(nanoseconds, 0.0)
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if value < size * 999.5:
            return f"{_three_digits(value / size)} {unit}"
    return f"{_three_digits(value / 1e9)} s"


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2  # noqa: PLR2004
    return f"{value:.{decimals}f}" if value != int(value) else f"{int(value)}"


def encode(spans: Sequence[Span]) -> dict[str, Any]:
    """Return what the script of the page reads.

    Each text is in it once, and a span is a row of numbers: its texts are places in ``strings``,
    its thread one in ``lanes``, its start is nanoseconds after the start of the one before it.
    Identifiers of threads and processes are strings, since JSON's numbers stop at 53 bits.

    Args:
        spans: by their start.
    """
    strings: dict[str, int] = {"": 0}

    def place(text: str) -> int:
        return strings.setdefault(text, len(strings))

    numbered = {lane: at for at, lane in enumerate(lanes(spans))}
    columns: dict[str, list[int]] = {
        name: []
        for name in (
            *("lane", "delta", "duration", "kind", "mode", "stream", "entry", "handles"),
            *("trace", "span", "parent", "error"),
        )
    }
    generations: list[list[Any]] = []
    origin = before = _bounded(spans[0].started_ns) if spans else 0
    for at, span in enumerate(spans):
        started = _bounded(span.started_ns)
        row = {
            "lane": numbered[span.lane],
            "delta": started - before,
            "duration": _bounded(span.duration_ns),
            "kind": place(span.kind),
            "mode": place(span.mode),
            "stream": place(span.stream),
            "entry": place(span.entry_point),
            "handles": place("\n".join(span.handles)),
            "trace": place(span.trace_id),
            "span": place(span.span_id),
            "parent": place(span.parent_id),
            "error": place(span.error),
        }
        before = started
        for name, value in row.items():
            columns[name].append(value)
        if span.generation is not None:
            generations.append([at, *_generation(span.generation, place)])
    return {
        "origin": str(origin),
        "marks": [[mark.kind, mark.path] for mark in MARKS],
        "strings": list(strings),
        "lanes": [[str(process), str(thread_id), name] for process, thread_id, name in numbered],
        "columns": columns,
        "generations": generations,
    }


def lanes(spans: Sequence[Span]) -> list[Lane]:
    """Return each thread in `spans`.

    Those of a process stand together; in it, and among processes, the first to do something is
    the first.
    """
    found = dict.fromkeys(span.lane for span in spans)
    processes = {process: at for at, process in enumerate(dict.fromkeys(lane[0] for lane in found))}
    return sorted(found, key=lambda lane: processes[lane[0]])


def _generation(generation: Generation, place: Any) -> list[Any]:
    speed = generation.tokens_per_second
    return [
        place(generation.operation),
        place(generation.model),
        generation.input_tokens,
        generation.output_tokens,
        None if generation.first_token_ns is None else _bounded(generation.first_token_ns),
        None if speed is None or not math.isfinite(speed) else round(speed, 3),
        place(generation.finish),
        place(generation.end),
    ]


def _embedded(data: dict[str, Any]) -> str:
    """Return `data` as JSON in ASCII that HTML, in which it stands, finds nothing in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _bounded(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0), _LATEST_NS)


def _moment(started_ns: int) -> str:
    moment = _EPOCH + timedelta(microseconds=_bounded(started_ns) // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _hash(text: str) -> str:
    """Return the source expression of a content security policy for `text`."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _part(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
