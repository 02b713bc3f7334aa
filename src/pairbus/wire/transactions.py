"""Transactions: messages sent and settled together, or not at all.

    async with await client.transaction("orders") as transaction:
        await receiver.complete(message, transaction=transaction)
        await sender.send(payload, transaction=transaction)

The block commits at its end and rolls back if it raises. All operations go over the client that began the transaction,
through one entity; a sender to another one is opened with `via` (docs/reference/protocol.md#transactions). The service
allows two minutes and 100 messages. A commit without an answer has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import math
from typing import Self

from pairbus.amqp.events import Disposed
from pairbus.amqp.link import Link
from pairbus.amqp.performative_types import Coordinator, Declare, Declared, Discharge, Source
from pairbus.amqp.session import Session
from pairbus.amqp.transactions import encode_coordination, in_transaction

from .errors import WireError
from .links import LinkClient
from .sender import Sender

_DEAD_LETTERS = ("/$deadletterqueue", "/$transfer")
_SUBSCRIPTIONS = "/subscriptions/"


class Transaction:
    """One transaction; get one from `WireClient.transaction`."""

    def __init__(self, controller: Controller, txn_id: bytes) -> None:
        self.id = txn_id
        self.is_over = False
        self._controller = controller

    def __repr__(self) -> str:
        return f"<Transaction {self.id.hex()}: {'over' if self.is_over else 'open'}>"

    def state(self, outcome: bytes = b"") -> bytes:
        """Return the encoded state of a delivery in this transaction, with its encoded outcome if it has one."""
        return in_transaction(self.id, outcome)

    async def commit(self, timeout: float | None = None) -> None:
        """Commit the sends and settlements in it; raise Refused if none of them was carried out."""
        await self._discharge(False, timeout)

    async def roll_back(self, timeout: float | None = None) -> None:
        """Roll it back: messages that it would have settled are locked as before."""
        await self._discharge(True, timeout)

    async def _discharge(self, fail: bool, timeout: float | None) -> None:
        if self.is_over:
            raise ValueError(f"{self!r} was committed or rolled back before; begin another one")
        self.is_over = True
        await self._controller.discharge(self.id, fail, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self.is_over:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.roll_back()
        except WireError:
            pass  # the peer rolls it back by itself, and the reason for it is on its way up


class Controller(Sender):
    """The link to the peer's coordinator; one of a client."""

    role = "coordinator"

    def __init__(self, client: LinkClient, entity: str, *, window: int, timeout: float) -> None:
        super().__init__(client, entity, window=window, timeout=timeout)
        self._declared: dict[asyncio.Future[None], bytes] = {}

    async def declare(self, timeout: float | None = None) -> bytes:
        """Begin a transaction and return its id."""
        future = await self._ask(Declare(), timeout)
        try:
            return self._declared.pop(future)
        except KeyError:
            raise WireError("amqp:unknown-error", f"{self.entity}: the peer accepted a declare without an id") from None

    async def discharge(self, txn_id: bytes, fail: bool, timeout: float | None = None) -> None:
        await self._ask(Discharge(txn_id, fail), timeout)

    async def _ask(self, request: Declare | Discharge, timeout: float | None) -> asyncio.Future[None]:
        deadline = self._deadline(timeout)
        if self.room <= 0:
            await self._ready(deadline)
        future = self._submit(encode_coordination(request), 0, math.inf)
        timer = self.loop.call_at(deadline, self._expire, (future,))
        try:
            await future
        finally:
            timer.cancel()
        return future

    def disposed(self, event: Disposed) -> None:
        if type(event.state) is not Declared:
            super().disposed(event)
            return
        if not event.settled:
            event.session.dispose(False, event.first, event.last, True, event.state)
        for future in self._confirms.take(event.first, event.last):
            if not future.done():
                self._declared[future] = event.state.txn_id
                future.set_result(None)

    def _attach(self, session: Session, name: str) -> Link:
        capabilities = ["amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"]
        return session.attach(name, False, Source(address=name), Coordinator(capabilities=capabilities))


def via_of(entity: str) -> str:
    """Return the queue or topic through which a transaction goes that settles messages of this entity."""
    for suffix in _DEAD_LETTERS:
        if entity.lower().endswith(suffix):
            entity = entity[: -len(suffix)]
    at = entity.lower().find(_SUBSCRIPTIONS)
    return entity if at < 0 else entity[:at]
