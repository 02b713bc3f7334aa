"""Messages that wait: scheduled, deferred, and those whose time runs out; through the official SDK."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.untidy_sdk import UNTIDY_SDK

from .conftest import Clock
from .sdk import Sdk

pytestmark = UNTIDY_SDK


def at(clock: Clock, seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock() + seconds, datetime.UTC)


def later(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


async def test_a_scheduled_message_appears_when_its_time_has_come(sdk: Sdk, queue: str, clock: Clock) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage("b"), ServiceBusMessage("c")], at(clock, 1200))
        await sender.send_messages(ServiceBusMessage("a", scheduled_enqueue_time_utc=at(clock, 600)))
        await sender.send_messages(ServiceBusMessage("now", scheduled_enqueue_time_utc=at(clock, -5)))
    assert len(set(numbers)) == 2
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        peeked = await receiver.peek_messages(max_message_count=10, sequence_number=1)
        states = {str(m): m.state.name for m in peeked}
        assert states == {"b": "SCHEDULED", "c": "SCHEDULED", "a": "SCHEDULED", "now": "ACTIVE"}
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["now"]
    clock.advance(601)
    assert [str(m) for m in await sdk.receive(queue, 2, wait=2)] == ["a"]
    clock.advance(600)
    got = await sdk.receive(queue, 3, wait=2)
    assert sorted(str(m) for m in got) == ["b", "c"]
    assert min(m.sequence_number for m in got) > max(numbers)


async def test_a_scheduled_message_can_be_cancelled_until_then(sdk: Sdk, queue: str, clock: Clock) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage(str(i)) for i in range(3)], at(clock, 600))
        await sender.cancel_scheduled_messages(numbers[0])
        await sender.cancel_scheduled_messages(numbers[1:2])
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[0])
        clock.advance(601)
        assert [str(m) for m in await sdk.receive(queue, 3, wait=2)] == ["2"]
        with pytest.raises(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers[2])


async def test_a_deferred_message_is_received_by_its_number_only(sdk: Sdk, queue: str) -> None:
    await sdk.send(queue, [ServiceBusMessage(str(i)) for i in range(4)])
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        numbers = []
        for _ in range(3):
            (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
            numbers.append(message.sequence_number)
            await receiver.defer_message(message)
        (rest,) = await receiver.receive_messages(max_message_count=5, max_wait_time=2)
        assert str(rest) == "3"
        await receiver.complete_message(rest)
        assert await receiver.receive_messages(max_message_count=1, max_wait_time=1) == []
        peeked = await receiver.peek_messages(max_message_count=5, sequence_number=1)
        assert [m.state.name for m in peeked] == ["DEFERRED"] * 3
        first, second = await receiver.receive_deferred_messages(numbers[:2])
        assert [str(m) for m in (first, second)] == ["0", "1"]
        assert first.delivery_count == 0 or first.delivery_count == 1
        await receiver.complete_message(first)
        await receiver.abandon_message(second)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([numbers[0]])
        (second,) = await receiver.receive_deferred_messages([numbers[1]])
        await receiver.dead_letter_message(second, reason="enough")
    async with (
        sdk.client() as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        (third,) = await receiver.receive_deferred_messages([numbers[2]])
        assert str(third) == "2"
    assert await sdk.depth(queue) == (0, 1)


@pytest.mark.parametrize("dead_letters", [True, False])
async def test_time_to_live(sdk: Sdk, clock: Clock, dead_letters: bool) -> None:
    queue = await sdk.queue(dead_lettering_on_message_expiration=dead_letters, default_message_time_to_live=later(1000))
    await sdk.send(
        queue,
        ServiceBusMessage("short", time_to_live=later(60)),
        ServiceBusMessage("long", time_to_live=later(9999)),
        ServiceBusMessage("default"),
    )
    clock.advance(61)
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        peeked = await receiver.peek_messages(max_message_count=5, sequence_number=1)
        assert [str(m) for m in peeked] == ["long", "default"]
    clock.advance(1000)
    assert await sdk.receive(queue, 1, wait=1) == []
    assert await sdk.depth(queue) == (0, 3 if dead_letters else 0)
    if dead_letters:
        dead = await sdk.receive(queue, 3, sub_queue="deadletter")
        assert {m.dead_letter_reason for m in dead} == {"TTLExpiredException"}
        assert sorted(str(m) for m in dead) == ["default", "long", "short"]


async def test_duplicates_are_confirmed_and_dropped(sdk: Sdk, clock: Clock) -> None:
    queue = await sdk.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=later(600))

    def message(body: str, mid: str) -> ServiceBusMessage:
        return ServiceBusMessage(body, message_id=mid)

    await sdk.send(
        queue, message("1", "a"), message("2", "a"), [message("3", "b"), message("4", "a"), message("5", "b")]
    )
    assert [str(m) for m in await sdk.receive(queue, 5, wait=1)] == ["1", "3"]
    await sdk.send(queue, message("6", "a"))
    assert await sdk.receive(queue, 1, wait=1) == []
    clock.advance(601)
    await sdk.send(queue, message("7", "a"))
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["7"]


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
        ("Disabled", False, False),
        ("Active", True, True),
    ],
)
async def test_status(sdk: Sdk, queue: str, status: str, sends: bool, receives: bool) -> None:
    await sdk.send(queue, ServiceBusMessage("before"))
    async with sdk.admin() as admin:
        properties = await admin.get_queue(queue)
        properties.status = status
        await admin.update_queue(properties)
        assert (await admin.get_queue(queue)).status == status

    async def attempt(action: Any, allowed: bool) -> None:
        if allowed:
            await action
        else:
            with pytest.raises(ServiceBusError, match="disabled"):
                await action

    await attempt(sdk.send(queue, ServiceBusMessage("x")), sends)
    await attempt(sdk.receive(queue, 1, wait=2), receives)


async def test_a_queue_that_nobody_uses_is_deleted(sdk: Sdk, clock: Clock) -> None:
    queue, used, attached = [await sdk.queue(auto_delete_on_idle=later(300)) for _ in range(3)]
    async with sdk.client() as client, client.get_queue_sender(attached):
        clock.advance(200)
        await sdk.send(used, ServiceBusMessage("x"))
        clock.advance(150)
        async with sdk.admin() as admin:
            for _ in range(200):
                names = {q.name for q in await admin.collect("list_queues")}
                if queue not in names:
                    break
        assert names & {queue, used, attached} == {used, attached}
