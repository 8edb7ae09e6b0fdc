"""What the agent costs a whole generation, and one that goes on beside others."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.binds import NONE, SDK, SLOW_BATCH, set_up
from tests.benchmarks.measure import (
    Block,
    Blocks,
    Budget,
    Child,
    Row,
    across,
    cannot_count,
    closed,
    joined,
    rows,
)
from tests.benchmarks.pool import Pool
from tests.benchmarks.scale import Scale

TITLE = "Whole generations"
TEXT = """\
A Llama of two layers of 64 with random weights, whose token takes about a millisecond: a
thousandth of what the models take that people use, so that the share of the agent is the largest
there can be. One interpreter without the agent and one for each way of running it, in turn; new
ones several times over, since two interpreters with the same program differ by chance. How much
they do is the row *without it once more*: nothing smaller can be seen in seconds. Instructions are
of all threads."""

TOKENS = 40
# On this many threads at once, this many tokens.
THREADS = {8: 10, 64: 2}
PROMPT = "w3 w10 w6 w5"
BUDGET = Budget(1.01)

GENERATE, STREAM, BATCH = "`generate`", "`stream_generate`", "`BatchGenerator`"
THREADED = {count: f"`stream_generate` on {count} threads at once" for count in THREADS}

OFF, AGAIN = "without the agent", "without it once more"
THREAD, OWNER, SHARED = "mode `thread`", "mode `owner`", "mode `shared`"
WITH_SDK, SPANS = "mode `thread`, an SDK", "mode `thread`, a span for each generation"
SLOW = "mode `thread`, a span for each generation, slow exporter"


def _agent(mode: str, **settings: str) -> dict[str, str]:
    return {"MLX_AUTOBIND": "on", "MLX_AUTOBIND_MODE": mode, **settings}


# How each child runs: its variables, and its SDK.
RUNS = {
    OFF: ({}, NONE),
    AGAIN: ({}, NONE),
    THREAD: (_agent("thread"), NONE),
    WITH_SDK: (_agent("thread"), SDK),
    SPANS: (_agent("thread", MLX_AUTOBIND_GENERATIONS="1"), SDK),
    SLOW: (_agent("thread", MLX_AUTOBIND_GENERATIONS="1"), SLOW_BATCH),
    SHARED: (_agent("shared"), NONE),
    OWNER: (_agent("owner"), NONE),
}


def blocks(checkpoint: str, setup: str) -> Blocks:
    """Return the blocks, with an SDK set up as `setup` says."""
    import mlx_lm
    from mlx_lm.generate import BatchGenerator

    set_up(setup)
    model, tokenizer = mlx_lm.load(checkpoint)[:2]
    encoded = [tokenizer.encode(PROMPT) for _ in range(4)]

    def generate() -> None:
        mlx_lm.generate(model, tokenizer, PROMPT, max_tokens=TOKENS)

    def stream_generate(tokens: int = TOKENS) -> None:
        for _ in mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=tokens):
            pass

    def batch() -> None:
        made: Any = BatchGenerator(model, max_tokens=TOKENS)
        made.insert(encoded)
        while made.next_generated():
            pass
        made.close()

    def on_threads(count: int) -> Callable[[], None]:
        pool = Pool(count)
        return lambda: pool.run(lambda: stream_generate(THREADS[count]))

    return {
        GENERATE: Block(generate),
        STREAM: Block(stream_generate),
        BATCH: Block(batch),
        **{name: Block(_Late(on_threads, count)) for count, name in THREADED.items()},
    }


class _Late:
    """Makes what it runs when it is run first: most children never do."""

    def __init__(self, make: Callable[[int], Callable[[], None]], count: int) -> None:
        self._make = make
        self._count = count
        self._run: Callable[[], None] | None = None

    def __call__(self) -> None:
        self._run = self._run or self._make(self._count)
        self._run()


def _named(found: dict[str, list[float]], name: str) -> dict[str, list[float]]:
    return {f"{name}, {label}": values for label, values in found.items()}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    from mlx_autobind.cli import checkpoint

    with tempfile.TemporaryDirectory() as folder:
        tiny = str(checkpoint.make(Path(folder) / "tiny"))

        def children(*labels: str, counted: bool = False) -> dict[str, Child]:
            stage = "tests.benchmarks.generations:blocks"
            return {
                label: Child(stage, tiny, setup, env=env, counted=counted)
                for label, (env, setup) in RUNS.items()
                if label in labels
            }

        found: dict[str, list[dict[str, list[float]]]] = {}
        for _ in range(scale.processes(4)):
            started = children(OFF, AGAIN, THREAD)
            try:
                for name in (GENERATE, STREAM, BATCH):
                    took = across(started, name, scale.rounds(15))
                    found.setdefault(name, []).append(took)
                for name in THREADED.values():
                    took = across(started, name, scale.rounds(4))
                    found.setdefault(name, []).append(took)
            finally:
                closed(started.values())
        for name, parts in found.items():
            budgets = {f"{name}, {THREAD}": BUDGET}
            took = _named(joined(parts), name)
            control = f"{name}, {AGAIN}"
            yield from rows(took, f"{name}, {OFF}", budgets, control=control)
        if cannot_count() is None:
            started = children(OFF, THREAD, counted=True)
            try:
                for name in (GENERATE, STREAM, BATCH):
                    took = _named(across(started, name, scale.rounds(10)), name)
                    budgets = {f"{name}, {THREAD}": BUDGET}
                    yield from rows(took, f"{name}, {OFF}", budgets, unit="instructions")
            finally:
                closed(started.values())
        started = children(OFF, WITH_SDK, SPANS, SLOW, SHARED, OWNER)
        try:
            took = across(started, STREAM, scale.rounds(40))
            yield from rows(_named(took, STREAM), f"{STREAM}, {OFF}")
        finally:
            closed(started.values())
