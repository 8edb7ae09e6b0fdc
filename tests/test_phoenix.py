"""For a release: the spans in a real tracing system, arize-phoenix, read back through its API.

Too heavy for every run, since it installs 800 MB: ``pip install arize-phoenix``, then
``pytest -W default tests/test_phoenix.py`` (its own plug-in for pytest warns as it is loaded).
"""

import importlib.util
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import launch
from tests import harness
from tests.stacks import Stack
from tests.test_receiver import ask_traced_app

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("phoenix") is None,
    reason="a check for releases that needs arize-phoenix: pip install arize-phoenix",
)

PATIENCE_S = 180


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - on 127.0.0.1
        return json.load(response)


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> Any:
    """Return what is at `url` once there is something."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return get(url)
        except (OSError, urllib.error.HTTPError):
            assert process.poll() is None, "phoenix has ended"
            assert time.monotonic() < deadline, f"nothing at {url}"
            time.sleep(0.5)  # a server gives no other sign that it has started


@pytest.mark.timeout(2 * PATIENCE_S)
def test_request_generation_rebind(checkpoint: Path, tmp_path: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")
    port, grpc = launch.free_port(), launch.free_port()
    own = {
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_WORKING_DIR": str(tmp_path),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    where = f"http://127.0.0.1:{port}"
    with (tmp_path / "phoenix.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "phoenix.server.main", "serve"],
            env={**harness.environ(own), "MLX_AUTOBIND": "off"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(f"{where}/v1/projects", server)
            outcome = ask_traced_app(checkpoint, where)
            assert outcome.code == 0, outcome.stderr
            spans = get(f"{where}/v1/projects/default/spans?limit=100")["data"]
        finally:
            server.terminate()
            server.wait(30)
    by_id = {span["context"]["span_id"]: span for span in spans}
    binds = [span for span in spans if span["name"] == "bind generation_stream"]
    assert len(binds) == len(outcome.records) >= 1
    for bind in binds:
        generation = by_id[bind["parent_id"]]
        assert generation["name"] == "text_completion tiny"
        assert by_id[generation["parent_id"]]["name"].startswith("GET /")
