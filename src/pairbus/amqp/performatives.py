"""Encodes and decodes the performatives, whose classes are in `performative_types`.

`decode_performative` reads any of them by its schema. Transfer, disposition and flow come with every message, so
straight-line code for each of them reads them first. Input that it doesn't recognise takes the general path, which
reports errors. The performatives that a broker writes by the thousand have their own encoders.

Whether a performative is allowed in the peer's state is decided elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from pairbus.amqp.composite import COMPOSITES, PERFORMATIVES, Composite, decode_fields, read_descriptor
from pairbus.amqp.decoding import decode, truncated, unpack_u32
from pairbus.amqp.encoding import encode
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.performative_types import (
    Accepted,
    Disposition,
    Flow,
    Rejected,
    Released,
    State,
    Transfer,
)
from pairbus.amqp.types import UInt

ACCEPTED_BYTES: Final = Accepted().encode()
RELEASED_BYTES: Final = Released().encode()
REJECTED_EMPTY_BYTES: Final = Rejected().encode()


def decode_performative(buf: bytes, offset: int = 0) -> tuple[Any, int]:
    """Return the performative at `offset` and the offset behind it, where a transfer's payload starts."""
    try:
        hot = _HOT.get(buf[offset : offset + 4])
        if hot is not None:
            found = hot(buf, offset)
            if found is not None:
                return found
        if buf[offset] != 0x00:
            raise DecodeError(f"a performative is a described list, not {buf[offset]:#04x} (byte {offset})")
        descriptor, o = read_descriptor(buf, offset + 1)
        cls = COMPOSITES.get(descriptor)
        if cls is None or cls.DESCRIPTOR not in PERFORMATIVES:
            raise DecodeError(f"unknown performative {descriptor!r:.60} at byte {offset}")
        return decode_fields(cls, buf, o, 1)
    except (IndexError, struct.error):
        raise truncated(buf, offset) from None
    except ValueError as error:
        raise DecodeError(f"text that can't be read in the performative at byte {offset}: {error}") from None


# Behind its numbers, a performative of the message flow has one of a few hundred endings: looked up as a whole.
# A boolean has three encodings and null; pyamqp writes the two bytes, rhea and we the one.
_NO: Final = (b"\x40", b"\x42", b"\x56\x00")
_TRUTHS: Final = {b"\x40": None, b"\x41": True, b"\x42": False, b"\x56\x00": False, b"\x56\x01": True}


def _transfer_endings() -> dict[bytes, tuple[int, bool | None, bool]]:
    """Return the number of fields, settled and more by the usual encodings of a transfer's last fields."""
    tails = {b"": 0, b"\x40": 1, b"\x40\x40": 2}
    tails |= {b"\x40\x40" + no * n: 2 + n for n in (1, 2, 3) for no in _NO}
    endings: dict[bytes, tuple[int, bool | None, bool]] = {b"": (0, None, False)}
    for settled_raw, settled in _TRUTHS.items():
        endings[settled_raw] = (1, settled, False)
        for more_raw, more in _TRUTHS.items():
            for tail, count in tails.items():
                endings[settled_raw + more_raw + tail] = (2 + count, settled, more is True)
    return endings


def _disposition_endings() -> dict[bytes, tuple[int, bool, State | None]]:
    """Return the number of fields, settled and state by the usual encodings of a disposition's last fields."""
    states: dict[bytes, State | None] = {b"\x40": None}
    for state in (Accepted(), Released()):
        for empty in (b"\x45", b"\xc0\x01\x00", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"):
            states[bytes((0x00, 0x53, state.DESCRIPTOR)) + empty] = state
    endings: dict[bytes, tuple[int, bool, State | None]] = {b"": (0, False, None)}
    for settled_raw, settled in _TRUTHS.items():
        endings[settled_raw] = (1, settled is True, None)
        for state_raw, outcome in states.items():
            endings[settled_raw + state_raw] = (2, settled is True, outcome)
            for no in _NO:
                endings[settled_raw + state_raw + no] = (3, settled is True, outcome)
    return endings


def _flow_endings() -> dict[bytes, tuple[int, int | None, bool, bool]]:
    """Return the number of fields, available, drain and echo by the usual encodings of a flow's last fields."""
    endings: dict[bytes, tuple[int, int | None, bool, bool]] = {b"": (0, None, False, False)}
    for available_raw, available in ((b"\x40", None), (b"\x43", 0)):
        endings[available_raw] = (1, available, False, False)
        for drain_raw, drain in _TRUTHS.items():
            endings[available_raw + drain_raw] = (2, available, drain is True, False)
            for echo_raw, echo in _TRUTHS.items():
                ending = available_raw + drain_raw + echo_raw
                endings[ending] = (3, available, drain is True, echo is True)
                endings[ending + b"\x40"] = (4, available, drain is True, echo is True)
    return endings


_HotDecoder = Callable[[bytes, int], tuple[Any, int] | None]
#: The usual encodings of a number: constructor, value and width, as source text.
_FORMS: Final = {
    "null": (0x40, "None", 1), "zero": (0x43, "0", 1), "small": (0x52, "buf[o + 1]", 2),
    "wide": (0x70, "unpack_u32(buf, o + 1)[0]", 5),
}  # fmt: skip
_TAG: Final = """
    if buf[o] != 0xA0:
        return None
    start = o + 2
    o = start + buf[o + 1]
    found.delivery_tag = buf[start:o]"""
_ROLE: Final = """
    code = buf[o]
    o += 1
    if code == 0x41:
        found.role = True
    elif code == 0x42:
        found.role = False
    elif code == 0x56 and buf[o] < 2:
        found.role = buf[o] == 1
        o += 1
    else:
        return None"""
_DECODER: Final = """
def decode(buf, offset):
    if buf[offset + 5] < {count}:
        return None
    end = offset + 5 + buf[offset + 4]
    o = offset + 6
    found = new(cls){fields}
    ending = endings.get(buf[o:end])
    if ending is None or end > len(buf) or o > end:
        return None
    count, {last} = ending
    if count + {count} != buf[offset + 5]:
        return None
    return found, end
"""


def _number(name: str, forms: str) -> str:
    """Return the source that reads a number; the most frequent of its forms comes first."""
    lines = ["    code = buf[o]"]
    for form in forms.split():
        code, value, width = _FORMS[form]
        keyword = "if" if len(lines) == 1 else "elif"
        lines += [f"    {keyword} code == {code:#x}:", f"        found.{name} = {value}", f"        o += {width}"]
    return "\n".join(["", *lines, "    else:", "        return None"])


def _hot_decoder(cls: type[Composite], fields: tuple[str, ...], endings: dict[bytes, Any], last: str) -> _HotDecoder:
    """Return a decoder made of these fields and the last ones, which are looked up: straight code, and no calls."""
    known = dict.fromkeys(each.strip() for each in last.split(","))
    rest = [field for field in cls.SCHEMA if field.name not in known and f"found.{field.name} =" not in "".join(fields)]
    defaults = [f"\n    found.{field.name} = {field.default!r}" for field in rest]
    source = _DECODER.format(
        count=len(fields), fields="".join([*fields, *defaults]), last=", ".join(f"found.{name}" for name in known)
    )
    names: dict[str, Any] = {"cls": cls, "new": cls.__new__, "endings": endings, "unpack_u32": unpack_u32}
    exec(compile(source, f"<decoder of {cls.__name__}>", "exec"), names)  # noqa: S102 - all of it stands here
    decode: _HotDecoder = names["decode"]
    return decode


_HOT: Final = {
    b"\x00\x53\x13\xc0": _hot_decoder(
        Flow,  # of a link; that of a session alone is rare
        (
            _number("next_incoming_id", "wide small zero null"),
            _number("incoming_window", "wide small zero"),
            _number("next_outgoing_id", "wide small zero"),
            _number("outgoing_window", "wide small zero"),
            _number("handle", "small zero"),
            _number("delivery_count", "wide small zero null"),
            _number("link_credit", "wide small zero"),
        ),
        _flow_endings(),
        "available, drain, echo",
    ),
    b"\x00\x53\x14\xc0": _hot_decoder(
        Transfer,
        (
            _number("handle", "small zero"),
            _number("delivery_id", "wide small zero"),
            _TAG,
            _number("message_format", "zero wide"),
        ),
        _transfer_endings(),
        "settled, more",
    ),
    b"\x00\x53\x15\xc0": _hot_decoder(
        Disposition,
        (_ROLE, _number("first", "wide small zero"), _number("last", "wide small zero null")),
        _disposition_endings(),
        "settled, state",
    ),
}

_NUMBERS: Final = tuple(encode(UInt(n)) for n in range(256))
_TAG_HEADS: Final = tuple(bytes((0xA0, n)) for n in range(33))  # AMQP 2.8.7: a tag has up to 32 bytes
# All eleven fields, since old clients index them (composite._WHOLE): nothing is said after `more`.
_TRANSFER_HEADS: Final = tuple(bytes((0x00, 0x53, 0x14, 0xC0, size + 1, 11)) for size in range(254))
_TRANSFER_TAILS: Final = {
    (settled, more): (b"\x41" if settled else b"\x42") + (b"\x41" if more else b"\x40") + b"\x40" * 5
    for settled in (False, True)
    for more in (False, True)
}
_pack_number = struct.Struct(">BI").pack


def encode_transfer(
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    message_format: int | None,
    settled: bool,
    more: bool,
    state: bytes | None = None,
) -> bytes:
    """Encode a transfer without its payload, which follows in the frame. `state` is encoded already."""
    if delivery_id is None or tag is None or message_format is None or not 0 <= handle < 256 or len(tag) > 32:
        return Transfer(
            handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=message_format,
            settled=settled, more=more, state=None if state is None else decode(state)[0],
        ).encode()  # fmt: skip
    tail = _TRANSFER_TAILS[settled, more]
    if state is not None:
        tail = tail[:3] + state + tail[4:]
    try:
        body = (
            _NUMBERS[handle]
            + (_NUMBERS[delivery_id] if 0 <= delivery_id < 256 else _pack_number(0x70, delivery_id))
            + _TAG_HEADS[len(tag)]
            + tag
            + (_NUMBERS[message_format] if 0 <= message_format < 256 else _pack_number(0x70, message_format))
            + tail
        )
        return _TRANSFER_HEADS[len(body)] + body
    except struct.error:
        raise EncodeError(f"a delivery-id of {delivery_id} or message-format of {message_format} is no uint") from None
    except IndexError:
        raise EncodeError(f"a state of {len(state or b'')} bytes is too long for a transfer") from None


def encode_flow(numbers: Sequence[int | None], drain: bool) -> bytes:
    """Encode a flow of its first four fields, or of its first seven, which are those of a link, and `drain`."""
    try:
        body = b"".join([
            b"\x40" if n is None else _NUMBERS[n] if 0 <= n < 256 else _pack_number(0x70, n) for n in numbers
        ])  # fmt: skip
    except struct.error:
        raise EncodeError(f"a flow with {numbers}: these are no uints") from None
    body += b"\x40\x41\x40\x40" if drain else b"\x40" * (11 - len(numbers))
    return b"\x00\x53\x13\xc0" + bytes((len(body) + 1, 11)) + body


def encode_disposition(role: bool, first: int, last: int | None, settled: bool, state: bytes | None) -> bytes:
    """Encode a disposition. `state` is encoded already: `ACCEPTED_BYTES` and the like, or what `encode` gave."""
    try:
        body = (
            (b"\x41" if role else b"\x42")
            + (_NUMBERS[first] if 0 <= first < 256 else _pack_number(0x70, first))
            + (b"\x40" if last is None else _NUMBERS[last] if 0 <= last < 256 else _pack_number(0x70, last))
            + (b"\x41" if settled else b"\x42")
            + (state or b"\x40")
            + b"\x40"
        )
    except struct.error:
        raise EncodeError(f"a disposition from {first} to {last}: these are no uints") from None
    size = len(body)
    if size < 255:
        return b"\x00\x53\x15\xc0" + bytes((size + 1, 6)) + body
    return b"\x00\x53\x15\xd0" + struct.pack(">II", size + 4, 6) + body
