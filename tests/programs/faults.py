"""Every function of the agent that takes part raises, one after another.

python faults.py CHECKPOINT: prints, by function, what was wrong meanwhile, as JSON.
"""

import importlib
import inspect
import io
import json
import logging
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import mlx_lm
from mlx_lm.generate import BatchGenerator
from threads import elsewhere

import mlx_autobind
from mlx_autobind import shield

# Commands, and what runs before there is a process to speak of.
LEFT_OUT = ("mlx_autobind.cli", "mlx_autobind.bootstrap", "mlx_autobind.__main__")

Found = dict[str, Any]


def functions() -> Iterator[tuple[str, types.FunctionType]]:
    """Yield every function and method of the agent, by name."""
    for found in pkgutil.walk_packages(mlx_autobind.__path__, "mlx_autobind."):
        if found.name.startswith(LEFT_OUT):
            continue
        module = importlib.import_module(found.name)
        classes = [each for each in vars(module).values() if inspect.isclass(each)]
        for holder in (module, *classes):
            if getattr(holder, "__module__", found.name) != found.name:
                continue
            for value in list(vars(holder).values()):
                function = inspect.unwrap(getattr(value, "fget", None) or value)
                if isinstance(function, types.FunctionType) and function.__module__ == found.name:
                    yield f"{function.__module__}.{function.__qualname__}", function


def broken(*_args: object, **_kwargs: object) -> None:
    # Runs with the globals of the function that it stands for.
    import sys

    sys.modules["__main__"].calls += 1  # type: ignore[attr-defined]
    raise RuntimeError("injected")


calls = 0


def use(checkpoint: str) -> Found:
    """Use the library in several ways, and return what came of each."""
    model, tokenizer = mlx_lm.load(checkpoint)[:2]

    def begin() -> Any:
        return mlx_lm.stream_generate(model, tokenizer, "w3 w10 w6 w5", max_tokens=3)

    def batch() -> list[int]:
        generator: Any = BatchGenerator(model, max_tokens=2)
        generator.insert([tokenizer.encode("w3 w10 w6 w5")])
        tokens: list[int] = []
        while len(tokens) < 2:
            found = generator.next()
            responses = found[1] if isinstance(found, tuple) else found
            tokens += [response.token for response in responses]
        return tokens

    def closed() -> list[int]:
        generator = begin()
        tokens = [next(generator).token]
        generator.close()
        return tokens

    def hopping() -> list[int]:
        generator = begin()
        return [next(generator).token, elsewhere(lambda: next(generator).token)]

    ways: dict[str, Callable[[], Any]] = {
        "generate": lambda: mlx_lm.generate(model, tokenizer, "w3 w10 w6 w5", max_tokens=3),
        "stream": lambda: [response.token for response in begin()],
        "closed": closed,
        "hopping": hopping,
        "batch": batch,
    }
    found: Found = {}
    for name, way in ways.items():
        for where in ("main", "worker"):
            try:
                found[f"{name} on {where}"] = way() if where == "main" else elsewhere(way)
            except Exception as error:
                found[f"{name} on {where}"] = f"{type(error).__name__}: {error}"
    return found


def taking_part(work: Callable[[], object]) -> set[types.CodeType]:
    """Return the code of all that is called by `work`."""
    codes = set()

    def note(frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    work()
    sys.setprofile(None)
    threading.setprofile(None)
    return codes


def attempt(what: str, work: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return work()
    except BaseException as error:
        problems.append(f"{what}: {type(error).__name__}: {error}")
        return {}


def inject(function: types.FunctionType, right: Found, without: Found, log: io.StringIO) -> Found:
    """Return what is wrong while `function` raises, and after that."""
    global calls
    calls = 0
    shield._reported.clear()
    log.seek(0)
    log.truncate()
    problems: list[str] = []
    code = function.__code__
    function.__code__ = broken.__code__.replace(co_name=code.co_name)
    attempt("install", mlx_autobind.install, problems)
    found = attempt("use", lambda: use(sys.argv[1]), problems)
    attempt("uninstall", mlx_autobind.uninstall, problems)
    function.__code__ = code
    mlx_autobind.uninstall()
    warnings = log.getvalue().count("goes on as if the agent were absent")
    return {
        "calls": calls,
        "problems": problems,
        "wrong": {
            way: said for way, said in found.items() if said not in (right[way], without[way])
        },
        "warnings": warnings,
    }


def main() -> None:
    log = io.StringIO()
    logger = logging.getLogger("mlx_autobind")
    logger.addHandler(logging.StreamHandler(log))
    logger.propagate = False

    def under_the_agent() -> Found:
        mlx_autobind.install()
        found = use(sys.argv[1])
        mlx_autobind.uninstall()
        return found

    mlx_autobind.uninstall()
    without = use(sys.argv[1])
    right = under_the_agent()
    codes = taking_part(under_the_agent)
    report = {}
    for name, function in sorted(dict(functions()).items()):
        if function.__code__ in codes and not function.__code__.co_freevars:
            report[name] = inject(function, right, without, log)
    after = [use(sys.argv[1]) == without, under_the_agent() == right]
    print(json.dumps({"report": report, "after": after, "right": right}))


if __name__ == "__main__":
    main()
