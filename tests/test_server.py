"""A FastAPI server under real uvicorn, with clients that stay and clients that leave."""

import http.client
import signal
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlx_autobind.cli import demo, launch
from tests.conftest import Run
from tests.harness import PROGRAMS, program
from tests.stacks import Stack

MAX_TOKENS = 48

RIGHT = """
    import json, mlx_lm
    from asking import Asker, PROMPTS
    asker = Asker()
    print(json.dumps({{
        prompt: [
            response.token for response in mlx_lm.stream_generate(
                asker.model, asker.tokenizer, prompt, max_tokens={max_tokens}
            )
        ] for prompt in PROMPTS[:8]
    }}))
"""


def get(port: int, prompt: str, leave_after: int | None) -> list[int] | str:
    """Return the tokens that came, or why none did; leave after some if told to."""
    query = urllib.parse.urlencode({"prompt": prompt, "max_tokens": MAX_TOKENS})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/generate?{query}")
        response = connection.getresponse()
        if leave_after is not None:
            return [int(token) for token in response.read(leave_after).split()]
        return [int(token) for token in response.read().split()]
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def serve(
    checkpoint: Path, prompts: list[str], *, agent: bool
) -> tuple[list[object], launch.Outcome]:
    """Ask a server with all `prompts` at once, the first two of which leave half-way."""
    port = launch.free_port()
    command = [str(PROGRAMS / "streaming_app.py"), str(checkpoint), str(port)]
    with launch.Child(command, agent=agent) as child:
        demo._wait_for(port, child, 60)
        with ThreadPoolExecutor(len(prompts)) as clients:
            answers: list[object] = list(
                clients.map(
                    lambda at: get(port, prompts[at], 12 if at < 2 else None), range(len(prompts))
                )
            )
        child.process.send_signal(signal.SIGINT)
        return answers, child.finish(30)


@pytest.mark.timeout(400)
def test_eight_clients_two_of_which_leave(run: Run, checkpoint: Path, stack: Stack) -> None:
    text = program(RIGHT.format(max_tokens=MAX_TOKENS))
    right: dict[str, list[int]] = run(text, checkpoint, agent="none").clean()
    prompts = list(right)
    for _ in range(3):
        answers, outcome = serve(checkpoint, prompts, agent=True)
        assert answers[2:] == list(right.values())[2:]
        assert outcome.stderr == ""
        assert outcome.code == 0
    if stack.fails:
        answers, outcome = serve(checkpoint, prompts, agent=False)
        assert all(answer != right[prompt] for answer, prompt in zip(answers, prompts, strict=True))
        assert "There is no Stream" in outcome.stderr
