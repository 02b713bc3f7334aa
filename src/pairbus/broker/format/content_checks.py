"""Checks that receivers can read the parts of a message that are passed on as they came.

Pure. A single message that a client library can't decode would make its whole queue impossible to peek, since the
library fails on the answer or on the connection. So every part that is passed on unread is checked when it is sent: it
must be valid AMQP and not nested deeper than the official SDK decodes
(docs/reference/protocol.md#what-the-python-sdk-can-decode). Every AMQP type is passed on: the SDK can't decode some
(char, decimals), but other clients can.

A message may have millions of values. So its connection checks a large one in slices (broker/slices.py), and passes it
on as `Checked`, which is not checked again.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from pairbus.amqp.codec import encode, skip
from pairbus.amqp.decoding import (
    DEPTH_MAX,
    WIDTHS,
    ZERO_WIDTH_ITEMS_MAX,
    compound_bounds,
    truncated,
    unpack_u32,
)
from pairbus.amqp.errors import INVALID_FIELD, MESSAGE_SIZE_EXCEEDED, AmqpError, DecodeError
from pairbus.amqp.message import Sections, each_of_batch, split

#: What .NET's DateTime can hold, and Python's: the years 1 to 9999, in milliseconds since 1970.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
#: Of one application property, and of all of a message; those that an action sets have the same (sql/actions.py).
PROPERTY_BYTES_MAX: Final = 32 * 1024
PROPERTIES_BYTES_MAX: Final = 64 * 1024
#: Of all that is beside the body: the properties, those of a detour or a dead letter, and the annotations.
BESIDE_BYTES_MAX: Final = 192 * 1024
#: A message or batch that is larger is checked in slices.
AT_ONCE_BYTES_MAX: Final = 8 * 1024
#: Values that are checked in one unit.
VALUES_AT_ONCE: Final = 500
#: Values of a request, which are decoded at once: 5,000 messages with all that may be said of each have 65,000.
REQUEST_WEIGHT_MAX: Final = 70_000
# What a list or map takes as long as.
_COMPOUND_WEIGHT: Final = 3
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_ALIASES: Final = ("x-ms-", "x-pairbus-")
_OF_DEAD_LETTERS: Final = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))


class Checked(bytes):
    """What was sent in one transfer, or a message of it, that was checked in slices; `error` says what is wrong, and
    `messages` are those of a batch."""

    error: AmqpError | None = None
    messages: Sequence[Checked] = ()


def is_plain(payload: bytes) -> bool:
    """Return whether nothing has to be looked for in a message, as it is plain or no message at all."""
    try:
        return split(payload).is_plain
    except AmqpError:
        return True


def checking(payload: bytes, is_batch: bool) -> Generator[None, None, Checked]:
    """Check a message, or each of a batch, in slices."""
    checked = Checked(payload)
    messages: list[Checked] = []
    checked.messages = messages
    try:
        for message in each_of_batch(payload) if is_batch else (payload,):
            s = split(message)
            if not s.is_plain:
                yield from _checking_sections(message, s)
            if is_batch:
                messages.append(Checked(message))
            yield
    except AmqpError as error:
        checked.error = error.with_traceback(None)
    return checked


def checking_request(payload: bytes) -> Generator[None, None, Checked]:
    """Check in slices that a request has no more values than can be decoded at once."""
    checked = Checked(payload)
    try:
        body = split(payload).body
        yield from _weighing(payload, *((0, 0) if body is None else body))
    except AmqpError as error:
        checked.error = error.with_traceback(None)
    return checked


def _weighing(buf: bytes, at: int, end: int) -> Generator[None, None, None]:
    weight = looked_at = 0
    while at < end:
        looked_at += 1
        if looked_at % VALUES_AT_ONCE == 0:
            yield
        code = buf[at]
        if code == 0x00 or code not in _COMPOUNDS:
            weight += 1
            at = skip(buf, at) if code else at + 1
        else:
            count, inner, after = _bounds(buf, at + 1, code in _WIDE)
            weight += _COMPOUND_WEIGHT
            if code in (0xE0, 0xF0):
                weight += count
                inner = after
            at = inner
        if weight > REQUEST_WEIGHT_MAX:
            text = f"A request may have some {REQUEST_WEIGHT_MAX} values, where a list or map counts as three."
            raise AmqpError(text, MESSAGE_SIZE_EXCEEDED)


def _bounds(buf: bytes, at: int, is_wide: bool) -> tuple[int, int, int]:
    try:
        return compound_bounds(buf, at, is_wide)
    except (IndexError, struct.error):
        raise truncated(buf, at) from None


def check_sections(payload: bytes, s: Sections) -> None:
    """Raise AmqpError where a section that is kept as it came can't be read by every receiver. Nothing needs to be
    looked for in plain ones (`Sections.is_plain`), which nearly all messages are made of."""
    for _ in _checking_sections(payload, s):
        pass


def _checking_sections(payload: bytes, s: Sections) -> Generator[None, None, None]:
    if s.properties is not None:
        _check_descriptor(payload, s.properties[0])
    if s.application_properties is not None:
        _check_descriptor(payload, s.application_properties[0])
    for span in () if s.delivery_annotations is s.footer else (s.delivery_annotations, s.footer):
        if span is not None:
            _check_descriptor(payload, span[0])
            yield from _checking(payload, span[0] + 3)
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
            at = yield from _checking(payload, at + 3)


def check_size_beside_body(payload: bytes, s: Sections) -> None:
    """Raise AmqpError where too much would have to be decoded at once."""
    size = len(payload) - (0 if s.body is None else s.body[1] - s.body[0])
    if size > BESIDE_BYTES_MAX:
        text = f"What is beside the body of the message takes {size} bytes; {BESIDE_BYTES_MAX} are allowed."
        raise AmqpError(text, MESSAGE_SIZE_EXCEEDED)


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


def check_value(buf: bytes, at: int) -> int:
    """Return the offset behind the value. Raises AmqpError where it is not sound or nested too deeply."""
    if 0x00 < buf[at] < 0xC0:
        return skip(buf, at)
    walk = _checking(buf, at)
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return int(end.value)


def _checking(buf: bytes, at: int) -> Generator[None, None, int]:
    try:
        at = yield from _walk(buf, at)
    except (IndexError, struct.error):
        raise truncated(buf, at) from None
    if at > len(buf):
        raise truncated(buf, at)
    return at


def _walk(buf: bytes, at: int) -> Generator[None, None, int]:
    """Go through a value and all that is in it, and return the offset behind it."""
    # Of the innermost value: how many are left in it, where it ends (-1: it does not say), and the constructor that
    # they share in an array.
    left, end, shared = 1, -1, -1
    outer: list[tuple[int, int, int]] = []
    looked_at = 0
    while True:
        while not left:
            if end >= 0 and at != end:
                raise DecodeError(f"the values of a compound end at byte {at}, the compound at byte {end}")
            if not outer:
                return at
            left, end, shared = outer.pop()
        if shared < 0 <= end <= at:
            raise DecodeError(f"{left} more values don't fit into the compound that ends at byte {end}")
        left -= 1
        looked_at += 1
        if looked_at % VALUES_AT_ONCE == 0:
            yield
        code = shared
        if code < 0:
            code = buf[at]
            at += 1
        width = WIDTHS[code]
        if width >= 0:
            at += width
        elif 0x00 < code < 0xC0 and code in _SIZED:
            at += 1 + buf[at] if code < 0xB0 else 4 + unpack_u32(buf, at)[0]
        elif len(outer) >= DEPTH_MAX:
            text = f"Values may be nested {DEPTH_MAX} deep: clients can't read what is nested deeper."
            raise AmqpError(text, INVALID_FIELD)
        else:
            outer.append((left, end, shared))
            left, end, shared = 2, -1, -1  # a descriptor and what it describes
            if code != 0x00:
                if code not in _COMPOUNDS:
                    raise DecodeError(f"unknown constructor {code:#04x} at byte {at - 1}")
                left, at, end = compound_bounds(buf, at, code in _WIDE)
                if code in (0xC1, 0xD1) and left % 2:
                    raise DecodeError(f"{left} keys and values can't fill the map that ends at byte {end}")
                if code in (0xE0, 0xF0):
                    left, at, shared = _behind_array_head(buf, left, at, end)


_SIZED: Final = frozenset((0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3))
_COMPOUNDS: Final = frozenset((0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0))
_WIDE: Final = frozenset((0xD0, 0xD1, 0xF0))


def _behind_array_head(buf: bytes, count: int, at: int, end: int) -> tuple[int, int, int]:
    """Return how many elements of an array are to be looked at one by one, where, and their constructor."""
    if count == 0 and at == end:
        return 0, at, -1
    code, at = buf[at], at + 1
    if code == 0x00:
        if buf[at] not in _DESCRIPTORS or buf[skip(buf, at)] == 0x00:
            raise DecodeError(f"an array's elements can be described only once, by a symbol or a ulong (byte {at})")
        at = skip(buf, at)
        code, at = buf[at], at + 1
    width = WIDTHS[code]
    if width < 0:
        return count, at, code
    if width == 0 and count > ZERO_WIDTH_ITEMS_MAX:
        raise DecodeError(f"an array of {count} elements of no width (byte {at}); {ZERO_WIDTH_ITEMS_MAX} are possible")
    return 0, at + count * width, -1


_DESCRIPTORS: Final = frozenset((0x44, 0x53, 0x80, 0xA3, 0xB3))


def check_time(name: str, ms: int | None) -> None:
    """Raise AmqpError for a time outside the years 1 to 9999."""
    if ms is not None and not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        text = f"{name} is a time in the years 1 to 9999, in milliseconds since 1970; {int(ms)} is not."
        raise AmqpError(text, INVALID_FIELD)
