"""The PUBLISH record: one stored body, and the data of each subscription's copy.

Pure: packs and reads the PUBLISH record, as records.py does for the others.

    13 PUBLISH   topic id u32, count u32, count × publication [, seen]
    publication  topic's sequence u64 (of the scheduled message that this ends; 0: it was not scheduled),
                 enqueued at f64, header length u8, session length u16 (2¹⁶-1: none), pairs count u16, pairs length u32,
                 content length u32, copies u32, header, session id, copies × copy, content
    copy         subscription id u32, sequence u64, expires at f64, delivery count u32, place u8, changes length u32,
                 changes

Settling a copy is a record of its subscription (REMOVE, UPDATE), as for any queue. The body is needed until the last
copy is gone: all copies point at the same place, and compaction moves it once, with the remaining copies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from .records import ACTIVE, BATCH_HEAD_BYTES, Seen, misshapen, read_batch_head, read_seen

_NO_SESSION: Final = 0xFFFF
_HEAD = struct.Struct(">QdBHHIII")
_COPY = struct.Struct(">IQdIBI")
_pack_copy = _COPY.pack

HEAD_BYTES: Final = _HEAD.size
COPY_BYTES: Final = _COPY.size


class CopyEntry(NamedTuple):
    """Offsets count from the start of the record."""

    subscription_id: int
    sequence_number: int
    expires_at: float
    delivery_count: int
    place: int
    changes_offset: int
    changes_length: int


class Publication(NamedTuple):
    """`head` is all that stands before the copies, as it is in the record."""

    scheduled: int
    enqueued_at: float
    header: bytes
    session_id: str | None
    pairs_count: int
    pairs_bytes: int
    content_offset: int
    content_length: int
    head: bytes
    copies: list[CopyEntry]


def pack_publication(
    scheduled: int,
    enqueued_at: float,
    header: bytes,
    session_id: str | None,
    pairs_count: int,
    pairs_bytes: int,
    content_length: int,
    copies: Sequence[bytes],
) -> bytes:
    """Return one publication up to its content, which follows."""
    session = b"" if session_id is None else session_id.encode()
    head = _HEAD.pack(
        scheduled,
        enqueued_at,
        len(header),
        _NO_SESSION if session_id is None else len(session),
        pairs_count,
        pairs_bytes,
        content_length,
        len(copies),
    )
    return b"".join((head, header, session, *copies))


def repack_publication(publication: Publication, copies: Sequence[bytes]) -> bytes:
    """Return the same publication with other copies, up to the content."""
    head = publication.head
    return b"".join((head[: HEAD_BYTES - 4], struct.pack(">I", len(copies)), head[HEAD_BYTES:], *copies))


def pack_new_copy(subscription_id: int, sequence_number: int, expires_at: float) -> bytes:
    return _pack_copy(subscription_id, sequence_number, expires_at, 0, ACTIVE, 0)


def pack_copy(
    subscription_id: int, sequence_number: int, expires_at: float, delivery_count: int, place: int, changes: bytes
) -> bytes:
    return _pack_copy(subscription_id, sequence_number, expires_at, delivery_count, place, len(changes)) + changes


def read_publish(payload: bytes) -> tuple[int, list[Publication], Seen | None]:
    """Return topic id, publications and ids seen of a PUBLISH record. Raises RecordError."""
    topic_id, count = read_batch_head(payload)
    publications = []
    offset = BATCH_HEAD_BYTES
    try:
        for _ in range(count):
            publication = _read_publication(payload, offset)
            offset = publication.content_offset + publication.content_length
            publications.append(publication)
    except (struct.error, UnicodeDecodeError):
        raise misshapen("PUBLISH record", payload) from None
    if offset > len(payload):
        raise misshapen("PUBLISH record", payload)
    return topic_id, publications, read_seen(payload, offset) if offset < len(payload) else None


def _read_publication(payload: bytes, start: int) -> Publication:
    scheduled, enqueued_at, header_length, session_length, pairs_count, pairs_bytes, content_length, count = (
        _HEAD.unpack_from(payload, start)
    )
    header_at = start + _HEAD.size
    session_at = offset = header_at + header_length
    session_id = None
    if session_length != _NO_SESSION:
        offset += session_length
        session_id = payload[session_at:offset].decode()
    head = payload[start:offset]
    copies = []
    for _ in range(count):
        subscription_id, number, expires_at, delivery_count, place, changes_length = _COPY.unpack_from(payload, offset)
        offset += _COPY.size
        copies.append(CopyEntry(subscription_id, number, expires_at, delivery_count, place, offset, changes_length))
        offset += changes_length
    kept = (payload[header_at:session_at], session_id, pairs_count, pairs_bytes)
    return Publication(scheduled, enqueued_at, *kept, offset, content_length, head, copies)
