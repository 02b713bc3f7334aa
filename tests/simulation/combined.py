"""Worlds in which features meet: entities that forward and take part in transactions have partitions, nodes fail,
storage stalls, and clients look at transfer dead letters.

A world of `features.py`, in half of the cases with partitioned entities. There all messages of a transaction have one
key, as they must; others have one key for all that are sent together, or none.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import fields, replace
from typing import Any, Final

from pairbus.amqp.link import Link
from pairbus.amqp.session import Session
from pairbus.broker.config.plan import NamespacePlan
from pairbus.wire import LinkLost, Sender, WireClient
from pairbus.wire.errors import LINK_LOST

from .crashes import draw_crash
from .features import CLOSED, TRANSFER, FeatureClient, FeatureRun, FeatureWorld, draw_features, vias_of
from .partitioned import KEYS, PartitionedRun, draw_down, keyed
from .stalls import draw_stall, killed_for_power_cuts
from .workload import DEAD_LETTERS
from .world import Client, Step, Trouble, World, _pause

#: The first seed, and then every eighth: no other kind of world has one of them.
FIRST: Final = 800_004
EVERY: Final = 8


def is_of_combinations(seed: int) -> bool:
    return seed >= FIRST and (seed - FIRST) % EVERY == 0


class CombinedWorld(FeatureWorld):
    """A world of its own kind, of the same parts."""

    __slots__ = ()

    @property
    def is_partitioned(self) -> bool:
        return self.seed // EVERY % 2 == 0

    def describe(self) -> list[str]:
        return [*super().describe(), f"entities: {'partitioned' if self.is_partitioned else 'without partitions'}"]


def draw_combined(seed: int) -> CombinedWorld:
    """Return the world of a seed."""
    drawn, rng = draw_features(seed), random.Random(f"{seed} combined")
    clients = tuple(replace(each, steps=_with_more(rng, each, drawn)) for each in drawn.clients)
    values = {each.name: getattr(drawn, each.name) for each in fields(World)}
    world = CombinedWorld(**{**values, "clients": clients})
    troubles = [each for each in world.troubles if rng.random() < 0.5]
    crashes = [draw_crash(rng, world) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
    troubles += [replace(each, seconds=5.0) if rng.random() < 0.4 else each for each in crashes]
    if world.is_partitioned and rng.random() < 0.5:
        troubles += draw_down(rng)
    has_stalls, has_standby = rng.random() < 0.5, rng.random() < 0.75
    if has_stalls:
        troubles += draw_stall(rng, has_standby)
    world = replace(
        world,
        troubles=tuple(sorted(troubles, key=lambda each: (each.answers or 99, each.at))),
        disk=world.disk if rng.random() < 0.3 else (),
        standby=has_stalls and has_standby,
        stall_s=rng.choice((0.05, 0.2, 0.5)) if has_stalls else 0.0,
    )
    has_removals = random.Random(f"{seed} removals").random() < 0.15
    return _with_removals(world) if has_removals else killed_for_power_cuts(world)


def _with_removals(world: CombinedWorld) -> CombinedWorld:
    """Return a world in which the removal of a segment hangs, and then an entity fails."""
    rng = random.Random(f"{world.seed} hangs")
    crashes = [
        replace(draw_crash(rng, world), at=at, answers=0, seconds=rng.choice((0.02, 1.0)))
        for at in sorted(rng.sample((4.0, 8.0, 12.0, 16.0, 19.0), 3))
    ]
    troubles = (Trouble(0.0, "stall home unlink", 20.0), *crashes)
    return replace(world, troubles=troubles, segment_bytes=1024, disk=(), standby=True, stall_s=0.05)


def _with_more(rng: random.Random, client: Client, world: World) -> tuple[Step, ...]:
    """Return the client's steps, with more in its transactions, and with looks at transfer dead letters between
    them."""
    steps: list[Step] = []
    vias = vias_of(world)
    for step in client.steps:
        if vias and rng.random() < 0.4:
            steps.append(Step(_pause(rng), "peek", rng.choice(vias) + TRANSFER + DEAD_LETTERS))
        options = dict(step.options)
        if step.action == "transact":
            more = rng.choices([each for each in world.entities if each != CLOSED], k=rng.choice((0, 1, 2, 3)))
            options["sends"] += tuple((entity, 1) for entity in more)
        steps.append(replace(step, options=tuple(options.items())))
    return tuple(steps)


class BesideTheCoordinator(Sender):
    """A sender on the session of a client's coordinator, as those of .NET and Java are: the broker finds out by itself
    through which entity it sends."""

    def __init__(self, wire: WireClient, entity: str, coordinator: Sender) -> None:
        super().__init__(wire, entity, window=100, timeout=wire.timeout)
        self._coordinator = coordinator
        self._confirms = coordinator._confirms  # which hears what is said on its session

    def _attach(self, session: Session, name: str) -> Link:
        session.context = None  # it needs none of its own
        session.end()
        beside = self._coordinator._link
        if beside is None:
            raise LinkLost(LINK_LOST, "the coordinator is gone")
        return super()._attach(beside.session, name)

    def _abandon(self, link: Link) -> None:
        transport, self._transport, self._link = self._transport, None, None
        link.context = None
        if transport is not None:
            transport.leave(self)
            if transport.error is None:
                link.detach()
                transport.wake()


class CombinedClient(FeatureClient):
    """A client that gives messages that it sends together a key, or none, and in transactions may leave it to the
    broker through which entity they go."""

    _key: str | None = None

    async def _do_transact(self, place: str, *arguments: Any, **options: Any) -> None:
        self._key = self._rng.choice(KEYS)
        try:
            await super()._do_transact(place, *arguments, **options)
        finally:
            self._key = None

    def _encoded(self, entity: str, count: int, due_in: float | None = None) -> tuple[list[bytes], dict[str, Any]]:
        payloads, sending = super()._encoded(entity, count, due_in)
        key = self._key or self._rng.choice((None, *KEYS))
        return [payload if key is None else keyed(payload, key) for payload in payloads], sending

    async def _sender_within(self, wire: WireClient, entity: str, via: str) -> Sender:
        await asyncio.sleep(self._rng.choice((0.0, 0.3, 1.0, 3.0)))  # much may happen between two operations
        if wire._controller is None or entity == CLOSED or self._rng.random() < 0.4:
            return await super()._sender_within(wire, entity, via)
        return await wire._with_link(BesideTheCoordinator(wire, entity, wire._controller), None)


class CombinedRun(PartitionedRun, FeatureRun):
    """A world of combined features while it runs."""

    _client = CombinedClient

    def _plan(self) -> NamespacePlan:
        assert isinstance(self.world, CombinedWorld)
        return super()._plan() if self.world.is_partitioned else FeatureRun._plan(self)
