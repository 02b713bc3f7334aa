"""One client's AMQP connection to a namespace: the shell round the engine.

Owns the transport and its timers; routes the engine's events to what stands behind each link (links.py), checks the
claims before a link opens and cuts it when the token has run out. One write per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pairbus.amqp import errors as conditions
from pairbus.amqp.connection import Connection
from pairbus.amqp.events import (
    Closed,
    CreditChanged,
    Delivered,
    DeliveryTooLarge,
    Disposed,
    LinkAttached,
    LinkDetached,
    SaslInitiated,
    SessionEnded,
)
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.performatives import ACCEPTED_BYTES, Coordinator, Error
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.session import Session

from . import cbs, management
from .address import Node, parse_address
from .authorization import Authorization
from .links import Egress, Ingress, RequestNode, ResponseNode, address_of, rejected
from .refusal import Refusal
from .sas import LISTEN, SEND, Claims

if TYPE_CHECKING:
    from .server import NamespaceServer

log = logging.getLogger(__name__)

#: Unconfirmed message bytes that a connection may have under way before we stop reading from it.
_HELD_BYTES_MAX = 16 * 1024 * 1024
_WRITE_BYTES_HIGH = 1024 * 1024
#: A connection that has not opened by then is not a client.
_OPENING_S = 60.0
_LOCK_LOST = rejected(
    Refusal(conditions.MESSAGE_LOCK_LOST, "The lock supplied is invalid: the delivery was settled or its lock expired.")
)
_SESSION_FILTER = "com.microsoft:session-filter"


class AmqpConnection(asyncio.Protocol):
    def __init__(self, host: NamespaceServer) -> None:
        self.host = host
        self.loop = host.loop
        self.authorization = Authorization()
        self.can_write = True
        self.is_silent = False
        self._transport: asyncio.Transport | None = None
        self._engine = Connection(
            server=True,
            container_id=host.name,
            limits=host.limits,
            idle_timeout=host.idle_timeout_s,
            sasl=SaslServer(check_plain=host.check_plain),
        )
        self._flush_due = False
        self._confirms: list[tuple[ReceiverLink, int]] = []
        self._held_bytes = 0
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._claims_timer: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Delivered: self._on_delivered,
            Disposed: self._on_disposed,
            CreditChanged: self._on_credit,
            LinkAttached: self._on_attached,
            LinkDetached: self._on_detached,
            SessionEnded: self._on_session_ended,
            DeliveryTooLarge: self._on_too_large,
            SaslInitiated: self._on_sasl,
            Closed: self._on_closed,
        }

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES_HIGH)
        self.host.connections.add(self)
        self.host.observation.connected()
        self._timer = self.loop.call_later(_OPENING_S, self._opening_timed_out)

    def data_received(self, data: bytes) -> None:
        self._flush_due = True  # what the events bring about is written below, not in a turn of its own
        handlers = self._handlers
        try:
            for event in self._engine.receive(data, self.loop.time()):
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
        except Exception:
            # a bug of ours: this client is told, the others don't notice
            log.exception("%s: a connection is closed after an error", self.host.name)
            self.close(Refusal(conditions.INTERNAL_ERROR, "the broker failed to handle a request; see its log"))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.connections.discard(self)
        self._transport = None
        self.can_write = False
        for timer in (self._timer, self._claims_timer):
            if timer is not None:
                timer.cancel()
        for session in self._engine.sessions:
            self._forget_session(session)

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = not self.is_silent
        self._wake_egresses()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self, refusal: Refusal) -> None:
        """Says why before hanging up."""
        self._engine.close(Error(refusal.condition, refusal.description, None))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def silence(self, on: bool) -> None:
        """The black hole: bytes wait in both directions, as if the network swallowed them, and go on afterwards."""
        if self.is_silent == on or self._transport is None:
            return
        self.is_silent = on
        if on:
            self.can_write = False
            self._transport.pause_reading()
        else:
            self.can_write = True
            if self._reading:
                self._transport.resume_reading()
            self.flush_soon()
            self._wake_egresses()

    def flush_soon(self) -> None:
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
        if self._engine.is_closed:
            self._transport.close()

    def _write_confirms(self) -> None:
        """Sends are confirmed in ranges: both SDKs understand them, and it halves the frames."""
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
        if not self._engine.is_open:
            self.abort()
        else:
            self._tick()

    def _tick(self) -> None:
        deadline = self._engine.tick(self.loop.time())
        for event in self._engine.poll():
            if type(event) is Closed:
                self._on_closed(event)
        self._flush()
        if deadline is not None and self._transport is not None:
            self._timer = self.loop.call_at(deadline, self._tick)

    def _arm_claims(self) -> None:
        if self._claims_timer is not None:
            self._claims_timer.cancel()
            self._claims_timer = None
        deadline = self.authorization.deadline
        if deadline is not None and deadline != float("inf"):
            delay = max(0.0, deadline - self.host.clock())
            # a day at most: the loop's clock and the wall's may drift apart
            self._claims_timer = self.loop.call_later(min(delay, 86400.0) + 0.01, self._claims_expired)

    def _claims_expired(self) -> None:
        """Links whose token has run out are cut (dialect 2.1)."""
        now = self.host.clock()
        if self.authorization.expire(now):
            self.recheck(now)
        self._arm_claims()

    def recheck(self, now: float) -> None:
        for link in self.links():
            context = link.context
            right = SEND if isinstance(context, Ingress) else LISTEN if isinstance(context, Egress) else None
            if right is not None and not self.authorization.allows(right, context.path, now):
                self.cut(link, Refusal(conditions.UNAUTHORIZED_ACCESS, f"the token for {context.path!r} has expired"))

    # -- what links ask for

    def links(self) -> list[Link]:
        return [link for session in self._engine.sessions for link in session.links if not link.detached]

    def confirm(self, link: ReceiverLink, delivery_id: int) -> None:
        self._confirms.append((link, delivery_id))
        self.flush_soon()

    def reject(self, link: ReceiverLink, delivery_id: int, state: bytes) -> None:
        if self._confirms:
            self._write_confirms()
        link.settle(delivery_id, delivery_id, state)
        self.flush_soon()

    def hold(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > _HELD_BYTES_MAX and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def release(self, size: int) -> None:
        self._held_bytes -= size
        if not self._reading and self._held_bytes <= _HELD_BYTES_MAX // 2 and self._transport is not None:
            self._reading = True
            if not self.is_silent:
                self._transport.resume_reading()

    def unsettled(self, link: Link, delivery_id: int, egress: Egress) -> None:
        deliveries: dict[int, Egress] | None = link.session.context
        if deliveries is None:
            deliveries = link.session.context = {}
        deliveries[delivery_id] = egress

    def forget(self, link: Link, delivery_id: int) -> None:
        if link.session.context is not None:
            link.session.context.pop(delivery_id, None)

    def cut(self, link: Link, refusal: Refusal) -> None:
        """Ends a link with a reason that its client can act on."""
        if link.context is not None:
            link.context.closed()
            link.context = None
        link.detach(Error(refusal.condition, refusal.description, None))
        self.host.observation.refused(None, refusal)
        self.flush_soon()

    def response_node(self, link: Link, address: str, reply_to: str | None) -> ResponseNode | None:
        """Where the answer to a request on `link` goes (dialect 2): JS names its receiving link in reply-to."""
        nodes = [
            (other, other.context)
            for other in [*link.session.links, *self.links()]
            if isinstance(other.context, ResponseNode) and other.context.address == address
        ]
        if reply_to:
            for other, node in nodes:
                if getattr(other.target, "address", None) == reply_to:
                    return node
            for other, node in nodes:
                if other.name == reply_to:
                    return node
        return nodes[0][1] if nodes else None

    def _wake_egresses(self) -> None:
        for link in self.links():
            if isinstance(link.context, Egress):
                link.context.dispatcher.wake()

    # -- events

    def _on_sasl(self, event: SaslInitiated) -> None:
        if event.username is not None:
            self.authorization.put(self.host.claims_of_key(event.username))

    def _on_delivered(self, event: Delivered) -> None:
        context = event.link.context
        if context is not None:
            context.delivered(event)

    def _on_too_large(self, event: DeliveryTooLarge) -> None:
        if event.link.context is not None:
            event.link.context.too_large(event)

    def _on_credit(self, event: CreditChanged) -> None:
        context = event.link.context
        if isinstance(context, Egress):
            if event.link.drain and not context.queue.available:
                context.answer_drain()
            elif event.link.credit > 0 or event.link.drain:
                context.dispatcher.wake()
        elif isinstance(context, ResponseNode):
            context.flow()

    def _on_disposed(self, event: Disposed) -> None:
        if not event.role:
            return
        deliveries: dict[int, Egress] = event.session.context or {}
        count = ((event.last - event.first) & 0xFFFFFFFF) + 1
        if count == 1:
            egress = deliveries.get(event.first)
            if egress is not None:
                egress.disposed([event.first], event.settled, event.state)
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
        by_egress: dict[Egress, list[int]] = {}
        for delivery_id in known:
            by_egress.setdefault(deliveries[delivery_id], []).append(delivery_id)
        expected = event.first
        for delivery_id in known:
            if delivery_id != expected:
                self._lock_is_lost(event, expected, (delivery_id - 1) & 0xFFFFFFFF)
            expected = (delivery_id + 1) & 0xFFFFFFFF
        if expected != (event.last + 1) & 0xFFFFFFFF:
            self._lock_is_lost(event, expected, event.last)
        for egress, delivery_ids in by_egress.items():
            egress.disposed(delivery_ids, event.settled, event.state)

    def _lock_is_lost(self, event: Disposed, first: int, last: int) -> None:
        """Deliveries that we know nothing of any more: a client that waits for an answer is told why."""
        if not event.settled and event.state is not None:
            event.session.dispose(False, first, last, True, _LOCK_LOST)

    def _on_detached(self, event: LinkDetached) -> None:
        if event.link.context is not None:
            event.link.context.closed()
            event.link.context = None

    def _on_session_ended(self, event: SessionEnded) -> None:
        self._forget_session(event.session)

    def _forget_session(self, session: Session) -> None:
        if session.context:
            for egress in set(session.context.values()):
                egress.closed()
        for link in session.links:
            if link.context is not None:
                link.context.closed()
                link.context = None

    def _on_closed(self, event: Closed) -> None:
        for session in self._engine.sessions:
            self._forget_session(session)

    # -- attaching

    def _on_attached(self, event: LinkAttached) -> None:
        delay = self.host.faults.latency(None, self.host.clock()) if self.host.faults else 0.0
        if delay:
            self.loop.call_later(delay, self._attach, event.link)
        else:
            self._attach(event.link)

    def _attach(self, link: Link) -> None:
        if link.remote_detached or self._transport is None:
            return
        refusal = self._place(link)
        if refusal is not None:
            link.refuse(Error(refusal.condition, refusal.description, None))
            self.host.observation.refused(None, refusal)
        self.flush_soon()

    def _place(self, link: Link) -> Refusal | None:
        """Puts what the address names behind the link, or says why not."""
        if isinstance(link.target, Coordinator):
            return Refusal(conditions.NOT_IMPLEMENTED, "transactions are not supported")
        text = address_of(link)
        if text is None:
            return Refusal(conditions.INVALID_FIELD, "the link names no address to attach to")
        address = parse_address(text)
        if address.node is not Node.ENTITY:
            return self._place_request_node(link, text, address.node, address.path)
        now = self.host.clock()
        path = address.path
        sends = isinstance(link, ReceiverLink)
        if self.host.faults:
            if self.host.faults.unreachable(path, now):
                self.abort()
                return None
            if self.host.faults.black_hole(path, now):
                self.silence(True)
        if not self.authorization.allows(SEND if sends else LISTEN, path, now):
            right = SEND if sends else LISTEN
            return Refusal(
                conditions.UNAUTHORIZED_ACCESS,
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation. Resource: '{text}'.",
            )
        queue = self.host.namespace.resolve(path)
        if queue is None:
            return Refusal(
                conditions.NOT_FOUND,
                f"The messaging entity '{text}' could not be found. To know more visit "
                "https://aka.ms/sbResourceMgrExceptions.",
            )
        if isinstance(link, ReceiverLink):
            if queue.dead_letter is None:
                return Refusal(conditions.NOT_ALLOWED, f"messages can't be sent to the dead-letter queue '{path}'")
            link.accept(max_message_size=queue.entity.message_bytes_max)
            self.host.dispatcher(queue)  # it also watches for the queue's deletion
            link.context = Ingress(self, link, queue)
            return None
        assert isinstance(link, SenderLink)
        filters = {str(key) for key in (getattr(link.source, "filter", None) or {})}
        if _SESSION_FILTER in filters:
            return Refusal(conditions.NOT_ALLOWED, f"the entity '{path}' has no sessions; receive without a session id")
        if self.host.faults:
            refusal: Refusal | None = self.host.faults.refusal("receive", path, now, 0)
            if refusal is not None:
                return refusal
        link.accept(max_message_size=queue.entity.message_bytes_max)
        link.context = Egress(self, link, queue, self.host.dispatcher(queue))
        if link.credit > 0:
            link.context.dispatcher.wake()
        return None

    def _place_request_node(self, link: Link, text: str, node: Node, path: str) -> Refusal | None:
        if node is Node.MANAGEMENT:
            now = self.host.clock()
            if not any(self.authorization.allows(right, path, now) for right in (SEND, LISTEN)):
                return Refusal(
                    conditions.UNAUTHORIZED_ACCESS,
                    f"Unauthorized access. 'Listen' claim(s) are required for this operation. Resource: '{text}'.",
                )
            if self.host.namespace.resolve(path) is None:
                return Refusal(conditions.NOT_FOUND, f"The messaging entity '{text}' could not be found.")
        link.accept()
        if isinstance(link, ReceiverLink):
            handle = partial(cbs.handle, self) if node is Node.CBS else partial(management.handle, self, path)
            link.context = RequestNode(self, link, text.lower(), handle)
        else:
            assert isinstance(link, SenderLink)
            link.context = ResponseNode(link, text.lower())
        return None

    def put_claims(self, claims: Claims) -> None:
        self.authorization.put(claims)
        self._arm_claims()
