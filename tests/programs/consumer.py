"""A program that uses every public name, for type checkers and to be run.

`assert_type` is an error to a type checker if a type is another one, `Any` included.
"""

from typing import TYPE_CHECKING, Literal

import mlx_autobind
from mlx_autobind import (
    HandleChange,
    Record,
    Status,
    Versions,
    bind_generation_streams,
    install,
    rebinds,
    status,
    uninstall,
)
from mlx_autobind.instrumentor import MLXAutobindInstrumentor

if TYPE_CHECKING:
    from mlx.core import Stream
    from typing_extensions import assert_type
else:
    Stream = object

    def assert_type(value: object, _kind: object) -> object:
        return value


def describe(found: Status) -> str:
    """Return a line, from every field of a status."""
    assert_type(found.installed, bool)
    assert_type(found.active, bool)
    assert_type(found.inert, str | None)
    assert_type(found.mode, str)
    assert_type(found.versions, Versions)
    assert_type(found.versions.mlx, str | None)
    assert_type(found.versions.mlx_lm, str | None)
    assert_type(found.versions.mlx_vlm, str | None)
    assert_type(found.handles, tuple[HandleChange, ...])
    assert_type(found.entry_points, tuple[str, ...])
    assert_type(found.late, tuple[str, ...])
    assert_type(found.unprotected, str | None)
    assert_type(found.records, int)
    assert_type(found.problems, tuple[str, ...])
    return f"{found.mode}: {found.inert or len(found.entry_points)}"


def milliseconds(record: Record) -> float:
    """Return how long `record` took, having looked at all of it."""
    assert_type(record.kind, Literal["bind", "hop", "drift", "explained"])
    assert_type(record.thread_name, str)
    assert_type(record.thread_id, int)
    assert_type(record.device, str)
    assert_type(record.stream_index, int)
    assert_type(record.mode, str)
    assert_type(record.entry_point, str)
    assert_type(record.handles, tuple[HandleChange, ...])
    assert_type(record.started_ns, int)
    assert_type(record.duration_ns, int)
    assert_type(record.versions, Versions)
    assert_type(record.late, bool)
    assert_type(record.error, str | None)
    for change in record.handles:
        assert_type(change.where, str)
        assert_type(change.action, Literal["replaced", "copied", "kept", "restored"])
    return record.duration_ns / 1e6


def main() -> None:
    """Use each of them."""
    install()
    install("thread")
    install(mode=None)
    stream = bind_generation_streams()
    assert_type(stream, Stream)
    assert_type(bind_generation_streams(["mlx_lm.generate"]), Stream)
    assert_type(status(), Status)
    assert_type(rebinds(), tuple[Record, ...])
    assert_type(mlx_autobind.__version__, str)
    lines = [describe(status()), *(f"{milliseconds(record):.3f}" for record in rebinds())]
    agent = MLXAutobindInstrumentor()
    agent.instrument(skip_dep_check=True)
    assert_type(agent.is_instrumented_by_opentelemetry, bool)
    assert_type(list(agent.instrumentation_dependencies()), list[str])
    agent.uninstrument()
    uninstall()
    print(f"{stream}: {len(lines)}")


if __name__ == "__main__":
    main()
