"""Reads and writes rules as XML: filters and actions of a subscription, and authorization rules of an entity. Pure.

See docs/reference/protocol.md#http-management-api.

Both are parts of a description: atom.py has the tables that say where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from xml.etree.ElementTree import Element

from pairbus.amqp.types import Described, Int, Timestamp
from pairbus.broker.access.authorization import ordered_rights
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.rule_description import (
    DEFAULT_RULE,
    FILTERS,
    PROPERTIES_MAX,
    SYSTEM_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    timespan,
    timespan_seconds,
)
from pairbus.sas import AuthorizationRule

from .xml import (
    SCHEMA,
    SHOWN_CHARS_MAX,
    BadDocument,
    escaped,
    local_name,
    read_double,
    read_duration,
    read_flag,
    read_timestamp,
    read_whole,
    type_of,
    write_duration,
    write_time,
    write_timestamp,
)

# A ready-made filter says what it would be in SQL, which is what the JS SDK shows of it.
_SAME_IN_SQL: Final = {TrueFilter: ("TrueFilter", "1=1"), FalseFilter: ("FalseFilter", "1=0")}

#: The service's name of a property → the field of a correlation filter.
SYSTEM_PROPERTIES: Final = {"".join(map(str.capitalize, name.split("_"))): name for name in SYSTEM_FIELDS}


def _read_int(text: str) -> Int:
    value = read_whole(text)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError
    return Int(value)


def _read_long(text: str) -> int:
    value = read_whole(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    return value


def _read_span(text: str) -> Described:
    # .NET's longest: past that a duration means "for ever"
    return timespan(min(read_duration(text), 922337203685.4775))


_READ_VALUE: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "int": _read_int,
    "long": _read_long,
    "boolean": read_flag,
    "double": read_double,
    "dateTime": read_timestamp,
    "duration": _read_span,
}


def read_rule(element: Element) -> RuleDescription:
    """Read a whole rule, such as the `DefaultRuleDescription` of a new subscription."""
    rule: dict[str, Any] = {"name": DEFAULT_RULE}
    for child in element:
        name = local_name(child)
        if name == "Filter":
            rule["filter"] = read_filter(child)
        elif name == "Action":
            rule["action"] = read_action(child)
        elif name == "Name" and child.text:
            rule["name"] = child.text.strip()
    return RuleDescription(**rule)


def read_filter(element: Element) -> Filter:
    kind = type_of(element)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        return SqlFilter(*_read_sql(element))
    if kind != "CorrelationFilter":
        raise InvalidDescription("Filter", kind[:SHOWN_CHARS_MAX], FILTERS)
    fields: dict[str, Any] = {}
    for child in element:
        name = local_name(child)
        if name == "Properties":
            fields["properties"] = _read_properties(child)
        elif name in SYSTEM_PROPERTIES and child.text:
            fields[SYSTEM_PROPERTIES[name]] = child.text
    return CorrelationFilter(**fields)


def read_action(element: Element) -> SqlAction | None:
    kind = type_of(element)
    if kind in ("", "EmptyRuleAction"):
        return None
    if kind != "SqlRuleAction":
        raise InvalidDescription("Action", kind[:SHOWN_CHARS_MAX], "an EmptyRuleAction or a SqlRuleAction")
    return SqlAction(*_read_sql(element))


def _read_sql(element: Element) -> tuple[str, dict[str, Any]]:
    expression, parameters = "", {}
    for child in element:
        name = local_name(child)
        if name == "SqlExpression":
            expression = child.text or ""
        elif name == "Parameters":
            parameters = _read_properties(child)
    return expression, parameters


def _read_properties(element: Element) -> dict[str, Any]:
    holder = local_name(element)
    if len(element) > PROPERTIES_MAX:
        raise InvalidDescription(holder, f"{len(element)} of them", f"up to {PROPERTIES_MAX}")
    properties: dict[str, Any] = {}
    for pair in element:
        parts = {local_name(child): child for child in pair}
        if local_name(pair) != "KeyValueOfstringanyType" or not {"Key", "Value"} <= parts.keys():
            raise BadDocument(f"{holder} must hold elements KeyValueOfstringanyType, each with a Key and a Value")
        key, value = parts["Key"].text or "", parts["Value"]
        if key in properties:
            raise BadDocument(f"{holder} holds the key {key[:SHOWN_CHARS_MAX]!r} twice")
        kind = type_of(value) or "string"
        read = _READ_VALUE.get(kind)
        if read is None:
            raise InvalidDescription(
                key, f"of type {kind[:SHOWN_CHARS_MAX]}", f"one of the types {', '.join(_READ_VALUE)}"
            )
        text = value.text or ""
        try:
            properties[key] = read(text if kind == "string" else text.strip())
        except ValueError:
            raise InvalidDescription(key, text[:SHOWN_CHARS_MAX], f"the text of a value of type {kind}") from None
    return properties


def write_filter(filter: Filter) -> str:
    if isinstance(filter, CorrelationFilter):
        given = {element: getattr(filter, name) for element, name in SYSTEM_PROPERTIES.items()}
        inside = "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in given.items() if text is not None)
        return f'<Filter i:type="CorrelationFilter">{inside}{_write_values("Properties", filter.properties)}</Filter>'
    if isinstance(filter, SqlFilter):
        return f'<Filter i:type="SqlFilter">{_write_sql(filter)}</Filter>'
    kind, sql = _SAME_IN_SQL[type(filter)]
    return (
        f'<Filter i:type="{kind}"><SqlExpression>{sql}</SqlExpression>'
        f"<CompatibilityLevel>20</CompatibilityLevel></Filter>"
    )


def write_action(action: SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_write_sql(action)}</Action>'


def _write_sql(sql: SqlFilter | SqlAction) -> str:
    return f"<SqlExpression>{escaped(sql.expression)}</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>" + (
        _write_values("Parameters", sql.parameters) if sql.parameters else "<Parameters/>"
    )


def _write_values(element: str, values: Mapping[str, Any]) -> str:
    return f"<{element}>{''.join(_write_property(key, value) for key, value in values.items())}</{element}>"


def _write_property(key: str, value: Any) -> str:
    # The SDKs want the prefix declared on the element itself, four letters long and with the colon after them.
    kind, text = _typed(value)
    return (
        f"<KeyValueOfstringanyType><Key>{escaped(key)}</Key>"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{escaped(text)}</Value></KeyValueOfstringanyType>'
    )


def _typed(value: Any) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case Timestamp():
            return "dateTime", write_timestamp(value)
        case Int():
            return "int", str(int(value))
        case int():
            return "long", str(value)
        case float():
            return "double", repr(float(value))
        case Described():
            return "duration", write_duration(timespan_seconds(value))
        case _:
            return "string", str(value)


def read_authorization_rules(element: Element) -> tuple[AuthorizationRule, ...]:
    """Read the rules as they are given; the caller fills in times, and keys where there are none."""
    return tuple(_read_authorization_rule(child) for child in element)


def _read_authorization_rule(element: Element) -> AuthorizationRule:
    if local_name(element) != "AuthorizationRule" or type_of(element) not in ("", "SharedAccessAuthorizationRule"):
        shown = type_of(element) or local_name(element)
        raise InvalidDescription("AuthorizationRules", shown, "elements AuthorizationRule of keys to share")
    text = {local_name(child): (child.text or "").strip() for child in element}
    rights = [(right.text or "").strip() for child in element if local_name(child) == "Rights" for right in child]
    return AuthorizationRule(
        key_name=text.get("KeyName", ""),
        rights=ordered_rights(rights),
        primary_key=text.get("PrimaryKey", ""),
        secondary_key=text.get("SecondaryKey", ""),
    )


def write_authorization_rules(rules: Iterable[AuthorizationRule]) -> str:
    inside = "".join(
        f'<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{''.join(f'<AccessRights>{escaped(right)}</AccessRights>' for right in rule.rights)}</Rights>"
        f"<CreatedTime>{write_time(rule.created_at)}</CreatedTime>"
        f"<ModifiedTime>{write_time(rule.modified_at)}</ModifiedTime><KeyName>{escaped(rule.key_name)}</KeyName>"
        f"<PrimaryKey>{escaped(rule.primary_key)}</PrimaryKey>"
        f"<SecondaryKey>{escaped(rule.secondary_key)}</SecondaryKey></AuthorizationRule>"
        for rule in rules
    )
    return f"<AuthorizationRules>{inside}</AuthorizationRules>"
