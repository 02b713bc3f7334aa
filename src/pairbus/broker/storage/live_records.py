"""Decides for compaction which parts of an old journal record are still live, and what their copy must say. Pure.

Pure except for `read`, with which it fetches data for a copy. It is called for the records of the oldest segment, each
at the moment when its copy is appended; messages are locked, settled, moved and sent meanwhile.

Live are the description of an entity (with the highest sequence number given out so far), the next entity id, messages,
in their present state and under their present number, the states of sessions, and message ids until the time of
duplicate detection is over. In the oldest segment REMOVE, UPDATE, ACTIVATED and DELETED are never live: the records
that they refer to lie before them, and so in the same segment, where they are gone or are copied in their present
state.

A record that has been written but not yet answered is live too: its owner will learn its place from the answer, and
then from `moved`, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pairbus.broker.format import records
from pairbus.broker.format.forwarded import pack_forward, read_forward
from pairbus.broker.format.records import Entry, Seen
from pairbus.broker.model.duplicates import Sighting
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SETTLING, Message, Stored, message_bytes, place_of
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Session
from pairbus.journal import Record

from .live_publications import LivePublications
from .replay import parts_of

UNPLACED: Final = (-1, -1)
_DESCRIPTIONS: Final = (records.QUEUE, records.TOPIC, records.SUBSCRIPTION, records.TRANSFER)


class Copied(NamedTuple):
    """A message within the copy of a record; offsets count from the copy's start."""

    sequence_number: int
    content_offset: int
    changes: bytes | Stored | None
    changes_offset: int
    nbytes: int


class Batch(NamedTuple):
    """The copy of an ENQUEUE record: messages and ids, and the size of its head."""

    messages: list[Copied]
    sighting: Sighting | None
    head_bytes: int


class Transaction(NamedTuple):
    """The copy of a TRANSACTION record: the records that are left of it, where each stands in the copy, and what the
    copy takes beside them."""

    parts: list[Record]
    places: list[int]
    head_bytes: int


class LiveRecords:
    """Tells compaction what to copy (`live`) and learns where the copies are (`moved`)."""

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
        # By the place of the record that is copied.
        self._batches: dict[tuple[int, int], Batch] = {}
        self._transactions: dict[tuple[int, int], Transaction] = {}
        #: By lsn of a FORWARD: the bytes of its copy before that of the record within, and whether that is left.
        self._heads: dict[int, tuple[int, bool]] = {}
        self._publications = LivePublications(entities, self._changes, release)

    def live(self, record: Record) -> tuple[int, tuple[bytes, ...] | bytes] | None:
        """Return kind and payload of the copy of a record, or None if no part of it is live."""
        kind = record.kind
        if kind == records.ENQUEUE:
            return self._live_messages(record)
        if kind == records.PUBLISH:
            return self._live_publications(record)
        if kind == records.FORWARD:
            return self._live_forward(record)
        if kind in _DESCRIPTIONS:
            return self._live_description(record)
        if kind == records.TRANSACTION:
            return self._live_transaction(record)
        if kind == records.SESSION:
            return self._live_state(record)
        if kind == records.SEEN:
            return self._live_ids(record)
        if kind == records.META and self.meta in (UNPLACED, (record.segment, record.offset)):
            return kind, records.pack_id(self.next_id)
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        """Note that the copy of a record was written there."""
        if record.kind == records.META:
            self.meta = (segment, offset)
            return
        if record.kind == records.FORWARD:
            self._place_forward(record, segment, offset)
            return
        if record.kind == records.TRANSACTION:
            copy = self._transactions.pop((record.segment, record.offset))
            self._release(segment, copy.head_bytes)
            for part, at in zip(copy.parts, copy.places, strict=True):
                self.moved(part, segment, offset + at)
            return
        entity = self._entities.get(records.read_id(record.payload))
        if record.kind in _DESCRIPTIONS:
            if entity is not None and (entity.segment, entity.offset) == (record.segment, record.offset):
                entity.segment, entity.offset = segment, offset
            else:
                self._release(segment, len(record.payload))
            return
        if record.kind == records.SESSION:
            self._place_state(entity, record, segment, offset)
            return
        messages, sighting, head_bytes = self._batches.pop((record.segment, record.offset))
        self._release(segment, head_bytes)
        for copied in messages:
            self._place(entity, copied, segment, offset)
        if record.kind == records.PUBLISH:
            self._publications.moved(record, segment, offset)
        if sighting is not None:
            history = None if entity is None else entity.duplicates
            if history is not None and history.known(sighting.time, sighting.keys) is sighting:
                sighting.segment = segment
            else:
                self._release(segment, sighting.nbytes)

    def _live_transaction(self, record: Record) -> tuple[int, tuple[bytes, ...]] | None:
        parts: list[Record] = []
        copies = []
        for part in parts_of(record, records.read_transaction(record.payload)[0]):
            copy = self.live(part)
            if copy is not None:
                parts.append(part)
                copies.append(copy)
        if not copies:
            return None
        payload, places, head_bytes = records.pack_transaction(copies)
        self._transactions[record.segment, record.offset] = Transaction(parts, places, head_bytes)
        return records.TRANSACTION, payload

    def _place(self, entity: QueueEntity | None, copied: Copied, segment: int, offset: int) -> None:
        """Note where the copy of a message is, if the message still exists."""
        known = None if entity is None else entity.find(copied.sequence_number)
        if known is None:
            self._release(segment, copied.nbytes)
            return
        _, message = known
        if entity is not None and message.sequence_number == copied.sequence_number:
            entity.stored_anew(message)
        message.segment = segment
        message.offset = offset + copied.content_offset
        # Unless it got other changes meanwhile, which lie behind the copy.
        if isinstance(message.changes, Stored) and message.changes is copied.changes:
            message.changes = Stored(segment, offset + copied.changes_offset, message.changes.length)

    def _copy(self, entity: QueueEntity, queue: MessageQueue, message: Message, at: int) -> tuple[bytes, Copied]:
        """Return the entry of a message as it is now, up to its content, to stand `at` in its record.

        A settlement that is being written must be written again behind it.
        """
        if message.state == SETTLING:
            message.state = RECOPIED
        if entity.deleting:
            entity.recopied = True
        head = records.pack_entry(
            message.sequence_number,
            message.enqueued_at,
            message.expires_at,
            message.delivery_count,
            place_of(message, queue.is_dead_letter),
            message.header,
            message.session_id,
            message.pairs_count,
            message.pairs_bytes,
            changes := self._changes(message),
            message.length,
        )
        content_at = at + len(head)
        nbytes = message_bytes(message)
        return head, Copied(message.sequence_number, content_at, message.changes, content_at - len(changes), nbytes)

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
        return record.kind, records.pack_queue(id, revision, entity.last_numbers, description)

    def _live_state(self, record: Record) -> tuple[int, bytes] | None:
        known = self._session(record)
        if known is None:
            return None
        entity, session = known
        if session.writing != record.payload and not _is_state_of(session, record):
            return None
        if session.writing is not None:
            # What is on its way must follow the copy again.
            session.recopied = True
        if entity.deleting:
            entity.recopied = True
        return records.SESSION, record.payload

    def _place_state(self, entity: QueueEntity | None, record: Record, segment: int, offset: int) -> None:
        known = None if entity is None else self._session(record)
        if known is None or not _is_state_of(known[1], record):
            self._release(segment, len(record.payload))
            return
        state = records.read_session(record.payload)
        known[1].state = Stored(segment, offset + state.state_offset, state.state_length or 0)

    def _session(self, record: Record) -> tuple[QueueEntity, Session] | None:
        state = records.read_session(record.payload)
        entity = self._entities.get(state.id)
        sessions = None if entity is None else entity.active.sessions
        session = None if sessions is None else sessions.get(state.session_id)
        return None if entity is None or session is None else (entity, session)

    def _live_ids(self, record: Record) -> tuple[int, bytes] | None:
        entity = self._entities.get(records.read_id(record.payload))
        sighting = None if entity is None else _sighting(entity, records.read_seen(record.payload))
        if sighting is None:
            return None
        self._batches[record.segment, record.offset] = Batch([], sighting, records.ID_BYTES)
        return records.SEEN, record.payload

    def _live_messages(self, record: Record) -> tuple[int, tuple[bytes, ...]] | None:
        payload = record.payload
        entity = self._entities.get(records.read_id(payload))
        if entity is None:
            return None
        _, entries, seen = records.read_enqueue(payload)
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
            elif not entity.is_confirmed(entry.sequence_number):
                head, copied = _as_it_was(payload, entry, at)
                if entity.deleting:
                    entity.recopied = True
            else:
                continue
            copies.append(copied)
            parts += (head, content)
            at += len(head) + len(content)
        return self._with_ids(record, len(copies), parts, seen, copies)

    def _live_publications(self, record: Record) -> tuple[int, tuple[bytes, ...]] | None:
        count, parts, seen = self._publications.live(record)
        return self._with_ids(record, count, parts, seen, [])

    def _live_forward(self, record: Record) -> tuple[int, tuple[bytes, ...] | bytes] | None:
        """Return the copy of what was enqueued. As long as the source still has one of the messages, it says again
        that they are gone there, since a copy of the message may stand before it."""
        source_id, numbers, _, _ = read_forward(record.payload)
        source = self._entities.get(source_id)
        left = [] if source is None else [number for number in numbers if source.find(number) is not None]
        kept = self.live(_within(record))
        if not left:
            if kept is not None:
                self._heads[record.lsn] = 0, True
            return kept
        if kept is None:
            removal = records.pack_remove(source_id, left)
            self._heads[record.lsn] = len(removal), False
            return records.REMOVE, removal
        kind, payload = kept
        head = pack_forward(source_id, kind, left)
        self._heads[record.lsn] = len(head), True
        return records.FORWARD, (head, *((payload,) if isinstance(payload, bytes) else payload))

    def _place_forward(self, record: Record, segment: int, offset: int) -> None:
        head_bytes, is_more_left = self._heads.pop(record.lsn)
        self._release(segment, head_bytes)
        if is_more_left:
            self.moved(_within(record), segment, offset + head_bytes)

    def _with_ids(
        self, record: Record, count: int, parts: list[bytes], seen: Seen | None, copies: list[Copied]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Return the copy of a record of which `count` messages are left in `parts`, with the ids that still count."""
        id = records.read_id(record.payload)
        entity = self._entities.get(id)
        sighting = None if seen is None or entity is None else _sighting(entity, seen)
        if seen is not None and sighting is not None and entity is not None:
            parts.append(record.payload[-seen.nbytes :])
            if entity.deleting:
                entity.recopied = True
        if not parts:
            return None
        kind, head = (record.kind, records.pack_batch_head(id, count)) if count else (records.SEEN, records.pack_id(id))
        self._batches[record.segment, record.offset] = Batch(copies, sighting, len(head))
        return kind, (head, *parts)


def _within(record: Record) -> Record:
    """Return the record within a FORWARD, as if it stood alone."""
    _, _, kind, at = read_forward(record.payload)
    return Record(record.lsn, kind, record.payload[at:], record.segment, record.offset + at)


def _as_it_was(payload: bytes, entry: Entry, at: int) -> tuple[bytes, Copied]:
    session_bytes = 0 if entry.session_id is None else len(entry.session_id.encode())
    start = entry.changes_offset - session_bytes - len(entry.header) - records.ENTRY_HEAD_BYTES
    head = payload[start : entry.content_offset]
    nbytes = len(head) - entry.changes_length + entry.content_length
    return head, Copied(entry.sequence_number, at + len(head), None, 0, nbytes)


def _sighting(entity: QueueEntity, seen: Seen) -> Sighting | None:
    return None if entity.duplicates is None else entity.duplicates.known(seen.time, seen.keys)


def _is_state_of(session: Session, record: Record) -> bool:
    state = session.state
    if state is None:
        return False
    offset = record.offset + records.read_session(record.payload).state_offset
    return (state.segment, state.offset) == (record.segment, offset)
