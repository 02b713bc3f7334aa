"""Partitioned queues and topics, seen from an application on the official SDK."""

from __future__ import annotations

import datetime as dt

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSubQueue, exceptions

from pairbus.broker import Broker
from pairbus.broker.model.partitions import PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk, fresh

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


async def test_duplicate_detection_refuses_a_batch_of_different_ids(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True, requires_duplicate_detection=True)
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        batch: ServiceBusMessageBatch = await sender.create_message_batch()
        for number in range(2):
            batch.add_message(ServiceBusMessage("x", message_id=f"m{number}"))
        with pytest.raises(exceptions.ServiceBusError, match="message id"):
            await sender.send_messages(batch)
        for _ in range(2):
            await sender.send_messages(ServiceBusMessage("x", message_id="m1"))
    assert await sdk.depth(queue) == (1, 0)


async def test_sessions_deferred_and_dead_letters(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True, requires_session=True)
    for session in ("a", "b"):
        await sdk.send(queue, *(ServiceBusMessage(f"{session}{n}", session_id=session) for n in range(3)))
    async with sdk.client() as client:
        async with client.get_queue_receiver(queue, session_id="b") as receiver:
            messages = await receiver.receive_messages(max_message_count=3, max_wait_time=5)
            assert [str(message) for message in messages] == ["b0", "b1", "b2"]
            assert partitions_of(messages) == [partition_for("b")] * 3
            await receiver.defer_message(messages[0])
            await receiver.dead_letter_message(messages[1])
            await receiver.complete_message(messages[2])
            (deferred,) = await receiver.receive_deferred_messages(messages[0].sequence_number)
            assert str(deferred) == "b0"
            await receiver.complete_message(deferred)
        dead = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        async with dead as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=5)
            assert message.sequence_number == messages[1].sequence_number
            await receiver.complete_message(message)


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


async def test_a_topic_is_partitioned_with_its_subscriptions(sdk: Sdk) -> None:
    topic = fresh("topic")
    async with sdk.admin() as admin:
        await admin.create_topic(topic, enable_partitioning=True)
        await admin.create_subscription(topic, "all")
    async with sdk.client() as client:
        async with client.get_topic_sender(topic) as sender:
            for number in range(3):
                await sender.send_messages(ServiceBusMessage(str(number)))
            await sender.send_messages(ServiceBusMessage("keyed", partition_key="b"))
        async with client.get_subscription_receiver(topic, "all") as receiver:
            messages = []
            while len(messages) < 4:
                messages += await receiver.receive_messages(max_message_count=4, max_wait_time=5)
    assert sorted(partitions_of(messages)) == [0, 1, 2, 9]


async def test_scheduled_cancelled_and_deferred_messages_in_their_partitions(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    async with sdk.client() as client:
        async with client.get_queue_sender(queue) as sender:
            kept = await sender.schedule_messages(
                [ServiceBusMessage(str(n), partition_key="a") for n in range(2)], soon
            )
            gone = await sender.schedule_messages(ServiceBusMessage("no key"), soon)
            other = await sender.schedule_messages(ServiceBusMessage("other", partition_key="b"), soon)
            assert [number >> PARTITION_SHIFT for number in kept] == [partition_for("a")] * 2
            with pytest.raises(exceptions.ServiceBusError, match="2 different keys"):
                await sender.schedule_messages(
                    [ServiceBusMessage(str(n), partition_key=f"k{n}") for n in range(2)], soon
                )
            await sender.cancel_scheduled_messages([*gone, *other, kept[0]])  # of three partitions at once
            await sender.send_messages([ServiceBusMessage(str(n), partition_key="c") for n in range(4)])
        async with client.get_queue_receiver(queue) as receiver:
            assert [(str(m), m.state.name) for m in await receiver.peek_messages(1)] == [("1", "SCHEDULED")]
            messages = await receiver.receive_messages(max_message_count=4, max_wait_time=5)
            assert [str(message) for message in messages] == ["0", "1", "2", "3"]
            for message in messages[:2]:
                await receiver.defer_message(message)
            await receiver.dead_letter_message(messages[2], reason="why")
            await receiver.abandon_message(messages[3])
            again = await receiver.receive_deferred_messages([m.sequence_number for m in messages[:2]])
            assert [str(message) for message in again] == ["0", "1"]
            await receiver.complete_message(again[0])
            await receiver.abandon_message(again[1])
    async with sdk.admin() as admin:
        counts = await admin.get_queue_runtime_properties(queue)
        assert counts.active_message_count == 2, "one deferred, one abandoned"
        assert (counts.scheduled_message_count, counts.dead_letter_message_count) == (1, 1)
        assert counts.total_message_count == 4


async def test_forwarding_into_and_out_of_partitioned_entities(sdk: Sdk) -> None:
    """Each message is placed anew where it comes to; a dead letter goes on as well."""
    last = await sdk.queue()
    middle = await sdk.queue(enable_partitioning=True, forward_to=last)
    first = await sdk.queue(forward_to=middle)
    dead = await sdk.queue(enable_partitioning=True)
    source = await sdk.queue(enable_partitioning=True, forward_dead_lettered_messages_to=dead)
    await sdk.send(first, *(ServiceBusMessage(str(n), partition_key=f"k{n % 5}") for n in range(20)))
    received = await sdk.receive(last, 20)
    assert sorted(int(str(message)) for message in received) == list(range(20))
    assert partitions_of(received) == [0] * 20, "not partitioned"
    await sdk.send(source, *(ServiceBusMessage(str(n), partition_key=f"k{n}") for n in range(6)))
    async with sdk.client() as client:
        async with client.get_queue_receiver(source) as receiver:
            left = 6
            while left:
                for message in await receiver.receive_messages(max_message_count=6, max_wait_time=5):
                    await receiver.dead_letter_message(message)
                    left -= 1
        buried = await sdk.receive(dead, 6)
        assert sorted(partitions_of(buried)) == sorted(partition_for(f"k{n}") for n in range(6))
    for queue in (first, middle, source):
        assert await sdk.depth(queue) == (0, 0)


async def test_duplicates_are_found_by_id_and_key_also_of_scheduled_and_forwarded_messages(sdk: Sdk) -> None:
    queue = await sdk.queue(enable_partitioning=True, requires_duplicate_detection=True)
    source = await sdk.queue(forward_to=queue)
    for _ in range(2):
        await sdk.send(queue, ServiceBusMessage("x", message_id="m", partition_key="a"))
        await sdk.send(queue, ServiceBusMessage("x", message_id="m", partition_key="b"))
        await sdk.send(queue, ServiceBusMessage("x", message_id="m", session_id="c"))
        await sdk.send(source, ServiceBusMessage("x", message_id="forwarded"))
    assert len(await sdk.receive(queue, 8, wait=2)) == 4


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
