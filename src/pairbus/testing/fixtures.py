"""The pytest plugin: a broker for the run, a namespace of it, and queues that are a test's own.

pytest imports this module in every run on a machine with pairbus installed, so it imports nothing but pytest; the rest
comes when a fixture is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pairbus.broker.server import Broker, NamespaceServer

NAMESPACE = "contoso"


@pytest.fixture(scope="session")
def pairbus_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on a thread of this process, one for the run, with the namespace `contoso` on a free port."""
    from pairbus.broker.server import serve_sync

    with serve_sync(NAMESPACE, data=tmp_path_factory.mktemp("pairbus")) as broker:
        yield broker


@pytest.fixture
def pairbus_namespace(pairbus_broker: Broker) -> Iterator[NamespaceServer]:
    """The broker's namespace: `connection_string`, `ca_file`, `host`, `port`. Faults that a test leaves are cleared."""
    from pairbus.broker.control import request

    yield pairbus_broker.namespaces[NAMESPACE]
    request(pairbus_broker.data, {"command": "clear", "namespace": NAMESPACE})


@pytest.fixture
def pairbus_queue(pairbus_namespace: NamespaceServer) -> Iterator[Callable[..., str]]:
    """Makes a queue with a name of its own and returns that name: `pairbus_queue(lock_duration=timedelta(seconds=5))`.

    Takes what the SDK's `create_queue` takes. The queues are deleted after the test.
    """
    import uuid

    from azure.core.exceptions import ResourceNotFoundError
    from azure.servicebus.management import ServiceBusAdministrationClient

    admin = ServiceBusAdministrationClient.from_connection_string(
        pairbus_namespace.connection_string, connection_verify=pairbus_namespace.ca_file
    )
    made: list[str] = []

    def make(name: str = "queue", **properties: Any) -> str:
        unique = f"{name}-{uuid.uuid4().hex[:12]}"
        admin.create_queue(unique, **properties)
        made.append(unique)
        return unique

    with admin:
        yield make
        for name in made:
            try:
                admin.delete_queue(name)
            except ResourceNotFoundError:
                pass
