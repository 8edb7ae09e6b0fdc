"""``mlx-autobind traces``: reads back what was written, and whatever else is in the file."""

import json
import signal
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
        "spanId": f"{at:016x}",
        "name": "bind generation_stream",
        "startTimeUnixNano": str(1_790_000_000_000_000_000 + at),
        "endTimeUnixNano": str(1_790_000_000_000_150_000 + at),
        "attributes": [{"key": key, "value": value(held)} for key, held in attributes.items()],
    }


def generation(at: int, **more: Any) -> dict[str, Any]:
    """Return the span of a generation."""
    return span(
        at,
        **{
            "mlx_autobind.kind": "generation",
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "tiny",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 40,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.response.time_to_first_chunk": 0.0125,
            "mlx_autobind.generation.tokens_per_second": 812.4,
            "mlx_autobind.generation.end": "exhausted",
            **more,
        },
    )


def inside(around: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Return the span `inner` as a child of `around`."""
    return {**inner, "parentSpanId": around["spanId"]}


def value(held: Any) -> dict[str, Any]:
    if isinstance(held, list):
        return {"arrayValue": {"values": [value(each) for each in held]}}
    if isinstance(held, float):
        return {"doubleValue": held}
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
    assert rows[-3] == (
        "3 spans on 3 threads of 2 processes: 2 bind, 1 hop, 0 drift, 0 explained, 0 generation"
    )
    assert rows[-2] == "a bind took 150 us (median), 150 us (99th percentile)"
    assert rows[-1] == "left out: 1 spans of others, 1 lines that are torn or no spans"


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


def test_a_generation(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    failed = {"error.type": "ValueError", "mlx_autobind.generation.end": "error"}
    left_out = ("gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk")
    sparse = generation(2, **failed)
    sparse["attributes"] = [each for each in sparse["attributes"] if each["key"] not in left_out]
    path.write_text(line(generation(1)) + line(sparse))
    done = traces(path)
    rows = done.stdout.splitlines()
    assert rows[2].endswith("tiny: 7 tokens in, 40 out, first after 12.5 ms, then 812/s, length")
    assert rows[3].endswith("tiny: 7 tokens in, 40 out, then 812/s, error, ValueError")
    assert "the first token of a generation took 12 ms (median), 12 ms (99th" in done.stdout
    assert [
        json.loads(row)["generation"] for row in traces(path, "--json").stdout.splitlines()
    ] == [
        {
            "operation": "text_completion",
            "model": "tiny",
            "input_tokens": 7,
            "output_tokens": 40,
            "first_token_ns": 12_500_000,
            "tokens_per_second": 812.4,
            "finish": "length",
            "end": "exhausted",
        },
        {
            "operation": "text_completion",
            "model": "tiny",
            "input_tokens": 7,
            "output_tokens": 40,
            "first_token_ns": None,
            "tokens_per_second": 812.4,
            "finish": "",
            "end": "error",
        },
    ]


def test_the_tree(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    around = generation(1)
    by_the_owner = inside(around, span(2, **{"thread.name": "owner", "thread.id": 9}))
    path.write_text(
        line(around, by_the_owner, inside(around, span(3, **{"thread.id": 1, "thread.name": "w"})))
        + line(span(4, **{"thread.name": "[bold]markup[/bold]"}), process=8)
    )
    rows = traces(path, "--tree").stdout.splitlines()
    depths = [len(row) - len(row.lstrip("│├└─ \xa0")) for row in rows]
    assert depths[:7] == [0, 4, 8, 12, 12, 0, 4]
    assert rows[0] == "process 7"
    assert "thread worker 1 (1)" in rows[1]
    assert "generation 150 us mlx_lm.generate.generate" in rows[2]
    assert rows[3].endswith("on thread owner (9)")
    assert "bind 150 us" in rows[4]
    assert rows[4].endswith("replaced")
    assert rows[6].endswith("thread [bold]markup[/bold] (4)")
    assert rows[-3].startswith("4 spans on 4 threads")


def test_a_tree_that_goes_round_in_a_circle(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    first, second, third = span(1), span(2), span(3)
    path.write_text(line(inside(second, first), inside(first, second), inside(third, third)))
    done = traces(path, "--tree")
    assert done.stderr == ""
    assert done.stdout.count("bind 150 us") == 3


def test_the_tree_without_rich(file: Path) -> None:
    text = "import sys; sys.modules['rich.console'] = None; from mlx_autobind.cli import main; "
    done = subprocess.run(
        [sys.executable, "-c", f"{text}sys.exit(main(['traces', '--tree', {str(file)!r}]))"],
        capture_output=True,
        text=True,
        env=harness.environ(),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith("pip install 'mlx-autobind[cli]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("how", ["--json", None])
def test_a_file_that_grows(how: str | None, tmp_path: Path) -> None:
    """Also half a line at a time, emptied, and replaced; it is not there at first."""
    path, other = tmp_path / "trace.jsonl", tmp_path / "other.jsonl"
    # A job that a shell runs in the background ignores SIGINT, and so do its children.
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from mlx_autobind.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-u", "-c", start, "traces", "--follow", str(path)]
    process = subprocess.Popen(
        command if how is None else [*command, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=harness.environ(),
    )
    assert process.stdout is not None

    def seen(thread: str) -> bool:
        """Wait for the next line, and tell whether it is about `thread`."""
        assert process.stdout is not None
        return thread in process.stdout.readline()

    if how is None:
        assert seen("entry point")
        assert seen("----")
    whole = line(span(1))
    path.write_text(whole[:50])
    with path.open("a") as file:
        file.write(whole[50:])
        file.flush()
        assert seen("worker 1")
        file.write(line(span(2)) + line(span(3, **{"thread.name": "x"}))[:-1])
        file.flush()
        assert seen("worker 2")
        file.write("\n")
    assert seen('"x"' if how else " x ")
    path.write_text("")
    path.write_text(line(span(4)))
    assert seen("worker 4")
    other.write_text(line(span(5)) + line(span(6)))
    other.replace(path)
    assert seen("worker 5")
    assert seen("worker 6")
    process.send_signal(signal.SIGINT)
    rest, problems = process.communicate(timeout=60)
    assert problems == ""
    assert process.returncode == 0
    assert ("6 spans on 6 threads" in rest) is (how is None)


def test_what_does_not_go_together(file: Path) -> None:
    done = traces(file, "--follow", "--tree")
    assert done.returncode == 2
    assert "--follow goes with the table or --json" in done.stderr


@pytest.mark.parametrize("option", ["--html", "--perfetto"])
def test_a_file_is_not_written_over_itself(option: str, file: Path) -> None:
    before = file.read_bytes()
    done = traces(file, option, file)
    assert done.returncode == 2
    assert "is read: what is written needs another name" in done.stderr
    assert file.read_bytes() == before


def test_a_folder_to_write_to_that_is_not_there(file: Path) -> None:
    out = file.parent / "none" / "page.html"
    done = traces(file, "--html", out)
    assert done.returncode == 1
    assert done.stderr.endswith(f"No such file or directory: '{out.resolve()}'\n")


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
