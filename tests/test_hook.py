"""``install-hook``, ``remove-hook`` and ``status-hook``, in environments of the tests' own."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import mlx_autobind
from mlx_autobind.cli import hook
from tests import harness
from tests.conftest import Run
from tests.harness import ROOT, program
from tests.stacks import Stack
from tests.test_scenarios import Reference, wrong

# One finder and no more, and whether the start-up said anything.
ASK = (
    "import sys; print([type(each).__module__ for each in sys.meta_path].count('mlx_autobind'),"
    " 'mlx_autobind' in sys.modules)"
)
UNDER, NOT_UNDER, SWITCHED_OFF = "1 True", "0 False", "0 True"


class Environment:
    """A virtual environment in `folder`, which has on its path what the tests' own has.

    The package is there by a .pth of its own, as in an editable install.
    """

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        self.editable = self.site / "_editable_impl_mlx_autobind.pth"
        self.editable.write_text(f"{ROOT}\n")
        self.libraries = self.site / "_libraries.pth"
        self.libraries.write_text(f"{sysconfig.get_path('purelib')}\n")
        self.hook = self.site / hook.files()[-1].name

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run ``python -m mlx_autobind``; return the exit code, stdout and stderr."""
        return self.start("-m", "mlx_autobind", *arguments)

    def start(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        """Start Python; return the exit code, stdout and stderr."""
        done = subprocess.run(
            [self.python, *arguments],
            capture_output=True,
            text=True,
            env=harness.environ(env),
            cwd=self.site,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.strip(), done.stderr

    def ask(self, *options: str, **env: str) -> str:
        """Return whether a fresh interpreter is under the agent, once it is sure it is silent."""
        code, stdout, stderr = self.start(*options, "-c", ASK, **env)
        assert (code, stderr) == (0, "")
        return stdout

    def ours(self) -> list[str]:
        """Return the names of whatever is in site-packages because of the hook."""
        return sorted(path.name for path in self.site.iterdir() if hook.STEM in path.name)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


@pytest.fixture
def hooked(environment: Environment) -> Environment:
    assert environment.command("install-hook") == (0, f"{environment.hook}: installed", "")
    return environment


def test_in_and_out(environment: Environment) -> None:
    assert environment.ask() == NOT_UNDER
    code, stdout, _ = environment.command("status-hook")
    assert code == 1
    assert stdout == (
        f"{environment.hook}: not installed\n{environment.python} -I: not under the agent"
    )
    assert environment.command("install-hook")[0] == 0
    assert environment.ask() == UNDER
    assert environment.command("status-hook") == (
        0,
        f"{environment.hook}: installed, of version {mlx_autobind.__version__}\n"
        f"{environment.python} -I: under the agent",
        "",
    )
    assert environment.command("remove-hook") == (0, f"{environment.hook}: removed", "")
    assert environment.ours() == []
    assert environment.ask() == NOT_UNDER
    assert environment.command("remove-hook") == (0, f"{environment.hook}: not installed", "")


def test_twice_is_once(hooked: Environment) -> None:
    before = hooked.hook.stat()
    assert hooked.command("install-hook") == (0, f"{hooked.hook}: installed already", "")
    after = hooked.hook.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert hooked.ours() == [hooked.hook.name]
    # Whoever may use the environment has to be able to read it.
    assert after.st_mode & 0o777 == 0o644


@pytest.mark.parametrize("option", ["-E", "-I", "-s", "-B"])
def test_options_that_leave_sitecustomize_out(option: str, hooked: Environment) -> None:
    assert hooked.ask(option) == UNDER
    assert hooked.ask(option, MLX_AUTOBIND="off") == SWITCHED_OFF


def test_without_site_there_is_no_hook(hooked: Environment) -> None:
    assert hooked.ask("-S") == NOT_UNDER


def test_status_of_an_agent_that_is_switched_off(hooked: Environment) -> None:
    code, stdout, _ = hooked.start("-m", "mlx_autobind", "status-hook", MLX_AUTOBIND="off")
    assert code == 1
    assert stdout.endswith("not under the agent (MLX_AUTOBIND=off)")


def test_children_are_under_the_agent(hooked: Environment) -> None:
    ask = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {ASK!r}])"
    assert hooked.start("-S", "-c", ask) == (0, UNDER, "")


def test_it_imports_nothing_else(hooked: Environment) -> None:
    heavy = ("wrapt", "opentelemetry", "mlx", "threading", "dataclasses", "logging", "typing")
    ask = f"import sys; print([name for name in {heavy} if name in sys.modules])"
    assert hooked.start("-c", ask) == (0, "[]", "")


def test_silent_once_the_package_is_uninstalled(hooked: Environment) -> None:
    hooked.editable.unlink()
    hooked.libraries.unlink()
    assert hooked.ask() == NOT_UNDER
    assert hooked.ask("-I", MLX_AUTOBIND_MODE="owner") == NOT_UNDER


def test_one_line_if_the_agent_fails(hooked: Environment, tmp_path: Path) -> None:
    (tmp_path / "broken" / "mlx_autobind").mkdir(parents=True)
    (tmp_path / "broken" / "mlx_autobind" / "__init__.py").write_text("1 / 0\n")
    hooked.editable.write_text(f"{tmp_path / 'broken'}\n")
    hooked.libraries.unlink()
    assert hooked.start("-c", ASK) == (
        0,
        NOT_UNDER,
        "mlx_autobind is not active: ZeroDivisionError: division by zero\n",
    )


OLDER = "# mlx-autobind 0.0.9 start-up hook\nimport mlx_autobind\n"


def test_of_another_version(environment: Environment) -> None:
    environment.hook.write_text(OLDER)
    code, stdout, _ = environment.command("status-hook")
    assert code == 1
    assert "made by 0.0.9" in stdout
    assert stdout.endswith("-I: under the agent")
    assert environment.command("install-hook") == (0, f"{environment.hook}: installed", "")
    assert environment.command("status-hook")[0] == 0
    environment.hook.write_text(OLDER)
    assert environment.command("remove-hook") == (0, f"{environment.hook}: removed", "")


@pytest.mark.parametrize("command", ["install-hook", "remove-hook", "status-hook"])
def test_what_somebody_else_has_made_is_left(command: str, environment: Environment) -> None:
    environment.hook.write_text("import mlx_autobind\n")
    assert environment.command(command) == (
        1,
        "",
        f"mlx-autobind {command}: {environment.hook} was not made by mlx-autobind and is left as "
        "it is\n",
    )
    assert environment.hook.read_text() == "import mlx_autobind\n"
    assert environment.ours() == [environment.hook.name]


# Root may write anywhere: it first becomes somebody who may not. What the command needs is imported
# before that, since that user need not be able to read it.
UNPRIVILEGED = """
import contextlib, os, sys
from mlx_autobind.cli import hook, main
with contextlib.suppress(SystemExit):
    main(["--version"])
hook.folder(user=False)
if os.geteuid() == 0:
    os.setuid(65534)
sys.exit(main([sys.argv[1]]))
"""


@pytest.mark.parametrize("command", ["install-hook", "remove-hook"])
def test_a_read_only_environment(command: str, environment: Environment) -> None:
    if command == "remove-hook":
        assert environment.command("install-hook")[0] == 0
    there = environment.ours()
    environment.site.chmod(0o555)
    opened = []
    try:
        for parent in environment.site.parents:  # those that pytest makes are closed to others
            mode = parent.stat().st_mode
            if parent.stat().st_uid == os.geteuid() and mode & 0o005 != 0o005:
                opened.append((parent, mode))
                parent.chmod(0o755)
        code, stdout, stderr = environment.start("-c", UNPRIVILEGED, command)
    finally:
        for parent, mode in opened:
            parent.chmod(mode)
        environment.site.chmod(0o755)
    assert (code, stdout) == (1, mlx_autobind.__version__)
    assert stderr == (
        f"mlx-autobind {command}: no way into {environment.site}: Permission denied\n"
    )
    assert environment.ours() == there


def test_many_at_once(environment: Environment) -> None:
    # Whoever starts meanwhile finds all of it or nothing, and none of their temporary files stays.
    arguments = [str(environment.python), "-m", "mlx_autobind"]
    commands = ["install-hook", "remove-hook", "install-hook", "remove-hook", "install-hook"]
    running = [
        subprocess.Popen(
            [*arguments, command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    found = {environment.ask()}
    while any(each.poll() is None for each in running):
        found.add(environment.ask())
    assert [each.communicate()[1] for each in running] == [""] * len(running)
    assert [each.returncode for each in running] == [0] * len(running)
    assert found <= {UNDER, NOT_UNDER}
    assert environment.command("install-hook")[0] == 0
    assert environment.ours() == [environment.hook.name]


@pytest.fixture
def user(environment: Environment, tmp_path: Path) -> dict[str, str]:
    """Have `environment` look at a user's site-packages; return the variables for that."""
    configuration = environment.site.parents[2] / "pyvenv.cfg"
    text = configuration.read_text()
    configuration.write_text(text.replace("packages = false", "packages = true"))
    return {"PYTHONUSERBASE": str(tmp_path / "user")}


def test_for_the_user(environment: Environment, user: dict[str, str]) -> None:
    code, stdout, stderr = environment.start("-m", "mlx_autobind", "install-hook", "--user", **user)
    assert (code, stderr) == (0, "")
    path = Path(stdout.removesuffix(": installed"))
    assert path.is_relative_to(user["PYTHONUSERBASE"])
    assert path.exists()
    assert environment.ours() == []
    assert environment.ask(**user) == UNDER
    assert environment.ask("-I", **user) == NOT_UNDER  # it leaves the user's out
    code, stdout, _ = environment.start("-m", "mlx_autobind", "status-hook", "--user", **user)
    assert code == 0
    assert f"{path}: installed, of version" in stdout
    assert stdout.endswith("-E: under the agent")
    code, stdout, _ = environment.start("-m", "mlx_autobind", "remove-hook", "--user", **user)
    assert (code, stdout) == (0, f"{path}: removed")
    assert not path.exists()


def test_no_virtual_environment_looks_at_the_user(environment: Environment) -> None:
    code, stdout, stderr = environment.command("install-hook", "--user")
    assert (code, stdout) == (1, "")
    assert stderr.startswith(f"mlx-autobind install-hook: {environment.python} does not look at")


def test_wherever_on_the_path_the_package_is(
    environment: Environment, user: dict[str, str]
) -> None:
    # Python reads the site-packages of a virtual environment twice, the user's once.
    assert environment.start("-m", "mlx_autobind", "install-hook", "--user", **user)[0] == 0
    (path,) = Path(user["PYTHONUSERBASE"]).rglob(hook.files()[-1].name)
    environment.editable.rename(path.with_name("zzz-editable.pth"))
    environment.libraries.rename(path.with_name("zzz-libraries.pth"))
    assert environment.ask(**user) == UNDER
    # With a setting in the environment, the agent needs wrapt as it is imported.
    assert environment.ask(**user, MLX_AUTOBIND_MODE="owner") == UNDER
    # What is executed as the file is read does not find the package.
    naive = "try: import mlx_autobind\nexcept ImportError: pass"
    path.write_text(f"import sys; exec({naive!r})\n")
    assert environment.ask(**user) == ("1 True" if sys.version_info >= (3, 15) else NOT_UNDER)


# No Python 3.15 could be had for the tests: they hold the files to what PEP 829 says of them.
@pytest.mark.parametrize("python", [(3, 15), (3, 16)])
def test_from_python_3_15_on(python: tuple[int, int], environment: Environment) -> None:
    module, start = hook.files(python)
    assert [module.name, start.name] == ["mlx_autobind_hook.py", "mlx_autobind_hook.start"]
    lines = [line for line in start.text.splitlines() if not line.startswith("#")]
    assert lines == ["mlx_autobind_hook:start"]
    assert re.fullmatch(r"[\w.]+:[\w.]+", lines[0])
    for file in (module, start):
        assert file.text.startswith(f"# mlx-autobind {mlx_autobind.__version__} start-up hook")
        (environment.site / file.name).write_text(file.text)
    call = f"import pkgutil; pkgutil.resolve_name({lines[0]!r})(); {ASK}"
    assert environment.start("-c", call) == (0, UNDER, "")
    assert environment.start("-c", call, MLX_AUTOBIND="off") == (0, SWITCHED_OFF, "")
    environment.editable.unlink()
    environment.libraries.unlink()
    assert environment.start("-c", call) == (0, NOT_UNDER, "")


def test_what_another_version_of_python_has_left(environment: Environment) -> None:
    others = hook.files((3, 15) if sys.version_info < (3, 15) else (3, 14))
    for file in others:
        (environment.site / file.name).write_text(file.text)
    if hook.MODULE in {file.name for file in others}:  # the module leaves its byte code
        assert environment.start("-c", f"import {hook.STEM}", PYTHONDONTWRITEBYTECODE="") == (
            0,
            "",
            "",
        )
        assert len(list(environment.site.glob(f"__pycache__/{hook.STEM}*"))) == 1
    assert environment.command("install-hook")[0] == 0
    assert environment.ours() == [file.name for file in hook.files()]
    assert list(environment.site.glob(f"__pycache__/{hook.STEM}*")) == []


CROSSING = """
    import json
    import mlx_lm
    from asking import Asker, PROMPTS, on_thread
    asker = Asker()
    on_thread(asker.ask, "worker", PROMPTS[0])
    import mlx_autobind
    print(json.dumps([asker.steps, mlx_autobind.status().active]))
"""


def test_a_program_that_loads_on_one_thread_and_generates_on_another(
    run: Run, hooked: Environment, checkpoint: Path, reference: Reference, stack: Stack
) -> None:
    if stack.inert:
        pytest.skip("the agent is inert on this mlx")
    steps, active = run(
        program(CROSSING), checkpoint, agent="none", python=(str(hooked.python), "-I")
    ).clean()
    assert wrong(steps, reference) == {}
    assert active
