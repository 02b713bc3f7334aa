from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.types import Byte, Described, Float, Int, Symbol, Timestamp, UByte, ULong
from pairbus.broker.sql.decimals import write_decimal
from pairbus.broker.sql.kinds import TIMESPAN, EvaluationError, converted, storable, text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (5, "5"),
        (UByte(5), "5"),
        (True, "True"),
        (1.0, "1"),
        (-0.5, "-0.5"),
        (0.1, "0.1"),
        (1e14, "100000000000000"),
        (1e15, "1E+15"),
        (1.5e300, "1.5E+300"),
        (0.00001, "0.00001"),
        (2.5e-7, "2.5E-07"),
        (0.0, "0"),
        (Float(0.1), "0.1"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (Decimal("1.50"), "1.50"),
        (write_decimal(Decimal("1e-7")), "0.0000001"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Timestamp(1_500), "1970-01-01T00:00:01.500Z"),
        (Described(TIMESPAN, 36_000_000_000), "01:00:00"),
        (Described(TIMESPAN, -864_000_000_001), "-1.00:00:00.0000001"),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_what_has_no_text() -> None:
    for value in (b"a", [1], Described(Symbol("x"), 1)):
        with pytest.raises(EvaluationError):
            text_of(value)


@pytest.mark.parametrize(
    ("value", "old", "result"),
    [
        (5, "a", "5"),
        (5, Int(1), Int(5)),
        (2.5, 1, 2),
        (3.5, 1, 4),
        ("12", Int(1), Int(12)),
        ("1.5", 1.0, 1.5),
        ("1.5", Float(1), Float(1.5)),
        ("1.5", write_decimal(Decimal(1)), Decimal("1.5")),
        (True, 7, 1),
        (0, True, False),
        ("True", False, True),
        ("a", Symbol("b"), "a"),
        (1, None, 1),
        (None, "a", None),
        ("00000000-0000-0000-0000-000000000001", UUID(int=2), UUID(int=1)),
        ("2001-02-03T04:05:06Z", Timestamp(0), Timestamp(981173106000)),
        ("00:10:00", Described(TIMESPAN, 0), Described(TIMESPAN, 6_000_000_000)),
        ("-1.02:03:04.5", Described(TIMESPAN, 0), Described(TIMESPAN, -937_845_000_000)),
        (Timestamp(0), "a", "1970-01-01T00:00:00Z"),
    ],
)
def test_conversions(value: Any, old: Any, result: Any) -> None:
    found = converted(value, old)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("value", "old"),
    [
        ("a", 1),
        ("1e9999", Byte(1)),
        (300, UByte(1)),
        (-1, ULong(1)),
        (math.nan, 1),
        (math.inf, 1),
        ("maybe", True),
        ("soon", Timestamp(0)),
        (5, Timestamp(0)),
        ("25:00:00", Described(TIMESPAN, 0)),
        ("x", UUID(int=0)),
        (5, b"a"),
        (b"a", "x"),
        ("1" * 40, write_decimal(Decimal(1))),
    ],
)
def test_conversions_that_can_t_be(value: Any, old: Any) -> None:
    with pytest.raises(EvaluationError):
        converted(value, old)


def test_what_is_stored_is_a_value_of_amqp() -> None:
    assert storable(Decimal("1.5")) == write_decimal(Decimal("1.5"))
    assert storable("a") == "a"
