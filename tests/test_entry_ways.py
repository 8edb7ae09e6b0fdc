"""Every way into the libraries: console scripts, ``-m``, runpy, reload, lazy and zip imports."""

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_autobind.cli import demo, launch
from mlx_autobind.settings import MODES
from tests import harness
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM, Reference, wrong
from tests.test_vision import skip_if_the_mode_is_not_there, vision

__all__ = ["vision"]

SCRIPTS = Path(sys.executable).parent
# What differs from run to run: how fast it was, and how much memory it took.
MEASURED = re.compile(r"[\d.]+ (tokens-per-sec|tok/s)|(Peak memory:|peak) [\d.]+ GB")


def way(words: str) -> list[str]:
    """Return the command of a console script, or of ``-m MODULE``."""
    first, *rest = words.split()
    return [sys.executable, first, *rest] if first == "-m" else [str(SCRIPTS / first), *rest]


def start(
    command: Sequence[str], mode: str | None, text: str, options: Sequence[str] = ()
) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `command`.

    Args:
        command: a program and its arguments.
        mode: the agent's mode; None for no agent.
        text: what the program reads.
        options: of ``mlx-autobind run``.
    """
    agent = [sys.executable, "-m", "mlx_autobind", "run", f"--mode={mode}", *options, "--"]
    done = subprocess.run(
        [*(agent if mode else []), *command],
        input=text,
        capture_output=True,
        text=True,
        env=harness.environ({"NO_COLOR": "1"}),
        timeout=100,
        check=False,
    )
    return done.returncode, MEASURED.sub("-", done.stdout), done.stderr


GENERATE = ("-m mlx_lm generate", "-m mlx_lm.generate", "mlx_lm.generate")
# runpy tells of it, with the agent and without: "found in sys.modules after import of package".
COPY = "-m mlx_lm.generate"
# A job that a shell runs in the background ignores SIGINT, and so do its children.
INTERRUPTIBLE = [
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])",
]


@pytest.mark.parametrize("words", GENERATE)
def test_generate(words: str, checkpoint: Path, tmp_path: Path, stack: Stack) -> None:
    """Says the same in every mode, and each generation is a span if that is asked for."""
    command = [*way(words), "--model", str(checkpoint), "--prompt", "w5", "--max-tokens", "8"]
    code, stdout, stderr = start(command, None, "")
    assert code == 0
    assert len(re.findall(r"\bw\d+", stdout)) == 8
    assert ("RuntimeWarning" in stderr) is (words == COPY)
    if words == COPY:
        assert start(command, "thread", "") == (code, stdout, stderr)
    for mode in MODES if words == COPY else ("thread",):
        if mode == "shared" and not stack.binds_on_cpu:
            continue
        trace = tmp_path / f"{mode}.jsonl"
        options = ["--generations", "--trace", str(trace)]
        assert start(command, mode, "", options) == (code, stdout, stderr)
        if not stack.inert:
            assert trace.read_text().count('"text_completion tiny"') == 1
            assert '"mlx_lm.generate.' in trace.read_text()


@pytest.mark.parametrize(
    ("words", "mode"),
    [("-m mlx_lm chat", "thread"), ("-m mlx_lm.chat", "owner"), ("mlx_lm.chat", "shared")],
)
def test_chat(words: str, mode: str, checkpoint: Path, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    command = [*way(words), "--model", str(checkpoint), "--max-tokens", "8"]
    code, stdout, stderr = start(command, None, "w5\nw6\nq\n")
    assert code == 0
    assert len(re.findall(r"\bw\d+", stdout)) == 16
    assert start(command, mode, "w5\nw6\nq\n", ["--generations"]) == (code, stdout, stderr)


@pytest.mark.parametrize(
    ("words", "mode"),
    [("-m mlx_lm server", "thread"), ("-m mlx_lm.server", "owner"), ("mlx_lm.server", "shared")],
)
def test_server(
    words: str,
    mode: str,
    checkpoint: Path,
    reference: Reference,
    stack: Stack,
    tmp_path: Path,
) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    port = launch.free_port()
    command = [*way(words), "--model", str(checkpoint), "--port", str(port)]
    trace = tmp_path / "trace.jsonl"
    options = [f"--mode={mode}", "--generations", "--trace", str(trace), "--"]
    agent = [*INTERRUPTIBLE, sys.executable, "-m", "mlx_autobind", "run", *options]
    prompt, tokens = next(iter(reference.items()))
    right = " ".join(f"w{token - 3}" for token in tokens)
    with launch.Child([*agent, *command], agent=False) as child:
        demo._wait_for(port, child, 60)
        for ask in (demo._ask_whole, demo._ask_streaming):
            assert ask(port, prompt, len(tokens)).split() == right.split()
        child.process.send_signal(signal.SIGINT)
        outcome = child.finish(30)
    assert outcome.code == 0, outcome.stderr
    for sign in ("Traceback", NO_STREAM, "terminate called", "mlx_autobind"):
        assert sign not in outcome.stderr
    if not stack.inert:
        assert trace.read_text().count('"gen_ai.operation.name"') == 2


PICTURE = """
    from seeing import picture
    picture(2).save(sys.argv[1])
    print("null")
"""


@pytest.mark.parametrize(
    ("words", "kind", "mode"),
    [
        ("mlx_vlm.generate", "stateless", "thread"),
        ("-m mlx_vlm.generate", "stateless", "owner"),
        ("-m mlx_vlm generate", "stateful", "shared"),
    ],
)
def test_a_picture(
    words: str, kind: str, mode: str, run: Run, vision: Path, stack: Stack, tmp_path: Path
) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    picture = tmp_path / "picture.png"
    run(program(PICTURE), picture, agent="none").clean()
    asked = ["--model", str(vision / kind), "--image", str(picture), "--prompt", "w5 w6"]
    command = [*way(words), *asked, "--max-tokens", "8", "--temperature", "0"]
    code, stdout, stderr = start(command, None, "")
    if code != 0:
        pytest.skip(f"fails without the agent as well: {stderr.splitlines()[-1]}")
    assert len(re.findall(r"w\d+", stdout)) >= 8
    assert start(command, mode, "", ["--generations"]) == (code, stdout, stderr)


RUN_MODULE = """
    import io, json, runpy, threading
    from contextlib import redirect_stdout
    import mlx_lm
    sys.argv = ["mlx_lm", "generate", "--model", sys.argv[1], "--prompt", "w5",
                "--max-tokens", "8", "--verbose", "False"]
    found, said = [], io.StringIO()
    def work():
        try:
            with redirect_stdout(said):
                runpy.run_module("mlx_lm", run_name="__main__", alter_sys=True)
            found.append(said.getvalue().splitlines()[-1])
        except RuntimeError as error:
            found.append(str(error))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print(json.dumps(found))
"""


def test_runpy_on_a_worker(run: Run, checkpoint: Path, stack: Stack) -> None:
    text = program(RUN_MODULE)
    (without,) = run(text, checkpoint, agent="none").result
    (found,) = run(text, checkpoint, agent="import").clean()
    assert len(re.findall(r"\bw\d+", found)) == 8
    assert without == found or (stack.fails and NO_STREAM in without)


COPIED = """
    import runpy
    from asking import Asker, PROMPTS, on_thread
    copy = runpy.run_module("mlx_lm.generate", run_name="a_copy")
    asker = Asker()
    asker.ask("main", PROMPTS[0], copy["stream_generate"])
    on_thread(asker.ask, "worker", PROMPTS[1], copy["stream_generate"])
    asker.print()
"""


def test_a_copy_of_a_module_that_goes_by_another_name(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    """Is left as it is: no loader runs it, and nothing but the program knows of it."""
    without = run(program(COPIED), checkpoint, agent="none").result
    found = run(program(COPIED), checkpoint, agent="import").result
    assert found == without
    assert set(wrong(found, reference)) == ({"worker"} if stack.fails else set())


RELOADED = """
    import importlib
    from asking import Asker, PROMPTS, on_thread
    import mlx_lm, mlx_lm.models.cache
    asker = Asker()
    asker.ask("before", PROMPTS[0])
    for name in ("mlx_lm.models.cache", "mlx_lm.utils", "mlx_lm.generate", "mlx_lm"):
        importlib.reload(sys.modules[name])
    on_thread(asker.ask, "worker", PROMPTS[1])
    again = Asker()
    for at, name in enumerate(("main", "a worker", "another worker")):
        on_thread(again.ask, name, PROMPTS[at]) if at else again.ask(name, PROMPTS[at])
    asker.steps |= again.steps
    asker.print()
"""


@pytest.mark.parametrize("mode", MODES)
def test_reload(mode: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack) -> None:
    skip_if_the_mode_is_not_there(mode, stack)
    env = {"MLX_AUTOBIND_MODE": mode}
    outcome = run(program(RELOADED), checkpoint, agent="import", env=env)
    assert wrong(outcome.clean(), reference) == {}


# Each importer that puts the import off has to end in the same modules.
LAZY = """
    import importlib, importlib.util
    if sys.argv[2] == "import mlx_autobind first":
        import mlx_autobind

    def by_loader(name):
        spec = importlib.util.find_spec(name)
        spec.loader = loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loader.exec_module(module)

    class LazyFinder:
        "Makes every module of mlx-lm a lazy one, whoever finds it."
        busy = False

        def find_spec(self, name, path=None, target=None):
            if self.busy or name.partition(".")[0] != "mlx_lm":
                return None
            self.busy = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self.busy = False
            if spec is not None and spec.loader is not None:
                spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec

    {how}
    assert "mlx.core" not in sys.modules
    if sys.argv[2] == "import mlx_autobind then":
        import mlx_autobind
        assert "mlx.core" not in sys.modules
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    on_thread(asker.ask, "worker", PROMPTS[1])
    on_thread(asker.ask, "another worker", PROMPTS[2])
    import mlx_lm.server
    if "mlx_autobind" in sys.modules:
        import mlx_autobind
        asker.steps["entry points"] = mlx_autobind.status().entry_points
    asker.print()
"""
LAZILY = {
    "LazyLoader": "by_loader('mlx_lm')",
    "a finder": "sys.meta_path.insert(0, LazyFinder())",
    "a finder behind the agent": "sys.meta_path.insert(1, LazyFinder())",
}


@pytest.mark.parametrize("how", LAZILY)
def test_lazy_importers(
    how: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    text = program(LAZY.format(how=LAZILY[how]))
    if how == "LazyLoader":
        without = run(text, checkpoint, "no agent", agent="none").result
        workers = {"worker", "another worker"}
        assert set(wrong(without, reference)) == (workers if stack.fails else set())
    for order in ("import mlx_autobind first", "import mlx_autobind then"):
        found = run(text, checkpoint, order, agent="none").clean()
        entry_points = found.pop("entry points")
        assert wrong(found, reference) == {}
        if not stack.inert:
            expected = {f"mlx_lm.generate.{name}" for name in ("generate", "stream_generate")}
            assert expected <= set(entry_points)
            assert "mlx_lm.utils.load" in entry_points


LAZY_PACKAGE = """
    def __getattr__(name):
        import importlib
        return getattr(importlib.import_module("mlx_lm"), name)
"""
USES_LAZY_PACKAGE = """
    import engine
    from threads import on_thread
    on_thread(lambda: engine.load)  # imports mlx_lm, and ends
    from asking import Asker, PROMPTS
    asker = Asker()
    on_thread(asker.ask, "worker", PROMPTS[0], lambda *a, **k: engine.stream_generate(*a, **k))
    asker.ask("main", PROMPTS[1], lambda *a, **k: engine.stream_generate(*a, **k))
    asker.print()
"""


def test_a_package_that_imports_on_first_use(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack, tmp_path: Path
) -> None:
    package = tmp_path / "path" / "engine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(LAZY_PACKAGE))
    env = {"PYTHONPATH": str(tmp_path / "path")}
    without = run(program(USES_LAZY_PACKAGE), checkpoint, agent="none", env=env).result
    assert bool(wrong(without, reference)) is stack.fails
    outcome = run(program(USES_LAZY_PACKAGE), checkpoint, agent="import", env=env)
    assert wrong(outcome.clean(), reference) == {}


ZIPPED = """
    import zipfile
    from importlib.util import find_spec
    from pathlib import Path
    package = Path(find_spec("mlx_lm").origin).parent
    archive = sys.argv[2]
    with zipfile.ZipFile(archive, "w") as file:
        for path in package.rglob("*.py"):
            file.write(path, path.relative_to(package.parent))
    sys.path.insert(0, archive)
    import mlx_lm
    assert "zipimporter" in type(mlx_lm.__loader__).__name__, mlx_lm.__loader__
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    on_thread(asker.ask, "worker", PROMPTS[1])
    asker.print()
"""


def test_a_zip_file(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack, tmp_path: Path
) -> None:
    archive = tmp_path / "mlx_lm.zip"
    without = run(program(ZIPPED), checkpoint, archive, agent="none").result
    assert set(wrong(without, reference)) == ({"worker"} if stack.fails else set())
    outcome = run(program(ZIPPED), checkpoint, archive, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    assert bool(outcome.records) is not stack.inert
