"""A FastAPI server: loads beside the event loop, generates on the threads of Starlette's pool.

    pip install fastapi uvicorn mlx-lm mlx-autobind
    export MODEL=mlx-community/Qwen3-0.6B-4bit
    mlx-autobind run -- uvicorn fastapi_app:app

    curl --json '{"prompt": "Hello"}' localhost:8000/generate
    curl --json '{"prompt": "Hello"}' --no-buffer localhost:8000/stream

MODEL is a path or the name of a repository on Hugging Face.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import mlx_lm
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field


class Ask(BaseModel):
    """The body of a request."""

    prompt: str
    max_tokens: int = Field(default=256, ge=1, le=4096)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model; requests are taken when that is done."""
    app.state.model, app.state.tokenizer = await asyncio.to_thread(mlx_lm.load, os.environ["MODEL"])
    yield


app = FastAPI(lifespan=lifespan)


# Plain functions, so that FastAPI calls them on a thread of its pool: as coroutines they would
# keep the event loop from everything else until the last token.
@app.post("/generate")
def generate(ask: Ask) -> dict[str, str]:
    """Answer in one piece."""
    model, tokenizer = app.state.model, app.state.tokenizer
    return {"text": mlx_lm.generate(model, tokenizer, ask.prompt, max_tokens=ask.max_tokens)}


@app.post("/stream")
def stream(ask: Ask) -> StreamingResponse:
    """Answer piece by piece; each may be made on another thread than the one before."""

    def pieces() -> Iterator[str]:
        for response in mlx_lm.stream_generate(
            app.state.model, app.state.tokenizer, ask.prompt, max_tokens=ask.max_tokens
        ):
            yield response.text

    return StreamingResponse(pieces(), media_type="text/plain")
