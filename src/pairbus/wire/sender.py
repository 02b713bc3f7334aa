"""Sends messages: one at a time, pipelined with confirms, or in batches.

A shell: it writes to the engine, keeps futures and sets timers. `confirms` decides what an answer means, `batches` how
a list is split. A message that was on the wire when its time ran out, or when the link was lost, fails with
`outcome_unknown`; it is never sent again automatically. One that still waited for credit fails as not sent.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.amqp.events import Disposed
from pairbus.amqp.link import Link, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, join_batch
from pairbus.amqp.performative_types import (
    Accepted,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.session import Session
from pairbus.amqp.types import Symbol

from .batches import BatchHistory, batch_bytes_max, cut, group
from .confirms import Confirms, send_error
from .errors import TIMED_OUT, WINDOW_FULL, LinkLost, TimedOut, TooLarge, WindowFull, WireError
from .links import LinkClient, ReopeningLink
from .transport import Transport, before, fail, resolve

if TYPE_CHECKING:
    from .transactions import Transaction

_TAG = struct.Struct(">I").pack
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
_TERMINAL = (Accepted, Rejected, Released, Modified)
#: Messages that wait here for credit or for the socket, in bytes.
QUEUED_BYTES_MAX = 4 * 1024 * 1024


class Sender(ReopeningLink):
    """Sends to one entity; get one from `WireClient.sender`. Safe for many tasks at once."""

    role = "sender"

    def __init__(self, client: LinkClient, entity: str, *, window: int, timeout: float, via: str | None = None) -> None:
        if window < 1:
            raise ValueError(f"a window of {window}: at least one message must be allowed under way")
        super().__init__(client, entity, timeout)
        self.window = window
        #: The queue or topic through which it sends in a transaction, where that is another one.
        self.via = via
        self._sender: SenderLink | None = None
        self._bytes_max: float = math.inf
        self._batch_bytes_max = 0
        self._confirms: Confirms[asyncio.Future[None]] = Confirms()
        self._queue: deque[tuple[bytes, int, asyncio.Future[None], float, bytes | None]] = deque()
        self._queued_bytes = 0
        self._batches = BatchHistory()
        self._tag = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._sender is not None else "not open"
        return f"<Sender {self.entity}: {state}, {self.under_way} of {self.window} under way>"

    @property
    def under_way(self) -> int:
        """How many messages have no answer yet, those that wait for credit included."""
        return len(self._confirms) + len(self._queue)

    @property
    def room(self) -> int:
        """How many messages `send_nowait` takes now; `await ready()` where it is 0."""
        if self._sender is None or self._queued_bytes >= QUEUED_BYTES_MAX:
            return 0
        return self.window - len(self._confirms) - len(self._queue)

    @property
    def message_bytes_max(self) -> float:
        """The largest message that the link takes, as the peer said when it was opened; infinite without a limit."""
        return self._bytes_max

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the link is open and there is room."""
        await self._ready(self._deadline(timeout))

    async def _ready(self, deadline: float) -> None:
        await self._open(deadline)
        while self.room <= 0:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiters.append(waiter)
            await before(deadline, f"waiting for room to send to {self.entity}", waiter)
            await self._open(deadline)

    # -- sending

    async def send(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Send a message and return when the peer has accepted it: outright, or as part of a transaction."""
        deadline = self._deadline(timeout)
        if self.room <= 0:
            await self._ready(deadline)
        state = None if transaction is None else transaction.state()
        future = self._submit(payload, message_format, math.inf, state)
        timer = self.loop.call_at(deadline, self._expire, (future,))
        try:
            await future
        finally:
            timer.cancel()

    def send_nowait(self, payload: bytes, message_format: int = 0) -> asyncio.Future[None]:
        """Send and return the confirm. The caller must look at every one of them, or call `flush`.

        Raises WindowFull without room and LinkLost where the link is not open; then nothing was sent; `ready` helps.
        """
        deadline = self.loop.time() + self.timeout
        future = self._submit(payload, message_format, deadline)
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self._on_timer)
        return future

    async def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        message_format: int = 0,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> list[WireError | None]:
        """Send messages pipelined and return for each the error or None. Raise only before the first was sent."""
        deadline = self._deadline(timeout)
        await self._ready(deadline)
        state = None if transaction is None else transaction.state()
        transfers = ((payload, message_format) for payload in payloads)
        return await self._transfer(transfers, len(payloads), deadline, state)

    async def send_grouped(
        self, payloads: Sequence[bytes], companies: Sequence[object], *, timeout: float | None = None
    ) -> list[WireError | None]:
        """Do as `send_many`, but neighbours with the same key (`batches.group`) share a transfer, and its answer.

        Messages whose transfer was refused as not allowed are sent alone, since some entities take no batch of them."""
        if self._batches.sends_singly:
            return await self.send_many(payloads, timeout=timeout)
        deadline = self._deadline(timeout)
        await self._ready(deadline)
        parts = list(group(payloads, companies, self._batch_bytes_max))
        transfers = (
            (payloads[part.start], 0)
            if len(part) == 1
            else (join_batch(payloads[part.start : part.stop]), BATCH_FORMAT)
            for part in parts
        )
        answers = await self._transfer(transfers, len(parts), deadline)
        results: list[WireError | None] = []
        for part, answer in zip(parts, answers, strict=True):
            if answer is None or answer.condition != NOT_ALLOWED or len(part) == 1:
                results += [answer] * len(part)
            else:
                results += await self._singly(payloads[part.start : part.stop], answer, deadline)
        return results

    async def _singly(self, payloads: Sequence[bytes], refusal: WireError, deadline: float) -> list[WireError | None]:
        """Send what was refused as a batch one by one, and remember where that helps."""
        self._batches.refused(refusal.condition, len(payloads))
        alone = await self._transfer(((payload, 0) for payload in payloads), len(payloads), deadline)
        for answer in alone:
            self._batches.answered_alone(answer is None)
        return alone

    async def _transfer(
        self, transfers: Iterable[tuple[bytes, int]], count: int, deadline: float, state: bytes | None = None
    ) -> list[WireError | None]:
        """Send payloads with their formats, and return an answer for each."""
        futures: list[asyncio.Future[None]] = []
        results: list[WireError | None] = []
        timer = self.loop.call_at(deadline, self._expire, futures)
        try:
            problem: WireError | None = None
            for payload, message_format in transfers:
                if self.room <= 0:
                    try:
                        await self._ready(deadline)
                    except WireError as error:
                        problem = error
                        break
                try:
                    futures.append(self._submit(payload, message_format, math.inf, state))
                except TooLarge as error:
                    failed: asyncio.Future[None] = self.loop.create_future()
                    fail(failed, error)
                    futures.append(failed)
            for future in futures:
                try:
                    await future
                    results.append(None)
                except WireError as error:
                    results.append(error)
            results.extend([problem] * (count - len(results)))
            return results
        finally:
            timer.cancel()
            for future in futures:
                future.cancel()

    async def send_batch(self, payloads: Sequence[bytes], *, timeout: float | None = None) -> None:
        """Send in as few transfers as the link's limit allows, each all or nothing. Raise the first refusal; where the
        list had to be cut, others may have been accepted: `send_batch_nowait` tells them apart."""
        if not payloads:
            return
        deadline = self._deadline(timeout)
        await self._ready(deadline)
        parts = list(cut(payloads, self._batch_bytes_max))
        transfers = ((join_batch(payloads[part.start : part.stop]), BATCH_FORMAT) for part in parts)
        for answer in await self._transfer(transfers, len(parts), deadline):
            if answer is not None:
                raise answer

    def send_batch_nowait(self, payloads: Sequence[bytes]) -> list[tuple[range, asyncio.Future[None]]]:
        """Send batches and return the indexes in each transfer and its confirm. Needs as much room as there are
        transfers."""
        if self._sender is None:
            raise self._not_open()
        parts = list(cut(payloads, self._batch_bytes_max))
        if len(parts) > self.room:
            raise self._full(len(parts))
        return [(part, self.send_nowait(join_batch(payloads[part.start : part.stop]), BATCH_FORMAT)) for part in parts]

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything under way has its answer, and raise the first failure among them."""
        deadline = self._deadline(timeout)
        futures = [future for future, _ in self._confirms.entries()] + [entry[2] for entry in self._queue]
        for future in futures:
            if not future.done():
                await asyncio.wait((future,), timeout=max(0.0, deadline - self.loop.time()))
                if not future.done():
                    raise TimedOut(TIMED_OUT, f"flushing {self.entity}: no answer in time", outcome_unknown=True)
        for future in futures:
            if not future.cancelled() and (error := future.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Close the link. What is under way fails with an unknown outcome: `flush` first."""
        if not self.closed:
            self.closed = True
            self._flight.cancel()
            self._client.forget(self)
            await self._detach()

    # -- the hot path

    def _submit(
        self, payload: bytes, message_format: int, deadline: float, state: bytes | None = None
    ) -> asyncio.Future[None]:
        link = self._sender
        if link is None:
            raise self._not_open()
        confirms, queue = self._confirms, self._queue
        if len(confirms) + len(queue) >= self.window or self._queued_bytes >= QUEUED_BYTES_MAX:
            raise self._full(1)
        if len(payload) > self._bytes_max:
            raise TooLarge(
                "amqp:link:message-size-exceeded",
                f"{self.entity} takes messages of up to {self._bytes_max} bytes; this one has {len(payload)}",
            )
        future = self.loop.create_future()
        transport = self._transport
        assert transport is not None
        if link.credit <= 0 or queue or transport.paused or link.session.is_blocked:
            queue.append((payload, message_format, future, deadline, state))
            self._queued_bytes += len(payload)
            transport.watchers.add(self)  # a session's window may open without an event for the link
            return future
        self._tag = tag = (self._tag + 1) & 0xFFFFFFFF
        confirms.add(link.send(payload, _TAG(tag), message_format=message_format, state=state), future, deadline)
        transport.wrote(len(payload))
        return future

    def _pump(self) -> None:
        link, transport, queue = self._sender, self._transport, self._queue
        if link is None or transport is None:
            return
        while queue and link.credit > 0 and not transport.paused and not link.session.is_blocked:
            payload, message_format, future, deadline, state = queue.popleft()
            self._queued_bytes -= len(payload)
            if not future.done():  # cancelled, or its time ran out: never sent
                self._tag = tag = (self._tag + 1) & 0xFFFFFFFF
                delivery_id = link.send(payload, _TAG(tag), message_format=message_format, state=state)
                self._confirms.add(delivery_id, future, deadline)
                transport.wrote(len(payload))

    def input_done(self) -> None:
        self._pump()
        if not self._queue and self._transport is not None:
            self._transport.watchers.discard(self)
            self._wake_waiters()

    def credit_changed(self) -> None:
        link = self._sender
        if link is None:
            return
        self._pump()
        if link.drain and not self._queue:
            link.drained()
            assert self._transport is not None
            self._transport.wake()
        self._wake_waiters()

    def disposed(self, event: Disposed) -> None:
        if not event.role:
            return
        state = event.state
        if type(state) is TransactionalState:
            state = state.outcome
        if not event.settled:
            # the peer wants to hear that we are done with it, where it told an outcome at all
            if type(state) not in _TERMINAL:
                return
            event.session.dispose(False, event.first, event.last, True, state)
        futures = self._confirms.take(event.first, event.last)
        if type(state) is Accepted:
            for future in futures:
                if not future.done():
                    future.set_result(None)
        else:
            make = send_error(state)
            assert make is not None  # it was not accepted
            for future in futures:
                fail(future, make())
        if self._queue:
            self._pump()
        if self._waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        resolve(*waiters)

    # -- opening, losing, time

    def _attach(self, session: Session, name: str) -> Link:
        if self.via is None:
            return session.attach(name, False, Source(address=name), Target(address=self.entity))
        properties = {Symbol(TRANSFER_DESTINATION): self.entity}
        return session.attach(name, False, Source(address=name), Target(address=self.via), properties=properties)

    async def _authorized(self, deadline: float) -> Transport:
        if self.via is not None:
            await self._client.authorized(self.via, deadline)
        return await super()._authorized(deadline)

    def _opened(self, link: Link) -> None:
        assert isinstance(link, SenderLink)
        self._sender = link
        self._bytes_max = link.max_message_size or math.inf
        self._batch_bytes_max = batch_bytes_max(link.max_message_size, link.properties)

    def _dropped(self, error: WireError) -> None:
        self._sender = None
        kind, condition, text = type(error), error.condition, error.description
        for future in self._confirms.take_all():
            fail(future, kind(condition, f"a message to {self.entity} was under way: {text}", outcome_unknown=True))
        queue, self._queue, self._queued_bytes = self._queue, deque(), 0
        for _, _, future, _, _ in queue:
            fail(future, kind(condition, f"a message to {self.entity} was not sent: {text}"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_waiters()

    def _on_timer(self) -> None:
        self._timer = None
        now = self.loop.time()
        self._time_out(set(self._confirms.take_overdue(now)), {entry[2] for entry in self._queue if entry[3] <= now})
        deadlines = [self._confirms.deadline, *(entry[3] for entry in self._queue if entry[3] != math.inf)]
        following = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if following is not None:
            self._timer = self.loop.call_at(following, self._on_timer)

    def _expire(self, futures: Sequence[asyncio.Future[None]]) -> None:
        late = {future for future in futures if not future.done()}
        sent = self._confirms.remove(late)
        self._time_out(sent, late - sent)

    def _time_out(self, sent: set[asyncio.Future[None]], queued: set[asyncio.Future[None]]) -> None:
        answerless = f"no answer from {self.entity} in time: the message may have been stored"
        unsent = f"{self.entity} gave no credit, or the socket took nothing: the message was not sent"
        for future in sent:
            fail(future, TimedOut(TIMED_OUT, answerless, outcome_unknown=True))
        for future in queued:
            fail(future, TimedOut(TIMED_OUT, unsent))
        kept = [entry for entry in self._queue if not entry[2].done()]
        if len(kept) < len(self._queue):
            self._queue = deque(kept)
            self._queued_bytes = sum(len(entry[0]) for entry in kept)
        self._wake_waiters()
        if sent and self._transport is not None:
            self._transport.overdue()

    def _not_open(self) -> LinkLost:
        self._check_not_closed()
        return LinkLost("pairbus:link-lost", f"the sender for {self.entity} is not open; await ready() opens it")

    def _full(self, wanted: int) -> WindowFull:
        return WindowFull(
            WINDOW_FULL,
            f"room for {max(0, self.room)} of {wanted}: {self.under_way} of {self.window} messages to {self.entity} "
            "are under way; await ready()",
        )
