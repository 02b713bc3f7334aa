"""The documentation site, as `make docs` builds it: the Markdown files as they stand in the repository, README first.

No page is written for the site alone, and none is copied: Sphinx reads the repository's own folder, so that a link
which works on a Git host works here. docs/README.md is the navigation: its headings and the links under them. A page
that it leaves out is a warning, and so is a link that leads nowhere; `make docs` takes warnings for errors. Why Sphinx:
docs/decisions/0005-documentation-site.md.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parent.parent
INDEX = "docs/README"
LOG = logging.getLogger(__name__)

project = "pairbus"
html_title = "pairbus"
author = "the pairbus authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "README"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [
    ".*",
    "artifacts",
    "benchmarks",
    "build",
    "dist",
    "examples",
    "node_modules",
    "site",
    "src",
    "tests",
]
nitpicky = True
myst_heading_anchors = 4  # slugs as GitHub makes them

html_theme = "furo"  # light and dark, the system's fonts, nothing fetched from elsewhere
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_show_search_summary = False  # it would be fetched, which browsers refuse to pages from the file system
html_theme_options = {"navigation_with_keys": True}

_SECTION = re.compile(r"^## +(?P<title>.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\((?P<path>[^)\s#:]+)\.md\)")
_COMMENT = re.compile(r"\s*(?:<!--(?:(?!-->).)*-->\s*)+", re.DOTALL)
_ARROW = re.compile(r"^ *(?P<source>\S+) --> (?P<target>\w+)(?:: (?P<why>.*))?$")


def navigation(index: str) -> list[tuple[str, list[str]]]:
    """(section, its pages) of docs/README.md, in its order."""
    _, *parts = _SECTION.split(index)
    found = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        paths = [(ROOT / INDEX).parent / match["path"] for match in _PAGE.finditer(text)]
        pages = [path.resolve().relative_to(ROOT.resolve()).as_posix() for path in paths]
        found.append((title, list(dict.fromkeys(pages))))
    return found


def put_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """What the side bar shows hangs on the front page, unseen there."""
    if docname != root_doc:
        return
    sections = [("", [INDEX]), *navigation((ROOT / f"{INDEX}.md").read_text())]
    for title, pages in sections:
        caption = f":caption: {title}\n" if title else ""
        source[0] += "\n\n```{toctree}\n:hidden:\n" + caption + "\n" + "\n".join(pages) + "\n```\n"


def take_marks_out(app: Sphinx, doctree: nodes.document) -> None:
    """Comments say how a block is tested, or where a program writes: nothing for readers, nor for the search."""
    for each in list(doctree.findall(nodes.raw)):
        if _COMMENT.fullmatch(each.astext()):
            each.parent.remove(each)


def draw_states(app: Sphinx, doctree: nodes.document) -> None:
    """A Mermaid drawing would need a script from elsewhere: its arrows become a table."""
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") == "mermaid":
            block.replace_self(_arrows(block))


def _arrows(block: nodes.literal_block) -> nodes.table:
    head, *lines = block.astext().splitlines()
    rows = [["from", "to", "when"]]
    for line in lines:
        arrow = _ARROW.match(line)
        if head != "stateDiagram-v2" or arrow is None:
            LOG.warning("the site shows the arrows of a stateDiagram-v2 only, not: %s", line, location=block)
            continue
        source = "at the start" if arrow["source"] == "[*]" else _state(arrow["source"])
        rows.append([source, _state(arrow["target"]), (arrow["why"] or "").replace("<br>", "; ")])
    group = nodes.tgroup(cols=3)
    group += [nodes.colspec(colwidth=width) for width in (20, 20, 60)]
    made = [nodes.row("", *(nodes.entry("", nodes.paragraph(text=cell)) for cell in row)) for row in rows]
    group += [nodes.thead("", made[0]), nodes.tbody("", *made[1:])]
    return nodes.table("", group)


def _state(name: str) -> str:
    return name.replace("_", " ").lower()


def put_front_page(app: Sphinx, failure: Exception | None) -> None:
    """What is opened first has its usual name; links lead to README.html, which is the same page."""
    if failure is None:
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_navigation)
    app.connect("doctree-read", take_marks_out)
    app.connect("doctree-read", draw_states)
    app.connect("build-finished", put_front_page)
