"""The public names that need more than the standard library's smallest part."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlx_autobind import activation, settings, targets
from mlx_autobind.records import RING, HandleChange, Record, Versions, versions


@dataclass(frozen=True, slots=True)
class Status:
    """What the agent is doing in this process.

    Attributes:
        installed: True between `install` and `uninstall`.
        active: True if a library is patched.
        inert: why nothing is patched although the agent is installed; None if something is.
        mode: the mode in force.
        versions: of the libraries that are imported.
        handles: every handle that was found, and what was done to it.
        entry_points: what is wrapped, by fully qualified name.
        late: modules that had been imported before the agent was installed.
        unprotected: what the mode leaves to the program's own care; None if nothing.
        records: how many records are kept now.
        problems: settings that could not be used.
    """

    installed: bool
    active: bool
    inert: str | None
    mode: str
    versions: Versions
    handles: tuple[HandleChange, ...]
    entry_points: tuple[str, ...]
    late: tuple[str, ...]
    unprotected: str | None
    records: int
    problems: tuple[str, ...]


def status() -> Status:
    """Return what is patched, in which mode, and why nothing is if nothing is.

    Imports neither mlx nor any library. Thread-safe.
    """
    installed = activation.installed()
    activation.finish()
    patching = activation.patching()
    entry_points: tuple[str, ...] = ()
    handles: tuple[HandleChange, ...] = ()
    late: tuple[str, ...] = ()
    inert: str | None = None
    unprotected: str | None = None
    if patching is not None:
        if settings.current().mode == "shared":
            unprotected = patching.shared.UNPROTECTED
        entry_points = patching.PATCHES.entry_points()
        handles = patching.HANDLES.changes
        late = patching.PATCHES.late
        inert = patching.PATCHES.inert
    active = bool(entry_points or handles)
    if not installed:
        inert = "not installed"
    elif inert is None and not active:
        inert = "no target has been imported yet"
    return Status(
        installed=installed,
        active=active,
        inert=inert,
        mode=settings.current().mode,
        versions=versions(),
        handles=handles,
        entry_points=entry_points,
        late=late,
        unprotected=unprotected,
        records=len(RING.snapshot()),
        problems=settings.current().problems,
    )


def rebinds() -> tuple[Record, ...]:
    """Return the newest ``MLX_AUTOBIND_RECORDS`` records, oldest first. Thread-safe."""
    return RING.snapshot()


def bind_generation_streams(
    module_names: Iterable[str] = ("mlx_lm.generate", "mlx_vlm.generate"),
) -> Any:
    """Bind the calling thread, and have the handles of `module_names` mean its stream.

    For programs that call it by hand at the start of a worker, as several MLX servers do
    with a function of this name; under the agent it is not needed. It acts even where
    ``MLX_AUTOBIND=off`` or `uninstall` keep the agent out.

    Once per thread: a further call on the same thread returns the same stream. Other
    threads' streams are not touched, so unlike the functions it stands for it may be
    called on any number of threads. Nothing happens on mlx <= 0.31.1, where any thread
    can use any stream.

    Args:
        module_names: modules to look for a ``generation_stream`` in. They are imported;
            one that is missing or holds none is skipped.

    Returns:
        The stream (``mlx.core.Stream``) that the calling thread generates on.

    Raises:
        ImportError: mlx is not installed.
    """
    import mlx.core as mx

    from mlx_autobind import binding
    from mlx_autobind.handles import HANDLES
    from mlx_autobind.patching import PATCHES

    activation.finish()
    for name in (module_names,) if isinstance(module_names, str) else module_names:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        PATCHES.replace_handles(module, targets.table().get(name) or targets.Target(name))
    if binding.BINDS_STREAMS and binding.THREAD.bound is None:
        binding.bind("mlx_autobind.bind_generation_streams", late=False)
    return mx.default_stream(next(iter(HANDLES.devices.values()), mx.default_device()))
