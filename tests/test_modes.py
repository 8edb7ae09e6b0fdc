"""``owner`` and ``shared``: the scenarios that one stream for each thread cannot cure, and more."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import demo
from tests import harness, test_server
from tests.conftest import Run
from tests.harness import PROGRAMS, program
from tests.stacks import Stack
from tests.test_arrays import HEADS, LLAMA3, MODELS
from tests.test_scenarios import EXITS, LATE, Reference, wrong

OTHER_MODES = ("owner", "shared")


@pytest.fixture(autouse=True)
def _shared_needs_streams_for_all(request: pytest.FixtureRequest, stack: Stack) -> None:
    mode = getattr(request.node, "callspec", None)
    if stack.inert:
        pytest.skip("every mode is inert on this mlx")
    if mode is not None and mode.params.get("mode") == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")


def env(mode: str, **more: str) -> dict[str, str]:
    return {"MLX_AUTOBIND_MODE": mode, **more}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a scaled-RoPE and a sliding-window model."""
    folder = tmp_path_factory.mktemp("models")
    kinds: dict[str, dict[str, Any]] = {
        "llama3": {**HEADS, "rope_scaling": LLAMA3},
        "sliding": {**HEADS, **MODELS["sliding window"]},
    }
    made = harness.run(
        f"""
        from pathlib import Path
        from mlx_autobind.cli import checkpoint
        for name, config in {kinds!r}.items():
            checkpoint.make(Path({str(folder)!r}) / name, config)
        """,
        agent="none",
        folder=folder,
        env={"MLX_AUTOBIND": "off"},
    )
    assert made.code == 0, made.stderr
    return folder


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("scenario", ["S1", "S2", "S3"])
def test_scenarios(
    scenario: str, mode: str, run: Run, checkpoint: Path, reference: Reference
) -> None:
    outcome = run(demo.PROGRAMS, scenario, checkpoint, agent="import", env=env(mode))
    assert wrong(outcome.clean(), reference) == {}
    assert {record["mode"] for record in outcome.records} == {mode}
    threads = {record["thread_name"] for record in outcome.records}
    if mode == "owner":
        assert threads == {"mlx-autobind owner"}
    else:
        # One stream, whoever is bound to it.
        assert len({record["stream_index"] for record in outcome.records}) == 1


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("model", ["llama3", "sliding"])
def test_what_crosses_threads(model: str, mode: str, run: Run, models: Path) -> None:
    outcome = run(PROGRAMS / "crossing.py", models / model, agent="import", env=env(mode))
    assert {name: step for name, step in outcome.clean().items() if step != "right"} == {}


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_what_only_this_mode_cures(mode: str, run: Run, models: Path, stack: Stack) -> None:
    path = PROGRAMS / "limits.py"
    found = run(path, models / "llama3", agent="import", env=env(mode)).clean()
    for name, step in found.items():
        if name.startswith("S21") and mode == "owner" and stack.binds_on_cpu:
            expected = "explained: " if sys.version_info >= (3, 11) else "RuntimeError"
            assert step.startswith(expected)
        else:
            assert step == "right", name


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("kind", EXITS)
def test_exit_code(kind: str, mode: str, run: Run, checkpoint: Path, reference: Reference) -> None:
    for _ in range(3):
        outcome = run(program(EXITS[kind]), checkpoint, agent="import", env=env(mode))
        assert wrong(outcome.clean(), reference) == {}


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_activated_late(mode: str, run: Run, checkpoint: Path, reference: Reference) -> None:
    outcome = run(program(LATE), checkpoint, "late", agent="none", env=env(mode))
    steps = outcome.clean()
    assert steps.pop("held") == dict.fromkeys(("default", "self", "closure", "list"), 42)
    assert wrong(steps, reference) == {}


SHORT_LIVED = """
    import json, os
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    native = lambda: len(os.listdir("/proc/self/task"))
    for at in range(20):
        on_thread(asker.ask, str(at), PROMPTS[0])
    before = native()
    for at in range(int(sys.argv[2])):
        on_thread(asker.ask, "again", PROMPTS[0])
    print(json.dumps([native() - before, "error" in asker.steps["again"]]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to count threads in")
@pytest.mark.parametrize("mode", OTHER_MODES)
def test_short_lived_threads_leave_no_native_thread(mode: str, run: Run, checkpoint: Path) -> None:
    """S13. The system may be late to forget one that has ended; a leak would be 300."""
    text = program(SHORT_LIVED)
    grown, failed = run(text, checkpoint, 300, agent="import", env=env(mode)).clean()
    assert grown <= 3
    assert not failed


FAIR = """
    import json, threading
    import mlx_lm
    from asking import PROMPTS
    from threads import at_once
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    order = []
    def stream(name):
        for response in mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=40):
            order.append(name)
    def whole(name):
        mlx_lm.generate(model, tokenizer, PROMPTS[0], max_tokens=40)
    at_once([
        *(lambda name=name: stream(name) for name in "ab"), lambda: whole("c"), lambda: whole("d"),
    ])
    longest = run = 1
    for last, now in zip(order, order[1:]):
        run = run + 1 if last == now else 1
        longest = max(longest, run)
    print(json.dumps([longest, order.count("a"), order.count("b")]))
"""


def test_streams_take_turns(run: Run, checkpoint: Path) -> None:
    """First come, first served, for each step: no stream waits for another's generation."""
    longest, *counts = run(program(FAIR), checkpoint, agent="import", env=env("owner")).clean()
    assert counts[0] == counts[1] >= 30
    # Until both have begun and after one has ended the other goes alone.
    assert longest < 20


MANY = """
    import json
    from functools import partial
    import mlx_lm
    from asking import PROMPTS
    from threads import at_once
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    def answer(at):
        return [
            response.token for response in
            mlx_lm.stream_generate(model, tokenizer, PROMPTS[at % 16], max_tokens=6)
        ]
    right = [answer(at) for at in range(16)]
    found = at_once([partial(answer, at) for at in range(int(sys.argv[2]))], threads=32)
    print(json.dumps([at for at, each in enumerate(found) if each != right[at % 16]]))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_many_generations_on_32_threads(mode: str, run: Run, checkpoint: Path) -> None:
    text = program("sys.setswitchinterval(1e-6)\n" + MANY.replace("\n    ", "\n"))
    assert run(text, checkpoint, 320, agent="import", env=env(mode)).clean() == []


DIRECT = """
    import contextvars, json, threading, traceback
    import mlx_lm
    import mlx.core as mx
    from asking import PROMPTS
    from threads import elsewhere
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    name = contextvars.ContextVar("name", default="none")
    found = {}

    def sampler(logits):
        found.setdefault("sees", name.get())
        found.setdefault("on", threading.current_thread().name)
        return mx.argmax(logits, axis=-1)

    def nesting(logits):
        if "nested" not in found:
            found["nested"] = ""
            found["nested"] = mlx_lm.generate(model, tokenizer, PROMPTS[1], max_tokens=4)
        return mx.argmax(logits, axis=-1)

    def failing(logits):
        raise KeyError("of the sampler")

    def tokens(sampler, prompt=PROMPTS[0]):
        answer = mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=6, sampler=sampler)
        return [response.token for response in answer]

    name.set("the caller's")
    right = tokens(sampler)
    found["same"] = tokens(nesting) == right
    found["nested right"] = found.pop("nested") == mlx_lm.generate(
        model, tokenizer, PROMPTS[1], max_tokens=4
    )
    def fail():
        try:
            tokens(failing)
        except KeyError as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            return [str(error), "fail" in frames, "failing" in frames, frames.index("fail") == 0]
    found["error"] = fail()
    found["error elsewhere"] = elsewhere(fail)
    generator = mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=6)
    found["kind"] = [type(generator).__name__, generator.__name__]
    next(generator)
    try:
        generator.throw(ValueError("thrown"))
    except ValueError as error:
        found["thrown"] = str(error)
    found["ended"] = next(generator, "ended")
    print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_call_behaves_as_without_the_agent(mode: str, run: Run, checkpoint: Path) -> None:
    found = run(program(DIRECT), checkpoint, agent="import", env=env(mode)).clean()
    thread = "mlx-autobind owner" if mode == "owner" else "MainThread"
    assert found == {
        "sees": "the caller's",
        "on": thread,
        "same": True,
        "nested right": True,
        "error": ["'of the sampler'", True, True, True],
        "error elsewhere": ["'of the sampler'", True, True, True],
        "kind": ["generator", "stream_generate"],
        "thrown": "thrown",
        "ended": "ended",
    }


INTERRUPTED = """
    import json, os, signal, threading
    import mlx_lm
    import mlx.core as mx
    from asking import PROMPTS
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    begun = threading.Event()
    steps = []
    def sampler(logits):
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        if len(steps) >= 3:
            for _ in range(20_000_000):  # long enough that the signal comes within this step
                pass
        return mx.argmax(logits, axis=-1)
    found = []
    try:
        mlx_lm.generate(model, tokenizer, PROMPTS[0], max_tokens=100, sampler=sampler)
    except KeyboardInterrupt:
        found.append("interrupted")
    found.append(len(steps))
    right = mlx_lm.generate(model, tokenizer, PROMPTS[0], max_tokens=6)
    found.append(right == mlx_lm.generate(model, tokenizer, PROMPTS[0], max_tokens=6))
    print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_keyboard_interrupt(mode: str, run: Run, checkpoint: Path) -> None:
    """It ends the generation in the middle of a step, and nothing else."""
    found = run(program(INTERRUPTED), checkpoint, agent="import", env=env(mode)).clean()
    assert found == ["interrupted", 3, True]


REFUSED = """
    import json
    import mlx_autobind
    found = []
    mlx_autobind.install(mode="owner")
    found.append(mlx_autobind.status().mode)
    try:
        mlx_autobind.install(mode="fast")
    except ValueError as error:
        found.append(str(error))
    import mlx_lm
    mlx_autobind.install(mode="owner")
    try:
        mlx_autobind.install(mode="thread")
    except RuntimeError as error:
        found.append(str(error))
    found.append(mlx_autobind.status().mode)
    mlx_autobind.uninstall()
    mlx_autobind.install(mode="thread")
    found.append(mlx_autobind.status().mode)
    print(json.dumps(found))
"""


def test_the_mode_of_a_running_process_is_not_changed(run: Run) -> None:
    first, unknown, refused, kept, changed = run(REFUSED, agent="import").clean()
    assert [first, kept, changed] == ["owner", "owner", "thread"]
    assert unknown == "mode='fast': allowed is thread or owner or shared"
    assert "are patched in mode 'owner' already" in refused


METERED = """
    import json
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    import mlx_lm
    from asking import PROMPTS
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    list(mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=6))
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if "handover" not in metric.name:
                    continue
                for point in metric.data.data_points:
                    name = point.attributes["code.function.name"]
                    found.setdefault(metric.name, {})[name] = [point.count, metric.unit]
    print(json.dumps(found))
"""


def test_handovers_are_measured(run: Run, checkpoint: Path) -> None:
    found = run(program(METERED), checkpoint, agent="import", env=env("owner")).clean()
    assert set(found) == {"mlx_autobind.handover.wait", "mlx_autobind.handover.run"}
    for points in found.values():
        assert points["mlx_lm.utils.load"] == [1, "s"]
        assert points["mlx_lm.generate.stream_generate"][0] in (6, 7)


FORKED = """
    import json, os
    from asking import Asker, PROMPTS
    asker = Asker()
    asker.ask("parent", PROMPTS[0])
    read, write = os.pipe()
    if os.fork() == 0:
        from mlx_autobind.owner import OWNER
        from mlx_autobind import shared
        alive = OWNER._thread is None and shared.LOCK.acquire(timeout=1)
        os.write(write, b"anew" if alive else b"held")
        os._exit(0)
    os.wait()
    asker.ask("parent again", PROMPTS[0])
    print(json.dumps([os.read(read, 9).decode(), asker.steps["parent again"]["tokens"] ==
          asker.steps["parent"]["tokens"]]))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_forked_child_starts_anew(mode: str, run: Run, checkpoint: Path) -> None:
    outcome = run(program(FORKED), checkpoint, agent="import", env=env(mode))
    assert outcome.result == ["anew", True]


def test_shared_on_an_mlx_without_such_streams(run: Run, checkpoint: Path) -> None:
    text = program("""
        import mlx.core as mx
        if hasattr(mx, "new_thread_unsafe_stream"):
            del mx.new_thread_unsafe_stream  # as before mlx 0.32
        from asking import Asker, PROMPTS, on_thread
        import mlx_autobind
        asker = Asker()
        on_thread(asker.ask, "worker", PROMPTS[0])
        print(mlx_autobind.status().mode, file=sys.stderr)
        asker.print()
    """)
    outcome = run(text, checkpoint, agent="import", env=env("shared"))
    assert "tokens" in outcome.result["worker"]
    assert "has no stream that any thread may use" in outcome.stderr
    assert outcome.stderr.splitlines()[-1] == "thread"
    assert len(outcome.stderr.splitlines()) == 2


CANCELLED = """
    import asyncio, gc, json, threading, types
    import mlx_lm
    from asking import PROMPTS
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]

    def begin(prompt, tokens):
        return mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=tokens)

    async def request(prompt, tokens, found=None):
        stream = begin(prompt, tokens)
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, stream, None))
                response = await asyncio.shield(step)
                if response is None:
                    return
                if found is not None:
                    found.append(response.token)
        finally:
            # The thread goes on with its step, and a generator that runs cannot be closed.
            await asyncio.wait([step])
            await asyncio.to_thread(stream.close)

    async def serve():
        answers = [[] for _ in range(4)]
        stay = [
            asyncio.create_task(request(PROMPTS[at], 30, answers[at])) for at in range(4)
        ]
        leave = [asyncio.create_task(request(PROMPTS[at], 5000)) for at in range(12)]
        while min(map(len, answers)) < 3:
            await asyncio.sleep(0)
        for task in leave:
            task.cancel()
        left = await asyncio.gather(*leave, return_exceptions=True)
        await asyncio.gather(*stay)
        return answers, [type(each).__name__ for each in left]

    right = [[r.token for r in begin(PROMPTS[at], 30)] for at in range(4)]
    answers, left = asyncio.run(serve())
    gc.collect()
    alive = [
        each.__name__ for each in gc.get_objects()
        if isinstance(each, types.GeneratorType) and each.gi_frame is not None
        and "generate" in each.__name__
    ]
    print(json.dumps([answers == right, sorted(set(left)), alive]))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_cancelled_requests_of_an_asyncio_server(mode: str, run: Run, checkpoint: Path) -> None:
    """No leaked generator, no hang, and those who stay get their answers."""
    found = run(program(CANCELLED), checkpoint, agent="import", env=env(mode)).clean()
    assert found == [True, ["CancelledError"], []]


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_the_server_of_mlx_lm(
    mode: str, checkpoint: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("MLX_AUTOBIND_MODE", mode)
    steps = run(demo.PROGRAMS, "reference", checkpoint, agent="none").clean()
    assert {prompt: step["tokens"] for prompt, step in steps.items()} == reference
    verdict, outcome = demo._serve(checkpoint, steps, True, 60)
    assert verdict == demo.RIGHT
    assert {record["mode"] for record in outcome.records} == {mode}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", OTHER_MODES)
def test_eight_clients_two_of_which_leave(
    mode: str, run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_AUTOBIND_MODE", mode)
    text = program(test_server.RIGHT.format(max_tokens=test_server.MAX_TOKENS))
    right: dict[str, list[int]] = run(text, checkpoint, agent="none").clean()
    answers, outcome = test_server.serve(checkpoint, list(right), agent=True)
    assert answers[2:] == list(right.values())[2:]
    assert outcome.stderr == ""
    assert outcome.code == 0


ENDED = """
    import contextlib, gc, json, threading
    import mlx_lm
    from asking import PROMPTS
    from threads import elsewhere
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    ended = []

    @contextlib.contextmanager
    def wired_limit(*args):
        try:
            yield
        finally:
            ended.append(threading.current_thread().name)

    sys.modules["mlx_lm.generate"].wired_limit = wired_limit

    def begin():
        generator = mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=30)
        next(generator)
        return generator

    begin().close()
    elsewhere(begin().close)
    begun = begin()
    del begun
    gc.collect()
    list(begin())
    mlx_lm.stream_generate(model, tokenizer, PROMPTS[0]).close()
    print(json.dumps(ended))
"""


def test_generators_end_on_the_owner_thread(run: Run, checkpoint: Path) -> None:
    """Closed, closed elsewhere, collected and exhausted; one that was never begun does nothing."""
    found = run(program(ENDED), checkpoint, agent="import", env=env("owner")).clean()
    assert found == ["mlx-autobind owner"] * 4


@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_status_says_what_is_unprotected(mode: str, run: Run) -> None:
    text = """
        import json, mlx_lm, mlx_autobind
        found = mlx_autobind.status()
        print(json.dumps([found.mode, found.unprotected]))
    """
    found, unprotected = run(text, agent="import", env=env(mode)).clean()
    assert found == mode
    assert ("item()" in (unprotected or "")) is (mode == "shared")


BUSY = """
    import threading, time
    import mlx.core as mx
    import mlx_lm
    from threads import on_thread
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    left_lazy = mlx_lm.load(sys.argv[1], lazy=True)[0]
    stop = False

    def slowly(logits):
        time.sleep(0.01)  # long enough for others to come to every lock meanwhile
        return mx.argmax(logits, axis=-1)

    def stream(model=model, sampler=None, tokens=1):
        for _ in mlx_lm.stream_generate(model, tokenizer, "w5 w6", max_tokens=tokens,
                                        sampler=sampler):
            pass

    def busy():
        while not stop:
            stream(sampler=slowly, tokens=8)

    background = threading.Thread(target=busy)
    background.start()
    for _ in range(8):
        works = [
            stream,
            lambda: mlx_lm.generate(model, tokenizer, "w5 w6", max_tokens=1),
            lambda: mlx_lm.generate(left_lazy, tokenizer, "w5 w6", max_tokens=1),
            lambda: mlx_lm.load(sys.argv[1]),
        ]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stop = True
    background.join()
    print("true")
"""


@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_no_order_of_locks_is_wrong(mode: str, run: Run, checkpoint: Path) -> None:
    """New threads bind, load and bring lazy weights while another is in a step."""
    assert run(program(BUSY), checkpoint, agent="import", env=env(mode)).clean() is True


COLLECTED = """
    import gc, threading
    import mlx.core as mx
    import mlx_lm
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    lock, inside, free = threading.Lock(), threading.Event(), threading.Event()

    def begin(**options):
        return mlx_lm.stream_generate(model, tokenizer, "w5 w6", max_tokens=4, **options)

    def sampler(logits):
        inside.set()
        with lock:
            return mx.argmax(logits, axis=-1)

    generator = begin()
    next(generator)
    cycle = [generator]
    cycle.append(cycle)
    del generator, cycle
    with lock:
        thread = threading.Thread(target=lambda: list(begin(sampler=sampler)))
        thread.start()
        inside.wait()
        gc.collect()
    thread.join()
    print(len(list(begin())) > 1)
"""


@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_the_collector_does_not_wait(mode: str, run: Run, checkpoint: Path) -> None:
    """It closes a generator while this thread holds a lock that another's step waits for."""
    outcome = run(program(COLLECTED), checkpoint, agent="import", env=env(mode))
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert outcome.stdout == "True\n"


LEFT_OPEN = """
    import threading
    import mlx.core as mx
    import mlx_lm
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    begun, never = threading.Event(), threading.Event()

    def sampler(logits):
        begun.set()
        never.wait()

    def work():
        list(mlx_lm.stream_generate(model, tokenizer, "w5", max_tokens=4, sampler=sampler))

    left_open = mlx_lm.stream_generate(model, tokenizer, "w5 w6", max_tokens=4)
    next(left_open)
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="such a thread is left to hang there")
@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_exit_with_a_step_that_never_ends(mode: str, run: Run, checkpoint: Path) -> None:
    """And with a generator left open, which is closed as the modules go."""
    outcome = run(program(LEFT_OPEN), checkpoint, agent="import", env=env(mode))
    assert outcome.code == 0
    lines = [line for line in outcome.stderr.splitlines() if "daemon threads still run" not in line]
    assert lines == []


GENERATING = """
    import threading
    import mlx_lm
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    begun = threading.Barrier(4, timeout=60)
    def work():
        begun.wait()
        while True:
            list(mlx_lm.stream_generate(model, tokenizer, "w5", max_tokens=4))
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    begun.wait()
    list(mlx_lm.stream_generate(model, tokenizer, "w5", max_tokens=40))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_exit_while_daemon_threads_generate(mode: str, run: Run, checkpoint: Path) -> None:
    for _ in range(5):
        outcome = run(program(GENERATING), checkpoint, agent="import", env=env(mode))
        assert outcome.code == 0
        assert outcome.stderr == ""


ALONE = """
    import contextvars, functools, gc, json, weakref
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.sample_utils import make_sampler
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    found = {}
    draw = make_sampler(temp=2.0)

    def stream(**options):
        options = {"max_tokens": 6, **options}
        answer = mlx_lm.stream_generate(model, tokenizer, "w5 w6", **options)
        return [response.token for response in answer]

    def biased(by):
        bias = mx.zeros((96,))
        bias[by] = 100.0
        return bias

    class Biasing:
        def __init__(self, by):
            self.bias = biased(by)
        def __call__(self, tokens, logits):
            return logits + self.bias

    def closing(bias):
        return lambda tokens, logits: logits + bias

    def given(tokens, logits, bias=None):
        return logits + bias

    found["closure"] = stream(logits_processors=[closing(biased(7))])
    found["object"] = stream(logits_processors=[Biasing(8)])
    found["partial"] = stream(logits_processors=[functools.partial(given, bias=biased(9))])
    found["method"] = stream(logits_processors=[Biasing(10).__call__])

    counter = contextvars.ContextVar("counter", default=0)
    def counting(logits):
        counter.set(counter.get() + 1)
        return mx.argmax(logits, axis=-1)
    answer = stream(sampler=counting)
    found["counted"] = counter.get() >= len(answer) - 1

    mx.random.seed(0)
    found["seeded"] = [stream(sampler=draw), stream(sampler=draw)]
    mx.random.seed(0)
    found["drawn"] = [mx.random.uniform().item(), stream(sampler=draw), mx.random.uniform().item()]
    stream(sampler=lambda logits: (mx.random.seed(3), mx.argmax(logits, axis=-1))[1])
    mx.random.seed(0)
    found["seeded again"] = stream(sampler=draw)
    if hasattr(mlx_lm, "batch_generate"):
        def batch():
            ids = [tokenizer.encode("w5 w6"), tokenizer.encode("w7 w8")]
            return mlx_lm.batch_generate(model, tokenizer, ids, max_tokens=6, sampler=draw).texts
        mx.random.seed(0)
        found["batches"] = [batch()]
        mx.random.seed(0)
        found["batches"].append(batch())

    class Kept:
        pass
    def failing(logits):
        kept = Kept()
        alive.append(weakref.ref(kept))
        raise KeyError("of the sampler")
    alive = []
    gc.collect()
    gc.disable()
    try:
        stream(sampler=failing)
    except KeyError:
        pass
    found["alive"] = alive[0]() is not None
    print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_a_program_of_one_thread(mode: str, run: Run, checkpoint: Path) -> None:
    """What processors hold, what callbacks set, what is drawn, and what an error keeps alive."""
    right = run(program(ALONE), checkpoint, agent="none").result
    assert right["closure"][:2] == [7, 7]
    assert right["alive"] is False
    if "batches" in right:
        assert right["batches"][0] == right["batches"][1]
    assert run(program(ALONE), checkpoint, agent="import", env=env(mode)).clean() == right


LET_GO = """
    import gc, json, weakref
    import mlx.core as mx
    import mlx_lm
    from asking import PROMPTS
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]

    class Sampler:
        def __call__(self, logits):
            return mx.argmax(logits, axis=-1)

    def stream(sampler):
        return mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=4, sampler=sampler)

    def throw(generator):
        try:
            generator.throw(KeyError("thrown"))
        except KeyError:
            pass

    gc.collect()
    gc.disable()
    found = {}
    for end in (throw, lambda generator: generator.close(), list, lambda generator: None):
        sampler = Sampler()
        generator = stream(sampler)
        next(generator)
        end(generator)
        alive = weakref.ref(sampler)
        del generator, sampler
        # What is left of it is ended by the next one.
        list(stream(None))
        found[end.__name__] = found.get(end.__name__, True) and alive() is None
    print(json.dumps(found))
"""


@pytest.mark.parametrize("generations", ["off", "on"])
@pytest.mark.parametrize("mode", ["thread", *OTHER_MODES])
def test_nothing_of_a_generation_is_kept_until_the_collector_comes(
    mode: str, generations: str, run: Run, checkpoint: Path
) -> None:
    right = run(program(LET_GO), checkpoint, agent="none").result
    assert right == {"throw": True, "<lambda>": True, "list": True}
    variables = env(mode, MLX_AUTOBIND_GENERATIONS=generations)
    assert run(program(LET_GO), checkpoint, agent="import", env=variables).clean() == right


CHOSEN = """
    import json
    import mlx.core as mx
    import mlx_lm
    from asking import PROMPTS
    from batches import batched
    from threads import elsewhere, here
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    right = batched(model, tokenizer, PROMPTS[:2], here, [here])
    def choosing(work):
        def chosen():
            mx.set_default_stream(mx.new_stream(mx.default_device()))
            return work()
        return elsewhere(chosen)
    found = batched(model, tokenizer, PROMPTS[:2], here, [here, choosing])
    print(json.dumps(found == right))
"""


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_batch_is_stepped_by_threads_with_default_streams_of_their_own(
    mode: str, run: Run, checkpoint: Path, stack: Stack
) -> None:
    if stack.mlx_lm < (0, 28):
        pytest.skip("this mlx-lm has no batches")
    assert run(program(CHOSEN), checkpoint, agent="import", env=env(mode)).clean() is True


def test_shared_reads_no_random_state_during_a_step(
    run: Run, checkpoint: Path, stack: Stack
) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    # What a thread has drawn itself is pending on the one stream. A clear reads its state.
    text = """
        import json, sys, threading
        import mlx.core as mx
        import mlx_lm

        model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
        bound, inside, cleared = threading.Event(), threading.Event(), threading.Event()
        overtaken = []

        def clear():
            list(mlx_lm.stream_generate(model, tokenizer, [5, 6], max_tokens=1))
            bound.set()
            inside.wait(60)
            mx.random.seed(7)
            mx.random.normal((2,))
            mx.clear_streams()
            cleared.set()

        def processor(tokens, logits):
            if not overtaken:
                inside.set()
                overtaken.append(cleared.wait(1))
            return logits

        thread = threading.Thread(target=clear)
        thread.start()
        bound.wait(60)
        options = {"max_tokens": 2, "logits_processors": [processor]}
        list(mlx_lm.stream_generate(model, tokenizer, [5, 6], **options))
        thread.join()
        print(json.dumps(overtaken))
    """
    outcome = run(text, checkpoint, agent="import", env=env("shared"))
    assert outcome.clean() == [False]


NO_MORE_THREADS = """
    import threading
    import mlx_lm
    from asking import Asker, PROMPTS
    asker = Asker()
    owner = next(each for each in threading.enumerate() if "owner" in each.name)
    sys.modules["mlx_autobind.owner"].OWNER.end()
    sys.modules["mlx_autobind.owner"].OWNER._start_over()
    # More than any system gives.
    threading.stack_size(1 << 46)
    asker.ask("no thread", PROMPTS[0])
    asker.ask("no thread once more", PROMPTS[1])
    threading.stack_size(0)
    asker.ask("a thread again", PROMPTS[2])
    assert any("owner" in each.name for each in threading.enumerate())
    asker.print()
"""


def test_no_thread_can_be_started_for_a_while(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent starts no thread where there is nothing to do")
    outcome = run(program(NO_MORE_THREADS), checkpoint, agent="import", env=env("owner"))
    assert outcome.code == 0, outcome.stderr
    assert wrong(outcome.result, reference) == {}
    assert outcome.stderr.count("mlx_autobind.owner.Owner failed") == 1
