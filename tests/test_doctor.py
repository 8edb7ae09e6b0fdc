"""``mlx-autobind doctor``: fine, something to do, broken; each in a real environment."""

import dataclasses
import importlib.metadata
import json
import os
import pickle
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mlx_autobind
from mlx_autobind import targets
from mlx_autobind.cli import doctor, findings, probe, report
from tests import harness
from tests.stacks import Stack, installed, version
from tests.test_traces import line, span

# The whole command starts some ten interpreters that import everything.
pytestmark = pytest.mark.timeout(600)

NO_STREAM = "RuntimeError: There is no Stream(cpu, 0) in current thread."
BINDING = report.Mlx(
    installed=True,
    importable=True,
    error=None,
    version="0.32.4",
    file="core.so",
    device="Device(cpu, 0)",
    binds=True,
    evidence=NO_STREAM,
    acts=True,
    unsafe_streams=True,
)
FREE = dataclasses.replace(
    BINDING, version="0.31.1", binds=False, evidence=None, acts=False, unsafe_streams=False
)
LIBRARY = report.Library(
    "mlx_lm",
    imported=True,
    error=None,
    mode="thread",
    handles=(report.Handle("mlx_lm.generate.generation_stream", "replaced"),),
    entry_points=(report.EntryPoint("mlx_lm.generate.generate", "loop"),),
)
WRONG = report.Run(None, f"3 of 3: {NO_STREAM}", False, "exit code 0", 1.0, (), "")
RIGHT = report.Run("thread", "right", True, "exit code 0", 1.0, ("worker",), "")
PROBE = report.Probe("a probe", None, None, (WRONG, RIGHT))
# A machine with mlx 0.32.4 and mlx-lm 0.31.2 on which all is well.
FACTS = report.Facts(
    interpreter=report.Interpreter("/bin/python", "3.11.9", "Linux x86_64", (), ()),
    packages=(report.Package("mlx-lm", "0.31.2", "0.24 to 0.32"),),
    configuration=report.Configuration({}, True, "thread", (), None, ()),
    start=report.Start((), (), (), True, True, mlx_autobind.__file__, "exit code 0", ""),
    mlx=BINDING,
    libraries=(LIBRARY,),
    telemetry=report.Telemetry("1.45.0", None, (), (), None),
    probe=PROBE,
    failures=(),
)

BOOTSTRAP = str(harness.installed() / "bootstrap")


def run_doctor(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "mlx_autobind", "doctor", *arguments],
        capture_output=True,
        text=True,
        env=harness.environ(env),
        cwd=cwd,
        timeout=500,
        check=False,
    )


def ask(
    expression: str,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Any:
    """Return the value of `expression` in a real interpreter, where `prober` is one."""
    file = folder / "answer"
    text = (
        "import pickle, sys\n"
        "from mlx_autobind.cli import probe, report\n"
        "prober = probe.Prober(100, lambda what: None)\n"
        f"value = {expression}\n"
        "assert 'mlx' not in sys.modules\n"
        "open(sys.argv[1], 'wb').write(pickle.dumps(value))\n"
    )
    subprocess.run(
        [sys.executable, *options, "-c", text, str(file)],
        env=harness.environ(env),
        timeout=500,
        check=True,
    )
    return pickle.loads(file.read_bytes())  # noqa: S301 - ours


def started(
    folder: Path, *path: Path | str, options: tuple[str, ...] = (), **variables: str
) -> report.Report:
    """Return what the doctor concludes for a Python with `path` on PYTHONPATH.

    How it starts is real; what mlx does is as on mlx 0.32.4, so that it is the same on all
    stacks.
    """
    found = ask(
        "(prober.start(), probe.read_interpreter(), probe.read_configuration())",
        folder,
        env={**variables, "PYTHONPATH": os.pathsep.join(map(str, path))},
        options=options,
    )
    start, interpreter, configuration = found
    return findings.conclude(
        dataclasses.replace(
            FACTS, start=start, interpreter=interpreter, configuration=configuration
        )
    )


def module(folder: Path, name: str, text: str) -> Path:
    """Write a module `name` and return the folder that it is in."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder


def broken_mlx(folder: Path, core: str) -> Path:
    module(folder, "mlx/__init__", "")
    return module(folder, "mlx/core", core)


# --- The whole command ---


def test_fine_and_mlx_is_never_imported_here(tmp_path: Path) -> None:
    text = (
        "import sys\n"
        "from mlx_autobind.cli import main\n"
        "code = main(['doctor', '--json'])\n"
        "sys.stderr.write(' '.join(n for n in sys.modules if n.partition('.')[0] == 'mlx'))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=harness.environ({"PYTHONPATH": str(harness.SITECUSTOMIZE)}),
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""  # no mlx, and no progress where stderr is no terminal
    found = json.loads(done.stdout)
    assert list(found) == [each.name for each in dataclasses.fields(report.Report)]
    assert list(found["facts"]) == [each.name for each in dataclasses.fields(report.Facts)]
    assert (found["format"], found["level"], found["exit_code"]) == (1, "fine", 0)
    facts = found["facts"]
    assert facts["start"]["installed"] is True
    assert facts["start"]["customizes"] == [
        {"file": str(harness.SITECUSTOMIZE / "sitecustomize.py"), "runs": True, "agent": True}
    ]
    assert facts["mlx"]["version"] == facts["packages"][2]["version"]
    without, with_agent = facts["probe"]["runs"]
    assert (without["mode"], with_agent["mode"]) == (None, "thread")
    assert with_agent["verdict"] == "right"
    _as_the_stack_is(facts, without, with_agent)


def _as_the_stack_is(facts: Any, without: Any, with_agent: Any) -> None:
    stack = installed()
    assert facts["mlx"]["binds"] is stack.binds_on_cpu
    assert facts["mlx"]["acts"] is not stack.inert
    (library,) = (each for each in facts["libraries"] if each["name"] == "mlx_lm")
    if stack.inert:
        assert "any thread" in library["inert"]
        assert with_agent["bound"] == []
        return
    assert library["inert"] is None
    wheres = [each["where"] for each in library["handles"]]
    assert wheres[0] == "mlx_lm.generate.generation_stream"
    names = {each["name"]: each["kind"] for each in library["entry_points"]}
    assert names["mlx_lm.generate.stream_generate"] == "generator"
    assert names["mlx_lm.utils.load"] == "producer"
    assert len(with_agent["bound"]) == 3  # a thread, a pool's and one of asyncio.to_thread
    if stack.fails:
        assert "There is no Stream" in without["verdict"]


def test_something_to_do(stack: Stack, tmp_path: Path) -> None:
    done = run_doctor(cwd=tmp_path)
    assert done.stderr == ""
    verdict = " ".join(done.stdout.rpartition("\n\n")[2].split())
    if stack.inert:
        assert done.returncode == 0
        assert verdict.endswith("lets any thread use any stream: nothing to do")
    else:
        assert done.returncode == 1
        assert verdict.startswith("do: ")
        assert "the agent cures it here" in verdict or not stack.fails
        assert "nothing starts it in your programs: put `import mlx_autobind` first" in verdict
        assert f"PYTHONPATH={BOOTSTRAP}" in verdict
    for title in ("Python", "Versions", "Settings", "Start", "mlx", "mlx_lm", "Probe"):
        assert f"\n{title}\n" in f"\n{done.stdout}"
    assert "\x1b" not in done.stdout
    # Longer only where there is a path, which is not broken in two.
    wide = [each for each in done.stdout.splitlines() if len(each) > 100 and "/" not in each]
    assert wide == []


def test_broken(tmp_path: Path) -> None:
    folder = broken_mlx(tmp_path / "broken", "import os; os.abort()")
    done = run_doctor("--json", env={"PYTHONPATH": str(folder)}, cwd=tmp_path)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["verdict"].startswith("broken: mlx.core cannot be imported (signal 6, SIGABRT: ")
    assert found["facts"]["probe"] is None
    assert found["facts"]["libraries"] == []


def test_mlx_that_hangs_and_mlx_that_raises(tmp_path: Path) -> None:
    hung = broken_mlx(tmp_path / "hung", "import threading; threading.Event().wait()")
    done = run_doctor("--timeout", "5", env={"PYTHONPATH": str(hung)}, cwd=tmp_path)
    assert done.returncode == 2
    assert "\n\nbroken: mlx.core cannot be imported (ran out of time" in done.stdout
    assert "none, since mlx.core cannot be imported" in done.stdout
    raising = broken_mlx(tmp_path / "raising", "raise ImportError('no libmlx.so')")
    done = run_doctor(env={"PYTHONPATH": str(raising)}, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be imported (ImportError: no libmlx.so)" in done.stdout


def test_mlx_that_is_not_installed(tmp_path: Path) -> None:
    # As in another virtual environment: what the command itself needs, and no mlx.
    site = Path(sysconfig.get_paths()["purelib"])
    needed = ["wrapt", "opentelemetry", "typing_extensions.py", "importlib_metadata", "zipp"]
    for name in needed:
        if (site / name).exists():
            (tmp_path / name).symlink_to(site / name)
    for folder in site.glob("opentelemetry_api-*"):
        (tmp_path / folder.name).symlink_to(folder)
    path = os.pathsep.join((str(harness.ROOT), str(tmp_path)))
    done = run_doctor(env={"PYTHONPATH": path}, options=("-S",), cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n\ndo: mlx is not installed for {sys.executable}" in done.stdout


def test_help() -> None:
    done = run_doctor("--help")
    assert done.returncode == 0
    assert "0 fine, 1 something to do, 2 broken" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 96


# --- Whether the agent is active in children ---


def test_the_example_is_active(tmp_path: Path) -> None:
    found = started(tmp_path, harness.SITECUSTOMIZE)
    assert found.exit_code == 0
    assert found.verdict.startswith("fine: every Python that is started like this one has")
    assert found.facts.start.agent_file == str(harness.installed() / "__init__.py")


def test_the_folder_that_it_recommends_is_active(tmp_path: Path) -> None:
    found = started(tmp_path, BOOTSTRAP)
    assert found.level == "fine"
    (customize,) = found.facts.start.customizes
    assert (customize.runs, customize.agent) == (True, True)


def test_one_that_the_example_runs_next(tmp_path: Path) -> None:
    own = module(tmp_path / "own", "sitecustomize", "")
    found = started(tmp_path, harness.SITECUSTOMIZE, own)
    assert found.level == "fine"
    assert [each.runs for each in found.facts.start.customizes] == [True, True]
    assert [each.agent for each in found.facts.start.customizes] == [True, False]


def test_one_that_shadows_the_example(tmp_path: Path) -> None:
    own = module(tmp_path / "own", "sitecustomize", "")
    found = started(tmp_path, own, harness.SITECUSTOMIZE)
    assert found.exit_code == 1
    assert [each.runs for each in found.facts.start.customizes] == [True, False]
    assert found.verdict.endswith(
        f"{own / 'sitecustomize.py'} runs in place of {harness.SITECUSTOMIZE / 'sitecustomize.py'}"
        f": Python runs the first one alone: put {harness.SITECUSTOMIZE} first on PYTHONPATH"
    )


@pytest.mark.parametrize("option", ["-E", "-I", "-S"])
def test_an_option_that_hides_it(option: str, tmp_path: Path) -> None:
    site = sysconfig.get_paths()["purelib"]
    path = (harness.SITECUSTOMIZE, harness.ROOT, site)  # with -S, what is installed is not there
    found = started(tmp_path, *path, options=(option,))
    assert found.exit_code == 1
    assert found.facts.interpreter.options == (option,)
    assert not found.facts.start.imported
    assert f"but this Python was started with {option} and then " in found.verdict
    hook = "" if option == "-S" else "`mlx-autobind install-hook`, or "
    assert f": leave {option} out, or {hook}put `import mlx_autobind` first" in found.verdict


def test_an_option_that_hides_nothing(tmp_path: Path) -> None:
    found = started(tmp_path, harness.SITECUSTOMIZE, options=("-s",))
    assert found.facts.interpreter.options == ("-s",)
    assert found.level == "fine"


def test_switched_off(tmp_path: Path) -> None:
    found = started(tmp_path, harness.SITECUSTOMIZE, MLX_AUTOBIND="off")
    assert found.exit_code == 1
    assert found.verdict == (
        "do: the agent cures it here, but MLX_AUTOBIND=off keeps it out: unset it"
    )
    assert (found.facts.start.imported, found.facts.start.installed) == (True, False)


def test_a_bad_mode(tmp_path: Path) -> None:
    found = started(
        tmp_path, harness.SITECUSTOMIZE, MLX_AUTOBIND_MODE="turbo", MLX_AUTOBIND_MOD="owner"
    )
    assert found.exit_code == 1
    assert found.verdict.startswith("do: MLX_AUTOBIND_MODE='turbo': allowed is thread or owner")
    assert "MLX_AUTOBIND_MOD is no setting of the agent" in found.findings[1].text
    assert found.facts.configuration.mode == "thread"


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    found = started(tmp_path, tmp_path / "sitecustomise_example")
    assert found.exit_code == 1
    assert f"{tmp_path / 'sitecustomise_example'} of PYTHONPATH does not exist" in found.verdict


def test_the_file_in_place_of_its_folder(tmp_path: Path) -> None:
    found = started(tmp_path, harness.SITECUSTOMIZE / "sitecustomize.py")
    assert found.exit_code == 1
    assert found.verdict.endswith(f"is no folder: put {harness.SITECUSTOMIZE} there")


def test_a_sitecustomize_that_fails(tmp_path: Path) -> None:
    text = "import mlx_autobind.of_another_version"
    folder = module(tmp_path / "failing", "sitecustomize", text)
    found = started(tmp_path, folder, MLX_AUTOBIND="")
    # The agent is there all the same: the first part of the import has done it.
    assert found.level == "fine"
    text = "try: import no_such_module, mlx_autobind\nexcept ImportError as error: print(error)"
    module(
        folder, "sitecustomize", f"import sys\n{text.replace('error)', 'error, file=sys.stderr)')}"
    )
    found = started(tmp_path, folder)
    assert found.exit_code == 1
    assert "does not bring it into the process (No module named 'no_such_module')" in found.verdict


def test_another_copy_of_the_agent() -> None:
    start = dataclasses.replace(FACTS.start, agent_file="/elsewhere/mlx_autobind/__init__.py")
    found = findings.conclude(dataclasses.replace(FACTS, start=start))
    assert found.level == "fine"
    assert "another copy of the agent, /elsewhere" in found.findings[1].text
    assert len(findings.conclude(FACTS).findings) == 1


# --- The probe ---

HINDRANCE = """
import os, threading, wrapt

@wrapt.when_imported("mlx_lm")
def hinder(module):
    original = module.stream_generate
    def stream_generate(*args, **kwargs):
        main = threading.current_thread() is threading.main_thread()
        if not main and os.environ.get("MLX_AUTOBIND_MODE") not in {modes!r}:
            raise RuntimeError("hindered")
        return original(*args, **kwargs)
    module.stream_generate = stream_generate
"""


@pytest.mark.parametrize(
    ("modes", "code", "verdict"),
    [
        (("owner",), 1, "and mode owner cures it: set MLX_AUTOBIND_MODE=owner"),
        ((), 2, "in mode thread the probe still fails (3 of 3: RuntimeError: hindered): please"),
    ],
)
def test_a_probe_that_fails(
    modes: tuple[str, ...], code: int, verdict: str, stack: Stack, tmp_path: Path
) -> None:
    folder = module(tmp_path / "hindering", "sitecustomize", HINDRANCE.format(modes=modes))
    mlx = f"report.Mlx(True, True, None, unsafe_streams={stack.binds_on_cpu})"
    found = ask(f"prober.generation('thread', {mlx})", tmp_path, env={"PYTHONPATH": str(folder)})
    conclusion = findings.conclude(dataclasses.replace(FACTS, probe=found))
    assert conclusion.exit_code == code
    assert verdict in conclusion.verdict


def test_generating_that_fails_on_one_thread(tmp_path: Path) -> None:
    text = HINDRANCE.format(modes=()).replace("not main and", "True or")
    folder = module(tmp_path / "hindering", "sitecustomize", text)
    found = ask(
        "prober.generation('thread', report.Mlx(True, True, None))",
        tmp_path,
        env={"PYTHONPATH": str(folder)},
    )
    conclusion = findings.conclude(dataclasses.replace(FACTS, probe=found))
    assert conclusion.exit_code == 2
    assert "fails on one thread without the agent (RuntimeError: hindered)" in conclusion.verdict


def test_without_mlx_lm_a_handle_is_probed(stack: Stack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    found = ask(
        "prober.handle('thread', report.Mlx(True, True, None), (), reason='why not')",
        tmp_path,
        env={"MLX_AUTOBIND_TRACE": str(trace), "MLX_AUTOBIND_RECORDS": "many"},
    )
    # The user's trace file is for the user's programs, and a bad setting is told once.
    assert not trace.exists()
    assert found.left_out == "generating was not probed: why not"
    without, with_agent = found.runs
    assert with_agent.stderr == ""
    assert with_agent.right
    # Where they are not the streams' fault, mlx's aborts at exit come and go.
    assert not (without.right and stack.binds_on_cpu)
    assert without.right or not stack.inert
    if not stack.inert:
        assert len(with_agent.bound) == 2
    assert "a stream of its own" in found.what


def test_without_mlx_lm_the_handle_of_a_library_is_probed(stack: Stack, tmp_path: Path) -> None:
    handle = f"report.Handle('mlx_lm.generate.{targets.HANDLE}', 'replaced')"
    library = f"report.Library('mlx_lm', True, None, handles=({handle},))"
    found = ask(
        f"prober.handle('thread', report.Mlx(True, True, None), ({library},), reason='')", tmp_path
    )
    assert found.what.endswith("the stream of mlx_lm.generate")
    without, with_agent = found.runs
    assert with_agent.right
    assert not (without.right and stack.fails)


# --- Libraries ---


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [
        ("import os; os.abort()", 1, "mlx_whisper cannot be imported, with or without the agent"),
        (
            "import mlx_autobind, os\nif mlx_autobind.status().installed: os.abort()",
            2,
            "with the agent mlx_whisper cannot be imported (signal 6, SIGABRT",
        ),
    ],
)
def test_a_library_that_cannot_be_imported(
    text: str, code: int, verdict: str, tmp_path: Path
) -> None:
    folder = module(tmp_path / "own", "mlx_whisper/__init__", text)
    found = ask("prober.library('mlx_whisper')", tmp_path, env={"PYTHONPATH": str(folder)})
    conclusion = findings.conclude(dataclasses.replace(FACTS, libraries=(LIBRARY, found)))
    assert conclusion.exit_code == code
    assert verdict in conclusion.verdict


def test_a_part_that_cannot_be_imported(tmp_path: Path) -> None:
    folder = module(tmp_path / "own", "mlx_whisper/__init__", "print('{}')")
    module(folder, "mlx_whisper/audio", "import no_such_module")
    found = ask("prober.library('mlx_whisper')", tmp_path, env={"PYTHONPATH": str(folder)})
    # What this release does not have is not said to be missing.
    assert found.missing == (
        "mlx_whisper.audio: ModuleNotFoundError: No module named 'no_such_module'",
    )
    conclusion = findings.conclude(dataclasses.replace(FACTS, libraries=(LIBRARY, found)))
    assert conclusion.level == "fine"
    assert conclusion.findings[1].text.startswith("not imported: mlx_whisper.audio")


def test_the_tested_releases_are_those_of_the_extras() -> None:
    required = importlib.metadata.requires("mlx-autobind") or []
    for package, bounds in (("mlx-lm", "<0.33,>=0.24"), ("mlx-vlm", "<0.8,>=0.1.20")):
        first, last = targets.TESTED[package.replace("-", "_")]
        whole = last.split(".")
        following = ".".join([*whole[:-1], str(int(whole[-1]) + 1)])
        assert bounds == f"<{following},>={first}"
        assert any(each.startswith(f"{package}{bounds}") for each in required)
    assert set(targets.TESTED) == set(targets.PACKAGES)


@pytest.mark.parametrize(
    ("number", "within"),
    [
        ("0.23.2", False),
        ("0.24.0", True),
        ("0.31.3", True),
        ("0.32.2", True),
        ("0.32.2+local.7", True),
        ("0.33.0", False),
        ("1.0", False),
    ],
)
def test_which_releases_are_tested(number: str, within: bool) -> None:
    assert targets.tested("mlx_lm", number) is within


# --- OpenTelemetry and the trace file ---


def test_opentelemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=secret")
    found = probe.read_telemetry(str(tmp_path / "trace.jsonl"))
    assert "OTEL_EXPORTER_OTLP_HEADERS" in found.variables
    assert "secret" not in repr(found)
    assert (found.sdk is None) == (version("opentelemetry-sdk") is None)
    if found.sdk is not None:
        assert ("opentelemetry_traces_exporter", "console", "opentelemetry-sdk") in {
            (each.group, each.name, each.package) for each in found.extensions
        }
    if version("opentelemetry-exporter-otlp-json-file") is not None:
        assert found.trace_problem is None
        assert "is a folder" in str(probe.read_telemetry(str(tmp_path)).trace_problem)
        nowhere = probe.read_telemetry(str(tmp_path / "none" / "trace.jsonl"))
        assert "cannot be written" in str(nowhere.trace_problem)


def test_failures_in_the_trace_file_name_the_mode_that_cures_them(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    explained = {"mlx_autobind.kind": "explained"}
    of_owner = {**explained, "mlx_autobind.mode": "owner"}
    file.write_text(line(span(1), span(2, **explained), span(3, **explained), span(4, **of_owner)))
    found = probe.read_failures(str(file))
    assert [(each.mode, each.count) for each in found] == [("thread", 2), ("owner", 1)]
    conclusion = findings.conclude(dataclasses.replace(FACTS, failures=found))
    assert conclusion.exit_code == 1
    assert conclusion.verdict.startswith("do: 2 failures in ")
    assert "MLX_AUTOBIND_MODE=shared cures it, and so does MLX_AUTOBIND_MODE=owner if" in (
        conclusion.verdict
    )
    # The mode was changed since.
    later = findings.conclude(dataclasses.replace(FACTS, failures=found[1:]))
    assert later.exit_code == 0
    assert probe.read_failures(str(tmp_path / "none")) == ()


# --- What follows from the facts ---


def with_settings(**changes: Any) -> report.Facts:
    changed = dataclasses.replace(FACTS.configuration, **changes)
    return dataclasses.replace(FACTS, configuration=changed)


def with_runs(*runs: report.Run) -> report.Facts:
    return dataclasses.replace(FACTS, probe=dataclasses.replace(PROBE, runs=runs))


WORKING = dataclasses.replace(WRONG, verdict="right", right=True)
FAILING = dataclasses.replace(RIGHT, verdict="1 of 3: no", right=False)
UNBOUND = dataclasses.replace(RIGHT, bound=())
ABSENT = dataclasses.replace(FACTS.start, imported=False, installed=False, agent_file=None)


@pytest.mark.parametrize(
    ("facts", "code", "verdict"),
    [
        (FACTS, 0, "fine: every Python"),
        (
            dataclasses.replace(FACTS, mlx=FREE, start=ABSENT),
            0,
            "fine: mlx 0.31.1 lets any thread use any stream: nothing to do",
        ),
        (
            dataclasses.replace(FACTS, libraries=(), start=ABSENT),
            0,
            "fine: none of mlx-lm is installed here: nothing to do",
        ),
        (
            dataclasses.replace(with_settings(modules=("app",)), libraries=(), start=ABSENT),
            1,
            "do: the agent cures it here, but nothing starts it",
        ),
        (
            dataclasses.replace(with_runs(WRONG, RIGHT), start=ABSENT),
            1,
            "do: the agent cures it here, but nothing starts it",
        ),
        (
            dataclasses.replace(with_runs(WORKING, RIGHT), start=ABSENT),
            1,
            "do: this mlx binds streams to threads, and the agent works here, but nothing",
        ),
        (
            dataclasses.replace(FACTS, probe=None, start=ABSENT),
            1,
            "do: this mlx binds streams to threads, but nothing starts it",
        ),
        (
            with_runs(WORKING, FAILING),
            2,
            "broken: the probe is right without the agent and fails with it (1 of 3: no): set",
        ),
        (
            with_runs(WRONG, FAILING, dataclasses.replace(RIGHT, mode="shared")),
            1,
            "do: with the agent in mode thread the probe still fails (1 of 3: no), and mode shared",
        ),
        (with_runs(WRONG, UNBOUND), 2, "broken: the agent bound no thread in the probe"),
        (
            dataclasses.replace(with_runs(WRONG, UNBOUND), mlx=FREE),
            0,
            "fine: mlx 0.31.1",
        ),
        (
            dataclasses.replace(
                with_settings(mode="shared"),
                mlx=dataclasses.replace(BINDING, version="0.31.2", unsafe_streams=False),
            ),
            1,
            "do: mlx 0.31.2 cannot do MLX_AUTOBIND_MODE=shared",
        ),
        (
            dataclasses.replace(
                FACTS,
                telemetry=dataclasses.replace(FACTS.telemetry, trace_problem="x is not installed"),
            ),
            1,
            "do: MLX_AUTOBIND_TRACE writes nothing: x is not installed: pip install",
        ),
        (
            dataclasses.replace(
                FACTS, packages=(report.Package("mlx-lm", "0.40.0", "0.24 to 0.32", True),)
            ),
            0,
            "fine: every Python",
        ),
    ],
)
def test_verdicts(facts: report.Facts, code: int, verdict: str) -> None:
    found = findings.conclude(facts)
    assert found.verdict.startswith(verdict)
    assert found.exit_code == code
    printed = "\n".join(doctor.text(found))
    assert " ".join(printed.rpartition("\n\n")[2].split()) == found.verdict


def test_what_is_broken_comes_before_what_is_to_do() -> None:
    facts = dataclasses.replace(
        with_runs(WRONG, UNBOUND),
        start=ABSENT,
        libraries=(dataclasses.replace(LIBRARY, missing=("a part of it",)),),
    )
    assert [each.level for each in findings.conclude(facts).findings] == ["broken", "do", "note"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    facts = with_settings(variables={"MLX_AUTOBIND_MODULES": "\x1b[2J"})
    assert "?[2J" in "\n".join(doctor.text(findings.conclude(facts)))
