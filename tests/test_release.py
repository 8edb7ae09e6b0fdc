"""What is built: its contents, that it is the same each time, and that versions agree."""

import configparser
import email
import email.message
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import mlx_autobind
from tests import harness
from tests.harness import ROOT

NAME = f"mlx_autobind-{mlx_autobind.__version__}"
TIMEOUT_S = 120

# By its suffix, what a file of the package may be besides a module.
DATA = {"py.typed", "cli/page.css", "cli/page.html.jinja", "cli/page.js"}
INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def build(source: Path, out: Path, *options: str, **env: str) -> list[Path]:
    """Build what is in `source` with what is installed; return the files, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *options, source],
        capture_output=True,
        text=True,
        env=harness.environ(env),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(out.iterdir())


def tree() -> list[str]:
    """Return the files of this tree that are part of it, relative to it."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git: what belongs to the tree is not known")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=True,
    ).stdout
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).exists())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel, built from the sdist, and the sdist."""
    found = build(ROOT, tmp_path_factory.mktemp("dist"))
    assert [path.name for path in found] == [f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"]
    wheel, sdist = found
    return wheel, sdist


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(built[0])


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the sdist unpacks to."""
    folder = tmp_path_factory.mktemp("unpacked")
    # Our own file; Pythons before 3.12 need not have filters.
    with tarfile.open(built[1]) as file:
        file.extractall(folder)  # noqa: S202
    assert [path.name for path in folder.iterdir()] == [NAME]
    return folder / NAME


def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))


# --- What is in it.


def test_the_wheel_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    package = [name for name in tree() if name.startswith("mlx_autobind/")]
    odd = {name for name in package if not name.endswith(".py")}
    assert odd == {f"mlx_autobind/{name}" for name in DATA}
    expected = {*package, *(f"{NAME}.dist-info/{name}" for name in INFO)}
    assert sorted(wheel.namelist()) == sorted(expected)


def test_what_a_stranger_needs_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    found = set(wheel.namelist())
    assert {"mlx_autobind/py.typed", f"{NAME}.dist-info/licenses/LICENSE"} <= found
    assert not [name for name in found if re.search(r"(^|/)(tests?|docs|__pycache__)/", name)]
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_has_the_tree(unpacked: Path) -> None:
    found = [path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")]
    files = sorted(name for name in found if (unpacked / name).is_file())
    assert files == sorted([*tree(), "PKG-INFO"])
    for name in files:
        if name != "PKG-INFO":
            assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert os.access(unpacked / ".ci" / "run", os.X_OK)


def test_the_tests_run_from_the_sdist(unpacked: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "tests/test_settings.py"],
        capture_output=True,
        text=True,
        # Whoever runs this suite may want it more or less talkative.
        env=harness.environ({"PYTEST_ADDOPTS": ""}),
        cwd=unpacked,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed", done.stdout, re.MULTILINE), done.stdout


def test_an_index_would_take_it(built: tuple[Path, Path]) -> None:
    check = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, built)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


# --- That it is the same each time.


def elsewhere(folder: Path) -> Path:
    """Return a copy of the tree in `folder` that has other dates, order and permissions."""
    for name in reversed(tree()):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
        copy.chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o600)
        os.utime(copy, (1_000_000_000, 1_000_000_000))
    return folder


def contents(paths: Sequence[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    (alone,) = build(ROOT, tmp_path, "--wheel")
    assert alone.read_bytes() == built[0].read_bytes()


@pytest.mark.parametrize("env", [{}, {"SOURCE_DATE_EPOCH": "1796083200"}], ids=["unset", "set"])
def test_another_build_elsewhere_is_the_same(env: dict[str, str], tmp_path: Path) -> None:
    one = build(ROOT, tmp_path / "one", **env)
    other = build(elsewhere(tmp_path / "tree"), tmp_path / "other", TZ="Asia/Tokyo", **env)
    assert contents(one) == contents(other)


def test_another_date_is_another_file(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Shows that `SOURCE_DATE_EPOCH` reaches the files at all."""
    dated = build(ROOT, tmp_path, SOURCE_DATE_EPOCH="1796083200")
    assert contents(dated) != contents(built)


# --- What it says of itself.


def test_there_is_one_version(wheel: zipfile.ZipFile) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "mlx_autobind", "--version"],
        capture_output=True,
        text=True,
        env=harness.environ(),
        cwd=sys.prefix,
        timeout=TIMEOUT_S,
        check=True,
    ).stdout.strip()
    newest = next(name for name, _date in headings() if name != "Unreleased")
    assert {
        "the package": mlx_autobind.__version__,
        "what is installed": importlib.metadata.version("mlx-autobind"),
        "the wheel": metadata(wheel)["Version"],
        "--version": said,
        "CHANGELOG.md": newest,
    } == dict.fromkeys(
        ("the package", "what is installed", "the wheel", "--version", "CHANGELOG.md"),
        mlx_autobind.__version__,
    )
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in pyproject
    assert not re.search(r"^version\s*=", pyproject, re.MULTILINE)


def test_the_pythons_that_it_names_are_those_that_it_is_run_on(wheel: zipfile.ZipFile) -> None:
    said = metadata(wheel)
    named = [
        line.rpartition(" ")[2]
        for line in said.get_all("Classifier", [])
        if re.match(r"Programming Language :: Python :: 3\.\d+$", line)
    ]
    assert said["Requires-Python"] == f">={named[0]}"
    run = (ROOT / ".ci" / "run").read_text()
    for python in named:
        assert re.search(rf"-{re.escape(python)}\b", run), f"{python} is in no session of .ci/run"


def test_the_entry_points(wheel: zipfile.ZipFile) -> None:
    found = configparser.ConfigParser()
    found.read_string(wheel.read(f"{NAME}.dist-info/entry_points.txt").decode())
    hook = "mlx_autobind.instrumentor:imported"
    assert {group: dict(found[group]) for group in found.sections()} == {
        "console_scripts": {"mlx-autobind": "mlx_autobind.cli:main"},
        "opentelemetry_instrumentor": {
            "mlx_autobind": "mlx_autobind.instrumentor:MLXAutobindInstrumentor"
        },
        "mlx_autobind": dict.fromkeys(sorted(mlx_autobind.PACKAGES), hook),
    }


def test_the_extras(wheel: zipfile.ZipFile) -> None:
    assert sorted(metadata(wheel).get_all("Provides-Extra", [])) == [
        *("cli", "demo", "docs", "lm", "test", "trace", "vlm")
    ]


# --- CHANGELOG.md: Keep a Changelog 1.1.0.

CATEGORIES = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
CHANGELOG = ROOT / "CHANGELOG.md"


def headings() -> list[tuple[str, str]]:
    """Return the name and the date of each section of the change log."""
    found = re.findall(r"^## (.*)$", CHANGELOG.read_text(), re.MULTILINE)
    assert found
    named = [re.fullmatch(r"(Unreleased|\d+\.\d+\.\d+)(?: - (\d{4}-\d\d-\d\d))?", h) for h in found]
    assert all(named), f"a heading is a version and its date: {found}"
    return [(match[1], match[2] or "") for match in named if match]


def test_the_headings_of_the_changelog() -> None:
    assert CHANGELOG.read_text().startswith("# Changelog\n")
    names, dates = zip(*headings(), strict=True)
    assert names[0] == "Unreleased"
    assert dates[0] == ""
    versions = [tuple(map(int, name.split("."))) for name in names[1:]]
    assert versions == sorted(set(versions), reverse=True)
    assert all(dates[1:])
    assert list(dates[1:]) == sorted(dates[1:], reverse=True)


def test_the_sections_of_the_changelog() -> None:
    sections = re.split(r"^## .*$", CHANGELOG.read_text(), flags=re.MULTILINE)[1:]
    for at, section in enumerate(sections):
        before, *parts = re.split(r"^### (.*)$", section, flags=re.MULTILINE)
        assert not before.strip(), before
        titles, entries = parts[::2], parts[1::2]
        assert titles == [title for title in CATEGORIES if title in titles]
        assert titles or at == 0, "a release without a word of what is in it"
        for entry in entries:
            lines = entry.strip().splitlines()
            assert lines[0].startswith("- ")
            assert all(line.startswith(("- ", "  ")) for line in lines), lines


def test_the_links_of_the_changelog() -> None:
    text = CHANGELOG.read_text()
    assert "[Keep a Changelog](https://keepachangelog.com/en/1.1.0/)" in text
    assert "[Semantic Versioning](https://semver.org/spec/v2.0.0.html)" in text
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    used = set(re.findall(r"\[([^\]]+)\](?![(:])", text))
    assert used == defined
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert target.startswith("https://") or (ROOT / target).exists(), target
