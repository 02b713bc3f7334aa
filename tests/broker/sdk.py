"""The official SDK, sync or async, behind one async face."""

from __future__ import annotations

import itertools
from typing import Any

import azure.servicebus as sync_sdk
import azure.servicebus.aio as async_sdk
import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import NamespaceServer

from .sdk_bridge import Bridge

__all__ = ["Bridge", "Sdk", "both_apis"]

#: For a test of what the sync and the async SDK do each in its own way, such as credit, waiting and time-outs.
both_apis = pytest.mark.parametrize("sdk", ["sync", "async"], indirect=True)

_numbers = itertools.count(1)


def fresh(what: str) -> str:
    """Return a name that no other test uses."""
    return f"{what}-{next(_numbers)}"


class Sdk:
    """The SDK against one namespace."""

    def __init__(self, is_async: bool, namespace: NamespaceServer) -> None:
        self.is_async = is_async
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<Sdk {'async' if self.is_async else 'sync'} {self.namespace.name}>"

    def client(self, connection_string: str | None = None, **options: Any) -> Bridge:
        module = async_sdk if self.is_async else sync_sdk
        made = module.ServiceBusClient.from_connection_string(
            connection_string or self.namespace.connection_string, **{"retry_total": 0, **options}
        )
        return Bridge(made, self.is_async)

    def client_with(self, credential: Any, **options: Any) -> Bridge:
        module = async_sdk if self.is_async else sync_sdk
        host = f"{self.namespace.host}:{self.namespace.port}"
        made = module.ServiceBusClient(host, credential, **{"retry_total": 0, "use_tls": False, **options})
        return Bridge(made, self.is_async)

    def admin(self, connection_string: str | None = None) -> Bridge:
        ca = self.namespace.ca_file
        text = connection_string or self.namespace.connection_string
        if self.is_async:
            made: Any = AsyncAdministrationClient.from_connection_string(
                text, transport=AioHttpTransport(connection_verify=ca), retry_total=0
            )
        else:
            made = ServiceBusAdministrationClient.from_connection_string(
                text, transport=RequestsTransport(connection_verify=ca), retry_total=0
            )
        return Bridge(made, self.is_async)

    async def queue(self, **options: Any) -> str:
        name = f"queue-{next(_numbers)}"
        async with self.admin() as admin:
            await admin.create_queue(name, **options)
        return name

    async def topic(self, *subscriptions: str, **options: Any) -> str:
        name = f"topic-{next(_numbers)}"
        async with self.admin() as admin:
            await admin.create_topic(name)
            for subscription in subscriptions:
                await admin.create_subscription(name, subscription, **options)
        return name

    async def publish(self, topic: str, *messages: Any, by: str | None = None) -> None:
        async with self.client(by) as client, client.get_topic_sender(topic) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def send(self, queue: str, *messages: Any) -> None:
        async with self.client() as client, client.get_queue_sender(queue) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def receive(self, queue: str, count: int, wait: float = 5, **options: Any) -> list[Any]:
        """Receives and completes, or removes with `receive_mode`; fewer than `count` only when the wait is over."""
        async with self.client() as client:
            return await self._received(client.get_queue_receiver(queue, **options), count, wait, options)

    async def read(self, topic: str, subscription: str, count: int, wait: float = 5, **options: Any) -> list[Any]:
        """As `receive`, from a subscription."""
        async with self.client() as client:
            made = client.get_subscription_receiver(topic, subscription, **options)
            return await self._received(made, count, wait, options)

    async def _received(self, made: Bridge, count: int, wait: float, options: dict[str, Any]) -> list[Any]:
        got: list[Any] = []
        async with made as receiver:
            while len(got) < count:
                new = await receiver.receive_messages(max_message_count=count - len(got), max_wait_time=wait)
                if not new:
                    break
                for message in new:
                    if "receive_mode" not in options:
                        await receiver.complete_message(message)
                got += new
        return got

    async def depth(self, queue: str) -> tuple[int, int]:
        async with self.admin() as admin:
            found = await admin.get_queue_runtime_properties(queue)
        return found.active_message_count, found.dead_letter_message_count
