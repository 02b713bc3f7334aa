from __future__ import annotations

import pytest

from pairbus.spark.reports.outages import Outage, merged_outages, primary_availability, share


def test_what_overlaps_is_one_outage() -> None:
    found = merged_outages(
        [Outage(10.0, 20.0, 12.0, 18.0), Outage(19.0, 25.0, 19.5, 19.5), Outage(40.0, 41.0, None, 40.5)], 100.0
    )
    assert [(each["start"], each["end"], each["clients"], each["failed_over"]) for each in found] == [
        (10.0, 25.0, 2, True), (40.0, 41.0, 1, False),
    ]  # fmt: skip
    assert (found[0]["time_to_fail_over_s"], found[0]["time_to_return_s"]) == (2.0, 5.5)
    assert (found[1]["time_to_fail_over_s"], found[1]["time_to_return_s"]) == (None, 0.5)


def test_one_that_is_not_over_lasts_until_now() -> None:
    (found,) = merged_outages([Outage(10.0, None, 12.0, 30.0), Outage(50.0, 60.0, 50.0, None)], 100.0)
    assert (found["end"], found["seconds"], found["open"], found["clients"]) == (None, 90.0, True, 2)
    assert found["time_to_return_s"] == 10.0


def test_forced_failover_has_no_failure_before_it() -> None:
    assert Outage(10.0, 20.0, 10.0, None).time_to_return_s == 10.0


@pytest.mark.parametrize(("part", "whole", "per_cent"), [(0, 0, None), (0, 5, 0.0), (5, 5, 100.0), (1, 4, 25.0)])
def test_a_share_of_nothing_is_unknown(part: int, whole: int, per_cent: float | None) -> None:
    assert share(part, whole) == per_cent


def test_the_primary_s_share_of_the_time() -> None:
    outages = merged_outages([Outage(10.0, 20.0, 12.0, 18.0)], 100.0)
    assert primary_availability(outages, 0.0, 100.0) == 90.0
    assert primary_availability([], 0.0, 100.0) == 100.0
    assert primary_availability([], 5.0, 5.0) is primary_availability([], None, None) is None
