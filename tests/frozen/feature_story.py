"""A second small story: SQL rules and actions, forwarding, partitions, transactions, transfer dead letters.

`play` leaves a data folder whose journal has their records; `examine` opens such a folder and returns what is in it
and what it still does. By public names alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol
from pairbus.broker import serve
from pairbus.broker.format import records
from pairbus.journal import Journal
from pairbus.testing import ManualClock
from pairbus.wire import WireClient
from tests.message_view import View

CONFIG = Path(__file__).with_name("features.toml")
#: Of the records whose layout this story is about.
KINDS = (records.PUBLISH, records.FORWARD, records.TRANSACTION)
PATHS = (
    "orders", "orders/$Transfer/$DeadLetterQueue", "closed", "arrived", "entry", "complaints", "sorting",
    "sorting/$DeadLetterQueue", "spread", "spread-sessions", "spread-once", "outbox", "wide/Subscriptions/all",
    "feed/Subscriptions/changed", "feed/Subscriptions/away",
)  # fmt: skip
WAIT_S = 10.0


def message(id: str, key: str | None = None, session: str | None = None, **properties: Any) -> bytes:
    return encode_message(
        message_annotations=None if key is None else {Symbol("x-opt-partition-key"): key},
        properties=Properties(message_id=id, group_id=session),
        application_properties=properties or None,
        body=f"body of {id}".encode(),
    )


async def send(client: WireClient, path: str, *payloads: bytes) -> None:
    sender = await client.sender(path)
    for payload in payloads:
        await sender.send(payload)
    await sender.close()


def play(data: Path) -> float:
    """Leave a data folder behind; return the time at which it was left."""
    clock = ManualClock()
    asyncio.run(_play(data, clock))
    return clock()


async def _play(data: Path, clock: ManualClock) -> None:
    async with (
        serve("contoso", data=data, config=CONFIG, clock=clock) as broker,
        WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as client,
    ):
        await send(client, "entry", *(message(f"entry-{number}") for number in range(3)))
        await send(client, "sorting", message("kept"), message("sorted out"))
        sorting = await client.receiver("sorting")
        _, bad = await sorting.receive(2, WAIT_S)
        await sorting.dead_letter(bad, "Unsortable", "by nobody")
        colours = ("red", "green", "blue", "white")
        await send(client, "feed", *(message(f"feed-{n}", n=n, colour=each) for n, each in enumerate(colours)))
        await send(client, "spread", *(message(f"keyed-{n}", key=f"key {n % 5}") for n in range(12)))
        await send(client, "spread", *(message(f"free-{n}") for n in range(4)))
        await send(client, "spread-sessions", *(message(f"in-{n}", session=f"s{n % 3}") for n in range(6)))
        await send(client, "spread-once", *(message(f"once-{n % 3}", key="k") for n in range(6)))
        await send(client, "wide", *(message(f"wide-{n}") for n in range(5)))
        await _transact(client)


async def _transact(client: WireClient) -> None:
    """One that carries and publishes, one that ends in the transfer dead-letter queue, one that is rolled back."""
    receiver = await client.receiver("arrived")
    (first,) = await receiver.receive(1, WAIT_S)
    orders, feed = await client.sender("orders", via="arrived"), await client.sender("feed", via="arrived")
    async with await client.transaction("arrived") as transaction:
        await receiver.complete(first, transaction=transaction)
        await orders.send(message("carried"), transaction=transaction)
        await feed.send(message("published", n=1, colour="grey"), transaction=transaction)
    closed = await client.sender("closed", via="orders")
    async with await client.transaction("orders") as transaction:
        await closed.send(message("refused"), transaction=transaction)
    undone = await client.sender("orders")
    transaction = await client.transaction("orders")
    await undone.send(message("never"), transaction=transaction)
    await transaction.roll_back()


def kinds(data: Path) -> list[int]:
    """Return which kinds of records the journal has."""
    journal = Journal.open(data / "contoso" / "journal")
    found = {record.kind for record in journal.replay()}
    journal.close()
    return sorted(found)


def examine(data: Path, now: float) -> dict[str, Any]:
    """Open the data folder at the time at which it was left, and return what is in it and what it still does."""
    return asyncio.run(_examine(data, ManualClock(now)))


async def _examine(data: Path, clock: ManualClock) -> dict[str, Any]:
    async with (
        serve("contoso", data=data, clock=clock) as broker,
        WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as client,
    ):
        found: dict[str, Any] = {path: await held(client, path) for path in PATHS}
        # all of it still does what it did
        await send(client, "entry", message("new"))
        await send(client, "feed", message("new-2", n=2, colour="beige"), message("new-3", n=3, colour="beige"))
        await send(client, "spread-once", message("once-1", key="k"), message("once-9", key="k"))
        await send(client, "spread", message("keyed-new", key="key 1"))
        closed = await client.sender("closed", via="orders")
        async with await client.transaction("orders") as transaction:
            await closed.send(message("refused, too"), transaction=transaction)
        for path, count in (("arrived", 3), ("outbox", 4)):
            receiver = await client.receiver(path)
            received = await receiver.receive(count, WAIT_S)
            found[f"{path}, received"] = sorted(told(each.payload) for each in received)
        for path in ("feed/Subscriptions/changed", "spread", "spread-once", "orders/$Transfer/$DeadLetterQueue"):
            found[f"{path}, later"] = await held(client, path)
        return found


async def held(client: WireClient, path: str) -> list[Any]:
    return sorted(told(payload) for payload in await client.peek(path, 1, 100))


def told(payload: bytes) -> list[Any]:
    """Return number, id, label and properties of a message, and what it says about its way."""
    view = View(payload)
    annotations = {str(key): value for key, value in view.message_annotations.items()}
    names = ("x-opt-enqueue-sequence-number", "x-opt-transfer-hop-count", "x-opt-deadletter-source")
    way = [f"{name}={annotations[name]}" for name in names if name in annotations]
    said = [f"{name}={value!r}" for name, value in view.application_properties.items()]
    properties = view.properties
    return [int(annotations["x-opt-sequence-number"]), properties.message_id, properties.subject or "", way, said]
