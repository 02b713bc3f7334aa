"""Through an outage, with asyncio: many tasks share one sender, and none of them notices that the namespace is down.

The primary accepts connections but no longer answers, which is the worst kind of outage: there is no error, only
waiting, and it is unknown whether a message that hung was stored. The exit code is 0 only if every order arrived
exactly once, unchanged, and no task had to wait for longer than its time-out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairbus import EntityState, Event, StateChanged
from pairbus.aio import ServiceBusClient
from pairbus.broker import serve
from pairbus.testing import fault

TASKS, ORDERS_EACH = 10, 6
SEND_TIMEOUT_S = 4
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def tell(event: Event) -> None:
    if isinstance(event, StateChanged):
        say(f"        {event.entity}: {event.previous.value} → {event.state.value} ({event.cause})")


async def place_orders(sender: ServiceBusSender, task: int, orders: range) -> float:
    """One task's orders, one after the other; returns the longest that it had to wait."""
    longest = 0.0
    for order in orders:
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage(f"order {order} of task {task}", message_id=f"{task}-{order}"))
        longest = max(longest, time.monotonic() - began)
    return longest


async def receive(client: ServiceBusClient) -> Counter[str]:
    received: Counter[str] = Counter()
    async with client.get_queue_receiver("orders") as receiver:
        while messages := await receiver.receive_messages(
            50, max_wait_time=90 if len(received) < TASKS * ORDERS_EACH else 1
        ):
            for message in messages:
                received[f"{message.message_id}: {message}"] += 1
                await receiver.complete_message(message)
    return received


async def demonstrate(primary: str, secondary: str, ca_file: str, data: str) -> bool:
    async with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ca_file) as admin:
        # What hangs may still arrive when the namespace comes to life, beside the copy from the backlog. Only duplicate
        # detection removes it, and that can't be switched on later.
        await admin.create_queue("orders", requires_duplicate_detection=True)
    client = await ServiceBusClient.paired(
        primary,
        secondary,
        ca_file=ca_file,
        primary_name="contoso",  # only since these namespaces have no host names of their own
        send_timeout=SEND_TIMEOUT_S,  # for each send; the primary gets half of it
        failover_interval=0,
        ping_primary_interval=1,
        backlog_queue_count=3,
        enable_syphon=True,
        syphon_engine="in-process",
    )
    async with client, client.get_queue_sender("orders") as sender:
        client.subscribe(tell)
        say("contoso is paired with contoso2")

        async def all_tasks(orders: range) -> float:
            longest = max(await asyncio.gather(*(place_orders(sender, task, orders) for task in range(TASKS))))
            say(f"{TASKS * len(orders)} orders sent by {TASKS} tasks; the longest wait was {longest:.2f} s")
            return longest

        waits = [await all_tasks(range(2))]
        async with fault(data, "black-hole", namespace="contoso"):
            say("contoso says nothing any more")
            waits.append(await all_tasks(range(2, 4)))
        say("contoso is back")
        while client.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.05)
        waits.append(await all_tasks(range(4, ORDERS_EACH)))
        received = await receive(client)
    expected = {
        f"{task}-{order}: order {order} of task {task}" for task in range(TASKS) for order in range(ORDERS_EACH)
    }
    lost, duplicated = len(expected - received.keys()), received.total() - len(received)
    say(f"{received.total()} received, {lost} lost, {duplicated} duplicated")
    return received == Counter(expected) and max(waits) < SEND_TIMEOUT_S + 0.5


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pairbus-") as data:
        async with serve("contoso", "contoso2", data=data) as broker:
            primary, secondary = broker.namespaces["contoso"], broker.namespaces["contoso2"]
            good = await demonstrate(primary.connection_string, secondary.connection_string, primary.ca_file, data)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
