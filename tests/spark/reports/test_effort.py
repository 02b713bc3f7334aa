from __future__ import annotations

import pytest

from pairbus.spark.reports.effort import JAVA, LARGE, SMALL_MAX, SQL, at_start, is_small


@pytest.mark.parametrize(
    ("size", "small"), [(0, True), (SMALL_MAX, True), (SMALL_MAX + 1, False), (None, False)], ids=str
)
def test_what_is_small_is_asked_without_preparation(size: int | None, small: bool) -> None:
    assert is_small(size) is small
    assert at_start(size) == ({**JAVA, **SQL} if small else LARGE)


def test_a_million_events_are_not_small() -> None:
    assert not is_small(1_000_000 * 150) and is_small(20_000 * 150)
