"""What the agent must never do: run what a setting names, or keep anything of a prompt."""

import json
from pathlib import Path

import pytest

import mlx_autobind
from mlx_autobind.settings import MODES
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_vision import skip_if_the_mode_is_not_there

# Says so if it is imported or run, whoever does it.
EVIL = """
from pathlib import Path
(Path(__file__).parent / "was run").touch()
generation_stream = None
"""

USING = """
    from asking import Asker, PROMPTS, on_thread
    import mlx_autobind
    sys.path.insert(0, sys.argv[2])
    asker = Asker()
    on_thread(asker.ask, "worker", PROMPTS[0])
    mlx_autobind.status(), mlx_autobind.rebinds()
    mlx_autobind.uninstall()
    asker.print()
"""


@pytest.mark.parametrize(
    "value",
    ["evil", "{folder}/evil.py", "evil:generation_stream", "$(touch '{folder}/was run')"],
)
def test_no_setting_makes_the_agent_import_or_run_what_it_names(
    value: str, run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "evil folder"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL)
    said = value.format(folder=folder)
    env = {"PYTHONPATH": str(folder), **dict.fromkeys(mlx_autobind.VARIABLES, said)}
    outcome = run(program(USING), checkpoint, folder, agent="import", env=env)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stderr.count("MLX_AUTOBIND") >= len(mlx_autobind.VARIABLES) - 2
    assert [path.name for path in folder.iterdir()] == ["evil.py"]


# A prompt of words that come nowhere else, and errors that quote it.
CANARY = """
    import logging, threading, time
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.generate import BatchGenerator, batch_generate
    from asking import on_thread
    logging.basicConfig(level=logging.DEBUG, filename=sys.argv[2])
    for name in ("transformers", "fsspec", "filelock", "asyncio", "urllib3", "matplotlib"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    PROMPT = "w77 w78 w79 canary"
    TOKENS = tokenizer.encode(PROMPT)
    texts = []

    def failing(tokens, logits):
        raise ValueError(f"canary {PROMPT} {TOKENS}")

    def attempt(call):
        try:
            texts.append(call())
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            print("note", *notes, file=sys.stderr)

    def work():
        attempt(lambda: mlx_lm.generate(model, tokenizer, PROMPT, max_tokens=4))
        attempt(lambda: [
            each.text for each in mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=4)
        ])
        attempt(lambda: batch_generate(model, tokenizer, [TOKENS], max_tokens=4).texts)
        attempt(lambda: list(mlx_lm.stream_generate(
            model, tokenizer, PROMPT, max_tokens=4, logits_processors=[failing]
        )))
        attempt(lambda: mlx_lm.generate(PROMPT, PROMPT, PROMPT))
        attempt(lambda: mlx_lm.load("canary/w77-w78-w79"))

    on_thread(work, name="worker")
    on_thread(lambda: setattr(model.lm_head, "weight", model.lm_head.weight * 2))
    attempt(lambda: mlx_lm.generate(model, tokenizer, PROMPT, max_tokens=4))
    import mlx_autobind
    print(repr(mlx_autobind.rebinds()), repr(mlx_autobind.status()))
    print(len(texts) >= 3)
"""


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_a_prompt_or_an_answer_is_kept(
    mode: str, run: Run, checkpoint: Path, tmp_path: Path, stack: Stack
) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    log, trace = tmp_path / "log", tmp_path / "trace.jsonl"
    env = {
        "MLX_AUTOBIND_MODE": mode,
        "MLX_AUTOBIND_GENERATIONS": "1",
        "MLX_AUTOBIND_TRACE": str(trace),
    }
    outcome = run(program(CANARY), checkpoint, log, agent="import", sdk=True, env=env)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.splitlines()[-1] == "True"
    said = {
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "records": repr(outcome.records),
        "spans": json.dumps(outcome.spans),
        "log": log.read_text() if log.exists() else "",
        "trace": trace.read_text() if trace.exists() else "",
    }
    assert "text_completion" in said["spans"]
    for where, text in said.items():
        for word in ("canary", "w77", "w78"):
            assert word not in text, f"{word} in {where}: {text[:2000]}"
