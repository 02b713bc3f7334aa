"""What the journal's records amount to: the entities and messages that they leave behind.

Pure: records in, entities out. Nothing is read back and no content is kept in memory: a message knows its place.

A compacted journal tells a story out of order: a record that was copied forward stands behind later ones about the
same entity or message. So what belongs to an entity whose description is yet to come is kept until the end; a REMOVE or
UPDATE of a message that is not known has been taken into account by the copy that follows, or the message is gone; and
a message that is told of again is what it was last said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pairbus.journal import Record

from . import records
from .description import QueueDescription
from .entity import QueueEntity
from .queue import READY, Message, MessageQueue, Stored, message_bytes
from .records import Entry, RecordError, Update

#: Longer changes to a message's properties (a dead letter with a stack trace) stay on disk.
CHANGES_RESIDENT_BYTES_MAX: Final = 512

Release = Callable[[int, int], None]
_UNKNOWN: Final = QueueDescription(name="-")
_SHARED_MAX: Final = 1024


class Rebuilt:
    __slots__ = ("entities", "meta", "next_id", "notes")

    def __init__(self) -> None:
        self.entities: dict[int, QueueEntity] = {}
        self.next_id = 1
        self.meta: tuple[int, int] | None = None
        self.notes: list[str] = []


def rebuild(history: Iterable[Record], release: Release) -> Rebuilt:
    """`release(segment, nbytes)` hears of every byte that turns out to be of no use."""
    replay = _Replay(release)
    for record in history:
        replay.apply(record)
    return replay.finish()


class _Replay:
    def __init__(self, release: Release) -> None:
        self.release = release
        self.rebuilt = Rebuilt()
        # Few headers and few changes differ, so equal ones are one object.
        self._shared: dict[bytes, bytes] = {}

    def apply(self, record: Record) -> None:
        kind = record.kind
        if kind == records.ENQUEUE:
            self._enqueue(record)
        elif kind == records.REMOVE:
            self._remove(record)
        elif kind == records.UPDATE:
            self._update(record)
        elif kind == records.QUEUE:
            self._describe(record)
        elif kind == records.DELETED:
            self._delete(record)
        elif kind == records.META:
            self.rebuilt.next_id = max(self.rebuilt.next_id, records.read_id(record.payload))
            self.rebuilt.meta = (record.segment, record.offset)
        elif kind == records.PING:
            self.release(record.segment, len(record.payload))
        else:
            raise RecordError(f"{record!r} is of a kind that this version of pairbus does not know")

    def finish(self) -> Rebuilt:
        rebuilt = self.rebuilt
        names: dict[str, QueueEntity] = {}
        for entity in list(rebuilt.entities.values()):
            rebuilt.next_id = max(rebuilt.next_id, entity.id + 1)
            if entity.revision < 0:
                count = len(entity.active) + len(entity.dead_letter)
                if count:
                    rebuilt.notes.append(
                        f"{count} messages of entity {entity.id}, which nothing describes, are dropped"
                    )
                self._drop(entity)
                continue
            # A creation that the disk answered with an error may have been written all the same, and made again.
            twin = names.get(entity.name.lower())
            if twin is not None:
                self._drop(min(twin, entity, key=lambda e: e.id))
            names[entity.name.lower()] = max(twin or entity, entity, key=lambda e: e.id)
        for entity in rebuilt.entities.values():
            entity.confirmed_sequence = entity.last_sequence
            entity.active.reoffer()
            entity.dead_letter.reoffer()
        return rebuilt

    def _entity(self, id: int) -> QueueEntity:
        entity = self.rebuilt.entities.get(id)
        if entity is None:
            entity = self.rebuilt.entities[id] = QueueEntity(id, _UNKNOWN, -1)
        return entity

    def _describe(self, record: Record) -> None:
        id, revision, last_sequence, description = records.read_queue(record.payload)
        entity = self._entity(id)
        entity.last_sequence = max(entity.last_sequence, last_sequence)
        if revision < entity.revision:
            self.release(record.segment, len(record.payload))
            return
        self.release(entity.segment, entity.record_bytes)
        entity.describe(QueueDescription.from_json(description), revision)
        entity.segment, entity.offset, entity.record_bytes = record.segment, record.offset, len(record.payload)

    def _delete(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        id = records.read_id(record.payload)
        self.rebuilt.next_id = max(self.rebuilt.next_id, id + 1)
        entity = self.rebuilt.entities.get(id)
        if entity is not None:
            self._drop(entity)

    def _drop(self, entity: QueueEntity) -> None:
        del self.rebuilt.entities[entity.id]
        self.release(entity.segment, entity.record_bytes)
        for queue in (entity.active, entity.dead_letter):
            for message in queue.scan(0):
                self.release(message.segment, message_bytes(message))

    def _enqueue(self, record: Record) -> None:
        id, entries = records.read_enqueue(record.payload)
        entity = self._entity(id)
        self.release(record.segment, records.BATCH_HEAD_BYTES)
        for entry in entries:
            self._insert(entity, record, entry)

    def _insert(self, entity: QueueEntity, record: Record, entry: Entry) -> None:
        number = entry.sequence_number
        if number <= entity.last_sequence:
            known = entity.find(number)
            if known is not None:
                self._take_out(*known)
        else:
            entity.last_sequence = number
        message = Message(
            number,
            entry.enqueued_at,
            self._same(entry.header),
            entry.pairs_count,
            entry.pairs_bytes,
            None,
            entry.content_length,
        )
        message.delivery_count = entry.delivery_count
        message.segment = record.segment
        message.offset = record.offset + entry.content_offset
        if entry.changes_length:
            message.changes = self._changes(record, entry.changes_offset, entry.changes_length)
        _queue(entity, entry).insert(message)

    def _remove(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        id, numbers = records.read_remove(record.payload)
        entity = self._entity(id)
        for number in numbers:
            entity.last_sequence = max(entity.last_sequence, number)
            known = entity.find(number)
            if known is not None:
                self._take_out(*known)

    def _update(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        id, updates = records.read_updates(record.payload)
        entity = self._entity(id)
        for update in updates:
            entity.last_sequence = max(entity.last_sequence, update.sequence_number)
            known = entity.find(update.sequence_number)
            if known is None:
                continue
            queue, message = known
            message.delivery_count = update.delivery_count
            if update.changes_length is not None:
                message.changes = self._changes(record, update.changes_offset, update.changes_length)
            target = _queue(entity, update)
            if target is not queue:
                queue.remove(message)
                message.state = READY
                target.insert(message)

    def _take_out(self, queue: MessageQueue, message: Message) -> None:
        queue.remove(message)
        self.release(message.segment, message_bytes(message))

    def _changes(self, record: Record, offset: int, length: int) -> bytes | Stored:
        if length > CHANGES_RESIDENT_BYTES_MAX:
            return Stored(record.segment, record.offset + offset, length)
        return self._same(record.payload[offset : offset + length])

    def _same(self, value: bytes) -> bytes:
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(value, value)


def _queue(entity: QueueEntity, said: Entry | Update) -> MessageQueue:
    if said.place not in (records.ACTIVE, records.DEAD):
        raise RecordError(f"message {said.sequence_number} is in place {said.place}, which this version does not know")
    return entity.place(said.place)
