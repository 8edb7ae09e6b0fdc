"""What realising costs, as a share of loading a model."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Block, Blocks, Child, Row, interleave, rows
from tests.benchmarks.scale import Scale

TITLE = "Loading"
TEXT = """\
`load_model` of a tiny checkpoint with everything in it evaluated after it, as the agent does, and
without; and the same for a module of a thousand arrays that are evaluated already, beside
`mx.eval` of its parameters."""

LOAD, REALISED = "`load_model`", "`load_model`, realised"
EVAL, REALISE = "`mx.eval` of 1,000 arrays", "realise a module of 1,000 arrays"


def blocks(checkpoint: str) -> Blocks:
    """Return the blocks."""
    import mlx.core as mx
    import mlx_lm
    from mlx.nn.layers.containers import Sequential
    from mlx.nn.layers.linear import Linear

    from mlx_autobind.arrays import realise

    untyped: Any = Sequential  # mlx.nn has no types
    layers = untyped(*(Linear(8, 8) for _ in range(500)))
    mx.eval(layers.parameters())

    def load() -> Any:
        return mlx_lm.utils.load_model(Path(checkpoint))[0]

    return {
        LOAD: Block(lambda: load() and None),
        REALISED: Block(lambda: realise(load())),
        EVAL: Block(lambda: mx.eval(layers.parameters())),
        REALISE: Block(lambda: realise(layers)),
    }


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    from mlx_autobind.cli import checkpoint

    with tempfile.TemporaryDirectory() as folder:
        tiny = checkpoint.make(Path(folder) / "tiny")
        with Child("tests.benchmarks.loading:blocks", tiny) as child:
            takes = {name: child.take(name) for name in child.names}
            found = interleave(takes, scale.rounds(60))
    yield from rows({name: found[name] for name in (LOAD, REALISED)}, LOAD)
    yield from rows({name: found[name] for name in (EVAL, REALISE)}, EVAL)
