from __future__ import annotations

from math import inf

import pytest

from pairbus.spark.reports.coverage import CUT_S, Watch, coverage, last_snapshot_since, merged

ENDED = Watch(0.0, 100.0, True)


@pytest.mark.parametrize(
    ("watches", "t", "reason"),
    [
        ([ENDED], 50.0, None),
        ([ENDED], 100.0, None),
        ([ENDED], 101.0, "ended"),
        ([Watch(60.0, 100.0, True)], 50.0, "later"),
        # cut: what was sent before may have ended in the lines that are missing
        ([Watch(0.0, 40.0, False)], 30.0, "cut"),
        ([Watch(0.0, 40.0, False)], 40.0 + CUT_S, "cut"),
        ([Watch(0.0, 40.0, False), Watch(45.0, 100.0, True)], 30.0, "cut"),
        ([Watch(0.0, 40.0, False), Watch(45.0, 100.0, True)], 50.0, None),
        # asked what is left, it has told of all that was sent before
        ([Watch(0.0, 40.0, False, asked=35.0)], 35.0, None),
        ([Watch(0.0, 40.0, False, asked=35.0)], 36.0, "cut"),
        ([Watch(0.0, 40.0, False), Watch(45.0, 90.0, False, asked=80.0)], 30.0, "cut"),
        ([Watch(0.0, 40.0, False), Watch(45.0, 90.0, False, asked=80.0)], 60.0, None),
        # what was left by a look and isn't by a later one may have gone in the lines that are missing
        ([Watch(0.0, 40.0, False, asked=35.0), Watch(45.0, 90.0, False, asked=80.0)], 30.0, "cut"),
        ([Watch(0.0, 100.0, True, gap=50.0)], 50.0, "cut"),
        ([Watch(0.0, 100.0, True, gap=50.0)], 51.0, None),
        # a spoilt line in the middle of a file: nobody knows which
        ([Watch(0.0, 100.0, True, bad_lines=1)], 50.0, "cut"),
        ([], 50.0, "later"),
    ],
)
def test_what_can_t_be_told_of_a_message(watches: list[Watch], t: float, reason: str | None) -> None:
    """As the SQL of `audit_rules` decides it."""
    found = coverage(watches)
    is_blind = any(after < t <= until for after, until in found.blind)
    assert reason == ("later" if t < found.since else "cut" if is_blind else "ended" if t > found.until else None)


@pytest.mark.parametrize(
    ("missing", "blind"),
    [
        ((100.0, 140.0), (-inf, 140.0)),
        # as soon as another file begins: one broker at a time writes them
        ((100.0, inf), (-inf, 140.0)),
        ((-inf, 0.0), (-inf, 0.0)),
        ((200.0, inf), (-inf, inf)),
    ],
)
def test_a_missing_file_blinds_for_all_that_was_sent_before_its_end(
    missing: tuple[float, float], blind: tuple[float, float]
) -> None:
    assert coverage([ENDED, Watch(140.0, 200.0, True)], [missing]).blind == (blind,)


def test_spells_are_merged() -> None:
    assert merged([(5.0, 9.0), (-inf, 3.0), (2.0, 4.0), (9.0, 10.0), (20.0, 20.0)]) == ((-inf, 4.0), (5.0, 10.0))


@pytest.mark.parametrize(
    ("completed", "closed", "since"),
    [
        ([], [], -inf),
        ([10.0], [], -inf),
        ([10.0, 20.0], [], 10.0),
        ([30.0, 10.0, 20.0], [], 20.0),
        # a clean end comes right after its snapshot, and is none of its own
        ([10.0, 20.0], [20.1], 10.0),
        ([], [10.0, 20.0], 10.0),
    ],
)
def test_only_the_last_snapshot_counts(completed: list[float], closed: list[float], since: float) -> None:
    assert last_snapshot_since(completed, closed) == since
