"""What realising costs a model that is evaluated already, as a share of loading it.

    python tests/benchmarks/realise.py [RUNS]

Loads a tiny checkpoint with and without `realise` after it, in pairs, and times `realise`
alone on a module with a thousand arrays.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["MLX_AUTOBIND"] = "off"

import mlx.core as mx
import mlx_lm
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.linear import Linear

from mlx_autobind.arrays import realise
from mlx_autobind.cli import checkpoint

# mlx.nn has no types.
untyped: Any = Sequential


def seconds(folder: str, *, realised: bool) -> float:
    began = time.perf_counter()
    model = mlx_lm.utils.load_model(Path(folder))[0]
    if realised:
        realise(model)
    return time.perf_counter() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.make(Path(folder) / "tiny")
        tiny = f"{folder}/tiny"
        seconds(tiny, realised=True)
        ratios = [seconds(tiny, realised=True) / seconds(tiny, realised=False) for _ in range(runs)]
    print(f"load_model and realise over load_model, {runs} pairs: {statistics.median(ratios):.3f}x")
    layers: Any = untyped(*(Linear(8, 8) for _ in range(500)))
    mx.eval(layers.parameters())
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        realise(layers)
        times.append(time.perf_counter() - began)
    print(f"realise, 1,000 evaluated arrays: {statistics.median(times) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
