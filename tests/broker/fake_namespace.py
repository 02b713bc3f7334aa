"""Stands in for a namespace where entities are managed: it notes every call, and answers a turn of the loop later."""

import asyncio
from types import SimpleNamespace

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

    def create_queue(self, description, now, done):
        self._later(f"create {description.name}", done, lambda: self._add(self.queues, description))

    def update_queue(self, description, now, done):
        self._describe(description.name, self.queues, description, done)

    def delete_queue(self, name, now, done):
        self._later(f"delete {name}", done, lambda: self.queues.pop(name.lower()))

    def create_topic(self, description, now, done):
        self._later(f"create {description.name}", done, lambda: self._add(self.topics, description))

    def update_topic(self, description, now, done):
        self._describe(description.name, self.topics, description, done)

    def delete_topic(self, name, now, done):
        self._later(f"delete {name}", done, lambda: self.topics.pop(name.lower()))

    def create_subscription(self, description, now, done):
        def create():
            made = self._add(self.topics[description.topic.lower()].subscriptions, description)
            rule = description.default_rule or RuleDescription(created_at=now)
            made.rules[rule.name.lower()] = rule

        self._later(f"create {description.topic}/{description.name}", done, create)

    def update_subscription(self, description, now, done):
        subscriptions = self.topics[description.topic.lower()].subscriptions
        self._describe(f"{description.topic}/{description.name}", subscriptions, description, done)

    def delete_subscription(self, topic, name, now, done):
        subscriptions = self.topics[topic.lower()].subscriptions
        self._later(f"delete {topic}/{name}", done, lambda: subscriptions.pop(name.lower()))

    def create_rule(self, topic, subscription, rule, now, done, verb="create"):
        rules = self._rules(topic, subscription)
        what = f"{verb} {topic}/{subscription}/{rule.name}"
        self._later(what, done, lambda: rules.__setitem__(rule.name.lower(), rule))

    def update_rule(self, topic, subscription, rule, now, done):
        self.create_rule(topic, subscription, rule, now, done, "update")

    def delete_rule(self, topic, subscription, name, now, done):
        rules = self._rules(topic, subscription)
        self._later(f"delete {topic}/{subscription}/{name}", done, lambda: rules.pop(name.lower()))

    def _rules(self, topic, subscription):
        return self.topics[topic.lower()].subscriptions[subscription.lower()].rules

    def _add(self, entities, description):
        made = entities[description.name.lower()] = entity(description)
        return made

    def _describe(self, path, entities, description, done):
        found = entities[description.name.lower()]
        self._later(f"update {path}", done, lambda: setattr(found, "description", description))

    def _later(self, what, done, change):
        self.asked.append(what)

        def turn():
            if self.error is None:
                change()
            done(self.error)

        asyncio.get_running_loop().call_soon(turn)
