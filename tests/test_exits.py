"""How threads and processes end."""

import os
import signal
import sys
from pathlib import Path

import pytest

from mlx_autobind.cli import demo, launch
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

DAEMON = """
    import queue, threading
    from asking import Asker, PROMPTS
    asker = Asker()
    done, requests = threading.Event(), queue.Queue()
    def polling():
        while True:
            try:
                requests.get(timeout=0.005)
            except queue.Empty:
                pass
    def busy():
        while True:
            asker.ask("again", PROMPTS[1])
    def spinning():
        while True:
            sum(range(1000))
    def parked():
        requests.get()
    def work():
        asker.ask("daemon", PROMPTS[0])
        done.set()
        {kind}()
    threading.Thread(target=work, daemon=True).start()
    done.wait()
    asker.steps = {{"daemon": asker.steps["daemon"]}}
    asker.print()
"""


@pytest.mark.parametrize("kind", ["polling", "busy", "spinning", "parked"])
def test_a_daemon_thread_that_is_still_running(
    kind: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx: daemon threads end as they do without it")
    for _ in range(3):
        outcome = run(program(DAEMON.format(kind=kind)), checkpoint, agent="import")
        assert wrong(outcome.clean(), reference) == {}


NOT_OF_THREADING = """
    import _thread, threading
    from asking import Asker, PROMPTS
    asker = Asker()
    done, never = threading.Event(), threading.Event()
    def work(step, ends):
        asker.ask(step, PROMPTS[0])
        done.set()
        while not ends:
            sum(range(1000))
    for step, ends in (("ended", True), ("running", False)):
        done.clear()
        _thread.start_new_thread(work, (step, ends))
        done.wait()
    asker.print()
"""


def test_threads_that_threading_did_not_start(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx: threads end as they do without it")
    for _ in range(3):
        outcome = run(program(NOT_OF_THREADING), checkpoint, agent="import")
        assert wrong(outcome.clean(), reference) == {}


ENDS_MEANWHILE = """
    import threading, time
    from asking import Asker, PROMPTS
    from mlx_autobind.binding import THREAD
    asker = Asker()
    ending = threading.Event()

    def slowly(clear):
        ending.set()
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        clear()

    class Slow:
        def __del__(self):
            slowly(lambda: None)

    def as_it_ends():
        exit = THREAD.exit
        clear, exit._clear = exit._clear, lambda: slowly(clear)

    def in_a_finaliser():
        Slow()
        while True:
            sum(range(1000))

    def work():
        asker.ask("daemon", PROMPTS[0])
        {where}()
    threading.Thread(target=work, daemon=True).start()
    assert ending.wait(60)
    asker.print()
"""


@pytest.mark.parametrize("where", ["as_it_ends", "in_a_finaliser"])
def test_a_daemon_thread_in_a_finaliser(
    where: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    """No exception can leave a finaliser: it is ended once it is out of it, and not again."""
    if stack.inert:
        pytest.skip("the agent is inert on this mlx: daemon threads end as they do without it")
    outcome = run(program(ENDS_MEANWHILE.format(where=where)), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}


def test_a_busy_daemon_aborts_without_the_agent(run: Run, checkpoint: Path, stack: Stack) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("this mlx ends its threads cleanly on the CPU: there is no failure to show")
    if sys.version_info >= (3, 14):
        pytest.skip("Python 3.14 kills no daemon threads: there is no failure to show")
    if stack.plain_handle:
        pytest.skip("without the agent the daemon cannot generate at all on this mlx-lm")
    text = program(DAEMON.format(kind="busy"))
    assert any(run(text, checkpoint, agent="none").code == -6 for _ in range(10))


SHUT_DOWN_IN_GOOD_ORDER = """
    import atexit, queue, threading
    import mlx_autobind
    from asking import Asker, PROMPTS
    requests, said = queue.Queue(), []
    def stop():
        requests.put(None)
        worker.join()
        print("true" if said == ["stopped"] else said, flush=True)
    atexit.register(stop)
    asker = Asker()
    done = threading.Event()
    def work():
        asker.ask("daemon", PROMPTS[0])
        done.set()
        while True:
            try:
                if requests.get(timeout=0.005) is None:
                    break
            except queue.Empty:
                pass
        said.append("stopped")
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    done.wait()
"""


def test_a_program_that_stops_its_daemon_itself(run: Run, checkpoint: Path) -> None:
    assert run(program(SHUT_DOWN_IN_GOOD_ORDER), checkpoint, agent="none").clean() is True


READ_AT_EXIT = """
    import atexit
    import mlx.core as mx
    from asking import Asker, PROMPTS, on_thread
    class Holder:
        def __del__(self):
            print("finalised", self.lazy.item(), flush=True)
    atexit.register(lambda: print("at exit", lazy.item(), flush=True))
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    lazy = mx.arange(4).sum() + 1
    holder = Holder()
    holder.lazy = mx.arange(4).sum() + 1
"""


def test_what_the_program_reads_at_exit(run: Run, checkpoint: Path) -> None:
    for agent in ("none", "import"):
        outcome = run(program(READ_AT_EXIT), checkpoint, agent=agent)
        assert outcome.code == 0
        assert outcome.stderr == ""
        assert outcome.stdout.splitlines() == ["at exit 7", "finalised 7"]


SHORT_LIVED = """
    import json, os, threading, time
    from asking import Asker, PROMPTS
    asker = Asker()
    def native():
        return len(os.listdir("/proc/self/task"))
    def settled(most):
        # A thread that was joined is still listed until the system has ended it.
        deadline = time.monotonic() + 10
        while native() > most and time.monotonic() < deadline:
            time.sleep(0.01)
        return native()
    asker.ask("main", PROMPTS[0])
    before, answers = native(), set()
    for at in range({threads}):
        def work():
            asker.ask("worker", PROMPTS[0])
            answers.add(tuple(asker.steps["worker"].get("tokens", ())))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    same = asker.steps["worker"] == asker.steps["main"]
    print(json.dumps([settled(before + {threads}) - before, len(answers), same]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads through /proc")
@pytest.mark.timeout(600)
def test_1000_short_lived_threads(run: Run, checkpoint: Path, stack: Stack) -> None:
    text = program(SHORT_LIVED.format(threads=1000))
    grown, answers, right = run(text, checkpoint, agent="import", timeout=500).clean()
    # A native thread of the CPU backend for each stream, for ever: mlx makes it.
    assert grown <= 1000 if stack.binds_on_cpu else grown <= 2000
    assert answers == 1
    assert right


MEMORY = """
    import gc, json, threading
    import mlx.core as mx
    from asking import Asker, PROMPTS
    gc.collect()
    asker = Asker()
    asker.ask("main", PROMPTS[0])
    del asker
    gc.collect(); mx.clear_cache()
    before = mx.get_active_memory()
    asker = Asker()
    for at in range(200):
        thread = threading.Thread(target=asker.ask, args=(f"{at}", PROMPTS[at % 16]))
        thread.start()
        thread.join()
    used = mx.get_active_memory()
    del asker
    gc.collect(); mx.clear_cache()
    print(json.dumps([before, used, mx.get_active_memory()]))
"""


def test_a_model_used_by_200_threads_and_dropped_is_gone(run: Run, checkpoint: Path) -> None:
    before, used, after = run(program(MEMORY), checkpoint, agent="import").clean()
    assert used > before
    assert after <= before + (used - before) * 0.02


AS_LOCALS_GO = """
    import threading
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    class Last:
        def __del__(self):
            asker.ask("last", PROMPTS[0])
    local = threading.local()
    def work():
        local.last = Last()
    on_thread(work)
    asker.print()
"""


def test_a_finaliser_that_generates_as_the_locals_of_its_thread_go(
    run: Run, checkpoint: Path, reference: Reference
) -> None:
    steps = run(program(AS_LOCALS_GO), checkpoint, agent="import").clean()
    assert list(steps) == ["last"]
    assert wrong(steps, reference) == {}


FORKED = """
    import os, signal
    import mlx_lm
    from asking import Asker, PROMPTS
    asker = Asker()
    asker.ask("parent", PROMPTS[0])
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # mlx hangs in a forked child
        for _ in range(2):
            {entry}
        os._exit(0)
    os.waitpid(child, 0)
    asker.print()
"""
FORKED_ENTRIES = {
    "load": "mlx_lm.load(sys.argv[1])",
    "generate": "asker.ask('child', PROMPTS[0])",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("entry", FORKED_ENTRIES)
def test_a_forked_child_is_warned_once(
    entry: str, run: Run, checkpoint: Path, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing enters it")
    text = program(FORKED.format(entry=FORKED_ENTRIES[entry]))
    outcome = run(text, checkpoint, agent="import")
    assert outcome.code == 0
    assert outcome.stderr.count("mlx does not survive a fork") == 1
    assert "spawn" in outcome.stderr


FORKED_FIRST = """
    import os, signal
    import mlx_lm
    from asking import Asker, PROMPTS
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        asker = Asker()
        asker.ask("child", PROMPTS[0])
        asker.print()
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("mode", ["thread", "owner"])
def test_a_child_that_was_forked_before_any_work_is_not_warned(
    mode: str, run: Run, checkpoint: Path, reference: Reference
) -> None:
    text = program(FORKED_FIRST)
    if run(text, checkpoint, agent="none", timeout=90).code != 0:
        pytest.skip("this mlx-lm does MLX work as it is imported, and mlx does not survive a fork")
    outcome = run(text, checkpoint, agent="import", env={"MLX_AUTOBIND_MODE": mode})
    assert wrong(outcome.clean(), reference) == {}


def test_the_server_stopped_by_ctrl_c(checkpoint: Path, stack: Stack) -> None:
    if stack.mlx_lm < (0, 28, 4):
        pytest.skip("the server of this mlx-lm has no thread of its own")
    for _ in range(4):
        port = launch.free_port()
        arguments = ["-m", "mlx_lm", "server", "--model", str(checkpoint), "--port", str(port)]
        with launch.Child(arguments, agent=True) as child:
            demo._wait_for(port, child, 60)
            assert demo._ask_whole(port, "w3 w4 w5", 8)
            child.process.send_signal(signal.SIGINT)
            outcome = child.finish(30)
        assert outcome.code == 0, outcome.stderr
        assert "terminate called" not in outcome.stderr
        if not stack.inert:
            (bound,) = {record["thread_name"] for record in outcome.records}
            assert bound.startswith("Thread-1")
