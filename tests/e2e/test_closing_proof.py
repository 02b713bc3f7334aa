"""Closing and faulting (P43, P44): what ends with a paired client, and what one client's end means for the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker
from pairbus.pairing.errors import ClientFaultedError

from .scenarios import in_both_apis
from .world import APIS, AT_ONCE, GRACE_S, SHORT, Api, Face, Pair, World, until

HOSTED = {"enable_syphon": True, "syphon_engine": "in-process"}


@contextlib.asynccontextmanager
async def both(world: World, key: str | None = None, **options: object):
    """A pair whose secondary client the test holds, too; with a `key` of its own."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(world.client(retry_total=0))
        admin = await stack.enter_async_context(world.face(world.admin()))
        secondary = await stack.enter_async_context(world.client(key or world.secondary.connection_string))
        pair = Pair(world, client)
        await client.pair_namespace(world.options(admin.target, secondary.target, **options))
        yield pair, secondary


async def use(client: Face, world: World) -> None:
    sender = client.wrap(await client.get_queue_sender(world.backlog_path(0)))
    await sender.send_messages(world.message())


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("unreachable", "lost-answer"), id="cut"),
        pytest.param(("black-hole", "hang") * 2, id="hung", marks=pytest.mark.slow),
    ],
)
async def test_p44_closing_leaves_no_thread_and_no_task(
    broker: Broker, tmp_path: Path, api: Api, kinds: tuple[str, ...]
) -> None:
    """Not on the stage, where others have theirs."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()

    def left() -> list[str]:
        new = [each.name for each in set(threading.enumerate()) - threads if each.name.startswith("pairbus")]
        return [name for name in new if "watchdog" not in name]  # one for the process, for good

    async with World(broker, api, 0, tmp_path) as world:
        queue = await world.queue()
        async with world.pair(**HOSTED, **SHORT, ledger=world.folder / "ledger", sdk=AT_ONCE) as pair:
            await pair.deliver(queue, world.message())
            for kind in kinds:
                async with world.fault(kind):
                    await pair.deliver(queue, world.message())
                await pair.until_state(queue, "HEALTHY")
        # the SDK's own closing goes on in the background for a second or two
        await until(lambda: not left(), 8, lambda: f"left: {left()}")
        await until(lambda: asyncio.all_tasks() == tasks, 8, lambda: f"left: {asyncio.all_tasks() - tasks}")
        await world.nobody_left()


@in_both_apis()
async def test_p44_closing_ends_pings_timers_syphon_and_both_clients(world: World) -> None:
    queue, sick, later = await world.queue(), await world.queue(), await world.queue()
    async with both(world, **HOSTED) as (pair, secondary):
        await pair.deliver(queue, world.message())
        async with world.fault("no-send", entity=sick):
            await pair.deliver(sick, world.message())
            await pair.client.force_failover(queue)
            await pair.until_event("PingFailed")
            await pair.client.close()
            begun = time.monotonic()
            for entity in (queue, sick):
                outcome = await pair.send(entity, world.message())
                assert outcome.error is not None, "a closed client sends nothing"
            with pytest.raises((ServiceBusError, ValueError)):
                await use(secondary, world)
            assert time.monotonic() - begun < 4
            async with world.pair() as open_pair:
                await open_pair.client.force_failover(later)
                await open_pair.until_state(later, "HEALTHY")
                pings = world.pings(queue)  # one that was under way at the closing has arrived by now
                await open_pair.client.force_failover(later)
                await until(lambda: world.pings(later) == 2)  # a ping interval later
            assert world.pings(queue) == pings
            events = len(pair.events)
        assert len(pair.events) == events
    # what the syphon held locked is free at once: another one needs no lock to run out, which takes a minute
    begun = time.monotonic()
    await world.restore_message()
    assert time.monotonic() - begun < 20


@in_both_apis(each={"primary": ("primary",), "secondary": ("secondary",)})
async def test_p43_the_partner_of_a_closed_client_is_faulted_within_five_seconds(
    world: World, queue: str, which: str
) -> None:
    async with both(world, **HOSTED) as (pair, secondary):
        await pair.deliver(queue, world.message())
        if which == "secondary":
            begun = time.monotonic()
            await secondary.close()
            (event,) = await pair.until_event("ClientFaulted", within=15)
            assert 4 < time.monotonic() - begun < 12
            error = await pair.refuse(queue, world.message(), error=ClientFaultedError)
            names = (world.primary_name, f"localhost:{world.secondary.port}")
            assert all(f"the client of {name}" in str(error) for name in names), error
            assert event.error is not None
        else:
            await pair.client.close()  # closes both (P44), so nobody is left to be faulted
    assert bool(pair.named("ClientFaulted")) == (which == "secondary")
    await world.nothing_lost()


@in_both_apis(
    each={
        "the primary does not answer": ({"primary": "hang"},),
        "the primary is silent": ({"primary": "black-hole"},),
        "the secondary is silent": ({"secondary": "black-hole"},),
        "both are silent": ({"primary": "black-hole", "secondary": "black-hole"},),
    }
)
async def test_p44_closing_takes_at_most_five_seconds_while_the_syphon_is_in_a_batch(
    world: World, queue: str, faults: dict[str, str]
) -> None:
    await world.backlog_queues()
    async with contextlib.AsyncExitStack() as stack, world.pair(**HOSTED, **SHORT, sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message())
        await stack.enter_async_context(world.fault("hang", entity=queue))
        await pair.client.force_failover(queue, hold=True)
        await pair.deliver(queue, *world.messages(20))
        await until(lambda: _in_hand(pair) >= 20, 15)
        for which, kind in faults.items():
            name = getattr(world, which).name
            await stack.enter_async_context(world.fault(kind, namespace=name))
        begun = time.monotonic()
        await pair.client.close()
        assert time.monotonic() - begun < 5.0 + GRACE_S
    await world.restore_message()


def _in_hand(pair: Any) -> int:
    engine = pair.client.target._pairing._host._syphon._engine
    return 0 if engine is None else int(engine.transfer_state.in_hand)


@in_both_apis()
async def test_p44_a_send_under_way_ends_with_the_client(world: World, queue: str) -> None:
    """Closed from elsewhere while a send hangs: the caller gets an answer within his time."""
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("black-hole"), world.fault("black-hole", namespace=world.secondary.name):
            task = asyncio.create_task(pair.send(queue, world.message()))
            await world.until_unanswered()
            begun = time.monotonic()
            await pair.client.close()
            assert time.monotonic() - begun < 8
            assert (await task).error is not None
    await world.nothing_lost()


@in_both_apis()
async def test_p7_a_closed_sender_leaves_the_client_open(world: World, queue: str) -> None:
    async with world.pair() as pair:
        sender = await pair.sender(queue, fresh=True)
        async with sender:
            await pair.deliver(queue, world.message(), sender=sender)
        outcome = await pair.send(queue, world.message(), sender=sender)
        assert outcome.error is not None, "closed, as with the SDK"
        await pair.deliver(queue, world.message())
    await world.nothing_lost(home=True)


@in_both_apis()
async def test_p7_a_sender_reopens_after_its_link_was_lost(world: World, queue: str) -> None:
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("unreachable"):
            pass  # every connection was cut
        await pair.deliver(queue, world.message())
        await pair.until_state(queue, "HEALTHY")
    await world.restore_message()
