"""The edge of the size limit (P30): what fits the primary but not the backlog is told early, and told exactly."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.utils import get_message_encoded_size
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageSizeExceededError

from .account import ids
from .scenarios import in_both_apis
from .world import Face, World

LIMIT = 256 * 1024


def encoded_size(message: ServiceBusMessage) -> int:
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    return int(get_message_encoded_size(outgoing))


def of_size(world: World, size: int, **properties: Any) -> ServiceBusMessage:
    """A message that the SDK encodes to exactly so many bytes."""
    probe = world.message(bytes(LIMIT // 2), **properties)
    body = bytes(LIMIT // 2 + size - encoded_size(probe))
    message = world.message(body, message_id=probe.message_id, **properties)
    assert encoded_size(message) == size
    return message


@in_both_apis()
async def test_p30_a_message_at_the_edge(world: World, queue: str) -> None:
    async with world.pair() as pair:
        edge = of_size(world, LIMIT)
        await pair.deliver(queue, edge)
        # at the healthy send already
        (warning,) = pair.named("SizeWarning")
        assert (warning.entity, warning.size, warning.limit) == (queue, LIMIT, LIMIT)
        assert warning.diverted_size > LIMIT
        await pair.deliver(queue, of_size(world, LIMIT // 2))
        assert len(pair.named("SizeWarning")) == 1
        aliases = warning.diverted_size - LIMIT

        await pair.client.force_failover(queue, hold=True)
        error = await pair.refuse(queue, of_size(world, LIMIT), error=MessageSizeExceededError)
        assert str(LIMIT) in str(error).replace(",", "")
        assert str(warning.diverted_size) in str(error).replace(",", ""), "both sizes are told"
        assert pair.named("BacklogQueueEjected") == [], "no fault of the queue"
        assert await world.in_backlog() == []
        # to the byte: the largest that still fits, and one more
        await pair.deliver(queue, of_size(world, LIMIT - aliases))
        await pair.refuse(queue, of_size(world, LIMIT - aliases + 1), error=MessageSizeExceededError)
        assert len(await world.in_backlog()) == 1
        await pair.client.mark_healthy(queue)
        # too large for both is the SDK's own error, and no outage
        await pair.refuse(queue, of_size(world, LIMIT + 1), error=MessageSizeExceededError)
        assert pair.state(queue) == "HEALTHY"
    await world.restore_message()


async def full_batch(world: World, sender: Face, body: bytes, **properties: Any) -> tuple[Any, list[ServiceBusMessage]]:
    batch = await sender.create_message_batch()
    inside: list[ServiceBusMessage] = []
    while True:
        message = world.message(body, **properties)
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            break
        inside.append(message)
    # the last gap is filled too
    size = len(body)
    while size > 1:
        message = world.message(bytes(size), **properties)
        try:
            batch.add_message(message)
            inside.append(message)
        except MessageSizeExceededError:
            size //= 2
    return batch, inside


@in_both_apis()
async def test_p30_a_batch_that_grows_too_large_is_split(world: World, queue: str) -> None:
    async with world.pair(backlog_queue_count=1) as pair:
        sender = await pair.sender(queue)
        direct, before = await full_batch(world, sender, bytes(500))
        assert (await pair.attempt(queue, ids(before), sender, direct)).error is None
        assert len(await world.at_home(queue)) == len(before)
        await pair.client.force_failover(queue, hold=True)
        for body in (bytes(200), bytes(20_000)):
            batch, inside = await full_batch(world, sender, body, session_id="s")
            outcome = await pair.attempt(queue, ids(inside), sender, batch)
            assert outcome.error is None
        assert world.account.confirmed == set(ids(await world.at_home(queue))) | set(ids(await world.in_backlog()))
        await pair.client.mark_healthy(queue)
    tally = await world.restore_message()
    assert not tally.doubled


@in_both_apis()
async def test_p30_a_list_that_grows_too_large_is_split(world: World, queue: str) -> None:
    """The SDK sends a list as one batch: one that just fits must still fit with the aliases of all of them."""
    async with world.pair(backlog_queue_count=1) as pair:
        sender = await pair.sender(queue)
        _, inside = await full_batch(world, sender, bytes(1000))
        await pair.client.force_failover(queue, hold=True)
        await pair.deliver(queue, *inside)
        assert len(await world.in_backlog()) == len(inside)
        await pair.client.mark_healthy(queue)
    tally = await world.restore_message()
    assert not tally.doubled


@in_both_apis()
async def test_p30_the_limit_is_the_links_own(world: World) -> None:
    """Another tier, another limit: a primary that takes a megabyte, a backlog that takes 256 KB."""
    queue = await world.queue(max_message_size_in_kilobytes=1024)
    async with world.pair() as pair:
        await pair.deliver(queue, of_size(world, 3 * LIMIT))
        await pair.client.force_failover(queue, hold=True)
        await pair.refuse(queue, of_size(world, 3 * LIMIT), error=MessageSizeExceededError)
        assert pair.named("BacklogQueueEjected") == []
        await pair.deliver(queue, of_size(world, LIMIT // 2))
        await pair.client.mark_healthy(queue)
    await world.restore_message()
