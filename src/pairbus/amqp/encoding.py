"""Encodes AMQP 1.0 values as bytes (AMQP part 1).

It decides how a value is written: always in the smallest encoding of its type. A value that AMQP can't carry is an
`EncodeError` that names the type. Arrays are the exception: all elements share one constructor, the one that the array
came with or the widest of its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from pairbus.amqp import types
from pairbus.amqp.decoding import DEPTH_MAX
from pairbus.amqp.errors import EncodeError
from pairbus.amqp.types import Array, Char, Described

Encoder = Callable[[bytearray, Any, int], None]

_u32 = struct.Struct(">I")


def encode(value: Any) -> bytes:
    out = bytearray()
    encode_to(out, value)
    return bytes(out)


def encode_to(out: bytearray, value: Any, depth: int = 0) -> None:
    encoder = ENCODERS.get(type(value)) or _inherited(value)
    try:
        encoder(out, value, depth)
    except (struct.error, OverflowError):
        raise EncodeError(f"{value!r} is out of range for {type(value).__name__}") from None
    except UnicodeEncodeError:
        raise EncodeError(f"{type(value).__name__} with lone surrogates can't be written as UTF-8") from None


def _inherited(value: Any) -> Encoder:
    for kind in type(value).__mro__:
        if kind in ENCODERS:
            return ENCODERS[kind]
    raise EncodeError(f"{type(value).__name__} has no AMQP type; see pairbus.amqp.types for those that do")


def _null(out: bytearray, value: None, depth: int) -> None:
    out.append(0x40)


def _e_bool(out: bytearray, value: bool, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _e_unsigned(zero: int, small: int, wide: int, layout: str) -> Encoder:
    pack = struct.Struct(">B" + layout).pack

    def encode_unsigned(out: bytearray, value: int, depth: int) -> None:
        if value == 0:
            out.append(zero)
        elif 0 < value < 256:
            out.append(small)
            out.append(value)
        else:
            out += pack(wide, value)

    return encode_unsigned


def _e_signed(small: int, wide: int, layout: str) -> Encoder:
    pack = struct.Struct(">B" + layout).pack

    def encode_signed(out: bytearray, value: int, depth: int) -> None:
        if -128 <= value < 128:
            out.append(small)
            out.append(value & 0xFF)
        else:
            out += pack(wide, value)

    return encode_signed


def _e_fixed(code: int, layout: str) -> Encoder:
    pack = struct.Struct(">B" + layout).pack

    def encode_fixed(out: bytearray, value: Any, depth: int) -> None:
        out += pack(code, value)

    return encode_fixed


def _e_raw(code: int, width: int) -> Encoder:
    def encode_raw(out: bytearray, value: bytes, depth: int) -> None:
        if len(value) != width:
            raise EncodeError(f"{type(value).__name__} has {len(value)} bytes instead of {width}")
        out.append(code)
        out += value

    return encode_raw


def _e_uuid(out: bytearray, value: UUID, depth: int) -> None:
    out.append(0x98)
    out += value.bytes


def _e_char(out: bytearray, value: str, depth: int) -> None:
    if len(value) != 1:
        raise EncodeError(f"a char is one character, not {len(value)}")
    out.append(0x73)
    out += value.encode("utf-32-be")


def _variable(out: bytearray, raw: bytes, code8: int) -> None:
    size = len(raw)
    if size < 256:
        out.append(code8)
        out.append(size)
    else:
        out.append(code8 + 0x10)
        out += _u32.pack(size)
    out += raw


def encode_binary(out: bytearray, value: bytes, depth: int = 0) -> None:
    _variable(out, value, 0xA0)


def encode_string(out: bytearray, value: str, depth: int = 0) -> None:
    _variable(out, value.encode(), 0xA1)


def encode_symbol(out: bytearray, value: str, depth: int = 0) -> None:
    _variable(out, value.encode(), 0xA3)


def _compound(out: bytearray, body: bytes | bytearray, count: int, code8: int) -> None:
    size = len(body)
    if size < 255 and count < 256:
        out.append(code8)
        out.append(size + 1)
        out.append(count)
    else:
        out.append(code8 + 0x10)
        out += struct.pack(">II", size + 4, count)
    out += body


def encode_list_body(out: bytearray, body: bytes | bytearray, count: int) -> None:
    """Write a list of `count` items that are already encoded."""
    if count:
        _compound(out, body, count, 0xC0)
    else:
        out.append(0x45)


def encode_map_body(out: bytearray, body: bytes | bytearray, pairs: int) -> None:
    _compound(out, body, 2 * pairs, 0xC1)


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"values nested deeper than {DEPTH_MAX}")


def encode_list(out: bytearray, value: list[Any], depth: int = 0) -> None:
    _check_depth(depth)
    body = bytearray()
    for item in value:
        encode_to(body, item, depth + 1)
    encode_list_body(out, body, len(value))


def encode_map(out: bytearray, value: dict[Any, Any], depth: int = 0) -> None:
    _check_depth(depth)
    body = bytearray()
    for key, item in value.items():
        encode_to(body, key, depth + 1)
        encode_to(body, item, depth + 1)
    encode_map_body(out, body, len(value))


def _e_described(out: bytearray, value: Described, depth: int) -> None:
    _check_depth(depth)
    out.append(0x00)
    encode_to(out, value.descriptor, depth + 1)
    encode_to(out, value.value, depth + 1)


def _e_array(out: bytearray, value: Array, depth: int) -> None:
    _check_depth(depth)
    body = bytearray()
    items: list[Any] = value
    descriptor, code = value.descriptor, value.code
    if descriptor is None and items and isinstance(items[0], Described):
        descriptor = items[0].descriptor
    if descriptor is not None:
        if not all(isinstance(item, Described) and item.descriptor == descriptor for item in items):
            raise EncodeError(f"an array described by {descriptor!r} holds an item that isn't")
        items = [item.value for item in items]
        body.append(0x00)
        encode_to(body, descriptor, depth + 1)
    if code is None and items:
        code = _widest(items[0])
    if code is not None:
        write = _ELEMENTS.get(code)
        if write is None:
            raise EncodeError(f"{code:#04x} is no constructor for array elements")
        body.append(code)
        for item in items:
            try:
                write(body, item, depth + 1)
            except (struct.error, TypeError, AttributeError, OverflowError):
                raise EncodeError(f"{item!r:.60} can't be an element of an array of type {code:#04x}") from None
    _compound(out, body, len(value), 0xE0)


def _widest(item: Any) -> int:
    for kind in type(item).__mro__:
        code = _WIDEST.get(kind)
        if code is not None:
            return code
    raise EncodeError(f"an array can't hold {type(item).__name__}")


def _empty_element(expected: Any) -> Encoder:
    def write(out: bytearray, item: Any, depth: int) -> None:
        if item is not expected and item != expected:
            raise TypeError

    return write


def _packed_element(layout: str) -> Encoder:
    pack = struct.Struct(layout).pack

    def write(out: bytearray, item: Any, depth: int) -> None:
        out += pack(item)

    return write


def _own_element(kind: type) -> Encoder:
    """Return a writer of elements of fixed width: what the type's own encoder writes, without the constructor."""

    def write(out: bytearray, item: Any, depth: int) -> None:
        if not isinstance(item, kind):
            raise TypeError
        out += encode(item)[1:]

    return write


def _uuid_element(out: bytearray, item: Any, depth: int) -> None:
    # lock tokens come in arrays of hundreds
    if not isinstance(item, UUID):
        raise TypeError
    out += item.bytes


def _variable_element(kind: type, size: struct.Struct) -> Encoder:
    def write(out: bytearray, item: Any, depth: int) -> None:
        if not isinstance(item, kind):
            raise TypeError
        raw: bytes = item.encode() if isinstance(item, str) else item  # type: ignore[assignment]
        out += size.pack(len(raw))
        out += raw

    return write


def _compound_element(kind: type, wide: bool) -> Encoder:
    def write(out: bytearray, item: Any, depth: int) -> None:
        if type(item) is not kind:
            raise TypeError
        whole = bytearray()
        encode_to(whole, item, depth)
        if whole[0] == 0x45:
            whole = bytearray(b"\xc0\x01\x00")
        if whole[0] & 0x10:
            if not wide:
                raise TypeError
            out += memoryview(whole)[1:]
        elif wide:
            out += struct.pack(">II", whole[1] + 3, whole[2])
            out += memoryview(whole)[3:]
        else:
            out += memoryview(whole)[1:]

    return write


encode_ubyte = _e_fixed(0x50, "B")
encode_ushort = _e_fixed(0x60, "H")
encode_uint = _e_unsigned(0x43, 0x52, 0x70, "I")
encode_ulong = _e_unsigned(0x44, 0x53, 0x80, "Q")

ENCODERS: Final[dict[type, Encoder]] = {
    type(None): _null,
    bool: _e_bool,
    types.UByte: encode_ubyte,
    types.UShort: encode_ushort,
    types.UInt: encode_uint,
    types.ULong: encode_ulong,
    types.Byte: _e_fixed(0x51, "b"),
    types.Short: _e_fixed(0x61, "h"),
    types.Int: _e_signed(0x54, 0x71, "i"),
    int: _e_signed(0x55, 0x81, "q"),
    types.Float: _e_fixed(0x72, "f"),
    float: _e_fixed(0x82, "d"),
    types.Decimal32: _e_raw(0x74, 4),
    types.Decimal64: _e_raw(0x84, 8),
    types.Decimal128: _e_raw(0x94, 16),
    Char: _e_char,
    types.Timestamp: _e_fixed(0x83, "q"),
    UUID: _e_uuid,
    bytes: encode_binary,
    bytearray: encode_binary,
    str: encode_string,
    types.Symbol: encode_symbol,
    list: encode_list,
    dict: encode_map,
    Array: _e_array,
    Described: _e_described,
}

_u8 = struct.Struct(">B")
_ELEMENTS: Final[dict[int, Encoder]] = {
    0x40: _empty_element(None),
    0x41: _empty_element(True),
    0x42: _empty_element(False),
    0x43: _empty_element(0),
    0x44: _empty_element(0),
    0x45: _empty_element([]),
    **{code: _packed_element(">" + layout) for code, layout in enumerate("BbBBbb?", 0x50)},
    **{code: _packed_element(">" + layout) for code, layout in enumerate("Hh", 0x60)},
    **{code: _packed_element(">" + layout) for code, layout in enumerate("Iif", 0x70)},
    **{code: _packed_element(">" + layout) for code, layout in enumerate("Qqdq", 0x80)},
    0x73: _own_element(Char),
    0x74: _own_element(types.Decimal32),
    0x84: _own_element(types.Decimal64),
    0x94: _own_element(types.Decimal128),
    0x98: _uuid_element,
    **{code: _variable_element(kind, _u8) for code, kind in ((0xA0, bytes), (0xA1, str), (0xA3, str))},
    **{code: _variable_element(kind, _u32) for code, kind in ((0xB0, bytes), (0xB1, str), (0xB3, str))},
    **{code: _compound_element(kind, False) for code, kind in ((0xC0, list), (0xC1, dict), (0xE0, Array))},
    **{code: _compound_element(kind, True) for code, kind in ((0xD0, list), (0xD1, dict), (0xF0, Array))},
}
_WIDEST: Final[dict[type, int]] = {
    type(None): 0x40, bool: 0x56, types.UByte: 0x50, types.UShort: 0x60, types.UInt: 0x70, types.ULong: 0x80,
    types.Byte: 0x51, types.Short: 0x61, types.Int: 0x71, int: 0x81, types.Float: 0x72, float: 0x82, Char: 0x73,
    types.Decimal32: 0x74, types.Decimal64: 0x84, types.Decimal128: 0x94, types.Timestamp: 0x83, UUID: 0x98,
    bytes: 0xB0, str: 0xB1, types.Symbol: 0xB3, list: 0xD0, dict: 0xD1, Array: 0xF0,
}  # fmt: skip
