"""Enabled by OpenTelemetry's tools, by autowrapt, by hand, and by several ways at once."""

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import mlx_autobind
from tests import harness
from tests.conftest import Run
from tests.harness import program
from tests.stacks import Stack
from tests.test_hook import ASK, NOT_UNDER, SWITCHED_OFF, UNDER, Environment
from tests.test_scenarios import Reference, wrong

SITE = Path(sysconfig.get_path("purelib"))
INSTRUMENT = Path(sysconfig.get_path("scripts")) / "opentelemetry-instrument"
AUTO = SITE / "opentelemetry" / "instrumentation" / "auto_instrumentation"

# opentelemetry-distro would have everything sent to a collector.
NOWHERE = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
BOOTSTRAP = {"AUTOWRAPT_BOOTSTRAP": "mlx_autobind"}

CROSSING = """
    import json, sys
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    on_thread(asker.ask, "a", PROMPTS[0])
    asker.ask("b", PROMPTS[1])
    on_thread(asker.ask, "c", PROMPTS[2])
    wrappers, function = 0, sys.modules["mlx_lm.generate"].generate
    while hasattr(function, "__wrapped__"):
        wrappers, function = wrappers + 1, function.__wrapped__
    agent = sys.modules.get("mlx_autobind")
    found = {
        "steps": asker.steps,
        "finders": [type(each).__module__ for each in sys.meta_path].count("mlx_autobind"),
        "wrappers": wrappers,
    }
    if agent is not None:
        found["active"] = agent.status().active
        found["bound"] = len([each for each in agent.rebinds() if each.kind == "bind"])
    print(json.dumps(found))
"""


def check(found: dict[str, Any], reference: Reference) -> None:
    """Hold what `CROSSING` found to one agent, installed once: three threads are bound."""
    assert wrong(found.pop("steps"), reference) == {}
    assert found == {"finders": 1, "wrappers": 1, "active": True, "bound": 3}


@pytest.fixture
def active(stack: Stack) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx")


def test_without_any_way_there_is_no_agent(run: Run, checkpoint: Path) -> None:
    outcome = run(program(CROSSING), checkpoint, agent="none")
    assert {key: outcome.result[key] for key in ("finders", "wrappers")} == {
        "finders": 0,
        "wrappers": 0,
    }
    assert "active" not in outcome.result


@pytest.mark.usefixtures("active")
def test_opentelemetry_instrument_alone(run: Run, checkpoint: Path, reference: Reference) -> None:
    outcome = run(
        program(CROSSING),
        checkpoint,
        agent="none",
        python=(str(INSTRUMENT), sys.executable),
        env=NOWHERE,
    )
    check(outcome.clean(), reference)


@pytest.mark.usefixtures("active")
def test_autowrapt_alone(run: Run, checkpoint: Path, reference: Reference) -> None:
    outcome = run(program(CROSSING), checkpoint, agent="none", env=BOOTSTRAP)
    check(outcome.clean(), reference)


# What each way leaves: the hook in site-packages, the example's sitecustomize and behind it that of
# opentelemetry-instrument, autowrapt; and two by hand.
ALL_WAYS = """
import site, sys
sites = sys.version_info >= (3, 15) or hasattr(site, "mlx_autobind")
ways = "mlx_autobind", "opentelemetry.instrumentation.auto_instrumentation", "autowrapt.bootstrap"
assert sites and set(ways) <= set(sys.modules), (sites, set(ways) - set(sys.modules))
import mlx_autobind
mlx_autobind.install()
from mlx_autobind.instrumentor import MLXAutobindInstrumentor
MLXAutobindInstrumentor().instrument()
"""


@pytest.mark.usefixtures("active")
def test_all_ways_at_once(run: Run, checkpoint: Path, reference: Reference, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    assert environment.command("install-hook")[0] == 0
    for file in SITE.glob("autowrapt-init.*"):
        shutil.copy(file, environment.site)
    outcome = run(
        ALL_WAYS + program(CROSSING),
        checkpoint,
        agent="none",
        python=(str(environment.python),),
        env={**NOWHERE, **BOOTSTRAP, "PYTHONPATH": f"{harness.SITECUSTOMIZE}{os.pathsep}{AUTO}"},
    )
    check(outcome.clean(), reference)


def start(*command: object, text: str = ASK, **env: str) -> str:
    """Start Python by `command`; return what it printed, once it is sure that it was silent."""
    done = subprocess.run(
        [*map(str, command), sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=harness.environ({**NOWHERE, **env}),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("active")
def test_the_spans_go_where_the_distribution_sends_them(run: Run, checkpoint: Path) -> None:
    outcome = run(
        program(CROSSING),
        checkpoint,
        agent="none",
        python=(str(INSTRUMENT), "--traces_exporter", "console", sys.executable),
        env={key: value for key, value in NOWHERE.items() if "TRACES" not in key},
    )
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.count('"name": "bind generation_stream"') == 3


def test_switched_off() -> None:
    assert start(INSTRUMENT) == UNDER
    assert start(INSTRUMENT, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="mlx_autobind") == NOT_UNDER
    assert start(INSTRUMENT, MLX_AUTOBIND="off") == SWITCHED_OFF
    assert start(**BOOTSTRAP) == UNDER
    assert start(**BOOTSTRAP, MLX_AUTOBIND="off") == SWITCHED_OFF
    assert start(AUTOWRAPT_BOOTSTRAP="") == NOT_UNDER


BY_HAND = """
import sys
{before}
from mlx_autobind.instrumentor import MLXAutobindInstrumentor
def finders():
    return [type(each).__module__ for each in sys.meta_path].count("mlx_autobind")
seen = [finders()]
for _ in range(2):
    for _ in range(2):
        MLXAutobindInstrumentor().uninstrument()
    seen.append((finders(), MLXAutobindInstrumentor().is_instrumented_by_opentelemetry))
    for _ in range(2):
        # As the loaders of one release or another, and programs, call it.
        instrumentor = MLXAutobindInstrumentor()
        instrumentor.instrument()
        instrumentor.instrument(skip_dep_check=True)
        instrumentor.instrument(raise_exception_on_conflict=True)
        instrumentor.instrument(tracer_provider=None, meter_provider=None)
    seen.append((finders(), MLXAutobindInstrumentor().is_instrumented_by_opentelemetry))
print(seen, "opentelemetry.instrumentation.instrumentor" in sys.modules)
"""
IN_AND_OUT = "[1, (0, False), (1, True), (0, False), (1, True)]"


def test_by_hand() -> None:
    assert start(text=BY_HAND.format(before="")) == f"{IN_AND_OUT} False"
    base = "import opentelemetry.instrumentation.instrumentor"
    assert start(text=BY_HAND.format(before=base)) == f"{IN_AND_OUT} True"
    off = "[0, (0, False), (0, False), (0, False), (0, False)]"
    assert start(text=BY_HAND.format(before=""), MLX_AUTOBIND="off") == f"{off} False"


def test_where_opentelemetry_instrumentation_is_not_installed() -> None:
    missing = "sys.modules['opentelemetry.instrumentation'] = None"
    assert start(text=BY_HAND.format(before=missing)) == f"{IN_AND_OUT} False"


def test_it_has_what_an_instrumentor_has() -> None:
    from opentelemetry.instrumentation.dependencies import (
        get_dependency_conflicts,
        get_dist_dependency_conflicts,
    )

    from mlx_autobind.instrumentor import MLXAutobindInstrumentor

    base = importlib.import_module("opentelemetry.instrumentation.instrumentor").BaseInstrumentor
    public = {name for name in vars(base) if not name.startswith("_")}
    assert public <= set(dir(MLXAutobindInstrumentor))
    assert (
        get_dependency_conflicts(MLXAutobindInstrumentor().instrumentation_dependencies()) is None
    )
    assert get_dist_dependency_conflicts(importlib.metadata.distribution("mlx-autobind")) is None


def test_a_hook_for_each_package() -> None:
    hooks = importlib.metadata.entry_points(group="mlx_autobind")
    assert {hook.name for hook in hooks} == mlx_autobind.PACKAGES
    for hook in hooks:
        assert hook.load()(sys) is None


def test_autowrapt_does_not_undo_what_the_program_does(run: Run) -> None:
    text = """
        import json, sys
        import mlx_autobind
        installed = mlx_autobind.status().installed
        mlx_autobind.uninstall()
        import mlx_lm
        print(json.dumps([installed, mlx_autobind.status().installed]))
    """
    assert run(text, agent="none", env=BOOTSTRAP).clean() == [True, False]


@pytest.mark.parametrize("way", ["autowrapt", "opentelemetry-instrument"])
def test_an_agent_that_fails_is_one_warning(way: str, run: Run, tmp_path: Path) -> None:
    # autowrapt stops the interpreter for an error of a hook's.
    package = tmp_path / "broken" / "mlx_autobind"
    shutil.copytree(Path(mlx_autobind.__file__).parent, package)
    (package / "activation.py").write_text("1 / 0\n")
    outcome = run(
        "import mlx_lm\nprint(1)",
        agent="none",
        python=(str(INSTRUMENT), sys.executable) if way != "autowrapt" else (sys.executable,),
        env={
            **NOWHERE,
            **(BOOTSTRAP if way == "autowrapt" else {}),
            "PYTHONPATH": str(package.parent),
            "MLX_AUTOBIND_MODE": "owner",  # has the agent read its settings at start-up
        },
    )
    assert (outcome.code, outcome.result) == (0, 1), outcome.stderr
    for action in ("read_settings", "loaded"):
        assert outcome.stderr.count(f"mlx_autobind.activation.{action} failed") == 1
    assert outcome.stderr.count("ZeroDivisionError: division by zero") == 2
