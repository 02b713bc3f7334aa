"""The kinds of resources that the management API manages (queues, topics, subscriptions, rules) and their paths.

Each kind knows where its resources are in the namespace, how to create a description from the fields of a request,
which counts are shown, and which calls of the namespace create, update and delete one. admin.py does the rest, which is
the same for all.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pairbus.broker.model.description import SubscriptionDescription, validate, validate_update
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.rule_description import CorrelationFilter, RuleDescription, validate_rule
from pairbus.broker.model.topic import RULES, SUBSCRIPTIONS, Subscription, Topic
from pairbus.broker.operations.namespace import Namespace

from .atom import QUEUE, RULE, SUBSCRIPTION, TOPIC, DescriptionKind, RuntimeCounts

Done = Callable[[Any], None]
_Change = Callable[..., object]


class Missing(Exception):
    """A resource that the path of a request names does not exist."""

    def __init__(self, noun: str, name: str) -> None:
        super().__init__(f"The {noun} '{name}' does not exist.")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A path of the API, parsed. The last part that is not None names the resource; an empty one stands for all."""

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
        """Return the path as errors name it."""
        subscription = "" if self.subscription is None else f"{SUBSCRIPTIONS}{self.subscription}"
        return self.entity + subscription + ("" if self.rule is None else f"{RULES}{self.rule}")


def parse_path(path: str) -> ResourcePath | None:
    """Parse `news`, `news/Subscriptions`, `news/Subscriptions/all` or `news/Subscriptions/all/Rules[/$Default]`, in any
    letter case. Return None for what can't be a path. A topic's name may hold slashes, never that word (bounds.py)."""
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
    """One kind of resource. Its methods raise `Missing` when the topic or subscription of a path does not exist."""

    noun: ClassVar[str]
    table: ClassVar[DescriptionKind]

    def __init__(self, namespace: Namespace, create: _Change, update: _Change, delete: _Change) -> None:
        self._namespace = namespace
        self._create = create
        self._update = update
        self._delete = delete

    @abstractmethod
    def all(self, path: ResourcePath) -> Mapping[str, Any]:
        """Return the resources of this kind there, by lower-case name."""

    def describe(self, path: ResourcePath, fields: dict[str, Any], now: float) -> Any:
        """Return the description of a new resource with these fields."""
        return self.table.describes(name=path.entity, created_at=now, updated_at=now, **fields)

    def create(self, path: ResourcePath, description: Any, now: float, done: Done) -> None:
        """Create it. As with `update` and `delete`, `done` gets None when it is on disk, or the Refusal or error."""
        self._create(description, now, done)

    def update(self, path: ResourcePath, description: Any, now: float, done: Done) -> None:
        self._update(description, now, done)

    def delete(self, path: ResourcePath, description: Any, now: float, done: Done) -> None:
        self._delete(*self.parents(path), description.name, now, done)

    def parents(self, path: ResourcePath) -> tuple[str, ...]:
        """Return the names of the topic and the subscription that a resource belongs to, as they were created."""
        return ()

    def description(self, found: Any) -> Any:
        return found.description

    def path(self, path: ResourcePath, description: Any) -> str:
        """Return the path of a resource, with all names as they were created."""
        words = ("", SUBSCRIPTIONS, RULES)
        return "".join(map("".join, zip(words, (*self.parents(path), description.name), strict=False)))

    def counts(self, found: Any) -> RuntimeCounts:
        is_forwarding = found.forwards[0][1] is not None
        return RuntimeCounts(
            active=0 if is_forwarding else found.active_count,
            transfer=found.active_count if is_forwarding else 0,
            dead_letter=found.dead_letter_count,
            transfer_dead_letter=found.transfer_dead_letter_count,
            scheduled=found.scheduled_count,
            size_bytes=found.size_bytes,
            accessed_at=found.accessed_at,
        )

    def check(self, new: Any, old: Any | None) -> None:
        """Raise InvalidDescription for a resource that can't be created, or updated from `old`, like that."""
        if old is None:
            validate(new)
        else:
            validate_update(old, new)

    def _topic(self, path: ResourcePath) -> Topic:
        topic = self._namespace.topics.get(path.entity.lower())
        if topic is None:
            raise Missing("topic", path.entity)
        return topic


class Queues(ResourceKind):
    noun = "queue"
    table = QUEUE

    def __init__(self, namespace: Namespace) -> None:
        registry = namespace.registry
        super().__init__(namespace, registry.create, registry.update, registry.delete_queue)

    def all(self, path: ResourcePath) -> Mapping[str, QueueEntity]:
        return self._namespace.queues


class Topics(ResourceKind):
    noun = "topic"
    table = TOPIC

    def __init__(self, namespace: Namespace) -> None:
        registry = namespace.registry
        super().__init__(namespace, registry.create, registry.update, registry.delete_topic)

    def all(self, path: ResourcePath) -> Mapping[str, Topic]:
        return self._namespace.topics

    def counts(self, found: Topic) -> RuntimeCounts:
        rules = [rule for each in found.subscriptions.values() for rule in each.rules.values()]
        correlated = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        return RuntimeCounts(
            transfer_dead_letter=found.transfer_dead_letter_count,
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

    def __init__(self, namespace: Namespace) -> None:
        subscriptions = namespace.subscriptions
        super().__init__(namespace, subscriptions.create, subscriptions.update, subscriptions.delete)

    def all(self, path: ResourcePath) -> Mapping[str, Subscription]:
        return self._topic(path).subscriptions

    def describe(self, path: ResourcePath, fields: dict[str, Any], now: float) -> SubscriptionDescription:
        (topic,) = self.parents(path)
        rule = fields.get("default_rule")
        if rule is not None:
            fields = fields | {"default_rule": dataclasses.replace(rule, created_at=now)}
        return SubscriptionDescription(topic=topic, name=path.name, created_at=now, updated_at=now, **fields)

    def parents(self, path: ResourcePath) -> tuple[str, ...]:
        return (self._topic(path).description.name,)


class Rules(ResourceKind):
    noun = "rule"
    table = RULE

    def __init__(self, namespace: Namespace) -> None:
        rules = namespace.subscriptions
        super().__init__(namespace, rules.create_rule, rules.update_rule, rules.delete_rule)

    def all(self, path: ResourcePath) -> Mapping[str, RuleDescription]:
        return {rule.name.lower(): rule for rule in self._subscription(path).rules.values()}

    def description(self, found: RuleDescription) -> RuleDescription:
        return found

    def describe(self, path: ResourcePath, fields: dict[str, Any], now: float) -> RuleDescription:
        self._subscription(path)
        return RuleDescription(name=path.name, created_at=now, **fields)

    def create(self, path: ResourcePath, description: RuleDescription, now: float, done: Done) -> None:
        self._create(*self.parents(path), description, now, done)

    def update(self, path: ResourcePath, description: RuleDescription, now: float, done: Done) -> None:
        self._update(*self.parents(path), description, now, done)

    def parents(self, path: ResourcePath) -> tuple[str, ...]:
        description = self._subscription(path).description
        return description.topic, description.name

    def counts(self, found: RuleDescription) -> RuntimeCounts:
        return RuntimeCounts()

    def check(self, new: RuleDescription, old: RuleDescription | None) -> None:
        validate_rule(new)

    def _subscription(self, path: ResourcePath) -> Subscription:
        name = path.subscription or ""
        found = self._topic(path).subscriptions.get(name.lower())
        if found is None:
            raise Missing("subscription", name)
        return found
