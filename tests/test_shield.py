"""A bug in the agent is a warning, not a crash."""

from pathlib import Path

import pytest

from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

# Each makes one part of the agent raise, before the library is imported.
FAULTS = {
    "bind": "from mlx_autobind import binding; binding.new_stream = broken",
    "record": "from mlx_autobind import records; records.Record = broken",
    "versions": "from mlx_autobind import records; records.versions = broken",
    "span": "from mlx_autobind import telemetry; telemetry.attributes = broken",
    "handles": "from mlx_autobind.handles import Handles; Handles.replace = broken",
    "places": "from mlx_autobind import handles; handles.module_places = broken",
    "entries": "from mlx_autobind import patching; patching._site_of = broken",
    "arrays": "from mlx_autobind import arrays; arrays.arrays_in = broken",
    "exit": "from mlx_autobind import binding; binding.ThreadExit = broken",
    "patching": "from mlx_autobind.patching import Patches; Patches.apply = broken",
    "activation": "from mlx_autobind import activation; activation.imported = broken",
    "wrapt": "import wrapt; wrapt.wrap_object = broken",
    "hooks": "import wrapt; wrapt.register_post_import_hook = broken",
    "opentelemetry": "import sys; sys.modules['opentelemetry'] = None",
    "wrapt is missing": "import sys; sys.modules['wrapt'] = None",
}

FAULTY = """
    # mlx first, so that the parts which need it can be broken before the library is there.
    import mlx.core
    import mlx_autobind
    def broken(*args, **kwargs):
        raise RuntimeError("injected")
    {fault}
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    asker.ask("main again", PROMPTS[1])
    on_thread(asker.ask, "worker", PROMPTS[2])
    asker.print()
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_program_runs_as_if_the_agent_were_absent(
    fault: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(program(FAULTY.format(fault=FAULTS[fault])), checkpoint, agent="none")
    failed = wrong(outcome.result, reference)
    # Without a working agent the worker may fail as it does without any; main may not.
    assert set(failed) <= ({"worker"} if stack.fails else set())
    if stack.inert and outcome.stderr == "":
        return  # the broken part is not reached where the agent has nothing to do
    warnings = [line for line in outcome.stderr.splitlines() if line.startswith("mlx_autobind.")]
    assert warnings, outcome.stderr
    assert len(set(warnings)) == len(warnings), outcome.stderr  # once for each place
    assert all("goes on as if the agent were absent there" in line for line in warnings)


def test_strict_raises(run: Run, checkpoint: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing of it can fail")
    outcome = run(
        program(FAULTY.format(fault=FAULTS["bind"])),
        checkpoint,
        agent="none",
        env={"MLX_AUTOBIND_STRICT": "1"},
    )
    assert outcome.result["main"]["error"] == "RuntimeError: injected"


SIGNAL = """
    import functools, json, signal
    import mlx.core
    import mlx_autobind
    from mlx_autobind import arrays, random_state
    import mlx_lm
    from asking import PROMPTS
    class Handler:
        def method(self, *arguments):
            raise TimeoutError
        __call__ = method
    def handler(*arguments):
        raise TimeoutError
    found, checkpoint = [], sys.argv[1]
    def attempt(work):
        try:
            work()
        except TimeoutError:
            return "time-out"
        return "lost"
    # Where the agent evaluates, which takes its time, the signal comes.
    def interrupting(function):
        @functools.wraps(function)
        def interrupted(*arguments, **options):
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGINT)
            return function(*arguments, **options)
        return interrupted
    arrays.arrays_in = interrupting(arrays.arrays_in)
    random_state._read = interrupting(random_state._read)
    armed = []
    loaded = mlx_lm.load(checkpoint)
    def generate():
        mlx_lm.generate(*loaded[:2], PROMPTS[0], max_tokens=2)
    for each in handler, Handler().method, Handler(), functools.partial(handler, 1):
        signal.signal(signal.SIGINT, each)
        for work in lambda: mlx_lm.load(checkpoint), generate:
            armed.append(1)
            found.append(attempt(work))
            assert not armed
    print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", ["thread", "owner"])
def test_what_a_signal_handler_raises_is_not_the_agents(
    mode: str, run: Run, checkpoint: Path, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing of it is interrupted")
    env = {"MLX_AUTOBIND_MODE": mode}
    found = run(program(SIGNAL), checkpoint, agent="none", env=env).clean()
    assert found == ["time-out"] * 8


LIBRARY_ERRORS = """
    import json, sys, traceback
    import mlx_lm
    from mlx_lm.models.cache import make_prompt_cache
    from asking import Asker
    asker = Asker()
    module = sys.modules["mlx_lm.generate"]
    def sampler(logprobs):
        raise LookupError("of the sampler")
    found = []
    def another_cache():
        # One layer, where the model has two.
        cache = make_prompt_cache(asker.model)[:1]
        answer = mlx_lm.stream_generate(*loaded, "w3 w4", max_tokens=3, prompt_cache=cache)
        return [response.token for response in answer]
    def closed_twice():
        generator = mlx_lm.stream_generate(*loaded, "w3 w4", max_tokens=9)
        next(generator)
        generator.close()
        generator.close()
        next(generator)
    loaded = asker.model, asker.tokenizer
    for work in (
        lambda: mlx_lm.generate(*loaded, "w3 w4", max_tokens=4, sampler=sampler),
        lambda: list(mlx_lm.stream_generate(*loaded, "w3", max_tokens=4, sampler=sampler)),
        lambda: mlx_lm.generate(None, None, None),
        lambda: list(mlx_lm.stream_generate(object(), asker.tokenizer, "w3 w4", max_tokens=3)),
        another_cache,
        closed_twice,
    ):
        try:
            found.append(work())
        except Exception as error:
            frames = [
                frame.name for frame in traceback.extract_tb(error.__traceback__)
                if "mlx_autobind" not in frame.filename
            ]
            found.append([type(error).__name__, str(error), frames, error.__cause__ is None,
                          error.__context__ is None])
    print(json.dumps(found))
"""


def test_errors_of_the_library_pass_through(run: Run, checkpoint: Path) -> None:
    without = run(program(LIBRARY_ERRORS), checkpoint, agent="none").clean()
    assert len(without) == 6
    assert run(program(LIBRARY_ERRORS), checkpoint, agent="import").clean() == without
