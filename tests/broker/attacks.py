"""Clients that mean harm or know no better, against the live port: garbage, halves, floods, lies, and too many of them.

Each attack is a coroutine that takes a `Target` and a seeded random; it connects, does its worst and leaves. None looks
at what becomes of the broker: that is the business of whoever started it. All of them keep within a second or so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from pairbus.amqp.errors import EncodeError
from pairbus.amqp.message import BATCH_FORMAT, Properties, encode_message, join_batch
from pairbus.amqp.performative_types import (
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Released,
    SaslInit,
    Transfer,
)
from pairbus.amqp.types import Array, Int, Symbol

from .attack_words import (
    ADDRESSES,
    AMQP_HEADER,
    QUEUE,
    SASL_HEADER,
    U32,
    Target,
    any_fields,
    any_message,
    any_performative,
    any_state,
    any_transfer,
    any_value,
    attach,
    begun,
    credit,
    frame,
    let_in,
    opened,
    put_token,
    request,
    sasl,
    transfer,
    wounded,
)

CUT_S: Final = 0.3


# -- a raw client


class Wire:
    """Writes what it is told; reads, or does not, and keeps nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reads: bool) -> None:
        self.writer = writer
        self._reader = reader
        self._drain = asyncio.create_task(self._swallow()) if reads else None

    async def _swallow(self) -> None:
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 16):
                pass

    async def send(self, data: bytes) -> bool:
        """False when the broker has hung up, or takes no more."""
        try:
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), 1.0)
            return not self._reader.at_eof()
        except (OSError, TimeoutError):
            return False

    async def until_cut(self, seconds: float = CUT_S) -> bool:
        """Waits a little for the broker to end the connection."""
        if self._drain is None:
            return False
        done, _ = await asyncio.wait({self._drain}, timeout=seconds)
        return bool(done)

    async def leave(self, rudely: bool) -> None:
        sock = self.writer.get_extra_info("socket")
        if rudely and sock is not None:
            with contextlib.suppress(OSError):  # a reset instead of a farewell
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.gather(self._drain, return_exceptions=True)
        if rudely:
            self.writer.transport.abort()
            return
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), 1.0)
        except TimeoutError:
            # the broker takes nothing any more, and a farewell waits behind what it does not take. Where it took the
            # rest just now, the transport has closed by itself, and CPython 3.11's abort() stumbles over that
            with contextlib.suppress(AttributeError):
                self.writer.transport.abort()
        except OSError:
            pass


@contextlib.asynccontextmanager
async def connected(
    target: Target, rng: random.Random, *, tls: bool = False, reads: bool = True, small_buffers: bool = False
) -> AsyncIterator[Wire]:
    context = None
    if tls:
        context = ssl.create_default_context(cafile=target.ca_file)
    sock = socket.socket()
    sock.setblocking(False)
    if small_buffers:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", target.port))
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="127.0.0.1" if tls else None
        )
    except BaseException:
        sock.close()
        raise
    wire = Wire(reader, writer, reads)
    try:
        yield wire
    finally:
        await wire.leave(rng.random() < 0.3)


# -- attacks on what comes before AMQP


async def garbage(target: Target, rng: random.Random) -> None:
    first = rng.choice(
        (b"A", b"AMQP", SASL_HEADER, AMQP_HEADER, b"\x16", b"GET ", b"PUT /", b"\x00", b"", rng.randbytes(1))
    )
    async with connected(target, rng) as wire:
        await wire.send(first + rng.randbytes(rng.choice((0, 1, 7, 100, 5000, 70_000))))
        await wire.until_cut()


async def http_garbage(target: Target, rng: random.Random) -> None:
    token = target.token()
    long = "h" * rng.choice((10, 40_000))
    bomb = (
        '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {c} "{f"&{p};" * 10}">' for p, c in zip("abcdefgh", "bcdefghi", strict=True))
        + "]><entry><content>&i;</content></entry>"
    )
    deep = "<a>" * 20_000
    bodies = (b"", b"\x00", rng.randbytes(300), bomb.encode(), deep.encode(), b"<entry/>", b"x" * 100_000)
    body = rng.choice(bodies)
    path = rng.choice(
        ("/", "/q", "/%00", "/" + "p" * 3000, "/$Resources/queues?$skip=x&$top=-1", "/q?api-version=\x7f", "*")
    )
    line = rng.choice((
        f"GET {path} HTTP/1.1", f"PUT {path} HTTP/1.1", f"DELETE {path} HTTP/1.0", f"POST {path} HTTP/9.9", "GET",
        f"OPTIONS {path} HTTP/1.1", "G\x00T / HTTP/1.1", f"HEAD {path} HTTP/1.1", "TRACE /x HTTP/1.1", "GET / ",
        "CONNECT x:1 HTTP/1.1",
    ))  # fmt: skip
    length = rng.choice((len(body), len(body), 0, -1, 2**63, 10**30, "x"))
    headers = [
        "Host: x", f"Authorization: {rng.choice((token, 'SharedAccessSignature ', token[:-9], long))}",
        rng.choice((f"Content-Length: {length}", "Transfer-Encoding: chunked", f"X-Long: {long}", "No colon", ": ")),
        rng.choice(("Expect: 100-continue", "Upgrade: websocket\r\nConnection: Upgrade", "Connection: close", "A: ÿ")),
    ]  # fmt: skip
    head = "\r\n".join([line, *headers, "", ""]).encode("latin-1", "replace")
    async with connected(target, rng, tls=rng.random() < 0.3) as wire:
        for _ in range(rng.choice((1, 1, 30))):
            if not await wire.send(wounded(rng, head + body) if rng.random() < 0.3 else head + body):
                break
        await wire.until_cut()


async def tls_garbage(target: Target, rng: random.Random) -> None:
    hello = client_hello()
    tries = (
        b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\xff\xff" + rng.randbytes(2000), hello[: rng.randrange(1, len(hello))],
        wounded(rng, hello), hello + rng.randbytes(500), hello,
    )  # fmt: skip
    async with connected(target, rng) as wire:
        await wire.send(rng.choice(tries))
        await wire.until_cut()


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


async def garbage_inside_tls(target: Target, rng: random.Random) -> None:
    first = rng.choice((b"", b"A", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", SASL_HEADER, opened(), b"\x00"))
    async with connected(target, rng, tls=True) as wire:
        await wire.send(first + rng.randbytes(rng.choice((0, 10, 70_000))))
        await wire.until_cut()


async def sasl_garbage(target: Target, rng: random.Random) -> None:
    response = rng.choice((
        b"", b"\0", b"\0a\0b", b"\0\xff\xfe\0\xff", b"\0" * 300, rng.randbytes(400),
        b"\0RootManageSharedAccessKey\0wrong",
    ))  # fmt: skip
    mechanism = rng.choice(("PLAIN", "PLAIN", "ANONYMOUS", "EXTERNAL", "MSSBCBS", "", "GSSAPI", "x" * 200))
    init = frame(
        SaslInit(mechanism=Symbol(mechanism), initial_response=response).encode(), kind=rng.choice((0, 1, 1, 1, 7))
    )
    tail = rng.choice(
        (b"", init, AMQP_HEADER, SASL_HEADER, frame(b"", kind=1), frame(b""), frame(any_performative(rng), kind=1))
    )
    async with connected(target, rng) as wire:
        await wire.send(SASL_HEADER + init + tail + frame(any_performative(rng)))
        await wire.until_cut()


# -- attacks on frames


def a_whole_visit(target: Target) -> bytes:
    """What an honest client would say, from the first byte to the last."""
    message = encode_message(properties=Properties(message_id="m"), body=b"x" * 50)
    peek = request(2, {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(5)})
    return b"".join((
        let_in(target),
        attach(2, QUEUE, receives=False), attach(3, QUEUE, receives=True), credit(3, 3),
        transfer(2, 1, message),
        transfer(2, 2, message[:20], more=True), frame(Transfer(handle=2).encode(), message[20:]),
        transfer(2, 3, join_batch([message, message]), message_format=BATCH_FORMAT),
        attach(4, f"{QUEUE}/$management", receives=False), attach(5, f"{QUEUE}/$management", receives=True),
        credit(5, 9),
        transfer(4, 4, peek, settled=True),
        frame(Disposition(role=True, first=0, last=2, settled=False, state=Modified(True, False, {})).encode()),
        credit(3, 5, drain=True),
        frame(Detach(handle=2, closed=True).encode()), frame(End().encode()), frame(Close().encode()),
    ))  # fmt: skip


async def halves(target: Target, rng: random.Random) -> None:
    visit = a_whole_visit(target)
    async with connected(target, rng, tls=rng.random() < 0.1) as wire:
        await wire.send(visit[: rng.randrange(len(visit))])
        await wire.until_cut(rng.choice((0.0, 0.1)))


async def wounds(target: Target, rng: random.Random) -> None:
    async with connected(target, rng, tls=rng.random() < 0.1) as wire:
        visit = a_whole_visit(target)
        safe = rng.choice((0, 8, len(opened()), len(let_in(target))))
        await wire.send(visit[:safe] + wounded(rng, visit[safe:]))
        await wire.until_cut()


async def drip(target: Target, rng: random.Random) -> None:
    """Single bytes, slowly."""
    visit = a_whole_visit(target)
    start = rng.choice((0, len(opened()), len(let_in(target))))
    async with connected(target, rng) as wire:
        await wire.send(visit[:start])
        for byte in visit[start : start + 300]:
            if not await wire.send(bytes((byte,))):
                break
            await asyncio.sleep(0.002)


async def huge_sizes(target: Target, rng: random.Random) -> None:
    sizes = (0xFFFFFFFF, 0x7FFFFFFF, 65537, 1 << 20, 9, 7, 0)
    body = rng.choice((
        struct.pack(">IBBH", rng.choice(sizes), rng.choice((2, 2, 0, 1, 255)), 0, 0),
        frame(b"\x00\x53\x10\xd0" + struct.pack(">II", rng.choice(sizes), rng.choice(sizes))),
        frame(b"\x00\x53\x10\xc0\x0a\x01\xb1" + struct.pack(">I", rng.choice(sizes)) + b"abc"),
        frame(b"\x00\x53\x10\xd0" + struct.pack(">IIBII", 16, 1, 0xF0, 10, rng.choice(sizes)) + b"\x41"),
        frame(b"\x00\x53\x10\xc0\x0a\x01\xe0\x08" + bytes((255,)) + b"\x45" + b"\x00" * 5),
        begun(65535), begun(5000), attach(2**32 - 1, QUEUE, receives=True), attach(256, QUEUE, receives=False),
        frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"t" * 60_000).encode(), b"x"),
    ))  # fmt: skip
    async with connected(target, rng) as wire:
        await wire.send(opened() + begun() + body + rng.randbytes(rng.choice((0, 100_000))))
        await wire.until_cut()


async def deep_nesting(target: Target, rng: random.Random) -> None:
    depth = rng.choice((20, 31, 33, 100, 5000))
    value = b"\x45"
    for _ in range(depth):
        if len(value) > 50_000:
            break
        kind = rng.choice(("list", "map", "described", "array"))
        if kind == "list":
            value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
        elif kind == "map":
            value = b"\xd1" + struct.pack(">II", len(value) + 6, 2) + b"\x54\x01" + value
        elif kind == "array":
            value = b"\xf0" + struct.pack(">II", len(value) + 4, 1) + value
        else:
            value = b"\x00\x53\x24" + value
    sections = (b"\x00\x53\x77", b"\x00\x53\x74", b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x76")
    management = encode_message(
        properties=Properties(message_id=1, reply_to="here"),
        application_properties={"operation": "com.microsoft:peek-message"},
        body=("value", None),
    )[:-1]
    tries = (
        opened() + frame(b"\x00\x53\x11" + value),
        opened() + begun() + frame(b"\x00\x53\x12\xd0" + struct.pack(">II", len(value) + 4, 1) + value),
        let_in(target) + attach(2, QUEUE, receives=False) + transfer(2, 1, rng.choice(sections) + value),
        let_in(target) + attach(2, f"{QUEUE}/$management", receives=False) + transfer(2, 1, management + value),
        opened() + begun() + attach(2, "$cbs", receives=False) + transfer(2, 0, management + value),
    )
    async with connected(target, rng) as wire:
        await wire.send(rng.choice(tries))
        await wire.until_cut()


async def out_of_order(target: Target, rng: random.Random) -> None:
    """Sound performatives in any order with any fields, by a stranger or by someone who may."""
    start = rng.choice(
        (b"", sasl(), sasl() + AMQP_HEADER, opened(), opened() + begun(), let_in(target), let_in(target))
    )
    if rng.random() < 0.5 and start == let_in(target):
        start += attach(2, QUEUE, receives=False) + attach(3, QUEUE, receives=True, rcv_settle_mode=1) + credit(3, 50)
    async with connected(target, rng, reads=rng.random() < 0.9) as wire:
        await wire.send(start)
        for _ in range(rng.choice((1, 5, 40))):
            channel = rng.choice((0, 0, 0, 0, 1, 2, 9, 4999))
            burst = [
                any_transfer(rng) if rng.random() < 0.4 else frame(any_performative(rng), channel=channel)
                for _ in range(rng.choice((1, 3)))
            ]
            if not await wire.send(b"".join(burst)):
                break
        await wire.until_cut(0.05)


async def long_talk(target: Target, rng: random.Random) -> None:
    """Keeps to the letter of the protocol, so that nobody hangs up, and makes no sense at all."""
    links: dict[int, bool] = {}  # handle → whether it sends
    delivery = 0
    async with connected(target, rng, reads=rng.random() < 0.9) as wire:
        await wire.send(let_in(target))
        for _ in range(200):
            chance = rng.random()
            free = [handle for handle in range(2, 40) if handle not in links]
            if chance < 0.15 and free:
                handle, sends = rng.choice(free), rng.random() < 0.5
                links[handle] = sends
                spoken = attach(
                    handle, rng.choice(ADDRESSES[:9]), receives=not sends, rcv_settle_mode=rng.choice((0, 1)),
                    snd_settle_mode=rng.choice((0, 1, 2)), name=rng.choice(("", "same", f"n{handle}")),
                    properties=any_fields(rng),
                )  # fmt: skip
            elif chance < 0.2 and links:
                handle = rng.choice(list(links))
                del links[handle]
                spoken = frame(Detach(handle=handle, closed=rng.random() < 0.8).encode())
            elif chance < 0.6 and links:
                handle = rng.choice(list(links))
                if links[handle]:
                    delivery += 1
                    message_format = rng.choice((0, 0, BATCH_FORMAT))
                    message = (
                        any_message(rng)
                        if rng.random() < 0.8
                        else request(delivery, {"operation": "x"}, any_value(rng))
                    )
                    message = join_batch([message, any_message(rng)]) if message_format else message
                    spoken = transfer(
                        handle, delivery, message, message_format=message_format, settled=rng.random() < 0.2
                    )
                else:
                    spoken = credit(
                        handle,
                        rng.choice((0, 1, 5, 1000, 2**32 - 1)),
                        drain=rng.random() < 0.3,
                        echo=rng.random() < 0.2,
                    )
            elif chance < 0.95:
                first = rng.randrange(300)
                settled = rng.random() < 0.2
                role = rng.random() < 0.95
                last = rng.choice((None, first, first + 3, 2**31 - 1))
                spoken = frame(
                    Disposition(role=role, first=first, last=last, settled=settled, state=any_state(rng)).encode()
                )
            else:
                spoken = frame(b"")
            if not await wire.send(spoken):
                break
            if rng.random() < 0.1:
                await asyncio.sleep(0.001)
        await wire.until_cut(0.02)


async def strange_messages(target: Target, rng: random.Random) -> None:
    """On a link that stands: messages that are none, and settlements of what was never delivered."""
    async with connected(target, rng) as wire:
        await wire.send(
            let_in(target)
            + attach(2, QUEUE, receives=False)
            + attach(3, rng.choice((QUEUE, f"{QUEUE}/$deadletterqueue")), receives=True, rcv_settle_mode=1)
            + credit(3, rng.choice(U32))
        )
        for number in range(1, 60):
            payload = any_message(rng)
            fields: dict[str, Any] = {"settled": rng.random() < 0.2}
            if rng.random() < 0.3:
                payload = join_batch([any_message(rng) for _ in range(rng.randrange(4))])
                payload = wounded(rng, payload) if payload and rng.random() < 0.3 else payload
                fields["message_format"] = BATCH_FORMAT
            frames = transfer(2, number, payload, **fields)
            if rng.random() < 0.5:
                first = rng.choice((0, number, number - 1, *U32))
                state = any_state(rng)
                with contextlib.suppress(EncodeError):
                    frames += frame(
                        Disposition(
                            role=rng.random() < 0.9, first=first, last=rng.choice((None, first, *U32)), state=state,
                            settled=rng.random() < 0.3,
                        ).encode()
                    )  # fmt: skip
            if not await wire.send(frames):
                break
            await asyncio.sleep(0)
        await wire.until_cut(0.05)


OPERATIONS: Final = ("peek-message", "renew-lock", "update-disposition", "schedule-message", "", "x" * 1000)
ARGUMENTS: Final = (
    "lock-tokens", "disposition-status", "properties-to-modify", "deadletter-reason", "deadletter-description",
    "from-sequence-number", "message-count", "x",
)  # fmt: skip


async def strange_requests(target: Target, rng: random.Random) -> None:
    def body() -> Any:
        if rng.random() < 0.2:
            return any_value(rng)
        made = {name: any_value(rng, 2) for name in rng.sample(ARGUMENTS, rng.randrange(len(ARGUMENTS)))}
        if rng.random() < 0.6:
            made["lock-tokens"] = Array.of(0x98, [uuid.UUID(int=n) for n in range(rng.choice((1, 3, 2000)))])
            made["disposition-status"] = rng.choice(
                ("completed", "abandoned", "suspended", "defered", Symbol("completed"))
            )
        return made

    async with connected(target, rng) as wire:
        await wire.send(
            let_in(target)
            + attach(2, f"{QUEUE}/$management", receives=False)
            + attach(3, f"{QUEUE}/$management", receives=True)
            + credit(3, 1000)
        )
        for number in range(1, 40):
            operation: Any = rng.choice(OPERATIONS)
            properties = {"operation": rng.choice((f"com.microsoft:{operation}", operation, any_value(rng, 4)))}
            if rng.random() < 0.3:
                properties["com.microsoft:tracking-id"] = any_value(rng, 3)
            try:
                payload = request(rng.choice((number, "id", uuid.UUID(int=1), b"x")), properties, body())
                token = put_token(
                    rng.choice((any_value(rng), "SharedAccessSignature sr=x&sig=%ff&se=1&skn=" + "k" * 99, "\x00"))
                )
            except EncodeError:
                continue
            payload = wounded(rng, payload) if rng.random() < 0.2 else payload
            settled = rng.random() < 0.8
            if not await wire.send(
                transfer(2, 2 * number, payload, settled=settled) + transfer(0, 2 * number + 1, token, settled=settled)
            ):
                break
        await wire.until_cut(0.05)


# -- attacks on memory: much is asked for, nothing is taken


async def never_reads(target: Target, rng: random.Random, kind: str = "") -> None:
    """Asks again and again and reads no answer: echoes, peeks, refused links, deliveries."""
    peek = request(
        1, {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(1000)}
    )
    echo = frame(Flow(incoming_window=100, next_outgoing_id=0, outgoing_window=100, echo=True).encode())
    management = (
        attach(2, f"{QUEUE}/$management", receives=False) + attach(3, f"{QUEUE}/$management", receives=True)
        + credit(3, 2**32 - 1)
    )  # fmt: skip
    kind = kind or rng.choice(("echo", "peek", "peek", "links", "deliver", "sessions"))
    async with connected(target, rng, reads=False, small_buffers=True) as wire:
        await wire.send(let_in(target) + management)
        number = 10
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            if kind == "echo":
                flood = echo * 2000
            elif kind == "peek":
                flood = b"".join(transfer(2, number + n, peek, settled=True) for n in range(200))
            elif kind == "links":
                flood = (attach(9, "no-such-queue" * 100, receives=True) + frame(Detach(handle=9).encode())) * 50
            elif kind == "sessions":
                flood = (begun(7) + frame(End().encode(), channel=7)) * 1000
            else:
                receiver = attach(9, QUEUE, receives=True, snd_settle_mode=0)
                release = frame(
                    Disposition(role=True, first=0, last=2**31 - 2, settled=True, state=Released()).encode()
                )
                flood = (receiver + credit(9, 2**32 - 1) + release + frame(Detach(handle=9, closed=True).encode())) * 20
            number += 200
            if not await wire.send(flood):
                break


async def never_ends(target: Target, rng: random.Random) -> None:
    """Messages of many frames that never come to an end, on as many links as there may be."""
    piece = os.urandom(60_000)
    async with connected(target, rng) as wire:
        await wire.send(opened())
        for channel in range(4):
            await wire.send(begun(channel))
            for handle in range(200):
                start = attach(handle, "$cbs", receives=False, channel=channel)
                more = Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True).encode()
                if not await wire.send(start + frame(more, piece, channel=channel) * 8):
                    return


async def many_links(target: Target, rng: random.Random) -> None:
    async with connected(target, rng) as wire:
        await wire.send(let_in(target))
        for channel in range(1, 30):
            frames = [begun(channel)]
            for handle in range(256):
                address = rng.choice((QUEUE, "$cbs", f"{QUEUE}/$management"))
                frames.append(attach(handle, address, receives=rng.random() < 0.5, channel=channel))
            if not await wire.send(b"".join(frames)):
                break


ATTACKS: Final[dict[str, Callable[[Target, random.Random], Awaitable[None]]]] = {
    made.__name__: made
    for made in (
        garbage, http_garbage, tls_garbage, garbage_inside_tls, sasl_garbage, halves, wounds, drip, huge_sizes,
        deep_nesting, out_of_order, long_talk, strange_messages, strange_requests, never_reads, never_ends, many_links,
    )
}  # fmt: skip


@contextlib.asynccontextmanager
async def crowd(target: Target, rng: random.Random, count: int) -> AsyncIterator[list[Wire]]:
    """So many connections at once, each at another point of its life; they stay until the block is left."""
    stages = (
        b"",
        b"A",
        SASL_HEADER,
        sasl(),
        opened(),
        opened() + begun(),
        let_in(target),
        b"\x16",
        b"GET / HTTP/1.1\r\n",
        b"PUT /",
    )
    async with contextlib.AsyncExitStack() as stack:
        wires: list[Wire] = []
        for start in range(0, count, 50):
            made = await asyncio.gather(
                *(stack.enter_async_context(connected(target, rng)) for _ in range(min(50, count - start)))
            )
            await asyncio.gather(*(wire.send(rng.choice(stages)) for wire in made))
            wires += made
        yield wires


def shuffled(rng: random.Random, times: int) -> Iterator[str]:
    """Names of attacks, each as often as the others."""
    names = list(ATTACKS) * times
    rng.shuffle(names)
    yield from names
