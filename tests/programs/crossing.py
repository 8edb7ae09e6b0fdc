"""Everything that crosses threads, each compared with the same work on one thread.

Prints, for each crossing, "right", the wrong result, or the error.
"""

import contextlib
import gc
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from asking import PROMPTS
from batches import batched
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache
from threads import Comparison, Runner, elsewhere, here, on_thread

checkpoint = sys.argv[1]
model, tokenizer = mlx_lm.load(checkpoint)[:2]
comparison = Comparison()
compare = comparison.compare


def tokens(prompt: str, on: Any = None, stop_after: int | None = None, **options: Any) -> list[int]:
    """Return the tokens of one generation, ended early after `stop_after` of them."""
    found = []
    generator = mlx_lm.stream_generate(on or model, tokenizer, prompt, max_tokens=12, **options)
    for response in generator:
        found.append(response.token)
        if len(found) == stop_after:
            break
    generator.close()
    return found


def plain() -> list[int]:
    return tokens(PROMPTS[0])


compare(
    "S4 load on a worker, generate on main",
    plain,
    lambda: tokens(PROMPTS[0], elsewhere(lambda: mlx_lm.load(checkpoint)[0])),
)


compare(
    "S5 left lazy by a worker, generated with on main",
    plain,
    lambda: tokens(PROMPTS[0], elsewhere(lambda: mlx_lm.load(checkpoint, lazy=True)[0])),
)


def loaded_and_asked_on_two_workers() -> list[int]:
    loaded = elsewhere(lambda: mlx_lm.load(checkpoint)[0])
    answer: list[int] = elsewhere(lambda: tokens(PROMPTS[0], loaded))
    return answer


compare("S4 load on a worker, generate on another", plain, loaded_and_asked_on_two_workers)


def turns(run: Runner, stop_after: int | None, **options: Any) -> Any:
    """Return three turns with one prompt cache, each run by `run`."""
    cache = make_prompt_cache(model)
    return [
        run(partial(tokens, prompt, None, stop_after, prompt_cache=cache, **options))
        for prompt in PROMPTS[:3]
    ]


QUANTISED = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 0}
for name, stop_after in (("finished", None), ("interrupted", 4)):
    # mlx-lm cannot quantise the rotating cache of a sliding window.
    for kind, options in (
        ("", {}),
        ("quantised ", QUANTISED if "sliding" not in checkpoint else {}),
    ):
        compare(
            f"S6 a {kind}cache from turn to turn, {name}",
            partial(turns, here, stop_after, **options),
            partial(turns, elsewhere, stop_after, **options),
        )

folder = Path(tempfile.mkdtemp())


def saved(run: Runner, name: str) -> str:
    """Return a file with the cache of a turn that `run` ran."""
    cache = make_prompt_cache(model)
    run(lambda: tokens(PROMPTS[1], prompt_cache=cache))
    save_prompt_cache(str(folder / name), cache)
    return str(folder / name)


def continued(run: Runner, file: str) -> list[int]:
    """Return a turn on main with the cache that `run` loaded."""
    return tokens(PROMPTS[2], prompt_cache=run(partial(load_prompt_cache, file)))


file = saved(here, "main.safetensors")
compare(
    "S7 cache file loaded on a worker",
    lambda: continued(here, file),
    lambda: continued(elsewhere, file),
)
compare(
    "S7 cache saved by main after a worker's turn",
    lambda: continued(here, file),
    lambda: continued(here, saved(elsewhere, "worker.safetensors")),
)


def alternating() -> list[int]:
    """Return the tokens of two generators, each stepped by main and by workers in turn."""
    generators = [
        mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=12) for prompt in PROMPTS[:2]
    ]
    found: list[list[int]] = [[], []]
    for at in range(12):
        for generator, answer in zip(generators, found, strict=True):
            take = elsewhere if at % 2 else here
            response = take(partial(next, generator, None))
            if response is not None:
                answer.append(response.token)
    return found[0] + found[1]


compare(
    "S8 generators stepped by changing threads",
    lambda: tokens(PROMPTS[0]) + tokens(PROMPTS[1]),
    alternating,
)


def begun() -> Any:
    generator = mlx_lm.stream_generate(model, tokenizer, PROMPTS[0], max_tokens=12)
    next(generator)
    return generator


def ended_elsewhere() -> list[Any]:
    """Close, collect and throw on main what workers began, and look at the streams after."""
    before = repr(mx.default_stream(mx.default_device()))
    elsewhere(begun).close()
    generator = elsewhere(begun)
    del generator
    gc.collect()
    generator = elsewhere(begun)
    with contextlib.suppress(KeyError):
        generator.throw(KeyError("thrown"))
    after = repr(mx.default_stream(mx.default_device()))

    def in_one_thread() -> bool:
        generator = begun()
        own = repr(mx.default_stream(mx.default_device()))
        on_thread(generator.close)
        return repr(mx.default_stream(mx.default_device())) == own

    return [before == after, elsewhere(in_one_thread), tokens(PROMPTS[0])]


compare(
    "S9 closed, collected and thrown into elsewhere",
    lambda: [True, True, tokens(PROMPTS[0])],
    ended_elsewhere,
)


def after_a_clear() -> list[list[int]]:
    """Return answers after the program itself has cleared the streams of each thread."""

    def cleared() -> list[int]:
        tokens(PROMPTS[1])
        if hasattr(mx, "clear_streams"):
            mx.clear_streams()
        return tokens(PROMPTS[0])

    return [elsewhere(cleared), cleared()]


def speculative() -> list[int]:
    return tokens(PROMPTS[0], draft_model=model, num_draft_tokens=2)


if "sliding" not in checkpoint:  # the rotating cache cannot be rewound
    compare("speculative decoding on a worker", speculative, lambda: elsewhere(speculative))


if hasattr(mlx_lm, "batch_generate") and "sliding" not in checkpoint:
    compare(
        "S10 a batch fed on a worker, stepped on main",
        partial(batched, model, tokenizer, PROMPTS[:3], here, [here]),
        partial(batched, model, tokenizer, PROMPTS[:3], elsewhere, [here]),
    )


def batch() -> list[str]:
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
    texts: list[str] = mlx_lm.batch_generate(model, tokenizer, ids, max_tokens=8).texts
    return texts


if hasattr(mlx_lm, "batch_generate"):
    compare("batch_generate on a worker", batch, lambda: elsewhere(batch))
# The last, since without the agent the main thread has no stream from then on.
compare("S15 after clear_streams", lambda: [tokens(PROMPTS[0])] * 2, after_a_clear)
comparison.print()
