"""A storm: random faults on the primary, the secondary and single entities, while senders of both APIs send, receivers
receive and each application hosts its syphon. When it is over, everything that was confirmed has arrived.

A failing run says its seed: `STORM_SEED=… pytest …` draws the same weather again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker
from pairbus.wire import WireError
from tests.waiting import soon

from .world import APIS, Pair, World

SENDERS = 5  # of each API
PACE_S = 0.02
OPTIONS: dict[str, Any] = {
    "backlog_queue_count": 3,
    "enable_syphon": True,
    "syphon_engine": "in-process",
    "failover_interval": 0.5,
    "while_suspect": "divert",
    "send_timeout": 6,
}


class Storm:
    """The weather: one fault after another, sometimes two at once; each of them ends."""

    def __init__(self, dice: random.Random, worlds: list[World]) -> None:
        self.dice = dice
        self.worlds = worlds
        self.log: list[str] = []

    def _draw(self) -> tuple[World, dict[str, Any], float]:
        dice = self.dice
        world = dice.choice(self.worlds)
        lasts = dice.choice((0.0, 0.3, 1.0, 2.5, 5.0))
        kinds = ("unreachable", "black-hole", "hang", "lost-answer", "no-send", "latency", "throttle")
        kind = dice.choices(kinds, (4, 4, 3, 3, 3, 2, 1))[0]
        where = dice.choices(("primary", "secondary", "entity", "backlog"), (5, 2, 4, 3))[0]
        options: dict[str, Any] = {"kind": kind}
        if kind == "latency":
            options["delay"] = 0.3
        if kind == "throttle":
            options["rate"] = dice.choice((0.0, 20.0))
        if where in ("secondary", "backlog"):
            options["namespace"] = world.secondary.name
        if where == "entity":
            options["entity"] = dice.choice([*world.queues, *world.subscriptions])
        if where == "backlog":
            options["entity"] = world.backlog_path(dice.randrange(3))
        return world, options, lasts

    async def rage(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(self.dice.choices((1, 2, 3), (3, 2, 1))[0]):
                    world, options, lasts = self._draw()
                    self.log.append(f"{options} for {lasts} s")
                    await stack.enter_async_context(world.fault(**options))
                    await asyncio.sleep(lasts)
            await asyncio.sleep(self.dice.choice((0.0, 0.2, 1.0, 2.0)))


async def consume(world: World, place: str, arrived: Counter[str], done: asyncio.Event) -> None:
    """A receiving application, which takes what arrives and tries again whatever happens."""
    async with world.wire(world.primary) as client:
        while not done.is_set():
            try:
                receiver = await client.receiver(place)
                while not done.is_set():
                    got = await receiver.receive(100, 0.5)
                    # noted first: a completion may be done although its answer is lost
                    arrived.update(str(_message_id(message)) for message in got)
                    await receiver.complete(got)
            except WireError:
                await asyncio.sleep(0.1)


def _message_id(message: Any) -> Any:
    from pairbus.amqp.message import read_properties

    return read_properties(message.payload, message.sections).message_id


async def weather(broker: Broker, folder: Path, seed: int, seconds: float) -> None:
    dice = random.Random(seed)
    sending, receiving = asyncio.Event(), asyncio.Event()
    arrived: Counter[str] = Counter()
    async with contextlib.AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(World(broker, api, lane, folder)) for lane, api in enumerate(APIS)]
        pairs: list[Pair] = []
        tasks: list[asyncio.Task[Any]] = []
        for world in worlds:
            await world.queue()
            await world.queue(requires_duplicate_detection=True)
            await world.topic("all")
            await world.backlog_queues(3)
            pairs.append(await stack.enter_async_context(world.pair(**OPTIONS)))
            for place in (*world.queues, *(f"{topic}/Subscriptions/all" for topic in world.subscriptions)):
                tasks.append(asyncio.create_task(consume(world, place, arrived, receiving)))

        async def send_on(pair: Pair, number: int) -> None:
            world = pair.world
            entities = [*world.queues, *world.subscriptions]
            sender = await pair.sender(entity := entities[number % 3], fresh=True)
            while not sending.is_set():
                await pair.send(entity, *world.messages(1 + number % 2 * 4), sender=sender)
                await asyncio.sleep(PACE_S)

        senders = [asyncio.create_task(send_on(pair, number)) for pair in pairs for number in range(SENDERS)]
        storm = Storm(dice, worlds)
        await storm.rage(seconds)
        sending.set()
        await asyncio.gather(*senders)

        begun = time.monotonic()
        confirmed = {each for world in worlds for each in world.account.confirmed}
        raised = {each for world in worlds for each in world.account.raised}
        assert len(confirmed) > seconds * 10, "hardly anything was sent"
        assert len(raised) < len(confirmed), Counter(
            type(e).__name__ for w in worlds for e in w.account.raised.values()
        )
        waiting: list[int] = []

        async def all_home() -> bool:
            if confirmed <= arrived.keys():
                waiting[:] = [len(await world.in_backlog()) for world in worlds]
            return confirmed <= arrived.keys() and not any(waiting)

        def told() -> str:
            missing = len(confirmed - arrived.keys())
            return f"{missing} of {len(confirmed)} have not arrived, {waiting} wait; the weather: {storm.log}"

        await soon(all_home, 90, told)
        receiving.set()
        await asyncio.gather(*tasks)
        assert arrived.keys() <= confirmed | raised, "what nobody sent"
        kinds = Counter(type(error).__name__ for world in worlds for error in world.account.raised.values())
        print(
            f"{len(confirmed)} confirmed, {len(raised)} raised {dict(kinds)}, {len(storm.log)} faults, "
            f"home {time.monotonic() - begun:.1f} s after the last send, {arrived.total() - len(arrived)} twice"
        )


@pytest.mark.soak
async def test_p39_a_long_storm_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    seed = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(2**32))
    print(f"STORM_SEED={seed}")
    await weather(broker, tmp_path, seed, 60 * float(os.environ.get("SOAK_MINUTES", "10")))
