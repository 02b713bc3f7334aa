"""What the actors of a churn say where a well-behaved client would not do: raw links, WebSocket frames, HTTP, dropped
connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from typing import Final

from pairbus.amqp.message import Header, Properties, encode_message, read_properties, split
from pairbus.amqp.performative_types import Attach, Source, Transfer
from pairbus.amqp.performative_types import Target as Terminus
from pairbus.amqp.types import Symbol
from pairbus.broker.http.atom import ATOM, SERVICE_BUS
from pairbus.wire import WireClient
from tests.broker.attack_words import Target, attach, credit, frame, transfer

#: Bodies are cut from this, so that making one costs nothing.
POOL: Final = random.Random(12).randbytes(1 << 16)
#: How long a call may take.
CALL_S: Final = 5.0
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")


def path_of(home: str) -> str:
    """Return the address of what the churn calls `orders` or `news/all`."""
    return f"churn-{home.replace('/', '/Subscriptions/')}"


def id_of(payload: bytes) -> str:
    return str(read_properties(payload, split(payload)).message_id)


def drop(client: WireClient, reset: bool) -> None:
    """Take the connection away under a client: a reset, or an end without a word."""
    transport = client._transport
    if transport is None or transport._socket is None:
        return
    sock = transport._socket.get_extra_info("socket")
    if reset and sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport._socket.abort()


def any_link(kind: str, handle: int, rng: random.Random) -> bytes:
    """The attach of a link and what comes after it; nothing of what it says is ever settled."""
    path = path_of("left-carts" if kind in ("session", "next") else "left")
    asks = credit(handle, rng.choice((0, 1, 50)))
    match kind:
        case "receiver":
            return attach(handle, path, receives=True) + asks
        case "deleter":
            return attach(handle, path, receives=True, snd_settle_mode=1) + asks
        case "session" | "next":
            wanted = {_SESSION_FILTER: f"s{handle}" if kind == "session" else None}
            link = Attach(
                name=f"link-{handle}", handle=handle, role=True, source=Source(address=path, filter=wanted),
                target=Terminus(address="here"),
            )  # fmt: skip
            return frame(link.encode()) + asks
        case "partial":
            more = Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True).encode()
            return attach(handle, path, receives=False) + frame(more, POOL[:3000])
        case "request":
            node = f"{path}/$management"
            return attach(handle, node, receives=False) + transfer(handle, handle, b"\x00", settled=True)
        case _:
            message = encode_message(Header(ttl=2000), properties=Properties(message_id="left"), body=b"x")
            return attach(handle, path, receives=False) + transfer(handle, handle, message)


def websocket_frame(data: bytes) -> bytes:
    """A binary frame as a client sends it, masked with nothing."""
    return b"\x82\xfe" + struct.pack("!H", len(data)) + b"\0\0\0\0" + data


def entry(tag: str, inside: str = "") -> bytes:
    return (
        f'<a:entry xmlns:a="{ATOM}" xmlns="{SERVICE_BUS}"><a:content type="application/xml">'
        f"<{tag}>{inside}</{tag}></a:content></a:entry>"
    ).encode()


async def http(target: Target, method: str, at: str, body: bytes = b"") -> tuple[int, str]:
    """Make one request on a connection of its own."""
    headers = {"Host": f"127.0.0.1:{target.port}", "Authorization": target.token(), "Content-Length": str(len(body))}
    async with asyncio.timeout(CALL_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        try:
            head = f"{method} {at} HTTP/1.1\r\nConnection: close\r\n" + "".join(
                f"{name}: {value}\r\n" for name, value in headers.items()
            )
            writer.write(head.encode() + b"\r\n" + body)
            answer = await reader.read()
        finally:
            writer.transport.abort()
    if not answer:
        raise EOFError(f"{method} {at}: no answer")
    head_text, _, text = answer.decode(errors="replace").partition("\r\n\r\n")
    return int(head_text.split()[1]), text
