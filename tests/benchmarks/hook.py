"""What the start-up hook costs an interpreter that never sees MLX.

    python tests/benchmarks/hook.py [RUNS]

Starts ``python -I -c pass`` in turn in a virtual environment with the package and in one with the
package and its hook; prints the median time of the second over the first, pair by pair.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from mlx_autobind.cli import hook

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, *files: hook.HookFile) -> Path:
    """Make a virtual environment in `folder`; return its Python."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "package.pth").write_text(f"{ROOT}\n")
    for file in files:
        (site / file.name).write_text(file.text)
    return folder / "bin" / "python"


def seconds(python: Path) -> float:
    began = time.perf_counter()
    subprocess.run([python, "-I", "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as folder:
        bare = environment(Path(folder) / "bare")
        hooked = environment(Path(folder) / "hooked", *hook.files())
        ratios = []
        for at in range(runs + 1):
            first = seconds(bare)
            second = seconds(hooked)
            if at:  # the first pair writes byte code
                ratios.append(second / first)
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"python {sys.version.split()[0]}, {runs} pairs, whole process over `python -I -c pass`")
    print(f"{'the hook':32} {median:5.2f}x   (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
