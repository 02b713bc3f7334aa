"""Worlds of partitioned entities: those of `world.py`, with keys, and with partitions that are down for a while.

Messages that are sent together have one key, or none. To `once`, which detects duplicates, they have none, so that an
id is found again in its partition, and a batch of several is refused.
"""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any, Final

from pairbus.amqp.message import (
    encode_message,
    read_application_properties,
    read_body,
    read_header,
    read_message_annotations,
    read_properties,
    split,
)
from pairbus.amqp.types import Symbol
from pairbus.broker.config.plan import EntityPlan, NamespacePlan
from pairbus.broker.control.faults import Fault
from pairbus.broker.model.partitions import PARTITIONS, partition_for

from .run import Run
from .workload import SimulatedClient
from .world import SESSIONS, Client, Step, Trouble, World, draw

#: The first seed, and then every eighth: no other world has one of them.
FIRST: Final = 600_003
EVERY: Final = 8
#: From here on they have another kind of traffic.
FIRST_OF_CHURN: Final = 900_003
KEYS: Final = ("x", "y", "z")
_KEY: Final = Symbol("x-opt-partition-key")


def is_of_partitions(seed: int) -> bool:
    return seed >= FIRST and (seed - FIRST) % EVERY == 0


class PartitionedWorld(World):
    """A world of its own kind, of the same parts."""

    __slots__ = ()


def draw_partitioned(seed: int) -> PartitionedWorld:
    """Return the world of a seed."""
    drawn, rng = draw(seed), random.Random(f"{seed} partitions")
    troubles = tuple(sorted((*drawn.troubles, *draw_down(rng)), key=lambda each: (each.answers or 99, each.at)))
    values = {each.name: getattr(drawn, each.name) for each in fields(World)} | {"troubles": troubles}
    return PartitionedWorld(**(values | draw_churn(rng) if seed >= FIRST_OF_CHURN else values))


def draw_churn(rng: random.Random) -> dict[str, Any]:
    """Return what is different in a world where all that was sent is received, and compacted, before the broker is
    killed: then only the description of a queue knows which numbers it has given out."""
    rounds = [
        step
        for _ in range(rng.choice((3, 6, 12)))
        for step in (
            Step(0.01, "send", "orders", (("count", rng.choice((2, 5, 10))),)),
            Step(0.1, "receive", "orders", (("count", 10), ("wait", 0.1), ("outcomes", ("complete",)))),
        )
    ]
    kills = (Trouble(4.0, rng.choice(("kill", "stop", "power")), 1.0), Trouble(9.0, "kill", 0.0))
    again = Step(rng.choice((1.0, 3.0)), "send", "orders", (("count", 10),))
    return {
        "entities": ("orders",),
        "clients": (Client("client 1", (*rounds, again, *rounds[:4], again)),),
        "segment_bytes": 2048,
        "troubles": kills,
        "dooms": (),
        "disk": (),
    }


def draw_down(rng: random.Random) -> list[Trouble]:
    """Return partitions that are down for a while."""
    wanted = [*{partition_for(key) for key in (*KEYS, *SESSIONS)}, rng.randrange(PARTITIONS)]
    return [
        Trouble(rng.choice((0.0, 0.5, 1.0, 2.0, 4.0, 8.0)), f"partition {rng.choice(sorted(wanted))}", seconds)
        for seconds in rng.choice(((), (3.0,), (0.5, 8.0), (15.0, 3.0, 0.5)))
    ]


class PartitionedClient(SimulatedClient):
    """A client that gives messages that it sends together a key, or none."""

    def _begin(self, entity: str, count: int, **options: Any) -> tuple[int, list[bytes]]:
        ticket, payloads = super()._begin(entity, count, **options)
        if entity in ("jobs", "once") or options.get("poison") or self._rng.random() < 0.4:
            return ticket, payloads
        key = self._rng.choice(KEYS)
        return ticket, [keyed(payload, key) for payload in payloads]


def keyed(payload: bytes, key: str) -> bytes:
    """Return a message with this partition key."""
    sections = split(payload)
    ((_, body),) = read_body(payload, sections)
    return encode_message(
        read_header(payload, sections),
        {**read_message_annotations(payload, sections), _KEY: key},
        read_properties(payload, sections),
        read_application_properties(payload, sections) or None,
        body,
    )


class PartitionedRun(Run):
    """A world of partitioned entities while it runs."""

    _client: type[SimulatedClient] = PartitionedClient

    def _plan(self) -> NamespacePlan:
        plan = super()._plan()
        return replace(
            plan,
            queues=tuple(map(_partitioned, plan.queues)),
            topics=tuple(replace(each, entity=_partitioned(each.entity)) for each in plan.topics),
        )

    async def _meet(self, trouble: Trouble) -> None:
        kind, _, partition = trouble.kind.partition(" ")
        if kind != "partition":
            await super()._meet(trouble)
            return
        self.trace.note(f"broker: {trouble}")
        server = self.machine.server
        if server is not None and self.machine.is_serving:
            until = server.clock() + trouble.seconds
            server.faults.set(Fault("unreachable", partition=int(partition), until=until))

    async def _calm(self) -> None:
        if self.machine.server is not None:
            self.machine.server.faults.clear("unreachable")
        await super()._calm()


def _partitioned(plan: EntityPlan) -> EntityPlan:
    return replace(plan, description=replace(plan.description, enable_partitioning=True))
