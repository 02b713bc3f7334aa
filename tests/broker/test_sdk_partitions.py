"""Partitioned queues and topics, seen from an application on the official SDK."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, exceptions

from pairbus.broker import Broker
from pairbus.broker.model.partitions import PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk

pytestmark = UNTIDY_SDK


def partitions_of(messages: list[object]) -> list[int]:
    return [message.sequence_number >> PARTITION_SHIFT for message in messages]  # type: ignore[attr-defined]


async def test_messages_go_over_the_partitions_and_peek_sees_each_once(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True)
    async with sdk.admin() as admin:
        assert (await admin.get_queue(queue)).enable_partitioning is True
    await sdk.send(queue, *(ServiceBusMessage(str(number)) for number in range(2 * PARTITIONS)))
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        peeked = []
        while some := await receiver.peek_messages(max_message_count=5):  # goes on behind the last one by itself
            peeked += some
        assert sorted(int(str(message)) for message in peeked) == list(range(2 * PARTITIONS))
        assert partitions_of(peeked) == sorted([*range(PARTITIONS)] * 2)
    assert await sdk.depth(queue) == (2 * PARTITIONS, 0)
    received = await sdk.receive(queue, 2 * PARTITIONS)
    assert sorted(int(str(message)) for message in received) == list(range(2 * PARTITIONS))


async def test_a_batch_has_one_key(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True)
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(str(n), partition_key="k") for n in range(3)])
        with pytest.raises(exceptions.ServiceBusError, match="2 different keys"):
            await sender.send_messages([ServiceBusMessage(str(n), partition_key=f"k{n}") for n in range(2)])
        await sender.send_messages([ServiceBusMessage("3"), ServiceBusMessage("4")])
    received = await sdk.receive(queue, 5)
    assert partitions_of(sorted(received, key=str))[:3] == [partition_for("k")] * 3
    assert len({*partitions_of(sorted(received, key=str))[3:]}) == 1


async def test_p46_one_partition_down_leaves_the_others_serving(sdk: Sdk, broker: Broker) -> None:
    queue = await sdk.queue(enable_partitioning=True)
    await sdk.send(queue, ServiceBusMessage("before", partition_key="a"))
    with fault(broker, "unreachable", entity=queue, partition=partition_for("a")):
        async with sdk.client() as client, client.get_queue_sender(queue) as sender:
            with pytest.raises(exceptions.ServiceBusServerBusyError, match="Partition 3"):
                await sender.send_messages(ServiceBusMessage("refused", partition_key="a"))
            await sender.send_messages(ServiceBusMessage("other key", partition_key="b"))
            for number in range(PARTITIONS):
                await sender.send_messages(ServiceBusMessage(str(number)))
        received = await sdk.receive(queue, PARTITIONS + 1)
        assert len(received) == PARTITIONS + 1
        assert partition_for("a") not in partitions_of(received)
        assert await sdk.receive(queue, 1, wait=0.5) == []
    assert [str(message) for message in await sdk.receive(queue, 1)] == ["before"]


async def test_the_size_that_is_shown_is_that_of_all_partitions_and_an_update_takes_it(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True, max_size_in_megabytes=1024)
    async with sdk.admin() as admin:
        shown = await admin.get_queue(queue)
        assert shown.max_size_in_megabytes == 1024 * PARTITIONS == 16_384
        shown.max_delivery_count = 7
        await admin.update_queue(shown)
        again = await admin.get_queue(queue)
        assert (again.max_size_in_megabytes, again.max_delivery_count) == (16_384, 7)
        await admin.update_queue(again, max_size_in_megabytes=2048)
        assert (await admin.get_queue(queue)).max_size_in_megabytes == 2048 * PARTITIONS
