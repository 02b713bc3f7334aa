"""The simulated machine serves strangers as a real one does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from pairbus.amqp.connection import Connection
from pairbus.amqp.sasl import ANONYMOUS, SaslClient
from pairbus.broker.config.plan import NamespacePlan
from pairbus.journal import Options

from .broker import PORT, SimulatedMachine
from .loop import SimulatedLoop
from .network import SimulatedNetwork
from .run import deterministic

EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"


class Impatient(asyncio.Protocol):
    """A client that opens a connection, asks for a heartbeat each half millisecond, and says no more."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._engine = Connection(
            server=False, container_id="impatient", idle_timeout=0.001, sasl=SaslClient(ANONYMOUS)
        )
        self._transport: asyncio.Transport
        self.heartbeats = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._engine.output())

    def data_received(self, data: bytes) -> None:
        self.heartbeats += data.count(EMPTY_FRAME)
        self._engine.receive(data, self._loop.now)
        self._transport.write(self._engine.output())


def test_heartbeats_are_bounded_for_a_client_that_wants_very_many() -> None:
    loop = SimulatedLoop()  # type: ignore[abstract]  # only what runs here is there
    network = SimulatedNetwork(loop, "heartbeats")
    options = Options(segment_bytes=4096, reserve_bytes=0, allocate_bytes=0)
    machine = SimulatedMachine("contoso", loop, network, NamespacePlan(name="contoso", ports=(PORT,)), options, "seed")
    seen = SimpleNamespace()

    async def stay() -> None:
        await machine.start()
        _, seen.client = await loop.create_connection(lambda: Impatient(loop), "contoso", PORT)
        await asyncio.sleep(10.0)

    with deterministic(1, loop, network):
        loop.run(stay())
    assert 50 <= seen.client.heartbeats <= 220
    assert loop.problems == []
