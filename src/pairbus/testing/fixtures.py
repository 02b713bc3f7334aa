"""The pytest plugin: a broker for the run, one of its namespaces, queues and topics for each test, and a pair.

pytest imports this module in every run on a machine with pairbus installed, so it imports only pytest; the rest is
imported when a fixture is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from azure.servicebus.management import ServiceBusAdministrationClient

    from pairbus.broker.server import Broker, NamespaceServer

NAMESPACE = "contoso"
SECONDARY = "backup"


@pytest.fixture(scope="session")
def pairbus_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on a thread of this process, one for the run, with the namespace `contoso` on a free port."""
    from pairbus.broker.server import serve_sync

    with serve_sync(NAMESPACE, data=tmp_path_factory.mktemp("pairbus")) as broker:
        yield broker


@pytest.fixture
def pairbus_namespace(pairbus_broker: Broker) -> Iterator[NamespaceServer]:
    """The broker's namespace: `connection_string`, `ca_file`, `host`, `port`. Faults that a test leaves are cleared."""
    yield pairbus_broker.namespaces[NAMESPACE]
    _end_faults(pairbus_broker)


@pytest.fixture
def pairbus_queue(pairbus_broker: Broker, pairbus_namespace: NamespaceServer) -> Iterator[Callable[..., str]]:
    """Makes a queue with a new name and returns that name: `pairbus_queue(lock_duration=timedelta(seconds=5))`.

    Takes what the SDK's `create_queue` takes. The queues are deleted after the test.
    """
    with _admin(pairbus_broker, pairbus_namespace) as (admin, made):

        def make(name: str = "queue", **properties: Any) -> str:
            unique = _unique("pairbus_queue", name)
            _check("pairbus_queue", admin.create_queue, properties)
            admin.create_queue(unique, **properties)
            made.append(lambda: admin.delete_queue(unique))
            return unique

        yield make


@pytest.fixture
def pairbus_topic(pairbus_broker: Broker, pairbus_namespace: NamespaceServer) -> Iterator[Callable[..., str]]:
    """Makes a topic with a new name and its subscriptions, and returns the topic's name:
    `pairbus_topic("news", subscriptions=["all"])`.

    Takes what the SDK's `create_topic` takes besides. The topics are deleted after the test.
    """
    with _admin(pairbus_broker, pairbus_namespace) as (admin, made):

        def make(name: str = "topic", subscriptions: Iterable[str] = (), **properties: Any) -> str:
            unique = _unique("pairbus_topic", name)
            _check("pairbus_topic", admin.create_topic, properties, "subscriptions")
            names = _list_of_names(subscriptions)
            admin.create_topic(unique, **properties)
            made.append(lambda: admin.delete_topic(unique))
            for each in names:
                admin.create_subscription(unique, each)
            return unique

        yield make


class Pair:
    """Two namespaces that are a test's own. `ServiceBusClient.paired(**pair.arguments)` is a paired client on them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.primary = broker.namespaces[NAMESPACE]
        self.secondary = broker.namespaces[SECONDARY]

    def __repr__(self) -> str:
        return f"<Pair {self.primary!r}, {self.secondary!r}>"

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `ServiceBusClient.paired`, sync or async."""
        return {
            "primary": self.primary.connection_string,
            "secondary": self.secondary.connection_string,
            "primary_name": self.primary.name,
            "ca_file": self.primary.ca_file,
        }

    def queue(self, name: str = "orders", **properties: Any) -> str:
        """Makes a queue of that name in the primary and returns its name. Takes what the SDK's `create_queue` takes."""
        with _administration(self.primary) as admin:
            _check("queue", admin.create_queue, properties)
            admin.create_queue(name, **properties)
        return name


@pytest.fixture
def pairbus_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A primary (`contoso`) and a secondary (`backup`), of a broker that is this test's own: `primary`, `secondary`,
    `broker` (for faults), `arguments` of `ServiceBusClient.paired`, and `queue()`, which makes a queue in the primary.
    """
    from pairbus.broker.server import serve_sync

    # What a test leaves in a backlog would be the next one's, so each has its own pair, which need not be durable.
    data = tmp_path_factory.mktemp("pairbus-pair")
    with serve_sync(NAMESPACE, SECONDARY, data=data, durability="none") as broker:
        yield Pair(broker)


def _end_faults(broker: Broker) -> None:
    from pairbus.broker.control.control_socket import request

    for name in broker.namespaces:
        for _ in ("the faults", "and messages that one of them has made late"):
            request(broker.data, {"command": "clear", "namespace": name})


def _administration(namespace: NamespaceServer) -> ServiceBusAdministrationClient:
    from azure.servicebus.management import ServiceBusAdministrationClient

    return ServiceBusAdministrationClient.from_connection_string(
        namespace.connection_string, connection_verify=namespace.ca_file
    )


@contextmanager
def _admin(
    broker: Broker, namespace: NamespaceServer
) -> Iterator[tuple[ServiceBusAdministrationClient, list[Callable[[], None]]]]:
    """And a list for what deletes the entities that were made."""
    from azure.core.exceptions import ResourceNotFoundError

    made: list[Callable[[], None]] = []
    with _administration(namespace) as admin:
        yield admin, made
        # A fault that a test left would keep its queues from being deleted.
        _end_faults(broker)
        for delete in made:
            try:
                delete()
            except ResourceNotFoundError:
                pass


def _unique(fixture: str, name: str) -> str:
    import uuid

    if not isinstance(name, str) or not name:
        raise TypeError(f"{fixture} takes the beginning of a name as text, such as 'orders', not {name!r}")
    return f"{name}-{uuid.uuid4().hex[:12]}"


def _list_of_names(subscriptions: Any) -> list[str]:
    names = [] if isinstance(subscriptions, str) or not isinstance(subscriptions, Iterable) else list(subscriptions)
    if (not names and subscriptions not in ((), [])) or not all(isinstance(each, str) and each for each in names):
        raise TypeError(f"subscriptions is a list of names, such as ['all'], not {subscriptions!r}")
    return names


def _check(fixture: str, create: Callable[..., object], properties: dict[str, Any], *more: str) -> None:
    """The SDK takes any keyword, and leaves those that it does not know to its transport."""
    import inspect

    from pairbus.errors import did_you_mean

    kinds = inspect.signature(create).parameters.values()
    known = sorted([each.name for each in kinds if each.kind is inspect.Parameter.KEYWORD_ONLY] + list(more))
    for name in properties:
        if name not in known:
            raise TypeError(f"{fixture} takes no {name!r}; {did_you_mean(name, known)}it takes {', '.join(known)}")
