"""Realise arrays: evaluate them on the thread that built them, before another can see them.

An array with pending work remembers the stream that the work was built on, and that
stream can be used by its own thread alone. Once evaluated an array belongs to nobody.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_unflatten

from mlx_autobind import targets
from mlx_autobind.shield import shielded

# Objects of these packages are searched for arrays: caches, responses, output classes.
_PACKAGES = tuple(f"{package}." for _, package in targets.VERSIONED)


def arrays_in(value: Any, *, private_only: bool = False) -> Iterator[mx.array]:
    """Yield every array that `value` holds.

    In modules that is every array of every submodule, in its ``items()`` and in its
    ``vars()``, names with a leading underscore included: those are no parameters, so
    that loading a model does not evaluate them (the ``_freqs`` of scaled RoPE).

    Args:
        value: a module, a cache, a response, or lists, tuples and dicts of such.
        private_only: leave out the parameters of modules.
    """
    seen: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, not private_only)]
    while stack:
        item, wanted = stack.pop()
        if isinstance(item, mx.array):
            if wanted:
                yield item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Module):
            held = dict.items(item)
            stack += [(inner, wanted or str(name).startswith("_")) for name, inner in held]
            stack += [(inner, True) for inner in vars(item).values()]
        elif isinstance(item, dict):
            stack += [(inner, wanted) for inner in item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += [(inner, wanted) for inner in item]
        elif type(item).__module__.startswith(_PACKAGES):
            stack += [(inner, wanted) for inner in getattr(item, "__dict__", {}).values()]


@shielded
def realise(value: Any, *, private_only: bool = False) -> None:
    """Evaluate the arrays that `value` holds, on the calling thread.

    Costs about 1 us for each array that is evaluated already (tests/benchmarks/realise.py).
    """
    found = list(arrays_in(value, private_only=private_only))
    if found:
        mx.eval(found)


class LazyModel:
    """A model whose weights were left lazy, and how to load them once more.

    Attributes:
        model: a weak reference to it.
        thread: a weak reference to the thread that loaded it, the only one that can
            evaluate its weights.
        loaded: weak references to the weights by name, to tell those that the program
            has changed since.
        again: loads the same weights on the calling thread, by name.
    """

    def __init__(self, model: Module, again: Callable[[], dict[str, mx.array]]) -> None:
        self.model = weakref.ref(model)
        self.thread = weakref.ref(threading.current_thread())
        self.loaded = {name: weakref.ref(array) for name, array in weights_of(model)}
        self.again = again

    def bring(self, model: Module) -> None:
        """Make the weights of `model` usable on every thread.

        By evaluating them if the calling thread can; else by loading them once more, for
        nothing can be evaluated on another thread's behalf.
        """
        try:
            mx.eval(list(arrays_in(model)))
        except RuntimeError:
            if self.thread() is threading.current_thread():
                raise
            fresh = self.again()
            unchanged = [
                (name, fresh[name])
                for name, array in weights_of(model)
                if name in fresh and self.loaded.get(name, _nothing)() is array
            ]
            mx.eval([array for _, array in unchanged])
            model.update(tree_unflatten(unchanged))


def _nothing() -> None:
    """Stand in for a weak reference to what was not there."""


def weights_of(model: Any) -> list[tuple[str, mx.array]]:
    """Return the parameters of a module by dotted name."""
    flat: Any = tree_flatten(model.parameters())
    return list(flat)


class LazyModels:
    """The models that were left lazy and have not been generated with since.

    Thread-safe.

    Attributes:
        pending: them. One list for ever: that it is empty is all that an entry point asks.
    """

    def __init__(self) -> None:
        self.pending: list[LazyModel] = []
        self._lock = threading.RLock()

    def add(self, model: Module, again: Callable[[], dict[str, mx.array]]) -> None:
        """Remember that `model` was left lazy. The last way to load it again holds."""
        lazy = LazyModel(model, again)
        with self._lock:
            self._drop(model)
            self.pending.append(lazy)

    def holds(self, model: Module) -> bool:
        """Tell whether `model` was left lazy."""
        with self._lock:
            return any(lazy.model() is model for lazy in self.pending)

    def _drop(self, model: Module) -> None:
        alive = [(lazy, lazy.model()) for lazy in self.pending]
        self.pending[:] = [lazy for lazy, held in alive if held is not None and held is not model]

    def drop(self, models: Iterable[Module]) -> None:
        """Forget `models`, which have been realised."""
        if self.pending:
            with self._lock:
                for model in models:
                    self._drop(model)

    @shielded
    def bring(self, arguments: Iterable[Any]) -> None:
        """Make the models among `arguments`, or held by one of them, usable here."""
        for argument in arguments:
            for model in (argument, getattr(argument, "model", None)):
                if not isinstance(model, Module):
                    continue
                # Two threads must not evaluate the same arrays at once.
                with self._lock:
                    for lazy in self.pending:
                        if lazy.model() is model:
                            lazy.bring(model)
                            self._drop(model)
                            break

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self.pending.clear()


LAZY_MODELS = LazyModels()
