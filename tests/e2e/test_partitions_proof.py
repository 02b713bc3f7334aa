"""Partitioned entities on both sides of a pair: nothing sends what they refuse, and nobody notices."""

from __future__ import annotations

from datetime import timedelta

from .account import ids
from .scenarios import in_both_apis
from .world import World

PARTITIONED = {"enable_partitioning": True, "requires_duplicate_detection": True}


@in_both_apis()
async def test_p26_lists_and_batches_go_to_a_partitioned_backlog_and_home_to_a_partitioned_queue(
    world: World,
) -> None:
    """A partitioned queue that detects duplicates takes no batch of different ids: what has to be one there is sent
    one by one, to the backlog and back."""
    queue = await world.queue(**PARTITIONED)
    plain = await world.queue()
    backlog = {"lock_duration": timedelta(seconds=5), "max_delivery_count": 2**31 - 1, **PARTITIONED}
    await world.manage("create_queue", world.backlog_path(0), at=world.secondary, **backlog)
    async with world.pair(backlog_queue_count=1) as pair:
        await pair.deliver(queue, *world.messages(5, partition_key="one"))
        await pair.deliver(plain, *[world.message(partition_key=f"key {n}") for n in range(5)])
        for entity in (queue, plain):
            await pair.client.force_failover(entity, hold=True)
        await pair.deliver(queue, *world.messages(5, partition_key="one"))
        await pair.deliver(plain, *[world.message(partition_key=f"key {n}") for n in range(5)])
        await pair.deliver(plain, *world.messages(5))
        sender = await pair.sender(plain)
        batch = await sender.create_message_batch()
        inside = [world.message(session_id=f"session {n}") for n in range(3)]
        for message in inside:
            batch.add_message(message)
        assert (await pair.attempt(plain, ids(inside), sender, batch)).error is None
        for n in range(40):
            await pair.deliver(queue, world.message(session_id=f"s{n}") if n % 2 else world.message())
        assert pair.named("BacklogQueueEjected") == [], "no fault of the queue"
        assert len(await world.in_backlog()) == 58
        for entity in (queue, plain):
            await pair.client.mark_healthy(entity)
    tally = await world.restore_message()
    assert not tally.doubled
