"""Turns the bytes that a sender sent into stored content, and stored content into the bytes that a receiver gets.

See docs/reference/protocol.md#sending and docs/reference/protocol.md#receiving.

It keeps the raw header fields, the raw message annotations that the broker doesn't set itself, and everything from
properties to footer as it came: none of it is ever encoded again, except delivery annotations, which few clients send.
A delivery is a new header, the broker's annotations before the kept ones, and those same bytes. It decides nothing
about queues; content_checks.py checks the parts that are not decoded here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.errors import INVALID_FIELD, AmqpError, DecodeError
from pairbus.amqp.message import (
    Properties,
    Sections,
    annotation_pairs,
    read_application_properties,
    read_delivery_annotations,
    read_header,
    read_properties,
    split,
    with_application_properties,
    with_properties,
)
from pairbus.amqp.types import Symbol, Timestamp

from .content_checks import (
    BESIDE_BYTES_MAX,
    PROPERTY_BYTES_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
    Checked,
    check_property_sizes,
    check_sections,
    check_size_beside_body,
    check_time,
    check_value,
)
from .records import PAIRS_MAX

#: The content type of pings.
PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
ID_CHARS_MAX: Final = 128
#: Of what abandoning and dead-lettering lay over the application properties; the service's bound for all of them.
CHANGES_BYTES_MAX: Final = 65536

#: Bytes of a message that are copied in one unit.
COPIED_AT_ONCE: Final = 1 << 20

ENQUEUE_SEQUENCE: Final = "x-opt-enqueue-sequence-number"
HOP_COUNT: Final = "x-opt-transfer-hop-count"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
#: Annotations that the broker sets; a sender's are dropped.
OWNED: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        ENQUEUE_SEQUENCE,
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-partition-id",
        DEAD_LETTER_SOURCE,
        HOP_COUNT,
    }
)

SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
_SCHEDULED_KEY: Final = SCHEDULED_TIME.encode()
PARTITION_KEY: Final = "x-opt-partition-key"
_PARTITION_KEYS: Final = frozenset({PARTITION_KEY, "x-opt-via-partition-key"})
NO_HEADER: Final = b"\x40\x40\x40\x40"
TTL_MS_MAX: Final = 0xFFFFFFFF
# A life of a hundred years does not end.
_FOREVER_MS: Final = 3_155_760_000_000
_NULLS: Final = b"\x40" * 12
_SMALL_PROPERTIES: Final = b"\x00\x53\x73\xc0"


@dataclass(slots=True, eq=False)
class Traits:
    """The properties that decide where a message goes and how long it stays. `ttl` is in seconds, `scheduled_at` a
    time."""

    message_id: Any
    session_id: str | None
    ttl: float | None
    scheduled_at: float | None
    partition_key: str | None = None

    def __repr__(self) -> str:
        return f"<Traits of {self.message_id!r}: session {self.session_id!r}, ttl {self.ttl}, at {self.scheduled_at}>"


#: (raw header fields, count of annotation pairs, their bytes, those pairs followed by properties to footer, traits)
Content = tuple[bytes, int, int, bytes, Traits | None]


def take_in(payload: bytes, new_id: Callable[[], str], closely: bool = False) -> Content | None:  # noqa: C901 - hot
    """Return what is stored of a message, or None for a ping.

    Traits are None for a message that neither expires nor is scheduled, unless they are asked for (`closely`). Raises
    AmqpError: decode-error, or invalid-field for what can be read but not accepted.
    """
    s = split(payload)
    if len(payload) > BESIDE_BYTES_MAX:
        check_size_beside_body(payload, s)
    span = s.properties
    has_id = False
    properties: Properties | None = None
    if span is not None:
        # What is sent unless the application asks for more: a list8 with an id as its only field.
        start, end = span
        if payload[start : start + 4] == _SMALL_PROPERTIES and payload[start + 6] == 0xA1:
            rest = start + 8 + payload[start + 7]
            if end - rest == payload[start + 5] - 1 and payload[rest:end] == _NULLS[: end - rest]:
                has_id = rest - start <= 8 + ID_CHARS_MAX and _is_text(payload[start + 8 : rest])
        if not has_id or closely:
            properties = read_properties(payload, s)
            if properties.content_type == PING_CONTENT_TYPE:
                return None
            _check_id("message-id", properties.message_id)
            _check_id("group-id (the session id)", properties.group_id)
            _check_id("reply-to-group-id", properties.reply_to_group_id)
            check_time("creation-time", properties.creation_time)
            check_time("absolute-expiry-time", properties.absolute_expiry_time)
            has_id = properties.message_id is not None
    if s.application_properties is not None:
        found = read_application_properties(payload, s)  # raises where it is not sound
        if s.application_properties[1] - s.application_properties[0] > PROPERTY_BYTES_MAX:
            check_property_sizes(found)
    if not (s.is_plain or isinstance(payload, Checked)):
        check_sections(payload, s)
    header, ttl_ms = _NO_FIELDS if s.header is None else _header_fields(payload[s.header[0] : s.header[1]])
    # A slice of all of it is the very same object.
    bare = payload[s.bare_start : s.bare_end]
    given_id: str | None = None
    if not has_id:
        # JS can't abandon, defer or dead-letter a message that has none (docs/reference/protocol.md#sending).
        given_id = new_id()
        bare = with_properties(bare, split(bare), message_id=given_id)
    if s.delivery_annotations is not None:
        bare = _hop_of(payload, s) + bare
    count = pairs_bytes = 0
    scheduled_at: float | None = None
    key: str | None = None
    if s.message_annotations is not None:
        count, raw, scheduled_at, key = _kept_pairs(payload, s)
        pairs_bytes = len(raw)
        bare = raw + bare
    if properties is not None:
        ttl_ms = _lifetime_ms(properties, ttl_ms)
        if closely or ttl_ms is not None or scheduled_at is not None:
            id = properties.message_id if given_id is None else given_id
            return header, count, pairs_bytes, bare, _traits(id, properties.group_id, ttl_ms, scheduled_at, key)
    elif closely or ttl_ms is not None or scheduled_at is not None:
        return header, count, pairs_bytes, bare, _traits(given_id, None, ttl_ms, scheduled_at, key)
    return header, count, pairs_bytes, bare, None


def taking_in(
    payload: bytes, new_id: Callable[[], str], closely: bool = False
) -> Generator[None, None, Content | None]:
    """Do as `take_in`; the body of a large message is copied in slices."""
    s = split(payload)
    if len(payload) <= COPIED_AT_ONCE or s.body is None or s.body[1] < len(payload):
        return take_in(payload, new_id, closely)
    if not (s.is_plain or isinstance(payload, Checked)):
        check_sections(payload, s)
    at = s.body[0]
    content = take_in(payload[:at], new_id, closely)
    if content is None:
        return None
    whole, view = BytesIO(), memoryview(payload)
    whole.write(content[3])
    for start in range(at, len(payload), COPIED_AT_ONCE):
        whole.write(view[start : start + COPIED_AT_ONCE])
        yield
    return (*content[:3], whole.getvalue(), content[4])


def message_id_in(content: bytes, start: int = 0) -> str | None:
    """Return the message id as text, of a sent message or of stored content, whose annotation pairs end at `start`."""
    at = start
    while content[at : at + 2] == b"\x00\x53":
        section, code = content[at + 2], content[at + 3]
        if section == 0x73:
            if code == 0xC0 and content[at + 6] == 0xA1:
                # what nearly everybody sends: the first field of a small list is a short string
                return content[at + 8 : at + 8 + content[at + 7]].decode("utf-8", "replace")
            break
        # small sections before it: header, annotations
        if section not in (0x70, 0x71, 0x72) or code not in (0xC0, 0xC1):
            break
        at += 5 + content[at + 4]
    bare = content[start:] if start else content
    try:
        mid = read_properties(bare, split(bare)).message_id
    except AmqpError:
        return None
    if isinstance(mid, bytes):
        return mid.decode("utf-8", "replace")
    return None if mid is None else str(mid)


def was_scheduled(content: bytes, pairs_count: int, pairs_bytes: int) -> bool:
    """Return whether stored content, which begins with annotation pairs, was sent for a time that it names."""
    if content.find(_SCHEDULED_KEY, 0, pairs_bytes) < 0:
        return False
    pairs = stored_pairs(content, pairs_count)
    return any(key == SCHEDULED_TIME and decode(content, value_at)[0] is not None for key, _, value_at, _ in pairs)


def stored_pairs(content: bytes, count: int) -> Iterator[tuple[Any, int, int, int]]:
    """Yield of each annotation at the start of stored content its key, where it begins, where its value does, and where
    it ends."""
    end = 0
    for _ in range(count):
        start = end
        key, value_at = decode(content, start)
        end = skip(content, value_at)
        yield key, start, value_at, end


def _hop_of(payload: bytes, s: Sections) -> bytes:
    """Return the sender's delivery annotations. They are for one hop (AMQP 3.2.2), but the service passes them on."""
    assert s.delivery_annotations is not None
    given = read_delivery_annotations(payload, s)
    return payload[slice(*s.delivery_annotations)] if given else b""


def _traits(
    message_id: Any, session_id: Any, ttl_ms: int | None, scheduled_at: float | None, key: str | None
) -> Traits:
    ttl = None if ttl_ms is None or ttl_ms >= _FOREVER_MS else ttl_ms / 1000.0
    return Traits(message_id, session_id, ttl, scheduled_at, key)


def _lifetime_ms(properties: Properties, ttl_ms: int | None) -> int | None:
    """Return the lifetime; one that the header's 32 bits can't hold is given by its beginning and end
    (docs/reference/protocol.md#time-to-live)."""
    begins, ends = properties.creation_time, properties.absolute_expiry_time
    if begins is not None and ends is not None and ends - begins > TTL_MS_MAX:
        return int(ends - begins)
    return ttl_ms


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


def _kept_pairs(payload: bytes, s: Sections) -> tuple[int, bytes, float | None, str | None]:
    """Return count and bytes of the annotations that are kept, the time for which the message is scheduled, and its
    partition key."""
    kept = []
    partition_key: str | None = None
    scheduled_at: float | None = None
    for key, raw in annotation_pairs(payload, s):
        if not isinstance(key, (str, int)):
            raise DecodeError(f"an annotation's key is a symbol or a ulong, not {type(key).__name__}")
        if key not in OWNED:
            kept.append(raw)
            value_at = skip(raw, 0)
            check_value(raw, value_at)
            if key == SCHEDULED_TIME:
                scheduled_at = _scheduled_at(raw, value_at)
            elif key in _PARTITION_KEYS:
                text = _partition_key(str(key), decode(raw, value_at)[0])
                partition_key = text if key == PARTITION_KEY else partition_key
    if len(kept) > PAIRS_MAX:
        raise AmqpError(f"A message may have {PAIRS_MAX} annotations; this one has {len(kept)}.", INVALID_FIELD)
    return len(kept), b"".join(kept), scheduled_at, partition_key


def _scheduled_at(raw: bytes, value_at: int) -> float | None:
    value = decode(raw, value_at)[0]
    if value is None:
        return None
    if not isinstance(value, Timestamp):
        raise AmqpError(f"{SCHEDULED_TIME} is a timestamp, not {type(value).__name__}.", INVALID_FIELD)
    check_time(SCHEDULED_TIME, value)
    return value / 1000.0


def _partition_key(name: str, value: object) -> str | None:
    # Also text as binary: the SDK sends the key of a message that it has received like that, and the service takes it.
    if not (value is None or isinstance(value, str) or (isinstance(value, bytes) and _is_text(value))):
        raise AmqpError(f"{name} is a string, not {type(value).__name__}.", INVALID_FIELD)
    text = value.decode() if isinstance(value, bytes) else value
    _check_id(name, text)
    return text


_NO_FIELDS: Final = (NO_HEADER, None)


@lru_cache(maxsize=1024)
def _header_fields(section: bytes) -> tuple[bytes, int | None]:
    """Return the raw durable, priority, ttl and first-acquirer of a header section, and the ttl. Senders use few
    different headers."""
    s = Sections()
    s.header = (0, len(section))
    ttl = read_header(section, s).ttl  # checks the types
    at = skip(section, 1)
    if section[at] in (0x40, 0x45):
        return _NO_FIELDS
    count, at = (section[at + 2], at + 3) if section[at] == 0xC0 else (section[at + 8], at + 9)
    fields = []
    for _ in range(min(count, 4)):
        end = skip(section, at)
        fields.append(section[at:end])
        at = end
    # A ttl of 0 is none: nobody sends what nobody can receive.
    return b"".join(fields) + NO_HEADER[len(fields) :], int(ttl) if ttl else None


@lru_cache(maxsize=1024)
def with_ttl(fields: bytes, ttl: float) -> bytes:
    """Return raw header fields with the ttl (seconds) that an entity allows: receivers rely on it."""
    at = skip(fields, skip(fields, 0))
    end = skip(fields, at)
    return fields[:at] + struct.pack(">BI", 0x70, min(int(ttl * 1000.0), TTL_MS_MAX)) + fields[end:]


# deliveries


def _long(key: str) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode() + b"\x81"


def _timestamp(key: str) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode() + b"\x83"


# message-state is an int (docs/reference/protocol.md#receiving); the service sends it only where it is not active
ACTIVE_STATE, DEFERRED_STATE, SCHEDULED_STATE = range(3)
_STATES: Final = tuple(b"\xa3\x13x-opt-message-state\x54" + bytes((state,)) for state in range(3))
_START: Final = b"\x00\x53\x72\xd1"
_SEQUENCE: Final = _long("x-opt-sequence-number")
_ENQUEUED: Final = _timestamp("x-opt-enqueued-time")
_LOCKED_UNTIL: Final = _timestamp("x-opt-locked-until")

_UNLOCKED = f"4sII{len(_SEQUENCE)}sq{len(_ENQUEUED)}sq"
_LOCKED = f"{_UNLOCKED}{len(_LOCKED_UNTIL)}sq"
_UNLOCKED_LAYOUT = struct.Struct(">" + _UNLOCKED)
_LOCKED_LAYOUT = struct.Struct(">" + _LOCKED)
# of the map: behind its size field, so with the four bytes of the count
_UNLOCKED_BYTES: Final = _UNLOCKED_LAYOUT.size - 8
_LOCKED_BYTES: Final = _LOCKED_LAYOUT.size - 8
_pack_unlocked = _UNLOCKED_LAYOUT.pack
_pack_locked = _LOCKED_LAYOUT.pack

# What the service says to the receiver alone: the lock token, as a uuid; nothing where there is none.
_LOCK_TOKEN: Final = Symbol("x-opt-lock-token")
_HOP: Final = b"\x00\x53\x71"
_HOP_LOCKED: Final = _HOP + b"\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_HOP_EMPTY: Final = _HOP + b"\xc1\x01\x00"
# A uuid is written in network order, the delivery tag in .NET's.
_read_token = struct.Struct("<IHH8s").unpack
_pack_with_token = struct.Struct(f">{len(_HOP_LOCKED)}sIHH8s{_LOCKED}").pack


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
    state: int = ACTIVE_STATE,
    token: bytes | None = None,
    is_peeked: bool = False,
) -> bytes:
    """Return the bytes that a receiver gets.

    `locked_until` and `token` (as in the delivery tag) are None where there is no lock: peek, receive-and-delete.
    """
    # Longer than most: it runs for every delivery, and each layout is packed by one call.
    if state:
        body = _STATES[state] + body
        pairs_count += 1
        pairs_bytes += len(_STATES[state])
    if body.startswith(_HOP, pairs_bytes):
        hop, body = _merged(body, pairs_bytes, token)
    elif token is not None and locked_until is not None:
        return (
            _header(header, delivery_count)
            + _pack_with_token(
                _HOP_LOCKED,
                *_read_token(token),
                _START,
                _LOCKED_BYTES + pairs_bytes,
                6 + 2 * pairs_count,
                _SEQUENCE,
                sequence_number,
                _ENQUEUED,
                int(enqueued_at * 1000.0),
                _LOCKED_UNTIL,
                int(locked_until * 1000.0),
            )
            + body
        )
    else:
        hop = b"" if is_peeked else _HOP_EMPTY
    if locked_until is None:
        annotations = _pack_unlocked(
            _START,
            _UNLOCKED_BYTES + pairs_bytes,
            4 + 2 * pairs_count,
            _SEQUENCE,
            sequence_number,
            _ENQUEUED,
            int(enqueued_at * 1000.0),
        )
    else:
        annotations = _pack_locked(
            _START,
            _LOCKED_BYTES + pairs_bytes,
            6 + 2 * pairs_count,
            _SEQUENCE,
            sequence_number,
            _ENQUEUED,
            int(enqueued_at * 1000.0),
            _LOCKED_UNTIL,
            int(locked_until * 1000.0),
        )
    return _header(header, delivery_count) + hop + annotations + body


def rendered(
    delivery_count: int,
    sequence_number: int,
    enqueued_at: float,
    locked_until: float | None,
    content: bytes,
    state: int,
    token: bytes | None,
    is_peeked: bool,
) -> bytes:
    """Return a delivery of a message that an earlier version has stored and that can't be delivered as it was sent:
    what was stored is its body, and its times are the nearest that clients can read."""
    return delivery(
        NO_HEADER,
        min(delivery_count, 0xFFFFFFFF),
        sequence_number,
        _readable_time(enqueued_at),
        None if locked_until is None else _readable_time(locked_until),
        0,
        0,
        struct.pack(">3sBI", b"\x00\x53\x75", 0xB0, len(content)) + content,
        state,
        token,
        is_peeked,
    )


def _readable_time(seconds: float) -> float:
    return min(max(seconds, TIME_MS_MIN / 1000.0), TIME_MS_MAX / 1000.0)


def _merged(body: bytes, at: int, token: bytes | None) -> tuple[bytes, bytes]:
    """Return the sender's delivery annotations with ours, and the body without them."""
    annotations, end = decode(body, at)
    pairs = dict(annotations.value)
    if token is not None:
        pairs[_LOCK_TOKEN] = UUID(bytes_le=token)
    return _HOP + encode(pairs), body[:at] + body[end:]


# changes to the application properties (docs/reference/protocol.md#outcomes)


def pack_changes(old: bytes | None, properties: Mapping[Any, Any]) -> bytes | None:
    """Return the encoded changes with `properties` added to them. Raises AmqpError for what AMQP or the bound
    does not allow."""
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
    """Return a delivery with these changes to its application properties."""
    return with_application_properties(payload, split(payload), decode(changes)[0], ())
