"""The public calls that the soak makes, and the right answers to them.

In ``shared`` mode a program must do no MLX work outside of entry points on two threads at once.
So nothing here touches an array: tokens are compared as Python's numbers.
"""

import itertools
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx_lm
from mlx_lm import generate as _generate_function
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from tests.soak.model import LENGTH, PROMPTS, STOPS

_library: Any = sys.modules["mlx_lm.generate"]
Answer = Generator[Any, None, None]


class WrongAnswerError(Exception):
    """An answer that is not the right one."""


def expect(found: object, right: object) -> None:
    """Raise `WrongAnswerError` unless they are equal."""
    if found != right:
        raise WrongAnswerError(f"{found} is not {right}")


class Work:
    """A loaded model and what is asked of it.

    Args:
        checkpoint: the checkpoint's folder.
        references: what `main` has written; None while it does.
    """

    def __init__(self, checkpoint: str, references: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.model, self.tokenizer = self.load()
        self.right: dict[str, Any] = {}
        if references is not None:
            self.right = json.loads(Path(references).read_text())

    def load(self) -> tuple[Any, Any]:
        """Load the checkpoint."""
        loaded: Any = mlx_lm.load(self.checkpoint)
        return loaded[0], loaded[1]

    def stream(self, prompt: int, cache: Any = None, sampler: Any = None) -> Answer:
        """Return the answer to a prompt, of which nothing is generated yet."""
        options = {} if cache is None else {"prompt_cache": cache}
        answer: Any = mlx_lm.stream_generate(
            self.model,
            self.tokenizer,
            PROMPTS[prompt],
            max_tokens=LENGTH,
            **options,
            **({} if sampler is None else {"sampler": sampler}),
        )
        return answer  # type: ignore[no-any-return]

    def text(self, prompt: int) -> str:
        """Return the whole answer as text."""
        return str(
            _generate_function(self.model, self.tokenizer, PROMPTS[prompt], max_tokens=LENGTH)
        )

    def turn(self, cache: Any, prompt: int, stop: int) -> list[int]:
        """Have `stop` tokens of an answer, or all, and close it: `cache` is free again."""
        answer = self.stream(prompt, cache)
        tokens = take(answer, stop) if stop else rest(answer)
        answer.close()
        return tokens

    def cache(self) -> Any:
        """Return a new prompt cache."""
        return make_prompt_cache(self.model)

    def sampled(self, prompt: int) -> list[int]:
        """Return an answer that is drawn at random."""
        return rest(self.stream(prompt, sampler=make_sampler(temp=0.8)))

    def batch(self, prompts: list[int]) -> tuple[Any, list[int]]:
        """Return a batch that has been given `prompts`, and what they are called in it."""
        newer = hasattr(_library.BatchGenerator, "next_generated")
        ends = self.tokenizer.eos_token_ids
        stop: Any = [[each] for each in ends] if newer else ends
        made = _library.BatchGenerator(self.model, max_tokens=LENGTH, stop_tokens=stop)
        return made, made.insert([PROMPTS[prompt] for prompt in prompts])

    @staticmethod
    def answers(made: Any, uids: list[int]) -> list[list[int]]:
        """Step a batch to its end, and return the tokens of each prompt."""
        step = getattr(made, "next_generated", made.next)
        found: dict[int, list[int]] = {uid: [] for uid in uids}
        left = set(uids)
        for _ in range(4 * LENGTH):
            if not left:
                break
            for response in step() or ():
                found[response.uid].append(response.token)
                if response.finish_reason is not None:
                    left.discard(response.uid)
        return [found[uid] for uid in uids]

    def references(self) -> dict[str, Any]:
        """Return the right answers: all calls one after another."""
        every = range(len(PROMPTS))
        return {
            "tokens": [rest(self.stream(prompt)) for prompt in every],
            "texts": [self.text(prompt) for prompt in every],
            "turns": {
                f"{prompt} {stop} {second}": self._turns(prompt, stop, second)
                for prompt in every
                for stop in STOPS
                for second in every
            },
            "batches": {
                f"{prompt} {second}": self.answers(*self.batch([prompt, second]))
                for prompt in every
                for second in every
            },
        }

    def _turns(self, prompt: int, stop: int, second: int) -> list[int]:
        cache = self.cache()
        self.turn(cache, prompt, stop)
        return self.turn(cache, second, 0)


def take(answer: Answer, count: int) -> list[int]:
    """Return up to `count` further tokens of an answer."""
    return [response.token for response in itertools.islice(answer, count)]


def rest(answer: Answer) -> list[int]:
    """Return the tokens of an answer from here to its end."""
    return [response.token for response in answer]


def main(checkpoint: str, file: str) -> None:
    """Write the references to `file`: without the agent, on one thread."""
    Path(file).write_text(json.dumps(Work(checkpoint).references()))
