"""The public names that need more than the standard library's smallest part."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_autobind import activation, settings, targets
from mlx_autobind.records import RING, HandleChange, Record, Versions, versions

if TYPE_CHECKING:
    from mlx.core import Stream


@dataclass(frozen=True, slots=True)
class Status:
    """What the agent was doing in this process when `status` was called.

    Immutable, so that threads may share it. Since 0.1.0.

    Attributes:
        installed: True between `install` and `uninstall`.
        active: True if a library is patched.
        inert: a sentence, why nothing is patched; None if something is. On mlx up to 0.31.1,
            where any thread can use any stream, it says so.
        mode: the mode in force: ``thread``, ``owner`` or ``shared``.
        versions: of the libraries that are imported.
        handles: every handle that was found, and what was done to it, in the order in which it
            was done.
        entry_points: what is wrapped, by fully qualified name, such as
            ``mlx_lm.generate.generate``. Which names there are in which release of a library is
            the table in ``mlx_autobind/targets.py``.
        late: modules that had been imported before the agent was installed.
        unprotected: a sentence, what the mode leaves to the program's own care; None if nothing.
        records: how many records are kept now, ``MLX_AUTOBIND_RECORDS`` at most.
        problems: a sentence for each setting that could not be used.
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

    Imports neither mlx nor any library. Thread-safe. Since 0.1.0.

    Returns:
        A snapshot; it does not change afterwards.
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
    """Return the newest records.

    Thread-safe; no lock is held. Since 0.1.0.

    Returns:
        ``MLX_AUTOBIND_RECORDS`` of them at most (1000 if it is not set), oldest first. They are
        of this process; a forked child has those of its parent as well.
    """
    return RING.snapshot()


def bind_generation_streams(
    module_names: Iterable[str] = ("mlx_lm.generate", "mlx_vlm.generate"),
) -> "Stream":
    """Bind the calling thread, and have the handles of `module_names` mean its stream.

    For programs that call it by hand at the start of a worker, as several MLX servers do
    with a function of this name; under the agent it is not needed. It acts even where
    ``MLX_AUTOBIND=off`` or `uninstall` keep the agent out.

    Once per thread: a further call on the same thread returns the same stream. Other
    threads' streams are not touched, so unlike the functions it stands for it may be
    called on any number of threads.

    Nothing happens on mlx up to 0.31.1, where any thread can use any stream. From 0.31.2 on a
    stream of Metal or CUDA belongs to the thread that made it (read:
    ``mlx/backend/metal/device.cpp`` and ``mlx/backend/cuda/device.cpp``, which raise "There is no
    Stream(gpu, N) in current thread."), and from 0.32.0 on one of the CPU
    (``mlx/backend/cpu/encoder.cpp``).

    Thread-safe. Since 0.1.0.

    Args:
        module_names: modules to look for a ``generation_stream`` in, or the name of one. They
            are imported; one that is missing or holds none is skipped. The default is where
            mlx-lm from 0.24 on and mlx-vlm from 0.3.0 on hold it (``mlx_lm/generate.py``;
            ``mlx_vlm/generate.py``, which is a package from 0.6.0 on).

    Returns:
        The stream that the calling thread generates on: its default stream, of the device that
        the handles stand for.

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
