from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import encode_message
from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)  # fmt: skip
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.values.property_json import from_json, to_json
from tests.message_view import View

A_UUID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        ("büro", "büro"),
        (5, 5),
        (-(2**63), -(2**63)),
        (1.5, 1.5),
        (5.0, 5.0),
        (math.inf, {"double": "Infinity"}),
        (-math.inf, {"double": "-Infinity"}),
        (Byte(-5), {"byte": -5}),
        (Short(5), {"short": 5}),
        (Int(5), {"int": 5}),
        (UByte(5), {"ubyte": 5}),
        (UShort(5), {"ushort": 5}),
        (UInt(5), {"uint": 5}),
        (ULong(2**64 - 1), {"ulong": 2**64 - 1}),
        (Float(1.5), {"float": 1.5}),
        (Timestamp(86_400_001), {"timestamp": "1970-01-02T00:00:00.001000+00:00"}),
        (Timestamp(2**62), {"timestamp": 2**62}),
        (A_UUID, {"uuid": str(A_UUID)}),
        (b"\x00\xff", {"binary": "AP8="}),
        (Symbol("s"), {"symbol": "s"}),
        (Char("c"), {"char": "c"}),
        (Decimal32(b"1234"), {"decimal32": "MTIzNA=="}),
    ],
)
def test_each_type_has_a_form_and_comes_back_as_itself(value: Any, shown: Any) -> None:
    text = to_json({"n": value})
    assert json.loads(text) == {"n": shown}
    found = from_json(text)["n"]
    assert found == value and type(found) is type(value)


def whole(kind: Any, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1).map(kind)


VALUES = st.one_of(
    st.none(), st.booleans(), st.text(), st.floats(allow_nan=False), st.binary(), st.uuids(),
    whole(int, 64, True), whole(Byte, 8, True), whole(Short, 16, True), whole(Int, 32, True),
    whole(UByte, 8, False), whole(UShort, 16, False), whole(UInt, 32, False), whole(ULong, 64, False),
    st.floats(width=32, allow_nan=False).map(Float), whole(Timestamp, 64, True), st.text("ab-", min_size=1).map(Symbol),
    st.characters(exclude_categories=["Cs"]).map(Char), st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
)  # fmt: skip


@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=4))
def test_what_a_message_holds_goes_through_json_unchanged(properties: dict[str, Any]) -> None:
    held = View(encode_message(application_properties=properties, body=b"")).application_properties
    again = View(encode_message(application_properties=from_json(to_json(held)), body=b"")).application_properties
    assert again == properties
    assert {name: type(value) for name, value in again.items()} == {
        name: type(value) for name, value in properties.items()
    }


def test_not_a_number_stays_one() -> None:
    text = to_json({"n": math.nan})
    assert json.loads(text) == {"n": {"double": "NaN"}} and math.isnan(from_json(text)["n"])


def test_a_list_is_no_application_property() -> None:
    with pytest.raises(TypeError, match="list"):
        to_json({"n": [1]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is an object such as"),
        ('{"n": [1]}', "'n' is null, true, false, text, a number, or an object with one key"),
        ('{"n": {}}', "'n' is null"),
        ('{"n": {"int": 5, "long": 5}}', "'n' is null"),
        ('{"n": {"colour": "red"}}', "types are byte, short, int"),
        ('{"n": {"int": "5"}}', "'n': int is a whole number"),
        ('{"n": {"int": true}}', "'n': int is a whole number"),
        ('{"n": {"double": "five"}}', "'n': double is a number"),
        ('{"n": {"double": [1]}}', "'n': double is a number"),
        ('{"n": {"timestamp": "yesterday"}}', "'n': timestamp is a time such as"),
        ('{"n": {"timestamp": 1.5}}', "'n': timestamp is a time such as"),
        ('{"n": {"uuid": "1"}}', "'n': uuid is a UUID"),
        ('{"n": {"binary": "*"}}', "'n': binary is text in base64"),
        ('{"n": {"symbol": 1}}', "'n': symbol is text"),
        ('{"n": {"char": "ab"}}', "'n': char is one character"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        from_json(text)


def test_times_without_a_zone_are_utc() -> None:
    found = from_json('{"n": {"timestamp": "1970-01-02T00:00:00"}, "m": {"timestamp": "1970-01-02T01:00:00+01:00"}}')
    assert found == {"n": Timestamp(86_400_000), "m": Timestamp(86_400_000)}
