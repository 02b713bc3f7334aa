"""Receives that get nothing (P51), as a client's frames tell of them and as the official SDK makes them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from pairbus.amqp.connection import Connection
from pairbus.amqp.events import Delivered, Event, LinkAttached, LinkDetached, Opened
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.performative_types import Flow, Source, Target
from pairbus.amqp.performatives import ACCEPTED_BYTES
from pairbus.amqp.sasl import PLAIN, SaslClient, plain_response
from pairbus.broker import Broker, NamespaceServer, serve
from pairbus.connection_string import ConnectionString
from pairbus.wire import WireClient
from tests.broker.conftest import Clock
from tests.broker.sdk import Sdk
from tests.waiting import soon

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning")]

QUARTER_S = 900.0


class Client:
    """Our own engine on a socket: what it grants and when is the test's."""

    def __init__(self, served: NamespaceServer) -> None:
        parsed = ConnectionString.parse(served.connection_string)
        assert parsed.key_name is not None and parsed.key is not None
        self._address = (served.host, served.port)
        login = SaslClient(PLAIN, plain_response(parsed.key_name, parsed.key))
        self._engine = Connection(server=False, container_id="c", hostname="127.0.0.1", sasl=login)
        self._number = 0

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        await self.until(Opened)
        self._session = self._engine.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def until(self, kind: type[Event]) -> Any:
        while True:
            self._writer.write(self._engine.output())
            async with asyncio.timeout(10):
                data = await self._reader.read(1 << 16)
            assert data, "the broker hung up"
            for event in self._engine.receive(data, 0.0):
                if type(event) is kind:
                    return event

    async def receiver(self, queue: str, mode: int = 0) -> ReceiverLink:
        self._number += 1
        link = self._session.attach(
            f"r{self._number}", True, Source(address=queue), Target(address="here"), snd_settle_mode=mode
        )
        await self.until(LinkAttached)
        assert isinstance(link, ReceiverLink)
        return link

    async def grant(self, link: ReceiverLink, elsewhere: str, credit: int = 5, *, drain: bool = False) -> None:
        """Until the broker has read it."""
        link.flow(credit, drain=drain)
        await self.catch_up(elsewhere)

    async def detach(self, link: ReceiverLink) -> None:
        link.detach()
        await self.until(LinkDetached)

    async def catch_up(self, queue: str) -> None:
        """Until the broker has read all that was written: it answers in order."""
        await self.detach(await self.receiver(queue))


def polls(broker: Broker, *queues: str) -> list[int]:
    counters = broker.metrics.namespace("contoso").entities
    return [counters[queue].polls if queue in counters else 0 for queue in queues]


async def ledger_of(broker: Broker, queue: str, is_all: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The events of a queue, once they are all there; it is written every 0.2 s."""

    def found() -> list[dict[str, Any]]:
        return [event for event in read_ledger(broker.data) if event.get("entity") == queue]

    await soon(lambda: is_all(found()))
    return found()


def read_ledger(data: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((data / "contoso" / "ledger").iterdir()):
        found += [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return found


@pytest.fixture
async def queues(broker: Broker) -> list[str]:
    sdk = Sdk(True, broker.namespaces["contoso"])
    return [await sdk.queue() for _ in range(10)]


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client(broker.namespaces["contoso"]) as client:
        yield client


async def test_p51_ten_idle_long_polls_of_a_quarter_of_an_hour_are_forty_an_hour(
    broker: Broker, clock: Clock, client: Client, queues: list[str]
) -> None:
    links = [await client.receiver(queue) for queue in queues]
    began = clock()
    for quarter in range(4):
        for link in links:
            link.flow(1)
        await client.catch_up(queues[0])
        assert polls(broker, *queues) == [quarter] * 10
        clock.advance(QUARTER_S)
    for link in links:
        await client.detach(link)
    assert polls(broker, *queues) == [4] * 10
    for queue in queues:
        events = await ledger_of(broker, queue, lambda found: sum(each["kind"] == "poll" for each in found) >= 4)
        seen = [event for event in events if event["kind"] == "poll"]
        assert [round((event["t"] - began) / QUARTER_S, 1) for event in seen] == [1.0, 2.0, 3.0, 4.0]
        for event in seen:
            del event["t"]
            assert event == {
                "kind": "poll", "ns": "contoso", "entity": queue,
                "bytes": 0, "units": 1, "outcome": "ok", "cause": "app",
            }  # fmt: skip


async def send(broker: Broker, queue: str) -> None:
    async with WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as wire:
        await (await wire.sender(queue)).send(encode_message(properties=Properties(message_id="m"), body=b"x"))


@pytest.mark.parametrize("mode", [0, 1], ids=["peek-lock", "receive-and-delete"])
async def test_a_grant_that_brought_a_message_was_no_empty_receive(
    broker: Broker, client: Client, queues: list[str], mode: int
) -> None:
    queue, elsewhere = queues[:2]
    link = await client.receiver(queue, mode)
    await client.grant(link, elsewhere)
    await send(broker, queue)
    delivered = await client.until(Delivered)
    if not mode:
        link.settle(delivered.delivery_id, delivered.delivery_id, ACCEPTED_BYTES)
    await client.grant(link, elsewhere)
    assert polls(broker, queue) == [0]
    # this one brings nothing
    await client.grant(link, elsewhere)
    assert polls(broker, queue) == [1]
    await client.detach(link)
    assert polls(broker, queue) == [2]


async def test_a_message_that_was_on_its_way_when_more_was_granted_counts_for_that_grant(
    broker: Broker, client: Client, queues: list[str]
) -> None:
    queue, elsewhere = queues[:2]
    link = await client.receiver(queue)
    await client.grant(link, elsewhere)
    await send(broker, queue)
    await client.grant(link, elsewhere)  # the message is not read yet: this counts from before it
    await client.grant(link, elsewhere)
    assert polls(broker, queue) == [0]


async def test_what_is_no_grant_ends_no_receive(broker: Broker, client: Client, queues: list[str]) -> None:
    queue, elsewhere = queues[:2]
    link = await client.receiver(queue)
    link.flow(0)  # as the SDK does when it attaches
    link.flow(5)
    link.session.write_flow()  # of the session, and no link of it
    await client.grant(link, elsewhere, drain=True)  # the rest of what was granted, or nothing (JS)
    assert polls(broker, queue) == [0]
    await client.grant(link, elsewhere, drain=True)  # asks for five, but not for long: that is a receive
    assert polls(broker, queue) == [1]
    link.flow(0, drain=True)  # as the SDK does before it detaches
    await client.detach(link)
    assert polls(broker, queue) == [2]


async def test_a_link_that_asked_for_nothing_got_nothing(broker: Broker, client: Client, queues: list[str]) -> None:
    link = await client.receiver(queues[0])
    await client.detach(link)
    assert polls(broker, *queues) == [0] * 10


async def test_credit_that_comes_with_the_attach_is_a_grant(broker: Broker, queues: list[str]) -> None:
    """Before the broker has answered it: so the SDKs for JS and .NET may."""
    queue = queues[0]
    async with Client(broker.namespaces["contoso"]) as client:
        link = client._session.attach("early", True, Source(address=queue), Target(address="here"))
        flow = Flow(
            next_incoming_id=None, incoming_window=100, next_outgoing_id=0, outgoing_window=100,
            handle=link.handle, link_credit=5,
        )  # fmt: skip
        client._session.write(flow.encode())
        await client.until(LinkAttached)
        await client.catch_up(queues[1])
        assert polls(broker, queue) == [0]
    # the connection's end is its links' end
    await soon(lambda: polls(broker, queue) == [1])


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
async def test_empty_receives_of_the_sdk(sdk: Sdk, broker: Broker, mode: ServiceBusReceiveMode) -> None:
    queue = await sdk.queue()
    async with sdk.client() as client:
        async with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
            for _ in range(3):
                assert await receiver.receive_messages(max_wait_time=0.1) == []
            await sdk.send(queue, ServiceBusMessage("x"))
            (message,) = await receiver.receive_messages(max_wait_time=5)
            if mode == ServiceBusReceiveMode.PEEK_LOCK:
                await receiver.complete_message(message)
            # the message came on the credit of the third receive, or on that of the fourth
            before = polls(broker, queue)[0]
            assert before in (2, 3)
            assert await receiver.receive_messages(max_wait_time=0.1) == []
        await soon(lambda: polls(broker, queue) != [before])
        assert polls(broker, queue) == [before + 1]
    kinds = Counter(each["kind"] for each in await ledger_of(broker, queue, lambda found: len(found) > before))
    assert kinds["receive"] == 1


async def test_who_still_waits_when_the_broker_stops_got_nothing(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path, ledger=True) as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        queue = await sdk.queue()
        client = Client(broker.namespaces["contoso"])
        await client.__aenter__()
        (await client.receiver(queue)).flow(1)
        await client.catch_up(queue)
    assert [each["kind"] for each in read_ledger(tmp_path) if each.get("entity") == queue] == ["manage", "poll"]
    await client.__aexit__()
