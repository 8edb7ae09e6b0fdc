"""The ``MLX_AUTOBIND_*`` environment variables, read once into a frozen object."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

MODES = ("thread", "owner", "shared")
ON = ("on", "1", "true", "yes")
OFF = ("off", "0", "false", "no")
DEFAULT_RECORDS = 1000
MAX_RECORDS = 1_000_000

# Which other mode would have cured a "There is no Stream" error, by the mode in force.
CURED_BY = {
    "thread": "MLX_AUTOBIND_MODE=shared cures it, and so does MLX_AUTOBIND_MODE=owner if an entry "
    "point of the library made it",
    "owner": "MLX_AUTOBIND_MODE=shared cures it",
    "shared": "no other mode cures it",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    Attributes:
        enabled: ``MLX_AUTOBIND``; False keeps the agent out of the process.
        mode: ``MLX_AUTOBIND_MODE``; one of `MODES`.
        modules: ``MLX_AUTOBIND_MODULES``; further modules that hold a handle.
        records: ``MLX_AUTOBIND_RECORDS``; how many records the process keeps.
        trace: ``MLX_AUTOBIND_TRACE``; a file that spans are appended to, or None.
        generations: ``MLX_AUTOBIND_GENERATIONS``; True makes each generation a span.
        strict: ``MLX_AUTOBIND_STRICT``; True raises the agent's own errors.
        problems: one sentence for each value that could not be used.
    """

    enabled: bool
    mode: str
    modules: tuple[str, ...]
    records: int
    trace: str | None
    generations: bool
    strict: bool
    problems: tuple[str, ...]


class Reader:
    """Reads variables one by one and keeps a sentence for each that cannot be used."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def _text(self, variable: str) -> str:
        return self._environ.get(variable, "").strip()

    def _reject(self, variable: str, value: str, allowed: str, kept: str) -> None:
        self.problems.append(f"{variable}={value!r}: allowed is {allowed}; using {kept}")

    def flag(self, variable: str, default: bool) -> bool:
        """Return whether `variable` is on; `default` if it is unset or neither on nor off."""
        text = self._text(variable)
        if text.lower() in OFF:
            return False
        if text.lower() in ON:
            return True
        if text:
            self._reject(variable, text, "on or off", "on" if default else "off")
        return default

    def choice(self, variable: str, allowed: tuple[str, ...]) -> str:
        """Return one of `allowed`, the first if `variable` is unset or none of them."""
        text = self._text(variable)
        if text.lower() in allowed:
            return text.lower()
        if text:
            self._reject(variable, text, " or ".join(allowed), allowed[0])
        return allowed[0]

    def number(self, variable: str, default: int, most: int) -> int:
        """Return a whole number from 1 to `most`."""
        text = self._text(variable)
        # The length first: int() of a very long text is a ValueError.
        if text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
            return int(text)
        if text:
            self._reject(variable, text, f"a whole number from 1 to {most}", str(default))
        return default

    def path(self, variable: str) -> str | None:
        """Return the absolute path of a file; None if `variable` is unset."""
        text = self._text(variable)
        # From the folder in which the process starts, wherever it goes later.
        return os.path.abspath(os.path.expanduser(text)) if text else None  # noqa: PTH100, PTH111

    def names(self, variable: str) -> tuple[str, ...]:
        """Return dotted module names."""
        found = []
        for name in self._text(variable).replace(",", " ").split():
            if all(part.isidentifier() for part in name.split(".")):
                found.append(name)
            else:
                self._reject(variable, name, "dotted names of modules", "the other names")
        return tuple(found)


def read(environ: Mapping[str, str]) -> Settings:
    """Read the settings from `environ`. Never raises."""
    reader = Reader(environ)
    return Settings(
        enabled=reader.flag("MLX_AUTOBIND", True),
        mode=reader.choice("MLX_AUTOBIND_MODE", MODES),
        modules=reader.names("MLX_AUTOBIND_MODULES"),
        records=reader.number("MLX_AUTOBIND_RECORDS", DEFAULT_RECORDS, MAX_RECORDS),
        trace=reader.path("MLX_AUTOBIND_TRACE"),
        generations=reader.flag("MLX_AUTOBIND_GENERATIONS", False),
        strict=reader.flag("MLX_AUTOBIND_STRICT", False),
        problems=tuple(reader.problems),
    )


_settings: Settings | None = None


def current() -> Settings:
    """Return the settings of this process, reading the environment the first time."""
    global _settings
    if _settings is None:
        _settings = read(os.environ)
    return _settings


def choose(mode: str) -> None:
    """Use `mode` whatever the environment says.

    Raises:
        ValueError: there is no such mode.
    """
    global _settings
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: allowed is {' or '.join(MODES)}")
    _settings = dataclasses.replace(current(), mode=mode)
