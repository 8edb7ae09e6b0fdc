"""Into the tracing system that people run: an OTLP/HTTP exporter and a real receiver."""

import gzip
import http.server
import signal
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import demo, launch
from tests.harness import PROGRAMS
from tests.stacks import Stack

REASON = "needs the OTLP/HTTP exporter and the FastAPI instrumentation: pip install '.[test]'"
service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason=REASON
)
pytest.importorskip("opentelemetry.instrumentation.fastapi", reason=REASON)


@dataclass(frozen=True)
class Received:
    """A span as it came in."""

    name: str
    scope: str
    span: bytes
    parent: bytes
    trace: bytes
    attributes: dict[str, Any]


class Receiver(http.server.ThreadingHTTPServer):
    """Takes spans at ``/v1/traces``, as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.problems: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if (self.path, self.headers["Content-Type"]) != ("/v1/traces", "application/x-protobuf"):
            self.server.problems.append(f"{self.path} {self.headers['Content-Type']}")
        request = service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        each.key: getattr(each.value, each.value.WhichOneof("value"))
                        for each in span.attributes
                    }
                    self.server.received.append(
                        Received(
                            span.name,
                            scope.scope.name,
                            span.span_id,
                            span.parent_span_id,
                            span.trace_id,
                            attributes,
                        )
                    )
        answer = service.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


PATHS = ("whole", "streaming")


def ask_traced_app(checkpoint: Path, endpoint: str) -> launch.Outcome:
    """Ask a server that sends its spans to `endpoint` for each of `PATHS`, and stop it."""
    port = launch.free_port()
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "MLX_AUTOBIND_GENERATIONS": "1"}
    command = [str(PROGRAMS / "traced_app.py"), str(checkpoint), str(port)]
    with launch.Child(command, agent=True, environ=environ) as child:
        demo._wait_for(port, child, 60)
        for path in PATHS:
            url = f"http://127.0.0.1:{port}/{path}?prompt=w5+w77"
            with urllib.request.urlopen(url, timeout=60) as response:
                assert response.read()
        child.process.send_signal(signal.SIGINT)
        return child.finish(30)


def test_request_generation_rebind(receiver: Receiver, checkpoint: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")
    outcome = ask_traced_app(checkpoint, receiver.endpoint)
    assert outcome.stderr == ""
    assert outcome.code == 0
    assert receiver.problems == []

    by_name: dict[str, list[Received]] = {}
    for span in receiver.received:
        by_name.setdefault(span.name, []).append(span)
    generations = by_name["text_completion tiny"]
    assert len(generations) == 2
    for path, generation in zip(PATHS, generations, strict=True):
        (request,) = by_name[f"GET /{path}"]
        assert (generation.parent, generation.trace) == (request.span, request.trace)
        assert generation.scope == "mlx_autobind"
        assert generation.attributes["gen_ai.usage.input_tokens"] == 2
        assert 1 <= generation.attributes["gen_ai.usage.output_tokens"] <= 6
    # Whichever threads of the pool took the steps.
    binds = by_name["bind generation_stream"]
    assert len(binds) == len(outcome.records) >= 1
    assert {bind.parent for bind in binds} <= {generation.span for generation in generations}
    # What the server's framework records of a request holds its query; ours never does.
    assert "w77" not in repr([span for span in receiver.received if span.scope == "mlx_autobind"])
