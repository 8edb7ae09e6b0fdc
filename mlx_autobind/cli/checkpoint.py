"""A tiny checkpoint with random weights, made with the real libraries and no network."""

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 96

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w1{% endif %}"
)

# Two layers of 64: a token takes a millisecond on one CPU core, and both attention and
# the compiled activation run.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
}


def make(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint that ``mlx_lm.load`` reads, and return `folder`.

    Args:
        folder: is created; about 400 kB.
        config: what differs from a two-layer Llama, as in a ``config.json``.

    Raises:
        ImportError: mlx-lm is not installed (the extra ``demo`` brings it).
    """
    import mlx.core as mx
    from mlx_lm.utils import _get_classes

    merged = {**LLAMA, **(config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(merged))
    model_class, arguments_class = _get_classes(merged)
    mx.random.seed(7)
    write_weights(folder / "model.safetensors", model_class(arguments_class.from_dict(merged)))
    write_tokenizer(folder)
    return folder


def write_weights(file: Path, model: Any) -> None:
    """Write random weights for `model`, drawn from the calling thread's random state.

    Larger than the usual initialisation, so that the next token depends on every step
    before it and a mistake anywhere shows in the tokens.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    parameters: Any = tree_flatten(model.parameters())
    weights = {
        name: mx.random.normal(value.shape) * 0.3 if value.ndim > 1 else value
        for name, value in parameters
    }
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of `VOCABULARY` words to `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<s>", "</s>", "<unk>", *(f"w{at}" for at in range(VOCABULARY - 3))]
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "chat_template": CHAT_TEMPLATE,
                "clean_up_tokenization_spaces": False,
            }
        )
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
