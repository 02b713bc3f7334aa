"""Carries AMQP inside WebSocket: the upgrade, and a transport that puts AMQP's bytes into binary messages.

See docs/reference/protocol.md#websocket.

The SDKs that ask for it send `GET /$servicebus/websocket` with the sub-protocol AMQPWSB10, others with `amqp`. wsproto
handles the frames (RFC 6455); this module decides who may upgrade, answers pings and closes, and is a normal transport
to the protocol behind it. Message boundaries have no meaning: the bytes are one stream.

Messages are never assembled: each part is passed on at once, so their length needs no limit. The only data that waits
here is the head of a frame, a control frame (125 bytes at most) and one pong.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import unquote

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from pairbus.broker.http.server import Request, Response, Switch

PATH = "/$servicebus/websocket"
#: The SDKs' name for it, and the registered one.
SUBPROTOCOLS = ("AMQPWSB10", "amqp")
#: aiohttp, which the async SDK is on, takes no message above 4 MiB; smaller ones also let a pong in between.
MESSAGE_BYTES_MAX = 64 * 1024
LINGER_S = 2.0

_VERSION = "13"


def is_websocket(target: str) -> bool:
    """Return whether a request's target is the WebSocket's path; .NET writes a slash after it."""
    return unquote(target.partition("?")[0]).rstrip("/").lower() == PATH


def answer(request: Request, make: Callable[[], asyncio.Protocol]) -> Response | Switch:
    """Answer a request to that path: switch to WebSocket, served by what `make` makes, or say why not."""
    headers = request.headers
    if request.method != "GET":
        return _refusal(405, f"{request.method} is not allowed here; open a WebSocket with GET", {"allow": "GET"})
    wanted = "upgrade" in _tokens(headers.get("connection", "")) and "websocket" in _tokens(headers.get("upgrade", ""))
    if not wanted:
        upgrade = {"upgrade": "websocket", "connection": "upgrade"}
        return _refusal(426, "open a WebSocket: send 'Connection: Upgrade' and 'Upgrade: websocket'", upgrade)
    if request.http_version < "1.1":
        return _refusal(400, f"a WebSocket needs HTTP/1.1, not {request.http_version}")
    if headers.get("sec-websocket-version") != _VERSION:
        version = {"sec-websocket-version": _VERSION}
        return _refusal(426, f"Sec-WebSocket-Version must be {_VERSION}", version)
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        return _refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    subprotocol = next((name for name in offered if name in SUBPROTOCOLS), None)
    if subprotocol is None:
        return _refusal(400, f"Sec-WebSocket-Protocol must offer {' or '.join(SUBPROTOCOLS)}")
    accepted = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-accept": generate_accept_token(key.encode()).decode(),
        "sec-websocket-protocol": subprotocol,
    }
    return Switch(accepted, lambda: WebSocketProtocol(make()))


def _tokens(header: str) -> list[str]:
    return [token.strip().lower() for token in header.split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(status, {"content-type": "text/plain; charset=utf-8", **(headers or {})}, text.encode() + b"\n")


class WebSocketProtocol(asyncio.Protocol):
    """Reads frames from a transport and passes their bytes to the inner protocol."""

    def __init__(self, inner: asyncio.Protocol, *, linger_s: float = LINGER_S) -> None:
        self.inner = inner
        self.closing = False
        """Nothing more goes to the inner protocol, and nothing of it is sent."""
        self._linger_s = linger_s
        self._frames = Connection(ConnectionType.SERVER)
        self._transport: asyncio.Transport
        self._writable = True
        self._pong_due: bytes | None = None
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(_Messages(self, self._transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # wsproto's parser refers to itself, with all that has not been read: it would wait for the cycle collector
        self._frames._proto._parse_more.close()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._failed or self._frames.state is ConnectionState.CLOSED:
            return
        self._frames.receive_data(data)
        parts: list[bytes | bytearray] = []
        for event in self._frames.events():
            if type(event) is BytesMessage:
                parts.append(event.data)
            elif type(event) is Ping:
                self._pong(event)
            else:
                self._hand_on(parts)
                if type(event) is TextMessage:
                    self._fail(CloseReason.UNSUPPORTED_DATA, "AMQP comes in binary messages, not in text")
                    return
                if type(event) is CloseConnection:
                    self._closed(event)
                    return
        self._hand_on(parts)

    def eof_received(self) -> bool | None:
        return False

    def pause_writing(self) -> None:
        self._writable = False
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self._writable = True
        if self._pong_due is not None and self._frames.state is ConnectionState.OPEN:
            payload, self._pong_due = self._pong_due, None
            self._pong(Ping(payload))
        self.inner.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # When the peer has said that it goes, it will not hear more.
        if self.closing or not data or self._frames.state is not ConnectionState.OPEN:
            return
        send = self._frames.send
        if len(data) <= MESSAGE_BYTES_MAX:
            self._transport.write(send(BytesMessage(data=bytes(data))))
            return
        pieces = (bytes(data[start : start + MESSAGE_BYTES_MAX]) for start in range(0, len(data), MESSAGE_BYTES_MAX))
        self._transport.write(b"".join(send(BytesMessage(data=piece)) for piece in pieces))

    def close(self, code: int = CloseReason.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame; the transport is closed when the peer has answered, or has had its time."""
        if self.closing or self._frames.state is not ConnectionState.OPEN:
            return
        self.closing = True
        self._transport.write(self._frames.send(CloseConnection(code, reason)))
        # What the peer still sends must be read, or the system would reset the connection and our last words with it.
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._set_timer()

    def _hand_on(self, parts: list[bytes | bytearray]) -> None:
        if parts and not self.closing:
            # One call for all that came at once: the inner protocol answers once, too.
            self.inner.data_received(b"".join(parts))
        parts.clear()

    def _pong(self, ping: Ping) -> None:
        if self.closing:
            return
        if self._writable:
            self._transport.write(self._frames.send(ping.response()))
        else:
            # To a peer that sends pings and reads nothing only the last is owed (RFC 6455, 5.5.3).
            self._pong_due = bytes(ping.payload)

    def _closed(self, event: CloseConnection) -> None:
        match self._frames.state:
            case ConnectionState.OPEN:
                self._fail(event.code, event.reason or "")
            case ConnectionState.REMOTE_CLOSING:
                self.closing = True
                self._transport.write(self._frames.send(event.response()))
                self._end()
            case _:
                self._end()

    def _fail(self, code: int, reason: str) -> None:
        """Close because the peer broke the protocol; whatever else it sends is not read."""
        self._failed = True
        if self.closing:
            self._end()
        else:
            self.close(code, reason)

    def _end(self) -> None:
        """Close, with a limit on the time that the peer may take for the last bytes."""
        self._set_timer()
        self._transport.close()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        self._transport.abort()


class _Messages(asyncio.Transport):
    """The transport that the inner protocol sees: what it writes goes out in messages."""

    def __init__(self, frames: WebSocketProtocol, real: asyncio.Transport) -> None:
        super().__init__()
        self._frames = frames
        self._real = real

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._frames.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._frames.write(b"".join(list_of_data))

    def close(self) -> None:
        self._frames.close()

    def abort(self) -> None:
        self._frames.closing = True
        self._real.abort()

    def is_closing(self) -> bool:
        return self._frames.closing or self._real.is_closing()

    def pause_reading(self) -> None:
        if not self._frames.closing:
            self._real.pause_reading()

    def resume_reading(self) -> None:
        if not self._frames.closing:
            self._real.resume_reading()

    def is_reading(self) -> bool:
        return self._real.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._real.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._real.set_write_buffer_limits(high, low)
