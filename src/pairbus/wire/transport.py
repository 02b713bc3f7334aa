"""Carries the bytes of one AMQP connection of the client between its socket and the engine, on asyncio.

A shell: bytes go from the socket to the engine and back, one write a loop turn; events go to the owner of the link.
Heartbeats are the engine's decision. Two decisions are made here: a connection that has been silent for `SILENCE_S`
while an answer is overdue is ended, and every owner of a link hears of a lost connection exactly once.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from pairbus.amqp.connection import Connection
from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.amqp.events import (
    Closed,
    CreditChanged,
    Delivered,
    DeliveryTooLarge,
    Disposed,
    LinkAttached,
    LinkDetached,
    Opened,
    SessionEnded,
)
from pairbus.amqp.link import Link
from pairbus.amqp.performative_types import Error
from pairbus.amqp.session import Session

from .errors import (
    CLIENT_CLOSED,
    TIMED_OUT,
    UNREACHABLE,
    ClientClosed,
    QuotaExceeded,
    TimedOut,
    Unauthorized,
    Unreachable,
    WireError,
    refusal,
)

#: Bytes that wait in the engine before they are written without waiting for the end of the loop turn.
FLUSH_BYTES = 256 * 1024
#: Bytes that the socket has not taken, beyond which senders hold back.
WRITE_BUFFER_BYTES_MAX = 512 * 1024
#: How long a peer may say nothing at all while an answer is overdue.
SILENCE_S = 5.0
CLOSE_S_MAX = 2.0

T = TypeVar("T")


async def before(
    deadline: float, what: str, awaitable: Coroutine[Any, Any, T] | asyncio.Future[T], *, outcome_unknown: bool = False
) -> T:
    """Return the result, or raise TimedOut at the deadline (loop time)."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout_at(deadline):
            return await awaitable
    except TimeoutError:
        waited = f"{what}: no answer in {loop.time() - started:.3g} s"
        raise TimedOut(TIMED_OUT, waited, outcome_unknown=outcome_unknown) from None


def resolve(*futures: asyncio.Future[None] | None) -> None:
    """Wake the waiters of these futures."""
    for future in futures:
        if future is not None and not future.done():
            future.set_result(None)


def fail(future: asyncio.Future[Any], error: WireError) -> None:
    """Raise the error in the waiters. If nobody looks at it, as after the first failure of many, the loop does not log
    it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


class SingleFlight:
    """One attempt at a time, shared by all who wait for it. A waiter that leaves does not end it; `cancel` does."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, attempt: Callable[[], Coroutine[Any, Any, None]], deadline: float, what: str) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(attempt())
            self._task.add_done_callback(self._done)
        task = self._task
        try:
            await before(deadline, what, asyncio.shield(task))
        except asyncio.CancelledError:
            if task.cancelled():  # by `cancel`, and not together with this waiter
                raise ClientClosed(CLIENT_CLOSED, f"{what}: closed meanwhile") from None
            raise

    def _done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # the waiters may all have left: it is no news to the loop

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Owner:
    """The owner of a session and of the links in it; engine objects carry it as their `context`."""

    def attached(self, link: Link) -> None: ...

    def detached(self, error: Error | None) -> None:
        """Called when the peer closed a link or the whole session."""

    def delivered(self, event: Delivered) -> None: ...
    def too_large(self, event: DeliveryTooLarge) -> None: ...
    def disposed(self, event: Disposed) -> None: ...

    def credit_changed(self) -> None:
        """Called when the peer gave credit, or the socket takes bytes again."""

    def input_done(self) -> None:
        """Called for watchers when all events of one read have been handled."""

    def lost(self, error: WireError) -> None:
        """Called once, when the connection is gone."""


class Transport(asyncio.Protocol):
    def __init__(self, connection: Connection, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.paused = False
        self.error: WireError | None = None
        self.last_received = self.loop.time()
        #: Owners that want to hear of the end of each input, since the engine has no event for an answered drain.
        self.watchers: set[Owner] = set()
        self._owners: set[Owner] = set()
        self._socket: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._unflushed = 0

    def __repr__(self) -> str:
        return f"<Transport to {self.peer}: {'lost' if self.error else self.connection.stage.name.lower()}>"

    @classmethod
    async def connect(
        cls, connection: Connection, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float
    ) -> Transport:
        """Connect: TCP, TLS, SASL and open, all within the time given."""
        loop = asyncio.get_running_loop()
        peer = f"{host}:{port}"
        transport = cls(connection, peer)
        deadline = loop.time() + timeout_s
        try:
            await before(deadline, f"connecting to {peer}", transport._dial(host, port, context, timeout_s))
            await before(deadline, f"opening AMQP with {peer}", transport._opened)
        except BaseException as error:
            transport.lose(error if isinstance(error, WireError) else Unreachable(UNREACHABLE, f"{peer}: given up"))
            raise
        return transport

    async def _dial(self, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> None:
        extra: dict[str, Any] = {}
        if context is not None:
            extra = {"ssl": context, "server_hostname": host, "ssl_handshake_timeout": timeout_s}
        try:
            await self.loop.create_connection(lambda: self, host, port, **extra)
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                UNREACHABLE,
                f"{self.peer}: the certificate is not trusted: {error.verify_message}; a namespace with a CA of its "
                "own wants ca_file=",
            ) from None
        except ssl.SSLError as error:
            raise Unreachable(UNREACHABLE, f"{self.peer}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            # asyncio's own words for a refused connection are those of its code, uvloop's those of the system
            code = error.errno or 0
            words = os.strerror(code) if code > 0 else error.strerror or error
            raise Unreachable(UNREACHABLE, f"{self.peer}: {words}") from None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        socket = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self.error is not None:  # given up while the socket was being made
            socket.abort()
            return
        self._socket = socket
        socket.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self.flush()

    def data_received(self, data: bytes) -> None:
        now = self.loop.time()
        self.last_received = now
        self._handle(self.connection.receive(data, now))
        for watcher in tuple(self.watchers):
            watcher.input_done()
        self.flush()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for owner in tuple(self._owners):
            owner.credit_changed()

    def connection_lost(self, error: Exception | None) -> None:
        reason = "closed by the peer" if error is None else getattr(error, "strerror", None) or type(error).__name__
        self.lose(Unreachable(UNREACHABLE, f"{self.peer}: the connection was lost: {reason}"))
        resolve(self._gone)

    # -- the engine

    def _handle(self, events: list[Any]) -> None:  # noqa: C901, PLR0912 - on the way of every message: no table of calls
        for event in events:
            kind = type(event)
            if kind is Delivered:
                if event.link.context is not None:
                    event.link.context.delivered(event)
            elif kind is Disposed:
                if event.session.context is not None:
                    event.session.context.disposed(event)
            elif kind is CreditChanged:
                if event.link.context is not None:
                    event.link.context.credit_changed()
            elif kind is LinkAttached:
                if event.link.context is None:
                    # a peer that attaches to a client asks for what nobody here offers
                    event.link.refuse(Error("amqp:not-allowed", "this client offers no nodes", None))
                else:
                    event.link.context.attached(event.link)
            elif kind is LinkDetached:
                if event.link.context is not None:
                    event.link.context.detached(event.error)
            elif kind is SessionEnded:
                if event.session.context is not None:
                    event.session.context.detached(event.error)
            elif kind is DeliveryTooLarge:
                if event.link.context is not None:
                    event.link.context.too_large(event)
            elif kind is Opened:
                resolve(self._opened)
                self._tick()
            elif kind is Closed:
                self.lose(_from_peer(event.error, f"{self.peer} closed the connection"))

    def begin(self, owner: Owner) -> Session:
        if self.error is not None:
            raise self.error
        opened = self.connection.remote_open
        channel_max = 65535 if opened is None or opened.channel_max is None else opened.channel_max
        if len(self.connection.sessions) > channel_max:
            text = f"{self.peer} allows {channel_max + 1} links on a connection; close some, or use another client"
            raise QuotaExceeded(RESOURCE_LIMIT_EXCEEDED, text)
        session = self.connection.begin()
        session.context = owner
        self._owners.add(owner)
        return session

    def leave(self, owner: Owner) -> None:
        self._owners.discard(owner)
        self.watchers.discard(owner)

    def wake(self) -> None:
        """Write the engine's output at the end of this loop turn."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush_scheduled)

    def wrote(self, size: int) -> None:
        """Do as `wake`, for a message: many in one turn must not pile up in the engine."""
        self._unflushed += size
        if self._unflushed >= FLUSH_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        self._unflushed = 0
        if self._socket is not None:
            data = self.connection.output()
            if data:
                self._socket.write(data)

    def _tick(self) -> None:
        self._timer = None
        if self.error is not None:
            return
        deadline = self.connection.tick(self.loop.time())
        self._handle(self.connection.poll())
        self.flush()
        if deadline is not None and self.error is None:
            self._timer = self.loop.call_at(deadline, self._tick)

    # -- the end

    def overdue(self) -> None:
        """Note an answer that did not come in time; if nothing else comes either, the connection is given up."""
        silent_s = self.loop.time() - self.last_received
        if self.error is None and silent_s >= SILENCE_S:
            self.lose(Unreachable(UNREACHABLE, f"{self.peer}: silent for {silent_s:.0f} s with answers overdue"))

    def lose(self, error: WireError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        fail(self._opened, error)
        if self._socket is not None:
            self.flush()  # a close frame with our reason may be waiting
            self._socket.close()
            # a peer that doesn't read would keep a closing socket forever
            self.loop.call_later(CLOSE_S_MAX, self._socket.abort)
        owners, self._owners = self._owners, set()
        self.watchers.clear()
        for owner in owners:
            owner.lost(error)

    async def close(self, error: WireError) -> None:
        """Close the connection and wait a little for the answer; the socket is closed afterwards in any case."""
        if self._socket is None:
            self.lose(error)
            return
        if self.error is None:
            self.connection.close()
            self.flush()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await asyncio.shield(self._gone)
        except TimeoutError:
            pass
        finally:
            self.lose(error)
            self._socket.abort()

    def abandon(self, error: WireError) -> None:
        """Close the connection without waiting; the peer is notified if it still reads."""
        if self.error is None:
            self.connection.close()
        self.lose(error)


def _from_peer(error: Error | None, what: str) -> WireError:
    if error is None:
        return Unreachable(UNREACHABLE, what)
    condition, description = str(error.condition), f"{what}: {error.description or error.condition}"
    found = refusal(condition, description)
    return found if isinstance(found, Unauthorized) else Unreachable(condition, description)
