"""The ways in which a namespace or an entity is unavailable (P46), brought about on purpose; the application's view."""

from __future__ import annotations

import asyncio
import datetime
import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus.management import SqlRuleFilter, TrueRuleFilter

from pairbus.broker import Broker
from pairbus.broker.control.control_socket import request
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon

from .sdk import Sdk, both_apis

pytestmark = UNTIDY_SDK

SCOPES = ["namespace", "entity"]


@pytest.fixture(autouse=True)
def no_faults_left(broker: Broker) -> Iterator[None]:
    yield
    gc.collect()  # what the SDK left behind, while the marks above are in force
    assert not broker.faults("contoso").active(time.time())


def entity(scope: str, queue: str) -> str | None:
    return queue if scope == "entity" else None


@pytest.mark.parametrize("scope", SCOPES)
async def test_p46_cannot_send(sdk: Sdk, broker: Broker, scope: str) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    await sdk.send(queue, ServiceBusMessage("before"))
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "no-send", entity=entity(scope, queue)):
            with pytest.raises(exceptions.ServiceBusError, match="unable to process") as caught:
                await sender.send_messages(ServiceBusMessage("during"))
            assert type(caught.value) is exceptions.ServiceBusError
            if scope == "entity":
                await sdk.send(other, ServiceBusMessage("elsewhere"))
            # receiving and management go on
            assert [str(m) for m in await sdk.receive(queue, 1)] == ["before"]
            assert await sdk.depth(queue) == (0, 0)
        await sender.send_messages(ServiceBusMessage("after"))
    assert [str(m) for m in await sdk.receive(queue, 2, wait=1)] == ["after"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_p46_cannot_receive(sdk: Sdk, queue: str, broker: Broker, scope: str) -> None:
    async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
        await receiver.receive_messages(max_wait_time=0.5)
        with fault(broker, "no-receive", entity=entity(scope, queue)):
            await sdk.send(queue, ServiceBusMessage("sent in the meantime"))
            with pytest.raises(exceptions.ServiceBusError):
                await receiver.receive_messages(max_wait_time=2)
            with pytest.raises(exceptions.ServiceBusError):
                await receiver.receive_messages(max_wait_time=2)
        (message,) = await receiver.receive_messages(max_wait_time=5)
        assert str(message) == "sent in the meantime"
        await receiver.complete_message(message)


async def test_p46_cannot_manage(sdk: Sdk, broker: Broker) -> None:
    """Create, retrieve, update, delete, each of every kind of entity, is refused and changes nothing; messages flow."""
    queue, topic = await sdk.queue(), await sdk.topic("all")
    async with sdk.admin() as admin:
        descriptions = [
            await admin.get_queue(queue),
            await admin.get_topic(topic),
            await admin.get_subscription(topic, "all"),
            await admin.get_rule(topic, "all", "$Default"),
        ]
        descriptions[0].max_delivery_count = descriptions[2].max_delivery_count = 3
        descriptions[1].default_message_time_to_live = datetime.timedelta(hours=1)
        descriptions[3].filter = SqlRuleFilter("1=0")
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("create_queue", ("new",)),
            ("create_topic", ("new",)),
            ("create_subscription", (topic, "new")),
            ("create_rule", (topic, "all", "new")),
            ("get_queue", (queue,)),
            ("get_topic", (topic,)),
            ("get_subscription", (topic, "all")),
            ("get_rule", (topic, "all", "$Default")),
            ("get_queue_runtime_properties", (queue,)),
            ("update_queue", (descriptions[0],)),
            ("update_topic", (descriptions[1],)),
            ("update_subscription", (topic, descriptions[2])),
            ("update_rule", (topic, "all", descriptions[3])),
            ("delete_rule", (topic, "all", "$Default")),
            ("delete_subscription", (topic, "all")),
            ("delete_topic", (topic,)),
            ("delete_queue", (queue,)),
        ]
        with fault(broker, "no-manage"):
            for call, args in calls:
                with pytest.raises(HttpResponseError) as caught:
                    await getattr(admin, call)(*args)
                assert caught.value.status_code == 500, call
            for listing in ("list_queues", "list_topics"):
                with pytest.raises(HttpResponseError):
                    await admin.collect(listing)
            await sdk.send(queue, ServiceBusMessage("x"))
            assert len(await sdk.receive(queue, 1)) == 1
        assert "new" not in [each.name for each in await admin.collect("list_queues")]
        assert [each.name for each in await admin.collect("list_subscriptions", topic)] == ["all"]
        assert (await admin.get_queue(queue)).max_delivery_count == 10
        assert (await admin.get_topic(topic)).default_message_time_to_live != datetime.timedelta(hours=1)
        assert (await admin.get_subscription(topic, "all")).max_delivery_count == 10
        assert [each.name for each in await admin.collect("list_rules", topic, "all")] == ["$Default"]
        assert isinstance((await admin.get_rule(topic, "all", "$Default")).filter, TrueRuleFilter)
        await admin.update_queue(descriptions[0])
        assert (await admin.get_queue(queue)).max_delivery_count == 3


@both_apis
async def test_p46_cannot_contact_the_service(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "unreachable"):
            with pytest.raises(exceptions.ServiceBusConnectionError):
                await sender.send_messages(ServiceBusMessage("during"))
            with pytest.raises(exceptions.ServiceBusConnectionError):
                await sdk.send(queue, ServiceBusMessage("during"))
            async with sdk.admin() as admin:
                with pytest.raises((ServiceRequestError, ServiceResponseError)):
                    await admin.get_queue(queue)
        await sdk.send(queue, ServiceBusMessage("after"))
    assert [str(m) for m in await sdk.receive(queue, 3, wait=1)] == ["before", "after"]


async def test_an_unreachable_entity_takes_no_other_with_it(sdk: Sdk, broker: Broker) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "unreachable", entity=queue):
            with pytest.raises(exceptions.ServiceBusError):
                await sender.send_messages(ServiceBusMessage("during"))
            with pytest.raises(exceptions.ServiceBusError):
                await sdk.send(queue, ServiceBusMessage("during"))
            await sdk.send(other, ServiceBusMessage("elsewhere"))
    await sdk.send(queue, ServiceBusMessage("after"))
    assert [str(m) for m in await sdk.receive(queue, 3, wait=1)] == ["before", "after"]


@pytest.mark.parametrize("scope", SCOPES)
@both_apis
async def test_a_black_hole_says_nothing_and_goes_on_afterwards(
    sdk: Sdk, queue: str, broker: Broker, scope: str
) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "black-hole", entity=entity(scope, queue)), pytest.raises(exceptions.OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("swallowed"), timeout=1)
    # what was on its way arrives when the route is back, as with TCP: the outcome of a timed-out send is unknown (P20)
    await sdk.send(queue, ServiceBusMessage("after"))
    got = {str(m) for m in await sdk.receive(queue, 3, wait=1)}
    assert {"before", "after"} <= got <= {"before", "after", "swallowed"}


async def test_a_black_hole_swallows_new_connections(sdk: Sdk, broker: Broker) -> None:
    with fault(broker, "black-hole"):
        reader, writer = await asyncio.open_connection(sdk.namespace.host, sdk.namespace.port)
        writer.write(b"AMQP\x03\x01\x00\x00")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
    assert await asyncio.wait_for(reader.readexactly(8), 5) == b"AMQP\x03\x01\x00\x00"
    writer.close()


async def test_p24_throttled_to_a_rate(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "throttle", rate=0):
            with pytest.raises(exceptions.ServiceBusServerBusyError, match="50009"):
                await sender.send_messages(ServiceBusMessage("x"))
            async with sdk.admin() as admin:
                with pytest.raises(HttpResponseError) as caught:
                    await admin.get_queue(queue)
                assert caught.value.status_code in (429, 503)
        with fault(broker, "throttle", rate=3, entity=queue):
            outcomes = []
            for _ in range(20):
                try:
                    await sender.send_messages(ServiceBusMessage("x"))
                    outcomes.append("ok")
                except exceptions.ServiceBusServerBusyError:
                    outcomes.append("busy")
            assert outcomes[:3] == ["ok"] * 3
            assert "busy" in outcomes
        await sender.send_messages(ServiceBusMessage("x"))


async def test_latency_delays_answers(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("warm"))
        with fault(broker, "latency", delay=0.7, entity=queue):
            began = time.monotonic()
            await sender.send_messages(ServiceBusMessage("x"))
            assert time.monotonic() - began >= 0.7
            with pytest.raises(exceptions.OperationTimeoutError):
                await sender.send_messages(ServiceBusMessage("y"), timeout=0.2)


def in_an_hour() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


@both_apis
async def test_p20_a_send_whose_answer_is_lost_is_stored_once(sdk: Sdk, broker: Broker) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "lost-answer", entity=queue):
            with pytest.raises(exceptions.ServiceBusConnectionError):
                await sender.send_messages(ServiceBusMessage("single"))
            with pytest.raises(exceptions.ServiceBusConnectionError):
                await sender.send_messages([ServiceBusMessage("in a"), ServiceBusMessage("batch")])
            # other entities have their answers, and so has all that is no send
            async with client.get_queue_sender(other) as elsewhere:
                await elsewhere.send_messages(ServiceBusMessage("elsewhere"))
            assert [str(m) for m in await sdk.receive(queue, 3)] == ["single", "in a", "batch"]
        await sender.send_messages(ServiceBusMessage("after"))
    assert await sdk.depth(queue) == (1, 0)


async def test_lost_answers_to_schedules_and_publications_of_a_namespace(sdk: Sdk, broker: Broker) -> None:
    queue, topic = await sdk.queue(), await sdk.topic("all")
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "lost-answer"):
            with pytest.raises(exceptions.ServiceBusError):
                await sender.schedule_messages(ServiceBusMessage("later"), in_an_hour())
            with pytest.raises(exceptions.ServiceBusConnectionError):
                await sdk.publish(topic, ServiceBusMessage("news"))
        (number,) = await sender.schedule_messages(ServiceBusMessage("later, too"), in_an_hour())
        async with client.get_queue_receiver(queue) as receiver:
            peeked = await receiver.peek_messages(max_message_count=5)
        assert [str(m) for m in peeked] == ["later", "later, too"]
        assert peeked[1].sequence_number == number
        async with client.get_subscription_receiver(topic, "all") as receiver:
            assert [str(m) for m in await receiver.peek_messages(max_message_count=5)] == ["news"]


@both_apis
async def test_p20_a_send_that_hangs_is_not_stored(sdk: Sdk, broker: Broker) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "hang", entity=queue):
            with pytest.raises(exceptions.OperationTimeoutError):
                await sender.send_messages(ServiceBusMessage("given up"), timeout=0.5)
            # other entities go on; so do links, claims, receiving and management
            async with client.get_queue_sender(other) as elsewhere:
                await elsewhere.send_messages(ServiceBusMessage("elsewhere"))
            assert [str(m) for m in await sdk.receive(queue, 1)] == ["before"]
            assert await sdk.depth(queue) == (0, 0)
        await sdk.send(queue, ServiceBusMessage("after"))
    assert [str(m) for m in await sdk.receive(queue, 1)] == ["after"]
    assert await sdk.depth(queue) == (0, 0)


async def test_who_waits_for_a_send_that_hangs_is_cut_off_when_the_fault_ends(
    sdk: Sdk, queue: str, broker: Broker
) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        with fault(broker, "hang"):
            sending = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("hangs")))
            await hung(broker, queue)
        with pytest.raises(exceptions.ServiceBusConnectionError):
            await sending
        with fault(broker, "hang", entity=queue):
            message = ServiceBusMessage("hangs, too")
            scheduling = asyncio.ensure_future(sender.schedule_messages(message, in_an_hour()))
            await hung(broker, queue)
        with pytest.raises(exceptions.ServiceBusError):
            await scheduling
        await sender.send_messages(ServiceBusMessage("after"))
        async with client.get_queue_receiver(queue) as receiver:
            assert [str(m) for m in await receiver.peek_messages(max_message_count=5)] == ["after"]


async def hung(broker: Broker, *queues: str) -> None:
    """Until sends to just these hang."""
    server = broker.namespaces["contoso"]
    await soon(lambda: {path for each in list(server.connections) for path in each.hung} == set(queues))


async def test_a_fault_ends_by_itself(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        message = {"command": "fault", "namespace": "contoso", "kind": "no-send", "entity": queue, "for": 0.5}
        assert (await asyncio.to_thread(request, broker.data, message))["ok"]
        with pytest.raises(exceptions.ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
        await soon(lambda: not broker.faults("contoso").active(broker.clock()))
        await sender.send_messages(ServiceBusMessage("x"))
