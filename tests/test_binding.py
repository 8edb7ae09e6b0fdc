"""One thread, one stream, one record; and what ends or renews that."""

import ast
from pathlib import Path

import pytest

from mlx_autobind import binding
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

BARRIER = """
    import sys, threading
    sys.setswitchinterval(1e-6)
    from asking import Asker, PROMPTS
    asker = Asker()
    barrier = threading.Barrier(32)
    def work(at):
        barrier.wait()
        asker.ask(f"thread {at}", PROMPTS[at % len(PROMPTS)])
    threads = [threading.Thread(target=work, args=(at,), name=f"T{at}") for at in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asker.print()
"""


def test_32_threads_released_into_their_first_call(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(program(BARRIER), checkpoint, agent="import")
    steps = outcome.clean()
    assert len(steps) == 32
    assert wrong(steps, reference) == {}
    if not stack.inert:
        assert len(outcome.records) == 32
        assert {record["thread_name"] for record in outcome.records} == {
            f"T{at}" for at in range(32)
        }
        assert len({record["stream_index"] for record in outcome.records}) == 32


def test_a_thread_is_bound_once(run: Run, checkpoint: Path, stack: Stack) -> None:
    text = """
        import dataclasses, json
        import mlx_autobind
        from asking import Asker, PROMPTS
        asker = Asker()
        for at in range(5):
            asker.ask(f"{at}", PROMPTS[at])
        print(json.dumps([dataclasses.asdict(record) for record in mlx_autobind.rebinds()]))
    """
    records = run(program(text), checkpoint, agent="import").clean()
    if stack.inert:
        assert records == []
        return
    (record,) = records
    assert record["kind"] == "bind"
    assert record["thread_name"] == "MainThread"
    assert record["entry_point"] == "mlx_lm.generate.stream_generate"
    assert record["device"] == "cpu:0"
    assert record["stream_index"] >= 0
    assert record["mode"] == "thread"
    assert record["late"] is False
    assert 0 < record["duration_ns"] < 1e9
    assert record["versions"]["mlx"].startswith("0.")
    assert record["versions"]["mlx_lm"].startswith("0.")
    assert record["versions"]["mlx_vlm"] is None
    assert {"where": "mlx_lm.generate.generation_stream", "action": "replaced"} in record["handles"]


CLEARED = """
    import mlx.core as mx
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    def work():
        asker.ask("before", PROMPTS[0])
        mx.clear_streams()
        asker.ask("after", PROMPTS[1])
    on_thread(work)
    asker.print()
"""


def test_a_cleared_thread_is_bound_again(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("this mlx has no clear_streams")
    without = wrong(run(program(CLEARED), checkpoint, agent="none").result, reference)
    if stack.binds_on_cpu:
        assert "after" in without
    outcome = run(program(CLEARED), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}
    assert [record["kind"] for record in outcome.records] == ["bind", "bind"]


FOREIGN_DEFAULT = """
    import mlx.core as mx
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    foreign = mx.new_stream(mx.default_device())
    def work():
        mx.set_default_stream(foreign)
        asker.ask("worker", PROMPTS[1])
    on_thread(work)
    asker.print()
"""


def test_a_default_stream_of_another_thread_is_not_kept(
    run: Run, checkpoint: Path, reference: Reference
) -> None:
    # Written for mlx 0.31.1, where every thread could share one stream.
    outcome = run(program(FOREIGN_DEFAULT), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}


FORK = """
    import os, sys, threading
    from asking import Asker, PROMPTS
    import mlx_autobind
    from mlx_autobind import binding
    asker = Asker()
    asker.ask("parent", PROMPTS[0])
    held, release = threading.Event(), threading.Event()
    def hold():
        with binding._STREAM_REBIND_LOCK:
            held.set()
            release.wait()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        free = binding._STREAM_REBIND_LOCK.acquire(blocking=False)
        os._exit(0 if free and binding.THREAD.bound is None else 3)
    release.set()
    holder.join()
    _, status = os.waitpid(child, 0)
    asker.ask("parent again", PROMPTS[1])
    asker.steps["child"] = {"prompt": PROMPTS[0], "tokens": os.waitstatus_to_exitcode(status)}
    asker.print()
"""


def test_a_forked_child_starts_unbound_and_unlocked(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is bound")
    steps = run(program(FORK), checkpoint, agent="import").clean()
    assert steps.pop("child")["tokens"] == 0
    assert wrong(steps, reference) == {}


def test_nothing_is_imported_under_the_lock() -> None:
    tree = ast.parse(Path(binding.__file__).read_text())
    locked = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and "_STREAM_REBIND_LOCK" in ast.unparse(node.items[0])
    ]
    assert len(locked) == 1
    assert not [
        inner for inner in ast.walk(locked[0]) if isinstance(inner, (ast.Import, ast.ImportFrom))
    ]


# mlx-lm and transformers themselves cannot be imported by three threads at once: Python
# breaks the deadlock with an error, without the agent as well. What the agent must not do
# is to make a hang of it, as a finder does that imports under the global import lock.
IMPORT_DEADLOCK = """
    import sys, threading
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(4)
    def guarded(work):
        start.wait()
        try:
            work()
        except Exception:
            pass
    def import_generate():
        import mlx_lm.generate
    def import_server():
        import mlx_lm.server
    def import_agent():
        import logging, wrapt
        from mlx_autobind import status
        status()
    def import_package():
        from mlx_lm import generate, load
    threads = [
        threading.Thread(target=guarded, args=(work,))
        for work in (import_generate, import_server, import_agent, import_package)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("true")
"""


def test_imports_on_several_threads_do_not_hang(run: Run) -> None:
    for _ in range(5):
        assert run(program(IMPORT_DEADLOCK), agent="import").clean() is True


FINDER_DEADLOCK = """
    import contextlib, sys, threading
    sys.setswitchinterval(1e-6)
    for round in range(200):
        for name in [name for name in sys.modules if name.startswith("mlx_lm")]:
            del sys.modules[name]
        start = threading.Barrier(2)
        def package():
            start.wait()
            with contextlib.suppress(Exception):  # Python breaks the deadlock with an error
                import mlx_lm
        def submodule():
            start.wait()
            with contextlib.suppress(Exception):
                import mlx_lm.generate
        threads = [threading.Thread(target=work) for work in (package, submodule)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("true")
"""


def test_a_package_and_its_module_imported_at_once(run: Run, tmp_path: Path) -> None:
    # A stand-in for the library: 200 imports of the real one would take minutes. What is
    # tested is the finder alone.
    package = tmp_path / "standin" / "mlx_lm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import time\ntime.sleep(0.001)\nfrom . import generate\n")
    (package / "generate.py").write_text("generation_stream = None\n")
    env = {"PYTHONPATH": str(tmp_path / "standin")}
    assert run(FINDER_DEADLOCK, agent="import", env=env).clean() is True
