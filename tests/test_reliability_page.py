"""docs/reliability.md is what docs/reliability.json says, and the soak can fail."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.settings import MODES
from tests.conftest import documented
from tests.harness import ROOT
from tests.soak import children, model, page
from tests.soak.__main__ import write
from tests.stacks import Stack

PAGE = ROOT / "docs" / "reliability.md"


@pytest.fixture
def results() -> page.Results:
    return page.read(documented(PAGE))


def test_the_page_is_generated(results: page.Results) -> None:
    assert PAGE.read_text() == page.render(results)


def test_every_part_ran_in_every_mode(results: page.Results) -> None:
    assert list(results) == list(page.PARTS)
    for part, modes in results.items():
        more = ["none"] if part == "races" else []
        assert list(modes) == [*MODES, *more]


def test_nothing_is_wrong(results: page.Results) -> None:
    assert [
        (part, mode, each)
        for part, modes in results.items()
        for mode, result in modes.items()
        for each in page.broken(result)
    ] == []


def test_nothing_of_the_machine_but_its_kind(results: page.Results) -> None:
    text = json.dumps(results)
    assert not re.search(r"(^|[\s\"'])/(home|root|tmp|work|Users|opt|var)/", text)


def test_a_seed_is_a_schedule() -> None:
    def schedule(seed: int) -> list[list[model.Operation]]:
        return [model.first(seed, slot, 200) for slot in range(model.SLOTS)]

    once = schedule(1)
    assert once == schedule(1)
    assert once != schedule(2)
    assert len({str(slot) for slot in once}) == model.SLOTS
    kinds = {operation.kind for slot in once for operation in slot}
    assert kinds == set(model.WEIGHTS)
    assert all(each.to != at for at, slot in enumerate(once) for each in slot)


MEASURED: dict[str, Any] = {
    "operations": {"stream": 1},
    "failures": [],
    "memory_start": 90 * 1024,
    "memory_first": 100 * 1024,
    "memory_middle": 100 * 1024,
    "memory_end": 101 * 1024,
    "threads_start": 8,
    "threads_most": 8,
    "threads_end": 8,
    "threads_allowed": 8,
    "threads_over": 0,
}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ""),
        ({"failures": ["slot 1"]}, "slot 1"),
        ({"operations": {}}, "nothing was done"),
        ({"memory_end": 117 * 1024}, "memory grew"),
        ({"memory_end": 117 * 1024, "threads_most": 40}, ""),
        ({"threads_over": 1}, "1 more native threads"),
    ],
)
def test_bounds(changed: dict[str, Any], wrong: str) -> None:
    found = page.broken({**MEASURED, **changed})
    assert bool(found) == bool(wrong)
    assert wrong in " ".join(found)


@pytest.fixture(scope="module")
def defective(tmp_path_factory: pytest.TempPathFactory, prepared: Path, stack: Stack) -> Path:
    """Return what a soak needs, with one token of each reference changed."""
    if stack.inert:
        pytest.skip("every mode is inert on this mlx")
    folder = tmp_path_factory.mktemp("wrong")
    shutil.copytree(prepared / "tiny", folder / "tiny")
    references = json.loads((prepared / "references.json").read_text())
    # The program compares the first answer itself before it begins.
    for tokens in [*references["tokens"][1:], *references["turns"].values()]:
        tokens[-1] += 1
    references["batches"] = {
        name: [[token + 1 for token in tokens] for tokens in answers]
        for name, answers in references["batches"].items()
    }
    (folder / "references.json").write_text(json.dumps(references))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"part": "threads", "minutes": 0.1, "slots": 4},
        {"part": "short-lived", "first": 0, "count": 20},
        {"part": "stateful", "minutes": 0, "examples": 10, "shrink": False},
        {"part": "races", "first": 0, "count": 2},
    ],
    ids=lambda options: str(options["part"]),
)
def test_a_wrong_token_is_found(options: dict[str, Any], defective: Path) -> None:
    found = children.run({"mode": "thread", "seed": 1, **options}, defective, 30)
    assert any(" is not [" in each for each in found["failures"]), found


def test_what_is_not_run_stays_on_the_page(results: page.Results, tmp_path: Path) -> None:
    file = tmp_path / "reliability.md"
    page.write(file, {part: modes for part, modes in results.items() if part != "threads"})
    for mode in ("shared", "owner", "thread"):
        write(file, "threads", mode, results["threads"][mode])
    assert page.read(file) == results
    assert list(page.read(file)) == list(results)
    assert list(page.read(file)["threads"]) == list(results["threads"])
    assert file.read_text() == page.render(results)
