"""The part of a namespace that the management API asks; answers come a turn of the loop later, as from a journal."""

import asyncio
from types import SimpleNamespace

from pairbus.broker.model.description import RuleDescription


def entity(description):
    counts = dict.fromkeys(("active_count", "dead_letter_count", "scheduled_count", "size_bytes"), 0)
    return SimpleNamespace(description=description, accessed_at=0.0, rules={}, subscriptions={}, **counts)


class FakeNamespace:
    name = "east"

    def __init__(self):
        self.queues = {}
        self.topics = {}
        self.error = None

    def create_queue(self, description, now, done):
        self._later(done, lambda: self.queues.__setitem__(description.name.lower(), entity(description)))

    def update_queue(self, description, now, done):
        self._describe(self.queues, description, done)

    def delete_queue(self, name, now, done):
        self._later(done, lambda: self.queues.pop(name.lower()))

    def create_topic(self, description, now, done):
        self._later(done, lambda: self.topics.__setitem__(description.name.lower(), entity(description)))

    def update_topic(self, description, now, done):
        self._describe(self.topics, description, done)

    def delete_topic(self, name, now, done):
        self._later(done, lambda: self.topics.pop(name.lower()))

    def create_subscription(self, description, now, done):
        def create():
            made = entity(description)
            rule = description.default_rule or RuleDescription(created_at=now)
            made.rules[rule.name.lower()] = rule
            self.topics[description.topic.lower()].subscriptions[description.name.lower()] = made

        self._later(done, create)

    def update_subscription(self, description, now, done):
        self._describe(self.topics[description.topic.lower()].subscriptions, description, done)

    def delete_subscription(self, topic, name, now, done):
        self._later(done, lambda: self.topics[topic.lower()].subscriptions.pop(name.lower()))

    def create_rule(self, topic, subscription, rule, now, done):
        self._later(done, lambda: self._rules(topic, subscription).__setitem__(rule.name.lower(), rule))

    update_rule = create_rule

    def delete_rule(self, topic, subscription, name, now, done):
        self._later(done, lambda: self._rules(topic, subscription).pop(name.lower()))

    def _rules(self, topic, subscription):
        return self.topics[topic.lower()].subscriptions[subscription.lower()].rules

    def _describe(self, entities, description, done):
        found = entities[description.name.lower()]
        self._later(done, lambda: setattr(found, "description", description))

    def _later(self, done, change):
        def turn():
            if self.error is None:
                change()
            done(self.error)

        asyncio.get_running_loop().call_soon(turn)
