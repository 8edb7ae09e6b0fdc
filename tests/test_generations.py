"""MLX_AUTOBIND_GENERATIONS: one span a generation, however it is asked for and however it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.generations import name_of
from mlx_autobind.settings import MODES
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_vision import skip_if_the_mode_is_not_there, vision

__all__ = ["vision"]


@pytest.fixture(autouse=True)
def _something_is_recorded(stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")


def env(mode: str = "thread", **more: str) -> dict[str, str]:
    return {"MLX_AUTOBIND_GENERATIONS": "1", "MLX_AUTOBIND_MODE": mode, **more}


def generations(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [span for span in spans if span["attributes"].get("mlx_autobind.kind") == "generation"]


def told(span: dict[str, Any]) -> list[Any]:
    """Return what a span says that is the same in each run."""
    attributes = span["attributes"]
    return [
        attributes["code.function.name"].rpartition("generate.")[2],
        attributes.get("gen_ai.usage.input_tokens"),
        attributes["gen_ai.usage.output_tokens"],
        *attributes.get("gen_ai.response.finish_reasons", ["-"]),
        attributes["mlx_autobind.generation.end"],
    ]


ALL_WAYS = """
    import threading
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.generate import BatchGenerator, batch_generate, generate_step
    from mlx_lm.sample_utils import make_logits_processors
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    never = make_logits_processors({1: -1e9})  # the token that ends a text

    def begin(prompt="w5 w6", **more):
        return mlx_lm.stream_generate(
            model, tokenizer, prompt, **{"max_tokens": 5, "logits_processors": never, **more}
        )

    def fail(logits):
        raise ZeroDivisionError("canary")

    def work():
        mlx_lm.generate(model, tokenizer, "w5 w6", max_tokens=5, logits_processors=never)
        list(begin())
        for end in ("close", "__del__"):
            generator = begin()
            next(generator)
            if end == "close":
                generator.close()
            del generator
        begin()  # and never stepped
        list(generate_step(mx.array([5, 6, 7]), model, max_tokens=4))
        try:
            list(begin(sampler=fail))
        except ZeroDivisionError:
            pass
        batch_generate(model, tokenizer, [[5, 6, 7], [8, 9]], max_tokens=3)
        batch = BatchGenerator(model, max_tokens=50)
        uids = batch.insert([[3, 4], [6, 7, 8]])
        while not step(batch):
            pass
        batch.remove(uids[:1])
        del batch
        list(begin(max_tokens=1))

    def step(batch):
        found = batch.next()
        return found[1] if isinstance(found, tuple) else found

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    left_open = begin()
    next(left_open)
    print("null")
"""

TOLD = [
    ["generate", 2, 5, "length", "exhausted"],
    ["stream_generate", 2, 5, "length", "exhausted"],
    ["stream_generate", 2, 1, "-", "closed"],
    ["stream_generate", 2, 1, "-", "collected"],
    ["generate_step", 3, 4, "-", "exhausted"],
    ["stream_generate", None, 0, "-", "error"],
    ["BatchGenerator.insert", 3, 3, "length", "exhausted"],
    ["BatchGenerator.insert", 2, 3, "length", "exhausted"],
    ["BatchGenerator.insert", 2, 1, "-", "closed"],
    ["BatchGenerator.insert", 3, 1, "-", "collected"],
    ["stream_generate", 2, 1, "length", "exhausted"],
    ["stream_generate", 2, 1, "-", "exit"],
]


@pytest.mark.parametrize("mode", MODES)
def test_one_span_a_generation(mode: str, run: Run, checkpoint: Path, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    outcome = run(program(ALL_WAYS), checkpoint, agent="import", sdk=True, env=env(mode))
    outcome.clean()
    found = generations(outcome.spans)
    assert sorted(map(str, map(told, found))) == sorted(map(str, TOLD))
    for span in found:
        attributes = span["attributes"]
        assert span["name"] == "text_completion tiny"
        assert span["kind"] == "SpanKind.INTERNAL"
        assert attributes["gen_ai.operation.name"] == "text_completion"
        assert attributes["gen_ai.provider.name"] == "mlx_lm"
        assert attributes["gen_ai.request.model"] == "tiny"
        assert attributes["mlx_autobind.mode"] == mode
        assert attributes["thread.name"] in ("worker", "MainThread")
        tokens = attributes["gen_ai.usage.output_tokens"]
        assert (attributes.get("gen_ai.response.time_to_first_chunk", 0) > 0) == (tokens > 0)
        rate = attributes.get("mlx_autobind.generation.tokens_per_second")
        assert (rate is not None and 1 < rate < 1e6) == (tokens > 1)
        failed = attributes["mlx_autobind.generation.end"] == "error"
        assert span["status"] == {"status_code": "ERROR" if failed else "UNSET"}
        assert attributes.get("error.type") == ("ZeroDivisionError" if failed else None)
    assert "canary" not in json.dumps(outcome.spans)
    assert '"w5' not in json.dumps(outcome.spans)


def test_it_is_opt_in(run: Run, checkpoint: Path) -> None:
    outcome = run(program(ALL_WAYS), checkpoint, agent="import", sdk=True)
    outcome.clean()
    assert generations(outcome.spans) == []
    assert outcome.spans != []


IN_REQUESTS = """
    import contextvars, json
    from opentelemetry import context, trace
    from asking import Asker, PROMPTS
    from threads import elsewhere
    asker = Asker()
    tracer = trace.get_tracer("application")
    found = {"leaks": 0}

    def current():
        return f"0x{trace.get_current_span().get_span_context().span_id:016x}"

    def processor(tokens, logits):
        found["inside"] = current()
        found["kept"] = contextvars.copy_context()
        return logits

    def step(generator):
        before = context.get_current()
        next(generator)
        found["leaks"] += context.get_current() is not before

    def one_request(name):
        import mlx_lm
        with tracer.start_as_current_span(name):
            found[name] = current()
            generator = mlx_lm.stream_generate(
                asker.model, asker.tokenizer, PROMPTS[0], max_tokens=6,
                logits_processors=[processor],
            )
            inside = contextvars.copy_context()
        # As Starlette does: each item on another thread, in the context of the request.
        for _ in range(3):
            elsewhere(lambda: inside.run(step, generator))
        elsewhere(generator.close)

    one_request("first")
    # What keeps the context of a generation does not hide the generations after it.
    found.pop("kept").run(one_request, "second")
    del found["kept"]
    print(json.dumps(found))
"""


def test_it_is_a_child_of_the_request_and_the_rebind_is_its_child(
    run: Run, checkpoint: Path
) -> None:
    outcome = run(program(IN_REQUESTS), checkpoint, agent="import", sdk=True, env=env())
    said = outcome.clean()
    found = generations(outcome.spans)
    assert [span["parent_id"] for span in found] == [said["first"], said["second"]]
    assert said["leaks"] == 0
    assert said["inside"] == found[1]["context"]["span_id"]
    binds = [span for span in outcome.spans if span["name"].startswith("bind")]
    of_requests = {span["context"]["span_id"] for span in found}
    assert len(binds) == 6
    assert {span["parent_id"] for span in binds} == of_requests
    assert {span["context"]["trace_id"] for span in binds} == {
        span["context"]["trace_id"] for span in found
    }


def test_the_same_tree_is_in_the_trace_file(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    from mlx_autobind.cli.spans import Reading

    file = tmp_path / "trace.jsonl"
    more = {"MLX_AUTOBIND_TRACE": str(file)}
    run(program(IN_REQUESTS), checkpoint, agent="import", sdk=True, env=env(**more)).clean()
    spans = list(Reading().files([file]))
    found = {span.span_id: span for span in spans if span.kind == "generation"}
    assert len(found) == 2
    for span in found.values():
        assert span.generation is not None
        assert span.generation.model == "tiny"
        assert span.generation.output_tokens == 3
        assert span.generation.end == "closed"
        assert span.stream == ""
    assert len([span for span in spans if span.kind == "bind" and span.parent_id in found]) == 6


KEEPS_NOTHING = """
    import json, weakref
    from asking import Asker, PROMPTS
    import mlx_lm
    asker = Asker()
    generator = mlx_lm.stream_generate(asker.model, asker.tokenizer, PROMPTS[0], max_tokens=6)
    next(generator)
    response = next(generator)
    reference = weakref.ref(response)
    del response
    gone = [reference() is None]
    next(generator)
    gone.append(reference() is None)
    print(json.dumps(gone))
"""


def test_no_item_is_kept(run: Run, checkpoint: Path) -> None:
    outcome = run(program(KEEPS_NOTHING), checkpoint, agent="import", sdk=True, env=env())
    # mlx-lm itself may hold the last one until the next.
    assert outcome.clean()[1] is True


HOSTILE = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    class Hostile(SpanProcessor):
        def on_{moment}(self, span, *_parent_context):
            if "gen_ai.operation.name" in span.attributes:
                raise RuntimeError("exporter down")
    provider = TracerProvider()
    provider.add_span_processor(Hostile())
    trace.set_tracer_provider(provider)
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    for at in range(3):
        on_thread(asker.ask, f"worker {{at}}", PROMPTS[at])
    asker.print()
"""


@pytest.mark.parametrize("moment", ["start", "end"])
def test_a_span_processor_that_raises(
    moment: str, run: Run, checkpoint: Path, reference: dict[str, list[int]]
) -> None:
    text = program(HOSTILE.format(moment=moment))
    outcome = run(text, checkpoint, agent="import", env=env())
    assert outcome.code == 0
    for step in outcome.result.values():
        assert step["tokens"] == reference[step["prompt"]][: len(step["tokens"])]
    assert outcome.stderr.count("mlx_autobind.generations.Recording") == 1  # not 3 times


SEEING = """
    from pathlib import Path
    from seeing import Seer, print_last
    from threads import elsewhere
    seer = Seer(Path(sys.argv[1]))
    elsewhere(lambda: list(seer.begin(2)))
    print_last(None)
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_picture(mode: str, run: Run, vision: Path, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    text = program(SEEING)
    outcome = run(text, vision / "stateful", agent="import", sdk=True, env=env(mode))
    outcome.clean()
    (span,) = generations(outcome.spans)
    assert span["name"] == "generate_content stateful"
    assert span["attributes"]["gen_ai.provider.name"] == "mlx_vlm"
    assert span["attributes"]["gen_ai.usage.input_tokens"] > 3
    assert span["attributes"]["gen_ai.usage.output_tokens"] > 3


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models/tiny", "tiny"),
        ("hub/models--an-org--a-model/snapshots/0123456789abcdef", "an-org/a-model"),
        (None, "an-org/a-model"),
    ],
)
def test_the_name_of_a_model(folder: str | None, name: str, tmp_path: Path) -> None:
    if folder is None:
        assert name_of(name) == name
        return
    (tmp_path / folder).mkdir(parents=True)
    assert name_of(str(tmp_path / folder)) == name
