"""The primary fails in every way that it can; with interval zero no caller sees it, and everything comes home.

Each test says what the callers saw, what arrived and where, and that nothing was lost. That no caller was kept past
its time is asserted in `Pair.attempt`, for every send of every test.
"""

from __future__ import annotations

import asyncio
import contextlib
from unittest import mock

from azure.servicebus.exceptions import ServiceBusError

from .account import ids
from .scenarios import in_both_apis
from .world import SHORT, Pair, World

#: What happens, and to what: the whole namespace, or one entity of it.
OUTAGES = {
    "refused": ("unreachable", "namespace"),
    "entity refused": ("unreachable", "entity"),
    "black hole": ("black-hole", "namespace"),
    "entity black hole": ("black-hole", "entity"),
    "hang after accept": ("hang", "namespace"),
    "answer lost": ("lost-answer", "namespace"),
    "internal error": ("no-send", "entity"),
}


@in_both_apis(each={each: (each,) for each in ("crash-entity", "crash-node")})
async def test_p49_a_node_or_an_entity_that_fails_is_ridden_out(world: World, queue: str, kind: str) -> None:
    """Slow at first, which no caller minds; then down, so that messages take the detour; others are not touched."""
    nodes = world.primary.crashes.nodes
    other = await world.queue()
    while nodes.node_of(other) == nodes.node_of(queue):
        other = await world.queue()
    async with world.pair(**SHORT) as pair:
        async with world.fault(kind, entity=queue, delay=0.05, seconds=60):
            await pair.deliver(queue, world.message())
            assert pair.state(queue) == "HEALTHY"
        with mock.patch("pairbus.broker.crashes.SLOW_SHARE", 0.001):
            async with world.fault(kind, entity=queue, seconds=200):
                while pair.state(queue) == "HEALTHY":
                    await pair.deliver(queue, world.message())
                for _ in range(3):
                    await pair.deliver(queue, world.message())
                    await pair.deliver(other, world.message())
                assert (pair.state(queue), pair.state(other)) == ("FAILED_OVER", "HEALTHY")
        await pair.until_state(queue, "HEALTHY", within=30)
        await pair.deliver(queue, world.message())
        assert pair.changes(other) == []
    await world.restore_message()


@in_both_apis(each=OUTAGES)
async def test_p17_with_interval_zero_no_caller_sees_the_outage(
    world: World, queue: str, kind: str, scope: str
) -> None:
    before, failing, after = world.messages(3)
    during = world.messages(7)
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, before)
        assert pair.state(queue) == "HEALTHY"
        async with world.fault(kind, entity=queue if scope == "entity" else None):
            await pair.deliver(queue, failing)
            assert pair.state(queue) == "FAILED_OVER"
            # the primary is not tried any more: these take no part of a time-out
            for message in during[:4]:
                outcome = await pair.deliver(queue, message)
                assert outcome.elapsed_s < pair.send_timeout / 2
            await pair.deliver(queue, *during[4:])
            waiting = await world.in_backlog()
            assert sorted(ids(waiting)) == sorted(ids([failing, *during]))
            assert {found.path for found in waiting} == {queue}
        await pair.until_state(queue, "HEALTHY")
        # P21: at once, before the backlog is drained
        await pair.deliver(queue, after)
        assert after.message_id in ids(await world.at_home(queue))
        assert len(await world.in_backlog()) == len(waiting)
        assert pair.changes(queue) == ["FAILED_OVER", "HEALTHY"]
    tally = await world.restore_message()
    # P20: only the message whose outcome nobody knew may be there twice, under one id
    assert tally.doubled <= {failing.message_id}
    assert (failing.message_id in tally.doubled) >= (kind == "lost-answer")
    assert set(ids(tally.home)) == set(ids([before, failing, *during, after]))


@in_both_apis()
async def test_p20_duplicate_detection_removes_the_second_copy_after_a_lost_answer(world: World) -> None:
    queue = await world.queue(requires_duplicate_detection=True)
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("lost-answer"):
            for message in world.messages(3):
                await pair.deliver(queue, message)
        await pair.until_state(queue, "HEALTHY")
    tally = await world.restore_message()
    assert not tally.doubled
    assert len(tally.home) == 4


@in_both_apis(each={"unreachable": ("unreachable",), "black-hole": ("black-hole",)})
async def test_p3_an_application_that_starts_in_mid_outage_pairs_and_sends(world: World, kind: str) -> None:
    queue, topic = await world.queue(), await world.topic("all")
    async with world.fault(kind), world.pair(**SHORT) as pair:
        await asyncio.gather(pair.deliver(queue, world.message()), pair.deliver(topic, world.message()))
        await pair.deliver(queue, *world.messages(3))
        assert len(await world.in_backlog()) == 5
    tally = await world.restore_message()
    assert len(tally.home) == 5
    assert not tally.doubled


@in_both_apis()
async def test_p11_messages_of_many_entities_share_a_backlog_queue(world: World) -> None:
    entities = [await world.queue(), await world.queue(), await world.topic("all", "some")]
    async with world.fault("unreachable"), world.pair(backlog_queue_count=1, sdk={"retry_total": 0}) as pair:
        for entity in entities:
            await pair.deliver(entity, *world.messages(2))
        waiting = await world.in_backlog(0)
        assert sorted(found.path or "" for found in waiting) == sorted(entities * 2)
    tally = await world.restore_message()
    assert len(tally.home) == 2 + 2 + 2 * 2  # both subscriptions have theirs


@in_both_apis(each={"unreachable": ("unreachable",), "black-hole": ("black-hole",), "hang": ("hang",)})
async def test_p7_one_sender_of_many_tasks_goes_through_an_outage(world: World, queue: str, kind: str) -> None:
    """Also those that wait for their turn behind a hung send are home in time."""
    stop = asyncio.Event()

    async def send_on(pair: Pair) -> int:
        count = 0
        while not stop.is_set():
            await pair.deliver(queue, world.message())
            count += 1
        return count

    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        tasks = [asyncio.create_task(send_on(pair)) for _ in range(8)]
        async with world.fault(kind):
            await pair.until_state(queue, "FAILED_OVER")
            depth = len(await world.in_backlog())
            while len(await world.in_backlog()) < depth + 20:
                await asyncio.sleep(0.05)
        await pair.until_state(queue, "HEALTHY")
        stop.set()
        counts = await asyncio.gather(*tasks)
        assert min(counts) > 0
    tally = await world.restore_message()
    assert len(tally.doubled) <= 8


@in_both_apis(each={"unreachable": ("unreachable",), "black-hole": ("black-hole",)})
async def test_p19_the_callers_own_time_out_is_kept(world: World, queue: str, kind: str) -> None:
    """`send_timeout` is a minute here; the caller grants seven seconds, and the SDK would retry for eleven."""
    async with world.fault(kind), world.pair(send_timeout=60) as pair:
        outcome = await pair.deliver(queue, world.message(), timeout=7)
        assert outcome.elapsed_s <= 7 + 1
    await world.restore_message()


@in_both_apis()
async def test_p22_both_namespaces_silent_and_the_caller_is_told_in_time(world: World, queue: str) -> None:
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("black-hole"), world.fault("black-hole", namespace=world.secondary.name):
            for _ in range(2):
                await pair.refuse(queue, world.message(), error=ServiceBusError)
    await world.nothing_lost()


@in_both_apis(each={"namespace": ("namespace",), "entity": ("entity",)})
async def test_p16_a_flapping_primary_loses_nothing(world: World, queue: str, scope: str) -> None:
    entity = queue if scope == "entity" else None
    async with world.pair(sdk={"retry_total": 0}) as pair:
        done = asyncio.Event()

        async def send_on() -> None:
            sender = await pair.sender(queue, fresh=True)
            while not done.is_set():
                await pair.deliver(queue, world.message(), sender=sender)
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(send_on()) for _ in range(3)]
        for number in range(4):
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(world.fault("unreachable", entity=entity))
                await pair.until_state(queue, "FAILED_OVER")
            if number % 2:
                await pair.until_state(queue, "HEALTHY")
            else:
                await world.until_confirmed(5)  # gone again before a ping has found it
        done.set()
        await asyncio.gather(*tasks)
        await pair.until_state(queue, "HEALTHY")
        changes = pair.changes(queue)
        assert changes == ["FAILED_OVER", "HEALTHY"] * (len(changes) // 2)
    await world.restore_message()


@in_both_apis()
async def test_p1_senders_made_before_pairing_stay_unpaired(world: World, queue: str) -> None:
    async with world.client(retry_total=0) as client, world.face(world.admin()) as admin:
        earlier = client.wrap(await client.get_queue_sender(queue))
        secondary = world.ours.ServiceBusClient.from_connection_string(world.secondary.connection_string)
        await client.pair_namespace(world.options(admin.target, secondary))
        pair = Pair(world, client)
        await pair.deliver(queue, world.message(), sender=earlier)
        async with world.fault("no-send", entity=queue):
            await pair.refuse(queue, world.message(), sender=earlier, error=ServiceBusError)
            assert pair.state(queue) == "HEALTHY"
            await pair.deliver(queue, world.message())
            assert pair.state(queue) == "FAILED_OVER"
            await pair.refuse(queue, world.message(), sender=earlier, error=ServiceBusError)
    tally = await world.restore_message()
    assert set(ids(tally.home)) == world.account.confirmed
