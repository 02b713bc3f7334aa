"""Throttling (P47) and a client that is cut off (P50), brought about on purpose; the application's view."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, exceptions

from pairbus.broker import Broker, serve_sync
from pairbus.broker.control.control_socket import request
from pairbus.broker.model.partitions import PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk, both_apis

pytestmark = UNTIDY_SDK

BUSY = exceptions.ServiceBusServerBusyError
CONFIG = """
[namespaces.fabrikam]
[[namespaces.fabrikam.queues]]
name = "slow"
throttling = { messages_per_second = 0.01 }
[[namespaces.fabrikam.queues]]
name = "narrow"
throttling = { bytes_per_second = 0.001 }
[[namespaces.fabrikam.queues]]
name = "private"
throttling = { links = 2 }
[[namespaces.fabrikam.queues]]
name = "free"
"""


@pytest.fixture(autouse=True)
def no_faults_left(broker: Broker) -> Iterator[None]:
    yield
    gc.collect()  # what the SDK left behind, while the marks above are in force
    assert not broker.faults("contoso").active(time.time())


@both_apis
async def test_p47_an_entitys_bytes_a_second(sdk: Sdk, broker: Broker) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "throttle", entity=queue, rate=0.001, by="bytes"):
            await sender.send_messages(ServiceBusMessage(b"a" * 5000))  # larger than the bucket, which is full
            with pytest.raises(BUSY, match="50009"):
                await sender.send_messages(ServiceBusMessage(b"b"))
            with pytest.raises(BUSY, match="wait 2 seconds"):
                await sender.send_messages([ServiceBusMessage(b"c"), ServiceBusMessage(b"d")])
            await sdk.send(other, ServiceBusMessage("elsewhere"))
        await sender.send_messages(ServiceBusMessage(b"e"))
    got = [b"".join(message.body)[:1] for message in await sdk.receive(queue, 5, wait=1)]
    assert got == [b"a", b"e"], "what was refused was not stored"


async def test_p47_an_entitys_links_and_receivers(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        with fault(broker, "throttle", entity=queue, rate=1, by="links"), pytest.raises(BUSY):
            await sdk.receive(queue, 1, wait=1)
        async with client.get_queue_receiver(queue) as first:
            (message,) = await first.receive_messages(max_wait_time=5)
            with fault(broker, "throttle", entity=queue, rate=1, by="receives"):
                with pytest.raises(BUSY, match="1 concurrent receives"):
                    await sdk.receive(queue, 1, wait=1)
                await sender.send_messages(ServiceBusMessage("y"))
            await first.complete_message(message)
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["y"]


async def test_p47_receivers_of_a_topics_subscriptions_count_together(sdk: Sdk, broker: Broker) -> None:
    topic = await sdk.topic("a", "b")
    async with sdk.client() as client, client.get_subscription_receiver(topic, "a") as first:
        await first.receive_messages(max_wait_time=0.1)
        with fault(broker, "throttle", entity=topic, rate=1, by="receives"), pytest.raises(BUSY):
            await sdk.read(topic, "b", 1, wait=1)


async def test_p47_a_namespaces_credits_a_second(sdk: Sdk, broker: Broker) -> None:
    queue, topic = await sdk.queue(), await sdk.topic("a", "b", "c")
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "throttle", rate=1e-6, by="credits"):  # one credit, and no more while this test runs
            await sender.send_messages(ServiceBusMessage("a"))
            with pytest.raises(BUSY, match="credits a second"):
                await sender.send_messages(ServiceBusMessage("b"))
            async with client.get_queue_receiver(queue) as receiver:
                with pytest.raises(BUSY):
                    await receiver.peek_messages()
            async with sdk.admin() as admin:
                with pytest.raises(HttpResponseError) as caught:
                    await admin.get_queue(queue)
            assert caught.value.status_code == 503
            assert cast(Any, caught.value.response).headers["Retry-After"] == "2"
        with fault(broker, "throttle", rate=1e-6, by="credits"):
            await sdk.publish(topic, ServiceBusMessage("three filters and itself"))
            with pytest.raises(BUSY):
                await sdk.publish(topic, ServiceBusMessage("more"))
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["a"]


@pytest.mark.parametrize("measure", ["cpu", "storage"])
async def test_p47_the_node_and_what_it_depends_on(sdk: Sdk, queue: str, broker: Broker, measure: str) -> None:
    await sdk.send(queue, ServiceBusMessage("before"))
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "throttle", rate=0, by=measure):
            with pytest.raises(BUSY):
                await sender.send_messages(ServiceBusMessage("during"))
            async with sdk.admin() as admin:
                with pytest.raises(HttpResponseError) as caught:
                    await admin.create_queue("never")
                assert caught.value.status_code == 503
            if measure == "cpu":
                with pytest.raises(BUSY):
                    await sdk.receive(queue, 1, wait=1)
            else:
                assert [str(m) for m in await sdk.receive(queue, 1)] == ["before"]
        await sender.send_messages(ServiceBusMessage("after"))
    left = {str(m) for m in await sdk.receive(queue, 2, wait=1)}
    assert "after" in left and "during" not in left


@pytest.mark.parametrize("mode", [ServiceBusReceiveMode.PEEK_LOCK, ServiceBusReceiveMode.RECEIVE_AND_DELETE])
@both_apis
async def test_p47_a_rate_delays_what_is_on_its_way_to_a_receiver(
    sdk: Sdk, queue: str, broker: Broker, mode: ServiceBusReceiveMode
) -> None:
    """None is lost on the way, above all none that is gone from the queue when it is sent."""
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(30)])
        with fault(broker, "throttle", entity=queue, rate=10):
            began = time.monotonic()
            async with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
                got: list[str] = []
                while len(got) < 30:
                    batch = await receiver.receive_messages(max_message_count=30, max_wait_time=5)
                    assert batch, got
                    got += [str(message) for message in batch]
                    if mode == ServiceBusReceiveMode.PEEK_LOCK:
                        for message in batch:
                            await receiver.complete_message(message)
            assert time.monotonic() - began > 1.5
    assert got == [str(number) for number in range(30)]


@pytest.mark.parametrize("kind", ["throttle", "no-send"])
async def test_p47_a_destination_of_forwarding_that_is_throttled_is_waited_for(
    sdk: Sdk, broker: Broker, kind: str
) -> None:
    second = await sdk.queue()
    first = await sdk.queue(forward_to=second)
    options = {"rate": 0} if kind == "throttle" else {}
    with fault(broker, kind, entity=second, **options):
        await sdk.send(first, ServiceBusMessage("one"))
        async with sdk.admin() as admin:
            waiting = await admin.get_queue_runtime_properties(first)
        assert (waiting.transfer_message_count, waiting.dead_letter_message_count) == (1, 0)
    assert [str(message) for message in await sdk.receive(second, 1, 20)] == ["one"]
    assert await sdk.depth(first) == (0, 0)


async def test_p47_thresholds_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(CONFIG)
    with serve_sync("fabrikam", data=tmp_path / "data", config=tmp_path / "broker.toml") as broker:
        sdk = Sdk(True, broker.namespaces["fabrikam"])
        async with sdk.client() as client:
            async with client.get_queue_sender("slow") as sender:
                await sender.send_messages(ServiceBusMessage("one"))
                with pytest.raises(BUSY, match="'slow' takes up to"):
                    await sender.send_messages(ServiceBusMessage("two"))
                # a fault takes its place for a while
                with fault(broker, "throttle", entity="slow", rate=1000):
                    await sender.send_messages(ServiceBusMessage("three"))
                with pytest.raises(BUSY):
                    await sender.send_messages(ServiceBusMessage("four"))
            async with client.get_queue_sender("narrow") as sender:
                await sender.send_messages(ServiceBusMessage(b"x" * 900))
                with pytest.raises(BUSY, match="bytes a second"):
                    await sender.send_messages(ServiceBusMessage(b"x"))
            async with client.get_queue_sender("private") as sender, client.get_queue_receiver("private") as first:
                await sender.send_messages(ServiceBusMessage("x"))
                await first.receive_messages(max_wait_time=1)
                with pytest.raises(BUSY, match="2 links"):
                    await sdk.receive("private", 1, wait=1)
            await sdk.send("free", *(ServiceBusMessage("x") for _ in range(5)))
        assert broker.faults("fabrikam").active(time.time()) == []


@pytest.mark.parametrize("kind", ["unreachable", "black-hole"])
async def test_p50_one_client_is_cut_off_while_others_are_served(
    sdk: Sdk, queue: str, broker: Broker, kind: str
) -> None:
    wanted = {"command": "rule", "namespace": "contoso", "name": "web", "rights": ["Manage", "Send", "Listen"]}
    key = request(broker.data, wanted)["primary_key"]
    root = sdk.namespace.connection_string
    web = f"{root.partition('SharedAccessKeyName')[0]}SharedAccessKeyName=web;SharedAccessKey={key};"
    web += "UseDevelopmentEmulator=true;"
    async with (
        sdk.client(web) as cut_off,
        cut_off.get_queue_sender(queue) as sender,
        sdk.client() as other,
        other.get_queue_sender(queue) as elsewhere,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        await elsewhere.send_messages(ServiceBusMessage("from another"))
        with fault(broker, kind, client="web"):
            with pytest.raises((exceptions.ServiceBusConnectionError, exceptions.OperationTimeoutError)):
                await sender.send_messages(ServiceBusMessage("during"), timeout=2)
            with pytest.raises(exceptions.ServiceBusError):
                async with sdk.client(web, try_timeout=1) as fresh, fresh.get_queue_sender(queue) as late:
                    await late.send_messages(ServiceBusMessage("during"), timeout=2)
            if kind == "unreachable":
                async with sdk.admin(web) as admin:
                    with pytest.raises((ServiceRequestError, ServiceResponseError)):
                        await admin.get_queue(queue)
            # everyone else: on the link that is open, and on new ones
            await elsewhere.send_messages(ServiceBusMessage("meanwhile"))
            got = {str(m) for m in await sdk.receive(queue, 3)}
            assert {"before", "from another", "meanwhile"} <= got
            assert await sdk.depth(queue) == (0, 0)
        await sender.send_messages(ServiceBusMessage("after"))
    assert "after" in {str(m) for m in await sdk.receive(queue, 3, wait=1)}


async def test_p50_a_client_by_its_address(sdk: Sdk, queue: str, broker: Broker) -> None:
    with fault(broker, "unreachable", client="192.0.2.7"):
        await sdk.send(queue, ServiceBusMessage("from elsewhere"))
    with fault(broker, "unreachable", client="127.0.0.1"), pytest.raises(exceptions.ServiceBusConnectionError):
        await sdk.send(queue, ServiceBusMessage("from here"))
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["from elsewhere"]


async def test_p47_each_partition_has_its_rate_to_itself(sdk: Sdk, broker: Broker) -> None:
    """Of a partitioned queue a busy key leaves the others serving, for senders and for receivers."""
    queue = await sdk.queue(enable_partitioning=True)
    busy, free = "a", "b"
    assert partition_for(busy) != partition_for(free)
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "throttle", entity=queue, rate=0.01):
            await sender.send_messages(ServiceBusMessage("first", partition_key=busy))
            with pytest.raises(BUSY, match="50009"):
                await sender.send_messages(ServiceBusMessage("second", partition_key=busy))
            await sender.send_messages(ServiceBusMessage("third", partition_key=free))
            for number in range(PARTITIONS - 2):  # one to each of the others: the first two are used up
                await sender.send_messages(ServiceBusMessage("more", partition_key=keys_of_all()[number]))
        await sender.send_messages([ServiceBusMessage("x", partition_key=busy) for _ in range(3)])
    with fault(broker, "throttle", entity=queue, rate=0.01):
        received = await sdk.receive(queue, PARTITIONS + 3, wait=1)
        found = [message.sequence_number >> PARTITION_SHIFT for message in received]
        assert sorted(found) == list(range(PARTITIONS)), "one of each"
    assert len(await sdk.receive(queue, 3)) == 3, "the others were only late"


def keys_of_all() -> list[str]:
    """Return a key for each partition but those of `a` and `b`."""
    keys: dict[int, str] = {}
    for number in range(1000):
        keys.setdefault(partition_for(f"k{number}"), f"k{number}")
    return [key for partition, key in keys.items() if partition not in (partition_for("a"), partition_for("b"))]


async def test_p47_a_session_waits_for_the_rate_of_its_partition(sdk: Sdk, broker: Broker) -> None:
    queue = await sdk.queue(enable_partitioning=True, requires_session=True)
    for session in ("a", "b"):
        await sdk.send(queue, *(ServiceBusMessage(session, session_id=session) for _ in range(2)))
    with fault(broker, "throttle", entity=queue, rate=0.01):
        async with sdk.client() as client:
            for session in ("a", "b"):
                async with client.get_queue_receiver(
                    queue, session_id=session, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
                ) as receiver:
                    assert len(await receiver.receive_messages(max_message_count=2, max_wait_time=1)) == 1
