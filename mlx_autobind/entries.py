"""Wrapped entry points: calls bind the thread that calls, generators the thread that steps."""

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import wrapt
from mlx.nn.layers.base import Module

from mlx_autobind import settings, targets
from mlx_autobind.arrays import LAZY_MODELS, realise, weights_of
from mlx_autobind.binding import (
    NO_HANDLES,
    THREAD,
    Site,
    clear_at_exit,
    enter,
    hop,
    warn_if_forked,
)
from mlx_autobind.explain import explain
from mlx_autobind.generations import record
from mlx_autobind.handles import StreamHandle
from mlx_autobind.random_state import RANDOM_STATE, Drawing
from mlx_autobind.shield import shielded
from mlx_autobind.state import STATES, Stepped, with_own

# By this attribute a wrapper of ours is known, also through what lies on top of it.
SITE = "_mlx_autobind_site"

if TYPE_CHECKING:
    _Proxy = wrapt.ObjectProxy[Callable[..., Any]]
else:
    _Proxy = wrapt.ObjectProxy

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode.

    Attributes:
        wrap: makes the wrapper of a call.
        hand_out: makes what the program gets of a generator that binds whoever steps it, and
            the arguments; None hands out the generator itself.
        given: makes what a generator function is given of what the program gives.
    """

    wrap: Callable[[Function, Site, targets.Entry], Function]
    hand_out: Callable[[Any, Site, tuple[Any, ...]], Any] | None = None
    given: Callable[[Arguments, Options], tuple[Arguments, Options]] | None = None


def wrap_call(
    function: Function, site: Site, *, hands_back: bool = False, draws: bool = False
) -> Function:
    """Return `function` with the calling thread bound first.

    A plain function rather than a ``wrapt.FunctionWrapper``: it is pickled by its name
    and is a method where `function` was one, at less than half the cost.

    Args:
        function: a function or method.
        site: what it is.
        hands_back: realise the prompt caches in its result.
        draws: it may draw random numbers, outside of any generator.
    """
    thread, namespace, handle, lazy = THREAD, site.namespace, site.handle, LAZY_MODELS.pending
    random, handle_type = RANDOM_STATE, StreamHandle

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if thread.bound is None or namespace.get(handle).__class__ is not handle_type:
            enter(site)
            if not site.active:
                return function(*args, **kwargs)
        if draws:
            # What `take` would do, without the call where it changes nothing.
            if random.holder is thread.bound:
                random.lent = True
            else:
                random.take()
        if lazy:
            LAZY_MODELS.bring((*args, *kwargs.values()))
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            explain(error, site.name, (*args, *kwargs.values()), late=site.late)
            raise
        if hands_back and result:
            _realise_caches(result)
        return result

    return wrapper


def wrap_producer(function: Function, site: Site) -> Function:
    """Return `function` with the arrays that it hands back realised by the calling thread.

    Weights that were asked for lazily stay lazy, and are remembered.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not site.active:
            return function(*args, **kwargs)
        warn_if_forked(site)
        # A thread that loads leaves a random state behind, as one that imports does.
        clear_at_exit()
        # A model draws as it is made, whatever becomes of these weights.
        drawing = RANDOM_STATE.begin()
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            explain(error, site.name, (*args, *kwargs.values()), late=site.late)
            raise
        finally:
            if drawing is not None:
                RANDOM_STATE.end(drawing)
        _realise_produce(function, args, kwargs, result)
        return result

    return wrapper


def wrap_preparer(function: Function, site: Site, *, depth: int = 1) -> Function:
    """Return `function` as a producer for the program, and as it is for its own library.

    Args:
        function: a method of a model.
        site: what it is.
        depth: how many frames up its caller is.
    """
    producer = wrap_producer(function, site)
    library = f"{site.name.partition('.')[0]}."

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(depth).f_globals.get("__name__", "")
        chosen = function if caller.startswith(library) else producer
        return chosen(*args, **kwargs)

    return wrapper


@shielded
def _realise_produce(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    lazy = bool(given.get("lazy"))
    models = [each for each in _members(result) if isinstance(each, Module)]
    # Adapters go into a model that may itself have been left lazy.
    into_lazy = any(
        LAZY_MODELS.holds(model) for model in models for each in given.values() if each is model
    )
    realise(result, private_only=lazy or into_lazy)
    if not lazy:
        if not into_lazy:
            LAZY_MODELS.drop(models)
        return
    for at, model in enumerate(models):

        def again(at: int = at) -> dict[str, mx.array]:
            produced = _members(function(*args, **kwargs))
            return dict(weights_of([each for each in produced if isinstance(each, Module)][at]))

        LAZY_MODELS.add(model, again)


def _members(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


# What responses call the prompt caches that they hand back.
_CACHES = ("prompt_cache", "caches")


@functools.lru_cache(maxsize=64)
def _caches_of(kind: type) -> tuple[str, ...] | None:
    """Return which attributes of a `kind` may hold caches; None if it holds responses."""
    if issubclass(kind, (list, tuple)):
        return None
    fields = getattr(kind, "__dataclass_fields__", _CACHES)
    return tuple(name for name in _CACHES if name in fields)


@shielded
def _realise_caches(result: Any) -> None:
    """Realise the prompt caches that a batch hands back.

    Most steps finish nothing, so that what is looked at is one attribute a response.
    """
    if isinstance(result, dict):
        realise(result)
        return
    left, caches = [result], []
    for each in left:
        names = _caches_of(each.__class__)
        if names is None:
            left += each
            continue
        for name in names:
            cache = getattr(each, name, None)
            if cache is not None and not callable(cache):
                caches.append(cache)
    if caches:
        realise(caches)


def wrap_load_weights(function: Function, site: Site) -> Function:
    """Return ``nn.Module.load_weights`` with the private arrays of the module realised.

    For models that are built without a producer. Their weights stay lazy, since a program
    may well quantise them before it evaluates them; from a file they can be loaded again.
    """

    @functools.wraps(function)
    def wrapper(self: Module, file_or_weights: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, file_or_weights, *args, **kwargs)
        if site.active:
            realise(self, private_only=True)
            if isinstance(file_or_weights, str):
                _remember_file(self, os.path.abspath(file_or_weights))  # noqa: PTH100
        return result

    setattr(wrapper, SITE, site)
    return wrapper


@shielded
def _remember_file(model: Module, file: str) -> None:
    def again() -> dict[str, mx.array]:
        weights: Any = mx.load(file)
        return dict(weights)

    LAZY_MODELS.add(model, again)


class GeneratorEntry(_Proxy):
    """A generator function whose generators bind whichever thread steps them.

    A proxy, so that it stays a generator function to ``inspect`` and to frameworks,
    while wrong arguments still fail at the call, as they do without the agent.

    Args:
        function: a generator function.
        site: what it is.
        own: see `mlx_autobind.targets.Entry`.
        mode: the mode of the process.
    """

    def __init__(
        self,
        function: Function,
        site: Site,
        own: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        super().__init__(function)
        self._self_site = site
        self._self_mode = mode
        # Where a release takes care of it by itself there is nothing to lend.
        names = function.__code__.co_names
        self._self_own = own if own in names else None
        self._self_recorded = settings.current().generations

    @property
    def _mlx_autobind_site(self) -> Site:
        """The site of this wrapper, under the name `SITE`."""
        site: Site = self._self_site
        return site

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and return its generator with each step bound."""
        site = self._self_site
        mode = self._self_mode if site.active else None
        if self._self_own is not None and site.active:
            args, kwargs = with_own(self._self_own, args, kwargs) or (args, kwargs)
        if mode is not None and mode.given is not None:
            args, kwargs = mode.given(args, kwargs)
        inner = self.__wrapped__(*args, **kwargs)
        if not isinstance(inner, types.GeneratorType):
            # Another agent's wrapper made something else of it. What that steps in the
            # end is an entry point as well.
            return inner
        return self._outer(inner, mode, args, kwargs) or inner

    @shielded
    def _outer(
        self,
        inner: "types.GeneratorType[Any, Any, Any]",
        mode: Mode | None,
        args: Arguments,
        kwargs: Options,
    ) -> Any:
        """Return the generator that the program gets of the library's `inner`."""
        site = self._self_site
        # Arrays weakly: the library lets go of a long prompt as it works through it.
        given = (*args, *kwargs.values())
        held = tuple(weakref.ref(each) if isinstance(each, mx.array) else each for each in given)
        generation = STATES.begin(given)
        stepped = inner if generation is None else Stepped(inner, generation)
        outer: Any = step(stepped, site, held, kwargs.get("prompt_cache"))
        if mode is not None and mode.hand_out is not None:
            outer = mode.hand_out(outer, site, given)
        if self._self_recorded and site.active:
            outer = record(outer, site, given, kwargs.get("max_tokens")) or outer
        outer.__name__ = inner.__name__
        outer.__qualname__ = inner.__qualname__
        return outer

    # Copied and pickled by name, as the function itself is.
    def __copy__(self) -> "GeneratorEntry":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "GeneratorEntry":
        return self

    def __reduce__(self) -> str:
        name: str = self.__wrapped__.__qualname__
        return name

    def __reduce_ex__(self, protocol: object) -> str:
        return self.__reduce__()


_NOT_STEPPED: Any = object()


@shielded
def _enter_step(
    site: Site, last: object, held: tuple[Any, ...], draws: list[Drawing | None]
) -> object:
    """Bind the thread that is about to step a generator; return what tells it apart."""
    enter(site)
    now = THREAD.bound
    if last is _NOT_STEPPED:
        if site.active:
            draws.append(RANDOM_STATE.begin())
        if LAZY_MODELS.pending:
            LAZY_MODELS.bring(held)
    elif now is not last and site.active:
        hop(site)
    return now


def step(
    inner: "types.GeneratorType[Any, Any, Any] | Stepped",
    site: Site,
    held: tuple[Any, ...] = (),
    prompt_cache: Any = None,
) -> Generator[Any, Any, Any]:
    """Yield what `inner` yields, binding the thread that takes each step.

    Keeps no item, no lock and no context across a yield. ``send``, ``throw`` and
    ``close`` reach `inner` as they would without the agent.

    Args:
        inner: the library's generator.
        site: the entry point that made it.
        held: its arguments, arrays as weak references.
        prompt_cache: the cache that it leaves behind, which is realised at its end by
            the thread that took the last step.
    """
    # As the interpreter ends a generator may be closed after the globals here have gone.
    thread, namespace, handle, handle_type = THREAD, site.namespace, site.handle, StreamHandle
    send, throw, no_handles = inner.send, inner.throw, NO_HANDLES
    resume: Callable[[Any], Any] = send
    value: Any = None
    last: object = _NOT_STEPPED
    draws: list[Drawing | None] = []
    while True:
        try:
            if thread.bound is not last or namespace[handle].__class__ is not handle_type:
                last = _enter_step(site, last, held, draws)
        except KeyError:  # somebody deleted the handle; `get` would cost more at each item
            last = _enter_step(site, last, held, draws)
        try:
            # In one expression: a local would keep each item until the next step.
            value = yield resume(value)
        except BaseException as error:
            value = None
            mine = thread.bound is last
            if inner.gi_frame is None:  # `inner` has ended: it returned or raised this
                if _NOT_STEPPED is None:
                    raise  # the globals have gone
                ended = isinstance(error, (StopIteration, GeneratorExit))
                if mine and ended and prompt_cache is not None:
                    realise(prompt_cache)
                for drawing in filter(None, draws):
                    RANDOM_STATE.end(drawing)
                if isinstance(error, StopIteration):
                    return error.value
                if isinstance(error, RuntimeError) and site.active:
                    explain(error, site.name, held, late=site.late)
                raise
            resume, value = throw, error
            if isinstance(error, GeneratorExit):
                # Closed or collected, perhaps on another thread, which is not bound for
                # that; the cache is the last stepper's to realise.
                last, namespace, handle = thread.bound, no_handles, next(iter(no_handles))
                prompt_cache = prompt_cache if mine else None
        else:
            resume = send
