"""Stands in for a namespace where entities are managed: it notes every call, and answers a turn of the loop later."""

import asyncio
from types import SimpleNamespace

from pairbus.broker.model.description import TopicDescription
from pairbus.broker.model.rule_description import RuleDescription
from pairbus.broker.operations.quotas import Quotas
from pairbus.broker.slices import Slices


def entity(description):
    names = ("active_count", "dead_letter_count", "transfer_dead_letter_count", "scheduled_count", "size_bytes")
    counts = dict.fromkeys(names, 0)
    forwards = ((None, getattr(description, "forward_to", None)), (None, None))
    return SimpleNamespace(
        description=description, accessed_at=0.0, rules={}, subscriptions={}, forwards=forwards, **counts
    )


class FakeNamespace:
    def __init__(self, name="east"):
        self.name = name
        self.quotas = Quotas()
        self.slices = Slices()
        self.asked = []
        self.queues = {}
        self.topics = {}
        self.error = None
        self.registry = self
        self.subscriptions = FakeSubscriptions(self)

    def create(self, description, now, done):
        self.later(f"create {description.name}", done, lambda: self.add(self._by_name(description), description))

    def update(self, description, now, done):
        self.describe(description.name, self._by_name(description), description, done)

    def delete_queue(self, name, now, done):
        self.later(f"delete {name}", done, lambda: self.queues.pop(name.lower()))

    def delete_topic(self, name, now, done):
        self.later(f"delete {name}", done, lambda: self.topics.pop(name.lower()))

    def find(self, name):
        return self.queues.get(name.lower()) or self.topics.get(name.lower())

    def _by_name(self, description):
        return self.topics if isinstance(description, TopicDescription) else self.queues

    def add(self, entities, description):
        made = entities[description.name.lower()] = entity(description)
        return made

    def describe(self, path, entities, description, done):
        found = entities[description.name.lower()]
        self.later(f"update {path}", done, lambda: setattr(found, "description", description))

    def later(self, what, done, change):
        self.asked.append(what)

        def turn():
            if self.error is None:
                change()
            done(self.error)

        asyncio.get_running_loop().call_soon(turn)


class FakeSubscriptions:
    def __init__(self, namespace):
        self._namespace = namespace

    def create(self, description, now, done):
        def create():
            made = self._namespace.add(self._namespace.topics[description.topic.lower()].subscriptions, description)
            rule = description.default_rule or RuleDescription(created_at=now)
            made.rules[rule.name.lower()] = rule

        self._namespace.later(f"create {description.topic}/{description.name}", done, create)

    def update(self, description, now, done):
        subscriptions = self._namespace.topics[description.topic.lower()].subscriptions
        self._namespace.describe(f"{description.topic}/{description.name}", subscriptions, description, done)

    def delete(self, topic, name, now, done):
        subscriptions = self._namespace.topics[topic.lower()].subscriptions
        self._namespace.later(f"delete {topic}/{name}", done, lambda: subscriptions.pop(name.lower()))

    def create_rule(self, topic, subscription, rule, now, done, verb="create"):
        rules = self._rules(topic, subscription)
        what = f"{verb} {topic}/{subscription}/{rule.name}"
        self._namespace.later(what, done, lambda: rules.__setitem__(rule.name.lower(), rule))

    def update_rule(self, topic, subscription, rule, now, done):
        self.create_rule(topic, subscription, rule, now, done, "update")

    def delete_rule(self, topic, subscription, name, now, done):
        rules = self._rules(topic, subscription)
        self._namespace.later(f"delete {topic}/{subscription}/{name}", done, lambda: rules.pop(name.lower()))

    def _rules(self, topic, subscription):
        return self._namespace.topics[topic.lower()].subscriptions[subscription.lower()].rules
