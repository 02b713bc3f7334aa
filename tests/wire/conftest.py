from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pairbus.wire import Receiver, Sender, WireClient

from .peer import Peer


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = await Peer().start()
    yield peer
    await peer.stop()


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[WireClient]:
    """Without `$cbs`, and with no pause between attempts to connect."""
    async with WireClient("127.0.0.1", peer.port, tls=False, timeout=5.0, backoff=lambda: iter(())) as client:
        yield client


@pytest.fixture
async def sender(client: WireClient) -> Sender:
    """To `orders`, open."""
    return await client.sender("orders")


@pytest.fixture
async def receiver(client: WireClient) -> Receiver:
    """Of `orders`, open; without credit ahead, so that nothing comes before it is asked for."""
    return await client.receiver("orders")
