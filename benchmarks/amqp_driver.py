"""Drives an AMQP 1.0 server with our wire client: pairbus and RabbitMQ alike, one connection each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from benchmarks.servers import PairbusServer, RabbitServer
from pairbus.wire import Login, Receiver, Sender, WireClient

RECEIVE_WAIT_S = 30.0
CALL_S = 120.0  # a rival under load may take its time; a figure is wanted, not an error
MESSAGE_ID = "9f0c2a60-5f7e-4f0a-8a66-0d2c6f3b8a11"  # nobody here looks for duplicates


def _admin(server: PairbusServer) -> ServiceBusAdministrationClient:
    verify = {"connection_verify": server.ca_file} if server.ca_file else {}
    return ServiceBusAdministrationClient.from_connection_string(server.connection_string, **verify)


async def create_queues(server: PairbusServer, names: Sequence[str], **properties: Any) -> None:
    """Through the official admin client. Large enough for a million messages of 1 KB."""
    with _admin(server) as admin:
        for name in names:
            admin.create_queue(name, max_size_in_megabytes=5120, lock_duration="PT5M", **properties)


async def create_topic(server: PairbusServer, name: str, subscriptions: Sequence[str]) -> None:
    with _admin(server) as admin:
        admin.create_topic(name, max_size_in_megabytes=5120)
        for subscription in subscriptions:
            admin.create_subscription(name, subscription, lock_duration="PT5M")


def subscription_path(topic: str, subscription: str) -> str:
    return f"{topic}/Subscriptions/{subscription}"


def encoded(payload: bytes, message_id: str = MESSAGE_ID, destination: str = "") -> bytes:
    """A durable message as AMQP 1.0 writes it; with a destination, as a paired sender writes it to the backlog."""

    def text(value: str) -> bytes:
        return bytes((0xA1, len(value))) + value.encode()

    fields, aliases = text(message_id), text("x-ms-path") + text(destination)
    return (
        b"\x00\x53\x70\xc0\x02\x01\x41"
        + bytes((0x00, 0x53, 0x73, 0xC0, len(fields) + 1, 1))
        + fields
        + (bytes((0x00, 0x53, 0x74, 0xC1, len(aliases) + 1, 2)) + aliases if destination else b"")
        + b"\x00\x53\x75\xb0"
        + len(payload).to_bytes(4)
        + payload
    )


class AmqpDriver:
    def __init__(self, client: WireClient, sender: Sender | None, receiver: Receiver | None, *, batches: bool) -> None:
        self._client = client
        self._sender = sender
        self._receiver = receiver
        self.batches = batches  # whether the server knows message format 0x80013700

    @classmethod
    async def to_pairbus(
        cls, server: PairbusServer, entity: str, *, send: bool = True, receive: bool = True
    ) -> AmqpDriver:
        return await cls.to_connection_string(server.connection_string, entity, send=send, receive=receive)

    @classmethod
    async def to_connection_string(
        cls, text: str, entity: str, *, send: bool = True, receive: bool = True
    ) -> AmqpDriver:
        client = WireClient.from_connection_string(text, timeout=CALL_S)
        return await cls._open(client, entity, send=send, receive=receive, batches=True)

    @classmethod
    async def to_rabbit(cls, server: RabbitServer, queue: str) -> AmqpDriver:
        login = Login(server.user, server.password)
        client = WireClient("127.0.0.1", server.port, tls=False, credential=login, timeout=CALL_S)
        return await cls._open(client, f"/amq/queue/{queue}", send=True, receive=True, batches=False)

    @classmethod
    async def _open(cls, client: WireClient, entity: str, *, send: bool, receive: bool, batches: bool) -> AmqpDriver:
        try:
            sender = await client.sender(entity) if send else None
            # credit comes with the first receive: a resting contender must not deliver
            receiver = await client.receiver(entity) if receive else None
        except BaseException:
            await client.close()
            raise
        return cls(client, sender, receiver, batches=batches)

    async def close(self) -> None:
        await self._client.close()

    async def send(self, payload: bytes, count: int, window: int, destination: str = "") -> None:
        message, sender = encoded(payload, destination=destination), self._sender
        assert sender is not None, "opened without a sender"
        if window == 1:
            for _ in range(count):
                await sender.send(message)
            return
        sender.window = window
        confirms: list[asyncio.Future[None]] = []
        while len(confirms) < count:
            room = min(sender.room, count - len(confirms))
            if room <= 0:
                await sender.ready()
                continue
            confirms += [sender.send_nowait(message) for _ in range(room)]
        await _all_confirmed(confirms)

    async def send_batches(self, payload: bytes, count: int, size: int, window: int) -> None:
        """As many batches under way as hold `window` messages."""
        batch, sender = [encoded(payload)] * size, self._sender
        assert sender is not None, "opened without a sender"
        sender.window = max(1, window // size)
        confirms: list[asyncio.Future[None]] = []
        for _ in range(count // size):
            while sender.room <= 0:
                await sender.ready()
            confirms += [confirm for _, confirm in sender.send_batch_nowait(batch)]
        await _all_confirmed(confirms)

    async def receive(self, count: int, window: int) -> None:
        """Up to `window` on their way here and as many settled without an answer yet. What arrives together is settled
        together, by range; every answer is awaited. Never asks for more than `count`: what a later case sends must
        not be delivered while it is sending."""
        receiver = self._receiver
        assert receiver is not None, "opened without a receiver"
        under_way: deque[tuple[int, asyncio.Future[None]]] = deque()
        unanswered = 0
        while count:
            # credit ahead for as long as all of it will be used, then exactly what is missing
            receiver.credit = window if count > 2 * window else 0
            messages = await receiver.receive(min(count, window), RECEIVE_WAIT_S)
            if not messages:
                raise RuntimeError(f"{count} messages did not come within {RECEIVE_WAIT_S:.0f} s")
            count -= len(messages)
            under_way.append((len(messages), receiver.settle_nowait(messages)))
            unanswered += len(messages)
            while under_way and (unanswered > window or under_way[0][1].done()):
                settled, answer = under_way.popleft()
                await answer
                unanswered -= settled
        for _, answer in under_way:
            await answer


async def _all_confirmed(confirms: Iterable[asyncio.Future[None]]) -> None:
    for confirm in confirms:
        await confirm
