"""Base of senders and receivers: a link that is opened when it is used, and reopened after it was lost.

A shell. Each link has its own session, so that its delivery ids are independent and an error of one link ends no other.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Protocol

from pairbus.amqp.link import Link
from pairbus.amqp.performative_types import Error
from pairbus.amqp.session import Session

from .errors import CLIENT_CLOSED, LINK_LOST, ClientClosed, LinkLost, Unauthorized, WireError, refusal
from .transport import Owner, SingleFlight, Transport, before, fail, resolve

DETACH_S_MAX = 1.0


class LinkClient(Protocol):
    """The interface that a link needs of its client."""

    timeout: float

    async def authorized(self, entity: str, deadline: float) -> Transport: ...
    def doubt(self, entity: str) -> None: ...
    def forget(self, link: ReopeningLink) -> None: ...


class ReopeningLink(Owner):
    role: str
    #: How long the peer may take to answer an attach beyond the client's time-out, since it was asked to wait.
    answer_s = 0.0

    def __init__(self, client: LinkClient, entity: str, timeout: float) -> None:
        self.entity = entity
        self.timeout = timeout
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._client = client
        self._link: Link | None = None
        self._transport: Transport | None = None
        self._attached: asyncio.Future[None] | None = None
        self._detached: asyncio.Future[None] | None = None
        self._flight = SingleFlight()

    @property
    def is_open(self) -> bool:
        return self._link is not None

    async def open(self, timeout: float | None = None) -> None:
        """Connect, authorize and attach, unless the link is open."""
        await self._open(self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float:
        return self.loop.time() + (self.timeout if timeout is None else timeout)

    async def _open(self, deadline: float) -> None:
        if self._link is None:
            self._check_not_closed()
            await self._flight.run(self._attempt, deadline, f"opening a {self.role} for {self.entity}")

    def _check_not_closed(self) -> None:
        if self.closed:
            raise ClientClosed(CLIENT_CLOSED, f"the {self.role} for {self.entity} was closed")

    async def _attempt(self) -> None:
        deadline = self.loop.time() + self._client.timeout + self.answer_s
        transport = await self._authorized(deadline)
        session = transport.begin(self)
        link = self._attach(session, f"{self.role}-{uuid.uuid4()}")
        link.context = self
        self._transport = transport
        self._attached = self.loop.create_future()
        transport.wake()
        try:
            await before(deadline, f"attaching a {self.role} to {self.entity}", self._attached)
        except BaseException:
            self._abandon(link)
            transport.overdue()
            raise
        finally:
            self._attached = None

    async def _authorized(self, deadline: float) -> Transport:
        return await self._client.authorized(self.entity, deadline)

    def _attach(self, session: Session, name: str) -> Link:
        raise NotImplementedError

    def _opened(self, link: Link) -> None:
        """Called when the link is usable; events for it follow in the same loop turn."""

    def _dropped(self, error: WireError) -> None:
        """Called when the link is gone, and with it what was under way on it."""

    async def close(self) -> Any:
        raise NotImplementedError

    # -- what the transport tells

    def attached(self, link: Link) -> None:
        if link.refused or self._attached is None:
            return  # the reason comes with the detach
        self._link = link
        self._opened(link)
        resolve(self._attached)

    def detached(self, error: Error | None) -> None:
        if self._detached is not None and not self._detached.done():
            self._detached.set_result(None)
        elif error is None:
            self._drop(LinkLost(LINK_LOST, f"{self.entity}: the peer detached the {self.role}"))
        else:
            condition, text = str(error.condition), f"{self.entity}: {error.description or error.condition}"
            found: WireError = refusal(condition, text)
            if isinstance(found, Unauthorized):
                self._client.doubt(self.entity)
            elif self._link is not None:
                found = LinkLost(condition, text)
            self._drop(found)

    def lost(self, error: WireError) -> None:
        self._drop(error)

    # -- the end

    def _drop(self, error: WireError) -> None:
        link = self._link
        if self._attached is not None:
            fail(self._attached, error)
        if link is not None:
            self._abandon(link)
            self._dropped(error)

    def _abandon(self, link: Link) -> None:
        """Give the link up: from here on everything that the peer sends about it is ignored."""
        transport, self._transport, self._link = self._transport, None, None
        link.context = link.session.context = None
        if transport is not None:
            transport.leave(self)
            if transport.error is None:
                link.detach()
                link.session.end()
                transport.wake()

    def discard(self) -> None:
        """Close without waiting for the peer, for a link that no caller got."""
        self.closed = True
        self._flight.cancel()
        self._drop(ClientClosed(CLIENT_CLOSED, f"the {self.role} for {self.entity} was given up"))

    async def _detach(self) -> None:
        """Close the link and wait a little for the peer's answer, so that what was written before has been read."""
        link = self._link
        if link is None:
            return
        self._detached = self.loop.create_future()
        link.detach()
        if self._transport is not None:
            self._transport.wake()
        try:
            async with asyncio.timeout(DETACH_S_MAX):
                await self._detached
        except TimeoutError:
            pass
        finally:
            self._detached = None
            self._drop(ClientClosed(CLIENT_CLOSED, f"the {self.role} for {self.entity} was closed"))
