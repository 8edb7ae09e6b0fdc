"""What several commands do with text: say what is under way, and what a child said last."""

import sys


def last_line(text: str) -> str:
    """Return the last line of `text`, what a child wrote to stderr, that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing on stderr"


class Progress:
    """One line on stderr that says what is under way.

    Args:
        steps: how many there will be; None if that is not known.
        lines: where stderr is no terminal, print a line for each step; else nothing.
    """

    def __init__(self, steps: int | None = None, *, lines: bool = True) -> None:
        self._steps = steps
        self._at = 0
        self._terminal = sys.stderr.isatty()
        self._silent = not (self._terminal or lines)

    def step(self, what: str) -> None:
        """Say what begins now."""
        self._at += 1
        of = "" if self._steps is None else f"/{self._steps}"
        text = f"[{self._at}{of}] {what}"
        if self._silent:
            return
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line to what comes next."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
