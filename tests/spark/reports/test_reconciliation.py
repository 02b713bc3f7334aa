"""What is said of differences; that each is found is in test_cost_report.py, which has the JVM for it."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.spark.reports import reconciliation
from pairbus.spark.reports.reconciliation import REASONS

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "costs.md"


def test_every_reason_that_is_given_is_explained() -> None:
    given = set(re.findall(r"'([a-z]+(?:-[a-z]+)*)'", reconciliation._REASONED)) & set(REASONS)
    assert given == set(REASONS)
    assert all("\n" not in words and not words.endswith(".") for words in REASONS.values())


def test_p51_the_document_has_every_reason() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == REASONS
