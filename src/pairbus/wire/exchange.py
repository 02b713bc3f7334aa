"""Exchanges requests and responses over a pair of links with one node: `$cbs`, or an entity's `$management`.

See docs/reference/protocol.md#tokens-over-cbs and docs/reference/protocol.md#requests-over-management.

A shell: it matches answers to requests by correlation id. An exchange belongs to one connection and is discarded with
it, or when the peer detaches either link.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.events import Delivered, DeliveryTooLarge, Disposed
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.performative_types import Accepted, Error, Rejected, Source, Target

from .confirms import Confirms, send_error
from .errors import LINK_LOST, TIMED_OUT, LinkLost, TimedOut, TooLarge, WireError, refusal
from .requests import Response, read_response
from .transport import Owner, Transport, before, fail, resolve

#: Requests under way at once; the others wait for their turn.
REQUESTS_MAX = 64
_CREDIT = 2 * REQUESTS_MAX
_ACCEPTED = Accepted().encode()


class Exchange(Owner):
    def __init__(self, transport: Transport, node: str, open_timeout: float) -> None:
        self.node = node
        self.error: WireError | None = None
        self._transport = transport
        self._session = transport.begin(self)
        self.reply_to = str(uuid.uuid4())
        # JS names receiver, target and reply-to alike, which every way of routing an answer understands
        receiver = self._session.attach(
            self.reply_to, True, Source(address=node), Target(address=self.reply_to), snd_settle_mode=1
        )
        sender = self._session.attach(
            f"{self.reply_to}-requests", False, Source(address=self.reply_to), Target(address=node)
        )
        assert isinstance(receiver, ReceiverLink) and isinstance(sender, SenderLink)
        self._receiver, self._sender = receiver, sender
        receiver.context = sender.context = self
        self._opened: asyncio.Future[None] = transport.loop.create_future()
        self._unopened = 2
        self._number = 0
        self._turn = asyncio.Semaphore(REQUESTS_MAX)
        self._waiting: dict[object, asyncio.Future[Response]] = {}
        self._requests: Confirms[object] = Confirms()
        self._credit: list[asyncio.Future[None]] = []
        self._open_timer = transport.loop.call_later(open_timeout, self._not_opened, open_timeout)
        transport.wake()

    def __repr__(self) -> str:
        return f"<Exchange with {self.node}: {'lost' if self.error else f'{len(self._waiting)} waiting'}>"

    async def opened(self, deadline: float) -> None:
        if not self._opened.done():
            await before(deadline, f"attaching to {self.node}", asyncio.shield(self._opened))
        self._opened.result()

    def _not_opened(self, open_timeout: float) -> None:
        self._drop(TimedOut(TIMED_OUT, f"attaching to {self.node}: no answer in {open_timeout:g} s"))
        self._transport.overdue()

    async def call(
        self, build: Callable[[str, str], bytes], deadline: float, what: str, state: bytes | None = None
    ) -> Response:
        """Send a request and return the answer, whatever its status is. `build(message_id, reply_to)` encodes it;
        `state` is the encoded state of its delivery, where it is part of a transaction."""
        if self._turn.locked():
            await before(deadline, f"{what}: waiting for {REQUESTS_MAX} other requests", self._turn.acquire())
        else:
            await self._turn.acquire()
        try:
            while self.error is None and (self._sender.credit <= 0 or self._transport.paused):
                waiter: asyncio.Future[None] = self._transport.loop.create_future()
                self._credit.append(waiter)
                await before(deadline, f"{what}: waiting for credit", waiter)
            if self.error is not None:
                raise self.error
            return await self._exchange(build, deadline, what, state)
        finally:
            self._turn.release()

    async def _exchange(
        self, build: Callable[[str, str], bytes], deadline: float, what: str, state: bytes | None
    ) -> Response:
        self._number += 1
        message_id = f"{self.reply_to}:{self._number}"
        payload = build(message_id, self.reply_to)
        limit = self._sender.max_message_size
        if limit is not None and len(payload) > limit:
            raise TooLarge(
                "amqp:link:message-size-exceeded", f"{what}: {len(payload)} bytes, {self.node} takes {limit} at most"
            )
        future: asyncio.Future[Response] = self._transport.loop.create_future()
        self._waiting[message_id] = future
        delivery_id = self._sender.send(payload, struct.pack(">I", self._number & 0xFFFFFFFF), state=state)
        self._requests.add(delivery_id, message_id, deadline)
        self._transport.wrote(len(payload))
        try:
            return await before(deadline, what, future, outcome_unknown=True)
        except TimedOut:
            self._transport.overdue()
            raise
        finally:
            self._waiting.pop(message_id, None)
            self._requests.take(delivery_id, delivery_id)

    # -- what the transport tells

    def attached(self, link: Link) -> None:
        if link.refused:
            return
        self._unopened -= 1
        if link is self._receiver:
            self._receiver.flow(_CREDIT)
        if not self._unopened and not self._opened.done():
            self._open_timer.cancel()
            self._opened.set_result(None)

    def detached(self, error: Error | None) -> None:
        if error is None:
            self._drop(LinkLost(LINK_LOST, f"{self.node}: the peer detached"))
            return
        condition, text = str(error.condition), f"{self.node}: {error.description or error.condition}"
        self._drop(refusal(condition, text) if not self._opened.done() else LinkLost(condition, text))

    def delivered(self, event: Delivered) -> None:
        if not event.settled:
            event.link.settle(event.delivery_id, event.delivery_id, _ACCEPTED)
        if event.link.credit <= _CREDIT // 2:
            event.link.flow(_CREDIT)
        try:
            response = read_response(event.payload)
        except AmqpError as error:
            # whose answer it was cannot be told; a single waiter must have been meant
            if len(self._waiting) == 1:
                (future,) = self._waiting.values()
                fail(future, WireError(error.condition, f"{self.node}: {error.description}", outcome_unknown=True))
            return
        waiting = self._waiting.get(response.correlation_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    def too_large(self, event: DeliveryTooLarge) -> None:
        if not event.settled:
            event.link.settle(event.delivery_id, event.delivery_id, _ACCEPTED)
        text = f"{self.node} answered with {event.size} bytes; ask for less or raise message_bytes_max"
        for future in self._waiting.values():
            fail(future, TooLarge("amqp:link:message-size-exceeded", text, outcome_unknown=True))

    def disposed(self, event: Disposed) -> None:
        if not event.role:
            return
        for message_id in self._requests.take(event.first, event.last):
            make = send_error(event.state) if type(event.state) is Rejected else None
            future = self._waiting.get(message_id)
            if make is not None and future is not None:
                fail(future, make())

    def credit_changed(self) -> None:
        if self._sender.drain:
            self._sender.drained()
            self._transport.wake()
        waiters, self._credit = self._credit, []
        resolve(*waiters)

    def lost(self, error: WireError) -> None:
        self._drop(error)

    # -- the end

    def close(self) -> None:
        self._drop(LinkLost(LINK_LOST, f"{self.node}: closed here"))

    def _drop(self, error: WireError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._open_timer.cancel()
        self._session.context = self._receiver.context = self._sender.context = None
        self._transport.leave(self)
        if self._transport.error is None:
            self._session.end()
            self._transport.wake()
        fail(self._opened, error)
        for future in self._waiting.values():
            fail(future, type(error)(error.condition, error.description, outcome_unknown=True))
        resolve(*self._credit)
