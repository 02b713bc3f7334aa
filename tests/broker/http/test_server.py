"""The HTTP shell against a raw socket: what is on the wire is what is looked at."""

import asyncio
import contextlib
import gc
import logging
import ssl
import time
import weakref

import pytest

from pairbus.broker.access.unauthenticated import CONNECTION_BYTES, TOTAL_BYTES_MAX, UnauthenticatedQuota
from pairbus.broker.http.server import HttpLimits, HttpProtocol, Request, Response, Switch
from pairbus.broker.net import certificates
from tests.broker.net.streams import stream as client

QUICK = HttpLimits(header_bytes_max=2000, body_bytes_max=1000, idle_s=0.2, request_s=0.2, linger_s=0.2)


async def echo(request: Request) -> Response:
    return Response(200, {"X-Seen": f"{request.method} {request.target}"}, request.body or b"nothing")


@contextlib.asynccontextmanager
async def server(handler=echo, limits=HttpLimits(), unauthenticated=None, **options):  # noqa: B008
    made = []

    def factory():
        made.append(HttpProtocol(handler, limits, lambda: 1_700_000_000.0, unauthenticated))
        return made[-1]

    listening = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0, **options)
    try:
        yield listening.sockets[0].getsockname()[1], made
    finally:
        listening.close()
        for protocol in made:
            protocol._transport.abort()
        await listening.wait_closed()
        await asyncio.sleep(0)


async def answer(reader, *, head=False):
    start, *lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = 0 if head else int(headers.get("content-length", 0))
    return int(start.split()[1]), headers, await asyncio.wait_for(reader.readexactly(length), 10)


async def ended(reader):
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 10)


async def test_keep_alive_serves_many_requests_on_one_connection():
    async with server() as (port, made), client(port) as (reader, writer):
        for number in range(5):
            writer.write(b"PUT /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" % number)
            status, headers, body = await answer(reader)
            assert (status, headers["x-seen"], body) == (200, f"PUT /{number}", b"abc")
            assert headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
        assert len(made) == 1


@pytest.mark.parametrize("said", [b"G\x00T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n: \r\n\r\n"])
async def test_what_is_not_http_is_forgotten_with_the_connection_and_waits_for_no_cycle_collector(said):
    gc.disable()
    try:
        async with server() as (port, made):
            async with client(port) as (reader, writer):
                writer.write(said + b"x" * 50_000)
                assert (await answer(reader))[0] == 400
            protocol = weakref.ref(made.pop())
            async with asyncio.timeout(10):
                while protocol() is not None:
                    await asyncio.sleep(0.005)
    finally:
        gc.enable()


async def test_what_the_handler_sees():
    seen = []

    async def handler(request):
        seen.append(request)
        return Response(204)

    async with server(handler) as (port, _), client(port) as (reader, writer):
        writer.write(b"GET /a%2Fb?x=1 HTTP/1.1\r\nHost: h:1\r\nX-A: 1\r\nx-a: 2\r\n\r\n")
        assert (await answer(reader))[0] == 204
    (request,) = seen
    assert (request.method, request.target, request.body) == ("GET", "/a%2Fb?x=1", b"")
    assert request.headers == {"host": "h:1", "x-a": "1, 2"}
    assert request.peer == "127.0.0.1" and not request.secure


@pytest.mark.parametrize(
    ("target", "host", "seen"),
    [
        ("/a?b=c", "given", "/a?b=c"),
        ("https://there:444/$servicebus/websocket", "there:444", "/$servicebus/websocket"),
        ("HTTP://There/a%2Fb?x=https://y", "There", "/a%2Fb?x=https://y"),
        ("http://there", "there", "/"),
        ("http://there?b", "there", "/?b"),
        ("/https://there/a", "given", "/https://there/a"),
        ("http:///a", "given", "http:///a"),
    ],
)
async def test_a_target_in_absolute_form_is_its_path_and_its_host(target, host, seen):
    """Java asks so."""
    requests = []

    async def handler(request):
        requests.append((request.headers["host"], request.target))
        return Response(204)

    async with server(handler) as (port, _), client(port) as (reader, writer):
        writer.write(f"GET {target} HTTP/1.1\r\nHost: given\r\n\r\n".encode())
        assert (await answer(reader))[0] == 204
    assert requests == [(host, seen)]


async def test_close_is_honoured_and_http_1_0_closes():
    for first in (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"):
        async with server() as (port, _), client(port) as (reader, writer):
            writer.write(first)
            assert (await answer(reader))[0] == 200
            assert await ended(reader) == b""


async def test_head_has_the_length_and_no_body():
    async with server() as (port, _), client(port) as (reader, writer):
        writer.write(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        status, headers, _ = await answer(reader, head=True)
        assert (status, headers["content-length"]) == (200, "7")
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await answer(reader))[2] == b"nothing"


async def test_chunked_bodies_in_single_bytes():
    async with server() as (port, _), client(port) as (reader, writer):
        text = b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        for byte in text:
            writer.write(bytes((byte,)))
            await writer.drain()
        assert (await answer(reader))[2] == b"abcdefg"


async def test_expect_100_continue():
    async with server(limits=QUICK) as (port, _), client(port) as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"abc")
        assert (await answer(reader))[2] == b"abc"
        writer.write(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        assert (await answer(reader))[0] == 413  # told before the body is sent


async def test_pipelined_requests_are_answered_one_at_a_time():
    running = 0
    most = 0

    async def handler(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return Response(200, {}, request.target.encode())

    async with server(handler) as (port, _), client(port) as (reader, writer):
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(50)))
        assert [(await answer(reader))[2] for _ in range(50)] == [b"/%d" % n for n in range(50)]
    assert most == 1


async def test_a_failing_handler_gives_500_without_its_text(caplog):
    async def handler(request):
        if request.target == "/bad":
            raise RuntimeError("a secret in a traceback")
        if request.target == "/worse":
            return Response(200, {"bad header\n": "x"})
        return Response(200)

    async with server(handler) as (port, _), client(port) as (reader, writer):
        with caplog.at_level(logging.ERROR):
            writer.write(b"GET /bad HTTP/1.1\r\nHost: h\r\n\r\n")
            status, _, body = await answer(reader)
        assert status == 500 and b"secret" not in body and b"Traceback" not in body
        assert "a secret in a traceback" in caplog.text
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await answer(reader))[0] == 200  # the connection goes on
        writer.write(b"GET /worse HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await ended(reader) == b""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: many\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, 413),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 3000, 431),
        (b"GET /" + b"x" * 3000, 431),
    ],
)
async def test_bad_requests_get_one_clear_answer_and_the_end(text, status):
    async with server(limits=QUICK) as (port, _), client(port) as (reader, writer):
        writer.write(text)
        got, headers, body = await answer(reader)
        assert got == status
        assert headers["connection"] == "close" and body
        assert await ended(reader) == b""


AMBIGUOUS = {
    "content-length and transfer-encoding": (
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "transfer-encoding and content-length": (
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    ),
    "transfer-encoding in HTTP/1.0": (
        b"POST /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n"
    ),
    "bare LF throughout": b"GET /a HTTP/1.1\nHost: h\n\n",
    "bare LF after the request line": b"GET /a HTTP/1.1\nHost: h\r\n\r\n",
    "bare LF after a header": b"GET /a HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
    "bare LF as the empty line": b"GET /a HTTP/1.1\r\nHost: h\r\n\n",
    "bare LF before the request": b"\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "bare CR in a header": b"GET /a HTTP/1.1\r\nHost: h\r\nX: y\rz\r\n\r\n",
    "header folded with a space": b"GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n z\r\n\r\n",
    "header folded with a tab": b"GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n\tz\r\n\r\n",
    "space before the first header": b"GET /a HTTP/1.1\r\n Host: h\r\n\r\n",
    "bare LF after the last chunk": b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
    "bare LF in the trailers": (
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\n\r\n"
    ),
    "folded trailer": (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n z\r\n\r\n"),
}


@pytest.mark.parametrize("in_pieces", [False, True], ids=["at-once", "in-single-bytes"])
@pytest.mark.parametrize("after", [b"", b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n"], ids=["first", "second"])
@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_readers_may_cut_differently_is_refused_and_nothing_behind_it_is_read(text, after, in_pieces):
    """A request smuggled past a proxy begins with one that the proxy and this server take for two lengths."""
    seen = []

    async def handler(request):
        seen.append(request.target)
        return await echo(request)

    whole = after + text + b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
    async with server(handler, HttpLimits(linger_s=0.2)) as (port, _), client(port) as (reader, writer):
        if in_pieces:
            for each in whole:
                writer.write(bytes((each,)))
                await asyncio.sleep(0)
        else:
            writer.write(whole)
        if after:
            assert (await answer(reader))[0] == 200
        status, headers, body = await answer(reader)
        assert (status, headers["connection"]) == (400, "close")
        assert body
        assert not await ended(reader)
    assert seen == (["/first"] if after else [])


async def test_endless_chunks_stop_at_the_limit():
    async with server(limits=QUICK) as (port, _), client(port) as (reader, writer):
        writer.write(
            b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"64\r\n%b\r\n" % (b"x" * 100) * 20
        )
        assert (await answer(reader))[0] == 413


async def test_a_refusal_is_seen_though_the_body_is_still_coming():
    async with (
        server(limits=HttpLimits(body_bytes_max=1000, linger_s=5.0)) as (port, _),
        client(port) as (reader, writer),
    ):
        writer.write(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(40):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert (await answer(reader))[0] == 413


async def test_slow_requests_are_bounded_however_steadily_they_drip():
    async with server(limits=QUICK) as (port, _), client(port) as (reader, writer):

        async def drip():
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"G")
                    await writer.drain()
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(drip())
        assert (await answer(reader))[0] == 408
        await ended(reader)
        task.cancel()


async def test_idle_connections_end_silently():
    async with server(limits=QUICK) as (port, _):
        async with client(port) as (reader, _):
            assert await ended(reader) == b""
        async with client(port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await answer(reader)
            assert await ended(reader) == b""


async def test_a_peer_that_does_not_read_its_answers_is_given_up():
    async def handler(request):
        return Response(200, {}, b"x" * 20_000_000)

    async with server(handler, QUICK) as (port, made), client(port) as (_, writer):
        writer.transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        while not (made and made[0]._transport.is_closing() and made[0]._transport.get_write_buffer_size() == 0):
            await asyncio.sleep(0.01)


async def test_a_peer_that_leaves_cancels_its_handler():
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with server(handler) as (port, made):
        async with client(port) as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await begun.wait()
        made[0]._transport.abort()
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_half_closed_peer_still_gets_its_answer():
    async def handler(request):
        await asyncio.sleep(0.02)
        return Response(200, {}, b"late")

    async with server(handler) as (port, _), client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        writer.write_eof()
        assert (await answer(reader))[2] == b"late"
        assert await ended(reader) == b""


async def test_an_upgrade_that_nobody_wants_is_an_ordinary_request():
    async with server() as (port, _), client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await answer(reader))[0] == 200
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await answer(reader))[0] == 200


class Shout(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data.upper())


async def test_the_handler_may_change_the_protocol():
    async def handler(request):
        return Switch({"Upgrade": "shout", "Connection": "Upgrade"}, Shout)

    async with server(handler, QUICK) as (port, _), client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\nhel")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        async with client(port) as (idle, _):
            assert await ended(idle) == b""  # HTTP's time limits end a connection that was opened later
        writer.write(b"lo")
        assert await reader.readexactly(5) == b"HELLO"


async def test_a_change_that_fails_ends_the_connection(caplog):
    def fails():
        raise RuntimeError("no")

    async def handler(request):
        return Switch({"Upgrade": "shout", "Connection": "Upgrade"}, fails)

    async with server(handler) as (port, _), client(port) as (reader, writer):
        with caplog.at_level(logging.ERROR):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
            assert not await ended(reader)
        assert "can't become" in caplog.text


async def test_over_tls(tmp_path):
    certs = certificates.ensure(tmp_path, [], time.time())
    seen = []

    async def handler(request):
        seen.append(request.secure)
        return Response(200, {}, request.body)

    async with server(handler, ssl=certs.server_context()) as (port, _):
        trusting = ssl.create_default_context(cafile=str(certs.ca_file))
        async with client(port, ssl=trusting, server_hostname="localhost") as (reader, writer):
            writer.write(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000)
            assert (await answer(reader))[2] == b"x" * 300_000
    assert seen == [True]


async def test_all_requests_that_are_not_answered_yet_share_one_budget():
    """Whose they are is known when they are whole: thousands of half bodies would take gigabytes."""
    unauthenticated = UnauthenticatedQuota()
    half = b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 999_999
    async with server(unauthenticated=unauthenticated) as (port, made), contextlib.AsyncExitStack() as stack:
        refused = []
        while not refused:
            reader, writer = await stack.enter_async_context(client(port))
            writer.write(half)
            await writer.drain()
            before = unauthenticated.held_bytes
            while unauthenticated.held_bytes < before + 999_999 and not refused:  # until it has come, or was refused
                await asyncio.sleep(0)
                refused = [protocol for protocol in made if protocol._draining]
            assert unauthenticated.held_bytes <= TOTAL_BYTES_MAX
        assert 40 <= len(made) <= 51
        status, _, body = await answer(reader)
        assert (status, b"together" in body) == (503, True)
        await stack.aclose()
        async with client(port) as (reader, writer):
            while unauthenticated.held_bytes >= 999_999:
                await asyncio.sleep(0)
            writer.write(half + b"x")
            assert (await answer(reader))[0] == 200
            assert unauthenticated.held_bytes == CONNECTION_BYTES, "an answered request holds nothing"
