"""Wrapped entry points: calls bind the thread that calls, generators the thread that steps."""

import functools
import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

import wrapt

from mlx_autobind.binding import THREAD, Site, enter
from mlx_autobind.handles import StreamHandle

# By this attribute a wrapper of ours is known, also through what lies on top of it.
SITE = "_mlx_autobind_site"


if TYPE_CHECKING:
    _Proxy = wrapt.ObjectProxy[Callable[..., Any]]
else:
    _Proxy = wrapt.ObjectProxy


def wrap_call(function: Callable[..., Any], site: Site) -> Callable[..., Any]:
    """Return `function` with the calling thread bound first.

    A plain function rather than a ``wrapt.FunctionWrapper``: it is pickled by its name
    and is a method where `function` was one, at 40 % of the cost.
    """
    thread, namespace, handle = THREAD, site.namespace, site.handle

    if handle is None:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not thread.bound:
                enter(site)
            return function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not thread.bound or namespace[handle].__class__ is not StreamHandle:
                enter(site)
            return function(*args, **kwargs)

    setattr(wrapper, SITE, site)
    return wrapper


class GeneratorEntry(_Proxy):
    """A generator function whose generators bind whichever thread steps them.

    A proxy, so that it stays a generator function to ``inspect`` and to frameworks,
    while wrong arguments still fail at the call, as they do without the agent.
    """

    def __init__(self, function: Callable[..., Any], site: Site) -> None:
        super().__init__(function)
        self._self_site = site

    @property
    def _mlx_autobind_site(self) -> Site:
        """The site of this wrapper, under the name `SITE`."""
        site: Site = self._self_site
        return site

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and return its generator with each step bound."""
        inner = self.__wrapped__(*args, **kwargs)
        if not isinstance(inner, types.GeneratorType):
            # Another agent's wrapper made something else of it. What that steps in the
            # end is an entry point as well.
            return inner
        outer = cast("types.GeneratorType[Any, Any, Any]", step(inner, self._self_site))
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


def step(inner: "types.GeneratorType[Any, Any, Any]", site: Site) -> Generator[Any, Any, Any]:
    """Yield what `inner` yields, binding the thread that takes each step.

    Keeps no item, no lock and no context across a yield. ``send``, ``throw`` and
    ``close`` reach `inner` as they would without the agent.
    """
    thread, namespace, handle = THREAD, site.namespace, site.handle
    send, throw = inner.send, inner.throw
    resume: Callable[[Any], Any] = send
    value: Any = None
    while True:
        if not thread.bound or (
            handle is not None and namespace[handle].__class__ is not StreamHandle
        ):
            enter(site)
        try:
            # In one expression: a local would keep each item until the next step.
            value = yield resume(value)
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:
            value = None
            if inner.gi_frame is None:  # `inner` has ended: it returned or raised this
                if isinstance(error, StopIteration):
                    return error.value
                raise
            resume, value = throw, error
        else:
            resume = send
