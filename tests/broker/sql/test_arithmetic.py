from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.types import (
    Byte,
    Char,
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
from pairbus.broker.sql.arithmetic import COMPARERS, calculate, compare, signed
from pairbus.broker.sql.decimals import write_decimal
from pairbus.broker.sql.kinds import TIMESPAN, EvaluationError

LONG_MAX = 2**63 - 1
MONEY = write_decimal(Decimal("1.10"))


@pytest.mark.parametrize(
    ("left", "symbol", "right", "result"),
    [
        (1, "+", 2, 3),
        (UByte(200), "+", UByte(100), Int(300)),
        (Byte(-1), "*", Short(3), Int(-3)),
        (UShort(1), "-", UShort(2), Int(-1)),
        (Int(2**31 - 1), "+", Int(1), Int(-(2**31))),
        (Int(2**31 - 1), "+", 1, 2**31),
        (UInt(1), "-", UInt(2), UInt(2**32 - 1)),
        (UInt(1), "-", Int(2), -1),
        (UInt(1), "-", UByte(2), UInt(2**32 - 1)),
        (LONG_MAX, "+", 1, -(2**63)),
        (LONG_MAX, "*", 2, -2),
        (ULong(2**64 - 1), "+", 1, ULong(0)),
        (7, "/", 2, 3),
        (-7, "/", 2, -3),
        (7, "%", -3, 1),
        (-7, "%", 3, -1),
        (7, "/", 2.0, 3.5),
        (-7.5, "%", 2, -1.5),
        (1.0, "/", 0, math.inf),
        (-1, "/", 0.0, -math.inf),
        (Float(0.1), "+", Int(1), Float(1.100000023841858)),
        (Float(0.5), "+", 0.25, 0.75),
        (Float(3e38), "*", Float(10), Float(math.inf)),
        (MONEY, "*", 3, Decimal("3.30")),
        (MONEY, "+", 0.9, 2.0),
        (Decimal(10), "/", 4, Decimal("2.5")),
        (Decimal(-7), "%", 3, Decimal(-1)),
        ("a", "+", "b", "ab"),
        ("a", "+", 1, "a1"),
        (1.5, "+", Symbol("x"), "1.5x"),
        (True, "+", "!", "True!"),
        (None, "+", "a", None),
        (1, "/", None, None),
    ],
)
def test_as_c_sharp_calculates(left: Any, symbol: str, right: Any, result: Any) -> None:
    found = calculate(symbol, left, right)
    assert found == result
    assert type(found) is type(result)


def test_what_is_no_number_in_c_sharp_either() -> None:
    for left, symbol, right in ((0.0, "/", 0.0), (1.0, "%", 0.0), (math.inf, "%", 2.0), (math.inf, "-", math.inf)):
        assert math.isnan(calculate(symbol, left, right))


@pytest.mark.parametrize(
    ("left", "symbol", "right"),
    [
        (1, "/", 0),
        (1, "%", 0),
        (-(2**63), "/", -1),
        (Int(-(2**31)), "/", Int(-1)),
        (Decimal(1), "/", 0),
        (Decimal(2**95), "*", 4),
        (ULong(1), "+", -1),
        ("a", "-", "b"),
        (True, "+", True),
        (Timestamp(1), "-", Timestamp(1)),
        (b"a", "+", "b"),
        ("a" * 30000, "+", "b" * 3000),
    ],
)
def test_what_c_sharp_can_t_calculate_is_an_error(left: Any, symbol: str, right: Any) -> None:
    with pytest.raises(EvaluationError):
        calculate(symbol, left, right)


@pytest.mark.parametrize(
    ("signs", "value", "result"),
    [
        ("-", 5, -5),
        ("+-", 5, -5),
        ("--", Int(5), Int(5)),
        ("-", UInt(5), -5),
        ("-", UByte(5), Int(-5)),
        ("+", UByte(5), Int(5)),
        ("-", -(2**63), -(2**63)),
        ("-", Float(0.5), Float(-0.5)),
        ("-", MONEY, Decimal("-1.10")),
        ("+", ULong(5), ULong(5)),
        ("-", None, None),
    ],
)
def test_signs(signs: str, value: Any, result: Any) -> None:
    assert signed(signs, value) == result
    assert type(signed(signs, value)) is type(result)


@pytest.mark.parametrize("value", ["a", True, ULong(5)])
def test_signs_that_can_t_be(value: Any) -> None:
    with pytest.raises(EvaluationError):
        signed("-", value)


SPAN, LONGER = Described(TIMESPAN, 10), Described(TIMESPAN, 20)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 2),
        (Int(1), 1.5),
        (Float(0.1), 0.2),
        (UByte(1), ULong(2**64 - 1)),
        (-1, ULong(1)),
        (MONEY, 2),
        (MONEY, 1.2),
        ("a", "b"),
        (Symbol("a"), "b"),
        ("a", Char("b")),
        (Timestamp(1), Timestamp(2)),
        (SPAN, LONGER),
    ],
)
def test_what_has_an_order(left: Any, right: Any) -> None:
    holding = {symbol for symbol, holds in COMPARERS.items() if compare(holds, left, right)}
    assert holding == {"<", "<=", "<>", "!="}
    holding = {symbol for symbol, holds in COMPARERS.items() if compare(holds, right, left)}
    assert holding == {">", ">=", "<>", "!="}
    holding = {symbol for symbol, holds in COMPARERS.items() if compare(holds, left, left)}
    assert holding == {"=", "<=", ">="}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", 1),
        (True, 1),
        (Timestamp(1), 1),
        (SPAN, 10),
        (b"a", "a"),
        (UUID(int=1), str(UUID(int=1))),
        (True, False),
        (b"a", b"b"),
        (UUID(int=1), UUID(int=2)),
    ],
)
def test_what_is_not_equal_and_in_no_order(left: Any, right: Any) -> None:
    found = {symbol: compare(holds, left, right) for symbol, holds in COMPARERS.items()}
    assert found == {"=": False, "<>": True, "!=": True, "<": None, "<=": None, ">": None, ">=": None}


def test_numbers_meet_in_the_type_that_c_sharp_takes() -> None:
    equal = COMPARERS["="]
    assert compare(equal, 2**53 + 1, float(2**53)) is True  # long → double
    assert compare(equal, Int(2**24 + 1), Float(2**24)) is True  # int → float
    assert compare(equal, 2**53 + 1, 2**53) is False
    assert compare(equal, math.nan, math.nan) is False
    assert compare(COMPARERS["<>"], math.nan, math.nan) is True
