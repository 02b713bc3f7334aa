"""Subscription operations: subscriptions of topics and their rules are created, updated and deleted.

model/topic.py defines a topic, and registry.py writes the records. A subscription and its rules are one record, so its
changes are written one after the other: each builds on the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.broker.model.description import SubscriptionDescription
from pairbus.broker.model.rule_description import DEFAULT_RULE, CorrelationFilter, RuleDescription, SqlFilter
from pairbus.broker.model.rules import RULES_MAX
from pairbus.broker.model.topic import (
    RULES,
    SUBSCRIPTIONS,
    Subscription,
    Topic,
    subscription_document,
)
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, Store, unavailable

from .quotas import Quotas
from .registry import Registry

#: Of a subscription that wait for their turn.
_CHANGES_MAX: Final = 1000

Rules = dict[str, RuleDescription]


class SubscriptionOperations:
    """Creates, changes and deletes subscriptions and rules."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    def create(self, description: SubscriptionDescription, now: float, done: Done) -> None:
        """Create a subscription with the rule that its description names, or else one that matches every message."""
        topic = self._registry.topics.get(description.topic.lower())
        if topic is None or topic.deleting:
            done(unavailable(topic, description.topic))
            return
        path = f"{topic.name}{SUBSCRIPTIONS}{description.name}"
        key = description.name.lower()
        if key in topic.subscriptions or key in topic.arriving:
            done(self._registry.already_exists(path))
            return
        most = self._registry.quotas.subscriptions
        if len(topic.subscriptions) + len(topic.arriving) >= most:
            text = f"Topic '{topic.name}' has {most} subscriptions, the most that it can have."
            done(Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text))
            return
        refusal = self._registry.refuses_forwards(description, None)
        if refusal is not None:
            done(refusal)
            return
        rule = replace(description.default_rule or RuleDescription(name=DEFAULT_RULE), created_at=now)
        refusal = _too_many_filters(self._registry.quotas, topic, rule)
        if refusal is not None:
            done(refusal)
            return
        described = replace(description, topic=topic.name, created_at=now, updated_at=now)
        subscription = Subscription(self._store.live_records.next_id, topic.id, described, [rule])
        subscription.topic = topic

        def finish(refusal: Refusal | None) -> None:
            topic.arriving.pop(key, None)
            done(refusal)

        topic.arriving[key] = subscription
        topic.accessed_at = now
        self._registry.write_new(subscription, path.lower(), partial(topic.add, subscription), now, finish)

    def update(self, description: SubscriptionDescription, now: float, done: Done) -> None:
        subscription = self._registry.find_subscription(description.topic, description.name)

        def change(stands: SubscriptionDescription, rules: Rules) -> SubscriptionDescription | Refusal:
            return self._registry.refuses_forwards(description, stands) or replace(
                description, topic=stands.topic, name=stands.name, created_at=stands.created_at, updated_at=now
            )

        self._change(subscription, f"{description.topic}{SUBSCRIPTIONS}{description.name}", change, now, done)

    def delete(self, topic: str, name: str, now: float, done: Done) -> None:
        """Delete a subscription and its messages."""
        self._registry.delete(self._registry.find_subscription(topic, name), f"{topic}{SUBSCRIPTIONS}{name}", done)

    # ---- rules

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription, now: float, done: Done) -> None:
        path = f"{topic}{SUBSCRIPTIONS}{subscription}"
        found = self._registry.find_subscription(topic, subscription)

        def change(stands: SubscriptionDescription, rules: Rules) -> SubscriptionDescription | Refusal:
            if rule.name.lower() in rules:
                text = f"The messaging entity '{path}{RULES}{rule.name}' already exists."
                return Refusal(conditions.ENTITY_ALREADY_EXISTS, text)
            if len(rules) >= RULES_MAX:
                text = f"Subscription '{path}' has {RULES_MAX} rules, the most that it can have."
                return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
            rules[rule.name.lower()] = replace(rule, created_at=now)
            return _too_many_filters(self._registry.quotas, None if found is None else found.topic, rule) or stands

        self._change(found, path, change, now, done)

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription, now: float, done: Done) -> None:
        path = f"{topic}{SUBSCRIPTIONS}{subscription}"
        found = self._registry.find_subscription(topic, subscription)

        def change(stands: SubscriptionDescription, rules: Rules) -> SubscriptionDescription | Refusal:
            old = rules.get(rule.name.lower())
            if old is None:
                return _no_rule(path, rule.name)
            rules[rule.name.lower()] = replace(rule, name=old.name, created_at=old.created_at)
            return _too_many_filters(self._registry.quotas, None if found is None else found.topic, rule, old) or stands

        self._change(found, path, change, now, done)

    def delete_rule(self, topic: str, subscription: str, name: str, now: float, done: Done) -> None:
        path = f"{topic}{SUBSCRIPTIONS}{subscription}"

        def change(stands: SubscriptionDescription, rules: Rules) -> SubscriptionDescription | Refusal:
            if rules.pop(name.lower(), None) is None:
                return _no_rule(path, name)
            return stands

        self._change(self._registry.find_subscription(topic, subscription), path, change, now, done)

    def _change(
        self,
        subscription: Subscription | None,
        path: str,
        change: Callable[[SubscriptionDescription, Rules], SubscriptionDescription | Refusal],
        now: float,
        done: Done,
    ) -> None:
        """Write what `change` makes of the description and the rules, unless it returns a refusal."""
        if subscription is None or subscription.deleting:
            done(unavailable(subscription, path))
            return
        if subscription.is_changing:
            if len(subscription.waiting) >= _CHANGES_MAX:
                text = f"{_CHANGES_MAX} changes of '{path}' wait for their turn. Please wait 2 seconds and try again."
                done(Refusal(conditions.SERVER_BUSY, text))
                return
            subscription.waiting.append(partial(self._change, subscription, path, change, now, done))
            return
        rules = dict(subscription.rules)
        new = change(subscription.description, rules)
        if isinstance(new, Refusal):
            done(new)
            return
        described = new

        def apply(revision: int) -> None:
            subscription.set_rules(rules.values())
            subscription.describe(described, revision)

        def finish(refusal: Refusal | None) -> None:
            subscription.is_changing = False
            done(refusal)
            while subscription.waiting and not subscription.is_changing:
                subscription.waiting.pop(0)()

        subscription.is_changing = True
        document = subscription_document(subscription.topic_id, described, rules.values())
        self._registry.write_description(subscription, document, apply, now, finish)


def _no_rule(path: str, name: str) -> Refusal:
    text = f"The messaging entity '{path}/Rules/{name}' could not be found."
    return Refusal(conditions.NOT_FOUND, text)


def _too_many_filters(
    quotas: Quotas, topic: Topic | None, new: RuleDescription, old: RuleDescription | None = None
) -> Refusal | None:
    """Return a refusal when a topic can't have one more filter of the kind that a rule brings."""
    if topic is None or not isinstance(new.filter, SqlFilter | CorrelationFilter):
        return None
    if old is not None and type(old.filter) is type(new.filter):
        return None
    sql, correlation = topic.filter_counts()
    count, most, noun = (
        (sql, quotas.sql_filters, "SQL")
        if isinstance(new.filter, SqlFilter)
        else (correlation, quotas.correlation_filters, "correlation")
    )
    if count < most:
        return None
    text = f"Topic '{topic.name}' has {most} {noun} filters, the most that it can have."
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
