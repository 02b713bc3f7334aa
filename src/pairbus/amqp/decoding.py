"""Decodes AMQP 1.0 values from bytes (AMQP part 1).

Decides whether bytes are valid. `decode` raises only `DecodeError`, whatever its input; work and memory stay
proportional to the number of bytes. `skip` jumps over a value by its constructor and size alone: it doesn't look inside
lists, maps and arrays. A decoder in the table gets the offset after the constructor and returns the value and the
offset after it; short input may raise IndexError or struct.error there, which the public functions translate.

It is lenient in two points: symbols are read as UTF-8 (pyamqp writes annotation keys that way), and an empty array may
lack its constructor (also pyamqp).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from pairbus.amqp import types
from pairbus.amqp.errors import DecodeError
from pairbus.amqp.types import Array, Char, Described, Symbol

#: azure-servicebus 7.15 decodes 63 levels, ours that of the section included
#: (docs/reference/protocol.md#what-the-python-sdk-can-decode).
DEPTH_MAX: Final = 60
# Elements such as null take no bytes in an array, so the bytes don't bound their number. Inside another value the
# bound is tight: thousands of such arrays fit into one frame.
ZERO_WIDTH_ITEMS_MAX: Final = 1024
ZERO_WIDTH_ITEMS_NESTED_MAX: Final = 16

Decoder = Callable[[bytes, int, int], tuple[Any, int]]

unpack_u32: Final = struct.Struct(">I").unpack_from
_SIGNED: Final = tuple(n if n < 128 else n - 256 for n in range(256))


def decode(buf: bytes, offset: int = 0, depth: int = 0) -> tuple[Any, int]:
    try:
        return DECODERS[buf[offset]](buf, offset + 1, depth)
    except (IndexError, struct.error):
        raise truncated(buf, offset) from None
    except ValueError as error:  # bad UTF-8, no such character
        raise DecodeError(f"text that can't be read in the value at byte {offset}: {error}") from None


def truncated(buf: bytes, offset: int) -> DecodeError:
    return DecodeError(f"the value at byte {offset} runs past the end ({len(buf)} bytes)")


def _unknown(code: int) -> Decoder:
    def decode_unknown(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        raise DecodeError(f"unknown constructor {code:#04x} at byte {o - 1}")

    return decode_unknown


def _described(buf: bytes, o: int, depth: int) -> tuple[Described, int]:
    if depth >= DEPTH_MAX:
        raise _too_deep(o)
    descriptor, o = DECODERS[buf[o]](buf, o + 1, depth + 1)
    value, o = DECODERS[buf[o]](buf, o + 1, depth + 1)
    return Described(descriptor, value), o


def _too_deep(o: int) -> DecodeError:
    return DecodeError(f"values nested deeper than {DEPTH_MAX} at byte {o - 1}")


def _constant(value: Any) -> Decoder:
    return lambda buf, o, depth: (value, o)


def _bool(buf: bytes, o: int, depth: int) -> tuple[bool, int]:
    octet = buf[o]
    if octet > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {octet} (byte {o})")
    return octet == 1, o + 1


def _from_table(table: tuple[Any, ...]) -> Decoder:
    return lambda buf, o, depth: (table[buf[o]], o + 1)


def fixed(layout: str, kind: Callable[[Any], Any] | None = None) -> Decoder:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    if kind is None:
        return lambda buf, o, depth: (unpack(buf, o)[0], o + width)
    return lambda buf, o, depth: (kind(unpack(buf, o)[0]), o + width)


def _raw(kind: Callable[[bytes], Any], width: int) -> Decoder:
    def decode_raw(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        end = o + width
        if end > len(buf):
            raise truncated(buf, o - 1)
        return kind(buf[o:end]), end

    return decode_raw


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _char(buf: bytes, o: int, depth: int) -> tuple[Char, int]:
    if o + 4 > len(buf):
        raise truncated(buf, o - 1)
    return Char(buf[o : o + 4].decode("utf-32-be")), o + 4


def _variable8(kind: Callable[[bytes], Any]) -> Decoder:
    def decode_variable(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        end = o + 1 + buf[o]
        if end > len(buf):
            raise truncated(buf, o - 1)
        return kind(buf[o + 1 : end]), end

    return decode_variable


def _variable32(kind: Callable[[bytes], Any]) -> Decoder:
    def decode_variable(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        end = o + 4 + unpack_u32(buf, o)[0]
        if end > len(buf):
            raise truncated(buf, o - 1)
        return kind(buf[o + 4 : end]), end

    return decode_variable


def _string(raw: bytes) -> str:
    return raw.decode()


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode())


def _string8(buf: bytes, o: int, depth: int) -> tuple[str, int]:
    """Do as `_variable8(_string)`, without the inner call: most of what is read are short strings."""
    end = o + 1 + buf[o]
    if end > len(buf):
        raise truncated(buf, o - 1)
    return buf[o + 1 : end].decode(), end


def _symbol8(buf: bytes, o: int, depth: int) -> tuple[Symbol, int]:
    end = o + 1 + buf[o]
    if end > len(buf):
        raise truncated(buf, o - 1)
    return Symbol(buf[o + 1 : end].decode()), end


def compound_bounds(buf: bytes, o: int, wide: bool) -> tuple[int, int, int]:
    """Return count, offset of the first item and end of a compound whose constructor ends at `o`; `end` is in `buf`."""
    if wide:
        end = o + 4 + unpack_u32(buf, o)[0]
        count = unpack_u32(buf, o + 4)[0]
        o += 8
    else:
        end = o + 1 + buf[o]
        count = buf[o + 1]
        o += 2
    if end > len(buf):
        raise truncated(buf, o)
    if end < o:
        raise DecodeError(f"a compound's size can't even hold its count (byte {o})")
    return count, o, end


def _items(buf: bytes, o: int, depth: int, wide: bool) -> tuple[list[Any], int]:
    if depth >= DEPTH_MAX:
        raise _too_deep(o)
    count, o, end = compound_bounds(buf, o, wide)
    if count > end - o:
        raise DecodeError(f"{count} items can't fit into {end - o} bytes (byte {o})")
    depth += 1
    items: list[Any] = []
    decoders = DECODERS
    for _ in range(count):
        value, o = decoders[buf[o]](buf, o + 1, depth)
        items.append(value)
    if o != end:
        raise DecodeError(f"{count} items end at byte {o}, their list at byte {end}")
    return items, o


def _pairs(buf: bytes, o: int, depth: int, wide: bool) -> tuple[dict[Any, Any], int]:
    if depth >= DEPTH_MAX:
        raise _too_deep(o)
    count, o, end = compound_bounds(buf, o, wide)
    if count > end - o or count % 2:
        raise DecodeError(f"{count} keys and values can't be a map of {end - o} bytes (byte {o})")
    depth += 1
    pairs: dict[Any, Any] = {}
    decoders = DECODERS
    for _ in range(count // 2):
        key, o = decoders[buf[o]](buf, o + 1, depth)
        value, o = decoders[buf[o]](buf, o + 1, depth)
        try:
            pairs[key] = value
        except TypeError:
            raise DecodeError(f"a map key must be a simple value, not {type(key).__name__} (byte {o})") from None
    if o != end:
        raise DecodeError(f"{count} keys and values end at byte {o}, their map at byte {end}")
    if 2 * len(pairs) != count:
        raise DecodeError(f"a map holds the same key twice (before byte {o})")
    return pairs, o


def _array(buf: bytes, o: int, depth: int, wide: bool) -> tuple[Array, int]:
    if depth >= DEPTH_MAX:
        raise _too_deep(o)
    count, o, end = compound_bounds(buf, o, wide)
    if count == 0 and o == end:
        return Array(), end
    descriptor = None
    code = buf[o]
    o += 1
    if code == 0x00:
        descriptor, o = DECODERS[buf[o]](buf, o + 1, depth + 1)
        code = buf[o]
        o += 1
        if code == 0x00 or descriptor is None:
            # Legal, but unseen; every further level would cost an object per element.
            raise DecodeError(f"an array's elements can be described only once, and not by null (byte {o - 1})")
    if code & 0xF0 == 0x40:
        allowed = ZERO_WIDTH_ITEMS_NESTED_MAX if depth else ZERO_WIDTH_ITEMS_MAX
    else:
        allowed = end - o
    if count > allowed:
        raise DecodeError(f"an array of {count} elements of type {code:#04x} (byte {o}); {allowed} are possible here")
    decoder = DECODERS[code]
    items = []
    for _ in range(count):
        value, o = decoder(buf, o, depth + 1)
        items.append(value if descriptor is None else Described(descriptor, value))
    if o != end:
        raise DecodeError(f"an array's {count} elements end at byte {o}, the array at byte {end}")
    if count == 0:
        _check_known(code, o)
    return Array(items, code, descriptor), end


def _compound(decode_compound: Callable[[bytes, int, int, bool], tuple[Any, int]], wide: bool) -> Decoder:
    return lambda buf, o, depth: decode_compound(buf, o, depth, wide)


def _check_known(code: int, o: int) -> None:
    if WIDTHS[code] == _UNKNOWN:
        raise DecodeError(f"unknown constructor {code:#04x} at byte {o - 1}")


DECODERS: Final[list[Decoder]] = [_unknown(code) for code in range(256)]
for _code, _decoder in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(types.UInt(0)),
    0x44: _constant(types.ULong(0)),
    0x45: lambda buf, o, depth: ([], o),
    0x50: _from_table(tuple(types.UByte(n) for n in range(256))),
    0x51: _from_table(tuple(types.Byte(n) for n in _SIGNED)),
    0x52: _from_table(tuple(types.UInt(n) for n in range(256))),
    0x53: _from_table(tuple(types.ULong(n) for n in range(256))),
    0x54: _from_table(tuple(types.Int(n) for n in _SIGNED)),
    0x55: _from_table(_SIGNED),
    0x56: _bool,
    0x60: fixed(">H", types.UShort),
    0x61: fixed(">h", types.Short),
    0x70: fixed(">I", types.UInt),
    0x71: fixed(">i", types.Int),
    0x72: fixed(">f", types.Float),
    0x73: _char,
    0x74: _raw(types.Decimal32, 4),
    0x80: fixed(">Q", types.ULong),
    0x81: fixed(">q", None),
    0x82: fixed(">d", None),
    0x83: fixed(">q", types.Timestamp),
    0x84: _raw(types.Decimal64, 8),
    0x94: _raw(types.Decimal128, 16),
    0x98: _raw(_uuid, 16),
    0xA0: _variable8(bytes),
    0xA1: _string8,
    0xA3: _symbol8,
    0xB0: _variable32(bytes),
    0xB1: _variable32(_string),
    0xB3: _variable32(_symbol),
    0xC0: _compound(_items, False),
    0xC1: _compound(_pairs, False),
    0xD0: _compound(_items, True),
    0xD1: _compound(_pairs, True),
    0xE0: _compound(_array, False),
    0xF0: _compound(_array, True),
}.items():
    DECODERS[_code] = _decoder

# How far `skip` jumps behind the constructor: a width, or one of the marks.
_SIZE8: Final = -1  # one byte tells the size
_SIZE32: Final = -2
_COMPOUND8: Final = -3  # the same, and the size covers a count
_COMPOUND32: Final = -4
_DESCRIBED: Final = -5
_UNKNOWN: Final = -6
_BY_CATEGORY = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16, 0xA: _SIZE8, 0xB: _SIZE32} | {
    0xC: _COMPOUND8, 0xD: _COMPOUND32, 0xE: _COMPOUND8, 0xF: _COMPOUND32,
}  # fmt: skip
_KNOWN = frozenset(code for code, decoder in enumerate(DECODERS) if decoder.__name__ != "decode_unknown")
WIDTHS: Final = tuple(
    _UNKNOWN if code not in _KNOWN else _DESCRIBED if code == 0 else _BY_CATEGORY[code >> 4] for code in range(256)
)


def skip(buf: bytes, offset: int) -> int:
    """Return the offset behind the value at `offset`, without building it."""
    start = offset
    todo = 1
    try:
        while todo:
            width = WIDTHS[buf[offset]]
            offset += 1
            if width >= 0:
                offset += width
            elif width == _SIZE8:
                offset += 1 + buf[offset]
            elif width == _SIZE32:
                offset += 4 + unpack_u32(buf, offset)[0]
            elif width == _DESCRIBED:
                todo += 2
            elif width == _COMPOUND8:
                if buf[offset] < 1:
                    raise DecodeError(f"a compound's size can't even hold its count (byte {offset})")
                offset += 1 + buf[offset]
            elif width == _COMPOUND32:
                size = unpack_u32(buf, offset)[0]
                if size < 4:
                    raise DecodeError(f"a compound's size can't even hold its count (byte {offset})")
                offset += 4 + size
            else:
                raise DecodeError(f"unknown constructor {buf[offset - 1]:#04x} at byte {offset - 1}")
            todo -= 1
    except (IndexError, struct.error):
        raise truncated(buf, start) from None
    if offset > len(buf):
        raise truncated(buf, start)
    return offset
