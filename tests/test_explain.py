"""A failure that remains says what it means."""

import sys
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM

# Each makes something lazy on a worker that ends, or on one that still runs, and has main
# generate with it. The third is what the note says has escaped.
ESCAPES = {
    "weights": (
        "asker.model.model.norm.weight = asker.model.model.norm.weight * 1.0",
        "asker.ask('main', PROMPTS[0])",
        "weights of the model, or what was computed from them",
    ),
    "a private array": (
        "asker.model.model._scale = mx.ones((1,)) * 2\n"
        "    norm = asker.model.model.norm\n"
        "    inner = type(norm).__call__\n"
        "    norm_class = type('Scaled', (type(norm),), {'__call__': lambda self, x: "
        "inner(self, x) * asker.model.model._scale})\n"
        "    norm.__class__ = norm_class",
        "asker.ask('main', PROMPTS[0])",
        "a private array of the model",
    ),
    "an argument": (
        "asker.prompt = mx.array(asker.tokenizer.encode(PROMPTS[0])) + 0",
        "list(generate_step(asker.prompt, asker.model, max_tokens=3))",
        "an array given as an argument",
    ),
    "a prompt cache": (
        "asker.cache = make_prompt_cache(asker.model)\n"
        "    asker.ask('maker', PROMPTS[1], prompt_cache=asker.cache)\n"
        "    for each in asker.cache:\n"
        "        each.keys = each.keys * 1.0",
        "asker.ask('main', PROMPTS[0], prompt_cache=asker.cache)",
        "a prompt cache",
    ),
}

ESCAPING = """
    import json, threading, traceback
    import mlx.core as mx
    import mlx_lm, mlx_autobind
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache
    from asking import PROMPTS, Asker as Base
    class Asker(Base):
        def ask(self, step, prompt, **options):
            options["max_tokens"] = 3
            list(mlx_lm.stream_generate(self.model, self.tokenizer, prompt, **options))
    asker = Asker()
    made, leave = threading.Event(), threading.Event()
    def work():
        {generate}
        {make}
        made.set()
        leave.wait()
    thread = threading.Thread(target=work, name="maker")
    thread.start()
    made.wait()
    if {ends}:
        leave.set()
        thread.join()
    try:
        {use}
    except RuntimeError as error:
        text = "".join(traceback.format_exception(error))
        found = [str(error), getattr(error, "__notes__", []), text.count("mlx-autobind:")]
    leave.set()
    print(json.dumps(found))
"""


@pytest.mark.parametrize("what", ESCAPES)
@pytest.mark.parametrize("ends", [True, False])
def test_the_note(what: str, ends: bool, run: Run, checkpoint: Path, stack: Stack) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("on this mlx no stream is bound to a thread on the CPU: nothing fails")
    make, use, escaped = ESCAPES[what]
    text = ESCAPING.format(
        make=make.replace("\n    ", "\n        "),
        use=use,
        ends=ends,
        generate="asker.ask('maker', PROMPTS[1])",
    )
    outcome = run(program(text), checkpoint, agent="import", sdk=True)
    assert outcome.code == 0, outcome.stderr
    message, notes, count = outcome.result
    assert NO_STREAM in message
    if sys.version_info >= (3, 11):
        (note,) = notes
        assert count == 1
        assert outcome.stderr == ""
    else:
        note = outcome.stderr
    assert "thread 'MainThread' has Stream(Device(cpu, 0), " in note
    assert escaped in note
    assert "belongs to thread 'maker'" in note
    assert ("which has ended" if ends else "which still runs") in note
    assert "mx.eval()" in note
    assert "mlx 0." in note
    (record,) = [record for record in outcome.records if record["kind"] == "explained"]
    assert NO_STREAM in record["error"]
    assert f"(cpu, {record['stream_index']})" in message
    (span,) = [span for span in outcome.spans if span["name"] == "explain stream_error"]
    assert span["status"]["status_code"] == "ERROR"
    assert NO_STREAM in span["status"]["description"]
    assert span["attributes"]["error.type"] == "RuntimeError"


def test_strict_does_not_replace_the_error(run: Run, checkpoint: Path, stack: Stack) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("on this mlx no stream is bound to a thread on the CPU: nothing fails")
    make, use, _ = ESCAPES["a prompt cache"]
    text = ESCAPING.format(
        make=make.replace("\n    ", "\n        "),
        use=use,
        ends=True,
        generate="asker.ask('maker', PROMPTS[1])",
    )
    outcome = run(program(text), checkpoint, agent="import", env={"MLX_AUTOBIND_STRICT": "1"})
    assert outcome.code == 0, outcome.stderr
    assert NO_STREAM in outcome.result[0]


def test_nothing_of_an_error_s_text_is_recorded(run: Run, checkpoint: Path) -> None:
    text = """
        import json
        import mlx_lm, mlx_autobind
        from asking import Asker
        asker = Asker()
        def sampler(logprobs):
            raise RuntimeError("There is no Stream(cpu, 7) in current thread. canary")
        try:
            mlx_lm.generate(asker.model, asker.tokenizer, "w3", max_tokens=3, sampler=sampler)
        except RuntimeError:
            print(json.dumps(repr(mlx_autobind.rebinds())))
    """
    outcome = run(program(text), checkpoint, agent="import", sdk=True)
    assert outcome.code == 0
    # On stderr is the note of Python 3.10.
    assert "canary" not in outcome.stdout + outcome.stderr + repr(outcome.spans)


def test_other_errors_get_no_note(run: Run, checkpoint: Path) -> None:
    text = """
        import json
        import mlx_lm, mlx_autobind
        from asking import Asker
        asker = Asker()
        def sampler(logprobs):
            raise RuntimeError("There is no such thing")
        try:
            mlx_lm.generate(asker.model, asker.tokenizer, "w3", max_tokens=3, sampler=sampler)
        except RuntimeError as error:
            print(json.dumps([getattr(error, "__notes__", []), len(mlx_autobind.rebinds()) > 1]))
    """
    assert run(program(text), checkpoint, agent="import").clean() == [[], False]


HOPPING = """
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    generator = mlx_lm.stream_generate(asker.model, asker.tokenizer, PROMPTS[0], max_tokens=16)
    tokens = [next(generator).token]
    def rest(count):
        for response in generator:
            tokens.append(response.token)
            if len(tokens) == count:
                break
    on_thread(rest, 5, name="second")
    on_thread(rest, 99, name="third")
    asker.steps["hopping"] = {"prompt": PROMPTS[0], "tokens": tokens}
    asker.print()
"""


def test_a_hop_is_recorded(
    run: Run, checkpoint: Path, reference: dict[str, list[int]], stack: Stack
) -> None:
    outcome = run(program(HOPPING), checkpoint, agent="import")
    step = outcome.clean()["hopping"]
    assert step["tokens"] == reference[step["prompt"]]
    if stack.inert:
        return
    kinds = [(record["kind"], record["thread_name"]) for record in outcome.records]
    assert [kind for kind in kinds if kind[0] == "bind"] == [
        ("bind", "MainThread"),
        ("bind", "second"),
        ("bind", "third"),
    ]
    # stream_generate steps generate_step, and both hop.
    hops = [
        (record["thread_name"], record["entry_point"])
        for record in outcome.records
        if record["kind"] == "hop"
    ]
    assert hops == [
        (thread, f"mlx_lm.generate.{name}")
        for thread in ("second", "third")
        for name in ("stream_generate", "generate_step")
    ]
