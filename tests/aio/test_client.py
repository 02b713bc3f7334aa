from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.aio import provisioning
from pairbus.aio.client import ServiceBusClient
from pairbus.aio.receiver import PairedReceiver
from pairbus.aio.sender import PairedSender
from pairbus.broker import Broker, serve_sync
from pairbus.pairing.errors import (
    AlreadyPaired,
    ClientFaultedError,
    InvalidOptions,
    PairingError,
    PairingFailed,
    PinnedEntityError,
)
from pairbus.pairing.events import (
    BacklogQueueLeftOut,
    ControlFileChanged,
    ControlFileUnusable,
    Event,
    PairingCompleted,
    PairingDegraded,
    StateChanged,
)
from pairbus.pairing.observers import Observer
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.routing.states import EntityState
from pairbus.testing import fault

from ..pairing.managers import AsyncFakeManager, http, path
from ..pairing.sdk_rig import taken
from ..pairing.silent_proxy import SilentProxy
from .background import Background, OtherClient, OtherFakeManager, names_of_all, wait_until

SRC = Path(provisioning.__file__).parent.parent
PRIMARY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
SECONDARY = "Endpoint=sb://backup.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., ServiceBusClient]]:
    """Makes clients of namespaces that nobody has; nothing is contacted as long as nothing is sent."""
    monkeypatch.setattr(provisioning, "RETRY_DELAY_S", 0.0)
    made: list[ServiceBusClient] = []

    def make(text: str = PRIMARY, **options: Any) -> ServiceBusClient:
        made.append(ServiceBusClient.from_connection_string(text, **options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


Clients = Callable[..., ServiceBusClient]


def options(secondary: Any, manager: Any = None, **settings: Any) -> SendAvailabilityPairedNamespaceOptions:
    chosen = {"backlog_queue_count": 3, **settings}
    return SendAvailabilityPairedNamespaceOptions(manager or AsyncFakeManager(), secondary, **chosen)


async def test_unpaired_it_is_the_sdks_client(clients: Clients) -> None:
    client = clients()
    assert type(client) is ServiceBusClient
    assert isinstance(client, azure.servicebus.aio.ServiceBusClient)
    assert type(client.get_queue_sender("orders")) is ServiceBusSender
    assert type(client.get_topic_sender("news")) is ServiceBusSender
    assert type(client.get_queue_receiver("orders")) is ServiceBusReceiver
    assert not client.is_paired
    assert repr(client) == "<ServiceBusClient contoso.servicebus.windows.net: not paired>"
    await client.close()
    client.get_queue_sender("orders")  # as with the SDK
    for call in (client.states, lambda: client.state("orders"), lambda: client.force_failover("orders")):
        with pytest.raises(PairingError, match="not paired"):
            call()


async def test_p1_every_sender_and_receiver_made_afterwards_is_paired(clients: Clients) -> None:
    client = clients()
    before = client.get_queue_sender("orders")
    await client.pair_namespace(options(clients(SECONDARY)))
    assert type(before) is ServiceBusSender, "those made before stay as they are"
    assert isinstance(client.get_queue_sender("orders"), PairedSender)
    assert isinstance(client.get_topic_sender("news", client_identifier="me"), PairedSender)
    assert client.get_topic_sender("news", client_identifier="me").client_identifier == "me"
    assert isinstance(client.get_queue_receiver("orders"), PairedReceiver)
    assert isinstance(client.get_subscription_receiver("news", "all"), PairedReceiver)
    assert client.states() == {"orders": EntityState.HEALTHY, "news": EntityState.HEALTHY}
    assert client.state("never met") is EntityState.HEALTHY
    assert "paired with backup.servicebus.windows.net" in repr(client)
    assert client.primary_name == "contoso"
    client.observe(Observer())()


async def test_p5_afterwards_the_count_is_that_of_the_queues_found_or_made(clients: Clients) -> None:
    client, events = clients(), list[Event]()
    client.subscribe(events.append)
    manager = AsyncFakeManager(path(1), refusals={2: [http(500)] * 3})
    given = options(clients(SECONDARY), manager)
    await client.pair_namespace(given)
    assert given.backlog_queue_count == 2
    assert [event.queue for event in events if isinstance(event, BacklogQueueLeftOut)] == [2]
    assert events[-1] == PairingCompleted(2)


async def test_p3_after_a_failure_the_client_is_unpaired_and_the_options_can_be_used_again(clients: Clients) -> None:
    client, manager = clients(), AsyncFakeManager()
    manager.listing_error = http(401)
    given = options(clients(SECONDARY), manager)
    with pytest.raises(PairingFailed):
        await client.pair_namespace(given)
    assert not client.is_paired
    assert type(client.get_queue_sender("orders")) is ServiceBusSender
    manager.listing_error = None
    await client.pair_namespace(given)
    assert client.is_paired


async def test_p2_p5_what_is_set_before_pairing_is_honoured_and_after_a_failure_too(clients: Clients) -> None:
    client, manager = clients(), AsyncFakeManager()
    manager.listing_error = http(401)
    given = options(clients(SECONDARY), manager)
    given.backlog_queue_count = 5
    with pytest.raises(PairingFailed):
        await client.pair_namespace(given)
    assert given.backlog_queue_count == 5
    given.backlog_queue_count = 2
    given.ping_primary_interval = 7
    manager.listing_error, manager.refusals = None, {1: [http(500)] * 3}
    await client.pair_namespace(given)
    assert [name for name, _ in manager.made] == [path(0)]
    assert given.backlog_queue_count == 1, "as many as were found or made"
    assert client._pairing is not None and client._pairing.settings.ping_primary_interval == 7.0
    with pytest.raises(AlreadyPaired, match="failover_interval can't be set any more"):
        given.failover_interval = 3


async def test_p6_what_is_refused(clients: Clients) -> None:
    client, secondary = clients(), clients(SECONDARY)
    given = options(secondary)
    await client.pair_namespace(given)
    with pytest.raises(AlreadyPaired, match="paired already"):
        await client.pair_namespace(options(clients(SECONDARY)))
    with pytest.raises(AlreadyPaired, match="in use by another pairing"):
        await clients().pair_namespace(given)
    with pytest.raises(AlreadyPaired, match="itself paired"):
        await clients(SECONDARY).pair_namespace(options(client))
    with pytest.raises(InvalidOptions, match="the same namespace"):
        await clients().pair_namespace(options(clients()))
    with pytest.raises(InvalidOptions, match="asynchronous"):
        await clients().pair_namespace(options(OtherClient.from_connection_string(SECONDARY)))
    with pytest.raises(InvalidOptions, match="only"):
        await clients().pair_namespace(options(clients(SECONDARY + ";EntityPath=orders")))
    manager = AsyncFakeManager()
    manager.fully_qualified_namespace = "contoso.servicebus.windows.net"
    with pytest.raises(InvalidOptions, match="manages the primary"):
        await clients().pair_namespace(options(clients(SECONDARY), manager))
    with pytest.raises(InvalidOptions, match="allowed: SendAvailabilityPairedNamespaceOptions"):
        await clients().pair_namespace(7)  # type: ignore[arg-type]


async def test_p6_a_secondary_client_serves_one_pair(clients: Clients) -> None:
    first, other, secondary, manager = clients(), clients(), clients(SECONDARY), AsyncFakeManager()
    manager.listing_error = http(401)
    with pytest.raises(PairingFailed):
        await first.pair_namespace(options(secondary, manager))
    await other.pair_namespace(options(secondary))
    with pytest.raises(AlreadyPaired, match=r"serves the pair of contoso\S+, or did .* of its own for each pair"):
        await first.pair_namespace(options(secondary))
    with pytest.raises(AlreadyPaired, match=r"serves the pair of contoso\S+ as its secondary"):
        await secondary.pair_namespace(options(clients(SECONDARY.replace("backup", "third"))))
    assert not first.is_paired
    await other.close()
    given = options(secondary)
    with pytest.raises(AlreadyPaired, match="or did until that was closed"):
        await first.pair_namespace(given)
    assert not given.claimed
    await first.pair_namespace(options(clients(SECONDARY)))


async def test_p6_secondaries_that_can_not_serve_are_refused_in_clear_words(clients: Clients) -> None:
    closed = clients(SECONDARY)
    await closed.close()
    with pytest.raises(InvalidOptions, match=r"the secondary backup\S+ has been closed; make a new one"):
        await clients().pair_namespace(options(closed))
    with pytest.raises(InvalidOptions, match=r"azure\.servicebus\.aio\.management$"):
        await clients().pair_namespace(options(clients(SECONDARY), OtherFakeManager()))
    with pytest.raises(InvalidOptions, match=r"options may not be None; allowed: SendAvail"):
        await clients().pair_namespace(None)  # type: ignore[arg-type]

    class Stranger:
        def get_queue_sender(self, name: str) -> None: ...

    with pytest.raises(InvalidOptions, match=r"messaging_factory is no ServiceBusClient of azure"):
        await clients().pair_namespace(options(Stranger()))


async def test_p6_a_client_that_is_being_paired_is_refused(clients: Clients) -> None:
    client, manager = clients(), AsyncFakeManager()
    create = manager.create_queue

    async def create_queue(name: str, **properties: Any) -> None:
        with pytest.raises(AlreadyPaired, match="just now"):
            await Background(client.pair_namespace, options(clients(SECONDARY))).result()
        await create(name, **properties)

    manager.create_queue = create_queue  # type: ignore[method-assign]
    await client.pair_namespace(options(clients(SECONDARY), manager))
    assert len(manager.made) == 3


async def test_p44_a_client_that_is_closed_while_it_is_being_paired_is_not_paired(clients: Clients) -> None:
    client, manager, closed = clients(), AsyncFakeManager(), list[bool]()
    create = manager.create_queue

    class Watcher(Observer):
        def close(self) -> None:
            closed.append(True)

    async def create_queue(name: str, **properties: Any) -> None:
        await Background(client.close).result()
        await create(name, **properties)

    manager.create_queue = create_queue  # type: ignore[method-assign]
    given = options(clients(SECONDARY), manager)
    with pytest.raises(PairingFailed, match="closed while it was being paired"):
        await client.pair_namespace(given, (Watcher(),))
    assert not client.is_paired
    assert not given.claimed
    assert closed == [True], "what runs in the background has been stopped"


async def test_p6_a_client_that_was_closed_is_not_paired(clients: Clients) -> None:
    client, given = clients(), options(clients(SECONDARY))
    await client.close()
    with pytest.raises(InvalidOptions, match="has been closed"):
        await client.pair_namespace(given)
    assert not given.claimed


async def test_p8_an_address_needs_a_primary_name(clients: Clients) -> None:
    local = "Endpoint=sb://127.0.0.1:5;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    given = options(clients(SECONDARY))
    with pytest.raises(InvalidOptions, match="primary_name"):
        await clients(local).pair_namespace(given)
    assert not given.claimed
    manager = AsyncFakeManager()
    await clients(local).pair_namespace(options(clients(SECONDARY), manager, primary_name="contoso"))
    assert manager.made[0][0] == path(0)


async def test_p10_a_low_delivery_count_is_warned_of(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    manager = AsyncFakeManager(path(0))
    manager.queues[path(0)] = manager.queues[path(0)]._replace(max_delivery_count=10)
    with caplog.at_level(logging.WARNING, "pairbus.pairing"):
        await clients().pair_namespace(options(clients(SECONDARY), manager))
    assert "maximum delivery count of 10" in caplog.text


async def test_p3_degrade_starts_and_goes_on_trying(clients: Clients) -> None:
    client, manager, events = clients(), AsyncFakeManager(), list[Event]()
    client.subscribe(events.append)
    manager.listing_error = error = ServiceRequestError("refused")
    given = options(clients(SECONDARY), manager, on_secondary_unavailable="degrade", backlog_retry_interval=0.1)
    await client.pair_namespace(given)
    assert client.is_paired
    (degraded,) = events
    assert isinstance(degraded, PairingDegraded)
    assert degraded.error.__cause__ is error
    manager.listing_error = None
    assert await wait_until(lambda: PairingCompleted(3) in events)
    assert given.backlog_queue_count == 3
    assert await wait_until(lambda: "pairbus-pairing" not in names_of_all())


async def test_p3_degrade_is_not_for_what_trying_does_not_mend(clients: Clients) -> None:
    client, manager = clients(), AsyncFakeManager()
    manager.listing_error = http(401)
    with pytest.raises(PairingFailed):
        await client.pair_namespace(options(clients(SECONDARY), manager, on_secondary_unavailable="degrade"))
    assert not client.is_paired


async def test_p44_closing_ends_the_trying(clients: Clients) -> None:
    client, manager = clients(), AsyncFakeManager()
    manager.listing_error = ServiceRequestError("refused")
    await client.pair_namespace(
        options(clients(SECONDARY), manager, on_secondary_unavailable="degrade", backlog_retry_interval=60)
    )
    await client.close()
    assert await wait_until(lambda: "pairbus-pairing" not in names_of_all())


async def test_p44_closing_ends_the_links_that_are_being_tried(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = provisioning.look
    tries: list[bool] = []

    async def away_at_first(*arguments: Any) -> None:
        tries.append(True)
        if len(tries) == 1:
            raise PairingFailed("nobody answers") from OperationTimeoutError()
        await look(*arguments)

    monkeypatch.setattr(provisioning, "look", away_at_first)
    client = clients()
    with SilentProxy(0, "accept") as network:
        text = f"Endpoint=sb://127.0.0.1:{network.port};SharedAccessKeyName=a;SharedAccessKey=b"
        settings: Any = {"on_secondary_unavailable": "degrade", "backlog_retry_interval": 0.1}
        await client.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(None, clients(f"{text};UseDevelopmentEmulator=true"), **settings)
        )
        assert await wait_until(lambda: network.withheld)
        await client.close()
        assert await wait_until(lambda: network.closed_by_client == network.accepted)
        assert await wait_until(lambda: "pairbus-pairing" not in names_of_all())


async def test_p23_the_operator(clients: Clients) -> None:
    client, events = clients(), list[Event]()
    await client.pair_namespace(options(clients(SECONDARY)))
    unsubscribe = client.subscribe(events.append)
    client.force_failover("orders", hold=True)
    assert client.state("orders") is EntityState.FAILED_OVER
    client.mark_healthy("orders")
    assert client.states() == {"orders": EntityState.HEALTHY}
    assert [event.cause for event in events if isinstance(event, StateChanged)] == ["forced", "marked healthy"]
    unsubscribe()
    client.force_failover("orders", hold=True)
    assert len(events) == 4


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.health_monitor.INTERVAL_S", 0.01)


@pytest.mark.usefixtures("quick_looks")
async def test_p23_the_control_file_is_followed_from_pairing_on(clients: Clients, tmp_path: Path) -> None:
    path = tmp_path / "control.toml"
    path.write_text('Orders = "failed-over"\n')
    client, events = clients(), list[Event]()
    client.subscribe(events.append)
    await client.pair_namespace(options(clients(SECONDARY), control_file=path))
    assert client.state("orders") is EntityState.FAILED_OVER
    client.get_queue_sender("orders")
    assert events[-1] == StateChanged("orders", EntityState.HEALTHY, EntityState.FAILED_OVER, "control file")
    for call in (client.force_failover, client.mark_healthy):
        with pytest.raises(PinnedEntityError, match="the control file keeps it 'failed-over'"):
            call("ORDERS")
    path.write_text('"*" = "healthy"\n')
    assert await wait_until(lambda: client.state("orders") is EntityState.HEALTHY)
    path.write_text('"*" = "ill"\n')
    assert await wait_until(lambda: isinstance(events[-1], ControlFileUnusable))
    path.unlink()
    assert await wait_until(lambda: len([each for each in events if isinstance(each, ControlFileUnusable)]) == 2)
    with pytest.raises(PinnedEntityError):
        client.force_failover("news")
    path.write_text("")
    assert await wait_until(lambda: events[-1] == ControlFileChanged(()))
    client.force_failover("news")
    assert client.state("news") is EntityState.FAILED_OVER
    told = [each for each in events if isinstance(each, ControlFileChanged | ControlFileUnusable)]
    assert len(told) == 5, told


@pytest.mark.usefixtures("quick_looks")
async def test_p23_a_function_may_stand_for_the_control_file(clients: Clients) -> None:
    answers: list[Any] = [{"orders": "failed-over"}]
    asked = 0

    def control() -> Any:
        nonlocal asked
        asked += 1
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    client, events = clients(), list[Event]()
    client.subscribe(events.append)
    await client.pair_namespace(options(clients(SECONDARY), control_file=control))
    assert client.state("orders") is EntityState.FAILED_OVER
    answers.append(ConnectionError("the vault is away"))
    assert await wait_until(lambda: isinstance(events[-1], ControlFileUnusable))
    so_far = asked
    assert await wait_until(lambda: asked > so_far + 5)
    assert client.state("orders") is EntityState.FAILED_OVER
    assert len([each for each in events if isinstance(each, ControlFileUnusable)]) == 1, "told once"
    answers.append('"*" = "auto"')
    assert await wait_until(lambda: events[-1] == ControlFileChanged((("*", "auto"),)))
    await client.close()
    so_far = asked
    assert not await wait_until(lambda: asked > so_far + 1, 0.1), "closing ends the looks"


async def test_p23_a_control_file_that_hangs_holds_up_nothing(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pairbus.aio.health_monitor", "pairbus.pairing.control_file"):
        monkeypatch.setattr(f"{module}.FIRST_LOOK_S", 0.05)
    goes_on = threading.Event()

    def control() -> str:
        goes_on.wait(10)
        return 'orders = "failed-over"'

    client = clients()
    await client.pair_namespace(options(clients(SECONDARY), control_file=control))
    assert client.state("orders") is EntityState.HEALTHY
    goes_on.set()
    assert await wait_until(lambda: client.state("orders") is EntityState.FAILED_OVER)


async def test_p23_that_the_control_file_hangs_is_an_event(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.health_monitor.LATE_S", 0.05)
    monkeypatch.setattr("pairbus.aio.health_monitor.FIRST_LOOK_S", 0.01)
    goes_on = threading.Event()

    def control() -> str:
        goes_on.wait(10)
        return 'orders = "failed-over"'

    client, events = clients(), list[Event]()
    client.subscribe(events.append)
    await client.pair_namespace(options(clients(SECONDARY), control_file=control))
    assert await wait_until(lambda: any(isinstance(each, ControlFileUnusable) for each in events))
    assert client.state("orders") is EntityState.HEALTHY, "as before"
    goes_on.set()
    assert await wait_until(lambda: client.state("orders") is EntityState.FAILED_OVER)
    assert len([each for each in events if isinstance(each, ControlFileUnusable)]) == 1


async def test_p38_the_spark_engine_is_checked_before_anything_is_made(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pairbus.syphon import hosting

    monkeypatch.setattr(hosting.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    manager = AsyncFakeManager()
    with pytest.raises(PairingError, match="in-process"):
        await clients().pair_namespace(options(clients(SECONDARY), manager, enable_syphon=True))
    assert manager.made == []


async def test_p44_closed_clients_of_a_pair_make_nothing_more(clients: Clients) -> None:
    client, secondary = clients(), clients(SECONDARY)
    await client.pair_namespace(options(secondary))
    sender = client.get_queue_sender("orders")
    await client.close()
    await client.close()
    for call in (client.get_queue_sender, client.get_queue_receiver, secondary.get_queue_sender):
        with pytest.raises(ValueError, match="closed"):
            call("orders")
    with pytest.raises(ValueError, match="shutdown"):
        await sender.send_messages(ServiceBusMessage("x"))


async def test_p44_closing_twice_at_once_closes_everything(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    client, secondary = clients(), clients(SECONDARY)
    await client.pair_namespace(options(secondary))
    senders = [client.get_queue_sender(name) for name in ("orders", "invoices", "returns")]
    others: list[Background] = []
    close = PairedSender.close

    async def closing(sender: PairedSender) -> None:
        if not others:
            others.append(Background(client.close))
            await others[0].result()
        await close(sender)

    monkeypatch.setattr(PairedSender, "close", closing)
    await client.close()
    assert len(others) == 1
    assert secondary._is_closed
    for sender in senders:
        with pytest.raises(ValueError, match="shutdown"):
            await sender.send_messages(ServiceBusMessage("x"))


async def test_p43_a_faulted_client_raises_its_fault(clients: Clients) -> None:
    client = clients()
    await client.pair_namespace(options(clients(SECONDARY)))
    sender = client.get_queue_sender("orders")
    receiver = client.get_queue_receiver("orders")
    client._fault = ClientFaultedError("the partner of contoso, backup, was closed")
    with pytest.raises(ClientFaultedError, match="backup"):
        await receiver.receive_messages()
    for _ in range(2):
        with pytest.raises(ClientFaultedError, match="backup"):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ClientFaultedError, match="backup"):
            client.get_queue_receiver("orders")


async def test_paired_refuses_unknown_options_by_near_names() -> None:
    with pytest.raises(TypeError, match=r"no option 'failover_intervall'; did you mean failover_interval"):
        await ServiceBusClient.paired(PRIMARY, SECONDARY, failover_intervall=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"did you mean ca_file"):
        await ServiceBusClient.paired(PRIMARY, SECONDARY, ca_files=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidOptions, match="failover_interval may not be -1"):
        await ServiceBusClient.paired(PRIMARY, SECONDARY, failover_interval=-1)
    with pytest.raises(InvalidOptions, match="credential="):
        await ServiceBusClient.paired("contoso.servicebus.windows.net", SECONDARY)


class Pair:
    """Two namespaces of one embedded broker, and the queue `orders` in the first."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.primary, self.secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        self.options = {
            "ca_file": self.secondary.ca_file,
            "primary_name": "contoso",
            "backlog_queue_count": 2,
            "failover_interval": 0,
            "ping_primary_interval": 1,
            "send_timeout": 6,
            "client_options": {"retry_total": 0},
        }

    async def client(self, **options: Any) -> ServiceBusClient:
        return await ServiceBusClient.paired(
            self.primary.connection_string, self.secondary.connection_string, **{**self.options, **options}
        )

    def arrived(self) -> list[str]:
        return taken(self.primary, "orders")

    def waiting(self) -> list[str]:
        return taken(self.secondary, path(0), path(1))

    def count(self, namespace: Any, queue: str) -> int:
        return int(namespace.namespace.queues[queue].counts().active)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with serve_sync("contoso", "backup", data=tmp_path_factory.mktemp("pair")) as broker:
        made = Pair(broker)
        from azure.servicebus.management import ServiceBusAdministrationClient

        with ServiceBusAdministrationClient.from_connection_string(
            made.primary.connection_string, connection_verify=made.primary.ca_file
        ) as admin:
            admin.create_queue("orders")
        yield made


async def test_p19_after_a_return_the_link_is_open_before_somebody_sends(pair: Pair) -> None:
    async with await pair.client(profile="interactive") as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        unused: Any = client.get_queue_sender("orders")
        used: Any = sender
        async with fault(pair.broker, "unreachable", namespace="contoso"):
            await sender.send_messages(ServiceBusMessage("during"))
        assert await wait_until(lambda: client.state("orders") is EntityState.HEALTHY, 15)
        assert await wait_until(lambda: not used._primary.awaits_link, 15)
        assert not unused._primary.was_opened
        openings: Any = client._paired().monitor.coordinator._openings
        assert openings._took, "and how long openings take is known"
        await sender.send_messages(ServiceBusMessage("after"))
    assert pair.arrived() == ["before", "after"]
    waiting = pair.waiting()
    assert waiting == ["during"]


@pytest.mark.usefixtures("quick_looks")
async def test_p23_an_operator_moves_a_client_by_its_control_file_and_asks_why(pair: Pair, tmp_path: Path) -> None:
    path_of_file = tmp_path / "control.toml"
    async with (
        await pair.client(control_file=path_of_file, return_ramp=0.2) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        assert [each.kind for each in client.explain("orders")] == ["client"] * 2, "no file, and paired"
        path_of_file.write_text('ORDERS = "failed-over"')
        assert await wait_until(lambda: client.state("orders") is EntityState.FAILED_OVER)
        await sender.send_messages(ServiceBusMessage("during"))
        path_of_file.write_text('"*" = "healthy"')
        assert await wait_until(lambda: client.state("orders") is EntityState.HEALTHY)
        async with fault(pair.broker, "unreachable", namespace="contoso"):
            await sender.send_messages(ServiceBusMessage("fails"))
            assert client.state("orders") is EntityState.HEALTHY, "pinned"
        said = [each.text for each in client.explain("ORDERS")]
    assert pair.arrived() == ["before"]
    waiting = pair.waiting()
    assert sorted(waiting) == ["during", "fails"]
    for text in (
        "the control file says: ORDERS = failed-over",
        "healthy → failed over: the control file says so",
        "messages went to the backlog by the rule 'failed over': failed over: control file",
        "failed over → healthy: its turn in return_ramp has come",
    ):
        assert text in said, said
    assert any("the rule 'interval zero'" in text and "the primary was given" in text for text in said), said


async def test_p14_a_healthy_send_passes_few_files_and_rooms(pair: Pair) -> None:
    passed: list[Path] = []

    def note(frame: Any, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SRC in path.parents:
            passed.append(path)

    async with await pair.client(warm_backlog=False) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        message = ServiceBusMessage("second")
        sys.setprofile(note)
        try:
            await sender.send_messages(message)
        finally:
            sys.setprofile(None)
    assert pair.arrived() == ["first", "second"]
    assert 3 < len(set(passed)) <= 6, passed
    assert len(passed) <= 30, "calls of ours, beside the four hundred of the SDK"
    assert sum(one.parent != other.parent for one, other in pairwise(passed)) <= 5, passed


@pytest.mark.parametrize("warm_backlog", [False, True])
async def test_p7_the_links_of_a_sender_that_is_dropped_are_closed(pair: Pair, warm_backlog: bool) -> None:
    servers = (pair.primary, pair.secondary)
    assert await wait_until(lambda: not any(server.connections for server in servers))

    async def send_and_drop(client: ServiceBusClient) -> None:
        client.mark_healthy("orders")
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("home"))
        client.force_failover("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("diverted"))
        del sender
        gc.collect()

    async with await pair.client(warm_backlog=warm_backlog) as client:
        await send_and_drop(client)
        await send_and_drop(client)  # making the second sender closes the links of the first
        assert await wait_until(lambda: len(pair.primary.connections) == 1)
        assert await wait_until(lambda: len(pair.secondary.connections) == 1 + warm_backlog)
    assert await wait_until(lambda: not any(server.connections for server in servers)), servers
    assert pair.arrived() == ["home"] * 2
    assert len(pair.waiting()) == 2


async def test_p4_without_the_manage_right(pair: Pair) -> None:
    with pytest.raises(PairingFailed, match="none of the 2 backlog queues unmade/"):
        await pair.client(manage=False, primary_name="unmade")
    await (await pair.client()).close()
    async with await pair.client(manage=False) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("sent"))
    assert pair.waiting() == ["sent"]


class Keys:
    """One credential for both namespaces, as azure-identity's are; the embedded broker knows signatures only."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, *namespaces: Any) -> None:
        self._keys: dict[str, ServiceBusSharedKeyCredential] = {}
        for namespace in namespaces:
            fields = dict(field.split("=", 1) for field in namespace.connection_string.split(";") if field)
            key = ServiceBusSharedKeyCredential(fields["SharedAccessKeyName"], fields["SharedAccessKey"])
            self._keys[f"{namespace.host}:{namespace.port}"] = key

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        key = next(key for host, key in self._keys.items() if host in scopes[0])
        return await key.get_token(*scopes)


async def test_paired_with_host_names_and_a_credential(pair: Pair) -> None:
    await (await pair.client()).close()  # which makes the queues
    async with (
        await ServiceBusClient.paired(
            f"{pair.primary.host}:{pair.primary.port}",
            f"{pair.secondary.host}:{pair.secondary.port}",
            credential=Keys(pair.primary, pair.secondary),
            manage=False,
            primary_name="contoso",
            backlog_queue_count=2,
            client_options={"use_tls": False},
        ) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("by host name"))
    assert pair.arrived() == ["by host name"]


async def test_the_ledger_tells_what_happened(pair: Pair, tmp_path: Path) -> None:
    async with await pair.client(ledger=tmp_path) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_queue_receiver("orders") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=10)
            await receiver.complete_message(message)
        client.force_failover("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("x"))
    text = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    for kind in ("send", "receive", "settle", "divert", "state"):
        assert f'"{kind}"' in text
    pair.arrived()
    pair.waiting()


async def test_p38_the_syphon_in_the_application(pair: Pair) -> None:
    async with await pair.client(enable_syphon=True, syphon_engine="in-process") as client:
        client.force_failover("orders", hold=True)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
        async with client.get_queue_receiver("orders") as receiver:
            got: list[str] = []
            while len(got) < 5:
                for message in await receiver.receive_messages(5, max_wait_time=10):
                    got.append(str(message))
                    await receiver.complete_message(message)
    assert sorted(got) == ["0", "1", "2", "3", "4"]
