"""Let every thread run MLX: bind generation streams to whichever thread generates.

Usage, at the very start of a program (or in ``sitecustomize``)::

    import mlx_autobind

Importing the package installs the agent; ``MLX_AUTOBIND=off`` keeps it out. The way from
here to a span: this module's finder, `mlx_autobind.activation`, `mlx_autobind.patching`,
`mlx_autobind.binding`, `mlx_autobind.records`.

What is public: the names in ``__all__``, `mlx_autobind.instrumentor.MLXAutobindInstrumentor`, the
``MLX_AUTOBIND_*`` variables, the commands and their options, and the names and attributes of spans
and metrics. None of it raises an error class of its own: see ``Raises`` of each, and what the agent
cannot cure stays the ``RuntimeError`` that mlx raises, with a note on it. Which releases of other
libraries a statement is about, and how it is known, stands beside it; "read" is read in their
sources and not run.
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
    from typing import Any

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
PACKAGES = frozenset(("mlx_lm", "mlx_vlm", "mlx_audio", "mlx_whisper", "mlx_embeddings"))
VARIABLES = (
    "MLX_AUTOBIND",
    "MLX_AUTOBIND_GENERATIONS",
    "MLX_AUTOBIND_MODE",
    "MLX_AUTOBIND_MODULES",
    "MLX_AUTOBIND_RECORDS",
    "MLX_AUTOBIND_STRICT",
    "MLX_AUTOBIND_TRACE",
)


class TargetFinder:
    """Stands on ``sys.meta_path`` and has the agent told when a library's module is loaded.

    Python calls finders under its one import lock, so a finder that imports anything, as
    wrapt's own does with the parent package, waits for whoever is importing that while
    the other waits for the lock, for ever. This one asks the finders behind it, and what
    has to be imported is imported by the loader, which runs outside that lock.
    """

    packages = PACKAGES

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return what the finders behind this one find, with a `TargetLoader`."""
        if name.partition(".")[0] not in self.packages:
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            if not hasattr(finder, "find_spec"):
                continue
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = TargetLoader(spec.loader)
                found: ModuleSpec = spec
                return found
        return None


class TargetLoader:
    """A module's own loader, with wrapt's post-import hooks run after it."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        if name == "_loader":  # of a copy that is being made: it has nothing yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Do as the module's own loader does."""
        create = getattr(self._loader, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Execute `module` as its own loader does, then have it patched."""
        # From here on the module has the loader that it would have without us.
        for holder, name in ((module.__spec__, "loader"), (module, "__loader__")):
            if getattr(holder, name, None) is self:
                setattr(holder, name, self._loader)
        self._loader.exec_module(module)
        if _finder in sys.meta_path:
            _activation("loaded", module)


# One for ever, also when this module is reloaded.
_finder = globals().get("_finder") or TargetFinder()


def install(mode: "str | None" = None) -> None:
    """Put the process under the agent.

    Idempotent. Importing the package calls it, unless ``MLX_AUTOBIND=off``; a call by
    hand installs all the same. What was imported before is patched at once, and the
    records say so (``late``). It imports neither mlx nor a library. On mlx up to 0.31.1, where
    any thread can use any stream (read: pull request 3281 of mlx changed that), nothing is patched.

    Not thread-safe: not to be called on two threads at once, nor beside `uninstall`. Since 0.1.0.

    Args:
        mode: ``thread``, ``owner`` or ``shared``; None is what ``MLX_AUTOBIND_MODE`` says.
            ``shared`` needs ``mlx.core.new_thread_unsafe_stream``, of mlx 0.32.0 and later.

    Raises:
        ValueError: there is no such mode.
        RuntimeError: a library is patched already, in another mode.
    """
    if mode is not None:
        from mlx_autobind import activation

        activation.choose_mode(mode)
    if _finder in sys.meta_path:
        return
    if any(variable in environ for variable in VARIABLES):
        _finder.packages = PACKAGES | (_activation("read_settings") or PACKAGES)
    sys.meta_path.insert(0, _finder)
    # Handlers run last in, first out: this early, ours runs after the program's own, one
    # of which may be about to shut a daemon thread down in good order.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if not _finder.packages.isdisjoint(list(sys.modules)):
        _activation("patch_imported")


def uninstall() -> None:
    """Leave the process as if the agent had never been there.

    Idempotent. Wrappers, handles, names copied from either, and the finder go; what
    others laid over our wrappers goes on working (``wrapt.unwrap_object``, of wrapt 2.4.1 and
    later, takes out exactly ours). A thread that was bound keeps its stream and is still cleaned
    up when it ends. The records stay.

    Not thread-safe: not to be called on two threads at once, nor beside `install`. Since 0.1.0.
    """
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    # `bind_generation_streams` replaces handles even where the agent is not installed.
    if "mlx_autobind.patching" in sys.modules:
        _activation("undo")


def _activation(action: str, *arguments: object) -> "Any":
    """Do what has to be imported first; an error is a warning, not the program's error."""
    try:
        from mlx_autobind import activation

        return getattr(activation, action)(*arguments)
    except Exception as error:  # the seam, see shield.py
        try:
            from mlx_autobind.shield import raised_by_signal, report
        except ImportError:  # the package was removed or replaced while the program runs
            sys.stderr.write(f"mlx_autobind is not active: {error}\n")
            return None
        if raised_by_signal(error):
            raise
        report(f"mlx_autobind.activation.{action}", error)
        return None


# What runs at exit, in this order, if it is loaded by then.
_ENDINGS = (
    ("mlx_autobind.owner", "end"),
    ("mlx_autobind.daemons", "end"),
    ("mlx_autobind.shared", "finish"),
)


def _at_exit() -> None:
    for name, function in _ENDINGS:
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, function)()


# Type checkers would take any name for one that is there.
if not TYPE_CHECKING:

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
