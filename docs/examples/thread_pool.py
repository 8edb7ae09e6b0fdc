"""A batch job: reads a prompt a line, writes a JSON line for each answer, in the same order.

    pip install mlx-lm mlx-autobind
    export MODEL=mlx-community/Qwen3-0.6B-4bit
    mlx-autobind run -- python thread_pool.py <prompts.txt >answers.jsonl

MODEL is a path or the name of a repository on Hugging Face.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import mlx_lm

THREADS = 4
MAX_TOKENS = 256


def main() -> None:
    """Answer every prompt."""
    model, tokenizer = mlx_lm.load(os.environ["MODEL"])

    def answer(prompt: str) -> str:
        return str(mlx_lm.generate(model, tokenizer, prompt, max_tokens=MAX_TOKENS))

    prompts = [line for line in sys.stdin.read().splitlines() if line.strip()]
    with ThreadPoolExecutor(THREADS) as pool:
        for prompt, text in zip(prompts, pool.map(answer, prompts), strict=True):
            print(json.dumps({"prompt": prompt, "text": text}), flush=True)


if __name__ == "__main__":
    main()
