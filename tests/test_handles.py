"""What public programs do with a generation stream goes on working, on any thread."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM, Reference, wrong

# Each defines work(), which is run on a worker and gives 42 there.
USES = {
    "a prefill of one's own": """
        from mlx_lm.generate import generation_stream
        def work():
            with mx.stream(generation_stream):
                return (mx.array([41]) + 1).item()
    """,
    "synchronize": """
        from mlx_lm.generate import generation_stream
        def work():
            with mx.stream(generation_stream):
                total = mx.array([41]) + 1
                mx.async_eval(total)
            mx.synchronize(generation_stream)
            return total.item()
    """,
    "kept as an attribute": """
        from mlx_lm.generate import generation_stream
        class Engine:
            def __init__(self):
                self._stream = generation_stream
            def run(self):
                with mx.stream(self._stream):
                    return (mx.array([41]) + 1).item()
        work = Engine().run
    """,
    "made the default stream": """
        from mlx_lm.generate import generation_stream
        def work():
            mx.set_default_stream(generation_stream)
            return (mx.array([41]) + 1).item()
    """,
    "its device": """
        from mlx_lm.generate import generation_stream
        def work():
            with mx.stream(generation_stream.device):
                return (mx.array([41]) + 1).item()
    """,
    "the stream of an operation": """
        from mlx_lm.generate import generation_stream
        def work():
            return mx.add(mx.array([41]), 1, stream=generation_stream).item()
    """,
}

AROUND = """
    import json, threading
    import mlx.core as mx
    {use}

    found = []
    def keep():
        try:
            found.append(work())
        except Exception as error:
            found.append(f"{{type(error).__name__}}: {{error}}")
    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    print(json.dumps(found[0]))
"""


@pytest.mark.parametrize("use", USES)
def test_use_of_the_handle(use: str, run: Run, stack: Stack) -> None:
    text = AROUND.format(use=textwrap.indent(textwrap.dedent(USES[use]), " " * 4).strip())
    without = run(text, agent="none").result
    if stack.fails and use != "its device":
        assert NO_STREAM in without
    elif use == "made the default stream" and not stack.plain_handle:
        assert without.startswith("TypeError")  # mlx takes no thread-local stream there
    else:
        assert without == 42
    assert run(text, agent="import").clean() == 42


OWN_STREAM = """
    import mlx.core as mx
    import mlx_lm.generate
    import sys
    from asking import Asker, PROMPTS, on_thread
    module = sys.modules["mlx_lm.generate"]
    asker = Asker()
    def worker(step, prompt):
        stream = mx.new_stream(mx.default_device())
        mx.set_default_stream(stream)
        module.generation_stream = stream
        asker.ask(step, prompt)
    on_thread(worker, "worker", PROMPTS[0], name="rebinder")
    asker.print()
"""


def test_a_worker_that_assigns_its_own_stream(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    without = run(program(OWN_STREAM), checkpoint, agent="none").result
    assert wrong(without, reference) == {}
    outcome = run(program(OWN_STREAM), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    if stack.inert:
        return
    drifts = [record for record in outcome.records if record["kind"] == "drift"]
    assert [drift["thread_name"] for drift in drifts] == ["rebinder"]
    assert drifts[0]["handles"] == [
        {"where": "mlx_lm.generate.generation_stream", "action": "kept"}
    ]
    # The worker generated on the stream that it had chosen.
    (bind,) = [record for record in outcome.records if record["kind"] == "bind"]
    assert bind["stream_index"] == drifts[0]["stream_index"]


# The function that several servers carry, called once by each worker: under the literal
# reading of "a fresh stream per thread into the module attribute" the first worker fails
# as soon as the second has overwritten the handle.
LITERAL_REBIND = """
    import importlib, threading
    import mlx.core as mx
    from asking import Asker, PROMPTS
    asker = Asker()
    lock, bound = threading.Lock(), threading.local()
    def overwrite():
        with lock:
            if getattr(bound, "flag", False):
                return
            bound.flag = True
            stream = mx.new_stream(mx.default_device())
            mx.set_default_stream(stream)
            importlib.import_module("mlx_lm.generate").generation_stream = stream
    turns = [threading.Semaphore(0) for _ in range(2)]
    def worker(number):
        for round in range(2):
            turns[number].acquire()
            overwrite()
            asker.ask(f"worker {number}, round {round}", PROMPTS[2 * round + number])
            turns[1 - number].release()
    threads = [threading.Thread(target=worker, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    turns[0].release()
    for thread in threads:
        thread.join()
    asker.print()
"""


def test_the_literal_rebind_breaks_a_program_and_the_agent_does_not(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    without = wrong(run(program(LITERAL_REBIND), checkpoint, agent="none").result, reference)
    if stack.binds_on_cpu and stack.mlx_lm < (0, 32):
        # Later releases read a default argument, so that overwriting changes nothing.
        assert set(without) == {"worker 0, round 1"}
        assert NO_STREAM in without["worker 0, round 1"]["error"]
    else:
        assert without == {}
    outcome = run(program(LITERAL_REBIND), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}


REBINDING_IN_THE_MIDDLE = """
    import importlib, threading
    import mlx.core as mx
    import mlx_lm
    from asking import Asker, PROMPTS
    asker = Asker()
    module = importlib.import_module("mlx_lm.generate")
    stop = threading.Event()
    def rebind():
        while not stop.is_set():
            module.generation_stream = mx.new_stream(mx.default_device())
    rebinder = threading.Thread(target=rebind, name="rebinder")
    rebinder.start()
    threads = [
        threading.Thread(target=asker.ask, args=(f"worker {at}", PROMPTS[at])) for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    rebinder.join()
    asker.print()
"""


def test_rebinding_while_others_generate(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, where any thread can use any stream")
    outcome = run(program(REBINDING_IN_THE_MIDDLE), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    assert {record["kind"] for record in outcome.records} >= {"drift"}


WRITTEN_PAST_THE_MODULE = """
    import importlib, json, sys
    import mlx.core as mx
    import mlx_lm, mlx_autobind
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    module = importlib.import_module("mlx_lm.generate")
    asker.ask("main", PROMPTS[0])
    vars(module)["generation_stream"] = mx.new_stream(mx.default_device())
    on_thread(asker.ask, "worker", PROMPTS[1])
    asker.ask("main again", PROMPTS[2])
    asker.print()
"""


def test_a_handle_written_past_the_module_is_noticed_at_the_next_entry(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(program(WRITTEN_PAST_THE_MODULE), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    if not stack.inert:
        drifts = [record for record in outcome.records if record["kind"] == "drift"]
        assert [drift["handles"][0]["action"] for drift in drifts] == ["restored"]
        assert drifts[0]["entry_point"] == "mlx_lm.generate.stream_generate"


MISUSES = """
    import json
    import mlx.core as mx
    from mlx_lm.generate import generation_stream
    import mlx_lm.generate, sys
    module = sys.modules["mlx_lm.generate"]
    found = {}
    def attempt(name, work):
        try:
            work()
        except Exception as error:
            found[name] = type(error).__name__
    attempt("a number as default stream", lambda: mx.set_default_stream(3))
    attempt("no argument", lambda: mx.set_default_stream())
    module.generation_stream = None
    attempt("None as handle", lambda: mx.stream(module.generation_stream))
    print(json.dumps(found))
"""


def test_misuse_gives_what_it_gives_without_the_agent(run: Run) -> None:
    without: dict[str, Any] = run(MISUSES, agent="none").clean()
    assert set(without.values()) <= {"TypeError", "RuntimeError", "ValueError"}
    assert run(MISUSES, agent="import").clean() == without


def test_another_device_is_honoured(run: Run) -> None:
    text = """
        import json, sys
        import mlx.core as mx
        import mlx_lm.generate
        module = sys.modules["mlx_lm.generate"]
        module.generation_stream = mx.cpu
        kept = module.generation_stream
        with mx.stream(kept):
            total = (mx.array([41]) + 1).item()
        print(json.dumps([total, kept == mx.Device(mx.cpu, 0)]))
    """
    assert run(text, agent="import").clean() == [42, True]
