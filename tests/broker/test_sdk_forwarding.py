"""Forwarding by the official SDK: set and cleared by the administration client, sent, received, dead-lettered."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk, fresh

pytestmark = UNTIDY_SDK


async def receive(sdk: Sdk, queue: str, count: int = 1, **options: Any) -> list[Any]:
    found: list[Any] = []
    async with sdk.client() as client, client.get_queue_receiver(queue, **options) as receiver:
        while len(found) < count:
            messages = await receiver.receive_messages(count - len(found), max_wait_time=20)
            assert messages, f"{len(found)} of {count} came"
            for message in messages:
                await receiver.complete_message(message)
            found += messages
    return found


def words(message: Any) -> str:
    return b"".join(message.body).decode()


async def test_a_queue_forwards_what_is_sent_to_it(sdk: Sdk) -> None:
    second = await sdk.queue()
    first = await sdk.queue(forward_to=second)
    host = f"{sdk.namespace.host}:{sdk.namespace.port}"
    async with sdk.admin() as admin:
        got = await admin.get_queue(first)
        assert got.forward_to == f"sb://{host}/{second}" and got.forward_dead_lettered_messages_to is None
    async with sdk.client() as client, client.get_queue_sender(first) as sender:
        await sender.send_messages([ServiceBusMessage(str(number), message_id=str(number)) for number in range(30)])
    messages = await receive(sdk, second, 30)
    assert [words(message) for message in messages] == [str(number) for number in range(30)]
    assert [message.sequence_number for message in messages] == list(range(1, 31))
    assert [message.enqueued_sequence_number for message in messages] == list(range(1, 31))
    assert {message.delivery_count for message in messages} == {0}
    assert {message.dead_letter_source for message in messages} == {None}


@pytest.mark.parametrize(
    "form", ["{name}", "sb://{host}:{port}/{name}", "https://{host}/{name}", "sb://{host}/{name}/"]
)
async def test_a_destination_is_given_in_every_form_that_clients_have(sdk: Sdk, form: str) -> None:
    second, first = await sdk.queue(), await sdk.queue()
    host, port = sdk.namespace.host, sdk.namespace.port
    address = form.format(name=second, host=host, port=port)
    async with sdk.admin() as admin:
        got = await admin.get_queue(first)
        await admin.update_queue(got, forward_to=address, forward_dead_lettered_messages_to=address)
        got = await admin.get_queue(first)
        assert got.forward_to == got.forward_dead_lettered_messages_to == f"sb://{host}:{port}/{second}"
        await admin.update_queue(got, forward_to=None, forward_dead_lettered_messages_to=None)
        got = await admin.get_queue(first)
        assert got.forward_to is None and got.forward_dead_lettered_messages_to is None


async def test_a_destination_that_can_not_be_is_refused_with_the_reason(sdk: Sdk) -> None:
    async with sdk.admin() as admin:
        for options, said in (
            ({"forward_to": "nowhere"}, "ForwardTo may not be 'nowhere': there is no queue or topic 'nowhere'"),
            ({"forward_dead_lettered_messages_to": "nowhere"}, "ForwardDeadLetteredMessagesTo may not be 'nowhere'"),
            ({"forward_to": "sb://elsewhere.example/q"}, "a queue or topic of this namespace"),
            ({"forward_to": await sdk.queue(), "requires_session": True}, "none where RequiresSession is true"),
        ):
            with pytest.raises(HttpResponseError, match=said) as info:
                await admin.create_queue(fresh("queue"), **options)
            assert info.value.status_code == 400


async def test_dead_letters_are_forwarded_with_their_reason_and_source(sdk: Sdk) -> None:
    second = await sdk.queue()
    first = await sdk.queue(forward_dead_lettered_messages_to=second)
    async with (
        sdk.client() as client,
        client.get_queue_sender(first) as sender,
        client.get_queue_receiver(first) as receiver,
    ):
        await sender.send_messages(ServiceBusMessage("bad", application_properties={"kept": 1}))
        (message,) = await receiver.receive_messages(1, max_wait_time=20)
        await receiver.dead_letter_message(message, reason="why", error_description="in more words")
    (message,) = await receive(sdk, second)
    assert words(message) == "bad" and message.dead_letter_source == first
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("why", "in more words")
    assert message.application_properties[b"kept"] == 1
    with pytest.raises(ServiceBusError, match="ForwardDeadLetteredMessagesTo"):
        await receive(sdk, first, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
