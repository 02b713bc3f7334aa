from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import UInt
from pairbus.broker.format.content import PING_CONTENT_TYPE
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, LocksLost, Release
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import refusal_of
from pairbus.journal import JournalBusy, JournalClosed, JournalFailed, JournalFull, Options, RecordTooLarge
from tests.broker.namespace_rig import (
    DEAD,
    PING,
    Rig,
    body_of,
    condition,
    id_of,
    make,
    make_special,
    properties_of,
    refused,
)
from tests.message_view import View
from tests.simulation.disk import SimulatedDisk

# entities


def test_paths_are_resolved_in_any_case(rig: Rig) -> None:
    entity = rig.namespace.queues["orders"]
    assert rig.namespace.resolve("Orders") is entity.active
    assert rig.namespace.resolve("ORDERS/$deadletterqueue") is entity.dead_letter
    assert rig.namespace.resolve("other") is None
    assert rig.namespace.resolve("other/$DeadLetterQueue") is None
    assert entity.dead_letter.path == "orders/$DeadLetterQueue"


def test_a_name_is_taken_once_even_while_it_is_being_created(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    for name in ("ORDERS", "new", "New"):
        rig.namespace.registry.create(QueueDescription(name=name), 1.0, answers.append)
    rig.run()
    assert [condition(answer) for answer in answers] == [
        "com.microsoft:entity-already-exists",
        "com.microsoft:entity-already-exists",
        None,
    ]
    assert list(rig.namespace.queues) == ["orders", "new"]


def test_an_entity_is_there_when_its_record_is(rig: Rig) -> None:
    rig.namespace.registry.create(QueueDescription(name="new"), 7.0, lambda refusal: None)
    assert rig.namespace.resolve("new") is None
    rig.turn()
    assert rig.namespace.resolve("new") is None
    rig.answer()
    assert rig.namespace.queues["new"].description == QueueDescription(name="new", created_at=7.0, updated_at=7.0)


def test_an_update_applies_at_once_and_survives(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    stands = rig.namespace.queues["orders"].description
    rig.namespace.registry.update(replace(stands, name="ORDERS", lock_duration=5.0), 2000.0, answers.append)
    rig.namespace.registry.update(QueueDescription(name="other"), 2000.0, answers.append)
    rig.run()
    assert answers[1] is None
    assert answers[0] is not None
    assert answers[0].condition == "amqp:not-found"
    rig.send(b"a")
    assert rig.acquire()[0].locked_until == rig.now + 5.0
    with rig.reopened() as again:
        entity = again.namespace.queues["orders"]
        assert entity.description == replace(stands, lock_duration=5.0, updated_at=2000.0)
        assert entity.active.lock_duration == 5.0


def test_a_deleted_queue_is_gone_with_all_that_was_in_it(rig: Rig) -> None:
    rig.send(b"a", b"b")
    told = rig.note_deletions()
    old = rig.queue()
    tokens = rig.tokens()
    answers: list[Refusal | None] = []
    rig.namespace.registry.delete_queue("Orders", 1.0, answers.append)
    rig.namespace.registry.delete_queue("Orders", 1.0, answers.append)
    rig.namespace.enqueue.send(old, [make(b"c")], 1.0, answers.append)
    rig.namespace.settlement.settle(old, tokens, Complete(), 1.0, answers.append)
    assert rig.namespace.receive.acquire(old, 1, 1.0) == []
    rig.run()
    assert [condition(answer) for answer in answers] == ["amqp:not-found"] * 3 + [None]
    assert told == ["orders"]
    assert old.entity.deleted
    assert rig.namespace.resolve("orders") is None
    assert rig.namespace.tick(rig.now) is None
    assert rig.live_bytes() < 20
    with rig.reopened() as again:
        assert dict(again.namespace.queues) == {}


def test_a_recreated_queue_sees_nothing_of_the_old_one(rig: Rig) -> None:
    rig.send(b"old")
    rig.namespace.registry.delete_queue("orders", 1.0, lambda refusal: None)
    rig.run()
    rig.create()
    assert rig.bodies() == []
    rig.send(b"new")
    assert rig.acquire()[0].sequence_number == 1
    with rig.reopened() as again:
        assert again.bodies() == [b"new"]
        assert again.namespace.queues["orders"].id == 2


def test_ids_are_not_reused_after_compaction(rig: Rig) -> None:
    rig.create("second")
    rig.namespace.registry.delete_queue("second", 1.0, lambda refusal: None)
    rig.run()
    for n in range(60):
        rig.send(b"%d" % n * 20)
        rig.take()
    rig.compact_all()
    with rig.reopened() as again:
        again.create("third")
        assert again.namespace.queues["third"].id == 3


# sending


def test_a_message_is_there_when_its_record_is_synced(rig: Rig) -> None:
    woken: list[int] = []
    queue = rig.queue()
    queue.on_available = lambda: woken.append(queue.available)
    answers: list[Refusal | None] = []
    rig.namespace.enqueue.send(queue, [make(b"a"), make(b"b")], rig.now, answers.append)
    assert rig.bodies() == []
    rig.turn()
    assert (rig.bodies(), answers, woken) == ([], [], [])
    rig.answer()
    assert (rig.bodies(), answers, woken) == ([b"a", b"b"], [None], [2])


def test_what_a_receiver_gets(rig: Rig) -> None:
    rig.send(b"hello")
    (message,) = rig.acquire()
    payload = rig.namespace.receive.delivery(rig.queue(), message, locked=True)
    assert body_of(payload) == b"hello"
    assert View(payload).message_annotations == {
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": 1_000_000,
        "x-opt-locked-until": 1_030_000,
    }
    assert View(payload).header.delivery_count == 0


def test_a_message_without_id_gets_one_that_stays(rig: Rig) -> None:
    rig.send_payloads(encode_message(body=b"a"))
    (payload,) = rig.peeked()
    assert len(id_of(payload)) == 32
    with rig.reopened() as again:
        assert [id_of(each) for each in again.peeked()] == [id_of(payload)]


@pytest.mark.parametrize(
    ("payloads", "condition"),
    [
        ([make(b"a"), make(b"x" * 1024)], "amqp:link:message-size-exceeded"),
        ([make(b"a"), b"nonsense"], "amqp:decode-error"),
        ([make(b"a"), make(b"b", message_id="x" * 129)], "amqp:invalid-field"),
    ],
)
def test_a_batch_is_taken_whole_or_not_at_all(bare: Rig, payloads: list[bytes], condition: str) -> None:
    bare.create(max_message_size_kb=1)
    refused(bare.send_payloads(*payloads), condition)
    assert bare.bodies() == []
    assert bare.send(b"next") is None
    assert bare.acquire()[0].sequence_number == 1


def test_an_empty_batch_is_nothing(rig: Rig) -> None:
    assert rig.send() is None
    assert rig.send_payloads() is None
    assert rig.bodies() == []


def test_the_dead_letter_queue_is_not_sent_to(rig: Rig) -> None:
    refused(rig.send(b"a", path=DEAD), "amqp:not-allowed")


def test_a_full_queue_refuses_and_dead_letters_count() -> None:
    with Rig(options=Options(segment_bytes=1 << 22, reserve_bytes=1024)) as rig:
        queue = rig.create(max_size_mb=1)
        body = b"x" * 200_000
        assert [rig.send(body) for _ in range(5)] == [None] * 5
        rig.settle(rig.tokens(2), DeadLetter("bad"))
        refused(rig.send(body), "amqp:resource-limit-exceeded", "1048576")
        ping = encode_message(properties=Properties(content_type=PING_CONTENT_TYPE), body=body)
        refused(rig.send_payloads(ping), "amqp:resource-limit-exceeded")
        assert queue.entity.pings == 0
        rig.settle(rig.tokens(1, DEAD), Complete(), DEAD)
        assert rig.send(body) is None


def test_sends_under_way_count_as_if_they_were_there() -> None:
    with Rig(options=Options(segment_bytes=1 << 22, reserve_bytes=1024)) as rig:
        queue = rig.create(max_size_mb=1)
        answers: list[Refusal | None] = []
        for _ in range(6):
            rig.namespace.enqueue.send(queue, [make(b"x" * 200_000)], rig.now, answers.append)
        assert len(answers) == 1
        assert answers[0] is not None
        rig.run()
        assert answers[1:] == [None] * 5
        assert queue.entity.pending_bytes == 0
        assert queue.entity.size_bytes == queue.size_bytes > 1_000_000


def test_a_ping_is_confirmed_counted_and_nowhere(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    rig.namespace.enqueue.send(rig.queue(), [PING], rig.now, answers.append)
    assert answers == []  # it goes the way of a message, to the disk
    rig.run()
    assert answers == [None]
    assert rig.send_payloads(make(b"a"), PING, make(b"b"), PING) is None
    entity = rig.namespace.queues["orders"]
    assert entity.pings == 3
    assert (entity.active_count, entity.pending_bytes) == (2, 0)
    assert rig.bodies() == [b"a", b"b"]
    with rig.reopened() as again:
        assert again.bodies() == [b"a", b"b"]


# receiving and settling


def test_complete_removes_for_good(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c")
    tokens = rig.tokens(2)
    assert rig.settle(tokens, Complete()) is None
    assert rig.bodies() == [b"c"]
    with rig.reopened() as again:
        assert again.bodies() == [b"c"]
        assert again.acquire()[0].sequence_number == 3


def test_a_lock_is_lost_after_its_time(rig: Rig) -> None:
    rig.send(b"a", b"b")
    one = rig.tokens()
    rig.now += 20
    two = rig.tokens()
    rig.now += 10
    refusal = rig.settle(one + two, Complete())
    assert isinstance(refusal, LocksLost)
    assert refusal.condition == "com.microsoft:message-lock-lost"
    assert refusal.tokens == tuple(one)
    assert rig.bodies() == [b"a"]
    assert isinstance(rig.settle(one, Complete()), LocksLost)
    assert isinstance(rig.namespace.receive.renew(rig.queue(), one, rig.now), LocksLost)


def test_renewal(rig: Rig) -> None:
    rig.send(b"a")
    tokens = rig.tokens()
    rig.now += 20
    assert rig.namespace.receive.renew(rig.queue(), tokens, rig.now) == [1050.0]
    assert rig.namespace.tick(1040.0) == 1050.0
    assert rig.namespace.tick(1050.0) is None
    assert rig.queue().available == 1


def test_release_does_not_count(rig: Rig) -> None:
    rig.send(b"a")
    woken: list[int] = []
    rig.queue().on_available = lambda: woken.append(1)
    assert rig.settle(rig.tokens(), Release()) is None
    assert woken == [1]
    (message,) = rig.acquire()
    assert message.delivery_count == 0


def test_abandon_counts_and_changes_properties(rig: Rig) -> None:
    rig.send_payloads(
        encode_message(properties=Properties(message_id="m"), application_properties={"a": UInt(1), "b": 2}, body=b"x")
    )
    assert rig.settle(rig.tokens(), Abandon({"b": UInt(9)})) is None
    assert rig.settle(rig.tokens(), Abandon({"c": None})) is None

    def check(rig: Rig) -> None:
        (message,) = rig.acquire()
        payload = rig.namespace.receive.delivery(rig.queue(), message, locked=True)
        assert View(payload).header.delivery_count == 2
        assert properties_of(payload) == {"a": 1, "b": 9, "c": None}
        assert type(properties_of(payload)["b"]) is UInt
        assert body_of(payload) == b"x"

    check(rig)
    with rig.reopened() as again:
        check(again)
    rig.compact_all()
    with rig.reopened() as again:
        check(again)


def test_abandoning_too_often_dead_letters(rig: Rig) -> None:
    rig.send(b"a", b"b")
    for _ in range(2):
        rig.settle(rig.tokens(1), Abandon({"n": 1}))
    rig.settle(rig.tokens(), Abandon())
    assert rig.bodies() == [b"b"]
    with rig.reopened() as again:
        for each in (rig, again):
            (payload,) = each.peeked(DEAD)
            assert properties_of(payload) == {
                "n": 1,
                "DeadLetterReason": "MaxDeliveryCountExceeded",
                "DeadLetterErrorDescription": "Message could not be consumed after 3 delivery attempts.",
            }
            assert body_of(payload) == b"a"
            entity = each.namespace.queues["orders"]
            assert (entity.active_count, entity.dead_letter_count) == (1, 1)


def test_locks_that_run_out_too_often_dead_letter(rig: Rig) -> None:
    rig.send(b"a")
    woken: list[str] = []
    rig.queue().on_available = lambda: woken.append("active")
    rig.queue(DEAD).on_available = lambda: woken.append("dead")
    for _ in range(3):
        rig.acquire()
        rig.pass_time(30)
    assert woken == ["active", "active", "dead"]
    (payload,) = rig.peeked(DEAD)
    assert properties_of(payload)["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    for _ in range(5):
        rig.acquire(path=DEAD)
        rig.pass_time(30)
    (message,) = rig.acquire(path=DEAD)
    assert message.delivery_count == 8
    with rig.reopened() as again:
        assert again.acquire(path=DEAD)[0].delivery_count == 8


def test_delivery_counts_of_expired_locks_survive(rig: Rig) -> None:
    rig.send(b"a")
    rig.acquire()
    rig.namespace.tick(rig.now + 30)
    rig.run()
    with rig.reopened() as again:
        assert again.acquire()[0].delivery_count == 1


def test_dead_letters_keep_number_and_body(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c")
    tokens = rig.tokens(3)
    assert rig.settle([tokens[2]], DeadLetter("reason", "words", {"k": UInt(5)})) is None
    assert rig.settle([tokens[0]], DeadLetter()) is None
    with rig.reopened() as again:
        for each in (rig, again):
            first, second = each.peeked(DEAD)
            assert (body_of(first), body_of(second)) == (b"a", b"c")
            assert properties_of(first) == {}
            assert properties_of(second) == {
                "k": 5,
                "DeadLetterReason": "reason",
                "DeadLetterErrorDescription": "words",
            }
            messages = each.acquire(5, DEAD)
            assert [message.sequence_number for message in messages] == [1, 3]
            assert [message.delivery_count for message in messages] == [0, 0]


def test_dead_lettering_a_dead_letter_is_refused_and_leaves_it_locked(rig: Rig) -> None:
    rig.send(b"a")
    rig.settle(rig.tokens(), DeadLetter("one"))
    tokens = rig.tokens(path=DEAD)
    refused(rig.settle(tokens, DeadLetter("two"), DEAD), "amqp:not-allowed", f"'{DEAD}' are dead letters already")
    (payload,) = rig.peeked(DEAD)
    assert properties_of(payload) == {"DeadLetterReason": "one"}
    assert rig.settle(tokens, Complete(), DEAD) is None
    with rig.reopened() as again:
        assert again.peeked(DEAD) == []


def test_abandoning_a_dead_letter_is_not_counted(rig: Rig) -> None:
    """As the service does it: its count is that of its deliveries before."""
    rig.send(b"a")
    rig.settle(rig.tokens(), Abandon())
    rig.settle(rig.tokens(), DeadLetter("why"))
    for _ in range(rig.queue().max_delivery_count + 1):
        assert rig.settle(rig.tokens(path=DEAD), Abandon({"seen": True}), DEAD) is None
    with rig.reopened() as again:
        for each in (rig, again):
            (message,) = each.acquire(5, DEAD)
            assert message.delivery_count == 1


def test_long_descriptions_stay_on_disk(rig: Rig) -> None:
    rig.send(b"a", b"b")
    rig.settle(rig.tokens(), DeadLetter("bug", "Traceback " * 100))
    message = next(rig.queue(DEAD).scan(0))
    assert not isinstance(message.changes, bytes)
    for n in range(40):
        rig.send(b"%d" % n)
    rig.compact_all()
    rig.settle(rig.tokens(path=DEAD), Abandon({"seen": True}), DEAD)
    rig.compact_all()
    with rig.reopened() as again:
        for each in (rig, again):
            (payload,) = each.peeked(DEAD)
            assert properties_of(payload) == {
                "DeadLetterReason": "bug",
                "DeadLetterErrorDescription": "Traceback " * 100,
                "seen": True,
            }


@pytest.mark.parametrize("properties", [{"a": object()}, {"a": "x" * 70_000}])
def test_properties_that_cannot_be_leave_the_lock(rig: Rig, properties: dict[str, object]) -> None:
    rig.send(b"a")
    tokens = rig.tokens()
    refusal = rig.settle(tokens, Abandon(properties))
    assert refusal is not None
    assert rig.settle(tokens, Complete()) is None


def test_receive_and_delete(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c")
    answers: list[object] = []
    rig.namespace.receive.take(rig.queue(), 1, rig.now, lambda messages, refusal: answers.append((messages, refusal)))
    rig.turn()
    assert answers == []
    with Rig(rig.files.power_cut()) as cut:
        assert cut.bodies() == [b"b", b"c"]  # synced before the answer
    rig.answer()
    assert len(answers) == 1
    assert rig.take(5) == ([b"b", b"c"], None)
    assert rig.take(5) == ([], None)
    with rig.reopened() as again:
        assert again.bodies() == []


def test_peek_shows_what_is_locked_too_from_a_number_on(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c", b"d")
    rig.acquire(2)
    assert [body_of(each) for each in rig.peeked(start=2, count=2)] == [b"b", b"c"]
    annotations = [View(each).message_annotations for each in rig.peeked()]
    assert [each["x-opt-sequence-number"] for each in annotations] == [1, 2, 3, 4]
    assert "x-opt-locked-until" not in annotations[0]


def test_peek_ends_before_the_answer_grows_too_large() -> None:
    with Rig(options=Options(segment_bytes=1 << 23, reserve_bytes=1024)) as rig:
        rig.create()
        for _ in range(8):
            rig.send(b"x" * 250_000)
        assert len(rig.peeked()) == 4


def test_numbers_are_not_reused_after_restart_and_compaction(rig: Rig) -> None:
    for n in range(100):
        rig.send(b"%d" % n * 10)
        rig.take()
    before = len(rig.journal.segments())
    for _ in range(60):  # until no record names a number any more, but the one that keeps the highest
        rig.send_payloads(PING)
    rig.compact_all()
    assert len(rig.journal.segments()) <= 2 < before
    with rig.reopened() as again:
        assert again.bodies() == []
        again.send(b"next")
        assert again.acquire()[0].sequence_number == 101


# memory


def test_contents_beyond_the_budget_are_read_from_the_journal() -> None:
    with Rig(memory_budget=10_000) as rig:
        queue = rig.create()
        for n in range(100):
            rig.send(b"%03d" % n * 100)
        assert rig.namespace.resident_bytes == queue.resident_bytes <= 5_300
        messages = list(queue.scan(0))
        assert messages[0].content is not None
        assert messages[-1].content is None
        assert rig.bodies() == [b"%03d" % n * 100 for n in range(100)]
        other = rig.create("other")
        rig.send(b"x" * 300, path="other")
        assert other.resident_bytes > 0  # a deep queue leaves room for others
        rig.compact_all()
        bodies, refusal = rig.take(1000)
        assert bodies == [b"%03d" % n * 100 for n in range(100)]
        assert refusal is None
        assert queue.resident_bytes == 0
        rig.settle(rig.tokens(path="other"), DeadLetter(), "other")
        assert rig.namespace.resident_bytes == 0


# a journal that refuses


@pytest.mark.parametrize(
    ("error", "condition", "words"),
    [
        (JournalFull("ENOSPC"), "amqp:resource-limit-exceeded", "disk is full"),
        (JournalFailed("EIO"), "amqp:internal-error", "nothing was stored"),
        (JournalFailed("EIO", unknown=True), "amqp:internal-error", "may yet turn up"),
        (JournalBusy("slow"), "com.microsoft:server-busy", "try again"),
        (JournalClosed("closed"), "amqp:internal-error", "closed"),
        (RecordTooLarge("large"), "amqp:link:message-size-exceeded", "large"),
    ],
)
def test_what_a_refusing_journal_is_called(error: JournalFull, condition: str, words: str) -> None:
    refusal = refusal_of(error)
    assert (refusal.condition, refusal.is_unknown) == (condition, error.unknown)
    assert words in refusal.description


def test_a_full_disk_refuses_sends_and_pings_but_not_settlements() -> None:
    with Rig(SimulatedDisk(capacity=20_000)) as rig:
        rig.create()
        sent = 0
        while (refusal := rig.send(b"x" * 100)) is None:
            sent += 1
        assert refusal.condition == "amqp:resource-limit-exceeded"
        assert "disk is full" in refusal.description
        refused(rig.send_payloads(PING), "amqp:resource-limit-exceeded")
        assert len(rig.bodies()) == sent > 5
        assert rig.namespace.queues["orders"].pending_bytes == 0
        assert rig.settle(rig.tokens(sent), Complete()) is None
        with rig.reopened() as again:
            assert again.bodies() == []
        rig.files.capacity = 100_000
        rig.wait(10)
        assert rig.send(b"again") is None
        with rig.reopened() as again:
            assert again.bodies() == [b"again"]
            assert again.acquire()[0].sequence_number > sent


def test_a_failing_disk_refuses_and_nothing_that_was_confirmed_is_lost(rig: Rig) -> None:
    rig.send(b"a", b"b", b"c")
    rig.fail_calls("fdatasync")
    refused(rig.send(b"d"), "amqp:internal-error")
    assert rig.bodies() == [b"a", b"b", b"c"]
    taken, refusal = rig.take(2)
    assert (taken, refusal and refusal.condition) == ([], "amqp:internal-error")
    assert rig.queue().available == 3
    rig.files.faults.clear()
    rig.wait(10)
    with rig.reopened() as again:
        assert [body for body in again.bodies() if body != b"d"] == [b"a", b"b", b"c"]
    assert rig.send(b"e") is None
    assert rig.take(5) == ([b"a", b"b", b"c", b"e"], None)
    with Rig(rig.files.power_cut()) as cut:
        assert [body for body in cut.bodies() if body != b"d"] == []


def test_changes_on_disk_are_found_after_a_failed_sync(rig: Rig) -> None:
    rig.send(b"a")
    rig.settle(rig.tokens(), DeadLetter("bug", "Traceback " * 100))
    rig.settle(rig.tokens(path=DEAD), Abandon({"n": 1}), DEAD)
    rig.fail_calls("fdatasync")
    rig.wait(1)
    rig.files.faults.clear()
    rig.wait(10)
    with rig.reopened() as again:
        for each in (rig, again):
            (payload,) = each.peeked(DEAD)
            assert properties_of(payload)["n"] == 1
            assert properties_of(payload)["DeadLetterErrorDescription"] == "Traceback " * 100


def test_delivery_counts_survive_compaction(rig: Rig) -> None:
    bodies = rig.grow()
    rig.settle(rig.tokens(2), Abandon())
    rig.compact_all()
    for _ in range(60):
        rig.send_payloads(PING)
    rig.compact_all()
    with rig.reopened() as again:
        assert again.bodies() == bodies
        assert [message.delivery_count for message in again.acquire(3)] == [1, 1, 0]


def test_a_settlement_that_is_refused_leaves_the_lock(rig: Rig) -> None:
    rig.send(b"a", b"b")
    tokens = rig.tokens(2)
    rig.journal._state = "closed"
    for outcome in (Complete(), Abandon(), DeadLetter("x")):
        refused(rig.settle(tokens, outcome), "amqp:internal-error")
    assert rig.queue().locked == 2
    refusal = rig.send(b"c")
    assert refusal is not None
    answers: list[Refusal | None] = []
    description = QueueDescription(name="new")
    rig.namespace.registry.create(description, 1.0, answers.append)
    rig.namespace.registry.update(replace(description, name="orders"), 1.0, answers.append)
    rig.namespace.registry.delete_queue("orders", 1.0, answers.append)
    assert [condition(answer) for answer in answers] == ["amqp:internal-error"] * 3
    rig.journal._state = "started"
    assert rig.settle(tokens, Complete()) is None
    assert rig.send(b"d") is None
    assert rig.bodies() == [b"d"]
    assert next(rig.queue().scan(0)).sequence_number == 3


@pytest.mark.parametrize("kind", ["plain", "deferred", "in a session", "expiring"])
def test_nobody_gets_an_exhausted_message_that_the_journal_does_not_let_go(bare: Rig, kind: str) -> None:
    bare.create(max_delivery_count=2, lock_duration=30.0, requires_session=kind == "in a session")
    session_id = "s" if kind == "in a session" else None
    bare.send_payloads(make_special(b"a", ttl=30.0 if kind == "expiring" else None, session_id=session_id))
    lock = bare.accept("s") if session_id else None
    (message,) = bare.acquire(session=lock)
    assert bare.settle([message.lock_token or b""], Defer() if kind == "deferred" else Abandon(), session=lock) is None
    assert len(bare.receive_deferred(1)[0] if kind == "deferred" else bare.acquire(session=lock)) == 1
    with bare.refusing():
        for _ in range(2):
            assert bare.pass_time(30.0) == bare.now + 1.0
    bare.now += 0.9
    assert bare.acquire(session=bare.accept("s") if session_id else None) == []
    assert bare.receive_deferred(1)[1] is not None
    assert (len(bare.queue()), bare.bodies(DEAD)) == (1, [])
    bare.pass_time(0.1)
    for each in (bare, bare.reopened()):
        assert (len(each.queue()), each.bodies(DEAD)) == (0, [b"a"])
        (dead,) = each.acquire(path=DEAD)
        assert dead.delivery_count == 2


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_an_exhausted_message_is_tried_again_after_a_second_of_any_clock(bare: Rig, step: float) -> None:
    bare.create(max_delivery_count=1, lock_duration=30.0)
    bare.send_payloads(make_special(b"a", ttl=7200.0))
    bare.acquire()
    with bare.refusing():
        bare.pass_time(30.0)
    bare.now += step
    bare.namespace.shift(step)
    assert (bare.namespace.tick(bare.now), bare.acquire()) == (bare.now + 1.0, [])
    bare.pass_time(1.0)
    assert bare.bodies(DEAD) == [b"a"]


def test_an_exhausted_message_that_is_dead_lettered_at_once_is_not_taken_for_an_expired_one(bare: Rig) -> None:
    """With `write_here` the journal may have written a lazy record when `append` returns."""
    bare.create(max_delivery_count=1, lock_duration=30.0)
    bare.send(b"a")
    bare.send(b"b")
    bare.acquire(count=2)
    with bare.refusing():
        bare.pass_time(30.0)
    bare.journal._writes_here = True
    bare.pass_time(1.0)
    assert (len(bare.queue()), bare.bodies(DEAD)) == (0, [b"a", b"b"])


def test_repr() -> None:
    with Rig() as rig:
        rig.create()
        rig.send(b"hello")
        assert repr(rig.namespace) == f"<Namespace contoso: 1 queues, {rig.namespace.resident_bytes} bytes in memory>"


# what nobody uses


@pytest.fixture
def mortal() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create(auto_delete_on_idle=300.0)
        yield rig


def test_a_queue_that_nobody_uses_is_deleted(mortal: Rig) -> None:
    told = mortal.note_deletions()
    mortal.send(b"a")
    assert mortal.pass_time(299.0) == 1300.0
    mortal.send(b"b")
    assert mortal.pass_time(299.0) == 1599.0
    mortal.peeked()
    assert mortal.pass_time(299.0) is not None
    assert mortal.pass_time(1.0) is None
    assert told == ["orders"]
    assert mortal.namespace.resolve("orders") is None
    with mortal.reopened() as again:
        assert dict(again.namespace.queues) == {}


def test_a_queue_is_not_idle_while_somebody_may_come_for_it(mortal: Rig) -> None:
    entity = mortal.namespace.queues["orders"]
    entity.links = 1
    mortal.pass_time(10_000.0)
    assert mortal.namespace.deadline == mortal.now + 300.0
    entity.links = 0
    mortal.schedule(make_special(b"later", at=mortal.now + 1000.0))
    mortal.pass_time(999.0)
    assert mortal.namespace.resolve("orders") is not None
    mortal.pass_time(1.0)
    mortal.pass_time(300.0)
    assert mortal.namespace.resolve("orders") is None


def test_a_restart_begins_the_wait_anew_and_an_update_may_end_it(mortal: Rig) -> None:
    with mortal.reopened() as again:
        assert again.namespace.tick(again.now) == again.now + 300.0
        description = replace(again.namespace.queues["orders"].description, auto_delete_on_idle=inf)
        assert again.do(again.namespace.registry.update, description) is None
        assert again.pass_time(10_000.0) is None
        assert again.namespace.resolve("orders") is not None


def test_a_deletion_that_the_disk_refused_is_tried_after_another_while(mortal: Rig) -> None:
    with mortal.refusing():
        mortal.pass_time(300.0)
    assert mortal.namespace.deadline == mortal.now + 300.0
    mortal.pass_time(300.0)
    assert mortal.namespace.resolve("orders") is None
