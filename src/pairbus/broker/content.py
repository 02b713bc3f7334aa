"""From the bytes that a sender sent to what is kept, and from there to the bytes that a receiver gets (dialect 4, 5).

Kept are the raw header fields, the raw message annotations that are not the broker's to say, and everything from
properties to footer as it came: none of it is ever encoded again. Delivery annotations are hop by hop and end here
(AMQP 3.2.2). A delivery is a new header, the broker's annotations before the kept ones, and those same bytes. Decides
nothing about queues, and never looks into a body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.errors import INVALID_FIELD, AmqpError, DecodeError
from pairbus.amqp.message import (
    Sections,
    annotation_pairs,
    read_application_properties,
    read_header,
    read_properties,
    split,
    with_application_properties,
    with_properties,
)

from .records import PAIRS_MAX

#: What a paired client probes with (P31, P32).
PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
ID_CHARS_MAX: Final = 128
#: Of what abandoning and dead-lettering lay over the application properties; the service's bound for all of them.
CHANGES_BYTES_MAX: Final = 65536

#: What the broker says of a message; a sender's word on it is dropped.
OWNED: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
    }
)

NO_HEADER: Final = b"\x40\x40\x40\x40"
_NULLS: Final = b"\x40" * 12


#: (raw header fields, count of annotation pairs, their bytes, those pairs followed by properties to footer)
Content = tuple[bytes, int, int, bytes]


def take_in(payload: bytes, new_id: Callable[[], str]) -> Content | None:
    """What is kept of a message; None of a ping. Raises AmqpError: decode-error, or invalid-field for what can be read
    but not accepted."""
    s = split(payload)
    span = s.properties
    has_id = False
    if span is not None:
        # What is sent unless the application asks for more: a list8 with an id as its only field.
        start, end = span
        if payload[start + 3] == 0xC0 and payload[start + 6] == 0xA1 and payload[start + 1] == 0x53:
            rest = start + 8 + payload[start + 7]
            if end - rest == payload[start + 5] - 1 and payload[rest:end] == _NULLS[: end - rest]:
                has_id = rest - start <= 8 + ID_CHARS_MAX and _is_text(payload[start + 8 : rest])
        if not has_id:
            properties = read_properties(payload, s)
            if properties.content_type == PING_CONTENT_TYPE:
                return None
            _check_id("message-id", properties.message_id)
            _check_id("group-id (the session id)", properties.group_id)
            has_id = properties.message_id is not None
    if s.application_properties is not None:
        read_application_properties(payload, s)
    header = NO_HEADER if s.header is None else _header_fields(payload[s.header[0] : s.header[1]])
    # A slice of all of it is the very same object.
    bare = payload[s.bare_start : s.bare_end]
    if not has_id:
        # JS can't abandon, defer or dead-letter a message that has none (dialect 4).
        bare = with_properties(bare, split(bare), message_id=new_id())
    if s.message_annotations is None:
        return header, 0, 0, bare
    count, raw = _kept_pairs(payload, s)
    return header, count, len(raw), raw + bare


def _is_text(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_id(name: str, value: object) -> None:
    if isinstance(value, (str, bytes)) and len(value) > ID_CHARS_MAX:
        raise AmqpError(f"{name} may have {ID_CHARS_MAX} characters; this one has {len(value)}.", INVALID_FIELD)


def _kept_pairs(payload: bytes, s: Sections) -> tuple[int, bytes]:
    kept = []
    for key, raw in annotation_pairs(payload, s):
        if not isinstance(key, (str, int)):
            raise DecodeError(f"an annotation's key is a symbol or a ulong, not {type(key).__name__}")
        if key not in OWNED:
            kept.append(raw)
    if len(kept) > PAIRS_MAX:
        raise AmqpError(f"A message may have {PAIRS_MAX} annotations; this one has {len(kept)}.", INVALID_FIELD)
    return len(kept), b"".join(kept)


@lru_cache(maxsize=1024)
def _header_fields(section: bytes) -> bytes:
    """The raw durable, priority, ttl and first-acquirer of a header section. Senders use few different headers."""
    s = Sections()
    s.header = (0, len(section))
    read_header(section, s)  # checks the types
    at = skip(section, 1)
    if section[at] in (0x40, 0x45):
        return NO_HEADER
    count, at = (section[at + 2], at + 3) if section[at] == 0xC0 else (section[at + 8], at + 9)
    fields = []
    for _ in range(min(count, 4)):
        end = skip(section, at)
        fields.append(section[at:end])
        at = end
    return b"".join(fields) + NO_HEADER[len(fields) :]


# deliveries


def _long(key: str) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode() + b"\x81"


def _timestamp(key: str) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode() + b"\x83"


# message-state is an int; 0 is active, and nothing else is built yet
_STATE: Final = b"\xa3\x13x-opt-message-state\x54\x00"
_SEQUENCE: Final = b"\x00\x53\x72\xd1", _long("x-opt-sequence-number")
_ENQUEUED: Final = _timestamp("x-opt-enqueued-time")
_ENQUEUE_SEQUENCE: Final = _STATE + _long("x-opt-enqueue-sequence-number")
_LOCKED_UNTIL: Final = _timestamp("x-opt-locked-until")

_START, _SEQUENCE_KEY = _SEQUENCE
_UNLOCKED_LAYOUT = struct.Struct(f">4sII{len(_SEQUENCE_KEY)}sq{len(_ENQUEUED)}sq{len(_ENQUEUE_SEQUENCE)}sq")
_LOCKED_LAYOUT = struct.Struct(_UNLOCKED_LAYOUT.format + f"{len(_LOCKED_UNTIL)}sq")
# of the map: behind its size field, so with the four bytes of the count
_UNLOCKED_BYTES: Final = _UNLOCKED_LAYOUT.size - 8
_LOCKED_BYTES: Final = _LOCKED_LAYOUT.size - 8
_pack_unlocked = _UNLOCKED_LAYOUT.pack
_pack_locked = _LOCKED_LAYOUT.pack


@lru_cache(maxsize=4096)
def _header(fields: bytes, delivery_count: int) -> bytes:
    count = b"\x43" if not delivery_count else struct.pack(">BI", 0x70, delivery_count)
    if 0 < delivery_count < 256:
        count = bytes((0x52, delivery_count))
    return b"\x00\x53\x70\xc0" + bytes((len(fields) + len(count) + 1, 5)) + fields + count


def delivery(
    header: bytes,
    delivery_count: int,
    sequence_number: int,
    enqueued_at: float,
    locked_until: float | None,
    pairs_count: int,
    pairs_bytes: int,
    body: bytes,
) -> bytes:
    """`locked_until` is None where there is no lock: peek, receive-and-delete."""
    if locked_until is None:
        annotations = _pack_unlocked(
            _START,
            _UNLOCKED_BYTES + pairs_bytes,
            8 + 2 * pairs_count,
            _SEQUENCE_KEY,
            sequence_number,
            _ENQUEUED,
            int(enqueued_at * 1000.0),
            _ENQUEUE_SEQUENCE,
            sequence_number,
        )
    else:
        annotations = _pack_locked(
            _START,
            _LOCKED_BYTES + pairs_bytes,
            10 + 2 * pairs_count,
            _SEQUENCE_KEY,
            sequence_number,
            _ENQUEUED,
            int(enqueued_at * 1000.0),
            _ENQUEUE_SEQUENCE,
            sequence_number,
            _LOCKED_UNTIL,
            int(locked_until * 1000.0),
        )
    return _header(header, delivery_count) + annotations + body


# changes to the application properties (dialect 5.1)


def pack_changes(old: bytes | None, properties: Mapping[Any, Any]) -> bytes | None:
    """`properties` laid over earlier ones. Raises AmqpError for what AMQP or the bound does not allow."""
    if not properties:
        return old
    changes: dict[str, Any] = {} if old is None else decode(old)[0]
    for key, value in properties.items():
        if not isinstance(key, str):
            raise AmqpError(f"A property's name is a string, not {type(key).__name__}.", INVALID_FIELD)
        changes[str(key)] = value
    packed = encode(changes)
    if len(packed) > CHANGES_BYTES_MAX:
        raise AmqpError(
            f"The properties to modify take {len(packed)} bytes; {CHANGES_BYTES_MAX} are allowed.", INVALID_FIELD
        )
    return packed


def with_changes(payload: bytes, changes: bytes) -> bytes:
    return with_application_properties(payload, split(payload), decode(changes)[0], ())
