"""Decides what of an old PUBLISH record is still live: bodies with remaining copies, and those copies. Pure.

live_records.py calls it for this one kind of record, and has the rules for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pairbus.broker.format import records
from pairbus.broker.format.publication import (
    COPY_BYTES,
    CopyEntry,
    Publication,
    pack_copy,
    read_publish,
    repack_publication,
)
from pairbus.broker.format.records import Seen
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SETTLING, Message, Stored, place_of
from pairbus.journal import Record


class _Copied(NamedTuple):
    """A copy as it stands in the new record; offsets count from the record's start."""

    entity_id: int
    sequence_number: int
    changes: bytes | Stored | None
    changes_offset: int


class _LivePublication(NamedTuple):
    copies: list[_Copied]
    content_offset: int
    nbytes: int


class LivePublications:
    """Compacts PUBLISH records."""

    def __init__(
        self,
        entities: Mapping[int, QueueEntity],
        changes_of: Callable[[Message], bytes],
        release: Callable[[int, int], None],
    ) -> None:
        self._entities = entities
        self._changes_of = changes_of
        self._release = release
        # By the place of the record that is copied.
        self._rewritten: dict[tuple[int, int], list[_LivePublication]] = {}

    def live(self, record: Record) -> tuple[int, list[bytes], Seen | None]:
        """Return how many publications are left, their parts of the record, and the ids that the record made known."""
        payload = record.payload
        _, publications, seen = read_publish(payload)
        parts: list[bytes] = []
        rewritten: list[_LivePublication] = []
        at = records.BATCH_HEAD_BYTES
        for publication in publications:
            packed, copies = self._copies(record, publication, at)
            if not packed:
                continue
            head = repack_publication(publication, packed)
            content_at = publication.content_offset
            content = payload[content_at : content_at + publication.content_length]
            nbytes = len(publication.head) + len(content)
            rewritten.append(_LivePublication(copies, at + len(head), nbytes))
            parts += (head, content)
            at += len(head) + len(content)
        if rewritten:
            self._rewritten[record.segment, record.offset] = rewritten
        return len(rewritten), parts, seen

    def moved(self, record: Record, segment: int, offset: int) -> None:
        """Note where the copy of the record was written, for the messages that are left of it."""
        for publication in self._rewritten.pop((record.segment, record.offset), ()):
            left = [self._place(copied, publication, segment, offset) for copied in publication.copies]
            if not any(left):
                self._release(segment, publication.nbytes)

    def _copies(self, record: Record, publication: Publication, at: int) -> tuple[list[bytes], list[_Copied]]:
        packed: list[bytes] = []
        copies: list[_Copied] = []
        at += len(publication.head)
        for entry in publication.copies:
            entity = self._entities.get(entry.subscription_id)
            packed_copy = None if entity is None else self._pack_copy_of(record, publication, entry, entity)
            if entity is None or packed_copy is None:
                continue
            if entity.deleting:
                entity.recopied = True
            copy, changes = packed_copy
            packed.append(copy)
            copies.append(_Copied(entity.id, entry.sequence_number, changes, at + COPY_BYTES))
            at += len(copy)
        return packed, copies

    def _pack_copy_of(
        self, record: Record, publication: Publication, entry: CopyEntry, entity: QueueEntity
    ) -> tuple[bytes, bytes | Stored | None] | None:
        """Return a copy as it is now, or as it was when its record is not yet known to be written; None: it is gone."""
        known = entity.find(entry.sequence_number)
        if known is None:
            if entity.is_confirmed(entry.sequence_number):
                return None
            start = entry.changes_offset - COPY_BYTES
            return record.payload[start : entry.changes_offset + entry.changes_length], None
        queue, message = known
        if (message.segment, message.offset) != (record.segment, record.offset + publication.content_offset):
            return None
        if message.state == SETTLING:
            # The settlement that is on its way must follow the copy again.
            message.state = RECOPIED
        copy = pack_copy(
            entity.id,
            message.sequence_number,
            message.expires_at,
            message.delivery_count,
            place_of(message, queue.is_dead_letter),
            self._changes_of(message),
        )
        return copy, message.changes

    def _place(self, copied: _Copied, publication: _LivePublication, segment: int, offset: int) -> bool:
        entity = self._entities.get(copied.entity_id)
        known = None if entity is None else entity.find(copied.sequence_number)
        if known is None:
            self._release(segment, COPY_BYTES)
            return False
        _, message = known
        message.segment = segment
        message.offset = offset + publication.content_offset
        # Unless it got other changes meanwhile, which lie behind the copy.
        if isinstance(message.changes, Stored) and message.changes is copied.changes:
            message.changes = Stored(segment, offset + copied.changes_offset, message.changes.length)
        return True
