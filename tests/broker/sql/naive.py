"""A second reading of the language, to compare with: trees are plain tuples, written out as SQL, and evaluated by what
the documentation says in the most literal way. Whole numbers are cut off by ctypes, LIKE goes through every split.

    value       ("constant", v) ("user", name) (operator, value, value) ("negative", value)
    condition   (comparison, value, value) ("IN" | "NOT IN", value, [value …]) ("LIKE" | "NOT LIKE", value, value)
                ("IS NULL" | "IS NOT NULL", name) ("EXISTS", name) ("NOT", c) ("AND", c, c) ("OR", c, c)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pairbus.amqp.types import Float, Int, UInt

ARITHMETIC = {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")


class NaiveError(Exception):
    pass


def written(tree: Any) -> str:
    """Return a tree as SQL, with the parentheses that it needs and no others."""
    return _written(tree)[0]


def _written(tree: Any) -> tuple[str, int]:
    kind, *parts = tree
    if kind == "constant":
        return _constant(parts[0]), 9
    if kind == "user":
        return str(parts[0]), 9
    if kind == "negative":
        return f"- {_within(parts[0], 8)}", 8
    if kind in ARITHMETIC:
        level = ARITHMETIC[kind]
        return f"{_within(parts[0], level)} {kind} {_within(parts[1], level + 1)}", level
    if kind in COMPARISONS or kind in ("LIKE", "NOT LIKE"):
        return f"{_within(parts[0], 5)} {kind} {_within(parts[1], 5)}", 4
    if kind in ("IN", "NOT IN"):
        return f"{_within(parts[0], 5)} {kind} ({', '.join(_within(each, 5) for each in parts[1])})", 4
    if kind == "EXISTS":
        return f"EXISTS({parts[0]})", 4
    if kind in ("IS NULL", "IS NOT NULL"):
        return f"{parts[0]} {kind}", 4
    if kind == "NOT":
        return f"NOT {_within(parts[0], 3)}", 3
    level = 2 if kind == "AND" else 1
    return f"{_within(parts[0], level)} {kind} {_within(parts[1], level)}", level


def _within(tree: Any, level: int) -> str:
    text, own = _written(tree)
    return text if own >= level else f"({text})"


def _constant(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value) if value >= 0 else f"(-{-value!r})"


def judge(tree: Any, message: Mapping[str, Any]) -> bool | None:
    """Return whether a condition holds."""
    kind, *parts = tree
    if kind == "NOT":
        inner = judge(parts[0], message)
        return None if inner is None else not inner
    if kind in ("AND", "OR"):
        deciding = kind == "OR"
        first = judge(parts[0], message)
        if first is deciding:
            return deciding
        second = judge(parts[1], message)
        if second is deciding:
            return deciding
        return None if first is None or second is None else not deciding
    if kind == "EXISTS":
        return parts[0] in message
    if kind in ("IS NULL", "IS NOT NULL"):
        return (message.get(parts[0]) is None) == (kind == "IS NULL")
    if kind in ("IN", "NOT IN"):
        return _among(kind, value_of(parts[0], message), parts[1], message)
    left, right = (value_of(part, message) for part in parts)
    if kind in ("LIKE", "NOT LIKE"):
        if not isinstance(left, str) or not isinstance(right, str):
            return None
        return _like(left, right) == (kind == "LIKE")
    return _compare(kind, left, right)


def _among(kind: str, left: Any, items: list[Any], message: Mapping[str, Any]) -> bool | None:
    if left is None:
        return None
    unknown = False
    for item in items:
        found = _compare("=", left, value_of(item, message))
        if found:
            return kind == "IN"
        unknown = unknown or found is None
    return None if unknown else kind == "NOT IN"


def _like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:])


def _compare(kind: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    groups = [str if isinstance(each, str) else bool if isinstance(each, bool) else float for each in (left, right)]
    if groups[0] is not groups[1]:
        return {"=": False, "<>": True, "!=": True}.get(kind)
    if groups[0] is bool and kind not in ("=", "<>", "!="):
        return None
    if groups[0] is float:
        left, right = _alike(left, right)
    return {
        "=": left == right, "<>": left != right, "!=": left != right,
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
    }[kind]  # fmt: skip


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    types = {type(left), type(right)}
    if float in types:
        return float(left), float(right)
    if Float in types:
        return ctypes.c_float(left).value, ctypes.c_float(right).value
    return int(left), int(right)


def value_of(tree: Any, message: Mapping[str, Any]) -> Any:
    kind, *parts = tree
    if kind == "constant":
        return parts[0]
    if kind == "user":
        return message.get(parts[0])
    values = [value_of(part, message) for part in parts]
    if None in values:
        return None
    if kind == "negative":
        return _negative(values[0])
    left, right = values
    if kind == "+" and (isinstance(left, str) or isinstance(right, str)):
        if not isinstance(left, str) or not isinstance(right, str):
            raise NaiveError  # the tests don't ask how numbers are written
        return left + right
    if any(isinstance(each, str | bool) for each in values):
        raise NaiveError
    types = {type(left), type(right)}
    left, right = _alike(left, right)
    if types & {float, Float}:
        result = _real(kind, left, right)
        return result if float in types else Float(ctypes.c_float(result).value)
    result = _whole(kind, left, right)
    if int in types or types == {Int, UInt}:
        return ctypes.c_int64(result).value
    return Int(ctypes.c_int32(result).value) if Int in types else UInt(ctypes.c_uint32(result).value)


def _negative(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise NaiveError
    if isinstance(value, float):
        return type(value)(-value)
    if isinstance(value, Int):
        return Int(ctypes.c_int32(-value).value)
    return ctypes.c_int64(-value).value


def _whole(kind: str, left: int, right: int) -> int:
    if kind in "/%":
        if right == 0 or (kind == "/" and right == -1 and left in (-(2**31), -(2**63))):
            raise NaiveError
        quotient = math.trunc(Fraction(left, right))
        return quotient if kind == "/" else left - right * quotient
    return {"+": left + right, "-": left - right, "*": left * right}[kind]


def _real(kind: str, left: float, right: float) -> float:
    if kind == "/":
        if right:
            return left / right
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left * math.copysign(1, right))
    if kind == "%":
        return math.nan if right == 0 or math.isinf(left) or math.isnan(right) else math.fmod(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[kind]
