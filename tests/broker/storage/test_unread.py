from __future__ import annotations

import pytest

from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import LOCKED, SETTLING, Message
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.storage.unread import UNREAD_S, UnreadMessages
from tests.broker.namespace_rig import counting_tokens


def queue_with(count: int) -> MessageQueue:
    queue = QueueEntity(1, QueueDescription(name="orders")).active
    for number in range(1, count + 1):
        queue.enqueue(Message(number, 0.0, b"", 0, 0, None, 1))
    return queue


def numbers(queue: MessageQueue) -> list[int]:
    return [message.sequence_number for message in queue.draw(100)]


def test_a_lock_ends_at_once_and_the_message_returns_when_it_can_be_read() -> None:
    queue, unread = queue_with(3), UnreadMessages()
    first, second = queue.acquire(2, 100.0, counting_tokens())
    assert first.state == LOCKED
    unread.add(queue, first, 100.0)
    unread.add(queue, second, 100.5)
    assert (first.state, queue.locked, queue.available, len(unread)) == (SETTLING, 0, 1, 2)
    assert unread.deadline == 100.0 + UNREAD_S
    assert queue.expire(1000.0) == ([], [])
    assert unread.offer_due(100.9, lambda each: True) is None
    assert unread.offer_due(101.0, lambda each: False) is None
    assert unread.deadline == 101.0 + UNREAD_S, "it is looked again"
    assert unread.offer_due(102.0, lambda each: True) is queue
    assert (unread.deadline, len(unread)) == (float("inf"), 0)
    assert numbers(queue) == [1, 2, 3] and first.delivery_count == 0


def test_they_return_step_by_step_queue_after_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.broker.storage.unread._RETURNED_MAX", 2)
    one, other, unread = queue_with(3), queue_with(1), UnreadMessages()
    for queue in (one, other):
        for message in queue.draw(3):
            unread.add(queue, message, 0.0)
    assert repr(unread) == "<UnreadMessages: 4 in 3 batches>"
    returned = [(unread.offer_due(1.0, lambda each: True), unread.deadline) for _ in range(4)]
    assert returned == [(one, 1.0), (one, 1.0), (other, float("inf")), (None, float("inf"))]
    assert numbers(one) == [1, 2, 3]


def test_so_many_are_enough_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.broker.storage.unread.PASSED_MAX", 2)
    queue, unread = queue_with(4), UnreadMessages()
    messages = queue.draw(4)
    enough = []
    for message, now in zip(messages, (10.0, 10.9, 11.0, 11.1), strict=True):
        unread.add(queue, message, now)
        enough.append(unread.is_enough(now))
    assert enough == [False, True, False, True]
    assert not unread.is_enough(12.0)
    assert not unread.is_enough(5.0), "the clock was set"


def test_a_clock_that_is_set_takes_them_along() -> None:
    queue, unread = queue_with(1), UnreadMessages()
    unread.shift(5.0)
    assert unread.deadline == float("inf")
    unread.add(queue, queue.draw(1)[0], 10.0)
    unread.shift(-7.0)
    assert unread.deadline == 3.0 + UNREAD_S
