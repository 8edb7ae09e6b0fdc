"""docs/errors.md and docs/scenarios.md, of what docs/compatibility.json holds.

``python -m tests.scenario_pages`` writes both; so does ``tests.compatibility table --into``.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlx_autobind.settings import MODES
from tests import compatibility
from tests.compatibility import ABSENT, EXPLAINED, RIGHT, SCENARIOS, WITHOUT
from tests.harness import ROOT

DOCS = ROOT / "docs"
MADE_BY = "<!-- Written by `python -m tests.scenario_pages`, from docs/compatibility.json. -->"

Runs = Sequence[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Symptom:
    """One way in which a program fails without the agent.

    Attributes:
        title: the heading of its column.
        seen: what a user sees and searches for.
        why: what is behind it.
        told_by: whether a verdict of `tests.compatibility` tells of it.
    """

    title: str
    seen: str
    why: str
    told_by: Callable[[str], bool]


def holding(*texts: str) -> Callable[[str], bool]:
    return lambda verdict: any(text in verdict for text in texts)


FIRST = "no Stream"  # on the page: it is what people search for
# A verdict tells of the first of them that it fits.
SYMPTOMS = (
    Symptom(
        "hang",
        "clients wait for ever, a future is never done",
        "The thread that does the work died of the first of these, or two generations wait for "
        "each other.",
        holding("hung"),
    ),
    Symptom(
        "closed connection",
        "`Remote end closed connection without response`",
        "The handler of a server died of the first of these before it answered.",
        holding("Remote end closed"),
    ),
    Symptom(
        "StreamContext",
        "`RuntimeError: [StreamContext] Destroyed in a different thread than it was "
        "constructed in.`, after `Exception ignored in`",
        "A generator was stepped, closed or collected on another thread than the one that "
        "began it. The answer is right; the first thread is left on another stream.",
        holding("StreamContext"),
    ),
    Symptom(
        FIRST,
        "`RuntimeError: There is no Stream(gpu, 1) in current thread.` (on the CPU "
        "`Stream(cpu, 0)`; the number differs)",
        "The thread uses a stream, or an array with pending work, of another thread.",
        holding("There is no Stream"),
    ),
    Symptom(
        "abort at exit",
        "`terminate called without an active exception`, exit code 134 (SIGABRT)",
        "A thread that did MLX work ends while the interpreter shuts down. The work itself "
        "was done and right.",
        holding("exit code -6"),
    ),
    Symptom(
        "crash",
        "`Segmentation fault`, exit code 139 (SIGSEGV)",
        "Two threads evaluate the same pending arrays, or a thread ends after the interpreter.",
        holding("exit code -11"),
    ),
    Symptom(
        "threads kept",
        "the number of native threads of the process grows and never falls",
        "Each thread that generates leaves one native thread for each stream that it made.",
        holding("native threads for"),
    ),
    Symptom(
        "other text",
        "an empty answer, or other tokens than on one thread, and no error",
        "The library swallowed the error, or two generations shared the state of one model.",
        holding("is not", "other tokens"),
    ),
)
OTHERWISE = Symptom("otherwise", "something else", "", lambda _verdict: True)


def symptom_of(verdict: str) -> Symptom:
    """Return what `verdict`, which is not right, tells of."""
    if "native threads for" in verdict and not verdict.endswith(", 0 failed"):
        return next(each for each in SYMPTOMS if each.title == FIRST)
    return next(each for each in (*SYMPTOMS, OTHERWISE) if each.told_by(verdict))


def failures(run: dict[str, Any]) -> dict[str, list[str]]:
    """Return the scenarios that fail on the stack of `run` without the agent, by symptom."""
    found: dict[str, list[str]] = {}
    column = run["verdicts"][WITHOUT]
    for scenario in SCENARIOS:
        verdict = column.get(scenario, ABSENT)
        if verdict not in (RIGHT, ABSENT):
            found.setdefault(symptom_of(verdict).title, []).append(scenario)
    return found


ERRORS = f"""# The error, by library and version

{MADE_BY}

What happens **without** the agent. Streams belong to the thread that made them

- from mlx 0.31.2 on, on Metal and CUDA,
- from mlx 0.32.0 on, on the CPU as well.

Up to mlx 0.31.1 any thread can use any stream.

## What you see

| symptom | message | what is behind it |
|---|---|---|
"""

BY_STACK = """
## Where you see it

Measured on Linux and the CPU, with real libraries and models with random weights, Python 3.11
unless another is named. On Metal and CUDA, by its source, mlx 0.31.2 does what 0.32 does here; that
was not measured. An `S` number is a program, described in [Scenarios](scenarios.md); it stands
at the first sign that it gave. What the agent makes of each is in
[Compatibility](compatibility.md).
"""

SINGLE = """
## Where it comes from

| mlx-lm | what it holds | what it means for threads |
|---|---|---|
| up to 0.31.2 | one stream, made by the thread that imports it | every other thread fails |
| 0.31.3 | one stream for each thread | workers generate; arrays, exits and streams that \
were cleared still fail |
| 0.32 | the same, in default arguments, entered across the yields of its generators | as before, \
and generators complain when they change threads; assigning the module attribute does nothing |

mlx-vlm went the same way: plain until 0.4, one for each thread from 0.5 on. Models that keep state
on themselves (S16) mix it up between generations at once on every mlx, old ones included.

The agent does the same on all of them: [how it works](how-it-works.md).
"""


def errors(runs: Runs) -> str:
    """Return the page of what happens without the agent."""
    found = [(run, failures(run)) for run in runs]
    used = [
        each
        for each in sorted((*SYMPTOMS, OTHERWISE), key=lambda symptom: symptom.title != FIRST)
        if any(each.title in by_symptom for _run, by_symptom in found)
    ]
    lines = [f"| {each.title} | {each.seen} | {each.why} |" for each in used]
    lines += [BY_STACK, "| mlx | mlx-lm | mlx-vlm | without the agent |", "|---|---|---|---|"]
    for run, by_symptom in found:
        cells = [run["stack"].get(name, "") for name in ("mlx", "mlx-lm", "mlx-vlm")]
        python = run["stack"]["python"].rpartition(".")[0]
        if python != "3.11":
            cells[0] += f" (Python {python})"
        said = [
            f"**{each.title}:** {shortened(by_symptom[each.title])}"
            for each in used
            if each.title in by_symptom
        ]
        lines.append(f"| {' | '.join(cells)} | {'; '.join(said) or 'all right'} |")
    return ERRORS + "\n".join(lines) + "\n" + SINGLE


def shortened(scenarios: Sequence[str]) -> str:
    """Return the names of `scenarios`, what follows one another as a range."""
    order = list(SCENARIOS)
    ranges: list[list[str]] = []
    for each in scenarios:
        if ranges and order.index(each) == order.index(ranges[-1][-1]) + 1:
            ranges[-1].append(each)
        else:
            ranges.append([each])
    return ", ".join(
        ", ".join(each) if len(each) < 3 else f"{each[0]} to {each[-1]}" for each in ranges
    )


# In the words of whoever has such a program.
PLAIN = {
    "S1": "You load the model at start-up and answer requests on worker threads: a `Thread`, a "
    "pool, `asyncio.to_thread`.",
    "S2": "You generate on the main thread, then on a worker, then on the main thread again.",
    "S3": "Four threads generate at once, sixteen times.",
    "S4": "A worker loads the model and ends; others use it. The model scales its rotary "
    "positions (Llama 3, YaRN) or has a sliding window.",
    "S5": "You load with `lazy=True` on one thread and generate on another.",
    "S6": "A conversation's prompt cache goes from thread to thread, also after a turn that was "
    "interrupted.",
    "S7": "A prompt cache is saved to a file or loaded from one on another thread.",
    "S8": "A web framework takes each item of a streaming answer on another thread, several "
    "answers at once.",
    "S9": "A client leaves, and its generator is closed or collected on another thread.",
    "S10": "You build and feed a `BatchGenerator` on one thread and step it on another.",
    "S10b": "Two threads step one `BatchGenerator` in turn.",
    "S11": "You run `mlx_lm.server`.",
    "S12": "Your program ends while a pool is there, after threads were joined, or with a "
    "daemon thread that waits. Its exit code has to be 0.",
    "S13": "Your program starts a thread for each request, hundreds of them.",
    "S14": "A worker imports the library, and ends.",
    "S15": "Your program, or a library, calls `mx.clear_streams()`.",
    "S16": "Vision models: inputs prepared on one thread and used on another, pictures and "
    "text, many at once.",
    "S17": "You run `mlx_vlm.server`.",
    "S18": "The agent comes late: the libraries were imported, and names taken from them.",
    "S21": "Your own code computes with an array on one thread (a weight multiplied after "
    "loading) and another thread reads it.",
}
# What is no column of the matrix.
ELSEWHERE = (
    (
        "S19",
        "Your program has children: spawn, forkserver, `subprocess`, `uvicorn --reload`, "
        "`--workers`.",
        "depends on how the agent is enabled, not on the mode: [How Python starts](starting.md)",
    ),
    (
        "S20",
        "You run `python -m mlx_lm generate`, `python -m mlx_lm.generate` or a console script.",
        "right in every mode: `tests/test_entry_ways.py`",
    ),
)

HEAD = f"""# Scenarios

{MADE_BY}

Right means: the tokens of the same calls made one after another on one thread, nothing on stderr,
exit code 0. The columns count the stacks of [Compatibility](compatibility.md) on which mlx binds
streams to threads on the CPU (mlx 0.32 and later) and on which there is such a thing.

"""

FOOT = """
`explained`: the error remains, and says in its own text which thread the array belongs to, what to
do, and which mode cures it. The programs are in `tests/programs` and `tests/test_scenarios.py`.
This runs them all on every stack, in an hour or two, and writes these pages anew:

```shell
nox -f .ci/noxfile.py -t matrix
```
"""


def verdict_on(verdicts: Sequence[str]) -> str:
    """Return what a cell says of the verdicts of all stacks in one mode."""
    right = verdicts.count(RIGHT)
    if right == len(verdicts):
        return f"all {right}"
    explained = verdicts.count(EXPLAINED)
    if explained == len(verdicts):
        return "explained"
    return f"{right} of {len(verdicts)}" + (f", {explained} explained" if explained else "")


def scenarios(runs: Runs) -> str:
    """Return the page of the scenarios in plain words."""
    bound = [
        run
        for run in runs
        if tuple(int(part) for part in run["stack"]["mlx"].split(".")) >= (0, 32, 0)
    ]
    columns = (WITHOUT, *MODES)
    heads = ["", "your program", "without the agent", *(f"`{mode}`" for mode in MODES)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for scenario, text in PLAIN.items():
        cells = []
        for column in columns:
            verdicts = [run["verdicts"].get(column, {}).get(scenario, ABSENT) for run in bound]
            cells.append(verdict_on([each for each in verdicts if each != ABSENT]))
        lines.append(f"| {scenario} | {text} | {' | '.join(cells)} |")
    lines.append("")
    lines += [f"- {name}: {text} With the agent: {what}." for name, text, what in ELSEWHERE]
    return HEAD + "\n".join(lines) + "\n" + FOOT


PAGES: dict[str, Callable[[Runs], str]] = {"errors.md": errors, "scenarios.md": scenarios}


def write(folder: Path) -> None:
    """Write the pages into `folder`, of the compatibility.json that is in it."""
    runs = compatibility.read(folder / "compatibility.json")
    for name, page in PAGES.items():
        (folder / name).write_text(page(runs))


if __name__ == "__main__":
    write(DOCS)
