"""A session: the window of transfers under way in each direction, and the links in it (AMQP 2.5).

The peer's incoming window is respected: frames that do not fit wait in `_pending`. Ours is opened again as deliveries
are settled, so that a slow receiver also slows down the sender.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import FramingError, ProtocolViolation
from .events import CreditChanged, Disposed, Event, LinkAttached, LinkDetached, SessionEnded
from .link import Link, ReceiverLink, SenderLink
from .performative_types import (
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Source,
    Target,
    Transfer,
)
from .performatives import encode_disposition, encode_flow

if TYPE_CHECKING:
    from .connection import Connection

_MASK = 0xFFFFFFFF


@dataclass(slots=True, repr=False, eq=False)
class Session:
    connection: Connection
    channel: int
    begun: bool = False
    ended: bool = False
    context: Any = None
    next_delivery_id: int = 0
    #: Deliveries from the peer that we have not settled yet.
    unsettled: int = 0
    remote_handle_max: int = _MASK
    _next_outgoing_id: int = 0
    _next_incoming_id: int = 0
    _incoming_window: int = field(init=False)
    _remote_window: int = 0
    _pending: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    _links: dict[int, Link] = field(default_factory=dict)  # by our handle
    _links_remote: dict[int, Link] = field(default_factory=dict)  # by the peer's

    def __post_init__(self) -> None:
        self._incoming_window = self.connection.limits.incoming_window

    def __repr__(self) -> str:
        return f"<Session channel {self.channel}: {len(self._links)} links, {self.unsettled} unsettled>"

    @property
    def links(self) -> list[Link]:
        return list(self._links.values())

    # -- what the shell asks for

    def attach(
        self,
        name: str,
        role: bool,
        source: Source | None,
        target: Target | Coordinator | None,
        *,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        initial_delivery_count: int = 0,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> Link:
        """Ask the peer for a link; `role` is ours, True for receiver. The answer comes as `LinkAttached`."""
        handle = next(number for number in range(self.remote_handle_max + 1) if number not in self._links)
        link: Link = ReceiverLink(self, name, handle) if role else SenderLink(self, name, handle)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        link.source = source
        link.target = target
        link.delivery_count = initial_delivery_count
        self._links[handle] = link
        self.connection.link_count += 1
        link._attach(max_message_size, properties)
        return link

    def dispose(self, role: bool, first: int, last: int, settled: bool, state: Any) -> None:
        """Send a disposition of deliveries `first` to `last`; `state` is an outcome or its encoded bytes."""
        encoded = state if isinstance(state, bytes) or state is None else state.encode()
        self.write(encode_disposition(role, first, last, settled, encoded))
        if role and settled:
            self.unsettled = max(0, self.unsettled - ((last - first) & _MASK) - 1)
            self._reopen()

    def end(self, error: Error | None = None) -> None:
        if not self.ended:
            self.ended = True
            self.write(End(error=error).encode(), always=True)

    def lose(self) -> None:
        """Forget its links, or they and what they have gathered would wait for the cycle collector."""
        self._pending.clear()
        self._links.clear()
        self._links_remote.clear()

    # -- writing

    def write(self, performative: bytes, *, always: bool = False) -> None:
        if always or not self.ended:
            self.connection.write(self.channel, performative)

    def write_transfer(self, performative: bytes, payload: bytes) -> None:
        if self.ended:
            return
        if self._remote_window <= 0 or self._pending:
            self._pending.append((performative, payload))
            return
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
        self.connection.write(self.channel, performative, payload)

    @property
    def room(self) -> int:
        """How many more frames the peer's window takes; none while some wait for it to open."""
        return 0 if self._pending else self._remote_window

    @property
    def is_blocked(self) -> bool:
        """Whether the peer's window is shut: sending more would only pile frames up."""
        return self._remote_window <= 0 or bool(self._pending)

    def write_flow(self, link: Link | None = None) -> None:
        # flows with a handle must carry both numbers (docs/reference/protocol.md#flow-and-attach-carry-their-counts)
        of_link = () if link is None else (link.handle, link.delivery_count, link.credit)
        numbers = (
            self._next_incoming_id if self.begun else None,
            self._incoming_window,
            self._next_outgoing_id,
            self.connection.limits.outgoing_window,
            *of_link,
        )
        self.write(encode_flow(numbers, drain=link is not None and link.drain))

    def write_begin(self, remote_channel: int | None) -> None:
        self.connection.write(
            self.channel,
            Begin(
                remote_channel=remote_channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=self._incoming_window,
                outgoing_window=self.connection.limits.outgoing_window,
                handle_max=self.connection.limits.handle_max,
            ).encode(),
        )

    def _reopen(self) -> None:
        limit = self.connection.limits.incoming_window
        if self._incoming_window <= limit // 2:
            window = limit - self.unsettled
            if window > self._incoming_window:
                self._incoming_window = window
                self.write_flow()

    # -- what the peer says

    def on_begin(self, begin: Begin) -> None:
        self.begun = True
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        if begin.handle_max is not None:
            self.remote_handle_max = begin.handle_max
        self._flush()

    def on_attach(self, attach: Attach, events: list[Event]) -> None:
        limits = self.connection.limits
        handle = attach.handle
        if handle > limits.handle_max:
            raise FramingError(f"handle {handle} is beyond the handle-max {limits.handle_max}")
        if handle in self._links_remote:
            raise ProtocolViolation(f"handle {handle} is in use", "amqp:session:handle-in-use")
        link = self._asked_for(attach)
        if link is None:
            if self.connection.link_count >= limits.links_max:
                raise ProtocolViolation(
                    f"more than {limits.links_max} links on a connection", "amqp:resource-limit-exceeded"
                )
            ours = handle if handle not in self._links else max(self._links) + 1
            link = SenderLink(self, attach.name, ours) if attach.role else ReceiverLink(self, attach.name, ours)
            self._links[ours] = link
            self.connection.link_count += 1
        else:
            link.refused = attach.source is None if attach.role is False else attach.target is None
        self._links_remote[handle] = link
        link.learn(attach)
        if isinstance(link, ReceiverLink):
            link.delivery_count = attach.initial_delivery_count or 0
        events.append(LinkAttached(link, attach))

    def _asked_for(self, attach: Attach) -> Link | None:
        for link in self._links.values():
            if link.remote_handle is None and link.name == attach.name and link.is_sender == attach.role:
                return link
        return None

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        # before the peer has seen our begin it counts from our first transfer
        base = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        was_blocked = self.is_blocked
        window = (base + flow.incoming_window - self._next_outgoing_id) & _MASK
        self._remote_window = window if window < 0x80000000 else 0
        if was_blocked:
            self._flush()
            if not self.is_blocked:
                # who held back may go on
                links = self._links.values()
                events += [CreditChanged(link) for link in links if isinstance(link, SenderLink) and link.credit > 0]
        if flow.handle is not None:
            link = self._links_remote.get(flow.handle)
            if link is not None and not link.detached:
                link.on_flow(flow, events)
        elif flow.echo:
            self.write_flow()

    def _flush(self) -> None:
        pending = self._pending
        while pending and self._remote_window > 0:
            performative, payload = pending.popleft()
            self._remote_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
            self.connection.write(self.channel, performative, payload)

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & _MASK
        self._incoming_window -= 1
        limit = self.connection.limits.incoming_window
        # clients that count deliveries where we count frames may overrun a little
        # (docs/reference/protocol.md#flow-control): no more than that
        if self.unsettled > 2 * limit:
            raise ProtocolViolation(
                f"{self.unsettled} unsettled deliveries, the window is {limit}", "amqp:session:window-violation"
            )
        link = self._links_remote.get(transfer.handle)
        # transfers race with a detach: those for a link that is gone are dropped
        if isinstance(link, ReceiverLink) and not link.detached:
            link.on_transfer(transfer, payload, events)
        if self._incoming_window <= limit // 2:
            self._reopen()

    def on_disposition(self, disposition: Disposition, events: list[Event]) -> None:
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if (last - first) & _MASK >= 0x80000000:
            raise ProtocolViolation(f"disposition from {first} to {last}: last lies before first", "amqp:invalid-field")
        if disposition.settled and not disposition.role:
            # the sender has settled what we only proposed to: the window is open for others
            self.unsettled = max(0, self.unsettled - ((last - first) & _MASK) - 1)
            self._reopen()
        events.append(Disposed(self, disposition.role, first, last, bool(disposition.settled), disposition.state))

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        link = self._links_remote.pop(detach.handle, None)
        if link is None:
            return
        link.remote_detached = True
        if not link.detached:
            link.detached = True
            self.write(Detach(handle=link.handle, closed=detach.closed).encode())
        self.link_left(link)
        events.append(LinkDetached(link, detach.error, bool(detach.closed)))

    def link_left(self, link: Link) -> None:
        """Note that one side has detached a link; its handle is free again when both have."""
        if isinstance(link, ReceiverLink):
            link.forget()
            if link.unsettled:
                self.unsettled = max(0, self.unsettled - link.unsettled)
                link.unsettled = 0
                self._reopen()
        if link.detached and link.remote_detached and self._links.pop(link.handle, None) is not None:
            self.connection.link_count -= 1

    def on_end(self, end: End, events: list[Event]) -> None:
        if not self.ended:
            self.end()
        self._pending.clear()
        # its links end with it (AMQP 2.5.4): no detach comes for them any more
        for link in self.links:
            link.detached = link.remote_detached = True
            self.link_left(link)
        self._links_remote.clear()
        events.append(SessionEnded(self, end.error))
