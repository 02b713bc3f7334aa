"""When an entity fails over and when it returns, as callers, operators and subscribers see it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import exceptions

from pairbus.pairing.errors import ScheduleDuringFailoverError
from pairbus.pairing.routing.verdicts import AS_DESCRIBED, DEFAULT

from ..pairing.silent_proxy import SilentProxy
from .account import ids
from .scenarios import in_both_apis
from .world import AT_ONCE, PATIENCE_S, World, until


@in_both_apis()
async def test_p16_the_caller_sees_failures_until_the_interval_is_over_then_none(world: World, queue: str) -> None:
    async with world.pair(failover_interval=2, sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("unreachable"):
            begun = time.monotonic()
            await pair.refuse(queue, world.message(), error=exceptions.ServiceBusConnectionError)
            failed = time.monotonic()
            assert pair.state(queue) == "SUSPECT"
            outcomes = []
            while not outcomes or not outcomes[-1].is_sent:
                outcomes.append(await pair.send(queue, world.message()))
                assert time.monotonic() - begun < PATIENCE_S
                await asyncio.sleep(0.05)
            # never before the interval; the first success may have waited for its own attempt at the primary
            assert time.monotonic() - failed >= 2 - 0.1
            assert len(outcomes) > 5
            for _ in range(3):
                await pair.deliver(queue, world.message())
            assert pair.changes(queue) == ["SUSPECT", "FAILED_OVER"]
        await pair.until_state(queue, "HEALTHY")
    tally = await world.restore_message()
    assert set(ids(tally.home)) == world.account.confirmed, "what raised was refused, and is nowhere"


@in_both_apis()
async def test_p33_p35_one_ping_per_entity_and_several_to_return(world: World) -> None:
    queue, other, later = await world.queue(), await world.topic("all"), await world.queue()
    async with world.pair(pings_to_return=3) as pair:
        senders = [await pair.sender(queue, fresh=True) for _ in range(5)]
        await asyncio.gather(*(pair.deliver(queue, world.message(), sender=each) for each in senders))
        await pair.client.force_failover(queue)
        await pair.client.force_failover(other)
        begun = time.monotonic()
        await asyncio.gather(*(pair.deliver(queue, world.message(), sender=each) for each in senders))
        await asyncio.gather(pair.until_state(queue, "HEALTHY"), pair.until_state(other, "HEALTHY"))
        assert time.monotonic() - begun > 1.9, "one interval between two of the three pings"
        assert [event.good for event in pair.named("PingSucceeded") if event.entity == queue] == [1, 2, 3]
        await asyncio.gather(*(pair.deliver(queue, world.message(), sender=each) for each in senders))
        await pair.client.force_failover(later)
        await until(lambda: world.pings(later) == 1)  # P33: another interval, and no ping of what is healthy
        assert (world.pings(queue), world.pings(other)) == (3, 3)
        assert len(await world.at_home(queue)) == 10, "a ping is never seen (P32)"
        assert await world.at_home(other) == []
    await world.restore_message()


@in_both_apis()
async def test_p31_probe_by_trial_sends_a_real_message_and_no_ping(world: World, queue: str) -> None:
    async with world.pair(probe="trial", sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("no-send", entity=queue):
            await pair.deliver(queue, world.message())
            refusals = world.broker.metrics.namespace(world.primary.name).entities[queue].refusals
            while sum(refusals.values()) < 3:  # one made it fail over; then two trials fail, the backlog is behind them
                await pair.deliver(queue, world.message())
                await asyncio.sleep(0.05)
            assert pair.state(queue) == "FAILED_OVER"
        trial = None
        begun = time.monotonic()
        while pair.state(queue) != "HEALTHY":
            trial = world.message()
            await pair.deliver(queue, trial)
            await asyncio.sleep(0.05)
            assert time.monotonic() - begun < PATIENCE_S
        assert trial is not None
        assert trial.message_id in ids(await world.at_home(queue))
        assert world.pings(queue) == 0
        await pair.until_state(queue, "HEALTHY")
        assert pair.named("StateChanged")[-1].cause == "trial succeeded"
    await world.restore_message()


@in_both_apis()
async def test_p23_an_operator_forces_and_ends_a_failover(world: World) -> None:
    queue, other = await world.queue(), await world.queue()
    async with world.pair() as pair:
        for entity in (queue, other):
            await pair.deliver(entity, world.message())
        assert {name: state.name for name, state in (await pair.client.states()).items()} == {
            queue: "HEALTHY",
            other: "HEALTHY",
        }
        await pair.client.force_failover(queue, hold=True)
        assert pair.state(queue) == "FAILED_OVER"
        drilled = world.messages(3)
        await pair.deliver(queue, *drilled)
        await pair.deliver(other, world.message())
        assert sorted(ids(await world.in_backlog())) == sorted(ids(drilled))
        await pair.client.force_failover(other)
        await pair.until_state(other, "HEALTHY")
        assert pair.state(queue) == "FAILED_OVER", "held: no ping brings it back"
        assert world.pings(queue) == 0
        await pair.client.mark_healthy(queue)
        assert pair.state(queue) == "HEALTHY"
        last = world.message()
        await pair.deliver(queue, last)
        assert last.message_id in ids(await world.at_home(queue))
        changes = await pair.until_event("StateChanged", 4)
        assert [event.cause for event in changes if event.entity == queue] == ["forced", "marked healthy"]
    await world.restore_message()


@in_both_apis()
async def test_p23_events_tell_the_story_in_order(world: World, queue: str) -> None:
    async with world.pair(failover_interval=1, sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message())
        assert pair.events == [], "nothing happens while all is well"
        async with world.fault("no-send", entity=queue):
            await pair.refuse(queue, world.message(), error=exceptions.ServiceBusError)
            await pair.until_state(queue, "FAILED_OVER")
            diverted = world.message()
            await pair.deliver(queue, diverted)
            await pair.until_event("PingFailed")
        await pair.until_state(queue, "HEALTHY")
        kinds = [type(event).__name__ for event in pair.events]
        failed = kinds.count("PingFailed")
        assert kinds == [
            "StateChanged",
            "StateChanged",
            "MessageDiverted",
            *["PingFailed"] * failed,
            "PingSucceeded",
            "StateChanged",
        ]
        changes = [(e.previous.name, e.state.name, e.cause) for e in pair.named("StateChanged")]
        assert changes == [
            ("HEALTHY", "SUSPECT", "send failed"),
            ("SUSPECT", "FAILED_OVER", "interval over"),
            ("FAILED_OVER", "HEALTHY", "ping succeeded"),
        ]
        (moved,) = pair.named("MessageDiverted")
        assert (moved.entity, moved.count, moved.message_ids) == (queue, 1, (diverted.message_id,))
        assert moved.queue in (0, 1)
        assert all(event.reachable is False for event in pair.named("PingFailed"))
    await world.restore_message()


@in_both_apis()
async def test_p25_schedule_messages_raises_in_failover_and_a_scheduled_message_travels(
    world: World, queue: str
) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    async with world.pair() as pair:
        sender = await pair.sender(queue)
        (number,) = await sender.schedule_messages(world.message(), when)
        await sender.cancel_scheduled_messages(number)
        await pair.client.force_failover(queue, hold=True)
        begun = time.monotonic()
        with pytest.raises(ScheduleDuringFailoverError, match=queue):
            await sender.schedule_messages(world.message(), when)
        assert time.monotonic() - begun < PATIENCE_S, "at once, not when the entity is back"
        await pair.deliver(queue, world.message(scheduled_enqueue_time_utc=when))
        assert len(await world.in_backlog()) == 1, "not scheduled there: a backlog queue never waits"
        await pair.client.mark_healthy(queue)
    tally = await world.restore_message()
    (found,) = tally.home
    assert found.annotations["x-opt-scheduled-enqueue-time"] == when.timestamp() * 1000
    assert (await world.manage("get_queue_runtime_properties", queue)).scheduled_message_count == 1


@in_both_apis()
async def test_p18_default_raises_not_found_and_as_described_diverts_it(world: World) -> None:
    absent = f"q{world.number}-absent"
    async with world.pair(classifier=DEFAULT, sdk=AT_ONCE) as pair:
        await pair.refuse(absent, world.message(), error=exceptions.MessagingEntityNotFoundError)
        assert pair.state(absent) == "HEALTHY"
    async with world.pair(classifier=AS_DESCRIBED, sdk=AT_ONCE) as pair:
        await pair.deliver(absent, world.message())
        assert pair.state(absent) != "HEALTHY"
        await world.manage("create_queue", absent)
        world.queues.append(absent)
        await pair.until_state(absent, "HEALTHY")
    await world.restore_message()


@in_both_apis()
async def test_p19_a_primary_whose_link_takes_longer_to_open_than_a_send_may_take_is_used(
    world: World, queue: str
) -> None:
    """What one send could not wait for is opened meanwhile; otherwise none would ever find a link."""
    with SilentProxy(world.primary.port, "delay", 0.2) as network:
        behind = world.primary.connection_string.replace(f":{world.primary.port}", f":{network.port}")
        async with world.pair(primary=behind, send_timeout=3, ping_primary_interval=1, sdk=AT_ONCE) as pair:
            sender = pair.client.wrap(await pair.client.get_queue_sender(queue))  # not entered: its first send opens
            await pair.deliver(queue, world.message(), sender=sender)
            (diverted,) = pair.named("MessageDiverted")
            await pair.until_event("PingSucceeded", within=40)
            for _ in range(3):
                await pair.deliver(queue, world.message(), sender=sender)
            assert pair.named("MessageDiverted") == [diverted]
            await sender.close()
    await world.restore_message()
