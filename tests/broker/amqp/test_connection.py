from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pairbus.amqp.events import Closed, Delivered
from pairbus.amqp.performative_types import Attach, Detach, Disposition, Source, Transfer
from pairbus.amqp.types import Symbol
from pairbus.broker import Broker
from pairbus.broker.amqp.connection import AmqpConnection
from tests.amqp.pair import SMALL, ConnectionPair
from tests.broker.attack_words import Target, attach, begun, credit, frame, let_in, transfer
from tests.broker.namespace_rig import make, make_special
from tests.broker.raw_client import RawClient
from tests.broker.sdk import Sdk
from tests.waiting import soon


def test_what_a_connection_gathers_follows_the_largest_message_that_a_link_may_bring() -> None:
    """As the broker accepts links to entities: one such message, and beside it as much as any connection gathers."""
    pair = ConnectionPair(server={"limits": replace(SMALL, gathered_bytes_max=1000, incoming_window=1000)})
    large, receiver = pair.sender()
    small, _ = pair.sender("small")
    receiver.expect(50_000)
    allowed = 50_000 + 65_536

    def begun(delivery_id: int) -> bytes:
        return Transfer(handle=0, delivery_id=delivery_id, delivery_tag=b"t", more=True).encode()

    def gather(size: int) -> None:
        large.session.write_transfer(begun(0), b"")
        for start in range(0, size, 400):
            large.session.write_transfer(Transfer(handle=0, more=True).encode(), b"x" * min(400, size - start))
        pair.pump()

    gather(allowed)
    small.session.write_transfer(begun(0), b"x" * 400)
    small.session.write_transfer(Transfer(handle=0).encode(), b"x" * 400)
    pair.pump()
    (beside,) = pair.take("server", Delivered)
    assert len(beside.payload) == 800
    large.session.write_transfer(Transfer(handle=0).encode(), b"")
    pair.pump()
    (whole,) = pair.take("server", Delivered)
    assert (len(whole.payload), pair.server.gathered_bytes) == (allowed, 0)
    # beyond that the connection ends, as ever
    gather(allowed)
    for _ in range(3):
        small.session.write_transfer(begun(1), b"x" * 400)
    pair.pump()
    (closed,) = pair.take("server", Closed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"


# -- a name that is used twice


def on(channel: int, sent: bytes) -> bytes:
    """Return a frame of session 0 as one of another session."""
    return sent[:6] + struct.pack(">H", channel) + sent[8:]


class Peer(RawClient):
    """A client on sessions 0 and 1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: AmqpConnection) -> None:
        super().__init__(reader, writer)
        self.served = served

    async def attached(self, handle: int, channel: int = 0) -> Attach:
        """Return the answer to an attach."""
        found = await self.hear(Attach, Detach)
        assert found[0] == channel and isinstance(found[1], Attach) and found[1].handle == handle, found
        return found[1]

    async def stolen(self, handle: int, channel: int = 0) -> None:
        """Wait for the end of a link whose name was used again."""
        found = await self.hear(Attach, Detach)
        assert found[0] == channel and isinstance(found[1], Detach) and found[1].handle == handle, found
        assert found[1].closed and found[1].error.condition == "amqp:link:stolen", found
        assert "'twice'" in found[1].error.description
        self.say(frame(Detach(handle=handle, closed=True).encode(), channel=channel))


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    served = broker.namespaces["contoso"]
    target = Target(served.connection_string, str(served.ca_file))
    before = set(served.connections)
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    with contextlib.closing(writer):
        writer.write(let_in(target) + begun(1))
        assert await soon(lambda: len(set(served.connections) - before) == 1)
        (connection,) = set(served.connections) - before
        peer = Peer(reader, writer, connection)
        await peer.attached(0)
        await peer.attached(1)
        yield peer
    assert await soon(lambda: connection not in served.connections)
    assert not connection._named and not connection._served


@pytest.fixture
def tour(broker: Broker) -> Sdk:
    return Sdk(True, broker.namespaces["contoso"])


@pytest.mark.parametrize("channel", [0, 1], ids=["same-session", "other-session"])
async def test_a_receiver_whose_name_is_used_again_is_stolen(
    broker: Broker, peer: Peer, tour: Sdk, channel: int
) -> None:
    queue = await tour.queue()
    entity = broker.namespaces["contoso"].namespace.resolve(queue).entity  # type: ignore[union-attr]
    peer.say(attach(5, queue, receives=True, name="twice"), credit(5, 10))
    await peer.attached(5)
    peer.say(attach(6, queue, receives=True, name="twice", channel=channel))
    await peer.stolen(5)
    await peer.attached(6, channel)
    assert (entity.links, entity.receivers) == (1, 1)
    peer.say(attach(4, queue, receives=False), transfer(4, 1, make(b"x")), on(channel, credit(6, 1)))
    found, message = await peer.hear(Transfer)
    assert (found, message.handle) == (channel, 6)
    assert len(peer.served._named) == len(peer.served._served) == 4


@pytest.mark.parametrize("channel", [0, 1], ids=["same-session", "other-session"])
async def test_a_sender_whose_name_is_used_again_is_stolen(broker: Broker, peer: Peer, tour: Sdk, channel: int) -> None:
    queue = await tour.queue()
    entity = broker.namespaces["contoso"].namespace.resolve(queue).entity  # type: ignore[union-attr]
    peer.say(attach(5, queue, receives=False, name="twice"), transfer(5, 1, make(b"x")))
    await peer.attached(5)
    await peer.hear(Disposition)
    peer.say(attach(6, queue, receives=False, name="twice", channel=channel))
    await peer.stolen(5)
    await peer.attached(6, channel)
    peer.say(on(channel, transfer(6, 2, make(b"y"))))
    found, _ = await peer.hear(Disposition)
    assert found == channel
    assert entity.links == 1 and entity.active_count == 2


async def test_a_stolen_receiver_leaves_its_session_to_the_next_one(peer: Peer, tour: Sdk) -> None:
    queue = await tour.queue(requires_session=True)
    wanted = {Symbol("com.microsoft:session-filter"): "red"}

    def receiver(handle: int) -> bytes:
        link = Attach(name="twice", handle=handle, role=True, source=Source(address=queue, filter=wanted), target=None)
        return frame(link.encode())

    peer.say(attach(4, queue, receives=False), transfer(4, 1, make_special(b"x", session_id="red")))
    await peer.attached(4)
    peer.say(receiver(5))
    await peer.attached(5)
    peer.say(receiver(6))
    await peer.stolen(5)
    assert (await peer.attached(6)).source.filter == wanted
    peer.say(credit(6, 1))
    assert (await peer.hear(Transfer))[1].handle == 6


async def test_a_receiver_that_waits_for_a_session_can_be_stolen_too(broker: Broker, peer: Peer, tour: Sdk) -> None:
    queue = await tour.queue(requires_session=True)
    entity = broker.namespaces["contoso"].namespace.resolve(queue).entity  # type: ignore[union-attr]
    wanted = {Symbol("com.microsoft:session-filter"): None}
    for handle in (5, 6):
        source = Source(address=queue, filter=wanted)
        peer.say(frame(Attach(name="twice", handle=handle, role=True, source=source, target=None).encode()))
    assert (await peer.attached(5)).source is None  # refused: it is answered so that it can be detached
    await peer.stolen(5)
    assert entity.receivers == 1


@pytest.mark.parametrize(
    ("address", "receives", "channel", "is_stolen"),
    [
        ("$cbs", True, 0, True),
        ("$cbs", True, 1, False),
        ("$cbs", False, 0, False),
        ("{queue}/$management", True, 0, True),
        ("{queue}/$management", True, 1, False),
    ],
    ids=["cbs", "cbs-other-session", "cbs-other-direction", "management", "management-other-session"],
)
async def test_links_of_a_request_node_are_stolen_within_their_session_alone(
    peer: Peer, tour: Sdk, address: str, receives: bool, channel: int, is_stolen: bool
) -> None:
    """uamqp names them after their node, on each session of a connection."""
    address = address.format(queue=await tour.queue())
    peer.say(attach(5, address, receives=True, name="twice"))
    await peer.attached(5)
    peer.say(attach(6, address, receives=receives, name="twice", channel=channel))
    if is_stolen:
        await peer.stolen(5)
    await peer.attached(6, channel)
    assert len(peer.served._named) == len(peer.served._served) == 4 - is_stolen


async def test_a_name_is_free_after_a_detach_that_nobody_has_answered_yet(peer: Peer, tour: Sdk) -> None:
    queue = await tour.queue()
    peer.say(attach(5, queue, receives=True, name="twice"))
    await peer.attached(5)
    peer.say(frame(Detach(handle=5, closed=True).encode()), attach(6, queue, receives=True, name="twice"))
    _, detach = await peer.hear(Attach, Detach)
    assert isinstance(detach, Detach) and detach.error is None
    await peer.attached(6)
