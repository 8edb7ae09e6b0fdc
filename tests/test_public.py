"""The public surface, pinned."""

import argparse
import dataclasses
import importlib.metadata
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

import mlx_autobind
from mlx_autobind import cli, settings
from mlx_autobind.instrumentor import MLXAutobindInstrumentor
from tests import harness
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack

PUBLIC = [
    "HandleChange",
    "Record",
    "Status",
    "Versions",
    "bind_generation_streams",
    "install",
    "rebinds",
    "status",
    "uninstall",
]


SIGNATURES = {
    "bind_generation_streams": "(module_names: collections.abc.Iterable[str] = "
    "('mlx_lm.generate', 'mlx_vlm.generate')) -> 'Stream'",
    "install": "(mode: 'str | None' = None) -> None",
    "rebinds": "() -> tuple[mlx_autobind.records.Record, ...]",
    "status": "() -> mlx_autobind.api.Status",
    "uninstall": "() -> None",
}

FIELDS: dict[str, dict[str, Any]] = {
    "HandleChange": {"where": str, "action": Literal["replaced", "copied", "kept", "restored"]},
    "Record": {
        "kind": Literal["bind", "hop", "drift", "explained"],
        "thread_name": str,
        "thread_id": int,
        "device": str,
        "stream_index": int,
        "mode": str,
        "entry_point": str,
        "handles": tuple[mlx_autobind.HandleChange, ...],
        "started_ns": int,
        "duration_ns": int,
        "versions": mlx_autobind.Versions,
        "late": bool,
        "error": str | None,
    },
    "Status": {
        "installed": bool,
        "active": bool,
        "inert": str | None,
        "mode": str,
        "versions": mlx_autobind.Versions,
        "handles": tuple[mlx_autobind.HandleChange, ...],
        "entry_points": tuple[str, ...],
        "late": tuple[str, ...],
        "unprotected": str | None,
        "records": int,
        "problems": tuple[str, ...],
    },
    "Versions": {"mlx": str | None, "mlx_lm": str | None, "mlx_vlm": str | None},
}

# Of the functions, the sections that their docstrings have to have.
SECTIONS = {
    "bind_generation_streams": {"Args", "Returns", "Raises"},
    "install": {"Args", "Raises"},
    "rebinds": {"Returns"},
    "status": {"Returns"},
    "uninstall": set[str](),
}

INSTRUMENTOR = {
    "instrument": "(self, **_kwargs: object) -> None",
    "instrumentation_dependencies": "(self) -> 'Collection[str]'",
    "is_instrumented_by_opentelemetry": None,
    "uninstrument": "(self, **_kwargs: object) -> None",
}

SETTINGS = {
    "MLX_AUTOBIND",
    "MLX_AUTOBIND_GENERATIONS",
    "MLX_AUTOBIND_MODE",
    "MLX_AUTOBIND_MODULES",
    "MLX_AUTOBIND_RECORDS",
    "MLX_AUTOBIND_STRICT",
    "MLX_AUTOBIND_TRACE",
}

COMMANDS = {
    "demo": {"--timeout"},
    "doctor": {"--json", "--timeout"},
    "install-hook": {"--user"},
    "remove-hook": {"--user"},
    "run": {
        *("--mode", "--modules", "--records", "--trace", "--generations", "--strict", "-m", "words")
    },
    "status-hook": {"--user"},
    "traces": {
        *("files", "--thread", "--process", "--kind", "--since", "--until"),
        *("--json", "--tree", "--html", "--perfetto", "--follow"),
    },
}


def test_the_public_names() -> None:
    assert mlx_autobind.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(mlx_autobind))
    assert sorted([*SIGNATURES, *FIELDS]) == PUBLIC


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature(name: str) -> None:
    assert str(inspect.signature(getattr(mlx_autobind, name))) == SIGNATURES[name]


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields(name: str) -> None:
    kind = getattr(mlx_autobind, name)
    assert typing.get_type_hints(kind) == FIELDS[name]
    fields = dataclasses.fields(kind)
    assert [field.name for field in fields] == list(FIELDS[name])
    assert kind.__dataclass_params__.frozen
    optional = [field.name for field in fields if field.default is not dataclasses.MISSING]
    assert optional == (["error"] if name == "Record" else [])


def sections(text: str) -> dict[str, str]:
    """Return the sections of a docstring by name; what is before the first has none."""
    parts = re.split(r"^(Args|Attributes|Returns|Raises):$", text, flags=re.MULTILINE)
    return dict(zip(("", *parts[1::2]), parts[::2], strict=True))


def check_docstring(text: str) -> dict[str, str]:
    """Hold `text` to saying since when it is, and on which threads; return its sections."""
    found = sections(text)
    assert re.search(r"Since \d+\.\d+\.\d+\.\s*$", found[""]), text
    assert re.search(r"[Tt]hread-safe|threads may share\s+it", found[""]), text
    return found


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_docstring_of_a_function(name: str) -> None:
    function = getattr(mlx_autobind, name)
    found = check_docstring(inspect.getdoc(function) or "")
    assert set(found) - {""} == SECTIONS[name]
    for argument in inspect.signature(function).parameters:
        assert f"\n    {argument}: " in found["Args"]


@pytest.mark.parametrize("name", FIELDS)
def test_the_docstring_of_a_class(name: str) -> None:
    found = check_docstring(inspect.getdoc(getattr(mlx_autobind, name)) or "")
    assert set(found) == {"", "Attributes"}
    said = re.findall(r"^    (\w+): ", found["Attributes"], re.MULTILINE)
    assert said == list(FIELDS[name])
    # Whole numbers of something have a unit.
    for field in said:
        if field.endswith("_ns"):
            assert f"{field}: nanoseconds" in found["Attributes"]


def test_the_instrumentor() -> None:
    kind = MLXAutobindInstrumentor
    members = {name: member for name, member in vars(kind).items() if name[0] != "_"}
    assert set(members) == set(INSTRUMENTOR)
    check_docstring(inspect.getdoc(kind) or "")
    for name, member in members.items():
        check_docstring(inspect.getdoc(member) or "")
        if not isinstance(member, property):
            assert str(inspect.signature(member)) == INSTRUMENTOR[name]


def test_the_entry_points() -> None:
    """As they are installed; `tests/test_release.py` has those of the wheel."""
    found = importlib.metadata.distribution("mlx-autobind").entry_points
    assert {(each.group, each.name): each.value for each in found} == {
        ("console_scripts", "mlx-autobind"): "mlx_autobind.cli:main",
        ("opentelemetry_instrumentor", "mlx_autobind"): (
            "mlx_autobind.instrumentor:MLXAutobindInstrumentor"
        ),
        **{
            ("mlx_autobind", package): "mlx_autobind.instrumentor:imported"
            for package in ("mlx_audio", "mlx_embeddings", "mlx_lm", "mlx_vlm", "mlx_whisper")
        },
    }
    for each in found:
        assert callable(each.load())


def test_the_settings() -> None:
    assert set(mlx_autobind.VARIABLES) == SETTINGS
    assert settings.MODES == ("thread", "owner", "shared")
    assert settings.DEFAULT_RECORDS == 1000


def test_the_commands_and_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    parsers: list[argparse.ArgumentParser] = []

    def parse_known_args(parser: argparse.ArgumentParser, _arguments: object) -> NoReturn:
        parsers.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    with pytest.raises(SystemExit):
        cli.main([])
    (parser,) = parsers
    (commands,) = (each for each in parser._actions if isinstance(each.choices, dict))
    assert isinstance(commands.choices, dict)
    found = {
        name: {
            option
            for action in command._actions
            for option in action.option_strings or [action.dest]
            if option not in {"-h", "--help"}
        }
        for name, command in commands.choices.items()
    }
    assert found == COMMANDS
    assert "--version" in {option for each in parser._actions for option in each.option_strings}


# A record of each kind, exported and measured as it would be; no mlx is needed for that.
TOLD = """
    import json
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    import mlx_autobind, typing
    from mlx_autobind import records, telemetry
    versions = mlx_autobind.Versions("0.32.4", "0.32.2", "0.7.10")
    for kind in typing.get_args(records.Kind):
        record = mlx_autobind.Record(
            kind=kind, thread_name="w", thread_id=1, device="cpu:0", stream_index=3, mode="thread",
            entry_point="a.b", handles=(), started_ns=1, duration_ns=1, versions=versions,
            late=False, error="no stream" if kind == "explained" else None,
        )
        telemetry.export(record)
        telemetry.measure(record)
    telemetry.handover("a.b", 1, 1)
    (resource,) = reader.get_metrics_data().resource_metrics
    print(json.dumps({
        metric.name: [metric.unit, sorted({
            key for point in metric.data.data_points for key in point.attributes
        })]
        for scope in resource.scope_metrics for metric in scope.metrics
    }))
"""

ATTRIBUTES = {
    *("thread.id", "thread.name", "code.function.name"),
    *("mlx_autobind.kind", "mlx_autobind.mode", "mlx_autobind.device"),
    *("mlx_autobind.stream.index", "mlx_autobind.handles", "mlx_autobind.late"),
    *("mlx_autobind.mlx.version", "mlx_autobind.mlx_lm.version", "mlx_autobind.mlx_vlm.version"),
}
MEASURED = ["code.function.name", "mlx_autobind.device", "mlx_autobind.mode"]


def test_the_names_of_spans_and_metrics(run: Run) -> None:
    pytest.importorskip("opentelemetry.sdk")
    outcome = run(TOLD, agent="import", sdk=True, env={"MLX_RANK": "1"})
    assert outcome.clean() == {
        "mlx_autobind.binds": ["{bind}", MEASURED],
        "mlx_autobind.hops": ["{hop}", MEASURED],
        "mlx_autobind.drifts": ["{drift}", MEASURED],
        "mlx_autobind.explained_failures": ["{failure}", MEASURED],
        "mlx_autobind.bind.duration": ["s", MEASURED],
        "mlx_autobind.handover.wait": ["s", ["code.function.name"]],
        "mlx_autobind.handover.run": ["s", ["code.function.name"]],
    }
    assert {each["name"]: set(each["attributes"]) for each in outcome.spans} == {
        "bind generation_stream": ATTRIBUTES | {"mlx_autobind.rank"},
        "hop generation_stream": ATTRIBUTES | {"mlx_autobind.rank"},
        "drift generation_stream": ATTRIBUTES | {"mlx_autobind.rank"},
        "explain stream_error": ATTRIBUTES | {"mlx_autobind.rank", "error.type"},
    }
    assert {each["scope"] for each in outcome.spans} == {"mlx_autobind"}
    assert {each["schema_url"] for each in outcome.spans} == {
        "https://opentelemetry.io/schemas/1.44.0"
    }


GENERATING = """
    import mlx_lm
    model, tokenizer = mlx_lm.load(sys.argv[1])[:2]
    mlx_lm.generate(model, tokenizer, "w5 w6", max_tokens=4)
"""


def test_the_names_of_a_generation(run: Run, checkpoint: Path, stack: Stack) -> None:
    pytest.importorskip("opentelemetry.sdk")
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, so that nothing is recorded")
    env = {"MLX_AUTOBIND_GENERATIONS": "1"}
    outcome = run(program(GENERATING), checkpoint, agent="import", sdk=True, env=env)
    (found,) = (
        each["attributes"]
        for each in outcome.spans
        if each["attributes"]["mlx_autobind.kind"] == "generation"
    )
    assert set(found) == {
        *("thread.id", "thread.name", "code.function.name"),
        *("mlx_autobind.kind", "mlx_autobind.mode"),
        *("mlx_autobind.generation.end", "mlx_autobind.generation.tokens_per_second"),
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
        *("gen_ai.request.max_tokens", "gen_ai.response.finish_reasons"),
        "gen_ai.response.time_to_first_chunk",
        *("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    }


def test_a_name_that_is_not_there() -> None:
    assert not hasattr(mlx_autobind, "no_such_name")


def test_typed() -> None:
    assert (Path(mlx_autobind.__file__).parent / "py.typed").exists()


def test_run_time_dependencies_are_two() -> None:
    required = [
        line for line in importlib.metadata.requires("mlx-autobind") or [] if "extra ==" not in line
    ]
    assert sorted(line.partition(">")[0].partition("<")[0] for line in required) == [
        "opentelemetry-api",
        "wrapt",
    ]


def test_importing_the_public_names_imports_no_mlx() -> None:
    text = "import sys, mlx_autobind as m; m.status(); m.rebinds(); print('mlx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=harness.environ(),
        check=True,
    )
    assert done.stdout.strip() == "False"
