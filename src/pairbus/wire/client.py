"""The asyncio wire client: one connection to a namespace, with its senders, receivers and requests.

    client = WireClient.from_connection_string(text)
    sender = await client.sender("orders")
    await sender.send(payload)

A shell around the AMQP engine. It connects when it is first used and again after a loss, with back-off; links reopen at
their next use. Calls in progress fail when a connection is lost, and nothing is sent again automatically. Every call
has a time-out. It does not retry: each call reports what happened, and the caller decides.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pairbus import __version__, billing
from pairbus.amqp.connection import Connection
from pairbus.amqp.errors import AmqpError
from pairbus.amqp.limits import Limits
from pairbus.amqp.sasl import ANONYMOUS, PLAIN, SaslClient
from pairbus.amqp.types import Symbol
from pairbus.connection_string import PAIRBUS, PLAIN_PORT, PRODUCT, TLS_PORT, ConnectionString, namespace_name
from pairbus.credentials import Credential, Login, TokenSource, as_credential, from_connection_string

from . import requests
from .backoff import exponential
from .errors import CLIENT_CLOSED, ClientClosed, Refused, Unauthorized, Unreachable, WireError
from .exchange import Exchange
from .links import ReopeningLink
from .receiver import SESSION_WAIT, NextSession, Receiver
from .requests import LockToken
from .sender import Sender
from .settling import settle_each
from .tokens import Tokens
from .transactions import Controller, Transaction
from .transport import SingleFlight, Transport

L = TypeVar("L", bound=ReopeningLink)

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
_TRANSACTIONS_MAX = 100
# As Proton does: a receiver's credit bounds what comes. A window that waits for settlements on the link would stop
# callers that settle by token.
INCOMING_WINDOW = 2**31 - 1


def _default_backoff() -> Iterator[float]:
    return exponential(random.random)


class WireClient:
    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        tls: bool = True,
        credential: Credential | TokenSource | None = None,
        ca_file: str | Path | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        idle_timeout: float | None = 60.0,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        container_id: str | None = None,
        cause: str = billing.APP,
        backoff: Callable[[], Iterator[float]] = _default_backoff,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`credential`: SharedKey, SharedSignature or an object with get_token go through `$cbs`; Login is SASL PLAIN;
        None is ANONYMOUS with no `$cbs`. `timeout` bounds each call that is given none, `connect_timeout` TCP, TLS,
        SASL and open together. A peer that is silent for twice `idle_timeout` is taken for dead. `cause`: the billing
        cause, sent when it connects, so that our broker can count its operations by cause."""
        if (ca_file is not None or ssl_context is not None) and not tls:
            raise ValueError("ca_file and ssl_context are for TLS, which is off (UseDevelopmentEmulator=true)")
        if ca_file is not None and ssl_context is not None:
            raise ValueError("ca_file and ssl_context exclude each other; load the CA into the context")
        if timeout <= 0 or connect_timeout <= 0:
            raise ValueError(f"time-outs are above 0 s, not timeout={timeout}, connect_timeout={connect_timeout}")
        if cause not in billing.CAUSES:
            raise ValueError(f"{cause!r} is not a cause; right are {', '.join(billing.CAUSES)}")
        self.host = host
        self.port = port or (TLS_PORT if tls else PLAIN_PORT)
        self.cause = cause
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        bracketed = f"[{host}]" if ":" in host else host
        self._authority = bracketed if port is None else f"{bracketed}:{port}"
        self._tls = tls
        self._ca_file = None if ca_file is None else str(ca_file)
        self._ssl_context = ssl_context
        self._credential = as_credential(credential)
        self._idle_timeout = idle_timeout
        self._message_bytes_max = message_bytes_max
        self._container_id = container_id or f"pairbus-{uuid.uuid4()}"
        self._backoff = backoff
        self._delays: Iterator[float] | None = None
        self._not_before = 0.0
        self._last_error: WireError | None = None
        self._clock = clock
        self._pid = os.getpid()
        self._closed = False
        self._transport: Transport | None = None
        self._tokens: Tokens | None = None
        self._flight = SingleFlight()
        self._links: set[ReopeningLink] = set()
        self._exchanges: dict[str, Exchange] = {}
        self._controller: Controller | None = None

    @classmethod
    def from_connection_string(cls, text: str | ConnectionString, **options: Any) -> Self:
        parsed = ConnectionString.parse(text) if isinstance(text, str) else text
        options.setdefault("credential", from_connection_string(parsed))
        return cls(parsed.host, parsed.endpoint_port, tls=parsed.tls, **options)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.is_connected else "not connected"
        return (
            f"<WireClient {self.host}:{self.port} {'TLS' if self._tls else 'plain'}: {state}, {len(self._links)} links>"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- links

    async def sender(
        self,
        entity: str,
        *,
        window: int = 1000,
        timeout: float | None = None,
        open_timeout: float | None = None,
        via: str | None = None,
    ) -> Sender:
        """Return an open sender. `window`: messages under way at once; `timeout`: for each of its calls that is given
        none; `via`: the queue or topic through which it sends in a transaction that is about that one."""
        sender = Sender(self, entity, window=window, timeout=timeout or self.timeout, via=via)
        return await self._with_link(sender, open_timeout)

    async def receiver(
        self,
        entity: str,
        *,
        mode: str = "lock",
        credit: int = 0,
        session_id: str | NextSession | None = None,
        timeout: float | None = None,
        open_timeout: float | None = None,
    ) -> Receiver:
        """Return an open receiver; `receiver.py` says what `mode`, `credit` and `session_id` mean."""
        receiver = Receiver(
            self,
            entity,
            mode=mode,
            credit=credit,
            session_id=session_id,
            timeout=timeout or self.timeout,
            message_bytes_max=self._message_bytes_max,
        )
        return await self._with_link(receiver, open_timeout)

    async def next_session(self, entity: str, wait_s: float, **options: Any) -> Receiver | None:
        """Return an open receiver of the next session that is free, or None where there was none for so long."""
        try:
            return await self.receiver(entity, session_id=NextSession(wait_s), **options)
        except Refused as error:
            if error.condition != SESSION_WAIT:
                raise
            return None

    async def transaction(self, entity: str, timeout: float | None = None) -> Transaction:
        """Begin a transaction that goes through this queue or topic; `transactions.py` says how it is used."""
        if self._controller is None:
            self._controller = Controller(self, entity, window=_TRANSACTIONS_MAX, timeout=self.timeout)
            self._links.add(self._controller)
        return Transaction(self._controller, await self._controller.declare(timeout))

    async def _with_link(self, link: L, timeout: float | None) -> L:
        self._links.add(link)
        try:
            await link.open((self.timeout if timeout is None else timeout) + link.answer_s)
        except BaseException:
            self._links.discard(link)
            link.discard()
            raise
        return link

    def forget(self, link: ReopeningLink) -> None:
        self._links.discard(link)

    # -- requests

    async def request(
        self,
        entity: str,
        operation: str,
        body: Mapping[str, Any],
        timeout: float | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> tuple[int, Any]:
        """Send one `$management` request and return the status (200 to 299) and the body; raise for any other
        status."""
        span = self.timeout if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + span
        exchange = await self._management(entity, deadline)
        response = await exchange.call(
            lambda message_id, reply_to: requests.management_request(message_id, reply_to, operation, body, span),
            deadline,
            f"{operation} on {entity}",
            None if transaction is None else transaction.state(),
        )
        problem = response.refusal
        if problem is not None:
            if isinstance(problem, Unauthorized):
                self.doubt(entity)
            raise problem
        return response.status, response.body

    async def settle_by_token(
        self,
        entity: str,
        tokens: Iterable[LockToken],
        disposition: str,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Settle messages by lock token in one request: 'completed', 'abandoned', 'defered' or 'suspended'
        (dead-letter). One lost lock fails it for all; `settle_each` tells which."""
        body = requests.update_disposition(
            tokens, disposition, reason=reason, description=description, properties=properties
        )
        await self.request(entity, requests.UPDATE_DISPOSITION, body, timeout, transaction=transaction)

    async def settle_each(
        self, entity: str, tokens: Sequence[LockToken], disposition: str, **options: Any
    ) -> list[WireError | None]:
        """Settle messages by lock token, many per request, and return for each the error or None; `settling.py` has the
        rules and the options."""
        return await settle_each(self, entity, tokens, disposition, **options)

    async def renew(self, entity: str, tokens: Iterable[LockToken], timeout: float | None = None) -> list[float]:
        """Renew locks and return their new ends in unix seconds, in the order of the tokens."""
        _, body = await self.request(entity, requests.RENEW_LOCK, requests.renew_lock(tokens), timeout)
        return _read(requests.read_expirations, body)

    async def peek(
        self, entity: str, from_sequence: int = 1, count: int = 100, timeout: float | None = None
    ) -> list[bytes]:
        """Return encoded messages from that sequence number on, without locking them; the peer may give fewer than
        wanted."""
        status, body = await self.request(entity, requests.PEEK, requests.peek_message(from_sequence, count), timeout)
        return [] if status in (202, 204) else _read(requests.read_messages, body)

    async def _management(self, entity: str, deadline: float) -> Exchange:
        exchange = self._exchanges.get(entity)
        if exchange is None or exchange.error is not None:
            transport = await self.authorized(entity, deadline)
            exchange = self._exchanges.get(entity)  # another task may have been faster
            if exchange is None or exchange.error is not None:
                node = requests.management_node(entity)
                exchange = self._exchanges[entity] = Exchange(transport, node, self.timeout)
        try:
            await exchange.opened(deadline)
        except Unauthorized:
            self.doubt(entity)
            raise
        return exchange

    # -- the connection

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and self._transport.error is None

    async def connect(self, timeout: float | None = None) -> None:
        """Connect now, to know at once whether it works; every call connects by itself."""
        await self._connected(asyncio.get_running_loop().time() + (self.timeout if timeout is None else timeout))

    async def namespace(self, timeout: float | None = None) -> str:
        """Return the name by which the namespace is known, whatever host and port it is reached by."""
        deadline = asyncio.get_running_loop().time() + (self.timeout if timeout is None else timeout)
        opened = (await self._connected(deadline)).connection.remote_open
        assert opened is not None
        return namespace_name(self.host, self.port, opened.container_id, opened.properties)

    async def authorized(self, entity: str, deadline: float) -> Transport:
        """Return a live connection on which `$cbs`, where there is one, has accepted a token for the entity."""
        transport = await self._connected(deadline)
        if self._tokens is not None:
            await self._tokens.authorize(self._audience(entity), deadline)
        return transport

    def doubt(self, entity: str) -> None:
        """Send a new token next time: the peer denied a right that the present one should have given."""
        if self._tokens is not None:
            self._tokens.forget(self._audience(entity))

    def _audience(self, entity: str) -> str:
        return f"sb://{self._authority}/{entity.lstrip('/')}"

    async def _connected(self, deadline: float) -> Transport:
        while True:
            self._check_usable()
            transport = self._transport
            if transport is not None and transport.error is None:
                return transport
            await self._wait_for_turn(deadline)
            await self._flight.run(self._attempt, deadline, f"connecting to {self.host}:{self.port}")

    async def _wait_for_turn(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        if self._not_before <= loop.time():
            return
        if self._not_before >= deadline and self._last_error is not None:
            # no attempt will be made in the caller's time: say so now, with the reason of the last one
            wait_s = self._not_before - loop.time()
            await asyncio.sleep(max(0.0, deadline - loop.time()))
            raise Unreachable(
                self._last_error.condition,
                f"{self._last_error.description}; the next attempt was due in {wait_s:.2g} s",
            )
        await asyncio.sleep(self._not_before - loop.time())

    async def _attempt(self) -> None:
        loop = asyncio.get_running_loop()
        if self.is_connected or loop.time() < self._not_before:
            return  # the wait was for an attempt that another task has made meanwhile
        self._let_go()
        credential = self._credential
        login = credential if isinstance(credential, Login) else None
        connection = Connection(
            server=False,
            container_id=self._container_id,
            hostname=self.host,
            limits=Limits(message_bytes_max=self._message_bytes_max, incoming_window=INCOMING_WINDOW),
            idle_timeout=self._idle_timeout,
            sasl=SaslClient(PLAIN, login.initial_response) if login is not None else SaslClient(ANONYMOUS),
            properties={
                Symbol(PRODUCT): PAIRBUS,
                Symbol("version"): __version__,
                Symbol(billing.CAUSE_PROPERTY): self.cause,
            },
        )
        try:
            transport = await Transport.connect(connection, self.host, self.port, self._context(), self.connect_timeout)
        except WireError as error:
            if self._delays is None:
                self._delays = iter(self._backoff())
            self._not_before = loop.time() + next(self._delays, 0.0)
            self._last_error = error
            raise
        self._delays = self._last_error = None
        self._transport = transport
        if credential is not None and not isinstance(credential, Login):
            self._tokens = Tokens(transport, credential, self._clock, self.timeout)

    def _context(self) -> ssl.SSLContext | None:
        if not self._tls:
            return None
        if self._ssl_context is None:
            try:
                self._ssl_context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise Unreachable(
                    "pairbus:unreachable", f"ca_file {self._ca_file!r}: {error.strerror or error}"
                ) from None
        return self._ssl_context

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosed(CLIENT_CLOSED, f"the client for {self.host} was closed")
        if os.getpid() != self._pid:
            raise ClientClosed(CLIENT_CLOSED, "the client was made in another process; make one in this process")

    def _let_go(self) -> None:
        """Forget what belonged to a connection that is gone."""
        if self._tokens is not None:
            self._tokens.close()
            self._tokens = None
        self._exchanges.clear()
        self._transport = None

    async def close(self) -> None:
        """Release unread messages, close the links and the connection, in a few seconds at most. Idempotent."""
        if self._closed:
            return
        self._closed = True
        transport = self._transport
        try:
            if transport is not None and transport.error is None:
                await asyncio.gather(*(link.close() for link in tuple(self._links)), return_exceptions=True)
            if transport is not None:
                await transport.close(self._closed_error())
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the connection without waiting for its peer, which releases what this client holds locked."""
        self._closed = True
        self._flight.cancel()
        if self._transport is not None:
            self._transport.abandon(self._closed_error())
        self._let_go()
        self._links.clear()

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(CLIENT_CLOSED, f"the client for {self.host} was closed")


def _read(reader: Callable[[Any], list[Any]], body: Any) -> list[Any]:
    try:
        return reader(body)
    except AmqpError as error:
        raise WireError(error.condition, error.description) from None
