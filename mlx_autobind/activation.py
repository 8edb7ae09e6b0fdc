"""From the first import of a target to the patched library, and back out.

Loaded by the finder on ``sys.meta_path`` when a target is about to be imported.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import mlx_autobind
from mlx_autobind import settings, targets
from mlx_autobind.shield import shielded

ROWS = targets.table(settings.current().modules)

# Names whose post-import hook is registered and has not run. The import lock of the
# module is held from the one to the other, so no lock of ours is needed.
_pending: set[str] = set()


@shielded
def find_spec(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Register wrapt's post-import hook for `name`, and hand the import over to wrapt."""
    # wrapt asks the whole of sys.meta_path again, our finder included.
    if name not in ROWS or name in _pending:
        return None
    import wrapt
    from wrapt.importer import ImportHookFinder  # type: ignore[import-untyped]

    _pending.add(name)
    wrapt.register_post_import_hook(imported, name)
    # Returning None now would miss the hook of this very import: wrapt's finder has been
    # asked already, or has been put on sys.meta_path before us only just now.
    for finder in sys.meta_path:
        if isinstance(finder, ImportHookFinder):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            return spec
    return None


def imported(module: ModuleType) -> None:
    """Patch `module`: wrapt's post-import hook.

    Raises nothing: that would fail the program's import.
    """
    _pending.discard(module.__name__)
    if installed():
        _patch(module, late=False)


def installed() -> bool:
    """Tell whether the agent is installed."""
    return mlx_autobind._finder in sys.meta_path


@shielded
def read_settings() -> frozenset[str]:
    """Warn of settings that cannot be used; return the packages of the extra modules."""
    for problem in settings.current().problems:
        logging.getLogger("mlx_autobind").warning("%s", problem)
    return frozenset(name.partition(".")[0] for name in ROWS)


def patch_imported() -> None:
    """Patch what had been imported before the agent was installed."""
    for name in ROWS:
        if name in sys.modules:
            _patch_late(name)


@shielded
def _patch_late(name: str) -> None:
    # Waits for a module that another thread is still importing.
    _patch(importlib.import_module(name), late=True)


@shielded
def _patch(module: ModuleType, late: bool) -> None:
    # A module that does not import mlx.core has no handle, and we must not import it:
    # that can abort the interpreter on a machine without a usable Metal device.
    if "mlx.core" in sys.modules:
        from mlx_autobind.patching import PATCHES

        PATCHES.apply(module, ROWS[module.__name__], late=late)


@shielded
def undo() -> None:
    """Take out whatever was patched."""
    patching = sys.modules.get("mlx_autobind.patching")
    if patching is not None:
        patching.PATCHES.undo()
