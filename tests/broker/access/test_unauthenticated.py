"""Whoever has shown no token can take little: per connection, all together, and for a minute."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.performative_types import Attach, Close, SaslInit, Source
from pairbus.amqp.performative_types import Target as TargetNode
from pairbus.amqp.performatives import decode_performative
from pairbus.amqp.types import Symbol
from pairbus.broker import Broker, serve
from pairbus.broker.access import unauthenticated
from pairbus.broker.access.unauthenticated import (
    CONNECTION_BYTES,
    EACH_BYTES_MAX,
    TLS_BYTES,
    TLS_READ_BYTES,
    TOTAL_BYTES_MAX,
    UnauthenticatedQuota,
)
from pairbus.broker.slices import finish
from pairbus.testing import ManualClock
from tests.broker.attack_words import SASL_HEADER, Target, attach, begun, frame, let_in, opened, put_token, transfer
from tests.broker.attacks import client_hello, connected
from tests.broker.broker_process import BrokerProcess, wait_until
from tests.waiting import soon

LIMIT = "amqp:resource-limit-exceeded"


# -- the budget


def test_what_each_holds_is_counted_once_and_given_back() -> None:
    budget = UnauthenticatedQuota()
    assert budget.hold("a", False, 100) is None
    assert budget.hold("a", False, 40) is None
    assert budget.hold("b", True, 1) is None
    assert (len(budget), budget.held_bytes) == (2, CONNECTION_BYTES + 40 + TLS_BYTES + 1)
    for who in ("a", "b", "b", "never came"):
        budget.release(who)
    assert (len(budget), budget.held_bytes) == (0, 0)


def test_one_that_holds_too_much_is_refused_and_so_is_the_newest_of_too_many() -> None:
    budget = UnauthenticatedQuota()
    refusal = budget.hold("a", False, EACH_BYTES_MAX + 1)
    assert refusal is not None and refusal.condition == LIMIT and str(EACH_BYTES_MAX) in refusal.description
    count = 0
    while (refusal := budget.hold(count, False, EACH_BYTES_MAX)) is None:
        count += 1
    assert budget.held_bytes <= TOTAL_BYTES_MAX == 50_000_000
    assert count > 300, "clients that come at the same time have room"
    assert refusal.condition == LIMIT
    # those that are there may go on, and who leaves makes room
    assert budget.hold(0, False, 0) is None
    assert budget.hold(count, False, EACH_BYTES_MAX - 1) is None


# -- on the wire


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, ManualClock]]:
    clock = ManualClock()
    async with serve("contoso", data=tmp_path, clock=clock) as broker:
        yield broker, clock


class Peer:
    """Writes raw frames, and looks for the broker's reason to hang up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def until_closed(self) -> str:
        """Fails if the broker doesn't hang up, or says nothing."""
        async with asyncio.timeout(10):
            said = await self._reader.read(-1)
        at = 0
        while at < len(said):
            if said.startswith(b"AMQP", at):
                at += 8
                continue
            end = at + int.from_bytes(said[at : at + 4], "big")
            performative = decode_performative(said, at + 8)[0] if end > at + 8 else None
            if isinstance(performative, Close) and performative.error is not None:
                return f"{performative.error.condition}: {performative.error.description}"
            at = end
        raise AssertionError("the broker gave no reason")


@contextlib.asynccontextmanager
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.namespaces["contoso"].port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def target_of(broker: Broker) -> Target:
    host = broker.namespaces["contoso"]
    return Target(host.connection_string, host.ca_file)


async def test_before_a_token_there_are_few_links(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    async with peer(broker) as client:
        links = [attach(handle, "$cbs", receives=False) for handle in range(unauthenticated.LINKS_MAX + 1)]
        client.writer.write(opened() + begun() + b"".join(links))
        assert (await client.until_closed()).startswith(f"{LIMIT}: A connection that has put no token may have 8")
    await soon(lambda: not broker.unauthenticated.held_bytes)


async def test_before_a_token_there_are_few_sessions(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    async with peer(broker) as client:
        client.writer.write(opened() + b"".join(map(begun, range(unauthenticated.SESSIONS_MAX + 1))))
        assert "4 sessions" in await client.until_closed()


async def test_with_a_token_there_may_be_many_links_in_one_breath(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    host = broker.namespaces["contoso"]
    async with connected(target_of(broker), random.Random(1)) as wire:
        links = [attach(handle, "$cbs", receives=False) for handle in range(2, 100)]
        await wire.send(let_in(target_of(broker)) + b"".join(links))
        await soon(lambda: any(len(each.links()) == 100 for each in host.connections))
        assert broker.unauthenticated.held_bytes == 0


@contextlib.asynccontextmanager
async def saying(broker: Broker, count: int, said: bytes) -> AsyncIterator[list[socket.socket]]:
    """So many connections, each of which says that."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", broker.namespaces["contoso"].port))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(sock, said)
        yield sockets


async def heard(sock: socket.socket) -> bytes:
    """What comes first; nothing when the broker hangs up."""
    try:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(sock, 1000)
    except ConnectionError:
        return b""


def hello_of(size: int) -> bytes:
    """A ClientHello of that size, in as many records as it takes."""
    message = b"\x01" + size.to_bytes(3, "big") + b"\x03\x03" + bytes(size - 2)
    records = (message[at : at + 16_384] for at in range(0, len(message), 16_384))
    return b"".join(b"\x16\x03\x01" + len(record).to_bytes(2, "big") + record for record in records)


async def test_an_unfinished_handshake_is_counted_from_the_first_byte(served: tuple[Broker, ManualClock]) -> None:
    """110 KB of a ClientHello without its end, 2,000 times, took 800 MB, and none of it counted."""
    broker, _ = served
    quota = broker.unauthenticated
    async with saying(broker, 40, b""):
        await soon(lambda: quota.held_bytes == 40 * CONNECTION_BYTES)
    async with saying(broker, 40, hello_of(110_000)[:-10]) as sockets:
        assert {await heard(sock) for sock in sockets} == {b""}, "no client needs so much"
        assert quota.held_bytes == 0
    async with saying(broker, 40, hello_of(16_000)[:-10]):
        # the system has what there is: OpenSSL hasn't seen any of it
        await soon(lambda: quota.held_bytes == 40 * CONNECTION_BYTES)
    async with saying(broker, 40, client_hello()) as sockets:
        assert {(await heard(sock))[:1] for sock in sockets} == {b"\x16"}, "TLS answers"
        assert len(quota) == 40 and quota.held_bytes >= 40 * TLS_BYTES
    await soon(lambda: not quota.held_bytes)


async def test_handshakes_share_what_all_strangers_may_hold(
    served: tuple[Broker, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = served
    one = TLS_BYTES
    monkeypatch.setattr(unauthenticated, "TOTAL_BYTES_MAX", 3 * one + CONNECTION_BYTES)
    async with saying(broker, 3, client_hello()) as sockets:
        assert {(await heard(sock))[:1] for sock in sockets} == {b"\x16"}
        async with saying(broker, 1, client_hello()) as (newest,):
            assert await heard(newest) == b""
        assert broker.unauthenticated.held_bytes == 3 * one
    await soon(lambda: not broker.unauthenticated.held_bytes)


async def test_what_tls_keeps_after_a_large_read_is_counted(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    async with connected(target_of(broker), random.Random(1), tls=True) as wire:
        await wire.send(opened() + frame(b"") * 5_000)  # 40 KB of heartbeats, of which the engine keeps nothing
        await soon(lambda: broker.unauthenticated.held_bytes > TLS_BYTES + 2 * TLS_READ_BYTES)


async def test_over_http_headers_answers_and_idle_connections_are_counted(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    quota = broker.unauthenticated
    head = b"PUT /q HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n"
    async with saying(broker, 1, head + b"a: b\r\n" * 100 + b"\r\n"):
        await soon(lambda: quota.held_bytes > CONNECTION_BYTES + 100 * 500)
    async with saying(broker, 1, head + b"a: b\r\n" * 1000 + b"\r\n") as (sock,):
        assert b" 431 " in await heard(sock)
        assert quota.held_bytes == CONNECTION_BYTES
    async with saying(broker, 1, b"GET /q HTTP/1.1\r\nHost: h\r\n\r\n") as (sock,):
        assert b" 401 " in await heard(sock)
        assert quota.held_bytes == CONNECTION_BYTES, "whoever was refused is a stranger still"
    await soon(lambda: not quota.held_bytes)


@pytest.mark.parametrize("what", ["name", "address", "other address", "properties"])
async def test_what_is_long_is_refused_or_not_kept(served: tuple[Broker, ManualClock], what: str) -> None:
    broker, _ = served
    host = broker.namespaces["contoso"]
    long = "x" * 50_000
    asked = Attach(
        name=long if what == "name" else "n",
        handle=0,
        role=False,
        source=Source(address=long if what == "other address" else "here"),
        target=TargetNode(address=f"$cbs{long}" if what == "address" else "$cbs"),
        initial_delivery_count=0,
        properties={Symbol("p"): long} if what == "properties" else None,
    )
    async with peer(broker) as client:
        client.writer.write(opened() + begun() + frame(asked.encode()))
        await soon(lambda: any(each._engine.link_count for each in host.connections))
        (connection,) = host.connections
        (link,) = connection._engine.sessions[0].links
        await soon(lambda: link.answered)
        assert link.detached == (what != "properties")
        assert len(link.name) < 100 and link.source is link.target is link.properties is None


async def test_half_a_frame_and_answers_that_nobody_reads_are_counted(served: tuple[Broker, ManualClock]) -> None:
    broker, _ = served
    async with peer(broker) as client:
        client.writer.write(opened() + (60_000).to_bytes(4, "big") + b"\x02\x00\x00\x00" + b"x" * 50_000)
        await soon(lambda: broker.unauthenticated.held_bytes > 50_000)
    await soon(lambda: broker.unauthenticated.held_bytes == 0)
    async with peer(broker) as client:
        # answers to requests wait for credit that never comes
        links = attach(0, "$cbs", receives=False) + attach(1, "$cbs", receives=True)
        client.writer.write(opened() + begun() + links)
        for number in range(50):
            client.writer.write(transfer(0, number, put_token("no token"), settled=True))
        await soon(lambda: broker.unauthenticated.held_bytes > CONNECTION_BYTES)


async def test_the_newest_is_refused_when_all_together_hold_too_much(
    served: tuple[Broker, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated, "TOTAL_BYTES_MAX", 3 * CONNECTION_BYTES + 1000)
    broker, _ = served
    host = broker.namespaces["contoso"]
    async with contextlib.AsyncExitStack() as stack:
        first = [await stack.enter_async_context(peer(broker)) for _ in range(3)]
        for client in first:
            client.writer.write(opened())
        await soon(lambda: len(broker.unauthenticated) == 3)
        newest = await stack.enter_async_context(peer(broker))
        newest.writer.write(opened())
        with contextlib.suppress(AssertionError, ConnectionError):  # it hangs up before it has heard anything
            await newest.until_closed()
        assert len(broker.unauthenticated) == 3
        # who shows a token makes room for the next
        first[0].writer.write(let_in(target_of(broker))[len(opened()) :])
        await soon(lambda: len(broker.unauthenticated) == 2)
        another = await stack.enter_async_context(peer(broker))
        another.writer.write(opened())
        await soon(lambda: len(broker.unauthenticated) == 3)
        assert len(host.connections) == 3
    await soon(lambda: broker.unauthenticated.held_bytes == 0)


async def test_who_has_shown_no_token_after_a_minute_is_cut_off_heartbeats_or_not(
    served: tuple[Broker, ManualClock],
) -> None:
    broker, clock = served
    host = broker.namespaces["contoso"]
    parsed = target_of(broker).parsed
    assert parsed.key_name is not None and parsed.key is not None
    async with peer(broker) as stranger, peer(broker) as known, peer(broker) as plain:
        stranger.writer.write(opened() + begun() + attach(0, "$cbs", receives=False))
        known.writer.write(let_in(target_of(broker)))
        login = SaslInit(mechanism=Symbol("PLAIN"), initial_response=f"\0{parsed.key_name}\0{parsed.key}".encode())
        plain.writer.write(SASL_HEADER + frame(login.encode(), kind=1))
        await soon(lambda: len(host.connections) == 3 and len(broker.unauthenticated) == 1)
        for step in (-3600, 3600):
            clock.step(step)
            host._tick()  # as every second: the clock was set, and as much of the minute is left
            assert len(host.connections) == 3
        clock.advance(59)
        host._tick()
        assert len(host.connections) == 3
        stranger.writer.write(frame(b""))
        clock.advance(1)
        assert "No token was put" in await stranger.until_closed()
        await soon(lambda: len(host.connections) == 2)
        assert broker.unauthenticated.held_bytes == 0
        assert "pairbus_tokenless_bytes 0" in finish(broker.metrics.exposition("contoso"))


@pytest.mark.slow
async def test_strangers_take_less_than_their_budget_and_give_it_back(tmp_path: Path) -> None:
    """The attack that took gigabytes: rounds of connections with thousands of links with long names, kept open."""
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    try:
        target = Target(broker.connection_string, broker.ca_file)
        before = broker.rss_bytes()
        most = 0
        for round in range(4):
            async with contextlib.AsyncExitStack() as stack:
                for number in range(150):
                    rng = random.Random(f"{round} {number}")
                    wire = await stack.enter_async_context(connected(target, rng))
                    name = f"{number}" + "n" * 60_000
                    links: list[Any] = [
                        attach(handle, "$cbs", receives=False, name=f"{handle}{name}") for handle in range(20)
                    ]
                    half = (60_000).to_bytes(4, "big") + b"\x02\x00\x00\x00" + b"x" * 50_000
                    await wire.send(opened() + begun() + (half if number % 2 else b"".join(links)))
                most = max(most, broker.rss_bytes() - before)
        assert most < 50_000_000 + 20_000_000, f"{most >> 20} MB"
        assert wait_until(lambda: broker.rss_bytes() - before < 25_000_000), f"{broker.rss_bytes() - before >> 20} MB"
        assert "Traceback" not in broker.said()
    finally:
        broker.kill()
