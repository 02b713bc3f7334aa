"""Encodes and decodes the performatives, whose classes stand in `performative_types`.

`decode_performative` reads any of them by its schema. Transfer, disposition and flow come with every message, so they
are read by hand-written code first; what that code doesn't recognise at once goes the general way, where errors are
told. The performatives that a broker writes by the thousand have their own encoders.

Not decided here: whether a performative is welcome in the peer's state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from pairbus.amqp.composite import COMPOSITES, PERFORMATIVES, decode_fields, read_descriptor
from pairbus.amqp.decoding import truncated, unpack_u32
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


_TRANSFER_ENDINGS: Final = _transfer_endings()
_DISPOSITION_ENDINGS: Final = _disposition_endings()
_FLOW_ENDINGS: Final = _flow_endings()


def _hot_transfer(buf: bytes, offset: int) -> tuple[Transfer, int] | None:
    if buf[offset + 5] < 4:
        return None
    end = offset + 5 + buf[offset + 4]
    o = offset + 6
    transfer = _new_transfer(Transfer)
    code = buf[o]
    if code == 0x52:
        transfer.handle = buf[o + 1]
        o += 2
    elif code == 0x43:
        transfer.handle = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        transfer.delivery_id = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        transfer.delivery_id = buf[o + 1]
        o += 2
    elif code == 0x43:
        transfer.delivery_id = 0
        o += 1
    else:
        return None
    if buf[o] != 0xA0:
        return None
    start = o + 2
    o = start + buf[o + 1]
    transfer.delivery_tag = buf[start:o]
    code = buf[o]
    if code == 0x43:
        transfer.message_format = 0
        o += 1
    elif code == 0x70:
        transfer.message_format = unpack_u32(buf, o + 1)[0]
        o += 5
    else:
        return None
    ending = _TRANSFER_ENDINGS.get(buf[o:end])
    if ending is None or end > len(buf) or o > end:
        return None
    count, transfer.settled, transfer.more = ending
    if count + 4 != buf[offset + 5]:
        return None
    transfer.rcv_settle_mode = transfer.state = None
    transfer.resume = transfer.aborted = transfer.batchable = False
    return transfer, end


def _hot_disposition(buf: bytes, offset: int) -> tuple[Disposition, int] | None:  # noqa: PLR0912 - hot: no calls
    if buf[offset + 5] < 3:
        return None
    end = offset + 5 + buf[offset + 4]
    o = offset + 7
    code = buf[offset + 6]
    disposition = _new_disposition(Disposition)
    if code == 0x41:
        disposition.role = True
    elif code == 0x42:
        disposition.role = False
    elif code == 0x56 and buf[o] < 2:
        disposition.role = buf[o] == 1
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        disposition.first = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        disposition.first = buf[o + 1]
        o += 2
    elif code == 0x43:
        disposition.first = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        disposition.last = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        disposition.last = buf[o + 1]
        o += 2
    elif code == 0x43:
        disposition.last = 0
        o += 1
    elif code == 0x40:
        disposition.last = None
        o += 1
    else:
        return None
    ending = _DISPOSITION_ENDINGS.get(buf[o:end])
    if ending is None or end > len(buf) or o > end:
        return None
    count, disposition.settled, disposition.state = ending
    if count + 3 != buf[offset + 5]:
        return None
    disposition.batchable = False
    return disposition, end


def _hot_flow(buf: bytes, offset: int) -> tuple[Flow, int] | None:  # noqa: C901, PLR0912 - hot: no calls
    """Decode the flow of a link; that of a session alone is rare."""
    if buf[offset + 5] < 7:
        return None
    end = offset + 5 + buf[offset + 4]
    o = offset + 6
    flow = _new_flow(Flow)
    code = buf[o]
    if code == 0x70:
        flow.next_incoming_id = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.next_incoming_id = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.next_incoming_id = 0
        o += 1
    elif code == 0x40:
        flow.next_incoming_id = None
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        flow.incoming_window = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.incoming_window = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.incoming_window = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        flow.next_outgoing_id = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.next_outgoing_id = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.next_outgoing_id = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        flow.outgoing_window = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.outgoing_window = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.outgoing_window = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x52:
        flow.handle = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.handle = 0
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        flow.delivery_count = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.delivery_count = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.delivery_count = 0
        o += 1
    elif code == 0x40:
        flow.delivery_count = None
        o += 1
    else:
        return None
    code = buf[o]
    if code == 0x70:
        flow.link_credit = unpack_u32(buf, o + 1)[0]
        o += 5
    elif code == 0x52:
        flow.link_credit = buf[o + 1]
        o += 2
    elif code == 0x43:
        flow.link_credit = 0
        o += 1
    else:
        return None
    ending = _FLOW_ENDINGS.get(buf[o:end])
    if ending is None or end > len(buf) or o > end:
        return None
    count, flow.available, flow.drain, flow.echo = ending
    if count + 7 != buf[offset + 5]:
        return None
    flow.properties = None
    return flow, end


_new_transfer = Transfer.__new__
_new_disposition = Disposition.__new__
_new_flow = Flow.__new__
_HOT: Final[dict[bytes, Callable[[bytes, int], tuple[Any, int] | None]]] = {
    b"\x00\x53\x13\xc0": _hot_flow,
    b"\x00\x53\x14\xc0": _hot_transfer,
    b"\x00\x53\x15\xc0": _hot_disposition,
}

_NUMBERS: Final = tuple(encode(UInt(n)) for n in range(256))
_TAG_HEADS: Final = tuple(bytes((0xA0, n)) for n in range(33))  # AMQP 2.8.7: a tag has up to 32 bytes
# All eleven fields, since old clients index them (composite._WHOLE): nothing is said after `more`.
_TRANSFER_HEADS: Final = tuple(bytes((0x00, 0x53, 0x14, 0xC0, size + 1, 11)) for size in range(100))
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
    if state is not None:
        return _encode_with_state(handle, delivery_id, tag, message_format, settled, more, state)
    if delivery_id is None or tag is None or message_format is None or not 0 <= handle < 256 or len(tag) > 32:
        return Transfer(
            handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=message_format,
            settled=settled, more=more,
        ).encode()  # fmt: skip
    try:
        body = (
            _NUMBERS[handle]
            + (_NUMBERS[delivery_id] if 0 <= delivery_id < 256 else _pack_number(0x70, delivery_id))
            + _TAG_HEADS[len(tag)]
            + tag
            + (_NUMBERS[message_format] if 0 <= message_format < 256 else _pack_number(0x70, message_format))
            + _TRANSFER_TAILS[settled, more]
        )
    except struct.error:
        raise EncodeError(f"a delivery-id of {delivery_id} or message-format of {message_format} is no uint") from None
    return _TRANSFER_HEADS[len(body)] + body


def _encode_with_state(
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    message_format: int | None,
    settled: bool,
    more: bool,
    state: bytes,
) -> bytes:
    plain = Transfer(
        handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=message_format, settled=settled,
        more=more, state=Accepted(),
    ).encode()  # fmt: skip
    before, found, after = plain.rpartition(ACCEPTED_BYTES)
    body = before[6:] + state + after
    if not found or plain[3] != 0xC0 or len(body) > 254:
        raise EncodeError(f"a tag of {len(tag or b'')} bytes and a state of {len(state)} bytes are too long")
    return b"\x00\x53\x14\xc0" + bytes((len(body) + 1, 11)) + body


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
