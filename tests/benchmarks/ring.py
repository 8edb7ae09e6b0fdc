"""What a record costs while other threads write and read the ring."""

import threading
from collections.abc import Callable, Iterator

from tests.benchmarks.measure import Block, Blocks, Child, Row, interleave, rows
from tests.benchmarks.pool import Pool
from tests.benchmarks.scale import Scale

TITLE = "The ring of records"
TEXT = """\
A record that is made and kept, with nobody listening, in a ring of 1,000 that is full. A reader
that never pauses takes its share of the interpreter, as any busy thread does; beside it stands
one that only counts. A process makes one record for each thread and each hop, so that none of
this is near any path that has to be fast."""

RECORDS = 2_000
ONE = "record, on 1 thread"
READ, BUSY = "record, another thread reads all the time", "record, another thread counts"


def _many(count: int) -> str:
    return f"record, on {count} threads at once"


def blocks() -> Blocks:
    """Return the blocks."""
    from mlx_autobind import records
    from mlx_autobind.records import RING, Stopwatch

    stopwatch = Stopwatch()
    stopwatch.stop()

    def write(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                records.emit(
                    "bind", "entry", (), stopwatch, device="cpu:0", stream_index=0, late=False
                )

        return run

    write(RECORDS)()

    def beside(other: Callable[[], object]) -> Block:
        def run() -> None:
            ended = threading.Event()

            def repeat() -> None:
                while not ended.is_set():
                    other()

            thread = threading.Thread(target=repeat)
            thread.start()
            write(RECORDS)()
            ended.set()
            thread.join()

        return Block(run, RECORDS)

    def on_threads(count: int) -> Block:
        pool = Pool(count)
        return Block(lambda: pool.run(write(RECORDS // count)), RECORDS // count * count)

    return {
        ONE: on_threads(1),
        _many(8): on_threads(8),
        _many(64): on_threads(64),
        BUSY: beside(lambda: sum(range(100))),
        READ: beside(RING.snapshot),
    }


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows."""
    with Child("tests.benchmarks.ring:blocks") as child:
        takes = {name: child.take(name) for name in child.names}
        found = interleave(takes, scale.rounds(60))
    yield from rows({name: found[name] for name in (ONE, _many(8), _many(64))}, ONE)
    yield from rows({name: found[name] for name in (BUSY, READ)}, BUSY)
