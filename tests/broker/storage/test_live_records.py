from __future__ import annotations

from math import inf

import pytest

from pairbus.broker.format import records
from pairbus.broker.format.forwarded import pack_forward, read_forward
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SCHEDULED, SETTLING, Message, Stored
from pairbus.broker.model.sessions import Sessions
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.live_records import UNPLACED, LiveRecords
from pairbus.journal import Record

CONTENT = b"abc"


class World:
    """An entity with messages 1 to 3, which one record at 7:1000 told of, and whatever was released."""

    def __init__(self) -> None:
        self.entity = QueueEntity(1, QueueDescription(name="orders"))
        self.entities = {1: self.entity}
        self.released: list[tuple[int, int]] = []
        self.live_records = LiveRecords(self.entities, self.read, lambda *each: self.released.append(each))
        self.messages = []
        payload = records.pack_batch_head(1, 3)
        for number in (1, 2, 3):
            payload += records.pack_entry(number, 1.5, inf, 0, records.ACTIVE, b"@@@@", None, 0, 0, b"", 3)
            message = Message(number, 1.5, b"@@@@", 0, 0, None, 3)
            message.segment, message.offset = 7, 1000 + len(payload)
            payload += CONTENT
            self.messages.append(message)
            self.entity.active.insert(message)
            self.entity.active.offer(message)
        self.entity.last_sequence = self.entity.confirmed_sequence = 3
        self.record = Record(50, records.ENQUEUE, payload, 7, 1000)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return b"%d:%d" % (segment, offset)

    def copied(self) -> tuple[int, bytes]:
        kept = self.copy()
        assert kept is not None
        return kept

    def copy(self, record: Record | None = None) -> tuple[int, bytes] | None:
        kept = self.live_records.live(record or self.record)
        if kept is None:
            return None
        kind, parts = kept
        return kind, parts if isinstance(parts, bytes) else b"".join(parts)


@pytest.fixture
def world() -> World:
    return World()


class Forwarded(World):
    """The messages of the record came from another entity, which still has what is left of them there."""

    def __init__(self, *left: int) -> None:
        super().__init__()
        head = pack_forward(2, records.ENQUEUE, (11, 12, 13))
        self.record = Record(50, records.FORWARD, head + self.record.payload, 7, 1000 - len(head))
        self.source = self.entities[2] = QueueEntity(2, QueueDescription(name="source"))
        for number in left:
            message = Message(number, 1.5, b"@@@@", 0, 0, None, 3)
            self.source.active.insert(message)
            message.state = SETTLING


def test_what_was_forwarded_is_copied_as_what_it_is_now() -> None:
    world = Forwarded()
    world.entity.active.remove(world.messages[0])
    kind, payload = world.copied()
    assert kind == records.ENQUEUE
    assert [entry.sequence_number for entry in records.read_enqueue(payload)[1]] == [2, 3]
    world.live_records.moved(world.record, 9, 500)
    head = records.BATCH_HEAD_BYTES + records.ENTRY_HEAD_BYTES + 4
    assert [(message.segment, message.offset) for message in world.messages[1:]] == [
        (9, 500 + head), (9, 500 + head + 3 + records.ENTRY_HEAD_BYTES + 4)
    ]  # fmt: skip
    assert world.released == [(9, 0), (9, records.BATCH_HEAD_BYTES)]


def test_as_long_as_the_source_has_a_message_the_copy_says_that_it_is_gone_there() -> None:
    world = Forwarded(12)
    kind, payload = world.copied()
    source_id, numbers, within, at = read_forward(payload)
    assert (kind, source_id, numbers, within) == (records.FORWARD, 2, (12,), records.ENQUEUE)
    assert [entry.sequence_number for entry in records.read_enqueue(payload[at:])[1]] == [1, 2, 3]
    world.live_records.moved(world.record, 9, 500)
    assert world.messages[0].offset == 500 + at + records.BATCH_HEAD_BYTES + records.ENTRY_HEAD_BYTES + 4
    assert world.released == [(9, at), (9, records.BATCH_HEAD_BYTES)]


def test_of_messages_that_are_gone_at_the_destination_only_that_is_copied() -> None:
    world = Forwarded(11, 13)
    for message in world.messages:
        world.entity.active.remove(message)
    kind, payload = world.copied()
    assert (kind, records.read_remove(payload)) == (records.REMOVE, (2, (11, 13)))
    world.live_records.moved(world.record, 9, 500)
    assert world.released == [(9, len(payload))]
    for message in list(world.source.active.scan(0)):
        world.source.active.remove(message)
    assert world.copy() is None


def test_what_lives_is_copied_as_it_is_now(world: World) -> None:
    one, two, three = world.messages
    world.entity.active.draw(3)
    world.entity.active.remove(two)
    world.entity.active.remove(three)
    world.entity.dead_letter.insert(three)
    world.entity.active.offer(one)
    three.delivery_count = 5
    three.changes = b"changes"
    three.state = 0
    kind, payload = world.copied()
    assert kind == records.ENQUEUE
    _, entries, _ = records.read_enqueue(payload)
    assert [(*entry[:5], entry.header) for entry in entries] == [
        (1, 1.5, inf, 0, records.ACTIVE, b"@@@@"),
        (3, 1.5, inf, 5, records.DEAD, b"@@@@"),
    ]
    assert payload[entries[1].changes_offset :][: entries[1].changes_length] == b"changes"
    world.live_records.moved(world.record, 9, 5000)
    for message, entry in zip((one, three), entries, strict=True):
        assert (message.segment, message.offset) == (9, 5000 + entry.content_offset)
        assert payload[entry.content_offset :][:3] == CONTENT
    assert three.changes == b"changes"
    assert world.copy() is None  # what was copied elsewhere is dead here


def test_a_message_that_dies_before_its_copy_is_written(world: World) -> None:
    world.copied()
    (one,) = world.entity.active.draw(1)
    world.entity.active.remove(one)
    world.live_records.moved(world.record, 9, 5000)
    assert (9, records.ENTRY_HEAD_BYTES + 4 + 3) in world.released
    assert one.segment == 7


def test_what_is_being_settled_must_be_settled_again(world: World) -> None:
    (one,) = world.entity.active.draw(1)
    assert one.state == SETTLING
    world.copy()
    assert [message.state for message in world.messages] == [RECOPIED, 0, 0]


def test_what_is_not_yet_confirmed_lives(world: World) -> None:
    for message in world.entity.active.draw(3):
        world.entity.active.remove(message)
    assert world.copy() is None
    world.entity.confirmed_sequence = 1
    kept = world.copied()
    assert [entry.sequence_number for entry in records.read_enqueue(kept[1])[1]] == [2, 3]
    world.entity.active.insert(world.messages[1])  # its answer has come: it knows the place that is about to go
    world.live_records.moved(world.record, 9, 5000)
    assert world.messages[1].segment == 9


def test_changes_on_disk_move_along_unless_there_are_new_ones(world: World) -> None:
    one, two, _ = world.messages
    one.changes, two.changes = Stored(7, 1, 4), Stored(7, 2, 4)
    kept = world.copied()
    first = records.read_enqueue(kept[1])[1][0]
    assert kept[1][first.changes_offset :][: first.changes_length] == b"7:1"
    newer = two.changes = Stored(9, 700, 4)
    world.live_records.moved(world.record, 9, 5000)
    assert isinstance(one.changes, Stored)
    assert (one.changes.segment, one.changes.offset) == (9, 5000 + first.changes_offset)
    assert two.changes is newer


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (records.REMOVE, records.pack_remove(1, [1])),
        (records.UPDATE, records.pack_updates(1, [(1, 1, 0, None)])[0]),
        (records.DELETED, records.pack_deleted(1)),
        (records.ACTIVATED, records.pack_activated(1, [(1, 2, 1.5, 2.5)])),
        (records.PING, records.pack_id(1)),
    ],
)
def test_what_is_dead_at_the_oldest_end(world: World, kind: int, payload: bytes) -> None:
    assert world.copy(Record(1, kind, payload, 7, 0)) is None


def test_a_description_takes_the_highest_number_along(world: World) -> None:
    world.entity.segment, world.entity.offset = 7, 100
    world.entity.last_sequence = 99
    payload = records.pack_queue(1, 0, 3, world.entity.description.to_json())
    record = Record(2, records.QUEUE, payload, 7, 100)
    kept = world.copy(record)
    assert kept is not None
    assert records.read_queue(kept[1]).last_sequence == 99
    world.live_records.moved(record, 9, 40)
    assert (world.entity.segment, world.entity.offset) == (9, 40)
    assert world.copy(record) is None
    # one that is on its way is not known here yet, and lives
    newer = records.pack_queue(1, 1, 3, world.entity.description.to_json())
    assert world.copy(Record(3, records.QUEUE, newer, 7, 300)) is not None
    # and its copy, had the entity moved on, is of no use
    world.live_records.moved(Record(3, records.QUEUE, newer, 7, 300), 9, 90)
    assert (world.entity.segment, world.entity.offset) == (9, 40)
    assert world.released == [(9, len(newer))]


def test_what_is_deleted_is_dead_and_what_is_being_deleted_is_told(world: World) -> None:
    world.entity.deleting = True
    assert world.copy() is not None
    assert world.entity.recopied
    del world.entities[1]
    assert world.copy() is None
    payload = records.pack_queue(1, 0, 3, world.entity.description.to_json())
    assert world.copy(Record(2, records.QUEUE, payload, 7, 100)) is None
    world.live_records.moved(world.record, 9, 5000)
    assert sum(nbytes for _, nbytes in world.released) == len(world.record.payload)


def test_meta(world: World) -> None:
    world.live_records.next_id = 12
    record = Record(1, records.META, records.pack_id(2), 7, 64)
    assert world.copy(record) is None
    world.live_records.meta = UNPLACED
    assert world.copy(record) == (records.META, records.pack_id(12))
    world.live_records.meta = (7, 64)
    assert world.copy(record) == (records.META, records.pack_id(12))
    world.live_records.moved(record, 8, 64)
    assert world.live_records.meta == (8, 64)
    assert world.copy(record) is None


def test_what_became_active_is_copied_under_its_new_number(world: World) -> None:
    one = world.messages[0]
    world.entity.active.draw(1)
    one.home = SCHEDULED
    world.entity.active.scheduled_count += 1
    world.entity.activate(one, 7, 20.0, 30.0)
    kept = world.copied()
    assert [entry[:3] for entry in records.read_enqueue(kept[1])[1]] == [(7, 20.0, 30.0), (2, 1.5, inf), (3, 1.5, inf)]
    world.live_records.moved(world.record, 9, 5000)
    assert one.segment == 9
    assert len(world.entity.renumbered) == 0


def test_what_becomes_active_while_its_copy_is_written_keeps_its_old_number_there(world: World) -> None:
    one = world.messages[0]
    world.entity.active.draw(1)
    one.home = SCHEDULED
    world.entity.active.scheduled_count += 1
    kept = world.copied()
    assert records.read_enqueue(kept[1])[1][0].place == records.SCHEDULED
    assert one.state == RECOPIED
    world.entity.activate(one, 7, 20.0, 30.0)
    world.live_records.moved(world.record, 9, 5000)
    assert one.segment == 9
    assert world.entity.find(1) == (world.entity.active, one)


KEYS = (b"a" * 16, b"b" * 16)


@pytest.mark.parametrize("is_written", [True, False])
def test_ids_live_until_their_time_is_over(world: World, is_written: bool) -> None:
    history = world.entity.watch_duplicates(lambda *each: world.released.append(each))
    sighting = history.begin(KEYS, 100.0)
    if is_written:
        history.written(sighting, 7, 40)
    tail = records.pack_seen(100.0, KEYS)
    record = Record(50, records.ENQUEUE, world.record.payload + tail, 7, 1000)
    kept = world.copy(record)
    assert kept is not None
    _, entries, seen = records.read_enqueue(kept[1])
    assert len(entries) == 3
    assert seen == (100.0, KEYS, len(tail))
    world.live_records.moved(record, 8, 5000)
    # without messages they are a record of their own
    for message in world.entity.active.draw(3):
        world.entity.active.remove(message)
    kept = world.copy(record)
    assert kept == (records.SEEN, records.pack_id(1) + tail)
    world.live_records.moved(record, 9, 5000)
    assert sighting.segment == 9
    record = Record(51, records.SEEN, kept[1], 9, 5000)
    assert world.copy(record) == kept
    history.refused(sighting, Refusal("a", "b"))  # forgotten before the copy is written
    world.live_records.moved(record, 10, 0)
    assert world.copy(record) is None
    assert world.released[-2:] == [(10, records.ID_BYTES), (10, sighting.nbytes)]


def test_the_state_of_a_session_lives_where_it_is(world: World) -> None:
    sessions = world.entity.active.sessions = Sessions(world.entity.active)
    payload = records.pack_session(1, "a", 5.0, b"state")
    record = Record(60, records.SESSION, payload, 7, 2000)
    assert world.copy(record) is None
    session = sessions.open("a")
    assert world.copy(record) is None
    session.writing = payload  # written and not yet answered
    assert world.copy(record) == (records.SESSION, payload)
    assert session.recopied
    session.writing, session.recopied = None, False
    session.state = Stored(7, 2000 + len(payload) - 5, 5)
    assert world.copy(record) == (records.SESSION, payload)
    assert not session.recopied
    world.live_records.moved(record, 9, 300)
    assert (session.state.segment, session.state.offset) == (9, 300 + len(payload) - 5)
    assert world.copy(record) is None
    world.live_records.moved(record, 10, 0)
    assert world.released == [(10, len(payload))]
