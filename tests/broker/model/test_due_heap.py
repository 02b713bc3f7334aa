from __future__ import annotations

from math import inf
from random import Random

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
    assert len(table) <= 2000
    table.clear()
    assert repr(table) == "<DueHeap: 0 entries, the next at inf>"


def test_no_step_goes_through_a_large_heap() -> None:
    looked_at = 0

    def time_of(each: Message) -> float:
        nonlocal looked_at
        looked_at += 1
        return each.enqueued_at

    table = DueHeap(time_of)
    most = 0
    for number in range(20_000):
        looked_at = 0
        table.add(message(number, float(number * 7919 % 1000)))
        most = max(most, looked_at)
    assert most <= 10
    due = table.take_due(inf, 20_000)
    assert [each.enqueued_at for each in due] == sorted(float(number * 7919 % 1000) for number in range(20_000))


def test_a_heap_stays_in_order_while_its_entries_move_and_does_not_keep_what_has_left() -> None:
    random = Random(7)
    table = timetable()
    there: dict[int, Message] = {}
    for number in range(30_000):
        each = there[number] = message(number, float(random.randrange(10_000)))
        table.add(each)
        if number % 3:
            there.pop(random.choice(list(there)[-50:])).enqueued_at = inf
        if number % 1000 == 0:
            due = table.take_due(1000.0, 100)
            assert [each.enqueued_at for each in due] == sorted(each.enqueued_at for each in there.values())[: len(due)]
            for each in due:
                del there[each.sequence_number]
            assert table.deadline() <= min(each.enqueued_at for each in there.values())
    assert len(there) < len(table) <= 3 * len(there) + 1024
    moved = [entry[2] for entry in table.clear() if entry[2].enqueued_at < inf]
    assert sorted(each.sequence_number for each in moved) == sorted(there)
