"""Checks that receivers can read the parts of a message that are passed on as they came.

Pure. One message that a client library can't decode would make its whole queue impossible to peek, since the library
gives up on the answer or on the connection. So everything that is passed on unread is checked when it is sent: that it
is sound AMQP and not nested deeper than the official SDK decodes
(docs/reference/protocol.md#what-the-python-sdk-can-decode). Every AMQP type is passed on: the SDK can't decode some
(char, decimals), but other clients can.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.decoding import DEPTH_MAX, compound_bounds, truncated, unpack_u32
from pairbus.amqp.errors import INVALID_FIELD, MESSAGE_SIZE_EXCEEDED, AmqpError, DecodeError
from pairbus.amqp.message import Sections

#: What .NET's DateTime can hold, and Python's: the years 1 to 9999, in milliseconds since 1970.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
#: Of one application property, and of all of a message; those that an action sets have the same (sql/actions.py).
PROPERTY_BYTES_MAX: Final = 32 * 1024
PROPERTIES_BYTES_MAX: Final = 64 * 1024
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_ALIASES: Final = ("x-ms-", "x-pairbus-")
_OF_DEAD_LETTERS: Final = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))


def check_sections(payload: bytes, s: Sections) -> None:
    """Raise AmqpError where a section that is kept as it came can't be read by every receiver. Nothing needs to be
    looked for in plain ones (`Sections.is_plain`), which nearly all messages are made of."""
    if s.properties is not None:
        _check_descriptor(payload, s.properties[0])
    if s.application_properties is not None:
        _check_descriptor(payload, s.application_properties[0])
    for span in () if s.delivery_annotations is s.footer else (s.delivery_annotations, s.footer):
        if span is not None:
            _check_descriptor(payload, span[0])
            check_value(payload, span[0] + 3)
    if s.body is None:
        return
    at, end = s.body
    while at < end:
        start = payload[at : at + 4]
        if start == _DATA8:
            at += 5 + payload[at + 4]
        elif start == _DATA32:
            at += 8 + unpack_u32(payload, at + 4)[0]
        else:
            _check_descriptor(payload, at)
            at = check_value(payload, at + 3)


def _check_descriptor(payload: bytes, start: int) -> None:
    if payload[start + 1] != 0x53:
        text = f"The descriptor of the section at byte {start} must be a small ulong: clients can't read others."
        raise AmqpError(text, INVALID_FIELD)


def check_property_sizes(properties: Mapping[str, Any]) -> None:
    """Raise AmqpError where the sender's own application properties are larger than they may be. Those that describe a
    detour or a dead letter don't count: a message that could be sent can be diverted, dead-lettered and moved."""
    own = {
        name: value
        for name, value in properties.items()
        if not str(name).startswith(_ALIASES) and name not in _OF_DEAD_LETTERS
    }
    for name, value in own.items():
        if (size := len(encode(value))) > PROPERTY_BYTES_MAX:
            text = f"The application property '{str(name)[:100]}' takes {size} bytes; {PROPERTY_BYTES_MAX} are allowed."
            raise AmqpError(text, MESSAGE_SIZE_EXCEEDED)
    if (size := len(encode(own))) > PROPERTIES_BYTES_MAX:
        text = f"The application properties take {size} bytes; {PROPERTIES_BYTES_MAX} are allowed."
        raise AmqpError(text, MESSAGE_SIZE_EXCEEDED)


def check_value(buf: bytes, at: int, depth: int = 0) -> int:
    """Return the offset behind the value. Raises AmqpError where it is not sound or nested too deeply."""
    try:
        return _check(buf, at, depth)
    except (IndexError, struct.error):
        raise truncated(buf, at) from None


def _check(buf: bytes, at: int, depth: int) -> int:
    code = buf[at]
    if code != 0x00 and (code < 0xC0 or code == 0x45):
        return skip(buf, at)
    if depth >= DEPTH_MAX:
        text = f"Values may be nested {DEPTH_MAX} deep: clients can't read what is nested deeper."
        raise AmqpError(text, INVALID_FIELD)
    if code == 0x00:
        return _check(buf, _check(buf, at + 1, depth + 1), depth + 1)
    if code in (0xE0, 0xF0):
        return decode(buf, at)[1]
    if code not in (0xC0, 0xD0, 0xC1, 0xD1):
        return skip(buf, at)
    count, o, end = compound_bounds(buf, at + 1, code >= 0xD0)
    if code in (0xC1, 0xD1) and count % 2:
        raise DecodeError(f"{count} keys and values can't fill the map at byte {at}")
    for _ in range(count):
        if o >= end:
            raise DecodeError(f"{count} values don't fit into the compound at byte {at}")
        o = _check(buf, o, depth + 1)
    if o != end:
        raise DecodeError(f"the values of the compound at byte {at} end at byte {o}, the compound at byte {end}")
    return end


def check_time(name: str, ms: int | None) -> None:
    """Raise AmqpError for a time outside the years 1 to 9999."""
    if ms is not None and not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        text = f"{name} is a time in the years 1 to 9999, in milliseconds since 1970; {int(ms)} is not."
        raise AmqpError(text, INVALID_FIELD)
