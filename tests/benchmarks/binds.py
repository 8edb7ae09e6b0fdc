"""What the first bind of a thread costs, and what a record of it costs besides."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.measure import Block, Blocks, Budget, Child, Row, closed, interleave, row
from tests.benchmarks.scale import Scale

TITLE = "The first step of a thread"
TEXT = """\
On a fresh thread each. A new stream costs next to nothing, and the first operation on it a lot,
since a native thread is started for it. The bind makes a stream, a random state, a record and,
where there is an SDK, a span. The budget, without an SDK: bind and first operation together take at
most a quarter more than a new stream and its first operation, which a thread without the agent pays
as well. Whatever a thread does for the first time costs several times as much as the second time,
mlx's stream included: hence the row of a thread that is bound once more. The slow exporter takes 5
ms. The simple span processor exports where a span ends, and the thread waits for it; which one is
used is the application's choice."""

BIND, BOUND = "bind", "bind and first operation"
AGAIN = "bind of a thread that had a stream before"
STREAM, FIRST = "`mx.new_stream`", "`mx.new_stream` and first operation"
BUDGET = Budget(1.25)
SLOW_S = 0.005

NONE, SDK = "no SDK", "an SDK"
SLOW_SIMPLE = "a slow exporter, simple processor"
SLOW_BATCH = "a slow exporter, batch processor"
SETUPS = (NONE, SDK, SLOW_SIMPLE, SLOW_BATCH)


def set_up(setup: str) -> None:
    """Set up an OpenTelemetry SDK as a program does."""
    if setup == NONE:
        return
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SimpleSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class Exporter(SpanExporter):
        """Takes its time, or none."""

        def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
            if setup != SDK:
                time.sleep(SLOW_S)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    processor = BatchSpanProcessor if setup == SLOW_BATCH else SimpleSpanProcessor
    provider.add_span_processor(processor(Exporter()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


def _on_a_thread(measured: Callable[[], float]) -> Block:
    def run() -> float:
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(measured()))
        thread.start()
        thread.join()
        return found[0]

    return Block(run)


def blocks(setup: str) -> Blocks:
    """Return the blocks, with an SDK set up as `setup` says."""
    import mlx.core as mx
    import mlx_lm  # noqa: F401 - its handles stand in the record

    from mlx_autobind import binding
    from mlx_autobind.binding import Site

    set_up(setup)
    site = Site("tests.benchmarks.binds", {}, None, late=False)

    def bind() -> float:
        began = time.perf_counter()
        binding.enter(site)
        return time.perf_counter() - began

    def new_stream() -> float:
        began = time.perf_counter()
        mx.new_stream(mx.default_device())
        return time.perf_counter() - began

    def first_operation() -> float:
        began = time.perf_counter()
        stream = mx.new_stream(mx.default_device())
        mx.eval(mx.zeros((1,), stream=stream))
        return time.perf_counter() - began

    def bound() -> float:
        began = time.perf_counter()
        binding.enter(site)
        mx.eval(mx.zeros((1,)))
        return time.perf_counter() - began

    def again() -> float:
        binding.enter(site)
        mx.clear_streams()
        return bind()

    return {
        AGAIN: _on_a_thread(again),
        BIND: _on_a_thread(bind),
        BOUND: _on_a_thread(bound),
        STREAM: _on_a_thread(new_stream),
        FIRST: _on_a_thread(first_operation),
    }


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    children = {
        setup: Child("tests.benchmarks.binds:blocks", setup, env={"MLX_AUTOBIND": "on"})
        for setup in SETUPS
    }
    try:
        takes = {name: children[NONE].take(name) for name in (STREAM, FIRST, BOUND, AGAIN)}
        binds = {setup: f"{BIND}, {setup}" for setup in SETUPS}
        takes.update({binds[setup]: children[setup].take(BIND) for setup in SETUPS})
        found = interleave(takes, scale.rounds(100))
    finally:
        closed(children.values())
    yield row(found, BOUND, FIRST, budget=BUDGET)
    yield row(found, AGAIN, binds[NONE])
    yield row(found, binds[NONE], STREAM)
    for setup in SETUPS[1:]:
        yield row(found, binds[setup], binds[NONE])
