"""The documents are true: every block is run or says why not, the help shown is the help, links lead somewhere."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click
import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import serve_sync
from pairbus.broker.control.faults import KINDS
from tests.cli_page import PAGE, page
from tests.document_blocks import Block, commands, find, shown, shows, typed_at_the_end
from tests.typed_commands import calls, check

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SERVING_S_MAX = 60
BLOCK_S_MAX = {False: 100, True: 280}  # by whether it is slow

#: What a Python block of the stage `pair` finds ready: on Azure none of these two options would be needed.
PRELUDE = """
import functools, os
import pairbus, pairbus.aio
PRIMARY, SECONDARY, CA_FILE = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"], "ca.pem"
for _client in (pairbus.ServiceBusClient, pairbus.aio.ServiceBusClient):
    _client.paired = functools.partial(_client.paired, primary_name="contoso", ca_file=CA_FILE)
"""


def blocks(document: str) -> list[Block]:
    return find(document, (ROOT / document).read_text())


def runs(document: str) -> list[Block]:
    try:
        return [block for block in blocks(document) if block.verb == "run"]
    except ValueError:
        return []  # the next test says it


def problem(block: Block) -> str:
    """What is wrong with a block that no test runs, or nothing."""
    if block.verb == "tested by":
        file, _, name = block.rest.partition("::")
        if not (ROOT / file).is_file():
            return f"there is no {file}"
        if not re.search(rf"def {re.escape(name.rpartition('::')[2])}\(", (ROOT / file).read_text()):
            return f"{file} has no {name}"
    try:
        if block.verb == "data" and block.language in ("json", "toml"):
            {"json": json.loads, "toml": tomllib.loads}[block.language](block.text)
    except ValueError as error:
        return str(error)
    return ""


def test_every_block_is_run_or_says_why_not() -> None:
    found = [block for document in DOCUMENTS for block in blocks(document)]
    assert [f"{block}: {said}" for block in found if (said := problem(block))] == []


def test_every_command_that_is_shown_could_be_typed() -> None:
    """Also in the blocks that are not run: a renamed option is found wherever it stands."""
    wrong = []
    for document in DOCUMENTS:
        typed = [block.text for block in blocks(document) if block.language in ("console", "sh")]
        typed += re.findall(r"`(pairbus [a-z][^`]*)`", prose(document))
        for words in (words for text in typed for words in calls(text)):
            try:
                check(words)
            except click.UsageError as error:
                wrong.append(f"{document}: pairbus {' '.join(words)}: {error.format_message()}")
    assert wrong == []


def test_the_tests_that_prove_what_a_fault_costs_are_there() -> None:
    named = set(re.findall(r"\| `(test_\w+)` \|", (ROOT / "docs/how-to/run-on-a-cluster.md").read_text()))
    there = {
        name
        for file in (ROOT / "tests/spark").glob("test_*_proof.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert len(named) > 10 and named <= there


class Serving:
    """A command that goes on, as in a terminal of its own: what it prints is kept, Ctrl-C reaches all of it."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._printed = ""
        self._ended = False
        self._told = 0  # how much of it the document has shown
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._printed += line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def ready(self) -> None:
        """Waits for its first line."""
        with self._changed:
            self._changed.wait_for(lambda: self._printed or self._ended, SERVING_S_MAX)
            assert self._printed, f"{self._command} said nothing"

    def until(self, expected: str, block: Block) -> None:
        """Waits until that is what it printed next."""

        def end() -> int | None:
            return shown(expected, self._printed[self._told :])

        with self._changed:
            self._changed.wait_for(lambda: end() is not None or self._ended, SERVING_S_MAX)
            told = end()
            assert told is not None, f"{block}: {self._command}\nprinted\n{self._printed[self._told :]}"
            self._told += told

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(30)

    def end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has ended by itself
        try:
            self._process.wait(30)
            self._reader.join(30)
        finally:
            if self._reader.is_alive():
                os.killpg(self._process.pid, signal.SIGKILL)
                self._reader.join()
            self._process.wait()
            self._process.communicate()


class Stage:
    """A folder of its own for one document, whose blocks are run in it one after the other."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self._stack = stack
        self._paired = False
        self._program = ""
        self._serving: Serving | None = None
        (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)

    def begin(self, block: Block) -> None:
        if "pair" in block.words and not self._paired:
            self._pair()
        if block.language == "python":
            before = self._program if "continues" in block.words else PRELUDE if self._paired else ""
            self._program = before + block.text

    def run(self, block: Block) -> str:
        """What it printed."""
        self.begin(block)
        if block.language == "python":
            return self._python(block)
        if block.language == "sh":
            typed = [(block.text, "")]
        else:
            typed = commands(block.text)
        printed = ""
        for number, (command, expected) in enumerate(typed, 1):
            if "serves" in block.words:
                self._serve(command)
                continue
            printed = self._shell(block, command, block.exit_code if number == len(typed) else 0)
            assert shows(expected, printed) or not expected, f"{block}: {command}\nprinted\n{printed}"
        return printed

    def _pair(self) -> None:
        data = self.folder / "data"
        broker = self._stack.enter_context(serve_sync("contoso", "backup", data=data))
        contoso, backup = broker.namespaces["contoso"], broker.namespaces["backup"]
        for served, file, variable in (
            (contoso, "primary", "PAIRBUS_PRIMARY"),
            (backup, "secondary", "PAIRBUS_SECONDARY"),
        ):
            (self.folder / file).write_text(served.connection_string)
            self.environment[variable] = served.connection_string
        (self.folder / "ca.pem").write_text(Path(contoso.ca_file).read_text())
        self.environment["REQUESTS_CA_BUNDLE"] = str(contoso.ca_file)  # what the SDK's administration client goes by
        with ServiceBusAdministrationClient.from_connection_string(
            contoso.connection_string, connection_verify=contoso.ca_file
        ) as admin:
            for name in ("orders", "news"):
                admin.create_queue(name)
        self._paired = True

    def _python(self, block: Block) -> str:
        file = self.folder / ("test_document.py" if "pytest" in block.words else "program.py")
        file.write_text(self._program)
        how = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "pytest" in block.words else ["-W", "error"]
        return self._done(block, [sys.executable, *how, file.name], block.exit_code)

    def _shell(self, block: Block, text: str, code: int) -> str:
        return self._done(block, ["bash", "-euc", text], code)

    def _done(self, block: Block, command: list[str], code: int) -> str:
        limit_s = BLOCK_S_MAX["slow" in block.words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
        assert done.returncode == code, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, command: str) -> None:
        self._serving = Serving(command, self.folder, self.environment)
        self._stack.callback(self._serving.end)
        self._serving.ready()

    def goes_on(self, block: Block) -> None:
        assert self._serving is not None
        expected, interrupted = typed_at_the_end(block.text)
        self._serving.until(expected, block)
        if interrupted:
            self._serving.interrupt()


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(folder, stack)


def play(document: str, folder: Path, *, slow: bool) -> None:
    """Runs the document's blocks in order; without `slow`, those that are quick."""
    printed: str | None = None
    found = blocks(document)
    with stage(folder) as made:
        for number, block in enumerate(found, 1):
            following = next((each for each in found[number:] if each.verb in ("run", "output")), None)
            if "slow" in block.words and not slow:
                printed = None  # the output that follows is its own
            elif block.verb == "run" and following is not None and "continues" in following.words:
                made.begin(block)  # it is run with the one that goes on from it
            elif block.verb == "run":
                printed = made.run(block)
            elif block.verb == "file":
                (folder / block.rest).write_text(block.text)
            elif block.verb == "goes on":
                made.goes_on(block)
            elif block.verb == "output" and printed is not None:
                assert shows(block.text, printed), f"{block}: it printed\n{printed}"
            else:
                printed = None


PLAYED = [name for name in DOCUMENTS if any("slow" not in block.words for block in runs(name))]


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The documents whose tests were selected; three at once, since their programs wait most of their time."""
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(3) as pool:
        yield {
            document: pool.submit(play, document, tmp_path_factory.mktemp("document"), slow=False)
            for document in PLAYED
            if {"played": document} in asked
        }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("played", PLAYED)
def test_the_blocks_do_what_the_document_says(plays: dict[str, Future[None]], played: str) -> None:
    plays[played].result()


#: What happens to the message of README's first lines when the primary is away.
OUTAGE = """
    from pairbus.testing import fault
    with client.get_queue_sender("orders") as sender, fault("data", "unreachable", namespace="contoso"):
        sender.send_messages(ServiceBusMessage("one book"))
        print(client.state("orders").value)
    with client.get_queue_receiver("orders") as receiver:
        print([str(each) for each in receiver.receive_messages(max_wait_time=60)])
"""


@pytest.mark.timeout(150)
def test_the_first_lines_of_the_readme_carry_a_message_through_an_outage(tmp_path: Path) -> None:
    """With the very options that stand there: the send succeeds, and the message comes home."""
    first = next(block for block in blocks("README.md") if block.language == "python")
    head, opening, _ = first.text.partition("as client:\n")
    program = replace(first, text=head + opening + OUTAGE)
    with stage(tmp_path) as made:
        assert made.run(program) == "failed over\n['one book']\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_slow_blocks_do_what_the_documents_say(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        if any("slow" in block.words for block in runs(document)):
            folder = tmp_path / document.replace("/", "-")
            folder.mkdir()
            play(document, folder, slow=True)


def test_the_command_line_s_page_shows_the_help_as_it_is() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), "python -m tests.cli_page writes it"


def test_the_prose_of_the_command_line_s_page_survives_its_writing() -> None:
    written = page(PAGE.read_text())
    assert page(written.replace("Usage: pairbus syphon", "Usage: pairbus old", 1)) == written
    assert page(written + "\n## pairbus gone\n\nprose\n") == written


def test_every_kind_of_fault_is_told() -> None:
    for document in ("docs/how-to/test-your-code.md", "docs/reference/cli.md"):
        text = (ROOT / document).read_text()
        assert [kind for kind in KINDS if kind not in text] == []


def prose(document: str) -> str:
    """The document without its blocks, where brackets may mean anything."""
    return re.sub(r"^ *```.*?^ *```$", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(path: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, dashes for spaces; -1, -2 for the same again."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(path.relative_to(ROOT).as_posix()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (made := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(made)
    return found


def leads_somewhere(document: str, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = ((ROOT / document).parent / name).resolve() if name else ROOT / document
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


def test_links_and_images_lead_somewhere() -> None:
    link = re.compile(r"(?:\]\(|(?:src|href|srcset)=\")(?![a-z]+:)([^)\s\"]+)")
    found = [(document, target) for document in DOCUMENTS for target in link.findall(prose(document))]
    assert len(found) > 100
    assert [each for each in found if not leads_somewhere(*each)] == []


#: `docs/reference/protocol.md#one, #another`, also where a comment goes on in its next line
PROTOCOL_REFERENCE = re.compile(r"protocol\.md(?P<anchors>#[\w-]+(?:,\s+(?:#:? )?#[\w-]+)*)")


def test_references_of_the_code_to_the_protocol_lead_somewhere() -> None:
    there = anchors(ROOT / "docs" / "reference" / "protocol.md")
    named: dict[str, str] = {}
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for reference in PROTOCOL_REFERENCE.finditer(path.read_text() if path != Path(__file__) else ""):
            named |= dict.fromkeys(re.findall(r"#([\w-]+)", reference["anchors"]), str(path))
    assert len(named) > 20
    assert {anchor: path for anchor, path in named.items() if anchor not in there} == {}


def test_nothing_points_out_of_the_repository() -> None:
    outside = re.compile(r"\bdialect\b|_dialect_\d|\.\./shared", re.IGNORECASE)
    pages = [ROOT / document for document in DOCUMENTS]
    sources = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path in (*pages, *sources) if path != Path(__file__)
             for match in outside.finditer(path.read_text())]  # fmt: skip
    assert found == []


def test_files_of_the_repository_that_are_named_exist() -> None:
    places = (ROOT / "src" / "pairbus", ROOT, ROOT / "docs")
    named = {
        document: re.findall(r"`((?:\w+/)+\w+\.(?:py|md|toml))`", prose(document))
        for document in DOCUMENTS
        if document != "CHANGELOG.md"
    }
    gone = [(document, name) for document, names in named.items() for name in names
            if not any((place / name).is_file() for place in places)]  # fmt: skip
    assert gone == []
    assert len(named["CONTRIBUTING.md"]) > 30


def test_users_pages_name_no_requirement_by_its_number() -> None:
    """Those stand in behaviour.md, which has their words, and in the names of tests."""
    pages = ["README.md", *(each for each in DOCUMENTS if each.startswith("docs/") and each != "docs/behaviour.md")]
    assert {page: found for page in pages if (found := re.findall(r"\bP\d{1,2}\b", prose(page)))} == {}


def test_p20_the_page_on_order_and_duplicates_says_what_is_not_promised() -> None:
    page = (ROOT / "docs" / "explanation" / "order-and-duplicates.md").read_text()
    wanted = ("requires_duplicate_detection", "## Order", "Within a session", "Session state lives on the primary only",
              "## Receiving", "can't be switched on later", "ten minutes")  # fmt: skip
    assert [said for said in wanted if said not in page] == []


def test_nothing_is_left_to_be_filled_in() -> None:
    assert [document for document in DOCUMENTS if re.search(r"@@[A-Z]+@@", (ROOT / document).read_text())] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)\s#]+)", index.read_text())}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path != index}
    assert pages - listed == set()


def test_every_image_is_shown_somewhere() -> None:
    shown = "".join((ROOT / document).read_text() for document in DOCUMENTS)
    images = [path.name for path in (ROOT / "docs").rglob("*") if path.suffix in {".png", ".svg", ".jpg", ".gif"}]
    assert [name for name in images if name not in shown] == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.compile(r"(?:`|^)make ([a-z-]+)", re.MULTILINE)
    said = {document: set(named.findall((ROOT / document).read_text())) for document in DOCUMENTS}
    assert {document: unknown for document, names in said.items() if (unknown := names - targets)} == {}
