"""Measure what the agent costs.

    python -m tests.benchmarks [--quick] [--into docs/performance.md] [NAME ...]

Prints each ratio as it is found, and with ``--into`` writes the page and the JSON file beside
it; groups that were not measured this time stay in there as they were. About ten minutes on an
idle machine with two cores; ``--quick`` measures a fifth of it, in a third of the time.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.benchmarks import machine, page
from tests.benchmarks.scale import FULL, QUICK


def main() -> int:
    """Run the groups that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument("--into", type=Path, metavar="FILE", help="the page to write")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(page.GROUPS))
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(page.GROUPS))
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(page.GROUPS)}")
    command = "python -m tests.benchmarks" + (" --quick" if asked.quick else "")
    results = page.read(asked.into) if asked.into is not None else {}
    for name, group in page.GROUPS.items():
        if asked.names and name not in asked.names:
            continue
        facts, began, rows = machine.facts(), time.monotonic(), []
        print(f"{group.TITLE} ({name})", flush=True)
        for row in group.measure(QUICK if asked.quick else FULL):
            rows.append(row)
            unit = " (instructions)" if row.unit == "instructions" else ""
            verdict = row.verdict()
            print(
                f"  {row.median:8.3f}x  {row.low:.3f} to {row.high:.3f}  "
                f"{row.what} / {row.against}{unit}{'' if verdict is None else f': {verdict}'}",
                flush=True,
            )
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
        results[name] = page.group(rows, facts, command)
        if asked.into is not None:
            page.write(asked.into, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
