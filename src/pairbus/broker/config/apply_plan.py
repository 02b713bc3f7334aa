"""Reads a configuration file and applies its plan: creates and updates the entities of a namespace.

A shell: plan.py decides which properties of an existing entity change. Every step is synced before the next, and all
can be repeated: the next start completes one that was interrupted. Nothing is ever deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pairbus.broker.access.keys import KeyRing, random_key
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.topic import Subscription
from pairbus.broker.operations.namespace import Namespace
from pairbus.errors import BrokerError

from .config_file import ConfigError, parse
from .plan import (
    EntityPlan,
    NamespacePlan,
    SubscriptionPlan,
    TopicPlan,
    authorization_rules,
    changed_description,
    new_description,
    without_forwards,
)

log = logging.getLogger("pairbus.broker.construction")

Clock = Callable[[], float]


def read_config(path: Path) -> list[NamespacePlan]:
    """Return the namespaces that a TOML or JSON file plans, or raise BrokerError."""
    try:
        # Windows writes a mark in front of UTF-8.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BrokerError(f"the configuration can't be read: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BrokerError(f"{path}: the file is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    is_json = path.suffix.lower() == ".json" or (path.suffix.lower() != ".toml" and text.lstrip().startswith("{"))
    try:
        return parse(text, is_json=is_json)
    except ConfigError as error:
        raise BrokerError(f"{path}: {error}") from None


def apply_keys(ring: KeyRing, plan: NamespacePlan, now: float) -> None:
    """Add the namespace's authorization rules of the plan, or change them to what it says."""
    if not plan.keys:
        return
    try:
        ring.put(authorization_rules(ring.rules, plan.keys, random_key, now))
    except InvalidDescription as error:
        raise BrokerError(f"{plan.name}: authorization rules of the configuration can't be taken: {error}") from None


async def apply_plan(namespace: Namespace, plan: NamespacePlan, clock: Clock) -> None:
    """Create and update the entities of the plan; raise BrokerError for the first that can't be as configured."""
    await _PlanApplier(namespace, clock).apply(plan)


class _PlanApplier:
    def __init__(self, namespace: Namespace, clock: Clock) -> None:
        self._namespace = namespace
        self._clock = clock
        #: What is new, and what is left to do once all entities exist: an entity forwards to one that does.
        self._made: set[str] = set()
        self._forwards: list[Callable[[], Awaitable[None]]] = []

    async def apply(self, plan: NamespacePlan) -> None:
        namespace = self._namespace
        for queue in plan.queues:
            what = f"queue {queue.description.name!r}"
            find = partial(namespace.queues.get, queue.description.name.lower())
            await self._entity(what, queue, find, namespace.registry.create, namespace.registry.update)
        for topic in plan.topics:
            await self._topic(topic)
        for forward in self._forwards:
            await forward()

    async def _topic(self, plan: TopicPlan) -> None:
        namespace = self._namespace
        name = plan.entity.description.name
        find = partial(namespace.topics.get, name.lower())
        await self._entity(f"topic {name!r}", plan.entity, find, namespace.registry.create, namespace.registry.update)
        for subscription in plan.subscriptions:
            await self._subscription(name, subscription)

    async def _subscription(self, topic: str, plan: SubscriptionPlan) -> None:
        subscriptions = self._namespace.subscriptions
        name = plan.entity.description.name
        what = f"subscription {topic}/{name}"
        entity = plan.entity
        if plan.rules:
            entity = replace(entity, description=replace(entity.description, default_rule=plan.rules[0]))
        find = partial(self._find, topic, name)
        await self._entity(what, entity, find, subscriptions.create, subscriptions.update)
        found = self._find(topic, name)
        assert found is not None
        rules = {rule.name.lower(): rule for rule in found.rules.values()}
        for rule in plan.rules:
            old = rules.get(rule.name.lower())
            named = f"rule {rule.name!r} of {what}"
            if old is None:
                await self._do(named, "made", subscriptions.create_rule, topic, name, rule)
            elif (old.filter, old.action) != (rule.filter, rule.action):
                await self._do(named, "changed", subscriptions.update_rule, topic, name, rule)

    def _find(self, topic: str, name: str) -> Subscription | None:
        return self._namespace.topics[topic.lower()].subscriptions.get(name.lower())

    async def _entity(
        self,
        what: str,
        plan: EntityPlan[Any],
        find: Callable[[], Any],
        create: Callable[..., object],
        update: Callable[..., object],
    ) -> None:
        now = self._clock()
        stands = find()
        without = without_forwards(plan)
        if without is not plan:
            self._forwards.append(partial(self._entity_as_planned, what, plan, find, update))
        if stands is None:
            self._made.add(what)
            await self._do(what, "made", create, new_description(without, random_key, now))
            return
        await self._entity_as_planned(what, without, find, update)

    async def _entity_as_planned(
        self, what: str, plan: EntityPlan[Any], find: Callable[[], Any], update: Callable[..., object]
    ) -> None:
        """Change an entity that exists to what is planned."""
        now, stands = self._clock(), find()
        try:
            changed, notes = changed_description(stands.description, plan, random_key, now)
        except InvalidDescription as error:
            raise BrokerError(f"{self._namespace.name}: {what} can't be as configured: {error}") from None
        for note in notes:
            log.warning("%s: %s stands otherwise than configured: %s", self._namespace.name, what, note)
        if changed is not None:
            await self._do(what, "changed", update, changed)

    async def _do(self, what: str, done: str, act: Callable[..., object], *arguments: Any) -> None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        act(*arguments, self._clock(), lambda refusal: None if answer.cancelled() else answer.set_result(refusal))
        refusal = await answer
        if refusal is not None:
            why = getattr(refusal, "description", refusal)
            raise BrokerError(f"{self._namespace.name}: {what} of the configuration can't be {done}: {why}")
        # That something changed its nature is worth a line to the operator; that it was made is not.
        level = logging.INFO if done == "made" or what in self._made else logging.WARNING
        log.log(level, "%s: %s is %s, as configured", self._namespace.name, what, done)
