"""``threads``: 64 threads that do at random what public calls allow."""

import contextlib
import dataclasses
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tests.soak.meter import Meter
from tests.soak.model import LENGTH, MOST_FAILURES, SLOTS, Operation, operations
from tests.soak.work import Work, expect, rest, take

READ_EVERY_S = 0.2


@dataclasses.dataclass
class Parcel:
    """Something that is handed over, and what is to be done with it.

    Attributes:
        kind: the operation of who hands it over.
        use: does it, on the thread that is given it.
        sender: the slot and the number of the operation.
    """

    kind: str
    use: Callable[[], None]
    sender: tuple[int, int]


class Slot:
    """One thread after another, with one sequence of operations."""

    def __init__(self, number: int, program: "Program") -> None:
        self.number = number
        self.program = program
        self.mail: queue.SimpleQueue[Parcel] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self._numbered = enumerate(operations(program.seed, number, program.slots))

    def start(self) -> None:
        """Start the next thread."""
        self.program.count("born")
        self.thread = threading.Thread(target=self._live, name=f"slot {self.number}", daemon=True)
        self.thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread, and tell whether it has ended."""
        if self.thread is not None:
            self.thread.join(timeout)
            return not self.thread.is_alive()
        return True

    def _live(self) -> None:
        try:
            while not self.program.over.is_set():
                self.receive()
                number, operation = next(self._numbered)
                self.program.count(operation.kind)
                if operation.kind == "die":
                    return
                with self.program.watched(self.number, number, operation):
                    DOINGS[operation.kind](self, number, operation)
        finally:
            self.program.ended.put(self)

    def receive(self) -> None:
        """Do what is to be done with what was handed over."""
        with contextlib.suppress(queue.Empty):
            while True:
                parcel = self.mail.get_nowait()
                self.program.count("received")
                with self.program.watched(*parcel.sender, f"{parcel.kind}, on {self.number}"):
                    parcel.use()
                del parcel

    def send(self, number: int, operation: Operation, use: Callable[[], None]) -> None:
        """Hand over to another slot."""
        parcel = Parcel(operation.kind, use, (self.number, number))
        self.program.mail(operation.to, parcel)


class Program:
    """The whole of it.

    Args:
        work: what is asked.
        seed: decides what is done.
        mode: the mode of the process.
        slots: how many threads.
    """

    def __init__(self, work: Work, seed: int, mode: str, slots: int = SLOTS) -> None:
        self.work, self.seed, self.mode, self.slots = work, seed, mode, slots
        self.over = threading.Event()
        self.ended: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._all = [Slot(number, self) for number in range(slots)]

    def count(self, kind: str) -> None:
        """Count an operation."""
        with self._lock:
            self._counts[kind] += 1

    def mail(self, to: int, parcel: Parcel) -> None:
        """Hand `parcel` over to the slot `to`."""
        self._all[to].mail.put(parcel)

    @contextlib.contextmanager
    def watched(self, slot: int, number: int, what: object) -> Any:
        """Keep the error that is raised inside."""
        try:
            yield
        except Exception as error:
            notes = "; ".join(getattr(error, "__notes__", ()))
            with self._lock:
                self.failures.append(
                    f"slot {slot}, operation {number}, {what}: "
                    f"{type(error).__name__}: {error} {notes}".strip()
                )
                if len(self.failures) >= MOST_FAILURES:
                    self.over.set()

    def allowed(self) -> int:
        """Return how many native threads there may be above those at the start."""
        with self._lock:
            # mlx never ends the native thread of a stream (scheduler.cpp), so that each
            # thread leaves one, and so does each stream that a clear has it replaced by.
            return self._counts["born"] + self._counts["clear"] if self.mode == "thread" else 0

    def run(self, minutes: float) -> dict[str, Any]:
        """Run it, and return what came of it."""
        expect(rest(self.work.stream(0)), self.work.right["tokens"][0])
        meter = Meter(self.allowed)
        read = time.monotonic()
        until = time.monotonic() + 60 * minutes
        for slot in self._all:
            slot.start()
        while time.monotonic() < until and not self.over.is_set():
            with contextlib.suppress(queue.Empty):
                died = self.ended.get(timeout=READ_EVERY_S)
                died.join(60)
                died.start()
            if time.monotonic() > read + READ_EVERY_S:
                read = time.monotonic()
                meter.read()
        self.over.set()
        stuck = [slot.number for slot in self._all if not slot.join(60)]
        if stuck:
            self.failures.append(f"slots {stuck} do not end")
        else:
            for slot in self._all:
                slot.receive()
        return {
            **meter.result(),
            "operations": dict(sorted(self._counts.items())),
            "failures": self.failures,
        }


def _generate(slot: Slot, _number: int, operation: Operation) -> None:
    work = slot.program.work
    expect(work.text(operation.prompt), work.right["texts"][operation.prompt])


def _stream(slot: Slot, _number: int, operation: Operation) -> None:
    work = slot.program.work
    expect(rest(work.stream(operation.prompt)), work.right["tokens"][operation.prompt])


def _abandon(slot: Slot, _number: int, operation: Operation) -> None:
    work = slot.program.work
    answer = work.stream(operation.prompt)
    expect(take(answer, operation.stop), _begin(work, operation))


def _abandon_in_a_circle(slot: Slot, _number: int, operation: Operation) -> None:
    # The collector finds it, on whichever thread it runs.
    work = slot.program.work
    answer = work.stream(operation.prompt)
    expect(take(answer, operation.stop), _begin(work, operation))
    circle: list[Any] = [answer]
    circle.append(circle)


def _begin(work: Work, operation: Operation) -> Any:
    return work.right["tokens"][operation.prompt][: operation.stop]


def _sample(slot: Slot, _number: int, operation: Operation) -> None:
    tokens = slot.program.work.sampled(operation.prompt)
    expect(0 < len(tokens) <= LENGTH, True)


def _close_elsewhere(slot: Slot, number: int, operation: Operation) -> None:
    work = slot.program.work
    answer = work.stream(operation.prompt)
    expect(take(answer, operation.stop), _begin(work, operation))
    slot.send(number, operation, answer.close)


def _finish_elsewhere(slot: Slot, number: int, operation: Operation) -> None:
    work = slot.program.work
    answer = work.stream(operation.prompt)
    right = work.right["tokens"][operation.prompt]
    expect(take(answer, operation.stop), right[: operation.stop])
    slot.send(number, operation, lambda: expect(rest(answer), right[operation.stop :]))


def _cache(slot: Slot, operation: Operation) -> Callable[[], None]:
    work = slot.program.work
    cache = work.cache()
    begun = work.turn(cache, operation.prompt, operation.stop)
    right = work.right["tokens"][operation.prompt]
    expect(begun, right[: operation.stop] if operation.stop else right)
    turns = work.right["turns"][f"{operation.prompt} {operation.stop} {operation.second}"]
    return lambda: expect(work.turn(cache, operation.second, 0), turns)


def _cache_here(slot: Slot, _number: int, operation: Operation) -> None:
    _cache(slot, operation)()


def _cache_elsewhere(slot: Slot, number: int, operation: Operation) -> None:
    slot.send(number, operation, _cache(slot, operation))


def _batch(slot: Slot, operation: Operation) -> Callable[[], None]:
    work = slot.program.work
    made, uids = work.batch([operation.prompt, operation.second])
    right = work.right["batches"][f"{operation.prompt} {operation.second}"]
    return lambda: expect(work.answers(made, uids), right)


def _batch_here(slot: Slot, _number: int, operation: Operation) -> None:
    _batch(slot, operation)()


def _batch_elsewhere(slot: Slot, number: int, operation: Operation) -> None:
    slot.send(number, operation, _batch(slot, operation))


def _clear(_slot: Slot, _number: int, _operation: Operation) -> None:
    mx.clear_streams()


DOINGS: dict[str, Callable[[Slot, int, Operation], None]] = {
    "generate": _generate,
    "stream": _stream,
    "abandon": _abandon,
    "abandon in a circle": _abandon_in_a_circle,
    "sample": _sample,
    "close elsewhere": _close_elsewhere,
    "finish elsewhere": _finish_elsewhere,
    "cache here": _cache_here,
    "cache elsewhere": _cache_elsewhere,
    "batch": _batch_here,
    "batch elsewhere": _batch_elsewhere,
    "clear": _clear,
}
