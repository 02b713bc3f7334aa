"""The secondary in trouble too: at the start, later, one queue of it, all of it; with few rights; shared by two."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message import Properties, encode_message
from pairbus.pairing.errors import BacklogUnavailableError, PairingError, PairingFailed

from ..pairing.silent_proxy import SilentProxy
from .account import ids
from .scenarios import in_both_apis
from .world import AT_ONCE, GRACE_S, OTHERS, SHORT, Pair, World


@in_both_apis()
async def test_p3_secondary_down_at_the_start_pairing_raises_and_can_be_done_again(world: World, queue: str) -> None:
    async with world.client() as client, contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(world.face(world.admin()))
        secondary = world.ours.ServiceBusClient.from_connection_string(world.secondary.connection_string)
        options = world.options(admin.target, secondary)
        async with world.fault("unreachable", namespace=world.secondary.name):
            with pytest.raises(PairingFailed):
                await client.pair_namespace(options)
        unpaired = client.wrap(await client.get_queue_sender(queue))
        await Pair(world, client, 60).deliver(queue, world.message(), sender=unpaired)
        # P5: the same options, now that the secondary is there
        await client.pair_namespace(options)
        assert options.backlog_queue_count == 2
        pair = Pair(world, client)
        async with world.fault("no-send", entity=queue):
            await pair.deliver(queue, world.message())
    await world.restore_message()


@in_both_apis(each={"managed": (True,), "ready-made": (False,)})
async def test_p3_a_secondary_that_is_silent_at_the_start_costs_the_time_of_a_send(world: World, manage: bool) -> None:
    begun = time.monotonic()
    async with world.fault("black-hole", namespace=world.secondary.name):
        with pytest.raises(PairingFailed):
            async with world.pair(send_timeout=3, manage=manage):
                pass
        assert time.monotonic() - begun < 3 + GRACE_S


#: The SDK's own pauses of 1.6, 3.2 and 6.4 s, by a factor of 0.1 instead of 0.8.
TENTH: dict[str, Any] = {"sdk": {"retry_backoff_factor": 0.1}}


@in_both_apis(each={"the SDK's own": (TENTH, 1.4), "interactive": ({"profile": "interactive"}, 1.0)})
async def test_p13_where_both_refuse_a_send_tries_as_long_as_the_sdk_would(
    world: World, queue: str, options: dict[str, Any], ends_s: float
) -> None:
    """With ten backlog queues; every send, not the first alone."""
    async with (
        world.pair(send_timeout=60, backlog_queue_count=10, backlog_retry_interval=30, **options) as pair,
        world.fault("unreachable"),
        world.fault("unreachable", namespace=world.secondary.name),
    ):
        for _ in range(2):
            outcome = await pair.send(queue, world.message())
            assert isinstance(outcome.error, BacklogUnavailableError)
            assert outcome.elapsed_s < ends_s + 5 * GRACE_S, "far less than the time that the caller gave"
            assert "Nothing was sent" in str(outcome.error)
    tally = await world.nothing_lost()
    assert (tally.home, tally.waiting) == ((), ())


@in_both_apis()
async def test_p3_secondary_down_at_the_start_degrade_lets_the_application_start(world: World) -> None:
    queue, sick = await world.queue(), await world.queue()
    async with contextlib.AsyncExitStack() as stack:
        down = await stack.enter_async_context(contextlib.AsyncExitStack())
        await down.enter_async_context(world.fault("unreachable", namespace=world.secondary.name))
        client = await stack.enter_async_context(world.client(retry_total=0))
        admin = await stack.enter_async_context(world.face(world.admin()))
        secondary = world.ours.ServiceBusClient.from_connection_string(world.secondary.connection_string)
        pair = Pair(world, client)
        await client.pair_namespace(world.options(admin.target, secondary, on_secondary_unavailable="degrade"))
        assert len(pair.named("PairingDegraded")) == 1
        await pair.deliver(queue, world.message())
        async with world.fault("no-send", entity=sick):
            refused = world.message()
            # no backlog yet: the caller sees what the primary said, or that there is nowhere to go
            await pair.refuse(sick, refused, error=ServiceBusError)
            await down.aclose()
            (completed,) = await pair.until_event("PairingCompleted", within=40)
            assert completed.backlog_queue_count == 2
            await pair.deliver(sick, world.message())
            assert len(await world.in_backlog()) == 1
    tally = await world.restore_message()
    assert set(ids(tally.home)) == world.account.confirmed


@in_both_apis(each={"unreachable": ("unreachable",), "black-hole": ("black-hole",)})
async def test_p13_p22_secondary_down_later_callers_are_told_and_it_comes_back(
    world: World, queue: str, kind: str
) -> None:
    async with world.pair(**SHORT, sdk=AT_ONCE) as pair, world.fault("no-send", entity=queue):
        await pair.deliver(queue, world.message())
        async with world.fault(kind, namespace=world.secondary.name):
            for _ in range(2):
                await pair.refuse(queue, world.message(), error=ServiceBusError)
        begun = time.monotonic()
        while not (await pair.send(queue, world.message())).is_sent:
            assert time.monotonic() - begun < 15
        await pair.deliver(queue, *world.messages(3))
    await world.restore_message()


@in_both_apis()
async def test_p12_p13_one_backlog_queue_fails_and_every_sender_learns_of_it(world: World, queue: str) -> None:
    async with world.pair(backlog_queue_count=3, backlog_retry_interval=2, sdk=AT_ONCE) as pair:
        await pair.client.force_failover(queue, hold=True)
        senders = [await pair.sender(queue, fresh=True) for _ in range(8)]
        async with world.fault("no-send", namespace=world.secondary.name, entity=world.backlog_path(1)):
            begun = time.monotonic()
            while not pair.named("BacklogQueueEjected"):  # P12: at random, so one of them soon picks it
                await asyncio.gather(*(pair.deliver(queue, world.message(), sender=each) for each in senders))
                senders.append(await pair.sender(queue, fresh=True))
                assert time.monotonic() - begun < 15
            assert {event.queue for event in pair.named("BacklogQueueEjected")} == {1}
            assert await world.in_backlog(1) == []
        # by one trial message, when its time has come
        while not pair.named("BacklogQueueReturned"):
            await asyncio.gather(*(pair.deliver(queue, world.message(), sender=each) for each in senders[:4]))
            assert time.monotonic() - begun < 30
        (returned,) = pair.named("BacklogQueueReturned")
        assert returned.queue == 1
        assert len(await world.in_backlog(1)) >= 1
        await pair.client.mark_healthy(queue)
    tally = await world.restore_message()
    assert not tally.doubled


@in_both_apis()
async def test_p10_p13_a_full_backlog_queue_counts_as_failing(world: World, queue: str) -> None:
    """A queue that is there already is used as it is, however small (P10)."""
    await world.manage("create_queue", world.backlog_path(0), max_size_in_megabytes=1, at=world.secondary)
    await world.manage("create_queue", world.backlog_path(7), max_delivery_count=3, at=world.secondary)
    async with world.pair(sdk=AT_ONCE) as pair:
        await pair.client.force_failover(queue, hold=True)
        async with world.wire(world.secondary) as client:
            sender = await client.sender(world.backlog_path(0))
            properties = {"x-ms-path": queue}
            for number in range(6):
                message_id = f"{queue}-filling-{number}"
                payload = encode_message(
                    properties=Properties(message_id=message_id),
                    application_properties=properties,
                    body=bytes(200_000),
                )
                (error,) = await sender.send_many([payload])
                if error is None:
                    world.account.entities[message_id] = queue
                    world.account.confirmed.add(message_id)
        assert error is not None
        for _ in range(6):
            sender_ = await pair.sender(queue, fresh=True)
            await pair.deliver(queue, world.message(bytes(200_000)), sender=sender_)
        assert len(await world.in_backlog(1)) == 6
        await pair.client.mark_healthy(queue)
    assert (await world.manage("get_queue", world.backlog_path(0), at=world.secondary)).max_size_in_megabytes == 1
    assert (await world.manage("get_queue", world.backlog_path(7), at=world.secondary)).max_delivery_count == 3
    assert (
        await world.manage("get_queue_runtime_properties", world.backlog_path(7), at=world.secondary)
    ).total_message_count == 0
    await world.restore_message()


@in_both_apis()
async def test_p4_pairing_without_the_manage_right(world: World, queue: str) -> None:
    """Ready-made queues and a key that may send, no more."""
    text = world.key(world.secondary, f"k{world.number}", "Send")
    for index in range(2):
        await world.manage("create_queue", world.backlog_path(index), at=world.secondary)
    # P3: with the administration client it must be told
    with pytest.raises(PairingError):
        async with world.pair(secondary=text):
            pass
    async with world.pair(secondary=text, manage=False, sdk=AT_ONCE) as pair, world.fault("no-send", entity=queue):
        await pair.deliver(queue, world.message())
        await pair.deliver(queue, *world.messages(2))
        assert len(await world.in_backlog()) == 3
    await world.restore_message()


@in_both_apis()
async def test_p5_a_queue_that_cannot_be_made_is_left_out(world: World, queue: str) -> None:
    async with (
        world.client(retry_total=0) as client,
        world.face(world.admin()) as admin,
        world.fault("no-manage", namespace=world.secondary.name, entity=world.backlog_path(1)),
    ):
        secondary = world.ours.ServiceBusClient.from_connection_string(world.secondary.connection_string)
        options = world.options(admin.target, secondary, backlog_queue_count=3)
        pair = Pair(world, client)
        await client.pair_namespace(options)
        assert options.backlog_queue_count == 2
        await pair.client.force_failover(queue, hold=True)
        for _ in range(10):
            await pair.deliver(queue, world.message(), sender=await pair.sender(queue, fresh=True))
        # indexes keep their numbers
        assert {found.place for found in await world.in_backlog()} <= {world.backlog_path(0), world.backlog_path(2)}
        assert [event.queue for event in pair.named("BacklogQueueLeftOut")] == [1]
    await world.restore_message()


@in_both_apis()
async def test_p6_several_primaries_share_one_secondary(world: World) -> None:
    """The same names on both sides; each primary's messages come home to it."""
    async with World(world.broker, world.api, world.lane, world.folder) as other:
        other.primary = world.broker.namespaces[OTHERS[world.lane]]
        name = await world.queue()
        await other.manage("create_queue", name)
        other.queues.append(name)
        async with world.pair(sdk=AT_ONCE) as ours, other.pair(sdk=AT_ONCE) as theirs:
            async with world.fault("no-send", entity=name), other.fault("no-send", entity=name):
                await asyncio.gather(ours.deliver(name, *world.messages(3)), theirs.deliver(name, *other.messages(4)))
            assert len(await world.in_backlog()) == 3
            assert len(await other.in_backlog()) == 4
        assert len((await world.restore_message()).home) == 3
        assert len((await other.restore_message()).home) == 4


@in_both_apis()
async def test_p13_a_primary_that_is_back_takes_the_message_of_a_secondary_that_says_nothing(
    world: World, queue: str
) -> None:
    """The queues leave half a second for the primary, and opening a link to it takes longer."""
    with SilentProxy(world.primary.port, "delay", 0.05) as network:
        behind = world.primary.connection_string.replace(f":{world.primary.port}", f":{network.port}")
        async with world.pair(primary=behind, backlog_queue_count=3, send_timeout=4, sdk=AT_ONCE) as pair:
            await pair.client.force_failover(queue, hold=True)
            async with world.fault("black-hole", namespace=world.secondary.name):
                await pair.deliver(queue, world.message())
            await pair.client.mark_healthy(queue)
    await world.restore_message()


@in_both_apis()
async def test_p13_a_link_that_takes_longer_to_open_than_an_attempt_has_is_open_for_the_next(
    world: World, queue: str
) -> None:
    """0.6 s away each way: opening a link takes longer than any queue's share of 8 s."""
    with SilentProxy(world.secondary.port) as network:
        behind = world.secondary.connection_string.replace(f":{world.secondary.port}", f":{network.port}")
        async with (
            world.fault("no-send", entity=queue),
            world.pair(secondary=behind, backlog_queue_count=3, send_timeout=8, sdk=AT_ONCE) as pair,
        ):
            network.cut()
            network.point, network.count = "delay", 0.6
            early = [await pair.send(queue, world.message()) for _ in range(3)]
            assert early[0].error is not None, "the secondary is not far away at all"
            assert early[2].error is None
            for _ in range(5):
                await pair.deliver(queue, world.message())
            assert pair.named("BacklogQueueEjected") == []
    assert {each.message_id for each in await world.in_backlog()} == world.account.confirmed
