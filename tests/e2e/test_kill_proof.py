"""The primary is a process and dies by kill -9 under load; senders go on, and all that was confirmed comes home."""

from __future__ import annotations

import asyncio
from collections import Counter

from ..broker.broker_process import BrokerProcess
from ..pairing.silent_proxy import SilentProxy
from .scenarios import in_both_apis
from .world import AT_ONCE, SHORT, Pair, World

KILLS = 2


@in_both_apis()
async def test_p50_kill_9_of_the_primary_under_load(world: World) -> None:
    with BrokerProcess(world.folder / "primary") as process:
        await asyncio.to_thread(process.start)
        world.primary = process
        await drill(world, process)


@in_both_apis()
async def test_p50_the_network_between_one_client_and_the_primary_is_gone(world: World, queue: str) -> None:
    """The primary serves everyone else, so the syphon of another application brings home what the one client diverts
    while that one is still failed over."""
    with SilentProxy(world.primary.port) as network:
        behind = world.primary.connection_string.replace(f":{world.primary.port}", f":{network.port}")
        async with (
            world.pair(enable_syphon=True, syphon_engine="in-process") as other,
            world.pair(primary=behind, sdk=AT_ONCE, **SHORT) as cut_off,
        ):
            await cut_off.deliver(queue, world.message())
            network.fall_silent()
            network.cut()
            for count in (2, 3, 4):
                await cut_off.deliver(queue, world.message())
                assert cut_off.state(queue) == "FAILED_OVER"
                await world.until_home(queue, count)
                assert cut_off.state(queue) == "FAILED_OVER", "it is home already"
            await other.deliver(queue, world.message())
            assert other.state(queue) == "HEALTHY"
            assert other.named("StateChanged") == []
            network.speak_again()
            await cut_off.until_state(queue, "HEALTHY", within=30)
            await cut_off.deliver(queue, world.message())
            await world.until_drained()
    assert len((await world.nothing_lost(home=True)).home) == 6


@in_both_apis(each={"unreachable": ("unreachable",), "black-hole": ("black-hole",)})
async def test_p50_one_client_is_cut_off_by_a_fault_and_rides_it_out(world: World, queue: str, kind: str) -> None:
    name = f"web{world.number}"
    key = world.key(world.primary, name, "Manage", "Send", "Listen")
    async with world.pair() as other, world.pair(primary=key, sdk=AT_ONCE, **SHORT) as cut_off:
        await cut_off.deliver(queue, world.message())
        async with world.fault(kind, client=name):
            for _ in range(3):
                await cut_off.deliver(queue, world.message())
                await other.deliver(queue, world.message())
            assert (cut_off.state(queue), other.state(queue)) == ("FAILED_OVER", "HEALTHY")
        await cut_off.until_state(queue, "HEALTHY", within=30)
        await cut_off.deliver(queue, world.message())
        assert other.named("StateChanged") == []
    await world.restore_message()


async def drill(world: World, process: BrokerProcess) -> None:
    queue, topic = await world.queue(), await world.topic("all")
    await world.backlog_queues()
    done = asyncio.Event()

    async def send_on(pair: Pair, entity: str, size: int) -> int:
        sender = await pair.sender(entity, fresh=True)
        count = 0
        while not done.is_set():
            await pair.deliver(entity, *world.messages(size), sender=sender)
            count += 1
            await asyncio.sleep(0.005)
        return count

    async with world.pair(enable_syphon=True, syphon_engine="in-process", **SHORT) as pair:
        tasks = [asyncio.create_task(send_on(pair, entity, size)) for entity in (queue, topic) for size in (1, 1, 5)]
        await world.until_confirmed(100)
        for _ in range(KILLS):
            await asyncio.to_thread(process.kill)
            await pair.until_state(queue, "FAILED_OVER")
            await pair.until_state(topic, "FAILED_OVER")
            await world.until_confirmed(50)
            await asyncio.to_thread(process.start)
            await pair.until_state(queue, "HEALTHY", within=30)
            await pair.until_state(topic, "HEALTHY", within=30)
            await world.until_confirmed(50)
        done.set()
        assert min(await asyncio.gather(*tasks)) > 0
        # the syphon of this very application brings the rest home
        await world.until_drained()
    assert world.account.raised == {}
    tally = await world.nothing_lost(home=True)
    # How much was under way when it died depends on the machine; each time that it died may have made one copy more.
    assert max(Counter(tally.home_ids).values()) <= 1 + KILLS
