"""What a queue does for the official SDK beyond the tour (sdk_tour.py)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import uuid
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    exceptions,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon

from .conftest import Clock
from .sdk import Bridge, Sdk, both_apis

pytestmark = UNTIDY_SDK

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


async def first(receiver: Bridge, wait: float = 5) -> ServiceBusReceivedMessage:
    (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=wait)
    return message  # type: ignore[no-any-return]


@both_apis
async def test_a_message_arrives_as_it_was_sent(sdk: Sdk, queue: str) -> None:
    properties = {"text": "ü", "number": 5, "yes": True, "real": 1.5, "raw": b"\0", "id": uuid.uuid4()}
    sent = ServiceBusMessage(
        b"\x00body\xff",
        application_properties=dict(properties),
        content_type="application/json",
        correlation_id="c",
        message_id="m-1",
        reply_to="r",
        reply_to_session_id="rs",
        subject="s",
        to="t",
    )
    await sdk.send(queue, sent)
    (got,) = await sdk.receive(queue, 1)
    assert b"".join(got.body) == b"\x00body\xff"
    expected = {key.encode(): value for key, value in properties.items()}
    assert got.application_properties == {**expected, b"text": "ü".encode()}
    for name in ("content_type", "correlation_id", "message_id", "reply_to", "reply_to_session_id", "subject", "to"):
        assert getattr(got, name) == getattr(sent, name), name
    assert got.sequence_number == 1
    assert got.delivery_count == 0
    assert abs((datetime.datetime.now(datetime.UTC) - got.enqueued_time_utc).total_seconds()) < 3600 * 24
    assert await sdk.depth(queue) == (0, 0)


@pytest.mark.parametrize(
    ("body_type", "body"),
    [
        (AmqpMessageBodyType.DATA, [b"one", b"two"]),
        (AmqpMessageBodyType.DATA, [b""]),
        (AmqpMessageBodyType.VALUE, {b"key": [1, None, True]}),
        (AmqpMessageBodyType.VALUE, b"text"),
        (AmqpMessageBodyType.SEQUENCE, [[1, b"two"], [3.5]]),
    ],
)
async def test_every_kind_of_body(sdk: Sdk, queue: str, body_type: AmqpMessageBodyType, body: Any) -> None:
    field = {
        AmqpMessageBodyType.DATA: "data_body",
        AmqpMessageBodyType.VALUE: "value_body",
        AmqpMessageBodyType.SEQUENCE: "sequence_body",
    }
    message = AmqpAnnotatedMessage(
        **{field[body_type]: body},
        header={"durable": True, "priority": 7},
        annotations={"x-mine": "kept"},
        footer={"end": "of it"},
    )
    await sdk.send(queue, message)
    (got,) = await sdk.receive(queue, 1)
    raw = got.raw_amqp_message
    assert raw.body_type is body_type
    assert (raw.body if body_type is AmqpMessageBodyType.VALUE else list(raw.body)) == body
    assert (raw.header.durable, raw.header.priority) == (True, 7)
    assert raw.annotations[b"x-mine"] == b"kept"
    assert raw.footer == {b"end": b"of it"}
    assert got.message_id  # the broker gives one to a message that comes without


async def test_a_batch_that_the_sdk_filled_to_the_brim_is_taken(sdk: Sdk, queue: str) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        batch = await sender.create_message_batch()
        for size in (20_000, 1_000, 1):
            with contextlib.suppress(exceptions.MessageSizeExceededError):
                for _ in range(10_000):
                    batch.add_message(ServiceBusMessage(b"x" * size, message_id="1"))
        await sender.send_messages(batch)
    assert (await sdk.depth(queue))[0] == len(batch)


@both_apis
async def test_a_waiting_receiver_gets_what_comes(sdk: Sdk, queue: str) -> None:
    waiting = asyncio.create_task(sdk.receive(queue, 1, wait=20))
    await soon(lambda: any(link.is_sender for c in list(sdk.namespace.connections) for link in c.links()))
    await sdk.send(queue, ServiceBusMessage("at last"))
    assert [str(m) for m in await waiting] == ["at last"]


async def test_a_lock_runs_out_and_its_token_is_worth_nothing_then(sdk: Sdk, clock: Clock) -> None:
    queue = await sdk.queue(lock_duration=datetime.timedelta(seconds=300))
    await sdk.send(queue, ServiceBusMessage("slow"))
    async with sdk.client() as client, client.get_queue_receiver(queue) as slow:
        message = await first(slow)
        async with client.get_queue_receiver(queue) as other:
            assert await other.receive_messages(max_message_count=1, max_wait_time=1) == []
            clock.advance(301)
            again = await first(other)
            assert (str(again), again.delivery_count) == ("slow", 1)
            message._settled = False
            with pytest.raises(exceptions.MessageLockLostError):
                await slow.complete_message(message)
            await other.complete_message(again)


async def test_messages_stay_locked_when_their_receiver_is_gone(sdk: Sdk, clock: Clock) -> None:
    queue = await sdk.queue(lock_duration=datetime.timedelta(seconds=300))
    await sdk.send(queue, ServiceBusMessage("left behind"))
    async with sdk.client() as client:
        async with client.get_queue_receiver(queue) as receiver:
            await first(receiver)
        async with client.get_queue_receiver(queue) as receiver:
            assert await receiver.receive_messages(max_message_count=1, max_wait_time=1) == []
            clock.advance(301)
            assert (await first(receiver)).delivery_count == 1


@both_apis
async def test_large_messages_travel_in_many_frames(sdk: Sdk, queue: str) -> None:
    body = bytes(range(256)) * 1000  # 256,000 bytes: four frames each way
    await sdk.send(queue, ServiceBusMessage(body))
    (got,) = await sdk.receive(queue, 1)
    assert b"".join(got.body) == body


async def test_an_entity_that_takes_more_than_a_connection_gathers_gets_it(sdk: Sdk) -> None:
    queue = await sdk.queue(max_message_size_in_kilobytes=20 * 1024)
    body = bytes(range(256)) * 4 * 1024 * 18  # 18 MiB; of smaller messages a connection gathers 16
    await sdk.send(queue, ServiceBusMessage(body))
    (got,) = await sdk.receive(queue, 1)
    assert b"".join(got.body) == body


@both_apis
async def test_a_message_that_is_too_large_is_refused_and_the_link_stays(sdk: Sdk, queue: str) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        for size in (262144, 2_000_000):
            with pytest.raises(exceptions.MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * size))
        await sender.send_messages(ServiceBusMessage("fits"))
    assert await sdk.depth(queue) == (1, 0)


async def test_an_unknown_queue(sdk: Sdk) -> None:
    async with sdk.client() as client:
        with pytest.raises(exceptions.MessagingEntityNotFoundError):
            async with client.get_queue_sender("no-such-queue") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(exceptions.MessagingEntityNotFoundError):
            async with client.get_queue_receiver("no-such-queue") as receiver:
                await receiver.receive_messages(max_wait_time=1)


@both_apis
async def test_p45_sending_works_while_nobody_receives_and_receivers_share_the_load(sdk: Sdk, queue: str) -> None:
    await sdk.send(queue, [ServiceBusMessage(str(i)) for i in range(120)])
    got: list[list[int]] = [[], [], []]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(sdk.client())
        receivers = [await stack.enter_async_context(client.get_queue_receiver(queue)) for _ in got]
        # In turns, so that none can be quicker than another: each asks for ten while there is enough for all.
        for _ in range(4):
            rounds = await asyncio.gather(
                *(each.receive_messages(max_message_count=10, max_wait_time=5) for each in receivers)
            )
            for receiver, mine, messages in zip(receivers, got, rounds, strict=True):
                assert messages, f"one of the receivers got nothing: {[len(each) for each in got]}"
                mine += [int(str(message)) for message in messages]
                for message in messages:
                    await receiver.complete_message(message)
    rest = [int(str(message)) for message in await sdk.receive(queue, 120, wait=1)]
    assert sorted([*rest, *(each for mine in got for each in mine)]) == list(range(120)), "each goes to one of them"


async def test_p32_pings_are_confirmed_counted_and_never_delivered(sdk: Sdk) -> None:
    queue = await sdk.queue(max_size_in_megabytes=1)
    ping = ServiceBusMessage(
        b"",
        content_type="application/vnd.ms-servicebus-ping",
        time_to_live=datetime.timedelta(seconds=1),
        session_id=str(uuid.uuid4()),
    )
    await sdk.send(queue, ping, ServiceBusMessage("real"), [ping, ServiceBusMessage("real too")])
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        assert [str(m) for m in await receiver.peek_messages(max_message_count=10)] == ["real", "real too"]
    assert [str(m) for m in await sdk.receive(queue, 3, wait=1)] == ["real", "real too"]
    assert await sdk.depth(queue) == (0, 0)
    assert sdk.namespace.namespace.queues[queue].pings == 2
    # a ping is refused whenever a message would be
    for size in (200_000, 10_000, 1_000, 10):
        with pytest.raises(exceptions.ServiceBusQuotaExceededError):
            await sdk.send(queue, *[ServiceBusMessage(b"x" * size) for _ in range(20)])
    with pytest.raises(exceptions.ServiceBusQuotaExceededError):
        await sdk.send(queue, ping)


@both_apis
async def test_a_deleted_queue_cuts_its_links(sdk: Sdk, queue: str) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        async with sdk.admin() as admin:
            await admin.delete_queue(queue)
        with pytest.raises(exceptions.ServiceBusError):
            await sender.send_messages(ServiceBusMessage("y"))
        with pytest.raises(exceptions.MessagingEntityNotFoundError):
            await sender.send_messages(ServiceBusMessage("z"))
