"""A server with an OpenTelemetry SDK of its own, as its authors would set one up.

python traced_app.py CHECKPOINT PORT, with OTEL_EXPORTER_OTLP_ENDPOINT in the environment.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import mlx_lm
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

app = FastAPI()
FastAPIInstrumentor.instrument_app(app)
loaded: list[Any] = []
# As servers do, so that the event loop starts at once.
loader = threading.Thread(target=lambda: loaded.extend(mlx_lm.load(sys.argv[1])[:2]))
loader.start()
loader.join()
model, tokenizer = loaded


@app.get("/whole")
def whole(prompt: str) -> str:
    return str(mlx_lm.generate(model, tokenizer, prompt, max_tokens=6))


@app.get("/streaming")
def streaming(prompt: str) -> StreamingResponse:
    def text() -> Iterator[str]:
        for response in mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=6):
            yield f"{response.token} "

    return StreamingResponse(text(), media_type="text/plain")


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
