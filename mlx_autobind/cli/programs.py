"""Programs as people write them, which know nothing of the agent.

    python programs.py reference|S1|S2|S3 CHECKPOINT

Each prints one JSON object on its last line: for each step the prompt, and the tokens
that came out or the error that did. `reference` makes all calls one after another on one
thread, which works on every mlx, so its tokens are the right ones.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx_lm

MAX_TOKENS = 16
PROMPTS = [f"w{at} w{at + 7} w{2 * at} w5" for at in range(3, 19)]

Step = dict[str, Any]


class Asker:
    """A loaded model and the answers it gave."""

    def __init__(self, checkpoint: str) -> None:
        self.model, self.tokenizer = mlx_lm.load(checkpoint)[:2]
        self.steps: dict[str, Step] = {}

    def ask(self, step: str, prompt: str) -> None:
        """Generate and keep the tokens, or the error."""
        self.steps[step] = {"prompt": prompt}
        try:
            responses = mlx_lm.stream_generate(
                self.model, self.tokenizer, prompt, max_tokens=MAX_TOKENS
            )
            answer = list(responses)
            self.steps[step]["tokens"] = [response.token for response in answer]
            self.steps[step]["text"] = "".join(response.text for response in answer)
        except Exception as error:
            self.steps[step]["error"] = f"{type(error).__name__}: {error}"


def on_thread(work: Callable[..., None], *arguments: object) -> None:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


def reference(asker: Asker) -> None:
    """Every prompt, one after another on the main thread."""
    for prompt in PROMPTS:
        asker.ask(prompt, prompt)


def s1(asker: Asker) -> None:
    """Load on the main thread, generate on a worker."""
    on_thread(asker.ask, "threading.Thread", PROMPTS[0])
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asker.ask, "ThreadPoolExecutor", PROMPTS[1]).result()
    asyncio.run(asyncio.to_thread(asker.ask, "asyncio.to_thread", PROMPTS[2]))


def s2(asker: Asker) -> None:
    """Generate on main, on a worker, on main again, on another worker."""
    asker.ask("main", PROMPTS[0])
    on_thread(asker.ask, "worker", PROMPTS[1])
    asker.ask("main again", PROMPTS[2])
    on_thread(asker.ask, "another worker", PROMPTS[3])


def s3(asker: Asker) -> None:
    """Run 16 generations on 4 threads at once."""
    with ThreadPoolExecutor(4) as pool:
        for at, prompt in enumerate(PROMPTS):
            pool.submit(asker.ask, f"generation {at}", prompt)


PROGRAMS = {"reference": reference, "S1": s1, "S2": s2, "S3": s3}


def main() -> None:
    name, checkpoint = sys.argv[1:]
    asker = Asker(checkpoint)
    PROGRAMS[name](asker)
    print(json.dumps(asker.steps))


if __name__ == "__main__":
    main()
