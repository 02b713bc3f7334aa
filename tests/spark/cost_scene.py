"""A real outage, small, with everybody's ledger: what the proof of the cost report looks at. No Spark in here."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusMessage

import pairbus
from pairbus.broker import NamespaceServer, serve_sync
from pairbus.broker.control.control_socket import request
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.backlog_queues import path
from pairbus.pairing.routing.states import EntityState
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.settings import SyphonSettings
from pairbus.testing import fault
from tests.waiting import until

from .conftest import admin_of

ENTITIES = ("orders", "invoices")
HEALTHY, DIVERTED = 6, 8  # of each entity
QUEUES = 2
PING_S = 1.0
SIZES = (200, 70_000)  # of bodies; the second kind is billed as two units

Counters = dict[tuple[str, str, str, str], int]


class Scene(NamedTuple):
    #: Folders of the ledgers: the brokers' and the clients'.
    ledgers: list[Path]
    #: (namespace, entity, cause, operation) → operations, units, bytes in, bytes out, as /metrics has them at the end.
    metrics: dict[str, Counters]
    outage_s: float


@contextmanager
def clients(primary: NamespaceServer, secondary: NamespaceServer, ledger: Path) -> Iterator[Any]:
    with pairbus.ServiceBusClient.paired(
        primary.connection_string, secondary.connection_string,
        primary_ca_file=primary.ca_file, secondary_ca_file=secondary.ca_file, client_options={"retry_total": 0},
        primary_name=primary.name, backlog_queue_count=QUEUES, failover_interval=0, ping_primary_interval=PING_S,
        send_timeout=20, ledger=ledger,
    ) as client:  # fmt: skip
        yield client


def messages(start: str, count: int) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(b"x" * SIZES[number == 0], message_id=f"{start}-{number}") for number in range(count)
    ]  # fmt: skip


def play(folder: Path) -> Scene:
    data, ledger = folder / "data", folder / "ledger"
    with serve_sync("contoso", "backup", data=data, ledger=True) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        with admin_of(primary) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        with clients(primary, secondary, ledger) as client:
            senders = {entity: client.get_queue_sender(entity) for entity in ENTITIES}
            for entity, sender in senders.items():
                for message in messages(f"{entity}-healthy", HEALTHY):
                    sender.send_messages(message)
            with fault(broker, "unreachable", namespace="contoso"):
                began = time.monotonic()
                for entity, sender in senders.items():
                    for message in messages(f"{entity}-diverted", DIVERTED):
                        sender.send_messages(message)
                time.sleep(max(0.0, began + 2.5 * PING_S - time.monotonic()))
                outage_s = time.monotonic() - began
            until(lambda: all(state is EntityState.HEALTHY for state in client.states().values()))
            asyncio.run(_drain(primary, secondary, ledger))
            for entity in ENTITIES:
                _receive(client, entity, HEALTHY + DIVERTED)
            for sender in senders.values():
                sender.close()
        until(lambda: not any(each.connections for each in (primary, secondary)))
        for name in ("contoso", "backup"):
            assert request(data, {"command": "left", "namespace": name})["ok"]
        metrics = _metrics(primary, secondary)
    return Scene([data / "contoso" / "ledger", data / "backup" / "ledger", ledger], metrics, outage_s)


async def _drain(primary: NamespaceServer, secondary: NamespaceServer, ledger: Path) -> None:
    writer = LedgerWriter(ledger, "syphon")
    home, away = (
        Endpoint.from_connection_string(each.connection_string, name=each.name) for each in (primary, secondary)
    )
    queues = [(path("contoso", index), index) for index in range(QUEUES)]
    await SyphonEngine(SyphonSettings(home, away, queues, drain=True, ledger=writer)).run()
    writer.close()


def _receive(client: Any, entity: str, count: int) -> None:
    with client.get_queue_receiver(entity) as receiver:
        got = 0
        while got < count:
            found = receiver.receive_messages(count - got, max_wait_time=10)
            assert found, f"{got} of {count} messages came to {entity}"
            for message in found:
                receiver.complete_message(message)
            got += len(found)


_SAMPLE = re.compile(
    r'pairbus_operation(s|_units|_bytes)_total\{namespace="(.*?)",entity="(.*?)",operation="(.*?)",cause="(.*?)"'
    r'(?:,direction="(in|out)")?\} ([0-9.]+)'
)


def _metrics(*namespaces: NamespaceServer) -> dict[str, Counters]:
    found: dict[str, Counters] = {"operations": {}, "units": {}, "bytes_in": {}, "bytes_out": {}}
    for namespace in namespaces:
        context = ssl.create_default_context(cafile=namespace.ca_file)
        url = f"https://{namespace.host}:{namespace.port}/metrics"
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            page = answer.read().decode()
        for what, ns, entity, operation, cause, direction, value in _SAMPLE.findall(page):
            name = {"s": "operations", "_units": "units"}.get(what) or f"bytes_{direction}"
            found[name][ns, entity, cause, operation] = int(float(value))
    return found
