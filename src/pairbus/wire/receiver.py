"""Receives messages and settles them on the link.

There are two ways to receive. With `credit=0` (the default) each `receive` grants credit for the messages that it wants
and takes the unused rest back (a drain, AMQP 2.6.7), so that no message waits here unseen. With `credit=n` the peer
sends up to n messages ahead: that is faster, but the waiting messages are locked, or in mode 'delete' already gone from
the entity, before anyone asked for them.

With `session_id` it receives only that session's messages, and holds the session while its link is open
(docs/reference/protocol.md#sessions). A `NextSession` in its place is the next session that is free.

A shell. After a lost link, messages that were locked through it can only be settled by token.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pairbus.amqp.errors import DEAD_LETTER, NOT_IMPLEMENTED
from pairbus.amqp.events import Delivered, DeliveryTooLarge, Disposed
from pairbus.amqp.link import Link, ReceiverLink
from pairbus.amqp.performative_types import (
    Accepted,
    Error,
    Modified,
    Open,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.session import Session
from pairbus.amqp.types import Described, Symbol, UInt

from .confirms import Confirms, Settlement, ranges, settle_error
from .errors import LINK_LOST, TIMED_OUT, LinkLost, TimedOut, TooLarge, WireError
from .links import DETACH_S_MAX, LinkClient, ReopeningLink
from .received import ReceivedMessage
from .transport import fail, resolve

if TYPE_CHECKING:
    from .transactions import Transaction

COMPLETE = Accepted().encode()
RELEASE = Released().encode()
ABANDON = Modified(delivery_failed=True, undeliverable_here=False).encode()
#: How long the peer may take to answer a drain.
DRAIN_S_MAX = 5.0
#: How closely messages must follow each other to come together, where the peer can't drain.
LINGER_S = 0.05
MODES = ("lock", "delete")
SESSION_FILTER = "com.microsoft:session-filter"
#: How long the peer waits for a session that is free, as a property of the link, and its word when there was none.
SESSION_WAIT = "com.microsoft:timeout"

_ANSWERS_UNSETTLED = (TransactionalState, Rejected)

Settled = asyncio.Future[None]


class NextSession(NamedTuple):
    """Stands for the next session that is free; the peer waits so long for one. See `WireClient.next_session`."""

    wait_s: float


class Receiver(ReopeningLink):
    """Receives from one entity; get one from `WireClient.receiver`. One `receive` at a time; settling is free for
    all."""

    role = "receiver"

    def __init__(
        self,
        client: LinkClient,
        entity: str,
        *,
        mode: str,
        credit: int,
        timeout: float,
        message_bytes_max: int,
        session_id: str | NextSession | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}; right are 'lock' (settle afterwards) and 'delete' (gone when received)")
        if credit < 0:
            raise ValueError(f"credit {credit}; right is 0 (each receive asks) or how many may come ahead")
        super().__init__(client, entity, timeout)
        self.mode = mode
        self.credit = credit
        self.session_id = session_id
        if isinstance(session_id, NextSession):
            self.answer_s = session_id.wait_s
        self._message_bytes_max = message_bytes_max
        # 'second': the peer answers a settlement, so that we know that it counted
        # (docs/reference/protocol.md#a-settlement-is-answered)
        self._settle_mode = 1 if mode == "lock" else 0
        self._receiver: ReceiverLink | None = None
        self._buffer: deque[ReceivedMessage] = deque()
        self._settlements: Confirms[Settlement[Settled]] = Confirms()
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 0
        self._receiving = False
        self._draining = False
        self._drains = True
        self._lost: WireError | None = None  # during a receive
        self._oversized: TooLarge | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._receiver is not None else "not open"
        return f"<Receiver {self.entity} {self.mode}: {state}, {len(self._buffer)} at hand>"

    @property
    def at_hand(self) -> int:
        """Return how many messages have come that no `receive` has returned."""
        return len(self._buffer)

    @property
    def unsettled(self) -> int:
        """Return how many messages of the link that is open are not settled on it."""
        return 0 if self._receiver is None else self._receiver.unsettled

    # -- receiving

    async def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]:
        """Return available messages, up to `max_count`, as soon as there are any; an empty list after `max_wait`
        seconds.

        Opening the link, where needed, has its own time-out. Raises TimedOut where the peer does not even answer that
        nothing came. Cancelling it loses nothing: messages that arrived are kept for the next call.
        """
        if max_count < 1:
            raise ValueError(f"max_count {max_count}; at least one message has to be wanted")
        if self._receiving:
            raise RuntimeError(f"a receive on {self.entity} is already under way; one at a time")
        self._receiving = True
        try:
            deadline = self._deadline(max_wait)
            if self._receiver is None and not self._take_early(max_count):
                opening = self.loop.time()
                await self._open(opening + self._client.timeout)
                deadline += self.loop.time() - opening
            if self.credit:
                await self._receive_ahead(deadline)
            else:
                await self._receive_on_demand(max_count, deadline)
            if not self._buffer and (problem := self._oversized or self._lost):
                self._oversized = None
                raise problem
            return self._take(max_count)
        finally:
            self._receiving = False
            self._lost = None

    def _take_early(self, max_count: int) -> bool:
        # messages of mode 'delete' that outlived their link must be handed out before anything can fail
        return len(self._buffer) >= max_count or (bool(self._buffer) and self.mode == "delete")

    async def _receive_ahead(self, deadline: float) -> None:
        self._grant()
        if not self._buffer:
            await self._wait(1, deadline)

    async def _receive_on_demand(self, max_count: int, deadline: float) -> None:
        link = self._receiver
        missing = max_count - len(self._buffer)
        if link is None or missing <= 0:
            return
        try:
            if self._drains and self.loop.time() >= deadline:  # what is there now, and nothing else
                await self._drain(link, missing, DRAIN_S_MAX)
                return
            link.flow(missing)
            self._wake()
            if not self._buffer:
                await self._wait(1, deadline)
            if self._receiver is link and link.credit > 0:
                if self._drains:
                    await self._drain(link, link.credit, DRAIN_S_MAX)
                else:
                    await self._linger(link, max_count)
        except BaseException:
            if self._receiver is link and link.credit > 0:
                link.flow(0)
                self._wake()
            raise

    async def _linger(self, link: ReceiverLink, max_count: int) -> None:
        """Wait, without drain, for messages that follow closely, then withdraw the credit. Messages already on their
        way stay for the next call."""
        while self._receiver is link and self._buffer and link.credit > 0:
            had = len(self._buffer)
            await self._wait(max_count, self.loop.time() + LINGER_S)
            if len(self._buffer) == had:
                break
        if self._receiver is link and link.credit > 0:
            link.flow(0)
            self._wake()

    async def _wait(self, count: int, deadline: float) -> None:
        """Wait until there are `count` messages, or the link is lost, or the time is over, which is no error here."""
        self._wanted = count
        self._waiter = self.loop.create_future()
        timer = self.loop.call_at(deadline, resolve, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def _drain(self, link: ReceiverLink, credit: int, limit_s: float) -> None:
        """Ask the peer to send what it has now, up to `credit`, and to give back the rest of it."""
        transport = self._transport
        assert transport is not None
        link.flow(credit, drain=True)
        self._draining = True
        transport.watchers.add(self)
        transport.wake()
        try:
            await self._wait(2**32, self.loop.time() + limit_s)
        finally:
            self._draining = False
            transport.watchers.discard(self)
            link.drain = False
        if self._receiver is link and link.credit > 0:
            if self._buffer:
                # it delivers, but cannot drain; to drop the link would leave these locked and unseen
                link.flow(0)
                transport.wake()
                return
            problem = TimedOut(TIMED_OUT, f"{self.entity}: the peer did not answer a drain in {limit_s:g} s")
            self._drop(LinkLost(LINK_LOST, problem.description))
            transport.overdue()
            raise problem

    def _take(self, max_count: int) -> list[ReceivedMessage]:
        buffer = self._buffer
        if len(buffer) <= max_count:
            taken = list(buffer)
            buffer.clear()
        else:
            taken = [buffer.popleft() for _ in range(max_count)]
        if self.credit:
            self._grant()
        return taken

    def _grant(self) -> None:
        """Top the credit up when half of it has been used, never beyond the size of the buffer."""
        link = self._receiver
        if link is not None:
            want = self.credit - len(self._buffer)
            if want - link.credit >= max(1, self.credit // 2):
                link.flow(want)
                self._wake()

    def _wake(self) -> None:
        if self._transport is not None:
            self._transport.wake()

    # -- settling

    async def complete(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        timeout: float | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        await self._settle(messages, COMPLETE, timeout, transaction)

    async def abandon(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        properties: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        await self._settle(messages, _modified(properties, undeliverable_here=False), timeout, transaction)

    async def defer(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        properties: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        await self._settle(messages, _modified(properties, undeliverable_here=True), timeout, transaction)

    async def dead_letter(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        reason: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
        state = Rejected(error=Error(DEAD_LETTER, description or reason, info))
        await self._settle(messages, state.encode(), timeout, transaction)

    async def release(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Return messages to the entity as if never delivered. The service gives no answer to it
        (docs/reference/protocol.md#outcomes)."""
        link, ids = self._settleable(_many(messages))
        for first, last in ranges(ids):
            link.settle(first, last, RELEASE)
        self._wake()

    async def _settle(
        self,
        messages: ReceivedMessage | Sequence[ReceivedMessage],
        state: bytes,
        timeout: float | None,
        transaction: Transaction | None,
    ) -> None:
        given = _many(messages)
        if given:
            if transaction is not None:
                state = transaction.state(state)
            settlement = self._write_settlement(given, state, math.inf)
            timer = self.loop.call_at(self._deadline(timeout), self._expire, settlement)
            try:
                await settlement.entry
            finally:
                timer.cancel()

    def settle_nowait(self, messages: Sequence[ReceivedMessage], state: bytes = COMPLETE) -> Settled:
        """Write the settlement and return a future of its answer. An error tells the first refusal, and in
        `delivery_ids` all that were refused."""
        deadline = self._deadline(None)
        settlement = self._write_settlement(messages, state, deadline)
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self._on_timer)
        return settlement.entry

    def _write_settlement(
        self, messages: Sequence[ReceivedMessage], state: bytes, deadline: float
    ) -> Settlement[Settled]:
        link, ids = self._settleable(messages)
        settlements = self._settlements
        if len(set(ids)) < len(ids) or any(number in settlements for number in ids):
            raise ValueError(f"a message of {self.entity} is settled twice")
        settlement: Settlement[Settled] = Settlement(self.loop.create_future(), len(ids))
        for first, last in ranges(ids):
            link.settle(first, last, state, settled=False)
        for number in ids:
            settlements.add(number, settlement, deadline)
        self._wake()
        return settlement

    def _settleable(self, messages: Sequence[ReceivedMessage]) -> tuple[ReceiverLink, list[int]]:
        link = self._receiver
        ids: list[int] = []
        for message in messages:
            if message.link is not link or link is None:
                raise LinkLost(
                    LINK_LOST,
                    f"the link that delivered from {self.entity} is gone; settle_by_token still works",
                )
            if message.settled:
                raise ValueError(f"messages of mode {self.mode!r} come settled; there is nothing to settle")
            ids.append(message.delivery_id)
        if link is None:
            raise LinkLost(LINK_LOST, f"the receiver for {self.entity} is not open")
        return link, ids

    def disposed(self, event: Disposed) -> None:
        # What is settled in a transaction is answered unsettled: it is not over before the commit.
        if event.role or not (event.settled or type(event.state) in _ANSWERS_UNSETTLED):
            return
        make = settle_error(event.state)
        if make is None:
            for settlement in self._settlements.take(event.first, event.last):
                settlement.unanswered -= 1
                if not settlement.unanswered:
                    _finish(settlement)
            return
        for number in self._settlements.numbers(event.first, event.last):
            for settlement in self._settlements.take(number, number):
                settlement.refuse(number, make())
                if settlement.is_over:
                    _finish(settlement)

    # -- what arrives

    def delivered(self, event: Delivered) -> None:
        self._buffer.append(
            ReceivedMessage(
                event.payload, event.delivery_id, event.tag, event.link, event.settled, event.message_format
            )
        )
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (len(self._buffer) >= self._wanted or not event.link.credit):
            waiter.set_result(None)

    def too_large(self, event: DeliveryTooLarge) -> None:
        if not event.settled:
            # its delivery count rises, so that it ends in the dead-letter queue rather than coming forever
            event.link.settle(event.delivery_id, event.delivery_id, ABANDON)
        self._oversized = TooLarge(
            "amqp:link:message-size-exceeded",
            f"{self.entity} delivered {event.size} bytes; message_bytes_max is {self._message_bytes_max}",
        )
        resolve(self._waiter)

    def input_done(self) -> None:
        if self._draining and (self._receiver is None or self._receiver.credit <= 0):
            resolve(self._waiter)

    # -- opening, losing, time, closing

    async def _attempt(self) -> None:
        try:
            await super()._attempt()
        except WireError as error:
            # RabbitMQ knows only 'first', and answers unsettled dispositions all the same
            if self._settle_mode == 0 or error.condition != NOT_IMPLEMENTED:
                raise
            self._settle_mode = 0
            await super()._attempt()

    def _attach(self, session: Session, name: str) -> Link:
        locking = self.mode == "lock"
        wanted: dict[Symbol, str | None] | None = None
        properties = None
        if isinstance(self.session_id, NextSession):
            wanted = {Symbol(SESSION_FILTER): None}
            properties = {Symbol(SESSION_WAIT): UInt(int(self.session_id.wait_s * 1000))}
        elif self.session_id is not None:
            wanted = {Symbol(SESSION_FILTER): self.session_id}
        return session.attach(
            name,
            True,
            Source(address=self.entity, filter=wanted),
            Target(address=name),
            snd_settle_mode=0 if locking else 1,
            rcv_settle_mode=self._settle_mode,
            max_message_size=self._message_bytes_max,
            properties=properties,
        )

    def _opened(self, link: Link) -> None:
        assert isinstance(link, ReceiverLink)
        if isinstance(self.session_id, NextSession):
            self.session_id = _session_of(link)
        self._receiver = link
        self._drains = drains(link.session.connection.remote_open)
        if self.credit:
            self._grant()

    def _dropped(self, error: WireError) -> None:
        self._receiver = None
        if self.mode == "lock":
            self._buffer.clear()  # the entity delivers them again when their locks run out
        if self._receiving:
            self._lost = error
        self._fail_settlements(set(self._settlements.take_all()), error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        resolve(self._waiter)

    def _on_timer(self) -> None:
        self._timer = None
        self._too_late(set(self._settlements.take_overdue(self.loop.time())))
        deadline = self._settlements.deadline
        if deadline is not None:
            self._timer = self.loop.call_at(deadline, self._on_timer)

    def _expire(self, settlement: Settlement[Settled]) -> None:
        self._settlements.remove({settlement})
        self._too_late({settlement})

    def _too_late(self, settlements: set[Settlement[Settled]]) -> None:
        self._fail_settlements(settlements, TimedOut(TIMED_OUT, "no answer in time"))
        if settlements and self._transport is not None:
            self._transport.overdue()

    def _fail_settlements(self, settlements: Iterable[Settlement[Settled]], error: WireError) -> None:
        for settlement in settlements:
            text = f"a settlement on {self.entity} was under way: {error.description}"
            fail(settlement.entry, type(error)(error.condition, text, outcome_unknown=True))

    async def close(self) -> list[ReceivedMessage]:
        """Close the link and release what was not handed out. In mode 'delete' that can't be done: those messages are
        returned here."""
        if self.closed:
            return []
        self.closed = True
        self._flight.cancel()
        self._client.forget(self)
        link = self._receiver
        if link is not None and not self._receiving and link.credit > 0 and self._drains:
            try:
                await self._drain(link, link.credit, DETACH_S_MAX)
            except WireError:
                pass
        left = list(self._buffer)
        self._buffer.clear()
        if self.mode == "delete":
            await self._detach()
            return left
        mine = [message for message in left if message.link is self._receiver and not message.settled]
        if mine and self._receiver is not None:
            await self.release(mine)
        await self._detach()
        return []


def drains(opened: Open | None) -> bool:
    """Return whether the peer can drain: RabbitMQ before 4 crashes the session when a classic queue is drained."""
    properties = (opened.properties if opened is not None else None) or {}
    version = str(properties.get("version", ""))
    return not (properties.get("product") == "RabbitMQ" and version.split(".")[0] in ("3", "2", ""))


def _modified(properties: Mapping[str, Any] | None, *, undeliverable_here: bool) -> bytes:
    annotations = {Symbol(name): value for name, value in properties.items()} if properties else None
    return Modified(
        delivery_failed=True, undeliverable_here=undeliverable_here, message_annotations=annotations
    ).encode()


def _session_of(link: Link) -> str:
    """Return which session the peer has given, by the filter in its answer."""
    filters = {str(name): value for name, value in (getattr(link.source, "filter", None) or {}).items()}
    found = filters.get(SESSION_FILTER)
    return str(found.value if isinstance(found, Described) else found)


def _many(messages: ReceivedMessage | Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
    return (messages,) if isinstance(messages, ReceivedMessage) else messages


def _finish(settlement: Settlement[Settled]) -> None:
    if settlement.error is None:
        resolve(settlement.entry)
    else:
        settlement.error.delivery_ids = tuple(settlement.refused)
        fail(settlement.entry, settlement.error)
