"""What one stream for each thread cannot cure, compared with the same work on one thread.

python limits.py CHECKPOINT

Prints, for each crossing, "right", the wrong result, or the error, explained or not.
"""

import sys
from functools import partial
from typing import Any

import mlx.core as mx
import mlx_lm
from asking import PROMPTS
from batches import batched
from threads import Comparison, elsewhere, here

model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
comparison = Comparison()


if hasattr(mlx_lm, "batch_generate"):
    batch = partial(batched, model, tokenizer, PROMPTS[:3], here)
    comparison.compare(
        "S10 a batch stepped by two threads in turn",
        partial(batch, [here]),
        partial(batch, [here, elsewhere]),
    )


def scaled(model: Any) -> Any:
    """Return `model` with its last weights doubled, and not evaluated."""
    head = model.lm_head
    head.weight = head.weight * 2
    return model


def answer(model: Any) -> list[int]:
    responses = mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=8)
    return [response.token for response in responses]


def loaded_and_scaled() -> Any:
    return scaled(mlx_lm.load(sys.argv[1])[0])


comparison.compare(
    "S21 weights that the program left lazy on a worker",
    lambda: answer(loaded_and_scaled()),
    lambda: answer(elsewhere(loaded_and_scaled)),
)
mx.synchronize()
comparison.print()
