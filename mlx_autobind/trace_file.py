"""``MLX_AUTOBIND_TRACE``: every span as a line of OTLP JSON in a file.

Written by the official exporter, through a tracer provider of the agent's own: that of the
application is left alone, and its pipeline gets no span twice. Needs the extra ``trace``.
"""

import io
import logging
import os
import threading
from typing import Any

from opentelemetry.trace import Tracer

logger = logging.getLogger("mlx_autobind")


class AppendedFile(io.TextIOBase):
    """A file that any number of processes append whole lines to. Thread-safe.

    Never raises: what cannot be written is one warning, and lost.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._warned = False
        # A line of which only a part could be written is ended before the next one.
        self._torn = False
        self._file = -1

    def write(self, text: str) -> int:
        """Append `text`, a whole line, in one call of the system: it is not torn by others."""
        data = text.encode()
        with self._lock:
            try:
                if self._file < 0:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
                    self._file = os.open(self._path, flags, 0o600)
                line = b"\n" + data if self._torn else data
                self._torn = os.write(self._file, line) != len(line)
            except OSError as error:
                self._torn = self._file >= 0
                if not self._warned:
                    self._warned = True
                    logger.warning("MLX_AUTOBIND_TRACE: nothing is written: %s", error)
        return len(text)

    def after_fork_in_child(self) -> None:
        """Start over with a lock that another thread may have held."""
        self._lock = threading.Lock()


def tracer(path: str, name: str, version: str, schema_url: str) -> Tracer | None:
    """Return a tracer whose spans are appended to the file `path`.

    Written as each span ends, so that nothing is lost if the process is aborted.

    Returns:
        None if the SDK or the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.json.file import FileSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        logger.warning(
            "MLX_AUTOBIND_TRACE: %s; nothing is written: pip install 'mlx-autobind[trace]'", error
        )
        return None
    file: Any = AppendedFile(path)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=file.after_fork_in_child)
    # What the application samples is its own affair.
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({"process.pid": os.getpid()}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(stream=file)))
    return provider.get_tracer(name, version, schema_url=schema_url)
