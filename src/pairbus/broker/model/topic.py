"""A topic and its subscriptions, as entities of a namespace.

Pure. A subscription is a queue that clients can't send to: it gets copies of the topic's messages that its rules let
through. The only messages that a topic holds are scheduled ones, which are copied when they are due, for the
subscriptions and rules of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from pairbus.broker.format import records

from .description import SubscriptionDescription, TopicDescription, as_queue
from .entity import QueueEntity
from .outcomes import DeadLetter
from .rule_description import RuleDescription
from .rules import RuleIndex, RuleSet
from .shared_bodies import Account

SUBSCRIPTIONS_MAX: Final = 2000
SUBSCRIPTIONS: Final = "/Subscriptions/"
RULES: Final = "/Rules/"

#: Why a message is dead-lettered that a filter or an action could not be evaluated for.
FILTER_ERROR: Final = "FilterEvaluationException"
#: What the service says of a message that a subscription with sessions can't take.
SESSION_MISSING: Final = DeadLetter(
    "Session ID is null", "Session enabled entity doesn't allow a message whose session identifier is null."
)


class Topic(QueueEntity):
    """A topic; its `active` queue holds the scheduled messages."""

    __slots__ = (
        "_index",
        "_subscriptions",
        "account",
        "arriving",
        "has_sessions",
        "is_publishing_due",
        "subscriptions",
    )

    KIND = records.TOPIC
    # Not a queue, but with the interface of one that messages are sent to.
    description: TopicDescription  # type: ignore[assignment]

    def __init__(self, id: int, description: TopicDescription, revision: int = 0) -> None:
        self.account = Account()
        self._subscriptions: dict[str, Subscription] = {}
        #: By name in lower case, as they were created.
        self.subscriptions: Mapping[str, Subscription] = MappingProxyType(self._subscriptions)
        #: Those whose first record is being written.
        self.arriving: dict[str, Subscription] = {}
        #: Whether one of them requires sessions.
        self.has_sessions = False
        self._index: RuleIndex[Subscription] = RuleIndex()
        #: Whether scheduled messages that are due are on their way to its subscriptions.
        self.is_publishing_due = False
        super().__init__(id, description, revision)  # type: ignore[arg-type]

    def describe(self, description: TopicDescription, revision: int) -> None:  # type: ignore[override]
        super().describe(as_queue(description, description.name), revision)
        self.needs_traits = self.needs_traits or self.has_sessions
        self.description = description

    def with_parts(self) -> list[QueueEntity]:
        subscriptions = (*self._subscriptions.values(), *self.arriving.values())
        return [*super().with_parts(), *(part for each in subscriptions for part in each.with_parts())]

    @property
    def entity(self) -> Topic:
        """The topic itself, as `MessageQueue.entity` is that of a queue."""
        return self

    @property
    def path(self) -> str:
        return self.description.name

    @property
    def size_bytes(self) -> int:
        """A body counts once, however many subscriptions have it."""
        return self.account.stored_bytes

    def held_bytes(self, partition: int) -> int:
        return self.account.part(partition).stored_bytes

    @property
    def idle_deadline(self) -> float:
        latest = max((each.accessed_at for each in self._subscriptions.values()), default=self.accessed_at)
        self.accessed_at = max(self.accessed_at, latest)
        return super().idle_deadline

    def is_idle(self, now: float) -> bool:
        for subscription in self._subscriptions.values():
            subscription.is_idle(now)  # one that is in use is touched
        return super().is_idle(now)

    def add(self, subscription: Subscription) -> None:
        subscription.topic = self
        if self.partitions is not None:
            subscription.partition()
        self._subscriptions[subscription.name.lower()] = subscription
        self._note_sessions()
        self.note_rules(subscription)

    def drop(self, subscription: Subscription) -> None:
        key = subscription.name.lower()
        if self._subscriptions.get(key) is subscription:
            del self._subscriptions[key]
            if self.deleted:
                # with the topic: it decides nothing any more, and the index would lead back to the subscription
                self._index = RuleIndex()
                return
            self._note_sessions()
            self._index.drop(subscription)

    def _note_sessions(self) -> None:
        self.has_sessions = any(each.description.requires_session for each in self._subscriptions.values())
        self.describe(self.description, self.revision)

    def note_rules(self, subscription: Subscription) -> None:
        """Note that the rules of a subscription may have changed."""
        if self._subscriptions.get(subscription.name.lower()) is subscription:
            self._index.put(subscription, subscription.ruleset)

    @property
    def rules(self) -> RuleIndex[Subscription]:
        """The rules of its subscriptions as they are now, which stay so whatever changes."""
        return self._index.snapshot()

    def filter_counts(self) -> tuple[int, int]:
        """Return how many SQL and how many correlation filters there are."""
        counts = [each.ruleset.counts for each in (*self._subscriptions.values(), *self.arriving.values())]
        return sum(sql for sql, _ in counts), sum(correlation for _, correlation in counts)

    def __repr__(self) -> str:
        return f"<Topic {self.name}: {len(self._subscriptions)} subscriptions, {self.scheduled_count} scheduled>"


class Subscription(QueueEntity):
    """A subscription of a topic, with its rules."""

    __slots__ = ("default_ttl", "is_changing", "rules", "ruleset", "topic", "topic_id", "waiting")

    KIND = records.SUBSCRIPTION
    # Not a queue, but with the interface of one that messages are received from.
    description: SubscriptionDescription  # type: ignore[assignment]

    def __init__(
        self,
        id: int,
        topic_id: int,
        description: SubscriptionDescription,
        rules: Iterable[RuleDescription],
        revision: int = 0,
    ) -> None:
        self.topic_id = topic_id
        self.topic: Topic | None = None
        #: Changes are written one after the other, as each record describes all of it; these wait for their turn.
        self.is_changing = False
        self.waiting: list[Callable[[], None]] = []
        self.set_rules(rules)
        super().__init__(id, description, revision)  # type: ignore[arg-type]

    @classmethod
    def from_document(cls, id: int, document: dict[str, Any], revision: int) -> Subscription:
        return cls(id, document["topic_id"], *_read(document), revision)

    def describe(self, description: SubscriptionDescription, revision: int) -> None:  # type: ignore[override]
        super().describe(as_queue(description, f"{description.topic}{SUBSCRIPTIONS}{description.name}"), revision)
        # The rule that it was created with is only its first rule.
        self.description = replace(description, default_rule=None)
        self.default_ttl = description.default_ttl

    def set_rules(self, rules: Iterable[RuleDescription]) -> None:
        #: By name in lower case, as they were created.
        self.rules: Mapping[str, RuleDescription] = MappingProxyType({rule.name.lower(): rule for rule in rules})
        self.ruleset = RuleSet(self.rules.values())
        if self.topic is not None:
            self.topic.note_rules(self)

    def document(self) -> dict[str, Any]:
        return subscription_document(self.topic_id, self.description, self.rules.values())

    @property
    def path(self) -> str:
        return self.active.path

    def turn_with_topic(self) -> None:
        """Turn to the partition that the topic was turned to, if it has partitions."""
        if self.topic is not None and self.topic.partitions is not None:
            self.turn_to(self.topic.partitions.current)

    def count_receiver(self, step: int) -> None:
        super().count_receiver(step)
        if self.topic is not None:
            self.topic.count_receiver(step)

    @property
    def detects_duplicates(self) -> bool:
        return False  # its topic does

    def __repr__(self) -> str:
        return f"<Subscription {self.path}: {len(self.active)} active, {len(self.dead_letter)} dead-lettered>"


def subscription_document(
    topic_id: int, description: SubscriptionDescription, rules: Iterable[RuleDescription]
) -> dict[str, Any]:
    """Return the document of the record that describes a subscription."""
    return {
        "topic_id": topic_id,
        "description": description.to_json(),
        "rules": [rule.to_json() for rule in rules],
    }


def redescribe(subscription: Subscription, document: dict[str, Any], revision: int) -> None:
    """Apply the document of a later record to a subscription."""
    description, rules = _read(document)
    subscription.topic_id = document["topic_id"]
    subscription.set_rules(rules)
    subscription.describe(description, revision)


def take_over(entity: QueueEntity, placeholder: QueueEntity) -> None:
    """Give an entity the messages that replay has put into a placeholder before the description came."""
    entity.active, entity.dead_letter = placeholder.active, placeholder.dead_letter
    entity.active.entity = entity.dead_letter.entity = entity
    entity.last_sequence = placeholder.last_sequence
    entity.partitions = placeholder.partitions
    entity.renumbered = placeholder.renumbered
    entity.duplicates = placeholder.duplicates
    entity.describe(entity.description, entity.revision)


def _read(document: dict[str, Any]) -> tuple[SubscriptionDescription, list[RuleDescription]]:
    description = SubscriptionDescription.from_json(document["description"])
    return description, [RuleDescription.from_json(each) for each in document["rules"]]
