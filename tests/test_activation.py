"""Into the process and out of it again, without a trace."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mlx_autobind.settings import MODES
from tests import harness
from tests.conftest import Run
from tests.harness import ROOT, program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

HEAVY = ("wrapt", "opentelemetry", "mlx", "threading", "dataclasses", "logging", "typing")


@pytest.mark.parametrize("agent", ["import", "sitecustomize"])
def test_nothing_heavy_is_imported_at_start_up(agent: str) -> None:
    text = """
        import json, sys
        agent = [name for name in sys.modules if name.partition(".")[0] == "mlx_autobind"]
        print(json.dumps([agent, [name for name in {heavy} if name in sys.modules]]))
    """
    # Without the harness: `-c` alone, as the interpreter starts.
    start = "import mlx_autobind\n" if agent == "import" else ""
    env = {"PYTHONPATH": str(ROOT / "sitecustomize_example")} if agent == "sitecustomize" else {}
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(text).format(heavy=HEAVY)],
        capture_output=True,
        text=True,
        env=harness.environ(env),
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == '[["mlx_autobind"], []]'


def test_switched_off(run: Run) -> None:
    text = """
        import json, sys
        import mlx_autobind, mlx_lm
        finders = [type(finder).__module__ for finder in sys.meta_path]
        status = mlx_autobind.status()
        print(json.dumps(["mlx_autobind" in finders, status.installed, status.inert,
                          len(status.entry_points)]))
    """
    for value in ("off", "0", "False", " NO "):
        found = run(text, agent="none", env={"MLX_AUTOBIND": value}).clean()
        assert found == [False, False, "not installed", 0]


def test_install_is_idempotent(run: Run) -> None:
    text = """
        import json, sys
        import mlx_autobind
        for _ in range(3):
            mlx_autobind.install()
        finders = [finder for finder in sys.meta_path if "mlx_autobind" in type(finder).__module__]
        import mlx_lm
        first = mlx_autobind.status()
        mlx_autobind.install()
        print(json.dumps([len(finders), mlx_autobind.status() == first]))
    """
    assert run(text, agent="none").clean() == [1, True]


UNINSTALL = """
    import json, sys
    import mlx.core as mx
    if sys.argv[2] == "late":
        import mlx_lm, mlx_lm.server
    import mlx_autobind
    import mlx_lm, mlx_lm.server
    # Aliases, of what was patched and of what is patched only now.
    from mlx_lm import generate, stream_generate
    from mlx_lm.generate import generate_step, generation_stream
    import mlx_autobind
    import functools
    from asking import Asker, PROMPTS, on_thread
    from leftovers import left, ours

    class Holder:
        generate = staticmethod(generate)
        def __init__(self):
            self.stream = stream_generate
    holder, table = Holder(), {"step": generate_step}
    def closing_over(function):
        return lambda: function
    closure = closing_over(generate)
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    active = mlx_autobind.status().active
    before = len(left())
    mlx_autobind.uninstall()
    mlx_autobind.uninstall()
    after = left()
    held = [vars(Holder)["generate"].__func__, holder.stream, table["step"], closure()]
    after += [f"held {at}" for at, value in enumerate(held) if ours(value)]
    plain = isinstance(generation_stream, (mx.Stream, getattr(mx, "ThreadLocalStream", mx.Stream)))
    asker.ask("uninstalled", PROMPTS[1])
    mlx_autobind.install()
    on_thread(asker.ask, "worker, installed again", PROMPTS[2])
    mlx_autobind.uninstall()
    print(json.dumps([asker.steps, active, before, after, left(), plain]))
"""


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize(
    "env",
    [{}, {"MLX_AUTOBIND_GENERATIONS": "1"}, *({"MLX_AUTOBIND_MODE": mode} for mode in MODES[1:])],
    ids=["thread", "generations", *MODES[1:]],
)
def test_uninstall_leaves_nothing(
    when: str,
    env: dict[str, str],
    run: Run,
    checkpoint: Path,
    reference: Reference,
    stack: Stack,
) -> None:
    if env.get("MLX_AUTOBIND_MODE") == "shared" and not stack.binds_on_cpu:
        pytest.skip("mlx has streams that any thread may use from 0.32.0 on")
    outcome = run(program(UNINSTALL), checkpoint, when, agent="none", env=env)
    steps, active, before, after, again, plain = outcome.clean()
    assert wrong(steps, reference) == {}
    assert active is not stack.inert
    assert before > 10 or stack.inert
    assert after == again == []
    assert plain


OTHERS_ON_TOP = """
    import functools, json, sys
    import mlx_autobind
    import mlx_lm, wrapt
    from asking import Asker, PROMPTS
    module = sys.modules["mlx_lm.generate"]
    calls = []

    def note(wrapped, instance, args, kwargs):
        calls.append(f"wrapt {wrapped.__name__}")
        return wrapped(*args, **kwargs)
    wrapt.wrap_function_wrapper("mlx_lm.generate", "generate", note)
    wrapt.wrap_function_wrapper("mlx_lm.generate", "stream_generate", note)
    wrapt.wrap_function_wrapper("mlx_lm.generate", "BatchGenerator.next", note)

    held = module.batch_generate
    @functools.wraps(held)
    def closure(*args, **kwargs):
        calls.append("closure")
        return held(*args, **kwargs)
    module.batch_generate = closure

    asker = Asker()
    def ask():
        calls.clear()
        text = module.generate(asker.model, asker.tokenizer, PROMPTS[0], max_tokens=16)
        ids = [asker.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
        batch = module.batch_generate(asker.model, asker.tokenizer, ids, max_tokens=8)
        return [text, batch.texts, sorted(set(calls))]

    with_agent = ask()
    mlx_autobind.uninstall()
    without = ask()
    print(json.dumps([with_agent, without, module.batch_generate is closure]))
"""


def test_wrappers_that_others_laid_over_ours_go_on_working(run: Run, checkpoint: Path) -> None:
    with_agent, without, kept = run(program(OTHERS_ON_TOP), checkpoint, agent="import").clean()
    assert with_agent == without
    assert {"closure", "wrapt generate", "wrapt stream_generate"} <= set(without[2])
    assert kept


HOOKS_OF_OTHERS = """
    import json
    import wrapt
    calls = []
    wrapt.register_post_import_hook(lambda module: calls.append("before"), "mlx_lm.generate")
    import mlx_autobind
    wrapt.register_post_import_hook(lambda module: calls.append("after"), "mlx_lm.generate")
    import mlx_lm
    import sys
    spec = sys.modules["mlx_lm.generate"].__spec__
    print(json.dumps([calls, mlx_autobind.status().entry_points != (), type(spec.loader).__name__]))
"""


def test_post_import_hooks_of_others_run_as_well(run: Run, stack: Stack) -> None:
    calls, patched, loader = run(HOOKS_OF_OTHERS, agent="none").clean()
    assert sorted(calls) == ["after", "before"]
    assert patched is not stack.inert
    assert loader == "SourceFileLoader"


def test_a_module_that_cannot_be_imported_fails_as_without_the_agent(
    run: Run, tmp_path: Path
) -> None:
    package = tmp_path / "path" / "mlx_lm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "generate.py").write_text("1 / 0\n")
    text = """
        import importlib.util, json, sys
        found = []
        for name in ("mlx_lm.generate", "mlx_lm.no_such_module", "mlx_vlm_no_such"):
            try:
                __import__(name)
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        found.append(importlib.util.find_spec("mlx_lm.server") is None)
        print(json.dumps(found))
    """
    env = {"PYTHONPATH": str(tmp_path / "path")}
    assert run(text, agent="import", env=env).clean() == run(text, agent="none", env=env).clean()


def test_reload_is_patched_again(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    text = """
        import importlib, sys
        import mlx_lm
        module = importlib.reload(sys.modules["mlx_lm.generate"])
        from asking import Asker, PROMPTS, on_thread
        asker = Asker()
        asker.ask("main", PROMPTS[0], module.stream_generate)
        on_thread(asker.ask, "worker", PROMPTS[1], module.stream_generate)
        on_thread(asker.ask, "old name", PROMPTS[2])
        asker.print()
    """
    outcome = run(program(text), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    if not stack.inert:
        assert [record["kind"] for record in outcome.records] == ["bind"] * 3


def test_modules_of_the_users_own(run: Run, tmp_path: Path, stack: Stack) -> None:
    (tmp_path / "own_engine.py").write_text(
        "import mlx.core as mx\n"
        "generation_stream = mx.new_stream(mx.default_device())\n"
        "def run(stream=generation_stream):\n"
        "    with mx.stream(generation_stream), mx.stream(stream):\n"
        "        return (mx.array([41]) + 1).item()\n"
    )
    text = """
        import json, threading
        import own_engine
        found = []
        def work():
            try:
                found.append(own_engine.run())
            except RuntimeError as error:
                found.append(str(error))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(json.dumps(found[0]))
    """
    env = {"PYTHONPATH": str(tmp_path), "MLX_AUTOBIND_MODULES": "own_engine, not_there"}
    without = run(text, agent="none", env=env).result
    if stack.binds_on_cpu:
        assert "There is no Stream" in without
    assert run(text, agent="import", env=env).clean() == 42


def test_inert_where_there_is_nothing_to_bind(run: Run, stack: Stack) -> None:
    text = """
        import dataclasses, json
        import mlx.core as mx
        import mlx_autobind, mlx_lm
        from mlx_lm.generate import generation_stream
        status = dataclasses.asdict(mlx_autobind.status())
        print(json.dumps([status, type(generation_stream).__module__]))
    """
    status, kind = run(text, agent="import").clean()
    assert status["installed"]
    assert status["active"] is not stack.inert
    if stack.inert:
        assert kind == "mlx.core"
        assert "lets any thread use any stream" in status["inert"]
        assert status["handles"] == status["entry_points"] == []
    else:
        assert status["inert"] is None
        assert status["versions"]["mlx"]
        assert "mlx_lm.generate.generate" in status["entry_points"]


def test_status_before_anything_is_imported(run: Run) -> None:
    text = """
        import json, sys
        import mlx_autobind
        status = mlx_autobind.status()
        early = "mlx.core" in sys.modules
        print(json.dumps([status.installed, status.active, status.inert, early]))
    """
    found = run(text, agent="import").clean()
    assert found == [True, False, "no target has been imported yet", False]


UNINSTALLED_MEANWHILE = """
    import importlib.util, json, sys, threading
    import mlx_autobind

    inside, go = threading.Event(), threading.Event()

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name != "mlx_autobind.telemetry":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            def slowly(module):
                inside.set()
                go.wait(60)
                execute(module)
            spec.loader.exec_module = slowly
            return spec

    sys.meta_path.insert(0, Slow())
    library = threading.Thread(target=lambda: __import__("mlx_lm.generate"))
    library.start()
    inside.wait(60)
    uninstalling = threading.Thread(target=mlx_autobind.uninstall)
    uninstalling.start()
    uninstalling.join(0.5)
    go.set()
    for thread in (uninstalling, library):
        thread.join(60)
    status = mlx_autobind.status()
    print(json.dumps([inside.is_set(), list(status.entry_points)]))
"""


def test_uninstalled_while_the_first_library_is_patched(run: Run) -> None:
    assert run(UNINSTALLED_MEANWHILE, agent="import").clean() == [True, []]
