from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from pairbus.amqp.message import encode_message
from pairbus.amqp.types import Symbol
from pairbus.broker.format.content import SCHEDULED_TIME
from pairbus.broker.model import duplicates
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Complete, Defer
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import DEAD, PING, Rig, body_of, make, make_special, refused
from tests.message_view import View


def message_annotations(payload: bytes) -> dict[str, object]:
    return View(payload).message_annotations


# scheduled messages


def test_a_scheduled_message_waits_for_its_time(rig: Rig) -> None:
    assert rig.send_payloads(make_special(b"later", at=1060.0), make(b"now")) is None
    entity = rig.namespace.queues["orders"]
    assert (entity.active_count, entity.scheduled_count) == (1, 1)
    for each in rig.lives():
        peeked = each.peeked()
        assert [body_of(payload) for payload in peeked] == [b"later", b"now"]
        assert message_annotations(peeked[0])["x-opt-message-state"] == 2
        assert message_annotations(peeked[0])[SCHEDULED_TIME] == 1_060_000
        assert each.received() == [b"now"]
    assert rig.namespace.deadline is not None
    rig.pass_time(29.9)
    assert rig.received() == []


def test_it_becomes_active_as_a_new_message(rig: Rig) -> None:
    woken: list[int] = []
    rig.queue().on_available = lambda: woken.append(rig.queue().available)
    (first,), _ = rig.schedule(make_special(b"later", at=1060.0, ttl=20.0))
    rig.send(b"sent after it")
    rig.pass_time(61.0)
    assert woken == [0, 1, 2]
    for each in rig.lives():
        messages = each.acquire(5)
        assert [message.sequence_number for message in messages] == [first + 1, first + 2]
        later = messages[1]
        assert (later.enqueued_at, later.expires_at) == (1061.0, 1081.0)
        told = message_annotations(each.namespace.receive.delivery(each.queue(), later, locked=True))
        sent = message_annotations(each.namespace.receive.delivery(each.queue(), messages[0], locked=True))
        assert (told["x-opt-message-state"], sent.get("x-opt-message-state")) == (2, None)
        assert [message_annotations(peeked).get("x-opt-message-state") for peeked in each.peeked()] == [None, None]
        assert told["x-opt-enqueued-time"] == 1_061_000
        entity = each.namespace.queues["orders"]
        assert (entity.active_count, entity.scheduled_count, entity.last_sequence) == (2, 0, first + 2)


def test_a_delivery_says_that_a_message_had_been_scheduled(rig: Rig) -> None:
    """As the service says it, whatever became of the message since; peek says what it is now."""
    rig.schedule(make_special(b"later", at=1060.0))
    rig.pass_time(61.0)

    def states(message: Message, queue: MessageQueue) -> list[object]:
        """Of a locked delivery, of one that is removed, and of a peek."""
        deliver = partial(rig.namespace.receive.delivery, queue, message)
        payloads = (deliver(locked=True), deliver(locked=False), deliver(locked=False, is_peeked=True))
        return [message_annotations(payload).get("x-opt-message-state") for payload in payloads]

    (message,) = rig.acquire(1)
    assert states(message, rig.queue()) == [2, 2, None]
    assert message.lock_token is not None
    rig.settle([message.lock_token], Abandon({"tried": True}))
    (message,) = rig.acquire(1)
    assert states(message, rig.queue()) == [2, 2, None]
    assert message.lock_token is not None
    rig.settle([message.lock_token], Defer())
    assert states(message, rig.queue()) == [1, 1, 1]


def test_a_name_alone_does_not_make_it_one_that_had_been_scheduled(rig: Rig) -> None:
    for value in ({Symbol("x"): SCHEDULED_TIME}, {Symbol(SCHEDULED_TIME): None}):
        assert rig.send_payloads(encode_message(message_annotations=value, body=b"now")) is None
    for message in rig.acquire(2):
        told = message_annotations(rig.namespace.receive.delivery(rig.queue(), message, locked=True))
        assert "x-opt-message-state" not in told


def test_its_entry_on_disk_may_have_the_old_number_for_long(rig: Rig) -> None:
    rig.schedule(make_special(b"a", at=1010.0), make_special(b"b", at=1010.0), make_special(b"c", at=1010.0))
    rig.pass_time(10.0)
    assert rig.settle(rig.tokens(), Complete()) is None
    assert rig.settle(rig.tokens(), Abandon({"a": 1})) is None
    assert len(rig.queue().entity.renumbered) == 2
    for each in rig.lives():
        assert each.bodies() == [b"b", b"c"]
        assert [message.delivery_count for message in each.queue().scan(0)] == [1, 0]
        assert [message.sequence_number for message in each.queue().scan(0)] == [5, 6]
    while len(rig.queue().entity.renumbered):
        rig.grow(len(rig.journal.segments()) + 1)
        rig.compact()


def test_what_was_copied_under_its_new_number_and_received_stays_gone(rig: Rig) -> None:
    rig.create("other")

    def move_on() -> None:
        segments = len(rig.journal.segments())
        while len(rig.journal.segments()) == segments:
            rig.send(b"x" * 200, path="other")
        rig.compact()

    rig.schedule(make_special(b"later", at=1010.0))
    rig.pass_time(10.0)
    move_on()  # it is copied
    assert rig.take(1)[0] == [b"later"]
    for _ in range(4):
        move_on()
    with rig.reopened() as again:
        assert again.bodies() == rig.bodies() == []


def test_what_is_due_while_the_broker_is_down_is_active_when_it_is_up(rig: Rig) -> None:
    rig.send_payloads(make_special(b"later", at=1060.0))
    with rig.reopened() as again:
        again.pass_time(100.0)
        assert again.received() == [b"later"]


def test_a_time_that_has_passed_is_now(rig: Rig) -> None:
    numbers, refusal = rig.schedule(make_special(b"a", at=900.0), make(b"b"), make_special(b"c", at=1001.0))
    assert (numbers, refusal) == ([1, 2, 3], None)
    assert rig.received() == [b"a", b"b"]


def test_a_schedule_is_taken_whole_or_not_at_all(rig: Rig) -> None:
    numbers, refusal = rig.schedule(make_special(b"a", at=1060.0), b"nonsense")
    assert numbers == []
    refused(refusal, "amqp:decode-error")
    assert rig.bodies() == []


def test_cancelling(rig: Rig) -> None:
    numbers, _ = rig.schedule(*(make_special(body, at=1060.0) for body in (b"a", b"b", b"c")))
    refused(rig.cancel(numbers[0], 99), "com.microsoft:message-not-found", "99")
    assert rig.cancel(*numbers[:2]) is None
    assert rig.cancel() is None
    assert rig.cancel(numbers[0]) is not None
    rig.pass_time(60.0)
    assert rig.cancel(numbers[2]) is not None  # it is active now
    for each in rig.lives():
        assert each.bodies() == [b"c"]


def test_what_could_not_be_cancelled_is_still_scheduled(rig: Rig) -> None:
    numbers, _ = rig.schedule(make_special(b"a", at=1060.0))
    with rig.refusing():
        assert rig.cancel(*numbers) is not None
    assert rig.queue().scheduled_count == 1
    rig.pass_time(60.0)
    assert rig.received() == [b"a"]


def test_an_activation_that_could_not_be_written_is_tried_again_after_a_while(rig: Rig) -> None:
    rig.schedule(make_special(b"a", at=1060.0))
    with rig.refusing():
        assert rig.pass_time(60.0) == 1061.0
    assert rig.pass_time(0.5) == 1061.0
    assert rig.received() == []
    rig.pass_time(0.5)
    assert rig.received() == [b"a"]


def test_an_activation_that_the_disk_refused_later_is_tried_again_too(rig: Rig) -> None:
    rig.schedule(make_special(b"a", at=1060.0))
    rig.files.is_read_only_now = True
    rig.now = 1060.0
    rig.namespace.tick(rig.now)
    assert rig.namespace.deadline is None  # it is taken, and its record on its way
    rig.turn()
    rig.answer()
    rig.files.is_read_only_now = False
    assert rig.namespace.tick(rig.now) == 1061.0
    rig.pass_time(5.0)
    assert rig.received() == [b"a"]


def test_a_copy_made_while_it_becomes_active_does_not_make_it_two(rig: Rig) -> None:
    rig.schedule(make_special(b"later", at=1060.0))
    rig.grow()
    rig.now = 1060.0
    rig.namespace.tick(rig.now)  # the record is on its way
    task = rig.loop.create_task(rig.journal.compact(rig.namespace.store.live_records))
    rig.loop.run_until_complete(asyncio.sleep(0))
    rig.turn()
    with rig.reopened() as again:  # the activation, and behind it a copy that calls it scheduled
        again.now = rig.now
        again.pass_time(0.0)
        assert again.bodies().count(b"later") == 1
    while not task.done():
        rig.loop.run_until_complete(asyncio.sleep(0))
        rig.run()
    for each in rig.lives():
        assert each.bodies().count(b"later") == 1
        assert each.queue().scheduled_count == 0


# lifetimes


def test_what_has_outlived_its_time_is_gone(rig: Rig) -> None:
    rig.send_payloads(make_special(b"short", ttl=10.0), make_special(b"long", ttl=60.0), make(b"for ever"))
    rig.now += 10.0
    assert rig.received() == [b"long", b"for ever"]  # whether or not somebody has ticked
    rig.run()
    assert rig.bodies() == [b"long", b"for ever"]
    for each in rig.lives():
        assert each.bodies() == [b"long", b"for ever"]
        assert each.bodies(DEAD) == []


def test_the_queue_may_shorten_a_life() -> None:
    with Rig() as rig:
        rig.create(default_ttl=20.0)
        rig.send_payloads(make(b"a"), make_special(b"b", ttl=60.0), make_special(b"c", ttl=5.0))
        ttls = [View(payload).header.ttl for payload in rig.peeked()]
        assert ttls == [20_000, 20_000, 5_000]
        assert [message.expires_at for message in rig.queue().scan(0)] == [1020.0, 1020.0, 1005.0]
        rig.pass_time(19.9)
        assert rig.bodies() == [b"a", b"b"]
        rig.pass_time(0.1)
        assert rig.bodies() == []


# duplicates


@pytest.fixture
def strict() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create(requires_duplicate_detection=True, duplicate_window=60.0)
        yield rig


def test_a_second_one_is_confirmed_and_dropped(strict: Rig) -> None:
    assert strict.send_payloads(make_special(b"1", id="a")) is None
    assert strict.send_payloads(make_special(b"2", id="a"), make_special(b"3", id="b")) is None
    assert strict.send_payloads(make_special(b"4", id="c"), make_special(b"5", id="c"), PING) is None
    assert strict.send_payloads(make_special(b"6", id="c"), PING) is None
    assert strict.bodies() == [b"1", b"3", b"4"]
    assert strict.queue().entity.pings == 2
    assert [message.sequence_number for message in strict.queue().scan(0)] == [1, 2, 3]


def test_the_history_outlives_the_messages_until_its_time_is_over(strict: Rig) -> None:
    strict.send_payloads(make_special(b"1", id="a"))
    strict.now += 10.0
    strict.send_payloads(make_special(b"2", id="b"))
    assert strict.take(5)[0] == [b"1", b"2"]
    for each in strict.lives():
        assert each.send_payloads(make_special(b"3", id="a"), make_special(b"4", id="b")) is None
        assert each.bodies() == []
    strict.pass_time(50.0)
    for n, each in enumerate(strict.lives()):
        assert each.send_payloads(make_special(b"5", id="a"), make_special(b"6", id="b")) is None
        assert each.bodies() == [b"5"]
        assert n < 3


def test_a_history_that_is_over_takes_no_room(strict: Rig) -> None:
    for n in range(60):
        strict.send_payloads(make_special(b"%d" % n, id=str(n)))
    strict.take(60)
    assert sum(segment.live for segment in strict.journal.segments()) > 60 * 24
    strict.pass_time(62.0)
    assert sum(segment.live for segment in strict.journal.segments()) < 600
    assert len(strict.queue().entity.duplicates or ()) == 0


def test_a_second_one_waits_for_what_becomes_of_the_first(strict: Rig) -> None:
    answers: list[tuple[str, Refusal | None]] = []
    queue = strict.queue()
    namespace = strict.namespace
    namespace.enqueue.send(
        queue, [make_special(b"1", id="a")], strict.now, lambda each: answers.append(("first", each))
    )
    namespace.enqueue.send(
        queue, [make_special(b"2", id="a")], strict.now, lambda each: answers.append(("second", each))
    )
    mixed = [make_special(b"3", id="a"), make_special(b"4", id="b")]
    namespace.enqueue.send(queue, mixed, strict.now, lambda each: answers.append(("third", each)))
    assert answers == []
    strict.run()
    assert sorted(answers) == [("first", None), ("second", None), ("third", None)]
    assert strict.bodies() == [b"1", b"4"]


def test_a_second_one_is_refused_with_the_first_and_may_come_again(strict: Rig) -> None:
    answers: list[Refusal | None] = []
    queue = strict.queue()
    strict.namespace.enqueue.send(queue, [make_special(b"1", id="a")], strict.now, answers.append)
    both_ids = [make_special(b"2", id="a"), make_special(b"3", id="b")]
    strict.namespace.enqueue.send(queue, both_ids, strict.now, answers.append)
    strict.fail_calls("pwrite", "fdatasync", "create", "rename")
    strict.run()
    strict.files.faults.clear()
    assert len(answers) == 2
    assert all(isinstance(answer, Refusal) for answer in answers)
    strict.wait(1.0)
    assert strict.send_payloads(make_special(b"4", id="a")) is None
    assert strict.bodies() == [b"4"]


def test_schedules_are_looked_at_too(strict: Rig) -> None:
    numbers, refusal = strict.schedule(make_special(b"1", id="a", at=1060.0), make_special(b"2", id="a", at=1060.0))
    assert (numbers, refusal) == ([1, 0], None)
    assert strict.schedule(make_special(b"3", id="a", at=1070.0)) == ([0], None)
    assert strict.cancel(1) is None
    assert strict.send_payloads(make_special(b"4", id="a")) is None  # cancelled, and still known
    assert strict.bodies() == []


def test_memory_for_ids_is_bounded(strict: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "IDS_MAX", 2)
    assert strict.send_payloads(make_special(b"1", id="a"), make_special(b"2", id="b")) is None
    refused(strict.send_payloads(make_special(b"3", id="c")), "com.microsoft:server-busy", "60 s")
    assert strict.send_payloads(make_special(b"4", id="a")) is None
    strict.pass_time(60.0)
    assert strict.send_payloads(make_special(b"5", id="c")) is None


# who may send


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        ("Active", True, True),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
        ("Disabled", False, False),
    ],
)
def test_status(rig: Rig, status: str, sends: bool, receives: bool) -> None:
    rig.send(b"a")
    description = replace(rig.queue().entity.description, status=status)
    assert rig.do(rig.namespace.registry.update, description) is None
    for each in rig.lives():
        refusal = each.send(b"b")
        _, schedule_refusal = each.schedule(make_special(b"c", at=1060.0))
        assert refusal == schedule_refusal
        assert (refusal is None) == sends
        taken, receive_refusal = each.take(1)
        assert (taken == [b"a"]) == receives
        assert each.queue().entity.refuses_receives == receive_refusal
        for answer in (refusal, receive_refusal):
            if answer is not None:
                refused(answer, "com.microsoft:entity-disabled", status)
        if receives:
            break


def test_a_queue_with_sessions_wants_to_know_which(bare: Rig) -> None:
    bare.create(requires_session=True)
    for answer in (
        bare.send_payloads(make_special(b"a", session_id="s"), make(b"b")),
        bare.schedule(make_special(b"c", at=1060.0))[1],
    ):
        refused(answer, "amqp:not-allowed", "requires sessions")
    assert bare.send_payloads(make_special(b"a", session_id="s"), PING) is None
    assert bare.bodies() == [b"a"]
