from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import NamespaceServer, serve_sync
from pairbus.spark.connector import connections
from pairbus.spark.connector.options import Address
from pairbus.wire.sync import WireClient

MakeQueue = Callable[..., None]


class Pair(NamedTuple):
    """Two namespaces of one broker, on a thread of this process."""

    primary: NamespaceServer
    secondary: NamespaceServer
    data: Path

    @property
    def primary_address(self) -> Address:
        return Address(self.primary.connection_string)

    @property
    def secondary_address(self) -> Address:
        return Address(self.secondary.connection_string)


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceServer]:
    """A namespace that Spark's processes find by the variable BUS, which has to be there before Spark starts."""
    with serve_sync("bus", data=tmp_path_factory.mktemp("bus")) as broker:
        yield broker.namespaces["bus"]


@pytest.fixture(scope="session")
def spark(bus: NamespaceServer) -> Iterator[Any]:
    """The one session of the test process: a JVM takes seconds to start, and a process has only one."""
    from pyspark import SparkContext

    from pairbus.spark import session

    started_without = getattr(SparkContext._gateway, "proc", None)
    if started_without is not None:
        started_without.stdin.close()  # the JVM ends by that, and the session below starts another one
        started_without.wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUS", bus.connection_string)
        made = session("local[2,4]")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    data = tmp_path_factory.mktemp("pair")
    with serve_sync("contoso", "backup", data=data) as broker:
        yield Pair(broker.namespaces["contoso"], broker.namespaces["backup"], data)
        connections.close_all()


@pytest.fixture
def make_queue() -> Iterator[MakeQueue]:
    made: list[tuple[NamespaceServer, str]] = []

    def make(namespace: NamespaceServer, *names: str, **properties: object) -> None:
        with admin_of(namespace) as admin:
            for name in names:
                admin.create_queue(name, **properties)
                made.append((namespace, name))

    yield make
    for namespace, name in made:
        with admin_of(namespace) as admin:
            admin.delete_queue(name)


def admin_of(namespace: NamespaceServer) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        namespace.connection_string, connection_verify=namespace.ca_file
    )


def wire(namespace: NamespaceServer) -> WireClient:
    return WireClient.from_connection_string(namespace.connection_string)


def peeked(namespace: NamespaceServer, entity: str) -> list[bytes]:
    with wire(namespace) as client:
        return client.peek(entity, 1, 1000)
