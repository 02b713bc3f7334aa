"""Serves HTTP/1.1 over h11: one asyncio protocol per connection, one request at a time, every size and wait bounded.

A shell: the handler decides the answer; it gets whole requests and gives whole responses. This module handles
keep-alive, `Expect: 100-continue`, chunked bodies, `HEAD`, slow or broken peers, a handler that fails, and one that
switches to another protocol.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import h11

from pairbus.broker.access.unauthenticated import UnauthenticatedQuota

log = logging.getLogger("pairbus.broker.http_server")

HEADER_BYTES_MAX = 32 * 1024
HEADERS_MAX = 128
BODY_BYTES_MAX = 1024 * 1024
#: The measured memory of a header's objects, h11's and ours, besides its bytes, of which there are three copies.
_HEADER_BYTES = 512


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """From the path on, whether it came with a host before it or not."""
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; values of a repeated header joined by a comma."""
    body: bytes = b""
    peer: str = ""
    """The peer's address, empty when it is not known."""
    secure: bool = False
    http_version: str = "1.1"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Switch:
    """The answer 101 to a request with `Upgrade`: `protocol` then makes what serves the connection."""

    headers: dict[str, str]
    protocol: Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Cut:
    """No answer: the connection is cut, as a fault does."""


Handler = Callable[[Request], Awaitable[Response | Switch | Cut]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    header_bytes_max: int = HEADER_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    idle_s: float = 60.0
    request_s: float = 30.0
    """From a request's first byte to its last, however steadily the bytes drip."""
    linger_s: float = 2.0
    """For a peer to take the last answer, and for us to take what it was still sending."""


DEFAULT_LIMITS = HttpLimits()


class HttpProtocol(asyncio.Protocol):
    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.time,
        unauthenticated: UnauthenticatedQuota | None = None,
    ) -> None:
        """`unauthenticated` counts what is held for the connection as long as it is open: anybody may ask."""
        self._handler = handler
        self._limits = limits
        self._clock = clock
        self._unauthenticated = UnauthenticatedQuota() if unauthenticated is None else unauthenticated
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes_max)
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._largest_read = 0
        # a request with its headers, and as much of what is behind it
        self._size_max = 2 * (4 * limits.header_bytes_max + limits.body_bytes_max + HEADERS_MAX * _HEADER_BYTES)
        #: Bytes of the request that is read or answered, besides those of `_body`.
        self._request_bytes = 0
        #: Bytes of the last answer, as long as the peer may not have taken it.
        self._answer_bytes = 0
        self._writable = True
        self._closed = False
        self._draining = False
        self._started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._set_timer(self._limits.idle_s)
        self._account()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.release(self)
        self._closed = True
        self._set_timer(None)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closed or self._draining:
            return
        if not self._started and self._task is None:
            self._started = True
            self._set_timer(self._limits.request_s)
        self._largest_read = max(self._largest_read, len(data))
        self._h11.receive_data(data)
        self._advance()
        self._account()

    def _account(self) -> None:
        """Report how much is held, and refuse the request if all hold too much together."""
        if self._closed:
            return
        size = len(self._body) + len(self._h11.trailing_data[0]) + self._request_bytes + self._answer_bytes
        refusal = self._unauthenticated.hold(
            self, self._secure(), size, self._size_max, largest_read=self._largest_read
        )
        if refusal is not None and self._task is not None:
            self._transport.abort()  # nothing can be said before the request in hand is answered
        elif refusal is not None and not self._draining:
            self._refuse(503, refusal.description)

    def eof_received(self) -> bool:
        if self._closed or self._draining:
            self._close()
            return False
        self._h11.receive_data(b"")
        self._advance()
        # A peer that shut its side down after a whole request still gets its answer; TLS has no such half.
        return self._task is not None and not self._secure()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._answer_bytes = 0
        if self._task is None:
            self._next_cycle()
            self._account()

    def _advance(self) -> None:
        """Process h11's events until it needs more bytes or a request is complete."""
        try:
            while self._task is None and not self._closed and not self._draining:
                before = self._h11.trailing_data[0]
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    if self._h11.they_are_waiting_for_100_continue and self._request is not None:
                        self._write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
                    return
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    if isinstance(event, h11.ConnectionClosed):
                        self._close()
                    return
                if isinstance(event, h11.Request | h11.EndOfMessage):
                    taken = before[: len(before) - len(self._h11.trailing_data[0])]
                    if isinstance(event, h11.Request):
                        self._request = event
                    ambiguous = _ambiguity(taken, event)
                    if ambiguous is not None:
                        self._refuse(400, ambiguous)
                        return
                if isinstance(event, h11.Request):
                    self._body.clear()
                    self._request_bytes = 3 * len(taken) + len(event.headers) * _HEADER_BYTES
                    self._check_size(event)
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._limits.body_bytes_max:
                        self._refuse_body()
                elif isinstance(event, h11.EndOfMessage):
                    self._start_handler()
        except h11.RemoteProtocolError as error:
            # h11's frames hold the error that holds them: the buffers would wait for the cycle collector
            error.__traceback__ = None
            status = error.error_status_hint
            self._refuse(status, HTTPStatus(status).phrase if status == 431 else f"not HTTP/1.1: {error}")

    def _check_size(self, request: h11.Request) -> None:
        if len(request.headers) > HEADERS_MAX:
            self._refuse(431, f"the request has {len(request.headers)} headers; {HEADERS_MAX} are allowed")
        elif _declared_length(request) > self._limits.body_bytes_max:
            self._refuse_body()

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is larger than {self._limits.body_bytes_max} bytes")

    def _start_handler(self) -> None:
        event, self._request = self._request, None
        assert event is not None
        # What is pipelined stays in the socket: one request at a time. TLS would read on into a buffer that is not
        # counted, so what comes behind it is taken, and counted.
        if not self._secure():
            self._transport.pause_reading()
        self._set_timer(None)
        headers: dict[str, str] = {}
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        peer = self._transport.get_extra_info("peername")
        absolute = _ABSOLUTE.match(event.target)
        target = event.target
        if absolute is not None:
            # as a proxy is asked, and as Java asks everybody: the host that counts is this one (RFC 9112, 3.2.2)
            headers["host"] = absolute[1].decode("latin-1")
            target = b"/" + target[absolute.end() :].removeprefix(b"/")
        request = Request(
            event.method.decode("latin-1"),
            target.decode("latin-1"),
            headers,
            bytes(self._body),
            str(peer[0]) if isinstance(peer, tuple) and peer else "",
            self._secure(),
            event.http_version.decode("latin-1"),
        )
        self._request_bytes += len(self._body)
        self._body.clear()
        self._task = self._loop.create_task(self._handle(request))

    async def _handle(self, request: Request) -> None:
        response: Response | Switch | Cut
        try:
            response = await self._handler(request)
        except asyncio.CancelledError:
            self._close()
            raise
        except Exception:
            log.exception("the handler failed on %s %s", request.method, request.target.partition("?")[0])
            response = Response(500, {"content-type": "text/plain; charset=utf-8"}, b"The request failed.\n")
        self._task = None
        if self._closed:
            return
        if isinstance(response, Cut):
            self._transport.abort()
            return
        if isinstance(response, Switch):
            try:
                self._switch(response)
            except Exception:
                log.exception("the connection can't become what was asked for")
                self._transport.abort()
            return
        self._started = False
        self._request_bytes = 0
        self._set_timer(self._limits.idle_s)
        self._respond(response, head=request.method == "HEAD")
        self._next_cycle()
        self._account()

    def _switch(self, switch: Switch) -> None:
        protocol = switch.protocol()
        reason = HTTPStatus.SWITCHING_PROTOCOLS.phrase
        self._write(h11.InformationalResponse(status_code=101, headers=list(switch.headers.items()), reason=reason))
        self._closed = True
        self._unauthenticated.release(self)
        self._set_timer(None)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        # Before the bytes that came early: what they cause may be to stop reading again.
        self._transport.resume_reading()
        early, ended = self._h11.trailing_data
        if early:
            protocol.data_received(early)
        if ended:
            self._transport.close()

    def _next_cycle(self) -> None:
        """Begin with the next request, once the peer has taken enough of the last answer."""
        if self._closed or self._draining or not self._writable:
            return
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            return
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            self._close()
            return
        self._h11.start_next_cycle()
        waiting = bool(self._h11.trailing_data[0])
        self._started = waiting
        self._set_timer(self._limits.request_s if waiting else self._limits.idle_s)
        self._transport.resume_reading()
        if waiting:
            self._advance()

    def _refuse(self, status: int, text: str) -> None:
        """Answer what can't be read as a request, and end: what follows it on the wire has no meaning any more."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {"content-type": "text/plain; charset=utf-8", "connection": "close"}
            # the refused request may be a HEAD whose body is too large or makes no sense
            head = self._request is not None and self._request.method == b"HEAD"
            self._respond(Response(status, headers, text.encode() + b"\n"), head=head)
        # Closing over unread bytes would reset the connection, and the peer might never see the answer.
        self._draining = True
        self._request = None
        self._body.clear()
        self._request_bytes = 0
        self._account()
        self._set_timer(self._limits.linger_s)

    def _respond(self, response: Response, *, head: bool) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        headers["content-length"] = str(len(response.body))
        headers.setdefault("date", formatdate(self._clock(), usegmt=True))
        headers.setdefault("server", "pairbus")
        try:
            reason = HTTPStatus(response.status).phrase
        except ValueError:
            reason = ""
        try:
            self._write(h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason))
            if response.body and not head:
                self._write(h11.Data(data=response.body))
            self._write(h11.EndOfMessage())
            if not self._writable:
                self._answer_bytes = len(response.body)
        except h11.LocalProtocolError:
            log.exception("the handler's response can't be sent")
            self._close()

    def _write(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._transport.write(data)

    def _timed_out(self) -> None:
        self._timer = None
        if self._closed:
            self._transport.abort()
        elif self._started and not self._draining:
            self._refuse(408, f"the request was not whole after {self._limits.request_s:g} s")
        else:
            self._close()

    def _set_timer(self, delay: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._loop.call_later(delay, self._timed_out)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._transport.close()
            self._set_timer(self._limits.linger_s)

    def _secure(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None


_ABSOLUTE = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)
#: h11 takes these for line ends and for one long header; others don't, and see another request behind it.
_LOOSE_LINES = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]")


def _ambiguity(taken: bytes, event: h11.Request | h11.EndOfMessage) -> str | None:
    """Return why a proxy before us might see the request end elsewhere (RFC 9112, 11.2), or None. `taken` are the
    bytes of the request's head, or of the end of its chunks."""
    if _LOOSE_LINES.search(taken):
        return "every line must end with CR LF, and no header may go on in the next line"
    if isinstance(event, h11.Request):
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
            return "Transfer-Encoding must come without Content-Length, and in HTTP/1.1"
    return None


def _declared_length(request: h11.Request) -> int:
    return next((int(value) for name, value in request.headers if name == b"content-length"), 0)
