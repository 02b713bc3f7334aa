"""Serves one client's AMQP connection to a namespace: the shell around the AMQP engine.

It owns the transport and its timers, passes the engine's events to the node behind each link (links.py), and detaches
links whose token has expired. It writes once per turn of the loop.

A connection must not slow others down: it works for `_TURN_S` in a turn of the loop, and further input waits. Nothing
is read from it while it is behind, while too much of it is unconfirmed, or while it does not take our answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from pairbus.amqp import errors as conditions
from pairbus.amqp.connection import Connection
from pairbus.amqp.errors import AmqpError
from pairbus.amqp.events import (
    Closed,
    CreditChanged,
    Delivered,
    DeliveryTooLarge,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    Opened,
    SaslInitiated,
    SessionBegun,
    SessionEnded,
    TransactionalDelivered,
)
from pairbus.amqp.link import Link, ReceiverLink
from pairbus.amqp.performative_types import Error, TransactionalState
from pairbus.amqp.performatives import ACCEPTED_BYTES
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.session import Session
from pairbus.amqp.types import Symbol
from pairbus.billing import APP, cause_in
from pairbus.broker.access import unauthenticated
from pairbus.broker.access.authorization import Authorization
from pairbus.broker.format.content_checks import AT_ONCE_BYTES_MAX, Checked
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.model.transaction import Transaction
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull
from pairbus.sas import LISTEN, SEND, Claims

from . import transactions
from .attach import attach_link
from .links import Node, RequestNode, ResponseNode, SourceNode, TargetNode, rejected
from .session_waiters import Waiting

if TYPE_CHECKING:
    from pairbus.broker.server import NamespaceServer

log = logging.getLogger("pairbus.broker.amqp_connection")

#: Bytes of unconfirmed messages, and of requests in slices, that a connection may have under way before we stop reading
#: from it.
_HELD_BYTES_MAX = 16 * 1024 * 1024
#: Waiting in the transport: beyond the first no messages are delivered, beyond the second nothing is read either.
_WRITE_BYTES_HIGH = 1024 * 1024
_WRITE_BYTES_MAX = 4 * 1024 * 1024
_TURN_S = 0.005
_NAME_CHARS_KEPT = 64
#: How many bytes the engine gets at a time: the turn can end between two.
_SLICE_BYTES = 16 * 1024
#: How long a client has to read our last frames.
_LINGER_S = 10.0
#: A connection that has not opened by then is not a client.
_OPENING_S = 60.0
#: The least time between two heartbeats.
_TICK_S_MIN = 0.05
_LOCK_LOST = rejected(
    Refusal(conditions.MESSAGE_LOCK_LOST, "The lock supplied is invalid: the delivery was settled or its lock expired.")
)


class AmqpConnection(asyncio.Protocol):
    """The asyncio protocol of a client's connection, and the interface for the nodes behind its links."""

    def __init__(self, host: NamespaceServer) -> None:
        self.host = host
        self.loop = host.loop
        self.authorization = Authorization()
        #: The billing cause that it stated when it opened.
        self.cause = APP
        #: The SDK that it named when it opened; empty if it named none.
        self.product = ""
        self.can_write = True
        self.is_silent = False
        #: Entities to which messages were sent that a fault leaves unanswered.
        self.hung: set[str] = set()
        #: Transactions that are not discharged, by id, with the session of their coordinator.
        self.transactions: dict[bytes, tuple[Transaction, Session]] = {}
        #: Bytes of deliveries since the last flush.
        self.unflushed_bytes = 0
        #: Bytes of responses that wait for credit on their links.
        self.response_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._engine = Connection(
            server=True,
            container_id=host.name,
            limits=host.limits,
            idle_timeout=host.idle_timeout_s,
            sasl=SaslServer(check_plain=self._check_plain),
            properties={Symbol("product"): "pairbus"},
        )
        self._engine.gathered_bytes_max = unauthenticated.EACH_BYTES_MAX
        #: It has no token yet, and may use very little memory (access/unauthenticated.py).
        self._is_unauthenticated = True
        self._unauthenticated_since = host.clock()
        self._unauthenticated_links = self._unauthenticated_sessions = 0
        self._login: list[Claims] = []  # what the key permits that SASL PLAIN named
        self._is_secure = False
        self._largest_read = 0
        self._flush_due = False
        self._confirms: list[tuple[ReceiverLink, int]] = []
        self._held_bytes = 0
        self._is_holding = False
        self._reading = True
        self._unread = b""
        self._check: Job[Checked] | None = None  # of a large message; what came after it on the connection waits
        self._events: Iterator[Event] = iter(())
        self._is_behind = False
        self._is_scheduled = False
        self._is_clogged = False
        self._is_leaving = False
        self._was_request = False
        self._turn_ends = 0.0
        self._used_s = 0.0
        self._stopped_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._claims_deadline = float("inf")
        self._idle_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._idle: dict[Link, tuple[int, float]] = {}
        #: Links with a node behind them. The engine's own list does not do: it is ahead of the events.
        self._served: dict[Link, None] = {}
        #: The same by what a name is unique for (`_key`).
        self._named: dict[tuple[bool, str, Session | None], Link] = {}

    def __repr__(self) -> str:
        return f"<AmqpConnection to {self.host.name}: {len(self._served)} links, {self._engine!r}>"

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES_HIGH)
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        self.host.connections[self] = None
        self.host.recorder.connected()
        self._account()
        self._timer = self.loop.call_later(_OPENING_S, self._opening_timed_out)
        if self.host.link_idle_timeout_s is not None:
            self._check_idle(self.host.link_idle_timeout_s)
        self.host.cut_off(self)

    @property
    def names(self) -> set[str]:
        """The names by which a fault may select this client: its address, and the names of the keys that it has
        used."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        address = {str(peer[0])} if isinstance(peer, tuple) and peer else set()
        return address | self.authorization.key_names

    def data_received(self, data: bytes) -> None:
        if self._is_behind:  # a transport may have had more in hand when it was paused
            self._unread += data
            return
        self._unread = data
        self._work()

    def _work(self) -> None:
        self._flush_due = True  # what the events cause is written below, not in its own turn
        now = monotonic()
        # a loop may hand us many reads in one turn: they are one as long as others had less time than we
        self._used_s = max(0.0, self._used_s - (now - self._stopped_at))
        self._turn_ends = now + _TURN_S - self._used_s
        unread, position = self._unread, 0
        try:
            while (done := self._handle_events()) and position < len(unread) and not self._is_leaving:
                if position and not self._has_time():
                    done = False
                    break
                piece = unread[position : position + _SLICE_BYTES] if len(unread) > _SLICE_BYTES else unread
                position += _SLICE_BYTES
                self._events = iter(self._engine.receive(piece, self.loop.time()))
        except Exception:
            self._fail()
            done, position = True, len(unread)
        self._unread = unread[position:]
        self._flush()
        if self._is_unauthenticated:
            self._largest_read = max(self._largest_read, len(unread))
            self._account()
        self._stopped_at = monotonic()
        self._used_s += self._stopped_at - now
        done = done and self._used_s < _TURN_S
        if self._is_behind == done:
            self._is_behind = not done
            self._update_reading()
        self._go_on_soon()

    def _fail(self) -> None:
        """Close the connection after an error that is a bug of ours: only this client is affected."""
        log.exception("%s: a connection is closed after an error", self.host.name)
        self.close(Refusal(conditions.INTERNAL_ERROR, "the broker failed to handle a request; see its log"))

    def _account(self) -> None:
        """Report how much is held for a client that has put no token, and close the connection if that is too much."""
        if self._transport is None or self._is_leaving:
            return
        size = len(self._unread) + self._engine.held_bytes + self.response_bytes
        size += self._transport.get_write_buffer_size() + len(self.transactions) * unauthenticated.TRANSACTION_BYTES
        refusal = self.host.unauthenticated.hold(self, self._is_secure, size, largest_read=self._largest_read)
        if refusal is not None:
            self.close(refusal)

    def refuses_transaction(self, count_max: int) -> Refusal | None:
        """Return why no further transaction can be declared, if it can't; `count_max` is the limit of a client that has
        put a token."""
        if self._is_unauthenticated and len(self.transactions) >= unauthenticated.TRANSACTIONS_MAX:
            return unauthenticated.too_many("transactions", unauthenticated.TRANSACTIONS_MAX)
        if len(self.transactions) >= count_max:
            text = f"The connection has {count_max} transactions, the most that it can have. Discharge some."
            return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        return None

    def _mark_authenticated(self) -> None:
        """Lift the limits of clients without a token."""
        self._is_unauthenticated = False
        self.host.unauthenticated.release(self)
        self._engine.gathered_bytes_max = self.host.limits.gathered_bytes_max

    def _handle_events(self) -> bool:
        """Return False when the turn was over before all events were handled."""
        handlers = _HANDLERS
        for event in self._events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(self, event)
            if self._was_request:
                self._was_request = False
                if not self._has_time():
                    return False
        return True

    def _has_time(self) -> bool:
        return monotonic() < self._turn_ends and self._check is None and not (self._is_holding or self.is_silent)

    def _go_on_soon(self) -> None:
        if self._is_behind and not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        waits = self._check is not None or self._is_holding or self._is_clogged or self.is_silent
        if self._is_behind and not waits:
            self._used_s = 0.0
            self._work()

    def _drop_input(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._unread = b""
        for _ in self._events:
            pass

    def _update_reading(self) -> None:
        wanted = not (self.is_silent or self._is_behind or self._is_holding or self._is_clogged)
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.connections.pop(self, None)
        self.host.unauthenticated.release(self)
        self._transport = None
        self.can_write = False
        self._drop_input()
        for timer in (self._timer, self._idle_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._leave_all()
        self._engine.lose()

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = not self.is_silent
        if self._is_clogged:
            self._is_clogged = False
            self._update_reading()
            self._go_on_soon()
        self._wake_sources()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self, refusal: Refusal) -> None:
        """Close the connection with an error that says why."""
        self._engine.close(Error(refusal.condition, refusal.description, None))
        self._flush()
        self._hang_up()

    def _hang_up(self) -> None:
        self._drop_input()
        self._leave_all()
        if self._transport is not None and not self._is_leaving:
            self._is_leaving = True
            self._transport.close()
            # one that does not read would stay forever
            self._linger_timer = self.loop.call_later(_LINGER_S, self.abort)

    def silence(self, on: bool) -> None:
        """Hold all bytes in both directions, as a fault that is a black hole does, or let them flow again."""
        if self.is_silent == on or self._transport is None:
            return
        self.is_silent = on
        self.can_write = not on
        self._update_reading()
        if not on:
            self._go_on_soon()
            self.flush_soon()
            self._wake_sources()

    def flush_soon(self) -> None:
        """Write the engine's output at the end of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._confirms:
            self._write_confirms()
        if self.is_silent or self._transport is None:
            return
        data = self._engine.output()
        if data:
            self._transport.write(data)
            if not self.can_write and self._transport.get_write_buffer_size() > _WRITE_BYTES_MAX:
                self._is_clogged = True
                self._update_reading()
        if self._engine.is_closed:
            self._hang_up()
        elif self.unflushed_bytes:
            stopped = self.unflushed_bytes >= _WRITE_BYTES_HIGH
            self.unflushed_bytes = 0
            if stopped and self.can_write:
                self._wake_sources()

    def _write_confirms(self) -> None:
        """Confirm sends in ranges: both SDKs understand them, and it halves the frames."""
        confirms = self._confirms
        self._confirms = []
        link, first = confirms[0]
        last = first
        for next_link, delivery_id in confirms[1:]:
            if next_link is not link or delivery_id != (last + 1) & 0xFFFFFFFF:
                link.settle(first, last, ACCEPTED_BYTES)
                link, first = next_link, delivery_id
            last = delivery_id
        link.settle(first, last, ACCEPTED_BYTES)

    # -- time

    def _opening_timed_out(self) -> None:
        if not self._engine.is_open:  # otherwise the event is yet to be handled
            self.abort()

    def _tick(self) -> None:
        deadline = self._engine.tick(self.loop.time())
        for event in self._engine.poll():
            if type(event) is Closed:
                self._on_closed(event)
        self._flush()
        if deadline is not None and self._transport is not None:
            # a client that wants a heartbeat every millisecond gets fewer, so that others get their share of the loop
            self._timer = self.loop.call_at(max(deadline, self.loop.time() + _TICK_S_MIN), self._tick)

    def _check_idle(self, after_s: float) -> None:
        """Detach links without traffic for this long, as the service does; a receiver that has asked for messages and
        waits for them is not idle."""
        now = self.loop.time()
        seen: dict[Link, tuple[int, float]] = {}
        for link in self.links():
            waits = link.is_sender and link.credit > 0
            if not isinstance(link.context, TargetNode | SourceNode) or waits:
                continue
            count, since = self._idle.get(link, (-1, now))
            if count != link.delivery_count:
                since = now
            if now - since < after_s:
                seen[link] = (link.delivery_count, since)
                continue
            text = f"The link '{link.name}' is force detached: nothing was sent over it for {after_s:g} s."
            self.cut(link, Refusal(conditions.DETACH_FORCED, text))
        self._idle = seen
        self._idle_timer = self.loop.call_later(after_s / 4, self._check_idle, after_s)

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: as much of the time for a token is left as before."""
        self._unauthenticated_since += seconds

    def expire_claims(self, now: float) -> None:
        """Detach links whose token has expired (docs/reference/protocol.md#shared-access-signatures). Called every
        second by the wall clock, which may jump."""
        if self._is_unauthenticated:
            since = self._unauthenticated_since
            if now - since >= unauthenticated.WAIT_S_MAX:
                self.close(unauthenticated.too_late(now - since))
        if now < self._claims_deadline:
            return
        if self.authorization.expire(now):
            self._recheck(now)
        self._set_claims_deadline()

    def _set_claims_deadline(self) -> None:
        deadline = self.authorization.deadline
        self._claims_deadline = float("inf") if deadline is None else deadline

    def _recheck(self, now: float) -> None:
        for link in self.links():
            context = link.context
            if not isinstance(context, TargetNode | SourceNode | Waiting):
                continue
            right = SEND if isinstance(context, TargetNode) else LISTEN
            paths = [context.path]
            if isinstance(context, TargetNode) and context.via is not None:
                paths.append(context.via.path)
            for path in paths:
                if not self.authorization.allows(right, path, now):
                    self.cut(link, Refusal(conditions.UNAUTHORIZED_ACCESS, f"the token for {path!r} has expired"))
                    break

    # -- what links ask for

    def links(self) -> list[Link]:
        """Return the links that are attached."""
        return [link for session in self._engine.sessions for link in session.links if not link.detached]

    def confirm(self, link: ReceiverLink, delivery_id: int) -> None:
        """Accept a delivery, together with those that are confirmed in the same turn."""
        self._confirms.append((link, delivery_id))
        if not self._flush_due:
            self.flush_soon()

    def reject(self, link: ReceiverLink, delivery_id: int, state: bytes) -> None:
        """Settle a delivery with another outcome, after those that were confirmed before it."""
        if self._confirms:
            self._write_confirms()
        link.settle(delivery_id, delivery_id, state)
        self.flush_soon()

    def loses_answer(self, path: str) -> bool:
        """Return whether a fault keeps the answer to a stored send from the client; its connection is cut instead."""
        faults = self.host.faults
        after_s = faults.lost_answer(path, self.host.clock()) if faults.is_on else None
        if after_s is None:
            return False
        if after_s:
            self.loop.call_later(after_s, self.abort)
        else:
            self.abort()
        return True

    def hang(self, path: str) -> None:
        """Note a send that is neither stored nor answered: when that fault ends, the connection is cut."""
        self.hung.add(path)

    @property
    def takes_more(self) -> bool:
        """Whether more deliveries may be sent in this turn."""
        return self.can_write and self.unflushed_bytes < _WRITE_BYTES_HIGH

    def hold(self, size: int) -> None:
        """Count the bytes of the client's unfinished work; too many stop reading until `release`."""
        self._held_bytes += size
        if self._held_bytes > _HELD_BYTES_MAX and not self._is_holding:
            self._is_holding = True
            self._update_reading()

    def release(self, size: int) -> None:
        self._held_bytes -= size
        if self._is_holding and self._held_bytes <= _HELD_BYTES_MAX // 2:
            self._is_holding = False
            self._update_reading()
            self._go_on_soon()

    def requested(self) -> None:
        """Note that a request was handled: it may take long, unlike everything else, so the turn may be over."""
        self._was_request = True

    def unsettled(self, link: Link, delivery_id: int, source: SourceNode) -> None:
        deliveries: dict[int, SourceNode] | None = link.session.context
        if deliveries is None:
            deliveries = link.session.context = {}
        deliveries[delivery_id] = source

    def forget(self, link: Link, delivery_id: int) -> None:
        if link.session.context is not None:
            link.session.context.pop(delivery_id, None)

    def cut(self, link: Link, refusal: Refusal) -> None:
        """Detach or refuse a link with a reason that its client can act on."""
        self._leave(link)
        error = Error(refusal.condition, refusal.description, None)
        if link.answered:
            link.detach(error)
        elif not link.detached:
            link.refuse(error)
            link.name = link.name[:_NAME_CHARS_KEPT]  # until the client has detached too, which it may never do
        self.host.recorder.refused(None, refusal)
        self.flush_soon()

    def put_node(self, link: Link, node: Node) -> None:
        """Put a node behind the link; its `closed` is called when the link ends, in whatever way."""
        link.context = node
        self._served[link] = None
        self._named[_key(link)] = link

    def _steal(self, link: Link) -> None:
        """Detach the link that has the name of one which is being attached (AMQP 2.6.1)."""
        for session in (None, link.session):
            other = self._named.get((link.is_sender, link.name, session))
            if other is not None and other is not link:
                text = f"Another link of the name '{link.name}' was attached on this connection, in place of this one."
                self.cut(other, Refusal(conditions.LINK_STOLEN, text))

    def _leave(self, link: Link) -> None:
        """End a link. Every link ends here, no matter who ends it and how, so that nothing of it stays in the
        broker."""
        self._served.pop(link, None)
        if self._named.get(key := _key(link)) is link:
            del self._named[key]
        self._idle.pop(link, None)
        node: Node | None = link.context
        link.context = None
        if node is not None:
            node.closed()

    def _leave_all(self) -> None:
        for link in list(self._served):
            self._leave(link)

    def response_node(self, link: Link, address: str, reply_to: str | None) -> ResponseNode | None:
        """Return the node that the answer to a request on `link` goes to (docs/reference/protocol.md#tokens-over-cbs):
        JS names its receiving link in reply-to."""
        nodes = [
            (other, other.context)
            for other in [*link.session.links, *self.links()]
            if isinstance(other.context, ResponseNode) and other.context.address == address
        ]
        if reply_to:
            for _, node in nodes:
                if node.reply_to == reply_to:
                    return node
            for other, node in nodes:
                if other.name == reply_to:
                    return node
        return nodes[0][1] if nodes else None

    def _wake_sources(self) -> None:
        for link in self.links():
            if isinstance(link.context, SourceNode):
                link.context.dispatcher.wake()

    # -- events

    def _check_plain(self, username: str, password: str) -> bool:
        self._login = self.host.claims_of_key(username, password)
        return bool(self._login)

    def _on_sasl(self, event: SaslInitiated) -> None:
        if event.username is not None:
            for claims in self._login:
                self.authorization.put(claims)
            self._mark_authenticated()
            self.host.cut_off(self)

    def _on_opened(self, event: Opened) -> None:
        self.cause = cause_in(event.open.properties)
        product = (event.open.properties or {}).get("product")
        self.product = product[:_NAME_CHARS_KEPT] if isinstance(product, str) else ""
        self._engine.remote_open = None  # it may be large, and nobody asks again
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(0.0, self._tick)  # from now on the client wants heartbeats

    def _on_begun(self, event: SessionBegun) -> None:
        self._unauthenticated_sessions += self._is_unauthenticated
        if self._unauthenticated_sessions > unauthenticated.SESSIONS_MAX and self._is_unauthenticated:
            self.close(unauthenticated.too_many("sessions", unauthenticated.SESSIONS_MAX))

    def _on_delivered(self, event: Delivered) -> None:
        context = event.link.context
        if context is not None and (len(event.payload) <= AT_ONCE_BYTES_MAX or self._is_checked(event)):
            context.delivered(event)

    def _on_transactional(self, event: TransactionalDelivered) -> None:
        if event.link.context is not None and self._is_checked(event):
            transactions.deliver(self, event)

    def _is_checked(self, event: Delivered) -> bool:
        """Return whether a message may be taken now. A large one is checked in slices first, and then comes again."""
        node, work = event.link.context, None
        if len(event.payload) > AT_ONCE_BYTES_MAX and not isinstance(event.payload, Checked):
            work = node.check(event) if isinstance(node, TargetNode | RequestNode) else None
        if work is None:
            return True
        self._was_request = True  # the turn may be over
        try:
            job = self.host.namespace.slices.start(work, partial(self._checked, event))
        except SlicesFull:
            event.payload = Checked(event.payload)
            event.payload.error = AmqpError("The broker has too much to do; try again later.", conditions.SERVER_BUSY)
            return True
        if not job.is_done:
            self._check = job
        return job.is_done and not self._is_leaving

    def _checked(self, event: Delivered, job: Job[Checked]) -> None:
        try:
            event.payload = job.result()
        except Exception:
            self._fail()
            return
        if self._check is not None:  # it was not done at once
            self._check = None
            self._events = chain((event,), self._events)
            self._go_on_soon()

    def settle_in_transaction(
        self, node: SourceNode, delivery_ids: list[int], settled: bool, state: TransactionalState
    ) -> None:
        transactions.settle(node, delivery_ids, settled, state)

    def _on_too_large(self, event: DeliveryTooLarge) -> None:
        if event.link.context is not None:
            event.link.context.too_large(event)

    def _on_credit(self, event: CreditChanged) -> None:
        context = event.link.context
        if isinstance(context, SourceNode):
            context.note_grant()
            if event.link.drain and not context.dispatcher.has_messages():
                context.answer_drain()
            elif event.link.credit > 0 or event.link.drain:
                context.dispatcher.wake()
        elif isinstance(context, ResponseNode):
            context.flow()

    def _on_disposed(self, event: Disposed) -> None:
        if not event.role:
            return
        deliveries: dict[int, SourceNode] = event.session.context or {}
        count = ((event.last - event.first) & 0xFFFFFFFF) + 1
        if count == 1:
            source = deliveries.get(event.first)
            if source is not None:
                source.disposed([event.first], event.settled, event.state)
            else:
                self._lock_is_lost(event, event.first, event.first)
            return
        # a range may name far more than there is: look at whichever is fewer
        if count <= len(deliveries):
            named = [(event.first + i) & 0xFFFFFFFF for i in range(count)]
            known = [delivery_id for delivery_id in named if delivery_id in deliveries]
        else:
            known = [i for i in deliveries if (i - event.first) & 0xFFFFFFFF < count]
            known.sort(key=lambda i: (i - event.first) & 0xFFFFFFFF)
        by_source: dict[SourceNode, list[int]] = {}
        for delivery_id in known:
            by_source.setdefault(deliveries[delivery_id], []).append(delivery_id)
        expected = event.first
        for delivery_id in known:
            if delivery_id != expected:
                self._lock_is_lost(event, expected, (delivery_id - 1) & 0xFFFFFFFF)
            expected = (delivery_id + 1) & 0xFFFFFFFF
        if expected != (event.last + 1) & 0xFFFFFFFF:
            self._lock_is_lost(event, expected, event.last)
        for source, delivery_ids in by_source.items():
            source.disposed(delivery_ids, event.settled, event.state)

    def _lock_is_lost(self, event: Disposed, first: int, last: int) -> None:
        """Reject the settlement of deliveries that are no longer known, if the client waits for an answer."""
        if not event.settled and event.state is not None:
            event.session.dispose(False, first, last, True, _LOCK_LOST)

    def _on_detached(self, event: LinkDetached) -> None:
        self._leave(event.link)

    def _on_session_ended(self, event: SessionEnded) -> None:
        for link in [link for link in self._served if link.session is event.session]:
            self._leave(link)

    def _on_closed(self, event: Closed) -> None:
        self._leave_all()

    # -- attaching

    def _on_attached(self, event: LinkAttached) -> None:
        # counted here and not by the engine: what it has read already may hold a token, before the next link
        self._unauthenticated_links += self._is_unauthenticated
        if self._unauthenticated_links > unauthenticated.LINKS_MAX and self._is_unauthenticated:
            self.close(unauthenticated.too_many("links", unauthenticated.LINKS_MAX))
            return
        delay = self.host.faults.latency(None, self.host.clock()) if self.host.faults.is_on else 0.0
        if delay:
            self.loop.call_later(delay, self._attach, event.link)
        else:
            self._attach(event.link)

    def _attach(self, link: Link) -> None:
        # the client may have gone since it asked: the engine is ahead, and a fault may have kept the attach waiting
        if link.remote_detached or self._transport is None or self._is_leaving or self._engine.is_closed:
            return
        self._steal(link)
        refusal = attach_link(self, link)
        if refusal is not None:
            self.cut(link, refusal)
        if link.answered:
            link.forget_terms()
        self.flush_soon()

    def own_session(self, queue: MessageQueue, session_id: str, now: float) -> SessionLock | None:
        """Return the lock on that session if this connection holds it."""
        for link in self.links():
            context = link.context
            if isinstance(context, SourceNode) and context.queue is queue and context.session is not None:
                lock = context.session
                if lock.session_id == session_id and lock.is_held(now):
                    return lock
        return None

    def put_claims(self, claims: Claims) -> None:
        """Add a verified token."""
        self.authorization.put(claims)
        self._mark_authenticated()
        self._set_claims_deadline()
        self.host.cut_off(self)


def _key(link: Link) -> tuple[bool, str, Session | None]:
    """Return the key that is unique among the links of a connection: direction and name. uamqp names the links of a
    request node after that node, and has them in each of its sessions: there they are unique within the session
    alone."""
    is_request_node = isinstance(link.context, RequestNode | ResponseNode)
    return link.is_sender, link.name, link.session if is_request_node else None


_HANDLERS: dict[type, Callable[[AmqpConnection, Any], None]] = {
    Delivered: AmqpConnection._on_delivered,
    TransactionalDelivered: AmqpConnection._on_transactional,
    Disposed: AmqpConnection._on_disposed,
    CreditChanged: AmqpConnection._on_credit,
    LinkAttached: AmqpConnection._on_attached,
    LinkDetached: AmqpConnection._on_detached,
    SessionEnded: AmqpConnection._on_session_ended,
    DeliveryTooLarge: AmqpConnection._on_too_large,
    SaslInitiated: AmqpConnection._on_sasl,
    Opened: AmqpConnection._on_opened,
    SessionBegun: AmqpConnection._on_begun,
    Closed: AmqpConnection._on_closed,
}
