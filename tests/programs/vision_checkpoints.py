"""Tiny vision models with random weights, made with the real libraries and no network.

python vision_checkpoints.py FOLDER

Makes FOLDER/stateful, a Qwen2-VL, which keeps the position of a generation on the model
object, and FOLDER/stateless, a PaliGemma, which keeps nothing. Each is about 400 kB.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.utils import get_model_and_args, update_module_configs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 160
UNKNOWN = "<unk>"
IMAGE, VIDEO, VISION_START, VISION_END = range(151, 155)
HALVES = [0.5, 0.5, 0.5]

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
}

STATEFUL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    **TEXT,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "vision_token_id": VISION_END + 1,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "vision_config": {
        "model_type": "qwen2_vl",
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "mlp_ratio": 2,
        "in_channels": 3,
        "in_chans": 3,
        "spatial_patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}

STATELESS: dict[str, Any] = {
    "model_type": "paligemma",
    "hidden_size": 64,
    "vocab_size": VOCABULARY,
    "image_token_index": IMAGE,
    "projection_dim": 64,
    "pad_token_id": 2,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "text_config": {**TEXT, "model_type": "gemma", "head_dim": 16, "num_image_tokens": 4},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": 28,
        "projection_dim": 64,
        "num_image_tokens": 4,
    },
}

PROCESSORS: dict[str, dict[str, Any]] = {
    "stateful": {
        "processor_class": "Qwen2VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 28 * 28,
        "max_pixels": 56 * 56,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56},
        "image_mean": HALVES,
        "image_std": HALVES,
    },
    "stateless": {
        "processor_class": "PaliGemmaProcessor",
        "image_processor_type": "SiglipImageProcessor",
        "image_seq_length": 4,
        "size": {"height": 28, "width": 28},
        "image_mean": HALVES,
        "image_std": HALVES,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": 3,
    },
}

SPECIAL: dict[str, dict[int, str]] = {
    "stateful": {
        IMAGE: "<|image_pad|>",
        VIDEO: "<|video_pad|>",
        VISION_START: "<|vision_start|>",
        VISION_END: "<|vision_end|>",
    },
    "stateless": {IMAGE: "<image>"},
}

# What a vision server's `apply_chat_template` is given: text, or parts of text and images.
CHAT_TEMPLATE = (
    "{{% for message in messages %}}"
    "{{% if message['content'] is string %}}{{{{ message['content'] }}}} "
    "{{% else %}}{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'text' %}}{{{{ part['text'] or part['content'] }}}} "
    "{{% else %}}{image} {{% endif %}}"
    "{{% endfor %}}{{% endif %}}{{% endfor %}}"
)
IMAGES = {"stateful": "<|vision_start|><|image_pad|><|vision_end|>", "stateless": "<image>"}


def make(folder: Path, kind: str, config: dict[str, Any]) -> None:
    """Write a checkpoint that ``mlx_vlm.load`` reads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_model(folder, config)
    write_tokenizer(folder, kind)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[kind]))
    processor = {"processor_class": PROCESSORS[kind]["processor_class"], "image_seq_length": 4}
    (folder / "processor_config.json").write_text(json.dumps(processor))


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write random weights for the model that `config` describes."""
    # Here, since programs that are to run without the agent import this module.
    from mlx_autobind.cli.checkpoint import write_weights

    given: dict[str, Any] = json.loads(json.dumps(config))
    architecture = get_model_and_args(given)[0]
    for part in ("text_config", "vision_config", "audio_config"):
        given.setdefault(part, {})
    arguments: Any = architecture.ModelConfig.from_dict(given)
    parts = ["text", "vision", "perceiver", "projector", "audio"]
    arguments = update_module_configs(arguments, architecture, given, parts)
    mx.random.seed(7)
    write_weights(folder / "model.safetensors", architecture.Model(arguments))


def write_tokenizer(folder: Path, kind: str) -> None:
    """Write a tokenizer of words, with the tokens that stand for an image."""
    words = ["<s>", "</s>", "<unk>", *(f"w{at}" for at in range(VOCABULARY - 3))]
    for at, token in SPECIAL[kind].items():
        words[at] = token
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # With any other decoder mlx-vlm 0.5.0 fails to copy its detokenizer.
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<unk>", *SPECIAL[kind].values()]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "processor_class": PROCESSORS[kind]["processor_class"],
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "pad_token": "<unk>",
                "chat_template": CHAT_TEMPLATE.format(image=IMAGES[kind]),
                "clean_up_tokenization_spaces": False,
            }
        )
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]) / "stateful", "stateful", STATEFUL)
    make(Path(sys.argv[1]) / "stateless", "stateless", STATELESS)
