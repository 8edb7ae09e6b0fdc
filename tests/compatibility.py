"""Which scenario is right on which stack, without the agent and with it.

    python -m tests.compatibility run FOLDER      run the scenarios on what is installed here
    python -m tests.compatibility table FOLDER    print the table of all runs in FOLDER

`run` writes one JSON file into FOLDER, named after the stack. `table` prints Markdown, which
is what docs/compatibility.md holds; nothing of it is written by hand but the notes below.
"""

import argparse
import functools
import importlib.metadata
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlx_autobind.cli import demo, launch
from tests import harness
from tests.harness import PROGRAMS, Outcome, program
from tests.test_arrays import HEADS, LLAMA3, MODELS
from tests.test_scenarios import IMPORTED_BY_A_WORKER, JOINED, LATE, PARKED, POOL_LEFT

RIGHT = "right"
EXPLAINED = "explained"
ABSENT = "-"
TIMEOUT_S = 60.0

Run = Callable[..., Outcome]

SCENARIOS = {
    "S1": "load on main, generate on a worker",
    "S2": "main, worker, main again, another worker",
    "S3": "16 generations on 4 threads at once",
    "S4": "scaled-RoPE and sliding-window models of a worker that has ended",
    "S5": "weights left lazy on one thread, used on another",
    "S6": "a prompt cache handed from thread to thread",
    "S7": "a prompt cache file loaded or saved on another thread",
    "S8": "generators stepped by changing threads",
    "S9": "generators closed, collected and thrown into elsewhere",
    "S10": "a batch fed on one thread and stepped on another",
    "S10b": "a batch stepped by two threads in turn",
    "S11": "`mlx_lm.server`, streaming and not",
    "S12": "exit code 0: pool left, joined, parked daemon",
    "S13": "200 short-lived threads: at most one native thread each",
    "S14": "the library imported by a worker that ends",
    "S15": "after the program called `mx.clear_streams()`",
    "S16": "vision: text and pictures, inputs of one thread used on another, many at once",
    "S17": "`mlx_vlm.server`, streaming and not",
    "S18": "activated late, with names taken before",
    "S21": "an array that the program itself left lazy",
}


def same(outcome: Outcome, judge: Callable[[Any], str]) -> str:
    """Return `RIGHT`, or what was wrong with a program whose result `judge` judges."""
    if outcome.code is None:
        return "hung"
    if outcome.result is None:
        return f"exit code {outcome.code}: {_last_line(outcome.stderr)}"
    verdict = judge(outcome.result)
    if verdict != RIGHT:
        return verdict
    if outcome.code != 0:
        return f"right, then exit code {outcome.code}: {_last_line(outcome.stderr)}"
    return RIGHT if not outcome.stderr else f"right, and on stderr: {_last_line(outcome.stderr)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing on stderr"


def crossings(results: dict[str, str], scenario: str = "") -> str:
    """Return the verdict on the crossings whose name begins with `scenario`."""
    found = [
        verdict
        for name, verdict in results.items()
        if not scenario or name.partition(" ")[0] == scenario
    ]
    if not found:
        return ABSENT
    wrong = [verdict for verdict in found if verdict != RIGHT]
    if not wrong:
        return RIGHT
    if all(verdict.startswith("explained") for verdict in wrong):
        return EXPLAINED
    first = next(verdict for verdict in wrong if not verdict.startswith("explained"))
    return f"{len(wrong)} of {len(found)} wrong: {first}"


class Bench:
    """Runs the scenarios on what is installed here.

    Attributes:
        folder: where checkpoints and reports are left.
        reference: the right tokens by prompt; None if the libraries do not work at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "plain"
        self.reference: dict[str, Any] | None = None
        self.why = ""

    def run(self, name: str, path: str | Path, *arguments: object, agent: bool) -> Outcome:
        """Run a program, with the agent or without, in a folder of its own."""
        own = self.folder / f"{name}-{agent}"
        own.mkdir()
        return harness.run(
            path,
            *arguments,
            agent="import" if agent else "none",
            folder=own,
            timeout=TIMEOUT_S,
        )

    def prepare(self) -> None:
        """Make the checkpoints, and the right answers."""
        kinds: dict[str, dict[str, Any]] = {
            "plain": {},
            "llama3": {**HEADS, "rope_scaling": LLAMA3},
            "sliding": {**HEADS, **MODELS["sliding window"]},
        }
        make = f"""
        from pathlib import Path
        from mlx_autobind.cli import checkpoint
        for name, config in {kinds!r}.items():
            checkpoint.make(Path({str(self.folder)!r}) / name, config)
        """
        made = self.run("make", make, agent=False)
        if made.code != 0:
            self.why = _last_line(made.stderr)
            return
        asked = self.run("reference", demo.PROGRAMS, "reference", self.checkpoint, agent=False)
        steps = asked.result or {}
        if any("error" in step for step in steps.values()) or not steps:
            errors = [step["error"] for step in steps.values() if "error" in step]
            self.why = errors[0] if errors else _last_line(asked.stderr)
            return
        self.reference = steps

    def steps(self, name: str, path: str | Path, agent: bool, *arguments: object) -> str:
        """Judge a program that prints steps, by the tokens of the sequential run."""
        reference = self.reference or {}

        def judge(steps: dict[str, Any]) -> str:
            errors = [step["error"] for step in steps.values() if "error" in step]
            if errors:
                return f"{len(errors)} of {len(steps)} wrong: {errors[0]}"
            wrong = [
                step
                for step in steps.values()
                if step["tokens"] != reference[step["prompt"]]["tokens"]
            ]
            return f"{len(wrong)} of {len(steps)} wrong: other tokens" if wrong else RIGHT

        outcome = self.run(name, path, *arguments, agent=agent)
        return same(outcome, judge)

    def language(self, agent: bool) -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
        """Yield the jobs for mlx-lm, each with the verdicts by scenario."""
        for scenario in ("S1", "S2", "S3"):
            yield (
                scenario,
                functools.partial(self._demo, scenario, agent),
            )
        for model in ("llama3", "sliding"):
            yield f"crossing-{model}", functools.partial(self._crossing, model, agent)
        yield "limits", functools.partial(self._limits, agent)
        yield "server", functools.partial(self._server, agent)
        yield "exits", functools.partial(self._exits, agent)
        yield "short", functools.partial(self._short_lived, agent)
        yield "S14", functools.partial(self._by_a_worker, agent)
        yield "S18", functools.partial(self._late, agent)

    def _demo(self, scenario: str, agent: bool) -> dict[str, str]:
        return {scenario: self.steps(scenario, demo.PROGRAMS, agent, scenario, self.checkpoint)}

    def _crossing(self, model: str, agent: bool) -> dict[str, str]:
        path = PROGRAMS / "crossing.py"
        outcome = self.run(f"crossing-{model}", path, self.folder / model, agent=agent)
        scenarios = ("S4", "S5", "S6", "S7", "S8", "S9", "S10", "S15")
        return {
            scenario: same(outcome, functools.partial(crossings, scenario=scenario))
            for scenario in scenarios
        }

    def _limits(self, agent: bool) -> dict[str, str]:
        outcome = self.run("limits", PROGRAMS / "limits.py", self.checkpoint, agent=agent)
        return {
            "S10b": same(outcome, functools.partial(crossings, scenario="S10")),
            "S21": same(outcome, functools.partial(crossings, scenario="S21")),
        }

    def _server(self, agent: bool) -> dict[str, str]:
        verdict, _outcome = demo._serve(self.checkpoint, self.reference or {}, agent, TIMEOUT_S)
        return {"S11": verdict}

    def _exits(self, agent: bool) -> dict[str, str]:
        kinds = {"pool": POOL_LEFT, "joined": JOINED, "parked": PARKED}
        for kind, text in kinds.items():
            for at in range(3):
                verdict = self.steps(f"{kind}{at}", program(text), agent, self.checkpoint)
                if verdict != RIGHT:
                    return {"S12": verdict}
        return {"S12": RIGHT}

    def _short_lived(self, agent: bool) -> dict[str, str]:
        outcome = self.run("short", program(SHORT_LIVED), self.checkpoint, agent=agent)

        def judge(grown: list[int]) -> str:
            right = grown[0] <= grown[1] and grown[2] == 0
            return RIGHT if right else f"{grown[0]} native threads for {grown[1]}, {grown[2]} failed"

        return {"S13": same(outcome, judge)}

    def _by_a_worker(self, agent: bool) -> dict[str, str]:
        return {"S14": self.steps("S14", program(IMPORTED_BY_A_WORKER), agent, self.checkpoint)}

    def _late(self, agent: bool) -> dict[str, str]:
        reference = self.reference or {}
        own = self.folder / f"late-{agent}"
        own.mkdir()
        when = "late" if agent else "absent"
        outcome = harness.run(
            program(LATE), self.checkpoint, when, agent="none", folder=own, timeout=TIMEOUT_S
        )

        def judge(steps: dict[str, Any]) -> str:
            held = steps.pop("held")
            wrong = [
                step.get("error", "other tokens")
                for step in steps.values()
                if step.get("tokens") != reference[step["prompt"]]["tokens"]
            ]
            wrong += [text for text in held.values() if text != 42]  # noqa: PLR2004 - 41 + 1
            return f"{len(wrong)} wrong: {wrong[0]}" if wrong else RIGHT

        return {"S18": same(outcome, judge)}

    def vision(self, agent: bool) -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
        """Yield the jobs for mlx-vlm."""
        for kind in ("stateful", "stateless"):
            yield f"seeing-{kind}", functools.partial(self._seeing, kind, agent)
        yield "vision-server", functools.partial(self._vision_server, agent)

    def prepare_vision(self) -> str:
        """Make the vision models; return why they cannot be made, if they cannot."""
        path = PROGRAMS / "vision_checkpoints.py"
        made = self.run("make-vision", path, self.folder / "vision", agent=False)
        if made.code != 0:
            return _last_line(made.stderr)
        text = """
        from pathlib import Path
        from seeing import Seer, print_last
        print_last([Seer(Path(sys.argv[1]) / kind).see(2) for kind in ("stateful", "stateless")])
        """
        seen = self.run("seen", program(text), self.folder / "vision", agent=False)
        return "" if seen.result is not None else _last_line(seen.stderr)

    def _seeing(self, kind: str, agent: bool) -> dict[str, str]:
        path = PROGRAMS / "seeing_crossing.py"
        outcome = self.run(f"seeing-{kind}", path, self.folder / "vision" / kind, agent=agent)
        return {"S16": same(outcome, crossings)}

    def _vision_server(self, agent: bool) -> dict[str, str]:
        from tests import test_vision

        if tuple(map(int, installed()["mlx-vlm"].split("."))) < (0, 4, 4):
            return {"S17": ABSENT}  # it takes no model and other requests
        model = self.folder / "vision" / "stateless"
        picture = self.run("picture", program(test_vision.PICTURE), agent=agent).result
        url = f"data:image/png;base64,{picture}"
        try:
            answers, outcome = test_vision.served(model, url, agent=agent)
        except OSError as error:
            return {"S17": f"{type(error).__name__}: {error}"}
        for what in ("text", "picture"):
            if len({answers[what][0], answers[f"{what}, streaming"][0]}) != 1:
                return {"S17": f"{what}: {answers}"}
        if outcome.code != 0:
            reason = _last_line(outcome.stderr)
            return {"S17": f"right, then exit code {outcome.code}: {reason}"}
        return {"S17": RIGHT}


SHORT_LIVED = """
    import json, os
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    native = lambda: len(os.listdir("/proc/self/task"))
    on_thread(asker.ask, "first", PROMPTS[0])
    before = native()
    for at in range(200):
        on_thread(asker.ask, str(at), PROMPTS[0])
    failed = sum("error" in step for step in asker.steps.values())
    print(json.dumps([native() - before, 200, failed]))
"""


def installed() -> dict[str, str]:
    """Return the versions that are installed here."""
    found = {"python": platform.python_version()}
    for package in ("mlx", "mlx-lm", "mlx-vlm"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def merge(known: str | None, verdict: str) -> str:
    """Return the worse of two verdicts on one scenario."""
    if known is None or known in (RIGHT, ABSENT):
        return verdict if verdict != ABSENT or known is None else known
    return known


def measure(only: str | None) -> dict[str, Any]:
    """Run every scenario, or those of one library, and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="mlx-autobind-") as folder:
        bench = Bench(Path(folder))
        bench.prepare()
        notes = {}
        jobs: list[tuple[bool, str, Callable[[], dict[str, str]]]] = []
        if bench.reference is None:
            notes["mlx-lm"] = bench.why
        elif only != "vision":
            jobs += [(agent, *job) for agent in (False, True) for job in bench.language(agent)]
        if "mlx-vlm" in installed() and only != "language":
            why = bench.prepare_vision()
            if why:
                notes["mlx-vlm"] = why
            else:
                jobs += [(agent, *job) for agent in (False, True) for job in bench.vision(agent)]
        with ThreadPoolExecutor(2) as pool:
            done = [(agent, pool.submit(job)) for agent, _name, job in jobs]
            verdicts: dict[str, dict[str, str]] = {"without": {}, "with": {}}
            for agent, future in done:
                column = verdicts["with" if agent else "without"]
                for scenario, verdict in future.result().items():
                    column[scenario] = merge(column.get(scenario), verdict)
    return {"stack": installed(), "notes": notes, **verdicts}


def main() -> int:
    """Run or print, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("language", "vision"))
    arguments = parser.parse_args()
    if arguments.action == "table":
        print(table(read(arguments.folder)), end="")
        return 0
    found = measure(arguments.only)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(found["stack"].values())
    (arguments.folder / f"{name}.json").write_text(json.dumps(found, indent=1))
    for scenario in SCENARIOS:
        if scenario in found["with"]:
            cells = found["without"][scenario], found["with"][scenario]
            print(f"{scenario:5} {cells[0][:60]:60}  {cells[1][:90]}")
    for library, why in found["notes"].items():
        print(f"{library} does not work here without the agent: {why}")
    return 0


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the runs in `folder`, the oldest stack first."""
    runs = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    order = ("mlx", "mlx-lm", "mlx-vlm", "python")

    def key(run: dict[str, Any]) -> list[list[int]]:
        return [[int(part) for part in run["stack"].get(name, "0").split(".")] for name in order]

    return sorted(runs, key=key)


def table(runs: list[dict[str, Any]]) -> str:
    """Return the page: a table of all runs, the reasons of its cells, and the scenarios."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
