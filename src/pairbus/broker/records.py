"""What the broker writes into the journal: its records, packed and read back.

Big-endian; the first byte of every record is its version. Decides the layout only: which record is written when, and
what replaying one does, is decided elsewhere. The journal guards the bytes with a checksum; what is checked here is
that they are of a version and shape that this code knows (`RecordError`): a later version is refused, not misread.

    kind       record                                                       its effect on replay
    1 META     next entity id u32                                           ids below it are not given out again
    2 QUEUE    id u32, revision u32, last sequence u64, description (JSON)  the highest revision stands
    3 DELETED  id u32                                                       all of that id is gone
    4 ENQUEUE  id u32, count u32, count × entry                             there as said, replacing what was known
    5 REMOVE   id u32, n × sequence u64                                     gone
    6 UPDATE   id u32, count u32, count × update                            as said from now on: absolute values
    7 PING     id u32, the ping itself                                      none (P32)

    entry      sequence u64, enqueued at f64 (unix s), delivery count u32, place u8, header length u8,
               pairs count u16, pairs length u32, changes length u32, content length u32, header, changes, content
    update     sequence u64, delivery count u32, place u8, changes length u32 (2³²-1: as they were), changes
    place      0 active, 1 dead-letter sub-queue

One ENQUEUE holds a whole batch, so that a crash leaves all of it or nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

META: Final = 1
QUEUE: Final = 2
DELETED: Final = 3
ENQUEUE: Final = 4
REMOVE: Final = 5
UPDATE: Final = 6
PING: Final = 7

ACTIVE: Final = 0
DEAD: Final = 1

VERSION: Final = 1
PAIRS_MAX: Final = 65535
_UNCHANGED: Final = 0xFFFFFFFF

_ID = struct.Struct(">BI")
_QUEUE = struct.Struct(">BIIQ")
_BATCH = struct.Struct(">BII")
_ENTRY = struct.Struct(">QdIBBHIII")
_FIRST = struct.Struct(">BIIQdIBBHIII")
_UPDATE = struct.Struct(">QIBI")
_REMOVE_ONE = struct.Struct(">BIQ")

BATCH_HEAD_BYTES: Final = _BATCH.size
ENTRY_HEAD_BYTES: Final = _ENTRY.size


class RecordError(Exception):
    """A record that this version can't read."""


class Entry(NamedTuple):
    """A message as an ENQUEUE record says it; offsets count from the start of the record."""

    sequence_number: int
    enqueued_at: float
    delivery_count: int
    place: int
    header: bytes
    pairs_count: int
    pairs_bytes: int
    changes_offset: int
    changes_length: int
    content_offset: int
    content_length: int


class Update(NamedTuple):
    """`changes_length` is None where the changes stay as they were."""

    sequence_number: int
    delivery_count: int
    place: int
    changes_offset: int
    changes_length: int | None


class Described(NamedTuple):
    """A QUEUE record."""

    id: int
    revision: int
    last_sequence: int
    description: dict[str, Any]


def pack_meta(next_id: int) -> bytes:
    return _ID.pack(VERSION, next_id)


def pack_queue(id: int, revision: int, last_sequence: int, description: dict[str, Any]) -> bytes:
    text = json.dumps(description, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return _QUEUE.pack(VERSION, id, revision, last_sequence) + text.encode()


def pack_deleted(id: int) -> bytes:
    return _ID.pack(VERSION, id)


def pack_ping(id: int) -> bytes:
    """The head; the ping follows as a part of its own."""
    return _ID.pack(VERSION, id)


def pack_first(
    id: int,
    count: int,
    sequence_number: int,
    enqueued_at: float,
    header: bytes,
    pairs_count: int,
    pairs_bytes: int,
    content_length: int,
) -> bytes:
    """Head of an ENQUEUE of `count` new messages and of its first entry; the content follows as a part of its own."""
    return (
        _FIRST.pack(
            VERSION,
            id,
            count,
            sequence_number,
            enqueued_at,
            0,
            ACTIVE,
            len(header),
            pairs_count,
            pairs_bytes,
            0,
            content_length,
        )
        + header
    )


def pack_entry(
    sequence_number: int,
    enqueued_at: float,
    delivery_count: int,
    place: int,
    header: bytes,
    pairs_count: int,
    pairs_bytes: int,
    changes: bytes,
    content_length: int,
) -> bytes:
    """One entry up to its content, which follows."""
    head = _ENTRY.pack(
        sequence_number,
        enqueued_at,
        delivery_count,
        place,
        len(header),
        pairs_count,
        pairs_bytes,
        len(changes),
        content_length,
    )
    return head + header + changes


def pack_batch_head(id: int, count: int) -> bytes:
    return _BATCH.pack(VERSION, id, count)


def pack_remove(id: int, sequence_numbers: Sequence[int]) -> bytes:
    if len(sequence_numbers) == 1:
        return _REMOVE_ONE.pack(VERSION, id, sequence_numbers[0])
    return struct.pack(f">BI{len(sequence_numbers)}Q", VERSION, id, *sequence_numbers)


def pack_updates(id: int, updates: Iterable[tuple[int, int, int, bytes | None]]) -> tuple[bytes, list[int]]:
    """(sequence, delivery count, place, changes or None = as they were) → the record, where each one's changes lie."""
    out = bytearray(_BATCH.size)
    places = []
    for number, delivery_count, place, changes in updates:
        out += _UPDATE.pack(number, delivery_count, place, _UNCHANGED if changes is None else len(changes))
        places.append(len(out))
        if changes is not None:
            out += changes
    _BATCH.pack_into(out, 0, VERSION, id, len(places))
    return bytes(out), places


def read_id(payload: bytes) -> int:
    """Of any record but META: whose it is. Of META: the next id."""
    try:
        version, id = _ID.unpack_from(payload)
    except struct.error:
        raise _misshapen("record", payload) from None
    if version != VERSION:
        raise RecordError(f"a record of version {version}; this version of pairbus reads version {VERSION}")
    return int(id)


def read_queue(payload: bytes) -> Described:
    read_id(payload)
    try:
        _, id, revision, last_sequence = _QUEUE.unpack_from(payload)
        return Described(id, revision, last_sequence, json.loads(payload[_QUEUE.size :]))
    except (struct.error, ValueError):
        raise _misshapen("QUEUE record", payload) from None


def read_enqueue(payload: bytes) -> tuple[int, list[Entry]]:
    read_id(payload)
    entries = []
    try:
        _, id, count = _BATCH.unpack_from(payload)
        offset = _BATCH.size
        for _ in range(count):
            (
                number,
                enqueued_at,
                delivery_count,
                place,
                header_length,
                pairs_count,
                pairs_bytes,
                changes_length,
                content_length,
            ) = _ENTRY.unpack_from(payload, offset)
            header_at = offset + _ENTRY.size
            changes_at = header_at + header_length
            content_at = changes_at + changes_length
            offset = content_at + content_length
            entries.append(
                Entry(
                    number,
                    enqueued_at,
                    delivery_count,
                    place,
                    payload[header_at:changes_at],
                    pairs_count,
                    pairs_bytes,
                    changes_at,
                    changes_length,
                    content_at,
                    content_length,
                )
            )
    except struct.error:
        raise _misshapen("ENQUEUE record", payload) from None
    if offset != len(payload):
        raise _misshapen("ENQUEUE record", payload)
    return id, entries


def read_remove(payload: bytes) -> tuple[int, tuple[int, ...]]:
    id = read_id(payload)
    numbers, odd = divmod(len(payload) - _ID.size, 8)
    if odd or not numbers:
        raise _misshapen("REMOVE record", payload)
    return id, struct.unpack_from(f">{numbers}Q", payload, _ID.size)


def read_updates(payload: bytes) -> tuple[int, list[Update]]:
    read_id(payload)
    updates = []
    try:
        _, id, count = _BATCH.unpack_from(payload)
        offset = _BATCH.size
        for _ in range(count):
            number, delivery_count, place, length = _UPDATE.unpack_from(payload, offset)
            changes_at = offset + _UPDATE.size
            unchanged = length == _UNCHANGED
            offset = changes_at + (0 if unchanged else length)
            updates.append(Update(number, delivery_count, place, changes_at, None if unchanged else length))
    except struct.error:
        raise _misshapen("UPDATE record", payload) from None
    if offset != len(payload):
        raise _misshapen("UPDATE record", payload)
    return id, updates


def _misshapen(what: str, payload: bytes) -> RecordError:
    return RecordError(f"a {what} of {len(payload)} bytes that does not hold what it says")
