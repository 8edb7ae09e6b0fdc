"""Let every thread run MLX: bind generation streams to whichever thread generates.

Usage, at the very start of a program (or in ``sitecustomize``)::

    import mlx_autobind

Importing the package installs the agent; ``MLX_AUTOBIND=off`` keeps it out. The way from
here to a span: this module's finder, `mlx_autobind.activation`, `mlx_autobind.patching`,
`mlx_autobind.binding`, `mlx_autobind.records`.
"""

# This module is run by every interpreter that starts under sitecustomize, most of which
# never see MLX. It is one file on purpose, so that each start reads one file, and imports
# nothing that such an interpreter has not loaded: wrapt and the OpenTelemetry API would
# make `python -c pass` seven times as slow (tests/benchmarks/startup.py).
import atexit
import sys
from os import environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from mlx_autobind.api import Status, bind_generation_streams, rebinds, status
    from mlx_autobind.records import HandleChange, Record, Versions

__version__ = "0.1.0"

__all__ = [
    "HandleChange",
    "Record",
    "Status",
    "Versions",
    "bind_generation_streams",
    "install",
    "rebinds",
    "status",
    "uninstall",
]

# Where the public names that cost an import are looked up on first use.
_LAZY = {
    "HandleChange": "mlx_autobind.records",
    "Record": "mlx_autobind.records",
    "Status": "mlx_autobind.api",
    "Versions": "mlx_autobind.records",
    "bind_generation_streams": "mlx_autobind.api",
    "rebinds": "mlx_autobind.api",
    "status": "mlx_autobind.api",
}

# The packages of `mlx_autobind.targets`, and the variables of `mlx_autobind.settings`;
# tests hold both equal to theirs.
PACKAGES = frozenset(("mlx_lm", "mlx_vlm"))
VARIABLES = (
    "MLX_AUTOBIND",
    "MLX_AUTOBIND_MODE",
    "MLX_AUTOBIND_MODULES",
    "MLX_AUTOBIND_RECORDS",
    "MLX_AUTOBIND_STRICT",
)


class TargetFinder:
    """Stands on ``sys.meta_path`` until a target is imported; finds nothing itself."""

    packages = PACKAGES

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Have a wrapt post-import hook registered for `name` if it is a target."""
        if name.partition(".")[0] not in self.packages:
            return None
        from mlx_autobind import activation

        return activation.find_spec(name, path, target)


_finder = TargetFinder()


def install() -> None:
    """Put the process under the agent.

    Idempotent. Importing the package calls it, unless ``MLX_AUTOBIND=off``; a call by
    hand installs all the same. What was imported before is patched at once, and the
    records say so (``late``). Not to be called on two threads at once.
    """
    if _finder in sys.meta_path:
        return
    if any(variable in environ for variable in VARIABLES):
        from mlx_autobind import activation

        _finder.packages = PACKAGES | (activation.read_settings() or PACKAGES)
    sys.meta_path.insert(0, _finder)
    # Handlers run last in, first out: this early, ours runs after the program's own,
    # which may well use MLX.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if any(name.partition(".")[0] in _finder.packages for name in sys.modules):
        from mlx_autobind import activation

        activation.patch_imported()


def uninstall() -> None:
    """Leave the process as if the agent had never been there.

    Idempotent. Wrappers, handles, names copied from either, and the finder go; what
    others laid over our wrappers goes on working. A thread that was bound keeps its
    stream and is still cleaned up when it ends. Not to be called on two threads at once.
    """
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    activation = sys.modules.get("mlx_autobind.activation")
    if activation is not None:
        activation.undo()


def _at_exit() -> None:
    binding = sys.modules.get("mlx_autobind.binding")
    if binding is not None:
        binding.clear_main_thread()


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


if environ.get("MLX_AUTOBIND", "").strip().lower() not in ("off", "0", "false", "no"):
    install()
