"""What a call and an item of a generator cost on a thread that has its stream."""

import collections
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from tests.benchmarks.measure import (
    Block,
    Blocks,
    Budget,
    Child,
    Row,
    cannot_count,
    interleave,
    row,
)
from tests.benchmarks.scale import Scale

TITLE = "A call, and an item of a generator"
TEXT = """\
A function of one line and a generator of one line, on a thread that is bound. The floor is a
closure of one fixed argument that looks at one thread-local flag. The budget of a call is four
times that floor, which is where a `wrapt.FunctionWrapper` would be; the aim is twice. The loop
around the calls is in both sides of each pair. An item costs what it takes to see that the thread
that steps it is the one that stepped it before, and that the handle is still ours. It would cost
nothing only where no other thread can come, which a generator that has been given to the program
cannot know."""

CALLS = 10_000

BARE, FLOOR, WRAPT = "bare call", "floor of a call", "`wrapt.FunctionWrapper` and flag"
OURS = "entry point"
BATCH = "entry point of a batch, nothing handed back"
RESPONSE = "entry point of a batch, a response handed back"
DRAWS = "entry point that may draw random numbers"
ITEM, RELAYED, CLASS = "bare item", "item by `yield from`", "item by the `__next__` of a class"
PROXY, OURS_ITEM = "item by `wrapt.ObjectProxy` and flag", "item of an entry point"
SHARED_ITEM = "item of an entry point, mode `shared`"

CALL_BUDGET = Budget(4.0)
# Seconds over the bare generator's.
ITEM_BUDGET = Budget(100e-9, "difference")


def call(value: int) -> int:
    """Stand for an entry point."""
    return value


@dataclasses.dataclass
class Response:
    """Stands for what a step of a batch gives, a dataclass as the libraries' own."""

    prompt_cache: None = None


RESPONSES = [Response()]


def nothing(_value: int) -> None:
    """Stand for a step of a batch that finishes nothing."""


def response(_value: int) -> list[Response]:
    """Stand for a step of a batch."""
    return RESPONSES


def items(count: int) -> Generator[int, None, None]:
    """Stand for a generator function."""
    for at in range(count):  # noqa: UP028 - one frame, as the libraries have
        yield at


def _calls(function: Callable[[int], Any]) -> Block:
    def run() -> None:
        for _ in itertools.repeat(None, CALLS):
            function(1)

    return Block(run, CALLS)


def _items(function: Callable[[int], Any]) -> Block:
    def run() -> None:
        collections.deque(function(CALLS), maxlen=0)

    return Block(run, CALLS)


class _Flag(threading.local):
    bound: object | None = None


def blocks() -> Blocks:
    """Return the blocks, on a thread that is bound."""
    import wrapt

    from mlx_autobind import binding, modes, shared
    from mlx_autobind.binding import NO_HANDLES, Site
    from mlx_autobind.entries import GeneratorEntry, Mode, wrap_call

    site = Site("tests.benchmarks.calls", dict(NO_HANDLES), next(iter(NO_HANDLES)), late=False)
    binding.enter(site)
    flag = _Flag()
    flag.bound = object()

    def bind() -> None:
        raise AssertionError

    @functools.wraps(call)
    def floor(value: int) -> int:
        if flag.bound is None:
            bind()
        return call(value)

    @wrapt.decorator
    def decorated(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        if flag.bound is None:
            bind()
        return wrapped(*args, **kwargs)

    def relayed(count: int) -> Iterator[int]:
        return (yield from items(count))

    class Items:
        def __init__(self, count: int) -> None:
            self._next = items(count).__next__

        def __iter__(self) -> "Items":
            return self

        def __next__(self) -> int:
            if flag.bound is None:
                bind()
            return self._next()

    class Proxy(wrapt.ObjectProxy):  # type: ignore[type-arg]
        def __iter__(self) -> "Proxy":
            return self

        def __next__(self) -> Any:
            if flag.bound is None:
                bind()
            return next(self.__wrapped__)

    locking = Mode(modes.in_shared_mode, shared.lock_steps)
    return {
        BARE: _calls(call),
        FLOOR: _calls(floor),
        WRAPT: _calls(decorated(call)),
        OURS: _calls(wrap_call(call, site)),
        BATCH: _calls(wrap_call(nothing, site, hands_back=True)),
        RESPONSE: _calls(wrap_call(response, site, hands_back=True)),
        DRAWS: _calls(wrap_call(call, site, draws=True)),
        ITEM: _items(items),
        RELAYED: _items(relayed),
        CLASS: _items(Items),
        PROXY: _items(lambda count: Proxy(items(count))),
        OURS_ITEM: _items(GeneratorEntry(items, site)),
        SHARED_ITEM: _items(GeneratorEntry(items, site, None, locking)),
    }


# What is compared: what, against what, and its budget in seconds.
COMPARED = (
    (FLOOR, BARE, None),
    (WRAPT, FLOOR, None),
    (OURS, FLOOR, CALL_BUDGET),
    (OURS, WRAPT, None),
    (BATCH, FLOOR, CALL_BUDGET),
    (RESPONSE, FLOOR, None),
    (DRAWS, FLOOR, CALL_BUDGET),
    (RELAYED, ITEM, None),
    (CLASS, ITEM, None),
    (PROXY, ITEM, None),
    (OURS_ITEM, ITEM, ITEM_BUDGET),
    (SHARED_ITEM, ITEM, None),
)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    with Child("tests.benchmarks.calls:blocks", env={"MLX_AUTOBIND": "on"}) as child:
        takes = {name: child.take(name) for name in child.names}
        found = interleave(takes, scale.rounds(150))
    for what, against, budget in COMPARED:
        yield row(found, what, against, budget=budget)
    if cannot_count() is None:
        with Child(
            "tests.benchmarks.calls:blocks", env={"MLX_AUTOBIND": "on"}, counted=True
        ) as child:
            takes = {name: child.take(name) for name in child.names}
            found = interleave(takes, scale.rounds(6))
        for what, against, _ in COMPARED:
            yield row(found, what, against, unit="instructions")
