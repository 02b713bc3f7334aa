"""Two namespaces, and queues in them that are a test's own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import Broker
from pairbus.pairing.backlog.backlog_queues import QUEUE_PROPERTIES, path
from pairbus.syphon.core.queue_discovery import QueueDiscovery
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.listing import OPTIONS, Lister, list_backlog
from pairbus.syphon.settings import SyphonSettings
from pairbus.testing import fault
from pairbus.wire import WireClient
from tests.message_view import View

_numbers = itertools.count(1)


def diverted(destination: str | None, message_id: str, body: bytes = b"hello", **properties: Any) -> bytes:
    """As a paired sender puts it into the backlog."""
    fields: dict[str, Any] = {} if destination is None else {"x-ms-path": destination}
    return encode_message(None, None, Properties(message_id=message_id), fields | properties, body)


class Pair:
    def __init__(self, broker: Broker, clock: Any) -> None:
        self.broker = broker
        self.clock = clock
        self.east, self.west = broker.namespaces["east"], broker.namespaces["west"]
        #: A primary name of its own for each test, so that backlogs don't mix.
        self.name = f"east{next(_numbers)}"
        self.primary = Endpoint.from_connection_string(self.east.connection_string, name="east")
        self.secondary = Endpoint.from_connection_string(self.west.connection_string, name="west")
        self.east_client: WireClient = self.primary.client(clock=clock)
        self.west_client: WireClient = self.secondary.client(clock=clock)

    async def close(self) -> None:
        await self.east_client.close()
        await self.west_client.close()

    def fault(self, kind: str, namespace: str = "east", **options: Any) -> fault:
        return fault(self.broker, kind, namespace=namespace, **options)

    async def manage(self, namespace: Any, call: Any) -> Any:
        def run() -> Any:
            with ServiceBusAdministrationClient.from_connection_string(
                namespace.connection_string, connection_verify=namespace.ca_file
            ) as admin:
                return call(admin)

        return await asyncio.to_thread(run)

    async def destination(self, name: str, **properties: Any) -> str:
        unique = f"{name}-{self.name}"
        await self.manage(self.east, lambda admin: admin.create_queue(unique, **properties))
        return unique

    async def topic(self, name: str) -> str:
        unique = f"{name}-{self.name}"

        def make(admin: ServiceBusAdministrationClient) -> None:
            admin.create_topic(unique)
            admin.create_subscription(unique, "all")

        await self.manage(self.east, make)
        return unique

    async def backlog(self, *indexes: int, **properties: Any) -> list[tuple[str, int | None]]:
        def make(admin: ServiceBusAdministrationClient) -> None:
            for index in indexes:
                admin.create_queue(path(self.name, index), **(QUEUE_PROPERTIES | properties))

        await self.manage(self.west, make)
        return [(path(self.name, index), index) for index in indexes]

    async def prepare(self, *names: str, backlog: Sequence[int] = (0,), **properties: Any) -> tuple[Any, ...]:
        """Create these destinations and backlog queues; return the destinations' names, then the backlog queues."""
        destinations = [await self.destination(name, **properties) for name in names]
        return (*destinations, await self.backlog(*backlog))

    async def divert(self, index: int, payloads: Sequence[bytes]) -> None:
        sender = await self.west_client.sender(path(self.name, index))
        await sender.send_batch(payloads)
        await sender.close()

    def engine(self, queues: Sequence[tuple[str, int | None]], **options: Any) -> SyphonEngine:
        return SyphonEngine(SyphonSettings(self.primary, self.secondary, queues, **options), wall=self.clock)

    def lister(self, queues: Sequence[tuple[str, int | None]]) -> Lister:
        def admin() -> Any:
            return ServiceBusAdministrationClient.from_connection_string(
                self.west.connection_string, connection_verify=self.west.ca_file, **OPTIONS
            )

        discovery = QueueDiscovery(self.name, "west", [queue for queue, _ in queues])
        return Lister(discovery, partial(list_backlog, admin, self.name))

    @asynccontextmanager
    async def running(self, queues: Sequence[tuple[str, int | None]], **options: Any) -> AsyncIterator[SyphonEngine]:
        engine = self.engine(queues, **options)
        task = asyncio.create_task(engine.run())
        try:
            yield engine
        finally:
            engine.stop()
            await task

    async def arrived(self, entity: str) -> list[bytes]:
        """Taken away from the primary."""
        receiver = await self.east_client.receiver(entity, mode="delete")
        found: list[bytes] = []
        while await self.east_client.peek(entity, count=1):
            found += [message.payload for message in await receiver.receive(1000, 5.0)]
        await receiver.close()
        return found

    async def ids(self, entity: str) -> list[str]:
        return sorted(message_id(payload) for payload in await self.arrived(entity))

    async def left(self, index: int) -> int:
        return len(await self.west_client.peek(path(self.name, index)))

    async def dead(self, index: int) -> list[dict[str, Any]]:
        found = await self.west_client.peek(f"{path(self.name, index)}/$DeadLetterQueue")
        return [View(payload).application_properties for payload in found]

    def expire_locks(self) -> None:
        self.clock.ahead += 61.0


def message_id(payload: bytes) -> str:
    return str(View(payload).properties.message_id)
