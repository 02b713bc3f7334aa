"""A process of its own that minds its own queue while others crowd the broker: send, receive, settle, one at a time.

`python -m benchmarks.bystander QUEUE`, connection string on the first line of stdin. Prints `ready`; then each line on
stdin asks for one measurement of so many seconds and is answered by a JSON line of latencies in ms.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.amqp_driver import AmqpDriver
from benchmarks.servers import Helper
from benchmarks.settings import body


def summary(latencies_ms: list[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)
    if not ordered:
        raise ValueError("no latency was measured")

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"count": float(len(ordered)), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "most": ordered[-1]}


async def watch(connection_string: str, queue: str) -> None:
    driver = await AmqpDriver.to_connection_string(connection_string, queue)
    loop = asyncio.get_running_loop()
    payload = body()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        until = time.perf_counter() + float(line)
        latencies: list[float] = []
        while not latencies or time.perf_counter() < until:
            started = time.perf_counter()
            await driver.send(payload, 1, 1)
            await driver.receive(1, 1)
            latencies.append((time.perf_counter() - started) * 1000)
        print(json.dumps(summary(latencies)), flush=True)
    await driver.close()


class Bystander(Helper):
    """The harness's handle on such a process."""

    def __init__(self, connection_string: str, queue: str) -> None:
        super().__init__("benchmarks.bystander", queue)
        self.tell(connection_string)
        if not self.hear():
            raise RuntimeError("the bystander could not connect")

    async def latency_ms(self, seconds: float) -> dict[str, float]:
        """While the caller's own tasks go on."""
        self.tell(str(seconds))
        found: dict[str, float] = json.loads(await asyncio.to_thread(self.hear))
        return found


if __name__ == "__main__":
    asyncio.run(watch(sys.stdin.readline().strip(), sys.argv[1]))
