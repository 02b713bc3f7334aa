"""Packs and reads the records that the broker writes into the journal.

Records are big-endian, and the first byte of each is its version. This module decides only the layout; which record is
written when, and what replaying one does, are decided elsewhere. The journal protects the bytes with a checksum; here
they are checked to have a version and shape that this code knows (`RecordError`), so that a later version is refused,
not misread.

    kind       record                                                       its effect on replay
    1 META     next entity id u32                                           ids below it are not given out again
    2 QUEUE    id u32, revision u32, last sequence u64, description (JSON)  the highest revision stands
    3 DELETED  n × id u32 (a topic and its subscriptions)                   all of those ids is gone
    4 ENQUEUE  id u32, count u32, count × entry [, seen]                    there as said, replacing what was known
    5 REMOVE   id u32, n × sequence u64                                     gone
    6 UPDATE   id u32, count u32, count × update                            as said from now on: absolute values
    7 PING     id u32, the ping itself                                      none
    8 ACTIVATED  id u32, n × (old sequence u64, new sequence u64,           a scheduled message is active, under the
               enqueued at f64, expires at f64)                             new number
    9 SESSION  id u32, updated at f64, session length u16, state            the state of a session; the last one told
               length u32 (2³²-1: none), session id, state                  stands
    10 SEEN    id u32, seen                                                 what ENQUEUE says of duplicates
    11 TOPIC, 12 SUBSCRIPTION  as QUEUE; a subscription's JSON has the topic's id and the rules beside the description.
               Of a partitioned entity the last sequence is 0, and the JSON has those of the partitions: last_sequences
    13 PUBLISH a message and its copies: publication.py
    14 FORWARD messages that leave one entity and arrive at another: forwarded.py
    15 TRANSFER  as QUEUE; the JSON has the id of the entity whose transfer dead letters it holds: owner_id
    20 TRANSACTION  n × (kind u8, length u32, record)                       what each of the records says, in order

    entry      sequence u64, enqueued at f64 (unix s), expires at f64 (infinity: never), delivery count u32, place u8,
               header length u8, session length u16 (2¹⁶-1: none), pairs count u16, pairs length u32,
               changes length u32, content length u32, header, session id, changes, content
    update     sequence u64, delivery count u32, place u8, changes length u32 (2³²-1: as they were), changes
    place      0 active, 1 dead-letter sub-queue, 2 and 3 deferred there, 4 scheduled (enqueued at: when it will be)
    seen       time f64, n × key (16 bytes): message ids that are duplicates from that time on, for a while

One ENQUEUE holds a whole batch, and the ids that it makes known, so that a crash leaves all of it or nothing. One
TRANSACTION holds all records of a commit for the same reason.
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
ACTIVATED: Final = 8
SESSION: Final = 9
SEEN: Final = 10
TOPIC: Final = 11
SUBSCRIPTION: Final = 12
PUBLISH: Final = 13
FORWARD: Final = 14
TRANSFER: Final = 15
TRANSACTION: Final = 20

ACTIVE: Final = 0
DEAD: Final = 1
ACTIVE_DEFERRED: Final = 2
DEAD_DEFERRED: Final = 3
SCHEDULED: Final = 4
PLACES: Final = frozenset((ACTIVE, DEAD, ACTIVE_DEFERRED, DEAD_DEFERRED, SCHEDULED))

VERSION: Final = 1
PAIRS_MAX: Final = 65535
#: Of a message id in the duplicate history.
KEY_BYTES: Final = 16
_UNCHANGED: Final = 0xFFFFFFFF
_NO_STATE: Final = 0xFFFFFFFF
_NO_SESSION: Final = 0xFFFF
_LAST_SEQUENCES: Final = "last_sequences"

_ID = struct.Struct(">BI")
_QUEUE = struct.Struct(">BIIQ")
_BATCH = struct.Struct(">BII")
_ENTRY = struct.Struct(">QddIBBHHIII")
_FIRST = struct.Struct(">BIIQddIBBHHIII")
_UPDATE = struct.Struct(">QIBI")
_REMOVE_ONE = struct.Struct(">BIQ")
_ACTIVATED = struct.Struct(">QQdd")
_SESSION = struct.Struct(">BIdHI")
_SEEN = struct.Struct(">d")
_PART = struct.Struct(">BI")
_KEY = struct.Struct(f">{KEY_BYTES}s")

BATCH_HEAD_BYTES: Final = _BATCH.size
ENTRY_HEAD_BYTES: Final = _ENTRY.size
ID_BYTES: Final = _ID.size


class RecordError(Exception):
    """Raised for a record that this version can't read."""


class Entry(NamedTuple):
    """A message as an ENQUEUE record says it: its fixed fields, then what follows them in the record and where; offsets
    count from the start of the record."""

    sequence_number: int
    enqueued_at: float
    expires_at: float
    delivery_count: int
    place: int
    header_length: int
    session_length: int
    pairs_count: int
    pairs_bytes: int
    changes_length: int
    content_length: int
    header: bytes
    session_id: str | None
    changes_offset: int
    content_offset: int


class Update(NamedTuple):
    """`changes_length` is None where the changes stay as they were."""

    sequence_number: int
    delivery_count: int
    place: int
    changes_offset: int
    changes_length: int | None


class Activation(NamedTuple):
    old: int
    new: int
    enqueued_at: float
    expires_at: float


class SessionState(NamedTuple):
    """A SESSION record; `state_length` is None where the state was taken away."""

    id: int
    session_id: str
    updated_at: float
    state_offset: int
    state_length: int | None


class Seen(NamedTuple):
    """Keys of message ids, and since when they are known; `nbytes` is what they take in the record."""

    time: float
    keys: tuple[bytes, ...]
    nbytes: int


class Described(NamedTuple):
    """A QUEUE, TOPIC or SUBSCRIPTION record; the last sequence is a list where there is one for each partition."""

    id: int
    revision: int
    last_sequence: int | list[int]
    description: dict[str, Any]


def pack_id(id: int) -> bytes:
    """Return a META record with the next entity id, or the head of a PING or SEEN record of this entity."""
    return _ID.pack(VERSION, id)


def pack_queue(id: int, revision: int, last_sequence: int | list[int], description: dict[str, Any]) -> bytes:
    if isinstance(last_sequence, list):
        # A version that knows no partitions does not know this field, and refuses the record.
        description = description | {_LAST_SEQUENCES: last_sequence}
        last_sequence = 0
    text = json.dumps(description, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return _QUEUE.pack(VERSION, id, revision, last_sequence) + text.encode()


def pack_deleted(*ids: int) -> bytes:
    return struct.pack(f">B{len(ids)}I", VERSION, *ids)


def pack_first(
    id: int,
    count: int,
    sequence_number: int,
    enqueued_at: float,
    expires_at: float,
    header: bytes,
    pairs_count: int,
    pairs_bytes: int,
    content_length: int,
) -> bytes:
    """Return the head of an ENQUEUE of `count` new messages and of its first entry, which is active and of no
    session; the content follows as a part of its own."""
    return (
        _FIRST.pack(
            VERSION,
            id,
            count,
            sequence_number,
            enqueued_at,
            expires_at,
            0,
            ACTIVE,
            len(header),
            _NO_SESSION,
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
    expires_at: float,
    delivery_count: int,
    place: int,
    header: bytes,
    session_id: str | None,
    pairs_count: int,
    pairs_bytes: int,
    changes: bytes,
    content_length: int,
) -> bytes:
    """Return one entry up to its content, which follows."""
    session = b"" if session_id is None else session_id.encode()
    head = _ENTRY.pack(
        sequence_number,
        enqueued_at,
        expires_at,
        delivery_count,
        place,
        len(header),
        _NO_SESSION if session_id is None else len(session),
        pairs_count,
        pairs_bytes,
        len(changes),
        content_length,
    )
    return head + header + session + changes


def pack_batch_head(id: int, count: int) -> bytes:
    return _BATCH.pack(VERSION, id, count)


def pack_remove(id: int, sequence_numbers: Sequence[int]) -> bytes:
    if len(sequence_numbers) == 1:
        return _REMOVE_ONE.pack(VERSION, id, sequence_numbers[0])
    return struct.pack(f">BI{len(sequence_numbers)}Q", VERSION, id, *sequence_numbers)


def pack_updates(id: int, updates: Iterable[tuple[int, int, int, bytes | None]]) -> tuple[bytes, list[int]]:
    """Return the record for (sequence, delivery count, place, changes or None = as they were) of each message, and the
    offsets of their changes."""
    out = bytearray(_BATCH.size)
    places = []
    for number, delivery_count, place, changes in updates:
        out += _UPDATE.pack(number, delivery_count, place, _UNCHANGED if changes is None else len(changes))
        places.append(len(out))
        if changes is not None:
            out += changes
    _BATCH.pack_into(out, 0, VERSION, id, len(places))
    return bytes(out), places


def pack_activated(id: int, activations: Iterable[tuple[int, int, float, float]]) -> bytes:
    """Return the record for (old sequence, new sequence, enqueued at, expires at) of each message."""
    return _ID.pack(VERSION, id) + b"".join(_ACTIVATED.pack(*each) for each in activations)


def pack_session(id: int, session_id: str, updated_at: float, state: bytes | None) -> bytes:
    """Return a SESSION record; the state, if there is one, is its end."""
    session = session_id.encode()
    length = _NO_STATE if state is None else len(state)
    return _SESSION.pack(VERSION, id, updated_at, len(session), length) + session + (state or b"")


def pack_seen(time: float, keys: Iterable[bytes]) -> bytes:
    """Return the ids seen, to stand at the end of an ENQUEUE or behind `pack_id` as a record of its own."""
    return _SEEN.pack(time) + b"".join(keys)


def pack_transaction(
    parts: Iterable[tuple[int, tuple[bytes, ...] | bytes]],
) -> tuple[tuple[bytes, ...], list[int], int]:
    """Return the parts of a TRANSACTION record of these records (kind and parts of each), the offset of each in it,
    and the bytes that it takes beside them."""
    packed = [bytes((VERSION,))]
    places = []
    at = 1
    for kind, record in parts:
        pieces = (record,) if isinstance(record, bytes) else record
        length = sum(map(len, pieces))
        packed.append(_PART.pack(kind, length))
        packed += pieces
        places.append(at + _PART.size)
        at += _PART.size + length
    return tuple(packed), places, 1 + len(places) * _PART.size


def read_transaction(payload: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Return kind, offset and length of each record in a TRANSACTION record, and the bytes that it takes beside
    them."""
    if payload[:1] != bytes((VERSION,)):
        raise RecordError(f"a TRANSACTION record of another version; this version of pairbus reads version {VERSION}")
    parts = []
    at = 1
    try:
        while at < len(payload):
            kind, length = _PART.unpack_from(payload, at)
            parts.append((kind, at + _PART.size, length))
            at += _PART.size + length
    except struct.error:
        raise misshapen("TRANSACTION record", payload) from None
    if at != len(payload):
        raise misshapen("TRANSACTION record", payload)
    return parts, 1 + len(parts) * _PART.size


def read_id(payload: bytes) -> int:
    """Return the entity id of a record, the next id of a META record. Raises RecordError."""
    try:
        version, id = _ID.unpack_from(payload)
    except struct.error:
        raise misshapen("record", payload) from None
    if version != VERSION:
        raise RecordError(f"a record of version {version}; this version of pairbus reads version {VERSION}")
    return int(id)


def read_deleted(payload: bytes) -> tuple[int, ...]:
    read_id(payload)
    count, odd = divmod(len(payload) - 1, 4)
    if odd:
        raise misshapen("DELETED record", payload)
    return struct.unpack_from(f">{count}I", payload, 1)


def read_batch_head(payload: bytes) -> tuple[int, int]:
    """Return the entity id of a record, and how many messages it holds."""
    read_id(payload)
    try:
        _, id, count = _BATCH.unpack_from(payload)
    except struct.error:
        raise misshapen("record", payload) from None
    return int(id), int(count)


def read_queue(payload: bytes) -> Described:
    read_id(payload)
    try:
        _, id, revision, last_sequence = _QUEUE.unpack_from(payload)
        description = json.loads(payload[_QUEUE.size :])
        return Described(id, revision, description.pop(_LAST_SEQUENCES, last_sequence), description)
    except (struct.error, ValueError):
        raise misshapen("QUEUE record", payload) from None


def read_enqueue(payload: bytes) -> tuple[int, list[Entry], Seen | None]:
    read_id(payload)
    entries: list[Entry] = []
    add, new = entries.append, tuple.__new__  # a restart makes one for each message: NamedTuple's own is slower
    try:
        _, id, count = _BATCH.unpack_from(payload)
        offset = _BATCH.size
        for _ in range(count):
            fields = _ENTRY.unpack_from(payload, offset)
            header_length, session_length, _, _, changes_length, content_length = fields[5:]
            header_at = offset + ENTRY_HEAD_BYTES
            session_at = changes_at = header_at + header_length
            session_id = None
            if session_length != _NO_SESSION:
                changes_at += session_length
                session_id = payload[session_at:changes_at].decode()
            content_at = changes_at + changes_length
            offset = content_at + content_length
            add(new(Entry, fields + (payload[header_at:session_at], session_id, changes_at, content_at)))  # noqa: RUF005
    except (struct.error, UnicodeDecodeError):
        raise misshapen("ENQUEUE record", payload) from None
    if offset > len(payload):
        raise misshapen("ENQUEUE record", payload)
    return id, entries, read_seen(payload, offset) if offset < len(payload) else None


def read_seen(payload: bytes, offset: int = ID_BYTES) -> Seen:
    """Return the ids seen that stand from `offset` to the end."""
    read_id(payload)
    count, odd = divmod(len(payload) - offset - _SEEN.size, KEY_BYTES)
    if odd or count < 1:
        raise misshapen("list of ids seen", payload)
    (time,) = _SEEN.unpack_from(payload, offset)
    return Seen(time, tuple(key for (key,) in _KEY.iter_unpack(payload[offset + _SEEN.size :])), len(payload) - offset)


def read_remove(payload: bytes) -> tuple[int, tuple[int, ...]]:
    id = read_id(payload)
    numbers, odd = divmod(len(payload) - _ID.size, 8)
    if odd or not numbers:
        raise misshapen("REMOVE record", payload)
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
        raise misshapen("UPDATE record", payload) from None
    if offset != len(payload):
        raise misshapen("UPDATE record", payload)
    return id, updates


def read_activated(payload: bytes) -> tuple[int, list[Activation]]:
    id = read_id(payload)
    count, odd = divmod(len(payload) - _ID.size, _ACTIVATED.size)
    if odd or not count:
        raise misshapen("ACTIVATED record", payload)
    return id, [Activation(*each) for each in _ACTIVATED.iter_unpack(payload[_ID.size :])]


def read_session(payload: bytes) -> SessionState:
    read_id(payload)
    try:
        _, id, updated_at, session_length, length = _SESSION.unpack_from(payload)
        state_at = _SESSION.size + session_length
        session_id = payload[_SESSION.size : state_at].decode()
    except (struct.error, UnicodeDecodeError):
        raise misshapen("SESSION record", payload) from None
    if len(payload) != state_at + (0 if length == _NO_STATE else length):
        raise misshapen("SESSION record", payload)
    return SessionState(id, session_id, updated_at, state_at, None if length == _NO_STATE else length)


def misshapen(what: str, payload: bytes) -> RecordError:
    return RecordError(f"a {what} of {len(payload)} bytes that does not hold what it says")
