"""The plain load: much traffic in few queues, by the official SDK, sync and async, and the wire client, both too.

queue     senders                               receivers
orders    SDK sync: singles and lists           SDK sync: complete, abandon, dead-letter, forget
          SDK async: batches; wire: refused     SDK async: its dead letters
events    SDK async: singles; wire: pings       SDK async and wire: receive-and-delete
bulk      wire: pipelined singles, batches      wire: settled in ranges on the link and by token over $management
archive   wire sync: single, pipelined          nobody
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue

from pairbus.wire import ReceivedMessage, WireClient, WireError
from tests.simulation.checker import Checker
from tests.simulation.history import ABANDON, CONFIRMED, DEAD, GONE, REFUSED, TAKEN, UNKNOWN, History, Look

from .broker_process import SMALL_SEGMENTS
from .crash_load import (
    DESCRIPTION,
    PING,
    Proof,
    Worker,
    Workers,
    admin_client,
    async_sdk_client,
    look_sdk,
    look_wire,
    outcome_of,
    payload_of,
    sdk_client,
    sdk_message,
    settle_by_sdk,
    settle_by_wire,
    sync_wire_client,
    wire_client,
)

MAX_DELIVERY_COUNT: Final = 4
LOCK: Final = datetime.timedelta(seconds=5)
#: The most that receivers of `events` may have on its way to them: each receiver's credit.
TAKE_COUNT: Final = 20
_ARCHIVE_MAX: Final = 20_000
_ACTIONS: Final = (GONE,) * 6 + (ABANDON, DEAD)
_STATUS: Final = {GONE: "completed", ABANDON: "abandoned", DEAD: "suspended"}


def create_queues(connection_string: str, ca_file: str, history: History) -> None:
    with admin_client(connection_string, ca_file) as admin:
        for name in ("orders", "events", "bulk", "archive"):
            admin.create_queue(name, max_delivery_count=MAX_DELIVERY_COUNT, lock_duration=LOCK)
            history.written(history.write(("home", name), ""), CONFIRMED)


# -- the official SDK


def send_orders(worker: Worker) -> None:
    with sdk_client(worker) as client, client.get_queue_sender("orders") as sender:
        while worker.proceed(ahead_of="orders"):
            ids = worker.new_ids(worker.rng.choice((1, 1, 1, 3, 20)))
            messages = [sdk_message(id) for id in ids]
            with worker.sending(ids, "orders"):
                sender.send_messages(messages if len(messages) > 1 else messages[0])


def receive_orders(worker: Worker) -> None:
    with sdk_client(worker) as client, client.get_queue_receiver("orders") as receiver:
        while worker.proceed():
            messages = receiver.receive_messages(worker.rng.randint(1, 20), max_wait_time=0.3)
            looks = [worker.saw(look_sdk("orders", message)) for message in messages]
            for message, look in zip(messages, looks, strict=True):
                if worker.rng.random() < 0.03:
                    continue  # its lock runs out
                to = worker.rng.choice(_ACTIONS)
                with worker.settling(look, to) as reason:
                    settle_by_sdk(receiver, message, to, reason)


async def receive_dead_orders(worker: Worker) -> None:
    dead = ServiceBusSubQueue.DEAD_LETTER
    async with async_sdk_client(worker) as client, client.get_queue_receiver("orders", sub_queue=dead) as receiver:
        while await worker.proceed_async():
            for message in await receiver.receive_messages(20, max_wait_time=0.2):
                to = worker.rng.choice((GONE, GONE, ABANDON))
                with worker.settling(worker.saw(look_sdk("orders", message, DEAD)), to) as reason:
                    await settle_by_sdk(receiver, message, to, reason)


async def send_batches(worker: Worker) -> None:
    async with async_sdk_client(worker) as client, client.get_queue_sender("orders") as sender:
        while await worker.proceed_async(ahead_of="orders"):
            batch = await sender.create_message_batch()
            ids = worker.new_ids(worker.rng.randint(1, 4))
            for id in ids:
                batch.add_message(sdk_message(id))
            with worker.sending(ids, "orders"):
                await sender.send_messages(batch)


async def send_events(worker: Worker) -> None:
    async with async_sdk_client(worker) as client, client.get_queue_sender("events") as sender:
        while await worker.proceed_async(ahead_of="events"):
            ids = worker.new_ids(1)
            with worker.sending(ids, "events"):
                await sender.send_messages(sdk_message(ids[0]))


async def take_events(worker: Worker) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with async_sdk_client(worker) as client, client.get_queue_receiver("events", receive_mode=mode) as receiver:
        while await worker.proceed_async():
            for message in await receiver.receive_messages(TAKE_COUNT, max_wait_time=0.3):
                _take(worker, look_sdk("events", message))


def _take(worker: Worker, look: Look) -> None:
    worker.saw(look, how=TAKEN)
    worker.load.depth["events"] -= 1
    worker.successes += 1


# -- the wire client


async def take_events_by_wire(worker: Worker) -> None:
    async with wire_client(worker) as client:
        receiver = await client.receiver("events", mode="delete")

        async def take() -> None:
            for message in await receiver.receive(worker.rng.randint(1, TAKE_COUNT), 0.3):
                _take(worker, look_wire("events", message))

        await worker.repeat(take)


async def send_bulk(worker: Worker) -> None:
    async with wire_client(worker) as client:
        sender = await client.sender("bulk")

        async def send() -> None:
            if worker.rng.random() < 0.5:
                ids = worker.new_ids(worker.rng.randint(1, 100), bytes_max=1e9)
                with worker.pipelining(ids, "bulk") as results:
                    results += await sender.send_many([payload_of(id) for id in ids])
            else:
                ids = worker.new_ids(worker.rng.randint(2, 5))
                with worker.sending(ids, "bulk"):
                    await sender.send_batch([payload_of(id) for id in ids])

        await worker.repeat(send, ahead_of="bulk")


async def receive_bulk(worker: Worker) -> None:
    async with wire_client(worker) as client:
        receiver = await client.receiver("bulk", credit=worker.rng.choice((0, 50)))

        async def receive() -> None:
            by_action: dict[tuple[str, str | None], list[tuple[ReceivedMessage, Look]]] = {}
            for message in await receiver.receive(50, 0.3):
                to = worker.rng.choice(_ACTIONS)
                look = worker.saw(look_wire("bulk", message))
                by_action.setdefault((to, worker.reason_for(to)), []).append((message, look))
            for (to, reason), group in by_action.items():
                await _settle_together(worker, client, receiver, group, to, reason)

        await worker.repeat(receive)


async def _settle_together(
    worker: Worker,
    client: WireClient,
    receiver: Any,
    group: list[tuple[ReceivedMessage, Look]],
    to: str,
    reason: str | None,
) -> None:
    messages = [message for message, _ in group]
    tickets = [worker.settle(look, to, reason) for _, look in group]
    outcomes = [CONFIRMED] * len(group)
    is_by_token = worker.rng.random() < 0.3
    try:
        if is_by_token:
            tokens = [message.lock_token for message in messages if message.lock_token is not None]
            described = DESCRIPTION if to == DEAD else None
            await client.settle_by_token("bulk", tokens, _STATUS[to], reason=reason, description=described)
        else:
            await settle_by_wire(receiver, messages, to, reason)
    except WireError as error:
        worker.note(error)
        outcomes = [outcome_of(error)] * len(group)
        if is_by_token and len(group) > 1:  # some may hold: the answer does not say which
            outcomes = [UNKNOWN] * len(group)
        elif error.delivery_ids:
            outcomes = [REFUSED if each.delivery_id in error.delivery_ids else CONFIRMED for each in messages]
    for ticket, (_, look), outcome in zip(tickets, group, outcomes, strict=True):
        worker.settled(ticket, look, to, outcome)


async def send_what_is_refused(worker: Worker) -> None:
    """A batch with something in it that is no message; and pings, which are confirmed and stored nowhere."""
    async with wire_client(worker) as client:
        orders, events = await client.sender("orders"), await client.sender("events")

        async def send() -> None:
            await asyncio.sleep(0.02)
            ids = worker.new_ids(worker.rng.choice((1, 3)))
            if len(ids) == 1:
                with worker.sending(ids, "events", ping=True):
                    await events.send(payload_of(ids[0], content_type=PING))
                worker.load.depth["events"] -= 1
                return
            try:
                with worker.sending(ids, "orders"):
                    await orders.send_batch([*(payload_of(id) for id in ids), b"\x00\x53\x75no message"])
            except WireError as error:
                worker.successes += not error.outcome_unknown
                raise
            raise AssertionError("a batch with garbage in it was accepted")

        await worker.repeat(send)


def send_archive(worker: Worker) -> None:
    with sync_wire_client(worker) as client:
        sender = client.sender("archive")
        while worker.proceed(0.005 if worker.load.depth["archive"] < _ARCHIVE_MAX else 0.5):
            ids = worker.new_ids(worker.rng.choice((1, 1, 8)), bytes_max=1e9)
            payloads = [payload_of(id) for id in ids]
            try:
                with worker.pipelining(ids, "archive") as results:
                    results += [sender.send(payloads[0])] if len(ids) == 1 else sender.send_many(payloads)
            except WireError as error:
                worker.note(error)
                worker.proceed(0.03)


def workers() -> Workers:
    return {
        "sdk-sync-send": send_orders,
        "sdk-sync-receive": receive_orders,
        "wire-sync-send": send_archive,
    }, {
        "sdk-async-batches": send_batches,
        "sdk-async-send": send_events,
        "sdk-async-take": take_events,
        "sdk-async-dead": receive_dead_orders,
        "wire-send": send_bulk,
        "wire-receive": receive_bulk,
        "wire-take": take_events_by_wire,
        "wire-refused": send_what_is_refused,
    }


def new_checker() -> Checker:
    return Checker(
        lossy={"events": 2 * TAKE_COUNT},
        max_delivery_count={"orders": MAX_DELIVERY_COUNT, "bulk": MAX_DELIVERY_COUNT},
    )


TRAFFIC: Final = Proof(new_checker, create_queues, workers, (0.05, 1.5), SMALL_SEGMENTS)
