"""For the programs of the tests: run work on other threads, and compare what comes of it."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Work = Callable[[], Any]
Runner = Callable[[Work], Any]


def on_thread(work: Callable[..., None], *arguments: object, name: str | None = None) -> None:
    """Run `work` on a thread of its own, and wait for it."""
    thread = threading.Thread(target=work, args=arguments, name=name)
    thread.start()
    thread.join()


def here(work: Work) -> Any:
    """Return what `work` gives on this thread."""
    return work()


def elsewhere(work: Work) -> Any:
    """Return what `work` gives on a thread of its own; raise what it raises."""
    outcome: list[Any] = []

    def keep() -> None:
        try:
            outcome.extend([work(), None])
        except Exception as error:
            outcome.extend([None, error])

    on_thread(keep)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def at_once(works: list[Work], threads: int = 4) -> list[Any]:
    """Return what each of `works` gives on one of `threads` threads that start together."""
    threads = min(threads, len(works))
    together = threading.Barrier(threads, timeout=60)
    with ThreadPoolExecutor(threads, initializer=together.wait) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


class Comparison:
    """What came of each crossing: "right", the wrong result, or the error, explained or not."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    def compare(self, name: str, right: Work, crossing: Work) -> None:
        """Keep whether `crossing` gives what `right` gives."""
        expected = right()
        try:
            found = crossing()
        except Exception as error:
            explained = any("mlx-autobind" in note for note in getattr(error, "__notes__", ()))
            text = f"{type(error).__name__}: {error}"
            self.results[name] = f"explained: {text}" if explained else text
        else:
            self.results[name] = "right" if found == expected else f"{found} is not {expected}"

    def print(self) -> None:
        """Print the results as the last line."""
        print(json.dumps(self.results), flush=True)
