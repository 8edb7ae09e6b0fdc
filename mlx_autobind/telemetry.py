"""Records as OpenTelemetry spans, through the API alone.

The agent never sets a tracer provider: that belongs to the application, and without
one the spans are lost while the records stay in the process.
"""

import os
import sys
import threading
from collections.abc import Iterator

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

import mlx_autobind
from mlx_autobind import settings
from mlx_autobind.records import RING, Record, imported
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

_duration = _meter.create_histogram(
    "mlx_autobind.bind.duration",
    unit="s",
    description="Time that it takes to give a thread its stream.",
)
# By the kind of record.
_counters = {
    "bind": _meter.create_counter(
        "mlx_autobind.binds", unit="{bind}", description="Threads that got their stream."
    ),
    "hop": _meter.create_counter(
        "mlx_autobind.hops",
        unit="{hop}",
        description="Generators that were stepped by another thread than the step before.",
    ),
    "drift": _meter.create_counter(
        "mlx_autobind.drifts",
        unit="{drift}",
        description="Streams of others that were assigned to a handle.",
    ),
    "explained": _meter.create_counter(
        "mlx_autobind.explained_failures",
        unit="{failure}",
        description="Errors about streams that were explained.",
    ),
}


def _observe_bound_threads(_options: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
    binding = sys.modules.get("mlx_autobind.binding")
    if binding is not None:
        yield metrics.Observation(binding.bound_threads())


_meter.create_observable_up_down_counter(
    "mlx_autobind.bound_threads",
    callbacks=[_observe_bound_threads],
    unit="{thread}",
    description="Threads alive that have a stream of the agent's.",
)


def _of_the_process() -> dict[str, AttributeValue]:
    # Set by mlx.launch, for each of the processes that work together.
    rank = os.environ.get("MLX_RANK", "")
    return {"mlx_autobind.rank": int(rank)} if rank.isdecimal() else {}


# What every span says of its process.
_PROCESS = _of_the_process()


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
    found.update(_PROCESS)
    if record.error is not None:
        found["error.type"] = "RuntimeError"
    for library, version in imported(record.versions).items():
        found[f"mlx_autobind.{library}.version"] = version
    return found


@shielded
def export(record: Record) -> None:
    """Start and end a span at the record's times, as a child of the current span.

    The parent is taken from the calling thread's context. Thread-safe.
    """
    _export(_tracer, record)


def _export(tracer: trace.Tracer, record: Record, parent: Context | None = None) -> None:
    span = tracer.start_span(
        SPAN_NAMES[record.kind],
        context=parent,
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


@shielded
def measure(record: Record) -> None:
    """Count `record`. Thread-safe."""
    found = {
        "code.function.name": record.entry_point,
        "mlx_autobind.mode": record.mode,
        "mlx_autobind.device": record.device,
    }
    _counters[record.kind].add(1, found)
    if record.kind == "bind":
        _duration.record(record.duration_ns * _NS, found)


class TraceFile:
    """Writes records to the file of ``MLX_AUTOBIND_TRACE``. One instance, `TRACE_FILE`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._tracer: trace.Tracer | None = None

    @shielded
    def export(self, record: Record) -> None:
        """Write `record` as a span. Thread-safe."""
        tracer = self.tracer()
        if tracer is not None:
            _export(tracer, record, _in_the_file(context.get_current()))

    def tracer(self) -> trace.Tracer | None:
        """Return what writes spans to the file; None if nothing does. Thread-safe."""
        if self._process != os.getpid():  # the first one, or in a forked child
            self._start()
        return self._tracer

    def _start(self) -> None:
        path = settings.current().trace
        with self._lock:
            if self._process != os.getpid():
                if path is not None:
                    from mlx_autobind import trace_file

                    version = mlx_autobind.__version__
                    self._tracer = trace_file.tracer(path, SCOPE, version, SCHEMA_URL)
                self._process = os.getpid()

    def after_fork_in_child(self) -> None:
        """Start over with a lock that another thread may have held."""
        self._lock = threading.Lock()


TRACE_FILE = TraceFile()

# Where the trace file's own span of a generation stands in the context of its steps.
_FILE_SPAN = context.create_key("mlx_autobind-file-span")


def _in_the_file(parent: Context) -> Context:
    """Return `parent` with the span in it that is in the file too, if there is one."""
    span = context.get_value(_FILE_SPAN, parent)
    return parent if not isinstance(span, trace.Span) else trace.set_span_in_context(span, parent)


class OpenSpan:
    """A span that is under way, for the application and for the trace file.

    Args:
        name: of the span.
        attributes: that are known as it starts, for samplers.
        started_ns: nanoseconds since the Unix epoch.
        parent: the context of whoever asked for what it stands for.

    Attributes:
        context: `parent` with the span current.
    """

    def __init__(
        self,
        name: str,
        attributes: dict[str, AttributeValue],
        started_ns: int,
        parent: Context,
    ) -> None:
        attributes = {**attributes, **_PROCESS}
        span = _tracer.start_span(
            name, context=parent, attributes=attributes, start_time=started_ns
        )
        self._spans = [span]
        self.context = trace.set_span_in_context(span, parent)
        tracer = TRACE_FILE.tracer()
        if tracer is not None:
            inside = _in_the_file(parent)
            twin = tracer.start_span(
                name, context=inside, attributes=attributes, start_time=started_ns
            )
            self._spans.append(twin)
            self.context = context.set_value(_FILE_SPAN, twin, self.context)

    def end(self, attributes: dict[str, AttributeValue], ended_ns: int, *, failed: bool) -> None:
        """End the span at `ended_ns`, nanoseconds since the Unix epoch."""
        for span in self._spans:
            span.set_attributes(attributes)
            if failed:
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            span.end(end_time=ended_ns)


def start() -> None:
    """Have every further record exported. Idempotent."""
    RING.subscribe(export)
    RING.subscribe(measure)
    if settings.current().trace is not None:
        RING.subscribe(TRACE_FILE.export)
