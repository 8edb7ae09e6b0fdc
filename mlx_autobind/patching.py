"""Put the agent into a library, and take exactly ours out again.

Imported by the first post-import hook that fires, once ``mlx.core`` is there.
"""

import contextlib
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import wrapt
from mlx.nn.layers.base import Module

import mlx_autobind
from mlx_autobind import (
    binding,
    generations,
    random_state,
    records,
    settings,
    shared,
    targets,
    telemetry,
)
from mlx_autobind.arrays import LAZY_MODELS
from mlx_autobind.binding import Site
from mlx_autobind.entries import SITE, wrap_load_weights
from mlx_autobind.handles import HANDLES, heap_places, namespace_of, write
from mlx_autobind.modes import wrap
from mlx_autobind.owner import OWNER
from mlx_autobind.random_state import RANDOM_STATE
from mlx_autobind.shield import shielded
from mlx_autobind.state import STATES

logger = logging.getLogger("mlx_autobind")


@dataclass(frozen=True, slots=True)
class Patch:
    """One wrapper of ours, and where it was put.

    Attributes:
        owner: the module or class.
        name: the name in there.
        wrapper: what stands there now.
        original: what stood there before.
        site: the entry point that it is; None for a function of mlx itself.
    """

    owner: Any
    name: str
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
        # The libraries that were warned of.
        self._unknown: set[str] = set()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork_in_child)
        # Two modules can be imported on two threads at once. Nothing is imported under
        # this lock either.
        self._lock = threading.Lock()
        if not binding.BINDS_STREAMS:
            version = records.versions().mlx
            self.inert = f"mlx {version} lets any thread use any stream: nothing to bind"
        elif settings.current().mode == "shared" and not shared.AVAILABLE:
            logger.warning(
                "MLX_AUTOBIND_MODE=shared: mlx %s has no stream that any thread may use (0.32.0 "
                "has); using thread",
                records.versions().mlx,
            )
            settings.choose("thread")

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        OWNER.after_fork_in_child()
        shared.after_fork_in_child()
        generations.after_fork_in_child()
        telemetry.TRACE_FILE.after_fork_in_child()

    def entry_points(self) -> tuple[str, ...]:
        """Return the fully qualified names of what is wrapped, in the order of wrapping."""
        return tuple(
            patch.site.name
            for patch in self._patches
            if patch.site is not None and patch.owner is not Module
        )

    def apply(self, module: types.ModuleType, target: targets.Target, *, late: bool) -> None:
        """Replace the handles of `module` and wrap its entry points. Idempotent."""
        if self.inert is not None:
            return
        # Importing a library leaves random state behind in the importing thread, which
        # mlx destroys as it destroys streams: too late, with the GIL.
        binding.clear_at_exit()
        with self._lock:
            # Another thread may have uninstalled meanwhile, and `undo` does not come again.
            if mlx_autobind._finder not in sys.meta_path:
                return
            self._replace_handles(module, target, late)
            if late and module.__name__ not in self.late:
                self.late = (*self.late, module.__name__)
            held = namespace_of(module)
            handle = next((name for name in target.handles if name in held), None)
            there = [self._wrap_entry(module, entry, handle, late) for entry in target.entries]
        if there and not any(there):
            self._warn_of_the_unknown(module, target)

    @shielded
    def _warn_of_the_unknown(self, module: types.ModuleType, target: targets.Target) -> None:
        """Say, once for each library, that `module` has nothing that the table knows.

        Only of a release that came after the table: earlier ones lack whole rows of it.
        """
        package = target.module.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", None)
        if target.module != targets.name_of(module) or package in self._unknown:
            return
        if version is not None and targets.newer(package, version):
            self._unknown.add(package)
            logger.warning(
                "%s %s is newer than what mlx-autobind %s knows (%s), and %s has none of the entry "
                "points that it would wrap: threads that generate with it get no stream of their "
                "own. Look for a newer mlx-autobind.",
                package.replace("_", "-"),
                version,
                mlx_autobind.__version__,
                targets.TESTED[package][1],
                target.module,
            )

    def replace_handles(self, module: types.ModuleType, target: targets.Target) -> None:
        """Replace the handles of `module` and wrap none of its entry points. Idempotent."""
        if self.inert is None:
            with self._lock:
                self._replace_handles(module, target, late=False)

    def _replace_handles(
        self, module: types.ModuleType, target: targets.Target, late: bool
    ) -> None:
        telemetry.start()
        if not any(patch.owner is mx for patch in self._patches):
            for name, factory in binding.CORE_WRAPPERS.items():
                self._wrap_function(mx, name, factory)
            self._wrap_function(mx.random, "seed", random_state.seed)
            if settings.current().mode == "shared":
                for name, factory in shared.CORE_WRAPPERS.items():
                    self._wrap_function(mx, name, factory)
                shared.begin()
            site = Site("mlx.nn.Module.load_weights", {}, None, late=False)
            self._wrap_function(Module, "load_weights", wrap_load_weights, site)
        HANDLES.replace(module, target.handles, late=late)

    @shielded
    def _wrap_entry(
        self, module: types.ModuleType, entry: targets.Entry, handle: str | None, late: bool
    ) -> bool:
        """Wrap `entry` if `module` has it; tell whether it has."""
        class_name, _, name = entry.path.rpartition(".")
        # Through the dict: the package of mlx-vlm 0.7 has a __getattr__ that forwards to
        # its submodules, and a class may inherit what another row of the table wraps.
        owner = namespace_of(module).get(class_name) if class_name else module
        function = None if owner is None else vars(owner).get(name)
        if function is None:
            return False
        site = _site_of(function)
        if site is not None:
            # Ours already. It may have been uninstalled under a closure of somebody else's.
            if not site.active:
                site.active = True
                self._patches.append(Patch(owner, name, function, function, site))
            return True
        name_of_it = f"{targets.name_of(module)}.{entry.path}"
        site = Site(name_of_it, namespace_of(module), handle, late, method=bool(class_name))
        wrapper = _put(owner, name, wrap, site, entry)
        self._patches.append(Patch(owner, name, wrapper, function, site))
        if late:
            _replace_names(function, wrapper)
        return True

    @shielded
    def _wrap_function(
        self, owner: Any, name: str, factory: Callable[..., Any], site: Site | None = None
    ) -> None:
        original = vars(owner).get(name)
        if original is None:
            return
        wrapper = _put(owner, name, factory, *([] if site is None else [site]))
        self._patches.append(Patch(owner, name, wrapper, original, site))
        # `from mlx.core import *` may have come before the library, whenever we came.
        if owner in (mx, mx.random):
            _replace_names(original, wrapper)

    def undo(self) -> None:
        """Take out every wrapper and every handle, wherever they were copied to."""
        with self._lock:
            for patch in reversed(self._patches):
                _unwrap(patch)
            # Wherever a wrapper was copied to: names, attributes, closures of others.
            for patch in self._patches:
                for place in list(heap_places(patch.wrapper)):
                    write(place, patch.original)
            self._patches.clear()
            self.late = ()
            HANDLES.undo()
            LAZY_MODELS.clear()
            STATES.clear()
            RANDOM_STATE.clear()
            if settings.current().mode == "shared":
                shared.end()


def _put(owner: Any, name: str, factory: Callable[..., Any], *rest: Any) -> Any:
    # wrapt's types ask for a proxy; it takes, and removes, anything with a __wrapped__.
    return wrapt.wrap_object(owner, name, cast("Any", factory), rest)


# More wrappers on top of one another than any program has.
MAX_DEPTH = 32


def _site_of(function: Any) -> Site | None:
    """Return the site of our wrapper in or under `function`."""
    for _ in range(MAX_DEPTH):
        site = getattr(function, SITE, None)
        if isinstance(site, Site):
            return site
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return None


def _replace_names(old: object, new: object) -> None:
    """Have every module that took the name `old` call `new`."""
    for module_name, module in list(sys.modules.items()):
        if str(module_name).startswith("mlx_autobind."):
            continue  # we call what we wrapped
        with contextlib.suppress(TypeError):  # something that is no module
            namespace = namespace_of(module)
            for name, value in list(namespace.items()):
                if value is old:
                    namespace[name] = new


@shielded
def _unwrap(patch: Patch) -> None:
    if patch.site is not None:
        patch.site.active = False
    # Not outermost if a closure of somebody else's holds ours: from now on it passes calls
    # through, and `_replace_names` cannot reach it.
    with contextlib.suppress(wrapt.WrapperNotOutermostError):
        wrapt.unwrap_object(patch.owner, patch.name, patch.wrapper, missing_ok=True)


PATCHES = Patches()
