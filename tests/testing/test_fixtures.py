from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus.broker.control.faults import Fault
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.errors import PairbusError
from pairbus.testing import fault
from pairbus.testing.fixtures import Pair


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


class TestFaultsThatATestLeavesBehind:
    """They end before queues and topics are deleted, which they would keep from being so; in this order."""

    made: list[str]

    @pytest.mark.parametrize("kind", ["unreachable", "no-manage", "black-hole"])
    def test_first(
        self,
        pairbus_broker: Broker,
        pairbus_queue: Callable[..., str],
        pairbus_topic: Callable[..., str],
        kind: str,
    ) -> None:
        TestFaultsThatATestLeavesBehind.made = [pairbus_queue(), pairbus_topic()]
        fault(pairbus_broker, kind).__enter__()

    def test_second(self, pairbus_broker: Broker, pairbus_namespace: NamespaceServer) -> None:
        assert not pairbus_broker.faults("contoso")
        assert [pairbus_namespace.namespace.resolve(each) for each in self.made] == [None, None]


def test_a_topic_has_its_subscriptions(pairbus_namespace: NamespaceServer, pairbus_topic: Callable[..., str]) -> None:
    news = pairbus_topic("news", subscriptions=["all", "sport"], enable_batched_operations=False)
    with ServiceBusClient.from_connection_string(pairbus_namespace.connection_string) as client:
        with client.get_topic_sender(news) as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        for name in ("all", "sport"):
            with client.get_subscription_receiver(news, name) as receiver:
                (message,) = receiver.receive_messages(max_wait_time=5)
                assert str(message) == "hello"


def test_a_pair_diverts_what_its_primary_does_not_take(pairbus_pair: Pair) -> None:
    queue = pairbus_pair.queue("orders", lock_duration=timedelta(seconds=7))
    client = pairbus.ServiceBusClient.paired(
        **pairbus_pair.arguments, backlog_queue_count=1, failover_interval=0, client_options={"retry_total": 0}
    )
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("one"))
        with fault(pairbus_pair.broker, "unreachable", namespace=pairbus_pair.primary.name):
            sender.send_messages(ServiceBusMessage("two"))
        assert client.state(queue).name == "FAILED_OVER"
    assert pairbus_pair.primary.namespace.queues[queue].active_count == 1
    (backlog,) = pairbus_pair.secondary.namespace.queues.values()
    assert backlog.active_count == 1


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (
            {"lock_duraton": 5},
            "pairbus_queue takes no 'lock_duraton'; did you mean 'lock_duration'? it takes authorization_rules",
        ),
        ({"subscriptions": ["all"]}, "pairbus_queue takes no 'subscriptions'; it takes authorization_rules, "),
        ({"name": 5}, "pairbus_queue takes the beginning of a name as text, such as 'orders', not 5"),
        ({"name": ""}, "pairbus_queue takes the beginning of a name as text, such as 'orders', not ''"),
    ],
)
def test_wrong_arguments_of_a_queue_are_named(
    pairbus_queue: Callable[..., str], properties: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        pairbus_queue(**properties)


@pytest.mark.parametrize("wrong", ["all", 5, ["all", 5], [""], None])
def test_wrong_subscriptions_are_named_and_no_topic_is_made(
    pairbus_namespace: NamespaceServer, pairbus_topic: Callable[..., str], wrong: Any
) -> None:
    with pytest.raises(TypeError, match="subscriptions is a list of names, such as"):
        pairbus_topic(subscriptions=wrong)
    assert not pairbus_namespace.namespace.topics


def test_what_is_no_broker_is_named(pairbus_namespace: NamespaceServer) -> None:
    with pytest.raises(PairbusError, match="NamespaceServer is no broker; give what serve"):
        fault(pairbus_namespace, "no-send")  # type: ignore[arg-type]


def test_unknown_names_of_the_package_are_told() -> None:
    import pairbus.testing

    with pytest.raises(AttributeError, match="has no attribute 'faultt'"):
        _ = pairbus.testing.faultt
