"""Whether receivers can read what a sender sent: the parts of a message that are passed on as they came.

Pure. One message that a client library can't decode would make its whole queue impossible to peek, since the library
gives up on the answer or on the connection. So everything that is passed on unread is checked when it is sent: that it
is sound AMQP, not nested deeper than the official SDK decodes, and of types that it knows (dialect 0.10).
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pairbus.amqp.codec import decode, skip
from pairbus.amqp.decoding import compound_bounds, truncated, unpack_u32
from pairbus.amqp.errors import INVALID_FIELD, AmqpError, DecodeError
from pairbus.amqp.message import Sections
from pairbus.amqp.types import Char, Decimal32, Decimal64, Described

#: Measured with azure-servicebus 7.15: it decodes 63 levels, ours that of the section included.
NESTING_MAX: Final = 60
#: What .NET's DateTime can hold, and Python's: the years 1 to 9999, in milliseconds since 1970.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
_UNKNOWN_CODES: Final = {0x73: "char", 0x74: "decimal32", 0x84: "decimal64"}
_UNKNOWN_TYPES: Final[dict[type, str]] = {Char: "char", Decimal32: "decimal32", Decimal64: "decimal64"}
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


def check_sections(payload: bytes, s: Sections) -> None:
    """Raises AmqpError where a section that is kept as it came can't be read by every receiver. On the way of every
    message: what nearly all of them are made of is not looked into."""
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


def check_value(buf: bytes, at: int, depth: int = 0) -> int:
    """The offset behind the value. Raises AmqpError: not sound, nested too deeply, or of a type that clients don't
    know."""
    try:
        return _check(buf, at, depth)
    except (IndexError, struct.error):
        raise truncated(buf, at) from None


def _check(buf: bytes, at: int, depth: int) -> int:
    code = buf[at]
    if code in _UNKNOWN_CODES:
        raise _unknown(_UNKNOWN_CODES[code])
    if code != 0x00 and (code < 0xC0 or code == 0x45):
        return skip(buf, at)
    if depth >= NESTING_MAX:
        text = f"Values may be nested {NESTING_MAX} deep: clients can't read what is nested deeper."
        raise AmqpError(text, INVALID_FIELD)
    if code == 0x00:
        return _check(buf, _check(buf, at + 1, depth + 1), depth + 1)
    if code in (0xE0, 0xF0):
        value, end = decode(buf, at)
        check_decoded(value)
        return end
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


def check_decoded(value: Any) -> None:
    """The same of a value that was decoded, and so is sound and not nested deeply."""
    kind = type(value)
    if kind in _UNKNOWN_TYPES:
        raise _unknown(_UNKNOWN_TYPES[kind])
    if isinstance(value, list):
        for each in value:
            check_decoded(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            check_decoded(key)
            check_decoded(each)
    elif isinstance(value, Described):
        check_decoded(value.descriptor)
        check_decoded(value.value)


def check_time(name: str, ms: int | None) -> None:
    if ms is not None and not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        text = f"{name} is a time in the years 1 to 9999, in milliseconds since 1970; {int(ms)} is not."
        raise AmqpError(text, INVALID_FIELD)


def _unknown(name: str) -> AmqpError:
    return AmqpError(f"A value is of type {name}, which the official Python SDK can't read.", INVALID_FIELD)
