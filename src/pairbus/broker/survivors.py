"""What of an old journal record still counts, and what its copy must say: the owner that compaction asks.

Pure but for `read`, through which it fetches what a copy must carry along. Called for the records of the oldest
segment, each at the moment when its copy is appended; messages are locked, settled, moved and sent all the while.

Alive are: the description of an entity (with the highest sequence number given out so far), the next entity id, and
messages, in the state that they are in now. Dead in the oldest segment are REMOVE, UPDATE and DELETED: what they are
about lies before them, and so in the same segment, where it is gone or is copied as it now stands.

What has been written but not yet answered is alive too: its owner will learn its place from the answer, and then from
`moved`, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pairbus.journal import Record

from . import records
from .entity import QueueEntity
from .queue import RECOPIED, SETTLING, Message, MessageQueue, Stored, message_bytes
from .records import Entry

UNPLACED: Final = (-1, -1)


class Copied(NamedTuple):
    """A message within the copy of a record; offsets count from the copy's start."""

    sequence_number: int
    content_offset: int
    changes: bytes | Stored | None
    changes_offset: int
    nbytes: int


class Survivors:
    def __init__(
        self,
        entities: Mapping[int, QueueEntity],
        read: Callable[[int, int, int], bytes],
        release: Callable[[int, int], None],
    ) -> None:
        self.next_id = 1
        #: Where META is; UNPLACED while it is being written.
        self.meta: tuple[int, int] | None = None
        self._entities = entities
        self._read = read
        self._release = release
        self._copies: dict[int, list[Copied]] = {}

    def live(self, record: Record) -> tuple[int, tuple[bytes, ...] | bytes] | None:
        kind = record.kind
        if kind == records.ENQUEUE:
            return self._live_messages(record)
        if kind == records.QUEUE:
            return self._live_description(record)
        if kind == records.META and self.meta in (UNPLACED, (record.segment, record.offset)):
            return kind, records.pack_meta(self.next_id)
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        if record.kind == records.META:
            self.meta = (segment, offset)
            return
        entity = self._entities.get(records.read_id(record.payload))
        if record.kind == records.QUEUE:
            if entity is not None and (entity.segment, entity.offset) == (record.segment, record.offset):
                entity.segment, entity.offset = segment, offset
            else:
                self._release(segment, len(record.payload))
            return
        self._release(segment, records.BATCH_HEAD_BYTES)
        for copied in self._copies.pop(record.lsn):
            self._place(entity, copied, segment, offset)

    def _place(self, entity: QueueEntity | None, copied: Copied, segment: int, offset: int) -> None:
        """The copy is written: the message is there now, if it still is anywhere."""
        known = None if entity is None else entity.find(copied.sequence_number)
        if known is None:
            self._release(segment, copied.nbytes)
            return
        _, message = known
        message.segment = segment
        message.offset = offset + copied.content_offset
        # Unless it got other changes meanwhile, which lie behind the copy.
        if isinstance(message.changes, Stored) and message.changes is copied.changes:
            message.changes = Stored(segment, offset + copied.changes_offset, message.changes.length)

    def _copy(self, entity: QueueEntity, queue: MessageQueue, message: Message, at: int) -> tuple[bytes, Copied]:
        """The entry that says what a message is now, up to its content, to stand `at` in its record. A settlement that
        is on its way must follow it again."""
        if message.state == SETTLING:
            message.state = RECOPIED
        if entity.deleting:
            entity.recopied = True
        head = records.pack_entry(
            message.sequence_number,
            message.enqueued_at,
            message.delivery_count,
            records.DEAD if queue.is_dead_letter else records.ACTIVE,
            message.header,
            message.pairs_count,
            message.pairs_bytes,
            self._changes(message),
            message.length,
        )
        changes_at = at + records.ENTRY_HEAD_BYTES + len(message.header)
        copied = Copied(message.sequence_number, at + len(head), message.changes, changes_at, message_bytes(message))
        return head, copied

    def _changes(self, message: Message) -> bytes:
        changes = message.changes
        if isinstance(changes, Stored):
            return self._read(changes.segment, changes.offset, changes.length)
        return changes or b""

    def _live_description(self, record: Record) -> tuple[int, bytes] | None:
        id, revision, _, description = records.read_queue(record.payload)
        entity = self._entities.get(id)
        if entity is None:
            return None
        here = (entity.segment, entity.offset) in (UNPLACED, (record.segment, record.offset))
        if revision <= entity.revision and not here:
            return None
        if entity.deleting:
            entity.recopied = True
        return records.QUEUE, records.pack_queue(id, revision, entity.last_sequence, description)

    def _live_messages(self, record: Record) -> tuple[int, tuple[bytes, ...]] | None:
        payload = record.payload
        entity = self._entities.get(records.read_id(payload))
        if entity is None:
            return None
        _, entries = records.read_enqueue(payload)
        parts: list[bytes] = []
        copies: list[Copied] = []
        at = records.BATCH_HEAD_BYTES
        for entry in entries:
            content_at = entry.content_offset
            content = payload[content_at : content_at + entry.content_length]
            known = entity.find(entry.sequence_number)
            if known is not None:
                queue, message = known
                if (message.segment, message.offset) != (record.segment, record.offset + content_at):
                    continue
                head, copied = self._copy(entity, queue, message, at)
            elif entry.sequence_number > entity.confirmed_sequence:
                head, copied = _as_it_was(payload, entry, at)
                if entity.deleting:
                    entity.recopied = True
            else:
                continue
            copies.append(copied)
            parts += (head, content)
            at += len(head) + len(content)
        if not copies:
            return None
        self._copies[record.lsn] = copies
        return records.ENQUEUE, (records.pack_batch_head(entity.id, len(copies)), *parts)


def _as_it_was(payload: bytes, entry: Entry, at: int) -> tuple[bytes, Copied]:
    start = entry.changes_offset - len(entry.header) - records.ENTRY_HEAD_BYTES
    head = payload[start : entry.content_offset]
    nbytes = records.ENTRY_HEAD_BYTES + len(entry.header) + entry.content_length
    return head, Copied(entry.sequence_number, at + len(head), None, 0, nbytes)
