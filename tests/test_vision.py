"""S16 and S17: vision models of mlx-vlm, one that keeps state on itself and one that does not."""

import base64
import http.client
import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind import targets
from mlx_autobind.cli import demo, launch
from mlx_autobind.settings import MODES
from tests import harness
from tests.conftest import Run
from tests.harness import PROGRAMS, program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM

KINDS = ("stateful", "stateless")

# What fails without the agent on every mlx that binds streams: an array that was built on
# one thread and is read on another.
PREPARED = "embeddings of a worker"


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Path:
    """Return a folder with a tiny vision model of each kind."""
    if stack.mlx_vlm is None:
        pytest.skip("mlx-vlm is not installed: pip install 'mlx-autobind[vlm]'")
    folder = tmp_path_factory.mktemp("vision")
    made = harness.run(
        PROGRAMS / "vision_checkpoints.py",
        folder / "models",
        agent="none",
        folder=folder,
        env={"MLX_AUTOBIND": "off"},
    )
    assert made.code == 0, made.stderr
    return folder / "models"


def skip_if_the_mode_is_not_there(mode: str, stack: Stack) -> None:
    if mode == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    if stack.inert:
        pytest.skip("every mode is inert on this mlx, and its models mix up their state")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_crosses_threads(kind: str, mode: str, run: Run, vision: Path, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    path = PROGRAMS / "seeing_crossing.py"
    env = {"MLX_AUTOBIND_MODE": mode}
    found = run(path, vision / kind, agent="import", env=env).clean()
    assert {name: step for name, step in found.items() if step != "right"} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_crosses_threads_without_the_agent(
    kind: str, run: Run, vision: Path, stack: Stack
) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("this mlx lets any thread use any stream on the CPU: no failure to show")
    outcome = run(PROGRAMS / "seeing_crossing.py", vision / kind, agent="none")
    if outcome.result is None:
        assert outcome.code != 0  # it crashed or hung, before it could print
    elif stack.plain_vision_handle:
        wrong = [name for name, step in outcome.result.items() if step != "right"]
        assert {"a picture on a worker", "eight at once on four threads"} <= set(wrong)
    else:
        assert NO_STREAM in outcome.result[PREPARED]


INTERLEAVED = """
    from pathlib import Path
    from seeing import Seer, print_last
    seer = Seer(Path(sys.argv[1]))
    right = [seer.see(2)[0], seer.see(3)[0]]
    generators = [seer.begin(2), seer.begin(3)]
    found = [[], []]
    for _ in range(13):
        for generator, answer in zip(generators, found):
            for response in (next(generator, None),):
                if response is not None:
                    answer.append(response.token)
    print_last(found == right)
"""


def test_two_generations_on_one_thread_mix_their_state_without_the_agent(
    run: Run, vision: Path
) -> None:
    """Whatever the streams are: it is the model that keeps one position for all."""
    text = program(INTERLEAVED)
    assert run(text, vision / "stateful", agent="none").result is False
    assert run(text, vision / "stateless", agent="none").result is True


ENDED = """
    import threading
    from pathlib import Path
    from seeing import Seer, print_last
    from threads import elsewhere
    seer = Seer(Path(sys.argv[1]))
    right = seer.see(2)
    found = []
    {ended}
    found.append(seer.see(2))
    found.append(elsewhere(lambda: seer.see(2)))
    print_last([right == each for each in found])
"""

ENDS = {
    "abandoned": "kept = seer.begin(4); next(kept)",
    "closed": "begun = seer.begin(4); next(begun); begun.close()",
    "closed elsewhere": "begun = seer.begin(4); next(begun); elsewhere(begun.close)",
    "collected": "begun = seer.begin(4); next(begun); del begun; import gc; gc.collect()",
    "thrown into": """
    begun = seer.begin(4); next(begun)
    try:
        begun.throw(KeyError("thrown"))
    except KeyError:
        pass
    """,
    "never begun": "seer.begin(4)",
    "begun by a thread that has ended": "kept = elsewhere(lambda: (b := seer.begin(4), next(b)))",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_generation_that_ends_early_leaves_the_next_one_alone(
    end: str, run: Run, vision: Path
) -> None:
    text = program(ENDED.format(ended=ENDS[end].strip()))
    assert run(text, vision / "stateful", agent="import").clean() == [True, True]


TURNS = """
    from pathlib import Path
    from seeing import Seer, print_last
    from threads import elsewhere, here
    import mlx_vlm
    from mlx_vlm.generate import PromptCacheState

    seer = Seer(Path(sys.argv[1]))

    def turns(run, between):
        state, found = PromptCacheState(), []
        prompt = seer.prompt(2)
        for _ in range(3):
            def turn():
                responses = list(mlx_vlm.stream_generate(
                    seer.model, seer.processor, prompt, image=seer.images(2),
                    max_tokens=6, temperature=0.0, prompt_cache_state=state,
                ))
                return [response.token for response in responses]
            found.append(run(turn))
            between()
            prompt += " w7 w8"
        return found

    right = turns(here, lambda: None)
    print_last([
        turns(elsewhere, lambda: None) == right,
        turns(elsewhere, lambda: elsewhere(lambda: seer.see(4))) == right,
    ])
"""


@pytest.mark.parametrize("kind", KINDS)
def test_turns_of_a_conversation_on_changing_threads(
    kind: str, run: Run, vision: Path, stack: Stack
) -> None:
    """The second turn goes on from the position that the first has left on the model."""
    if stack.mlx_vlm is not None and stack.mlx_vlm < (0, 4, 4):
        pytest.skip("this mlx-vlm keeps no prompt cache between turns")
    alone, others_between = run(program(TURNS), vision / kind, agent="import").clean()
    assert alone
    # Without the agent, on one thread, another generation in between changes the position
    # that the next turn finds; the agent leaves that as it is.
    if kind == "stateless":
        assert others_between


ASSIGNED = """
    import ast, json
    from pathlib import Path
    import mlx_vlm

    # Only these run in a generation: anything else is set up once.
    METHODS = (
        "__call__", "get_input_embeddings", "_set_position_state", "_generate_forward",
        "_update_chunked_prefill_mode",
    )

    def assigned(source):
        for owner in ast.walk(ast.parse(source)):
            if not isinstance(owner, ast.ClassDef) or owner.name not in ("Model", "LanguageModel"):
                continue
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name in METHODS:
                    for node in ast.walk(method):
                        for target in getattr(node, "targets", [getattr(node, "target", None)]):
                            text = ast.unparse(target) if isinstance(target, ast.Attribute) else ""
                            if text.startswith("self."):
                                yield text.rpartition(".")[2]

    models = Path(mlx_vlm.__file__).parent / "models"
    files = [path for path in models.rglob("*.py") if "process" not in path.name]
    print(json.dumps(sorted({name for path in files for name in assigned(path.read_text())})))
"""

# Assigned in a generation, and the same in every one (llava_next of mlx-vlm 0.3.9).
CONSTANT = {"image_newline"}


def test_what_the_models_keep_on_themselves_is_in_the_table(
    run: Run, vision: Path, stack: Stack
) -> None:
    assert vision.exists()
    found = set(run(ASSIGNED, agent="none").clean()) - CONSTANT
    assert found - set(targets.STATE) == set()
    if stack.mlx_vlm is not None and stack.mlx_vlm >= (0, 4, 4):
        assert {"_rope_deltas", "_position_ids"} <= found


LEFT = """
    from pathlib import Path
    from seeing import Seer, print_last
    seer = Seer(Path(sys.argv[1]))
    state = seer.model.language_model
    seer.see(2)
    first = state._rope_deltas.tolist()
    kept = seer.begin(3)
    next(kept)
    begun = state._rope_deltas.tolist()
    list(kept)
    ended = state._rope_deltas.tolist()
    seer.see(4)
    print_last([first, begun, ended, state._rope_deltas.tolist()])
"""


def test_a_generation_leaves_its_state_as_without_the_agent(run: Run, vision: Path) -> None:
    found = run(program(LEFT), vision / "stateful", agent="import").clean()
    assert found == run(program(LEFT), vision / "stateful", agent="none").result


def test_the_next_generation_finds_what_the_last_has_left(
    run: Run, vision: Path, stack: Stack
) -> None:
    skip_if_the_mode_is_not_there("thread", stack)
    text = program("""
    from pathlib import Path
    from seeing import Seer, print_last
    from mlx_autobind.state import STATES
    seer = Seer(Path(sys.argv[1]))
    found = []
    for seed in (2, 4):
        seer.see(seed)
        state = STATES.begin((seer.model,))._state
        found.append(state.current.ended)
        left = state._read()
        following = STATES.begin((seer.model,))
        following.step(lambda: found.append(all(
            one is other for one, other in zip(left, state._read(), strict=True)
        )))
        following.ended = True
    print_last(found)
    """)
    assert run(text, vision / "stateful", agent="import").clean() == [True] * 4


class Server:
    """A real ``mlx_vlm.server``, and its answers."""

    def __init__(self, model: Path, mode: str | None) -> None:
        self.port = launch.free_port()
        self.model = model
        command = ["-m", "mlx_vlm.server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environ = {} if mode is None else {"MLX_AUTOBIND_MODE": mode}
        self.child = launch.Child(command, agent=mode is not None, environ=environ)

    def ask(self, picture: str | None, stream: bool) -> str:
        """Return the answer to a prompt about `picture`, a data URL, or about none."""
        content: list[dict[str, Any]] = [{"type": "text", "text": "w5 w9 w11"}]
        if picture is not None:
            content.append({"type": "image_url", "image_url": {"url": picture}})
        body = {
            "model": str(self.model),
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 8,
            "temperature": 0.0,
            "stream": stream,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                return f"HTTP {response.status}: {response.read(300)!r}"
            if not stream:
                return str(json.load(response)["choices"][0]["message"]["content"])
            text = ""
            for line in response:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices") or [{}]
                    text += choices[0].get("delta", {}).get("content") or ""
            return text
        finally:
            connection.close()


PICTURE = """
    import base64, io
    from seeing import picture, print_last
    file = io.BytesIO()
    picture(2).save(file, "PNG")
    print_last(base64.b64encode(file.getvalue()).decode())
"""


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory, vision: Path) -> str:
    """Return a picture as a data URL, made where `vision` says that mlx-vlm is there."""
    assert vision.exists()
    folder = tmp_path_factory.mktemp("picture")
    made = harness.run(program(PICTURE), agent="none", folder=folder)
    assert base64.b64decode(made.result)
    return f"data:image/png;base64,{made.result}"


def served(
    model: Path, picture: str, mode: str | None
) -> tuple[dict[str, list[str]], launch.Outcome]:
    """Return the answers to each kind of request, one by one and then four at once.

    Args:
        model: the checkpoint.
        picture: a data URL.
        mode: the agent's mode; None for no agent.
    """
    server = Server(model, mode)
    kinds: dict[str, Callable[[], str]] = {
        "text": lambda: server.ask(None, stream=False),
        "text, streaming": lambda: server.ask(None, stream=True),
        "picture": lambda: server.ask(picture, stream=False),
        "picture, streaming": lambda: server.ask(picture, stream=True),
    }
    with server.child as child:
        demo._wait_for(server.port, child, 90)
        answers = {kind: [ask()] for kind, ask in kinds.items()}
        with ThreadPoolExecutor(4) as clients:
            at_once = clients.map(lambda ask: ask(), kinds.values())
            for kind, answer in zip(kinds, at_once, strict=True):
                answers[kind].append(answer)
        child.process.send_signal(signal.SIGINT)
        return answers, child.finish(30)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_server(
    kind: str,
    mode: str,
    vision: Path,
    picture: str,
    stack: Stack,
) -> None:
    """Streaming and not, text and a picture, one by one and at once; exit code 0."""
    skip_if_the_mode_is_not_there(mode, stack)
    if stack.mlx_vlm is None or stack.mlx_vlm < (0, 4, 4):
        pytest.skip("the server of this mlx-vlm takes no model and other requests")
    if kind == "stateful" and stack.mlx_vlm < (0, 5, 0):
        pytest.skip("this mlx-vlm loads no Qwen2-VL processor without torchvision")
    answers, outcome = served(vision / kind, picture, mode)
    assert outcome.code == 0, outcome.stderr
    assert "There is no Stream" not in outcome.stderr
    for what in ("text", "picture"):
        whole, streamed = answers[what], answers[f"{what}, streaming"]
        # mlx-vlm's own batching changes the answers of a PaliGemma, whose prompt attends
        # to its padding: those at once are compared for the other model alone.
        right = {*whole, *streamed} if kind == "stateful" else {whole[0], streamed[0]}
        assert len(right) == 1, answers
        assert len(right.pop().split("w")) > 4
    if stack.mlx_vlm >= (0, 5, 0) and not stack.inert:
        binds = [record["entry_point"] for record in outcome.records if record["kind"] == "bind"]
        assert any(name.endswith("ResponseGenerator._run") for name in binds)
