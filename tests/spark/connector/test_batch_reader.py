from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from pairbus.spark.connector.batch_reader import SLICE_MESSAGES, SLICES_MAX, Wanted, plan
from pairbus.wire.partitions import Range, number_of


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 10**7), st.integers(0, 10**7)), max_size=16))
def test_slices_cover_the_ranges_without_overlap(drawn: list[tuple[int, int, int]]) -> None:
    ranges = [Range(number_of(p, first), number_of(p, first) + span) for p, first, span in sorted(drawn)]
    slices = plan("a", ranges)
    parts = [part for each in slices for part in each.ranges]
    for inside in ranges:
        own = [part for part in parts if inside.first <= part.first and part.last <= inside.last]
        assert sum(part.span for part in own) >= inside.span
    assert sum(part.span for part in parts) == sum(inside.span for inside in ranges)
    assert len(slices) <= SLICES_MAX * max(1, len(ranges))
    assert all(len(each.ranges) == 1 or sum(part.span for part in each.ranges) <= SLICE_MESSAGES for each in slices)


def test_small_partitions_share_a_slice_and_large_ones_are_cut() -> None:
    small = [Range(number_of(p, 1), number_of(p, 600)) for p in range(16)]
    assert [len(each.ranges) for each in plan("a", small)] == [16]
    large = [Range(number_of(p, 1), number_of(p, 25_000)) for p in range(2)]
    assert [each.ranges[0].span for each in plan("a", large)] == [8334, 8333, 8333] * 2
    assert plan("a", []) == []


@given(st.lists(st.integers(1, 10**6), max_size=4), st.integers(2, SLICES_MAX))
def test_there_are_as_many_slices_as_are_asked_for(spans: list[int], slices_min: int) -> None:
    ranges = [Range(number_of(p, 1), number_of(p, span)) for p, span in enumerate(spans)]
    assert len(plan("a", ranges, slices_min)) >= min(slices_min, sum(spans))


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("conditions", "handled", "first", "last"),
    [
        ([EqualTo(("sequence_number",), 7)], [True], 7, 7),
        ([GreaterThan(("sequence_number",), 7), LessThanOrEqual(("sequence_number",), 9)], [True, True], 8, 9),
        ([GreaterThanOrEqual(("sequence_number",), 7), LessThan(("sequence_number",), 9)], [True, True], 7, 8),
        ([In(("sequence_number",), (5, 3))], [True], 3, 5),
        ([EqualTo(("sequence_number",), "7")], [False], 1, 2**63 - 1),
        ([GreaterThan(("message_id",), "a")], [False], 1, 2**63 - 1),
        ([StringContains(("sequence_number",), "7")], [False], 1, 2**63 - 1),
        ([GreaterThan(("enqueued_time",), NOON)], [False], 1, 2**63 - 1),  # narrowed, and checked again by Spark
    ],
)  # fmt: skip
def test_filters_on_the_sequence_number_are_taken(
    conditions: list[object], handled: list[bool], first: int, last: int
) -> None:
    wanted = Wanted()
    assert [wanted.take(condition) for condition in conditions] == handled  # type: ignore[arg-type]
    assert (wanted.first, wanted.last) == (first, last)


def test_filters_on_time_and_lists_leave_rows_out() -> None:
    wanted = Wanted()
    wanted.take(GreaterThan(("enqueued_time",), NOON))
    wanted.take(In(("sequence_number",), (1, 2)))
    assert wanted.wants({"sequence_number": 1, "enqueued_time": NOON + dt.timedelta(seconds=1)})
    assert not wanted.wants({"sequence_number": 1, "enqueued_time": NOON - dt.timedelta(seconds=1)})
    assert not wanted.wants({"sequence_number": 3, "enqueued_time": NOON})
