"""Says whether the agent is in this process: the program that every way of starting starts.

python presence.py WAY, or as an application of WSGI (`application`) or ASGI (`asgi`).
"""

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def report(*_anything: object) -> None:
    """Leave a file with what is found in this process."""
    folder = os.environ["PRESENCE"]
    finders = [each for each in sys.meta_path if type(each).__module__ == "mlx_autobind"]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = {
        "finders": len(finders),
        "bootstrap": len([each for each in path if each.endswith("mlx_autobind/bootstrap")]),
        "ran": getattr(sys, "ran", []),
        "others": [
            each
            for each in ("ddtrace", "coverage", "opentelemetry.sdk.trace")
            if each in sys.modules
        ],
        "rank": os.environ.get("MLX_RANK"),
    }
    # Whole as soon as it is there.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as file:
        json.dump(found, file)
    Path(file.name).replace(Path(folder) / f"{os.getpid()}.json")


def application(_environ: object, respond: Callable[..., Any]) -> Iterable[bytes]:
    respond("200 OK", [])
    return [b""]


async def asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def in_a_process(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=report)
    process.start()
    process.join()


def in_a_pool() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        list(pool.map(report, range(1)))


def in_a_kernel() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=Path(__file__).parent)
    client.execute_interactive("import presence; presence.report()", timeout=60)
    client.stop_channels()
    manager.shutdown_kernel()


WAYS: dict[str, Callable[[], object]] = {
    "here": report,
    "subprocess": lambda: subprocess.run([sys.executable, __file__, "here"], check=True),
    "cleared": lambda: subprocess.run(
        [sys.executable, __file__, "here"], env={"PRESENCE": os.environ["PRESENCE"]}, check=True
    ),
    "fork": lambda: in_a_process("fork"),
    "spawn": lambda: in_a_process("spawn"),
    "forkserver": lambda: in_a_process("forkserver"),
    "pool": in_a_pool,
    "kernel": in_a_kernel,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
elif "uvicorn" in sys.modules or "gunicorn" in sys.modules:
    report()  # imported by a server, as its application
