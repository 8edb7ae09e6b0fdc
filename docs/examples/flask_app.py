"""A Flask server: loads while it is imported, generates on the threads of the WSGI server.

    pip install flask waitress gunicorn mlx-lm mlx-autobind
    export MODEL=mlx-community/Qwen3-0.6B-4bit
    mlx-autobind run -- waitress-serve --threads=8 --port=8000 flask_app:app
    mlx-autobind run -- gunicorn --threads=8 flask_app:app
    mlx-autobind run -- gunicorn --threads=8 --workers=2 flask_app:app

    curl --json '{"prompt": "Hello"}' localhost:8000/generate
    curl --json '{"prompt": "Hello"}' --no-buffer localhost:8000/stream

MODEL is a path or the name of a repository on Hugging Face. Each worker of gunicorn loads it.
Not with ``gunicorn --preload``: workers are forks, and mlx does not survive a fork of a process
in which it has done work.
"""

import os
from collections.abc import Iterator

import mlx_lm
from flask import Flask, Response, request

model, tokenizer = mlx_lm.load(os.environ["MODEL"])
app = Flask(__name__)


@app.post("/generate")
def generate() -> dict[str, str]:
    """Answer in one piece."""
    ask = request.get_json()
    max_tokens = int(ask.get("max_tokens", 256))
    return {"text": mlx_lm.generate(model, tokenizer, ask["prompt"], max_tokens=max_tokens)}


@app.post("/stream")
def stream() -> Response:
    """Answer piece by piece."""
    ask = request.get_json()
    max_tokens = int(ask.get("max_tokens", 256))

    def pieces() -> Iterator[str]:
        for response in mlx_lm.stream_generate(
            model, tokenizer, ask["prompt"], max_tokens=max_tokens
        ):
            yield response.text

    return Response(pieces(), mimetype="text/plain")
