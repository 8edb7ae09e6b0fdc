"""Records as OpenTelemetry spans, through the API alone.

The agent never sets a tracer provider: that belongs to the application, and without
one the spans are lost while the records stay in the process.
"""

from opentelemetry import metrics, trace
from opentelemetry.util.types import AttributeValue

import mlx_autobind
from mlx_autobind import targets
from mlx_autobind.records import RING, Record
from mlx_autobind.shield import shielded

SCOPE = "mlx_autobind"
# Semantic conventions 1.44: thread.id, thread.name and code.function.name are theirs.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SPAN_NAMES = {
    "bind": "bind generation_stream",
    "hop": "hop generation_stream",
    "drift": "drift generation_stream",
    "explained": "explain stream_error",
}

# Resolved to the application's provider when a span is started, so that an SDK which
# is set up after the agent is found as well.
_tracer = trace.get_tracer(SCOPE, mlx_autobind.__version__, schema_url=SCHEMA_URL)

_meter = metrics.get_meter(SCOPE, mlx_autobind.__version__, schema_url=SCHEMA_URL)
_wait = _meter.create_histogram(
    "mlx_autobind.handover.wait",
    unit="s",
    description="Time from handing a step over to the owner thread until it begins.",
)
_run = _meter.create_histogram(
    "mlx_autobind.handover.run",
    unit="s",
    description="Time that the owner thread takes for a step.",
)
_NS = 1e-9


def attributes(record: Record) -> dict[str, AttributeValue]:
    """Return the span attributes of `record`; never a prompt, a token or a file's text."""
    found: dict[str, AttributeValue] = {
        "thread.id": record.thread_id,
        "thread.name": record.thread_name,
        "code.function.name": record.entry_point,
        "mlx_autobind.kind": record.kind,
        "mlx_autobind.mode": record.mode,
        "mlx_autobind.device": record.device,
        "mlx_autobind.stream.index": record.stream_index,
        "mlx_autobind.handles": [f"{change.where}: {change.action}" for change in record.handles],
        "mlx_autobind.late": record.late,
    }
    if record.error is not None:
        found["error.type"] = "RuntimeError"
    for library, _ in targets.VERSIONED:
        version = getattr(record.versions, library)
        if version is not None:
            found[f"mlx_autobind.{library}.version"] = version
    return found


@shielded
def export(record: Record) -> None:
    """Start and end a span at the record's times, as a child of the current span.

    The parent is taken from the calling thread's context. Thread-safe.
    """
    span = _tracer.start_span(
        SPAN_NAMES[record.kind],
        attributes=attributes(record),
        start_time=record.started_ns,
    )
    if record.error is not None:
        span.set_status(trace.Status(trace.StatusCode.ERROR, record.error))
    span.end(end_time=record.started_ns + record.duration_ns)


@shielded
def handover(entry_point: str, wait_ns: int, run_ns: int) -> None:
    """Measure one step that was handed over to the owner thread. Thread-safe."""
    found = {"code.function.name": entry_point}
    _wait.record(wait_ns * _NS, found)
    _run.record(run_ns * _NS, found)


def start() -> None:
    """Have every further record exported. Idempotent."""
    RING.subscribe(export)
