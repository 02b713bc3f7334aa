"""Who may do what, through the official SDK: signatures, scopes, expiry, TLS."""

from __future__ import annotations

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError

from pairbus.sas import make_token
from tests.untidy_sdk import UNTIDY_SDK

from .conftest import Clock
from .sdk import Sdk

pytestmark = UNTIDY_SDK


def token(sdk: Sdk, path: str, lifetime: float = 600.0, key: str | None = None) -> AzureSasCredential:
    parts = dict(part.split("=", 1) for part in sdk.namespace.connection_string.rstrip(";").split(";"))
    resource = f"sb://{sdk.namespace.host}:{sdk.namespace.port}/{path}"
    expires_at = sdk.namespace.clock() + lifetime
    return AzureSasCredential(
        make_token(resource, parts["SharedAccessKeyName"], key or parts["SharedAccessKey"], expires_at)
    )


async def test_a_wrong_key_is_refused(sdk: Sdk, queue: str) -> None:
    wrong = sdk.namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=A")
    async with sdk.client(wrong) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("x"))
    async with sdk.admin(wrong) as admin:
        with pytest.raises(ClientAuthenticationError):
            await admin.get_queue(queue)


async def test_an_unknown_key_name_is_refused(sdk: Sdk, queue: str) -> None:
    wrong = sdk.namespace.connection_string.replace("RootManage", "BranchManage")
    async with sdk.client(wrong) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.get_queue_receiver(queue) as receiver:
                await receiver.receive_messages(max_wait_time=1)


async def test_a_token_opens_its_entity_and_no_other(sdk: Sdk) -> None:
    mine, other = await sdk.queue(), await sdk.queue()
    async with sdk.client_with(token(sdk, mine)) as client:
        async with client.get_queue_sender(mine) as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_queue_receiver(mine) as receiver:
            assert len(await receiver.peek_messages(max_message_count=2)) == 1
        with pytest.raises(ServiceBusAuthorizationError, match="Send"):
            async with client.get_queue_sender(other) as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthorizationError, match="Listen"):
            async with client.get_queue_receiver(other) as receiver:
                await receiver.receive_messages(max_wait_time=1)
    assert await sdk.depth(other) == (0, 0)


async def test_an_expired_token_is_refused(sdk: Sdk, queue: str) -> None:
    async with sdk.client_with(token(sdk, queue, lifetime=-60)) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("x"))


async def test_links_are_cut_when_their_token_runs_out(sdk: Sdk, queue: str, clock: Clock) -> None:
    async with (
        sdk.client_with(token(sdk, queue)) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("in time"))
        clock.advance(601)

        async def send_on() -> None:
            for _ in range(100_000):
                await sender.send_messages(ServiceBusMessage("too late?"))

        with pytest.raises(ServiceBusError):
            await send_on()


async def test_over_tls_with_the_brokers_own_authority(sdk: Sdk, queue: str) -> None:
    text = sdk.namespace.connection_string.replace("UseDevelopmentEmulator=true;", "")
    options = {
        "custom_endpoint_address": f"sb://{sdk.namespace.host}:{sdk.namespace.port}",
        "transport_type": TransportType.Amqp,
    }
    async with sdk.client(text, connection_verify=sdk.namespace.ca_file, **options) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"x" * 100_000))
        async with client.get_queue_receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
            await receiver.complete_message(message)
    async with sdk.client(text, **options) as client:
        with pytest.raises(ServiceBusError):  # nobody else vouches for it
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("x"))
