"""``mlx-autobind demo``: the same programs without and with the agent."""

import argparse
import importlib.util
import json
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_autobind.cli import launch
from mlx_autobind.cli.launch import Outcome
from mlx_autobind.cli.text import Progress, last_line

PROGRAMS = Path(__file__).with_name("programs.py")
RIGHT = "right"
SERVER = "S11"
SCENARIOS = {
    "S1": "load on main, generate on a worker",
    "S2": "main, worker, main again, another worker",
    "S3": "16 generations on 4 threads at once",
    SERVER: "mlx_lm.server, streaming and not",
}
# A request to a server that works takes a few milliseconds here.
PATIENCE_S = 15.0

Reference = dict[str, Any]


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "demo",
        help="run threaded programs and a real server without and with the agent",
        description=(
            "Makes a tiny random-weight checkpoint in a temporary folder, runs four programs "
            "(worker threads, alternating threads, 16 generations on 4 threads, mlx_lm.server) "
            "without and with the agent, and prints what came of each. Needs no network."
        ),
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long one program may take before it counts as hung (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo, print its tables and return 0 if all is right with the agent."""
    timeout: float = options.timeout
    if importlib.util.find_spec("mlx_lm") is None:
        print("The demo needs mlx-lm: python -m pip install 'mlx-autobind[demo]'", file=sys.stderr)
        return 2
    progress = Progress(2 + 2 * len(SCENARIOS))
    with tempfile.TemporaryDirectory(prefix="mlx-autobind-demo-") as folder:
        checkpoint = Path(folder) / "tiny"
        progress.step("making a tiny checkpoint with random weights")
        made = launch.run(
            ["-m", "mlx_autobind.cli.checkpoint", str(checkpoint)],
            agent=False,
            timeout=timeout,
            environ={"MLX_AUTOBIND": "off"},
        )
        if made.code != 0:
            return _give_up(progress, "making the checkpoint failed", made)
        progress.step("all prompts on one thread, for the right tokens")
        asked = launch.run(
            [str(PROGRAMS), "reference", str(checkpoint)], agent=False, timeout=timeout
        )
        reference = asked.result()
        if not reference:
            return _give_up(progress, "generating on one thread failed", asked)

        verdicts: dict[str, list[str]] = {}
        records: list[tuple[str, dict[str, Any]]] = []
        for scenario in SCENARIOS:
            verdicts[scenario] = []
            for agent in (False, True):
                progress.step(f"{scenario} {'with' if agent else 'without'} the agent")
                if scenario == SERVER:
                    verdict, outcome = _serve(checkpoint, reference, agent, timeout)
                else:
                    command = [str(PROGRAMS), scenario, str(checkpoint)]
                    outcome = launch.run(command, agent=agent, timeout=timeout)
                    verdict = judge(outcome, reference)
                verdicts[scenario].append(verdict)
                records += [(scenario, record) for record in outcome.records]
        progress.end()

    _print_verdicts(verdicts, records)
    _print_records(records)
    cured = all(with_agent == RIGHT for _without, with_agent in verdicts.values())
    print()
    print(_conclusion(verdicts, cured))
    return 0 if cured else 1


def judge(outcome: Outcome, reference: Reference) -> str:
    """Return `RIGHT`, or what was wrong, in a few words."""
    if outcome.code is None:
        return "hung"
    steps = outcome.result() or {}
    errors = [step["error"] for step in steps.values() if "error" in step]
    if errors:
        return f"{len(errors)} of {len(steps)}: {errors[0]}"
    wrong = [
        step for step in steps.values() if step["tokens"] != reference[step["prompt"]]["tokens"]
    ]
    if not steps or wrong:
        return f"wrong tokens in {len(wrong)} of {len(steps)} steps"
    if outcome.code != 0:
        return f"right tokens, then exit code {outcome.code}: {last_line(outcome.stderr)}"
    if outcome.stderr:
        return f"right tokens, but on stderr: {last_line(outcome.stderr)}"
    return RIGHT


def _serve(
    checkpoint: Path,
    reference: Reference,
    agent: bool,
    timeout: float,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, Outcome]:
    """Ask a real server twice at once, and stop it as a supervisor would."""
    port = launch.free_port()
    command = ["-m", "mlx_lm.server", "--model", str(checkpoint), "--port", str(port)]
    prompt, right = next(iter(reference.items()))
    answers: dict[str, str] = {}
    with launch.Child(command, agent=agent, environ=environ) as child:
        _wait_for(port, child, timeout)
        for kind, ask in (("whole", _ask_whole), ("streaming", _ask_streaming)):
            try:
                answers[kind] = ask(port, prompt, len(right["tokens"]))
            except TimeoutError:
                answers[kind] = "hung"
            except (OSError, ValueError) as error:
                answers[kind] = f"failed: {error}"
        # SIGINT runs the server's own shutdown and lets our records be written; the
        # demo judges the answers, not how a daemon thread of the server dies.
        child.process.send_signal(signal.SIGINT)
        outcome = child.finish(PATIENCE_S)
    wrong = {kind: text for kind, text in answers.items() if text.split() != right["text"].split()}
    if wrong:
        verdict = ", ".join(f"{kind}: {text or 'empty'}" for kind, text in wrong.items())
        return f"{verdict}: {last_line(outcome.stderr)}", outcome
    return RIGHT, outcome


def _wait_for(port: int, child: launch.Child, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and child.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # a server gives no other sign that it has started
        else:
            return


def _request(port: int, prompt: str, tokens: int, stream: bool) -> Any:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "stream": stream}
    return urllib.request.urlopen(
        urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        ),
        timeout=PATIENCE_S,
    )


def _ask_whole(port: int, prompt: str, tokens: int) -> str:
    with _request(port, prompt, tokens, stream=False) as response:
        return str(json.load(response)["choices"][0]["text"])


def _ask_streaming(port: int, prompt: str, tokens: int) -> str:
    text = ""
    with _request(port, prompt, tokens, stream=True) as response:
        for line in response:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                text += json.loads(line[6:])["choices"][0]["text"]
    return text


def _give_up(progress: Progress, what: str, outcome: Outcome) -> int:
    progress.end()
    print(f"{what} (exit code {outcome.code}):\n{outcome.stderr}", file=sys.stderr)
    return 2


def _conclusion(verdicts: dict[str, list[str]], cured: bool) -> str:
    broken = [scenario for scenario, (without, _with) in verdicts.items() if without != RIGHT]
    if not cured:
        return "Something is still wrong with the agent: please report the table above."
    if broken:
        return f"Wrong without the agent: {', '.join(broken)}. Right with it: all."
    return "All is right with the agent; on these versions it was right without it, too."


def _print_verdicts(
    verdicts: dict[str, list[str]], records: list[tuple[str, dict[str, Any]]]
) -> None:
    if records:
        found = records[0][1]["versions"]
        print(", ".join(f"{name.replace('_', '-')} {found[name]}" for name in found if found[name]))
    rows = [["", "scenario", "without the agent", "with the agent"]]
    for scenario, (without, with_agent) in verdicts.items():
        rows.append([scenario, SCENARIOS[scenario], _shorten(without), _shorten(with_agent)])
    _print_table(rows)


def _shorten(text: str, width: int = 76) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _print_records(records: list[tuple[str, dict[str, Any]]]) -> None:
    print()
    rows = [["", "rebind", "thread", "stream", "entry point", "us"]]
    for scenario, record in records:
        stream = f"{record['device']} #{record['stream_index']}"
        duration = f"{record['duration_ns'] / 1000:.0f}"
        rows.append(
            [
                scenario,
                record["kind"],
                record["thread_name"],
                stream,
                record["entry_point"],
                duration,
            ]
        )
    _print_table(rows)


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    rule = ["-" * width for width in widths]
    for row in (rows[0], rule, *rows[1:]):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
