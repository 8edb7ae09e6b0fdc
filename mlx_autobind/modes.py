"""What each mode makes of an entry point: the one table of modes, `MODES`."""

import functools
import inspect
from typing import Any

from mlx_autobind import entries, generations, owner, settings, shared, targets
from mlx_autobind.binding import Site
from mlx_autobind.entries import Function, GeneratorEntry, Mode, wrap_call
from mlx_autobind.owner import OWNER
from mlx_autobind.state import STATES, in_generation, with_own


def wrap(function: Function, site: Site, entry: targets.Entry) -> Function:
    """Return `function` wrapped as the entry point `entry`, in the mode of the process.

    What the function is counts more than what the table says: a release may turn a
    generator function into a plain one, or the other way round.
    """
    mode = MODES[settings.current().mode]
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_GENERATOR:
        return GeneratorEntry(function, site, entry.own, mode)
    wrapper = mode.wrap(function, site, entry)
    if settings.current().generations:
        wrapper = generations.wrap(wrapper, site, entry)
    # However many lie on top of one another, they go together.
    wrapper.__wrapped__ = function  # type: ignore[attr-defined]
    setattr(wrapper, entries.SITE, site)
    # inspect.getfullargspec does not follow __wrapped__, and programs ask it which
    # arguments they may pass.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper


def in_thread_mode(function: Function, site: Site, entry: targets.Entry) -> Function:
    """Return `function` bound to whichever thread calls it."""
    if entry.kind == targets.PRODUCER:
        return entries.wrap_producer(function, site)
    if entry.kind == targets.PREPARER:
        return entries.wrap_preparer(function, site)
    if entry.kind == targets.STATEFUL:
        return wrap_call(in_generation(function, site, entry.own), site, draws=True)
    hands_back = entry.kind in (targets.BATCH, targets.LOOP)
    draws = entry.kind in (targets.BATCH, targets.CALL)
    return wrap_call(function, site, hands_back=hands_back, draws=draws)


def in_owner_mode(function: Function, site: Site, entry: targets.Entry) -> Function:
    """Return `function` done by the owner thread, or where it is called if it only steps."""
    wrapper = in_thread_mode(function, site, entry)
    if entry.kind == targets.BODY:
        return wrapper
    if entry.kind == targets.PRODUCER:
        return owner.hand_over(wrapper, site, producer=True)
    if entry.kind == targets.PREPARER:
        return owner.hand_over(
            entries.wrap_producer(function, site), site, inside=function, producer=True
        )
    handed = owner.hand_over(wrapper, site)
    if entry.kind == targets.LOOP or (entry.kind == targets.STATEFUL and not site.method):
        return loop(function, handed, site, entry)
    return handed


def loop(function: Function, handed: Function, site: Site, entry: targets.Entry) -> Function:
    """Return `function`, which only steps other entry points, run where it is called.

    Unless its model keeps state on itself, which it sets outside of any step: then the
    whole call is one step.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not site.active or OWNER.inside():
            return handed(*args, **kwargs)
        if entry.kind == targets.STATEFUL and STATES.begin((*args, *kwargs.values())) is not None:
            return handed(*args, **kwargs)
        if entry.own is not None:
            args, kwargs = with_own(entry.own, args, kwargs) or (args, kwargs)
        return function(*args, **kwargs)

    return wrapper


def in_shared_mode(function: Function, site: Site, entry: targets.Entry) -> Function:
    """Return `function` with the lock held while it runs, or during the steps it takes."""
    if entry.kind == targets.PREPARER:
        return shared.locked(entries.wrap_preparer(function, site, depth=2), site)
    wrapper = in_thread_mode(function, site, entry)
    if entry.kind == targets.PRODUCER:
        # Bound here already: what the program computes from the weights is pending on a
        # stream that any thread can use.
        wrapper = wrap_call(wrapper, site)
    if entry.kind in (targets.BODY, targets.LOOP):
        return wrapper
    if entry.kind == targets.STATEFUL and not site.method:
        bound = wrap_call(function, site)
        return loop(bound, shared.locked(wrapper, site), site, entry)
    return shared.locked(wrapper, site)


MODES = {
    "thread": Mode(in_thread_mode),
    "owner": Mode(in_owner_mode, owner.hand_over_steps, owner.without_own_streams),
    "shared": Mode(in_shared_mode, shared.lock_steps),
}
