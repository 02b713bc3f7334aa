from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, use_span

import pairbus
import pairbus.aio
from pairbus.broker import Broker, serve_sync
from pairbus.errors import PairbusError
from pairbus.pairing import events
from pairbus.pairing.observers import Observer
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.pairing.routing.states import EntityState
from pairbus.telemetry import TelemetryMissing, TelemetryObserver, instrument
from tests.waiting import soon, until

HEALTHY, SUSPECT, FAILED_OVER = EntityState.HEALTHY, EntityState.SUSPECT, EntityState.FAILED_OVER


class Client:
    """What `instrument` sees of a paired client."""

    primary_name = "contoso"

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.now = {"orders": HEALTHY, "news": HEALTHY}

    def states(self) -> dict[str, EntityState]:
        return self.now

    def observe(self, observer: Observer) -> Callable[[], None]:
        self.observers.append(observer)
        return lambda: self.observers.remove(observer)


class Rig:
    def __init__(self, client: Any = None) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        self._meters = MeterProvider([self._reader])
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = tracers.get_tracer("application")
        self.client = client or Client()
        self.end = instrument(self.client, meter_provider=self._meters, tracer_provider=tracers)
        self.observer = self.client.observers[0] if client is None else None

    def points(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Attributes without the namespace, as sorted values → the value, or (count, sum) of a histogram."""
        data = self._reader.get_metrics_data()
        found: dict[tuple[Any, ...], Any] = {}
        for resource in data.resource_metrics if data else []:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "pairbus"
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            attributes = dict(point.attributes or {})
                            assert attributes.pop("pairbus.namespace") == "contoso"
                            key = tuple(attributes[each] for each in sorted(attributes))
                            found[key] = getattr(point, "value", None)
                            if found[key] is None:
                                found[key] = (point.count, point.sum)  # type: ignore[union-attr]
        return found

    def is_back(self) -> bool:
        """Whether a ping has brought `orders` back, and all that is told of it has come."""
        return bool(self.points("pairbus.pings")) and self.points("pairbus.entity.state")["orders", "healthy"] == 1

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def two() -> list[ServiceBusMessage]:
    return [ServiceBusMessage("a"), ServiceBusMessage("b")]


def test_p23_sends_are_counted_by_entity_route_and_outcome(rig: Rig) -> None:
    assert rig.observer.wants_sends
    rig.observer.sent("orders", "primary", None, two(), "ok", 5)
    rig.observer.sent("orders", "primary", None, two(), "ok", 7)
    rig.observer.sent("orders", "primary", None, [ServiceBusMessage("a")], "TimeoutError", 1000)
    rig.observer.sent("orders", "backlog", 3, [ServiceBusMessage("a")], "ok", 20)
    rig.observer.sent("orders", "backlog", 4, [ServiceBusMessage("a")], "com.microsoft:timeout", 20)
    assert rig.points("pairbus.sends") == {
        ("orders", "ok", "primary"): 4,
        ("orders", "TimeoutError", "primary"): 1,
        ("orders", "ok", "backlog"): 1,
        ("orders", "com.microsoft:timeout", "backlog"): 1,
    }
    assert rig.points("pairbus.diverted") == {("orders", 3): 1}
    assert rig.points("pairbus.send.duration")["orders", "ok", "primary"] == (2, pytest.approx(0.012))


def test_p31_pings_are_counted(rig: Rig) -> None:
    rig.observer.pinged("orders", "TimeoutError", 1000)
    rig.observer.pinged("orders", "TimeoutError", 1000)
    rig.observer.pinged("orders", "ok", 3)
    assert rig.points("pairbus.pings") == {("orders", "TimeoutError"): 2, ("orders", "ok"): 1}


def test_p23_the_state_of_every_entity_can_be_watched(rig: Rig) -> None:
    rig.observer.announced(events.StateChanged("orders", HEALTHY, FAILED_OVER, "forced"))
    rig.observer.sent("bills", "primary", None, two(), "ok", 1.0)
    points = rig.points("pairbus.entity.state")
    now = {("orders", "failed over"), ("news", "healthy"), ("bills", "healthy")}
    assert {key for key, value in points.items() if value} == now
    assert len(points) == 3 * len(EntityState)


def test_p13_queues_out_of_the_rotation_are_counted(rig: Rig) -> None:
    rig.observer.announced(events.BacklogQueueEjected(1, TimeoutError()))
    rig.observer.announced(events.BacklogQueueEjected(2, TimeoutError()))
    rig.observer.announced(events.BacklogQueueEjected(2, TimeoutError()))
    assert rig.points("pairbus.backlog.ejected") == {(): 2}
    rig.observer.announced(events.BacklogQueueReturned(1))
    rig.observer.announced(events.BacklogQueueReturned(7))
    assert rig.points("pairbus.backlog.ejected") == {(): 1}
    rig.end()
    assert rig.points("pairbus.backlog.ejected") == {(): 0}


def test_a_diverted_send_is_a_span_linked_to_the_current_one(rig: Rig) -> None:
    parent = rig.tracer.start_span("POST /orders")
    with use_span(parent, end_on_exit=True):
        rig.observer.sent("orders", "primary", None, two(), "TimeoutError", 1000)
        reason = Diversion("interval zero", "TimeoutError: no answer", 0.95)
        rig.observer.sent_to_backlog("orders", 3, two(), "ok", 20, reason)
    divert, outer = rig.spans()
    assert (divert.name, divert.kind, outer.name) == ("pairbus divert", SpanKind.PRODUCER, "POST /orders")
    assert divert.parent == parent.get_span_context()
    assert [link.context for link in divert.links] == [parent.get_span_context()]
    assert divert.attributes == {
        "pairbus.namespace": "contoso",
        "pairbus.entity": "orders",
        "pairbus.queue": 3,
        "pairbus.messages": 2,
        "pairbus.outcome": "ok",
        "pairbus.rule": "interval zero",
        "pairbus.why": "TimeoutError: no answer",
        "pairbus.primary.seconds": 0.95,
    }
    assert divert.status.status_code is StatusCode.UNSET
    assert divert.end_time and divert.start_time
    assert divert.end_time - divert.start_time == 20_000_000


def test_a_diversion_that_failed_says_so_and_needs_no_current_span(rig: Rig) -> None:
    rig.observer.sent("orders", "backlog", 3, two(), "com.microsoft:timeout", 20)
    (divert,) = rig.spans()
    assert divert.status.status_code is StatusCode.ERROR
    assert divert.status.description == "com.microsoft:timeout"
    assert divert.parent is None and not divert.links


def test_p23_a_change_of_state_is_an_event_of_the_current_span(rig: Rig) -> None:
    with rig.tracer.start_as_current_span("POST /orders"):
        rig.observer.announced(events.StateChanged("orders", HEALTHY, SUSPECT, "send failed"))
    rig.observer.announced(events.StateChanged("orders", SUSPECT, FAILED_OVER, "interval over"))  # no span: no event
    (outer,) = rig.spans()
    (event,) = outer.events
    assert event.name == "pairbus.state"
    assert event.attributes == {
        "pairbus.namespace": "contoso",
        "pairbus.entity": "orders",
        "pairbus.state": "suspect",
        "pairbus.state.previous": "healthy",
        "pairbus.cause": "send failed",
    }


def test_after_its_end_nothing_is_told(rig: Rig) -> None:
    rig.end()
    assert rig.client.observers == []
    assert rig.points("pairbus.entity.state") == {}
    assert repr(rig.observer) == "<TelemetryObserver contoso>"


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(TelemetryMissing, match=r"pip install 'pairbus\[otel\]'") as caught:
        instrument(Client())
    assert isinstance(caught.value, PairbusError) and isinstance(caught.value, ImportError)


def test_it_can_be_given_to_a_pairing() -> None:
    observer = TelemetryObserver("contoso")
    observer.sent("orders", "backlog", 1, two(), "ok", 1.0)
    observer.close()


def test_the_global_providers_are_the_default() -> None:
    client = Client()
    end = instrument(client)
    client.observers[0].sent("orders", "backlog", 1, two(), "ok", 1.0)  # no provider is set: told to nobody
    end()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serve_sync("contoso", "contoso2", data=tmp_path_factory.mktemp("telemetry")) as broker:
        with admin_of(broker) as admin:
            admin.create_queue("orders")
        yield broker


def admin_of(broker: Broker) -> ServiceBusAdministrationClient:
    primary = broker.namespaces["contoso"]
    return ServiceBusAdministrationClient.from_connection_string(
        primary.connection_string, connection_verify=primary.ca_file
    )


def arguments(broker: Broker, ledger: Path) -> tuple[tuple[str, str], dict[str, Any]]:
    primary, secondary = broker.namespaces["contoso"], broker.namespaces["contoso2"]
    options = {
        "ca_file": secondary.ca_file,
        "primary_name": "contoso",
        "backlog_queue_count": 1,
        "ping_primary_interval": 1,
        "ledger": ledger,
    }
    return (primary.connection_string, secondary.connection_string), options


def check_telemetry(rig: Rig) -> None:
    """One message to the primary, one to the backlog, a ping that brought the entity back."""
    assert rig.points("pairbus.sends") == {("orders", "ok", "primary"): 1, ("orders", "ok", "backlog"): 1}
    assert rig.points("pairbus.diverted") == {("orders", 0, "failed over"): 1}
    assert rig.points("pairbus.pings") == {("orders", "ok"): 1}
    assert rig.points("pairbus.entity.state")["orders", "healthy"] == 1
    (span,) = rig.spans()
    assert span.name == "pairbus divert" and span.attributes is not None
    assert span.attributes["pairbus.why"] == "failed over: forced"
    assert span.attributes["pairbus.primary.seconds"] == 0.0


def check_ledger(folder: Path) -> None:
    (path,) = folder.glob("client-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("kind") for line in lines] == [None, "send", "state", "divert", "ping", "state", "end"]
    assert [line.get("why") for line in lines if "why" in line] == ["forced", "failed over: forced", "ping succeeded"]
    assert [(line["rule"], line["given_ms"]) for line in lines if "rule" in line] == [("failed over", 0.0)]


def test_p23_a_sync_client_is_seen(broker: Broker, tmp_path: Path) -> None:
    namespaces, options = arguments(broker, tmp_path)
    with pairbus.ServiceBusClient.paired(*namespaces, **options) as client:
        rig = Rig(client)
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("a"))
            client.force_failover("orders")
            sender.send_messages(ServiceBusMessage("b"))
        until(rig.is_back)
        check_telemetry(rig)
    check_ledger(tmp_path)


async def test_p23_an_async_client_is_seen(broker: Broker, tmp_path: Path) -> None:
    namespaces, options = arguments(broker, tmp_path)
    async with await pairbus.aio.ServiceBusClient.paired(*namespaces, **options) as client:
        rig = Rig(client)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("a"))
            client.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("b"))
        await soon(rig.is_back)
        check_telemetry(rig)
    check_ledger(tmp_path)
