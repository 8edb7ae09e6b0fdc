"""docs/performance.md is what docs/performance.json says. Nothing is timed here."""

import dataclasses
import re

import pytest

from tests.benchmarks import calls, measure, page
from tests.benchmarks.measure import Block, Budget, Child, Row
from tests.benchmarks.page import GROUPS, WITHOUT_A_REASON, amount
from tests.benchmarks.scale import FULL, LEAST, QUICK
from tests.conftest import documented
from tests.harness import ROOT

PAGE = ROOT / "docs" / "performance.md"

ROW = Row("this", "that", "s", 1.0, 1.1, 1.2, 9, 2e-6, 2e-7)


@pytest.fixture
def results() -> page.Results:
    return page.read(documented(PAGE))


def test_the_page_is_generated(results: page.Results) -> None:
    assert PAGE.read_text() == page.render(results)


def test_every_group_was_measured(results: page.Results) -> None:
    assert list(results) == list(GROUPS)
    for name in GROUPS:
        rows = page.rows_of(results, name)
        assert rows
        for row in rows:
            assert 0 < row.low <= row.median <= row.high
            assert row.pairs >= LEAST


def test_every_budget_is_there(results: page.Results) -> None:
    budgeted = {
        name: [row for row in page.rows_of(results, name) if row.budget is not None]
        for name in GROUPS
    }
    assert {name for name, rows in budgeted.items() if rows} == {
        "startup",
        "calls",
        "binds",
        "generations",
        "threads",
    }
    text = PAGE.read_text()
    for rows in budgeted.values():
        for row in rows:
            assert f"| {page._label(row)} | {row.against} | " in text


def test_what_is_missed_has_a_reason(results: page.Results) -> None:
    assert WITHOUT_A_REASON not in page.render(results)


def test_nothing_of_the_machine_but_its_kind(results: page.Results) -> None:
    text = PAGE.with_suffix(".json").read_text()
    assert not re.search(r"(^|[\s\"'])/(home|root|tmp|work|Users|opt|var)/", text)
    assert {"processor", "Python", "mlx"} <= results["calls"]["machine"].keys()


@pytest.mark.parametrize(
    ("low", "median", "budget", "verdict"),
    [
        (1.0, 1.1, None, None),
        (1.0, 1.1, Budget(1.1), "kept"),
        (1.0, 1.1, Budget(1.05), "undecided"),
        (1.08, 1.1, Budget(1.05), "missed"),
        (1.0, 1.1, Budget(3e-7, "difference"), "kept"),
        (1.05, 1.1, Budget(1.5e-7, "difference"), "undecided"),
        (1.08, 1.1, Budget(1.5e-7, "difference"), "missed"),
    ],
)
def test_verdicts(low: float, median: float, budget: Budget | None, verdict: str | None) -> None:
    row = dataclasses.replace(ROW, low=low, median=median, budget=budget)
    assert row.verdict() == verdict


@pytest.mark.parametrize(
    ("control", "verdict"), [(None, "missed"), (1.04, "missed"), (1.06, "undecided")]
)
def test_what_cannot_be_told_from_noise(control: float | None, verdict: str) -> None:
    row = dataclasses.replace(ROW, low=1.08, median=1.1, budget=Budget(1.05), control=control)
    assert row.verdict() == verdict


def test_a_missed_budget_is_said_to_be_one() -> None:
    row = dataclasses.replace(ROW, low=1.08, budget=Budget(1.05))
    text = page.render({"calls": page.group([row], {"processor": "one"}, "command")})
    assert "| this | that | 1.05x | 1.100x | 1.080 to 1.200 | **missed** |" in text
    assert f"- this: {WITHOUT_A_REASON}" in text


def test_a_row_is_made_of_pairs() -> None:
    # What disturbs both sides of a pair alike is in neither quartile.
    found = {"one": [2.0, 20.0, 200.0], "other": [1.0, 10.0, 100.0]}
    row = measure.row(found, "one", "other")
    assert (row.low, row.median, row.high, row.base, row.difference) == (2, 2, 2, 10, 10)


def test_sides_take_turns() -> None:
    order: list[str] = []

    def take(name: str) -> measure.Take:
        def taken() -> float:
            order.append(name)
            return float(len(order))

        return taken

    found = measure.interleave({name: take(name) for name in "ab"}, 2)
    assert "".join(order) == "ab" + "ab" + "ba"
    assert found == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234, "s", "1.23 s"),
        (0.0999, "s", "99.9 ms"),
        (-2.5e-8, "s", "-25.0 ns"),
        (0.0, "s", "0 ns"),
        (4.4e7, "instructions", "44.0 million"),
        (12.0, "instructions", "12.0"),
    ],
)
def test_amounts(value: float, unit: measure.Unit, text: str) -> None:
    assert amount(value, unit) == text


def test_a_child_measures_and_ends() -> None:
    with Child("tests.benchmarks.calls:blocks", env={"MLX_AUTOBIND": "on"}) as child:
        assert {name for pair in calls.COMPARED for name in pair[:2]} == set(child.names)
        assert 0 < child.measure(calls.OURS) < 1
    with pytest.raises((RuntimeError, BrokenPipeError, ValueError)):
        child.measure(calls.OURS)


@pytest.mark.skipif(measure.cannot_count() is not None, reason="needs valgrind")
def test_instructions_are_counted_between_the_marks() -> None:
    with Child("tests.test_performance_page:counting", counted=True) as child:
        once = [child.measure("once") for _ in range(3)]
        ten = [child.measure("ten times") for _ in range(3)]
    assert 5 < min(ten) / max(once) < 15
    assert max(once) / min(once) < 1.1


def counting() -> measure.Blocks:
    """Return two blocks of which one does ten times what the other does."""

    def loop(count: int) -> Block:
        def run() -> None:
            for _ in range(count):
                pass

        return Block(run)

    return {"once": loop(10_000), "ten times": loop(100_000)}


def test_quick_is_less() -> None:
    assert LEAST <= QUICK.rounds(100) < FULL.rounds(100) == 100
    assert QUICK.rounds(4) == LEAST
