"""Many threads for a long time, and what came of it.

    python -m tests.soak [--minutes M] [--seed N] [--mode MODE] [--races N] [--threads N]
                         [--into docs/reliability.md] PART ...

The parts are threads, short-lived, stateful and races. ``--minutes`` is for the 64 threads; the
state machine takes a fifth of it. Two children run at once. With ``--into`` the page is written,
and the JSON file beside it, as each part of a mode is done; what is not run this time stays in
there as it was.
Exit code 1 if anything failed or went over its bound.
"""

import argparse
import concurrent.futures
import itertools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlx_autobind.settings import MODES
from tests.soak import children, page
from tests.soak.model import SLOTS

# Children that run at once.
LANES = 2

RACES_A_CHILD = 25

# Without the agent there is nothing to fail: they show what Python refuses by itself.
RACES_WITHOUT = 4

# mlx keeps a native thread for each that has generated, and gets slower with each.
THREADS_A_CHILD = {"thread": 500, "owner": 10_000, "shared": 10_000}

# Seconds that a thread, or a race, may take at the very most.
THREAD_S = 0.3
RACE_S = 15.0

Job = tuple[str, str, dict[str, Any], float]


def jobs(asked: argparse.Namespace) -> Iterator[Job]:
    """Yield what is to be run: part, mode, options and seconds."""
    modes = [asked.mode] if asked.mode else list(MODES)
    for part in asked.parts:
        for mode in modes:
            yield from JOBS[part](mode, asked)
    if "races" in asked.parts:
        yield from _races("none", asked)


def _threads(mode: str, asked: argparse.Namespace) -> Iterator[Job]:
    yield "threads", mode, {"minutes": asked.minutes, "slots": SLOTS}, 60 * asked.minutes + 60


def _short_lived(mode: str, asked: argparse.Namespace) -> Iterator[Job]:
    each = THREADS_A_CHILD[mode]
    for first in range(0, asked.threads, each):
        count = min(each, asked.threads - first)
        yield "short-lived", mode, {"first": first, "count": count}, 60 + THREAD_S * count


def _stateful(mode: str, asked: argparse.Namespace) -> Iterator[Job]:
    minutes = asked.minutes / 5
    yield "stateful", mode, {"minutes": minutes}, 60 * minutes + 300


def _races(mode: str, asked: argparse.Namespace) -> Iterator[Job]:
    races = max(1, asked.races // (RACES_WITHOUT if mode == "none" else len(MODES)))
    for first in range(0, races, RACES_A_CHILD):
        count = min(RACES_A_CHILD, races - first)
        yield "races", mode, {"first": first, "count": count}, 60 + RACE_S * count


JOBS: dict[str, Callable[[str, argparse.Namespace], Iterator[Job]]] = {
    "threads": _threads,
    "short-lived": _short_lived,
    "stateful": _stateful,
    "races": _races,
}


def merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of several children as one: the worst of each figure."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.get("operations", {}))
    measured = [result for result in results if "memory_end" in result]
    figures: dict[str, Any] = {}
    if measured:
        # All figures of the child that grew most, so that they are of one process.
        figures = max(measured, key=page.memory_growth).copy()
        figures["threads_over"] = max(result["threads_over"] for result in measured)
    return {
        **figures,
        "operations": dict(sorted(counts.items())),
        "failures": list(itertools.chain(*(result["failures"] for result in results))),
    }


def command(part: str, mode: str, asked: argparse.Namespace) -> str:
    """Return what runs a part in a mode once more."""
    options = {
        "threads": f"--minutes {asked.minutes:g} ",
        "short-lived": f"--threads {asked.threads} ",
        "stateful": f"--minutes {asked.minutes:g} ",
        "races": f"--races {asked.races} ",
    }[part]
    only = "" if mode == "none" else f"--mode {mode} "
    return f"python -m tests.soak --seed {asked.seed} {options}{only}{part}"


def soak(asked: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Run what was asked for; yield each part and mode as it is done, and what came of it."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    took: dict[tuple[str, str], float] = defaultdict(float)
    facts = page.facts()

    with (
        children.folder() as prepared,
        concurrent.futures.ThreadPoolExecutor(LANES) as lanes,
    ):
        children.prepare(prepared)

        def run(job: Job) -> tuple[Job, dict[str, Any], float]:
            part, mode, options, seconds = job
            started = time.monotonic()
            given = {"part": part, "mode": None if mode == "none" else mode, "seed": asked.seed}
            result = children.run({**given, **options}, prepared, seconds)
            return job, result, time.monotonic() - started

        # The longest first, so that neither lane is left with one at the end.
        waiting = sorted(jobs(asked), key=lambda job: -job[3])
        left = Counter((part, mode) for part, mode, _, _ in waiting)
        done = [lanes.submit(run, job) for job in waiting]
        for future in concurrent.futures.as_completed(done):
            (part, mode, options, _), result, seconds = future.result()
            found.setdefault((part, mode), []).append(result)
            took[part, mode] += seconds
            left[part, mode] -= 1
            first = f" {options['first']}" if "first" in options else ""
            wrong = page.broken(result)
            print(f"{part}{first}, {mode}: {seconds:.0f} s, {wrong or 'right'}", flush=True)
            if not left[part, mode]:
                whole = {
                    "seed": asked.seed,
                    "seconds": round(took[part, mode], 1),
                    "command": command(part, mode, asked),
                    "facts": facts,
                    **merged(found.pop((part, mode))),
                }
                yield part, mode, whole


def write(file: Path, part: str, mode: str, result: dict[str, Any]) -> None:
    """Write the page `file` with `result` in it; all else stays as it was."""
    known = page.read(file)
    both = {**known.get(part, {}), mode: result}
    known[part] = {each: both[each] for each in (*MODES, "none") if each in both}
    page.write(file, {each: known[each] for each in page.PARTS if each in known})


def main() -> int:
    """Run it, and tell whether anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--races", type=int, default=1000, help="in all modes together")
    parser.add_argument("--threads", type=int, default=10_000, help="short-lived, in each mode")
    parser.add_argument("--into", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument("parts", nargs="+", choices=list(JOBS), metavar="PART")
    asked = parser.parse_args()
    wrong = []
    for part, mode, result in soak(asked):
        # As it is known: the whole takes long, and may be broken off.
        if asked.into is not None:
            write(asked.into, part, mode, result)
        wrong += [f"{part}, {mode}: {each}" for each in page.broken(result)]
    for each in wrong:
        print(f"\n{each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
