"""For the programs of the tests: load a model, ask it, print what came out."""

import json
import sys
from collections.abc import Callable
from typing import Any

import mlx_lm
from threads import on_thread

__all__ = ["PROMPTS", "Asker", "on_thread"]

PROMPTS = [f"w{at} w{at + 7} w{2 * at} w5" for at in range(3, 19)]


class Asker:
    """A loaded model, and its answers by step: the prompt with the tokens or the error."""

    def __init__(self, checkpoint: str = "") -> None:
        self.model, self.tokenizer = mlx_lm.load(checkpoint or sys.argv[1])[:2]
        self.steps: dict[str, dict[str, Any]] = {}

    def ask(
        self, step: str, prompt: str, stream_generate: Callable[..., Any] | None = None
    ) -> None:
        """Generate with `stream_generate`, mlx-lm's if none is given."""
        generate = stream_generate or mlx_lm.stream_generate
        self.steps[step] = {"prompt": prompt}
        try:
            answer = generate(self.model, self.tokenizer, prompt, max_tokens=16)
            self.steps[step]["tokens"] = [response.token for response in answer]
        except Exception as error:
            self.steps[step]["error"] = f"{type(error).__name__}: {error}"

    def print(self) -> None:
        """Print the steps as the last line."""
        print(json.dumps(self.steps), flush=True)
