from __future__ import annotations

import itertools
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import GONE, LATE, LOCKED, READY, SCHEDULED, SETTLING, Message
from pairbus.broker.model.outcomes import LocksLost
from pairbus.broker.model.queue import MessageQueue

LOCK_S = 30.0


def counting_tokens() -> Callable[[], bytes]:
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def make_queue(max_delivery_count: int = 3) -> MessageQueue:
    description = QueueDescription(name="orders", lock_duration=LOCK_S, max_delivery_count=max_delivery_count)
    return QueueEntity(1, description).active


def message(number: int, length: int = 10) -> Message:
    return Message(number, 1000.0, b"@@@@", 0, 0, b"x" * length, length)


def filled(*numbers: int, max_delivery_count: int = 3) -> MessageQueue:
    queue = make_queue(max_delivery_count)
    for number in numbers:
        each = message(number)
        queue.insert(each)
        queue.offer(each)
    return queue


def numbers(messages: list[Message]) -> list[int]:
    return [each.sequence_number for each in messages]


def test_messages_are_acquired_in_order_and_locked() -> None:
    queue = filled(1, 2, 3)
    first, second = queue.acquire(2, 100.0, counting_tokens())
    assert numbers([first, second]) == [1, 2]
    assert first.lock_token != second.lock_token
    assert (first.state, first.locked_until) == (LOCKED, 130.0)
    assert (queue.available, queue.locked, len(queue)) == (1, 2, 3)
    assert numbers(queue.acquire(5, 100.0, counting_tokens())) == [3]
    assert queue.acquire(1, 100.0, counting_tokens()) == []


def test_p48_what_is_late_is_nobodys_until_it_is_released_and_then_in_its_place() -> None:
    queue = filled(1)
    queue.holds_back = True
    for number in (2, 3):
        queue.enqueue(message(number))
    queue.holds_back = False
    queue.enqueue(message(4))
    assert numbers(queue.acquire(9, 100.0, counting_tokens())) == [1, 4]
    assert [each.state for each in queue.scan(2)] == [LATE, LATE, LOCKED]
    assert list(queue.draw_older(9, inf, None)) == [[]] and len(queue) == 4
    queue.release_late(1)
    assert numbers(queue.draw(9)) == [2]
    queue.release_late(9)
    assert numbers(queue.draw(9)) == [3] and not queue.late


def test_p48_what_is_late_is_not_overtaken_in_its_session() -> None:
    queue = QueueEntity(1, QueueDescription(name="jobs", requires_session=True)).active

    def come(number: int, session: str) -> None:
        each = message(number)
        each.session_id = session
        queue.enqueue(each)

    come(1, "a")
    queue.holds_back = True
    come(2, "a")
    queue.holds_back = False
    come(3, "a")
    come(4, "b")
    assert queue.available == 2 and len(queue.late) == 2
    queue.release_late(1)
    come(5, "a")
    assert queue.available == 3 and len(queue.late) == 2
    queue.release_late(9)
    come(6, "a")
    assert queue.available == 6 and not queue.late


def test_p48_what_is_late_and_scheduled_can_be_called_off_and_comes_due_later() -> None:
    queue = make_queue()
    queue.holds_back = True
    for number in (1, 2):
        each = message(number)
        each.home = SCHEDULED
        queue.enqueue(each)
    (cancelled,) = queue.cancel([1]) or []
    queue.remove(cancelled)
    assert queue.take_due(5000.0, 9) == []
    queue.holds_back = False
    queue.release_late(9)
    assert numbers(queue.take_due(5000.0, 9)) == [2]


def test_p48_what_expires_while_it_is_late_is_overdue_when_it_is_released() -> None:
    queue = make_queue()
    queue.holds_back = True
    each = message(1)
    each.expires_at = 50.0
    queue.enqueue(each)
    assert queue.take_overdue(60.0, 9) == []
    queue.holds_back = False
    queue.release_late(9)
    assert numbers(queue.take_overdue(61.0, 9)) == [1]


def test_p48_a_queue_that_is_deleted_lets_go_of_what_is_late() -> None:
    queue = make_queue()
    queue.holds_back = True
    queue.enqueue(message(1))
    left = queue.close()
    queue.release_late(9)
    assert numbers([each for each in left if isinstance(each, Message)]) == [1] and not queue.late


def test_what_comes_back_returns_to_its_place() -> None:
    queue = filled(1, 2, 3, 4)
    taken = queue.acquire(3, 100.0, counting_tokens())
    for each in (taken[2], taken[0]):
        assert queue.claim(each.lock_token or b"", 100.0) is each
        queue.offer(each)
    assert numbers(queue.acquire(9, 100.0, counting_tokens())) == [1, 3, 4]


def test_a_lock_that_ran_out_is_lost_even_before_anyone_looked() -> None:
    queue = filled(1)
    (taken,) = queue.acquire(1, 100.0, counting_tokens())
    token = taken.lock_token or b""
    assert queue.claim(token, 130.0) is None
    messages, lost = queue.claim_all([token, b"?"], 130.0)
    assert messages == []
    assert isinstance(lost, LocksLost)
    assert lost.condition == "com.microsoft:message-lock-lost"
    assert lost.tokens == (token, b"?")
    assert "2 of 2" in lost.description


def test_a_token_settles_once() -> None:
    queue = filled(1)
    (taken,) = queue.acquire(1, 100.0, counting_tokens())
    token = taken.lock_token or b""
    assert queue.claim(token, 101.0) is taken
    assert taken.state == SETTLING
    assert queue.claim(token, 101.0) is None
    queue.remove(taken)
    assert (taken.state, len(queue), queue.size_bytes) == (GONE, 0, 0)


def test_a_settlement_that_could_not_be_written_gives_the_lock_back() -> None:
    queue = filled(1)
    (taken,) = queue.acquire(1, 100.0, counting_tokens())
    token = taken.lock_token or b""
    queue.claim(token, 101.0)
    assert queue.expire(131.0) == ([], [])  # its turn passes while it is being settled
    queue.restore(taken)
    assert queue.deadline() == 130.0
    assert queue.claim(token, 129.0) is taken
    queue.restore(taken)
    assert queue.expire(131.0) == ([taken], [])


def test_what_was_drawn_and_could_not_be_removed_is_offered_again() -> None:
    queue = filled(1, 2, 3)
    drawn = queue.draw(2)
    assert numbers(drawn) == [1, 2]
    queue.restore(drawn[0])
    assert numbers(queue.draw(5)) == [1, 3]


def test_expiry_counts_a_failed_delivery() -> None:
    queue = filled(1, max_delivery_count=2)
    for count in (1, 2):
        (taken,) = queue.acquire(1, count * 100.0, counting_tokens())
        returned, doomed = queue.expire(count * 100.0 + LOCK_S)
        assert taken.delivery_count == count
        assert (returned, doomed) == (([taken], []) if count < 2 else ([], [taken]))
    assert taken.state == SETTLING
    assert queue.deadline() is None


def test_a_dead_letter_is_never_too_often_delivered() -> None:
    queue = filled(1, max_delivery_count=1).dead_letter
    assert queue is not None
    dead = message(1)
    queue.insert(dead)
    queue.offer(dead)
    for count in (1, 2, 3):
        queue.acquire(1, count * 100.0, counting_tokens())
        assert queue.expire(count * 100.0 + LOCK_S) == ([dead], [])
    assert dead.delivery_count == 3


def test_a_dead_letter_locked_until_the_same_time_is_not_the_old_queues_business() -> None:
    queue = filled(1, 2)
    assert queue.dead_letter is not None
    tokens = counting_tokens()
    one, two = queue.acquire(2, 100.0, tokens)
    queue.claim(one.lock_token or b"", 100.0)
    queue.remove(one)
    queue.dead_letter.insert(one)
    queue.dead_letter.offer(one)
    assert queue.dead_letter.acquire(1, 100.0, tokens) == [one]
    assert queue.expire(130.0) == ([two], [])
    assert queue.deadline() is None
    assert queue.dead_letter.expire(130.0) == ([one], [])


def test_renewal_is_for_all_or_none() -> None:
    queue = filled(1, 2)
    one, two = queue.acquire(2, 100.0, counting_tokens())
    tokens = [one.lock_token or b"", two.lock_token or b""]
    assert queue.renew(tokens, 120.0) == 150.0
    lost = queue.renew([tokens[0], b"?"], 125.0)
    assert isinstance(lost, LocksLost)
    assert lost.tokens == (b"?",)
    assert one.locked_until == 150.0
    assert queue.expire(149.0) == ([], [])
    assert queue.deadline() == 150.0
    assert queue.expire(150.0) == ([one, two], [])
    assert isinstance(queue.renew(tokens, 151.0), LocksLost)


def test_dead_letters_arrive_in_any_order_and_leave_by_number() -> None:
    queue = filled(7, 3, 9, 1, 8)
    assert numbers(list(queue.scan(0))) == [1, 3, 7, 8, 9]
    assert numbers(queue.acquire(5, 0.0, counting_tokens())) == [1, 3, 7, 8, 9]


@given(st.lists(st.integers(1, 10**7), unique=True, max_size=60), st.integers(0, 10**7))
def test_scan_starts_where_it_is_told_however_sparse(present: list[int], start: int) -> None:
    queue = filled(*present)
    assert numbers(list(queue.scan(start))) == sorted(n for n in present if n >= start)


def test_scan_survives_what_changes_meanwhile() -> None:
    queue = filled(*range(1, 3000))
    seen = []
    for each in queue.scan(1):
        seen.append(each.sequence_number)
        if each.sequence_number == 1:
            for gone in queue.draw(2990)[1:]:
                queue.remove(gone)
    assert seen == [1, *range(2991, 3000)]


def test_stale_expiries_are_forgotten() -> None:
    queue = filled(*range(1, 20_001))
    tokens = counting_tokens()
    for now in range(20_000):
        (taken,) = queue.acquire(1, now / 1000, tokens)
        queue.claim(taken.lock_token or b"", now / 1000)
        queue.remove(taken)
    assert len(queue._expiries) < 2_000
    assert queue.deadline() is None
    assert len(queue._expiries) == 0


def test_repr_tells_what_it_is() -> None:
    queue = filled(1, 2)
    queue.acquire(1, 0.0, counting_tokens())
    assert repr(queue) == "<MessageQueue orders: 2 messages, 1 ready, 1 locked>"
    assert repr(queue.get(1)) == "<Message 1: locked, 0 failed deliveries>"
    assert repr(queue.entity) == "<QueueEntity orders: 2 active, 0 dead-lettered>"


class QueueAndOracle(RuleBasedStateMachine):
    """The oracle: number → [state, token, until, count], and the rule that the lowest ready number is next."""

    MAX = 3

    @initialize()
    def start(self) -> None:
        self.queue = make_queue(self.MAX)
        self.tokens = counting_tokens()
        self.now = 100.0
        self.last = 0
        self.known: dict[int, list[object]] = {}
        self.held: dict[int, Message] = {}

    def ready(self) -> list[int]:
        return sorted(n for n, each in self.known.items() if each[0] == "ready")

    def locked(self) -> list[int]:
        return sorted(n for n, each in self.known.items() if each[0] == "locked")

    @rule(count=st.integers(1, 5))
    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.last += 1
            each = message(self.last)
            self.queue.insert(each)
            self.queue.offer(each)
            self.known[self.last] = ["ready", None, 0.0, 0]
            self.held[self.last] = each

    @rule(count=st.integers(1, 4))
    def acquire(self, count: int) -> None:
        expected = self.ready()[:count]
        taken = self.queue.acquire(count, self.now, self.tokens)
        assert numbers(taken) == expected
        for each in taken:
            self.known[each.sequence_number][:3] = ["locked", each.lock_token, self.now + LOCK_S]

    @precondition(lambda self: self.locked())
    @rule(data=st.data(), ending=st.sampled_from(["remove", "offer", "restore", "abandon"]))
    def settle(self, data: st.DataObject, ending: str) -> None:
        number = data.draw(st.sampled_from(self.locked()))
        state = self.known[number]
        token = state[1]
        assert isinstance(token, bytes)
        each = self.queue.claim(token, self.now)
        if state[2] <= self.now:  # type: ignore[operator]
            assert each is None
            return
        assert each is self.held[number]
        if ending == "remove":
            self.queue.remove(each)
            del self.known[number]
        elif ending == "restore":
            self.queue.restore(each)
        else:
            self.queue.offer(each)
            state[0] = "ready"

    @precondition(lambda self: self.locked())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.locked()))
        state = self.known[number]
        renewed = self.queue.renew([state[1]], self.now)  # type: ignore[list-item]
        if state[2] <= self.now:  # type: ignore[operator]
            assert isinstance(renewed, LocksLost)
        else:
            assert renewed == self.now + LOCK_S
            state[2] = renewed

    @rule(seconds=st.sampled_from([0.0, 10.0, LOCK_S, 31.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        returned, doomed = self.queue.expire(self.now)
        expired = [n for n in self.locked() if self.known[n][2] <= self.now]  # type: ignore[operator]
        assert sorted(numbers(returned) + numbers(doomed)) == expired
        for number in expired:
            state = self.known[number]
            state[3] += 1  # type: ignore[operator]
            state[0] = "ready"
            assert (number in numbers(doomed)) == (state[3] >= self.MAX)  # type: ignore[operator]
        for each in doomed:
            self.queue.remove(each)
            del self.known[each.sequence_number]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert numbers(list(self.queue.scan(0))) == sorted(self.known)
        assert len(self.queue) == len(self.known)
        assert self.queue.available == len(self.ready())
        assert self.queue.available == len(self.ready())
        assert self.queue.size_bytes == 10 * len(self.known)
        deadlines = [self.known[n][2] for n in self.locked()]
        assert self.queue.deadline() == (min(deadlines) if deadlines else None)  # type: ignore[type-var]
        for number, state in self.known.items():
            each = self.queue.get(number)
            assert each is not None
            assert each.delivery_count == state[3]
            assert each.state == (READY if state[0] == "ready" else LOCKED)


TestQueueAndOracle = QueueAndOracle.TestCase


@pytest.mark.parametrize("count", [0, 1])
def test_available_says_whether_anything_is_on_offer(count: int) -> None:
    queue = filled(*range(1, count + 1))
    assert queue.available == count
