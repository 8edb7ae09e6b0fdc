"""Wrapped entry points behave as those they wrap."""

import gc
import inspect
import pickle
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.stacks import version

binding = pytest.importorskip("mlx_autobind.binding", reason="mlx is not installed")
from mlx_autobind import entries, targets  # noqa: E402 - needs mlx
from mlx_autobind.binding import Site  # noqa: E402

Function = Callable[..., Generator[Any, Any, Any]]


def site() -> Site:
    """Return a site that binds nothing: the agent is not installed in this process."""
    found = Site("tests.function", {}, None, late=False)
    found.active = False
    return found


def wrapped(function: Function) -> Function:
    """Return `function` as the agent wraps a generator function."""
    return entries.GeneratorEntry(function, site())


def conversation(name: str = "") -> Generator[Any, Any, str]:
    """Answer what is sent."""
    got: list[Any] = []
    try:
        while True:
            try:
                sent = yield f"{name}{len(got)}"
            except KeyError as error:
                sent = f"caught {error.args[0]}"
            if sent == "stop":
                return f"returned {got}"
            if sent == "raise":
                raise ValueError(got)
            got.append(sent)
    finally:
        got.append("finally")


def talk(function: Function, *steps: tuple[str, Any]) -> list[Any]:
    """Drive a generator by `steps`, and return everything that comes of it."""
    generator = function("n")
    heard: list[Any] = []
    for method, argument in steps:
        try:
            call = getattr(generator, method)
            heard.append(call() if argument is None else call(argument))
        except BaseException as error:
            heard.append((type(error).__name__, error.args, getattr(error, "value", None)))
    return heard


PROTOCOLS: list[list[tuple[str, Any]]] = [
    [("__next__", None), ("send", "a"), ("send", "stop"), ("__next__", None)],
    [("__next__", None), ("throw", KeyError("k")), ("send", "stop")],
    [("__next__", None), ("throw", ValueError("v")), ("__next__", None)],
    [("__next__", None), ("throw", StopIteration("s")), ("__next__", None)],
    [("__next__", None), ("throw", GeneratorExit()), ("__next__", None)],
    [("__next__", None), ("send", "raise"), ("__next__", None)],
    [("__next__", None), ("close", None), ("close", None), ("__next__", None)],
    [("close", None), ("__next__", None)],
    [("throw", KeyError("unstarted")), ("__next__", None)],
    [("send", "too early"), ("__next__", None)],
    [("__next__", None), ("throw", KeyboardInterrupt()), ("__next__", None)],
]


@pytest.mark.parametrize("steps", PROTOCOLS)
def test_the_protocol_of_generators(steps: list[tuple[str, Any]]) -> None:
    assert talk(wrapped(conversation), *steps) == talk(conversation, *steps)


def test_a_generator_that_ignores_its_end() -> None:
    def stubborn() -> Generator[int, None, None]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    for function in (stubborn, wrapped(stubborn)):
        generator = function()
        next(generator)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            generator.close()


def test_what_it_is_to_inspect() -> None:
    function = wrapped(conversation)
    assert inspect.isgeneratorfunction(function)
    assert inspect.isfunction(function)
    assert inspect.signature(function) == inspect.signature(conversation)
    assert inspect.getsource(function) == inspect.getsource(conversation)
    assert function.__name__ == "conversation"
    assert function.__doc__ == "Answer what is sent."
    generator = function()
    assert inspect.isgenerator(generator)
    assert generator.__name__ == "conversation"


def test_wrong_arguments_fail_at_the_call() -> None:
    with pytest.raises(TypeError, match="conversation"):
        wrapped(conversation)(no_such_argument=1)


class Item:
    """Something that a generator yields, with weak references."""


def test_nothing_is_held_across_a_yield() -> None:
    finalised = []

    def items() -> Iterator[Item]:
        try:
            while True:
                yield Item()
        finally:
            finalised.append(True)

    generator = wrapped(items)()  # type: ignore[arg-type]
    item = next(generator)
    reference = weakref.ref(item)
    del item
    assert reference() is None
    next(generator)
    gc.disable()
    try:
        del generator
        assert finalised == [True]  # at once, not when the collector comes by
    finally:
        gc.enable()


def test_an_error_of_the_library_has_its_own_traceback_and_no_cycle() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("of the library")

    generator = wrapped(failing)()  # type: ignore[arg-type]
    next(generator)
    with pytest.raises(ValueError, match="of the library") as caught:
        next(generator)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "failing"
    assert caught.value.__context__ is None


def test_thrown_in_and_out_again_there_is_no_context() -> None:
    generator = wrapped(conversation)()
    next(generator)
    error = ValueError("thrown")
    with pytest.raises(ValueError, match="thrown") as caught:
        generator.throw(error)
    assert caught.value is error
    assert error.__context__ is None


REAL = """
    import copy, functools, inspect, json, pickle, sys
    import mlx_lm
    module = sys.modules["mlx_lm.generate"]
    found = {}
    for name in ("generate", "stream_generate", "generate_step", "speculative_generate_step",
                 "batch_generate", "BatchGenerator.next", "BatchGenerator.insert"):
        if not hasattr(module, name.partition(".")[0]):
            continue
        function = functools.reduce(getattr, name.split("."), module)
        found[name] = [
            str(inspect.signature(function)).replace(repr(module.generation_stream), "HANDLE"),
            inspect.isgeneratorfunction(function),
            inspect.isgeneratorfunction(functools.partial(function)),
            function.__name__, function.__qualname__, function.__module__,
            (function.__doc__ or "")[:60],
            inspect.getsourcelines(function)[1],
            pickle.loads(pickle.dumps(function)) is function,
            copy.deepcopy(function) is function,
            copy.copy(function) is function,
            callable(function),
        ]
        try:
            function(no_such=1)
        except TypeError as error:
            found[name].append(str(error))
    print(json.dumps(found))
"""


def test_the_real_entry_points_are_what_they_were(run: Run) -> None:
    assert run(REAL, agent="import").clean() == run(REAL, agent="none").clean()


SPAWN = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor
    import mlx_lm
    from mlx_lm import generate, stream_generate

    def work(function, checkpoint):
        model, tokenizer = mlx_lm.load(checkpoint)[:2]
        answer = function(model, tokenizer, "w3 w4", max_tokens=4)
        return answer if isinstance(answer, str) else "".join(part.text for part in answer)

    if __name__ == "__main__":
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            answers = [
                pool.submit(work, function, sys.argv[1]).result()
                for function in (generate, stream_generate)
            ]
        print("true" if answers[0] == answers[1] != "" else answers)
"""


def test_entry_points_go_to_other_processes(run: Run, checkpoint: Path) -> None:
    # As a file, since a spawned child runs it again as its main module.
    outcome = run(SPAWN, checkpoint, agent="sitecustomize")
    assert outcome.clean() is True


# Of each entry point of the library: what the installed release has under that name, what
# the table says, and since when.
ROWS = """
    import importlib, inspect, json, sys
    from mlx_autobind import targets
    library = sys.argv[1]
    found = {}
    for row in targets.TARGETS:
        if row.module.partition(".")[0] != library:
            continue
        try:
            module = importlib.import_module(row.module)
        except ModuleNotFoundError as error:
            if not row.module.startswith(error.name):
                continue  # the module is there, and needs something that is not
            module = None
        except OSError:
            continue  # mlx_audio.tts.generate needs the PortAudio library
        for entry in row.entries:
            value = None if module is None else vars(module).get(entry.path.partition(".")[0])
            if "." in entry.path and value is not None:
                value = vars(value).get(entry.path.partition(".")[2])
            kind = None
            # A package shows the functions of its modules, which have rows of their own.
            if value is not None and value.__module__ == row.module:
                kind = "generator" if inspect.isgeneratorfunction(value) else "call"
            said = "generator" if entry.kind == targets.GENERATOR else "call"
            found[f"{row.module}.{entry.path}"] = [kind, said, entry.since]
    modules = [row.module for row in targets.TARGETS if ".generate" in row.module]
    public = [
        f"{module}.{name}"
        for module in modules if module.partition(".")[0] == library and module in sys.modules
        for name, value in vars(sys.modules[module]).items()
        if inspect.isfunction(value) and "generate" in name
        and value.__module__ == module and not name.startswith("_")
    ]
    print(json.dumps([found, public]))
"""


# Was taken out of mlx-vlm between 0.7.1 and 0.7.10, where loading adapters is a package.
REMOVED = ("mlx_vlm.trainer.utils.apply_lora_layers",)


@pytest.mark.parametrize("library", targets.PACKAGES)
def test_every_row_of_the_table_is_what_it_says(library: str, run: Run) -> None:
    """What the installed library has is in the table with its kind; what is missing is newer."""
    installed = version(library.replace("_", "-"))
    if installed is None:
        pytest.skip(f"{library} is not installed")
    outcome = run(ROWS, library, agent="none", env={"MLX_AUTOBIND": "off"})
    assert outcome.code == 0, outcome.stderr
    rows, public = outcome.result
    there = {name for name, (kind, _said, _since) in rows.items() if kind is not None}
    assert there
    for name, (kind, said, since) in rows.items():
        newer = tuple(map(int, since.split("."))) > installed
        # mlx-vlm has moved its functions twice: where one is gone it is somewhere else.
        moved = any(other.endswith(f".{name.rpartition('.')[2]}") for other in there)
        if kind is None:
            assert newer or (library == "mlx_vlm" and moved) or name in REMOVED, name
        else:
            assert kind == said, name
            assert not newer, name
    assert set(public) <= set(rows)


def test_pickle_of_a_proxy_that_is_not_in_its_module() -> None:
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(wrapped(conversation))
