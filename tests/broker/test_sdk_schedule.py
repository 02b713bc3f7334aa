"""Messages that wait: scheduled, deferred, and those whose time runs out; through the official SDK."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

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
