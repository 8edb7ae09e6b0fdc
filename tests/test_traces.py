"""``mlx-autobind traces``: reads back what was written, and whatever else is in the file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_autobind.cli.spans import Reading
from tests import harness


def span(at: int = 0, **more: Any) -> dict[str, Any]:
    """Return a span as the exporter writes it."""
    attributes: dict[str, Any] = {
        "thread.id": at,
        "thread.name": f"worker {at}",
        "code.function.name": "mlx_lm.generate.generate",
        "mlx_autobind.kind": "bind",
        "mlx_autobind.mode": "thread",
        "mlx_autobind.device": "cpu:0",
        "mlx_autobind.stream.index": 3,
        "mlx_autobind.handles": ["mlx_lm.generate.generation_stream: replaced"],
        **more,
    }
    return {
        "traceId": "0123456789abcdef" * 2,
        "spanId": "0123456789abcdef",
        "name": "bind generation_stream",
        "startTimeUnixNano": str(1_790_000_000_000_000_000 + at),
        "endTimeUnixNano": str(1_790_000_000_000_150_000 + at),
        "attributes": [{"key": key, "value": value(held)} for key, held in attributes.items()],
    }


def value(held: Any) -> dict[str, Any]:
    if isinstance(held, list):
        return {"arrayValue": {"values": [value(each) for each in held]}}
    return {"intValue": str(held)} if isinstance(held, int) else {"stringValue": held}


def line(*spans: dict[str, Any], scope: str = "mlx_autobind", process: int = 7) -> str:
    """Return a line of a file."""
    resource = {"attributes": [{"key": "process.pid", "value": value(process)}]}
    scopes = [{"scope": {"name": scope}, "spans": list(spans)}]
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}) + "\n"


def traces(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_autobind", "traces", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=harness.environ(),
        timeout=60,
        check=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        line(span(1))
        + line(span(2), span(3, **{"mlx_autobind.kind": "hop", "thread.name": "pool"}), process=8)
        + line(span(4), scope="an application")
        + line(span(5))[:100]
    )
    return path


def test_the_table(file: Path) -> None:
    done = traces(file)
    assert done.returncode == 0
    assert done.stderr == ""
    rows = done.stdout.splitlines()
    assert rows[0].split()[:3] == ["time", "process", "thread"]
    assert len(rows) == 2 + 3 + 1 + 3
    assert "worker 1" in rows[2]
    assert "mlx_lm.generate.generation_stream: replaced" in rows[2]
    assert "cpu:0 #3" in rows[2]
    assert rows[-3] == "3 spans on 3 threads of 2 processes: 2 bind, 1 hop, 0 drift, 0 explained"
    assert rows[-2] == "a bind took 150 us (median), 150 us (99th percentile)"
    assert rows[-1] == "left out: 1 spans of others, 1 lines that are torn"


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        (["--thread", "worker*"], [1, 2]),
        (["--process", "8"], [2, 3]),
        (["--kind", "hop"], [3]),
        (["--kind", "hop", "--kind", "bind"], [1, 2, 3]),
        (["--since", "2030-01-01"], []),
        (["--until", "2030-01-01T10:00"], [1, 2, 3]),
    ],
)
def test_filters_and_json(options: list[str], threads: list[int], file: Path) -> None:
    done = traces(file, "--json", *options)
    found = [json.loads(row) for row in done.stdout.splitlines()]
    assert [each["thread_id"] for each in found] == threads
    for each in found:
        assert each["duration_ns"] == 150_000


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = traces(tmp_path / "none.jsonl")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No such file" in done.stderr


def test_a_time_that_is_none(file: Path) -> None:
    done = traces(file, "--since", "yesterday")
    assert done.returncode == 2
    assert "'yesterday' is no time" in done.stderr


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line(span(1, **{"thread.name": "a\x1b[2Jb\n"})))
    assert "a?[2Jb?" in traces(path).stdout


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(line(span(at)) for at in range(3000)))
    command = f"{sys.executable} -m mlx_autobind traces {path} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=harness.environ(), check=True
    )
    assert done.stderr == ""


def test_a_file_cut_anywhere_near_its_end_is_read() -> None:
    text = (line(span(1)) + line(span(2))).encode()
    for cut in range(1, 400):
        reading = Reading()
        found = list(reading.lines(text[:-cut].splitlines(keepends=True)))
        # Without its last character, the end of the line, it is whole.
        assert [each.thread_id for each in found] == ([1, 2] if cut == 1 else [1])
        assert reading.torn == (cut > 1)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["resourceSpans", "scopeSpans", "spans", "scope", "attributes", "x"]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_json_is_read(content: Any) -> None:
    reading = Reading()
    assert list(reading.lines([json.dumps(content)])) == []
