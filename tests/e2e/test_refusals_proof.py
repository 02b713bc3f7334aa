"""What is no outage: a wrong key, an entity gone or disabled, a throttled primary, a message that may not be sent."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, exceptions
from azure.servicebus.management import EntityStatus

from pairbus.broker import serve
from pairbus.pairing.errors import BacklogUnavailableError, PairingFailed
from pairbus.testing import fault

from .scenarios import in_both_apis
from .world import AT_ONCE, SHORT, World


def with_wrong_key(connection_string: str) -> str:
    return re.sub(
        "SharedAccessKey=[^;]+", "SharedAccessKey=d3JvbmcgYW5kIGxvbmcgZW5vdWdoIHRvIGJlIG9uZQ==", connection_string
    )


@in_both_apis(each={"a retry runs out of time": (4,), "no retry fits": (3,), "a retry fits": (8,)})
async def test_p18_a_wrong_key_is_raised_and_nothing_fails_over(world: World, queue: str, send_timeout: float) -> None:
    """With the SDK's own retries, too, which would hide it for 15 s, or behind a time-out of the last of them."""
    async with world.pair(primary=with_wrong_key(world.primary.connection_string), send_timeout=send_timeout) as pair:
        for _ in range(2):
            await pair.refuse(queue, world.message(), error=exceptions.ServiceBusAuthenticationError)
        assert pair.state(queue) == "HEALTHY"
    tally = await world.nothing_lost()
    assert (tally.home, tally.waiting) == ((), ())


@in_both_apis(
    each={f"{timeout} s, interval {interval}": (timeout, interval) for timeout in (4, 8) for interval in (0, 60)}
)
async def test_p18_a_disabled_entity_is_raised_and_nothing_fails_over(
    world: World, queue: str, send_timeout: float, interval: float
) -> None:
    """The SDK tries it again after 1.6 s, and the last attempt may run out of time."""
    description = await world.manage("get_queue", queue)
    description.status = EntityStatus.SEND_DISABLED
    await world.manage("update_queue", description)
    async with world.pair(send_timeout=send_timeout, failover_interval=interval) as pair:
        await pair.refuse(queue, world.message(), error=exceptions.MessagingEntityDisabledError)
        assert pair.state(queue) == "HEALTHY"
    tally = await world.nothing_lost()
    assert (tally.home, tally.waiting) == ((), ())


@in_both_apis()
async def test_p3_p22_a_wrong_key_of_the_secondary_is_told(world: World, queue: str) -> None:
    """At pairing where it is wrong then; with the failed send where the right is taken away later."""
    for index in range(2):
        await world.manage("create_queue", world.backlog_path(index), at=world.secondary)
    with pytest.raises(PairingFailed):
        async with world.pair(secondary=with_wrong_key(world.secondary.connection_string), manage=False, sdk=AT_ONCE):
            pass
    name = f"k{world.number}"
    async with (
        world.pair(secondary=world.key(world.secondary, name, "Send"), manage=False, sdk=AT_ONCE) as pair,
        world.fault("no-send", entity=queue),
    ):
        world.key(world.secondary, name, "Listen")
        error = await pair.refuse(queue, world.message(), error=BacklogUnavailableError)
        assert "Unauthorized access. 'Send' claim(s) are required" in str(error), "what is wrong with the secondary"
        assert "the primary, tried once more, failed too" in str(error)
    tally = await world.nothing_lost()
    assert (tally.home, tally.waiting) == ((), ())


@in_both_apis()
async def test_p34_an_entity_deleted_during_the_outage_is_unreachable_until_it_is_back(
    world: World, queue: str
) -> None:
    async with world.pair(sdk=AT_ONCE) as pair:
        first = await pair.deliver(queue, world.message())
        async with world.fault("no-send", entity=queue):
            await pair.deliver(queue, world.message())
            await world.manage("delete_queue", queue)
        world.account.forget(*first.ids)  # went with the queue
        await pair.until_state(queue, "UNREACHABLE")
        (failed, *_) = [event for event in pair.named("PingFailed") if event.reachable]
        assert "not" in str(failed.error).lower()
        await pair.deliver(queue, *world.messages(2))
        assert len(await world.in_backlog()) == 3
        await world.manage("create_queue", queue)
        await pair.until_state(queue, "HEALTHY")
        assert pair.changes(queue) == ["FAILED_OVER", "UNREACHABLE", "HEALTHY"]
    tally = await world.restore_message()
    assert len(tally.home) == 3


@in_both_apis()
async def test_p31_an_entity_that_needs_sessions_goes_through_an_outage(world: World) -> None:
    """The ping has a session id of its own; sessions come home; without one a message is refused by the primary."""
    queue = await world.queue(requires_session=True)
    async with world.pair(sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message(session_id="a"))
        async with world.fault("no-send", entity=queue):
            await pair.deliver(queue, *(world.message(session_id=each) for each in ("a", "b", "b")))
            waiting = await world.in_backlog()
            assert {found.properties.group_id for found in waiting} == {None}
            assert sorted(found.application_properties["x-ms-sessionid"] for found in waiting) == ["a", "b", "b"]
        await pair.until_state(queue, "HEALTHY")
        assert world.pings(queue) >= 1
        await pair.refuse(queue, world.message(), error=exceptions.ServiceBusError)
        assert pair.state(queue) == "HEALTHY"
        tally = await world.restore_message()
        assert sorted(found.properties.group_id for found in tally.home) == ["a", "a", "b", "b"]
        got: dict[str, int] = {}
        for _ in range(2):
            made = await pair.client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
            async with pair.client.wrap(made) as receiver:
                messages: list[Any] = []
                while len(messages) < 2:
                    new = await receiver.receive_messages(max_message_count=2, max_wait_time=5)
                    assert new
                    messages += new
                got[receiver.target.session.session_id] = len(messages)
                for message in messages:
                    await receiver.complete_message(message)
        assert got == {"a": 2, "b": 2}


@in_both_apis()
async def test_p24_with_the_profile_callers_do_not_see_throttling(world: World) -> None:
    """While the halt lasts messages take the detour, with nothing failed over and no ping; then the primary is used."""
    queue = await world.queue()
    async with world.pair(**{**SHORT, "profile": "interactive"}) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("throttle", entity=queue, rate=0):
            for _ in range(3):
                assert (await pair.deliver(queue, world.message())).elapsed_s < 4
        assert (pair.state(queue), len(await world.in_backlog())) == ("HEALTHY", 3)
        assert [event.diverted for event in pair.named("EntityThrottled")] == [True]
        assert pair.named("StateChanged") == []
        waiting, begun = 0, time.monotonic()
        while (count := len(await world.in_backlog())) > waiting:  # until one has found its way to the primary
            assert time.monotonic() - begun < 20
            waiting = count
            await asyncio.sleep(0.5)
            await pair.deliver(queue, world.message())
    await world.restore_message()


@in_both_apis(each={each: (each,) for each in ("dependency", "memory", "bytes")})
async def test_p47_a_primary_past_a_threshold_is_ridden_out(world: World, queue: str, measure: str) -> None:
    """Busy is no failure unless one says so: then messages take the detour, and all of them come home."""
    async with world.pair(busy_failover_after=0, **SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("throttle", rate=0, by=measure):
            for _ in range(3):
                await pair.deliver(queue, world.message())
            assert pair.state(queue) == "FAILED_OVER"
            assert len(await world.in_backlog()) == 3, "what was refused is nowhere else"
    await world.restore_message()


@in_both_apis()
async def test_p48_a_primary_whose_storage_stalls_is_ridden_out(world: World, queue: str) -> None:
    """Without a standby folder sends are refused in good time: messages take the detour, and all of them come home."""
    async with world.pair(**SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("storage-stall"):
            for _ in range(3):
                await pair.deliver(queue, world.message())
            assert pair.state(queue) == "FAILED_OVER"
            assert len(await world.in_backlog()) == 3
    await world.restore_message()


@in_both_apis()
async def test_p48_a_primary_with_a_standby_folder_takes_all_while_its_storage_stalls(world: World) -> None:
    """Sends go on to the primary: nothing is diverted, nothing lost, also after the stall."""
    config = world.folder / "broker.toml"
    config.write_text("[namespaces.steady]\nstorage_stall_timeout = 0.3\n")
    shared = world.primary
    async with serve(config=config, data=world.folder / "data", standby=world.folder / "standby") as broker:
        world.primary = broker.namespaces["steady"]
        try:
            queue = await world.queue()
            async with world.pair(**SHORT) as pair:
                await pair.deliver(queue, world.message())
                async with fault(broker, "storage-stall"):
                    for _ in range(3):
                        await pair.deliver(queue, world.message())
                    assert list((world.folder / "standby" / "steady").glob("*.segment"))
                await pair.deliver(queue, world.message())
                assert (pair.state(queue), pair.changes(queue)) == ("HEALTHY", [])
            tally = await world.nothing_lost(home=True)
            assert (len(tally.home), tally.waiting) == (5, ())
        finally:
            world.primary = shared


@in_both_apis(each={"the entity": (True,), "the namespace": (False,)})
async def test_p46_a_primary_that_cannot_be_sent_to_is_ridden_out(world: World, queue: str, is_entity: bool) -> None:
    """Messages take the detour, receivers and management go on, and all come home."""
    async with world.pair(sdk=AT_ONCE, **SHORT) as pair:
        await pair.deliver(queue, world.message())
        async with world.fault("no-send", entity=queue if is_entity else None):
            for _ in range(3):
                await pair.deliver(queue, world.message())
            assert pair.state(queue) == "FAILED_OVER"
            assert len(await world.in_backlog()) == 3
            assert (await world.manage("get_queue", queue)).name == queue
        await pair.until_state(queue, "HEALTHY")
        await pair.deliver(queue, world.message())
    tally = await world.restore_message()
    assert len(tally.home) == 5


@in_both_apis(each={"raise": ("raise",), "degrade": ("degrade",)})
async def test_p3_with_the_syphon_on_a_missing_listen_right_is_raised_by_pairing(
    world: World, unavailable: str
) -> None:
    await world.backlog_queues()
    key = world.key(world.secondary, f"sender{world.number}", "Send")
    asked = {"enable_syphon": True, "syphon_engine": "in-process", "on_secondary_unavailable": unavailable}
    client = await world.client().__aenter__()
    secondary = await world.client(key).__aenter__()
    options = world.options(None, secondary.target, **asked)
    with pytest.raises(PairingFailed, match=rf"{world.backlog_path(0)}.* Listen right"):
        await client.pair_namespace(options)
    assert not client.target.is_paired and not options.claimed
    world.key(world.secondary, f"sender{world.number}", "Send", "Listen")
    await client.pair_namespace(options)
    assert client.target.is_paired
    await client.close()


@in_both_apis()
async def test_p4_without_the_syphon_send_is_enough(world: World, queue: str) -> None:
    await world.backlog_queues()
    key = world.key(world.secondary, f"sender{world.number}", "Send")
    async with world.pair(secondary=key, manage=False) as pair:
        await pair.deliver(queue, world.message())
