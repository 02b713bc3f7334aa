"""One port, several protocols; refusing, silence, limits. Each test on asyncio's loop and on uvloop's."""

import asyncio
import contextlib
import errno
import gc
import resource
import socket
import ssl
import struct
import weakref

import pytest

from pairbus.broker.net.listener import Listener
from tests.broker.attacks import client_hello
from tests.waiting import soon

from .loops import on_both_loops
from .streams import stream

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def trusting(certs):
    return ssl.create_default_context(cafile=str(certs.ca_file))


class Echo(asyncio.Protocol):
    """Says its name, then what it hears."""

    def __init__(self, name, made=None):
        self.name = name
        self.heard = b""
        self.lost = asyncio.Event()
        if made is not None:
            made.append(self)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard += data
        self.transport.write(self.name + b":" + data)

    def connection_lost(self, exc):
        assert not self.lost.is_set(), "told twice"
        self.lost.set()


@contextlib.asynccontextmanager
async def listening(context=None, host="127.0.0.1", port=0, **options):
    made = []
    listener = Listener(host, [port], lambda: Echo(b"amqp", made), lambda: Echo(b"http", made), context, **options)
    listener.made = made  # type: ignore[attr-defined]  # for the tests alone
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        assert listener.connections == 0
        assert all(protocol.lost.is_set() for protocol in made if hasattr(protocol, "transport"))


def talking(listener, host="127.0.0.1", **tls):
    return stream(listener.port, host, **tls)


async def answered(reader, writer, first=b"A", name=b"amqp"):
    """By the protocol of that name."""
    writer.write(first)
    assert await reader.readexactly(len(name) + 1 + len(first)) == name + b":" + first


async def gone(reader):
    """The other side ended it, with or without a reset."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1000):
            pass


async def silent(reader, seconds=0.15):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)


@on_both_loops
async def test_several_ports_are_one_listener():
    first, second, hidden = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
    wanted = first.getsockname()[1], 0, second.getsockname()[1]
    first.close()
    second.close()
    listener = Listener("127.0.0.1", wanted, lambda: Echo(b"amqp"), lambda: Echo(b"http"), connections_max=3)
    await listener.start()
    assert listener.ports == (wanted[0], listener.ports[1], wanted[2]) and listener.port == wanted[0]
    assert len(set(listener.ports)) == 3 and 0 not in listener.ports
    writers = []
    for port in listener.ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await answered(reader, writer, b"AMQP")
        writers.append(writer)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await gone(reader)
    assert listener.refused_over_limit == 1, "the limit is for all ports together"
    listener.stop_accepting()
    for port in listener.ports:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    listener.resume()
    await listener.close()
    for each in (*writers, writer):
        each.transport.abort()
    taken = Listener("127.0.0.1", [wanted[0], hidden.getsockname()[1]], Echo, Echo)
    with hidden, pytest.raises(OSError, match=f"port {hidden.getsockname()[1]} of"):
        await taken.start()
    socket.create_server(("127.0.0.1", wanted[0])).close()


@pytest.mark.parametrize(
    ("first", "name"),
    [(b"AMQP\x03\x01\x00\x00", b"amqp"), *((verb + b" / HTTP/1.1\r\n", b"http") for verb in
     (b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH"))],
)  # fmt: skip
@on_both_loops
async def test_the_first_byte_decides(first, name):
    async with listening() as listener, talking(listener) as (reader, writer):
        await answered(reader, writer, first, name)


@pytest.mark.parametrize("tls", [False, True])
@on_both_loops
async def test_single_bytes_slowly(certs, trusting, tls):
    async with listening(certs.server_context()) as listener:
        options = {"ssl": trusting, "server_hostname": "localhost"} if tls else {}
        async with talking(listener, **options) as (reader, writer):
            for byte in b"AMQP\x00\x01":
                await answered(reader, writer, bytes((byte,)))


@pytest.mark.parametrize(("first", "name"), [(b"AMQP\x00\x01\x00\x00", b"amqp"), (b"GET / HTTP/1.1\r\n", b"http")])
@pytest.mark.parametrize("host_name", ["localhost", "127.0.0.1", "here.example"])
@on_both_loops
async def test_behind_tls_it_looks_again(certs, trusting, first, name, host_name):
    async with listening(certs.server_context()) as listener:
        async with talking(listener, ssl=trusting, server_hostname=host_name) as (reader, writer):
            for _ in range(3):
                await answered(reader, writer, first, name)
            big = b"A" * 300_000
            writer.write(big)
            assert len(await reader.readexactly(300_000)) == 300_000
        await asyncio.wait_for(listener.made[0].lost.wait(), 5)


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff" * 100, b"a", b"SSH-2.0-x\r\n", b" GET /", b"\x15\x03\x01"])
@on_both_loops
async def test_garbage_is_closed_and_others_are_served(certs, trusting, garbage):
    async with listening(certs.server_context()) as listener, talking(listener) as (steady, steady_writer):
        async with talking(listener) as (reader, writer):
            writer.write(garbage)
            await gone(reader)
        async with talking(listener, ssl=trusting, server_hostname="localhost") as (reader, writer):
            writer.write(garbage)
            await gone(reader)
        async with talking(listener) as (reader, writer):
            writer.write(b"\x16\x03\x01\x00\x05garbage that is no handshake" * 20)
            await gone(reader)
        await answered(steady, steady_writer)
        assert len(listener.made) == 1


@pytest.mark.parametrize("says", [b"", b"AMQP", b"GET /"])
@on_both_loops
async def test_the_buffers_of_tls_go_with_the_connection_and_wait_for_no_cycle_collector(certs, trusting, says):
    gc.disable()
    try:
        async with listening(certs.server_context()) as listener:
            async with talking(listener, ssl=trusting, server_hostname="localhost") as (reader, writer):
                writer.write(says)
                await reader.readexactly(len(says) and len(says) + 5)
                await soon(lambda: listener._served)
                (connection,) = listener._served
                tls = weakref.ref(connection._transport.get_extra_info("ssl_object"))
                assert tls() is not None
                del connection
            await soon(lambda: listener.connections == 0)
            listener.made.clear()
            await soon(lambda: tls() is None)
    finally:
        gc.enable()


@on_both_loops
async def test_without_certificates_tls_is_closed():
    async with listening() as listener, talking(listener) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00")
        await gone(reader)


@on_both_loops
async def test_a_client_that_does_not_trust_us_harms_nobody(certs):
    async with listening(certs.server_context()) as listener:
        with pytest.raises(ssl.SSLError):
            async with talking(listener, ssl=ssl.create_default_context(), server_hostname="localhost"):
                pass
        await soon(lambda: listener.connections == 0)
        assert not listener.made


@on_both_loops
async def test_who_says_nothing_is_dropped_in_time(certs, trusting):
    async with listening(certs.server_context(), sniff_s=0.15) as listener:
        async with talking(listener) as (reader, _):
            await gone(reader)
        async with talking(listener) as (reader, writer):  # begins a handshake and stops
            writer.write(b"\x16\x03\x01")
            await gone(reader)
        async with talking(listener, ssl=trusting, server_hostname="localhost") as (
            reader,
            _,
        ):  # says nothing inside
            await gone(reader)
        async with talking(listener) as (reader, writer):  # who has spoken may take its time
            await answered(reader, writer)
            await silent(reader, 0.3)
        await soon(lambda: listener.connections == 0)


@on_both_loops
async def test_peers_that_leave_at_every_stage(certs, trusting):
    async with listening(certs.server_context()) as listener:
        for first in (b"", b"A", b"G", b"\x16\x03", b"?"):
            sock = socket.create_connection(("127.0.0.1", listener.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(first)
            await asyncio.sleep(0)
            sock.close()  # a reset
        async with talking(listener, ssl=trusting, server_hostname="localhost"):
            pass
        await soon(lambda: listener.connections == 0)


@on_both_loops
async def test_past_the_limit_newcomers_are_turned_away():
    async with listening(connections_max=3) as listener, contextlib.AsyncExitStack() as stack:
        served = [await stack.enter_async_context(talking(listener)) for _ in range(3)]
        await soon(lambda: listener.connections == 3)
        async with talking(listener) as (reader, _):
            await gone(reader)
        assert listener.refused_over_limit == 1
        for reader, writer in served:
            await answered(reader, writer)
        assert listener.connections == 3
        served[0][1].close()
        await soon(lambda: listener.connections == 2)
        async with talking(listener) as (reader, writer):
            await answered(reader, writer, b"G", b"http")


@on_both_loops
async def test_a_thousand_at_once():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("the limit of open files can't be raised to 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))

    async def one(listener, first):
        async with talking(listener) as (reader, writer):
            writer.write(first)
            answer = await reader.readexactly(6)
            await everyone.wait()
            return answer

    everyone = asyncio.Event()
    try:
        async with listening(connections_max=1000, backlog=2048) as listener:
            tasks = [asyncio.create_task(one(listener, first)) for first in [b"A", b"G"] * 500]
            await soon(lambda: listener.connections == 1000 and len(listener.made) == 1000)
            everyone.set()
            answers = await asyncio.gather(*tasks)
            assert answers == [b"amqp:A", b"http:G"] * 500
            assert listener.refused_over_limit == 0
            await soon(lambda: listener.connections == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_both_loops
async def test_out_of_descriptors_is_survived(monkeypatch, caplog):
    class Short:
        def __init__(self, real):
            self.real = real
            self.left = 2

        def accept(self):
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

    async with listening() as listener:
        real = listener._accept
        short = {}
        monkeypatch.setattr(listener, "_accept", lambda sock: real(short.setdefault(sock, Short(sock))))
        listener.stop_accepting()
        listener.resume()
        async with talking(listener) as (reader, writer):
            await answered(reader, writer)
    assert "Too many open files" in caplog.text


@on_both_loops
async def test_refuse_and_resume_on_the_same_port():
    async with listening() as listener, talking(listener) as (reader, writer):
        await answered(reader, writer)
        port = listener.port
        for _ in range(3):
            listener.stop_accepting()
            assert "refusing" in repr(listener)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            listener.resume()
            listener.resume()
            assert listener.port == port and "accepting" in repr(listener)
            async with talking(listener) as (other, other_writer):
                await answered(other, other_writer, b"G", b"http")
        writer.write(b"A")  # those that stood were left alone
        assert await reader.readexactly(6) == b"amqp:A"


@on_both_loops
async def test_while_it_refuses_the_port_is_kept():
    async with listening() as listener:
        listener.stop_accepting()
        with socket.socket() as other, pytest.raises(OSError) as info:
            other.bind(("127.0.0.1", listener.port))
        assert info.value.errno == errno.EADDRINUSE
        listener.resume()


@on_both_loops
async def test_a_port_that_is_taken_is_named():
    async with listening() as listener:
        with pytest.raises(OSError, match=f"can't listen on port {listener.port} of 127.0.0.1: .* in use; end the"):
            async with listening(port=listener.port):
                pass


@on_both_loops
async def test_all_addresses_of_a_name():
    async with listening(host="localhost") as listener, talking(listener, host="localhost") as (reader, writer):
        await answered(reader, writer)


@on_both_loops
async def test_abort_all(certs, trusting):
    async with listening(certs.server_context()) as listener, contextlib.AsyncExitStack() as stack:
        plain, plain_writer = await stack.enter_async_context(talking(listener))
        await answered(plain, plain_writer)
        secure, secure_writer = await stack.enter_async_context(
            talking(listener, ssl=trusting, server_hostname="localhost")
        )
        await answered(secure, secure_writer, b"G", b"http")
        unsaid, _ = await stack.enter_async_context(talking(listener))
        shaking, shaking_writer = await stack.enter_async_context(talking(listener))
        shaking_writer.write(client_hello())
        await soon(lambda: listener.connections == 4 and len(listener._sniffing) == 1)
        listener.abort_all()
        for reader in (plain, secure, unsaid, shaking):
            await gone(reader)
        await soon(lambda: listener.connections == 0)
        assert "accepting" in repr(listener)


@pytest.mark.parametrize("tls", [False, True])
@on_both_loops
async def test_black_hole(certs, trusting, tls):
    options = {"ssl": trusting, "server_hostname": "localhost"} if tls else {}

    async with listening(certs.server_context()) as listener, contextlib.AsyncExitStack() as stack:
        old, old_writer = await stack.enter_async_context(talking(listener, **options))
        await answered(old, old_writer)
        protocol = listener.made[0]
        unsaid, unsaid_writer = await stack.enter_async_context(talking(listener))
        await soon(lambda: listener.connections == 2)

        listener.black_hole(True)
        listener.black_hole(True)
        old_writer.write(b"one")
        unsaid_writer.write(b"A")
        new, new_writer = await stack.enter_async_context(talking(listener))
        new_writer.write(b"G")
        shaken = asyncio.create_task(stack.enter_async_context(talking(listener, **options)))
        protocol.transport.write(b"keep-alive")
        await silent(old)
        await silent(unsaid, 0.05)
        await silent(new, 0.05)
        assert protocol.heard == b"A" and len(listener.made) == 1
        assert shaken.done() is not tls  # TCP connects, TLS does not

        listener.black_hole(False)
        assert await old.readexactly(10) == b"keep-alive"
        assert await old.readexactly(8) == b"amqp:one"
        assert await unsaid.readexactly(6) == b"amqp:A"
        assert await new.readexactly(6) == b"http:G"
        late, late_writer = await shaken
        await answered(late, late_writer, b"G", b"http")


@on_both_loops
async def test_what_ends_in_a_black_hole_ends_unheard():
    async with listening() as listener, talking(listener) as (reader, writer), talking(listener) as (other, _):
        await answered(reader, writer)
        protocol = listener.made[0]
        listener.black_hole(True)
        protocol.transport.write(b"goodbye")
        protocol.transport.close()
        assert protocol.transport.is_closing()
        await asyncio.wait_for(protocol.lost.wait(), 5)  # ours knows at once
        await silent(reader)
        listener.black_hole(False)
        await gone(reader)
        listener.black_hole(True)
        await soon(lambda: listener.connections == 1)
        listener.abort_all()
        await gone(other)


@on_both_loops
async def test_reading_that_a_protocol_paused_stays_paused():
    async with listening() as listener, talking(listener) as (reader, writer):
        await answered(reader, writer)
        transport = listener.made[0].transport
        transport.pause_reading()
        listener.black_hole(True)
        listener.black_hole(False)
        writer.write(b"x")
        await silent(reader)
        transport.resume_reading()
        assert await reader.readexactly(6) == b"amqp:x"
        listener.black_hole(True)
        transport.pause_reading()
        transport.resume_reading()
        writer.write(b"y")
        await silent(reader)
        listener.black_hole(False)
        assert await reader.readexactly(6) == b"amqp:y"


@on_both_loops
async def test_what_is_held_in_a_black_hole_is_bounded():
    async with listening() as listener, talking(listener) as (reader, writer):
        await answered(reader, writer)
        line = listener.made[0].transport
        listener.black_hole(True)
        for _ in range(100):
            line.write(b"x" * 100_000)
        assert sum(map(len, line._held)) <= 4 * 1024 * 1024
        listener.black_hole(False)
        await gone(reader)


@on_both_loops
async def test_clients_that_give_up_in_a_black_hole_make_room():
    async with listening(connections_max=5) as listener:
        listener.black_hole(True)
        for _ in range(20):
            async with talking(listener) as (_, writer):
                writer.write(b"AMQP")
                await writer.drain()
            await asyncio.sleep(0)
        async with talking(listener) as (reader, writer):
            writer.write(b"A")
            await soon(lambda: listener.connections <= 5)
            listener.black_hole(False)
            assert await reader.readexactly(6) == b"amqp:A"
        assert listener.refused_over_limit == 0


@on_both_loops
async def test_a_protocol_can_be_replaced(certs, trusting):
    async with listening(certs.server_context()) as listener:
        for options in ({}, {"ssl": trusting, "server_hostname": "localhost"}):
            async with talking(listener, **options) as (reader, writer):
                await answered(reader, writer, b"G", b"http")
                first = listener.made[-1]
                second = Echo(b"sock", listener.made)
                first.lost.set()
                second.connection_made(first.transport)
                first.transport.set_protocol(second)
                await answered(reader, writer, b"x", b"sock")
            await asyncio.wait_for(second.lost.wait(), 5)
