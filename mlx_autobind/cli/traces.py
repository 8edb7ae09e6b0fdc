"""``mlx-autobind traces``: what a trace file says, as a table and a summary, or as JSON."""

import argparse
import dataclasses
import fnmatch
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import get_args

from mlx_autobind.cli.spans import Reading, Span
from mlx_autobind.records import Kind

KINDS: tuple[str, ...] = get_args(Kind)
_NS = 1e-9
_US = 1e-3

# Title, width, and what stands there; the last column is as wide as it has to be.
COLUMNS: tuple[tuple[str, int, Callable[[Span], str]], ...] = (
    ("time", 26, lambda span: _time(span.started_ns)),
    ("process", 8, lambda span: str(span.process)),
    ("thread", 22, lambda span: span.thread),
    ("mode", 6, lambda span: span.mode),
    ("kind", 9, lambda span: span.kind),
    ("stream", 9, lambda span: span.stream),
    ("us", 8, lambda span: f"{span.duration_ns * _US:.0f}"),
    ("trace", 8, lambda span: span.trace_id[:8] if span.parent_id else ""),
    ("entry point", 38, lambda span: span.entry_point),
    ("handles", 0, lambda span: span.error or ", ".join(span.handles)),
)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "traces",
        help="show what MLX_AUTOBIND_TRACE has written",
        description=(
            "Reads files of OTLP JSON lines, as MLX_AUTOBIND_TRACE and the file exporter of the "
            "OpenTelemetry collector write them, and prints the rebinds in them as a table and a "
            "summary. Spans of others and lines that are torn are counted and left out."
        ),
    )
    command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    command.add_argument("--thread", metavar="PATTERN", help="only threads with such a name")
    command.add_argument("--process", type=int, metavar="PID", help="only this process")
    command.add_argument(
        "--kind", choices=KINDS, action="append", help="only this kind; may be given again"
    )
    for option, when in (("--since", "after"), ("--until", "before")):
        command.add_argument(
            option,
            type=_moment,
            metavar="TIME",
            help=f"only what began {when} TIME, such as 2026-11-30T18:00",
        )
    command.add_argument("--json", action="store_true", help="print a JSON object for each span")


def run(options: argparse.Namespace) -> int:
    """Print what the files say, and return the exit code."""
    reading = Reading()
    try:
        spans = sorted(
            (span for span in reading.files(options.files) if wanted(span, options)),
            key=lambda span: span.started_ns,
        )
    except OSError as error:
        print(f"mlx-autobind traces: {error}", file=sys.stderr)
        return 1
    try:
        if options.json:
            for span in spans:
                print(json.dumps(dataclasses.asdict(span)))
        else:
            for line in (*table(spans), "", *summary(spans, reading)):
                print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has seen enough; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def wanted(span: Span, options: argparse.Namespace) -> bool:
    """Tell whether the filters of the command line let `span` through."""
    return (
        (options.thread is None or fnmatch.fnmatchcase(span.thread, options.thread))
        and (options.process is None or span.process == options.process)
        and (options.kind is None or span.kind in options.kind)
        and (options.since is None or span.started_ns >= options.since)
        and (options.until is None or span.started_ns < options.until)
    )


def table(spans: Iterable[Span]) -> Iterable[str]:
    """Yield the lines of the table."""
    yield _line(title for title, _width, _text in COLUMNS)
    yield _line("-" * (width or len(title)) for title, width, _text in COLUMNS)
    for span in spans:
        yield _line(text(span) for _title, _width, text in COLUMNS)


def _line(cells: Iterable[str]) -> str:
    fitted = (
        _plain(cell).ljust(width)[: width or None]
        for cell, (_title, width, _text) in zip(cells, COLUMNS, strict=True)
    )
    return "  ".join(fitted).rstrip()


def _plain(text: str) -> str:
    """Return `text` without what a terminal would take for a command."""
    return "".join(each if each.isprintable() else "?" for each in text)


def summary(spans: list[Span], reading: Reading) -> Iterable[str]:
    """Yield the lines of the summary."""
    kinds = Counter(span.kind for span in spans)
    threads = {(span.process, span.thread_id, span.thread) for span in spans}
    processes = {span.process for span in spans}
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    yield f"{len(spans)} spans on {len(threads)} threads of {len(processes)} processes: {counted}"
    durations = [span.duration_ns * _US for span in spans if span.kind == "bind"]
    if durations:
        cuts = statistics.quantiles(durations, n=100) if len(durations) > 1 else durations * 99
        yield f"a bind took {cuts[49]:.0f} us (median), {cuts[98]:.0f} us (99th percentile)"
    if reading.foreign or reading.torn:
        yield f"left out: {reading.foreign} spans of others, {reading.torn} lines that are torn"


def _time(started_ns: int) -> str:
    return datetime.fromtimestamp(started_ns * _NS).isoformat(timespec="microseconds")


def _moment(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() / _NS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {error}") from None
