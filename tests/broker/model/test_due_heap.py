from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.model.due_heap import DueHeap
from pairbus.broker.model.message import Message


def message(number: int, at: float) -> Message:
    return Message(number, at, b"@@@@", 0, 0, b"", 0)


def timetable() -> DueHeap:
    return DueHeap(lambda each: each.enqueued_at)


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0]), max_size=12), st.lists(st.integers(0, 9), max_size=4))
def test_who_is_due_is_due_once_and_in_order(times: list[float], moments: list[int]) -> None:
    table = timetable()
    for number, time in enumerate(times):
        table.add(message(number, time))
    assert table.next == table.deadline() == min(times, default=inf)
    left = times
    for now in sorted(moments):
        due = table.take_due(now, 100)
        assert [each.enqueued_at for each in due] == sorted(time for time in left if time <= now)
        left = [time for time in left if time > now]
        assert table.next == min(left, default=inf)
        assert table.asked == now


def test_as_many_as_are_wanted() -> None:
    table = timetable()
    for number in range(5):
        table.add(message(number, 1.0))
    assert [each.sequence_number for each in table.take_due(2.0, 3)] == [0, 1, 2]
    assert table.next == 1.0
    assert [each.sequence_number for each in table.take_due(2.0, 3)] == [3, 4]


def test_what_left_is_not_due() -> None:
    table = timetable()
    gone, stays = message(1, 1.0), message(2, 2.0)
    table.add(gone)
    table.add(stays)
    gone.enqueued_at = inf
    assert table.next == 1.0  # no earlier than that
    assert table.deadline() == 2.0
    assert table.take_due(5.0, 10) == [stays]
    assert (table.deadline(), len(table)) == (inf, 0)


def test_a_second_try_waits() -> None:
    table = timetable()
    each = message(1, 1.0)
    table.add(each)
    assert table.take_due(10.0, 10) == [each]
    table.add(each, table.asked + 1.0)
    assert table.take_due(10.5, 10) == []
    assert table.take_due(11.0, 10) == [each]


def test_what_left_is_forgotten_before_its_time() -> None:
    table = timetable()
    for number in range(20_000):
        each = message(number, 1e9)
        table.add(each)
        each.enqueued_at = inf
    assert len(table) <= 1025
    table.clear()
    assert repr(table) == "<DueHeap: 0 entries, the next at inf>"
