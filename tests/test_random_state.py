"""Sampling: the random state of the process, as it was up to mlx 0.31.1."""

from pathlib import Path

import pytest

from mlx_autobind.settings import MODES
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_vision import skip_if_the_mode_is_not_there

SAMPLING = """
    import threading
    import mlx.core as mx
    import mlx_lm
    from asking import PROMPTS
    from mlx_lm.sample_utils import make_sampler
    from threads import Comparison, at_once, elsewhere, here
    import json
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]

    def sample(prompt=PROMPTS[0]):
        answer = mlx_lm.stream_generate(
            model, tokenizer, prompt, max_tokens=12, sampler=make_sampler(temp=2.0)
        )
        return [response.token for response in answer]

    {program}
"""

SEEDED = """
    def three(run):
        mx.random.seed(7)
        return [run(sample) for _ in range(3)]
    def cleared(run):
        mx.random.seed(7)
        found = [run(sample)]
        found.append(run(lambda: (sample(), mx.clear_streams())[0]))
        found.append(run(sample))
        return found
    def drawing(run):
        mx.random.seed(7)
        first = run(sample)
        return [first, mx.random.uniform().item() > 2, sample()]
    print(json.dumps([three(here), three(elsewhere), three(elsewhere), drawing(elsewhere)]))
"""
# `cleared` is for an mlx that can clear streams.
CLEARED = SEEDED.replace("three(elsewhere), drawing", "cleared(elsewhere), drawing")


def test_a_seed_of_the_main_thread_reaches_workers(
    run: Run, checkpoint: Path, stack: Stack
) -> None:
    text = program(SAMPLING.format(program=SEEDED.strip()))
    right, found, again, drawn = run(text, checkpoint, agent="import").clean()
    assert right == found == again
    assert len({tuple(answer) for answer in found}) == 3
    assert drawn[0] == right[0]
    if not stack.inert:
        text = program(SAMPLING.format(program=CLEARED.strip()))
        assert run(text, checkpoint, agent="import").clean()[2] == right
    without = run(text, checkpoint, agent="none").result
    if stack.inert:
        assert without[0] == without[1]
    elif not stack.fails:
        assert without[0] != without[1]


UNSEEDED = """
    found = [elsewhere(sample) for _ in range(4)]
    if hasattr(mx, "clear_streams"):  # an mlx with one state for all crashes
        found += at_once([sample] * 4)
    print(json.dumps(found))
"""


def test_workers_do_not_sample_the_same(run: Run, checkpoint: Path, stack: Stack) -> None:
    """Each thread of mlx starts from one state: every answer of a new thread is the same."""
    text = program(SAMPLING.format(program=UNSEEDED.strip()))
    found = run(text, checkpoint, agent="import").clean()
    assert len({tuple(answer) for answer in found}) == len(found) == (4 if stack.inert else 8)
    if not stack.inert and not stack.fails:
        without = run(text, checkpoint, agent="none").result
        assert len({tuple(answer) for answer in without[:4]}) == 1


OWN = """
    # Written for an mlx whose threads have states of their own.
    answers = {}
    seeded = threading.Event()
    def worker():
        mx.random.seed(3)
        seeded.set()
        other.wait(60)
        answers["worker"] = sample()
        answers["again"] = sample()
    other = threading.Event()
    thread = threading.Thread(target=worker)
    thread.start()
    seeded.wait(60)
    mx.random.seed(4)
    other.set()
    thread.join()
    def alone():
        mx.random.seed(3)
        return [sample(), sample()]
    print(json.dumps([list(answers.values()), elsewhere(alone)]))
"""

MAIN = """
    mx.random.seed(5)
    first = sample()
    drawn = mx.random.uniform().item()
    second = sample()
    mx.random.seed(5)
    print(json.dumps([first, drawn, second, sample(), mx.random.uniform().item(), sample()]))
"""


def test_a_thread_that_seeds_itself_keeps_its_state(
    run: Run, checkpoint: Path, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("this mlx has one random state for all threads, as it always had")
    found, right = run(
        program(SAMPLING.format(program=OWN.strip())), checkpoint, agent="import"
    ).clean()
    assert found == right


def test_one_thread_samples_as_without_the_agent(run: Run, checkpoint: Path) -> None:
    text = program(SAMPLING.format(program=MAIN.strip()))
    found = run(text, checkpoint, agent="import").clean()
    assert found[:3] == found[3:]
    assert found == run(text, checkpoint, agent="none").result


OPEN = """
    drawn = {"a": [], "b": [], "c": []}
    def recording(name):
        def sampler(logits):
            drawn[name].append(mx.random.uniform().item())
            return mx.argmax(logits, axis=-1)
        return sampler
    def begin(name, tokens):
        return mlx_lm.stream_generate(
            model, tokenizer, PROMPTS[0], max_tokens=tokens, sampler=recording(name)
        )
    first, go_on = threading.Event(), threading.Event()
    def worker():
        a, b = begin("a", 3), begin("b", 12)
        next(b)
        list(a)
        first.set()
        go_on.wait(60)
        list(b)
    thread = threading.Thread(target=worker)
    thread.start()
    first.wait(60)
    elsewhere(lambda: list(begin("c", 12)))
    go_on.set()
    thread.join()
    print(json.dumps([*drawn["b"], *drawn["c"]]))
"""


def test_a_generation_that_is_open_shares_its_numbers_with_none(run: Run, checkpoint: Path) -> None:
    """Another of the same thread has ended before the next one begins elsewhere."""
    text = program(SAMPLING.format(program=OPEN.strip()))
    drawn = run(text, checkpoint, agent="import").clean()
    assert len(drawn) == len(set(drawn)) > 20


def test_a_seed_of_numpy(run: Run, checkpoint: Path) -> None:
    text = program(
        SAMPLING.format(
            program="""
    import numpy as np
    found = []
    for seed in (np.int64(5), 5, 2**64 - 1, 2**64 - 1):
        mx.random.seed(seed)
        found.append(elsewhere(sample))
    print(json.dumps(found))
    """.strip()
        )
    )
    first, same, large, same_large = run(text, checkpoint, agent="import").clean()
    assert first == same
    assert large == same_large


ENDED = """
    def begin(**options):
        generator = mlx_lm.stream_generate(
            model, tokenizer, PROMPTS[0], max_tokens=4, **options
        )
        next(generator)
        return generator
    def finished():
        elsewhere(lambda generator=begin(): list(generator))
    def closed():
        elsewhere(begin().close)
    def thrown():
        try:
            begin().throw(KeyError("thrown"))
        except KeyError:
            pass
    def failed():
        def sampler(logits):
            raise KeyError("of the sampler")
        try:
            begin(sampler=sampler)
        except KeyError:
            pass
    found = {}
    mx.random.seed(7)
    right = elsewhere(sample)
    for end in (finished, closed, thrown, failed):
        end()
        mx.random.seed(7)
        found[end.__name__] = elsewhere(sample) == right
    print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", ["thread", "owner", "shared"])
def test_a_seed_holds_however_the_generations_before_it_have_ended(
    mode: str, run: Run, checkpoint: Path, stack: Stack
) -> None:
    if mode == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    text = program(SAMPLING.format(program=ENDED.strip()))
    found = run(text, checkpoint, agent="import", env={"MLX_AUTOBIND_MODE": mode}).clean()
    assert found == dict.fromkeys(("finished", "closed", "thrown", "failed"), True)


LAZY = """
    def seeded_with(load):
        model = load()
        mx.random.seed(7)
        return elsewhere(lambda: sample(model=model))
    def lazy():
        return mlx_lm.load(sys.argv[1], lazy=True)[0]
    print(json.dumps([seeded_with(lambda: model), seeded_with(lazy)]))
"""


def test_weights_that_are_loaded_once_more_draw_nothing(run: Run, checkpoint: Path) -> None:
    text = SAMPLING.replace("sample(prompt=PROMPTS[0])", "sample(prompt=PROMPTS[0], model=model)")
    right, found = run(
        program(text.format(program=LAZY.strip())), checkpoint, agent="import"
    ).clean()
    assert found == right


LOADING = """
    def loading(run):
        mx.random.seed(7)
        run(lambda: globals().update(model=mlx_lm.load(sys.argv[1])[0]))
        return run(sample)
    print(json.dumps([loading(here if where == "here" else elsewhere) for where in sys.argv[2:]]))
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_is_loaded_draws_from_the_sequence(
    mode: str, run: Run, checkpoint: Path, stack: Stack
) -> None:
    """Its layers draw as they are made, before the weights are put in their place."""
    skip_if_the_mode_is_not_there(mode, stack)
    text = program(SAMPLING.format(program=LOADING.strip()))
    (right,) = run(text, checkpoint, "here", agent="none").result
    env = {"MLX_AUTOBIND_MODE": mode}
    found = run(text, checkpoint, "here", "elsewhere", agent="import", env=env).clean()
    assert found == [right, right]
