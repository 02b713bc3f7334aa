"""Deferring, deleting many at once, and what happens when a message has outlived its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, Release
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import finish
from tests.broker.namespace_rig import DEAD, Rig, body_of, make_special, properties_of, refused


def lives(rig: Rig) -> Iterator[Rig]:
    return rig.lives(lambda: rig.grow(len(rig.journal.segments()) + 1))


def numbers(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


# deferring


@pytest.mark.parametrize("path", ["orders", DEAD])
def test_a_deferred_message_is_received_by_number_alone(rig: Rig, path: str) -> None:
    rig.send(b"a", b"b", b"c")
    if path == DEAD:
        rig.settle(rig.tokens(3), DeadLetter("why"))
    assert rig.settle(rig.tokens(2, path), Defer({"why": "later"}), path) is None
    with rig.reopened() as again:
        for each in (rig, again):
            assert each.received(5, path) == [b"c"]
            messages, refusal = each.receive_deferred(2, 1, path=path)
            assert refusal is None
            assert numbers(messages) == [2, 1]
            payload = each.namespace.receive.delivery(each.queue(path), messages[0], locked=True)
            assert body_of(payload) == b"b"
            assert properties_of(payload)["why"] == "later"
            assert messages[0].delivery_count == 1  # once more than when it was deferred
            assert each.settle([messages[0].lock_token or b""], Complete(), path) is None
            assert each.receive_deferred(2, path=path)[1] is not None
            each.settle([messages[1].lock_token or b""], Release(), path)
            assert numbers(each.receive_deferred(1, path=path, delete=True)[0]) == [1]


def test_deferred_is_deferred_after_a_kill_and_after_compaction(rig: Rig) -> None:
    rig.send(b"a", b"b")
    rig.settle(rig.tokens(1), Defer())
    for each in lives(rig):
        bodies = [body_of(each.namespace.receive.delivery(each.queue(), m, locked=True)) for m in each.acquire(5)]
        assert b"a" not in bodies
        (payload,) = finish(each.namespace.receive.peek(each.queue(), 1, 1, each.now))
        assert body_of(payload) == b"a"
        messages, refusal = each.receive_deferred(1)
        assert (numbers(messages), refusal) == ([1], None)
        each.settle([messages[0].lock_token or b""], Release())
        each.pass_time(30.0)


def test_all_or_none_are_received_by_number(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c")
    tokens = rig.tokens(2)
    rig.settle(tokens[:1], Defer())
    for missing in (2, 3, 99):  # locked, on offer, unknown
        messages, refusal = rig.receive_deferred(1, missing)
        assert messages == []
        refused(refusal, "com.microsoft:message-not-found", str(missing))
    assert rig.receive_deferred() == ([], None)
    assert numbers(rig.receive_deferred(1, 1)[0]) == [1]


@pytest.mark.parametrize("outcome", [Abandon(), Abandon({"a": 1}), None])
def test_what_is_not_settled_stays_deferred(rig: Rig, outcome: Abandon | None) -> None:
    rig.send(b"a")
    rig.settle(rig.tokens(), Defer())
    ((message,), _) = rig.receive_deferred(1)
    assert message.delivery_count == 1
    if outcome is None:
        rig.pass_time(30.0)
    else:
        assert rig.settle([message.lock_token or b""], outcome) is None
    assert rig.acquire() == []
    with rig.reopened() as again:
        for each in (rig, again):
            ((message,), _) = each.receive_deferred(1)
            assert message.delivery_count == 2
            if outcome is None:
                each.pass_time(30.0)
            else:
                assert each.settle([message.lock_token or b""], outcome) is None
            assert each.bodies(DEAD) == [b"a"]
            assert numbers(each.acquire(1, DEAD)) == [1]  # on offer there, no longer deferred


def test_a_deferral_that_could_not_be_written_leaves_the_lock(rig: Rig) -> None:
    rig.send(b"a")
    tokens = rig.tokens()
    with rig.refusing():
        assert rig.settle(tokens, Defer()) is not None
    assert rig.receive_deferred(1)[1] is not None
    assert rig.settle(tokens, Complete()) is None


def test_what_is_taken_for_good_by_number_is_gone(rig: Rig) -> None:
    rig.send(b"a", b"b")
    rig.settle(rig.tokens(2), Defer())
    messages, refusal = rig.receive_deferred(1, delete=True)
    assert refusal is None
    assert body_of(rig.namespace.receive.delivery(rig.queue(), messages[0], locked=False)) == b"a"
    with rig.refusing():
        assert rig.receive_deferred(2, delete=True)[1] is not None
    for each in lives(rig):
        assert each.receive_deferred(1)[1] is not None
        assert each.receive_deferred(2)[1] is None


# lifetimes


@pytest.fixture
def burying() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create(lock_duration=30.0, dead_letter_on_expiration=True)
        yield rig


def test_expired_messages_become_dead_letters(burying: Rig) -> None:
    woken: list[str] = []
    burying.queue(DEAD).on_available = lambda: woken.append("dead")
    burying.send_payloads(make_special(b"a", ttl=10.0), make_special(b"b", ttl=20.0))
    assert burying.pass_time(10.0) == 1020.0
    assert woken == ["dead"]
    assert burying.pass_time(1000.0) is None
    for each in lives(burying):
        assert each.bodies(DEAD) == [b"a", b"b"]
        (payload, _) = each.peeked(DEAD)
        assert properties_of(payload) == {
            "DeadLetterReason": "TTLExpiredException",
            "DeadLetterErrorDescription": "The message expired and was dead lettered.",
        }
        each.pass_time(1e6)  # dead letters don't expire
        assert each.received(5, DEAD) == [b"a", b"b"]


def test_a_locked_message_does_not_expire(rig: Rig) -> None:
    rig.send_payloads(make_special(b"a", ttl=10.0), make_special(b"b", ttl=10.0))
    tokens = rig.tokens(2)
    rig.pass_time(29.0)
    assert rig.bodies() == [b"a", b"b"]
    assert rig.settle(tokens[:1], Complete()) is None
    assert rig.settle(tokens[1:], Abandon()) is None  # back on offer, and so it goes
    assert rig.acquire() == []
    rig.run()
    assert len(rig.queue()) == 0


def test_a_lock_that_runs_out_lets_it_expire(burying: Rig) -> None:
    burying.send_payloads(make_special(b"a", ttl=10.0))
    burying.tokens()
    assert burying.pass_time(30.0) is None
    assert burying.bodies(DEAD) == [b"a"]
    ((message,),) = (burying.acquire(1, DEAD),)
    assert message.delivery_count == 1


def test_a_deferred_message_does_not_expire(rig: Rig) -> None:
    rig.send_payloads(make_special(b"a", ttl=10.0))
    rig.settle(rig.tokens(), Defer())
    rig.pass_time(100.0)
    for each in lives(rig):
        each.pass_time(1.0)
        messages, refusal = each.receive_deferred(1)
        assert refusal is None
        each.settle([messages[0].lock_token or b""], Release())


@pytest.mark.parametrize("buries", [False, True])
def test_an_expiry_that_could_not_be_written_is_tried_again_after_a_while(bare: Rig, buries: bool) -> None:
    bare.create(dead_letter_on_expiration=buries)
    bare.send_payloads(make_special(b"a", ttl=10.0))
    with bare.refusing():
        bare.pass_time(3600.0)
        assert bare.namespace.deadline == bare.now + 1.0
    assert bare.received() == []  # and nobody gets it meanwhile
    bare.pass_time(1.0)
    assert bare.bodies() == []
    assert bare.bodies(DEAD) == ([b"a"] if buries else [])


def test_many_expire_in_good_time() -> None:
    with Rig() as rig:
        rig.create()
        for _ in range(25):
            rig.send_payloads(*(make_special(b"a", ttl=10.0) for _ in range(100)))
        rig.send(b"b")
        rig.pass_time(10.0)
        assert rig.received() == [b"b"]
        assert len(rig.queue().ready_list.ready) == 0


# deleting many


def test_the_oldest_are_deleted(rig: Rig) -> None:
    rig.send(b"a", b"b")
    rig.now += 10.0
    rig.send(b"c", b"d")
    locked = rig.tokens()
    rig.schedule(make_special(b"later", at=rig.now + 60.0))
    assert rig.delete_messages(1, rig.now) == 1
    assert rig.delete_messages(10, 1000.0) == 0
    assert rig.delete_messages(1, rig.now) == 1
    assert rig.settle(locked, Release()) is None
    assert rig.delete_messages(10, 1000.0) == 1
    for each in lives(rig):
        assert [body for body in each.bodies() if len(body) < 9] == [b"d", b"later"]


def test_what_could_not_be_deleted_is_on_offer_again(rig: Rig) -> None:
    rig.send(b"a", b"b")
    with rig.refusing():
        answers: list[tuple[int, Refusal | None]] = []
        rig.namespace.settlement.delete_messages(rig.queue(), 5, rig.now, rig.now, lambda *each: answers.append(each))
    assert answers[0][0] == 0
    assert answers[0][1] is not None
    assert rig.received() == [b"a", b"b"]


def test_nothing_can_be_done_to_a_queue_that_goes(rig: Rig) -> None:
    rig.send(b"a")
    queue = rig.queue()
    answers: list[object] = []
    rig.namespace.registry.delete_queue("orders", rig.now, lambda refusal: None)
    rig.namespace.settlement.cancel_scheduled(queue, [1], rig.now, answers.append)
    rig.namespace.settlement.delete_messages(queue, 1, rig.now, rig.now, lambda count, refusal: answers.append(refusal))
    rig.namespace.receive.receive_deferred(
        queue, [1], rig.now, lambda each, refusal: answers.append(refusal), delete=False
    )
    assert [isinstance(each, Refusal) and each.condition for each in answers] == ["amqp:not-found"] * 3
