"""Arrays that cross threads: weights, private arrays, prompt caches."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests import harness
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM

ROPE: dict[str, Any] = {"factor": 32.0, "original_max_position_embeddings": 64}
LLAMA3 = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SU = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}

# Every kind of model that keeps something lazily computed, and two that do not. Heads of
# 32, so that a cache can be quantised in groups of 32.
MODELS: dict[str, dict[str, Any]] = {
    "full attention": {},
    "llama3 RoPE": {"rope_scaling": LLAMA3},
    "yarn RoPE": {"rope_scaling": {**ROPE, "rope_type": "yarn"}},
    "su RoPE": {"rope_scaling": {**ROPE, **SU, "type": "longrope"}},
    "sliding window": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "rope_global_base_freq": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_traditional": False,
    },
}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("zoo")
    made = harness.run(
        f"""
        from pathlib import Path
        from mlx_autobind.cli import checkpoint
        for name, config in {MODELS!r}.items():
            checkpoint.make(Path({str(folder)!r}) / name, {{**{HEADS!r}, **config}})
        """,
        agent="none",
        folder=folder,
        env={"MLX_AUTOBIND": "off"},
    )
    assert made.code == 0, made.stderr
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_what_crosses_threads(model: str, run: Run, zoo: Path, stack: Stack) -> None:
    """S4, S6, S7, S8, S9 and more, each equal to the same work on one thread."""
    path = harness.PROGRAMS / "crossing.py"
    found = run(path, zoo / model, agent="import").clean()
    assert {name: step for name, step in found.items() if step != "right"} == {}
    if stack.binds_on_cpu:
        without = run(path, zoo / model, agent="none").result
        assert NO_STREAM in without["S7 cache file loaded on a worker"]
        if "RoPE" in model:
            assert NO_STREAM in without["S4 load on a worker, generate on main"]


LAZY = """
    import mlx.core as mx
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    def load():
        asker.model = mlx_lm.load(sys.argv[1], lazy=True)[0]
    {crossing}
    asker.print()
"""

LAZY_CROSSINGS = {
    "main, then a worker": """
    load()
    on_thread(asker.ask, "worker", PROMPTS[0])
    """,
    "a worker that ends, then main": """
    on_thread(load)
    asker.ask("main", PROMPTS[0])
    """,
    "main, then several workers at once": """
    import threading
    load()
    threads = [
        threading.Thread(target=asker.ask, args=(f"worker {at}", PROMPTS[at])) for at in range(4)
    ]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    asker.ask("main", PROMPTS[4])
    """,
}


@pytest.mark.parametrize("crossing", LAZY_CROSSINGS)
def test_weights_left_lazy(
    crossing: str, run: Run, checkpoint: Path, reference: dict[str, list[int]], stack: Stack
) -> None:
    if not stack.binds_on_cpu and "at once" in crossing:
        pytest.skip("two threads that evaluate the same arrays at once crash this mlx by itself")
    text = program(LAZY.format(crossing=LAZY_CROSSINGS[crossing].strip()))
    without = run(text, checkpoint, agent="none").result
    failed = [step for step in without.values() if NO_STREAM in step.get("error", "")]
    assert bool(failed) is stack.binds_on_cpu
    steps = run(text, checkpoint, agent="import").clean()
    for step in steps.values():
        assert step.get("tokens") == reference[step["prompt"]], step


STAYS_LAZY = """
    import json, sys
    import mlx.core as mx
    import mlx_lm
    from mlx.utils import tree_flatten
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model = mlx_lm.load(sys.argv[1], lazy=True)[0]
    loaded = mx.get_active_memory() - before
    total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    print(json.dumps([loaded, total, mx.get_peak_memory()]))
"""


def test_a_program_that_converts_stays_lazy(run: Run, checkpoint: Path) -> None:
    without, total, peak_without = run(STAYS_LAZY, checkpoint, agent="none").clean()
    loaded, _, peak = run(STAYS_LAZY, checkpoint, agent="import").clean()
    # The state of the random numbers is read: a model draws as it is made.
    key = 8
    assert loaded - key <= without < total / 10
    assert peak <= peak_without


BY_HAND = """
    import json, sys
    import mlx.core as mx
    from mlx_lm.models import llama
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    config = json.load(open(f"{sys.argv[1]}/config.json"))
    def build():
        model = llama.Model(llama.ModelArgs.from_dict(config))
        if sys.argv[2] == "file":
            model.load_weights(f"{sys.argv[1]}/model.safetensors")
        else:
            model.load_weights(list(mx.load(f"{sys.argv[1]}/model.safetensors").items()))
            mx.eval(model.parameters())
        asker.model = model
    asker.ask("right", PROMPTS[0])
    on_thread(build)
    asker.ask("main", PROMPTS[0])
    on_thread(asker.ask, "worker", PROMPTS[0])
    asker.print()
"""


@pytest.mark.parametrize("source", ["file", "arrays"])
def test_a_model_built_without_load(source: str, run: Run, zoo: Path, stack: Stack) -> None:
    model = zoo / "llama3 RoPE"
    without = run(program(BY_HAND), model, source, agent="none").result
    if stack.binds_on_cpu:
        assert NO_STREAM in without["main"]["error"]
    steps = run(program(BY_HAND), model, source, agent="import").clean()
    assert steps["main"]["tokens"] == steps["worker"]["tokens"] == steps["right"]["tokens"]


IN_TWO_PARTS = """
    import mlx.core as mx
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    asker.ask("right", PROMPTS[0])
    weights = mx.load(f"{sys.argv[1]}/model.safetensors")
    part = {name: value for name, value in weights.items() if "layers.1" in name}
    mx.save_safetensors("part.safetensors", part)
    asker.model = mlx_lm.load(sys.argv[1], lazy=True)[0]
    asker.model.load_weights("part.safetensors", strict=False)
    os.chdir("/")
    on_thread(asker.ask, "worker", PROMPTS[0])
    from mlx_autobind.arrays import LAZY_MODELS
    asker.steps["pending"] = len(LAZY_MODELS.pending)
    asker.print()
"""


def test_weights_left_lazy_from_two_files(run: Run, checkpoint: Path, stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, where any thread can use any stream")
    text = "import os\n" + program(IN_TWO_PARTS)
    steps = run(text, checkpoint, agent="import").clean()
    assert steps["worker"].get("tokens") == steps["right"]["tokens"], steps["worker"]
    assert steps["pending"] == 0


HANDED_BACK = """
    import json
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    def batch():
        ids = [asker.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
        return mlx_lm.batch_generate(
            asker.model, asker.tokenizer, ids, max_tokens=6, return_prompt_caches=True
        ).caches
    def turn(cache):
        answer = mlx_lm.stream_generate(
            asker.model, asker.tokenizer, PROMPTS[3], max_tokens=6, prompt_cache=cache
        )
        return [response.token for response in answer]
    right = [turn(cache) for cache in batch()]
    caches = []
    on_thread(lambda: caches.extend(batch()))
    print(json.dumps([right, [turn(cache) for cache in caches]]))
"""


def test_prompt_caches_that_a_batch_hands_back(run: Run, checkpoint: Path, stack: Stack) -> None:
    if stack.mlx_lm < (0, 31, 2):
        pytest.skip("batch_generate of this mlx-lm hands no prompt caches back")
    right, crossed = run(program(HANDED_BACK), checkpoint, agent="import").clean()
    assert crossed == right


def test_what_one_stream_for_each_thread_cannot_cure_is_explained(
    run: Run, checkpoint: Path, stack: Stack
) -> None:
    found = run(harness.PROGRAMS / "limits.py", checkpoint, agent="import").clean()
    assert len(found) == 2 if stack.mlx_lm >= (0, 28) else 1
    expected = "explained: " if stack.binds_on_cpu and sys.version_info >= (3, 11) else ""
    for step in found.values():
        if stack.binds_on_cpu:
            assert step.startswith(f"{expected}RuntimeError: {NO_STREAM}")
        else:
            assert step == "right"
