"""Reads and writes subscription rules as `$management` carries them: maps in requests, described lists in answers.

Pure. See docs/reference/protocol.md#rules-on-the-wire.

model/rules.py decides what a filter means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pairbus.amqp.types import Described, Timestamp, ULong
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.rule_description import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    validate_rule,
)

_RULE = ULong(0x0000013700000004)
_EMPTY_ACTION = ULong(0x0000013700000005)
_SQL_ACTION = ULong(0x0000013700000006)
_SQL = ULong(0x0000001370000006)
_TRUE = ULong(0x0000001370000007)
_FALSE = ULong(0x0000001370000008)
_CORRELATION = ULong(0x0000001370000009)

#: Key on the wire → field, in the order of the described list.
_FIELDS = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}


class UnknownRule(ValueError):
    """A rule can't be read."""


def read_rule(name: str, description: Any, now: float) -> RuleDescription:
    """Return the rule that a request's rule-description describes, or raise UnknownRule."""
    if not isinstance(description, Mapping):
        raise UnknownRule("rule-description must be a map with a sql-filter or a correlation-filter")
    try:
        action = _expression(description.get("sql-rule-action"))
        rule = RuleDescription(
            name=name,
            filter=_read_filter(description),
            action=None if action is None else SqlAction(action),
            created_at=now,
        )
        validate_rule(rule)
    except InvalidDescription as error:
        raise UnknownRule(str(error)) from None
    return rule


def _read_filter(description: Mapping[Any, Any]) -> Filter:
    correlation = description.get("correlation-filter")
    if isinstance(correlation, Mapping):
        return _read_correlation(correlation)
    if "true-filter" in description:
        return TrueFilter()
    if "false-filter" in description:
        return FalseFilter()
    expression = _expression(description.get("sql-filter"))
    if expression is None:
        raise UnknownRule("rule-description has no filter; give a sql-filter or a correlation-filter")
    return SqlFilter(expression)


def _expression(part: Any) -> str | None:
    value = part.get("expression") if isinstance(part, Mapping) else None
    return value if isinstance(value, str) and value else None


def _read_correlation(part: Mapping[Any, Any]) -> CorrelationFilter:
    fields: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        value = part.get(key)
        if value is not None and not isinstance(value, str):
            raise UnknownRule(f"{key} of a correlation-filter must be a string, not {type(value).__name__}")
        fields[field] = value
    properties = part.get("properties") or {}
    if not isinstance(properties, Mapping) or not all(isinstance(key, str) for key in properties):
        raise UnknownRule("properties of a correlation-filter must be a map with string keys")
    return CorrelationFilter(**fields, properties={str(key): value for key, value in properties.items()})


def write_rule(rule: RuleDescription) -> Described:
    """Return the rule as `enumerate-rules` answers it."""
    created_at = Timestamp(int(rule.created_at * 1000))
    action = Described(_EMPTY_ACTION, []) if rule.action is None else Described(_SQL_ACTION, [rule.action.expression])
    return Described(_RULE, [_write_filter(rule.filter), action, rule.name, created_at])


def _write_filter(filter: Filter) -> Described:
    if isinstance(filter, SqlFilter):
        return Described(_SQL, [filter.expression])
    if isinstance(filter, CorrelationFilter):
        values = [getattr(filter, field) for field in _FIELDS.values()]
        return Described(_CORRELATION, [*values, dict(filter.properties)])
    return Described(_TRUE if isinstance(filter, TrueFilter) else _FALSE, [])
