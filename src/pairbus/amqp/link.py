"""A link: one direction of messages between two nodes (AMQP 2.6).

It keeps handles, credit and delivery counts, splits a large message into frames and joins the frames of one. It does
not know what a message means or who may attach; the shell stores its own object in `context`.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import LimitExceeded, ProtocolViolation
from .events import CreditChanged, Delivered, DeliveryTooLarge, Event, TransactionalDelivered
from .performative_types import (
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from .performatives import encode_transfer

if TYPE_CHECKING:
    from .session import Session

Terminus = Any  # Source, Target, Coordinator or None; kept as sent
_MASK = 0xFFFFFFFF


@dataclass(slots=True, repr=False, eq=False)
class Link:
    """Base of the links of both directions: names, termini, attaching and detaching."""

    session: Session
    name: str
    handle: int
    remote_handle: int | None = None
    source: Terminus = None
    target: Terminus = None
    properties: dict[Any, Any] | None = None
    snd_settle_mode: int = 0
    rcv_settle_mode: int = 0
    #: The peer's limit for a message on this link; None where it states none.
    max_message_size: int | None = None
    credit: int = 0
    drain: bool = False
    delivery_count: int = 0
    #: Our attach is on its way.
    answered: bool = False
    #: The peer attached with a null terminus and will detach with the reason.
    refused: bool = False
    detached: bool = False
    remote_detached: bool = False
    context: Any = None
    is_sender: ClassVar[bool]

    def __repr__(self) -> str:
        role = "sender" if self.is_sender else "receiver"
        state = "detached" if self.detached or self.remote_detached else "attached" if self.answered else "attaching"
        return f"<{type(self).__name__} {self.name!r} {role} handle {self.handle}: {state}, credit {self.credit}>"

    @property
    def is_open(self) -> bool:
        return self.answered and not (self.detached or self.remote_detached or self.refused)

    def learn(self, attach: Attach) -> None:
        """Apply the peer's attach."""
        self.remote_handle = attach.handle
        self.source = attach.source
        self.target = attach.target
        self.properties = attach.properties
        self.snd_settle_mode = 0 if attach.snd_settle_mode is None else attach.snd_settle_mode
        self.rcv_settle_mode = 0 if attach.rcv_settle_mode is None else attach.rcv_settle_mode
        self.max_message_size = attach.max_message_size or None

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """Answer the peer's attach; a terminus that is not given is echoed
        (docs/reference/protocol.md#an-accepted-link-echoes-source-and-target)."""
        # JS attaches with a terminus that is an empty list, and takes a null one for a refusal
        self.source = source or self.source or Source()
        self.target = target or self.target or Target()
        self._attach(max_message_size, properties)
        if max_message_size is not None:
            self.expect(max_message_size)

    def expect(self, message_bytes_max: int) -> None:
        """Remember the largest message that the peer was told it may send; only a receiver does."""

    def refuse(self, error: Error) -> None:
        """Refuse the peer's attach with null termini and a closing detach: without both frames clients miss the reason
        (docs/reference/protocol.md#a-refused-link-is-attached-then-detached)."""
        self.source = self.target = None
        self._attach(None, None)
        self.detach(error)

    def _attach(self, max_message_size: int | None, properties: dict[Any, Any] | None) -> None:
        self.answered = True
        self.session.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=self.source,
                target=self.target,
                initial_delivery_count=self.delivery_count if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties,
            ).encode()
        )

    def forget_terms(self) -> None:
        """Drop data that was only needed to answer the peer's attach: it may be large, and there are many links."""
        self.source = self.target = self.properties = None

    def detach(self, error: Error | None = None, closed: bool = True) -> None:
        if self.detached:
            return
        self.detached = True
        self.session.write(Detach(handle=self.handle, closed=closed, error=error).encode())
        self.session.link_left(self)

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        raise NotImplementedError


@dataclass(slots=True, repr=False, eq=False)
class SenderLink(Link):
    """A link on which this side sends."""

    is_sender = True
    #: How often the peer has asked for messages, and not merely for the rest of what it had asked for (a drain).
    grants: int = 0
    #: Messages that were on their way when it last did: they are part of what it asked for.
    unseen: int = 0

    def send(
        self, payload: bytes, tag: bytes, *, settled: bool = False, message_format: int = 0, state: bytes | None = None
    ) -> int:
        """Send one message and return its delivery id; frames beyond the peer's session window wait in the session.

        `state` is an encoded delivery state, such as that of a transaction."""
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & _MASK
        self.delivery_count = (self.delivery_count + 1) & _MASK
        if self.credit > 0:
            self.credit -= 1
        performative = encode_transfer(self.handle, delivery_id, tag, message_format, settled, False, state)
        room = session.connection.payload_bytes_max - len(performative)
        if len(payload) <= room:
            session.write_transfer(performative, payload)
            return delivery_id
        more = encode_transfer(self.handle, delivery_id, tag, message_format, settled, True, state)
        room = session.connection.payload_bytes_max - len(more)
        for start in range(0, len(payload), room):
            last = start + room >= len(payload)
            session.write_transfer(performative if last else more, payload[start : start + room])
        return delivery_id

    def drained(self) -> None:
        """Use up the credit that is left, as a drain asks (AMQP 2.6.7)."""
        self.delivery_count = (self.delivery_count + self.credit) & _MASK
        self.credit = 0
        self.session.write_flow(self)
        self.drain = False

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        if flow.link_credit is not None:
            # a receiver that has not seen our attach yet doesn't know our count: then it counts from our first
            base = 0 if flow.delivery_count is None else flow.delivery_count
            outstanding = (self.delivery_count - base) & _MASK
            if outstanding >= 0x80000000:
                outstanding = 0
            before, self.credit = self.credit, max(0, flow.link_credit - outstanding)
            self.drain = bool(flow.drain)
            if flow.link_credit > 0 and (self.credit > before or not self.drain):
                self.grants += 1
                self.unseen = outstanding
            events.append(CreditChanged(self))
        if flow.echo:
            self.session.write_flow(self)


class ReceiverLink(Link):
    """A link on which this side receives."""

    __slots__ = ("_bytes_max", "_gathered", "_size", "_transfer", "unsettled")
    is_sender = False

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self._transfer: Transfer | None = None  # first frame of a message that is still arriving
        # Its bytes so far: a buffer gives them out without a copy, which takes a tenth of a second of a large message.
        self._gathered = BytesIO()
        self._size = 0
        self._bytes_max = session.connection.limits.message_bytes_max
        self.unsettled = 0

    def expect(self, message_bytes_max: int) -> None:
        # some more, so that one that is a little too large is refused by the code that knows the entity, in its words
        self._bytes_max = message_bytes_max + 65536
        connection = self.session.connection
        connection.expected_bytes_max = max(connection.expected_bytes_max, self._bytes_max)

    def flow(self, credit: int, drain: bool = False) -> None:
        """Set how many messages the peer may send from now on; it is not added to what it has."""
        self.credit = credit
        self.drain = drain
        self.session.write_flow(self)

    def settle(self, first: int, last: int, state: Any, settled: bool = True) -> None:
        count = ((last - first) & _MASK) + 1
        self.unsettled = max(0, self.unsettled - count)
        self.session.dispose(True, first, last, settled, state)

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
        first = self._transfer
        if first is None:
            if transfer.delivery_id is None:
                raise ProtocolViolation("the first transfer of a delivery carries no delivery-id", "amqp:invalid-field")
            if transfer.aborted:
                return
            if not transfer.more:
                self._deliver(transfer, payload, events)
                return
            self._transfer = transfer
            self._size = len(payload)
            self._gather(payload)
            return
        if transfer.delivery_id not in (None, first.delivery_id):
            raise ProtocolViolation(
                f"delivery {transfer.delivery_id} began before delivery {first.delivery_id} was complete on the link"
            )
        if transfer.aborted:
            self.forget()
            return
        self._size += len(payload)
        if self._size <= self._bytes_max:
            self._gather(payload)
        else:
            self._drop_gathered()
        first.settled = first.settled or transfer.settled
        if transfer.state is not None:
            first.state = transfer.state
        if transfer.more:
            return
        gathered, size = self._gathered, self._size
        self.forget()
        self._deliver(first, gathered.getvalue() if size <= self._bytes_max else None, events, size)

    def _deliver(self, transfer: Transfer, payload: bytes | None, events: list[Event], size: int = 0) -> None:
        """Count a delivery and report it; without a payload it was too large."""
        self.delivery_count = (self.delivery_count + 1) & _MASK
        if self.credit > 0:
            self.credit -= 1
        settled = transfer.settled is True
        if not settled:
            self.unsettled += 1
            self.session.unsettled += 1
        delivery_id = transfer.delivery_id or 0
        if payload is None:
            events.append(DeliveryTooLarge(self, delivery_id, size, settled))
            return
        state, tag, format = transfer.state, transfer.delivery_tag or b"", transfer.message_format or 0
        if state is not None and type(state) is TransactionalState:
            events.append(TransactionalDelivered(self, delivery_id, tag, payload, format, settled, state.txn_id))
            return
        events.append(Delivered(self, delivery_id, tag, payload, format, settled))

    def _gather(self, payload: bytes) -> None:
        connection = self.session.connection
        self._gathered.write(payload)
        connection.gathered_bytes += len(payload)
        limit = connection.gathered_bytes_max + connection.expected_bytes_max
        if connection.gathered_bytes > limit:
            raise LimitExceeded(
                f"messages that are not complete yet have {connection.gathered_bytes} bytes together, "
                f"the limit is {limit}"
            )

    def _drop_gathered(self) -> None:
        self.session.connection.gathered_bytes -= self._gathered.tell()
        self._gathered = BytesIO()

    def forget(self) -> None:
        """Forget the frames of the message that was coming in: it is complete, or never will be."""
        self._transfer = None
        self._size = 0
        self._drop_gathered()

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        # the sender tells its count: after a drain it has jumped (AMQP 2.6.7), and the unused credit is gone
        if flow.delivery_count is not None:
            skipped = (flow.delivery_count - self.delivery_count) & _MASK
            if skipped < 0x80000000:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - skipped)
        if flow.drain:
            self.drain = True
        if flow.echo:
            self.session.write_flow(self)
