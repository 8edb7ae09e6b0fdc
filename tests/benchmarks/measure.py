"""The one way of measuring: things take turns, and each is a ratio to one of them.

Whatever disturbs the machine disturbs what is measured next to each other alike, so that the
ratio of the two is steadier than either; its quartiles tell how steady. Where valgrind is
there, instructions are counted too, which no other process can disturb.
"""

import dataclasses
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tests import harness

Unit = Literal["s", "instructions"]
# Undecided: the middle is beyond the limit, and the lower quartile is not, or the same thing
# measured twice differs by more than the limit allows.
Verdict = Literal["kept", "undecided", "missed"]

# Counting slows a program down fifty times.
TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """What a row has to stay within.

    Attributes:
        limit: the largest median that does.
        of: ``ratio``, or ``difference`` in the row's unit.
    """

    limit: float
    of: Literal["ratio", "difference"] = "ratio"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What one thing costs against another, of pairs that were measured in turn.

    Attributes:
        what: what was measured.
        against: what it is a ratio to.
        unit: seconds, or instructions of the processor.
        low: the lower quartile of the ratios.
        median: the middle one.
        high: the upper quartile.
        pairs: how many there were.
        base: the median of `against`, in `unit`.
        difference: the median of the differences, in `unit`.
        budget: None if there is none.
        control: the median ratio of `against` to the same thing once more, if that was measured.
    """

    what: str
    against: str
    unit: Unit
    low: float
    median: float
    high: float
    pairs: int
    base: float
    difference: float
    budget: Budget | None = None
    control: float | None = None

    def verdict(self) -> Verdict | None:
        """Tell whether the budget is kept; None if there is none."""
        if self.budget is None:
            return None
        low, median = self.low, self.median
        if self.budget.of == "difference":
            low, median = (low - 1) * self.base, self.difference
        if median <= self.budget.limit:
            return "kept"
        limit = self.budget.limit
        told = self.control is None or abs(self.control - 1) <= limit - 1
        return "missed" if told and low > limit else "undecided"


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """What is measured at a time.

    Attributes:
        run: does it. A number that it returns is what it measured itself, in seconds.
        operations: how many it does, of which one is given.
    """

    run: Callable[[], float | None]
    operations: int = 1


Blocks = dict[str, Block]
Take = Callable[[], float]


def interleave(takes: Mapping[str, Take], rounds: int) -> dict[str, list[float]]:
    """Return what each of `takes` gave in each round, after one round that warms up.

    They take turns, forwards and backwards, so that none has always the same one before it.
    """
    found: dict[str, list[float]] = {name: [] for name in takes}
    order = list(takes)
    for name in order:
        takes[name]()
    for _ in range(rounds):
        for name in order:
            found[name].append(takes[name]())
        order.reverse()
    return found


def row(
    found: Mapping[str, list[float]],
    what: str,
    against: str,
    *,
    unit: Unit = "s",
    budget: Budget | None = None,
    control: str | None = None,
) -> Row:
    """Return what `what` costs against `against`, of what `interleave` found.

    Args:
        found: what `interleave` found.
        what: one of `found`.
        against: another.
        unit: of `found`.
        budget: that it has to stay within.
        control: which of `found` is the same as `against`.
    """
    pairs = list(zip(found[what], found[against], strict=True))
    low, median, high = statistics.quantiles([one / other for one, other in pairs], n=4)
    return Row(
        what,
        against,
        unit,
        low,
        median,
        high,
        len(pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(one - other for one, other in pairs),
        budget,
        None if control is None else row(found, control, against).median,
    )


def rows(
    found: Mapping[str, list[float]],
    against: str,
    budgets: Mapping[str, Budget] | None = None,
    *,
    unit: Unit = "s",
    control: str | None = None,
) -> list[Row]:
    """Return a row for each of what `interleave` found but `against` itself.

    Args:
        found: what `interleave` found.
        against: what all are a ratio to.
        budgets: by what was measured.
        unit: of `found`.
        control: which of `found` is the same as `against`.
    """
    limits = budgets or {}
    return [
        row(
            found,
            what,
            against,
            unit=unit,
            budget=limits.get(what),
            control=control if what in limits else None,
        )
        for what in found
        if what != against
    ]


def cannot_count() -> str | None:
    """Return why instructions cannot be counted here; None if they can."""
    missing = [tool for tool in ("valgrind", "vgdb") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found" if missing else None


class Child:
    """A child interpreter that measures blocks when it is told to.

    Args:
        stage: a function of a module, as ``module:function``, that returns the blocks.
        arguments: what it is called with.
        env: variables on top of those of `tests.harness.environ`.
        counted: count instructions instead of seconds.
    """

    def __init__(
        self,
        stage: str,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        counted: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._counted = counted
        self._dumps = 0
        command = [sys.executable, "-m", "tests.benchmarks.child", stage, *map(str, arguments)]
        prefix = f"--vgdb-prefix={self._folder.name}/vgdb"
        if counted:
            # Nothing is counted, and all runs ten times as fast, until it is switched on.
            command[:0] = [
                "valgrind",
                "-q",
                prefix,
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--dump-before={MARK.__name__}",
                f"--callgrind-out-file={self._folder.name}/dump",
            ]
        extra = {"PYTHONHASHSEED": "0", "MLX_AUTOBIND": "off", **(env or {})}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if counted else None,
            text=True,
            env=harness.environ(extra),
            cwd=harness.ROOT,
        )
        self.names: list[str] = self._answer()
        if counted:
            subprocess.run(
                ["vgdb", prefix, f"--pid={self._process.pid}", "instrumentation", "on"],
                check=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a child ended with exit code {self._process.wait()}")
        return json.loads(line)

    def measure(self, name: str) -> float:
        """Return the seconds, or instructions, of one operation of the block `name`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        seconds, operations = self._answer()
        spent: float = self._instructions() if self._counted else seconds
        return spent / int(operations)

    def _instructions(self) -> float:
        # The child has made two marks, and what is before the second one is the block.
        self._dumps += 2
        dump = Path(self._folder.name) / f"dump.{self._dumps}"
        found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        assert found is not None
        dump.unlink()
        return float(found[1])

    def take(self, name: str) -> Take:
        """Return `measure` of `name`."""
        return lambda: self.measure(name)

    def close(self) -> None:
        """End it."""
        # Killed: without the agent it might not end, or abort.
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# A function of the C library that nothing else calls: valgrind knows it by its name.
MARK = os.getppid


def serve(blocks: Blocks) -> None:
    """Measure blocks as they are asked for on stdin, until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr
    gc.collect()
    gc.freeze()
    gc.disable()
    print(json.dumps(list(blocks)), file=answers, flush=True)
    for line in sys.stdin:
        block = blocks[line.rstrip("\n")]
        MARK()
        began = time.perf_counter()
        found = block.run()
        seconds = time.perf_counter() - began
        MARK()
        print(json.dumps([found or seconds, block.operations]), file=answers, flush=True)
        gc.collect()


def across(children: Mapping[str, Child], name: str, rounds: int) -> dict[str, list[float]]:
    """Return what the block `name` took in each of `children`, in turn."""
    return interleave({label: child.take(name) for label, child in children.items()}, rounds)


def joined(parts: Iterable[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """Return what several calls of `interleave` found, as one."""
    found: dict[str, list[float]] = {}
    for part in parts:
        for name, values in part.items():
            found.setdefault(name, []).extend(values)
    return found


def closed(children: Iterable[Child]) -> None:
    """End all of `children`."""
    for child in children:
        child.close()
