"""The broker's queue against a few lines of plain Python, over random operations and clock steps: locks, sessions,
schedules, lifetimes, duplicates, deferral, dead letters. Now and then the broker is killed, which only frees locks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, Release
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.refusal import Refusal

from .machine import thorough
from .namespace_rig import Rig, body_of, finished, make_special

DEAD = "orders/$DeadLetterQueue"
# Times that meet.
LOCK_S, WINDOW_S, MAX_DELIVERIES = 30.0, 60.0, 3
LIVES = st.sampled_from([None, 10.0, 30.0])
DELAYS = st.sampled_from([None, None, None, 0.0, 10.0, 30.0])
IDS = st.integers(0, 40).map(str)
SESSIONS = st.sampled_from("xyz")


@dataclass
class One:
    body: bytes
    number: int
    session: str | None
    expires: float
    due: float = 0.0
    state: str = "ready"
    home: str = "ready"
    count: int = 0
    until: float = inf
    token: bytes = b""


class Oracle:
    """All that a queue is, without regard to speed or disks."""

    def __init__(self, has_sessions: bool, buries: bool) -> None:
        self.has_sessions, self.buries = has_sessions, buries
        self.all: list[One] = []
        self.dead: list[tuple[int, bytes]] = []
        self.seen: dict[str, float] = {}
        self.held: dict[str, float] = {}  # session → until
        self.last = 0

    def send(self, now: float, body: bytes, id: str, session: str, ttl: float | None, delay: float | None) -> int:
        if self.seen.get(id, -inf) + WINDOW_S > now:
            return 0
        self.seen[id] = now
        self.last += 1
        due = now + (delay or 0.0)
        one = One(body, self.last, session if self.has_sessions else None, due + (ttl or inf), due)
        one.state = one.home = "scheduled" if due > now else "ready"
        self.all.append(one)
        return one.number

    def ready(self, session: str | None) -> list[One]:
        found = [one for one in self.all if one.state == "ready" and one.session == session]
        return sorted(found, key=lambda one: one.number)

    def next_session(self) -> str | None:
        free = [one for one in self.all if one.state == "ready" and one.session not in self.held]
        return min(free, key=lambda one: one.number).session if free else None

    def go_home(self, one: One, failed: int) -> None:
        one.count += failed
        one.state = one.home
        if failed and one.count >= MAX_DELIVERIES:
            self.bury(one)

    def bury(self, one: One) -> None:
        self.all.remove(one)
        self.dead.append((one.number, one.body))

    def tick(self, now: float) -> None:
        self.held = {session: until for session, until in self.held.items() if until > now}
        for one in [one for one in self.all if one.state == "locked"]:
            if (one.session not in self.held) if self.has_sessions else one.until <= now:
                self.go_home(one, 1)
        for one in [one for one in self.all if one.state == "ready" and one.expires <= now]:
            if self.buries:
                self.bury(one)
            else:
                self.all.remove(one)
        due = [one for one in self.all if one.state == "scheduled" and one.due <= now]
        for one in sorted(due, key=lambda one: (one.due, one.number)):
            self.last += 1
            one.number, one.expires = self.last, now + one.expires - one.due
            one.state = one.home = "ready"


class QueueAndModel(RuleBasedStateMachine):
    @initialize(has_sessions=st.booleans(), buries=st.booleans())
    def start(self, has_sessions: bool, buries: bool) -> None:
        self.rig = Rig(memory_budget=400)
        self.rig.create(
            lock_duration=LOCK_S,
            max_delivery_count=MAX_DELIVERIES,
            requires_session=has_sessions,
            dead_letter_on_expiration=buries,
            requires_duplicate_detection=True,
            duplicate_window=WINDOW_S,
        )
        self.model = Oracle(has_sessions, buries)
        self.locks: dict[str, SessionLock] = {}
        self.sent = 0
        for n in range(4):
            self.send([(str(n), "xyz"[n % 3], None, None), (str(n + 4), "x", 10.0, None)], False)
        if has_sessions:
            self.accept("x")
        self.acquire(3, "x")

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.__exit__()

    def locked(self) -> list[One]:
        return [one for one in self.model.all if one.state == "locked"]

    def deferred(self) -> list[int]:
        return [one.number for one in self.model.all if one.state == "deferred"]

    @rule(messages=st.lists(st.tuples(IDS, SESSIONS, LIVES, DELAYS), min_size=1, max_size=4), is_schedule=st.booleans())
    def send(self, messages: list[tuple[str, str, float | None, float | None]], is_schedule: bool) -> None:
        payloads, numbers = [], []
        now = self.rig.now
        for id, session, ttl, delay in messages:
            self.sent += 1
            body = b"%d" % self.sent
            at = None if delay is None else now + delay
            payloads.append(make_special(body, id=id, session_id=session, ttl=ttl, at=at))
            numbers.append(self.model.send(now, body, id, session, ttl, delay))
        if is_schedule:
            assert self.rig.schedule(*payloads) == (numbers, None)
        else:
            assert self.rig.send_payloads(*payloads) is None

    @rule(count=st.integers(1, 4), session=SESSIONS)
    def acquire(self, count: int, session: str) -> None:
        name = session if self.model.has_sessions else None
        expected = self.model.ready(name)[:count]
        if self.model.has_sessions and session not in self.model.held:
            expected = []
        messages = self.rig.acquire(count, session=self.locks.get(session))
        self.hold(expected, messages)

    def hold(self, expected: list[One], messages: list[Message]) -> None:
        assert [message.sequence_number for message in messages] == [one.number for one in expected]
        for one, message in zip(expected, messages, strict=True):
            one.state, one.token, one.until = "locked", message.lock_token or b"", message.locked_until
            assert message.locked_until == self.model.held.get(one.session or "", self.rig.now + LOCK_S)

    @precondition(lambda self: self.model.has_sessions)
    @rule(session=st.sampled_from([None, None, "x", "y", "z"]))
    def accept(self, session: str | None) -> None:
        expected = self.model.next_session() if session is None else session
        lock = self.rig.namespace.accept_session(self.rig.queue(), session, self.rig.now)
        if expected is None or expected in self.model.held:
            assert lock is None if session is None else isinstance(lock, Refusal)
            return
        assert isinstance(lock, SessionLock)
        assert lock.session_id == expected
        self.locks[expected] = lock
        self.model.held[expected] = lock.locked_until

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), renews=st.booleans())
    def end_or_renew_session(self, data: st.DataObject, renews: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.model.held)))
        if renews:
            self.model.held[session] = self.rig.now + LOCK_S
            assert self.rig.namespace.renew_session(self.locks[session], self.rig.now) == self.rig.now + LOCK_S
            return
        self.rig.namespace.release_session(self.locks.pop(session), self.rig.now)
        del self.model.held[session]
        for one in self.locked():
            if one.session == session:
                self.model.go_home(one, 0)
        self.tick()

    @precondition(lambda self: self.locked())
    @rule(
        data=st.data(),
        outcome=st.sampled_from([Complete(), Release(), Abandon(), Abandon({"a": 1}), Defer(), DeadLetter("why")]),
    )
    def settle(self, data: st.DataObject, outcome: Any) -> None:
        one = data.draw(st.sampled_from(self.locked()))
        assert self.rig.settle([one.token], outcome, session=self.locks.get(one.session or "")) is None
        if isinstance(outcome, Complete):
            self.model.all.remove(one)
        elif isinstance(outcome, DeadLetter):
            self.model.bury(one)
        elif isinstance(outcome, Defer):
            one.state = one.home = "deferred"
            one.count += 1
        else:
            self.model.go_home(one, int(isinstance(outcome, Abandon)))
        self.tick()  # what has outlived its time while it was locked goes now
        assert self.rig.settle([one.token], Complete()) is not None

    @precondition(lambda self: self.locked() and not self.model.has_sessions)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.locked()))
        one.until = self.rig.now + LOCK_S
        assert self.rig.namespace.renew(self.rig.queue(), [one.token], self.rig.now) == [one.until]

    @rule(data=st.data(), delete=st.booleans())
    def receive_deferred(self, data: st.DataObject, delete: bool) -> None:
        number = data.draw(st.sampled_from([*self.deferred(), 1]))
        one = next((one for one in self.model.all if one.number == number and one.state == "deferred"), None)
        session = self.locks.get(one.session or "") if one is not None else None
        messages, refusal = self.rig.receive_deferred(number, delete=delete, session=session)
        if one is None or (self.model.has_sessions and session is None):
            assert messages == []
            assert refusal is not None
        elif delete:
            assert [message.sequence_number for message in messages] == [number]
            self.model.all.remove(one)
        else:
            self.hold([one], messages)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        scheduled = {one.number: one for one in self.model.all if one.state == "scheduled"}
        number = data.draw(st.sampled_from([*scheduled, 1]))
        assert (self.rig.cancel(number) is None) == (number in scheduled)
        if number in scheduled:
            self.model.all.remove(scheduled[number])

    @rule(count=st.integers(1, 2))
    def delete_oldest(self, count: int) -> None:
        ready = [one for one in self.model.all if one.state == "ready" and one.session not in self.model.held]
        oldest = sorted(ready, key=lambda one: one.number)[:count]
        assert self.rig.delete_messages(count, self.rig.now) == len(oldest)
        for one in oldest:
            self.model.all.remove(one)

    @precondition(lambda self: not self.model.has_sessions)
    @rule(count=st.integers(1, 2))
    def take(self, count: int) -> None:
        first = self.model.ready(None)[:count]
        assert self.rig.take(count) == ([one.body for one in first], None)
        for one in first:
            self.model.all.remove(one)

    @rule(seconds=st.sampled_from([1.0, 1.0, 10.0, 20.0, LOCK_S]))
    def time_passes(self, seconds: float) -> None:
        self.rig.now += seconds
        self.tick()

    def tick(self) -> None:
        self.rig.pass_time(0.0)
        self.model.tick(self.rig.now)
        self.locks = {session: lock for session, lock in self.locks.items() if session in self.model.held}

    @rule(dice=st.integers(0, 11))
    def kill(self, dice: int) -> None:
        if dice < 6:  # not too often: it frees locks
            return
        if dice < 10:
            self.rig.compact()
        now = self.rig.now
        files = self.rig.files.kill()
        self.rig.__exit__()
        self.rig = Rig(files, memory_budget=400, now=now)
        self.locks.clear()
        self.model.held.clear()
        for one in self.locked():
            self.model.go_home(one, 0)
        self.tick()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "rig"):
            return
        queue = self.rig.queue()
        states = {0: "ready", 1: "locked", 5: "deferred", 6: "scheduled"}
        found = [
            (message.sequence_number, self.body(message), states[message.state], message.delivery_count)
            for message in queue.scan(0)
        ]
        assert found == sorted((one.number, one.body, one.state, one.count) for one in self.model.all)
        dead = [(message.sequence_number, self.body(message)) for message in self.rig.queue(DEAD).scan(0)]
        assert dead == sorted(self.model.dead)
        ready = sum(one.state == "ready" for one in self.model.all)
        assert (queue.available, queue.locked) == (ready, len(self.locked()))
        assert queue.scheduled_count == sum(one.state == "scheduled" for one in self.model.all)
        assert queue.entity.last_sequence == self.model.last
        if self.model.has_sessions:
            expected = sorted({one.session or "" for one in self.model.all})
            assert sorted(finished(self.rig.namespace.list_sessions(queue, None, 0, 100))) == expected

    def body(self, message: Message) -> bytes:
        return body_of(self.rig.namespace.delivery(self.rig.queue(), message, locked=False))


QueueAndModel.TestCase.settings = thorough(100, 50)
TestQueueAndModel = QueueAndModel.TestCase
