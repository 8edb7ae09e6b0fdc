"""Spans as a trace file has them, for the tests of what is made of them."""

from typing import Any

from mlx_autobind.cli.spans import Generation, Span

US = 1_000
MS = 1_000_000
FIRST_NS = 1_796_073_600_123_456_789


def span(kind: str, at_ns: float, took_ns: float = 200 * US, **others: Any) -> Span:
    """Return a span of `kind` on `worker`, `at_ns` after `FIRST_NS`.

    A generation has its first token after a quarter of the time.
    """
    started = FIRST_NS + round(at_ns)
    fields: dict[str, Any] = {
        "process": 7,
        "thread_id": 140_234_567_890_176,
        "thread": "worker",
        "mode": "thread",
        "stream": "cpu:0 #3",
        "entry_point": "mlx_lm.generate.stream_generate",
        "handles": ("mlx_lm.generate.generation_stream: replaced",),
        "trace_id": f"{started:032x}",
        "span_id": f"{started % 2**64:016x}",
        "parent_id": "",
        "error": "",
        **others,
    }
    if kind == "generation":
        fields["generation"] = Generation(
            "text_completion", "tiny", 12, 34, round(took_ns / 4), 56.7, "length", "exhausted"
        )
    return Span(kind=kind, started_ns=started, duration_ns=round(took_ns), **fields)
