"""Descriptions of rules: name, filter, action, and the values that a filter may compare with.

rules.py decides whether a message matches. SQL is compiled once, when it is described.

Values of a correlation filter's properties, and of SQL's parameters, are those of the AMQP codec, so that they compare
with a message's own: str, bool, Int (32 bit), int (64 bit), float, Timestamp, and a duration as the service puts it
into a message, described by `com.microsoft:timespan` and counted in ticks of 100 ns. `to_json`/`from_json` keep the
type beside the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self, TypeAlias, TypeVar

from pairbus.amqp.types import Byte, Char, Described, Int, Short, Timestamp, UByte, UShort
from pairbus.broker.sql.actions import Action
from pairbus.broker.sql.compiler import Predicate, compile_filter
from pairbus.broker.sql.kinds import TIMESPAN
from pairbus.broker.sql.tokens import SqlSyntaxError

from .bounds import InvalidDescription, validate_rule_name

DEFAULT_RULE: Final = "$Default"
FILTERS: Final = "a TrueFilter, a FalseFilter, a CorrelationFilter or a SqlFilter"

PROPERTIES_MAX = 256
PROPERTY_NAME_CHARS_MAX = 1024
TEXT_CHARS_MAX = 32768

_TICKS_PER_S: Final = 10_000_000
# The years 1 to 9999, which is what can be written.
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999


class UnzonedTimestamp(Timestamp):
    """A time that came without a zone. It counts as UTC, and goes back without one, as the service gives it."""

    __slots__ = ()


def timespan(seconds: float) -> Described:
    """Return a duration as a .NET client puts it into a message's properties."""
    return Described(TIMESPAN, round(seconds * _TICKS_PER_S))


def is_timespan(value: object) -> bool:
    return isinstance(value, Described) and value.descriptor == TIMESPAN and type(value.value) is int


def timespan_seconds(value: Described) -> float:
    return float(value.value) / _TICKS_PER_S


def property_value(value: object) -> Any:
    """Return `value` as one of the types that a filter knows. Raises ValueError for one that none of them can hold."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        if not _TIME_MS_MIN <= value <= _TIME_MS_MAX:
            raise ValueError
        return value
    if isinstance(value, Int | Short | Byte | UShort | UByte):
        return Int(value)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX and not isinstance(value, Char):
        return str(value)
    if is_timespan(value):
        return value
    raise ValueError


@dataclass(frozen=True, slots=True)
class TrueFilter:
    pass


@dataclass(frozen=True, slots=True)
class FalseFilter:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """All that is given must be equal; what is None is not looked at."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A SQL filter with the values of its parameters. Raises InvalidDescription for what can't be read."""

    expression: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: What tells whether a message matches, or the answer for all messages.
    predicate: Predicate | bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", _compiled(compile_filter, "filter", self.expression, self.parameters))


@dataclass(frozen=True, slots=True)
class SqlAction:
    """A SQL action with the values of its parameters. Raises InvalidDescription for what can't be read."""

    expression: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    action: Action = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", _compiled(Action, "action", self.expression, self.parameters))


_Compiled = TypeVar("_Compiled")


def _compiled(
    compile: Callable[[str, Mapping[str, Any]], _Compiled], what: str, expression: str, parameters: Mapping[str, Any]
) -> _Compiled:
    if not isinstance(expression, str):
        raise InvalidDescription("SqlExpression", _shown(expression), "text")
    _validate_values("Parameters", parameters)
    try:
        return compile(expression, parameters)
    except SqlSyntaxError as error:
        raise InvalidDescription("SqlExpression", _shown(expression), f"a SQL {what}; in this, {error}") from None


Filter: TypeAlias = TrueFilter | FalseFilter | CorrelationFilter | SqlFilter

SYSTEM_FIELDS: Final = tuple(f.name for f in fields(CorrelationFilter) if f.name != "properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    name: str = DEFAULT_RULE
    filter: Filter = TrueFilter()
    action: SqlAction | None = None
    created_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        data = {"name": self.name, "filter": _filter_to_json(self.filter), "created_at": self.created_at}
        return data if self.action is None else data | {"action": _sql_to_json(self.action)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        action = data.get("action")
        return cls(
            name=data["name"],
            filter=_filter_from_json(data["filter"]),
            action=None if action is None else SqlAction(action["expression"], _values_from_json(action["parameters"])),
            created_at=data["created_at"],
        )


def validate_rule(rule: RuleDescription) -> None:
    """Raise `InvalidDescription` for the first field that can't be."""
    validate_rule_name(rule.name)
    if not isinstance(rule.action, SqlAction | None):
        raise InvalidDescription("action", type(rule.action).__name__, "a SqlAction or none")
    if isinstance(rule.filter, TrueFilter | FalseFilter | SqlFilter):
        return
    if not isinstance(rule.filter, CorrelationFilter):
        raise InvalidDescription("filter", type(rule.filter).__name__, FILTERS)
    for name in SYSTEM_FIELDS:
        value = getattr(rule.filter, name)
        if value is not None and not (isinstance(value, str) and len(value) <= TEXT_CHARS_MAX):
            raise InvalidDescription(name, _shown(value), f"text of up to {TEXT_CHARS_MAX} characters")
    _validate_values("properties", rule.filter.properties)


def _validate_values(field: str, values: Mapping[str, Any]) -> None:
    if len(values) > PROPERTIES_MAX:
        raise InvalidDescription(field, f"{len(values)} of them", f"up to {PROPERTIES_MAX}")
    for key, value in values.items():
        if not isinstance(key, str) or not 0 < len(key) <= PROPERTY_NAME_CHARS_MAX:
            raise InvalidDescription(field, _shown(key), f"names of 1 to {PROPERTY_NAME_CHARS_MAX} characters")
        try:
            property_value(value)
        except ValueError:
            raise InvalidDescription(
                field,
                f"{_shown(key)}: {_shown(value)}",
                f"text of up to {TEXT_CHARS_MAX} characters, numbers of up to 64 bits, booleans, times, durations",
            ) from None


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


# How a value is stored: its kind, its test, to JSON, from JSON. Subclasses stand before their bases.
_STORED: tuple[tuple[str, Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    ("boolean", lambda v: isinstance(v, bool), bool, bool),
    ("localtime", lambda v: isinstance(v, UnzonedTimestamp), int, UnzonedTimestamp),
    ("time", lambda v: isinstance(v, Timestamp), int, Timestamp),
    ("int", lambda v: isinstance(v, Int), int, Int),
    ("long", lambda v: isinstance(v, int), int, int),
    ("double", lambda v: isinstance(v, float) and math.isfinite(v), float, float),
    ("double-text", lambda v: isinstance(v, float), repr, float),
    ("string", lambda v: isinstance(v, str), str, str),
    ("duration", is_timespan, lambda v: v.value, lambda ticks: Described(TIMESPAN, ticks)),
)


def _filter_to_json(filter: Filter) -> dict[str, Any]:
    match filter:
        case TrueFilter():
            return {"kind": "true"}
        case FalseFilter():
            return {"kind": "false"}
        case CorrelationFilter():
            given = {name: value for name in SYSTEM_FIELDS if (value := getattr(filter, name)) is not None}
            return {"kind": "correlation", **given, "properties": _values_to_json(filter.properties)}
        case SqlFilter():
            return {"kind": "sql", **_sql_to_json(filter)}


def _sql_to_json(sql: SqlFilter | SqlAction) -> dict[str, Any]:
    return {"expression": sql.expression, "parameters": _values_to_json(sql.parameters)}


def _values_to_json(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    stored = {}
    for key, raw in values.items():
        value = property_value(raw)
        kind, _, write, _ = next(row for row in _STORED if row[1](value))
        stored[key] = [kind, write(value)]
    return stored


def _values_from_json(stored: Mapping[str, list[Any]]) -> dict[str, Any]:
    read = {row[0]: row[3] for row in _STORED}
    return {key: read[kind](value) for key, (kind, value) in stored.items()}


def _filter_from_json(data: dict[str, Any]) -> Filter:
    data = dict(data)
    kind = data.pop("kind")
    if kind == "true":
        return TrueFilter()
    if kind == "false":
        return FalseFilter()
    if kind == "sql":
        return SqlFilter(data["expression"], _values_from_json(data["parameters"]))
    if kind != "correlation":
        # Written by a later version: half a filter would let the wrong messages through.
        raise InvalidDescription("filter", kind, "true, false, correlation, sql")
    return CorrelationFilter(**data | {"properties": _values_from_json(data["properties"])})
