"""A tiny scripted server on our engine: queues in memory, `$cbs`, `$management`, and misbehaviour on request.

It checks nothing that a test does not ask for. Misbehaviour is an attribute, set before or while a client is connected.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from pairbus.amqp.connection import Connection
from pairbus.amqp.events import Closed, CreditChanged, Delivered, Disposed, LinkAttached, LinkDetached, SaslInitiated
from pairbus.amqp.limits import Limits
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, Header, Properties, encode_message, split_batch
from pairbus.amqp.performative_types import Accepted, Error, Rejected
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.types import Int, Symbol, Timestamp
from tests.message_view import View

Answer = tuple[int, Any, str | None]


def message(text: str | bytes = "hello", **properties: Any) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return encode_message(properties=Properties(**properties) if properties else None, body=body)


def stored(number: int, body: bytes = b"hello", *, delivery_count: int = 0) -> bytes:
    """As the service delivers it, with header and annotations."""
    return encode_message(
        header=Header(delivery_count=delivery_count),
        message_annotations={
            Symbol("x-opt-sequence-number"): number,
            Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number),
            Symbol("x-opt-locked-until"): Timestamp(1_700_000_060_500),
        },
        body=body,
    )


class Peer:
    def __init__(
        self, *, check_plain: Callable[[str, str], bool] | None = None, idle_timeout: float | None = None
    ) -> None:
        self.port = 0
        self.queues: dict[str, deque[bytes]] = {}
        self.batches: list[int] = []  # sizes of the batches received
        self.dispositions: list[tuple[int, int, bool, Any]] = []
        self.attached: list[tuple[str, str]] = []
        self.tokens: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, Any, dict[str, Any]]] = []
        self.connections = 0
        self.logins: list[tuple[str, str | None]] = []
        self.drains = 0
        # misbehaviour
        self.silent = False  # accepts and says nothing
        self.deaf = False  # stops reading
        self.confirm = True  # answers sends
        self.hold = False  # answers sends when `let_go` is called
        self.answer_drain = True
        self.unlock_on_loss = False  # real ones wait for the lock to run out
        self.answer_settlements: Callable[[Any], Any] | None = lambda state: Accepted()
        self.grant = 1000
        self.outcome: Any = Accepted()
        self.settle_sends = True
        self.refuse: dict[str, Error] = {}
        self.max_message_size: int | None = 262144
        self.link_properties: dict[Any, Any] | None = None
        self.token_status: tuple[int, str] = (202, "Accepted")
        self.manage: Callable[[str, Any], Answer | None] = lambda operation, body: (501, {}, "amqp:not-implemented")
        self.frame_bytes_max = 65536
        self.channel_max = 4999
        self._check_plain = check_plain
        self._idle_timeout = idle_timeout
        self._server: asyncio.Server | None = None
        self.sessions: set[_Served] = set()

    async def start(self, port: int = 0, context: ssl.SSLContext | None = None) -> Peer:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aenter__(self) -> Peer:
        return self if self._server is not None else await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuses connections from now on, and drops those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()
        while self.sessions:
            await asyncio.sleep(0)

    def drop(self) -> None:
        for served in tuple(self.sessions):
            if served.transport is not None:
                served.transport.abort()

    def queue(self, name: str) -> deque[bytes]:
        return self.queues.setdefault(name, deque())

    def let_go(self) -> None:
        for served in self.sessions:
            served.confirm_held()

    def grant_more(self, credit: int) -> None:
        for served in self.sessions:
            for link in served.incoming:
                link.flow(credit)
            served.flush()

    def detach(self, address: str, error: Error | None = None) -> None:
        for served in self.sessions:
            for session in served.connection.sessions:
                for link in session.links:
                    if link.is_open and _address(link) == address:
                        link.detach(error)
            served.flush()

    def close(self, error: Error) -> None:
        for served in self.sessions:
            served.connection.close(error)
            served.flush()

    def deliver(self, name: str, *payloads: bytes) -> None:
        self.queue(name).extend(payloads)
        for served in self.sessions:
            served.deliver_all()
            served.flush()

    def hear_again(self) -> None:
        self.deaf = False
        for served in self.sessions:
            assert served.transport is not None
            served.transport.resume_reading()


def _address(link: Link) -> str:
    terminus = link.source if link.is_sender else link.target
    return str(getattr(terminus, "address", None) or "")


class _Served(asyncio.Protocol):
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.connection = Connection(
            server=True,
            container_id="peer",
            limits=Limits(
                frame_bytes_max=peer.frame_bytes_max, message_bytes_max=16 << 20, channel_max=peer.channel_max
            ),
            idle_timeout=peer._idle_timeout,
            sasl=SaslServer(check_plain=peer._check_plain),
        )
        self.incoming: list[ReceiverLink] = []
        self.outgoing: list[SenderLink] = []
        self.locked: dict[tuple[Any, int], tuple[str, bytes]] = {}
        self.held: list[tuple[ReceiverLink, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.peer.connections += 1
        self.peer.sessions.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.sessions.discard(self)
        self._unlock(None)

    def _unlock(self, link: Link | None) -> None:
        """What a link, or the whole connection, held locked is there again; for this peer, at once."""
        if self.peer.unlock_on_loss:
            for key in [key for key in self.locked if link is None or key[0] is link.session]:
                name, payload = self.locked.pop(key)
                self.peer.queue(name).append(payload)

    def data_received(self, data: bytes) -> None:
        if self.peer.deaf:
            assert self.transport is not None
            self.transport.pause_reading()
        if self.peer.silent:
            return
        confirmed: list[tuple[ReceiverLink, int]] = []
        for event in self.connection.receive(data, 0.0):
            kind = type(event)
            if kind is Delivered:
                self._delivered(event, confirmed)
            elif kind is LinkAttached:
                self._attached(event.link)
            elif kind is CreditChanged:
                self._credit(event.link)
            elif kind is Disposed:
                self._disposed(event)
            elif kind is SaslInitiated:
                self.peer.logins.append((event.mechanism, event.username))
            elif kind is LinkDetached:
                self._unlock(event.link)
                self.incoming = [link for link in self.incoming if link is not event.link]
                self.outgoing = [link for link in self.outgoing if link is not event.link]
            elif kind is Closed:
                self.flush()
                assert self.transport is not None
                self.transport.close()
                return
        self._confirm(confirmed)
        self.deliver_all()
        self.flush()

    def flush(self) -> None:
        data = self.connection.output()
        if data and self.transport is not None:
            self.transport.write(data)

    def _attached(self, link: Link) -> None:
        peer, address = self.peer, _address(link)
        peer.attached.append((address, "sender" if link.is_sender else "receiver"))
        if address in peer.refuse:
            link.refuse(peer.refuse[address])
            return
        link.accept(max_message_size=peer.max_message_size, properties=peer.link_properties)
        if isinstance(link, SenderLink):
            self.outgoing.append(link)
        else:
            assert isinstance(link, ReceiverLink)
            self.incoming.append(link)
            if peer.grant:
                link.flow(peer.grant)

    def _credit(self, link: SenderLink) -> None:
        self.deliver_all()
        if link.drain:
            self.peer.drains += 1
            if self.peer.answer_drain:
                link.drained()

    def deliver_all(self) -> None:
        for link in self.outgoing:
            name = _address(link)
            queue = self.peer.queues.get(name)
            while queue and link.credit > 0:
                payload = queue.popleft()
                settled = link.snd_settle_mode == 1
                tag = uuid.uuid4().bytes_le
                number = link.send(payload, tag, settled=settled)
                if not settled:
                    self.locked[link.session, number] = (name, payload)

    def _disposed(self, event: Disposed) -> None:
        if not event.role:
            return
        self.peer.dispositions.append((event.first, event.last, event.settled, event.state))
        for number in range(event.first, event.last + 1):
            taken = self.locked.pop((event.session, number), None)
            if taken is not None and type(event.state) is not Accepted and not isinstance(event.state, Rejected):
                self.peer.queue(taken[0]).appendleft(taken[1])
        if not event.settled and self.peer.answer_settlements is not None:
            event.session.dispose(False, event.first, event.last, True, self.peer.answer_settlements(event.state))

    def _delivered(self, event: Delivered, confirmed: list[tuple[ReceiverLink, int]]) -> None:
        link, address = event.link, _address(event.link)
        if link.credit <= self.peer.grant // 2 and self.peer.grant > 1:
            link.flow(self.peer.grant)
        if address == "$cbs" or address.endswith("/$management"):
            link.settle(event.delivery_id, event.delivery_id, Accepted())
            self._request(link, address, event.payload)
            return
        if event.message_format == BATCH_FORMAT:
            messages = split_batch(event.payload)
            self.peer.batches.append(len(messages))
            self.peer.queue(address).extend(messages)
        else:
            self.peer.queue(address).append(event.payload)
        if self.peer.confirm:
            (self.held if self.peer.hold else confirmed).append((link, event.delivery_id))

    def confirm_held(self) -> None:
        held, self.held = self.held, []
        self._confirm(held)
        self.flush()

    def _confirm(self, confirmed: list[tuple[ReceiverLink, int]]) -> None:
        """As ranges, where they follow each other on one link."""
        at = 0
        while at < len(confirmed):
            link, first = confirmed[at]
            last = first
            at += 1
            while at < len(confirmed) and confirmed[at] == (link, last + 1):
                last += 1
                at += 1
            link.settle(first, last, self.peer.outcome, settled=self.peer.settle_sends)

    def _request(self, link: ReceiverLink, address: str, payload: bytes) -> None:
        view = View(payload)
        properties = view.properties
        fields = view.application_properties
        body = view.body[0][1]
        if address == "$cbs":
            self.peer.tokens.append({**fields, "token": body})
            status, description = self.peer.token_status
            answer = {"status-code": Int(status), "status-description": description}
            reply_body: Any = {}
        else:
            self.peer.requests.append((address, fields["operation"], body, fields))
            given = self.peer.manage(fields["operation"], body)
            if given is None:
                return
            status, reply_body, condition = given
            answer = {"statusDescription": f"status {status}"}
            if status:
                answer["statusCode"] = Int(status)
            if condition is not None:
                answer["errorCondition"] = Symbol(condition)
        reply = encode_message(
            properties=Properties(correlation_id=properties.message_id),
            application_properties=answer,
            body=("value", reply_body),
        )
        for outgoing in self.outgoing:
            if getattr(outgoing.target, "address", None) == properties.reply_to:
                outgoing.send(reply, b"r", settled=True)
