"""From a loaded library to a patched one, and back out.

Loaded by the loader of `mlx_autobind.TargetFinder` when the first module of a library has
been executed.
"""

import contextlib
import importlib
import logging
import sys
from types import ModuleType
from typing import Any

import wrapt

import mlx_autobind
from mlx_autobind import settings, targets
from mlx_autobind.shield import shielded

ROWS = targets.table(settings.current().modules)

_unfinished: list[ModuleType] = []


def loaded(module: ModuleType) -> None:
    """Have wrapt run the post-import hook of `module`, if it is a target.

    wrapt runs the hook of a module that is in ``sys.modules`` at once. Registered any
    earlier, it would be left to wrapt's finder, which can deadlock (see `TargetFinder`)
    and does not see ``importlib.reload``.
    """
    finish()
    if targets.row(ROWS, module.__name__) is not None:
        wrapt.register_post_import_hook(imported, module.__name__)


def finish() -> None:
    """Patch the modules that were half-way through their import when it was their turn."""
    for module in list(_unfinished):
        if not getattr(module.__spec__, "_initializing", False):
            _unfinished.remove(module)
            _patch(module, late=True)
    _patch_main()


def _patch_main() -> None:
    """Patch a target that runs as ``__main__``: a copy, which no loader executes.

    ``python -m mlx_lm.generate`` is one. Its functions are there by the time it imports the
    model's module, which brings us here.
    """
    main = sys.modules.get("__main__")
    if isinstance(main, ModuleType):
        _patch(main, late=False)


def imported(module: ModuleType) -> None:
    """Patch `module`, just imported: wrapt's post-import hook."""
    _patch(module, late=False)


def choose_mode(mode: str) -> None:
    """Use `mode` from now on.

    Raises:
        ValueError: there is no such mode.
        RuntimeError: a library is patched already, in another mode.
    """
    now = settings.current().mode
    module = patching()
    if mode != now and module is not None and module.PATCHES.entry_points():
        raise RuntimeError(
            f"mode={mode!r}: the libraries are patched in mode {now!r} already; call "
            f"mlx_autobind.install(mode={mode!r}) before they are imported, or uninstall() first"
        )
    settings.choose(mode)


def patching() -> Any:
    """Return `mlx_autobind.patching`, or None if no library has been loaded.

    Waits, if another thread is importing it just now.
    """
    name = "mlx_autobind.patching"
    return importlib.import_module(name) if name in sys.modules else None


def installed() -> bool:
    """Tell whether the agent is installed."""
    return mlx_autobind._finder in sys.meta_path


def read_settings() -> frozenset[str]:
    """Warn of settings that cannot be used; return the packages of the extra modules."""
    for problem in settings.current().problems:
        logging.getLogger("mlx_autobind").warning("%s", problem)
    return frozenset(name.partition(".")[0] for name in ROWS)


def patch_imported() -> None:
    """Patch what had been imported before the agent was installed."""
    for name, module in list(sys.modules.items()):
        # What stands there may be None, or a stand-in of a test's.
        if isinstance(module, ModuleType) and targets.row(ROWS, name) is not None:
            _patch_late(name, module)


@shielded
def _patch_late(name: str, module: ModuleType) -> None:
    # Waits for a module that another thread is still importing. That thread may fail, or be
    # waiting for this one, which Python breaks off with a RuntimeError.
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module(name)
    if sys.modules.get(name) is not module:
        return  # imported once more, by our loader, or gone
    if getattr(module.__spec__, "_initializing", False):
        # This thread is importing it: the module imports the agent itself.
        _unfinished.append(module)
    else:
        _patch(module, late=True)


@shielded
def _patch(module: ModuleType, late: bool) -> None:
    # A module that does not import mlx.core has no handle, and we must not import it:
    # that can abort the interpreter on a machine without a usable Metal device.
    row = targets.row(ROWS, targets.name_of(module))
    if row is not None and "mlx.core" in sys.modules:
        from mlx_autobind.patching import PATCHES

        PATCHES.apply(module, row, late=late)


def undo() -> None:
    """Take out whatever was patched."""
    module = patching()
    if module is not None:
        module.PATCHES.undo()
