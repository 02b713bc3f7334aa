from __future__ import annotations

import uuid
from typing import Any

import pytest

from pairbus.amqp.types import Array, Symbol, UInt
from pairbus.broker.amqp.arguments import Arguments, BadArgument

TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("whole", UInt(5), 5),
        ("whole", -1, -1),
        ("count", 1, 1),
        ("text", Symbol("s"), "s"),
        ("optional_text", None, None),
        ("optional_bytes", b"x", b"x"),
        ("optional_bytes", None, None),
        ("optional_map", None, {}),
        ("optional_map", {Symbol("k"): 1}, {"k": 1}),
        ("numbers", Array.of(0x81, [1, 2]), [1, 2]),
        ("numbers", [3], [3]),
        ("tokens", [TOKEN], [bytes.fromhex("33221100554477668899aabbccddeeff")]),
        ("payloads", [{"message": b"m", "message-id": "1"}], [b"m"]),
    ],
)
def test_arguments_are_read_by_name_and_type(method: str, value: Any, expected: Any) -> None:
    assert getattr(Arguments({"a": value}), method)("a") == expected


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("whole", None),
        ("whole", True),
        ("whole", "5"),
        ("count", 0),
        ("text", None),
        ("text", ""),
        ("text", 5),
        ("optional_text", b"x"),
        ("optional_bytes", "x"),
        ("optional_map", [1]),
        ("numbers", []),
        ("numbers", None),
        ("numbers", ["1"]),
        ("numbers", [1] * 5001),
        ("tokens", [b"x" * 16]),
        ("payloads", [{"message": "text"}]),
        ("payloads", [b"m"]),
    ],
)
def test_a_wrong_one_is_named(method: str, value: Any) -> None:
    with pytest.raises(BadArgument, match="the-name"):
        getattr(Arguments({"the-name": value}), method)("the-name")


def test_long_values_are_cut_in_the_text() -> None:
    with pytest.raises(BadArgument) as caught:
        Arguments({"a": "x" * 10_000}).whole("a")
    assert len(str(caught.value)) < 120
