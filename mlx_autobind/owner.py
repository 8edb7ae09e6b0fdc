"""``owner`` mode: one thread does all the work of the entry points, step by step.

Whoever calls an entry point hands it over and waits. Every step of a generator or of a
batch is handed over by itself, first come first served, so that what runs at once takes
turns and nothing waits for another's whole generation. All arrays live on one thread: none
can escape from it half computed.
"""

import contextvars
import ctypes
import functools
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from mlx_autobind import daemons, telemetry
from mlx_autobind.arrays import realise_arguments, realise_result
from mlx_autobind.binding import Site, Steps, clear_at_exit, collected, relay
from mlx_autobind.handles import HANDLES
from mlx_autobind.random_state import RANDOM_STATE
from mlx_autobind.shield import report

Function = Callable[..., Any]

THREAD_NAME = "mlx-autobind owner"

# How long the interpreter waits, as it ends, for the step under way.
PATIENCE_S = 5.0


_UNSET: Any = object()


class Task:
    """One call for the owner thread, and what came of it.

    Attributes:
        result: what it returned.
        error: what it raised; None if it returned.
        wait_ns: nanoseconds in the queue.
        run_ns: nanoseconds on the owner thread.
    """

    __slots__ = (
        "_begun",
        "_call",
        "_context",
        "_ended",
        "_finished",
        "_guard",
        "_interrupted",
        "_queued",
        "error",
        "result",
        "run_ns",
        "wait_ns",
    )

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._context = contextvars.copy_context()
        self._guard = threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()
        self._begun = self._ended = self._interrupted = False
        self._queued = time.perf_counter_ns()
        self.result: Any = None
        self.error: BaseException | None = None
        self.wait_ns = self.run_ns = 0

    def run(self) -> None:
        """Do the call. Runs on the owner thread."""
        try:
            self._do()
        except BaseException as error:  # noqa: BLE001 - what interrupts the caller came late
            self.error = self.error or error
            with self._guard:
                self._ended = True
        self._finished.release()

    def _do(self) -> None:
        began = time.perf_counter_ns()
        self.wait_ns = began - self._queued
        with self._guard:
            self._begun = not self._ended
        call, self._call = self._call, None
        if self._begun and call is not None:
            try:
                self.result = self._context.run(call)
            except BaseException as error:  # noqa: BLE001 - it is the caller's, who raises it
                self.error = error
        self.run_ns = time.perf_counter_ns() - began
        with self._guard:
            self._ended = True
        if self._interrupted:
            # Here, and not in the next call, which is another caller's. The interpreter
            # looks for such an exception every few instructions.
            for _ in range(1000):
                pass

    def give_context(self) -> None:
        """Set what the call has set of the context. Runs on the thread that handed it over."""
        for variable, value in self._context.items():
            if variable.get(_UNSET) is not value:
                variable.set(value)

    def wait(self, owner_id: int) -> None:
        """Wait for the end of the call. Runs on the thread that hands it over.

        What interrupts the wait, such as ``KeyboardInterrupt``, interrupts the call: it is
        raised in it, as it would be if the call were made right here.
        """
        try:
            self._finished.acquire()
        except BaseException as error:
            with self._guard:
                begun, ended = self._begun, self._ended
                if not begun:
                    self._ended = True
                elif not ended:
                    self._interrupted = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(owner_id), ctypes.py_object(type(error))
                    )
            if begun and not ended:
                self._finished.acquire()
            raise


class _Inside(threading.local):
    """True on the owner thread."""

    owner = False


class Owner:
    """The owner thread. One instance, `OWNER`; the thread is started by the first call.

    Thread-safe. A call that is made on the owner thread runs at once, and so does one that
    is made after the thread was ended, as the interpreter ends. It outlives `uninstall`, for
    the sake of generators that are under way.
    """

    def __init__(self) -> None:
        self._inside = _Inside()
        self._start_over()

    def _start_over(self) -> None:
        # Re-entrant, for a signal handler that generates.
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def inside(self) -> bool:
        """Tell whether the calling thread is the owner thread."""
        return self._inside.owner

    def call(self, site: Site, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, or raise what it raises, on the owner thread."""
        if self._inside.owner:
            return call()
        # What it realises leaves something behind in the calling thread.
        clear_at_exit()
        RANDOM_STATE.hand_over()
        task = Task(call)
        thread = self._put(task)
        if thread is None:
            return _at_the_end(call) if self._ended else call()
        task.wait(thread.ident or 0)
        telemetry.handover(site.name, task.wait_ns, task.run_ns)
        RANDOM_STATE.take_over()
        task.give_context()
        error, task.error = task.error, None
        if error is None:
            return task.result
        try:
            raise error
        finally:
            del error, task  # the error's traceback holds this frame

    def leave(self, call: Callable[[], Any]) -> None:
        """Have `call` done some time, and do not wait for it.

        For the collector, which may run anywhere: the owner thread may be waiting for what
        the calling thread holds.
        """
        if self._inside.owner:
            call()
        else:
            self._put(Task(call))

    def _put(self, task: Task) -> threading.Thread | None:
        """Queue `task`; return the thread that will do it, or None if that is over."""
        with self._lock:
            thread = self._thread or self._start()
            if thread is not None:
                self._queue.put(task)
        return thread

    def _start(self) -> threading.Thread | None:
        """Start the thread; return None if that is over."""
        # A daemon, since it waits for good: `end` ends it after what the program does at exit.
        thread = threading.Thread(
            target=self._work, args=(self._queue,), name=THREAD_NAME, daemon=True
        )
        if not self._ended:
            try:
                thread.start()
            except RuntimeError as error:
                # The interpreter ends, and starts no thread any more (Python 3.12 on says so);
                # or there are too many just now, and this call is made where it is.
                self._ended = "shutdown" in str(error)
                if not self._ended:
                    report("mlx_autobind.owner.Owner", error)
            else:
                self._thread = thread
        return self._thread

    def _work(self, tasks: "queue.SimpleQueue[Task | None]") -> None:
        self._inside.owner = True
        RANDOM_STATE.work_for_all()
        while True:
            task = tasks.get()
            if task is None:
                return
            task.run()
            # Not kept until the next one comes: it holds arrays.
            del task

    def end(self) -> None:
        """End the owner thread once it has done what was handed over."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ended = True
            self._queue.put(None)
        if thread is not None and not self._inside.owner:
            thread.join(PATIENCE_S)

    def after_fork_in_child(self) -> None:
        """Start over in a forked child, where the thread does not exist."""
        self._inside.owner = False
        self._start_over()


OWNER = Owner()


def end() -> None:
    """End the owner thread. Runs at exit."""
    OWNER.end()


def _at_the_end(call: Callable[[], Any]) -> Any:
    """Do `call` right here, since the interpreter ends and the owner thread has ended.

    Not on a daemon thread: mlx aborts the process if it is killed in the middle of it.
    """
    if threading.current_thread().daemon:
        daemons.leave()
    return call()


class OwnedSteps(Steps):
    """A generator whose steps are handed over. Thread-safe as far as the generator is."""

    __slots__ = ("_site",)

    def __init__(self, inner: Generator[Any, Any, Any], site: Site) -> None:
        super().__init__(inner)
        self._site = site

    def take(self, step: Function, *arguments: Any) -> Any:
        """Have the owner thread take the step."""
        return OWNER.call(self._site, lambda: realise_result(step(*arguments)))

    def close(self) -> None:
        """Close the generator.

        If the collector does, the owner thread closes it some time, and is not waited for.
        """
        owner: Any = OWNER
        if owner is None:  # the interpreter ends: nothing of this module is there
            return
        if collected(self.generator):
            OWNER.leave(self.inner.close)
        else:
            OWNER.call(self._site, self.inner.close)


def hand_over(
    wrapper: Function, site: Site, inside: Function | None = None, *, producer: bool = False
) -> Function:
    """Return the entry point `wrapper` as one that is done by the owner thread.

    Args:
        wrapper: the entry point as it is in ``thread`` mode.
        site: what it is.
        inside: what the owner thread itself calls; `wrapper` if None.
        producer: it realises its own result, or leaves it lazy because it was asked to.
    """
    direct = inside or wrapper
    # What a method is called on belongs to the owner thread, arrays and all.
    first = 1 if site.method else 0

    @functools.wraps(wrapper)
    def handed(*args: Any, **kwargs: Any) -> Any:
        if OWNER.inside() or not site.active:
            return direct(*args, **kwargs)
        realise_arguments((*args[first:], *kwargs.values()))
        args, kwargs = without_streams(args, kwargs)

        def call() -> Any:
            result = wrapper(*args, **kwargs)
            return result if producer else realise_result(result)

        return OWNER.call(site, call)

    return handed


def without_streams(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with a handle for each stream, which is the caller's own.

    mlx-lm's server gives its thread's default stream to the batch that it makes (0.31.3 on).
    """
    instead = HANDLES.instead_of
    given = tuple(map(instead, args))
    return given, {name: instead(value) for name, value in kwargs.items()}


def without_own_streams(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that the owner thread can use."""
    return (args, kwargs) if OWNER.inside() else without_streams(args, kwargs)


def hand_over_steps(generator: Generator[Any, Any, Any], site: Site, arguments: Any) -> Any:
    """Return a generator whose steps are those of `generator`, done by the owner thread."""
    if OWNER.inside():
        return generator
    realise_arguments(arguments)
    return relay(OwnedSteps(generator, site))
