from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from pairbus.amqp.connection import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from pairbus.amqp.performative_types import Error
from pairbus.billing import cause_in
from pairbus.broker.net.certificates import Certificates, ensure
from pairbus.wire import (
    ClientClosed,
    Login,
    QuotaExceeded,
    TimedOut,
    Unauthorized,
    Unreachable,
    WireClient,
    links,
    transport,
)
from pairbus.wire import receiver as receiver_module
from tests.waiting import soon

from .peer import Peer, message


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure(tmp_path_factory.mktemp("certificates"), ["localhost", "127.0.0.1"], time.time())


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[int]:
    """Accepts, answers each read with the next of these bytes, then says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            if not await reader.read(65536):
                break
            writer.write(answer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)


def no_pause() -> Iterator[float]:
    return iter(())


async def test_it_connects_when_it_is_first_used(peer: Peer) -> None:
    client = WireClient("127.0.0.1", peer.port, tls=False)
    assert repr(client) == f"<WireClient 127.0.0.1:{peer.port} plain: not connected, 0 links>"
    assert peer.connections == 0
    await client.connect()
    await client.connect()
    assert peer.connections == 1
    assert client.is_connected
    await client.close()
    assert repr(client) == f"<WireClient 127.0.0.1:{peer.port} plain: closed, 0 links>"
    await soon(lambda: not peer.sessions)


async def test_tls(certificates: Certificates) -> None:
    async with await Peer().start(context=certificates.server_context()) as peer:
        async with WireClient("localhost", peer.port, ca_file=certificates.ca_file) as client:
            sender = await client.sender("orders")
            await sender.send_batch([message("x" * 100_000)] * 2)
            assert len(peer.queue("orders")) == 2
        context = ssl.create_default_context(cafile=str(certificates.ca_file))
        async with WireClient("127.0.0.1", peer.port, ssl_context=context) as client:
            await client.sender("orders")


async def test_an_untrusted_certificate(certificates: Certificates) -> None:
    async with (
        await Peer().start(context=certificates.server_context()) as peer,
        WireClient("localhost", peer.port) as client,
    ):
        with pytest.raises(Unreachable, match=r"certificate is not trusted.*ca_file"):
            await client.connect()


async def test_tls_with_a_peer_that_speaks_none() -> None:
    async with scripted(AMQP_HEADER) as port, WireClient("127.0.0.1", port) as client:
        with pytest.raises(Unreachable, match="TLS failed"):
            await client.connect()


@pytest.mark.parametrize(
    "answers",
    [(), (SASL_HEADER[:3],), (SASL_HEADER,)],
    ids=["accepts and says nothing", "half a header", "a header and nothing more"],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_a_peer_that_says_too_little(answers: tuple[bytes, ...], tls: bool) -> None:
    async with (
        scripted(*(() if tls else answers)) as port,
        WireClient("127.0.0.1", port, tls=tls, connect_timeout=0.1) as client,
    ):
        started = time.monotonic()
        with pytest.raises(TimedOut) as caught:
            await client.sender("orders")
        assert time.monotonic() - started < 5.0
        assert not caught.value.outcome_unknown


async def test_a_caller_with_less_time_than_the_attempt() -> None:
    async with scripted() as port, WireClient("127.0.0.1", port, tls=False) as client:
        with pytest.raises(TimedOut, match="opening a sender for orders"):
            await client.sender("orders", open_timeout=0.05)


async def test_a_peer_that_speaks_garbage() -> None:
    async with (
        scripted(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        WireClient("127.0.0.1", port, tls=False) as client,
    ):
        with pytest.raises(Unreachable, match="expected the protocol header"):
            await client.connect()


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with WireClient("127.0.0.1", port, tls=False) as client:
            with pytest.raises(Unreachable) as caught:
                await client.sender("orders")
            assert not caught.value.outcome_unknown
    async with WireClient("no-such-host.invalid", tls=False) as client:
        with pytest.raises(Unreachable, match=r"no-such-host\.invalid:5672"):
            await client.connect()


async def test_sasl_plain() -> None:
    async with await Peer(check_plain=lambda user, password: (user, password) == ("guest", "s3cr3t")).start() as peer:
        async with WireClient("127.0.0.1", peer.port, tls=False, credential=Login("guest", "s3cr3t")) as client:
            await client.sender("orders")
        assert peer.logins == [("PLAIN", "guest")]
        assert peer.tokens == []
        async with WireClient("127.0.0.1", peer.port, tls=False, credential=Login("guest", "wr0ng")) as client:
            with pytest.raises(Unauthorized) as caught:
                await client.connect()
            assert "wr0ng" not in str(caught.value) + repr(client)


async def test_after_a_failure_the_next_attempt_waits(peer: Peer) -> None:
    port = peer.port
    await peer.stop()
    asked: list[float] = []

    def backoff() -> Iterator[float]:
        for delay in (0.1, 60.0):
            asked.append(delay)
            yield delay

    async with WireClient("127.0.0.1", port, tls=False, backoff=backoff) as client:
        with pytest.raises(Unreachable):
            await client.connect()
        started = time.monotonic()
        with pytest.raises(Unreachable):
            await client.connect()
        assert 0.09 <= time.monotonic() - started < 5.0
        with pytest.raises(Unreachable, match="the next attempt was due in"):
            await client.connect(timeout=0.05)
        assert asked == [0.1, 60.0]


async def test_success_starts_the_back_off_anew(peer: Peer) -> None:
    port, begun = peer.port, 0

    def backoff() -> Iterator[float]:
        nonlocal begun
        begun += 1
        while True:
            yield 0.0

    async with WireClient("127.0.0.1", port, tls=False, backoff=backoff) as client:
        for _ in range(2):
            await peer.stop()
            await soon(lambda: not client.is_connected)
            with pytest.raises(Unreachable):
                await client.connect()
            with pytest.raises(Unreachable):
                await client.connect()
            await peer.start(port)
            await client.connect()
    assert begun == 2


async def test_links_come_back_by_themselves(peer: Peer, client: WireClient) -> None:
    port = peer.port
    sender = await client.sender("orders")
    receiver = await client.receiver("orders")
    await peer.stop()
    await soon(lambda: not client.is_connected)
    with pytest.raises(Unreachable):
        await sender.send(message())
    with pytest.raises(Unreachable):
        await receiver.receive(1, 0.0)
    await peer.start(port)
    await sender.send(message("back"))
    assert [received.payload for received in await receiver.receive(1, 5.0)] == [message("back")]


async def test_many_callers_share_one_attempt(peer: Peer, client: WireClient) -> None:
    senders = await asyncio.gather(*(client.sender(f"queue{number}") for number in range(50)))
    assert peer.connections == 1
    peer.drop()
    await soon(lambda: not client.is_connected)
    await asyncio.gather(*(sender.send(message()) for sender in senders))
    assert peer.connections == 2


async def test_the_peer_closes_with_a_reason(peer: Peer, client: WireClient) -> None:
    peer.confirm = False
    sender = await client.sender("orders")
    pending = sender.send_nowait(message())
    await soon(lambda: len(peer.queue("orders")) == 1)
    peer.close(Error("amqp:connection:forced", "going down", None))
    with pytest.raises(Unreachable, match="going down") as caught:
        await pending
    assert caught.value.condition == "amqp:connection:forced"
    assert caught.value.outcome_unknown


async def test_a_dead_peer_is_found_by_its_silence(peer: Peer) -> None:
    async with WireClient("127.0.0.1", peer.port, tls=False, idle_timeout=0.1, backoff=no_pause) as client:
        receiver = await client.receiver("orders")
        peer.silent = True
        with pytest.raises(Unreachable, match="nothing was received"):
            await receiver.receive(1, 60.0)


async def test_keep_alives_go_out() -> None:
    async with await Peer(idle_timeout=0.3).start() as peer, WireClient("127.0.0.1", peer.port, tls=False) as client:
        await client.connect()
        (served,) = peer.sessions
        read: list[bytes] = []
        served.data_received = read.append  # type: ignore[method-assign,assignment]
        await soon(lambda: EMPTY_FRAME in read)
        del served.data_received


async def test_a_closed_client_is_closed(peer: Peer, client: WireClient) -> None:
    sender = await client.sender("orders")
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await sender.send(message())
    for call in (client.connect(), client.sender("orders"), client.peek("orders")):
        with pytest.raises(ClientClosed):
            await call


async def test_closing_in_mid_opening() -> None:
    async with scripted() as port:
        client = WireClient("127.0.0.1", port, tls=False)
        opening = asyncio.ensure_future(client.sender("orders"))
        await asyncio.sleep(0.02)
        await client.close()
        with pytest.raises(ClientClosed):
            await opening


async def test_closing_with_a_peer_that_does_not_answer(
    peer: Peer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((transport, "CLOSE_S_MAX"), (links, "DETACH_S_MAX"), (receiver_module, "DETACH_S_MAX")):
        monkeypatch.setattr(module, name, 0.05)
    await client.sender("orders")
    await client.receiver("orders", credit=5)
    peer.silent = True
    started = time.monotonic()
    await client.close()
    assert time.monotonic() - started < 5.0


async def test_a_failed_opening_leaves_nothing_behind(peer: Peer, client: WireClient) -> None:
    await client.connect()
    peer.silent = True
    with pytest.raises(TimedOut):
        await client.sender("orders", open_timeout=0.05)
    assert client._links == set()
    peer.silent = False
    await client.sender("orders")
    await soon(
        lambda: sum(len(session.links) for served in peer.sessions for session in served.connection.sessions) == 1
    )


async def test_more_links_than_the_peer_has_channels(peer: Peer, client: WireClient) -> None:
    peer.channel_max = 2
    senders = [await client.sender("orders") for _ in range(3)]
    with pytest.raises(QuotaExceeded, match="allows 3 links on a connection"):
        await client.sender("orders")
    await senders[0].close()
    await soon(lambda: len(client._transport.connection.sessions) == 2)  # type: ignore[union-attr]
    await client.sender("orders")


async def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="for TLS, which is off"):
        WireClient("h", tls=False, ca_file="ca.pem")
    with pytest.raises(ValueError, match="exclude each other"):
        WireClient("h", ca_file="ca.pem", ssl_context=ssl.create_default_context())
    with pytest.raises(ValueError, match="time-outs are above 0"):
        WireClient("h", timeout=0)
    async with WireClient("127.0.0.1", 1, ca_file=Path("/nonexistent/ca.pem")) as client:
        with pytest.raises(Unreachable, match=r"ca_file '/nonexistent/ca\.pem': No such file"):
            await client.connect()


async def test_a_child_process_gets_a_clear_error(
    peer: Peer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.connect()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ClientClosed, match="another process"):
        await client.connect()


def test_on_uvloop(certificates: Certificates) -> None:
    async def talk() -> None:
        async with (
            await Peer().start(context=certificates.server_context()) as peer,
            WireClient("localhost", peer.port, ca_file=certificates.ca_file) as client,
        ):
            sender = await client.sender("orders")
            assert await sender.send_many([message(str(number)) for number in range(3000)]) == [None] * 3000
            receiver = await client.receiver("orders", credit=100)
            count = 0
            while count < 3000:
                messages = await receiver.receive(100, 5.0)
                count += len(messages)
                await receiver.complete(messages)

    uvloop.run(talk())


async def test_it_says_for_whose_sake_it_works_p51(peer: Peer) -> None:
    async with WireClient("127.0.0.1", peer.port, tls=False) as app:
        await app.connect()
        async with WireClient("127.0.0.1", peer.port, tls=False, cause="syphon") as syphon:
            await syphon.connect()
            opened = [each.connection.remote_open for each in peer.sessions]
            said = [cause_in(each.properties) for each in opened if each is not None]
    assert sorted(said) == ["app", "syphon"]


def test_a_cause_that_is_none() -> None:
    with pytest.raises(ValueError, match="'weather' is not a cause; right are app, ping, syphon, move, spark, manage"):
        WireClient("127.0.0.1", cause="weather")
