from __future__ import annotations

import enum
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

from .values import arrays, damaged, typed, values

UUID_VALUE = UUID("00112233-4455-6677-8899-aabbccddeeff")

# AMQP 1.6: the value and the form that we write, in hex.
WRITTEN: list[tuple[Any, str]] = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(0), "5000"),
    (UByte(255), "50ff"),
    (UShort(0x1234), "601234"),
    (UInt(0), "43"),
    (UInt(1), "5201"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (UInt(0xFFFFFFFF), "70ffffffff"),
    (ULong(0), "44"),
    (ULong(255), "53ff"),
    (ULong(256), "800000000000000100"),
    (ULong(2**64 - 1), "80ffffffffffffffff"),
    (Byte(-1), "51ff"),
    (Short(-2), "61fffe"),
    (Int(0), "5400"),
    (Int(-128), "5480"),
    (Int(128), "7100000080"),
    (Int(-(2**31)), "7180000000"),
    (0, "5500"),
    (127, "557f"),
    (-128, "5580"),
    (128, "810000000000000080"),
    (-(2**63), "818000000000000000"),
    (Float(1.5), "723fc00000"),
    (1.5, "823ff8000000000000"),
    (Decimal32(b"\x22\x50\x00\x01"), "7422500001"),
    (Decimal64(bytes(8)), "84" + "00" * 8),
    (Decimal128(bytes(16)), "94" + "00" * 16),
    (Char("€"), "73000020ac"),
    (Char("😀"), "730001f600"),
    (Timestamp(1), "830000000000000001"),
    (Timestamp(-1), "83ffffffffffffffff"),
    (UUID_VALUE, "9800112233445566778899aabbccddeeff"),
    (b"", "a000"),
    (b"ab", "a0026162"),
    (bytes(255), "a0ff" + "00" * 255),
    (bytes(256), "b000000100" + "00" * 256),
    ("", "a100"),
    ("é", "a102c3a9"),
    ("x" * 256, "b100000100" + "78" * 256),
    (Symbol("ab"), "a3026162"),
    (Symbol("x" * 256), "b300000100" + "78" * 256),
    ([], "45"),
    ([None, True], "c003024041"),
    ([b"x" * 250], "c0fd01a0fa" + "78" * 250),
    ([b"x" * 252], "c0ff01a0fc" + "78" * 252),
    ([b"x" * 253], "d00000010300000001a0fd" + "78" * 253),
    ([None] * 256, "d00000010400000100" + "40" * 256),
    ({}, "c10100"),
    ({"a": 1}, "c10602a101615501"),
    ({"a": b"x" * 300}, "d10000013800000002a10161b00000012c" + "78" * 300),
    (Array(), "e00100"),
    (Array.of(0x40, [None, None]), "e0020240"),
    (Array.of(0x43, [UInt(0)]), "e0020143"),
    (Array.of(0x45, [[], []]), "e0020245"),
    (Array.of(0x50, [UByte(1), UByte(2)]), "e00402500102"),
    (Array.of(0x56, [True, False]), "e00402560100"),
    (Array.of(0x70, [UInt(1)]), "e0060170" + "00000001"),
    (Array.of(0xA3, [Symbol("A"), Symbol("BC")]), "e00702a30141024243"),
    (Array.of(0xB1, ["é"]), "e00801b100000002c3a9"),
    (Array.of(0x98, [UUID_VALUE]), "e0120198" + UUID_VALUE.hex),
    (Array.of(0x81, [1] * 32), "f00000010500000020" + "81" + "0000000000000001" * 32),
    (Array.of(0xC0, [[1], []]), "e00802c0" + "03015501" + "0100"),
    (Array.of(0xD0, [[1], []]), "e01402d0" + "00000006000000015501" + "0000000400000000"),
    (Array.of(0xC1, [{"a": 1}]), "e00901c1" + "0602a101615501"),
    (Array.of(0xE0, [Array.of(0x56, [True])]), "e00601e0" + "03015601"),
    (Array.of(0xF0, [Array.of(0x56, [True])]), "e00c01f0" + "000000060000000156" + "01"),
    (Array([Described(ULong(5), "a")], 0xA1, ULong(5)), "e0070100" + "5305" + "a10161"),
    (Array([Described(ULong(5), [1])], 0xC0, ULong(5)), "e0090100" + "5305" + "c003015501"),
    (Described(ULong(0x24), []), "00532445"),
    (Described(Symbol("a"), Described(ULong(256), None)), "00a30161" + "00800000000000000100" + "40"),
]

# Other forms of the same, which a peer may write.
ALSO_READ: list[tuple[Any, str]] = [
    (True, "5601"),
    (False, "5600"),
    (UInt(0), "5200"),
    (UInt(0), "7000000000"),
    (UInt(7), "7000000007"),
    (ULong(0), "5300"),
    (ULong(7), "800000000000000007"),
    (Int(7), "7100000007"),
    (7, "810000000000000007"),
    (b"ab", "b0000000026162"),
    ("ab", "b1000000026162"),
    (Symbol("ab"), "b3000000026162"),
    (Symbol("é"), "a302c3a9"),
    ([], "c00100"),
    ([], "d00000000400000000"),
    ([None], "d0000000050000000140"),
    ({}, "d10000000400000000"),
    ({"a": 1}, "d10000000900000002a101615501"),
    (Array.of(0x50, [UByte(1)]), "f000000006000000015001"),
    (Array.of(0x40, []), "e0020040"),
    (Array(), "f00000000400000000"),
]

BROKEN: dict[str, str] = {
    "nothing": "",
    "unknown constructor": "3f",
    "unknown constructor 0x46": "46",
    "unknown constructor of an array": "e0030157" + "00",
    "unknown constructor of an empty array": "e0020057",
    "boolean 2": "5602",
    "truncated uint": "70000000",
    "truncated ubyte": "50",
    "truncated uuid": "98001122",
    "truncated char": "730000",
    "truncated decimal": "9400",
    "truncated string": "a10361",
    "truncated size": "b10000",
    "truncated list": "c0050140",
    "truncated descriptor": "00",
    "truncated described value": "005324",
    "string that isn't UTF-8": "a102c328",
    "string with a surrogate": "a103eda080",
    "symbol that isn't UTF-8": "a301ff",
    "char beyond Unicode": "7300110000",
    "char that is a surrogate": "730000d800",
    "list whose size can't hold the count": "c00001",
    "list32 whose size can't hold the count": "d000000003000000",
    "list with more items than bytes": "c00203" + "40",
    "list with fewer items than bytes": "c0030140" + "40",
    "list whose item runs over its end": "c00201a1" + "0161",
    "list32 of four billion items": "d000000005ffffffff40",
    "map with an odd count": "c1020140",
    "map with a list as key": "c1030245" + "40",
    "map with a map as key": "c10502c1010040",
    "map with a described list as key": "c10602" + "00532445" + "40",
    "map with the same key twice": "c10904" + "a1016140" + "a1016140",
    "array of four billion nulls": "f000000005ffffffff40",
    "array of 1,025 nulls": "f0000000050000040140",
    "nested array of 17 nulls": "c00501" + "e0021140",
    "array with more elements than bytes": "e0030550" + "00",
    "array with bytes left over": "e0040150" + "0000",
    "array described twice": "e00801" + "0053010053015001",
    "array described by null": "e00501" + "00405001",
    "array without constructor but with a count": "e00101",
}


def raw(hexed: str) -> bytes:
    return bytes.fromhex(hexed)


@pytest.mark.parametrize(("value", "wire"), WRITTEN, ids=lambda x: repr(x)[:40])
def test_each_type_is_written_in_its_smallest_form_and_read_back(value: Any, wire: str) -> None:
    assert encode(value).hex() == wire
    got, end = decode(raw(wire))
    assert typed(got) == typed(value)
    assert end == skip(raw(wire), 0) == len(wire) // 2


@pytest.mark.parametrize(("value", "wire"), ALSO_READ, ids=lambda x: repr(x)[:40])
def test_each_type_is_read_in_every_form(value: Any, wire: str) -> None:
    got, end = decode(raw(wire))
    assert typed(got) == typed(value)
    assert end == skip(raw(wire), 0) == len(wire) // 2


@pytest.mark.parametrize("wire", BROKEN.values(), ids=BROKEN.keys())
def test_broken_bytes_are_a_decode_error(wire: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(raw(wire))
    assert caught.value.condition == "amqp:decode-error"
    assert caught.value.description


@pytest.mark.parametrize("name", [name for name in BROKEN if name.startswith("truncated")] + ["nothing"])
def test_skip_sees_what_is_truncated(name: str) -> None:
    with pytest.raises(DecodeError):
        skip(raw(BROKEN[name]), 0)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "object has no AMQP type"),
        ((1,), "tuple has no AMQP type"),
        (UByte(256), "out of range for UByte"),
        (UShort(-1), "out of range for UShort"),
        (UInt(-1), "out of range for UInt"),
        (UInt(2**32), "out of range for UInt"),
        (ULong(2**64), "out of range for ULong"),
        (Byte(128), "out of range for Byte"),
        (Int(2**31), "out of range for Int"),
        (2**63, "out of range for int"),
        (Timestamp(2**63), "out of range for Timestamp"),
        (Float(1e300), "out of range for Float"),
        (Char("ab"), "one character"),
        (Decimal32(b""), "0 bytes instead of 4"),
        ("\ud800", "surrogates"),
        (Array.of(0xA3, [1]), "can't be an element"),
        (Array.of(0x50, [256]), "can't be an element"),
        (Array.of(0xA1, ["x" * 256]), "can't be an element"),
        (Array.of(0xC0, [["x" * 256]]), "can't be an element"),
        (Array.of(0x41, [False]), "can't be an element"),
        (Array.of(0x00, [1]), "no constructor"),
        (Array([1, "a"]), "can't be an element"),
        (Array([object()]), "can't hold object"),
        (Array([Described(ULong(1), 1), Described(ULong(2), 1)]), "holds an item that isn't"),
    ],
)
def test_what_amqp_cannot_carry_is_an_encode_error_that_names_it(value: Any, told: str) -> None:
    with pytest.raises(EncodeError, match=told):
        encode(value)


def test_a_list_that_holds_itself_is_an_encode_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="nested deeper than 60"):
        encode(endless)


def test_subclasses_are_written_as_what_they_derive_from() -> None:
    class Colour(enum.IntEnum):
        RED = 1

    assert encode(Colour.RED) == encode(1)
    assert encode(bytearray(b"ab")) == encode(b"ab")


@pytest.mark.parametrize(
    ("items", "code"),
    [([UInt(1)], 0x70), ([1], 0x81), ([True], 0x56), (["a"], 0xB1), ([Symbol("a")], 0xB3), ([[]], 0xD0), ([{}], 0xD1)],
)
def test_an_array_without_a_code_takes_the_widest_of_its_type(items: list[Any], code: int) -> None:
    assert typed(decode(encode(Array(items)))[0]) == typed(Array.of(code, items))


def nested(depth: int) -> bytes:
    body = b"\x40"
    for _ in range(depth):
        body = b"\xd0" + (len(body) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + body
    return body


def test_values_nest_60_deep_and_no_deeper() -> None:
    assert skip(nested(60), 0) == decode(nested(60))[1]
    assert decode(encode(decode(nested(60))[0]))[0] == decode(nested(60))[0]
    with pytest.raises(DecodeError, match="nested deeper than 60"):
        decode(nested(61))
    with pytest.raises(DecodeError, match="nested deeper than 60"):
        decode(nested(5000))
    with pytest.raises(DecodeError, match="nested deeper than 60"):
        decode(b"\x00" * 100_000)
    with pytest.raises(DecodeError):
        skip(b"\x00" * 100_000, 0)


@pytest.mark.parametrize(
    "item",
    [
        b"\xf0\x00\x00\x00\x05\x00\x00\x00\x10\x45",  # 16 empty lists in 10 bytes
        b"\xe0\x02\x10\x45",
        b"\xe0\x05\x10\x00\x53\x01\x40",
        b"\x45",
        b"\xc1\x01\x00",
    ],
)
def test_memory_stays_in_proportion_to_the_bytes(item: bytes) -> None:
    count = 30_000 // len(item)
    body = item * count
    whole = b"\xd0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body
    tracemalloc.start()
    try:
        decode(whole)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400 * len(whole)


@given(values)
def test_what_is_written_is_read_back_with_its_types(value: Any) -> None:
    wire = encode(value)
    got, end = decode(wire)
    assert typed(got) == typed(value)
    assert encode(got) == wire
    assert end == skip(wire, 0) == len(wire)


@given(arrays(), st.binary(max_size=3), st.binary(max_size=3))
def test_a_value_is_found_at_any_offset(value: Array, before: bytes, after: bytes) -> None:
    wire = before + encode(value) + after
    got, end = decode(wire, len(before))
    assert typed(got) == typed(value)
    assert end == skip(wire, len(before)) == len(wire) - len(after)


@given(st.binary(max_size=60) | damaged(values.map(encode)))
def test_whatever_comes_is_a_value_or_a_decode_error(wire: bytes) -> None:
    try:
        _, end = decode(wire)
    except DecodeError:
        try:
            assert skip(wire, 0) <= len(wire)
        except DecodeError:
            pass
    else:
        assert end == skip(wire, 0)


PYAMQP_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1).map(Int)
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.binary(max_size=300)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(PYAMQP_VALUES)
def test_what_pyamqp_writes_is_read(value: Any) -> None:
    out = bytearray()
    pyamqp_encode.encode_value(out, value)
    got, end = decode(bytes(out))
    assert typed(got) == typed(value)
    assert end == len(out)


def as_pyamqp_reads(value: Any) -> Any:
    """pyamqp gives strings and symbols as bytes, and everything else without its width."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_pyamqp_reads(item) for item in value]
    if isinstance(value, dict):
        return {as_pyamqp_reads(key): as_pyamqp_reads(item) for key, item in value.items()}
    return value


@given(PYAMQP_VALUES)
def test_pyamqp_reads_what_we_write(value: Any) -> None:
    wire = memoryview(encode(value))
    rest, got = pyamqp_decode._DECODE_BY_CONSTRUCTOR[wire[0]](wire[1:])
    assert got == as_pyamqp_reads(value)
    assert len(rest) == 0


@pytest.mark.parametrize(
    "array",
    [
        Array.of(0xA3, [Symbol("MSSBCBS"), Symbol("PLAIN")]),
        Array.of(0x98, [UUID_VALUE]),
        Array.of(0x81, [1, 2**40]),
        Array.of(0x83, [Timestamp(1)]),
        Array(),
    ],
)
def test_pyamqp_reads_the_arrays_of_service_bus(array: Array) -> None:
    wire = memoryview(encode(array))
    rest, got = pyamqp_decode._DECODE_BY_CONSTRUCTOR[wire[0]](wire[1:])
    assert got == as_pyamqp_reads(list(array))
    assert len(rest) == 0
