"""P7, P26, P27, P30: diverted messages through the real SDK, sync and async, into a backlog queue and home again."""

from __future__ import annotations

import datetime
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.broker import Broker, serve_sync
from pairbus.pairing.backlog import backlog_queues, diversion, sizes
from pairbus.pairing.backlog.aliases import RestoredMessage, restore_message
from pairbus.wire import WireClient
from tests.broker.sdk import Bridge, Sdk

NOW = 1_800_000_000.0
LIMIT = 262_144
_numbers = itertools.count(1)
BODIES: list[dict[str, Any]] = [
    {"data_body": b"bytes"},
    {"data_body": [b"one", b"", b"three"]},
    {"value_body": {"a": [1, "b", None, True, 1.5]}},
    {"value_body": None},
    {"sequence_body": [[1, "two"], [b"three"]]},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serve_sync("contoso", data=tmp_path_factory.mktemp("broker")) as broker:
        yield broker
    gc.collect()


@pytest.fixture(params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, broker: Broker) -> Sdk:
    return Sdk(request.param == "async", broker.namespaces["contoso"])


async def made_backlog_queue(sdk: Sdk) -> str:
    name = backlog_queues.path(f"primary-{next(_numbers)}", 0)
    async with sdk.admin() as admin:
        made = await admin.create_queue(name, **backlog_queues.QUEUE_PROPERTIES)
        assert made.max_size_in_megabytes == 5120
        assert made.max_delivery_count == 2147483647
        assert made.lock_duration == datetime.timedelta(minutes=1)
        assert made.dead_lettering_on_message_expiration
        assert made.enable_batched_operations
        assert not made.requires_session
        for unlimited in (made.default_message_time_to_live, made.auto_delete_on_idle):
            assert unlimited > datetime.timedelta(days=10_000_000)
    return name


async def home_of(sdk: Sdk, queue: str, count: int) -> list[RestoredMessage]:
    """As the syphon takes them out: bytes."""
    found: list[RestoredMessage] = []
    async with WireClient.from_connection_string(sdk.namespace.connection_string) as client:
        receiver = await client.receiver(queue)
        while len(found) < count:
            received = await receiver.receive(count, max_wait=5)
            assert received, f"{len(found)} of {count} came"
            for message in received:
                home = restore_message(message.payload, now=NOW)
                assert isinstance(home, RestoredMessage), home
                found.append(home)
                await receiver.complete(message)
    return found


def diverted(argument: Any, sender: Bridge) -> list[sizes.DivertedBatch]:
    return sizes.parts(
        argument,
        diversion.messages_of(argument),
        "orders",
        max_message_size=LIMIT,
        max_batch_size=LIMIT,
        now_unix=NOW,
        transport=sender.target._amqp_transport,
    )


def with_everything(body: dict[str, Any], number: int) -> AmqpAnnotatedMessage:
    message = AmqpAnnotatedMessage(
        **body,
        application_properties={"n": number, "big": {"TYPE": "ULONG", "VALUE": 1 << 63}},
        annotations={"x-opt-partition-key": "k"},
    )
    message.properties = AmqpMessageProperties(message_id=f"m-{number}", subject="s", group_id="session")
    return message


async def test_p9_p26_p27_every_body_alone_in_a_list_and_in_a_batch(sdk: Sdk) -> None:
    queue = await made_backlog_queue(sdk)
    messages = [with_everything(body, number) for number, body in enumerate(BODIES)]
    batch = ServiceBusMessageBatch()
    for message in messages:
        batch.add_message(message)
    arguments: list[Any] = [*messages, messages, batch]
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        for argument in arguments:
            for part in diverted(argument, sender):
                await sender.send_messages(part.argument)
    homes = await home_of(sdk, queue, 3 * len(messages))
    assert {home.path for home in homes} == {"orders"}
    assert {home.session_id for home in homes} == {"session"}
    sent = [diversion.encoded(message) for message in messages]
    assert [home.payload for home in homes] == sent * 3


async def test_p30_a_list_and_a_batch_that_grow_too_large_are_sent_in_parts(sdk: Sdk) -> None:
    queue = await made_backlog_queue(sdk)
    size = len(diversion.encoded(ServiceBusMessage(b"x" * 1000, message_id="000", session_id="s"))) + 8
    count = (LIMIT - 100) // size
    messages = [ServiceBusMessage(b"x" * 1000, message_id=f"{number:03}", session_id="s") for number in range(count)]
    batch = ServiceBusMessageBatch()
    for message in messages:
        batch.add_message(message)
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(messages)  # undiverted it fits into one
        for argument in (messages, batch):
            found = diverted(argument, sender)
            assert len(found) == 2
            for part in found:
                await sender.send_messages(part.argument)
    assert await sdk.depth(queue) == (3 * count, 0)


async def test_p30_a_message_at_the_very_limit_of_the_link_is_taken_by_the_broker(sdk: Sdk) -> None:
    queue = await made_backlog_queue(sdk)
    small = ServiceBusMessage(b"x" * 1000, message_id="m")
    room = LIMIT - len(diversion.encoded(diversion.divert(small, "orders", now_unix=NOW)))
    large = ServiceBusMessage(b"x" * (1000 + room), message_id="m")
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        (part,) = diverted(large, sender)
        with pytest.raises(MessageSizeExceededError):
            diverted(ServiceBusMessage(b"x" * (1001 + room), message_id="m"), sender)
        await sender.send_messages(part.argument)
    (home,) = await home_of(sdk, queue, 1)
    assert home.payload == diversion.encoded(large)
