"""Plans: the namespaces and entities that a configuration wants, and what changes in existing ones. Pure.

config_file.py reads plans from a file, apply_plan.py applies them. A plan never deletes: it creates or updates what it
names, and everything else stays as it is, property by property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pairbus.broker.access.authorization import complete_rule
from pairbus.broker.access.throttling import Target
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import (
    FORWARDS,
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    validate_update,
)
from pairbus.broker.model.rule_description import RuleDescription
from pairbus.broker.model.topic import SUBSCRIPTIONS
from pairbus.broker.operations.quotas import Quotas
from pairbus.errors import BrokerError

_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_NAME_CHARS_MAX = 50
PORTS_MAX = 16
# Of the journal's options.
STALL_S_MIN, STALL_S_MAX = 0.05, 600.0
# The name, ports and key of Microsoft's emulator, on which its clients' connection strings rely; the key is public.
EMULATOR_NAMESPACE = "sbemulatorns"
EMULATOR_PORTS = (5672, 5300)
EMULATOR_KEY = "SAS_KEY_VALUE"

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityPlan(Generic[D]):
    description: D
    given: frozenset[str] = frozenset()
    """The fields of the description that the configuration speaks of; the others are defaults for a new entity."""
    keys: tuple[AuthorizationRule, ...] = ()
    """An empty key is made at random when the rule is created."""
    throttling: Mapping[str, float] = field(default_factory=dict)
    """By measure; not stored: it holds while a broker runs with this plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionPlan:
    entity: EntityPlan[SubscriptionDescription]
    rules: tuple[RuleDescription, ...] = ()
    """None at all: a new subscription has `$Default`, which lets everything in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    entity: EntityPlan[TopicDescription]
    subscriptions: tuple[SubscriptionPlan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePlan:
    name: str
    ports: tuple[int, ...] = ()
    """None at all: any free one. All of them serve all protocols."""
    link_idle_timeout: float | None = None
    """Seconds; None leaves it to the broker."""
    standby: str | None = None
    """The folder that takes messages while the data folder stalls."""
    storage_stall_timeout: float | None = None
    """Seconds; None leaves it to the broker."""
    nodes: int | None = None
    """Over how many its entities are spread; None leaves it to the broker."""
    keys: tuple[AuthorizationRule, ...] = ()
    throttling: Mapping[str, float] = field(default_factory=dict)
    quotas: Quotas = field(default_factory=Quotas)
    queues: tuple[EntityPlan[QueueDescription], ...] = ()
    topics: tuple[TopicPlan, ...] = ()

    @property
    def thresholds(self) -> dict[Target, Mapping[str, float]]:
        """Past what it and its entities are busy, by their names in lower case; None is the namespace."""
        found: dict[Target, Mapping[str, float]] = {None: self.throttling}
        for queue in self.queues:
            found[queue.description.name.lower()] = queue.throttling
        for topic in self.topics:
            found[topic.entity.description.name.lower()] = topic.entity.throttling
            for each in topic.subscriptions:
                path = f"{topic.entity.description.name}{SUBSCRIPTIONS}{each.entity.description.name}"
                found[path.lower()] = each.entity.throttling
        return found


def parse_namespace(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `contoso`, `contoso:5672` or `contoso:5672,5300`; a port of 0 means any free one, and so do no ports."""
    name, separator, ports_text = text.partition(":")
    if not name or len(name) > _NAME_CHARS_MAX or not set(name) <= _NAME_CHARS or name[0] == "-" or name[-1] == "-":
        raise BrokerError(
            f"{text!r} can't name a namespace: lower-case letters, digits and inner dashes, at most {_NAME_CHARS_MAX}"
        )
    if not separator:
        return name, ()
    for port_text in ports_text.split(","):
        if not port_text.isascii() or not port_text.isdigit() or int(port_text[-6:]) > 65535 or len(port_text) > 5:
            raise BrokerError(f"{port_text!r} in {text!r} is not a port: 0 (any free one) to 65535")
    ports = tuple(int(port_text) for port_text in ports_text.split(","))
    if (wrong := wrong_ports(ports)) is not None:
        raise BrokerError(f"{text!r} {wrong}")
    return name, ports


def wrong_ports(ports: Sequence[int]) -> str | None:
    """Return what is wrong with a list of ports that are each in bounds, if anything is."""
    if not 1 <= len(ports) <= PORTS_MAX:
        return f"has {len(ports)} ports; allowed: 1 to {PORTS_MAX}"
    twice = next((port for port in ports if port and ports.count(port) > 1), None)
    return None if twice is None else f"has port {twice} twice; each port is given once"


def choose(names: Iterable[str], plans: Iterable[NamespacePlan]) -> list[NamespacePlan]:
    """Return the namespaces to serve: those named, each with its plan if there is one and at the ports given with the
    name; without names, all that are planned."""
    by_name = {plan.name: plan for plan in plans}
    chosen = []
    for text in names:
        name, ports = parse_namespace(text)
        plan = by_name.get(name) or NamespacePlan(name=name)
        chosen.append(replace(plan, ports=ports) if ports else plan)
    chosen = chosen or list(by_name.values())
    taken: dict[int, str] = {}
    for plan in chosen:
        for port in plan.ports:
            if port and (other := taken.setdefault(port, plan.name)) != plan.name:
                raise BrokerError(f"port {port} is given to {other} and to {plan.name}; each namespace has its own")
    return chosen


def as_emulator(plans: Sequence[NamespacePlan]) -> list[NamespacePlan]:
    """Return one namespace with the emulator's name and ports, unless others are given."""
    if len(plans) > 1:
        raise BrokerError(
            f"the emulator has one namespace, not {len(plans)} ({', '.join(plan.name for plan in plans)}); name one, "
            "or leave out --emulator"
        )
    (plan,) = plans or [NamespacePlan(name=EMULATOR_NAMESPACE)]
    return [replace(plan, ports=plan.ports or EMULATOR_PORTS)]


def without_forwards(plan: EntityPlan[D]) -> EntityPlan[D]:
    """Return the plan of an entity without what it says of forwarding: the same one if it says nothing."""
    if not plan.given & set(FORWARDS):
        return plan
    description = replace(plan.description, **dict.fromkeys(plan.given & set(FORWARDS)))  # type: ignore[arg-type]
    return replace(plan, description=description, given=plan.given - set(FORWARDS))


def new_description(plan: EntityPlan[D], new_key: Callable[[], str], now: float) -> D:
    """Return the description of an entity that does not exist yet."""
    return _with_keys(plan.description, plan.keys, new_key, now)


def changed_description(
    stands: D, plan: EntityPlan[D], new_key: Callable[[], str], now: float
) -> tuple[D | None, list[str]]:
    """Return the new description of an entity that exists, None for no change, and notes on what can't be changed."""
    notes: list[str] = []
    wanted = {name: getattr(plan.description, name) for name in sorted(plan.given)}
    wanted = {name: value for name, value in wanted.items() if getattr(stands, name) != value}
    while True:
        new = _with_keys(replace(stands, **wanted), plan.keys, new_key, now)
        try:
            validate_update(stands, new)
        except InvalidDescription as error:
            if error.field not in wanted:
                raise
            del wanted[error.field]
            notes.append(f"{error.field} can't become {error.value!r}; it stays {error.allowed}")
            continue
        return (None if new == stands else new), notes


def authorization_rules(
    stand: Iterable[AuthorizationRule], wanted: Iterable[AuthorizationRule], new_key: Callable[[], str], now: float
) -> tuple[AuthorizationRule, ...]:
    """Return the existing rules, changed to what is wanted of them, followed by the wanted ones that are missing."""
    rules = {rule.key_name: rule for rule in stand}
    for rule in wanted:
        rules[rule.key_name] = complete_rule(rule, rules.get(rule.key_name), new_key, now)
    return tuple(rules.values())


def _with_keys(description: D, keys: Iterable[AuthorizationRule], new_key: Callable[[], str], now: float) -> D:
    if isinstance(description, SubscriptionDescription) or not keys:
        return description
    return replace(
        description, authorization_rules=authorization_rules(description.authorization_rules, keys, new_key, now)
    )
