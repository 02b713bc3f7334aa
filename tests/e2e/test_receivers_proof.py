"""Messages are received from the primary only; during an outage receives behave as with the bare SDK (P54)."""

from __future__ import annotations

import time

from azure.servicebus.exceptions import ServiceBusError

from .account import ids
from .scenarios import in_both_apis
from .world import Face, World


async def receive_all(client: Face, queue: str, count: int) -> list[str]:
    async with client.wrap(await client.get_queue_receiver(queue)) as receiver:
        got: list[str] = []
        while len(got) < count:
            new = await receiver.receive_messages(max_message_count=count, max_wait_time=5)
            assert new, f"{len(got)} of {count}"
            for message in new:
                await receiver.complete_message(message)
            got += ids(new)
        return got


async def shape(client: Face, queue: str) -> tuple[type[BaseException] | None, float]:
    """What a receive during an outage comes to."""
    begun = time.monotonic()
    try:
        async with client.wrap(await client.get_queue_receiver(queue)) as receiver:
            await receiver.receive_messages(max_wait_time=1)
    except ServiceBusError as error:
        return type(error), time.monotonic() - begun
    return None, time.monotonic() - begun


@in_both_apis(each={"unreachable": ("unreachable", "namespace"), "no-receive": ("no-receive", "entity")})
async def test_p54_receives_during_an_outage_behave_as_with_the_bare_sdk(
    world: World, queue: str, kind: str, scope: str
) -> None:
    sdk = {"retry_total": 0}
    async with world.pair(sdk=sdk) as pair, world.bare(**sdk) as bare:
        sent = world.messages(3)
        await pair.deliver(queue, *sent)
        async with world.fault(kind, entity=queue if scope == "entity" else None):
            if kind == "unreachable":
                await pair.deliver(queue, world.message())
            expected, took = await shape(bare, queue)
            seen, elapsed = await shape(pair.client, queue)
            assert expected is not None
            assert seen is expected
            assert elapsed < took + 3
            if kind == "no-receive":
                assert pair.state(queue) == "HEALTHY", "a receive that fails says nothing of sends"
        assert sorted(await receive_all(pair.client, queue, 3)) == sorted(ids(sent))
        world.account.forget(*ids(sent))
    await world.restore_message()


@in_both_apis()
async def test_p32_p54_what_waits_in_the_backlog_is_not_received_before_the_syphon_brings_it(
    world: World, queue: str
) -> None:
    async with world.pair() as pair:
        await pair.client.force_failover(queue)
        sent = world.messages(3)
        await pair.deliver(queue, *sent)
        await pair.until_state(queue, "HEALTHY")
        async with pair.client.wrap(await pair.client.get_queue_receiver(queue)) as receiver:
            assert await receiver.receive_messages(max_wait_time=1) == [], "no ping, and nothing of the backlog"
            assert await receiver.peek_messages() == []
        assert world.pings(queue) == 1
        await world.restore_message()
        assert sorted(await receive_all(pair.client, queue, 3)) == sorted(ids(sent))
