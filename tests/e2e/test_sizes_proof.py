"""The edge of the size limit (P30): what fits the primary but not the backlog is told early, and told exactly."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.utils import get_message_encoded_size
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageSizeExceededError

from .scenarios import in_both_apis
from .world import World

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
