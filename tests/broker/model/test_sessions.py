from __future__ import annotations

from math import inf

import pytest

from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import DEFERRED, LOCKED, READY, SETTLING, Message, Stored
from pairbus.broker.model.outcomes import LocksLost
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import SessionLock, Sessions
from pairbus.broker.slices import finish
from tests.broker.namespace_rig import counting_tokens

LOCK_S = 30.0


class World:
    def __init__(self) -> None:
        description = QueueDescription(name="orders", requires_session=True, lock_duration=LOCK_S, max_delivery_count=2)
        self.queue: MessageQueue = QueueEntity(1, description).active
        self.tokens = counting_tokens()
        self.messages: dict[int, Message] = {}
        assert self.queue.sessions is not None
        self.sessions: Sessions = self.queue.sessions

    def add(self, number: int, session_id: str) -> Message:
        message = Message(number, 0.0, b"@@@@", 0, 0, b"", 0, session_id=session_id)
        self.messages[number] = message
        self.queue.enqueue(message)
        return message

    def accept(self, id: str | None = None, now: float = 100.0) -> SessionLock:
        lock = self.sessions.accept(id, now + LOCK_S)
        assert lock is not None
        return lock

    def acquire(self, lock: SessionLock | None, count: int = 9, now: float = 100.0) -> list[int]:
        return [each.sequence_number for each in self.queue.acquire(count, now, self.tokens, lock)]


@pytest.fixture
def world() -> World:
    return World()


def test_the_session_with_the_oldest_message_is_next(world: World) -> None:
    for number, id in ((1, "b"), (2, "a"), (3, "b"), (4, "c")):
        world.add(number, id)
    locks = [world.accept() for _ in range(3)]
    assert [lock.session_id for lock in locks] == ["b", "a", "c"]
    assert world.sessions.accept(None, 130.0) is None
    assert [world.queue.available_in(lock) for lock in locks] == [2, 1, 1]
    assert world.acquire(locks[0]) == [1, 3]
    assert world.acquire(locks[1], now=129.9) == [2]
    assert world.acquire(locks[2], now=130.0) == []  # its time is over
    assert world.acquire(None) == []
    assert world.queue.available == 1


def test_what_comes_back_may_make_its_session_the_next(world: World) -> None:
    world.add(1, "a")
    world.add(2, "b")
    first = world.accept()
    assert world.acquire(first) == [1]
    world.queue.release_session(first)
    assert world.accept().session_id == "a"


def test_a_session_whose_oldest_message_is_gone_stands_behind(world: World) -> None:
    for number, id in ((1, "a"), (2, "b"), (3, "a")):
        world.add(number, id)
    lock = world.accept()
    assert world.acquire(lock, 1) == [1]
    world.queue.remove(world.messages[1])
    world.queue.release_session(lock)
    assert [world.accept().session_id for _ in range(2)] == ["b", "a"]


def test_a_named_session_is_held_by_one(world: World) -> None:
    lock = world.accept("x")
    assert world.sessions.accept("x", 130.0) is None
    assert lock.is_held(129.9) and not lock.is_held(130.0)
    world.queue.release_session(lock)
    assert len(world.sessions) == 0  # nothing is known of a session without messages, state or holder
    assert world.accept("x") is not lock
    assert repr(lock) == "<SessionLock 'x' of orders: over, 0 unsettled>"


def test_released_messages_are_as_they_were(world: World) -> None:
    world.add(1, "a")
    world.add(2, "a")
    lock = world.accept()
    world.acquire(lock)
    token = world.messages[1].lock_token or b""
    assert world.queue.claim(token, 100.0) is world.messages[1]
    world.queue.release_session(lock)
    assert (world.messages[1].state, world.messages[2].state) == (SETTLING, READY)
    assert world.messages[2].delivery_count == 0
    world.queue.restore(world.messages[1])  # its session is no longer held: back on offer
    assert world.acquire(world.accept()) == [1, 2]


def test_a_lock_that_runs_out_counts(world: World) -> None:
    world.add(1, "a")
    world.add(2, "a")
    told: list[str] = []
    lock = world.accept()
    lock.on_lost = lambda: told.append("lost")
    world.acquire(lock, 1)
    assert world.queue.deadline() == 130.0
    assert world.queue.expire(129.9) == ([], [])
    assert world.queue.expire(130.0) == ([world.messages[1]], [])
    assert told == ["lost"]
    assert [message.delivery_count for message in world.messages.values()] == [1, 0]
    lock = world.accept(now=200.0)
    world.acquire(lock, 1, now=200.0)
    assert world.queue.expire(230.0) == ([], [world.messages[1]])
    assert world.queue.deadline() is None


def test_settling_needs_the_sessions_lock(world: World) -> None:
    world.add(1, "a")
    world.add(2, "b")
    lock, other = world.accept("a"), world.accept("b")
    world.acquire(lock)
    token = world.messages[1].lock_token or b""
    claimed, lost = world.queue.claim_all([token], 100.0, other)
    assert claimed == []
    assert isinstance(lost, LocksLost)
    assert lost.condition == "com.microsoft:message-lock-lost"
    assert world.queue.claim(token, 130.0) is None
    world.sessions.renew(lock, 160.0)
    assert world.messages[1].locked_until == 160.0
    assert world.queue.claim_all([token], 150.0, lock) == ([world.messages[1]], None)
    world.queue.restore(world.messages[1])
    assert world.messages[1].state == LOCKED
    for session in (lock, None):
        claimed, lost = world.queue.claim_all([token], 160.0, session)
        assert claimed == []
        assert lost is not None
        assert lost.condition == "com.microsoft:session-lock-lost"


def test_a_deferred_message_goes_back_to_where_it_was(world: World) -> None:
    message = world.add(1, "a")
    lock = world.accept()
    world.acquire(lock)
    assert world.queue.claim(message.lock_token or b"", 100.0) is message
    message.home = DEFERRED
    world.queue.offer(message)
    assert world.queue.fetch([1], 100.0, world.tokens, world.accept("b")) is None
    assert world.queue.fetch([1], 100.0, world.tokens) is None
    assert world.queue.fetch([1], 100.0, world.tokens, lock) == [message]
    world.queue.release_session(lock)
    assert message.state == DEFERRED
    assert world.sessions.accept(None, 130.0) is None  # nothing is on offer in it


def test_who_is_told_what_has_come(world: World) -> None:
    told: list[str] = []
    world.queue.on_session_free = lambda: told.append("free")
    world.add(1, "a")
    world.queue.wake()
    assert told == ["free"]
    world.queue.wake()
    assert told == ["free"]  # nothing is new
    lock = world.accept()
    lock.on_available = lambda: told.append("a")
    world.add(2, "a")
    world.add(3, "b")
    world.queue.wake()
    assert told == ["free", "a", "free"]
    world.queue.release_session(lock)
    world.queue.wake()
    assert told[3:] == ["free"]


def test_listing(world: World) -> None:
    world.add(1, "b")
    world.add(2, "a")
    stated = world.sessions.open("c")
    stated.state = Stored(1, 2, 3)
    stated.updated_at = 50.0
    world.accept("empty")
    assert finish(world.sessions.listed(None, 0, 100)) == ["b", "a", "c"]
    assert finish(world.sessions.listed(None, 1, 1)) == ["a"]
    assert finish(world.sessions.listed(49.0, 0, 100)) == ["c"]
    assert finish(world.sessions.listed(50.0, 0, 100)) == []


def test_what_is_over_is_not_kept(world: World) -> None:
    for n in range(5_000):
        lock = world.accept("a", now=float(n))
        world.sessions.renew(lock, n + 40.0)
        world.queue.release_session(lock)
        world.add(n + 1, "b")
        lock = world.accept()
        world.acquire(lock)
        world.queue.remove(world.messages[n + 1])
        world.queue.release_session(lock)
    assert len(world.sessions._expiries) < 1_100
    assert len(world.sessions._free) < 1_100
    assert world.sessions.deadline() == inf


def test_closing_ends_every_lock(world: World) -> None:
    told: list[str] = []
    world.add(1, "a")
    lock = world.accept()
    lock.on_lost = lambda: told.append("lost")
    world.queue.close()
    assert told == ["lost"]
    assert not lock.is_held(100.0)
    assert len(world.sessions) == 0
