"""How much is measured."""

from dataclasses import dataclass

# Quartiles of fewer say nothing.
LEAST = 3


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        part: of all, between 0 and 1.
    """

    part: float = 1.0

    def rounds(self, all_of_them: int) -> int:
        """Return how many of `all_of_them` rounds are measured."""
        return max(LEAST, round(all_of_them * self.part))

    def processes(self, all_of_them: int) -> int:
        """Return how many times, of `all_of_them`, interpreters are started anew."""
        return max(1, round(all_of_them * self.part))


FULL = Scale()
QUICK = Scale(0.2)
