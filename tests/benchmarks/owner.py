"""What handing each step over to the owner thread costs, against the same work inline.

Prints, for models whose tokens take longer and longer, the time of a token and the ratio of
a generation that is handed over to one that runs on the owner thread itself, as pairs in
turn in one process.
"""

import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx_autobind

mlx_autobind.install(mode="owner")
import mlx_lm

from mlx_autobind.binding import Site
from mlx_autobind.cli import checkpoint
from mlx_autobind.owner import OWNER

ROUNDS = 15
TOKENS = 100
SIZES = {
    "64 wide, 2 layers": (64, 2),
    "256 wide, 4 layers": (256, 4),
    "512 wide, 8 layers": (512, 8),
}


def generate(model: Any, tokenizer: Any) -> float:
    """Return the seconds that a generation takes."""
    began = time.perf_counter()
    for _ in mlx_lm.stream_generate(model, tokenizer, "w3 w10 w6 w5", max_tokens=TOKENS):
        pass
    return time.perf_counter() - began


def main() -> None:
    site = Site("tests.benchmarks.owner", {}, None, late=False)
    for name, (width, layers) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            config = {
                "hidden_size": width,
                "num_hidden_layers": layers,
                "intermediate_size": 2 * width,
                "eos_token_id": None,
            }
            model, tokenizer = mlx_lm.load(str(checkpoint.make(Path(folder) / "model", config)))[:2]
        generate(model, tokenizer)
        pairs = []
        for _ in range(ROUNDS):
            handed = generate(model, tokenizer)
            inline = OWNER.call(site, functools.partial(generate, model, tokenizer))
            pairs.append((handed, inline))
        ratios = sorted(handed / inline for handed, inline in pairs)
        token = statistics.median(inline for _, inline in pairs) / TOKENS * 1e3
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name}: a token takes {token:.2f} ms inline; "
            f"handed over {middle:.3f}x (quartiles {low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
