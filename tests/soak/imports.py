"""``races``: threads that import the libraries, call them, install and uninstall, all at once.

Python itself may refuse when two threads import mlx-lm for the first time at once, since the
library imports itself in a circle: with a ``_DeadlockError``, or a module that is initialised in
part. That is counted by itself, with the agent and without it; anything else is a failure.
"""

import importlib
import json
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak.model import LENGTH, MOST_FAILURES, PROMPTS

# Purged between rounds, so that each is a first import. Not transformers, which takes seconds,
# nor mlx, which cannot be loaded twice.
PURGED = "mlx_lm"

TARGETS = (
    "mlx_lm",
    "mlx_lm.generate",
    "mlx_lm.utils",
    "mlx_lm.server",
    "mlx_lm.models.cache",
    "mlx_lm.tuner.utils",
)

SWITCH_S = 1e-6
AGAIN = 0.25
ROUND_S = 60.0


def refused(error: BaseException) -> bool:
    """Tell whether it is Python that refuses a circular import on two threads at once."""
    while True:
        text = str(error)
        if type(error).__name__ == "_DeadlockError" or "partially initialized module" in text:
            return True
        # Without these words if the thread that was importing it has been refused by then; it
        # takes the module out of sys.modules as well.
        if isinstance(error, AttributeError) and text.startswith(f"module '{PURGED}"):
            return True
        # The lazy modules of transformers are no safer, the first time.
        if isinstance(error, ImportError) and text.startswith("cannot import name"):
            return any(f" from '{package}" in text for package in (PURGED, "transformers"))
        if isinstance(error, KeyError) and text.strip("'").startswith(PURGED):
            return True
        cause = error.__cause__ or error.__context__
        if cause is None:
            return False
        error = cause


class Round:
    """One race.

    Args:
        seed: decides the order of imports and when it is installed.
        options: of the part.
        right: the references.
        installed: the agent is there at the start.
    """

    def __init__(
        self, seed: str, options: dict[str, Any], right: dict[str, Any], *, installed: bool
    ) -> None:
        self._seed, self._options, self._right = seed, options, right
        self._installed = installed
        self._together = threading.Barrier(5, timeout=ROUND_S)
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> bool:
        """Run it, and tell whether all threads have ended."""
        works: list[Callable[[random.Random], None]] = [self._import, self._import]
        works += [self._call, self._call, self._install]
        threads = [
            threading.Thread(target=self._race, args=(at, work), daemon=True)
            for at, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ROUND_S)
        stuck = [thread for thread in threads if thread.is_alive()]
        if stuck:
            frames = sys._current_frames()
            for thread in stuck:
                stack = traceback.format_stack(frames.get(thread.ident or 0))
                self.failures.append(f"race {self._seed} hangs:\n{''.join(stack)}")
        return not stuck

    def _race(self, at: int, work: Callable[[random.Random], None]) -> None:
        drawn = random.Random(f"{self._seed}:{at}")  # noqa: S311 - a schedule, not a secret
        try:
            self._together.wait()
            work(drawn)
        except Exception as error:
            if refused(error):
                self.counts["refused by Python"] += 1
            else:
                found = "".join(traceback.format_exception(error))
                self.failures.append(f"race {self._seed}, thread {at}: {found[-2500:]}")

    def _import(self, drawn: random.Random) -> None:
        for name in drawn.sample(TARGETS, len(TARGETS)):
            importlib.import_module(name)
            self.counts["imports"] += 1

    def _call(self, drawn: random.Random) -> None:
        import mlx_lm

        prompt = drawn.randrange(len(PROMPTS))
        loaded: Any = mlx_lm.load(self._options["checkpoint"])
        answer: Any = mlx_lm.stream_generate(
            loaded[0], loaded[1], PROMPTS[prompt], max_tokens=LENGTH
        )
        tokens = [response.token for response in answer]
        if tokens != self._right["tokens"][prompt]:
            raise AssertionError(f"{tokens} is not {self._right['tokens'][prompt]}")
        self.counts["first calls"] += 1

    def _install(self, drawn: random.Random) -> None:
        if self._options["mode"] is None:
            return
        import mlx_autobind

        # At some moment of the imports, which take a tenth of a second or more.
        time.sleep(drawn.random() * 0.3)
        if self._installed:
            mlx_autobind.uninstall()
            self.counts["uninstalls"] += 1
            # Now and then both: to uninstall is to search the heap, and has to be done again.
            if drawn.random() < AGAIN:
                mlx_autobind.install()
                self.counts["installs"] += 1
        else:
            mlx_autobind.install()
            self.counts["installs"] += 1


def purge() -> None:
    """Make the next import of the library a first one."""
    for name in list(sys.modules):
        if name.partition(".")[0] == PURGED:
            del sys.modules[name]


def prepare(*, installed: bool) -> None:
    """Make the next import of the library a first one, with the agent or without."""
    import mlx_autobind

    mlx_autobind.uninstall()
    purge()
    if installed:
        mlx_autobind.install()


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run the races ``first`` to ``first + count``, and return what came of them."""
    right = json.loads(Path(options["references"]).read_text())
    counts: Counter[str] = Counter()
    failures: list[str] = []
    sys.setswitchinterval(SWITCH_S)
    for at in range(options["first"], options["first"] + options["count"]):
        # By turns it is there at the start, and comes during the race.
        installed = at % 2 == 0
        if options["mode"] is not None:
            prepare(installed=installed)
        name = f"{options['seed']}:race:{at}"
        race = Round(name, options, right, installed=installed)
        ended = race.run()
        counts["races"] += 1
        counts.update(race.counts)
        failures += race.failures
        if not ended:
            break
        if options["mode"] is None:
            purge()
    if options["mode"] is not None:
        prepare(installed=True)
    return {"operations": dict(counts), "failures": failures[:MOST_FAILURES]}
