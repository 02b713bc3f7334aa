"""Writes application properties as JSON that keeps their AMQP types, and reads them back. Pure.

JSON's own types stand for null, boolean, string, long (a whole number) and double (a number with a point or an
exponent). Every other type is an object with one key that names it: `{"int": 5}`, `{"uuid": "…"}`.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

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
)

from ..options import InvalidOption

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)
_WHOLE: Final = "a whole number"
_NUMBER: Final = 'a number, "NaN", "Infinity" or "-Infinity"'
_TEXT: Final = "text"
_BASE64: Final = "text in base64"


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise ValueError


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _character(value: Any) -> str:
    if len(_text(value)) != 1:
        raise ValueError
    return str(value)


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _milliseconds(value: Any) -> int:
    if type(value) is int:
        return value
    time = dt.datetime.fromisoformat(_text(value))
    return ((time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)) - _EPOCH) // _MS


def _number_shown(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64_shown(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _time_shown(value: int) -> str | int:
    try:
        return (_EPOCH + int(value) * _MS).isoformat()
    except OverflowError:  # Python's years are 1 to 9999
        return int(value)


#: By the name of an AMQP type: its Python type, how that is shown and read, and what is right.
_TYPES: Final[dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any], str]]] = {
    "byte": (Byte, int, _whole, _WHOLE),
    "short": (Short, int, _whole, _WHOLE),
    "int": (Int, int, _whole, _WHOLE),
    "long": (int, int, _whole, _WHOLE),
    "ubyte": (UByte, int, _whole, _WHOLE),
    "ushort": (UShort, int, _whole, _WHOLE),
    "uint": (UInt, int, _whole, _WHOLE),
    "ulong": (ULong, int, _whole, _WHOLE),
    "float": (Float, _number_shown, _number, _NUMBER),
    "double": (float, _number_shown, _number, _NUMBER),
    "timestamp": (Timestamp, _time_shown, _milliseconds, "a time such as 2026-01-31T08:00:00Z, or milliseconds"),
    "uuid": (UUID, str, lambda value: UUID(_text(value)), "a UUID"),
    "binary": (bytes, _base64_shown, _bytes, _BASE64),
    "symbol": (Symbol, str, _text, _TEXT),
    "char": (Char, str, _character, "one character"),
    "decimal32": (Decimal32, _base64_shown, _bytes, _BASE64),
    "decimal64": (Decimal64, _base64_shown, _bytes, _BASE64),
    "decimal128": (Decimal128, _base64_shown, _bytes, _BASE64),
}
_NAMES: Final = {kind: (name, shown) for name, (kind, shown, _, _) in _TYPES.items()}


def to_json(properties: Mapping[str, Any]) -> str:
    """Return application properties as JSON. Raises TypeError for a list or a map, which AMQP does not allow there."""
    return json.dumps({str(name): _shown(value) for name, value in properties.items()}, ensure_ascii=False)


def _shown(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str, int) or (kind is float and math.isfinite(value)):
        return value
    if kind not in _NAMES:
        raise TypeError(f"{kind.__name__} is no type of an application property")
    name, shown = _NAMES[kind]
    return {name: shown(value)}


def from_json(text: str) -> dict[str, Any]:
    """Return the application properties that JSON stands for, with their AMQP types. Raises InvalidOption."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"application_properties is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidOption('application_properties as JSON is an object such as {"priority": 5}')
    return {name: _typed(name, value) for name, value in found.items()}


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, dict | list):
        return value
    kind = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
    if kind not in _TYPES:
        raise InvalidOption(
            f"application property {name!r} is null, true, false, text, a number, or an object with one key that names "
            f'its type, such as {{"int": 5}}; types are {", ".join(_TYPES)}'
        )
    make, _, read, right = _TYPES[kind]
    try:
        return make(read(value[kind])) if make is not UUID else read(value[kind])
    except (ValueError, OverflowError, binascii.Error):
        raise InvalidOption(f"application property {name!r}: {kind} is {right}") from None
