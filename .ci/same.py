"""Say whether what is installed, and the sources here, are a wheel file by file.

Usage: python .ci/same.py dist/*.whl

A test run on the installed package is then one of the wheel. The exit code is 1 if they are not.
"""

import importlib.metadata
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What an installer writes itself; RECORD lists that as well.
OF_THE_INSTALLER = {
    *("INSTALLER", "RECORD", "REQUESTED", "direct_url.json"),
    *("uv_build.json", "uv_cache.json"),
}


def main(wheel: str) -> int:
    """Compare, say what differs, and return the exit code."""
    with zipfile.ZipFile(wheel) as file:
        built = {name: file.read(name) for name in file.namelist()}
    found = importlib.metadata.distribution("mlx-autobind")
    installed = {
        str(path): Path(str(path.locate())).read_bytes()
        for path in found.files or ()
        if path.suffix != ".pyc" and ".." not in path.parts  # scripts are outside
    }
    sources = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for path in (ROOT / "mlx_autobind").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    package = {name: data for name, data in built.items() if name.startswith("mlx_autobind/")}
    wrong = differing(built, installed, "installed") + differing(package, sources, "here")
    print("\n".join(wrong) or f"{len(built)} files: installed, and here, as they are in {wheel}")
    return 1 if wrong else 0


def differing(built: dict[str, bytes], other: dict[str, bytes], where: str) -> list[str]:
    """Return a sentence for each file that is not the same."""
    names = sorted(
        name
        for name in built.keys() | other.keys()
        if Path(name).name not in OF_THE_INSTALLER and built.get(name) != other.get(name)
    )
    return [f"{name} is not {where} as it is in the wheel" for name in names]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
