"""Which scenario is right on which stack, without the agent and with it.

    python -m tests.compatibility run FOLDER      run the scenarios on what is installed here
    python -m tests.compatibility table FOLDER    print the table of all runs in FOLDER

`run` writes one JSON file into FOLDER, named after the stack. `table --into docs` adds what
is in FOLDER to docs/compatibility.json and writes docs/compatibility.md anew, and with it the pages
of `tests.scenario_pages`. Nothing of the page is written by hand but the reasons below.
"""

import argparse
import dataclasses
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

from mlx_autobind.cli import demo
from mlx_autobind.settings import MODES
from tests import harness, stacks
from tests.harness import PROGRAMS, Outcome, program
from tests.test_arrays import HEADS, LLAMA3, MODELS
from tests.test_scenarios import IMPORTED_BY_A_WORKER, JOINED, LATE, PARKED, POOL_LEFT

RIGHT = "right"
EXPLAINED = "explained"
ABSENT = "-"
WITHOUT = "without"
TIMEOUT_S = 120.0
LATE_THREADS = 3

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


def environ(mode: str | None) -> dict[str, str]:
    """Return the variable that asks for `mode`."""
    return {} if mode is None else {"MLX_AUTOBIND_MODE": mode}


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

    def run(self, name: str, path: str | Path, *arguments: object, mode: str | None) -> Outcome:
        """Run a program in a mode of the agent, or without it, in a folder of its own."""
        own = self.folder / f"{name}-{mode}"
        own.mkdir()
        return harness.run(
            path,
            *arguments,
            agent="none" if mode is None else "import",
            folder=own,
            env=environ(mode),
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
        made = self.run("make", make, mode=None)
        if made.code != 0:
            self.why = _last_line(made.stderr)
            return
        asked = self.run("reference", demo.PROGRAMS, "reference", self.checkpoint, mode=None)
        steps = asked.result or {}
        if any("error" in step for step in steps.values()) or not steps:
            errors = [step["error"] for step in steps.values() if "error" in step]
            self.why = errors[0] if errors else _last_line(asked.stderr)
            return
        self.reference = steps

    def steps(self, name: str, path: str | Path, mode: str | None, *arguments: object) -> str:
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

        outcome = self.run(name, path, *arguments, mode=mode)
        return same(outcome, judge)

    def language(self, mode: str | None) -> Iterator[Callable[[], dict[str, str]]]:
        """Yield the jobs for mlx-lm, each with the verdicts by scenario."""
        for scenario in ("S1", "S2", "S3"):
            yield functools.partial(self._demo, scenario, mode)
        for model in ("llama3", "sliding"):
            yield functools.partial(self._crossing, model, mode)
        yield functools.partial(self._limits, mode)
        yield functools.partial(self._server, mode)
        yield functools.partial(self._exits, mode)
        yield functools.partial(self._short_lived, mode)
        yield functools.partial(self._by_a_worker, mode)
        yield functools.partial(self._late, mode)

    def _demo(self, scenario: str, mode: str | None) -> dict[str, str]:
        return {scenario: self.steps(scenario, demo.PROGRAMS, mode, scenario, self.checkpoint)}

    def _crossing(self, model: str, mode: str | None) -> dict[str, str]:
        path = PROGRAMS / "crossing.py"
        outcome = self.run(f"crossing-{model}", path, self.folder / model, mode=mode)
        scenarios = ("S4", "S5", "S6", "S7", "S8", "S9", "S10", "S15")
        return {
            scenario: same(outcome, functools.partial(crossings, scenario=scenario))
            for scenario in scenarios
        }

    def _limits(self, mode: str | None) -> dict[str, str]:
        outcome = self.run("limits", PROGRAMS / "limits.py", self.checkpoint, mode=mode)
        return {
            "S10b": same(outcome, functools.partial(crossings, scenario="S10")),
            "S21": same(outcome, functools.partial(crossings, scenario="S21")),
        }

    def _server(self, mode: str | None) -> dict[str, str]:
        verdict, _outcome = demo._serve(
            self.checkpoint, self.reference or {}, mode is not None, TIMEOUT_S, environ(mode)
        )
        return {"S11": verdict}

    def _exits(self, mode: str | None) -> dict[str, str]:
        kinds = {"pool": POOL_LEFT, "joined": JOINED, "parked": PARKED}
        for kind, text in kinds.items():
            verdict = self.steps(kind, program(text), mode, self.checkpoint)
            if verdict != RIGHT:
                return {"S12": verdict}
        return {"S12": RIGHT}

    def _short_lived(self, mode: str | None) -> dict[str, str]:
        outcome = self.run("short", program(SHORT_LIVED), self.checkpoint, mode=mode)

        def judge(grown: list[int]) -> str:
            # The system may be late to forget one that has ended; two streams make it double.
            right = grown[0] <= grown[1] + LATE_THREADS and grown[2] == 0
            return (
                RIGHT if right else f"{grown[0]} native threads for {grown[1]}, {grown[2]} failed"
            )

        return {"S13": same(outcome, judge)}

    def _by_a_worker(self, mode: str | None) -> dict[str, str]:
        return {"S14": self.steps("S14", program(IMPORTED_BY_A_WORKER), mode, self.checkpoint)}

    def _late(self, mode: str | None) -> dict[str, str]:
        reference = self.reference or {}
        own = self.folder / f"late-{mode}"
        own.mkdir()
        outcome = harness.run(
            program(LATE),
            self.checkpoint,
            "absent" if mode is None else "late",
            agent="none",
            folder=own,
            env=environ(mode),
            timeout=TIMEOUT_S,
        )

        def judge(steps: dict[str, Any]) -> str:
            held = steps.pop("held")
            wrong = [
                step.get("error", "other tokens")
                for step in steps.values()
                if step.get("tokens") != reference[step["prompt"]]["tokens"]
            ]
            wrong += [text for text in held.values() if text != 42]
            return f"{len(wrong)} wrong: {wrong[0]}" if wrong else RIGHT

        return {"S18": same(outcome, judge)}

    def vision(self, mode: str | None) -> Iterator[Callable[[], dict[str, str]]]:
        """Yield the jobs for mlx-vlm."""
        for kind in ("stateful", "stateless"):
            yield functools.partial(self._seeing, kind, mode)
        yield functools.partial(self._vision_server, mode)

    def prepare_vision(self) -> str:
        """Make the vision models; return why they cannot be made, if they cannot."""
        path = PROGRAMS / "vision_checkpoints.py"
        made = self.run("make-vision", path, self.folder / "vision", mode=None)
        if made.code != 0:
            return _last_line(made.stderr)
        text = """
        from pathlib import Path
        from seeing import Seer, print_last
        print_last([Seer(Path(sys.argv[1]) / kind).see(2) for kind in ("stateful", "stateless")])
        """
        seen = self.run("seen", program(text), self.folder / "vision", mode=None)
        return "" if seen.result is not None else _last_line(seen.stderr)

    def _seeing(self, kind: str, mode: str | None) -> dict[str, str]:
        path = PROGRAMS / "seeing_crossing.py"
        outcome = self.run(f"seeing-{kind}", path, self.folder / "vision" / kind, mode=mode)
        return {"S16": same(outcome, crossings)}

    def _vision_server(self, mode: str | None) -> dict[str, str]:
        from tests import test_vision

        if tuple(map(int, installed()["mlx-vlm"].split("."))) < (0, 4, 4):
            return {"S17": ABSENT}  # it takes no model and other requests
        model = self.folder / "vision" / "stateless"
        picture = self.run("picture", program(test_vision.PICTURE), mode=mode).result
        url = f"data:image/png;base64,{picture}"
        try:
            answers, outcome = test_vision.served(model, url, mode)
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
    counts = []
    for at in range(200):
        if at in (50, 199):  # the first have made what the process needs once
            counts.append(native())
        on_thread(asker.ask, str(at), PROMPTS[0])
    failed = sum("error" in step for step in asker.steps.values())
    print(json.dumps([counts[1] - counts[0], 149, failed]))
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


def modes() -> list[str]:
    """Return the modes that do something on what is installed here; at least `thread`."""
    if stacks.installed().inert:
        return ["thread"]
    if stacks.installed().binds_on_cpu:
        return list(MODES)
    return [mode for mode in MODES if mode != "shared"]


def measure(only: str | None) -> dict[str, Any]:
    """Run every scenario, or those of one library, and return what came of it."""
    columns = [None, *modes()]
    with tempfile.TemporaryDirectory(prefix="mlx-autobind-") as folder:
        bench = Bench(Path(folder))
        bench.prepare()
        notes = {}
        jobs: list[tuple[str | None, Callable[[], dict[str, str]]]] = []
        if bench.reference is None:
            notes["mlx-lm"] = bench.why
        elif only != "vision":
            jobs += [(mode, job) for mode in columns for job in bench.language(mode)]
        if "mlx-vlm" in installed() and only != "language":
            why = bench.prepare_vision()
            if why:
                notes["mlx-vlm"] = why
            else:
                jobs += [(mode, job) for mode in columns for job in bench.vision(mode)]
        with ThreadPoolExecutor(2) as pool:
            done = [(mode, pool.submit(job)) for mode, job in jobs]
            verdicts: dict[str, dict[str, str]] = {name: {} for name in map(column_of, columns)}
            for mode, future in done:
                column = verdicts[column_of(mode)]
                for scenario, verdict in future.result().items():
                    column[scenario] = merge(column.get(scenario), verdict)
    return {"stack": installed(), "notes": notes, "verdicts": verdicts}


def column_of(mode: str | None) -> str:
    """Return the name of a column of the table."""
    return mode or WITHOUT


def main() -> int:
    """Run or print, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, help="the folder of the page and of its data")
    parser.add_argument("--only", choices=("language", "vision"))
    arguments = parser.parse_args()
    if arguments.action == "table":
        runs = read(arguments.folder)
        if arguments.into is None:
            print(table(runs), end="")
            return 0
        # What was run again replaces what is known of the same stack.
        known = arguments.into / "compatibility.json"
        merged = {_name(run): run for run in (read(known) if known.exists() else [])}
        merged.update({_name(run): run for run in runs})
        known.write_text(json.dumps(list(merged.values()), indent=1) + "\n")
        (arguments.into / "compatibility.md").write_text(table(read(known)))
        from tests import scenario_pages

        scenario_pages.write(arguments.into)
        return 0
    found = measure(arguments.only)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(found["stack"].values())
    (arguments.folder / f"{name}.json").write_text(json.dumps(found, indent=1))
    for scenario in SCENARIOS:
        cells = [
            f"{name}: {column[scenario][:70]}"
            for name, column in found["verdicts"].items()
            if scenario in column
        ]
        if cells:
            print(f"{scenario:5} {' | '.join(cells)}")
    for library, why in found["notes"].items():
        print(f"{library} does not work here without the agent: {why}")
    defects = [
        f"{scenario} in mode {mode}: {verdict}"
        for mode, scenario, verdict in not_right(found)
        if reason_of(found, scenario, mode, verdict) == WITHOUT_A_REASON
    ]
    for defect in defects:
        print(f"not right, and no reason is known: {defect}", file=sys.stderr)
    return 1 if defects else 0


def not_right(run: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield mode, scenario and verdict of what is not right with the agent."""
    for mode, column in run["verdicts"].items():
        for scenario, verdict in column.items():
            if mode != WITHOUT and verdict not in (RIGHT, ABSENT):
                yield mode, scenario, verdict


def read(source: Path) -> list[dict[str, Any]]:
    """Return the runs in `source`, a folder or one file, the oldest stack first."""
    if source.is_file():
        runs = json.loads(source.read_text())
    else:
        runs = [json.loads(file.read_text()) for file in source.glob("*.json")]
    order = ("mlx", "mlx-lm", "mlx-vlm", "python")

    def key(run: dict[str, Any]) -> list[list[int]]:
        return [[int(part) for part in run["stack"].get(name, "0").split(".")] for name in order]

    return sorted(runs, key=key)


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a cell of the agent's column is not right.

    Attributes:
        scenarios: those that it applies to.
        applies: whether it applies, given the versions of a stack, the mode, the verdict.
        text: the reason.
    """

    scenarios: tuple[str, ...]
    applies: Callable[[dict[str, tuple[int, ...]], str, str], bool]
    text: str


REASONS = (
    Reason(
        ("S16",),
        lambda stack, _mode, _verdict: stack["mlx"] <= (0, 31, 1),
        "mlx up to 0.31.1: the agent does nothing there. Models that keep state on themselves mix "
        "it up between generations at once, with every mlx.",
    ),
    Reason(
        ("S10b", "S21"),
        lambda _stack, mode, verdict: verdict == EXPLAINED and mode != "shared",
        "An array that is pending on one thread cannot be evaluated on another, and nothing that "
        "the agent sees tells it that one is: the error says which thread it belongs to, what to "
        "do, and which mode cures it.",
    ),
)

COLUMNS = (WITHOUT, *MODES)
WITHOUT_A_REASON = "No reason is known: a defect."

LEGEND = """\
`+` right: the tokens of the same calls made one after another on one thread, nothing on stderr,
exit code 0. `x` wrong: an error, other tokens, a hang, a line on stderr or another exit code.
`e` the error that remains is explained in its own text. `-` there is no such thing in these
versions. The first sign is the program by itself; after it comes the same program under the
agent, in the modes `thread`, `owner` and `shared` as far as they were run."""


def table(runs: list[dict[str, Any]]) -> str:
    """Return the page: a table of all runs, the reasons of its cells, and the scenarios."""
    lines = [
        "# Compatibility",
        "",
        "<!-- Written by `python -m tests.compatibility table`, from docs/compatibility.json. -->",
        "",
        "Every scenario on every stack, without the agent and with it. The programs are in",
        "`tests/programs`; they run the real libraries on models with random weights, on Linux",
        "and the CPU. mlx up to 0.31.1 lets any thread use any stream, and the agent does",
        "nothing there; mlx 0.31.2 binds them on Metal and CUDA alone.",
        "",
        LEGEND,
        "",
        "| mlx | mlx-lm | mlx-vlm | Python | " + " | ".join(SCENARIOS) + " |",
        "|" + "---|" * (4 + len(SCENARIOS)),
    ]
    reasons: dict[str, list[str]] = {}
    for run in runs:
        stack = run["stack"]
        cells = [stack.get(name, "") for name in ("mlx", "mlx-lm", "mlx-vlm")]
        cells.append(stack["python"].rpartition(".")[0])
        cells.extend(_cell(run, scenario, reasons) for scenario in SCENARIOS)
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## What is not right with the agent, and why", ""]
    for at, (reason, where) in enumerate(reasons.items(), 1):
        lines += [f"{at}. {reason}", "", *(f"    - {each}" for each in where), ""]
    if not reasons:
        lines += ["Nothing.", ""]
    unusable = [
        f"- {_name(run)}: {library} does not work at all, without the agent: `{why}`"
        for run in runs
        for library, why in run["notes"].items()
    ]
    if unusable:
        lines += ["## Libraries that do not work together", "", *unusable, ""]
    lines += ["## The scenarios", "", "| | |", "|---|---|"]
    lines += [f"| {scenario} | {text} |" for scenario, text in SCENARIOS.items()]
    return "\n".join(lines) + "\n"


def _cell(run: dict[str, Any], scenario: str, reasons: dict[str, list[str]]) -> str:
    columns = run["verdicts"]
    verdicts = {name: columns[name].get(scenario, ABSENT) for name in COLUMNS if name in columns}
    if set(verdicts.values()) == {ABSENT}:
        return ABSENT
    signs = []
    for name, verdict in verdicts.items():
        sign = _sign(verdict)
        if name != WITHOUT and verdict not in (RIGHT, ABSENT):
            reason = reason_of(run, scenario, name, verdict)
            where = reasons.setdefault(reason, [])
            where.append(f"{scenario}, mode `{name}`, {_name(run)}: `{verdict}`")
            sign += f"<sup>{list(reasons).index(reason) + 1}</sup>"
        signs.append(sign)
    return f"{signs[0]} {''.join(signs[1:])}"


def _sign(verdict: str) -> str:
    signs = {RIGHT: "+", EXPLAINED: "e", ABSENT: "-"}
    return signs.get(verdict, "x")


def _name(run: dict[str, Any]) -> str:
    versions = [f"{name} {version}" for name, version in run["stack"].items() if "mlx" in name]
    return f"{' + '.join(versions)}, Python {run['stack']['python'].rpartition('.')[0]}"


def reason_of(run: dict[str, Any], scenario: str, mode: str, verdict: str) -> str:
    """Return why `scenario` is not right in `mode` on the stack of `run`."""
    stack = {
        name: tuple(int(part) for part in version.split("."))
        for name, version in run["stack"].items()
    }
    for reason in REASONS:
        if scenario in reason.scenarios and reason.applies(stack, mode, verdict):
            return reason.text
    return WITHOUT_A_REASON


if __name__ == "__main__":
    sys.exit(main())
