"""Put the agent into a library, and take exactly ours out again.

Imported by the first post-import hook that fires, once ``mlx.core`` is there.
"""

import contextlib
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import wrapt

from mlx_autobind import binding, records, targets, telemetry
from mlx_autobind.binding import Site
from mlx_autobind.entries import SITE, GeneratorEntry, wrap_call
from mlx_autobind.handles import HANDLES
from mlx_autobind.shield import shielded


@dataclass(frozen=True, slots=True)
class Patch:
    """One wrapper of ours, and where it was put."""

    owner: types.ModuleType
    path: str
    wrapper: Any
    original: Any
    site: Site | None


class Patches:
    """The wrappers in the process. One instance, `PATCHES`.

    Attributes:
        inert: why nothing is patched; None if that may happen.
        late: the modules that had been imported before the agent was installed.
    """

    def __init__(self) -> None:
        self.inert: str | None = None
        self.late: tuple[str, ...] = ()
        self._patches: list[Patch] = []
        # Two modules can be imported on two threads at once. Nothing is imported under
        # this lock either.
        self._lock = threading.Lock()
        if not binding.BINDS_STREAMS:
            version = records.versions().mlx
            self.inert = f"mlx {version} lets any thread use any stream: nothing to bind"

    def entry_points(self) -> tuple[str, ...]:
        """Return the fully qualified names of what is wrapped, in the order of wrapping."""
        return tuple(patch.site.name for patch in self._patches if patch.site is not None)

    def apply(self, module: types.ModuleType, target: targets.Target, *, late: bool) -> None:
        """Replace the handles of `module` and wrap its entry points. Idempotent."""
        if self.inert is not None:
            return
        telemetry.start()
        # Importing a library leaves random state behind in the importing thread, which
        # mlx destroys as it destroys streams: too late, with the GIL.
        binding.clear_at_exit()
        with self._lock:
            if late and module.__name__ not in self.late:
                self.late = (*self.late, module.__name__)
            self._wrap_core()
            HANDLES.replace(module, target.handles, late=late)
            handle = next((name for name in target.handles if name in vars(module)), None)
            for entry in target.entries:
                self._wrap_entry(module, entry, handle, late)

    @shielded
    def _wrap_entry(
        self, module: types.ModuleType, entry: targets.Entry, handle: str | None, late: bool
    ) -> None:
        function = _find(module, entry.path)
        if function is None or hasattr(function, SITE):
            return
        site = Site(f"{module.__name__}.{entry.path}", vars(module), handle, late)
        # What the function is, not what the table says: a release may turn one into the other.
        generator = getattr(function, "__code__", _no_code.__code__).co_flags & CO_GENERATOR
        wrap = GeneratorEntry if generator else wrap_call
        wrapper = _wrap(module, entry.path, wrap, site)
        self._patches.append(Patch(module, entry.path, wrapper, function, site))
        if late:
            _replace_names(function, wrapper)

    def _wrap_core(self) -> None:
        if any(patch.owner is mx for patch in self._patches):
            return
        for name, wrap in binding.CORE_WRAPPERS.items():
            if hasattr(mx, name):
                self._wrap_core_function(name, wrap)

    @shielded
    def _wrap_core_function(self, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(mx, name)
        wrapper = _wrap(mx, name, wrap)
        self._patches.append(Patch(mx, name, wrapper, original, None))

    def undo(self) -> None:
        """Take out every wrapper and every handle, wherever they were copied to."""
        with self._lock:
            for patch in reversed(self._patches):
                _unwrap(patch)
            self._patches.clear()
            self.late = ()
            HANDLES.undo()


# wrapt's own types ask for a proxy; it takes and removes any wrapper that has __wrapped__.
def _wrap(owner: types.ModuleType, path: str, wrap: Callable[..., Any], *arguments: Any) -> Any:
    return wrapt.wrap_object(owner, path, cast("Any", wrap), arguments)


CO_GENERATOR = 0x20  # of `inspect`, which costs 5 ms to import


def _no_code() -> None:
    """Something whose code is no generator's."""


def _find(module: types.ModuleType, path: str) -> Any:
    # Through vars(): the package of mlx-vlm 0.7 has a __getattr__ that forwards to its
    # submodules, and a class may inherit what another row of the table wraps.
    found: Any = module
    for name in path.split("."):
        found = vars(found).get(name)
        if found is None:
            return None
    return found


def _replace_names(old: object, new: object) -> None:
    """Have every module that took the name `old` call `new`."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            for name, value in list(vars(module).items()):
                if value is old:
                    vars(module)[name] = new


@shielded
def _unwrap(patch: Patch) -> None:
    if patch.site is not None:
        patch.site.active = False
    # Not outermost if a closure of somebody else's holds ours: from now on it passes calls
    # through, and `_replace_names` cannot reach it.
    with contextlib.suppress(wrapt.WrapperNotOutermostError):
        wrapt.unwrap_object(patch.owner, patch.path, patch.wrapper, missing_ok=True)
    _replace_names(patch.wrapper, patch.original)


PATCHES = Patches()
