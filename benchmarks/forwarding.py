"""The case `fanout.forward`: what a hop costs, from a queue that forwards to the one where its messages are received.

One broker with a plain queue and a chain of queues for each number of hops. The same messages are sent to each and
received at its end, while they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.amqp_driver import AmqpDriver, create_forwarding_queue, create_queues
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import WINDOW, Settings, body

NAME = "forward"
THROUGH = "send, and receive + settle where it is forwarded to"
HOPS = (0, 1, 4)


def who(hops: int) -> str:
    return f"queue, {hops} hop{'s' * (hops > 1)}" if hops else "plain queue"


def _step(server: PairbusServer, hops: int, sender: AmqpDriver, settings: Settings) -> Step:
    payload, count = body(), settings.published

    async def run() -> Mapping[Key, Metrics]:
        reader = await AmqpDriver.to_pairbus(server, f"chain-{hops}-0", send=False)
        try:
            with Meter(server.pid) as meter:
                await asyncio.gather(sender.send(payload, count, WINDOW), reader.receive(count, WINDOW))
        finally:
            await reader.close()
        return {(THROUGH, who(hops)): meter.per_message(count)}

    return Step(f"forward · {who(hops)}", run)


async def measure(settings: Settings) -> Outcome:
    progress = Progress(f"fanout, {NAME}")
    progress.show("starting the broker", always=True)
    senders: list[AmqpDriver] = []
    with PairbusServer(settings.data / NAME) as server:
        try:
            steps = []
            for hops in HOPS:
                await create_queues(server, [f"chain-{hops}-0"])
                for left in range(1, hops + 1):
                    await create_forwarding_queue(server, f"chain-{hops}-{left}", f"chain-{hops}-{left - 1}")
                senders.append(await AmqpDriver.to_pairbus(server, f"chain-{hops}-{hops}", receive=False))
                steps.append(_step(server, hops, senders[-1], settings))
            return await run_rounds(steps, settings.rounds, progress)
        finally:
            for sender in senders:
                await sender.close()
