"""Sessions, through the official SDK."""

from __future__ import annotations

import asyncio
import datetime
import time

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, exceptions

from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon

from .conftest import Clock
from .sdk import Bridge, Sdk, both_apis

pytestmark = UNTIDY_SDK


def message(session: str, body: str) -> ServiceBusMessage:
    return ServiceBusMessage(body, session_id=session)


async def session_queue(sdk: Sdk, **options: object) -> str:
    return await sdk.queue(requires_session=True, lock_duration=datetime.timedelta(seconds=300), **options)


async def drain(receiver: Bridge, count: int) -> list[str]:
    got: list[str] = []
    while len(got) < count:
        new = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=3)
        if not new:
            break
        for each in new:
            got.append(str(each))
            await receiver.complete_message(each)
    return got


async def receive_on(receiver: Bridge) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        await receiver.receive_messages(max_message_count=1, max_wait_time=1)


@both_apis
async def test_the_next_available_session_is_one_that_nobody_holds(sdk: Sdk) -> None:
    queue = await session_queue(sdk)
    await sdk.send(queue, *[message(s, s) for s in "abc"])
    async with sdk.client() as client, client.get_queue_receiver(queue, session_id="a") as held:
        seen = []
        for _ in range(2):
            async with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
                seen.append(receiver.session.session_id)
                assert await drain(receiver, 1) == seen[-1:]
        assert sorted(seen) == ["b", "c"]
        with pytest.raises(exceptions.OperationTimeoutError):
            async with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
                pass
        assert await drain(held, 1) == ["a"]


@both_apis
async def test_a_receiver_waits_for_a_session_to_come(sdk: Sdk) -> None:
    queue = await session_queue(sdk)

    async def wait() -> list[str]:
        async with (
            sdk.client() as client,
            client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver,
        ):
            return await drain(receiver, 1)

    waiting = asyncio.create_task(wait())
    await soon(lambda: any("1 waiting" in repr(each) for each in list(sdk.namespace._session_waiters.values())))
    await sdk.send(queue, message("late", "x"))
    assert await waiting == ["x"]


async def test_a_session_lock_is_renewed_or_lost(sdk: Sdk, clock: Clock) -> None:
    queue = await session_queue(sdk, max_delivery_count=3)
    await sdk.send(queue, message("s", "x"))
    async with sdk.client() as client, client.get_queue_receiver(queue, session_id="s") as receiver:
        before = receiver.session.locked_until_utc
        clock.advance(200)
        await Bridge(receiver.session, sdk.is_async).renew_lock()
        assert (receiver.session.locked_until_utc - before).total_seconds() >= 199
        clock.advance(200)
        (first,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
        clock.advance(301)
        with pytest.raises((exceptions.SessionLockLostError, exceptions.ServiceBusError)):
            await receive_on(receiver)
    async with sdk.client() as client, client.get_queue_receiver(queue, session_id="s") as receiver:
        (first,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
        assert (str(first), first.delivery_count) == ("x", 1)
        await receiver.complete_message(first)


async def test_sessions_are_needed_exactly_where_they_are_asked_for(sdk: Sdk) -> None:
    with_sessions, without = await session_queue(sdk), await sdk.queue()
    async with sdk.client() as client:
        with pytest.raises(exceptions.ServiceBusError, match="session"):
            await sdk.send(with_sessions, ServiceBusMessage("x"))
        with pytest.raises(exceptions.ServiceBusError, match="session"):
            async with client.get_queue_receiver(with_sessions) as receiver:
                await receiver.receive_messages(max_wait_time=1)
        with pytest.raises(exceptions.ServiceBusError, match="session"):
            async with client.get_queue_receiver(without, session_id="s"):
                pass
