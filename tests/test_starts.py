"""How Python starts, and whether the agent is there: as docs/starting.md says, with real tools."""

import importlib.util
from pathlib import Path

import pytest

from tests import starts
from tests.starts import STARTS, WAYS, Start


def said() -> dict[tuple[str, str], str]:
    """Return what the page says, by title and way."""
    rows = [line for line in starts.PAGE.read_text().splitlines() if line.startswith("|")][2:]
    found = {}
    for row in rows:
        title, *cells = (part.strip() for part in row.strip("|").split(" | "))
        for way, cell in zip(WAYS, cells, strict=True):
            found[title, way] = cell.partition(" (")[0]
    return found


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an interpreter for each way of enabling the agent."""
    folder = tmp_path_factory.mktemp("pythons")
    return {way: starts.environment(folder / str(at), way) for at, way in enumerate(WAYS)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.title)
def test_start(start: Start, way: str, pythons: dict[str, str], tmp_path: Path) -> None:
    if start.needs is not None and importlib.util.find_spec(start.needs) is None:
        pytest.skip(f"{start.needs} is not installed: pip install '.[test]'")
    found = starts.cell(start, starts.start(start, way, pythons[way], tmp_path))
    assert found == said()[start.title, way]


def test_the_page_has_every_start_and_a_reason_for_every_no() -> None:
    cells = said()
    assert cells.keys() == {(start.title, way) for start in STARTS for way in WAYS}
    assert set(cells.values()) == {"yes", "no"}
    absent = {place for place, cell in cells.items() if cell == "no"}
    assert absent == starts.REASONS.keys()
    assert starts.page(cells) == starts.PAGE.read_text()
