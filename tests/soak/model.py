"""What the threads of the soak do, as a function of the seed alone.

Each of `SLOTS` slots is one thread after another: a thread dies, and the next one of its slot goes
on with the operations of that slot. What a slot does is decided by the seed and its number; so is
what it hands over, to which slot, and what that slot is to do with it. Only when that comes is up
to the scheduler of the system.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterator

SLOTS = 64

# More failures of one child say nothing that these do not.
MOST_FAILURES = 20

# Prompts are token ids: the tokenizers of transformers must not encode on two threads at once.
PROMPTS = [[3 + at, 10 + at, 3 + 2 * at, 5] for at in range(6)]
LENGTH = 6

# After how many tokens an answer is abandoned before its cache is used again; 0 is at its end.
STOPS = (0, 2, 4)

# How often each kind of operation is done. Threads that die and streams that are cleared are rare
# since mlx never ends the native thread of a stream.
WEIGHTS = {
    "generate": 12,
    "stream": 20,
    "abandon": 14,
    "abandon in a circle": 6,
    "sample": 8,
    "close elsewhere": 8,
    "finish elsewhere": 10,
    "cache here": 6,
    "cache elsewhere": 8,
    "batch": 4,
    "batch elsewhere": 4,
    "clear": 2,
    "die": 3,
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One thing that a slot does.

    Attributes:
        kind: one of `WEIGHTS`.
        prompt: which of `PROMPTS`.
        second: the prompt after that, or beside it.
        stop: after how many tokens it is interrupted.
        to: the slot that something is handed over to.
    """

    kind: str
    prompt: int
    second: int
    stop: int
    to: int


def operations(seed: int, slot: int, slots: int = SLOTS) -> Iterator[Operation]:
    """Yield what `slot` does, for ever."""
    drawn = random.Random(f"{seed}:{slot}")  # noqa: S311 - a schedule, not a secret
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        yield Operation(
            kind=drawn.choices(kinds, weights)[0],
            prompt=drawn.randrange(len(PROMPTS)),
            second=drawn.randrange(len(PROMPTS)),
            stop=drawn.choice(STOPS),
            to=(slot + drawn.randrange(1, slots)) % slots if slots > 1 else slot,
        )


def first(seed: int, slot: int, count: int) -> list[Operation]:
    """Return the first `count` operations of `slot`."""
    return list(itertools.islice(operations(seed, slot), count))


def short_prompt(seed: int, thread: int) -> int:
    """Return which prompt the short-lived thread number `thread` has."""
    return random.Random(f"{seed}:short:{thread}").randrange(len(PROMPTS))  # noqa: S311
