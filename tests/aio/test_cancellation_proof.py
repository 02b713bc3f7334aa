"""What only the async guarded sender has to prove: of cancelled tasks, its timer, uvloop, and a forked child."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.aio import sdk_sender
from pairbus.aio.guarded_sender import GuardedSender
from pairbus.broker.server import Broker
from pairbus.pairing.errors import ForkedClientError, NotTriedError

from ..pairing.sdk_rig import LATE_S, TRANSPORTS, sdk_client, takes
from ..pairing.silent_proxy import SilentProxy
from .background import wait_until
from .test_guarded_sender import Rig, a_send, hello
from .test_guarded_sender import rig as rig


async def test_p13_an_opening_goes_on_after_its_caller_was_cancelled(rig: Rig) -> None:
    network = rig.proxy("delay", 0.1)
    sender = rig.sender(port=network.port)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.open(5, 5), 0.2)
    await sender.send(hello(), 10)
    assert network.accepted == 1
    assert rig.arrived() == ["hello"]


async def test_p19_a_call_that_comes_just_when_another_may_begin_has_a_deadline_too(rig: Rig) -> None:
    """The lock is free from its release until the first of those who wait for it is woken."""
    sender, _proxy = await rig.silenced()
    await sender._lock.acquire()
    hung = asyncio.create_task(a_send(sender, 2.0))
    await asyncio.sleep(0)
    sender._lock.release()
    with takes(0.29, 0.3 + LATE_S), pytest.raises(NotTriedError, match="other sends"):
        await sender.send(hello(), 0.3)
    with pytest.raises(OperationTimeoutError):
        await hung
    assert not sender._lock.locked()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_p19_under_uvloop_too(pairbus_broker: Broker, pairbus_queue: Callable[..., str], transport: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    queue = pairbus_queue("uvloop")
    server = pairbus_broker.namespaces["contoso"]

    async def silence(proxy: SilentProxy) -> None:
        async with sdk_client(ServiceBusClient, transport, server, proxy.port) as client:
            sender = GuardedSender(lambda: client.get_queue_sender(queue), queue)
            await sender.send(hello(), 5)
            proxy.fall_silent()
            for _ in range(2):
                with takes(0.29, 0.3 + LATE_S), pytest.raises(OperationTimeoutError):
                    await sender.send(hello(), 0.3)
            proxy.speak_again()
            await sender.send(hello(), 5)
            await sender.close()
            assert await wait_until(lambda: not sdk_sender._background)

    with SilentProxy(server.port) as proxy, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(silence(proxy))


@pytest.mark.parametrize("point", ["", "accept", "attach"])
async def test_p7_a_cancelled_send_throws_the_sender_away_and_the_next_one_works(rig: Rig, point: str) -> None:
    proxy = rig.proxy(point)
    sender = rig.sender(port=proxy.port)
    if not point:
        await sender.send(hello(), 5)
        proxy.fall_silent()
    task = asyncio.create_task(sender.send(hello(), 20))
    await rig.hangs(sender, proxy)
    task.cancel()
    with takes(0.0, LATE_S), pytest.raises(asyncio.CancelledError):
        await task
    assert sender._sdk_sender is None
    proxy.speak_again()
    await sender.send(hello(), 5)


async def test_p7_a_call_that_swallows_its_cancellation_is_ended_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `asyncio.wait_for` does before Python 3.12, where the answer comes in the turn of the cancellation."""
    begun, swallowed = asyncio.Event(), asyncio.Event()
    sender = rig.sender()

    async def swallow(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
            await asyncio.sleep(60)

    monkeypatch.setattr("azure.servicebus.aio.ServiceBusSender._send", swallow)
    task = asyncio.create_task(sender.send(hello(), 50))
    assert await wait_until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_until(swallowed.is_set)
    assert await wait_until(lambda: not any("Opening._run" in repr(task) for task in asyncio.all_tasks()))


async def test_the_callers_own_timeout_comes_out_as_it_is(rig: Rig) -> None:
    sender, _ = await rig.silenced()
    with takes(0.15, 0.2 + LATE_S), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await sender.send(hello(), 20)


async def test_one_timer_serves_many_sends_and_shorter_times_are_kept(rig: Rig) -> None:
    proxy = rig.proxy()
    sender = await rig.used(port=proxy.port)
    for wait_s in (30, 60, 30, 60):
        await sender.send(hello(), wait_s)
    sdk_sender = sender._sdk_sender
    assert sdk_sender is not None
    timer = sdk_sender._alarm._timer
    await sender.send(hello(), 60)
    assert sdk_sender._alarm._timer is timer
    await sender.send(hello(), 0.2)
    assert await wait_until(lambda: sdk_sender._alarm._timer is None), "it rings when nothing is under way"
    await sender.send(hello(), 0.2)
    proxy.fall_silent()
    with takes(0.39, 0.4 + LATE_S), pytest.raises(OperationTimeoutError):
        await sender.send(hello(), 0.4)  # the timer of the send before it rings meanwhile


async def test_a_task_that_timed_out_goes_on_uncancelled(rig: Rig) -> None:
    sender, _ = await rig.silenced()
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(OperationTimeoutError):
        await sender.send(hello(), 0.2)
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_forked_child_gets_a_clear_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = await rig.used()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ForkedClientError, match="Make the client in the child"):
            await sender.send(hello(), 5)
    await sender.send(hello(), 5)
