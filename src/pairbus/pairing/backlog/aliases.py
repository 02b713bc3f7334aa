"""Rewrites encoded messages for the backlog, where aliases keep what it must not act on, and back.

`divert_encoded` diverts messages that an application has encoded already, and `restore_message` restores them. Both
work on bytes, since Python values would lose AMQP types: everything that is not changed keeps its bytes. The data that
the backlog's broker added (its annotations, the lock token, the delivery count) is removed. This module decides what is
restored, and what can't be. `diversion.py` diverts messages of the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.amqp import types
from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import (
    Header,
    Properties,
    Sections,
    encode_annotations,
    raw_pairs,
    read_header,
    read_properties,
    split,
    with_fields,
)
from pairbus.amqp.types import Described, Timestamp

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
#: A message that carries one of these already is refused.
ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME})
#: When a message was diverted: opt-in, for its receivers; it stays on the message.
DIVERTED_AT: Final = "x-pairbus-diverted-at"

SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
#: Added by a broker to the messages that it holds; removed when a message is restored.
BROKER_ANNOTATIONS: Final = frozenset({
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-enqueue-sequence-number", "x-opt-locked-until",
    "x-opt-lock-token", "x-opt-message-state", "x-opt-partition-id", "x-opt-deadletter-source",
})  # fmt: skip
_NOT_KEPT: Final = BROKER_ANNOTATIONS | {SCHEDULED_ANNOTATION}
#: Written by a broker when it dead-letters; a replay takes them off.
DEAD_LETTER_PROPERTIES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})

#: header.ttl has 32 bits; creation and expiry time give a longer time to live.
TTL_MS_MAX: Final = 0xFFFFFFFF
#: .NET's longest time span, which is how "for ever" is written.
FOREVER_MS: Final = 922337203685477
#: The last expiry time that the SDKs can read: the end of the year 9999.
EXPIRY_MS_MAX: Final = 253402243199000
_TIMESPAN: Final = "com.microsoft:timespan"
_TICKS_PER_MS: Final = 10_000


def divert_encoded(payload: bytes, path: str, *, diverted_at: float | None = None) -> bytes:
    """Return an encoded message as it goes to the backlog, with what that must not act on in aliases."""
    s = split(payload)
    header, properties = read_header(payload, s), read_properties(payload, s)
    aliases: dict[str, Any] = {PATH: path}
    changes: dict[str, Any] = {}
    if properties.group_id is not None:
        aliases[SESSION_ID] = properties.group_id
        changes["group_id"] = None
    ttl_ms = life_ms(header.ttl, properties.creation_time, properties.absolute_expiry_time)
    if ttl_ms is not None:
        aliases[TIME_TO_LIVE] = ttl_ms
        if ttl_ms:
            changes["creation_time"] = changes["absolute_expiry_time"] = None
    annotations = []
    for key, raw in raw_pairs(payload, s.message_annotations):
        value = decode(raw, skip(raw, 0))[0] if key == SCHEDULED_ANNOTATION else None
        if isinstance(value, int):
            aliases[SCHEDULED_TIME] = Timestamp(value)
        else:
            annotations.append(raw)
    if diverted_at is not None:
        aliases[DIVERTED_AT] = Timestamp(diverted_at * 1000)
    kept = _without(payload, s.application_properties, ALIASES | aliases.keys())
    kept += [encode(name) + encode(value) for name, value in aliases.items()]
    return b"".join(
        (
            _header(payload, s, None),
            _map(0x71, [raw for _, raw in raw_pairs(payload, s.delivery_annotations)]),
            _map(0x72, annotations),
            _changed_properties(payload, s, changes),
            _map(0x74, kept),
            payload[_end_of_head(s) : s.bare_end],
        )
    )


def sent_anew(payload: bytes, *, is_dead_letter: bool = True) -> bytes:
    """Return a delivery as a message that can be sent on, without what its broker added.

    `is_dead_letter` is False where it is known to come from no dead-letter queue, so that properties which look like
    those of dead-lettering are the application's own.
    """
    s = split(payload)
    marks = DEAD_LETTER_PROPERTIES if is_dead_letter else frozenset()
    return b"".join(
        (
            _header(payload, s, read_header(payload, s).ttl),
            _map(0x71, _without(payload, s.delivery_annotations, BROKER_ANNOTATIONS)),
            _map(0x72, _without(payload, s.message_annotations, BROKER_ANNOTATIONS)),
            _changed_properties(payload, s, {}),
            _map(0x74, _without(payload, s.application_properties, marks)),
            payload[_end_of_head(s) : s.bare_end],
        )
    )


def life_ms(ttl_ms: int | None, created_ms: int | None, expires_ms: int | None) -> int | None:
    """Return the time to live: header.ttl or, beyond its 32 bits, the span from creation to expiry time."""
    if not ttl_ms and created_ms is not None and expires_ms is not None and expires_ms - created_ms > TTL_MS_MAX:
        return expires_ms - created_ms
    return ttl_ms


class RestoredMessage(NamedTuple):
    """A message without aliases, ready to be sent to the entity at `path`; `scheduled` is in unix seconds."""

    path: str
    payload: bytes
    session_id: str | None
    scheduled: float | None


class Rejected(NamedTuple):
    """The words with which to dead-letter a message that can't be restored."""

    reason: str
    description: str


class _Wrong(Exception):
    def __init__(self, reason: str, description: str) -> None:
        self.rejected = Rejected(reason, description)


def restore_message(
    payload: bytes,
    *,
    now: float,
    count_backlog_time: bool = False,
    enqueued_time: float | None = None,
    is_replay: bool = False,
    known: tuple[Sections, Mapping[Any, Any]] | None = None,
) -> RestoredMessage | Rejected:
    """Restore a delivery of a backlog queue to what was once sent to the primary. Times are in unix seconds. `known`:
    its sections and message annotations, where the caller has read them.

    With `count_backlog_time` the time since `enqueued_time` (by default what the delivery says) is taken off the time
    to live. A message that has used it all up is still delivered, with one millisecond left: so it expires at its
    destination, by that entity's rules, and is dead-lettered where those say so. `is_replay`: it comes from the backlog
    queue's dead letters.
    """
    try:
        return _brought_home(payload, now, count_backlog_time, enqueued_time, is_replay, known)
    except _Wrong as wrong:
        return wrong.rejected
    except AmqpError as error:
        return Rejected("MessageNotReadable", f"the message can't be decoded: {error}")


def _brought_home(
    payload: bytes,
    now: float,
    count_backlog_time: bool,
    enqueued_time: float | None,
    is_replay: bool,
    known: tuple[Sections, Mapping[Any, Any]] | None,
) -> RestoredMessage:
    s = split(payload) if known is None else known[0]
    keeps_annotations = known is None or not _NOT_KEPT.issuperset(known[1])
    kept: list[bytes] = []
    found: dict[str, Any] = {}
    for key, raw in raw_pairs(payload, s.application_properties):
        if key in ALIASES:
            if key in found:
                raise _Wrong("InvalidAlias", f"the application property {key} is there twice")
            found[key] = decode(raw, skip(raw, 0))[0]
        elif not is_replay or key not in DEAD_LETTER_PROPERTIES:
            kept.append(raw)
    path = _path(found)
    session_id = _text(found, SESSION_ID) if SESSION_ID in found else None
    ttl_ms = _ttl_ms(found) if TIME_TO_LIVE in found else None
    scheduled_ms = _scheduled_ms(found) if SCHEDULED_TIME in found else None

    annotations: list[bytes] = []
    for key, raw in raw_pairs(payload, s.message_annotations) if keeps_annotations else ():
        if key == "x-opt-enqueued-time" and enqueued_time is None and count_backlog_time:
            value = decode(raw, skip(raw, 0))[0]
            enqueued_time = value / 1000 if isinstance(value, int) else None
        if key not in _NOT_KEPT:
            annotations.append(raw)
    if scheduled_ms is not None:
        annotations.append(_SCHEDULED_KEY + scheduled_ms.to_bytes(8, "big", signed=True))
    hops = _without(payload, s.delivery_annotations, BROKER_ANNOTATIONS) if s.delivery_annotations else []

    if ttl_ms is not None and count_backlog_time and enqueued_time is not None:
        # The time to live of a scheduled message begins at its scheduled time.
        begin = enqueued_time if scheduled_ms is None else max(enqueued_time, scheduled_ms / 1000)
        ttl_ms = max(1, ttl_ms - max(0, int((now - begin) * 1000)))

    rest = payload[_end_of_head(s) : s.bare_end]
    return RestoredMessage(
        path,
        b"".join(
            (
                _header(payload, s, ttl_ms),
                _map(0x71, hops) if hops else b"",
                _map(0x72, annotations) if annotations else b"",
                _properties(payload, s, session_id, ttl_ms, now),
                _map(0x74, kept) if kept else b"",
                rest,
            )
        ),
        session_id,
        None if scheduled_ms is None else scheduled_ms / 1000,
    )


_SCHEDULED_KEY: Final = b"\xa3" + bytes((len(SCHEDULED_ANNOTATION),)) + SCHEDULED_ANNOTATION.encode() + b"\x83"


def _without(payload: bytes, span: tuple[int, int] | None, names: Set[str]) -> list[bytes]:
    """Return the raw pairs of a section that is a map, except these."""
    return [raw for key, raw in raw_pairs(payload, span) if key not in names]


def _map(section: int, raw_pairs: list[bytes]) -> bytes:
    """Encode a section from raw pairs; nothing where there are none: it held only our aliases, or was not there."""
    if not raw_pairs:
        return b""
    return bytes((0x00, 0x53, section)) + encode_annotations(raw_pairs, len(raw_pairs))[3:]


def _end_of_head(s: Sections) -> int:
    """Return where the application properties end; body and footer follow, which stay as they are."""
    last = s.application_properties or s.properties or s.message_annotations
    if last is not None:
        return last[1]
    ends = [] if s.header is None else [s.header[1]]
    if s.delivery_annotations is not None and s.delivery_annotations[0] < s.bare_end:
        ends.append(s.delivery_annotations[1])
    return max(ends, default=0)


def _header(payload: bytes, s: Sections, ttl_ms: int | None) -> bytes:
    """Return the sender's header with this time to live and without the backlog's delivery count."""
    ttl = None if ttl_ms is None or ttl_ms >= FOREVER_MS else min(ttl_ms, TTL_MS_MAX)
    return _rewritten_header(b"" if s.header is None else payload[s.header[0] : s.header[1]], ttl)


@lru_cache(maxsize=1024)
def _rewritten_header(section: bytes, ttl: int | None) -> bytes:
    """Cached, since senders use few different headers."""
    section = with_fields(Header, section, 0 if section else None, {"ttl": ttl, "delivery_count": None})
    return section if section[6 if section[3] == 0xC0 else 12 :].strip(b"\x40") else b""


def _properties(payload: bytes, s: Sections, session_id: str | None, ttl_ms: int | None, now: float) -> bytes:
    changes: dict[str, Any] = {}
    if session_id is not None:
        changes["group_id"] = session_id
    if ttl_ms and ttl_ms < FOREVER_MS:
        # As the SDK writes them at a send; nothing else gives a time to live beyond 32 bits.
        created = int(now * 1000)
        changes["creation_time"] = created
        changes["absolute_expiry_time"] = min(EXPIRY_MS_MAX, created + ttl_ms)
    return _changed_properties(payload, s, changes)


def _changed_properties(payload: bytes, s: Sections, changes: dict[str, Any]) -> bytes:
    section = b"" if s.properties is None else payload[s.properties[0] : s.properties[1]]
    if not changes:
        return section
    return with_fields(Properties, section, 0 if section else None, changes)


def _path(found: dict[str, Any]) -> str:
    if PATH not in found:
        raise _Wrong(
            "MissingPath", f"the application property {PATH}, which names the destination, is not there: not of ours?"
        )
    path = _text(found, PATH)
    if not path:
        raise _Wrong("InvalidPath", f"the application property {PATH}, which names the destination, is empty")
    return path


def _text(found: dict[str, Any], name: str) -> str:
    value = found[name]
    if type(value) is not str:
        raise _wrong_type(name, value, "string")
    return value


def _ttl_ms(found: dict[str, Any]) -> int:
    value = found[TIME_TO_LIVE]
    ticks = type(value) is Described and value.descriptor == _TIMESPAN
    number = value.value if ticks else value
    if type(number) is not int:  # an AMQP long; the other widths are subclasses
        raise _wrong_type(TIME_TO_LIVE, value, f"long (milliseconds) or {_TIMESPAN}")
    ttl_ms: int = number // _TICKS_PER_MS if ticks else number
    if ttl_ms < 0:
        raise _Wrong("InvalidAlias", f"the application property {TIME_TO_LIVE} is {ttl_ms} ms: less than nothing")
    return ttl_ms


def _scheduled_ms(found: dict[str, Any]) -> int:
    value = found[SCHEDULED_TIME]
    if type(value) is not Timestamp:
        raise _wrong_type(SCHEDULED_TIME, value, "timestamp")
    return int(value)


def _wrong_type(name: str, value: object, wanted: str) -> _Wrong:
    reason = "InvalidPath" if name == PATH else "InvalidAlias"
    return _Wrong(reason, f"the application property {name} is of the AMQP type {amqp_type(value)}; wanted: {wanted}")


_TYPES: Final = {
    type(None): "null", bool: "boolean", types.UByte: "ubyte", types.UShort: "ushort", types.UInt: "uint",
    types.ULong: "ulong", types.Byte: "byte", types.Short: "short", types.Int: "int", int: "long",
    types.Float: "float", float: "double", types.Decimal32: "decimal32", types.Decimal64: "decimal64",
    types.Decimal128: "decimal128", types.Char: "char", Timestamp: "timestamp", UUID: "uuid", bytes: "binary",
    str: "string", types.Symbol: "symbol", list: "list", dict: "map", types.Array: "array",
}  # fmt: skip


def amqp_type(value: object) -> str:
    """Return the name of the AMQP type that a value was decoded from."""
    if isinstance(value, Described):
        return f"{value.descriptor} ({amqp_type(value.value)})"
    return _TYPES.get(type(value), type(value).__name__)
