"""The official SDK through AMQP over WebSocket, as it is: TLS with our CA, the broker's one port."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, TransportType
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK
from tests.untidy_sdk import swept as swept

from .sdk import Bridge, Sdk

pytestmark = [
    pytest.mark.timeout(60),
    *UNTIDY_SDK,
    # it says `ssl=None` where it has no TLS
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]


def over_websocket(sdk: Sdk, key: str | None = None, **options: Any) -> Bridge:
    """Without the emulator's flag, so that the SDK says `wss` and checks the certificate."""
    namespace = sdk.namespace
    text = namespace.connection_string.replace("UseDevelopmentEmulator=true;", "")
    if key is not None:
        text = text.partition("SharedAccessKey=")[0] + f"SharedAccessKey={key}"
    return sdk.client(
        text,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://{namespace.host}:{namespace.port}",
        connection_verify=namespace.ca_file,
        **options,
    )


async def drain(receiver: Bridge, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        new = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=10)
        assert new, f"{len(got)} of {count} came"
        got += new
    return got


async def test_send_receive_and_settle(sdk: Sdk, queue: str) -> None:
    async with over_websocket(sdk) as client:
        async with client.get_queue_sender(queue) as sender:
            for number in range(4):
                await sender.send_messages(ServiceBusMessage(f"message {number}", message_id=str(number)))
        async with client.get_queue_receiver(queue) as receiver:
            messages = await drain(receiver, 4)
            assert [str(message) for message in messages] == [f"message {number}" for number in range(4)]
            await receiver.complete_message(messages[0])
            await receiver.complete_message(messages[1])
            await receiver.dead_letter_message(messages[2], reason="tried", error_description="in vain")
            await receiver.abandon_message(messages[3])
            (again,) = await drain(receiver, 1)
            assert (again.message_id, again.delivery_count) == ("3", 1)
            await receiver.renew_message_lock(again)
            await receiver.complete_message(again)
            assert await receiver.peek_messages(max_message_count=5) == []
        async with client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
            (dead,) = await drain(receiver, 1)
            assert (dead.message_id, dead.dead_letter_reason) == ("2", "tried")
            await receiver.complete_message(dead)


async def test_large_messages_both_ways(sdk: Sdk) -> None:
    """Many AMQP frames to a message, many WebSocket messages to a write."""
    queue = await sdk.queue(max_message_size_in_kilobytes=1024)
    bodies = [bytes((number,)) * size for number, size in enumerate((1, 65_000, 66_000, 250_000, 1_000_000))]
    async with over_websocket(sdk) as client:
        async with client.get_queue_sender(queue) as sender:
            for body in bodies:
                await sender.send_messages(ServiceBusMessage(body))
        async with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            assert [b"".join(message.body) for message in await drain(receiver, len(bodies))] == bodies


async def test_without_tls(sdk: Sdk, queue: str) -> None:
    options = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://{sdk.namespace.host}:{sdk.namespace.port}",
    }
    async with sdk.client(**options) as client:  # the emulator's flag: `ws`
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("plain"))
        async with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            (message,) = await drain(receiver, 1)
    assert str(message) == "plain"


async def test_a_wrong_key_opens_nothing(sdk: Sdk, queue: str) -> None:
    async with over_websocket(sdk, key="d3Jvbmc=") as client:
        with pytest.raises(ServiceBusError):
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("never"))
    assert await sdk.receive(queue, 1, wait=0.5) == []


async def test_an_outage_is_felt_and_ends(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with over_websocket(sdk) as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "unreachable"), pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("during"))
        await sender.send_messages(ServiceBusMessage("after"))
    assert [str(message) for message in await sdk.receive(queue, 2)] == ["before", "after"]


async def test_the_management_s_outage_is_not_the_socket_s(sdk: Sdk, queue: str, broker: Broker) -> None:
    with fault(broker, "no-manage"):
        async with over_websocket(sdk) as client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("through"))
    assert [str(message) for message in await sdk.receive(queue, 1)] == ["through"]
