"""``mlx-autobind traces``: what a trace file says, as a table, a tree, JSON or a page."""

import argparse
import dataclasses
import fnmatch
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

from mlx_autobind.cli.spans import GENERATION, Generation, Reading, Span, percentiles
from mlx_autobind.records import Kind

KINDS: tuple[str, ...] = (*get_args(Kind), GENERATION)
_NS = 1e-9
_US = 1e-3
_MS = 1e-6

_NO_LIMIT = 100_000

# How often a file that grows is looked at.
_POLL_S = 0.2


def _process(span: Span) -> str:
    return str(span.process) if span.rank is None else f"{span.process} #{span.rank}"


def details(span: Span) -> str:
    """Return what there is to say of `span` besides when and where it was."""
    if span.generation is None:
        return span.error or ", ".join(span.handles)
    said = ", ".join(_of_generation(span.generation))
    return f"{said}, {span.error}" if span.error else said


def _of_generation(generation: Generation) -> Iterator[str]:
    prompt = "?" if generation.input_tokens is None else generation.input_tokens
    yield f"{generation.model}: {prompt} tokens in, {generation.output_tokens} out"
    if generation.first_token_ns is not None:
        yield f"first after {generation.first_token_ns * _MS:.1f} ms"
    if generation.tokens_per_second is not None:
        yield f"then {generation.tokens_per_second:.0f}/s"
    yield generation.finish or generation.end


# Title, width, and what stands there; the last column is as wide as it has to be.
COLUMNS: tuple[tuple[str, int, Callable[[Span], str]], ...] = (
    ("time", 26, lambda span: _time(span.started_ns)),
    ("process", 10, _process),
    ("thread", 22, lambda span: span.thread),
    ("mode", 6, lambda span: span.mode),
    ("kind", 10, lambda span: span.kind),
    ("stream", 9, lambda span: span.stream),
    ("us", 8, lambda span: f"{span.duration_ns * _US:.0f}"),
    ("trace", 8, lambda span: span.trace_id[:8] if span.parent_id else ""),
    ("entry point", 44, lambda span: span.entry_point),
    ("handles", 0, details),
)

# The extra that has what a format is made with.
_INSTALL = "pip install 'mlx-autobind[cli]'"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "traces",
        help="show what MLX_AUTOBIND_TRACE has written",
        description=(
            "Reads files of OTLP JSON lines, as MLX_AUTOBIND_TRACE and the file exporter of the "
            "OpenTelemetry collector write them, and prints the rebinds and generations in them "
            "as a table and a summary. Spans of others, and lines that are torn or no spans, are "
            "counted and left out. Times are local."
        ),
    )
    command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    chosen = command.add_argument_group("which spans")
    chosen.add_argument(
        "--thread", metavar="PATTERN", help="only threads with such a name: 'pool*'"
    )
    chosen.add_argument("--process", type=int, metavar="PID", help="only this process")
    chosen.add_argument(
        "--kind",
        choices=KINDS,
        action="append",
        metavar="KIND",
        help=f"only this kind ({', '.join(KINDS)}); may be given again",
    )
    for option, when in (("--since", "at or after"), ("--until", "before")):
        chosen.add_argument(
            option,
            type=_moment,
            metavar="TIME",
            help=f"only what began {when} TIME, such as 2026-11-30T18:00 (local time)",
        )
    shown = command.add_argument_group("how they are shown").add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print a JSON object for each span")
    shown.add_argument(
        "--tree", action="store_true", help="by process, thread, and what is part of what"
    )
    shown.add_argument(
        "--html", type=Path, metavar="OUT", help="write a page with a timeline to OUT"
    )
    shown.add_argument(
        "--perfetto", type=Path, metavar="OUT", help="write a trace for ui.perfetto.dev to OUT"
    )
    command.add_argument(
        "--follow",
        action="store_true",
        help="go on as the files grow, until interrupted (as a table, or with --json)",
    )
    command.set_defaults(usage_error=command.error)


def run(options: argparse.Namespace) -> int:
    """Print or write what the files say, and return the exit code."""
    out = options.html or options.perfetto
    if out and out.resolve() in [file.resolve() for file in options.files]:
        options.usage_error(f"{out} is read: what is written needs another name")
    reading = Reading()
    try:
        if options.follow:
            if options.tree or options.html or options.perfetto:
                options.usage_error("--follow goes with the table or --json")
            _follow(reading, options)
        else:
            _show(_sorted(_wanted(reading.files(options.files), options)), reading, options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has seen enough; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        print(f"mlx-autobind traces: {error}: {_INSTALL}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"mlx-autobind traces: {error}", file=sys.stderr)
        return 1
    return 0


def _wanted(spans: Iterable[Span], options: argparse.Namespace) -> Iterator[Span]:
    return (span for span in spans if wanted(span, options))


def _sorted(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: span.started_ns)


def _show(spans: list[Span], reading: Reading, options: argparse.Namespace) -> None:
    if options.json:
        _print(map(_json, spans))
        return
    if options.html:
        from mlx_autobind.cli import page

        page.write(spans, reading, options.html)
    elif options.perfetto:
        from mlx_autobind.cli import perfetto

        perfetto.write(spans, options.perfetto)
    elif options.tree:
        tree(spans)
        print()
    else:
        _print((*heading(), *map(row, spans), ""))
    _print(summary(spans, reading))


def _follow(reading: Reading, options: argparse.Namespace) -> None:
    line = _json if options.json else row
    seen: list[Span] = []
    fresh: list[Span] = []
    if not options.json:
        _print(heading())
    try:
        for span in reading.follow(options.files):
            if span is None:
                # Those that were there are sorted, and so are those that came at once.
                fresh = _sorted(fresh)
                seen += fresh
                _print(map(line, fresh))
                sys.stdout.flush()
                fresh = []
                time.sleep(_POLL_S)
            elif wanted(span, options):
                fresh.append(span)
    except KeyboardInterrupt:
        if not options.json:
            _print(("", *summary(seen, reading)))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


_FIELDS = tuple(field.name for field in dataclasses.fields(Span))


def _json(span: Span) -> str:
    # Not dataclasses.asdict, which copies every value: half of the time that it all takes.
    return json.dumps({name: getattr(span, name) for name in _FIELDS}, default=dataclasses.asdict)


def wanted(span: Span, options: argparse.Namespace) -> bool:
    """Tell whether the filters of the command line let `span` through."""
    return (
        (options.thread is None or fnmatch.fnmatchcase(span.thread, options.thread))
        and (options.process is None or span.process == options.process)
        and (options.kind is None or span.kind in options.kind)
        and (options.since is None or span.started_ns >= options.since)
        and (options.until is None or span.started_ns < options.until)
    )


def heading() -> Iterator[str]:
    """Yield the first lines of the table."""
    yield _line(title for title, _width, _text in COLUMNS)
    yield _line("-" * (width or len(title)) for title, width, _text in COLUMNS)


def row(span: Span) -> str:
    """Return the line of the table for `span`."""
    return _line(text(span) for _title, _width, text in COLUMNS)


def _line(cells: Iterable[str]) -> str:
    fitted = (
        plain(cell).ljust(width)[: width or None]
        for cell, (_title, width, _text) in zip(cells, COLUMNS, strict=True)
    )
    return "  ".join(fitted).rstrip()


def plain(text: str) -> str:
    """Return `text` without what a terminal would take for a command."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def tree(spans: Sequence[Span]) -> None:
    """Print `spans` by process, thread, and what is part of what.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    known = {(span.trace_id, span.span_id): span for span in spans}
    root = Tree("", hide_root=True)
    branches: dict[object, Tree] = {}
    # Those whose place depends on that of the span around them. In a file that is not ours
    # that can go round in a circle.
    waiting: set[object] = set()

    def branch(key: object, parent: Tree, label: str, style: str = "bold") -> Tree:
        if key not in branches:
            branches[key] = parent.add(Text(plain(label), style))
        return branches[key]

    def place(span: Span) -> Tree:
        key = (span.trace_id, span.span_id)
        if key in branches:
            return branches[key]
        waiting.add(key)
        around = known.get((span.trace_id, span.parent_id))
        thread = f"thread {span.thread} ({span.thread_id})"
        if around is not None and (span.trace_id, span.parent_id) not in waiting:
            parent = place(around)
            # One that was given another name meanwhile is still the same.
            elsewhere = around.lane[:2] != span.lane[:2]
        else:
            process = branch(span.process, root, f"process {_process(span)}")
            parent = branch(span.lane, process, thread)
            elsewhere = False
        waiting.discard(key)
        said = f"{_time(span.started_ns)[11:]} {span.kind} {_length(span.duration_ns)}"
        where = f" on {thread}" if elsewhere else ""
        text = f"{said} {span.entry_point} {span.stream} {details(span)}{where}"
        return branch(key, parent, " ".join(text.split()), "red" if span.error else "")

    for span in spans:
        place(span)
    # Where it is no terminal, lines are as long as they are.
    Console(highlight=False, width=None if sys.stdout.isatty() else _NO_LIMIT).print(root)


def _length(duration_ns: int) -> str:
    us = duration_ns * _US
    return f"{us:.0f} us" if us < 1000 else f"{duration_ns * _MS:.1f} ms"  # noqa: PLR2004


def summary(spans: list[Span], reading: Reading) -> Iterator[str]:
    """Yield the lines of the summary."""
    kinds = Counter(span.kind for span in spans)
    threads = {span.lane for span in spans}
    processes = {span.process for span in spans}
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    yield f"{len(spans)} spans on {len(threads)} threads of {len(processes)} processes: {counted}"
    binds = [span.duration_ns * _US for span in spans if span.kind == "bind"]
    if binds:
        yield f"a bind took {_percentiles(binds, 'us')}"
    found = [span.generation for span in spans if span.generation is not None]
    first = [each.first_token_ns * _MS for each in found if each.first_token_ns is not None]
    if first:
        yield f"the first token of a generation took {_percentiles(first, 'ms')}"
    if reading.foreign or reading.torn:
        torn = f"{reading.torn} lines that are torn or no spans"
        yield f"left out: {reading.foreign} spans of others, {torn}"


def _percentiles(values: Sequence[float], unit: str) -> str:
    median, last = percentiles(values)
    return f"{median:.0f} {unit} (median), {last:.0f} {unit} (99th percentile)"


def _time(started_ns: int) -> str:
    return datetime.fromtimestamp(started_ns * _NS).isoformat(timespec="microseconds")


def _moment(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() / _NS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {error}") from None
