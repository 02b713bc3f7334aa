"""Two syphons through all weathers at once: faults on either namespace and on single destinations come and go at
random, connections are cut, syphons are stopped and started. Nothing is lost, and nothing good is dead-lettered (P39,
P40). A seed replays its weather: pytest tests/syphon/test_weather_proof.py -k 'seed3' -m slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from typing import Any

import pytest

from pairbus.pairing.backlog.backlog_queues import path
from pairbus.syphon.engine import SyphonEngine

from .pair import Pair, diverted

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("no-send", {}),
    ("no-receive", {}),
    ("no-manage", {}),
    ("unreachable", {}),
    ("black-hole", {}),
    ("throttle", {"rate": 0.0}),
    ("throttle", {"rate": 50.0}),
    ("latency", {"delay": 0.3}),
    ("latency", {"delay": 6.0}),
]


class Weather:
    def __init__(self, pair: Pair, seed: int, seconds: float) -> None:
        self.pair = pair
        self.dice = random.Random(seed)
        self.seconds = seconds
        self.destinations: list[str] = []
        self.wanted: dict[str, set[str]] = {}
        self.said: list[str] = []

    async def run(self) -> None:
        pair = self.pair
        self.destinations = [await pair.destination(name) for name in ("orders", "news", "audit")]
        self.wanted = {name: set() for name in self.destinations}
        queues = await pair.backlog(0, 1, lock_duration="PT5S")
        over = asyncio.get_running_loop().time() + self.seconds
        await asyncio.gather(
            self.pour(over), self.storm(over), self.storm(over), self.syphon(queues, over), self.syphon(queues, over)
        )
        outcome = await asyncio.wait_for(pair.engine(queues, drain=True).run(), 60)
        assert outcome.unavailable == []
        assert [await pair.left(index) for index in range(2)] == [0, 0]
        assert [await pair.dead(index) for index in range(2)] == [[], []]
        for name, wanted in self.wanted.items():
            # what the backlog did not confirm may be there all the same
            assert wanted - set(await pair.ids(name)) == set(), self.said

    async def pour(self, over: float) -> None:
        """Messages go on coming; one that the backlog did not confirm is not missed."""
        number = 0
        while asyncio.get_running_loop().time() < over:
            index, destination = self.dice.randrange(2), self.dice.choice(self.destinations)
            ids = [f"{number + step:06d}" for step in range(self.dice.choice((1, 20, 200)))]
            number += len(ids)
            with contextlib.suppress(Exception):
                async with self.pair.secondary.client(clock=self.pair.clock, timeout=3.0) as client:
                    sender = await client.sender(path(self.pair.name, index))
                    await sender.send_batch([diverted(destination, each) for each in ids])
                    self.wanted[destination].update(ids)
            await asyncio.sleep(self.dice.uniform(0, 0.5))

    async def storm(self, over: float) -> None:
        while asyncio.get_running_loop().time() < over:
            await asyncio.sleep(self.dice.uniform(0, 1.5))
            kind, options = self.dice.choice(KINDS)
            namespace = self.dice.choice(("east", "east", "west"))
            entity = None
            if self.dice.random() < 0.5:
                entity = self.dice.choice(self.destinations) if namespace == "east" else path(self.pair.name, 0)
            self.said.append(f"{kind} {options} on {entity or namespace}")
            async with self.pair.fault(kind, namespace, entity=entity, **options):
                await asyncio.sleep(self.dice.uniform(0.1, 4.0))

    async def syphon(self, queues: Any, over: float) -> None:
        while asyncio.get_running_loop().time() < over:
            engine: SyphonEngine = self.pair.engine(queues)
            task = asyncio.create_task(engine.run())
            await asyncio.sleep(min(self.dice.uniform(1, 15), max(0.1, over - asyncio.get_running_loop().time())))
            engine.stop()
            await asyncio.wait_for(task, 15)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2), ids=lambda seed: f"seed{seed}")
async def test_p39_p40_nothing_is_lost_in_any_weather(pair: Pair, seed: int) -> None:
    await Weather(pair, seed, 30.0).run()


@pytest.mark.soak
async def test_p39_p40_nothing_is_lost_in_much_weather(pair: Pair) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    over = time.monotonic() + float(os.environ.get("SOAK_MINUTES", "10")) * 60
    while time.monotonic() < over:
        print(f"SOAK_SEED={seed}")
        await Weather(pair, seed, 60.0).run()
        pair.name += "x"  # a backlog of its own
        seed += 1
