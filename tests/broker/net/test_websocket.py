"""AMQP's bytes in WebSocket frames: who may upgrade, what frames mean, and how a connection ends."""

import asyncio
import contextlib
import gc
import itertools
import ssl
import struct
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from pairbus.broker.http.server import HttpProtocol, Request, Response, Switch
from pairbus.broker.net import websocket
from pairbus.broker.net.listener import Listener
from tests.waiting import soon

from .loops import on_both_loops
from .streams import stream

pytestmark = pytest.mark.timeout(60)

HEADERS = {
    "host": "h",
    "connection": "keep-alive, Upgrade",
    "upgrade": "WebSocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol": "chat, AMQPWSB10",
}
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # of the key above, in RFC 6455 1.3
UPGRADE = (
    "GET /$servicebus/websocket HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
).encode() + b"\r\n"
MASK = b"\x01\x02\x03\x04"


def frame(opcode, payload=b"", *, fin=True, mask=MASK, reserved=0, length=None):
    """As a client sends it, unless told to do it wrongly."""
    length = len(payload) if length is None else length
    head = bytes((fin << 7 | reserved << 4 | opcode,))
    if length < 126:
        head += bytes((0x80 | length if mask else length,))
    elif length < 65536:
        head += struct.pack("!BH", 0xFE if mask else 126, length)
    else:
        head += struct.pack("!BQ", 0xFF if mask else 127, length)
    if mask:
        head += mask
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return head + payload


BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG = 2, 1, 0, 8, 9, 10


class Echo(asyncio.Protocol):
    """What it hears it says again, except on command; tells of everything that happens to it."""

    def __init__(self, made):
        self.heard = b""
        self.calls = 0
        self.writable = True
        self.lost = asyncio.Event()
        made.append(self)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        assert isinstance(data, bytes) and data
        self.calls += 1
        self.heard += data
        if data == b"close":
            self.transport.close()
        elif data == b"abort":
            self.transport.abort()
        else:
            self.transport.write(data)

    def pause_writing(self):
        self.writable = False

    def resume_writing(self):
        self.writable = True

    def connection_lost(self, exc):
        assert not self.lost.is_set(), "told twice"
        self.lost.set()


@contextlib.asynccontextmanager
async def listening(context=None):
    made = []

    async def handler(request):
        if websocket.is_websocket(request.target):
            answer = websocket.answer(request, lambda: Echo(made))
            if isinstance(answer, Switch):
                return Switch(answer.headers, lambda: quick(answer.protocol()))
            return answer
        return Response(200, {}, b"plain")

    def quick(protocol):
        protocol._linger_s = 0.2
        return protocol

    listener = Listener("127.0.0.1", [0], asyncio.Protocol, lambda: HttpProtocol(handler), context)
    listener.made = made  # type: ignore[attr-defined]  # for the tests alone
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        assert all(echo.lost.is_set() for echo in made)


class Client:
    """A raw socket, and wsproto's own reading of what comes back."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.frames = Connection(ConnectionType.CLIENT)
        self.events = []

    def send(self, *parts):
        self.writer.write(b"".join(parts))

    async def upgrade(self, early=b""):
        self.send(UPGRADE + early)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 101 ")
        return head

    async def event(self):
        while not self.events:
            data = await self.reader.read(65536)
            if not data:
                return None
            self.frames.receive_data(data)
            self.events += self.frames.events()
        return self.events.pop(0)

    async def bytes(self, count):
        got = b""
        while len(got) < count:
            event = await self.event()
            assert isinstance(event, BytesMessage), event
            got += event.data
        return got

    async def ended(self):
        """What is left of the events, until the other side has closed."""
        found = []
        with contextlib.suppress(ConnectionError):
            while (event := await self.event()) is not None:
                found.append(event)
        return found


@contextlib.asynccontextmanager
async def connected(listener, certs=None):
    tls = {}
    if certs is not None:
        tls = {"ssl": ssl.create_default_context(cafile=str(certs.ca_file)), "server_hostname": "localhost"}
    async with stream(listener.port, **tls) as (reader, writer):
        yield Client(reader, writer)


@contextlib.asynccontextmanager
async def upgraded(early=b""):
    """A client whose connection is a WebSocket, and the protocol that serves it."""
    async with listening() as listener, connected(listener) as client:
        await client.upgrade(early)
        (echo,) = listener.made
        yield client, echo


# -- who may upgrade


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/$servicebus/websocket", True),
        ("/$servicebus/websocket/", True),
        ("/$ServiceBus/WebSocket?x=1", True),
        ("/%24servicebus/websocket", True),
        ("/", False),
        ("/servicebus/websocket", False),
        ("/$servicebus/websocket/more", False),
        ("/$servicebus", False),
    ],
)
def test_the_place(target, expected):
    assert websocket.is_websocket(target) is expected


def ask(method="GET", version="1.1", **changes):
    headers = {name: value for name, value in (HEADERS | changes).items() if value is not None}
    return websocket.answer(Request(method, websocket.PATH, headers, http_version=version), lambda: Echo([]))


def test_the_upgrade_is_granted():
    answer = ask()
    assert isinstance(answer, Switch)
    assert answer.headers == {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-accept": ACCEPT,
        "sec-websocket-protocol": "AMQPWSB10",
    }


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [("amqp", "amqp"), ("chat, amqp", "amqp"), ("amqp,AMQPWSB10", "amqp"), ("AMQPWSB10, amqp", "AMQPWSB10")],
)
def test_the_first_sub_protocol_that_is_amqp_is_chosen(offered, chosen):
    answer = ask(**{"sec-websocket-protocol": offered})
    assert isinstance(answer, Switch)
    assert answer.headers["sec-websocket-protocol"] == chosen


@pytest.mark.parametrize(
    ("options", "status", "header", "text"),
    [
        ({"method": "PUT"}, 405, ("allow", "GET"), "GET"),
        ({"connection": None}, 426, ("upgrade", "websocket"), "Connection: Upgrade"),
        ({"connection": "close"}, 426, ("upgrade", "websocket"), "Connection: Upgrade"),
        ({"upgrade": "h2c"}, 426, ("upgrade", "websocket"), "Upgrade: websocket"),
        ({"version": "1.0"}, 400, None, "HTTP/1.1"),
        ({"sec-websocket-version": "8"}, 426, ("sec-websocket-version", "13"), "13"),
        ({"sec-websocket-version": None}, 426, ("sec-websocket-version", "13"), "13"),
        ({"sec-websocket-key": None}, 400, None, "Sec-WebSocket-Key"),
        ({"sec-websocket-key": "c2hvcnQ="}, 400, None, "16 bytes"),
        ({"sec-websocket-key": "not base64 at all!!!!!!!"}, 400, None, "base64"),
        ({"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="}, 400, None, "16 bytes"),
        ({"sec-websocket-key": "ключ"}, 400, None, "base64"),
        ({"sec-websocket-protocol": None}, 400, None, "AMQPWSB10"),
        ({"sec-websocket-protocol": "chat"}, 400, None, "AMQPWSB10"),
    ],
)
def test_an_upgrade_that_is_refused_says_what_is_missing(options, status, header, text):
    answer = ask(**options)
    assert isinstance(answer, Response)
    assert answer.status == status and text in answer.body.decode()
    if header:
        assert answer.headers[header[0]] == header[1]


@on_both_loops
async def test_after_a_refusal_http_goes_on():
    async with listening() as listener, connected(listener) as client:
        client.send(UPGRADE.replace(b"AMQPWSB10", b"MQTT"), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b" 400 " in await client.reader.readuntil(b"AMQPWSB10 or amqp\n")
        assert (await client.reader.readuntil(b"plain")).startswith(b"HTTP/1.1 200 ")
        await client.upgrade()
        client.send(frame(BINARY, b"AMQP"))
        assert await client.bytes(4) == b"AMQP"


# -- frames


@pytest.mark.parametrize("tls", [False, True])
@on_both_loops
async def test_bytes_come_and_go(certs, tls):
    context = certs.server_context() if tls else None
    async with listening(context) as listener, connected(listener, certs if tls else None) as client:
        head = await client.upgrade()
        assert ACCEPT in head
        assert "sec-websocket-protocol: AMQPWSB10" in head
        assert "sec-websocket-extensions" not in head.lower()
        (echo,) = listener.made
        for size in (1, 125, 126, 65535, 65536, 300_000):
            client.send(frame(BINARY, b"x" * size))
            assert await client.bytes(size) == b"x" * size
        assert echo.transport.get_extra_info("peername")[0] == "127.0.0.1"
        assert (echo.transport.get_extra_info("sslcontext") is not None) is tls


@on_both_loops
async def test_what_comes_with_the_upgrade_is_not_lost():
    async with upgraded(early=frame(BINARY, b"AMQP") + frame(BINARY, b"\x00\x01\x00\x00")[:3]) as (client, _):
        assert await client.bytes(4) == b"AMQP"
        client.send(frame(BINARY, b"\x00\x01\x00\x00")[3:])
        assert await client.bytes(4) == b"\x00\x01\x00\x00"


@on_both_loops
async def test_fragments_with_a_ping_in_between():
    async with upgraded() as (client, _):
        client.send(
            frame(BINARY, b"ab", fin=False),
            frame(CONTINUATION, b"", fin=False),
            frame(PING, b"still there?"),
            frame(CONTINUATION, b"cd", fin=False),
            frame(PONG, b"nobody asked"),
            frame(CONTINUATION, b"ef"),
            frame(BINARY),
            frame(BINARY, b"g"),
        )
        found = [await client.event()]
        while sum(len(event.data) for event in found if isinstance(event, BytesMessage)) < 7:
            found.append(await client.event())
        assert b"".join(event.data for event in found if isinstance(event, BytesMessage)) == b"abcdefg"
        assert [event.payload for event in found if isinstance(event, Pong)] == [b"still there?"]


@on_both_loops
async def test_a_message_is_handed_on_as_it_comes_however_long_it_says_it_is():
    async with upgraded() as (client, echo):
        endless = frame(BINARY, b"x" * 100_000, length=2**62)
        client.send(endless)
        assert await client.bytes(100_000) == b"x" * 100_000
        await soon(lambda: len(echo.heard) == 100_000)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""

    def write(self, data):
        self.written += data


class Ear(asyncio.Protocol):
    def __init__(self):
        self.heard = b""

    def data_received(self, data):
        self.heard += data


@given(
    messages=st.lists(st.tuples(st.binary(max_size=200), st.booleans(), st.booleans()), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=10),
)
def test_the_stream_is_the_same_wherever_it_is_cut(messages, cuts):
    peer = Connection(ConnectionType.CLIENT)
    stream, pings = b"", 0
    for payload, finished, ping in messages:
        stream += peer.send(BytesMessage(data=payload, message_finished=finished))
        if ping:
            stream += peer.send(Ping(payload=b"p"))
            pings += 1
    ear, wire = Ear(), Wire()
    protocol = websocket.WebSocketProtocol(ear)
    protocol.connection_made(wire)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for start, end in itertools.pairwise(places):
        protocol.data_received(stream[start:end])
    assert ear.heard == b"".join(payload for payload, _, _ in messages)
    peer.receive_data(wire.written)
    assert list(peer.events()) == [Pong(payload=b"p")] * pings


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data):
    async def main():
        protocol = websocket.WebSocketProtocol(Ear())
        wire = Wire()
        wire.is_closing = lambda: True  # type: ignore[method-assign]
        wire.close = wire.abort = lambda: None  # type: ignore[method-assign]
        protocol.connection_made(wire)
        protocol.data_received(data)
        protocol.data_received(data)
        protocol.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(BINARY, b"x", mask=b""), 1002),
        (frame(PING, b"x", mask=b""), 1002),
        (frame(BINARY, b"x", reserved=4), 1002),
        (frame(BINARY, b"x", reserved=1), 1002),
        (frame(3, b"x"), 1002),
        (frame(11, b"x"), 1002),
        (frame(PING, b"x", fin=False), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(BINARY, b"", fin=False) + frame(BINARY, b"x"), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, struct.pack("!H", 1005)), 1002),
        (frame(CLOSE, struct.pack("!H", 999)), 1002),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(TEXT, b"AMQP"), 1003),
        (frame(TEXT, b"\xff\xff"), 1007),
        (b"\x82\xfe\x00\x01" + MASK + b"x", 1002),  # a length in more bytes than it needs
        (b"\x82\xff" + struct.pack("!Q", 1 << 63) + MASK, 1002),
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
        (b"AMQP\x00\x01\x00\x00", 1002),
    ],
)
@on_both_loops
async def test_what_is_no_websocket_is_told_and_ended(bad, code):
    async with listening() as listener, connected(listener) as client:
        await client.upgrade()
        client.send(frame(BINARY, b"good"), bad, b"x" * 100_000)
        found = await client.ended()
        assert found[0] == BytesMessage(data=b"good")
        assert isinstance(found[1], CloseConnection) and found[1].code == code and found[1].reason
        (echo,) = listener.made
        await echo.lost.wait()
        assert echo.heard == b"good"
        async with connected(listener) as other:
            await other.upgrade()
            other.send(frame(BINARY, b"served"))
            assert await other.bytes(6) == b"served"


# -- the end


@pytest.mark.parametrize("tls", [False, True])
@on_both_loops
async def test_the_peer_closes(certs, tls):
    context = certs.server_context() if tls else None
    async with listening(context) as listener, connected(listener, certs if tls else None) as client:
        await client.upgrade()
        client.send(frame(BINARY, b"last"), frame(CLOSE, struct.pack("!H", 1000) + b"bye"))
        found = await client.ended()
        assert found == [CloseConnection(code=1000, reason="bye")]
        await listener.made[0].lost.wait()
        assert listener.made[0].heard == b"last"


@pytest.mark.parametrize("answers", [True, False])
@on_both_loops
async def test_we_close(answers):
    """Politely: our close, the peer's, the end; a peer that doesn't answer has little time."""
    async with upgraded() as (client, echo):
        client.send(frame(BINARY, b"close"))
        assert await client.event() == CloseConnection(code=1000, reason="")
        assert echo.transport.is_closing()
        assert not echo.lost.is_set()
        if answers:
            client.send(frame(BINARY, b"not heard any more"), frame(CLOSE, struct.pack("!H", 1000)))
        assert await client.ended() == []
        await echo.lost.wait()
        assert echo.heard == b"close"


@on_both_loops
async def test_abort_is_at_once():
    async with upgraded() as (client, echo):
        client.send(frame(BINARY, b"abort"))
        assert await client.ended() == []
        await echo.lost.wait()


@on_both_loops
async def test_a_peer_that_only_hangs_up():
    async with upgraded() as (client, echo):
        client.writer.write_eof()
        await client.ended()
        await echo.lost.wait()


@on_both_loops
async def test_what_was_not_read_goes_with_the_connection_and_waits_for_no_cycle_collector():
    gc.disable()
    try:
        async with listening() as listener:
            async with connected(listener) as client:
                await client.upgrade(frame(BINARY, b"x") + frame(BINARY, length=60_000)[:8])
                assert await client.bytes(1) == b"x"
                (echo,) = listener.made
                parser = weakref.ref(echo.transport._frames._frames._proto)
                assert parser() is not None
            await echo.lost.wait()
            listener.made.clear()
            del echo.transport
            await soon(lambda: parser() is None)
    finally:
        gc.enable()


# -- flow


@on_both_loops
async def test_large_writes_are_cut_and_the_writer_is_held_back():
    async with upgraded() as (client, echo):
        client.writer.transport.pause_reading()
        echo.transport.set_write_buffer_limits(high=100_000)
        data = bytes(range(256)) * 100_000
        echo.transport.write(data)
        await soon(lambda: not echo.writable)
        assert echo.transport.get_write_buffer_size() > 100_000
        client.writer.transport.resume_reading()
        got = bytearray()
        while len(got) < len(data):
            event = await client.event()
            assert len(event.data) <= websocket.MESSAGE_BYTES_MAX
            got += event.data
        assert got == data
        await soon(lambda: echo.writable)
        echo.transport.writelines([b"a", b"b"])
        assert await client.bytes(2) == b"ab"


@on_both_loops
async def test_a_peer_that_sends_pings_and_reads_nothing_fills_no_buffer():
    async with upgraded() as (client, echo):
        echo.transport.set_write_buffer_limits(high=1000)
        client.writer.transport.pause_reading()
        echo.transport.write(b"x" * 30_000_000)
        await soon(lambda: not echo.writable)
        before = echo.transport.get_write_buffer_size()
        for _ in range(2000):
            client.send(frame(PING, b"y" * 100))
        client.send(frame(PING, b"the last"), frame(BINARY, b"now"))
        await soon(lambda: echo.heard == b"now")
        assert echo.transport.get_write_buffer_size() <= before + 10
        client.writer.transport.resume_reading()
        seen = 0
        while not isinstance(event := await client.event(), Pong):
            seen += len(event.data)
        assert event.payload == b"the last"
        assert seen == 30_000_003


@on_both_loops
async def test_reading_stops_when_told():
    async with listening() as listener, connected(listener) as client:
        await client.upgrade()
        (echo,) = listener.made
        echo.transport.pause_reading()
        assert not echo.transport.is_reading()
        client.send(frame(BINARY, b"later"))
        async with connected(listener) as other:
            await other.upgrade()
            other.send(frame(BINARY, b"now"))
            assert await other.bytes(3) == b"now"
        assert echo.heard == b""
        echo.transport.resume_reading()
        assert await client.bytes(5) == b"later"


@on_both_loops
async def test_many_small_messages_are_one_call():
    async with upgraded(early=b"".join(frame(BINARY, b"%d," % n) for n in range(100))) as (client, echo):
        expected = b"".join(b"%d," % n for n in range(100))
        assert await client.bytes(len(expected)) == expected
        assert echo.calls <= 3


@on_both_loops
async def test_the_black_hole_takes_websockets_too():
    async with listening() as listener, connected(listener) as client:
        await client.upgrade()
        (echo,) = listener.made
        listener.black_hole(True)
        client.send(frame(BINARY, b"hello"), frame(PING, b"anyone?"))
        echo.transport.write(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.1)
        assert echo.heard == b""
        listener.black_hole(False)
        assert await client.bytes(4) == b"held"
        found = [await client.event(), await client.event()]
        assert {type(event) for event in found} == {BytesMessage, Pong}


@on_both_loops
async def test_a_text_that_never_ends_is_refused_at_its_first_piece():
    async with upgraded() as (client, _):
        client.send(frame(TEXT, b"x" * 1000, length=2**40))
        event = await client.event()
        assert not isinstance(event, TextMessage)
        assert event.code == 1003
