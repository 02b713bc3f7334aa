"""What an application must accept (P55 to P58), shown: order is not kept, session state is the primary's alone."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from .account import ids
from .scenarios import in_both_apis
from .world import AT_ONCE, Face, World


async def received(receiver: Face, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        new = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=5)
        assert new
        for message in new:
            await receiver.complete_message(message)
        got += new
    return got


@in_both_apis()
async def test_p42_p55_p56_p58_new_messages_overtake_those_in_the_backlog_also_within_a_session(world: World) -> None:
    queue = await world.queue(requires_session=True)
    async with world.pair() as pair:
        first, second, third = (world.message(session_id="s") for _ in range(3))
        other = world.message(session_id="t")
        await pair.deliver(queue, first)
        await pair.client.force_failover(queue, hold=True)
        await pair.deliver(queue, second)
        await pair.deliver(queue, other)
        await pair.client.mark_healthy(queue)
        await pair.deliver(queue, third)
        # the primary hands out new messages while the backlog has not been delivered
        assert ids(await world.at_home(queue)) == ids([first, third])
        await world.restore_message()
        for session, messages in (("s", [first, third, second]), ("t", [other])):
            async with pair.client.wrap(await pair.client.get_queue_receiver(queue, session_id=session)) as receiver:
                assert ids(await received(receiver, len(messages))) == ids(messages)


@in_both_apis()
async def test_p57_session_state_is_the_primarys_alone_and_stays(world: World) -> None:
    queue = await world.queue(requires_session=True)
    async with world.pair(sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message(session_id="s"))
        async with pair.client.wrap(await pair.client.get_queue_receiver(queue, session_id="s")) as receiver:
            await received(receiver, 1)
            session = receiver.target.session
            await receiver.call(session.set_state, b"one done")
            async with world.fault("unreachable"):
                await pair.deliver(queue, world.message(session_id="s"))
                assert pair.state(queue) == "FAILED_OVER"
                with pytest.raises(ServiceBusError):
                    await receiver.call(session.set_state, b"two done", timeout=2)
        await pair.until_state(queue, "HEALTHY")
        await world.syphon()
        async with pair.client.wrap(await pair.client.get_queue_receiver(queue, session_id="s")) as receiver:
            await received(receiver, 1)
            assert bytes(await receiver.call(receiver.target.session.get_state)) == b"one done"
