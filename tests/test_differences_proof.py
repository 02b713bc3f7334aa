"""docs/explanation/differences.md has a row for each decision that departs from the description, and the way back in it
is one that there is."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.pairing.options import Settings

TEXT = (Path(__file__).parent.parent / "docs" / "explanation" / "differences.md").read_text()
OPTIONS = set(Settings.__dataclass_fields__)


def test_each_departure_has_one_row_with_every_cell_filled() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:2] == "| "]
    assert len({row[0] for row in rows}) == len(rows) > 45
    assert [row for row in rows if not all(row)] == []


def test_each_misprint_is_named() -> None:
    part = TEXT.partition("## Misprints")[2].partition("## ")[0]
    for printed, meant in (
        ("`x-ms-path`", "`x-ms-scheduledenqueuetimeutc`"),
        ("`[0, N]`", "`[0, N)`"),
        ("28,880", "28,800"),
    ):
        assert any(f"| {printed}" in line and meant in line for line in part.splitlines()), printed


def test_p10_says_whose_extra_and_changed_queues_are() -> None:
    part = TEXT.partition("## Backlog queues of your own making")[2].partition("\n## ")[0]
    assert "The owner\n  cleans them up" in part and "test such queues well" in part


def test_the_way_back_is_one_that_there_is() -> None:
    named = set(re.findall(r"`([a-z_]+)=", TEXT))
    assert named and named <= OPTIONS | {"timeout"}
