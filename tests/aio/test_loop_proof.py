"""What only the async clients have to prove: they belong to one loop of one process, callbacks may be coroutines, and
the administration client comes with an extra."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.aio import ServiceBusClient
from pairbus.aio import health_monitor as monitor_module
from pairbus.pairing.errors import ForkedClientError, WrongLoopError
from pairbus.pairing.events import BacklogQueueReturned, Event, PairingCompleted

from .background import wait_until
from .stage import Stage
from .test_client import PRIMARY, SECONDARY, Clients, Pair, options
from .test_client import clients as clients
from .test_client import pair as pair
from .test_health_monitor import MakeStage, fail_over, running
from .test_receiver import Rig
from .test_receiver import rig as rig


async def test_another_loop_is_a_clear_error(clients: Clients) -> None:
    client = clients()
    await client.pair_namespace(options(clients(SECONDARY)))
    sender = client.get_queue_sender("orders")

    def elsewhere() -> None:
        asyncio.run(sender.send_messages(ServiceBusMessage("x")))

    with pytest.raises(WrongLoopError):
        await asyncio.to_thread(elsewhere)


async def test_without_aiohttp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.servicebus.aio.management", None)
    with pytest.raises(ImportError, match=r"install pairbus\[aio\], or pass manage=False"):
        await ServiceBusClient.paired(PRIMARY, SECONDARY)


PROGRAM = """
import asyncio, sys
import pairbus.aio
from azure.servicebus import ServiceBusMessage

async def main(primary, secondary, ca_file, queue, syphon):
    options = {"enable_syphon": True, "syphon_engine": "in-process"} if syphon == "syphon" else {}
    client = await pairbus.aio.ServiceBusClient.paired(
        primary, secondary, ca_file=ca_file, primary_name=queue, backlog_queue_count=1, **options
    )
    await client.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("syphon", ["syphon", "no syphon"])
async def test_a_program_that_ends_without_closing_prints_nothing(pair: Pair, syphon: str) -> None:
    connections = (pair.primary.connection_string, pair.secondary.connection_string, str(pair.primary.ca_file))
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *connections, "orders", syphon, stdout=PIPE, stderr=STDOUT
    )
    printed, _ = await program.communicate()
    assert (printed.decode(), program.returncode) == ("", 0)


async def test_a_forked_child_gets_a_clear_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = rig.receiver()
    await receiver.peek_messages(1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        for call in (receiver.receive_messages, receiver.peek_messages):
            with pytest.raises(ForkedClientError, match="Make the client in the child"):
                await call(1)


async def test_p23_what_a_callback_lets_pass_is_not_the_end_of_all_events(stage: MakeStage) -> None:
    given = stage()
    heard: list[Event] = []
    awaited: list[Event] = []

    def broken(event: Event) -> None:
        raise GeneratorExit

    async def cancelled(event: Event) -> None:
        awaited.append(event)
        raise asyncio.CancelledError

    for callback in (broken, cancelled, heard.append):
        given.monitor._subscribers.subscribe(callback)
    with pytest.raises(GeneratorExit):
        given.monitor.announce(BacklogQueueReturned(1), BacklogQueueReturned(2))
    assert heard == [BacklogQueueReturned(1), BacklogQueueReturned(2)]
    with pytest.raises(GeneratorExit):
        given.monitor.announce(BacklogQueueReturned(3))
    assert heard[-1] == BacklogQueueReturned(3)
    while len(awaited) < 3:
        await asyncio.sleep(0)


async def test_p23_callbacks_may_be_coroutines_and_are_awaited_in_order(stage: MakeStage) -> None:
    given = stage()
    seen: list[int] = []

    async def slow(event: Event) -> None:
        assert isinstance(event, PairingCompleted)
        await asyncio.sleep(0.02 / event.backlog_queue_count)
        seen.append(event.backlog_queue_count)
        if event.backlog_queue_count == 2:
            raise RuntimeError("logged and ignored")

    given.monitor._subscribers.subscribe(slow)
    given.monitor.announce(*(PairingCompleted(number) for number in (1, 2, 3)))
    assert seen == [], "the caller is not kept waiting"
    await given.monitor.close()
    assert seen == [1, 2, 3], "closing waits for them"


async def test_p44_closing_does_not_wait_for_ever_for_a_coroutine(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "TELL_S", 0.02)
    given = stage()

    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    given.monitor._subscribers.subscribe(hang)
    given.monitor.announce(PairingCompleted(1), PairingCompleted(2))
    await asyncio.wait_for(given.monitor.close(), 1)


async def test_a_client_belongs_to_one_loop(stage: MakeStage) -> None:
    given = stage()
    given.monitor.check_loop()

    async def elsewhere() -> None:
        given.monitor.check_loop()

    def on_another_loop() -> None:
        asyncio.run(elsewhere())

    with pytest.raises(WrongLoopError, match="from another one"):
        await asyncio.to_thread(on_another_loop)
    with pytest.raises(WrongLoopError, match="outside of a loop"):
        await asyncio.to_thread(given.monitor.check_loop)


async def test_in_a_forked_child_the_loop_is_the_parents(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    given = stage()
    monkeypatch.setattr("pairbus.aio.sdk_sender.os.getpid", lambda: -1)
    with pytest.raises(ForkedClientError):
        await asyncio.to_thread(given.monitor.check_loop)


def test_a_timer_keeps_no_loop_alive() -> None:
    async def main() -> None:
        given = Stage()
        fail_over(given)
        assert given.monitor._timer is not None

    asyncio.run(asyncio.wait_for(main(), 5))


async def test_p44_closing_ends_a_ping_that_hangs(stage: MakeStage) -> None:
    given = running(stage)
    given.pinger.answers.append(asyncio.Event().wait)
    fail_over(given)
    assert await wait_until(lambda: given.pinged == ["orders"])
    await given.monitor.close()
    assert given.monitor._pings_under_way() == 0 and not given.monitor._tasks
