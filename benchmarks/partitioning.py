"""The case `fanout.partitioned`: a partitioned queue against a plain one.

One broker with both. The same messages, without a key, are sent to each and received meanwhile: one of them goes to the
sixteen partitions in turn, and comes from each in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import WINDOW, Settings, body

NAME = "partitioned"
THROUGH = "send, and receive + settle meanwhile"
PLAIN, PARTITIONED = "plain queue", "partitioned queue"


def _step(server: PairbusServer, who: str, queue: str, settings: Settings) -> Step:
    payload, count = body(), settings.published

    async def run() -> Mapping[Key, Metrics]:
        driver = await AmqpDriver.to_pairbus(server, queue)
        try:
            with Meter(server.pid) as meter:
                await asyncio.gather(driver.send(payload, count, WINDOW), driver.receive(count, WINDOW))
        finally:
            await driver.close()
        return {(THROUGH, who): meter.per_message(count)}

    return Step(f"{NAME} · {who}", run)


async def measure(settings: Settings) -> Outcome:
    progress = Progress(f"fanout, {NAME}")
    progress.show("starting the broker", always=True)
    with PairbusServer(settings.data / NAME) as server:
        await create_queues(server, ["plain"])
        await create_queues(server, ["parted"], enable_partitioning=True)
        steps = [_step(server, PLAIN, "plain", settings), _step(server, PARTITIONED, "parted", settings)]
        return await run_rounds(steps, settings.rounds, progress)
