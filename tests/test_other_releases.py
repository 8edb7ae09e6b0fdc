"""Releases that the table does not know: entry points that are missing, renamed, or not ours.

A release is made of the installed one: a copy of it with some names changed throughout.
"""

import importlib.util
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mlx_autobind import targets
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack

Release = Callable[[Mapping[str, str]], dict[str, str]]

NEWER = "9.8.7"


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """Return what makes a newer mlx-lm with names changed, and the environment that has it."""

    def make(names: Mapping[str, str]) -> dict[str, str]:
        spec = importlib.util.find_spec("mlx_lm")
        assert spec is not None
        assert spec.origin is not None
        folder = tmp_path / "release"
        left_out = shutil.ignore_patterns("__pycache__", "examples", "tests")
        shutil.copytree(Path(spec.origin).parent, folder / "mlx_lm", ignore=left_out)
        for file in (folder / "mlx_lm").rglob("*.py"):
            text = file.read_text()
            for name, new in names.items():
                # Not `json.load` and the like.
                text = re.sub(rf"(?<!\bjson\.)(?<!\bmx\.)\b{name}\b", new, text)
            file.write_text(text)
        (folder / "mlx_lm" / "_version.py").write_text(f'__version__ = "{NEWER}"\n')
        return {"PYTHONPATH": str(folder)}

    return make


PROGRAM = """
    import json, sys
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.generate import {stream_generate} as stream_generate
    from mlx_lm.utils import {load} as load
    from threads import elsewhere
    model, tokenizer = load(sys.argv[1])[:2]
    def ask():
        answer = stream_generate(model, tokenizer, "w3 w10 w6 w5", max_tokens=5)
        return [response.token for response in answer]
    def attempt():
        try:
            return ask()
        except RuntimeError as error:
            return str(error).split("Stream")[0]
    def work():
        try:
            return attempt()
        finally:
            # By hand, or mlx may abort the process at exit where no agent binds the thread.
            getattr(mx, "clear_streams", lambda: None)()
    found = [attempt(), elsewhere(work)]
    print(json.dumps([mlx_lm.__version__, *found]))
"""


def asking(stream_generate: str = "stream_generate", load: str = "load") -> str:
    return PROGRAM.format(stream_generate=stream_generate, load=load)


# Every word of every path in the rows of mlx-lm. As the library's own words they may mean
# something else too, which is renamed along with them and stays consistent.
WORDS = sorted(
    {
        word
        for row in targets.TARGETS
        if row.module.startswith("mlx_lm.")
        for entry in row.entries
        for word in entry.path.split(".")
        if word not in ("__init__", "next", "remove", "insert", "generate", "prompt")
    }
)


def test_a_release_of_which_nothing_is_known(
    run: Run, checkpoint: Path, release: Release, stack: Stack
) -> None:
    env = release({name: f"{name}_of_the_future" for name in (*WORDS, "generation_stream")})
    # `generate` is the name of a module as well.
    text = Path(env["PYTHONPATH"], "mlx_lm", "generate.py")
    text.write_text(re.sub(r"^def generate\b", "def answer", text.read_text(), flags=re.MULTILINE))
    init = Path(env["PYTHONPATH"], "mlx_lm", "__init__.py")
    init.write_text(re.sub(r"\bgenerate,", "", init.read_text()))
    names = {name: f"{name}_of_the_future" for name in ("stream_generate", "load")}
    plain = run(program(asking(**names)), checkpoint, agent="none", env=env)
    outcome = run(program(asking(**names)), checkpoint, agent="import", env=env)
    assert plain.code == outcome.code == 0, plain.stderr + outcome.stderr
    assert plain.result[0] == NEWER
    assert outcome.result == plain.result
    if stack.inert:
        assert outcome.stderr == ""
    else:
        (line,) = outcome.stderr.splitlines()
        assert f"mlx-lm {NEWER} is newer than what mlx-autobind" in line
        assert "has none of the entry points" in line


@pytest.mark.parametrize("renamed", ["stream_generate", "generate_step", "load"])
def test_a_release_with_one_entry_point_renamed(
    renamed: str, run: Run, checkpoint: Path, release: Release
) -> None:
    env = release({renamed: f"{renamed}_of_the_future"})
    names = {renamed: f"{renamed}_of_the_future"} if renamed != "generate_step" else {}
    known = run(program(asking()), checkpoint, agent="none").result
    found = run(program(asking(**names)), checkpoint, agent="import", env=env).clean()
    assert found == [NEWER, known[1], known[1]]


WRAPPED_BY_OTHERS = """
    import sys
    import wrapt
    counted = []
    def count(wrapped, instance, args, kwargs):
        counted.append(wrapped.__name__)
        return wrapped(*args, **kwargs)
    def wrap(module):
        for name in ("stream_generate", "generate_step"):
            wrapt.wrap_function_wrapper(module, name, count)
    if {first}:
        wrapt.register_post_import_hook(wrap, "mlx_lm.generate")
        import mlx_autobind
    else:
        import mlx_autobind
        wrapt.register_post_import_hook(wrap, "mlx_lm.generate")
"""


@pytest.mark.parametrize("first", [True, False])
def test_entry_points_that_others_have_wrapped(
    first: bool, run: Run, checkpoint: Path, stack: Stack
) -> None:
    known = run(program(asking()), checkpoint, agent="none").result
    start = WRAPPED_BY_OTHERS.format(first=first)
    end = "    assert counted == 2 * ['stream_generate', 'generate_step'], counted\n"
    outcome = run(program(start + asking() + end), checkpoint, agent="none")
    assert outcome.clean()[1:] == [known[1], known[1]]
    if stack.fails:
        assert known[2] != known[1]
