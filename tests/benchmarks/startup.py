"""What the agent costs an interpreter that never sees MLX.

    python tests/benchmarks/startup.py [RUNS]

Starts ``python -c pass`` in turn bare, with an empty ``sitecustomize``, with the one of
``sitecustomize_example``, and with wrapt and the OpenTelemetry API imported at start-up as
an agent would that does not wait; prints each one's median time over the bare one's, pair
by pair.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EAGER = "import wrapt, opentelemetry.trace\n"


def environment(*path: Path) -> dict[str, str]:
    # Byte code is written and used, as in any installation.
    unset = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "MLX_AUTOBIND")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, path))}


def seconds(env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as folder:
        variants = {"bare": environment()}
        for name, text in (("empty sitecustomize", ""), ("wrapt and OpenTelemetry at once", EAGER)):
            site = Path(folder) / name.partition(" ")[0]
            site.mkdir()
            (site / "sitecustomize.py").write_text(text)
            variants[name] = environment(site, ROOT)
        variants["the agent"] = environment(ROOT / "sitecustomize_example", ROOT)
        ratios: dict[str, list[float]] = {name: [] for name in variants}
        for env in variants.values():
            seconds(env)
        for _ in range(runs):
            bare = seconds(variants["bare"])
            for name, env in variants.items():
                ratios[name].append((seconds(env) if name != "bare" else bare) / bare)
    print(f"python {sys.version.split()[0]}, {runs} pairs, whole process over `python -c pass`")
    for name, found in ratios.items():
        low, _, high = statistics.quantiles(found, n=4) if name != "bare" else (1.0, 1.0, 1.0)
        print(f"{name:32} {statistics.median(found):5.2f}x   (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
