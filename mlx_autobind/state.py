"""Keep apart, for each generation, what a model keeps on itself for the one under way.

Some vision models keep the position of a generation as attributes of their modules (see
`mlx_autobind.targets.STATE`). Two generations at once then read each other's, on one
thread as on two, and on two they read arrays of a stream that is not theirs. So each
generation gets its own values: they are put in place before a step of it, under a lock
that is held until the step is done.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import wrapt
from mlx.nn.layers.base import Module

from mlx_autobind import targets
from mlx_autobind.shield import shielded

if TYPE_CHECKING:
    from mlx_autobind.binding import Site

    _CallableProxy = wrapt.CallableObjectProxy[Any]
else:
    _CallableProxy = wrapt.CallableObjectProxy

Values = list[Any]
Function = Callable[..., Any]


class ModelState:
    """The state that one model keeps on itself, and whose it is just now.

    Attributes:
        lock: held during each step. Re-entrant, for a callback that generates.
        current: the generation whose values are in place.
    """

    def __init__(self, fields: list[tuple[Module, str]]) -> None:
        self.lock = threading.RLock()
        self.current: Generation | None = None
        # Weakly, since this object lives until the model is collected.
        self._fields = [(weakref.ref(module), name) for module, name in fields]
        self._between: Values = []
        self._evaluated: Values = []
        self._stepping = False

    def step(self, generation: "Generation", call: Function, *args: Any, **kwargs: Any) -> Any:
        """Return what `call` returns, with the values of `generation` in place meanwhile."""
        # In an order that a KeyboardInterrupt between any two lines leaves nothing behind.
        with self.lock:
            nested = self._stepping
            try:
                self._stepping = True
                # A step inside a step, as generate_step in stream_generate, is part of it.
                if not nested and self.current is not generation:
                    self._change_to(generation)
                return call(*args, **kwargs)
            finally:
                self._stepping = nested
                if not nested:
                    self._evaluate()

    @shielded
    def _change_to(self, generation: "Generation") -> None:
        values = self._read()
        if self.current is None or self.current.ended:
            # What a generation has left is what the next one finds, as without the agent.
            self._between = values
        else:
            self.current.values = values
        self._write(self._between if generation.values is None else generation.values)
        self.current = generation

    @shielded
    def _evaluate(self) -> None:
        values = self._read()
        fresh = [
            value
            for value, known in zip(values, self._evaluated or values, strict=True)
            if value is not known or not self._evaluated
        ]
        self._evaluated = values
        arrays = [value for value in fresh if isinstance(value, mx.array)]
        if arrays:
            mx.eval(arrays)

    def shares(self, other: "ModelState") -> bool:
        """Tell whether a field of `other` is one of this."""
        mine = {(id(reference()), name) for reference, name in self._fields}
        return any((id(reference()), name) in mine for reference, name in other._fields)

    def _read(self) -> Values:
        return [getattr(reference(), name, None) for reference, name in self._fields]

    def _write(self, values: Values) -> None:
        for (reference, name), value in zip(self._fields, values, strict=True):
            module = reference()
            if module is not None and getattr(module, name, None) is not value:
                setattr(module, name, value)


class Generation:
    """One generation with a model that keeps its state on itself.

    Attributes:
        values: its state while that of another generation is in place.
        ended: True if it takes no further step.
        lasting: True if it is a batch, which takes any number of calls.
    """

    __slots__ = ("__weakref__", "_state", "ended", "lasting", "values")

    def __init__(self, state: ModelState) -> None:
        self._state = state
        self.values: Values | None = None
        self.ended = self.lasting = False

    def step(self, call: Function, *args: Any, **kwargs: Any) -> Any:
        """Return what `call` returns, as a step of this generation."""
        return self._state.step(self, call, *args, **kwargs)


class Stepped:
    """A generator each step of which is one of `generation`.

    Has what `mlx_autobind.entries.step` uses of a generator.
    """

    __slots__ = ("_generation", "_inner")

    def __init__(self, inner: Any, generation: Generation) -> None:
        self._inner = inner
        self._generation = generation

    @property
    def gi_frame(self) -> Any:
        """None once the generator has ended."""
        return self._inner.gi_frame

    def send(self, value: Any) -> Any:
        """Take a step."""
        return self._step(self._inner.send, value)

    def throw(self, error: BaseException) -> Any:
        """Raise `error` in the generator."""
        # See `mlx_autobind.binding.Steps.throw`.
        given, inner, closes = [error], self._inner, isinstance(error, GeneratorExit)
        del error
        if closes:
            # Closed or collected: no step. The collector may run on any thread, at any
            # point, which must not wait for a lock there.
            self._generation.ended = True
            return inner.throw(given.pop())
        return self._step(lambda: inner.throw(given.pop()))

    def _step(self, call: Function, *values: Any) -> Any:
        try:
            return self._generation.step(call, *values)
        finally:
            self._generation.ended = self._inner.gi_frame is None


class ModelStates:
    """The states of the models that were generated with. One instance, `STATES`.

    Thread-safe. Models are kept by identity, and forgotten as they are collected.
    """

    def __init__(self) -> None:
        # Re-entrant, for a signal handler that generates.
        self._lock = threading.RLock()
        self._known: dict[int, tuple[weakref.ref[Module], ModelState | None]] = {}
        self._batches: weakref.WeakKeyDictionary[Any, Generation] = weakref.WeakKeyDictionary()

    @shielded
    def begin(self, arguments: tuple[Any, ...]) -> Generation | None:
        """Return a new generation with the model among `arguments`.

        Returns:
            None if there is no model among them, or one that keeps no state.
        """
        for argument in arguments:
            if isinstance(argument, Module):
                state = self._state_of(argument)
                if state is not None:
                    return Generation(state)
        return None

    @shielded
    def of(self, arguments: tuple[Any, ...]) -> Generation | None:
        """Return the generation of a call with `arguments`.

        A batch, the first of them then, is one generation for as long as it lives; anything
        else is one for the length of the call.
        """
        first = arguments[0] if arguments else None
        model = getattr(first, "model", None)
        if isinstance(first, Module) or not isinstance(model, Module):
            return self.begin(arguments)
        with self._lock:
            known = self._batches.get(first)
        if known is None:
            known = self.begin((model,))
            if known is not None:
                known.lasting = True
                with self._lock:
                    known = self._batches.setdefault(first, known)
        return known

    def _state_of(self, model: Module) -> ModelState | None:
        key = id(model)
        found = self._known.get(key)
        if found is None or found[0]() is not model:
            with self._lock:
                found = self._known.get(key)
                if found is None or found[0]() is not model:
                    # Not a function of Python's: what a signal handler raises in one that the
                    # end of a model calls is printed, and lost. Given is (key, reference).
                    forget = functools.partial(self._known.pop, key)
                    reference = weakref.ref(model, forget)
                    found = self._known[key] = (reference, self._make(model))
        return found[1]

    def _make(self, model: Module) -> ModelState | None:
        fields = list(_fields(model))
        if not fields:
            return None
        state = ModelState(fields)
        # Who generates with a model and who with its language model share their state.
        for _, known in list(self._known.values()):
            if known is not None and known.shares(state):
                return known
        return state

    def clear(self) -> None:
        """Forget every model, and the locks that another thread may have held."""
        self._lock = threading.RLock()
        self._known.clear()
        self._batches.clear()


def _fields(model: Any) -> Iterator[tuple[Module, str]]:
    for module in model.modules():
        # Some are assigned by the first generation only; what reads them names them.
        code = getattr(type(module).__call__, "__code__", None)
        named = (*code.co_names, *code.co_consts) if code is not None else ()
        for name in targets.STATE:
            if name in module or name in vars(module) or name in named:
                yield module, name


STATES = ModelStates()


def in_generation(function: Function, site: "Site", own: str | None) -> Function:
    """Return `function` with the state that its model keeps on itself kept apart."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not site.active:
            return function(*args, **kwargs)
        if own is not None:
            args, kwargs = with_own(own, args, kwargs) or (args, kwargs)
        generation = STATES.of((*args, *kwargs.values()))
        if generation is None:
            return function(*args, **kwargs)
        try:
            return generation.step(function, *args, **kwargs)
        finally:
            generation.ended = not generation.lasting

    return wrapper


_PROCESSOR = 1  # where mlx-vlm's functions take it


class Lent(_CallableProxy):
    """A processor with one attribute of its own; all else is the processor's."""

    def __init__(self, processor: Any, name: str, value: Any) -> None:
        super().__init__(processor)
        self._self_own = (name, value)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_self_"):
            own, value = object.__getattribute__(self, "_self_own")
            if name == own:
                return value
        return super().__getattribute__(name)


@shielded
def with_own(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments with a processor that has an attribute `name` of its own.

    Returns:
        None if no processor among the arguments has such an attribute.
    """
    processor = args[_PROCESSOR] if len(args) > _PROCESSOR else kwargs.get("processor")
    shared = getattr(processor, name, None)
    if processor is None or shared is None:
        return None
    # Not copy.copy: it sets a property of mlx-vlm's detokenizer that cannot be set.
    mine: Any = object.__new__(type(shared))
    vars(mine).update(vars(shared))
    mine.reset()
    lent = Lent(processor, name, mine)
    if len(args) > _PROCESSOR:
        return (*args[:_PROCESSOR], lent, *args[_PROCESSOR + 1 :]), kwargs
    return args, {**kwargs, "processor": lent}


def after_fork_in_child() -> None:
    """Start over: a lock may have been held by a thread that is not here."""
    STATES.clear()
