"""Defines what the parser returns: a tree of values and conditions. Does not decide what they mean.

Lists of operands are flat, however long: only parentheses and functions make a tree deeper, which the parser bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class Constant(NamedTuple):
    """A number, text, boolean, NULL, or the value of a parameter."""

    value: Any


class Property(NamedTuple):
    """A property by its name, as it was written."""

    is_system: bool
    name: str


class Named(NamedTuple):
    """`property(name)`: the property whose name a value gives."""

    name: Value


class NewId(NamedTuple):
    """`newid()`."""


class Signed(NamedTuple):
    """Signs before a value, the last of them nearest to it."""

    signs: str
    operand: Value


class Chain(NamedTuple):
    """Operators of one precedence, from left to right: `first op operand op operand …`."""

    first: Value
    rest: tuple[tuple[str, Value], ...]


class Comparison(NamedTuple):
    operator: str
    left: Value
    right: Value


class Among(NamedTuple):
    """`left [NOT] IN (items)`."""

    left: Value
    items: tuple[Value, ...]
    is_negated: bool


class Like(NamedTuple):
    left: Value
    pattern: Value
    escape: Value | None
    is_negated: bool


class IsNull(NamedTuple):
    property: Property | Named
    is_negated: bool


class Exists(NamedTuple):
    property: Property


class Not(NamedTuple):
    operand: Condition


class AllOf(NamedTuple):
    """Conditions joined by AND."""

    parts: tuple[Condition, ...]


class AnyOf(NamedTuple):
    """Conditions joined by OR."""

    parts: tuple[Condition, ...]


class Set(NamedTuple):
    property: Property
    value: Value


class Remove(NamedTuple):
    property: Property


Value: TypeAlias = Constant | Property | Named | NewId | Signed | Chain
Condition: TypeAlias = Comparison | Among | Like | IsNull | Exists | Not | AllOf | AnyOf
Statement: TypeAlias = Set | Remove
