"""The kinds of values that expressions know, and how each is converted to another. Pure.

Values are those of the AMQP codec (a message's properties), Python's own (constants), and Decimal. None is NULL, and a
property that a message does not have. Text is written and read as .NET does it, and times as ISO 8601.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.types import (
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

from .decimals import bounded, read_decimal, write_decimal

NUMBER, TEXT, BOOLEAN, TIME, DURATION, UUID_KIND, OTHER = (
    "a number", "text", "a boolean", "a time", "a duration", "a uuid", "a value of another kind",
)  # fmt: skip
TIMESPAN: Final = Symbol("com.microsoft:timespan")

_TICKS_PER_DAY: Final = 864_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMALS: Final = (Decimal32, Decimal64, Decimal128)
_KINDS: Final[Mapping[type, str]] = {
    **dict.fromkeys((int, float, Int, UInt, ULong, Short, UShort, Byte, UByte, Float, Decimal, *_DECIMALS), NUMBER),
    **dict.fromkeys((str, Symbol, Char), TEXT),
    bool: BOOLEAN,
    UUID: UUID_KIND,
}


class EvaluationError(Exception):
    """An expression can't be evaluated for a message."""


def kind_of(value: Any) -> str:
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, Timestamp):
        return TIME
    return DURATION if is_duration(value) else OTHER


def is_duration(value: Any) -> bool:
    return isinstance(value, Described) and value.descriptor == TIMESPAN and type(value.value) is int


def number(value: Any) -> int | float | Decimal:
    """Return a number of any type as one that Python calculates with. Raise EvaluationError for a decimal that is
    none."""
    if isinstance(value, bytes):
        read = read_decimal(value)  # type: ignore[arg-type]
        if read is None:
            raise EvaluationError("a decimal is infinite or not a number")
        return read
    return value  # type: ignore[no-any-return]


def single(value: float) -> Float:
    """Return the nearest number of 32 bits."""
    try:
        return Float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return Float(math.copysign(math.inf, value))


# ---- text


def text_of(value: Any) -> str:
    """Return a value as .NET writes it."""
    match value:
        case bool():
            return "True" if value else "False"
        case Timestamp():
            return _time_text(value)
        case float():
            return _float_text(value)
        case bytes() if isinstance(value, _DECIMALS):
            return format(number(value), "f")
        case Decimal():
            return format(value, "f")
        case Described() if is_duration(value):
            return _duration_text(value.value)
        case str() | int() | UUID():
            return str(value)
    raise EvaluationError(f"{kind_of(value)} can't be written as text")


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Float):
        texts = (f"{value:.{digits}g}" for digits in range(1, 10))
        text = next(text for text in texts if single(float(text)) == single(value))
    else:
        text = repr(value)
    if -5 <= (exponent := math.floor(math.log10(abs(value))) if value else 0) < 15:
        return format(Decimal(text), "f").removesuffix(".0")
    mantissa = format(Decimal(text).scaleb(-exponent).normalize(), "f")
    return f"{mantissa}E{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _duration_text(ticks: int) -> str:
    sign = "-" if ticks < 0 else ""
    days, left = divmod(abs(ticks), _TICKS_PER_DAY)
    seconds, fraction = divmod(left, 10_000_000)
    parts = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{f'{days}.' if days else ''}{parts}{f'.{fraction:07}' if fraction else ''}"


def _time_text(value: Timestamp) -> str:
    time = _EPOCH + timedelta(milliseconds=value)
    return time.isoformat(timespec="milliseconds" if value % 1000 else "seconds").replace("+00:00", "Z")


# ---- conversions

_RANGES: Final[Mapping[type, tuple[int, int]]] = {
    kind: (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    for kind, bits, is_signed in (
        (Byte, 8, True), (Short, 16, True), (Int, 32, True), (int, 64, True),
        (UByte, 8, False), (UShort, 16, False), (UInt, 32, False), (ULong, 64, False),
    )
}  # fmt: skip
_NUMBER_TEXT: Final = re.compile(r"[+-]?(?:[0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:[eE][+-]?[0-9]{1,4})?")
_DURATION_TEXT: Final = re.compile(
    r"(-?)(?:([0-9]{1,8})\.)?([01]?[0-9]|2[0-3]):([0-5]?[0-9])(?::([0-5]?[0-9])(?:\.([0-9]{1,7}))?)?"
)


def converted(value: Any, old: Any) -> Any:
    """Return a value as the type that `old` has. Raise EvaluationError where it can't be."""
    if value is None or old is None or type(value) is type(old):
        return value
    kind = kind_of(old)
    try:
        return value if kind == kind_of(value) != NUMBER else _CONVERSIONS[kind](value, old)
    except (KeyError, ValueError, ArithmeticError):
        raise EvaluationError(f"{kind_of(value)} can't become {kind}") from None


def _to_number(value: Any, old: Any) -> Any:
    match kind_of(value):
        case "text":
            if not _NUMBER_TEXT.fullmatch(value):
                raise ValueError
            found: Any = Decimal(str(value))
        case "a boolean":
            found = int(value)
        case "a number":
            found = number(value)
        case _:
            raise ValueError
    kind = type(old)
    if kind in _RANGES:
        low, high = _RANGES[kind]
        whole = round(found)
        if not low <= whole <= high:
            raise ValueError
        return kind(whole)
    if kind in (float, Float):
        return single(float(found)) if kind is Float else float(found)
    return bounded(Decimal(found))


def _to_boolean(value: Any, old: Any) -> bool:
    if kind_of(value) == NUMBER:
        return bool(number(value))
    return {"true": True, "false": False}[str(value).strip().lower()]


def _to_time(value: Any, old: Any) -> Timestamp:
    if not isinstance(value, str):
        raise ValueError
    time = datetime.fromisoformat(value)
    return Timestamp((time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1))


def _to_duration(value: Any, old: Any) -> Described:
    found = _DURATION_TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError
    sign, days, hours, minutes, seconds, fraction = found.groups()
    whole = int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)
    ticks = whole * 10_000_000 + int((fraction or "").ljust(7, "0"))
    return Described(TIMESPAN, -ticks if sign else ticks)


_CONVERSIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    TEXT: lambda value, old: text_of(value),
    NUMBER: _to_number,
    BOOLEAN: _to_boolean,
    TIME: _to_time,
    DURATION: _to_duration,
    UUID_KIND: lambda value, old: UUID(str(value)),
}


def storable(value: Any) -> Any:
    """Return a value as the AMQP codec knows it."""
    if isinstance(value, Decimal):
        return write_decimal(bounded(value))
    return Timestamp(value) if isinstance(value, Timestamp) else value
