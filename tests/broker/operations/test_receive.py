"""What can't be read while the disk stalls: it is passed over, or waited for, and counts as no delivery (P48)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Defer
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.unread import PASSED_MAX, UNREAD_S
from pairbus.journal import JournalStalled
from tests.broker.namespace_rig import FOLDER, Rig, body_of, make, make_special, refused

STANDBY = "s"


def stalled(count: int = 1, **fields: object) -> Rig:
    """A broker that was restarted, so that nothing is in memory, and whose data folder stalls."""
    with Rig(standby=STANDBY) as rig:
        rig.create(**fields)
        is_session = bool(fields.get("requires_session"))
        for number in range(count):
            body = b"before %d" % number
            assert rig.send_payloads(make_special(body, session_id="a") if is_session else make(body)) is None
        again = rig.reopened()
    again.files.stalled.add(FOLDER)
    body = b"in the stall"
    assert again.send_payloads(make_special(body, session_id="a") if is_session else make(body)) is None
    return again


@pytest.fixture
def rig() -> Iterator[Rig]:
    with stalled(2) as rig:
        yield rig


def resume(rig: Rig) -> None:
    """Let the disk answer, and the broker notice it."""
    rig.files.resume()
    rig.wait(0.0, 2)
    rig.pass_time(UNREAD_S)


def deliver(rig: Rig, count: int = 10) -> list[bytes]:
    """The bodies of what can be read of the next messages; the others are passed over."""
    queue, found = rig.queue(), []
    for message in rig.acquire(count):
        try:
            found.append(body_of(rig.namespace.receive.delivery(queue, message, locked=True)))
        except JournalStalled:
            rig.namespace.receive.pass_over(queue, message, rig.now)
    return found


def take(rig: Rig, count: int, session: SessionLock | None = None) -> tuple[list[bytes], Refusal | None, bool]:
    queue = rig.queue()
    answers: list[tuple[list[Message], Refusal | None]] = []
    goes_on = rig.namespace.receive.take(queue, count, rig.now, lambda *each: answers.append(each), session)
    rig.run()
    ((messages, refusal),) = answers
    return [body_of(rig.namespace.receive.delivery(queue, each, locked=False)) for each in messages], refusal, goes_on


def counts(rig: Rig) -> list[tuple[int, int]]:
    return [(each.sequence_number, each.delivery_count) for each in rig.queue().scan(0)]


def test_p48_locked_messages_that_cannot_be_read_are_passed_over_and_not_counted(rig: Rig) -> None:
    assert deliver(rig) == [b"in the stall"]
    assert (rig.queue().available, rig.queue().locked) == (0, 1)
    rig.pass_time(UNREAD_S)
    assert rig.queue().available == 0, "each is passed over once"
    rig.pass_time(rig.queue().lock_duration)
    assert deliver(rig) == [b"in the stall"], "its lock has run out, and theirs have not: they have none"
    resume(rig)
    assert deliver(rig) == [b"before 0", b"before 1"]
    assert counts(rig) == [(1, 0), (2, 0), (3, 1)]


def test_p48_they_come_back_in_order_before_those_behind_them(rig: Rig) -> None:
    assert deliver(rig, 2) == []
    resume(rig)
    assert deliver(rig) == [b"before 0", b"before 1", b"in the stall"]


def test_p48_receive_and_delete_passes_over_what_cannot_be_read(rig: Rig) -> None:
    assert take(rig, 10) == ([b"in the stall"], None, True)
    assert take(rig, 10) == ([], None, True)
    resume(rig)
    assert take(rig, 10) == ([b"before 0", b"before 1"], None, True)
    with rig.reopened() as again:
        assert again.bodies() == []


def test_p48_receive_and_delete_passes_over_more_than_it_asks_for(rig: Rig) -> None:
    assert [take(rig, 1) for _ in range(3)] == [([], None, True), ([], None, True), ([b"in the stall"], None, True)]


def test_p48_of_a_session_nothing_is_taken_before_what_cannot_be_read() -> None:
    with stalled(2, requires_session=True) as rig:
        lock = rig.accept("a")
        for _ in range(2):
            assert take(rig, 1, lock) == ([], None, False)
            assert take(rig, 10, lock) == ([], None, False)
        rig.files.resume()
        rig.pass_time(UNREAD_S)
        assert take(rig, 10, lock) == ([b"before 0", b"before 1", b"in the stall"], None, True)


def test_p48_of_a_session_what_can_be_read_is_taken_up_to_there() -> None:
    with stalled(2, requires_session=True) as rig:
        first = rig.queue().get(1)
        assert first is not None
        first.content = b"\x00\x53\x75\xa0\x01x"
        rig.queue().resident_bytes += first.length
        rig.namespace.store.resident += first.length
        bodies, refusal, goes_on = take(rig, 10, rig.accept("a"))
        assert (bodies, refusal, goes_on) == ([b"x"], None, False)
        assert [number for number, _ in counts(rig)] == [2, 3]


def test_p48_what_is_given_back_of_a_session_is_not_counted() -> None:
    with stalled(1, requires_session=True) as rig:
        lock = rig.accept("a")
        messages = rig.acquire(10, session=lock)
        rig.namespace.receive.give_back(rig.queue(), messages, rig.now, lock)
        assert counts(rig) == [(1, 0), (2, 0)] and rig.queue().available_in(lock) == 2


def test_p48_deferred_messages_that_cannot_be_read_are_refused_with_words_about_reading(rig: Rig) -> None:
    resume(rig)
    token = rig.tokens()
    assert rig.settle(token, Defer({})) is None
    rig.files.stalled.add(FOLDER)
    assert rig.send(b"once more") is None
    messages, refusal = rig.receive_deferred(1, delete=True)
    assert not messages
    refused(refusal, "amqp:internal-error", "does not answer", "can't be read now")
    assert refusal is not None
    assert "stored" not in refusal.description and "sends are refused" not in refusal.description


def test_p48_another_error_than_a_stall_is_told_and_nothing_is_taken() -> None:
    with Rig() as first:
        first.create()
        assert first.send(b"a", b"b") is None
        rig = first.reopened()
    with rig:
        rig.fail_calls("pread", times=1)
        bodies, refusal, goes_on = take(rig, 10)
        assert (bodies, goes_on) == ([], True)
        refused(refusal, "amqp:internal-error", "refused", "can't be read now", "EIO")
        assert take(rig, 10) == ([b"a", b"b"], None, True)


def test_p48_no_more_than_so_many_are_passed_over_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.broker.storage.unread.PASSED_MAX", 3)
    with stalled(4) as rig:
        first = [take(rig, 1)[2] for _ in range(4)]
        assert first == [True, True, False, False]
        rig.pass_time(UNREAD_S)
        assert take(rig, 10) == ([b"in the stall"], None, True)
    assert PASSED_MAX > 3


def test_p48_those_of_a_queue_that_is_deleted_meanwhile_are_forgotten(rig: Rig) -> None:
    other = rig.create("other")
    assert deliver(rig) == [b"in the stall"]
    assert rig.do(rig.namespace.registry.delete_queue, "orders") is None
    resume(rig)
    assert len(rig.namespace.store.unread) == 0 and other.available == 0
    assert rig.namespace.deadline is None


def test_p48_they_can_be_compacted_while_they_are_aside(rig: Rig) -> None:
    assert deliver(rig) == [b"in the stall"]
    rig.files.resume()
    rig.wait(0.0, 2)
    rig.compact_all()
    rig.pass_time(UNREAD_S)
    assert deliver(rig) == [b"before 0", b"before 1"]
    with rig.reopened() as again:
        assert again.received() == [b"before 0", b"before 1", b"in the stall"]


def test_p48_a_clock_that_is_set_leaves_the_second_as_it_is(rig: Rig) -> None:
    assert deliver(rig) == [b"in the stall"]
    rig.files.resume()
    rig.wait(0.0, 3)
    for seconds in (-5000.0, 9000.0):
        rig.now += seconds
        rig.namespace.shift(seconds)
        rig.pass_time(0.4)
        assert rig.queue().available == 0
    rig.pass_time(0.4)
    assert deliver(rig) == [b"before 0", b"before 1"]


def test_p48_settling_tells_that_something_could_not_be_read() -> None:
    """Earlier changes of a message can't be read: it stays as it was."""
    with Rig(standby=STANDBY, now=1000.0) as rig:
        rig.create()
        assert rig.send(b"x") is None
        assert rig.settle(rig.tokens(), Abandon({"k": "v" * 5000})) is None
        again = rig.reopened()
    with again:
        tokens = again.tokens()
        again.files.stalled.add(FOLDER)
        assert again.send(b"y") is None
        refusal = again.settle(tokens, Abandon({"m": 1}))
        refused(refusal, "amqp:internal-error", "can't be read now")
