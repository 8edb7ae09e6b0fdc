"""The page of `mlx-autobind traces --html`, as text and in a real browser."""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_autobind.cli import page
from mlx_autobind.cli.spans import Generation, Reading, Span
from tests.browser import Tab, chromium
from tests.conftest import Run
from tests.harness import program
from tests.spans import MS, US, span
from tests.stacks import Stack

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'mlx-autobind[cli]'")

HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "<!--<script>",
    "\"quotes' &amp; \\u003c {{ 7 * 7 }}",
    "\u202eright to left\u202c \u2028 line\u2029 \x00\x1b[2J",
    "half \ud800 a pair",
    "long " * 4000,
)


NO_STREAM = "There is no Stream(cpu, 3) in current thread."
# One of each kind, on a thread of its own, far from the others.
EACH = (
    span("bind", 0, thread="binder"),
    span("hop", 200 * MS, thread="hopper"),
    span("drift", 400 * MS, thread="drifter", process=8),
    span("explained", 600 * MS, thread="failing", process=8, error=NO_STREAM),
    span("generation", 100 * MS, 900 * MS, thread="generating", process=8),
)


def many(number: int, threads: int) -> list[Span]:
    """Return `number` spans on `threads` threads."""
    kinds = ("bind", "generation", "hop", "generation", "explained", "drift")
    return [
        span(
            kinds[at % len(kinds)],
            at * MS,
            at % 97 * 100 * US,
            thread=f"worker {at % threads}",
            thread_id=2**47 + at % threads,
            error=NO_STREAM if kinds[at % len(kinds)] == "explained" else "",
        )
        for at in range(number)
    ]


# --- As text.


def embedded(text: str) -> Any:
    """Return the data in the page `text`."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_nothing_of_a_span_is_markup() -> None:
    spans = [
        span("bind", at * MS, thread=bad, error=bad, entry_point=bad, handles=(bad,), mode=bad)
        for at, bad in enumerate(HOSTILE)
    ]
    text = page.render(spans, Reading())
    plain = page.render([span("bind", 0)], Reading())
    assert text.count("<script") == plain.count("<script") == 2
    assert "<img" not in text
    assert "\\u003c/script\\u003e" in text
    assert embedded(text)["strings"][1:3] == ["bind", HOSTILE[0]]
    assert [lane[2] for lane in embedded(text)["lanes"]] == list(HOSTILE)


def test_numbers_that_no_clock_shows() -> None:
    speed = Generation("", "", None, 1, None, float("nan"), "", "closed")
    spans = [
        span("bind", 0),
        dataclasses.replace(EACH[4], started_ns=-5, duration_ns=10**40, generation=speed),
    ]
    data = embedded(page.render(spans, Reading()))
    assert data["origin"] == "0"
    assert data["columns"]["duration"] == [2**63 - 1, 200_000]
    assert data["generations"][0][6] is None


def test_nothing_is_loaded() -> None:
    text = page.render(EACH, Reading())
    addresses = set(re.findall(r"\w+://[^\s\"'`]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nothing is loaded from
    assert not re.search(r"\b(src|href|srcset|action)\s*=|@import|url\(|innerHTML", text)
    assert "default-src 'none'" in text
    assert "unsafe" not in text


def test_the_summary() -> None:
    found = {fact.title: fact.value for fact in page.facts([*EACH, span("bind", 1 * MS, 4 * MS)])}
    assert found == {
        "threads": "6",
        "processes": "2",
        "binds": "2",
        "hops": "1",
        "drifts": "1",
        "explained failures": "1",
        "generations": "1",
        "bind, median": "2.10 ms",
        "bind, 99th percentile": "3.96 ms",
        "first token, median": "225 ms",
    }


def test_an_identifier_that_is_reused_is_another_lane() -> None:
    spans = [
        span("bind", 0, thread="a"),
        span("bind", 1 * MS, thread="b"),
        span("bind", 2 * MS, process=9),
    ]
    assert [lane[2] for lane in page.lanes([*spans, span("hop", 3 * MS, thread="a")])] == [
        "a",
        "b",
        "worker",
    ]


def test_it_is_of_a_reasonable_size() -> None:
    assert len(page.render(many(10_000, 500), Reading())) < 1_500_000


def test_what_was_left_out_is_said() -> None:
    text = page.render(EACH, Reading(foreign=3, torn=1))
    assert "3 spans of others, 1 lines that are torn or no spans" in text
    assert "Left out" not in page.render(EACH, Reading())


def test_without_jinja2_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match="jinja2"):
        page.write(EACH, Reading(), tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


# --- In a browser.

Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Return what opens the page of some spans; at the end none may have complained."""
    tabs: list[Tab] = []

    def show(spans: Sequence[Span], **options: Any) -> Tab:
        file = tmp_path / f"page{len(tabs)}.html"
        page.write(spans, Reading(), file)
        tab = Tab(browser, file, **options)
        tabs.append(tab)
        return tab.ready() if spans and options.get("java_script_enabled", True) else tab

    yield show
    for tab in tabs:
        assert tab.complaints == []
        assert tab.requests == []
        tab.page.close()


@pytest.mark.parametrize("each", EACH, ids=lambda each: each.kind)
def test_hovering_over_a_mark(each: Span, show: Open) -> None:
    tab = show(EACH)
    assert not tab.page.locator("#tip").is_visible()
    points = tab.painted(each.kind)
    x, y = points[len(points) // 2]
    tab.page.mouse.move(x, y)
    tip = tab.text("#tip")
    assert tip.startswith(each.kind)
    assert each.thread in tip
    assert each.entry_point in tip
    assert ("34 tokens" if each.generation else each.error or each.handles[0]) in tip
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator("#tip").is_visible()
    tab.page.mouse.move(x + 1, y)
    assert tab.page.locator("#tip").is_visible()
    tab.page.mouse.move(5, 5)
    assert not tab.page.locator("#tip").is_visible()


def test_marks_that_lie_on_one_another_are_counted(show: Open) -> None:
    tab = show([*(span("bind", at * US) for at in range(5)), span("hop", 5000 * MS, thread="late")])
    x, y = tab.painted("bind")[20]
    tab.page.mouse.move(x, y)
    assert "and 4 more here" in tab.text("#tip")


@pytest.mark.parametrize("kind", [each.kind for each in EACH])
def test_filtering_by_kind(kind: str, show: Open) -> None:
    tab = show(EACH)
    assert tab.painted(kind)
    tab.page.uncheck(f"[name=kind][value={kind}]")
    assert not tab.painted(kind)
    assert kind not in tab.texts("#rows td:nth-child(2)")
    assert tab.page.locator("#rows tr").count() == 4
    assert tab.text("#shown") == "4 of 5 spans"
    tab.page.check(f"[name=kind][value={kind}]")
    assert tab.painted(kind)
    assert tab.text("#shown") == "all 5 spans"


def test_filtering_by_thread(show: Open) -> None:
    tab = show(EACH)
    tab.page.fill("#thread", "HOPP")
    tab.frame()
    assert tab.texts("#names bdi") == ["process 7", "hopper"]
    assert tab.texts("#rows td:nth-child(3)") == ["hopper"]
    assert not tab.painted("bind")
    tab.page.fill("#thread", "no such thread")
    tab.frame()
    assert tab.page.locator("#none").is_visible()
    assert tab.page.locator("#rows tr").count() == 0
    tab.page.fill("#thread", str(EACH[0].thread_id))
    tab.frame()
    assert tab.page.locator("#rows tr").count() == 5
    assert tab.painted("bind")


def test_only_with_errors(show: Open) -> None:
    failed = span("generation", 50 * MS, 100 * MS, thread="cut off", error="ValueError: no")
    tab = show([*EACH, failed])
    tab.page.check("#errors")
    assert sorted(tab.texts("#rows td:nth-child(3)")) == ["cut off", "failing"]
    tab.frame()
    assert [name for name in tab.texts("#names bdi") if "process" not in name] == [
        "cut off",
        "failing",
    ]


def place(tab: Tab) -> str:
    """Return which rows of how many the table shows."""
    return tab.text("#place").replace("\N{EN DASH}", "-")


def test_a_click_selects_and_turns_the_table(show: Open) -> None:
    spans = [*many(120, 3), span("drift", 2000 * MS, thread="the last")]
    tab = show(spans)
    assert place(tab) == "1-50 of 121"
    x, y = next(point for point in reversed(tab.painted("drift")))
    tab.page.mouse.click(x, y)
    assert tab.text("#details h3") == "drift"
    details = tab.text("#details")
    assert "the last" in details
    assert spans[-1].trace_id in details
    # In the time zone of the browser.
    assert "2026-11-30 22:20:02.123456 +01:00" in details
    assert place(tab) == "101-121 of 121"
    assert tab.texts("#rows tr[aria-current] td:nth-child(3)") == ["the last"]


def test_a_row_selects_and_brings_its_mark_into_view(show: Open) -> None:
    tab = show(many(300, 60))
    assert "worker 59" not in tab.texts("#names bdi")
    tab.page.click("#last")
    tab.page.click("#rows tr:last-child td:nth-child(3)")
    tab.frame()
    assert "worker 59" in tab.texts("#names bdi")
    assert "worker 59" in tab.text("#details")


def said(tab: Tab) -> str:
    return str(tab.page.locator("#said").text_content())


def test_by_keyboard_alone(show: Open) -> None:
    tab = show(EACH)
    press = tab.page.keyboard.press
    reached = "document.activeElement.id === 'lanes'"
    for _ in range(20):
        press("Tab")
        if tab.page.evaluate(reached):
            break
    assert tab.page.evaluate(reached)
    assert said(tab).startswith("bind, thread binder")
    assert tab.page.locator("#tip").is_visible()
    press("ArrowDown")
    assert said(tab).startswith("hop, thread hopper")
    press("End")
    press("ArrowDown")
    # The order of the lanes is that of their first spans, a process after another.
    assert said(tab).startswith("generation, thread generating")
    press("Enter")
    assert "34 tokens" in tab.text("#details")
    assert tab.texts("#rows tr[aria-current] td:nth-child(3)") == ["generating"]
    press("Escape")
    press("Escape")
    assert "Select a mark" in tab.text("#details")

    whole = tab.text("#across")
    press("+")
    tab.frame()
    assert re.fullmatch(r"500 ms of 1(\.00)? s", tab.text("#across"))
    before = tab.painted("generation")
    press("Shift+ArrowRight")
    assert tab.painted("generation") != before
    press("-")
    press("-")
    press("0")
    tab.frame()
    assert tab.text("#across") == whole
    press("Tab")
    assert not tab.page.evaluate(reached)


def test_arrows_go_along_a_lane(show: Open) -> None:
    tab = show(
        [
            span("bind", 0),
            span("hop", 10 * MS),
            span("drift", 20 * MS),
            span("hop", 5 * MS, thread="b"),
        ]
    )
    tab.page.focus("#lanes")
    heard = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown"):
        tab.page.keyboard.press(key)
        heard.append(said(tab).partition(",")[0])
    assert heard == ["bind", "hop", "drift", "drift", "hop", "hop"]
    assert "thread b" in said(tab)
    assert said(tab).endswith("1 of 1 on this thread")


def test_enter_turns_the_table(show: Open) -> None:
    tab = show(many(120, 1))
    tab.page.focus("#lanes")
    tab.page.keyboard.press("End")
    assert place(tab) == "1-50 of 120"
    tab.page.keyboard.press("Enter")
    assert place(tab) == "101-120 of 120"
    assert tab.page.locator("#rows tr[aria-current]").count() == 1


def test_sorting_the_table(show: Open) -> None:
    tab = show(EACH)
    took = tab.page.locator("#columns th").nth(6)
    assert tab.page.locator("#columns th").nth(0).get_attribute("aria-sort") == "ascending"
    took.locator("button").press("Enter")
    assert took.get_attribute("aria-sort") == "ascending"
    assert tab.texts("#rows td:nth-child(2)")[-1] == "generation"
    took.locator("button").press("Enter")
    assert took.get_attribute("aria-sort") == "descending"
    assert tab.texts("#rows td:nth-child(2)")[0] == "generation"
    assert tab.page.locator("#columns [aria-sort]").count() == 1


def test_rows_by_keyboard(show: Open) -> None:
    tab = show(EACH)
    assert tab.page.locator("#rows button[tabindex='0']").count() == 1
    tab.page.focus("#rows button[tabindex='0']")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    assert tab.texts("#rows tr[aria-current] td:nth-child(3)") == ["hopper"]
    assert "hopper" in tab.text("#details")


def centre(points: list[tuple[float, float]]) -> float:
    """Return the middle of `points` from left to right."""
    found = [x for x, _y in points]
    return (min(found) + max(found)) / 2


def test_zooming_at_the_pointer_and_dragging(show: Open) -> None:
    tab = show(EACH)
    x = centre(tab.painted("explained"))
    box = tab.page.locator("#canvas").bounding_box()
    tab.page.mouse.move(x, box["y"] + 5)
    tab.page.keyboard.down("Control")
    for _ in range(5):
        tab.page.mouse.wheel(0, -120)
    tab.page.keyboard.up("Control")
    tab.frame()
    assert " of 1 s" in tab.text("#across")
    after = centre(tab.painted("explained"))
    assert after == pytest.approx(x, abs=8)
    tab.page.mouse.down()
    tab.page.mouse.move(x - 100, box["y"] + 5, steps=4)
    tab.page.mouse.up()
    assert after - centre(tab.painted("explained")) == pytest.approx(100, abs=3)
    tab.page.click("#all")
    tab.frame()
    assert tab.text("#across") == "1 s"


def test_generations_that_overlap_are_on_lines_of_their_own(show: Open) -> None:
    tab = show(
        [
            span("generation", 0, 100 * MS),
            span("generation", 50 * MS, 100 * MS),
            span("generation", 120 * MS, 9 * MS),
        ]
    )
    heights = {y for _x, y in tab.painted("generation")}
    apart = sorted(heights)
    assert apart[-1] - apart[0] > 20
    tab = show([span("generation", 0, 100 * MS), span("generation", 100 * MS, 100 * MS)])
    alone = sorted({y for _x, y in tab.painted("generation")})
    assert alone[-1] - alone[0] < 20


def test_the_moment_of_the_first_token(show: Open) -> None:
    """A quarter of the way, as `span` has it."""
    tab = show([span("generation", 0, 100 * MS)])
    pale = [x for x, _y in tab.painted("pale")]
    solid = [x for x, _y in tab.painted("generation")]
    assert min(solid) - 2 <= min(pale)
    waited = max(pale) - min(pale)
    assert waited / (max(solid) - min(solid)) == pytest.approx(0.25, abs=0.02)


def test_a_kind_of_a_version_to_come(show: Open) -> None:
    tab = show([*EACH, span("<b>teleport</b>", 700 * MS, thread="future")])
    x, y = tab.painted("other")[0]
    tab.page.mouse.move(x, y)
    assert tab.text("#tip").startswith("<b>teleport</b>")
    tab.page.uncheck("[name=kind][value=other]")
    assert tab.page.locator("#rows tr").count() == 5


def test_hostile_texts_are_shown_as_text(show: Open) -> None:
    spans = [
        span("explained", at * 100 * MS, thread=bad, error=bad, entry_point=bad, handles=(bad,))
        for at, bad in enumerate(HOSTILE)
    ]
    tab = show([*spans, span(HOSTILE[1], 800 * MS)])
    assert HOSTILE[0] in tab.texts("#rows td:nth-child(3)")
    for row in range(len(HOSTILE)):
        tab.page.click(f"#rows tr:nth-child({row + 1}) td:nth-child(2)")
        tab.page.focus("#lanes")
        tab.page.keyboard.press("ArrowRight")
    tab.page.click("#rows tr:nth-child(1) td:nth-child(2)")
    assert tab.texts("#details dd")[0] == HOSTILE[0]
    assert tab.page.evaluate("window.harmed") is None
    assert tab.page.evaluate("document.images.length") == 0
    assert tab.page.evaluate("document.scripts.length") == 2
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_other_script_can_run(browser: Any, tmp_path: Path) -> None:
    """Not even one that got into the file."""
    text = page.render(EACH, Reading())
    bad = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
    file = tmp_path / "page.html"
    file.write_text(text.replace("<header>", bad + "<header>"))
    tab = Tab(browser, file).ready()
    assert tab.page.evaluate("window.harmed") is None
    assert len([each for each in tab.complaints if "Content Security Policy" in each]) >= 2
    tab.page.close()


# Below that, what differs from its ground is not seen by everyone (WCAG 2.2, 1.4.3 and 1.4.11).
TEXT, SHAPE = 4.5, 3.0


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as ``#rrggbb`` or ``rgb(r, g, b)``."""

    def luminance(colour: str) -> float:
        if colour.startswith("#"):
            values = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        else:
            values = [int(value) for value in re.findall(r"\d+", colour)[:3]]
        linear = [
            value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4
            for value in values
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLOURS_OF_TEXTS = """() => {
    const found = {};
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        let box = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !box.checkVisibility()) continue;
        if (box.closest("script, .hidden, :disabled")) continue;
        const { color } = getComputedStyle(box);
        let ground = "rgba(0, 0, 0, 0)";
        for (; box && ground.endsWith(", 0)"); box = box.parentElement) {
            ground = getComputedStyle(box).backgroundColor;
        }
        found[`${color} on ${ground}`] = [color, ground, walk.currentNode.data.trim()];
    }
    return Object.values(found);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str, show: Open) -> None:
    tab = show(EACH)
    tab.page.emulate_media(color_scheme=scheme)
    points = tab.painted("explained")
    tab.page.mouse.click(*points[len(points) // 2])
    tab.page.mouse.move(*points[len(points) // 2 + 1])
    texts = tab.page.evaluate(COLOURS_OF_TEXTS)
    assert len(texts) >= 5
    for colour, ground, words in texts:
        assert contrast(colour, ground) >= TEXT, (colour, ground, words)
    ground = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(ground, "#ffffff") < 2) == (scheme == "light")
    for name in [*(mark.kind for mark in page.MARKS), "accent", "control"]:
        assert contrast(tab.colour(name), ground) >= SHAPE, name
    assert contrast(tab.colour("on-bar"), tab.colour("generation")) >= TEXT


def test_the_timeline_follows_the_scheme(show: Open) -> None:
    tab = show(EACH)
    light = tab.colour("bind")
    assert tab.painted("bind")
    tab.page.emulate_media(color_scheme="dark")
    assert tab.colour("bind") != light
    assert tab.painted("bind")


def test_ten_thousand_spans_on_five_hundred_threads(show: Open) -> None:
    tab = show(many(10_000, 500))
    nodes = "document.querySelectorAll('*').length"
    assert tab.page.evaluate(nodes) < 1500
    assert place(tab) == "1-50 of 10,000"
    tab.page.evaluate("document.getElementById('lanes').scrollTop = 1e9")
    tab.frame()
    assert "worker 499" in tab.texts("#names bdi")
    assert tab.painted("generation")
    tab.page.click("#last")
    assert place(tab) == "9,951-10,000 of 10,000"
    tab.page.fill("#thread", "worker 77")
    tab.frame()
    assert tab.texts("#names bdi") == ["process 7", "worker 77"]
    assert place(tab) == "1-20 of 20"
    assert tab.page.evaluate(nodes) < 1500
    assert tab.page.evaluate(
        "[...document.querySelectorAll('canvas')].every(({height}) => height < 1000)"
    )


@pytest.mark.parametrize("width", [320, 360, 768, 1280, 2560])
def test_the_page_is_no_wider_than_the_window(width: int, show: Open) -> None:
    long = [span("bind", at * MS, thread="a_long_name" * 40, error="x" * 3000) for at in range(3)]
    tab = show([*EACH, *long], viewport={"width": width, "height": 740})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.page.evaluate(overflow) == 0
    tab.page.click("#rows tr:nth-child(2) td:nth-child(2)")
    assert tab.page.evaluate(overflow) == 0
    # What is seen of the timeline can be hovered over at every width.
    x, y = tab.painted("hop")[20]
    tab.page.mouse.move(x, y)
    assert tab.text("#tip").startswith("hop")


def test_words_for_durations_are_the_same_in_the_summary_and_the_table(show: Open) -> None:
    lengths = [
        1,
        999,
        1000,
        1234,
        99_960,
        999_600,
        1_500_000,
        12_345_678,
        999_499_999,
        2_500_000_000,
    ]
    tab = show([span("bind", at * MS, length) for at, length in enumerate(lengths)])
    shown = tab.texts("#rows td:nth-child(7)")
    assert shown == [page.duration(length) for length in lengths]


def test_no_spans(show: Open) -> None:
    tab = show([])
    assert "There are no spans" in tab.text("main")
    assert "MLX_AUTOBIND_TRACE=trace.jsonl" in tab.text("main")
    assert tab.page.evaluate("document.scripts.length") == 0


def test_one_span_that_took_no_time(show: Open) -> None:
    tab = show([span("hop", 0, 0)])
    assert tab.painted("hop")
    tab.page.focus("#lanes")
    for key in ("+", "+", "ArrowRight", "-", "0", "Enter"):
        tab.page.keyboard.press(key)
    assert "0 ns" in tab.text("#details")


def test_without_scripts_the_summary_is_there(show: Open) -> None:
    tab = show(EACH, java_script_enabled=False)
    assert "explained failures" in tab.text(".facts")
    assert "switched off" in tab.text("noscript")


# --- Of a real program.

BUSY = """
    from concurrent.futures import ThreadPoolExecutor
    import mlx.core as mx
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread

    asker = Asker()

    def ask(prompt, most):
        try:
            for _ in mlx_lm.stream_generate(asker.model, asker.tokenizer, prompt, max_tokens=most):
                pass
        except RuntimeError:
            pass  # explained

    def serve(most):
        for at in range(5):
            ask(PROMPTS[at], most[at])

    def assign():
        library = sys.modules["mlx_lm.generate"]  # the attribute is the function
        library.generation_stream = mx.new_stream(mx.default_device())
        ask(PROMPTS[5], 20)

    def scale():
        asker.model.lm_head.weight = asker.model.lm_head.weight * 2

    ask(PROMPTS[0], 24)
    # As a server does that takes each item of an answer on another thread of its pool.
    relays = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("anyio-1", "anyio-2")]
    with ThreadPoolExecutor(3, thread_name_prefix="request") as pool:
        served = [
            pool.submit(serve, most)
            for most in ((40, 12, 60, 8, 30), (16, 70, 9, 24, 30), (64, 30, 8, 50, 14))
        ]
        answer = mlx_lm.stream_generate(asker.model, asker.tokenizer, PROMPTS[3], max_tokens=12)
        for at in range(6):
            relays[at % 2].submit(next, answer).result()
        answer.close()
        on_thread(assign, name="a stream of its own")
        for each in served:
            each.result()
    for relay in relays:
        relay.shutdown()
    on_thread(scale, name="quantise")
    ask(PROMPTS[6], 8)
    print("null")
"""


def test_a_real_trace(stack: Stack, run: Run, checkpoint: Path, tmp_path: Path, show: Open) -> None:
    """The pictures of the documentation are made here: MLX_AUTOBIND_SCREENSHOTS=FOLDER."""
    if not stack.binds_on_cpu:
        pytest.skip("on this mlx nothing fails on the CPU, so that no failure is explained")
    pytest.importorskip(
        "opentelemetry.exporter.otlp.json.file",
        reason="the exporter is not installed: pip install 'mlx-autobind[trace]'",
    )
    file = tmp_path / "trace.jsonl"
    env = {"MLX_AUTOBIND_TRACE": str(file), "MLX_AUTOBIND_GENERATIONS": "1"}
    run(program(BUSY), checkpoint, agent="import", env=env).clean()
    spans = list(Reading().files([file]))
    kinds = {each.kind for each in spans}
    assert kinds == {"bind", "hop", "drift", "explained", "generation"}

    tab = show(spans)
    for kind in kinds:
        assert tab.painted(kind), kind
    assert {"MainThread", "anyio-1_0", "anyio-2_0", "request_0"} <= set(tab.texts("#names bdi"))
    folder = os.environ.get("MLX_AUTOBIND_SCREENSHOTS")
    if folder:
        for scheme in ("light", "dark"):
            picture(show(spans, color_scheme=scheme), Path(folder) / f"trace-{scheme}.png")


def picture(tab: Tab, file: Path) -> None:
    """Write a picture of the page with the explained failure selected and a bar hovered over."""
    # The failure, not the generation that failed with it, which is in the row below.
    tab.page.mouse.click(*min(tab.painted("explained"), key=lambda point: point[1]))
    tab.page.mouse.move(*tab.painted("generation")[-40])
    tab.frame()
    tab.page.screenshot(path=file)
