"""Each record as a span, through the OpenTelemetry API alone."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import mlx_autobind
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

# Two pool threads at once, under a span of the application's, one with its context.
IN_A_REQUEST = """
    import contextvars, json, threading
    from opentelemetry import trace
    from asking import Asker, PROMPTS
    asker = Asker()
    tracer = trace.get_tracer("application")
    with tracer.start_as_current_span("request") as request:
        context = contextvars.copy_context()
        threads = [
            threading.Thread(
                target=context.run, args=(asker.ask, "in context", PROMPTS[0]), name="in context"
            ),
            threading.Thread(target=asker.ask, args=("outside", PROMPTS[1]), name="outside"),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = request.get_span_context()
    identifiers = {"span": f"0x{found.span_id:016x}", "trace": f"0x{found.trace_id:032x}"}
    asker.steps["request"] = identifiers
    asker.print()
"""

ATTRIBUTES = {
    "thread.id",
    "thread.name",
    "code.function.name",
    "mlx_autobind.kind",
    "mlx_autobind.mode",
    "mlx_autobind.device",
    "mlx_autobind.stream.index",
    "mlx_autobind.handles",
    "mlx_autobind.late",
    "mlx_autobind.mlx.version",
    "mlx_autobind.mlx_lm.version",
}


def test_one_span_a_thread(run: Run, checkpoint: Path, reference: Reference, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")
    outcome = run(program(IN_A_REQUEST), checkpoint, agent="import", sdk=True)
    steps = outcome.clean()
    request = steps.pop("request")
    assert wrong(steps, reference) == {}
    spans: dict[str, dict[str, Any]] = {
        span["attributes"]["thread.name"]: span
        for span in outcome.spans
        if span["scope"] == "mlx_autobind"
    }
    assert set(spans) == {"in context", "outside"}
    assert len([span for span in outcome.spans if span["scope"] == "mlx_autobind"]) == 2
    records = {record["thread_name"]: record for record in outcome.records}
    for name, span in spans.items():
        record, attributes = records[name], span["attributes"]
        assert span["name"] == "bind generation_stream"
        assert span["kind"] == "SpanKind.INTERNAL"
        assert span["status"] == {"status_code": "UNSET"}
        assert span["scope_version"] == mlx_autobind.__version__
        assert span["schema_url"] == "https://opentelemetry.io/schemas/1.44.0"
        assert span["events"] == []
        assert set(attributes) == ATTRIBUTES
        assert attributes["thread.id"] == record["thread_id"]
        assert attributes["code.function.name"] == "mlx_lm.generate.stream_generate"
        assert attributes["mlx_autobind.stream.index"] == record["stream_index"]
        assert "mlx_lm.generate.generation_stream: replaced" in attributes["mlx_autobind.handles"]
        # No shorter than the rebind and no longer: not the generation.
        assert record["duration_ns"] < 50e6
    assert spans["in context"]["parent_id"] == request["span"]
    assert spans["in context"]["context"]["trace_id"] == request["trace"]
    assert spans["outside"]["parent_id"] is None


def test_no_sdk_no_span_and_records_all_the_same(run: Run, checkpoint: Path, stack: Stack) -> None:
    outcome = run(program(IN_A_REQUEST), checkpoint, agent="import")
    assert outcome.code == 0, outcome.stderr
    assert outcome.spans == []
    assert len(outcome.records) == (0 if stack.inert else 2)


HOSTILE = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    class Hostile(SpanProcessor):
        def on_start(self, span, parent_context=None):
            raise RuntimeError("exporter down")
    provider = TracerProvider()
    provider.add_span_processor(Hostile())
    trace.set_tracer_provider(provider)
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    for at in range(3):
        on_thread(asker.ask, f"worker {at}", PROMPTS[at])
    asker.print()
"""


def test_a_span_processor_that_raises(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(program(HOSTILE), checkpoint, agent="import")
    assert outcome.code == 0
    assert wrong(outcome.result, reference) == {}
    if not stack.inert:
        assert outcome.stderr.count("mlx_autobind.telemetry.export failed") == 1  # not 3 times
        assert len(outcome.records) == 3


# Exporters, each with what the program does before it generates and after.
EXPORTERS = {
    "raises": """
        def export(spans):
            raise RuntimeError("exporter down")
        before = after = lambda: None
    """,
    # The first span is exported on a thread of its own, which waits; all others go on meanwhile.
    "hangs": """
        go_on, hanging = threading.Event(), threading.Event()
        def export(spans):
            if threading.current_thread().name == "hung":
                hanging.set()
                go_on.wait()
            return SpanExportResult.SUCCESS
        def before():
            global hung
            def work():
                asker.ask("hung", PROMPTS[4])
            hung = threading.Thread(target=work, name="hung")
            hung.start()
            if sys.argv[2] == "bound":
                hanging.wait()
        def after():
            go_on.set()
            hung.join()
    """,
    "is shut down first": """
        def export(spans):
            return SpanExportResult.SUCCESS
        def before():
            provider.shutdown()
        after = lambda: None
    """,
}

EXPORTING = """
import threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult,
)
from asking import Asker, PROMPTS, on_thread
class Exporter(SpanExporter):
    def export(self, spans):
        return export(spans)
provider = TracerProvider()
provider.add_span_processor(getattr(sys.modules[__name__], sys.argv[3])(Exporter()))
trace.set_tracer_provider(provider)
asker = Asker()
"""
GENERATING = """
before()
for at in range(3):
    on_thread(asker.ask, f"worker {at}", PROMPTS[at])
after()
provider.force_flush()
asker.print()
"""


@pytest.mark.parametrize("processor", ["SimpleSpanProcessor", "BatchSpanProcessor"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_exporter_that(
    exporter: str, processor: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    text = program(EXPORTING + textwrap.dedent(EXPORTERS[exporter]) + GENERATING)
    # Who does not end its spans where they end does not wait there either.
    bound = processor == "SimpleSpanProcessor" and not stack.inert
    outcome = run(text, checkpoint, "bound" if bound else "", processor, agent="import")
    assert outcome.code == 0, outcome.stderr
    assert len(outcome.result) == (4 if exporter == "hangs" else 3)
    assert wrong(outcome.result, reference) == {}
    # What the SDK says of its exporter is its own; the agent has nothing to say.
    assert "mlx_autobind" not in outcome.stderr
    assert len(outcome.records) == (0 if stack.inert else len(outcome.result))


CANARY = """
    import json
    import mlx_lm, mlx_autobind
    from asking import Asker, on_thread
    asker = Asker()
    on_thread(asker.ask, "step", "w77 w78 w79 canary")
    print(json.dumps([repr(mlx_autobind.rebinds()), repr(mlx_autobind.status())]))
"""


def test_nothing_of_a_prompt_is_recorded(run: Run, checkpoint: Path) -> None:
    outcome = run(program(CANARY), checkpoint, agent="import", sdk=True)
    outcome.clean()
    left = outcome.stdout + outcome.stderr + repr(outcome.records) + repr(outcome.spans)
    assert "canary" not in left
    assert "w77" not in left


def test_the_ring_is_bounded(run: Run, checkpoint: Path, stack: Stack) -> None:
    text = """
        import json
        import mlx_autobind
        from asking import Asker, PROMPTS, on_thread
        asker = Asker()
        for at in range(5):
            on_thread(asker.ask, f"{at}", PROMPTS[0], name=f"T{at}")
        print(json.dumps([record.thread_name for record in mlx_autobind.rebinds()]))
    """
    env = {"MLX_AUTOBIND_RECORDS": "2"}
    found = run(program(text), checkpoint, agent="import", env=env).clean()
    assert found == ([] if stack.inert else ["T3", "T4"])


METERED = """
    import json
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    import mlx.core as mx
    import mlx_lm, threading
    from asking import PROMPTS
    from threads import elsewhere, on_thread
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    def begin():
        return mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=6)
    list(begin())
    generator = begin()
    on_thread(next, generator)
    next(generator)
    sys.modules["mlx_lm.generate"].generation_stream = mx.default_stream(mx.default_device())
    lazy = elsewhere(lambda: mx.ones((3,)) + 1)
    try:
        prompt = lazy.astype(mx.int32)
        list(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=1))
    except RuntimeError:
        pass
    stay, here = threading.Event(), threading.Event()
    def waiting():
        list(begin())
        here.set()
        stay.wait()
    thread = threading.Thread(target=waiting)
    thread.start()
    here.wait()
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                total = sum(getattr(point, "count", None) or point.value for point in points)
                found[metric.name] = [total, metric.unit]
    stay.set()
    thread.join()
    print(json.dumps(found))
"""


def test_metrics(run: Run, checkpoint: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is counted")
    outcome = run(program(METERED), checkpoint, agent="import")
    # Python 3.10 has no notes on errors: there the explanation is logged.
    found = outcome.clean() if sys.version_info >= (3, 11) else outcome.result
    # The main thread, one that has ended, and one that waits.
    assert found["mlx_autobind.binds"] == [3, "{bind}"]
    assert found["mlx_autobind.bind.duration"] == [3, "s"]
    assert found["mlx_autobind.bound_threads"] == [2, "{thread}"]
    # Of stream_generate, and of the generate_step in it.
    assert found["mlx_autobind.hops"] == [2, "{hop}"]
    assert found["mlx_autobind.drifts"] == [1, "{drift}"]
    if stack.binds_on_cpu:
        assert found["mlx_autobind.explained_failures"] == [1, "{failure}"]
