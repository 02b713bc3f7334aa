"""Garbage, halves, floods and lies on the live port: others go on being served, memory stays bounded, all is well."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.connection import Connection
from pairbus.amqp.events import Delivered, LinkAttached, Opened
from pairbus.amqp.limits import Limits
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.performative_types import Source
from pairbus.amqp.performative_types import Target as TargetNode
from pairbus.amqp.performatives import ACCEPTED_BYTES
from pairbus.amqp.sasl import PLAIN, SaslClient, plain_response
from pairbus.broker import Broker
from tests.untidy_sdk import UNTIDY_SDK
from tests.untidy_sdk import swept as swept

from .attack_words import Target
from .attacks import ATTACKS, crowd, never_reads, shuffled
from .sdk import Sdk
from .siege import SEED, Siege

pytestmark = UNTIDY_SDK


async def test_attacks_of_every_kind(tmp_path: Path) -> None:
    async with Siege(tmp_path / "data") as siege:
        await siege.attack(shuffled(random.Random(SEED), 5), SEED)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_attacks_of_every_kind(tmp_path: Path) -> None:
    async with Siege(tmp_path / "data") as siege:
        await siege.attack(shuffled(random.Random(SEED), 40), SEED)


async def test_a_thousand_connections_at_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with Siege(tmp_path / "data") as siege:
        async with crowd(siege.target, rng, 1000) as wires:
            assert len(wires) == 1000
            # one more is served as if nobody else were there
            sdk = Sdk(True, siege.broker)  # type: ignore[arg-type]
            queue = await sdk.queue()
            await sdk.send(queue, ServiceBusMessage("x"))
            assert [str(message) for message in await sdk.receive(queue, 1)] == ["x"]
        siege.check_inside()


@pytest.mark.parametrize("kind", ["echo", "peek", "links", "deliver", "sessions"])
@pytest.mark.slow
async def test_who_never_reads_costs_little(tmp_path: Path, kind: str) -> None:
    rng = random.Random(SEED)
    async with Siege(tmp_path / "data") as siege:
        await siege.attack_until_served(lambda: never_reads(siege.target, rng, kind))


def test_every_attack_is_told_apart() -> None:
    assert len(set(ATTACKS)) == len(ATTACKS) == 17


# -- found by the attacks, and kept


async def converse(target: Target, queue: str, limits: Limits, count: int) -> list[bytes]:
    """An honest client of our own engine, with limits as it likes: receives and completes so many messages."""
    parsed = target.parsed
    assert parsed.key_name is not None and parsed.key is not None
    login = SaslClient(PLAIN, plain_response(parsed.key_name, parsed.key))
    connection = Connection(server=False, container_id="c", hostname="127.0.0.1", limits=limits, sasl=login)
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    received: list[bytes] = []
    try:
        while len(received) < count:
            writer.write(connection.output())
            async with asyncio.timeout(10):
                data = await reader.read(1 << 16)
            assert data, "the broker hung up"
            for event in connection.receive(data, 0.0):
                if isinstance(event, Opened):
                    session = connection.begin()
                    session.attach("r", True, Source(address=queue), TargetNode(address="here"), rcv_settle_mode=1)
                elif isinstance(event, LinkAttached):
                    assert isinstance(event.link, ReceiverLink)
                    event.link.flow(count)
                elif isinstance(event, Delivered):
                    received.append(event.payload)
                    event.link.settle(event.delivery_id, event.delivery_id, ACCEPTED_BYTES)
    finally:
        writer.close()
        await writer.wait_closed()
    return received


async def test_a_session_window_smaller_than_the_credit_holds_nothing_up(broker: Broker) -> None:
    """The window opens again by a flow that names no link (AMQP 2.5.6)."""
    namespace = broker.namespaces["contoso"]
    sdk = Sdk(True, namespace)
    queue = await sdk.queue()
    count = 1200  # more than are handed out in one turn of the loop
    await sdk.send(queue, [ServiceBusMessage(f"{n}") for n in range(count)])
    target = Target(namespace.connection_string, namespace.ca_file)
    assert len(await converse(target, queue, Limits(incoming_window=4), count)) == count


async def test_a_queue_of_large_messages_is_delivered_in_portions(broker: Broker) -> None:
    namespace = broker.namespaces["contoso"]
    sdk = Sdk(True, namespace)
    queue = await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        for _ in range(40):
            await sender.send_messages(ServiceBusMessage(b"x" * 200_000))
    target = Target(namespace.connection_string, namespace.ca_file)
    assert len(await converse(target, queue, Limits(), 40)) == 40
