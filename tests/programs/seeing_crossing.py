"""S16: what crosses threads with a vision model, each compared with the work on one thread.

python seeing_crossing.py CHECKPOINT

Prints, for each crossing, "right", the wrong result, or the error.
"""

import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_vlm
from seeing import Seer
from threads import Comparison, at_once, elsewhere, here

folder = Path(sys.argv[1])
seer = Seer(folder)
comparison = Comparison()
compare = comparison.compare
SEEDS = range(8)

for name, seed in (("a picture", 2), ("text", 3)):
    compare(
        f"{name} on a worker", partial(seer.see, seed), partial(elsewhere, partial(seer.see, seed))
    )


def in_turns(run: Any, seed: int = 2) -> list[Any]:
    """Return answers on a thread, on another one, and on main again."""
    return [run(partial(seer.see, seed)), run(partial(seer.see, seed + 1)), seer.see(seed)]


compare("main, workers, main again", partial(in_turns, here), partial(in_turns, elsewhere))


def whole() -> str:
    result: Any = mlx_vlm.generate(
        seer.model, seer.processor, seer.prompt(4), image=seer.images(4), max_tokens=8
    )
    return str(getattr(result, "text", result))


compare("generate() on a worker", whole, partial(elsewhere, whole))
compare(
    "loaded by a worker that has ended",
    partial(seer.see, 4),
    lambda: elsewhere(partial(Seer, folder)).see(4),
)


def prepared(run: Any, seed: int) -> list[int]:
    """Return the tokens of an answer to inputs that `run` prepared."""
    return seer.see_prepared(run(partial(seer.prepare, seed)))


for seed in (2, 3):
    compare(
        f"inputs prepared on a worker, generated on main ({'picture' if seed == 2 else 'text'})",
        partial(prepared, here, seed),
        partial(prepared, elsewhere, seed),
    )


def embeddings(run: Any) -> list[float]:
    """Return the embeddings of a picture and its prompt, computed by `run`, as numbers."""
    arrays = seer.prepare(2)
    embedded = run(partial(seer.model.get_input_embeddings, **arrays))
    numbers: list[float] = (embedded.inputs_embeds * 1.0).flatten().tolist()
    return numbers


# mlx-vlm 0.3.x takes and gives something else for each model.
if "kwargs" in inspect.signature(seer.model.get_input_embeddings).parameters:
    compare("embeddings of a worker", partial(embeddings, here), partial(embeddings, elsewhere))


def alternating(runners: tuple[Any, Any]) -> list[list[int]]:
    """Return the tokens of two generators, stepped in turns by the two runners."""
    generators = [seer.begin(2), seer.begin(3)]
    found: list[list[int]] = [[], []]
    for at in range(13):
        for generator, answer in zip(generators, found, strict=True):
            response = runners[at % 2](partial(next, generator, None))
            if response is not None:
                answer.append(response.token)
    return found


def one_by_one() -> list[list[int]]:
    return [seer.see(2)[0], seer.see(3)[0]]


compare("two generators in turns on one thread", one_by_one, lambda: alternating((here, here)))
compare(
    "two generators stepped by changing threads",
    one_by_one,
    lambda: alternating((here, elsewhere)),
)
compare(
    "eight at once on four threads",
    lambda: [seer.see(seed) for seed in SEEDS],
    lambda: at_once([partial(seer.see, seed) for seed in SEEDS]),
)


def kept_features(run: Any) -> list[Any]:
    """Return two answers about one picture whose features the first has kept."""
    from mlx_vlm.vision_cache import VisionFeatureCache

    cache = VisionFeatureCache()
    return [run(partial(seer.see, 2, vision_cache=cache)) for _ in range(2)]


if "mlx_vlm.vision_cache" in sys.modules:
    compare("vision feature cache", partial(kept_features, here), partial(kept_features, elsewhere))


def batch() -> list[str]:
    # Without pictures: their sizes decide how they are grouped, not which thread they are on.
    response: Any = mlx_vlm.batch_generate(
        seer.model, seer.processor, None, None, [seer.prompt(1), seer.prompt(3)], max_tokens=8
    )
    return list(response.texts)


if hasattr(mlx_vlm, "batch_generate") and seer.kind == "stateful":
    compare("batch_generate on a worker", batch, partial(elsewhere, batch))

mx.synchronize()
comparison.print()
