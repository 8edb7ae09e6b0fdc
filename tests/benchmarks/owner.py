"""What handing each step over to the owner thread costs, against the same work inline."""

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measure import Block, Blocks, Child, Row, interleave, row
from tests.benchmarks.scale import Scale

TITLE = "Mode `owner`"
TEXT = """\
A generation whose steps are handed over to the owner thread, against one that runs on that thread
altogether, for models whose tokens take longer and longer. What a step costs is a switch from one
thread to another and back, whatever the model."""

TOKENS = 40
# Width and layers.
SIZES = ((64, 2), (256, 4), (512, 8))


def _names(width: int, layers: int) -> tuple[str, str]:
    what = f"{TOKENS} tokens, {layers} layers of {width}"
    return f"handed over: {what}", f"inline: {what}"


def blocks(folder: str) -> Blocks:
    """Return the blocks, with checkpoints made in `folder`."""
    import mlx_lm

    from mlx_autobind.binding import Site
    from mlx_autobind.cli import checkpoint
    from mlx_autobind.owner import OWNER

    site = Site("tests.benchmarks.owner", {}, None, late=False)
    found = {}
    for width, layers in SIZES:
        config = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "intermediate_size": 2 * width,
            "eos_token_id": None,
        }
        made = checkpoint.make(Path(folder) / str(width), config)
        model, tokenizer = mlx_lm.load(str(made))[:2]
        generate = functools.partial(
            mlx_lm.generate, model, tokenizer, "w3 w10 w6 w5", max_tokens=TOKENS
        )
        handed, inline = _names(width, layers)
        found[handed] = Block(functools.partial(_nothing, generate))
        found[inline] = Block(
            functools.partial(OWNER.call, site, functools.partial(_nothing, generate))
        )
    return found


def _nothing(call: functools.partial[str]) -> None:
    call()


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    env = {"MLX_AUTOBIND": "on", "MLX_AUTOBIND_MODE": "owner"}
    with (
        tempfile.TemporaryDirectory() as folder,
        Child("tests.benchmarks.owner:blocks", folder, env=env) as child,
    ):
        found = interleave({name: child.take(name) for name in child.names}, scale.rounds(20))
    for size in SIZES:
        yield row(found, *_names(*size))
