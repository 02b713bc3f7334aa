"""Compares values and calculates with them as C# does. Pure.

A comparison or calculation with NULL, or with a property that a message does not have, is unknown, which is None.

Numbers promote as in C#: types smaller than 32 bits to int, int and uint to long, integers to float, float to double,
integers to decimal; whole numbers wrap around, and their division truncates. Where C# has no promotion, decimal and
double become double, while ulong and a negative number are compared by value and can't be calculated with. Values of
different kinds are never equal and have no order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from pairbus.amqp.types import Byte, Float, Int, Short, UByte, UInt, ULong, UShort

from .decimals import CONTEXT, bounded
from .kinds import DURATION, NUMBER, TEXT, TIME, EvaluationError, kind_of, number, single, text_of

#: A text that an expression makes may be as long as a property.
TEXT_CHARS_MAX: Final = 32768

Comparer = Callable[[Any, Any], bool]
COMPARERS: Final[Mapping[str, Comparer]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ORDERED: Final = frozenset((TEXT, TIME, DURATION))
_ALIKE: Final = frozenset((str, int, Int, float))


def compare(holds: Comparer, left: Any, right: Any) -> bool | None:
    """Return whether the comparison holds; None: that is unknown."""
    if left is None or right is None:
        return None
    if type(left) is type(right) and type(left) in _ALIKE:
        return holds(left, right)
    kind = kind_of(left)
    if kind != kind_of(right):
        return holds is operator.ne if holds in (operator.eq, operator.ne) else None
    if kind is NUMBER:
        return holds(*_comparable(left, right))
    if kind is DURATION:
        return holds(left.value, right.value)
    if kind in _ORDERED or holds in (operator.eq, operator.ne):
        return holds(left, right)
    return None


def _comparable(left: Any, right: Any) -> tuple[Any, Any]:
    left, right = number(left), number(right)
    if isinstance(left, float) or isinstance(right, float):
        narrow = all(isinstance(each, Float) or not isinstance(each, float | Decimal) for each in (left, right))
        return (single(left), single(right)) if narrow else (float(left), float(right))
    return left, right


# ---- calculations

_SMALL: Final = (Int, Short, UShort, Byte, UByte)


def _promoted(left: Any, right: Any) -> type:
    """Return the type in which C# calculates."""
    types = {type(left), type(right)}
    if float in types:
        return float
    if Float in types:
        return float if Decimal in types else Float
    if Decimal in types:
        return Decimal
    if ULong in types:
        if left < 0 or right < 0:
            raise EvaluationError("an unsigned number of 64 bits and a negative one have no common type")
        return ULong
    if int in types or (UInt in types and types & {Int, Short, Byte}):
        return int
    return UInt if UInt in types else Int


def _wrapped(value: int, kind: type) -> Any:
    """Return a whole number cut off to the bits of its type, as C# does unless it is told otherwise."""
    bits = 32 if kind in (Int, UInt) else 64
    value &= (1 << bits) - 1
    if kind in (Int, int) and value >> (bits - 1):
        value -= 1 << bits
    return kind(value)


def _whole(symbol: str, left: int, right: int) -> int:
    if symbol in "+-*":
        return int(_WHOLE[symbol](int(left), int(right)))
    if right == 0:
        raise EvaluationError("a whole number is divided by zero")
    quotient = abs(left) // abs(right)
    quotient = quotient if (left < 0) == (right < 0) else -quotient
    return quotient if symbol == "/" else left - quotient * right


def _real(symbol: str, left: float, right: float) -> float:
    if symbol in "+-*":
        return float(_WHOLE[symbol](left, right))
    if symbol == "%":
        return math.nan if right == 0 or math.isinf(left) or math.isnan(right) else math.fmod(left, right)
    if right == 0:
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def _decimal(symbol: str, left: Decimal, right: Decimal) -> Decimal:
    if symbol in "/%" and right == 0:
        raise EvaluationError("a decimal is divided by zero")
    calculate = {"+": CONTEXT.add, "-": CONTEXT.subtract, "*": CONTEXT.multiply, "/": CONTEXT.divide}
    try:
        if symbol == "%":
            return bounded(CONTEXT.remainder(left, right))
        return bounded(calculate[symbol](left, right))
    except (ArithmeticError, OverflowError):
        raise EvaluationError("the result is too large for a decimal") from None


_WHOLE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def calculate(symbol: str, left: Any, right: Any) -> Any:
    """Return `left symbol right`. Raise EvaluationError for what C# can't calculate."""
    if left is None or right is None:
        return None
    kinds = (kind_of(left), kind_of(right))
    if symbol == "+" and TEXT in kinds:
        return _bounded_text(text_of(left) + text_of(right))
    if kinds != (NUMBER, NUMBER):
        raise EvaluationError(f"'{symbol}' is for numbers, not for {kinds[0]} and {kinds[1]}")
    left, right = number(left), number(right)
    kind = _promoted(left, right)
    if kind is Decimal:
        return _decimal(symbol, Decimal(left), Decimal(right))
    if kind in (float, Float):
        result = _real(symbol, float(left), float(right))
        return single(result) if kind is Float else result
    whole = _whole(symbol, left, right)
    result = _wrapped(whole, kind)
    if symbol == "/" and result != whole:
        raise EvaluationError("the lowest number divided by -1 is too large for its type")
    return result


def signed(signs: str, value: Any) -> Any:
    """Return a value with these signs before it, the last of them nearest to it."""
    if value is None:
        return None
    if kind_of(value) is not NUMBER:
        raise EvaluationError(f"a sign is for numbers, not for {kind_of(value)}")
    value = number(value)
    for sign in reversed(signs):
        kind = type(value)
        if isinstance(value, float):
            value = kind(-value if sign == "-" else value)
        elif isinstance(value, Decimal):
            value = value.copy_negate() if sign == "-" else value
        elif kind is ULong and sign == "-":
            raise EvaluationError("an unsigned number of 64 bits can't be negated")
        elif kind is UInt and sign == "-":
            value = -int(value)
        else:
            kind = Int if kind in _SMALL else kind
            value = _wrapped(-value if sign == "-" else value, kind)
    return value


def _bounded_text(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise EvaluationError(f"a text of {len(text)} characters is longer than a property may be")
    return text
