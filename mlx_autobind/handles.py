"""Find and replace the places that hold a generation stream.

A plain stream can be used by the thread that made it and by no other (mlx >= 0.31.2 on
Metal and CUDA, >= 0.32.0 on the CPU as well). A *device* means the calling thread's
default stream of it, to ``mx.stream`` and to ``mx.synchronize`` alike. So every handle is
replaced, once per process, by a device, and no thread's bind can change what another
thread sees.

Imported only after ``mlx.core`` has been: importing that first would cost every
interpreter 0.2 s and can abort on a machine without a usable Metal device.
"""

import contextlib
import functools
import gc
import importlib.util
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from mlx_autobind import records
from mlx_autobind.records import Action, HandleChange, Stopwatch
from mlx_autobind.shield import shielded

STREAM_TYPES: tuple[type, ...] = tuple(
    getattr(mx, name) for name in ("Stream", "ThreadLocalStream") if hasattr(mx, name)
)


class StreamHandle(mx.Device):
    """Stands where a generation stream stood; means the calling thread's default stream.

    Attributes:
        original: the stream that it replaced.
    """

    original: Any = None

    @property
    def device(self) -> mx.Device:
        """The device, as ``mx.Stream.device`` gives it."""
        return mx.Device(self.type, device_index(self))

    def __repr__(self) -> str:
        return f"StreamHandle({super().__repr__()})"


def device_index(device: mx.Device) -> int:
    """Return the index of `device`; mlx tells it only in the text ``Device(gpu, 0)``."""
    return _last_number(mx.Device.__repr__(device), default=0)


def device_name(device: mx.Device) -> str:
    """Return `device` as type and index, such as ``gpu:0``."""
    return f"{device.type.name}:{device_index(device)}"


def stream_index(stream: object) -> int:
    """Return mlx's number of `stream`, which it tells only in its text; -1 if it does not."""
    return _last_number(repr(stream), default=-1)


def _last_number(text: str, default: int) -> int:
    digits = text.rstrip(")").rpartition(",")[2].strip()
    return int(digits) if digits.isdecimal() else default


def is_stream(value: object) -> bool:
    """Tell whether `value` is a stream, plain or thread-local."""
    return isinstance(value, STREAM_TYPES)


def device_of(value: Any) -> mx.Device:
    """Return the device of a stream, or of what mlx takes for a device."""
    if isinstance(value, mx.DeviceType):
        return mx.Device(value, 0)
    return value if isinstance(value, mx.Device) else value.device


class Place(NamedTuple):
    """One reference to a value, and how to put another in its stead."""

    where: str
    write: Callable[[Any], None]


def module_places(module: types.ModuleType, value: object) -> Iterator[Place]:
    """Yield where `module` holds `value`: attributes, default arguments, class attributes."""
    namespace = namespace_of(module)
    own = namespace.get("__name__")
    for name, member in list(namespace.items()):
        if member is value:
            # Past the module's own __setattr__, which may be ours (see `_watching`).
            yield Place(f"{own}.{name}", functools.partial(operator.setitem, namespace, name))
        elif type(member) is types.FunctionType:
            if member.__defaults__ or member.__kwdefaults__:
                yield from default_places(member, value)
        elif isinstance(member, type) and member.__module__ == own:
            for attribute, inner in list(vars(member).items()):
                if inner is value:
                    where = f"{own}.{member.__qualname__}.{attribute}"
                    yield Place(where, functools.partial(setattr, member, attribute))
                elif type(inner) is types.FunctionType and (
                    inner.__defaults__ or inner.__kwdefaults__
                ):
                    yield from default_places(inner, value)


def default_places(function: types.FunctionType, value: object) -> Iterator[Place]:
    """Yield where `value` is a default argument of `function`."""
    name = f"{function.__module__}.{function.__qualname__}"
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for at, default in enumerate(defaults):
        if default is value:
            argument = positional[len(positional) - len(defaults) + at]
            yield Place(f"{name}({argument}=)", functools.partial(_write_default, function, at))
    keywords = function.__kwdefaults__ or {}
    for argument, default in list(keywords.items()):
        if default is value:
            write = functools.partial(operator.setitem, keywords, argument)
            yield Place(f"{name}({argument}=)", write)


def _write_default(function: types.FunctionType, at: int, value: object) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[at] = value
    function.__defaults__ = tuple(defaults)


def heap_places(value: object) -> Iterator[Place]:
    """Yield where anything in the process holds `value`.

    For what was copied before the agent came: names in any module, default arguments,
    ``self._stream``, closures. It walks all modules and the whole heap,
    so it is used for late activation and undo alone.
    """
    # Besides the heap, since a tuple of untracked objects is not among the referrers of
    # what it holds, and what `gc.freeze` has frozen is among nobody's.
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):
            yield from module_places(module, value)
    # No list of all objects: it would keep generators alive, and end them on this thread.
    for holder in gc.get_referrers(value):
        kind = type(holder)
        if kind is dict:
            yield from _dict_places(holder, value)
        elif kind is list:
            for at, item in enumerate(holder):
                if item is value:
                    yield Place("a list", functools.partial(operator.setitem, holder, at))
        elif kind is types.CellType:
            yield Place("a closure", functools.partial(setattr, holder, "cell_contents"))
        elif kind in (classmethod, staticmethod):
            # What wraps a function for a class cannot be changed: it is made anew.
            for owner in gc.get_referrers(holder):
                if type(owner) is dict:
                    for place in _dict_places(owner, holder):
                        remake = functools.partial(_remake, place.write, kind)
                        yield Place(place.where, remake)
        elif kind not in _NO_HOLDERS and not issubclass(kind, (type, StreamHandle)):
            # Since Python 3.11 an instance can hold its attributes without a dict.
            with contextlib.suppress(AttributeError, TypeError):
                attributes = object.__getattribute__(holder, "__dict__")
                yield from _dict_places(attributes, value)


def _remake(write_place: Callable[[Any], None], kind: type, value: Any) -> None:
    write_place(kind(value))


_NO_HOLDERS = (types.FrameType, types.GeneratorType, types.ModuleType)


def namespace_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the dict of `module`, past a ``__dict__`` of its class's own (lazy modules)."""
    namespace: dict[str, Any] = _MODULE_DICT.__get__(module)
    return namespace


_MODULE_DICT: Any = vars(types.ModuleType)["__dict__"]


def _dict_places(holder: dict[Any, Any], value: object) -> Iterator[Place]:
    owner = _class_of_namespace(holder)
    for key, item in list(holder.items()):
        if item is not value:
            continue
        if owner is not None:
            # Writing to the dict of a class would leave a stale method cache.
            write: Callable[[Any], None] = functools.partial(setattr, owner, key)
            yield Place(f"{owner.__module__}.{owner.__qualname__}.{key}", write)
        else:
            where = f"{holder['__name__']}.{key}" if "__spec__" in holder else "an attribute"
            yield Place(where, functools.partial(operator.setitem, holder, key))


def _class_of_namespace(holder: dict[Any, Any]) -> type | None:
    if "__module__" not in holder or "__spec__" in holder:
        return None
    for candidate in gc.get_referrers(holder):
        if isinstance(candidate, type) and set(vars(candidate)) == set(holder):
            return candidate
    return None


class Handles:
    """The handles that were replaced. One instance per process, `HANDLES`.

    Thread-safe: what it publishes is replaced, never changed, and each step that replaces
    something is idempotent.

    Attributes:
        changes: what was done to each handle, in the order in which it was done.
        devices: the devices that the handles stand for, by name, which mlx tells as a text
            that no thread should have to read when it is bound.
    """

    def __init__(self) -> None:
        self.changes: tuple[HandleChange, ...] = ()
        self.devices: dict[str, mx.Device] = {}
        self._lock = threading.RLock()
        self._handles: tuple[StreamHandle, ...] = ()
        self._watched: tuple[types.ModuleType, ...] = ()

    def replace(self, module: types.ModuleType, names: tuple[str, ...], *, late: bool) -> None:
        """Replace the handles of `module`, and whatever was copied from them if `late`."""
        held = [name for name in names if name in namespace_of(module)]
        for name in held:
            value = namespace_of(module)[name]
            if isinstance(value, StreamHandle):
                where = f"{module.__name__}.{name}"
                if all(change.where != where for change in self.changes):
                    self._add(value, [HandleChange(where, "copied")])
            elif is_stream(value):
                places = heap_places(value) if late else module_places(module, value)
                self.put(value, list(places), "replaced")
        if held and not any(module is known for known in self._watched):
            module.__class__ = _watching(_lasting_class(module), names)
            self._watched = (*self._watched, module)

    def put(self, value: Any, places: list[Place], action: Action) -> None:
        """Write the handle that stands for `value`, a stream or a device, to `places`."""
        device = device_of(value)
        handle = StreamHandle(device.type, device_index(device))
        if action != "replaced":
            # A drift: one handle for each device is enough, however often it happens.
            name = device_name(device)
            handle = next((h for h in self._handles if device_name(h) == name), handle)
        written = [place for place in places if write(place, handle)]
        # Only now: a search of the heap for `value` must not find this reference.
        if handle.original is None:
            handle.original = value
        self._add(handle, [HandleChange(place.where, action) for place in written])

    def _add(self, handle: StreamHandle, changes: list[HandleChange]) -> None:
        with self._lock:
            if not any(known is handle for known in self._handles):
                self._handles = (*self._handles, handle)
            self.changes = (*self.changes, *(new for new in changes if new not in self.changes))
            self.devices = {device_name(known): known.device for known in self._handles}

    def instead_of(self, value: Any) -> Any:
        """Return a handle for the device of `value` if that is a stream; else `value`.

        For a stream that one thread hands to another, which cannot use it.
        """
        if not is_stream(value):
            return value
        device = device_of(value)
        name = device_name(device)
        known = next((each for each in self._handles if device_name(each) == name), None)
        return known or StreamHandle(device.type, device_index(device))

    def undo(self) -> None:
        """Put every original stream back, wherever a handle stands now."""
        for module in self._watched:
            if WATCHED in vars(type(module)):
                module.__class__ = vars(type(module))[WATCHED]
        for handle in self._handles:
            for place in list(heap_places(handle)):
                write(place, handle.original)
        self.changes, self.devices, self._handles, self._watched = (), {}, (), ()


@shielded
def write(place: Place, value: Any) -> bool:
    """Write `value` to `place`; a class of the program's may refuse, which is its right."""
    place.write(value)
    return True


HANDLES = Handles()

# Where the class of a watched module keeps the one that the module had before.
WATCHED = "_mlx_autobind_watched"


# What `importlib.util.LazyLoader` makes of a module until that is used.
_LAZY_MODULE = getattr(importlib.util, "_LazyModule", None)


def _lasting_class(module: types.ModuleType) -> type[types.ModuleType]:
    """Return the class that `module` has once it is loaded.

    In Python 3.13 (not yet in 3.12.1) a lazy module keeps its class while it is executed, and
    knows itself by just that class: an attribute of a subclass's instance recurses for ever.
    """
    return types.ModuleType if type(module) is _LAZY_MODULE else type(module)


def _watching(base: type[types.ModuleType], names: tuple[str, ...]) -> type[types.ModuleType]:
    """Return a class of modules that notices an assignment to a handle as it is made.

    A step reads the handle more than once, seconds apart if the prompt is long, so
    putting it back at the next entry would be too late for the steps under way.
    """

    def set_attribute(self: types.ModuleType, name: str, value: Any) -> None:
        if name in names and keep(self, name, value):
            return
        base.__setattr__(self, name, value)

    body = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__setattr__": set_attribute,
        WATCHED: base,
    }
    return type(base.__name__, (base,), body)


@shielded
def keep(module: types.ModuleType, name: str, value: Any) -> bool:
    """Keep the handle `name` of `module` although `value` is being assigned to it.

    A stream is the property of one thread. The handle means the same to a thread that
    assigns its own default stream, and something that works to every other. A stream or
    device of another device type is honoured by a handle for that device.

    Returns:
        True if a handle stays, False if the assignment is to be carried out.
    """
    held = vars(module).get(name)
    if not isinstance(held, StreamHandle) or isinstance(value, StreamHandle):
        return False
    if not isinstance(value, (*STREAM_TYPES, mx.Device, mx.DeviceType)):
        return False
    stopwatch = Stopwatch()
    change = HandleChange(f"{module.__name__}.{name}", "kept")
    if device_name(device_of(value)) != device_name(held):
        write = functools.partial(operator.setitem, vars(module), name)
        HANDLES.put(value, [Place(change.where, write)], change.action)
    _emit_drift(value, change, f"{module.__name__}.__setattr__", stopwatch, late=False)
    return True


def restore(namespace: dict[str, Any], name: str, entry_point: str, *, late: bool) -> None:
    """Put a handle back after a stream was written past the module, into `namespace`.

    So does ``importlib.reload``, which makes new default arguments along with it.
    """
    value = namespace.get(name)
    if not is_stream(value):
        return
    stopwatch = Stopwatch()
    change = HandleChange(f"{namespace.get('__name__')}.{name}", "restored")
    places = [Place(change.where, functools.partial(operator.setitem, namespace, name))]
    for function in list(namespace.values()):
        if isinstance(function, types.FunctionType):
            places.extend(default_places(function, value))
    HANDLES.put(value, places, change.action)
    _emit_drift(value, change, entry_point, stopwatch, late=late)


def _emit_drift(
    value: Any, change: HandleChange, entry_point: str, stopwatch: Stopwatch, *, late: bool
) -> None:
    records.emit(
        "drift",
        entry_point,
        (change,),
        stopwatch,
        device=device_name(device_of(value)),
        stream_index=stream_index(value) if is_stream(value) else -1,
        late=late,
    )
