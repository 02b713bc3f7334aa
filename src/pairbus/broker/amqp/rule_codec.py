"""Reads and writes subscription rules as `$management` carries them: maps in requests, described lists in answers.

Pure. See docs/reference/protocol.md#rules-on-the-wire.

SQL filters and actions are not supported yet and are refused by name. model/rules.py decides what a filter means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pairbus.amqp.types import Described, Timestamp, ULong
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, RuleDescription, TrueFilter

_RULE = ULong(0x0000013700000004)
_EMPTY_ACTION = ULong(0x0000013700000005)
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
#: How the SDKs write "all" and "none" where they have only SQL to say it with.
_CONSTANT_SQL: dict[str, TrueFilter | FalseFilter] = {"1=1": TrueFilter(), "1=0": FalseFilter()}


class UnknownRule(ValueError):
    """A rule can't be read. `is_sql`: it is well-formed, but of a kind that is not supported yet."""

    def __init__(self, text: str, is_sql: bool = False) -> None:
        super().__init__(text)
        self.is_sql = is_sql


def read_rule(name: str, description: Any, now: float) -> RuleDescription:
    """Return the rule that a request's rule-description describes, or raise UnknownRule."""
    if not isinstance(description, Mapping):
        raise UnknownRule("rule-description must be a map with a sql-filter or a correlation-filter")
    if _expression(description.get("sql-rule-action")):
        raise UnknownRule("SQL rule actions are not supported yet", is_sql=True)
    correlation = description.get("correlation-filter")
    if isinstance(correlation, Mapping):
        return RuleDescription(name=name, filter=_read_correlation(correlation), created_at=now)
    if "true-filter" in description:
        return RuleDescription(name=name, filter=TrueFilter(), created_at=now)
    if "false-filter" in description:
        return RuleDescription(name=name, filter=FalseFilter(), created_at=now)
    expression = _expression(description.get("sql-filter"))
    if expression is None:
        raise UnknownRule("rule-description has no filter; give a correlation-filter")
    constant = _CONSTANT_SQL.get("".join(expression.split()))
    if constant is None:
        raise UnknownRule(
            f"SQL filters are not supported yet ({expression[:80]!r}); use a correlation filter", is_sql=True
        )
    return RuleDescription(name=name, filter=constant, created_at=now)


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
    return Described(_RULE, [_write_filter(rule.filter), Described(_EMPTY_ACTION, []), rule.name, created_at])


def _write_filter(filter: Any) -> Described:
    if isinstance(filter, CorrelationFilter):
        values = [getattr(filter, field) for field in _FIELDS.values()]
        return Described(_CORRELATION, [*values, dict(filter.properties)])
    return Described(_TRUE if isinstance(filter, TrueFilter) else _FALSE, [])
