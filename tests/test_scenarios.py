"""The scenarios of the documentation: each shown failing without the agent where it does."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import demo
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack

NO_STREAM = "There is no Stream(cpu,"
Reference = dict[str, list[int]]


def wrong(steps: dict[str, Any], reference: Reference) -> dict[str, Any]:
    """Return the steps that did not give the tokens of the sequential run."""
    assert steps
    return {
        name: step
        for name, step in steps.items()
        if step.get("tokens") != reference[step["prompt"]]
    }


@pytest.mark.parametrize("scenario", ["S1", "S2", "S3"])
@pytest.mark.parametrize("agent", ["import", "sitecustomize"])
def test_right_with_the_agent(
    scenario: str, agent: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(demo.PROGRAMS, scenario, checkpoint, agent=agent)
    assert wrong(outcome.clean(), reference) == {}
    threads = {"S1": 3, "S2": 3, "S3": 4}[scenario]
    if not stack.inert:
        binds = [record for record in outcome.records if record["kind"] == "bind"]
        # A pool starts a thread only while none is idle, so S3 may need fewer than four.
        assert len(binds) == threads if scenario != "S3" else 1 <= len(binds) <= threads
        assert len({record["stream_index"] for record in binds}) == len(binds)
    else:
        assert outcome.records == []


@pytest.mark.parametrize("scenario", ["S1", "S2", "S3"])
def test_without_the_agent(
    scenario: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(demo.PROGRAMS, scenario, checkpoint, agent="none")
    failed = wrong(outcome.result, reference)
    if stack.fails:
        assert failed
        assert all(NO_STREAM in step["error"] for step in failed.values())
    else:
        assert failed == {}


POOL_LEFT = """
from asking import Asker, PROMPTS
from concurrent.futures import ThreadPoolExecutor, wait
asker = Asker()
pool = ThreadPoolExecutor(2)
wait([pool.submit(asker.ask, f"pool {at}", PROMPTS[at]) for at in range(4)])
asker.print()
"""

JOINED = """
from asking import Asker, PROMPTS, on_thread
asker = Asker()
for at in range(4):
    on_thread(asker.ask, f"joined {at}", PROMPTS[at])
asker.print()
"""

PARKED = """
import threading
from asking import Asker, PROMPTS
asker = Asker()
done, never = threading.Event(), threading.Event()
def work():
    asker.ask("parked", PROMPTS[0])
    done.set()
    never.wait()
threading.Thread(target=work, daemon=True).start()
done.wait()
asker.print()
"""

# S12: right work, then an abort as the interpreter ends.
EXITS = {"pool left": POOL_LEFT, "joined": JOINED, "parked daemon": PARKED}


@pytest.mark.parametrize("kind", EXITS)
def test_exit_code(kind: str, run: Run, checkpoint: Path, reference: Reference) -> None:
    for _ in range(3):
        outcome = run(program(EXITS[kind]), checkpoint, agent="import")
        assert wrong(outcome.clean(), reference) == {}


def test_a_pool_left_to_the_interpreter_aborts_without_the_agent(
    run: Run, checkpoint: Path, stack: Stack
) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("this mlx ends its threads cleanly on the CPU: there is no failure to show")
    if sys.version_info >= (3, 13):
        pytest.skip("Python 3.13 joins a thread once the system has ended it: nothing to show")
    # Three runs of ten abort here; that 30 in a row do not has a chance of 1 in 40,000.
    for _ in range(30):
        outcome = run(program(POOL_LEFT), checkpoint, agent="none")
        if outcome.code == -6:
            break
    assert "terminate called without an active exception" in outcome.stderr


# S14
IMPORTED_BY_A_WORKER = """
import importlib
from threading import Thread
importer = Thread(target=importlib.import_module, args=("mlx_lm",))
importer.start()
importer.join()
from asking import Asker, PROMPTS, on_thread
asker = Asker()
asker.ask("main", PROMPTS[0])
on_thread(asker.ask, "worker", PROMPTS[1])
asker.print()
"""


def test_the_library_imported_by_a_worker_that_ends(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    without = run(program(IMPORTED_BY_A_WORKER), checkpoint, agent="none")
    assert bool(wrong(without.result, reference)) is stack.fails
    outcome = run(program(IMPORTED_BY_A_WORKER), checkpoint, agent="import")
    assert wrong(outcome.clean(), reference) == {}


# S18: names, a default argument, an attribute and a closure, all taken before.
LATE = """
from mlx_lm.generate import generate_step, generation_stream, stream_generate
from mlx_lm import stream_generate as alias
import mlx.core as mx
from asking import Asker, PROMPTS, on_thread
import sys
asker = Asker()

def sum_on(value, stream=generation_stream):
    with mx.stream(stream):
        return (mx.array([value]) + 1).item()

class Server:
    stream = generation_stream
    def __init__(self):
        self._stream = generation_stream
    def sum(self, value):
        with mx.stream(self._stream), mx.stream(self.stream):
            return (mx.array([value]) + 1).item()

def closing_over(stream):
    def sum(value):
        with mx.stream(stream):
            return (mx.array([value]) + 1).item()
    return sum

server, closure, kept = Server(), closing_over(generation_stream), [generation_stream]

def from_list(value):
    with mx.stream(kept[0]):
        return (mx.array([value]) + 1).item()

if sys.argv[2] == "late":
    import mlx_autobind
asker.ask("main", PROMPTS[0])
on_thread(asker.ask, "stream_generate", PROMPTS[1], stream_generate)
on_thread(asker.ask, "alias", PROMPTS[2], alias)

def step(model, tokenizer, prompt, max_tokens):
    class Response:
        pass
    for token, _ in generate_step(mx.array(tokenizer.encode(prompt)), model, max_tokens=max_tokens):
        response = Response()
        response.token = int(token)
        yield response
        if token in tokenizer.eos_token_ids:
            break

on_thread(asker.ask, "generate_step", PROMPTS[3], step)
held = {}
holders = {"default": sum_on, "self": server.sum, "closure": closure, "list": from_list}
for name, work in holders.items():
    def keep(name=name, work=work):
        try:
            held[name] = work(41)
        except RuntimeError as error:
            held[name] = str(error)
    on_thread(keep)
asker.steps["held"] = held
asker.print()
"""


def test_activated_after_the_library(
    run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    right = dict.fromkeys(("default", "self", "closure", "list"), 42)
    without = run(program(LATE), checkpoint, "absent", agent="none").result
    held = without.pop("held")
    if stack.fails:
        assert all(NO_STREAM in held[name] for name in right)
        assert set(wrong(without, reference)) == {"stream_generate", "alias", "generate_step"}
    else:
        assert held == right
    result = run(program(LATE), checkpoint, "late", agent="none").clean()
    assert result.pop("held") == right
    assert wrong(result, reference) == {}


def test_late_activation_is_in_the_record(run: Run, checkpoint: Path, stack: Stack) -> None:
    outcome = run(
        program("""
        import dataclasses, json
        import mlx_lm, mlx_autobind
        from asking import Asker, PROMPTS, on_thread
        asker = Asker()
        on_thread(asker.ask, "worker", PROMPTS[0])
        records = [dataclasses.asdict(record) for record in mlx_autobind.rebinds()]
        print(json.dumps([records, mlx_autobind.status().late]))
        """),
        checkpoint,
        agent="none",
    )
    records, late = outcome.clean()
    if stack.inert:
        assert records == late == []
    else:
        assert [record["late"] for record in records] == [True]
        assert "mlx_lm.generate" in late
