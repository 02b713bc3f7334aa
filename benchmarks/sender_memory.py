"""A process that opens senders and says what each of them weighs: `python -m benchmarks.sender_memory KIND COUNT`.

KIND is `bare` or `paired`. Connection strings of primary and secondary and the secondary's CA file come on stdin, a
line each; the answer is bytes per sender. All senders are alive and have sent when the process is weighed again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

import pairbus.aio
from benchmarks.meter import resident_bytes

AT_ONCE = 10


async def _open(client: Any, count: int, at_once: int = AT_ONCE) -> list[Any]:
    senders = [client.get_queue_sender("weighed") for _ in range(count)]
    gate = asyncio.Semaphore(at_once)

    async def use(sender: Any) -> None:
        async with gate:
            await sender.send_messages(ServiceBusMessage(b"x" * 100))

    await asyncio.gather(*map(use, senders))
    return senders


async def weigh(kind: str, count: int, primary: str, secondary: str, ca_file: str) -> float:
    client: Any
    if kind == "bare":
        # both verify by the same small file: the SDK loads one for every connection, and its default weighs 0.7 MB
        client = ServiceBusClient.from_connection_string(primary, connection_verify=ca_file)
    else:
        client = await pairbus.aio.ServiceBusClient.paired(
            primary, secondary, ca_file=ca_file, primary_name="bench", backlog_queue_count=2
        )
    async with client:
        first = await _open(client, 5)  # what is loaded once is not a sender's
        gc.collect()
        before = resident_bytes([os.getpid()])
        senders = await _open(client, count)
        gc.collect()
        after = resident_bytes([os.getpid()])
        await asyncio.gather(*(sender.close() for sender in [*first, *senders]))
    return max(0, after - before) / count


def main() -> None:
    kind, count = sys.argv[1], int(sys.argv[2])
    primary, secondary, ca_file = (sys.stdin.readline().rstrip("\n") for _ in range(3))
    print(asyncio.run(weigh(kind, count, primary, secondary, ca_file)))


if __name__ == "__main__":
    main()
