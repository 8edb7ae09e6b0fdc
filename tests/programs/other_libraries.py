"""What crosses threads with other MLX libraries, each compared with the work on one thread.

python other_libraries.py mlx_audio|mlx_embeddings|mlx_whisper FOLDER

Makes a tiny random-weight model in FOLDER and prints, for each crossing, "right", the
wrong result, or the error.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from threads import Comparison, elsewhere, here

from mlx_autobind.cli.checkpoint import VOCABULARY, write_tokenizer, write_weights

comparison = Comparison()
compare = comparison.compare
folder = Path(sys.argv[2])


def write(model: Any, config: dict[str, Any], file: str = "model.safetensors") -> None:
    """Write `config`, and random weights for `model`."""
    mx.random.seed(7)
    write_weights(folder / file, model)
    (folder / "config.json").write_text(json.dumps(config))


def mlx_audio() -> None:
    """Its copy of mlx-lm's generation, and the handle of its speech recognition."""
    import mlx_audio.stt.generate as recognition
    from mlx_audio.lm.generate import generate
    from mlx_audio.lm.load import load_lm
    from mlx_audio.lm.models import gemma3

    text = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "rope_global_base_freq": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_traditional": False,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    }
    config = {"model_type": "gemma3", "vocab_size": VOCABULARY, "text_config": text}
    write(gemma3.Model(gemma3.ModelArgs.from_dict(json.loads(json.dumps(config)))), config)
    write_tokenizer(folder)
    model, tokenizer = load_lm(str(folder))

    def answer(model: Any = model) -> str:
        found: str = generate(model, tokenizer, "w3 w10 w6", max_tokens=8)
        return found

    compare("generation on a worker", answer, partial(elsewhere, answer))
    compare(
        "loaded by a worker",
        answer,
        lambda: answer(elsewhere(partial(load_lm, str(folder)))[0]),
    )

    def on_the_handle() -> float:
        with mx.stream(recognition.generation_stream):
            total: Any = (mx.ones((3,)) + 1).sum().item()
            return float(total)

    compare("the handle on a worker", on_the_handle, partial(elsewhere, on_the_handle))


def mlx_embeddings() -> None:
    """Embeddings of one thread, read on another."""
    import mlx_embeddings.utils as library
    from mlx_embeddings.models import bert

    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "vocab_size": VOCABULARY,
    }
    write(bert.Model(bert.ModelArgs.from_dict(config)), config)
    write_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<unk>"}))
    model, tokenizer = library.load(str(folder))

    def embed(run: Any, model: Any = model) -> list[float]:
        output = run(partial(library.generate, model, tokenizer, ["w3 w10", "w6 w5"]))
        numbers: list[float] = (output.text_embeds * 1.0).flatten().tolist()
        return numbers

    right = partial(embed, here)
    compare("embeddings of a worker", right, partial(embed, elsewhere))
    compare(
        "loaded by a worker",
        right,
        lambda: embed(here, elsewhere(partial(library.load, str(folder)))[0]),
    )


def mlx_whisper() -> None:
    """A transcription on another thread, and with a model of another thread."""
    import mlx_whisper as library
    import mlx_whisper.audio
    import mlx_whisper.decoding
    from mlx_whisper import load_models, whisper

    config = {
        "n_mels": 80,
        "n_audio_ctx": 1500,
        "n_audio_state": 16,
        "n_audio_head": 2,
        "n_audio_layer": 1,
        "n_vocab": 51865,
        "n_text_ctx": 64,
        "n_text_state": 16,
        "n_text_head": 2,
        "n_text_layer": 1,
    }
    write(whisper.Whisper(whisper.ModelDimensions(**config)), config, "weights.safetensors")
    sound = mx.array(np.sin(np.arange(16000) / 7).astype(np.float32))
    options = mlx_whisper.decoding.DecodingOptions(language="en", fp16=False, sample_len=8)

    def decode(load: Any = here, listen: Any = here) -> list[int]:
        model = load(partial(load_models.load_model, str(folder)))
        heard = listen(
            lambda: mlx_whisper.audio.log_mel_spectrogram(
                mlx_whisper.audio.pad_or_trim(sound, mlx_whisper.audio.N_SAMPLES)
            )
        )
        tokens: list[int] = mlx_whisper.decoding.decode(model, heard, options).tokens
        return tokens

    compare("decoded on a worker", decode, partial(elsewhere, decode))
    compare("loaded by a worker", decode, partial(decode, elsewhere))
    compare("heard by a worker", decode, partial(decode, here, elsewhere))

    def transcribe() -> str:
        result: Any = library.transcribe(
            sound, path_or_hf_repo=str(folder), language="en", fp16=False, sample_len=8
        )
        return str(result["text"])

    compare("transcribed on a worker, then on main", transcribe, partial(in_turn, transcribe))


def in_turn(work: Callable[[], Any]) -> Any:
    elsewhere(work)
    return work()


LIBRARIES = {
    "mlx_audio": mlx_audio,
    "mlx_embeddings": mlx_embeddings,
    "mlx_whisper": mlx_whisper,
}

if __name__ == "__main__":
    LIBRARIES[sys.argv[1]]()
    comparison.print()
