"""A tour of the broker with whichever azure-servicebus is installed: `python -m tests.broker.sdk_tour WAY`.

WAY is how its clients reach the broker (docs/compatibility.md); PAIRBUS_NAMESPACE and PAIRBUS_CA name it. Every stop
runs through the sync and the async clients. The last line on stdout is the SDK's version and the number of stops; a
stop that fails ends the tour with its traceback. Only the SDK and the standard library are imported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus as sync_sdk
import azure.servicebus.aio as async_sdk
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, TransportType
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusCommunicationError,
    SessionCannotBeLockedError,
)
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, TrueRuleFilter

from .sdk_bridge import Bridge

WAIT_S = 10.0


class Visitor:
    """The clients of the SDK, sync or async, that reach the broker in one way."""

    def __init__(self, way: str, is_async: bool) -> None:
        self.is_async = is_async
        self.prefix = f"{way}-{'async' if is_async else 'sync'}-{sync_sdk.__version__.replace('.', '-')}"
        self._connection_string = os.environ["PAIRBUS_NAMESPACE"]
        self._options = options(way, self._connection_string, os.environ["PAIRBUS_CA"])

    def client(self) -> Bridge:
        module = async_sdk if self.is_async else sync_sdk
        made = module.ServiceBusClient.from_connection_string(retry_total=0, **self._options)
        return Bridge(made, self.is_async)

    def admin(self) -> Bridge:
        """Until 7.14 it heeds neither `transport` nor `connection_verify`: the CA comes with the environment."""
        made = AsyncAdministrationClient if self.is_async else ServiceBusAdministrationClient
        return Bridge(made.from_connection_string(self._connection_string), self.is_async)

    async def queue(self, name: str, **properties: Any) -> str:
        full = f"{self.prefix}-{name}"
        async with self.admin() as admin:
            await admin.create_queue(full, **properties)
        return full


def options(way: str, connection_string: str, ca: str) -> dict[str, Any]:
    endpoint = connection_string.partition("Endpoint=")[2].partition(";")[0].rstrip("/")
    without_flag = connection_string.replace("UseDevelopmentEmulator=true;", "")
    host, _, port = endpoint.rpartition(":")
    if way == "plain":  # from 7.14 on
        return {"conn_str": connection_string}
    if way == "websocket":
        return {
            "conn_str": without_flag,
            "connection_verify": ca,
            "custom_endpoint_address": endpoint,
            "transport_type": TransportType.AmqpOverWebsocket,
        }
    if way in ("uamqp", "uamqp-by-choice"):  # it compares addresses with and without the port: the string has none
        chosen = {"uamqp_transport": True} if way == "uamqp-by-choice" else {}
        ways = options("websocket", connection_string, ca)
        return {**ways, "conn_str": without_flag.replace(f"{host}:{port}", host), **chosen}
    raise SystemExit(f"{way!r} is no way to the broker; there are plain, websocket, uamqp and uamqp-by-choice")


async def received(receiver: Bridge, count: int, wait: float = WAIT_S) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        new = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=wait)
        assert new, f"{len(got)} of {count} messages came in {wait:g} s"
        got += new
    return got


async def raises(expected: type[Exception] | tuple[type[Exception], ...], call: Awaitable[Any]) -> Exception:
    try:
        await call
    except expected as error:
        return error
    raise AssertionError(f"{expected!r} was not raised")


async def send_one_some_and_a_batch(visitor: Visitor) -> None:
    queue = await visitor.queue("batches")
    async with visitor.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("one", application_properties={"n": 1}, subject="s", to="t"))
        await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
        batch = await sender.create_message_batch()
        for text in ("four", "five"):
            batch.add_message(ServiceBusMessage(text))
        await sender.send_messages(batch)
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
            messages = await received(receiver, 5)
    assert [str(message) for message in messages] == ["one", "two", "three", "four", "five"]
    assert (messages[0].application_properties, messages[0].subject, messages[0].to) == ({b"n": 1}, "s", "t")
    async with visitor.client() as client:
        # on uamqp it is the second one; a failed authentication would be tried again for 15 s by default
        kinds = (MessagingEntityNotFoundError, ServiceBusCommunicationError)
        error = await raises(kinds, client.get_queue_sender(f"{queue}-none").__aenter__())
        assert "could not be found" in str(error), error


async def settle_in_every_way(visitor: Visitor) -> None:
    queue = await visitor.queue("settled", lock_duration=timedelta(seconds=60))
    async with visitor.client() as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(name, message_id=name) for name in "cadf"])
        async with client.get_queue_receiver(queue) as receiver:
            complete, abandon, dead, defer = await received(receiver, 4)
            await receiver.renew_message_lock(complete)
            await receiver.complete_message(complete)
            await receiver.abandon_message(abandon)
            await receiver.dead_letter_message(dead, reason="tried", error_description="in vain")
            await receiver.defer_message(defer)
            (again,) = await received(receiver, 1)
            assert (again.message_id, again.delivery_count) == ("a", 1)
            await receiver.complete_message(again)
            (deferred,) = await receiver.receive_deferred_messages(defer.sequence_number)
            assert (deferred.message_id, deferred.delivery_count) == ("f", 1)
            await receiver.complete_message(deferred)
            assert await receiver.peek_messages(max_message_count=9) == []
        async with client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
            (letter,) = await received(receiver, 1)
            told = (letter.message_id, letter.dead_letter_reason, letter.dead_letter_error_description)
            assert told == ("d", "tried", "in vain")
            await receiver.complete_message(letter)


async def peek(visitor: Visitor) -> None:
    queue = await visitor.queue("peeked")
    async with visitor.client() as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(str(n)) for n in range(5)])
        async with client.get_queue_receiver(queue) as receiver:
            first = await receiver.peek_messages(max_message_count=2)
            rest = await receiver.peek_messages(max_message_count=9, sequence_number=first[-1].sequence_number + 1)
    assert [str(message) for message in [*first, *rest]] == list("01234")


async def schedule_and_cancel(visitor: Visitor) -> None:
    queue = await visitor.queue("scheduled")
    async with visitor.client() as client, client.get_queue_sender(queue) as sender:
        now = datetime.now(UTC)
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("kept"), ServiceBusMessage("called off")], now + timedelta(hours=1)
        )
        await sender.cancel_scheduled_messages(numbers[1])
        async with client.get_queue_receiver(queue) as receiver:
            (waiting,) = await receiver.peek_messages(max_message_count=9)
            assert (str(waiting), waiting.sequence_number) == ("kept", numbers[0])
            await sender.schedule_messages(ServiceBusMessage("soon"), now + timedelta(seconds=1))
            (soon,) = await received(receiver, 1)
            assert str(soon) == "soon"
            await receiver.complete_message(soon)


async def sessions(visitor: Visitor) -> None:
    queue = await visitor.queue("sessions", requires_session=True)
    async with visitor.client() as client:
        async with client.get_queue_sender(queue) as sender:
            # the empty id is one like any other
            for name in ("red", "blue", ""):
                await sender.send_messages([ServiceBusMessage(name, session_id=name) for _ in range(2)])
        async with client.get_queue_receiver(queue, session_id="blue") as receiver:
            assert receiver.session.session_id == "blue"
            messages = await received(receiver, 2)
            await Bridge(receiver.session, visitor.is_async).set_state(b"half way")
            await Bridge(receiver.session, visitor.is_async).renew_lock()
            await receiver.defer_message(messages[0])
            (deferred,) = await receiver.receive_deferred_messages(messages[0].sequence_number)
            await receiver.complete_message(deferred)
            await receiver.complete_message(messages[1])
            second = client.get_queue_receiver(queue, session_id="blue")
            await raises(SessionCannotBeLockedError, second.__aenter__())
            await second.close()
        async with client.get_queue_receiver(queue, session_id="blue") as receiver:
            state = await Bridge(receiver.session, visitor.is_async).get_state()
            assert (state if isinstance(state, bytes) else b"".join(state)) == b"half way"
        seen = []
        for _ in range(2):
            async with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
                messages = await received(receiver, 2)
                assert {message.session_id for message in messages} == {receiver.session.session_id}
                seen.append(receiver.session.session_id)
                for message in messages:
                    await receiver.complete_message(message)
        assert sorted(seen) == ["", "red"]


async def topics_and_rules(visitor: Visitor) -> None:
    topic = f"{visitor.prefix}-topic"
    async with visitor.admin() as admin:
        await admin.create_topic(topic)
        for name in ("all", "some"):
            await admin.create_subscription(topic, name)
        await admin.delete_rule(topic, "some", "$Default")
        chosen = CorrelationRuleFilter(label="red", properties={"size": "big"})
        await admin.create_rule(topic, "some", "chosen", filter=chosen)
        error = await raises(ResourceExistsError, admin.create_rule(topic, "some", "chosen", filter=TrueRuleFilter()))
        assert f"The messaging entity '{topic}/Subscriptions/some/Rules/chosen' already exists" in str(error), error
        rule = await admin.get_rule(topic, "some", "chosen")
        assert (rule.filter.label, rule.filter.properties) == ("red", {"size": "big"})
        assert [rule.name for rule in await admin.collect("list_rules", topic, "some")] == ["chosen"]
        assert len(await admin.collect("list_subscriptions", topic)) == 2
    async with visitor.client() as client:
        async with client.get_topic_sender(topic) as sender:
            await sender.send_messages(ServiceBusMessage("a", subject="red", application_properties={"size": "big"}))
            await sender.send_messages(ServiceBusMessage("b", subject="blue"))
        for name, bodies in (("all", ["a", "b"]), ("some", ["a"])):
            async with client.get_subscription_receiver(topic, name) as receiver:
                messages = await received(receiver, len(bodies))
                assert [str(message) for message in messages] == bodies
                for message in messages:
                    await receiver.complete_message(message)
    async with visitor.admin() as admin:
        await admin.delete_subscription(topic, "all")
        await admin.delete_topic(topic)


async def administration(visitor: Visitor) -> None:
    async with visitor.admin() as admin:
        name = f"{visitor.prefix}-admin"
        await admin.create_queue(name, max_delivery_count=3, lock_duration=timedelta(seconds=30))
        await raises(ResourceExistsError, admin.create_queue(name))
        properties = await admin.get_queue(name)
        assert (properties.max_delivery_count, properties.lock_duration) == (3, timedelta(seconds=30))
        properties.max_delivery_count = 4
        await admin.update_queue(properties)
        assert (await admin.get_queue(name)).max_delivery_count == 4
        assert (await admin.get_queue_runtime_properties(name)).total_message_count == 0
        assert name in [queue.name for queue in await admin.collect("list_queues")]
        assert (await admin.get_namespace_properties()).name
        await admin.delete_queue(name)
        await raises(ResourceNotFoundError, admin.get_queue(name))


STOPS: list[Callable[[Visitor], Awaitable[None]]] = [
    send_one_some_and_a_batch,
    settle_in_every_way,
    peek,
    schedule_and_cancel,
    sessions,
    topics_and_rules,
    administration,
]


async def main(way: str) -> None:
    for is_async in (False, True):
        visitor = Visitor(way, is_async)
        # uamqp crashes now and then where several threads use it, whatever the broker answers
        for stops in [[stop] for stop in STOPS] if way.startswith("uamqp") else [STOPS]:
            await asyncio.gather(*(stop(visitor) for stop in stops))
    print(sync_sdk.__version__, 2 * len(STOPS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
