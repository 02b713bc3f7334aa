from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pairbus.drill.findings import Figure
from pairbus.drill.page import page
from tests.drill.sample import ENTITIES, findings

VOID = {"meta", "link", "br"}


class Reader(HTMLParser):
    """Finds figures, and tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.figures: dict[str, str] = {}
        self.ids: list[str] = []
        self._figure: str | None = None
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attributes)
        self.ids += [known["id"]] if known.get("id") else []
        self._figure = known.get("data-figure")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self._figure is not None:
            self.figures[self._figure] = data
            self._figure = None


def test_it_is_one_file_without_scripts() -> None:
    text = page(findings())
    reader = Reader(text)
    assert reader.open == []
    assert not {"script", "img", "iframe", "object"} & set(reader.tags)
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", text) == ["data:,"]
    assert "@import" not in text and "http:" not in text and "https:" not in text


def test_ids_are_unique() -> None:
    ids = Reader(page(findings())).ids
    assert len(ids) == len(set(ids))


def test_the_verdict_is_on_top() -> None:
    body = page(findings()).partition("<body>")[2]
    assert body.index("PASSED: 2,400 messages, lost 0") < body.index("<svg")


@pytest.mark.parametrize(("lost", "is_bad"), [(0, False), (3, True)])
def test_what_was_lost_is_seen(lost: int, is_bad: bool) -> None:
    text = page(findings(lost=lost))
    assert ('<div class="verdict bad"' in text) is is_bad
    assert ('<tr class="bad"><td class="word">lost' in text) is is_bad


def test_the_audit_s_figures_have_their_names_and_unknown_is_not_nothing() -> None:
    assert Reader(page(findings())).figures == {"sent": "2,400", "lost": "0", "unknown": "unknown"}


def test_every_entity_is_there_and_every_chart_has_its_table() -> None:
    text = page(findings())
    for entity in ENTITIES:
        assert entity in text
    assert text.count('<svg class="chart"') == 5
    assert text.count("The same as a table") == 5


def test_nothing_that_was_found_is_taken_for_markup() -> None:
    strange = '<b onclick="x">&amp;'
    found = replace(
        findings(),
        headline=strange,
        remarks=[strange],
        timeline=[strange],
        audit=[Figure("lost", strange, 0, strange)],
        states={strange: []},
    )
    text = page(found)
    assert "<b onclick" not in text
    assert Reader(text).open == []
