from __future__ import annotations

from math import inf

import pytest

from pairbus.broker.format import records
from pairbus.broker.format.publication import COPY_BYTES, Publication, pack_new_copy, pack_publication, read_publish
from pairbus.broker.model.description import SubscriptionDescription, TopicDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SETTLING, Stored
from pairbus.broker.model.rule_description import RuleDescription
from pairbus.broker.model.shared_bodies import Account, Copy, Shared
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.storage.live_records import LiveRecords
from pairbus.journal import Record

HEADER = b"@@@@"


class World:
    """Two messages, each with a copy in subscriptions 2 and 3, told by one record at 7:1000; and what was released."""

    def __init__(self) -> None:
        topic = Topic(1, TopicDescription(name="news"))
        description = SubscriptionDescription(topic="news", name="a")
        self.subscriptions = {id: Subscription(id, 1, description, [RuleDescription()]) for id in (2, 3)}
        self.entities: dict[int, QueueEntity] = {1: topic, **self.subscriptions}
        self.released: list[tuple[int, int]] = []
        self.live_records = LiveRecords(self.entities, self.read, lambda *each: self.released.append(each))
        self.copies: dict[tuple[int, int], Copy] = {}
        account = Account()
        payload = records.pack_batch_head(1, 2)
        for number, content in ((1, b"first"), (2, b"second")):
            packed = [pack_new_copy(id, number, inf) for id in (2, 3)]
            head = pack_publication(0, 1.5, HEADER, None, 0, 0, len(content), packed)
            payload += head
            shared = Shared(account, len(head) - 2 * COPY_BYTES + len(content))
            for id, subscription in self.subscriptions.items():
                copy = self.copies[id, number] = Copy(number, 1.5, HEADER, 0, 0, None, len(content))
                copy.join(shared)
                copy.segment, copy.offset = 7, 1000 + len(payload)
                subscription.active.enqueue(copy)
            payload += content
        for subscription in self.subscriptions.values():
            subscription.last_sequence = subscription.confirmed_sequence = 2
        self.record = Record(50, records.PUBLISH, payload, 7, 1000)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return b"%d:%d" % (segment, offset)

    def remove(self, *which: tuple[int, int]) -> None:
        for id, number in which:
            self.subscriptions[id].active.remove(self.copies[id, number])

    def copy(self) -> bytes | None:
        kept = self.live_records.live(self.record)
        if kept is None:
            return None
        kind, parts = kept
        assert kind == records.PUBLISH
        assert isinstance(parts, tuple)
        return b"".join(parts)

    def told(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        payload = self.copy()
        assert payload is not None
        topic_id, publications, _ = read_publish(payload)
        assert topic_id == 1
        return [(content_of(payload, each), [(c[0], c[1]) for c in each.copies]) for each in publications]


def content_of(payload: bytes, publication: Publication) -> bytes:
    return payload[publication.content_offset :][: publication.content_length]


@pytest.fixture
def world() -> World:
    return World()


def test_each_body_is_copied_once_for_the_copies_that_live(world: World) -> None:
    assert world.told() == [(b"first", [(2, 1), (3, 1)]), (b"second", [(2, 2), (3, 2)])]
    world.remove((2, 1))
    assert world.told() == [(b"first", [(3, 1)]), (b"second", [(2, 2), (3, 2)])]
    world.remove((3, 1))
    assert world.told() == [(b"second", [(2, 2), (3, 2)])]
    world.remove((2, 2), (3, 2))
    assert world.copy() is None


def test_copies_are_told_as_they_are_now(world: World) -> None:
    dead, failed = world.copies[2, 1], world.copies[3, 1]
    subscription = world.subscriptions[2]
    subscription.active.remove(dead)
    subscription.dead_letter.enqueue(dead)
    dead.changes = b"changes"
    failed.delivery_count = 3
    failed.changes = Stored(5, 77, 4)
    payload = world.copy()
    assert payload is not None
    _, (publication, _), _ = read_publish(payload)
    first, second = publication.copies
    assert first[:5] == (2, 1, inf, 0, records.DEAD)
    assert payload[first.changes_offset :][: first.changes_length] == b"changes"
    assert second[:5] == (3, 1, inf, 3, records.ACTIVE)
    assert payload[second.changes_offset :][: second.changes_length] == b"5:77"


def test_the_copies_move_together(world: World) -> None:
    payload = world.copy()
    assert payload is not None
    _, publications, _ = read_publish(payload)
    world.live_records.moved(world.record, 9, 5000)
    for (_, number), copy in world.copies.items():
        assert (copy.segment, copy.offset) == (9, 5000 + publications[number - 1].content_offset)
    assert world.released == [(9, records.BATCH_HEAD_BYTES)]


def test_changes_move_along_unless_there_are_newer_ones(world: World) -> None:
    one, two = world.copies[2, 1], world.copies[3, 1]
    one.changes, two.changes = Stored(5, 77, 4), Stored(5, 99, 4)
    payload = world.copy()
    assert payload is not None
    _, (publication, _), _ = read_publish(payload)
    newer = two.changes = Stored(8, 1, 1)
    world.live_records.moved(world.record, 9, 5000)
    assert isinstance(one.changes, Stored)
    assert (one.changes.segment, one.changes.offset) == (9, 5000 + publication.copies[0].changes_offset)
    assert two.changes is newer


def test_what_went_while_the_copy_was_written_is_released_there(world: World) -> None:
    world.copy()
    world.remove((2, 1), (3, 1), (2, 2))
    world.live_records.moved(world.record, 9, 5000)
    nbytes = world.copies[2, 1].shared.nbytes
    assert world.released == [
        (9, records.BATCH_HEAD_BYTES),
        (9, COPY_BYTES),
        (9, COPY_BYTES),
        (9, nbytes),
        (9, COPY_BYTES),
    ]
    assert world.copies[3, 2].segment == 9


def test_a_copy_that_already_lives_elsewhere_is_not_told_of(world: World) -> None:
    for id in (2, 3):
        world.copies[id, 1].segment = 8
    assert world.told() == [(b"second", [(2, 2), (3, 2)])]


def test_a_settlement_on_its_way_must_follow_the_copy(world: World) -> None:
    world.copies[2, 1].state = SETTLING
    world.copy()
    assert world.copies[2, 1].state == RECOPIED
    assert world.copies[3, 1].state != RECOPIED


@pytest.mark.parametrize("id", [2, 3])
def test_so_must_a_deletion(world: World, id: int) -> None:
    world.entities[id].deleting = True
    world.copy()
    assert [each.recopied for each in world.entities.values()] == [False, id == 2, id == 3]


def test_what_is_written_and_not_yet_answered_is_told_as_it_was(world: World) -> None:
    world.remove(*world.copies)
    for subscription in world.subscriptions.values():
        subscription.confirmed_sequence = 1
    world.subscriptions[3].deleting = True
    assert world.told() == [(b"second", [(2, 2), (3, 2)])]
    assert world.subscriptions[3].recopied
    del world.entities[3]
    assert world.told() == [(b"second", [(2, 2)])]
