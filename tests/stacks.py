"""What the installed versions do without the agent, so that tests can show the failure."""

import dataclasses
import importlib.metadata


@dataclasses.dataclass(frozen=True)
class Stack:
    """The installed versions.

    Attributes:
        mlx: version of mlx.
        mlx_lm: version of mlx-lm.
        mlx_vlm: version of mlx-vlm; None if it is not installed.
    """

    mlx: tuple[int, ...]
    mlx_lm: tuple[int, ...]
    mlx_vlm: tuple[int, ...] | None

    @property
    def inert(self) -> bool:
        """Any thread can use any stream, so there is nothing to do (mlx <= 0.31.1)."""
        return self.mlx < (0, 31, 2)

    @property
    def binds_on_cpu(self) -> bool:
        """A stream can be used by the thread that made it alone, on the CPU too."""
        return self.mlx >= (0, 32, 0)

    @property
    def plain_handle(self) -> bool:
        """mlx-lm holds a plain stream, so that other threads fail without the agent."""
        return self.mlx_lm < (0, 31, 3)

    @property
    def plain_vision_handle(self) -> bool:
        """mlx-vlm holds a plain stream."""
        return self.mlx_vlm is not None and self.mlx_vlm < (0, 5, 0)

    @property
    def fails(self) -> bool:
        """Threaded programs fail here without the agent."""
        return self.binds_on_cpu and self.plain_handle


def version(package: str) -> tuple[int, ...] | None:
    """Return the installed version of `package` as numbers; None if it is not installed."""
    try:
        parts = importlib.metadata.version(package).split(".")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in parts if part.isdecimal())


def installed() -> Stack:
    """Return what is installed here."""
    return Stack(
        mlx=version("mlx") or (), mlx_lm=version("mlx-lm") or (), mlx_vlm=version("mlx-vlm")
    )
