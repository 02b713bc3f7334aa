from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker.faults import Fault
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.testing import fault


def test_the_plugin_imports_nothing_but_pytest() -> None:
    """It is loaded in every pytest run of every user, whether the run needs a broker or not."""
    program = (
        "import json, sys, pytest\nbefore = set(sys.modules)\n"
        "import pairbus.testing.fixtures\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == ["pairbus", "pairbus.testing", "pairbus.testing.fixtures"]


def test_queues_have_names_of_their_own_and_what_was_asked_for(
    pairbus_namespace: NamespaceServer, pairbus_queue: Callable[..., str]
) -> None:
    first, second = pairbus_queue("orders"), pairbus_queue("orders", lock_duration=timedelta(seconds=7))
    assert first != second
    assert first.startswith("orders-")
    with ServiceBusAdministrationClient.from_connection_string(
        pairbus_namespace.connection_string, connection_verify=pairbus_namespace.ca_file
    ) as admin:
        assert admin.get_queue(second).lock_duration == timedelta(seconds=7)
        # Deleting one before the fixture does is no error.
        admin.delete_queue(first)


def test_a_message_goes_through(pairbus_namespace: NamespaceServer, pairbus_queue: Callable[..., str]) -> None:
    queue = pairbus_queue()
    with ServiceBusClient.from_connection_string(pairbus_namespace.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_queue_receiver(queue) as receiver:
            (message,) = receiver.receive_messages(max_wait_time=5)
            assert str(message) == "hello"
            receiver.complete_message(message)


class TestWhatATestLeavesBehind:
    """In this order: the second looks at what the first left."""

    made: str

    def test_first(self, pairbus_broker: Broker, pairbus_queue: Callable[..., str]) -> None:
        fault(pairbus_broker, "no-send", entity="left-behind").__enter__()
        TestWhatATestLeavesBehind.made = pairbus_queue()

    def test_second(self, pairbus_broker: Broker, pairbus_namespace: NamespaceServer) -> None:
        assert Fault("no-send", entity="left-behind") not in pairbus_broker.faults("contoso").active(0)
        assert pairbus_namespace.namespace.resolve(self.made) is None


def test_unknown_names_of_the_package_are_told() -> None:
    import pairbus.testing

    with pytest.raises(AttributeError, match="has no attribute 'faultt'"):
        _ = pairbus.testing.faultt
