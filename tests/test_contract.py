"""`bind_generation_streams`, the function that it all grew out of."""

from pathlib import Path

import pytest

from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

BY_HAND = """
    import json, sys
    import mlx.core as mx
    from mlx_autobind import bind_generation_streams
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    streams = {}
    def worker(name, prompt):
        first = bind_generation_streams()
        streams[name] = [
            repr(first),
            isinstance(first, mx.Stream),
            first == bind_generation_streams(("mlx_lm.generate",)),
            first == mx.default_stream(mx.default_device()),
        ]
        asker.ask(name, prompt)
    on_thread(worker, "A", PROMPTS[0])
    on_thread(worker, "B", PROMPTS[1])
    worker("main", PROMPTS[2])
    print(json.dumps([asker.steps, streams]))
"""


@pytest.mark.parametrize("setting", ["on", "off"])
def test_called_by_hand_in_each_worker(
    setting: str, run: Run, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    outcome = run(program(BY_HAND), checkpoint, agent="none", env={"MLX_AUTOBIND": setting})
    steps, streams = outcome.clean()
    assert wrong(steps, reference) == {}
    assert all(found[1:] == [True, True, True] for found in streams.values())
    if not stack.inert:
        assert len({found[0] for found in streams.values()}) == 3


def test_missing_modules_and_those_without_a_handle_are_skipped(run: Run) -> None:
    text = """
        import json, sys
        import mlx.core as mx
        from mlx_autobind import bind_generation_streams
        stream = bind_generation_streams(("no.such.module", "json", "mlx_lm.generate"))
        handle = sys.modules["mlx_lm.generate"].generation_stream
        with mx.stream(handle):
            total = (mx.array([41]) + 1).item()
        print(json.dumps([isinstance(stream, mx.Stream), total]))
    """
    assert run(text, agent="import").clean() == [True, 42]


def test_the_default_names(run: Run) -> None:
    text = """
        import inspect, json
        from mlx_autobind import bind_generation_streams
        (parameter,) = inspect.signature(bind_generation_streams).parameters.values()
        print(json.dumps([parameter.name, list(parameter.default)]))
    """
    found = run(text, agent="import").clean()
    assert found == ["module_names", ["mlx_lm.generate", "mlx_vlm.generate"]]


def test_an_error_inside_a_module_is_not_hidden(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken_library.py").write_text("1 / 0\n")
    text = """
        import json
        from mlx_autobind import bind_generation_streams
        try:
            bind_generation_streams(("broken_library",))
        except ZeroDivisionError as error:
            print(json.dumps(type(error).__name__))
    """
    assert run(text, agent="import").clean() == "ZeroDivisionError"
