"""`make docs`: every document is a page, every link leads somewhere, nothing comes from another host, and a build with
warnings is a failure. The environment that Sphinx lives in is made once and stays, as for `make docs` itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FOREIGN = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Page(HTMLParser):
    """What a page asks for (`fetched`), leads to (`links`), can be led to (`ids`), and says in comments."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.comments: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id":
                self.ids.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "href", "srcset", "data", "poster") and tag != "a":
                self.fetched.append(value)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data.strip())


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    environment["NO_COLOR"] = "1"  # where CI is set, Sphinx paints whatever it writes to
    return subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={sys.executable}", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sphinx() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make")
    done = make(".venv/docs/.ready")
    if done.returncode:  # with PAIRBUS_REQUIRE=all a skip is a failure (tests/conftest.py)
        pytest.skip(f".venv/docs can't be made: {done.stderr.strip()[-400:]}")


@pytest.fixture(scope="module")
def site(sphinx: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = make("docs", f"SITE={folder}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def test_every_document_is_a_page_and_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    expected = {(site / document).with_suffix(".html").resolve() for document in DOCUMENTS}
    assert expected - pages.keys() == set()
    assert (site / "index.html").read_text() == (site / "README.html").read_text()
    front = pages[(site / "index.html").resolve()]
    linked = {(site / unquote(urldefrag(link).url)).resolve() for link in front.links if not FOREIGN.match(link)}
    assert expected - linked - {(site / "README.html").resolve()} == set()


def test_a_page_asks_for_nothing_of_another_host(site: Path, pages: dict[Path, Page]) -> None:
    asked = {(path.name, target) for path, page in pages.items() for target in page.fetched}
    assert asked
    assert {each for each in asked if FOREIGN.match(each[1])} == set()
    styles = {path.name: path.read_text() for path in site.rglob("*.css")}
    assert "site.css" in styles
    for name, text in styles.items():
        asked_for = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)
        assert [target for target in asked_for if FOREIGN.match(target)] == [], name


def test_every_link_and_every_file_that_is_asked_for_is_there(pages: dict[Path, Page]) -> None:
    astray = []
    for path, page in pages.items():
        for target in {*page.links, *page.fetched}:
            if FOREIGN.match(target) or re.match(r"(?:mailto|data):", target):
                continue
            address, anchor = urldefrag(target)
            file = (path.parent / unquote(address.partition("?")[0])).resolve() if address else path
            if not file.is_file() or (anchor and file in pages and unquote(anchor) not in pages[file].ids):
                astray.append(f"{path.name}: {target}")
    assert astray == []


def test_the_marks_of_the_tests_are_not_in_the_pages(site: Path, pages: dict[Path, Page]) -> None:
    marks = re.compile(r"run\b|output|not run|tested by|goes on|file:|figures|diagram|/?table|printed from")
    found = {(path.name, said) for path, page in pages.items() for said in page.comments if marks.match(said)}
    assert found == set()
    assert [path.name for path in pages if "&lt;!--" in path.read_text()] == []


def test_the_search_needs_no_server(site: Path) -> None:
    """An index that is a script, not something to fetch: browsers let pages from the file system run the one only."""
    assert (site / "searchindex.js").read_text().startswith("Search.setIndex(")
    assert "searchindex.js" in Page(site / "search.html").fetched


def test_what_is_wrong_in_the_documents_stops_the_build(sphinx: None, tmp_path: Path) -> None:
    for name in [*DOCUMENTS, "Makefile", "requirements-docs.txt", "docs/conf.py", "docs/site.css"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "images", tmp_path / "docs" / "images")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "docs").symlink_to(ROOT / ".venv" / "docs")
    (tmp_path / "docs" / "unlisted.md").write_text("# Unlisted\n\n[a](gone.md) [b](compatibility.md#gone)\n")
    done = make("docs", cwd=tmp_path)
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    for each in ("gone.md", "'gone'", "isn't included in any toctree"):
        assert [line for line in warnings if each in line], done.stderr
    assert {line.partition(":")[0] for line in warnings} == {str(tmp_path / "docs" / "unlisted.md")}
