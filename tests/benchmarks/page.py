"""docs/performance.md, of what docs/performance.json holds."""

import dataclasses
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.benchmarks import (
    binds,
    calls,
    generations,
    loading,
    owner,
    ring,
    startup,
    threads,
)
from tests.benchmarks.measure import Budget, Row, Unit

# In the order of the page.
GROUPS: dict[str, ModuleType] = {
    "startup": startup,
    "calls": calls,
    "binds": binds,
    "generations": generations,
    "threads": threads,
    "ring": ring,
    "loading": loading,
    "owner": owner,
}

INTRODUCTION = """\
What the agent costs, against the same thing without it. Every figure is a ratio of pairs: the two
sides take turns, back and forth, in the same minutes, each pair gives one ratio, and what stands
here is the middle of them and the quartiles around it. Whatever else the machine does disturbs
both sides alike. pyperf and pytest-benchmark measure one thing to its end and then the next, so
that what the machine did in between is in their ratio; hence a loop of our own.

Rows in instructions are counted by callgrind, which nothing else on the machine can disturb:
between two marks in the program, so that start-up and imports are not in them, with hash seed 0
and the garbage collector held off. mlx's own threads take different numbers of steps each time;
the quartiles say how much that is. Instructions are not time, but where there are none there is
no cost."""

WITHOUT_A_REASON = "No reason is known: a defect."

# Why a budget is not kept, by what is measured. The only thing on the page written by hand.
REASONS: dict[str, str] = {
    binds.BOUND: "paid once by each thread, and most of it because the thread has run nothing "
    "yet: the same bind on a thread that was bound before is the row after it. What is left is the "
    "stream, what clears it as the thread ends, the random state, the record and its span; nothing "
    "that is known is done twice there.",
    f"{generations.BATCH}, {generations.THREAD}": "part of it is to evaluate the prompt caches "
    "that finished prompts hand back, once each, so that any thread can use them. Without the "
    "agent they stay pending, and this program never uses them.",
}

VERDICTS = {
    "kept": "kept",
    "undecided": "cannot be told",
    "missed": "**missed**",
}

UNDECIDED = """\
*Cannot be told*: the quartiles are on both sides of the budget, or the same thing measured twice
(*once more*, below) differs by more than the budget allows. Of whole generations the instructions
tell more."""

Results = dict[str, dict[str, Any]]


def write(file: Path, results: Results) -> None:
    """Write `results` to the page `file`, and to the JSON file beside it."""
    file.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    file.write_text(render(results))


def read(file: Path) -> Results:
    """Return the results beside the page `file`; none if there is no such file."""
    beside = file.with_suffix(".json")
    found: Results = json.loads(beside.read_text()) if beside.exists() else {}
    return found


def group(rows: list[Row], facts: dict[str, str], command: str) -> dict[str, Any]:
    """Return the results of one group."""
    return {"command": command, "machine": facts, "rows": [dataclasses.asdict(row) for row in rows]}


def rows_of(results: Results, name: str) -> list[Row]:
    """Return the rows of the group `name`."""
    found = []
    for row in results[name]["rows"]:
        budget = row["budget"]
        found.append(Row(**{**row, "budget": None if budget is None else Budget(**budget)}))
    return found


def render(results: Results) -> str:
    """Return the page."""
    present = {name: rows_of(results, name) for name in GROUPS if name in results}
    lines = [
        "# Performance",
        "",
        "<!-- Written by `python -m tests.benchmarks --into docs/performance.md`. -->",
        "",
        INTRODUCTION,
        "",
        "    python -m tests.benchmarks [--quick] [--into docs/performance.md] [NAME ...]",
        "",
        "## Budgets",
        "",
        "| what | against | budget | found | quartiles | |",
        "|---|---|---|---|---|---|",
    ]
    reasons: dict[str, str] = {}
    for rows in present.values():
        for row in rows:
            verdict = row.verdict()
            if row.budget is None or verdict is None:
                continue
            lines.append(_cells(*_budget(row), VERDICTS[verdict]))
            if verdict == "missed" or (verdict == "undecided" and row.what in REASONS):
                reasons.setdefault(row.what, f"- {row.what}: {reason_of(row)}")
    lines += ["", *reasons.values(), *([""] if reasons else []), UNDECIDED, ""]
    for name, rows in present.items():
        lines += [f"## {GROUPS[name].TITLE}", "", GROUPS[name].TEXT, ""]
        lines += ["| what | against | ratio | quartiles | pairs | one of the latter | difference |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_cells(*_row(row)) for row in rows]
        lines += [""]
    lines += ["## What it was measured on", ""]
    for facts, names in _machines({name: results[name] for name in present}):
        lines += [f"- {', '.join(names)}: {facts}"]
    return "\n".join(lines) + "\n"


def reason_of(row: Row) -> str:
    """Return why the budget of `row` is not kept."""
    return REASONS.get(row.what, WITHOUT_A_REASON)


def _machines(results: Results) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for name, result in results.items():
        text = "; ".join(f"{what}: {value}" for what, value in result["machine"].items())
        found.setdefault(f"`{result['command']}`; {text}", []).append(name)
    return list(found.items())


def _label(row: Row) -> str:
    return row.what + (", in instructions" if row.unit == "instructions" else "")


def _budget(row: Row) -> tuple[str, ...]:
    assert row.budget is not None
    if row.budget.of == "ratio":
        found, limit = f"{row.median:.3f}x", f"{row.budget.limit:g}x"
        return _label(row), row.against, limit, found, _quartiles(row)
    limit = f"{amount(row.budget.limit, row.unit)} more"
    found = f"{amount(row.difference, row.unit)} more"
    low, high = ((each - 1) * row.base for each in (row.low, row.high))
    quartiles = f"{amount(low, row.unit)} to {amount(high, row.unit)}"
    return _label(row), row.against, limit, found, quartiles


def _row(row: Row) -> tuple[str, ...]:
    return (
        _label(row),
        row.against,
        f"{row.median:.3f}x",
        _quartiles(row),
        str(row.pairs),
        amount(row.base, row.unit),
        amount(row.difference, row.unit),
    )


def _quartiles(row: Row) -> str:
    return f"{row.low:.3f} to {row.high:.3f}"


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_COUNTS = ((1e9, " thousand million"), (1e6, " million"), (1e3, " thousand"), (1.0, ""))


def amount(value: float, unit: Unit) -> str:
    """Return `value`, seconds or instructions, with three digits and the unit that fits it."""
    scales = _SECONDS if unit == "s" else _COUNTS
    scale, name = next((each for each in scales if abs(value) >= each[0]), scales[-1])
    scaled = value / scale
    digits = max(0, 2 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:.{min(digits, 3)}f}{' ' if unit == 's' else ''}{name}"
