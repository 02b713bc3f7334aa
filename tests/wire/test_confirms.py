from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.performative_types import Accepted, Error, Modified, Received, Rejected, Released
from pairbus.wire.confirms import Confirms, Settlement, ranges, send_error, settle_error
from pairbus.wire.errors import Busy, LockLost, Refused

WRAP = 2**32


def filled(first: int, count: int) -> Confirms[int]:
    confirms: Confirms[int] = Confirms()
    for step in range(count):
        confirms.add((first + step) % WRAP, step, math.inf)
    return confirms


@pytest.mark.parametrize("start", [0, 1000, WRAP - 3])
@pytest.mark.parametrize(
    ("first", "last", "taken"),
    [
        (0, 0, [0]),
        (0, 2, [0, 1, 2]),
        (2, 5, [2, 3, 4, 5]),
        (3, 100, [3, 4, 5]),
        (7, 9, []),
        (0, 2**31 - 1, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_range_takes_what_waits_in_it(start: int, first: int, last: int, taken: list[int]) -> None:
    confirms = filled(start, 6)
    assert confirms.take((start + first) % WRAP, (start + last) % WRAP) == taken
    assert len(confirms) == 6 - len(taken)
    assert confirms.take((start + first) % WRAP, (start + last) % WRAP) == []


@given(st.integers(0, WRAP - 1), st.integers(0, 20), st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25))))
def test_every_entry_is_taken_once(start: int, count: int, answers: list[tuple[int, int]]) -> None:
    confirms = filled(start, count)
    waiting = set(range(count))
    for first, length in answers:
        taken = confirms.take((start + first) % WRAP, (start + first + length) % WRAP)
        expected = {number for number in waiting if first <= number <= first + length}
        assert taken == sorted(expected)
        waiting -= expected
    assert len(confirms) == len(waiting)
    assert confirms.take_all() == sorted(waiting)


def test_overdue_are_the_oldest() -> None:
    confirms: Confirms[str] = Confirms()
    confirms.add(1, "a", 10.0)
    confirms.add(2, "own timer", math.inf)
    confirms.add(3, "b", 10.0)
    confirms.add(4, "c", 20.0)
    assert confirms.deadline == 10.0
    assert confirms.take_overdue(9.9) == []
    assert confirms.take_overdue(10.0) == ["a", "b"]
    assert confirms.deadline == 20.0
    assert confirms.take_overdue(99.0) == ["c"]
    assert confirms.deadline is None
    assert len(confirms) == 1


def test_remove_tells_which_were_waiting() -> None:
    confirms = filled(5, 3)
    assert confirms.remove({1, 7}) == {1}
    assert 6 not in confirms
    assert confirms.take(5, 7) == [0, 2]


@given(st.lists(st.integers(0, 30), unique=True))
def test_ranges_are_the_runs(ids: list[int]) -> None:
    found = list(ranges(ids))
    assert [number for first, last in found for number in range(first, last + 1)] == ids
    for (_, last), (first, _) in pairwise(found):
        assert first != last + 1


def test_ranges_wrap() -> None:
    assert list(ranges([WRAP - 2, WRAP - 1, 0, 1, 5])) == [(WRAP - 2, 1), (5, 5)]
    assert list(ranges([])) == []


def test_what_an_outcome_means_for_a_send() -> None:
    assert send_error(Accepted()) is None
    busy = send_error(Rejected(error=Error("com.microsoft:server-busy", "slow down", None)))
    assert busy is not None
    error = busy()
    assert (type(error), error.description, error.outcome_unknown) == (Busy, "slow down", False)
    assert busy() is not busy()
    for state, condition, unknown in [
        (Rejected(), "amqp:unknown-error", False),
        (Released(), "pairbus:released", False),
        (Modified(), "pairbus:released", False),
        (None, "amqp:unknown-error", True),
        (Received(section_number=0, section_offset=0), "amqp:unknown-error", True),
    ]:
        make = send_error(state)
        assert make is not None
        assert (make().condition, make().outcome_unknown) == (condition, unknown)


def test_what_the_answer_to_a_settlement_means() -> None:
    for state in (Accepted(), Released(), Modified(), Rejected(), None):
        assert settle_error(state) is None
    lost = settle_error(Rejected(error=Error("com.microsoft:message-lock-lost", "late", None)))
    assert lost is not None
    assert type(lost()) is LockLost
    assert settle_error(Rejected(error=Error("com.microsoft:dead-letter", "as we said", None))) is None


def test_a_settlement_keeps_the_first_refusal_and_all_ids() -> None:
    settlement: Settlement[str] = Settlement("future", 3)
    settlement.refuse(7, Refused("a"))
    settlement.unanswered -= 1
    assert not settlement.is_over
    settlement.refuse(9, Refused("b"))
    assert settlement.is_over
    assert settlement.error is not None
    assert settlement.error.condition == "a"
    assert settlement.refused == [7, 9]
