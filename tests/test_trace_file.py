"""MLX_AUTOBIND_TRACE: a line of OTLP JSON for each span, whatever becomes of the process."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack

pytest.importorskip(
    "opentelemetry.exporter.otlp.json.file",
    reason="the exporter is not installed: pip install 'mlx-autobind[trace]'",
)

ASKING = """
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    for at in range(3):
        on_thread(asker.ask, str(at), PROMPTS[at], name=f"worker {at}")
    asker.print()
"""


@pytest.fixture(autouse=True)
def _something_is_recorded(stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")


def spans(file: Path) -> list[dict[str, Any]]:
    """Return the spans in `file`, each with its attributes and those of its resource."""
    found = []
    for line in file.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    attributes = [*span["attributes"], *resource["resource"]["attributes"]]
                    named = {each["key"]: each["value"] for each in attributes}
                    found.append({**span, "attributes": named, "scope": scope})
    return found


def test_each_span_is_a_line(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    outcome = run(
        program(ASKING), checkpoint, agent="import", env={"MLX_AUTOBIND_TRACE": str(file)}
    )
    outcome.clean()
    assert len(file.read_text().splitlines()) == len(outcome.records) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = spans(file)
    names = {span["attributes"]["thread.name"]["stringValue"] for span in found}
    assert names == {"worker 0", "worker 1", "worker 2"}
    for span in found:
        assert span["name"] == "bind generation_stream"
        assert span["scope"]["scope"]["name"] == "mlx_autobind"
        assert span["scope"]["schemaUrl"] == "https://opentelemetry.io/schemas/1.44.0"
        assert "process.pid" in span["attributes"]
        assert int(span["endTimeUnixNano"]) > int(span["startTimeUnixNano"])


TOGETHER = """
    import subprocess
    started = [
        subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], sys.path[0]])
        for _ in range(3)
    ]
    print([process.wait() for process in started])
"""

ONE_OF_THEM = """
import sys
import mlx_autobind
sys.path.insert(0, sys.argv[2])
from asking import Asker, PROMPTS, on_thread
asker = Asker()
for at in range(20):
    on_thread(asker.ask, str(at), PROMPTS[0], name="x" * 2000)
"""


def test_it_is_appended_to_by_several_processes(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    outcome = run(
        program(TOGETHER),
        checkpoint,
        ONE_OF_THEM,
        agent="import",
        env={"MLX_AUTOBIND_TRACE": str(file)},
    )
    assert outcome.clean() == [0, 0, 0]
    found = spans(file)
    assert len(found) == 60
    assert len({span["attributes"]["process.pid"]["intValue"] for span in found}) == 3


def test_the_pipeline_of_the_application_gets_no_span_twice(
    run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    outcome = run(
        program(ASKING), checkpoint, agent="import", sdk=True, env={"MLX_AUTOBIND_TRACE": str(file)}
    )
    outcome.clean()
    assert len(outcome.spans) == len(spans(file)) == 3


@pytest.mark.parametrize("where", ["no/such/folder/trace.jsonl", ".", "/dev/full"])
def test_what_cannot_be_written_is_one_warning(
    where: str, run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    if where == "/dev/full" and not Path(where).exists():
        pytest.skip("this system has no /dev/full")
    path = where if where.startswith("/") else str(tmp_path / where)
    outcome = run(program(ASKING), checkpoint, agent="import", env={"MLX_AUTOBIND_TRACE": path})
    assert outcome.code == 0
    assert all("tokens" in step for step in outcome.result.values())
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    assert outcome.stderr.startswith("MLX_AUTOBIND_TRACE: nothing is written: ")


def test_without_the_exporter(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    text = f"sys.modules['opentelemetry.exporter.otlp.json.file'] = None\n{ASKING.strip()}"
    outcome = run(
        program(text.replace("\n    ", "\n")),
        checkpoint,
        agent="import",
        env={"MLX_AUTOBIND_TRACE": str(tmp_path / "trace.jsonl")},
    )
    assert outcome.code == 0
    assert outcome.stderr.count("\n") == 1
    assert "pip install 'mlx-autobind[trace]'" in outcome.stderr


def test_a_forked_child_writes_as_itself(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    text = program("""
        import os
        from asking import Asker, PROMPTS
        asker = Asker()
        asker.ask("parent", PROMPTS[0])
        if os.fork() == 0:
            from mlx_autobind import records
            records.emit(
                "hop", "of the child", (), records.Stopwatch(), device="cpu:0", stream_index=0,
                late=False,
            )
            os._exit(0)
        os.wait()
        asker.print()
    """)
    run(text, checkpoint, agent="import", env={"MLX_AUTOBIND_TRACE": str(file)})
    found = spans(file)
    assert [span["name"] for span in found] == ["bind generation_stream", "hop generation_stream"]
    parent, child = (span["attributes"]["process.pid"]["intValue"] for span in found)
    assert parent != child


def test_an_aborted_process_has_written_its_spans(
    run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    text = program(f"{ASKING.rstrip()}\n    import os; os.abort()\n")
    outcome = run(text, checkpoint, agent="import", env={"MLX_AUTOBIND_TRACE": str(file)})
    assert outcome.code == -6
    assert len(spans(file)) == 3


def test_a_torn_line_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk was full for a while."""
    from mlx_autobind.trace_file import AppendedFile

    path = tmp_path / "trace.jsonl"
    file = AppendedFile(str(path))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    file.write('{"torn": 1}\n')
    monkeypatch.undo()
    file.write('{"whole": 1}\n')
    file.write('{"whole": 2}\n')
    assert path.read_text() == '{"tor\n{"whole": 1}\n{"whole": 2}\n'
