"""The link to a backlog queue that stands ready for the first messages of an outage, on embedded brokers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.constants import LinkState

from pairbus.aio.client import ServiceBusClient
from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.sender import PairedSender
from pairbus.aio.warm_link import OPENINGS_AT_ONCE_MAX, WarmLink
from pairbus.pairing.events import Event, WarmLinkFailed
from pairbus.pairing.pending_send import Limits
from pairbus.pairing.routing.dispatch import TryBacklog
from pairbus.pairing.routing.states import EntityState
from pairbus.testing import fault

from ..pairing.sdk_rig import takes
from .background import Background, names_of_all, on_a_thread, wait_until
from .test_client import Pair
from .test_client import pair as pair


async def test_p19_a_link_to_the_backlog_stands_ready_from_pairing_on(pair: Pair) -> None:
    async with await pair.client() as client, client.get_queue_sender("orders") as sender:
        assert client._pairing is not None and isinstance(sender, PairedSender)
        warm = client._pairing._warm
        assert warm is not None
        assert await wait_until(lambda: warm.sender is not None and warm.sender.is_open)
        await sender.send_messages(ServiceBusMessage("before"))
        async with fault(pair.broker, "unreachable", namespace="contoso"):
            await sender.send_messages(ServiceBusMessage("during"))
            own = [link for link in sender.links[1:] if not link.awaits_link]
            assert not own, "the sender's own link is not open yet"
            assert await wait_until(lambda: not sender.links[1].awaits_link)
            await sender.send_messages(ServiceBusMessage("after"))
            assert warm._users == 0 and not warm._waiting
        assert await wait_until(lambda: client.state("orders") is EntityState.HEALTHY)
    assert warm.sender is None, "it closes with the client"
    backlog = pair.waiting()
    assert sorted(backlog) == ["after", "during"]
    assert pair.arrived() == ["before"]


async def test_p19_a_link_that_the_service_dropped_is_opened_again(pair: Pair) -> None:
    async with await pair.client() as client:
        assert client._pairing is not None
        warm = client._pairing._warm
        assert warm is not None
        assert await wait_until(lambda: warm.sender is not None and warm.sender.is_open)
        first = warm.sender
        assert not await warm._look()
        assert warm.sender is first, "it is alive"
        assert first is not None and first._sdk_sender is not None
        first._sdk_sender.sender._handler._link.state = LinkState.DETACHED  # as the SDK notes a detach
        assert not await warm._look()
        assert warm.sender is not None and warm.sender is not first and warm.sender.is_alive


async def ready_link(client: ServiceBusClient) -> WarmLink:
    assert client._pairing is not None
    warm = client._pairing._warm
    assert warm is not None
    assert await wait_until(lambda: warm.sender is not None and warm.sender.is_open)
    return warm


async def test_p13_a_ready_link_that_is_replaced_under_a_send_costs_it_nothing(pair: Pair) -> None:
    async with await pair.client() as client, client.get_queue_sender("orders") as sender:
        warm = await ready_link(client)
        shared = warm.sender
        assert shared is not None
        client.force_failover("orders", hold=True)
        await shared._lock.acquire()  # as another sender's call would
        sending = Background(sender.send_messages, ServiceBusMessage("diverted"))
        assert await wait_until(lambda: warm._users == 1)
        replacing = Background(warm._drop)
        assert await wait_until(lambda: shared.is_closed)
        shared._lock.release()
        await replacing.result()
        await sending.result()
    assert pair.waiting() == ["diverted"]


async def test_p22_a_confirmed_message_is_no_failure_because_the_next_link_cant_be_opened(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def begin_opening(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with await pair.client() as client, client.get_queue_sender("orders") as sender:
        await ready_link(client)
        client.force_failover("orders", hold=True)
        monkeypatch.setattr(GuardedSender, "begin_opening", begin_opening)
        await sender.send_messages(ServiceBusMessage("sent"))
    assert "could not be opened beforehand: can't start new thread" in caplog.text
    assert pair.waiting() == ["sent"]


async def test_p19_that_no_link_stands_ready_is_an_event_and_no_error(pair: Pair) -> None:
    events: list[Event] = []
    async with (
        fault(pair.broker, "unreachable", namespace="backup"),
        await pair.client(on_secondary_unavailable="degrade") as client,
    ):
        assert client._pairing is not None
        warm = client._pairing._warm
        assert warm is not None
        client.subscribe(events.append)
        client._pairing.monitor.coordinator.set_queues((0, 1))
        for _ in range(2):
            assert not await warm._look()
        assert [type(event) for event in events if isinstance(event, WarmLinkFailed)] == [WarmLinkFailed]


async def test_p44_closing_ends_the_opening_of_the_ready_link(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    opens, goes_on = threading.Event(), threading.Event()
    real = WarmLink._open

    async def open_in_silence(warm: WarmLink, queue: int) -> None:
        opens.set()
        await on_a_thread(lambda: goes_on.wait(10))
        await real(warm, queue)

    monkeypatch.setattr(WarmLink, "_open", open_in_silence)
    client = await pair.client()
    assert client._pairing is not None and client._pairing._warm is not None
    warm = client._pairing._warm
    assert await wait_until(opens.is_set)
    with fault(pair.broker, "black-hole", namespace="backup"):
        goes_on.set()
        assert await wait_until(lambda: warm._opening is not None and warm._opening._lock.locked())
        with takes(0.0, 2.0):
            await client.close()
        assert await wait_until(lambda: not names_of_all() & {"pairbus-warm-link", "pairbus-open"}, 4.0)
    assert warm.sender is None


async def test_p19_of_many_senders_a_few_open_links_of_their_own_at_once() -> None:
    """Opening hundreds at once would take the time of the sends that wait for the ready link."""
    now = [1000.0]

    class Own:
        awaits_link = True
        is_opening = False
        begun = 0

        def begin_opening(self, within_s: float) -> None:
            self.begun += 1
            self.is_opening = True

    monitor: Any = SimpleNamespace(clock=lambda: now[0])
    dispatch: Any = SimpleNamespace(over_warm_link=lambda queue: TryBacklog(queue, 1.0))
    warm = WarmLink(monitor, lambda queue: None, Limits())  # type: ignore[arg-type,return-value]
    warm.sender = SimpleNamespace(is_open=True)  # type: ignore[assignment]
    owns: list[Any] = [Own() for _ in range(3 * OPENINGS_AT_ONCE_MAX)]
    for opened in range(0, len(owns), OPENINGS_AT_ONCE_MAX):
        for own in owns[opened:]:
            assert warm.take(own, dispatch) is not None
        now[0] += 1.0
        for _ in owns[opened:]:
            warm.give_back()
        assert [own.begun for own in owns].count(1) == opened + OPENINGS_AT_ONCE_MAX
        for own in owns:
            own.awaits_link, own.is_opening = own.begun == 0, False
    assert all(own.begun == 1 for own in owns)


async def test_p19_without_a_ready_link_by_option(pair: Pair) -> None:
    async with await pair.client(warm_backlog=False) as client, client.get_queue_sender("orders") as sender:
        assert client._pairing is not None and client._pairing._warm is None
        client.force_failover("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("sent"))
    assert pair.waiting() == ["sent"]
