"""Generations as spans, where ``MLX_AUTOBIND_GENERATIONS`` asks for them.

By the GenAI semantic conventions of OpenTelemetry, as far as the agent sees them without
looking into a prompt or an answer, neither of which it ever records. One span a generation,
however many entry points of a library take part in it; a prompt of a batch is a generation.
"""

import atexit
import functools
import inspect
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from mlx_autobind import settings, targets, telemetry
from mlx_autobind.binding import Site, Steps, collected, relay
from mlx_autobind.records import Stopwatch
from mlx_autobind.shield import shielded

Function = Callable[..., Any]

# Where a generation under way stands in the context of its steps.
_KEY = context.create_key("mlx_autobind-generation")
_NS = 1e-9
_UNKNOWN = "unknown"


class ModelNames:
    """What models were loaded from. One instance, `NAMES`. Thread-safe."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Module], str]] = {}

    def learn(self, model: Module, source: str) -> None:
        """Remember that `model` came from `source`, a folder or the name of a repository."""
        name = name_of(source)
        # A program may generate with the language model of a vision model.
        for part in (model, *(held for held in dict.values(model) if isinstance(held, Module))):
            self._add(part, name)

    def _add(self, part: Module, name: str) -> None:
        key = id(part)
        reference = weakref.ref(part, lambda _dead: self._names.pop(key, None))
        self._names[key] = (reference, name)

    def of(self, model: Any) -> str:
        """Return what `model` was loaded from, else the type of model that it is."""
        reference, name = self._names.get(id(model), (None, ""))
        if reference is not None and reference() is model:
            return name
        return str(getattr(model, "model_type", None) or _UNKNOWN)


NAMES = ModelNames()


def name_of(source: str) -> str:
    """Return the name of a model: of its repository, or of its folder, never a whole path."""
    if not os.path.isdir(source):  # noqa: PTH112 - a repository
        return source
    path = Path(source).absolute()
    for part in path.parts:
        # As the cache of Hugging Face names its folders.
        kind, separator, name = part.partition("--")
        if kind == "models" and separator:
            return name.replace("--", "/")
    return path.name


class Recording:
    """One generation under way, and its span.

    Steps may be taken by any thread, one after the other.

    Attributes:
        waits: True if it was begun by a call that is about to step a generator for it.
        ended: True once the span has ended.
    """

    def __init__(self, site: Site, model: Any, input_tokens: int | None, limit: Any) -> None:
        self.waits = self.ended = False
        # The caller's, who may leave the steps to another thread.
        self._parent = context.get_current()
        self._site = site
        self._model = NAMES.of(model)
        self._input_tokens = input_tokens
        self._limit = limit if isinstance(limit, int) else None
        self._stopwatch: Stopwatch | None = None
        self._span: telemetry.OpenSpan | None = None
        self._inside = self._parent
        self._first_ns: int | None = None
        self._last_ns = self._tokens = self._cached = 0
        self._finish: str | None = None

    @shielded
    def begin(self) -> None:
        """Start the span. Does nothing the second time."""
        if self._stopwatch is not None:
            return
        settle()
        self._stopwatch = Stopwatch()
        library = self._site.name.partition(".")[0]
        operation = targets.OPERATIONS.get(library, targets.OPERATION)
        thread = threading.current_thread()
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": library,
            "gen_ai.request.model": self._model,
            "thread.id": threading.get_ident(),
            "thread.name": thread.name,
            "code.function.name": self._site.name,
            "mlx_autobind.kind": "generation",
            "mlx_autobind.mode": settings.current().mode,
        }
        if self._limit is not None:
            attributes["gen_ai.request.max_tokens"] = self._limit
        self._span = telemetry.OpenSpan(
            f"{operation} {self._model}", attributes, self._stopwatch.started_ns, self._parent
        )
        self._inside = context.set_value(_KEY, self, self._span.context)
        _open.add(self)

    @shielded
    def enter(self) -> "Token[Context]":
        """Make the span current, for the length of a step; return what `leave` wants."""
        self.begin()
        return context.attach(self._inside)

    @shielded
    def note(self, response: Any) -> None:
        """Note a token, and what the library says of it."""
        self._last_ns = time.perf_counter_ns()
        if self._first_ns is None:
            self._first_ns = self._last_ns
        count = getattr(response, "generation_tokens", None)
        self._tokens = count if isinstance(count, int) and count else self._tokens + 1
        of_prompt = getattr(response, "prompt_tokens", None)
        if isinstance(of_prompt, int) and of_prompt:
            self._input_tokens = of_prompt
        cached = getattr(response, "cached_tokens", None)
        if isinstance(cached, int):
            self._cached = cached
        reason = getattr(response, "finish_reason", None)
        if isinstance(reason, str):
            self._finish = reason

    @shielded
    def end(self, how: str, error: BaseException | None = None) -> None:
        """End the span. Does nothing the second time.

        Args:
            how: ``exhausted``, ``closed``, ``collected``, ``error`` or ``exit``.
            error: what the generation raised. Its type is recorded, its text is not.
        """
        if self._stopwatch is None or self._span is None or self.ended:
            return
        self.ended = True
        _open.discard(self)
        length_ns = self._stopwatch.stop()
        found: dict[str, AttributeValue] = {
            "gen_ai.usage.output_tokens": self._tokens,
            "mlx_autobind.generation.end": how,
        }
        if self._input_tokens is not None:
            found["gen_ai.usage.input_tokens"] = self._input_tokens
        if self._cached:
            found["gen_ai.usage.cache_read.input_tokens"] = self._cached
        if self._finish is not None:
            found["gen_ai.response.finish_reasons"] = [self._finish]
        if self._first_ns is not None:
            after_ns = self._first_ns - self._stopwatch.began_ns
            found["gen_ai.response.time_to_first_chunk"] = after_ns * _NS
            if self._tokens > 1 and self._last_ns > self._first_ns:
                rate = (self._tokens - 1) / ((self._last_ns - self._first_ns) * _NS)
                found["mlx_autobind.generation.tokens_per_second"] = rate
        if error is not None:
            found["error.type"] = type(error).__qualname__
        self._span.end(found, self._stopwatch.started_ns + length_ns, failed=error is not None)

    @shielded
    def end_by(self, error: BaseException) -> None:
        """End the span as `error` says that the generation ended."""
        if isinstance(error, StopIteration):
            self.end("exhausted")
        elif isinstance(error, GeneratorExit):
            self.end("closed")
        else:
            self.end("error", error)

    @shielded
    def collect(self) -> None:
        """Have the span ended, as of now, by the next generation or at exit.

        Not here: the collector may run anywhere, also where an exporter holds its lock.
        """
        if self._stopwatch is not None:
            self._stopwatch.stop()
            _collected.append(self)


@shielded
def leave(token: "Token[Context] | None") -> None:
    """Make current what was so before `Recording.enter`."""
    if token is not None:
        context.detach(token)


_open: set[Recording] = set()
_collected: "deque[Recording]" = deque()


def settle() -> None:
    """End the spans of the generations that were collected. Thread-safe."""
    while _collected:
        try:
            _collected.popleft().end("collected")
        except IndexError:
            return


@atexit.register
@shielded
def end_all() -> None:
    """End the spans that are left. At exit, before an SDK that was there earlier shuts down."""
    settle()
    for recording in list(_open):
        recording.end("exit")


class RecordedSteps(Steps):
    """A generator that is, or belongs to, a generation that is recorded.

    Args:
        inner: the generator.
        recording: the generation.
        whole: False if the generation is more than this generator.
    """

    __slots__ = ("_recording", "_whole")

    def __init__(
        self, inner: Generator[Any, Any, Any], recording: Recording, *, whole: bool = True
    ) -> None:
        super().__init__(inner)
        self._recording = recording
        self._whole = whole

    def take(self, step: Function, *arguments: Any) -> Any:
        """Take the step with the span current, and not beyond it."""
        recording = self._recording
        token = recording.enter()
        try:
            item = step(*arguments)
        except BaseException as error:
            if self._whole:
                recording.end_by(error)
            raise
        finally:
            leave(token)
        recording.note(item)
        return item

    def close(self) -> None:
        """Close the generator, and end the span."""
        told: Any = collected
        if told is None:  # the interpreter ends: nothing of this module is there
            return
        if told(self.generator):
            if self._whole:
                self._recording.collect()
            # Dropped rather than closed, so that what is inside can tell the same.
            del self.inner
            return
        try:
            self.inner.close()
        finally:
            if self._whole:
                self._recording.end("closed")


@shielded
def record(
    generator: Generator[Any, Any, Any], site: Site, given: tuple[Any, ...], limit: Any
) -> Generator[Any, Any, Any]:
    """Return a generator that yields what `generator` yields, recorded as a generation.

    Unless it belongs to one under way, as ``generate_step`` does in ``stream_generate``.

    Args:
        generator: is stepped by the program, through whatever lies between.
        site: the entry point that made it.
        given: the arguments of that.
        limit: how many tokens it may generate at most, if that was said.
    """
    around = _around()
    if around is None:
        return relay(RecordedSteps(generator, _recording(site, given, limit)))
    if around.waits:
        around.waits = False
        return relay(RecordedSteps(generator, around, whole=False))
    return generator


def _around() -> Recording | None:
    """Return the generation that the calling code is a part of."""
    found = context.get_value(_KEY)
    # A context may be kept, and outlive the generation.
    return found if isinstance(found, Recording) and not found.ended else None


def _recording(site: Site, given: tuple[Any, ...], limit: Any) -> Recording:
    model = next((each for each in given if isinstance(each, Module)), None)
    prompt = next((each for each in given if isinstance(each, mx.array)), None)
    return Recording(site, model, None if prompt is None else prompt.size, limit)


def whole_call(function: Function, site: Site) -> Function:
    """Return `function`, which steps one generator to its end, recorded as a generation."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recording = _begin_whole(site, args, kwargs) if site.active else None
        if recording is None:
            return function(*args, **kwargs)
        token = recording.enter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            recording.end_by(error)
            raise
        finally:
            leave(token)
        recording.end("exhausted")
        return result

    return wrapper


@shielded
def _begin_whole(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
    if _around() is not None:
        return None
    recording = _recording(site, (*args, *kwargs.values()), kwargs.get("max_tokens"))
    recording.waits = True
    return recording


class Batches:
    """The generations of every batch that is under way. One instance, `BATCHES`. Thread-safe."""

    def __init__(self) -> None:
        self._batches: weakref.WeakKeyDictionary[Any, dict[Any, Recording]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, batch: Any) -> dict[Any, Recording]:
        """Return the generations of `batch`, a library's object, by the identifiers it gave."""
        found = self._batches.get(batch)
        if found is None:
            found = self._batches.setdefault(batch, {})
            weakref.finalize(batch, _collect, found)
        return found


@shielded
def _collect(recordings: dict[Any, Recording]) -> None:
    for recording in list(recordings.values()):
        recording.collect()
    recordings.clear()


BATCHES = Batches()

# True while prompts are added: one method of a library may call another.
_adding = ContextVar("mlx_autobind-adding", default=False)


def _first(method: Function) -> str:
    """Return what `method` calls its first argument, by which it may be given.

    ``mlx_lm.server`` gives ``insert_segments`` the prompts as ``segments``.
    """
    return list(inspect.signature(method).parameters)[1]


def batch_begins(function: Function, site: Site) -> Function:
    """Return `function`, which adds prompts to a batch, with a generation begun for each."""
    first = _first(function)

    @functools.wraps(function)
    def wrapper(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not site.active or _adding.get():
            return function(batch, *args, **kwargs)
        token = _adding.set(True)
        try:
            uids = function(batch, *args, **kwargs)
        finally:
            _adding.reset(token)
        _begin(batch, uids, args[0] if args else kwargs.get(first, ()), site)
        return uids

    return wrapper


@shielded
def _begin(batch: Any, uids: Iterable[Any], prompts: Iterable[Any], site: Site) -> None:
    known = BATCHES.of(batch)
    for uid, prompt in zip(uids, prompts, strict=False):
        recording = Recording(site, getattr(batch, "model", None), _length(prompt), None)
        recording.begin()
        known[uid] = recording


def _length(prompt: Any) -> int:
    """Return how many tokens are in a prompt: an array, numbers, or lists of such."""
    if isinstance(prompt, mx.array):
        return prompt.size
    return sum(_length(each) if isinstance(each, (list, tuple)) else 1 for each in prompt)


def batch_steps(function: Function, site: Site) -> Function:
    """Return `function`, which takes a step of a batch, with each token of it noted."""

    @functools.wraps(function)
    def wrapper(batch: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = function(batch, *args, **kwargs)
        except BaseException as error:
            if site.active:
                _end(batch, None, error)
            raise
        if site.active:
            _note(batch, result)
        return result

    return wrapper


@shielded
def _note(batch: Any, result: Any) -> None:
    known = BATCHES.of(batch)
    for response in _responses(result):
        recording = known.get(response.uid)
        if recording is not None:
            recording.note(response)
            if response.finish_reason is not None:
                recording.end("exhausted")
                known.pop(response.uid, None)


def _responses(result: Any) -> Iterator[Any]:
    """Yield the tokens in what a step gave; reports on prompts come along with them."""
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from _responses(each)
    elif hasattr(result, "uid") and hasattr(result, "token"):
        yield result


def batch_ends(function: Function, site: Site) -> Function:
    """Return `function`, which takes prompts out of a batch, with their generations ended."""
    first = _first(function)

    @functools.wraps(function)
    def wrapper(batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(batch, *args, **kwargs)
        if site.active:
            uids = args[0] if args else kwargs.get(first, ())
            _end(batch, uids if isinstance(uids, (list, tuple, set)) else (uids,), None)
        return result

    return wrapper


@shielded
def _end(batch: Any, uids: Iterable[Any] | None, error: BaseException | None) -> None:
    known = BATCHES.of(batch)
    for uid in list(known) if uids is None else uids:
        recording = known.pop(uid, None)
        if recording is not None:
            recording.end("closed" if error is None else "error", error)


def naming(function: Function, site: Site) -> Function:
    """Return `function`, which loads a model, with the model's name remembered."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if site.active:
            _learn(result, (*args, *kwargs.values()))
        return result

    return wrapper


@shielded
def _learn(result: Any, arguments: tuple[Any, ...]) -> None:
    source = arguments[0] if arguments else None
    if isinstance(source, (str, os.PathLike)):
        for model in result if isinstance(result, tuple) else (result,):
            if isinstance(model, Module):
                NAMES.learn(model, os.fspath(source))


# By `mlx_autobind.targets.Entry.part`.
PARTS: dict[str, Callable[[Function, Site], Function]] = {
    targets.WHOLE: whole_call,
    targets.BEGINS: batch_begins,
    targets.STEPS: batch_steps,
    targets.ENDS: batch_ends,
}


def wrap(wrapper: Function, site: Site, entry: targets.Entry) -> Function:
    """Return the wrapper of an entry point with its part in generations recorded."""
    if entry.kind == targets.PRODUCER:
        return naming(wrapper, site)
    part = PARTS.get(entry.part)
    return wrapper if part is None else part(wrapper, site)


def after_fork_in_child() -> None:
    """Forget the parent's generations: it ends their spans itself."""
    _open.clear()
    _collected.clear()
