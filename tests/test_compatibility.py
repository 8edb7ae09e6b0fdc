"""The page of all stacks is what its runs say, and the verdicts in it can be wrong."""

from typing import Any

import pytest

from tests import compatibility
from tests.compatibility import ABSENT, EXPLAINED, RIGHT, crossings, merge, same
from tests.conftest import documented
from tests.harness import ROOT, Outcome

PAGE = ROOT / "docs" / "compatibility.md"
RUNS = ROOT / "docs" / "compatibility.json"


def outcome(code: int | None = 0, result: Any = True, stderr: str = "") -> Outcome:
    return Outcome(code, "", stderr, result, [], [])


def test_the_page_is_generated() -> None:
    assert documented(PAGE).read_text() == compatibility.table(compatibility.read(RUNS))


def test_what_is_not_right_has_a_reason() -> None:
    runs = compatibility.read(documented(RUNS))
    assert runs
    defects = [
        (run["stack"], mode, scenario, verdict)
        for run in runs
        for mode, scenario, verdict in compatibility.not_right(run)
        if compatibility.reason_of(run, scenario, mode, verdict) == compatibility.WITHOUT_A_REASON
    ]
    assert defects == []


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (outcome(), RIGHT),
        (outcome(code=None), "hung"),
        (outcome(code=1, result=None, stderr="a\nValueError: b\n"), "exit code 1: ValueError: b"),
        (outcome(code=-6, stderr="terminate"), "right, then exit code -6: terminate"),
        (outcome(stderr="a line"), "right, and on stderr: a line"),
        (outcome(result=False), "other"),
    ],
)
def test_verdicts(found: Outcome, verdict: str) -> None:
    assert same(found, lambda result: RIGHT if result else "other") == verdict


def test_verdicts_on_crossings() -> None:
    results = {"S4 a": RIGHT, "S4 b": "explained: no stream", "S6 a": "ValueError: c"}
    assert crossings(results, "S4") == EXPLAINED
    assert crossings(results, "S6") == "1 of 1 wrong: ValueError: c"
    assert crossings(results, "S7") == ABSENT
    assert crossings({"S4 a": RIGHT}, "S4") == RIGHT


def test_the_worse_of_two_verdicts_is_kept() -> None:
    assert merge(None, RIGHT) == RIGHT
    assert merge(RIGHT, "hung") == "hung"
    assert merge("hung", RIGHT) == "hung"
    assert merge(ABSENT, RIGHT) == RIGHT
    assert merge(RIGHT, ABSENT) == RIGHT


def test_a_defect_is_said_to_be_one() -> None:
    versions = {"python": "3.11.7", "mlx": "0.32.4", "mlx-lm": "0.32.2"}
    verdicts = {"without": {"S1": "hung"}, "thread": {"S1": "hung"}, "owner": {"S1": RIGHT}}
    run = {"stack": versions, "notes": {}, "verdicts": verdicts}
    page = compatibility.table([run])
    assert compatibility.WITHOUT_A_REASON in page
    assert "S1, mode `thread`, mlx 0.32.4 + mlx-lm 0.32.2, Python 3.11: `hung`" in page
    assert list(compatibility.not_right(run)) == [("thread", "S1", "hung")]
