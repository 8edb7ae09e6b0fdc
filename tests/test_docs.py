"""README.md and docs/: what they show is run, what they say of the settings and the links is so.

A block of code that is neither run here nor named below fails `test_every_command_is_accounted_for`
or `test_every_output_is_accounted_for`.
"""

import dataclasses
import functools
import html
import html.parser
import http.server
import importlib.util
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import unicodedata
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mlx_autobind
from mlx_autobind import settings
from tests import browser, compatibility, harness, scenario_pages
from tests.harness import ROOT
from tests.soak import page as reliability
from tests.stacks import Stack
from tests.test_scenarios import NO_STREAM

markdown_it = pytest.importorskip(
    "markdown_it", reason="markdown-it-py is not installed: pip install 'mlx-autobind[cli]'"
)

DOCS = ROOT / "docs"
CONFIG = ROOT / ".ci" / "mkdocs.yml"
if not (DOCS / "index.md").exists() or not CONFIG.exists():
    pytest.skip("tested without its documentation", allow_module_level=True)

PAGES = {
    str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}
MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: the page that it is on.
        line: where it begins.
        language: of a fenced one; ``shell`` if it is only indented.
        title: the name of the file that it is said to be, if it is.
        text: what is in it.
    """

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def first(self) -> str:
        """The first line."""
        return self.text.splitlines()[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@functools.cache
def tokens_of(page: str) -> tuple[Any, ...]:
    parser = markdown_it.MarkdownIt("commonmark").enable("table")
    return tuple(parser.parse(PAGES[page].read_text()))


def blocks_of(page: str) -> list[Block]:
    found = []
    for token in tokens_of(page):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            name = title[1] if title else None
            found.append(Block(page, token.map[0] + 1, language, name, token.content))
        elif token.type == "code_block":
            found.append(Block(page, token.map[0] + 1, "shell", None, token.content))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def commands_of(block: Block) -> list[str]:
    """Return the commands of a shell block, without what is said of them."""
    text = block.text.replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} <= {"python", "pycon", "shell", "text"}


# Programs.

TITLED = {block.title: block for block in BLOCKS if block.title}
# What is shown because it fails, with the agent too; the shell block below it shows how.
FAILING = {"lazy.py"}
# There from this mlx on, and what a page is for that says how to do without the agent.
NEWER = ("new_thread_local_stream", "clear_streams")


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Path) -> Path:
    """Return a folder with the model and the files that the pages speak of."""
    made = tmp_path / "reader"
    (made / MODEL).parent.mkdir(parents=True)
    (made / MODEL).symlink_to(checkpoint, target_is_directory=True)
    for name, block in TITLED.items():
        assert name is not None
        (made / name).write_text(block.text)
    return made


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python(block: Block, folder: Path, stack: Stack) -> None:
    """Runs to its end and says nothing on stderr; a file of a page runs under the agent."""
    if stack.inert and any(name in block.text for name in NEWER):
        pytest.skip("this mlx has no such function")
    if block.title in FAILING:
        pytest.skip("its failure is shown by the commands of the page")
    agent: harness.Agent = "import" if block.title else "none"
    outcome = harness.run(block.text, agent=agent, folder=folder)
    assert (outcome.code, outcome.stderr) == (0, "")


DOCTEST = """
    import doctest, sys
    text = open(sys.argv[1]).read()
    test = doctest.DocTestParser().get_doctest(text, {}, sys.argv[1], None, 0)
    assert test.examples
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    sys.exit(bool(results.failed))
"""


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("pycon")}))
def test_sessions(page: str, folder: Path, stack: Stack) -> None:
    """All of a page in one interpreter, as a reader would type it."""
    if stack.inert:
        pytest.skip("the agent is inert on this mlx, and the session shows what it does")
    typed = folder / "session.txt"
    typed.write_text("\n".join(block.text for block in blocks("pycon") if block.page == page))
    outcome = harness.run(DOCTEST, typed, agent="none", folder=folder)
    assert (outcome.code, outcome.stderr) == (0, ""), outcome.stdout


def test_the_first_program_fails_without_the_agent(folder: Path, stack: Stack) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("any thread can use any stream here: there is no failure to show")
    if stack.fails:
        outcome = harness.run(folder / "app.py", agent="none", folder=folder)
        assert outcome.code == 1
        assert NO_STREAM in outcome.stderr
        return
    if sys.version_info >= (3, 13):
        pytest.skip("Python 3.13 joins a thread once the system has ended it: nothing to show")
    for _ in range(30):
        outcome = harness.run(folder / "app.py", agent="none", folder=folder)
        if outcome.code != 0:
            break
    assert outcome.code == -6
    assert outcome.stderr == "terminate called without an active exception\n"


# Commands.

PLACES = {"/path/to/sitecustomize_example": str(harness.SITECUSTOMIZE)}
APP = "the answers of app.py"

# Run here, word for word, in the order of the page: with what exit codes, or `APP`.
RUN: dict[str, tuple[int, ...] | str] = {
    "mlx-autobind run -- python app.py": APP,
    "mlx-autobind run app.py": APP,
    "mlx-autobind run -m app": APP,
    "mlx-autobind run --mode shared -- python app.py": APP,
    "MLX_AUTOBIND_MODE=owner mlx-autobind run -- python app.py": APP,
    "mlx-autobind doctor": (0, 1),  # fine, or: start it
    "mlx-autobind run -- python -m mlx_autobind doctor --json": (0,),
    "opentelemetry-instrument python app.py": APP,
    "AUTOWRAPT_BOOTSTRAP=mlx_autobind python app.py": APP,
    "PYTHONPATH=/path/to/sitecustomize_example python app.py": APP,
    "mlx-autobind run --trace trace.jsonl --generations -- python app.py": APP,
    "mlx-autobind traces trace.jsonl | tail -n 3": (0,),
    "mlx-autobind traces trace.jsonl --kind bind --thread 'ThreadPool*' --since 2026-11-30T18:00": (
        0,
    ),
    "mlx-autobind traces trace.jsonl --tree": (0,),
    "mlx-autobind traces trace.jsonl --html trace.html": (0,),
    "mlx-autobind traces trace.jsonl --perfetto trace.perfetto.json": (0,),
    "mlx-autobind run -- python lazy.py 2>&1 | tail -n 2": (0, 1),  # 0: no thread is bound
    "MLX_AUTOBIND_RECORDS=many python -c 'import mlx_autobind, mlx_lm'": (0,),
}

# Run by another test, which says more of it than an exit code.
ELSEWHERE = {
    "python -m pip install '.[demo]' && python -m mlx_autobind demo": "test_cli.py::test_demo",
    "mlx-autobind install-hook": "test_hook.py::test_in_and_out",
    "mlx-autobind status-hook": "test_hook.py::test_in_and_out",
    "mlx-autobind remove-hook": "test_hook.py::test_in_and_out",
    "mlx-autobind run -- uvicorn app:app --workers 4": "test_starts.py::test_start",
    "mlx-autobind run --mode owner -- uvicorn app:app --workers 4": "test_starts.py::test_start",
    "MLX_AUTOBIND_MODULES=my_library.generate": "test_activation.py::test_modules_of_the_users_own",
}

# Run by none.
UNRUN = {
    "python -m pip install '.[test]' && python -m pytest": "it is this suite",
    "python -m pip install .": "would replace what the tests run on; CI installs it so",
    "python -m pip install '.[trace,cli]'": "would replace what the tests run on",
    "python -m pip install 'mlx==0.31.1' 'mlx-lm==0.31.2'": "would replace what the tests run on; "
    "the matrix has this pair (.ci/noxfile.py)",
    "nox -f .ci/noxfile.py -t matrix": "takes an hour or two",
}
if "docs/performance.md" in PAGES:
    UNRUN["python -m tests.benchmarks [--quick] [--into docs/performance.md] [NAME ...]"] = (
        "says which options there are; it measures for ten minutes"
    )

if "docs/reliability.md" in PAGES:
    for each in (
        "python -m tests.soak --into docs/reliability.md threads short-lived stateful races",
        *(
            result["command"]
            for modes in reliability.read(ROOT / "docs" / "reliability.md").values()
            for result in modes.values()
        ),
    ):
        UNRUN[each] = "takes minutes; test_reliability_page.py and test_stateful.py run less of it"


def test_every_command_is_accounted_for() -> None:
    tables = (RUN, ELSEWHERE, UNRUN)
    shown = {command for block in blocks("shell") for command in commands_of(block)}
    known = [command for table in tables for command in table]
    assert shown <= set(known), "neither run nor named"
    assert len(known) == len(set(known))
    assert [command for command in known if command not in shown] == []
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), place


@pytest.fixture(scope="session")
def right(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what app.py prints, its prompts asked one after another on one thread."""
    app = TITLED["app.py"].text
    pool = "with ThreadPoolExecutor(4) as pool:"
    assert pool in app
    text = app.replace(pool, "if True:").replace("pool.map", "map").replace(MODEL, str(checkpoint))
    outcome = harness.run(text, agent="none", folder=tmp_path_factory.mktemp("right"))
    outcome.clean()
    return outcome.stdout


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `command` as a reader types it, stderr with stdout."""
    for place, real in PLACES.items():
        command = command.replace(place, real)
    scripts = str(Path(sys.executable).parent)
    none = dict.fromkeys(("TRACES", "METRICS", "LOGS"), "none")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail\n{command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={
            **harness.environ({f"OTEL_{name}_EXPORTER": value for name, value in none.items()}),
            "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
        },
        timeout=200,
        check=False,
    )


# Differs from machine to machine, from version to version and from run to run.
VARYING = (
    (r"\d+(\.\d+)? (us|ms)\b", r"N \2"),
    (r"Stream\(Device\(\w+, \d+\), \d+\)", "Stream(Device(D, N), N)"),
    (r"Stream\(\w+, \d+\)", "Stream(D, N)"),
    (r"stream \d+ \(\w+\)", "stream N (D)"),
    (r"\b(mlx|mlx-lm|mlx-vlm) \d[\d.]*\d", r"\1 V"),
    (r"\s+", " "),
)


def normalised(text: str) -> str:
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def there_is(command: str, stack: Stack) -> bool:
    """Say whether these versions have what `command` is about."""
    if "--mode shared" in command:
        return stack.binds_on_cpu
    # Nothing is recorded where there is nothing to do.
    return "mlx-autobind traces" not in command or not stack.inert


def shell_pages() -> list[str]:
    shown = [block for block in blocks("shell") if set(commands_of(block)) & RUN.keys()]
    return sorted({block.page for block in shown})


@pytest.mark.parametrize("page", shell_pages())
@pytest.mark.timeout(400)
def test_commands(page: str, folder: Path, right: str, stack: Stack) -> None:
    """The commands of a page, in their order in one folder; a block of text is their output."""
    said = ""
    compared = stack.binds_on_cpu and sys.version_info >= (3, 11)
    for block in blocks_of(page):
        if block.language == "text" and said and compared:
            assert normalised(said) == normalised(block.text), block
        said = ""
        if block.language != "shell":
            continue
        for command in commands_of(block):
            expected = RUN.get(command)
            if expected is None or not there_is(command, stack):
                continue
            done = typed(command, folder)
            said = done.stdout
            if expected == APP:
                assert (done.returncode, said) == (0, right), command
            else:
                assert done.returncode in expected, (command, said)


def the_error(folder: Path) -> str:
    """Return the last line of the program that fails, without the agent."""
    outcome = harness.run(folder / "lazy.py", agent="none", folder=folder)
    return outcome.stderr.splitlines()[-1]


# Blocks of text that do not follow a command, by their first line: what prints the same.
PRINTED: dict[str, Callable[[Path], str]] = {
    "RuntimeError: There is no Stream(gpu, 1) in current thread.": the_error,
}


def lone_texts() -> list[Block]:
    """Return the blocks of text that do not follow a block of commands."""
    found = []
    for page in PAGES:
        before = None
        for block in blocks_of(page):
            if block.language == "text" and (before is None or before.language != "shell"):
                found.append(block)
            before = block
    return found


def test_every_output_is_accounted_for() -> None:
    assert {block.first for block in lone_texts()} == PRINTED.keys()
    for page in PAGES:
        shown = blocks_of(page)
        for before, block in itertools.pairwise(shown):
            if block.language == "text" and before.language == "shell":
                assert commands_of(before)[-1] in RUN, block


@pytest.mark.parametrize("block", lone_texts(), ids=str)
def test_text(block: Block, folder: Path, stack: Stack) -> None:
    if not stack.binds_on_cpu:
        pytest.skip("any thread can use any stream here")
    assert normalised(PRINTED[block.first](folder)) == normalised(block.text)


# Tables, names and generated pages.


def rows_of(page: str) -> Iterator[list[str]]:
    """Yield the cells of each row of each table of `page`."""
    row: list[str] = []
    for token in tokens_of(page):
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(token.content)
        elif token.type == "tr_close":
            yield row
            row = []


def test_the_settings() -> None:
    def shown(value: object) -> str:
        if isinstance(value, bool):
            return "`on`" if value else "`off`"
        return f"`{value}`" if value else "none"

    rows = [row for row in rows_of("docs/settings.md") if row[0].startswith("`MLX_AUTOBIND")]
    found = {name.strip("`"): (values, default) for name, values, default, _text in rows}
    defaults = settings.read({})
    fields = {variable: variable.removeprefix("MLX_AUTOBIND_").lower() for variable in found}
    fields["MLX_AUTOBIND"] = "enabled"
    assert sorted(found) == sorted(mlx_autobind.VARIABLES)
    for variable, (values, default) in found.items():
        assert default == shown(getattr(defaults, fields[variable])), variable
        assert (values == "`on`, `off`") is isinstance(getattr(defaults, fields[variable]), bool)
    assert found["MLX_AUTOBIND_MODE"][0] == ", ".join(f"`{mode}`" for mode in settings.MODES)
    assert found["MLX_AUTOBIND_RECORDS"][0] == f"1 to {settings.MAX_RECORDS}"


@pytest.mark.parametrize("page", PAGES)
def test_no_page_speaks_of_a_setting_that_is_not_there(page: str) -> None:
    named = set(re.findall(r"MLX_AUTOBIND(?:_[A-Z]+)*", PAGES[page].read_text()))
    assert named <= set(mlx_autobind.VARIABLES)


def test_every_public_name_has_its_reference() -> None:
    shown = re.findall(r"^::: mlx_autobind\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(mlx_autobind.__all__)


def test_the_modes_are_told_once_each() -> None:
    rows = [row[0] for row in rows_of("docs/modes.md")][1:]
    assert [row.partition(" ")[0].strip("`") for row in rows] == list(settings.MODES)


@pytest.mark.parametrize("name", scenario_pages.PAGES)
def test_a_page_of_the_matrix(name: str) -> None:
    runs = compatibility.read(DOCS / "compatibility.json")
    assert (DOCS / name).read_text() == scenario_pages.PAGES[name](runs)


def test_every_scenario_is_told_in_plain_words() -> None:
    assert scenario_pages.PLAIN.keys() == compatibility.SCENARIOS.keys()


def test_every_failure_without_the_agent_has_a_symptom() -> None:
    runs = compatibility.read(DOCS / "compatibility.json")
    found = {title for run in runs for title in scenario_pages.failures(run)}
    assert found <= {symptom.title for symptom in scenario_pages.SYMPTOMS}
    assert scenario_pages.symptom_of("no such verdict") is scenario_pages.OTHERWISE


# Pictures.

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = sorted(DOCS.glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture(picture: Path) -> None:
    """Has its text alternative, in itself and on its page, and a dark side; asks nobody."""
    text = picture.read_text()
    root = ET.fromstring(text)  # noqa: S314 - a file of our own
    assert root.findtext(f"{SVG}title")
    alternative = root.findtext(f"{SVG}desc")
    shown = [page for page in PAGES.values() if f"({picture.name})" in page.read_text()]
    assert len(shown) == 1
    assert f"![{alternative}]({picture.name})" in shown[0].read_text()
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


# Links, as a code host shows the pages.


def slug(heading: str) -> str:
    """Return the anchor of a heading, on a code host and in MkDocs."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def headings_of(page: str) -> list[str]:
    tokens = tokens_of(page)
    at = [index for index, token in enumerate(tokens) if token.type == "heading_open"]
    return [slug(tokens[index + 1].content) for index in at]


def links_of(page: str) -> Iterator[str]:
    for token in tokens_of(page):
        for child in token.children or ():
            for name in ("href", "src"):
                if child.attrGet(name) is not None:
                    yield str(child.attrGet(name))


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    for link in links_of(page):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            assert parts.scheme == "https", link
            assert "." in parts.netloc, link
            continue
        assert not link.startswith("/"), link
        target = (PAGES[page].parent / parts.path).resolve() if parts.path else PAGES[page]
        assert target.is_file(), link
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in headings_of(str(target.relative_to(ROOT))), link


# The site.


# What a page loads by itself, by element and attribute.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}


class Built(html.parser.HTMLParser):
    """A built page: its anchors, its links, and what it loads by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        address = given.get(LOADS.get(tag, ""))
        if address and given.get("rel") != "canonical":
            self.loaded.append(address)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built strictly and with no way to the network."""
    for package in ("material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIG, "--site-dir", folder],
        capture_output=True,
        text=True,
        env=harness.environ({"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": ""}),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site(site: Path) -> None:
    """Every link and anchor inside of it is there; nothing is loaded from elsewhere."""
    pages = {path: Built(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) >= len(PAGES) - 1
    anchored = 0
    for path, page in pages.items():
        for address in (*page.links, *page.loaded):
            parts = urllib.parse.urlsplit(address)
            where = f"{path.relative_to(site)}: {address}"
            if parts.scheme or parts.netloc:
                assert address in page.links, f"loaded from elsewhere: {where}"
                assert (parts.scheme, "." in parts.netloc) == ("https", True), where
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
                target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), where
            if parts.fragment and target in pages:
                anchored += 1
                assert urllib.parse.unquote(parts.fragment) in pages[target].anchors, where
    assert anchored > len(pages)


def test_the_reference_is_built_from_the_docstrings(site: Path) -> None:
    page = Built(site / "api.html")
    assert {f"mlx_autobind.{name}" for name in mlx_autobind.__all__} <= page.anchors
    shown = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    shown = " ".join(html.unescape(shown).split())
    for name in mlx_autobind.__all__:
        said = inspect.getdoc(getattr(mlx_autobind, name)) or ""
        assert said.splitlines()[0].replace("`", "") in shown, name


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Say nothing."""


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site; return where."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(scheme: str, width: int, site: Path, address: str) -> None:
    """No page complains, asks anybody else, or is wider than its window."""
    asked: list[str] = []
    complaints: list[str] = []
    wide: dict[str, int] = {}
    with browser.chromium() as chromium:
        page = chromium.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, service_workers="block"
        )
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in sorted(site.rglob("*.html")):
            if path.name == "404.html":
                continue
            name = str(path.relative_to(site))
            page.goto(f"{address}/{name}", wait_until="networkidle")
            found = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
            if found > 0:
                wide[name] = found
            shade = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
            assert shade == {"light": "default", "dark": "slate"}[scheme]
    assert complaints == []
    assert wide == {}
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_the_first_page_is_found_by_the_message(site: Path) -> None:
    """In its title, its first heading, and the search of the site."""
    message = "There is no Stream(gpu, 1) in current thread"
    text = (site / "index.html").read_text()
    for element in ("title", "h1"):
        found = re.search(rf"<{element}\b[^>]*>(.*?)</{element}>", text, re.DOTALL)
        assert found is not None
        assert message in found[1]
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any(message in entry["title"] for entry in index["docs"])
