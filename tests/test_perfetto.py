"""Trace events, checked against what is published of the format.

That is the "Trace Event Format" of Chromium's catapult project, and what Perfetto says of it:
slices of a track lie in one another, and threads are told apart by numbers of 32 bits. Perfetto's
own reader is a program that its Python package downloads, so that it is not run here.
"""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_autobind.cli import perfetto
from mlx_autobind.cli.spans import Generation, Span
from tests.spans import FIRST_NS, MS, US, span


def strict(text: str) -> Any:
    """Return the JSON value `text`, which may hold nothing but what RFC 8259 allows."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return value


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def check(events: Iterable[dict[str, Any]]) -> None:
    """Raise if `events` are not what the format allows."""
    threads: dict[int, int] = {}
    rest: list[dict[str, Any]] = []
    for event in events:
        assert event["ph"] in {"M", "X", "i"}
        for field in ("pid", "tid"):
            assert type(event[field]) is int
            assert 0 <= event[field] < 2**31
        assert event["pid"] > 0
        assert type(event["name"]) is str
        assert type(event["cat"]) is str
        assert type(event["args"]) is dict
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        if event["ph"] == "M":
            assert not rest, "names come first"
            expected = {
                "process_name": {"name": str},
                "thread_name": {"name": str},
                "process_sort_index": {"sort_index": int},
                "thread_sort_index": {"sort_index": int},
            }[event["name"]]
            assert {name: type(value) for name, value in event["args"].items()} == expected
            if event["name"] == "thread_name":
                assert event["tid"] not in threads
                threads[event["tid"]] = event["pid"]
            continue
        rest.append(event)
        assert threads[event["tid"]] == event["pid"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert event["s"] == "t"
            assert "dur" not in event
        for value in event["args"].values():
            assert type(value) in {str, int, float}
    assert not set(threads) & set(threads.values()), "a thread with the number of a process"
    assert all(one["ts"] <= other["ts"] for one, other in pairwise(rest))
    for tid in threads:
        open_ends: list[int] = []
        for event in rest:
            if event["ph"] == "X" and event["tid"] == tid:
                start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or end <= open_ends[-1], "slices that cross"
                open_ends.append(end)


def written(spans: Sequence[Span], folder: Path) -> Any:
    """Return what is in the file of `spans`."""
    out = folder / "trace.json"
    perfetto.write(spans, out)
    return strict(out.read_text(encoding="utf-8"))


def timed(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] != "M"]


def names(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == "thread_name"]


def test_a_file(tmp_path: Path) -> None:
    found = written(
        [
            span("hop", 2 * MS, 5 * US, thread="other"),
            span("generation", 1_500, 4 * MS),
            span("bind", 0, 123_456, process=8),
            span("explained", 9 * MS, error="There is no Stream(cpu, 3)"),
        ],
        tmp_path,
    )
    check(found["traceEvents"])
    assert found["otherData"] == {"first_span_unix_nano": str(FIRST_NS)}
    events = timed(found["traceEvents"])
    assert [(each["name"], each["ph"], each["ts"]) for each in events] == [
        ("bind", "X", 0.0),
        ("generation text_completion", "X", 1.5),
        ("first token", "i", 1001.5),
        ("hop", "i", 2000.0),
        ("explained", "i", 9000.0),
    ]
    assert events[0]["dur"] == 123.456
    assert events[1]["args"]["output_tokens"] == 34
    assert events[4]["args"]["error"] == "There is no Stream(cpu, 3)"
    assert names(found["traceEvents"]) == [
        "worker [140234567890176]",
        "worker [140234567890176]",
        "other [140234567890176]",
    ]


def test_no_spans(tmp_path: Path) -> None:
    assert written([], tmp_path)["traceEvents"] == []


def test_a_nanosecond_after_a_month_is_kept() -> None:
    at = 30 * 86_400 * 10**9 + 1
    events = timed(perfetto.events([span("bind", 0), span("bind", at, 1)]))
    assert ns(events[1]["ts"]) == at


def test_the_order_does_not_depend_on_that_of_the_spans() -> None:
    spans = [span("generation", at * 10, 25, thread=f"worker {at % 3}") for at in range(9)]
    assert list(perfetto.events(spans)) == list(perfetto.events(spans[::-1]))


def test_what_lies_in_another_shares_its_track() -> None:
    inner, outer = span("bind", 10, 5), span("generation", 0, 100)
    assert names(perfetto.events([inner, outer])) == ["worker [140234567890176]"]


def test_what_overlaps_has_a_track_of_its_own() -> None:
    spans = [span("generation", 0, 100), span("generation", 50, 100), span("generation", 100, 10)]
    events = list(perfetto.events(spans))
    assert names(events) == ["worker [140234567890176]", "worker [140234567890176] (2)"]
    first, second, third = (event["tid"] for event in timed(events) if event["ph"] == "X")
    assert first == third != second


def test_an_identifier_that_is_reused_is_another_track() -> None:
    events = list(perfetto.events([span("bind", 0), span("bind", 9, thread="next")]))
    assert names(events) == ["worker [140234567890176]", "next [140234567890176]"]
    assert len({event["tid"] for event in timed(events)}) == 2


@pytest.mark.parametrize("process", [0, -1, 2**31, 2**64])
def test_a_process_that_perfetto_has_no_number_for(process: int) -> None:
    events = list(perfetto.events([span("bind", 0, process=process), span("bind", 1, process=1)]))
    check(events)
    assert len({event["pid"] for event in events}) == 2


TEXT = st.text(max_size=5) | st.sampled_from(["\ud800", "</script>", ""])


@given(
    st.lists(
        st.builds(
            Span,
            kind=st.sampled_from(["bind", "hop", "generation", "generation"]) | TEXT,
            started_ns=st.integers(0, 40) | st.integers(0, 2**50),
            duration_ns=st.integers(-5, 20) | st.integers(0, 2**49),
            process=st.integers(-1, 3),
            thread_id=st.integers(1, 2),
            thread=st.sampled_from(["a", "b"]) | TEXT,
            mode=TEXT,
            stream=TEXT,
            entry_point=TEXT,
            handles=st.tuples(TEXT),
            trace_id=TEXT,
            span_id=TEXT,
            parent_id=TEXT,
            error=TEXT,
            generation=st.none()
            | st.builds(
                Generation,
                operation=TEXT,
                model=TEXT,
                input_tokens=st.none() | st.integers(0, 9),
                output_tokens=st.integers(0, 9),
                first_token_ns=st.none() | st.integers(-5, 50),
                tokens_per_second=st.none() | st.floats(),
                finish=TEXT,
                end=TEXT,
            ),
        ),
        max_size=12,
    )
)
def test_any_spans(spans: list[Span]) -> None:
    events = list(perfetto.events(spans))
    check(strict(json.dumps(events, allow_nan=False)))
    assert len(timed(events)) >= len(spans)
