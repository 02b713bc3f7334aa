from __future__ import annotations

import bisect
import datetime as dt
import itertools

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

from pairbus.spark.connector.batch_reader import SLICES_MAX, Range, Wanted, find_range, plan

SEQUENCES = st.lists(st.integers(1, 10**6) | st.integers(1, 60), max_size=40).map(lambda n: sorted(set(n)))


class Asked:
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.questions = 0

    def __call__(self, number: int) -> int | None:
        self.questions += 1
        at = bisect.bisect_left(self.numbers, number)
        return self.numbers[at] if at < len(self.numbers) else None


@given(SEQUENCES, st.integers(1, 70), st.integers(1, 10**6))
def test_the_range_found_is_the_range_there_is(numbers: list[int], first: int, last: int) -> None:
    inside = [number for number in numbers if first <= number <= last]
    asked = Asked(numbers)
    found = find_range(asked, first, last)
    assert found == (Range(inside[0], inside[-1]) if inside else None)


def test_a_million_messages_cost_some_sixty_questions() -> None:
    class Million(Asked):
        def __call__(self, number: int) -> int | None:
            self.questions += 1
            return max(number, 1) if number <= 1_000_000 else None

    asked = Million([])
    assert find_range(asked, 1, 2**63 - 1) == Range(1, 1_000_000)
    assert asked.questions < 130


@given(st.integers(1, 10**9), st.integers(0, 10**7))
def test_slices_cover_the_range_without_overlap(first: int, span: int) -> None:
    slices = plan(first, first + span)
    assert slices[0].first == first and slices[-1].last == first + span
    assert all(a.last + 1 == b.first for a, b in itertools.pairwise(slices))
    assert 1 <= len(slices) <= SLICES_MAX


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
