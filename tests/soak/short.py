"""``short-lived``: thousands of threads, one generation each, few alive at once."""

import threading
from typing import Any

from tests.soak.meter import Meter
from tests.soak.model import MOST_FAILURES, short_prompt
from tests.soak.work import Work, expect, rest

AT_ONCE = 8
READ_EVERY = 50


def run(work: Work, seed: int, mode: str, first: int, count: int) -> dict[str, Any]:
    """Run the threads number `first` and on, and return what came of it."""
    failures: list[str] = []
    free = threading.Semaphore(AT_ONCE)

    def live(number: int) -> None:
        try:
            prompt = short_prompt(seed, number)
            expect(rest(work.stream(prompt)), work.right["tokens"][prompt])
        except Exception as error:
            failures.append(f"thread {number}: {type(error).__name__}: {error}")
        finally:
            free.release()

    expect(rest(work.stream(0)), work.right["tokens"][0])
    started = 0
    meter = Meter(lambda: started if mode == "thread" else 0)
    threads: list[threading.Thread] = []
    for number in range(first, first + count):
        free.acquire()
        threads = [thread for thread in threads if thread.is_alive()]
        started += 1
        threads.append(threading.Thread(target=live, args=(number,), daemon=True))
        threads[-1].start()
        if number % READ_EVERY == 0:
            meter.read()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            failures.append(f"{thread.name} does not end")
    return {
        **meter.result(),
        "operations": {"threads": count},
        "failures": failures[:MOST_FAILURES],
    }
