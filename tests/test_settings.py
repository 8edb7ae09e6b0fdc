"""MLX_AUTOBIND_*: a bad value is one clear warning and the default."""

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

import mlx_autobind
from mlx_autobind import settings, targets
from tests import harness
from tests.conftest import Run

DEFAULTS = settings.Settings(
    enabled=True,
    mode="thread",
    modules=(),
    records=1000,
    trace=None,
    generations=False,
    strict=False,
    problems=(),
)


def test_the_defaults() -> None:
    assert settings.read({}) == DEFAULTS
    blank = dict.fromkeys(mlx_autobind.VARIABLES, "")
    assert settings.read(blank) == DEFAULTS


def test_good_values() -> None:
    found = settings.read(
        {
            "MLX_AUTOBIND": "Off",
            "MLX_AUTOBIND_GENERATIONS": "on",
            "MLX_AUTOBIND_MODE": " Thread ",
            "MLX_AUTOBIND_MODULES": "a.b, c,,d",
            "MLX_AUTOBIND_RECORDS": "7",
            "MLX_AUTOBIND_STRICT": "1",
            "MLX_AUTOBIND_TRACE": "folder/trace.jsonl",
        }
    )
    assert found == settings.Settings(
        enabled=False,
        mode="thread",
        modules=("a.b", "c", "d"),
        records=7,
        trace=str(Path.cwd() / "folder" / "trace.jsonl"),
        generations=True,
        strict=True,
        problems=(),
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("MLX_AUTOBIND_RECORDS", "x", "a whole number from 1 to 1000000"),
        ("MLX_AUTOBIND_RECORDS", "0", "a whole number from 1 to 1000000"),
        ("MLX_AUTOBIND_RECORDS", "-5", "a whole number from 1 to 1000000"),
        ("MLX_AUTOBIND_RECORDS", "9" * 5000, "a whole number from 1 to 1000000"),
        ("MLX_AUTOBIND_MODE", "turbo", "thread"),
        ("MLX_AUTOBIND", "maybe", "on or off"),
        ("MLX_AUTOBIND_STRICT", "2", "on or off"),
        ("MLX_AUTOBIND_MODULES", "os; rm", "dotted names of modules"),
    ],
)
def test_a_bad_value(variable: str, value: str, allowed: str) -> None:
    found = settings.read({variable: value})
    (problem,) = found.problems[:1]
    assert variable in problem
    assert value.split(maxsplit=1)[0].rstrip(";") in problem
    assert allowed in problem
    kept = dataclasses.replace(found, problems=(), modules=())
    assert kept == DEFAULTS


@given(st.dictionaries(st.sampled_from(mlx_autobind.VARIABLES), st.text(max_size=40)))
def test_no_environment_raises(environ: dict[str, str]) -> None:
    found = settings.read(environ)
    assert found.mode in settings.MODES
    assert 1 <= found.records <= settings.MAX_RECORDS


@pytest.mark.parametrize(
    ("variable", "value"), [("MLX_AUTOBIND_RECORDS", "x"), ("MLX_AUTOBIND_MODE", "turbo")]
)
def test_one_warning_in_the_process(variable: str, value: str, run: Run) -> None:
    text = """
        import json
        import mlx_autobind, mlx_lm
        mlx_autobind.install()
        print(json.dumps([mlx_autobind.status().mode, len(mlx_autobind.status().problems)]))
    """
    outcome = run(text, agent="none", env={variable: value})
    assert outcome.result == ["thread", 1]
    assert outcome.code == 0
    assert outcome.stderr.count("\n") == 1
    assert all(word in outcome.stderr for word in (variable, value, "allowed is"))


# Whatever an environment can hold: no NUL, and bytes that are no text.
HOSTILE = st.binary(max_size=60).map(lambda value: os.fsdecode(value.replace(b"\0", b"")))
WORDS = st.sampled_from(["on", "off", "1", "owner", "shared", "mlx_lm", "../..", "-1", "1e9", "é"])


@settings_of_hypothesis(deadline=None, max_examples=15, derandomize=True)
@given(st.dictionaries(st.sampled_from(mlx_autobind.VARIABLES), HOSTILE | WORDS, min_size=1))
def test_an_interpreter_starts_in_any_environment(environ: dict[str, str]) -> None:
    """Under ``sitecustomize``, where an error would stand on the stderr of every Python."""
    environ = {name: value for name, value in environ.items() if name != "MLX_AUTOBIND_TRACE"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print('mlx_autobind' in sys.modules)"],
        capture_output=True,
        env=harness.environ({**environ, "PYTHONPATH": str(harness.SITECUSTOMIZE)}),
        timeout=harness.TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"True\n")
    # One line for each value that cannot be used, and no traceback.
    lines = done.stderr.splitlines()
    assert all(line.startswith(b"MLX_AUTOBIND") for line in lines), done.stderr
    assert len(lines) <= len(environ)


def test_a_generation_where_no_setting_can_be_used(run: Run, checkpoint: Path) -> None:
    text = """
        import json
        from asking import Asker, PROMPTS, on_thread
        asker = Asker()
        asker.ask("main", PROMPTS[0])
        on_thread(asker.ask, "worker", PROMPTS[0])
        print(json.dumps([asker.steps[name].get("tokens") for name in ("main", "worker")]))
    """
    names = [name for name in mlx_autobind.VARIABLES if name != "MLX_AUTOBIND_TRACE"]
    env = {**dict.fromkeys(names, "\udcff;$(touch x)"), "MLX_AUTOBIND_TRACE": "/dev/null/x"}
    outcome = run(harness.program(text), checkpoint, agent="import", env=env)
    assert outcome.code == 0, outcome.stderr
    main, worker = outcome.result
    assert main is not None
    assert main == worker


def test_the_lists_of_the_package_are_those_of_its_parts() -> None:
    packages = {row.module.partition(".")[0] for row in targets.TARGETS}
    assert packages == mlx_autobind.PACKAGES
    read = set(re.findall(r'"(MLX_AUTOBIND\w*)"', inspect.getsource(settings)))
    assert set(mlx_autobind.VARIABLES) == read
