"""The transfer dead-letter queue as the official SDK sees it: counted, peeked, received from, sent again."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from pairbus.wire import NotFound, Refused, WireClient
from tests.broker.namespace_rig import make
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk

pytestmark = UNTIDY_SDK

TRANSFER = {"sub_queue": ServiceBusSubQueue.TRANSFER_DEAD_LETTER}


def wire(sdk: Sdk) -> WireClient:
    return WireClient.from_connection_string(sdk.namespace.connection_string, timeout=5.0)


async def set_status(sdk: Sdk, queue: str, status: str) -> None:
    async with sdk.admin() as admin:
        properties = await admin.get_queue(queue)
        properties.status = status
        await admin.update_queue(properties)


async def transfer_count(sdk: Sdk, queue: str) -> tuple[int, int]:
    async with sdk.admin() as admin:
        found = await admin.get_queue_runtime_properties(queue)
    return found.transfer_dead_letter_message_count, found.total_message_count


async def transact(sdk: Sdk, queue: str, other: str, *bodies: bytes) -> None:
    """Complete what is in the queue and send these to the other one, in one."""
    async with wire(sdk) as client:
        receiver, sender = await client.receiver(queue), await client.sender(other, via=queue)
        messages = await receiver.receive(1, 10.0)
        async with await client.transaction(queue) as transaction:
            await receiver.complete(messages, transaction=transaction)
            errors = await sender.send_many([make(body) for body in bodies], transaction=transaction)
            assert errors == [None] * len(bodies)


async def test_transfer_dead_letters(sdk: Sdk) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    await sdk.send(queue, ServiceBusMessage("one"))
    await set_status(sdk, other, "SendDisabled")
    with pytest.raises(ServiceBusError):  # without a via it is refused
        await sdk.send(other, ServiceBusMessage("directly"))
    await transact(sdk, queue, other, b"a", b"b")
    assert await transfer_count(sdk, queue) == (2, 2)
    async with sdk.client() as client, client.get_queue_receiver(queue, **TRANSFER) as receiver:
        peeked = await receiver.peek_messages(10)
        assert [str(message) for message in peeked] == ["a", "b"]
        first, second = await received(receiver, 2)
        assert first.dead_letter_reason == "MessagingEntityDisabled"
        assert other in first.dead_letter_error_description
        await receiver.complete_message(first)
        await receiver.abandon_message(second)
        (second,) = await received(receiver, 1)
        await receiver.defer_message(second)
        (second,) = await receiver.receive_deferred_messages([second.sequence_number])
        await receiver.renew_message_lock(second)
        await receiver.complete_message(second)
    assert await transfer_count(sdk, queue) == (0, 0)
    assert await sdk.depth(queue) == (0, 0)


async def received(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        messages = await receiver.receive_messages(count - len(found), max_wait_time=20)
        assert messages
        found += messages
    return found


async def test_it_takes_no_messages_of_clients_and_none_of_a_destination_that_is_gone(sdk: Sdk) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    async with wire(sdk) as client:
        sender = await client.sender(other, via=queue)
        transaction = await client.transaction(queue)
        await sender.send(make(b"a"), transaction=transaction)
        async with sdk.admin() as admin:
            await admin.delete_queue(other)
        with pytest.raises(Refused, match="could not be found"):
            await transaction.commit()
        with pytest.raises(NotFound):
            await client.sender(other, via=queue)
        with pytest.raises(Refused, match="can't be sent to"):
            await client.sender(f"{queue}/$Transfer/$DeadLetterQueue")
    assert await transfer_count(sdk, queue) == (0, 0)


async def test_a_link_to_a_disabled_entity_is_refused_and_one_through_another_is_not(sdk: Sdk) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    await set_status(sdk, other, "SendDisabled")
    async with wire(sdk) as client:
        for path, via in ((other, None), (queue, other)):
            with pytest.raises(Refused, match=f"'{other}' is SendDisabled.*com.microsoft:entity-disabled"):
                await client.sender(path, via=via)
        await (await client.sender(other, via=queue)).send(make(b"a"))  # in no transaction
    assert await transfer_count(sdk, queue) == (1, 1)
