"""For the programs of the tests: load a vision model, show it pictures, see what it says."""

import json
from pathlib import Path
from typing import Any

import mlx_vlm
import mlx_vlm.utils
from PIL import Image
from vision_checkpoints import IMAGES

MAX_TOKENS = 12


def picture(seed: int) -> Image.Image:
    """Return a picture of 56 x 56 that no other seed gives."""
    image = Image.new("RGB", (56, 56))
    dots = [((at * 7 + seed * 31) % 256, (at * 3 + seed) % 256, at**2 % 256) for at in range(3136)]
    image.putdata(dots)
    return image


def load(folder: Path) -> tuple[Any, Any]:
    """Return model and processor, as ``mlx_vlm.load`` does."""
    if kind_of(folder) == "stateful" and not hasattr(mlx_vlm.utils, "load_video"):
        return mlx_vlm.utils.load_model(folder), _processor_without_video(folder)
    model, processor = mlx_vlm.load(str(folder))[:2]
    return model, processor


def kind_of(folder: Path) -> str:
    """Return "stateful" or "stateless"."""
    return folder.name


def _processor_without_video(folder: Path) -> Any:
    """Return the Qwen2-VL processor of a release that cannot load it without torchvision.

    Up to mlx-vlm 0.4.x loading it means transformers' video processor, which needs torch.
    For pictures all its parts are there without: they are put together by hand.
    """
    import transformers
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as images

    try:
        from mlx_vlm.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
    except ImportError:  # mlx-vlm 0.3.x uses the one of transformers
        from transformers import Qwen2VLProcessor

    class Processor(Qwen2VLProcessor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: object) -> type:
            return type(argument)

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    image_processor: Any = images.Qwen2VLImageProcessorPil.from_pretrained(folder)
    processor: Any = Processor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=None,
        chat_template=tokenizer.chat_template,
    )
    detokenizer: Any = mlx_vlm.utils.load_tokenizer(folder, return_tokenizer=False)
    processor.detokenizer = detokenizer(tokenizer)
    criteria = mlx_vlm.utils.StoppingCriteria
    tokenizer.stopping_criteria = criteria([tokenizer.eos_token_id], tokenizer)
    return processor


class Seer:
    """A loaded vision model."""

    def __init__(self, folder: Path) -> None:
        self.kind = kind_of(folder)
        self.model, self.processor = load(folder)

    def prompt(self, seed: int) -> str:
        """Return a prompt for `seed`: about a picture if it is even."""
        text = f"w{seed + 5} w{2 * seed + 9} w{seed * seed % 90 + 11}"
        return f"{IMAGES[self.kind]} {text}" if seed % 2 == 0 else text

    def images(self, seed: int) -> list[Image.Image] | None:
        """Return the pictures that the prompt of `seed` is about."""
        return [picture(seed)] if seed % 2 == 0 else None

    def begin(self, seed: int, **options: Any) -> Any:
        """Return a generator of responses to the prompt of `seed`."""
        return mlx_vlm.stream_generate(
            self.model,
            self.processor,
            self.prompt(seed),
            image=self.images(seed),
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            **options,
        )

    def see(self, seed: int, **options: Any) -> list[Any]:
        """Return the tokens, and the text, of the answer to the prompt of `seed`."""
        responses = list(self.begin(seed, **options))
        return [
            [response.token for response in responses],
            "".join(response.text for response in responses),
        ]

    def prepare(self, seed: int) -> dict[str, Any]:
        """Return the inputs of the prompt of `seed` as arrays, for `see_prepared`."""
        inputs: Any = mlx_vlm.utils.prepare_inputs(
            self.processor,
            images=self.images(seed),
            prompts=self.prompt(seed),
            image_token_index=getattr(self.model.config, "image_token_index", None),
            add_special_tokens=True,
        )
        arrays = dict(inputs)
        arrays["mask"] = arrays.pop("attention_mask", None)
        return arrays

    def see_prepared(self, arrays: dict[str, Any]) -> list[int]:
        """Return the tokens of the answer to inputs that are arrays already."""
        responses = mlx_vlm.stream_generate(
            self.model, self.processor, "", max_tokens=MAX_TOKENS, temperature=0.0, **arrays
        )
        return [response.token for response in responses]


def print_last(value: Any) -> None:
    """Print `value` as the last line."""
    print(json.dumps(value), flush=True)
