"""Hypothesis strategies for AMQP values, and an equality that sees the types."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from pairbus.amqp import types


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    edges = [n for n in (low, -129, -128, -1, 0, 1, 127, 128, 255, 256, high) if low <= n <= high]
    return st.sampled_from(edges) | st.integers(low, high)


texts = st.text(max_size=20) | st.integers(250, 260).map(lambda n: "x" * n)
symbols = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(types.Symbol)
binaries = st.binary(max_size=20) | st.integers(250, 260).map(bytes)
floats32 = st.floats(width=32).map(types.Float)
keys = st.one_of(
    texts,
    symbols,
    integers(64, True),
    integers(32, False).map(types.UInt),
    st.uuids(),
    st.binary(max_size=5),
    st.booleans(),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    integers(8, False).map(types.UByte),
    integers(16, False).map(types.UShort),
    integers(32, False).map(types.UInt),
    integers(64, False).map(types.ULong),
    integers(8, True).map(types.Byte),
    integers(16, True).map(types.Short),
    integers(32, True).map(types.Int),
    integers(64, True),
    integers(64, True).map(types.Timestamp),
    floats32,
    st.floats(),
    st.binary(min_size=4, max_size=4).map(types.Decimal32),
    st.binary(min_size=8, max_size=8).map(types.Decimal64),
    st.binary(min_size=16, max_size=16).map(types.Decimal128),
    st.characters(codec="utf-8").map(types.Char),
    st.uuids(),
    binaries,
    texts,
    symbols,
)
# What an array of each element constructor may hold.
elements: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(),
    0x41: st.just(True),
    0x42: st.just(False),
    0x43: st.just(types.UInt(0)),
    0x44: st.just(types.ULong(0)),
    0x45: st.builds(list),
    0x50: integers(8, False).map(types.UByte),
    0x51: integers(8, True).map(types.Byte),
    0x52: integers(8, False).map(types.UInt),
    0x53: integers(8, False).map(types.ULong),
    0x54: integers(8, True).map(types.Int),
    0x55: integers(8, True),
    0x56: st.booleans(),
    0x60: integers(16, False).map(types.UShort),
    0x61: integers(16, True).map(types.Short),
    0x70: integers(32, False).map(types.UInt),
    0x71: integers(32, True).map(types.Int),
    0x72: floats32,
    0x73: st.characters(codec="utf-8").map(types.Char),
    0x74: st.binary(min_size=4, max_size=4).map(types.Decimal32),
    0x80: integers(64, False).map(types.ULong),
    0x81: integers(64, True),
    0x82: st.floats(),
    0x83: integers(64, True).map(types.Timestamp),
    0x84: st.binary(min_size=8, max_size=8).map(types.Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(types.Decimal128),
    0x98: st.uuids(),
    0xA0: st.binary(max_size=20),
    0xA1: st.text(max_size=20),
    0xA3: symbols,
    0xB0: binaries,
    0xB1: texts,
    0xB3: symbols,
    0xC0: st.lists(st.integers(0, 9), max_size=3),
    0xC1: st.dictionaries(st.text(max_size=3), st.none(), max_size=3),
    0xD0: st.lists(scalars, max_size=3),
    0xD1: st.dictionaries(keys, scalars, max_size=3),
    0xE0: st.lists(st.booleans(), max_size=4).map(lambda items: types.Array.of(0x56, items)),
    0xF0: st.lists(st.uuids(), max_size=4).map(lambda items: types.Array.of(0x98, items)),
}
descriptors = integers(64, False).map(types.ULong) | symbols


@st.composite
def arrays(draw: st.DrawFn) -> types.Array:
    code = draw(st.sampled_from(sorted(elements)))
    items = draw(st.lists(elements[code], max_size=6))
    if not draw(st.booleans()):
        return types.Array.of(code, items)
    descriptor = draw(descriptors)
    return types.Array([types.Described(descriptor, item) for item in items], code, descriptor)


values: st.SearchStrategy[Any] = st.recursive(
    scalars | arrays(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(types.Described, descriptors, inner),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """The value with every type spelled out, so that == compares those too (and NaN equals itself)."""
    if isinstance(value, float):
        return type(value), struct.pack(">d", value)
    if isinstance(value, types.Array):
        return types.Array, value.code, typed(value.descriptor), [typed(item) for item in value]
    if isinstance(value, list):
        return list, [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, types.Described):
        return types.Described, typed(value.descriptor), typed(value.value)
    assert value is None or isinstance(value, bool | int | str | bytes | UUID)
    return type(value), value


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were valid before something happened to them."""
    raw = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        what = draw(st.sampled_from(["change", "cut", "insert", "remove"]))
        if what == "change" and raw:
            raw[at] = draw(
                st.sampled_from([0x00, 0x40, 0x43, 0x53, 0xC0, 0xD0, 0xE0, 0xF0, 0xFF]) | st.integers(0, 255)
            )
        elif what == "cut":
            del raw[at:]
        elif what == "insert":
            raw[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif raw:
            del raw[at]
    return bytes(raw)
