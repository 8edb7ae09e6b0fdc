"""Realise arrays: evaluate them on the thread that built them, before another can see them.

An array with pending work remembers the stream that the work was built on, and that
stream can be used by its own thread alone. Once evaluated an array belongs to nobody.
"""

import contextlib
import functools
import threading
import weakref
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_unflatten

from mlx_autobind import targets
from mlx_autobind.random_state import undisturbed
from mlx_autobind.shield import shielded

T = TypeVar("T")

# Objects of these packages are searched for arrays: caches, responses, output classes.
_PACKAGES = tuple(f"{package}." for package in targets.PACKAGES)


def arrays_in(
    value: Any, *, private_only: bool = False, modules: bool = True
) -> Iterator[mx.array]:
    """Yield every array that `value` holds.

    In modules that is every array of every submodule, in its ``items()`` and in its
    ``vars()``, names with a leading underscore included: those are no parameters, so
    that loading a model does not evaluate them (the ``_freqs`` of scaled RoPE).

    Args:
        value: a module, a cache, a response, or lists, tuples and dicts of such.
        private_only: leave out the parameters of modules.
        modules: False leaves modules out altogether.
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
            if not modules:
                continue
            held = dict.items(item)
            stack += [(inner, wanted or str(name).startswith("_")) for name, inner in held]
            stack += [(inner, True) for inner in vars(item).values()]
        elif isinstance(item, (dict, UserDict)):
            stack += [(inner, wanted) for inner in item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += [(inner, wanted) for inner in item]
        elif any(cls.__module__.startswith(_PACKAGES) for cls in type(item).__mro__):
            stack += [(inner, wanted) for inner in getattr(item, "__dict__", {}).values()]


@shielded
def realise(value: Any, *, private_only: bool = False, modules: bool = True) -> None:
    """Evaluate the arrays that `value` holds, on the calling thread.

    Costs about 1 us for each array that is evaluated already (tests/benchmarks/loading.py).
    """
    found = list(arrays_in(value, private_only=private_only, modules=modules))
    if found:
        mx.eval(found)


@shielded
def realise_arguments(arguments: Iterable[Any]) -> None:
    """Evaluate the arrays among `arguments` that this thread can evaluate.

    Those of models as well: the program may have changed their weights.
    """
    found = list(arrays_in([each for argument in arguments for each in _held_by(argument)]))
    if not found:
        return
    try:
        mx.eval(found)
    except RuntimeError:
        # One of them is pending on the thread that they are for.
        for array in found:
            with contextlib.suppress(RuntimeError):
                mx.eval(array)


def _held_by(argument: Any) -> Iterator[Any]:
    """Yield `argument`, and what the functions in it hold, such as logits processors."""
    yield argument
    functions = argument if isinstance(argument, (list, tuple)) else (argument,)
    for function in functions:
        if isinstance(function, Module) or not callable(function):
            continue
        if isinstance(function, functools.partial):
            yield from (function.args, function.keywords)
            yield from _held_by(function.func)
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # a cell that is empty yet
                yield cell.cell_contents
        yield getattr(function, "__defaults__", None)
        owner = getattr(function, "__self__", function)
        yield list(getattr(owner, "__dict__", {}).values())


def realise_result(result: T) -> T:
    """Evaluate the arrays in `result`, modules apart, and return it."""
    realise(result, modules=False)
    return result


class LazyModel:
    """A module whose weights were left lazy, and how to load them once more.

    Attributes:
        model: a weak reference to it.
        loaded: weak references to the weights by name, to tell those that the program
            has changed since.
        again: loads the same weights on the calling thread, by name.
    """

    def __init__(
        self,
        model: Module,
        again: Callable[[], dict[str, mx.array]],
        forget: Callable[[Any], None],
    ) -> None:
        self.model = weakref.ref(model, forget)
        self.loaded = {name: weakref.ref(array) for name, array in weights_of(model)}
        self.again = again

    def reload(self, model: Module) -> None:
        """Replace the weights that nobody has changed by the same ones, of this thread."""
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
    """The modules that were left lazy and have not been generated with since.

    Thread-safe.

    Attributes:
        pending: them, oldest first; a module is in it once for each way it was loaded.
            One list for ever: that it is empty is all that an entry point asks.
    """

    def __init__(self) -> None:
        self.pending: list[LazyModel] = []
        self.lock = threading.RLock()

    def add(self, model: Module, again: Callable[[], dict[str, mx.array]]) -> None:
        """Remember that `model` was left lazy by a load that `again` repeats."""
        lazy = LazyModel(model, again, self._forget)
        with self.lock:
            self.pending.append(lazy)

    def holds(self, model: Module) -> bool:
        """Tell whether `model` was left lazy."""
        with self.lock:
            return any(lazy.model() is model for lazy in self.pending)

    def drop(self, models: Iterable[Module]) -> None:
        """Forget `models` and their submodules, which have been realised."""
        if not self.pending:
            return
        realised = {id(part) for model in models for part in _parts(model)}
        with self.lock:
            self.pending[:] = [lazy for lazy in self.pending if id(lazy.model()) not in realised]

    def _forget(self, reference: "weakref.ref[Module]") -> None:
        self.pending[:] = [lazy for lazy in self.pending if lazy.model is not reference]

    @shielded
    def bring(self, arguments: Iterable[Any]) -> None:
        """Make the models among `arguments`, or held by one of them, usable here.

        By evaluating them if the calling thread can; else by loading them once more, for
        nothing can be evaluated on another thread's behalf. What still cannot be used is
        left for the error to explain.
        """
        for argument in arguments:
            for model in (argument, getattr(argument, "model", None)):
                if isinstance(model, Module):
                    # Two threads must not evaluate the same arrays at once.
                    with self.lock:
                        self._bring(model)

    def _bring(self, model: Module) -> None:
        parts = {id(part): part for part in _parts(model)}
        mine = [lazy for lazy in self.pending if id(lazy.model()) in parts]
        if not mine:
            return
        if not _evaluates(model):
            # A module draws its first weights as it is made, also those that are loaded.
            with undisturbed():
                # In the order of loading: adapters come after the weights that they change.
                for lazy in mine:
                    lazy.reload(parts[id(lazy.model())])
            if not _evaluates(model):
                return
        self.drop([model])

    def clear(self) -> None:
        """Forget them all."""
        with self.lock:
            self.pending.clear()


def _parts(model: Any) -> list[Module]:
    return list(model.modules())


def _evaluates(model: Module) -> bool:
    """Evaluate `model`, and tell whether the calling thread can."""
    try:
        mx.eval(list(arrays_in(model)))
    except RuntimeError:
        return False
    return True


LAZY_MODELS = LazyModels()


def after_fork_in_child() -> None:
    """Start over with a lock that another thread may have held."""
    LAZY_MODELS.lock = threading.RLock()
