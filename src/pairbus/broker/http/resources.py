"""What the management API can reach, and by which path: queues, topics, subscriptions and rules, behind one face.

Each kind knows where its things stand in the namespace, how one is made from the fields of a request, what counts are
shown of it, and which call of the namespace creates, changes or removes it. admin_api.py does the rest, alike for all.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pairbus.broker.model.description import (
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    validate,
    validate_rule,
    validate_update,
)
from pairbus.broker.model.topic import RULES, SUBSCRIPTIONS

from .atom import QUEUE, RULE, SUBSCRIPTION, TOPIC, DescriptionKind, RuntimeCounts

Done = Callable[[Any], None]


class QueueLike(Protocol):
    """What is read of a queue or a subscription."""

    @property
    def description(self) -> Any: ...
    @property
    def active_count(self) -> int: ...
    @property
    def dead_letter_count(self) -> int: ...
    @property
    def scheduled_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def accessed_at(self) -> float: ...


class SubscriptionLike(QueueLike, Protocol):
    @property
    def rules(self) -> Mapping[str, RuleDescription]: ...


class TopicLike(Protocol):
    @property
    def description(self) -> TopicDescription: ...
    @property
    def subscriptions(self) -> Mapping[str, SubscriptionLike]: ...
    @property
    def scheduled_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def accessed_at(self) -> float: ...


class ManagedNamespace(Protocol):
    """What is asked of a namespace. Keys are lower-cased names; `done` gets None, or a Refusal or error that says why
    not."""

    @property
    def name(self) -> str: ...
    @property
    def queues(self) -> Mapping[str, QueueLike]: ...
    @property
    def topics(self) -> Mapping[str, TopicLike]: ...
    def create_queue(self, description: QueueDescription, now: float, done: Done) -> object: ...
    def update_queue(self, description: QueueDescription, now: float, done: Done) -> object: ...
    def delete_queue(self, name: str, now: float, done: Done) -> object: ...
    def create_topic(self, description: TopicDescription, now: float, done: Done) -> object: ...
    def update_topic(self, description: TopicDescription, now: float, done: Done) -> object: ...
    def delete_topic(self, name: str, now: float, done: Done) -> object: ...
    def create_subscription(self, description: SubscriptionDescription, now: float, done: Done) -> object: ...
    def update_subscription(self, description: SubscriptionDescription, now: float, done: Done) -> object: ...
    def delete_subscription(self, topic: str, name: str, now: float, done: Done) -> object: ...
    def create_rule(self, topic: str, subscription: str, rule: RuleDescription, now: float, done: Done) -> object: ...
    def update_rule(self, topic: str, subscription: str, rule: RuleDescription, now: float, done: Done) -> object: ...
    def delete_rule(self, topic: str, subscription: str, name: str, now: float, done: Done) -> object: ...


class Missing(Exception):
    """What a path leads through does not exist."""

    def __init__(self, noun: str, name: str) -> None:
        super().__init__(f"The {noun} '{name}' does not exist.")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """Where a path of the API leads. The last part that is not None is what is meant; an empty one means all there."""

    entity: str
    subscription: str | None = None
    rule: str | None = None

    @property
    def name(self) -> str:
        if self.rule is not None:
            return self.rule
        return self.entity if self.subscription is None else self.subscription

    @property
    def path(self) -> str:
        """As errors name it."""
        subscription = "" if self.subscription is None else f"{SUBSCRIPTIONS}{self.subscription}"
        return self.entity + subscription + ("" if self.rule is None else f"{RULES}{self.rule}")


def parse_place(path: str) -> ResourcePath | None:
    """`news`, `news/Subscriptions`, `news/Subscriptions/all`, `news/Subscriptions/all/Rules[/$Default]`, in any case.
    None for what can't be a path at all. Names of topics hold slashes, but never that word (bounds.py)."""
    segments = path.split("/")
    lowered = path.lower().split("/")
    at = lowered.index("subscriptions", 1) if "subscriptions" in lowered[1:] else len(segments)
    entity, rest = "/".join(segments[:at]), segments[at + 1 :]
    if at == len(segments):
        return ResourcePath(entity)
    if not rest:
        return ResourcePath(entity, "")
    if len(rest) == 1:
        return ResourcePath(entity, rest[0])
    if lowered[at + 2] != "rules" or len(rest) > 3:
        return None
    return ResourcePath(entity, rest[0], rest[2] if len(rest) == 3 else "")


class ResourceKind(ABC):
    """One kind of thing. `place` says where; what a path leads through and isn't there is `Missing`."""

    noun: ClassVar[str]
    table: ClassVar[DescriptionKind]

    def __init__(self, namespace: ManagedNamespace) -> None:
        self._namespace = namespace

    @abstractmethod
    def all(self, place: ResourcePath) -> Mapping[str, Any]: ...
    @abstractmethod
    def describe(self, place: ResourcePath, fields: dict[str, Any], now: float) -> Any: ...
    @abstractmethod
    def create(self, place: ResourcePath, description: Any, now: float, done: Done) -> None: ...
    @abstractmethod
    def update(self, place: ResourcePath, description: Any, now: float, done: Done) -> None: ...
    @abstractmethod
    def delete(self, place: ResourcePath, description: Any, now: float, done: Done) -> None: ...

    def description(self, found: Any) -> Any:
        return found.description

    def path(self, place: ResourcePath, description: Any) -> str:
        return str(description.name)

    def counts(self, found: Any) -> RuntimeCounts:
        return RuntimeCounts(
            active=found.active_count,
            dead_letter=found.dead_letter_count,
            scheduled=found.scheduled_count,
            size_bytes=found.size_bytes,
            accessed_at=found.accessed_at,
        )

    def check(self, new: Any, old: Any | None) -> None:
        if old is None:
            validate(new)
        else:
            validate_update(old, new)

    def _topic(self, place: ResourcePath) -> TopicLike:
        topic = self._namespace.topics.get(place.entity.lower())
        if topic is None:
            raise Missing("topic", place.entity)
        return topic


class Queues(ResourceKind):
    noun = "queue"
    table = QUEUE

    def all(self, place: ResourcePath) -> Mapping[str, QueueLike]:
        return self._namespace.queues

    def describe(self, place: ResourcePath, fields: dict[str, Any], now: float) -> QueueDescription:
        return QueueDescription(name=place.entity, created_at=now, updated_at=now, **fields)

    def create(self, place: ResourcePath, description: QueueDescription, now: float, done: Done) -> None:
        self._namespace.create_queue(description, now, done)

    def update(self, place: ResourcePath, description: QueueDescription, now: float, done: Done) -> None:
        self._namespace.update_queue(description, now, done)

    def delete(self, place: ResourcePath, description: QueueDescription, now: float, done: Done) -> None:
        self._namespace.delete_queue(description.name, now, done)


class Topics(ResourceKind):
    noun = "topic"
    table = TOPIC

    def all(self, place: ResourcePath) -> Mapping[str, TopicLike]:
        return self._namespace.topics

    def describe(self, place: ResourcePath, fields: dict[str, Any], now: float) -> TopicDescription:
        return TopicDescription(name=place.entity, created_at=now, updated_at=now, **fields)

    def create(self, place: ResourcePath, description: TopicDescription, now: float, done: Done) -> None:
        self._namespace.create_topic(description, now, done)

    def update(self, place: ResourcePath, description: TopicDescription, now: float, done: Done) -> None:
        self._namespace.update_topic(description, now, done)

    def delete(self, place: ResourcePath, description: TopicDescription, now: float, done: Done) -> None:
        self._namespace.delete_topic(description.name, now, done)

    def counts(self, found: TopicLike) -> RuntimeCounts:
        rules = [rule for each in found.subscriptions.values() for rule in each.rules.values()]
        correlated = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        return RuntimeCounts(
            scheduled=found.scheduled_count,
            size_bytes=found.size_bytes,
            accessed_at=found.accessed_at,
            subscriptions=len(found.subscriptions),
            # true and false are SQL filters to the service
            sql_filters=len(rules) - correlated,
            correlation_filters=correlated,
        )


class Subscriptions(ResourceKind):
    noun = "subscription"
    table = SUBSCRIPTION

    def all(self, place: ResourcePath) -> Mapping[str, SubscriptionLike]:
        return self._topic(place).subscriptions

    def describe(self, place: ResourcePath, fields: dict[str, Any], now: float) -> SubscriptionDescription:
        topic = self._topic(place).description.name
        rule = fields.get("default_rule")
        if rule is not None:
            fields = fields | {"default_rule": dataclasses.replace(rule, created_at=now)}
        return SubscriptionDescription(topic=topic, name=place.name, created_at=now, updated_at=now, **fields)

    def create(self, place: ResourcePath, description: SubscriptionDescription, now: float, done: Done) -> None:
        self._namespace.create_subscription(description, now, done)

    def update(self, place: ResourcePath, description: SubscriptionDescription, now: float, done: Done) -> None:
        self._namespace.update_subscription(description, now, done)

    def delete(self, place: ResourcePath, description: SubscriptionDescription, now: float, done: Done) -> None:
        self._namespace.delete_subscription(description.topic, description.name, now, done)

    def path(self, place: ResourcePath, description: SubscriptionDescription) -> str:
        return f"{description.topic}/Subscriptions/{description.name}"


class Rules(ResourceKind):
    noun = "rule"
    table = RULE

    def all(self, place: ResourcePath) -> Mapping[str, RuleDescription]:
        return {rule.name.lower(): rule for rule in self._subscription(place).rules.values()}

    def description(self, found: RuleDescription) -> RuleDescription:
        return found

    def describe(self, place: ResourcePath, fields: dict[str, Any], now: float) -> RuleDescription:
        self._subscription(place)
        return RuleDescription(name=place.name, created_at=now, **fields)

    def create(self, place: ResourcePath, description: RuleDescription, now: float, done: Done) -> None:
        at = self._subscription(place).description
        self._namespace.create_rule(at.topic, at.name, description, now, done)

    def update(self, place: ResourcePath, description: RuleDescription, now: float, done: Done) -> None:
        at = self._subscription(place).description
        self._namespace.update_rule(at.topic, at.name, description, now, done)

    def delete(self, place: ResourcePath, description: RuleDescription, now: float, done: Done) -> None:
        at = self._subscription(place).description
        self._namespace.delete_rule(at.topic, at.name, description.name, now, done)

    def path(self, place: ResourcePath, description: RuleDescription) -> str:
        at = self._subscription(place).description
        return f"{at.topic}/Subscriptions/{at.name}/Rules/{description.name}"

    def counts(self, found: RuleDescription) -> RuntimeCounts:
        return RuntimeCounts()

    def check(self, new: RuleDescription, old: RuleDescription | None) -> None:
        validate_rule(new)

    def _subscription(self, place: ResourcePath) -> SubscriptionLike:
        name = place.subscription or ""
        found = self._topic(place).subscriptions.get(name.lower())
        if found is None:
            raise Missing("subscription", name)
        return found
