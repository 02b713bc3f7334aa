"""Reads the text of a configuration file as plans: our TOML, or Config.json of Microsoft's emulator. Pure.

It decides what a text means and what is wrong with it: every error names the place in the file, such as
`Namespaces[0].Queues[2].Properties.LockDuration`, and what is allowed there. An unknown key is an error too. It reads
no file and creates no entity (apply_plan.py).

Both formats share one table of names: the service's (`LockDuration`) in JSON, the same in snake case (`lock_duration`),
as the Python SDK has them, in TOML.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from pairbus.amqp.types import Timestamp
from pairbus.broker.access.throttling import MEASURES
from pairbus.broker.http import atom
from pairbus.broker.http.rule_xml import SYSTEM_PROPERTIES
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import (
    AUTHORIZATION_RULES_MAX,
    FORWARDS,
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    validate,
    validate_authorization_rule,
)
from pairbus.broker.model.rule_description import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    UnzonedTimestamp,
    validate_rule,
)
from pairbus.broker.operations.quotas import TIER_CREDITS, TIERS, Quotas

from .config_table import (
    COUNT,
    DESTINATION,
    DURATION,
    FLAG,
    FOLDER,
    JSON,
    LIMIT,
    NAMESPACE,
    NODE_COUNT,
    PORT,
    PORTS,
    RIGHTS_LIST,
    STALL_TIMEOUT,
    TABLE,
    TEXT,
    TIER,
    TIMEOUT,
    TOML,
    WHOLE,
    ConfigError,
    EntryKind,
    Table,
    shown,
)
from .plan import EntityPlan, NamespacePlan, SubscriptionPlan, TopicPlan

__all__ = ["ConfigError", "parse"]

TEXT_CHARS_MAX = 16 * 1024 * 1024

R = TypeVar("R")
S = TypeVar("S", SqlFilter, SqlAction)
D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)

#: How the values of an entity's properties are read; those that forward name an entity.
_READ_AS: Final = {atom.FLAG: FLAG, atom.WHOLE: WHOLE, atom.DURATION: DURATION, atom.TEXT: TEXT}
#: The service's name → the field of the description, and how it is read: what the management API takes, too.
PROPERTIES: Final[Mapping[type, Mapping[str, tuple[str, EntryKind]]]] = {
    kind.describes: {
        each.element: (each.name, DESTINATION if each.name in FORWARDS else _READ_AS[each.kind])
        for each in kind.columns
        if isinstance(each, atom.Field) and not each.read_only
    }
    for kind in (atom.QUEUE, atom.TOPIC, atom.SUBSCRIPTION)
}
_FILTER_TYPES: Final = ("Correlation", "Sql", "True", "False")


def parse(text: str, *, is_json: bool) -> list[NamespacePlan]:
    """Return the namespaces that the text plans, at least one; raise ConfigError for what is wrong in it."""
    if len(text) > TEXT_CHARS_MAX:
        raise ConfigError("", f"has {len(text)} characters; allowed: up to {TEXT_CHARS_MAX}")
    try:
        content = _load_json(text) if is_json else tomllib.loads(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        # Both decoders name line and column, and repeat nothing of the text, which may hold keys.
        raise ConfigError("", f"is not {'JSON' if is_json else 'TOML'}: {error}") from None
    plans = _from_json(content) if is_json else _from_toml(content)
    if not plans:
        raise ConfigError("Namespaces" if is_json else "namespaces", "is empty; allowed: at least one namespace")
    return plans


#: The emulator's published file has comments. A string is matched too, since `//` within it is none: sb://contoso.
_STRING_OR_COMMENT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*')


def _blank(match: re.Match[str]) -> str:
    """Replace a comment by spaces, so that an error still names the right line and column."""
    return match[0] if match[0].startswith('"') else " " * len(match[0])


def _load_json(text: str) -> dict[str, Any]:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twin = next(name for name in names if names.count(name) > 1)
            raise ConfigError("", f"has the key {shown(twin)} twice in one object; once is allowed")
        return content

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    content = json.loads(_STRING_OR_COMMENT.sub(_blank, text), object_pairs_hook=no_twins, parse_constant=no_constant)
    if not isinstance(content, dict):
        raise ConfigError("", "holds no object; allowed: an object with the key UserConfig")
    return content


def _from_json(content: dict[str, Any]) -> list[NamespacePlan]:
    root = Table(content, "", JSON)
    user = root.take("UserConfig", TABLE, required=True)
    root.finish()
    # Places are told from here on: everything stands inside UserConfig.
    config = Table(user, "", JSON)
    plans: list[NamespacePlan] = []
    for table in config.tables("Namespaces"):
        name = table.take("Name", NAMESPACE, required=True)
        if name in [plan.name for plan in plans]:
            table.refuse("Name", name, "a name of its own for every namespace")
        plans.append(_namespace(table, name))
    logging = config.table("Logging")
    if logging is not None:
        logging.take("Type", TEXT)
        logging.finish()
    config.finish()
    return plans


def _from_toml(content: dict[str, Any]) -> list[NamespacePlan]:
    root = Table(content, "", TOML)
    namespaces = root.take("Namespaces", TABLE, required=True)
    root.finish()
    plans = []
    for name, inner in namespaces.items():
        place = f"namespaces.{name}"
        if not isinstance(inner, dict):
            raise ConfigError(place, f"may not be {shown(inner)}; allowed: {TABLE.allowed}")
        try:
            NAMESPACE.read(name)
        except ValueError:
            raise ConfigError(place, f"can't name a namespace; allowed: {NAMESPACE.allowed}") from None
        table = Table(inner, place, TOML)
        plans.append(_namespace(table, name))
    return plans


def _namespace(table: Table, name: str) -> NamespacePlan:
    ports: tuple[int, ...] = ()
    link_idle_timeout = nodes = standby = stall_timeout = None
    keys: tuple[AuthorizationRule, ...] = ()
    tier = (table.take("Tier", TIER) if table.form is TOML else None) or ""
    throttling = {"credits": TIER_CREDITS[tier]} if tier in TIER_CREDITS else {}
    throttling |= _throttling(table, MEASURES)
    quotas = _quotas(table, TIERS.get(tier, Quotas()))
    if table.form is TOML:
        port = table.take("Port", PORT)
        ports = table.take("Ports", PORTS) or (() if port is None else (port,))
        if port is not None and table.raw("Ports") is not None:
            table.refuse("Port", port, "port or ports, not both")
        link_idle_timeout = table.take("LinkIdleTimeout", TIMEOUT)
        standby = table.take("Standby", FOLDER)
        stall_timeout = table.take("StorageStallTimeout", STALL_TIMEOUT)
        nodes = table.take("Nodes", NODE_COUNT)
        keys = _keys(table)
    taken: dict[str, str] = {}
    queues = _named(table, "Queues", partial(_entity, make=QueueDescription), taken)
    topics = _named(table, "Topics", _topic, taken)
    table.finish()
    return NamespacePlan(
        name=name,
        ports=ports,
        link_idle_timeout=link_idle_timeout,
        standby=standby,
        storage_stall_timeout=stall_timeout,
        nodes=nodes,
        keys=keys,
        throttling=throttling,
        quotas=quotas,
        queues=queues,
        topics=topics,
    )


def _named(table: Table, key: str, read: Callable[[Table], R], taken: dict[str, str] | None = None) -> tuple[R, ...]:
    """Read the tables under a key, each with a name that is not `taken` yet."""
    taken = {} if taken is None else taken
    found = []
    for each in table.tables(key):
        _claim(taken, each)
        found.append(read(each))
        each.finish()
    return tuple(found)


def _claim(taken: dict[str, str], table: Table) -> None:
    """Refuse a name that is taken: queues and topics share one set of names, in any letter case."""
    name = table.take("Name", TEXT, required=True)
    other = taken.setdefault(name.lower(), table.place)
    if other != table.place:
        table.refuse("Name", name, f"a name of its own; {other} has this one")


def _entity(table: Table, make: Callable[..., D], **others: Any) -> EntityPlan[D]:
    inner = table
    if table.form.nested:
        inner = table.table("Properties") or Table({}, table.at("Properties"), table.form)
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, (attribute, kind) in PROPERTIES[make].items():  # type: ignore[index]
        names[attribute] = name
        value = inner.take(name, kind)
        # An empty text is said too: it takes a forwarding away.
        if inner.raw(name) is not None:
            values[attribute] = value
    keys = _keys(table) if table.form is TOML and make is not SubscriptionDescription else ()
    if len(keys) > AUTHORIZATION_RULES_MAX:
        table.refuse("AuthorizationRules", f"{len(keys)} of them", f"up to {AUTHORIZATION_RULES_MAX}")
    if inner is not table:
        inner.finish()
    description = make(name=table.take("Name", TEXT, required=True), **others, **values)
    try:
        validate(description)
    except InvalidDescription as error:
        if error.field == "name":
            table.refuse("Name", error.value, error.allowed)
        name = names.get(error.field, error.field)
        inner.refuse(name, inner.raw(name), error.allowed)
    throttling = _throttling(table, [measure for measure in MEASURES if measure != "credits"])
    return EntityPlan(description=description, given=frozenset(values), keys=keys, throttling=throttling)


_QUOTAS: Final = {
    "QueuesAndTopics": "entities",
    "SubscriptionsPerTopic": "subscriptions",
    "Connections": "connections",
    "MaxSizeInMegabytes": "size_mb",
    "MaxMessageSizeInKilobytes": "message_size_kb",
    "SqlFiltersPerTopic": "sql_filters",
    "CorrelationFiltersPerTopic": "correlation_filters",
    "MessagesPerTransaction": "transaction_messages",
}


def _quotas(table: Table, of_tier: Quotas) -> Quotas:
    """Read how much a namespace may have, where that is not what its tier has."""
    inner = table.table("Quotas") if table.form is TOML else None
    if inner is None:
        return of_tier
    found = {attribute: inner.take(name, COUNT) for name, attribute in _QUOTAS.items()}
    inner.finish()
    return replace(of_tier, **{attribute: count for attribute, count in found.items() if count is not None})


def _throttling(table: Table, measures: Iterable[str]) -> dict[str, float]:
    """Read the thresholds of a namespace or entity, by measure."""
    inner = table.table("Throttling") if table.form is TOML else None
    if inner is None:
        return {}
    found = {measure: inner.take(MEASURES[measure].key, LIMIT) for measure in measures}
    inner.finish()
    return {measure: limit for measure, limit in found.items() if limit is not None}


def _topic(table: Table) -> TopicPlan:
    entity: EntityPlan[TopicDescription] = _entity(table, TopicDescription)
    read = partial(_subscription, topic=entity.description.name)
    return TopicPlan(entity=entity, subscriptions=_named(table, "Subscriptions", read))


def _subscription(table: Table, topic: str) -> SubscriptionPlan:
    entity: EntityPlan[SubscriptionDescription] = _entity(table, SubscriptionDescription, topic=topic)
    return SubscriptionPlan(entity=entity, rules=_named(table, "Rules", _rule))


def _rule(table: Table) -> RuleDescription:
    name = table.take("Name", TEXT, required=True)
    inner = table.table("Properties", required=True) if table.form.nested else table
    assert inner is not None
    correlation = inner.table("CorrelationFilter")
    made = _filter(inner, correlation)
    action = inner.table("Action")
    changes = None if action is None else _sql(action, SqlAction, required=False)
    if inner is not table:
        inner.finish()
    rule = RuleDescription(name=name, filter=made, action=changes)
    try:
        validate_rule(rule)
    except InvalidDescription as error:
        if error.field == "name":
            table.refuse("Name", name, error.allowed)
        where = correlation or inner
        spelt = next((key for key, attribute in SYSTEM_PROPERTIES.items() if attribute == error.field), "Properties")
        where.refuse(spelt, error.value, error.allowed)
    return rule


def _filter(table: Table, correlation: Table | None) -> Filter:
    allowed = ", ".join(table.form.spelling(kind) for kind in _FILTER_TYPES)
    said = table.take("FilterType", TEXT)
    if said is None and correlation is None:
        raise ConfigError(table.at("FilterType"), f"is missing; allowed: {allowed}")
    sql = table.table("SqlFilter")
    written = None if sql is None else _sql(sql, SqlFilter, required=True)
    match "correlation" if said is None else said.lower():
        case "correlation":
            if correlation is None:
                raise ConfigError(table.at("CorrelationFilter"), "is missing; the filter's type says that there is one")
            return _correlation(correlation)
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "sql":
            if written is None:
                raise ConfigError(table.at("SqlFilter"), "is missing; the filter's type says that there is one")
            return written
    return table.refuse("FilterType", said, allowed)


def _sql(table: Table, kind: type[S], *, required: bool) -> S | None:
    expression = table.take("SqlExpression", TEXT, required=required)
    parameters = table.take("Parameters", TABLE) or {}
    table.finish()
    if not expression and not required:
        return None
    try:
        return kind(expression, {name: _property(value) for name, value in parameters.items()})
    except InvalidDescription as error:
        table.refuse(error.field, error.value, error.allowed)


def _correlation(table: Table) -> CorrelationFilter:
    values = {attribute: table.take(name, TEXT) for name, attribute in SYSTEM_PROPERTIES.items()}
    properties = table.take("Properties", TABLE) or {}
    table.finish()
    return CorrelationFilter(**values, properties={name: _property(value) for name, value in properties.items()})


def _property(value: Any) -> Any:
    if isinstance(value, datetime):
        kind = UnzonedTimestamp if value.tzinfo is None else Timestamp
        return kind(round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000))
    return value


def _keys(table: Table) -> tuple[AuthorizationRule, ...]:
    rules: list[AuthorizationRule] = []
    taken: dict[str, str] = {}
    for each in table.tables("AuthorizationRules"):
        _claim(taken, each)
        primary_key = each.take("PrimaryKey", TEXT, secret=True)
        rule = AuthorizationRule(
            key_name=each.take("Name", TEXT, required=True),
            rights=each.take("Rights", RIGHTS_LIST, required=True),
            primary_key=primary_key or "",
            secondary_key=each.take("SecondaryKey", TEXT, secret=True) or "",
        )
        each.finish()
        try:
            validate_authorization_rule(replace(rule, primary_key="made later") if primary_key is None else rule)
        except InvalidDescription as error:
            names = {"key_name": "Name", "rights": "Rights", "primary_key": "PrimaryKey"}
            each.refuse(names.get(error.field, "SecondaryKey"), error.value, error.allowed)
        rules.append(rule)
    return tuple(rules)
