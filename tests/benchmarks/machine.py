"""What the figures were measured on; no names of hosts, people or folders."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from tests.benchmarks.measure import cannot_count

PACKAGES = (
    "mlx",
    "mlx-lm",
    "wrapt",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-distro",
    "autowrapt",
    "ddtrace",
)


def facts() -> dict[str, str]:
    """Return what there is to know of this machine, its Python and its packages."""
    found = {
        "processor": f"{os.cpu_count()} x {_processor()}",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["instructions"] = _valgrind()
    # Of the minute before: how much else the machine had to do.
    found["load average at the start"] = f"{os.getloadavg()[0]:.1f}"
    return found


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _valgrind() -> str:
    reason = cannot_count()
    if reason is not None:
        return f"not counted: {reason}"
    done = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    return f"counted by callgrind, {done.stdout.strip()}"
