"""A server as people write it: load on one thread, stream from Starlette's thread pool.

python streaming_app.py CHECKPOINT PORT
"""

import sys
from collections.abc import Iterator

import mlx_lm
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
model, tokenizer = mlx_lm.load(sys.argv[1])[:2]


@app.get("/generate")
def generate(prompt: str, max_tokens: int) -> StreamingResponse:
    def text() -> Iterator[str]:
        # Starlette takes each item on whichever thread of its pool is free.
        for response in mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=max_tokens):
            yield f"{response.token} "

    return StreamingResponse(text(), media_type="text/plain")


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
