"""A real browser for the tests of the page: Debian's Chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; skip the test if there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page opened from its file, and what it complained of or asked the network for.

    Attributes:
        page: playwright's.
        complaints: console messages and errors of scripts.
        requests: addresses, that of the file itself left out.
    """

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        self.page = browser.new_page(timezone_id="Europe/Berlin", **options)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.requests.remove(file.as_uri())

    def ready(self) -> "Tab":
        """Wait until the script of the page has drawn everything."""
        self.page.wait_for_selector("html[data-ready]")
        self.frame()
        return self

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def colour(self, name: str) -> str:
        """Return a variable of the style sheet, such as ``#0b62b5``."""
        script = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
        return str(self.page.evaluate(script, f"--{name}"))

    def painted(self, name: str) -> list[tuple[float, float]]:
        """Return the points of the window where the timeline has the colour `name`."""
        self.frame()
        found = self.page.evaluate(
            """wanted => {
                const canvas = document.getElementById("canvas");
                const { width, height } = canvas;
                if (!width || !height || canvas.closest("[hidden]")) return [];
                // A copy: a canvas that is read again and again is moved off the GPU.
                const copy = new OffscreenCanvas(width, height).getContext("2d");
                copy.drawImage(canvas, 0, 0);
                const { data } = copy.getImageData(0, 0, width, height);
                const box = canvas.getBoundingClientRect();
                const rgb = [1, 3, 5].map(at => parseInt(wanted.slice(at, at + 2), 16));
                const found = [];
                for (let at = 0; at < data.length; at += 4) {
                    if (rgb.every((value, k) => data[at + k] === value) && data[at + 3] === 255) {
                        const place = at / 4;
                        found.push([
                            box.left + place % width + 0.5,
                            box.top + Math.floor(place / width) + 0.5,
                        ]);
                    }
                }
                return found;
            }""",
            self.colour(name),
        )
        return [(x, y) for x, y in found]

    def texts(self, selector: str) -> list[str]:
        """Return the texts of what `selector` finds."""
        return [str(each) for each in self.page.locator(selector).all_inner_texts()]

    def text(self, selector: str) -> str:
        """Return the text of the one element that `selector` finds."""
        return str(self.page.locator(selector).inner_text())
