"""What calls cost on many threads at once, each of which is bound."""

from collections.abc import Callable, Iterator

from tests.benchmarks.measure import Block, Blocks, Budget, Child, Row, interleave, row
from tests.benchmarks.pool import Pool
from tests.benchmarks.scale import Scale

TITLE = "Calls on many threads"
TEXT = """\
Each thread makes a thousand calls, with and without the wrapper, on its own stream. A call takes
one operation of MLX, as the least that an entry point does; the calls of one line do nothing at
all, and show by their difference that no thread waits for another in the wrapper: it is the same
number of nanoseconds a call on one thread and on 64."""

COUNTS = (1, 8, 64)
CALLS = 1_000
BUDGET = Budget(1.05)


# The same calls a second time: what they differ by cannot be told from nothing.
AGAIN = "once more"


def _name(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _names(count: int) -> dict[str, tuple[str, str]]:
    on = f"on {_name(count)}"
    return {
        "operation": (f"entry point, one operation, {on}", f"one operation, {on}"),
        "line": (f"entry point of one line, {on}", f"call of one line, {on}"),
    }


def blocks() -> Blocks:
    """Return the blocks: threads that are bound, by how many there are."""
    import mlx.core as mx

    from mlx_autobind import binding
    from mlx_autobind.binding import NO_HANDLES, Site
    from mlx_autobind.entries import wrap_call

    site = Site("tests.benchmarks.threads", dict(NO_HANDLES), next(iter(NO_HANDLES)), late=False)

    def operation() -> None:
        mx.eval(mx.zeros((8,)) + 1)

    def line() -> None:
        pass

    functions = {"operation": operation, "line": line}

    def block(pool: Pool, count: int, function: Callable[[], object]) -> Block:
        def repeat() -> None:
            for _ in range(CALLS):
                function()

        return Block(lambda: pool.run(repeat), CALLS * count)

    found = {}
    for count in COUNTS:
        pool = Pool(count)
        pool.run(lambda: binding.enter(site))
        for kind, (wrapped, bare) in _names(count).items():
            found[bare] = block(pool, count, functions[kind])
            found[f"{bare}, {AGAIN}"] = block(pool, count, functions[kind])
            found[wrapped] = block(pool, count, wrap_call(functions[kind], site))
    return found


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    with Child("tests.benchmarks.threads:blocks", env={"MLX_AUTOBIND": "on"}) as child:
        for count in COUNTS:
            names = [name for pair in _names(count).values() for name in pair]
            names += [f"{bare}, {AGAIN}" for _, bare in _names(count).values()]
            takes = {name: child.take(name) for name in names}
            # What the scheduler does with many threads differs most where there are few calls.
            found = interleave(takes, scale.rounds(12 if count == max(COUNTS) else 60))
            for kind, (wrapped, bare) in _names(count).items():
                again = f"{bare}, {AGAIN}"
                if kind == "operation":
                    yield row(found, again, bare)
                    yield row(found, wrapped, bare, budget=BUDGET, control=again)
                else:
                    yield row(found, wrapped, bare)
