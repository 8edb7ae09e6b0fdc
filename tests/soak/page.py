"""docs/reliability.md, of what docs/reliability.json holds."""

import datetime as dt
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from tests.soak.model import LENGTH, SLOTS, WEIGHTS
from tests.soak.short import AT_ONCE

# By part, then by mode; "none" is without the agent.
Results = dict[str, dict[str, dict[str, Any]]]

PARTS = {
    "threads": f"{SLOTS} threads that do at random what the public calls allow",
    "short-lived": f"Threads that live for one generation, {AT_ONCE} alive at once",
    "stateful": "Public calls in any order, found by hypothesis",
    "races": "Imports, first calls, installs and uninstalls at once",
}

TEXTS = {
    "threads": f"""\
Each of {SLOTS} slots is one thread after another. It generates, streams, abandons answers (some in
a circle of references, so that the collector ends them on whichever thread it runs), has them
closed or finished by another thread, hands prompt caches on to one other thread at a time, feeds
batches that it or another thread steps, samples, clears its streams, and dies. Every answer of up
to {LENGTH} tokens, sampled ones apart, is compared with what the same calls gave one after another
on one thread without the agent.""",
    "short-lived": """\
A fresh thread for each answer, which is compared in the same way. In `thread` mode they are spread
over several processes: mlx never ends the native thread of a stream, with the agent or without it,
and takes the longer for each step the more there are.""",
    "stateful": """\
A state machine over load, generate, step, close, hand over, clear, `uninstall`, `install` and the
death of threads. Three worker threads make the calls, one at a time, so that what is found is found
again; memory is not measured, since hypothesis keeps what it has tried. While the agent is out only
what plain mlx allows is asked for. The test suite runs a few examples of it.""",
    "races": """\
In each race two threads import the targets in different orders while two others load and generate
for the first time and one installs the agent or, by turns, uninstalls it and sometimes installs it
again, all with `sys.setswitchinterval(1e-6)`. Between races the library is purged, so that each is
a first import; every 25 races a new process makes it a cold one. Python itself refuses some imports
of a library that imports itself in a circle when two threads make them at once (`_DeadlockError`, a
module that is initialised in part), and so do the lazy modules of transformers: those are counted,
with the agent and without it. With it a hang, a wrong token, any other error or an exit code but 0
is a failure.""",
}

# From the middle third of a run to its last, in MiB, besides what a native thread costs.
MEMORY_MIB = 16.0
# What a native thread that mlx keeps costs, measured: 36 to 45 KiB.
KIB_A_THREAD = 64

INTRODUCTION = """\
What came of the soak: many threads for a long time, against the answers of one thread, with bounds
on memory and native threads. Each part runs in each mode in interpreters of its own, with a
time-out; a hang, a crash, an exit code but 0 and anything on stderr is a failure. The seed decides
what each thread does and what it hands over to whom; when it does it is up to the system."""

LEFT_OUT = f"""\
## What is left out

- A `BatchGenerator` under way on a thread that clears its streams, in `thread` mode: it does not
  survive that, nor does it in plain mlx.
- In `thread` mode, `load` and `save_prompt_cache` on a thread that has just cleared its streams and
  made no other call since: they fail as in plain mlx.
- In `shared` mode, MLX work outside of entry points on two threads at once, which the
  mode does not allow: the program compares Python's numbers.
- Text prompts: tokenizers of transformers must not be used by two threads at once. Prompts are
  tokens.
- `uninstall` while other threads are in the middle of a step, except in the races.
- Builds of Python without the GIL: none was to be had where this ran.
- Metal and CUDA.

The kinds of operations, with their weights: {", ".join(f"{k} {n}" for k, n in WEIGHTS.items())}."""


def read(file: Path) -> Results:
    """Return the results beside the page `file`; none if there is no such file."""
    beside = file.with_suffix(".json")
    found: Results = json.loads(beside.read_text()) if beside.exists() else {}
    return found


def write(file: Path, results: Results) -> None:
    """Write `results` to the page `file`, and to the JSON file beside it."""
    file.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    file.write_text(render(results))


def facts() -> dict[str, str]:
    """Return what it ran on."""
    found = {name: importlib.metadata.version(name) for name in ("mlx", "mlx-lm", "hypothesis")}
    return {
        **found,
        "Python": platform.python_version() + ("" if gil() else " without the GIL"),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }


def gil() -> bool:
    """Tell whether this interpreter has the GIL."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def memory_bound(result: dict[str, Any]) -> float:
    """Return by how many MiB memory may grow from the middle third to the last."""
    threads = int(result["threads_most"]) - int(result["threads_start"])
    return MEMORY_MIB + threads * KIB_A_THREAD / 1024


def memory_growth(result: dict[str, Any]) -> float:
    """Return by how many MiB memory has grown from the middle third to the last."""
    end, middle = int(result["memory_end"]), int(result["memory_middle"])
    return (end - middle) / 1024


def broken(result: dict[str, Any]) -> list[str]:
    """Return what is wrong with the result of a part in a mode: failures and broken bounds."""
    found = list(result["failures"])
    if not result.get("operations"):
        found.append("nothing was done")
    if result.get("threads_over"):
        found.append(
            f"{result['threads_over']} more native threads than the {result['threads_allowed']} "
            "that there may be"
        )
    if "memory_end" in result and memory_growth(result) > memory_bound(result):
        found.append(
            f"memory grew by {memory_growth(result):.1f} MiB after the warm-up; the bound is "
            f"{memory_bound(result):.1f} MiB"
        )
    return found


def render(results: Results) -> str:
    """Return the page."""
    lines = [
        "# Reliability",
        "",
        "<!-- Written by `python -m tests.soak --into docs/reliability.md`. -->",
        "",
        INTRODUCTION,
        "",
        "    python -m tests.soak --into docs/reliability.md threads short-lived stateful races",
        "",
    ]
    for part, title in PARTS.items():
        if part not in results:
            continue
        modes = results[part]
        lines += [f"## {title}", "", TEXTS[part], ""]
        lines += ["| mode | seed | how long | operations | failures |", "|---|---|---|---|---|"]
        for mode, result in modes.items():
            lines.append(
                f"| {_mode(mode)} | {result['seed']} | {result['seconds']:.0f} s | "
                f"{_amount(part, result)} | {len(broken(result)) or 'none'} |"
            )
        lines += ["", *_measures(modes)]
        lines += _counts(modes)
        wrong = [
            f"- {_mode(mode)}: {_one_line(each)}"
            for mode, result in modes.items()
            for each in broken(result)
        ]
        lines += [*wrong, ""] if wrong else []
        lines += _reproduced(modes)
    lines += [LEFT_OUT, "", "## What it ran on", ""]
    for text, where in _machines(results).items():
        lines.append(f"- {', '.join(where)}: {text}")
    return "\n".join(lines) + "\n"


def _mode(mode: str) -> str:
    return "without the agent" if mode == "none" else f"`{mode}`"


def _amount(part: str, result: dict[str, Any]) -> str:
    operations = result.get("operations", {})
    main = {"short-lived": "threads", "races": "races", "stateful": "examples"}.get(part)
    if main is not None:
        return f"{operations.get(main, 0):,} {main}"
    return f"{sum(n for kind, n in operations.items() if kind in WEIGHTS):,}"


def _measures(modes: dict[str, dict[str, Any]]) -> list[str]:
    measured = {mode: result for mode, result in modes.items() if "memory_end" in result}
    if not measured:
        return []
    lines = [
        "| mode | most memory: at the start, first third, middle, last (MiB) | grown from the "
        "middle on | bound | native threads of mlx: at the start, most, at the end | bound |",
        "|---|---|---|---|---|---|",
    ]
    for mode, result in measured.items():
        memory = ", ".join(
            f"{result[f'memory_{when}'] / 1024:.0f}" for when in ("start", "first", "middle", "end")
        )
        bound = (
            f"one more for each thread and each clear ({result['threads_allowed']})"
            if mode == "thread"
            else "none more"
        )
        lines.append(
            f"| {_mode(mode)} | {memory} | {memory_growth(result):.1f} MiB | "
            f"{memory_bound(result):.1f} MiB | {result['threads_start']}, "
            f"{result['threads_most']}, {result['threads_end']} | {bound} |"
        )
    return [*lines, ""]


def _counts(modes: dict[str, dict[str, Any]]) -> list[str]:
    kinds = sorted({kind for result in modes.values() for kind in result.get("operations", {})})
    if len(kinds) < 2:
        return []
    lines = [f"| {' | '.join(['what', *map(_mode, modes)])} |", "|" + "---|" * (len(modes) + 1)]
    for kind in kinds:
        cells = [f"{result.get('operations', {}).get(kind, 0):,}" for result in modes.values()]
        lines.append(f"| {' | '.join([kind, *cells])} |")
    return [*lines, ""]


def _reproduced(modes: dict[str, dict[str, Any]]) -> list[str]:
    commands = dict.fromkeys(result["command"] for result in modes.values())
    return [*(f"    {command}" for command in commands), ""]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]


def _machines(results: Results) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part, modes in results.items():
        for mode, result in modes.items():
            text = "; ".join(f"{name} {value}" for name, value in result["facts"].items())
            found.setdefault(text, []).append(f"{part} {_mode(mode)}")
    return found
