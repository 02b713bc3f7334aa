from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, LocksLost
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import finish
from tests.broker.namespace_rig import DEAD, Rig, body_of, make_special, refused


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create(requires_session=True, lock_duration=30.0, max_delivery_count=2)
        yield rig


def send(rig: Rig, *pairs: tuple[str, bytes]) -> None:
    assert rig.send_payloads(*(make_special(body, session_id=id) for id, body in pairs)) is None


def fill(rig: Rig, segments: int) -> None:
    while len(rig.journal.segments()) < segments:
        assert rig.set_state("filler", b"x" * 200) is None


def lives(rig: Rig) -> Iterator[Rig]:
    return rig.lives(lambda: fill(rig, 4))


def test_a_session_is_received_in_order_by_its_holder(rig: Rig) -> None:
    send(rig, ("a", b"1"), ("b", b"2"), ("a", b"3"))
    for each in lives(rig):
        lock = each.accept()
        assert (lock.session_id, lock.locked_until, lock.queue) == ("a", each.now + 30.0, each.queue())
        assert each.received(session=lock) == [b"1", b"3"]
        other = each.accept()
        assert each.received(session=other) == [b"2"]
        assert each.namespace.sessions.accept(each.queue(), None, each.now) is None
        assert each.received() == []
        each.namespace.sessions.release(lock, each.now)
        each.namespace.sessions.release(other, each.now)


def test_a_session_that_is_held_is_refused(rig: Rig) -> None:
    lock = rig.accept("x")
    refused(rig.namespace.sessions.accept(rig.queue(), "x", rig.now), "com.microsoft:session-cannot-be-locked")
    rig.now += 30.0
    assert rig.accept("x") is not lock  # its time is over, whether or not somebody has ticked


@pytest.mark.parametrize(
    ("path", "session_id", "expected"),
    [("plain", None, "amqp:not-allowed"), (DEAD, "a", "amqp:not-allowed"), ("orders", "x" * 129, "amqp:invalid-field")],
)
def test_where_no_session_can_be(rig: Rig, path: str, session_id: str | None, expected: str) -> None:
    rig.create("plain")
    refused(rig.namespace.sessions.accept(rig.queue(path), session_id, rig.now), expected)
    assert finish(rig.namespace.sessions.list_ids(rig.queue("plain"), None, 0, 10)) == []
    assert rig.set_state("a", b"", "plain") is not None
    assert rig.state("a", "plain") is None


def test_settling_under_the_lock(rig: Rig) -> None:
    send(rig, ("a", b"1"), ("a", b"2"), ("a", b"3"), ("a", b"4"))
    lock = rig.accept()
    tokens = [message.lock_token or b"" for message in rig.acquire(4, session=lock)]
    rig.now += 20.0
    assert rig.namespace.sessions.renew(lock, rig.now) == 1050.0
    rig.now += 20.0
    assert rig.settle(tokens[:1], Complete(), session=lock) is None
    assert rig.settle(tokens[1:2], DeadLetter("why")) is None  # by token alone, as over $management
    assert rig.settle(tokens[2:3], Defer(), session=lock) is None
    assert rig.settle(tokens[:1], Complete(), session=lock) is not None
    messages, refusal = rig.receive_deferred(3, session=lock)
    assert refusal is None
    assert messages[0].locked_until == 1050.0
    assert rig.received(path=DEAD) == [b"2"]  # dead letters need no session
    rig.now += 10.0
    for answer in (
        rig.settle(tokens[3:], Complete(), session=lock),
        rig.namespace.sessions.renew(lock, rig.now),
        rig.receive_deferred(3, session=lock)[1],
    ):
        refused(answer, "com.microsoft:session-lock-lost")
    assert isinstance(rig.namespace.receive.renew(rig.queue(), tokens, rig.now), Refusal)
    assert rig.receive_deferred(3)[1] is not None
    for each in lives(rig):
        assert each.bodies() == [b"3", b"4"]
        assert each.bodies(DEAD) == [b"2"]


def test_closing_does_not_count_and_running_out_does(rig: Rig) -> None:
    send(rig, ("a", b"1"), ("a", b"2"))
    lock = rig.accept()
    rig.acquire(5, session=lock)
    rig.namespace.sessions.release(lock, rig.now)
    assert not lock.is_held(rig.now)
    rig.namespace.sessions.release(lock, rig.now)
    lock = rig.accept()
    lost: list[str] = []
    lock.on_lost = lambda: lost.append(lock.session_id)
    free: list[str] = []
    rig.queue().on_session_free = lambda: free.append("free")
    (message,) = rig.acquire(1, session=lock)
    assert message.delivery_count == 0
    rig.pass_time(30.0)
    assert (lost, free) == (["a"], ["free"])
    for each in lives(rig):
        assert [m.delivery_count for m in each.queue().scan(0)] == [1, 0]
    lock = rig.accept()
    rig.acquire(1, session=lock)
    rig.pass_time(30.0)
    assert rig.bodies(DEAD) == [b"1"]
    assert rig.bodies() == [b"2"]


def test_an_expired_lock_is_not_released_but_counted(rig: Rig) -> None:
    send(rig, ("a", b"1"))
    lock = rig.accept()
    rig.acquire(1, session=lock)
    rig.now += 30.0
    rig.namespace.sessions.release(lock, rig.now)  # too late
    rig.pass_time(0.0)
    (message,) = rig.acquire(1, session=rig.accept())
    assert message.delivery_count == 1


def test_receive_and_delete_in_a_session(rig: Rig) -> None:
    send(rig, ("a", b"1"), ("b", b"2"))
    taken: list[list[bytes]] = []

    def done(messages: list[object], refusal: Refusal | None) -> None:
        assert refusal is None
        taken.append([body_of(rig.namespace.receive.delivery(rig.queue(), m, locked=False)) for m in messages])  # type: ignore[arg-type]

    rig.namespace.receive.take(rig.queue(), 5, rig.now, done)  # type: ignore[arg-type]
    rig.namespace.receive.take(rig.queue(), 5, rig.now, done, rig.accept("b"))  # type: ignore[arg-type]
    rig.run()
    assert taken == [[], [b"2"]]
    assert rig.bodies() == [b"1"]


def test_peek_and_batch_delete_by_session(rig: Rig) -> None:
    send(rig, ("a", b"1"), ("b", b"2"), ("a", b"3"))
    peeked = finish(rig.namespace.receive.peek(rig.queue(), 0, 10, rig.now, "a"))
    assert [body_of(payload) for payload in peeked] == [b"1", b"3"]
    rig.accept("a")
    assert rig.delete_messages(10, rig.now) == 1  # what is in nobody's hands
    assert rig.delete_messages(10, rig.now, session_id="a") == 2
    assert rig.bodies() == []


def test_messages_wake_their_holder_or_who_waits_for_a_session(rig: Rig) -> None:
    told: list[str] = []
    rig.queue().on_session_free = lambda: told.append("free")
    lock = rig.accept("a")
    lock.on_available = lambda: told.append(f"a {rig.queue().available_in(lock)}")
    send(rig, ("a", b"1"))
    assert told == ["a 1"]
    send(rig, ("b", b"2"))
    assert told == ["a 1", "free"]
    (message,) = rig.acquire(5, session=lock)
    assert rig.settle([message.lock_token or b""], Abandon(), session=lock) is None
    assert told[2:] == ["a 1"]
    rig.namespace.sessions.release(lock, rig.now)
    assert told[3:] == ["free"]


def test_scheduled_and_expiring_messages_in_sessions(rig: Rig) -> None:
    rig.send_payloads(
        make_special(b"1", session_id="a", ttl=10.0),
        make_special(b"2", session_id="b", at=1020.0),
    )
    rig.pass_time(10.0)
    assert rig.namespace.sessions.accept(rig.queue(), None, rig.now) is None
    rig.pass_time(10.0)
    for each in lives(rig):
        lock = each.accept()
        assert each.received(session=lock) == [b"2"]
        each.namespace.sessions.release(lock, each.now)


# state


def test_state_outlives_messages_locks_and_the_broker(rig: Rig) -> None:
    assert rig.state("a") is None
    assert rig.set_state("a", b"one") is None
    assert rig.set_state("a", b"two") is None
    assert rig.set_state("b", b"") is None
    for each in lives(rig):
        assert (each.state("a"), each.state("b")) == (b"two", b"")
        listed = finish(each.namespace.sessions.list_ids(each.queue(), None, 0, 10))
        assert [id for id in listed if id != "filler"] == ["a", "b"]
        # set a moment after the first
        assert "a" in finish(each.namespace.sessions.list_ids(each.queue(), each.now, 0, 10))
    assert rig.set_state("a", None) is None
    for each in lives(rig):
        assert (each.state("a"), each.state("b")) == (None, b"")


def test_a_state_is_there_when_its_record_is(rig: Rig) -> None:
    answers: list[object] = []
    queue = rig.queue()
    for state in (b"one", b"two", None, b"three"):
        rig.namespace.sessions.set_state(queue, "a", state, rig.now, answers.append)
    assert (rig.state("a"), answers) == (None, [])
    rig.turn()
    rig.answer()
    assert (rig.state("a"), answers) == (b"one", [None])
    for _ in range(3):
        rig.run()
    assert (rig.state("a"), answers) == (b"three", [None] * 4)


def test_a_state_may_be_as_large_as_a_message(rig: Rig) -> None:
    refused(rig.set_state("a", b"x" * (256 * 1024 + 1)), "amqp:link:message-size-exceeded")


def test_a_state_that_could_not_be_written_is_as_it_was(rig: Rig) -> None:
    rig.set_state("a", b"one")
    with rig.refusing():
        assert rig.set_state("a", b"two") is not None
        assert rig.set_state("new", b"two") is not None
    assert rig.state("a") == b"one"
    assert finish(rig.namespace.sessions.list_ids(rig.queue(), None, 0, 10)) == ["a"]


@pytest.mark.parametrize("state", [b"new", None])
def test_a_state_that_a_copy_overtakes_is_written_again(rig: Rig, state: bytes | None) -> None:
    rig.set_state("a", b"old")
    fill(rig, 3)
    answers: list[object] = []
    rig.namespace.sessions.set_state(rig.queue(), "a", state, rig.now, answers.append)
    rig.compact()  # copies the old one, behind the record of the new one
    rig.run()
    assert answers == [None]
    for each in lives(rig):
        assert each.state("a") == state


def test_a_second_record_that_is_refused_is_tried_until_it_is_written(rig: Rig) -> None:
    rig.set_state("a", b"old")
    answers: list[object] = []
    rig.namespace.sessions.set_state(rig.queue(), "a", None, rig.now, answers.append)
    rig.turn()
    sessions = rig.queue().sessions
    assert sessions is not None
    session = sessions.get("a")
    assert session is not None
    session.recopied = True  # compaction has made a copy
    rig.journal._state = "closed"
    rig.answer()
    assert answers == [None]
    assert rig.state("a") is None
    rig.namespace.maintenance.write_again()
    rig.run()
    rig.journal._state = "started"
    rig.namespace.maintenance.write_again()
    rig.run()
    with rig.reopened() as again:
        assert again.state("a") is None


def test_deleted_sessions_leave_nothing(rig: Rig) -> None:
    send(rig, ("a", b"1"))
    rig.set_state("a", b"one")
    lock = rig.accept("a")
    lost: list[SessionLock] = []
    lock.on_lost = lambda: lost.append(lock)
    queue = rig.queue()
    rig.namespace.registry.delete_queue("orders", rig.now, lambda refusal: None)
    assert isinstance(rig.namespace.sessions.accept(queue, "b", rig.now), Refusal)
    rig.run()
    assert lost == [lock]
    assert rig.live_bytes() < 20
    with rig.reopened() as again:
        assert dict(again.namespace.queues) == {}
    assert isinstance(queue.session_lost(), LocksLost)
