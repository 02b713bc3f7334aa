"""Partitioned queues and topics in a namespace: as they are, after a kill, and after compaction and a kill."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import Properties, encode_message
from pairbus.broker.format import records
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.outcomes import Complete, DeadLetter, Defer, Release
from pairbus.broker.model.partitions import COUNT_MASK, PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.broker.model.transaction import Send, Transaction
from pairbus.broker.slices import finish
from tests.broker.namespace_rig import DEAD, Rig, body_of, make, make_special, refused
from tests.message_view import View

ALL = 1000
_ids = itertools.count(1)
#: Keys of partition 3 and of partition 9.
THREE, NINE = "a", "b"


def keyed(body: bytes, key: str, id: str | None = None) -> bytes:
    id = f"k{next(_ids)}" if id is None else id
    return encode_message(None, {"x-opt-partition-key": key}, Properties(message_id=id), body=body)


def only(*down: int) -> Callable[[str], tuple[frozenset[int], frozenset[int]]]:
    return lambda path: (frozenset(down), frozenset(down))


def numbers(rig: Rig, path: str = "orders") -> list[tuple[int, int]]:
    """Partition and count of each message that is there, in the order of their numbers."""
    found = [message.sequence_number for message in rig.queue(path).scan(0)]
    return [(number >> PARTITION_SHIFT, number & COUNT_MASK) for number in found]


@pytest.fixture
def parts(bare: Rig) -> Rig:
    bare.create(enable_partitioning=True, lock_duration=30.0, max_delivery_count=3)
    return bare


def test_messages_without_a_key_go_round_and_numbers_count_within_a_partition(parts: Rig) -> None:
    for number in range(2 * PARTITIONS):
        assert parts.send(b"%d" % number) is None
    expected = [(partition, count) for partition in range(PARTITIONS) for count in (1, 2)]
    for rig in parts.lives():
        assert numbers(rig) == expected
    with parts.reopened() as again:
        assert again.received(ALL) == [b"%d" % number for number in range(2 * PARTITIONS)]
        for number in range(PARTITIONS):
            assert again.send(b"more %d" % number) is None
        assert numbers(again) == [(partition, count) for partition in range(PARTITIONS) for count in (1, 2, 3)]


def test_a_batch_goes_to_one_partition(parts: Rig) -> None:
    assert parts.send(b"1", b"2", b"3") is None
    assert parts.send(b"4", b"5") is None
    assert numbers(parts) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]


def test_keys_decide_and_differ_in_no_batch(parts: Rig) -> None:
    assert parts.send_payloads(keyed(b"1", THREE), keyed(b"2", THREE)) is None
    assert parts.send_payloads(keyed(b"3", NINE)) is None
    assert numbers(parts) == [(3, 1), (3, 2), (9, 1)]
    refused(parts.send_payloads(keyed(b"4", THREE), keyed(b"5", NINE)), conditions.NOT_ALLOWED, "2 different keys")
    refused(parts.send_payloads(keyed(b"4", THREE), make(b"5")), conditions.NOT_ALLOWED, "2 different keys")
    both = encode_message(None, {"x-opt-partition-key": "k"}, Properties(message_id="m", group_id="s"), body=b"6")
    refused(parts.send_payloads(both), conditions.NOT_ALLOWED, "must be equal")
    assert len(numbers(parts)) == 3
    empty = encode_message(None, {"x-opt-partition-key": THREE}, Properties(message_id="m", group_id=""), body=b"7")
    assert parts.send_payloads(empty, keyed(b"8", THREE)) is None
    assert numbers(parts)[:4] == [(3, 1), (3, 2), (3, 3), (3, 4)]


def test_numbers_have_no_gaps_where_the_disk_refused(parts: Rig) -> None:
    with parts.refusing():
        assert parts.send_payloads(keyed(b"lost", THREE)) is not None
    assert parts.send_payloads(keyed(b"kept", THREE)) is None
    assert numbers(parts) == [(3, 1)]


def test_numbers_are_not_given_out_twice_after_all_is_gone(parts: Rig) -> None:
    for _ in range(PARTITIONS):
        parts.send(b"x" * 300)
    assert parts.settle(parts.tokens(ALL), Complete()) is None
    for rig in parts.lives(lambda: parts.create("filler")):
        entity = rig.queue().entity
        assert entity.last_numbers == [(partition << PARTITION_SHIFT) + 1 for partition in range(PARTITIONS)]
    with parts.reopened() as again:
        assert again.do(again.namespace.registry.update, again.queue().entity.description) is None
        again.compact_all()
        with again.reopened() as third:
            assert third.send_payloads(keyed(b"y", NINE)) is None
            assert numbers(third) == [(9, 2)]


def test_one_partition_down_leaves_the_others_serving(parts: Rig) -> None:
    for number in range(PARTITIONS):
        parts.send(b"%d" % number)
    parts.namespace.registry.set_partitions_down(only(3))
    refused(parts.send_payloads(keyed(b"three", THREE)), conditions.SERVER_BUSY, "Partition 3", "'orders'")
    assert parts.send_payloads(keyed(b"nine", NINE)) is None
    for _ in range(PARTITIONS - 1):
        assert parts.send(b"round") is None
    counts = [partition for partition, _ in numbers(parts)]
    assert [counts.count(partition) for partition in range(PARTITIONS)] == [2, 2, 2, 1, 2, 2, 2, 2, 2, 3] + [2] * 6
    peeked = finish(parts.namespace.receive.peek(parts.queue(), 0, ALL, parts.now))
    assert b"3" not in map(body_of, peeked)
    assert parts.queue().available == 2 * PARTITIONS - 1
    assert b"3" not in parts.received(ALL)
    woken: list[None] = []
    parts.queue().on_available = lambda: woken.append(None)
    parts.namespace.registry.set_partitions_down(None)
    assert woken
    assert parts.received(ALL) == [b"3"]


def test_an_entity_that_is_made_during_a_fault_has_it(parts: Rig) -> None:
    parts.namespace.registry.set_partitions_down(only(*range(PARTITIONS)))
    parts.create("late", enable_partitioning=True)
    parts.create("plain")
    refused(parts.send(b"x", path="late"), conditions.SERVER_BUSY)
    assert parts.send(b"x", path="plain") is None


def test_peek_by_the_number_after_the_last_sees_each_message_once(parts: Rig) -> None:
    for number in range(40):
        parts.send(b"%d" % number)
    seen: list[bytes] = []
    start = 0
    while peeked := finish(parts.namespace.receive.peek(parts.queue(), start, 3, parts.now)):
        seen += map(body_of, peeked)
        start = View(peeked[-1]).message_annotations["x-opt-sequence-number"] + 1
    assert sorted(seen, key=int) == [b"%d" % number for number in range(40)]


def test_no_partition_waits_for_another(parts: Rig) -> None:
    """A partition that always has messages does not keep those of the others."""
    parts.send_payloads(*(keyed(b"three", THREE) for _ in range(20)))
    parts.send_payloads(keyed(b"nine", NINE))
    assert parts.received(2) == [b"three", b"nine"]


def test_what_comes_back_keeps_its_place_in_its_partition(parts: Rig) -> None:
    parts.send_payloads(*(keyed(b"%d" % number, THREE) for number in range(4)))
    first = parts.acquire(2)
    assert parts.settle([first[0].lock_token or b""], Release()) is None
    assert parts.received(ALL) == [b"0", b"2", b"3"]


def test_deferred_and_dead_letters_keep_their_numbers(parts: Rig) -> None:
    for payload in (keyed(b"defer", THREE), keyed(b"bury", NINE)):
        parts.send_payloads(payload)
    tokens = dict(zip((b"defer", b"bury"), parts.tokens(2), strict=True))
    assert parts.settle([tokens[b"defer"]], Defer()) is None
    assert parts.settle([tokens[b"bury"]], DeadLetter("why")) is None
    number = (3 << PARTITION_SHIFT) + 1
    for rig in parts.lives():
        assert numbers(rig, DEAD) == [(9, 1)]
        assert [message.sequence_number for message in rig.queue().scan(0)] == [number]
    parts.namespace.registry.set_partitions_down(only(3))
    refused(parts.receive_deferred(number)[1], conditions.SERVER_BUSY, "Partition 3")
    parts.namespace.registry.set_partitions_down(None)
    messages, refusal = parts.receive_deferred(number)
    assert refusal is None
    assert len(messages) == 1


def test_scheduled_messages_become_active_in_their_partition(parts: Rig) -> None:
    at = parts.now + 10
    for body in (b"1", b"2", b"3"):
        given, refusal = parts.schedule(make_special(body, at=at))
        assert refusal is None
        assert len(given) == 1
    assert numbers(parts) == [(0, 1), (1, 1), (2, 1)]
    parts.pass_time(11)
    for rig in parts.lives():
        assert numbers(rig) == [(0, 2), (1, 2), (2, 2)]
        assert rig.queue().active_count == 3


def test_duplicates_are_found_by_id_and_key(bare: Rig) -> None:
    bare.create(enable_partitioning=True, requires_duplicate_detection=True)
    assert bare.send_payloads(make(b"1", message_id="m1")) is None
    assert bare.send_payloads(make(b"1", message_id="m1")) is None
    assert numbers(bare) == [(partition_for("m1"), 1)]
    refused(
        bare.send_payloads(make(b"2", message_id="m2"), make(b"3", message_id="m3")), conditions.NOT_ALLOWED, "batch"
    )
    assert bare.send_payloads(keyed(b"4", THREE, "m4"), keyed(b"5", THREE, "m5")) is None
    assert bare.send_payloads(keyed(b"4", THREE, "m4")) is None
    assert bare.send_payloads(keyed(b"4", NINE, "m4")) is None
    assert bare.queue().active_count == 4
    with bare.reopened() as again:
        assert again.send_payloads(keyed(b"4", NINE, "m4")) is None
        assert again.queue().active_count == 4


def test_sessions_are_each_in_one_partition(bare: Rig) -> None:
    bare.create(enable_partitioning=True, requires_session=True, lock_duration=30.0)
    for number in range(3):
        for session in (THREE, NINE):
            assert bare.send_payloads(make_special(b"%d" % number, session_id=session, id=f"{next(_ids)}")) is None
    for rig in bare.lives():
        assert numbers(rig) == [(3, 1), (3, 2), (3, 3), (9, 1), (9, 2), (9, 3)]
    bare.namespace.registry.set_partitions_down(only(3))
    lock = bare.accept()
    assert lock.session_id == NINE
    assert bare.received(ALL, session=lock) == [b"0", b"1", b"2"]
    assert bare.namespace.sessions.accept(bare.queue(), None, bare.now) is None
    refused(bare.namespace.sessions.accept(bare.queue(), THREE, bare.now), conditions.SERVER_BUSY, "Partition 3")
    free: list[None] = []
    bare.queue().on_session_free = lambda: free.append(None)
    bare.namespace.registry.set_partitions_down(None)
    assert free
    held = bare.accept()
    assert held.session_id == THREE
    bare.namespace.registry.set_partitions_down(only(3))
    assert bare.queue().available_in(held) == 0
    assert bare.received(ALL, session=held) == []
    bare.namespace.registry.set_partitions_down(None)
    assert bare.received(ALL, session=held) == [b"0", b"1", b"2"]


def test_each_partition_has_the_full_size(bare: Rig) -> None:
    bare.create(enable_partitioning=True, max_size_mb=1, max_message_size_kb=1024)
    body = b"x" * 400_000
    for key in (THREE, NINE):
        assert bare.send_payloads(keyed(body, key)) is None
        assert bare.send_payloads(keyed(body, key)) is None
        refused(bare.send_payloads(keyed(body, key)), conditions.RESOURCE_LIMIT_EXCEEDED, "Partition", "is full")
    with bare.reopened() as again:
        refused(again.send_payloads(keyed(body, THREE)), conditions.RESOURCE_LIMIT_EXCEEDED, "Partition 3")
        assert again.settle(again.tokens(ALL), Complete()) is None
        assert again.send_payloads(keyed(body, THREE)) is None


def test_a_topic_places_and_its_subscriptions_follow(bare: Rig) -> None:
    bare.create_topic(enable_partitioning=True, max_size_mb=1, max_message_size_kb=1024)
    for name in ("all", "more"):
        bare.subscribe(name)
    for payload in (make(b"0"), make(b"1"), keyed(b"k", NINE)):
        assert bare.send_payloads(payload, path="news") is None
    for rig in bare.lives():
        for path in ("news/Subscriptions/all", "news/Subscriptions/more"):
            assert numbers(rig, path) == [(0, 1), (1, 1), (9, 1)]
    bare.namespace.registry.set_partitions_down(only(9))
    refused(bare.send_payloads(keyed(b"k", NINE), path="news"), conditions.SERVER_BUSY)
    assert bare.received(ALL, "news/Subscriptions/all") == [b"0", b"1"]
    bare.namespace.registry.set_partitions_down(None)
    body = b"x" * 700_000
    for key in (THREE, NINE):
        assert bare.send_payloads(keyed(body, key), path="news") is None
        refused(bare.send_payloads(keyed(body, key), path="news"), conditions.RESOURCE_LIMIT_EXCEEDED, "Partition")


def test_a_topics_scheduled_messages_are_published_in_their_partition(bare: Rig) -> None:
    bare.create_topic(enable_partitioning=True)
    bare.subscribe("all")
    for body in (b"1", b"2", b"3"):
        bare.schedule(make_special(body, at=bare.now + 10), path="news")
    bare.pass_time(11)
    for rig in bare.lives():
        assert numbers(rig, "news/Subscriptions/all") == [(0, 1), (1, 1), (2, 1)]


def test_forwarding_places_each_message(bare: Rig) -> None:
    bare.create("target", enable_partitioning=True)
    bare.create(forward_to="target")
    bare.namespace.registry.set_partitions_down(only(3))
    assert bare.send_payloads(make(b"0"), make(b"1"), keyed(b"nine", NINE), keyed(b"three", THREE)) is None
    bare.pass_time(0.0)
    assert numbers(bare, "target") == [(0, 1), (1, 1), (9, 1)]
    assert bare.queue("orders").active_count == 1
    bare.namespace.registry.set_partitions_down(None)
    bare.pass_time(2.0)
    for rig in bare.lives():
        assert numbers(rig, "target") == [(0, 1), (1, 1), (3, 1), (9, 1)]
        assert rig.queue("orders").active_count == 0


def test_forwarding_to_a_topic_places_each_message(bare: Rig) -> None:
    bare.create_topic(enable_partitioning=True)
    bare.subscribe("all")
    bare.create(forward_to="news")
    assert bare.send_payloads(make(b"0"), make(b"1"), keyed(b"nine", NINE)) is None
    bare.pass_time(0.0)
    for rig in bare.lives():
        assert numbers(rig, "news/Subscriptions/all") == [(0, 1), (1, 1), (9, 1)]


def enlist(rig: Rig, transaction: Transaction, *payloads: bytes) -> Any:
    return rig.namespace.transactions.enlist(
        transaction, Send(rig.queue(), payloads, lambda _: None), "orders", rig.now
    )


def test_a_transaction_has_one_key(parts: Rig) -> None:
    transaction = Transaction(b"1")
    refused(enlist(parts, transaction, make(b"none")), conditions.NOT_ALLOWED, "partition key or session id")
    assert enlist(parts, transaction, keyed(b"1", THREE)) is None
    refused(enlist(parts, transaction, keyed(b"2", NINE)), conditions.NOT_ALLOWED, "'b'", "'a'")
    assert enlist(parts, transaction, keyed(b"3", THREE)) is None
    assert parts.do(parts.namespace.transactions.commit, transaction) is None
    for rig in parts.lives():
        assert numbers(rig) == [(3, 1), (3, 2)]


def test_a_transaction_that_is_rolled_back_leaves_no_gap(parts: Rig) -> None:
    parts.send_payloads(keyed(b"before", THREE))
    transaction = Transaction(b"1")
    assert enlist(parts, transaction, keyed(b"1", THREE)) is None
    assert enlist(parts, transaction, keyed(b"2", THREE)) is None
    parts.namespace.registry.set_partitions_down(only(3))
    refused(parts.do(parts.namespace.transactions.commit, transaction), conditions.TRANSACTION_ROLLBACK, "Partition 3")
    parts.namespace.registry.set_partitions_down(None)
    assert parts.send_payloads(keyed(b"after", THREE)) is None
    assert numbers(parts) == [(3, 1), (3, 2)]


def test_deleting_by_time_looks_into_every_partition(parts: Rig) -> None:
    parts.send_payloads(keyed(b"old", NINE))
    parts.now += 10
    parts.send_payloads(keyed(b"new", THREE))
    assert parts.delete_messages(ALL, parts.now - 5) == 1
    assert parts.received(ALL) == [b"new"]


def test_what_is_written_is_known_for_each_partition(parts: Rig) -> None:
    """Compaction keeps what is not known to be written: a number above those of its own partition, though not above
    those of others."""
    for _ in range(4):
        parts.send_payloads(keyed(b"x" * 900, NINE))
    answers: list[object] = []
    parts.namespace.enqueue.send(parts.queue(), [keyed(b"late", THREE)], parts.now, answers.append)
    parts.turn()
    entity = parts.queue().entity
    late = (3 << PARTITION_SHIFT) + 1
    assert not entity.is_confirmed(late)
    parts.run()
    assert answers == [None]
    assert entity.is_confirmed(late)
    assert entity.is_confirmed((9 << PARTITION_SHIFT) + 4)


def test_a_plain_description_record_is_as_it_was() -> None:
    """And one with partitions has a field that earlier versions refuse."""
    description = QueueDescription(name="q").to_json()
    assert records.read_queue(records.pack_queue(1, 2, 3, description)) == (1, 2, 3, description)
    packed = records.pack_queue(1, 2, [5, 6], description)
    assert records.read_queue(packed) == (1, 2, [5, 6], description)
    assert b'"last_sequences":[5,6]' in packed
