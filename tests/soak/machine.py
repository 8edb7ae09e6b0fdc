"""``stateful``: public calls in any order, on any thread, against a model of what they give.

Hypothesis chooses the calls. They are made by worker threads, one at a time, so that what is found
is found again, and shrinks.
"""

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mlx_autobind
from tests import stacks
from tests.soak.model import PROMPTS, STOPS
from tests.soak.work import Answer, Work, expect, rest

WORKERS = 3
PATIENCE_S = 60.0

# Examples of one run of hypothesis: it keeps what it has tried, and gets slower.
EXAMPLES = 20
STEPS = 30

COUNTS: Counter[str] = Counter()

PLAIN_HANDLE = stacks.installed().plain_handle

_worker = st.integers(0, WORKERS - 1)
_prompt = st.integers(0, len(PROMPTS) - 1)
_stop = st.sampled_from(STOPS)


class Worker:
    """A thread that does what it is told, and is waited for."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                self._outcomes.put((call(), None))
            except BaseException as error:
                self._outcomes.put((None, error))
            del call

    def do(self, call: Callable[[], Any]) -> Any:
        """Return what `call` gives on this thread, or raise what it raises."""
        self._calls.put(call)
        result, error = self._outcomes.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """End the thread, and wait for that."""
        self._calls.put(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Going:
    """An answer under way.

    Attributes:
        answer: the generator.
        right: the tokens that are still to come.
        at: who has stepped it last.
    """

    def __init__(self, answer: Answer, right: list[int]) -> None:
        self.answer, self.right = answer, right
        self.at: Worker | None = None


class Machine(RuleBasedStateMachine):
    """The public calls. `work` is set before it is run."""

    work: Work

    answers: Bundle[Going] = Bundle("answers")
    caches: Bundle[tuple[Any, str]] = Bundle("caches")

    def __init__(self) -> None:
        super().__init__()
        COUNTS["examples"] += 1
        self.workers: list[Worker] = []
        self.installed, self.uninstalled = True, False

    @initialize()
    def begin(self) -> None:
        """Start the workers."""
        self.workers = [Worker() for _ in range(WORKERS)]

    def do(self, what: str, worker: int, call: Callable[[], Any]) -> Any:
        """Count a call, and make it on a worker."""
        COUNTS[what] += 1
        return self.workers[worker].do(call)

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, prompt=_prompt, other=_worker)
    def load(self, worker: int, prompt: int, other: int) -> None:
        """Load on one thread, and generate on another."""

        # In `thread` mode a thread that has just cleared its streams cannot load, as in plain mlx.
        def bound() -> Any:
            self.work.text(0)
            return self.work.load()

        loaded = self.do("load", worker, bound)
        fresh = object.__new__(Work)
        fresh.model, fresh.tokenizer = loaded
        fresh.right = self.work.right
        tokens = self.do("generate", other, lambda: rest(fresh.stream(prompt)))
        expect(tokens, self.work.right["tokens"][prompt])

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, prompt=_prompt)
    def generate(self, worker: int, prompt: int) -> None:
        """Have a whole answer."""
        found = self.do("generate", worker, lambda: self.work.text(prompt))
        expect(found, self.work.right["texts"][prompt])

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, prompt=_prompt)
    def sample(self, worker: int, prompt: int) -> None:
        """Draw an answer."""
        self.do("sample", worker, lambda: self.work.sampled(prompt))

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, prompt=_prompt, target=answers)
    def start(self, worker: int, prompt: int) -> Going:
        """Ask for an answer, of which nothing is generated yet."""
        answer = self.do("start", worker, lambda: self.work.stream(prompt))
        return Going(answer, list(self.work.right["tokens"][prompt]))

    # Without the agent an answer stays where it is, and works there if the library's handle is
    # no plain stream of the thread that imported it; with it, it goes wherever it is stepped.
    @rule(worker=_worker, going=answers, count=st.integers(1, 3))
    def step(self, worker: int, going: Going, count: int) -> None:
        """Step an answer, perhaps on another thread than before."""
        stays = self.workers[worker] is going.at and not PLAIN_HANDLE
        if not self.installed and not stays:
            return
        if going.at not in (None, self.workers[worker]):
            COUNTS["hand over"] += 1
        found = self.do(
            "step",
            worker,
            lambda: [response.token for response in itertools.islice(going.answer, count)],
        )
        going.at = self.workers[worker]
        expect(found, going.right[:count])
        del going.right[:count]

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, going=consumes(answers))
    def finish(self, worker: int, going: Going) -> None:
        """Step an answer to its end."""
        if going.at not in (None, self.workers[worker]):
            COUNTS["hand over"] += 1
        expect(self.do("finish", worker, lambda: rest(going.answer)), going.right)

    @rule(worker=_worker, going=consumes(answers))
    def close(self, worker: int, going: Going) -> None:
        """Close an answer on any thread."""
        self.do("close", worker, going.answer.close)

    @rule(going=consumes(answers))
    def drop(self, going: Going) -> None:
        """Abandon an answer: the main thread collects it."""
        COUNTS["drop"] += 1
        del going.answer

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, prompt=_prompt, stop=_stop, target=caches)
    def turn(self, worker: int, prompt: int, stop: int) -> tuple[Any, str]:
        """Have a first turn with a cache."""

        def first() -> Any:
            cache = self.work.cache()
            self.work.turn(cache, prompt, stop)
            return cache

        return self.do("turn", worker, first), f"{prompt} {stop}"

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, cache=consumes(caches), prompt=_prompt)
    def next_turn(self, worker: int, cache: tuple[Any, str], prompt: int) -> None:
        """Have the next turn with it, perhaps on another thread."""
        held, before = cache
        found = self.do("next turn", worker, lambda: self.work.turn(held, prompt, 0))
        expect(found, self.work.right["turns"][f"{before} {prompt}"])

    @precondition(lambda self: self.installed)
    @rule(worker=_worker, other=_worker, prompt=_prompt, second=_prompt)
    def batch(self, worker: int, other: int, prompt: int, second: int) -> None:
        """Feed a batch on one thread and step it on another."""
        made, uids = self.do("batch", worker, lambda: self.work.batch([prompt, second]))
        found = self.workers[other].do(lambda: self.work.answers(made, uids))
        expect(found, self.work.right["batches"][f"{prompt} {second}"])

    @precondition(lambda self: self.installed)
    @rule(worker=_worker)
    def clear(self, worker: int) -> None:
        """Clear the streams of a thread."""
        self.do("clear", worker, mx.clear_streams)

    @rule(worker=_worker)
    def die(self, worker: int) -> None:
        """End a thread, and start another."""
        COUNTS["die"] += 1
        self.workers[worker].end()
        self.workers[worker] = Worker()

    # Once an example: it searches the whole heap.
    @precondition(lambda self: self.installed and not self.uninstalled)
    @rule()
    def uninstall(self) -> None:
        """Take the agent out."""
        self.uninstalled = True
        COUNTS["uninstall"] += 1
        mlx_autobind.uninstall()
        self.installed = False

    @precondition(lambda self: not self.installed)
    @rule()
    def install(self) -> None:
        """Put it back."""
        COUNTS["install"] += 1
        mlx_autobind.install()
        self.installed = True

    @precondition(lambda self: not self.installed)
    @rule(prompt=_prompt)
    def generate_without(self, prompt: int) -> None:
        """Generate without the agent, on the thread that imported the library."""
        COUNTS["generate without the agent"] += 1
        expect(self.work.text(prompt), self.work.right["texts"][prompt])

    def teardown(self) -> None:
        """End the workers, with the agent there."""
        mlx_autobind.install()
        for worker in self.workers:
            worker.end()


def check(work: Work, number: int | None, examples: int, *, shrink: bool = True) -> None:
    """Run the machine; raise what it finds. `number` is the seed, None always the same."""

    class Checked(Machine):
        pass

    Checked.work = work
    factory: Any = Checked if number is None else seed(number)(Checked)
    run_state_machine_as_test(
        factory,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize=number is None,
            database=None,
            deadline=None,
            phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def run(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """Run it for ``minutes`` or, if that is 0, once with ``examples``."""
    failures = []
    number = options["seed"]
    until = time.monotonic() + 60 * options["minutes"]
    try:
        if not options["minutes"]:
            check(work, None, options["examples"], shrink=options["shrink"])
        while time.monotonic() < until:
            check(work, number, EXAMPLES)
            number += 1
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        failures.append(f"seed {number}: {type(error).__name__}: {error}\n{notes}")
    return {"operations": dict(sorted(COUNTS.items())), "failures": failures}
