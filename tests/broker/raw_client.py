"""A client that says what a test says, frame by frame, in the order of SDKs that can't be run here."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

from pairbus.amqp.performatives import decode_performative
from pairbus.broker import NamespaceServer


class RawClient:
    """Writes frames, and reads those of the kinds that are asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        #: What followed the last performative that was heard, such as an encoded message.
        self.payload = b""

    def say(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def hear(self, *kinds: type) -> tuple[int, Any]:
        """Return the channel and the performative of the next frame of these kinds."""
        async with asyncio.timeout(10):
            while True:
                head = await self._reader.readexactly(8)
                if head.startswith(b"AMQP"):
                    continue
                size, _, kind, channel = struct.unpack(">IBBH", head)
                body = await self._reader.readexactly(size - 8)
                if kind == 0 and body:
                    performative, end = decode_performative(body)
                    if isinstance(performative, kinds):
                        self.payload = body[end:]
                        return channel, performative


@contextlib.asynccontextmanager
async def raw_client(served: NamespaceServer) -> AsyncIterator[RawClient]:
    """Connect, and say nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    with contextlib.closing(writer):
        yield RawClient(reader, writer)
