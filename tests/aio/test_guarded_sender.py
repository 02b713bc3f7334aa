from __future__ import annotations

import contextlib
import datetime
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage, TransportType, exceptions
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.aio.guarded_sender import GuardedSender
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.pending_send import may_have_arrived
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict
from pairbus.testing import fault

from ..pairing.sdk_rig import LATE_S, TRANSPORTS, dropped_syns, in_queue, sdk_client, takes, unused_port
from ..pairing.silent_proxy import SilentProxy
from .background import Background, Event, Leftovers, on_a_thread, wait_until

FAR = datetime.datetime(2100, 1, 1)


def hello() -> ServiceBusMessage:
    return ServiceBusMessage("hello")  # a new one: scheduling a message changes it


class Rig:
    """Guarded senders to one queue of the broker, directly or through a proxy; all closed at the end."""

    def __init__(self, broker: Broker, queue: str, stack: contextlib.AsyncExitStack) -> None:
        self.broker = broker
        self.server: NamespaceServer = broker.namespaces["contoso"]
        self.queue = queue
        self._stack = stack

    def sender(self, transport: str = "plain", port: int = 0, entity: str = "", **options: Any) -> GuardedSender:
        client: ServiceBusClient = sdk_client(ServiceBusClient, transport, self.server, port, **options)
        self._stack.push_async_callback(client.close)
        entity = entity or self.queue

        def make() -> Any:
            made = client.get_queue_sender(entity)
            client._handlers.discard(made)
            return made

        sender = GuardedSender(make, entity)
        self._stack.push_async_callback(sender.close)
        return sender

    async def used(self, transport: str = "plain", port: int = 0, **options: Any) -> GuardedSender:
        """A sender whose link is open, since it has sent."""
        sender = self.sender(transport, port, **options)
        await sender.send(hello(), 5)
        return sender

    async def silenced(self, transport: str = "plain") -> tuple[GuardedSender, SilentProxy]:
        """A sender that has sent, and the proxy on its way, which has fallen silent since."""
        proxy = self.proxy()
        sender = await self.used(transport, proxy.port)
        proxy.fall_silent()
        return sender, proxy

    def at_the_end(self, call: Callable[[], object]) -> None:
        self._stack.callback(call)

    def proxy(self, point: str = "", count: float = 1) -> SilentProxy:
        return self._stack.enter_context(SilentProxy(self.server.port, point, count))

    async def hangs(self, sender: GuardedSender, proxy: SilentProxy) -> None:
        assert await wait_until(lambda: sender._lock.locked() and proxy.withheld)

    def detach(self) -> None:
        """Makes the broker detach every link to the queue: it goes, and another of the same name comes."""
        with ServiceBusAdministrationClient.from_connection_string(
            self.server.connection_string, connection_verify=self.server.ca_file
        ) as admin:
            admin.delete_queue(self.queue)
            admin.create_queue(self.queue)

    def arrived(self) -> list[str]:
        """The bodies of all messages in the queue."""
        return in_queue(self.server, self.queue)


@pytest.fixture
async def rig(
    pairbus_broker: Broker, pairbus_namespace: NamespaceServer, pairbus_queue: Callable[..., str]
) -> AsyncIterator[Rig]:
    queue = pairbus_queue("guarded")
    left = Leftovers()
    async with contextlib.AsyncExitStack() as stack:
        yield Rig(pairbus_broker, queue, stack)
    await left.none()


async def a_send(sender: GuardedSender, timeout_s: float) -> None:
    await sender.send(hello(), timeout_s)


async def a_cancelling(sender: GuardedSender, timeout_s: float) -> None:
    await sender.cancel([1], timeout_s)


async def a_schedule(sender: GuardedSender, timeout_s: float) -> None:
    await sender.schedule(hello(), FAR, timeout_s)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_p7_it_opens_by_itself_and_sends(rig: Rig, transport: str) -> None:
    sender = rig.sender(transport)
    assert repr(sender) == f"<GuardedSender {rig.queue}: not open>"
    assert (sender.max_message_size, sender.max_batch_size) == (0, 0)
    await sender.send(hello(), 5)
    assert repr(sender) == f"<GuardedSender {rig.queue}: open>"
    assert sender.max_message_size == 262_144
    assert sender.max_batch_size > 0
    for wait_s in (5, 5, 5, 5, float("inf")):
        await sender.send([hello(), hello()], wait_s)
    assert len(rig.arrived()) == 11


async def test_schedule_cancel_and_batches(rig: Rig) -> None:
    sender = rig.sender()
    await sender.open(5)
    sdk_sender = sender._sdk_sender
    assert sdk_sender is not None
    batch = await sdk_sender.sender.create_message_batch()
    batch.add_message(hello())
    await sender.send(batch, 5)
    [number] = await sender.schedule(ServiceBusMessage("later"), FAR, 5)
    await sender.cancel(number, 5)
    await sender.open(5)
    assert rig.arrived() == ["hello"]


SILENCES = [
    ("accept", 1), ("sasl header", 1), ("mechanisms", 1), ("outcome", 1), ("header", 1), ("open", 1), ("begin", 1),
    ("attach", 1), ("attach", 2), ("transfer", 1), ("attach", 3), ("disposition", 1), ("drip", 0.05),
]  # fmt: skip


@pytest.mark.parametrize(("point", "count"), SILENCES)
async def test_p13_p19_a_peer_silent_while_opening_costs_the_time_granted_and_nothing_was_sent(
    rig: Rig, point: str, count: float
) -> None:
    sender = rig.sender(port=rig.proxy(point, count).port)
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError) as told:
        await sender.send(hello(), 0.3)
    assert "not open" in repr(sender)
    assert not may_have_arrived(told.value)


async def test_p13_a_call_whose_link_opened_and_whose_message_was_not_answered_says_so(rig: Rig) -> None:
    sender = rig.sender(port=rig.proxy("disposition", 2).port)  # the first one answers the token
    with pytest.raises(exceptions.OperationTimeoutError) as told:
        await sender.send(hello(), 1.5)
    assert may_have_arrived(told.value)
    assert rig.arrived() == ["hello"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_p13_a_refused_connection_says_that_nothing_was_sent(rig: Rig, transport: str) -> None:
    sender = rig.sender(transport, port=unused_port(), retry_total=0)
    for _ in range(2):
        with pytest.raises(exceptions.ServiceBusConnectionError) as told:
            await sender.send(hello(), 2)
        assert not may_have_arrived(told.value)


async def test_p13_after_a_link_was_lost_nobody_says_that_nothing_was_sent(rig: Rig) -> None:
    sender = await rig.used(retry_total=0)
    async with fault(rig.broker, "unreachable", namespace="contoso"):
        with pytest.raises(exceptions.ServiceBusError) as told:
            await sender.send(hello(), 2)
        assert may_have_arrived(told.value)
        with pytest.raises(exceptions.ServiceBusError) as told:
            await sender.send(hello(), 2)
        assert not may_have_arrived(told.value)


async def test_p13_a_link_that_opens_after_its_call_was_given_up_sends_nothing(rig: Rig) -> None:
    sender = rig.sender(port=rig.proxy("delay", 0.05).port)
    for _ in range(3):
        with pytest.raises(exceptions.OperationTimeoutError) as told:
            await sender.send(hello(), 0.3)
        assert not may_have_arrived(told.value)
    assert rig.arrived() == []


@pytest.mark.parametrize("point", ["accept", "outcome", "attach"])
@pytest.mark.parametrize("call", [a_cancelling, a_schedule, GuardedSender.open])
async def test_p19_the_other_calls_have_the_same_bound(rig: Rig, point: str, call: Any) -> None:
    sender = rig.sender(port=rig.proxy(point).port)
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
        await call(sender, 0.3)


@pytest.mark.parametrize("size", [0, 5, 100, 900])
@pytest.mark.parametrize("transport", ["tls", "websocket"])
async def test_p19_a_silent_tls_peer_costs_the_time_granted(rig: Rig, transport: str, size: int) -> None:
    sender = rig.sender(transport, rig.proxy("bytes", size).port)
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
        await sender.send(hello(), 0.3)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_p13_an_opening_goes_on_for_the_next_call(rig: Rig, transport: str) -> None:
    network = rig.proxy("delay", 0.05)
    sender = rig.sender(transport, network.port)
    with takes(0.1, 0.1 + LATE_S), pytest.raises(NotTriedError, match=r"is not open after 0\.\d s, and the next send"):
        await sender.open(0.1, 30)
    assert not sender.is_open
    with takes(0.1, 0.1 + LATE_S), pytest.raises(NotTriedError):
        await sender.send(hello(), 0.1)
    await sender.send(hello(), 10)
    assert sender.is_open
    assert sender.max_message_size == 262_144
    assert network.accepted == 1
    assert rig.arrived() == ["hello"]


async def test_p13_a_link_that_was_refused_before_is_waited_for_anew(rig: Rig) -> None:
    async with fault(rig.broker, "unreachable", namespace="contoso"):
        sender = rig.sender()
        with pytest.raises(exceptions.ServiceBusConnectionError):
            await sender.open(0.2, 30)
    assert not sender.wants_link
    began = time.monotonic()
    await sender.open(5, 5)
    assert 0 < sender.opening_s <= time.monotonic() - began


async def test_p13_an_opening_that_comes_to_nothing_is_ended_and_tells_of_the_queue(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "OPENING_S", 0.6)
    network = rig.proxy("accept")
    sender = rig.sender(port=network.port)
    with pytest.raises(NotTriedError):
        await sender.open(0.2, budget.opening_goes_on(0.2))
    with takes(0, 1), pytest.raises(exceptions.OperationTimeoutError) as told:
        await sender.open(1, 0)
    assert not isinstance(told.value, NotTriedError)
    with pytest.raises(exceptions.OperationTimeoutError) as told:
        await sender.open(0.2, 5)  # another opening, but there should have been a link long ago
    assert not isinstance(told.value, NotTriedError)
    network.speak_again()
    network.cut()
    with contextlib.suppress(exceptions.ServiceBusError):  # that it was cut off may be news
        await sender.open(5, 5)
    await sender.send(hello(), 5)
    assert rig.arrived() == ["hello"]


@pytest.mark.parametrize("point", ["accept", "delay"])
async def test_p13_closing_ends_an_opening_under_way(rig: Rig, point: str) -> None:
    network = rig.proxy(point, 0.2)
    sender = rig.sender(port=network.port)
    with pytest.raises(NotTriedError):
        await sender.open(0.1, 60)
    with takes(0, 2):
        await sender.close()
    assert await wait_until(lambda: network.closed_by_client == 1)
    with pytest.raises(ValueError, match="closed"):
        await sender.send(hello(), 1)


async def test_p13_closing_ends_a_call_that_waits_for_an_opening(rig: Rig) -> None:
    sender = rig.sender(port=rig.proxy("accept").port)
    with pytest.raises(NotTriedError):
        await sender.open(0.1, 60)
    waiting = Background(sender.send, hello(), 60)
    assert await wait_until(sender._lock.locked)
    await sender.close(0.1)
    with pytest.raises((exceptions.ServiceBusError, ValueError)):
        await waiting.result()


async def test_p19_no_time_at_all_is_not_a_try(rig: Rig) -> None:
    sender = rig.sender()
    with pytest.raises(NotTriedError):
        await sender.send(hello(), 0.0)
    await sender.send(hello(), 5)
    sdk_sender = sender._sdk_sender
    with pytest.raises(NotTriedError):
        await sender.send(hello(), -1.0)
    assert sender._sdk_sender is sdk_sender, "the link is as good as before"
    assert rig.arrived() == ["hello"]


@pytest.mark.parametrize(("timeout_s", "transport"), [(1.0, "plain"), (2.0, "plain"), (2.1, "tls"), (3.0, "tls")])
async def test_p18_a_wrong_key_comes_out_although_its_retry_ran_out_of_time(
    rig: Rig, timeout_s: float, transport: str
) -> None:
    """The SDK tries again after 1.6 s: with 2 s the second attempt has no time to be refused, too. Over TLS the rig has
    a custom endpoint, behind which the SDK calls a wrong key a connection error."""
    sender = rig.sender(transport)
    client = sender._make.__closure__  # the rig's client is kept as it is; only its key changes
    assert client is not None
    given = next(cell.cell_contents for cell in client if hasattr(cell.cell_contents, "_credential"))
    given._credential.key = "d3JvbmcgYW5kIGxvbmcgZW5vdWdoIHRvIGJlIG9uZQ=="
    with takes(0.0, timeout_s + LATE_S), pytest.raises(exceptions.ServiceBusError) as told:
        await sender.send(hello(), timeout_s)
    assert DEFAULT(told.value) is Verdict.REFUSED
    assert not sender.is_open


async def test_p19_a_refused_connection_comes_out_within_the_time(rig: Rig) -> None:
    sender = rig.sender(port=unused_port())
    with takes(0.0, 1.0 + LATE_S), pytest.raises(exceptions.ServiceBusConnectionError):
        await sender.send(hello(), 1.0)


#: Every failure that denies the link ends the call: the backlog is next.
AT_ONCE = PrimaryTerms(lambda error: not isinstance(error, exceptions.OperationTimeoutError))


@pytest.mark.parametrize("retry_total", [0, 3])
async def test_p19_where_the_backlog_is_next_a_refused_connection_is_not_waited_on(rig: Rig, retry_total: int) -> None:
    sender = rig.sender(port=unused_port(), retry_total=retry_total)
    with takes(0.0, 0.3 + LATE_S), pytest.raises(exceptions.ServiceBusConnectionError):
        await sender.send(hello(), 8.0, AT_ONCE)


@pytest.mark.parametrize("retry_total", [0, 3])
async def test_p19_a_link_that_went_stale_is_replaced_first(rig: Rig, retry_total: int) -> None:
    proxy = rig.proxy()
    sender = await rig.used("plain", proxy.port, retry_total=retry_total)
    proxy.cut()
    with takes(0.0, 1.5):
        assert await sender.send(hello(), 8.0, AT_ONCE) is None, "a link was opened: that is no measure of a send"
    took_s = await sender.send(hello(), 8.0, AT_ONCE)
    assert took_s is not None and 0.0 < took_s < 1.0
    assert proxy.accepted == 2


@pytest.mark.parametrize("retry_total", [0, 3])
async def test_p19_a_detached_link_is_replaced_without_a_pause(rig: Rig, retry_total: int) -> None:
    sender = await rig.used(retry_total=retry_total)
    await on_a_thread(rig.detach)
    with takes(0.0, 1.4):
        await sender.send(hello(), 8.0, AT_ONCE)
    assert rig.arrived() == ["hello"]


async def test_p19_a_failure_that_the_table_spares_is_retried_as_the_user_said(rig: Rig) -> None:
    sender = rig.sender(port=unused_port(), retry_total=1, retry_backoff_factor=0.5)
    with takes(0.4, 2.0), pytest.raises(exceptions.ServiceBusConnectionError):
        await sender.send(hello(), 8.0, PrimaryTerms(lambda error: False))


async def test_p19_silence_is_waited_for_as_long_as_the_patience_says(rig: Rig) -> None:
    sender, _proxy = await rig.silenced()
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
        await sender.send(hello(), 8.0, PrimaryTerms(AT_ONCE.ends_at, silence_s=0.3))


async def test_p19_a_link_that_was_idle_and_says_nothing_is_replaced(rig: Rig) -> None:
    sender, proxy = await rig.silenced()
    # The old connection never gets what it missed, and new ones are served: the network has forgotten the old one.
    threading.Timer(0.4, proxy.speak_again).start()
    sender._answered_at -= 3600.0
    with takes(0.9, 2.0):
        await sender.send(hello(), 2.0, PrimaryTerms(AT_ONCE.ends_at, silence_s=0.3))
    assert proxy.accepted == 2


async def test_p19_a_link_that_went_stale_before_its_token_is_due_is_replaced_first(rig: Rig) -> None:
    proxy = rig.proxy()
    sender = await rig.used("plain", proxy.port, retry_total=0)
    assert sender._sdk_sender is not None
    token = sender._sdk_sender.sender._handler._cbs_authenticator
    token._expires_on = int(time.time()) + 30  # as after an hour without a send
    proxy.cut()
    with takes(0.0, 1.5):
        await sender.send(hello(), 8.0, AT_ONCE)
    assert proxy.accepted == 2
    assert rig.arrived() == ["hello", "hello"]


async def test_p16_a_call_opens_no_link_once_the_entity_has_failed_over(rig: Rig) -> None:
    """It may have waited behind the call whose failure did that."""
    gone = PrimaryTerms(AT_ONCE.ends_at, has_left=lambda: True)
    proxy = rig.proxy()
    sender = rig.sender(port=proxy.port)
    with pytest.raises(NotTriedError, match="it failed over meanwhile"):
        await sender.send(hello(), 8.0, gone)
    assert proxy.accepted == 0
    await sender.send(hello(), 8.0, PrimaryTerms(AT_ONCE.ends_at, has_left=lambda: False))
    await sender.send(hello(), 8.0, gone)
    assert rig.arrived() == ["hello", "hello"], "an open link is there to be used"


async def test_p19_a_link_is_opened_without_waiting_for_it(rig: Rig) -> None:
    sender = rig.sender()
    assert sender.awaits_link
    sender.begin_opening(5.0)
    sender.begin_opening(5.0)  # it is being opened already
    assert await wait_until(lambda: not sender.awaits_link)
    await sender.send(hello(), 5)
    assert sender.is_alive
    sender.begin_opening(5.0)
    assert rig.arrived() == ["hello"]


async def test_p19_the_sdk_says_nothing_of_links_that_were_given_up(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    sender = rig.sender(port=rig.proxy("attach", 2).port)
    for _ in range(3):
        with pytest.raises(exceptions.OperationTimeoutError):
            await sender.send(hello(), 0.5)
    await sender.close()
    assert [each.getMessage() for each in caplog.records if each.name.startswith("azure.servicebus")] == []


async def test_p19_how_long_openings_take_is_told(rig: Rig) -> None:
    took: list[float] = []
    sender = rig.sender()
    sender._learns = took.append
    await sender.send(hello(), 5)
    await sender.send(hello(), 5)
    assert took == [sender.opening_s], "only the first has opened a link"
    rig.detach()
    await sender.send(hello(), 5)
    assert took[1:] == [sender.opening_s]
    meanwhile = rig.sender()
    meanwhile._learns = took.append
    assert not meanwhile.was_opened
    await meanwhile.await_opening()
    meanwhile.begin_opening(5.0)
    await meanwhile.await_opening()
    assert meanwhile.was_opened and not meanwhile.awaits_link
    await meanwhile.send(hello(), 5)
    assert len(took) == 3
    assert took[2] > 0.0


async def test_p19_an_opening_that_fails_teaches_nothing(rig: Rig) -> None:
    took: list[float] = []
    sender = rig.sender(port=rig.proxy("accept").port)
    sender._learns = took.append
    sender.begin_opening(0.2)
    await sender.await_opening()
    with pytest.raises(exceptions.OperationTimeoutError):
        await sender.open(0.2)
    assert took == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_p19_dropped_syns_cost_the_time_granted(rig: Rig, transport: str) -> None:
    with dropped_syns() as port:
        sender = rig.sender(transport, port)
        for _ in range(3):
            with takes(0.19, 0.2 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
                await sender.send(hello(), 0.2)


async def test_p19_a_name_that_is_not_resolved_costs_the_time_granted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        released.wait(5)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    # The plain endpoint is an address, which asyncio resolves by itself.
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    sender = rig.sender("tls")
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
        await sender.send(hello(), 0.3)
    released.set()
    monkeypatch.undo()
    await sender.send(hello(), 5)


class SlowCredential:
    def __init__(self) -> None:
        self.released = Event()

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        await self.released.wait()
        return AccessToken("token", int(time.time()) + 3600)

    async def close(self) -> None:
        pass


async def test_p19_a_token_that_does_not_come_costs_the_time_granted(rig: Rig) -> None:
    credential: Any = SlowCredential()
    rig.at_the_end(credential.released.set)
    client = ServiceBusClient(
        "localhost", credential, custom_endpoint_address=f"sb://localhost:{rig.server.port}",
        transport_type=TransportType.Amqp, connection_verify=rig.server.ca_file,
    )  # fmt: skip
    sender = GuardedSender(lambda: client.get_queue_sender(rig.queue), rig.queue)
    with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
        await sender.send(hello(), 0.3)
    credential.released.set()
    await sender.close()
    await client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_p19_an_open_link_that_falls_silent_costs_the_time_granted(rig: Rig, transport: str) -> None:
    sender, proxy = await rig.silenced(transport)
    for _ in range(2):
        with takes(0.29, 0.3 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
            await sender.send(hello(), 0.3)
    proxy.speak_again()
    await sender.send(hello(), 5)


@pytest.mark.parametrize("kind", ["black-hole", "hang", "lost-answer"])
async def test_p19_the_brokers_own_silences(rig: Rig, kind: str) -> None:
    sender = await rig.used(retry_total=0)
    with (
        fault(rig.broker, kind, entity=rig.queue),
        takes(0.0, 0.5 + LATE_S),
        pytest.raises((exceptions.OperationTimeoutError, exceptions.ServiceBusConnectionError)),
    ):
        await sender.send(hello(), 0.5)
    await sender.send(hello(), 5)


async def test_p19_twenty_sends_into_a_black_hole_leave_nothing_behind(rig: Rig) -> None:
    sender, proxy = await rig.silenced("tls")
    for _ in range(20):
        with takes(0.0, 0.05 + LATE_S), pytest.raises(exceptions.OperationTimeoutError):
            await sender.send(hello(), 0.05)
    assert proxy.accepted > 4


@pytest.mark.parametrize(("transport", "retry_total"), [("plain", 0), ("plain", 3), ("tls", 3), ("websocket", 3)])
async def test_p7_a_link_that_was_cut_is_opened_again(rig: Rig, transport: str, retry_total: int) -> None:
    proxy = rig.proxy()
    sender = await rig.used(transport, proxy.port, retry_total=retry_total)
    proxy.cut()
    with takes(0.0, 1.5):
        await sender.send(hello(), 5)
    assert proxy.accepted == 2
    assert rig.arrived() == ["hello", "hello"]


async def test_p7_a_link_that_the_broker_detached_is_opened_again(rig: Rig) -> None:
    sender = await rig.used(retry_total=0)
    await on_a_thread(rig.detach)
    with takes(0.0, 1.5):
        await sender.send(hello(), 5)
    assert rig.arrived() == ["hello"]


@pytest.mark.parametrize("point", ["", "accept", "open"])
async def test_closing_under_a_call_ends_it(rig: Rig, point: str) -> None:
    proxy = rig.proxy(point)
    sender = rig.sender(port=proxy.port)
    if not point:
        await sender.send(hello(), 5)
        proxy.fall_silent()
    hung = Background(sender.send, hello(), 20)
    await rig.hangs(sender, proxy)
    with takes(0.0, 1.5):
        await sender.close(timeout_s=0.3)
    with takes(0.0, 1.0), pytest.raises((exceptions.ServiceBusError, ValueError)):
        await hung.result()
    assert sender._sdk_sender is None


async def test_p24_busy_comes_out_at_once_and_the_link_stays(rig: Rig) -> None:
    sender = await rig.used()
    sdk_sender = sender._sdk_sender
    with fault(rig.broker, "throttle", entity=rig.queue, rate=0):
        for call in (a_send, a_schedule):
            with takes(0.0, 5.0), pytest.raises(exceptions.ServiceBusServerBusyError):
                await call(sender, 20)
    await sender.send(hello(), 5)
    assert sender._sdk_sender is sdk_sender


async def test_p24_busy_comes_out_at_once_from_a_link_that_is_being_opened(rig: Rig) -> None:
    sender = rig.sender()
    with (
        fault(rig.broker, "throttle", entity=rig.queue, rate=0),
        takes(0.0, 5.0),
        pytest.raises(exceptions.ServiceBusServerBusyError),
    ):
        await sender.send(hello(), 20)


async def test_an_entity_that_is_not_there(rig: Rig) -> None:
    with pytest.raises(exceptions.MessagingEntityNotFoundError):
        await rig.sender(entity="nowhere").send(hello(), 5)


async def test_errors_of_the_message_come_out_as_the_sdk_raises_them_and_the_link_stays(rig: Rig) -> None:
    sender = await rig.used()
    sdk_sender = sender._sdk_sender
    with pytest.raises(exceptions.MessageSizeExceededError):
        await sender.send(ServiceBusMessage("x" * 300_000), 5)
    with pytest.raises(TypeError):
        await sender.send(object(), 5)
    await sender.send(hello(), 5)
    assert sender._sdk_sender is sdk_sender


@pytest.mark.parametrize(("retries", "hidden"), [(2, True), (1, False), (0, False)])
async def test_p19_retries_that_the_user_configured_are_made(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, retries: int, hidden: bool
) -> None:
    """An answer that the SDK takes for transient, twice: two retries hide it, fewer let it out."""
    from azure.servicebus._pyamqp.error import ErrorCondition, MessageSendFailed
    from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

    sender = await rig.used(retry_total=retries, retry_backoff_factor=0.01)
    real = PyamqpTransportAsync.send_messages_async
    failures = 2

    async def send_messages(*arguments: Any, **options: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise MessageSendFailed(ErrorCondition.InternalError, description="try again")
        await real(*arguments, **options)

    monkeypatch.setattr(PyamqpTransportAsync, "send_messages_async", staticmethod(send_messages))
    with contextlib.nullcontext() if hidden else pytest.raises(exceptions.ServiceBusError):
        await sender.send(hello(), 5)
    assert failures == max(0, 1 - retries)


async def test_p7_many_callers_may_use_one_sender(rig: Rig) -> None:
    sender = rig.sender()

    async def work(number: int) -> None:
        for each in range(10):
            await sender.send(ServiceBusMessage(f"{number}.{each}"), 20)

    for worker in [Background(work, number) for number in range(8)]:
        await worker.result()
    assert sorted(rig.arrived()) == sorted(f"{number}.{each}" for number in range(8) for each in range(10))


async def test_p19_waiting_for_another_send_counts(rig: Rig) -> None:
    sender, proxy = await rig.silenced()
    hung = Background(sender.send, hello(), 1.0)
    await rig.hangs(sender, proxy)
    with takes(0.29, 0.3 + LATE_S), pytest.raises(NotTriedError, match="was not tried: other sends"):
        await sender.send(hello(), 0.3)
    with pytest.raises(exceptions.OperationTimeoutError):
        await hung.result()


async def test_a_closed_sender_refuses_and_closing_a_hung_one_does_not_hang(rig: Rig) -> None:
    sender, _ = await rig.silenced("tls")
    with takes(0.0, 2.5):
        await sender.close()
    with pytest.raises(ValueError, match="closed"):
        await sender.send(hello(), 1)
    await sender.close()
    assert repr(sender) == f"<GuardedSender {rig.queue}: closed>"


async def test_closing_does_not_wait_for_the_sdk_to_keep_alive(rig: Rig) -> None:
    sender = await rig.used()
    with takes(0.0, 0.5):
        await sender.close()
