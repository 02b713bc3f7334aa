"""Serves transactions: the coordinator behind a control link, and the sends and settlements in them.

See docs/reference/protocol.md#transactions.

model/transaction.py decides what a transaction may contain, and operations/transactions.py carries it out. A
transaction belongs to its connection, and ends with the link over which it was declared.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.amqp.events import Delivered, DeliveryTooLarge, TransactionalDelivered
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.performative_types import Declare, Declared, Discharge, Modified, TransactionalState
from pairbus.amqp.performatives import ACCEPTED_BYTES, REJECTED_EMPTY_BYTES
from pairbus.amqp.session import Session
from pairbus.amqp.transactions import in_transaction, read_coordination
from pairbus.broker.model import outcomes
from pairbus.broker.model.outcomes import LocksLost, Release
from pairbus.broker.model.transaction import OPEN, Send, Settle, Transaction, rolled_back, root_of
from pairbus.broker.operations.enqueue import partition_for_send
from pairbus.broker.refusal import Refusal
from pairbus.broker.telemetry.recorder import UnsettledDelivery

from .links import RequestNode, SourceNode, TargetNode, outcome_of, rejected

if TYPE_CHECKING:
    from .connection import AmqpConnection

#: Of one connection, whether they are open or wait for their discharge.
TRANSACTIONS_MAX = 1000
_CREDIT = 100
#: How a settlement is answered (docs/reference/protocol.md#outcomes).
_ANSWERS: dict[type, bytes] = {
    outcomes.Complete: ACCEPTED_BYTES,
    outcomes.Abandon: Modified().encode(),
    outcomes.Defer: Modified().encode(),
    outcomes.DeadLetter: REJECTED_EMPTY_BYTES,
}


class CoordinatorNode:
    """The target of a control link: it declares and discharges transactions."""

    __slots__ = ("_transactions", "connection", "link")

    def __init__(self, connection: AmqpConnection, link: ReceiverLink) -> None:
        self.connection = connection
        self.link = link
        self._transactions: dict[bytes, Transaction] = {}
        link.flow(_CREDIT)

    def __repr__(self) -> str:
        return f"<CoordinatorNode: {len(self._transactions)} transactions>"

    def delivered(self, event: Delivered) -> None:
        if self.link.credit <= _CREDIT // 2:
            self.link.flow(_CREDIT)
        if event.settled:
            text = "a message to a coordinator must not be settled: its answer is the outcome"
            self.connection.cut(self.link, Refusal(conditions.NOT_ALLOWED, text))
            return
        try:
            request = read_coordination(event.payload)
        except AmqpError as error:
            self._answer(event, Refusal(error.condition, error.description))
            return
        if isinstance(request, Declare):
            self._declare(event, request)
        else:
            self._discharge(event, request)

    def _declare(self, event: Delivered, request: Declare) -> None:
        connection = self.connection
        if request.global_id is not None:
            text = "transactions with a global id are not supported; declare one without"
            self._answer(event, Refusal(conditions.NOT_IMPLEMENTED, text))
        elif (refusal := connection.refuses_transaction(TRANSACTIONS_MAX)) is not None:
            self._answer(event, refusal)
        else:
            txn_id = connection.host.namespace.transactions.new_id()
            transaction = self._transactions[txn_id] = Transaction(txn_id)
            connection.transactions[txn_id] = (transaction, self.link.session)
            connection.reject(self.link, event.delivery_id, Declared(txn_id).encode())

    def _discharge(self, event: Delivered, request: Discharge) -> None:
        connection = self.connection
        transaction = self._transactions.pop(request.txn_id, None)
        connection.transactions.pop(request.txn_id, None)
        namespace = connection.host.namespace
        if transaction is None:
            self._answer(event, unknown(request.txn_id))
        elif request.fail:
            namespace.transactions.roll_back(transaction, rolled_back("its client asked for it"))
            self._answer(event, None)
        else:
            namespace.transactions.commit(transaction, connection.host.clock(), partial(self._answer, event))

    def _answer(self, event: Delivered, refusal: Refusal | None) -> None:
        if not self.link.detached:
            state = ACCEPTED_BYTES if refusal is None else rejected(refusal)
            self.connection.reject(self.link, event.delivery_id, state)

    def too_large(self, event: DeliveryTooLarge) -> None:
        text = f"a message of {event.size} bytes to a coordinator is too large"
        self.connection.reject(self.link, event.delivery_id, rejected(Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)))

    def closed(self) -> None:
        """Roll back what is open."""
        transactions = self.connection.host.namespace.transactions
        for txn_id, transaction in self._transactions.items():
            self.connection.transactions.pop(txn_id, None)
            transactions.roll_back(transaction, rolled_back("its control link has ended"))
        self._transactions.clear()


def unknown(txn_id: bytes) -> Refusal:
    text = f"No transaction {txn_id.hex()[:64]} is open on this connection."
    return Refusal(conditions.UNKNOWN_TRANSACTION, text)


def deliver(connection: AmqpConnection, event: TransactionalDelivered) -> None:
    """Pass a message of a transaction to the node behind its link."""
    node = event.link.context
    if isinstance(node, CoordinatorNode):
        node.delivered(event)
        return
    found = connection.transactions.get(event.txn_id)
    if found is None:
        _refuse(connection, event, unknown(event.txn_id), None)
    elif isinstance(node, TargetNode):
        transaction, session = found
        faults = connection.host.faults
        delay = faults.latency(node.path, connection.host.clock()) if faults.is_on else 0.0
        if delay:
            connection.loop.call_later(delay, _send, node, event, transaction, session)
        else:
            _send(node, event, transaction, session)
        node.top_up()
    elif isinstance(node, RequestNode):
        node.delivered(event, found[0])


def _send(node: TargetNode, event: TransactionalDelivered, transaction: Transaction, session: Session) -> None:
    connection = node.connection
    host, now = connection.host, connection.host.clock()
    payloads = node.split(event)
    if not isinstance(payloads, Refusal) and host.faults.is_on:
        partition = partition_for_send(node.target.entity, payloads)
        refusal = host.faults.refusal("send", node.path, now, len(payloads), partition=partition)
        if refusal is None and host.faults.hangs(node.path, now):
            connection.hang(node.path)
            return
        payloads = refusal or payloads
    if isinstance(payloads, Refusal):
        _refuse(connection, event, payloads, transaction)
        return
    results: list[int] = []

    def ended(refusal: Refusal | None) -> None:
        host.recorder.sent(node.path, payloads, results, connection.cause, now, refusal)

    operation = Send(node.target, payloads, ended, results, node.via)
    refusal = host.namespace.transactions.enlist(transaction, operation, _via(node, session), now)
    if refusal is not None:
        host.recorder.sent(node.path, payloads, results, connection.cause, now, refusal)
        _refuse(connection, event, refusal, transaction)
    elif not event.settled and not node.link.detached:
        connection.reject(node.link, event.delivery_id, in_transaction(transaction.id, ACCEPTED_BYTES))


def _via(node: TargetNode, session: Session) -> str | None:
    """Return through which entity a message goes. On the session of the coordinator, which clients use that leave it to
    the service, it is the one that the others go through."""
    if node.via is not None:
        return root_of(node.via.entity)
    return None if node.link.session is session else root_of(node.target.entity)


def _refuse(
    connection: AmqpConnection, event: TransactionalDelivered, refusal: Refusal, transaction: Transaction | None
) -> None:
    if not event.settled:
        if not event.link.detached:
            connection.reject(event.link, event.delivery_id, rejected(refusal))
    elif transaction is not None:
        _doom(transaction, refusal)


def _doom(transaction: Transaction, refusal: Refusal) -> None:
    """Let the commit fail: its client did not wait for the answer to an operation that was refused."""
    if transaction.state == OPEN:
        transaction.failure = transaction.failure or rolled_back(refusal)


def settle(node: SourceNode, delivery_ids: list[int], settled: bool, state: TransactionalState) -> None:
    """Add the settlement of deliveries to a transaction. They can be settled again if it is rolled back."""
    _TransactionalSettlement(node, delivery_ids, settled, state).enlist()


class _TransactionalSettlement:
    """One disposition of a client's in a transaction."""

    __slots__ = ("_delivery_ids", "_entries", "_is_settled", "_node", "_outcome", "_since", "_state")

    def __init__(self, node: SourceNode, delivery_ids: list[int], settled: bool, state: TransactionalState) -> None:
        self._node = node
        self._delivery_ids = delivery_ids
        self._is_settled = settled
        self._state = state
        self._outcome = outcome_of(state.outcome)
        self._since = node.connection.host.clock()
        self._entries: list[UnsettledDelivery] = [node.unsettled[delivery_id] for delivery_id in delivery_ids]

    def enlist(self) -> None:
        node, outcome, txn_id = self._node, self._outcome, self._state.txn_id
        found = node.connection.transactions.get(txn_id)
        if found is None:
            self._answer(False, rejected(unknown(txn_id)))
            return
        if outcome is None or isinstance(outcome, Release):
            shown = "none" if self._state.outcome is None else type(self._state.outcome).__name__.lower()
            text = f"A transaction completes, abandons, defers or dead-letters messages; this outcome is {shown}."
            self._refuse(found[0], Refusal(conditions.NOT_ALLOWED, text))
            return
        tokens = [token for token, _, _ in self._entries]
        operation = Settle(node.queue, tokens, outcome, self._ended, node.session)
        transactions = node.connection.host.namespace.transactions
        refusal = transactions.enlist(found[0], operation, root_of(node.queue.entity), self._since)
        if refusal is not None:
            self._refuse(found[0], refusal)
        else:
            self._answer(False, in_transaction(txn_id, _ANSWERS[type(outcome)]))

    def _refuse(self, transaction: Transaction, refusal: Refusal) -> None:
        if self._is_settled:
            _doom(transaction, refusal)
        is_lost = isinstance(refusal, LocksLost)
        if is_lost:
            self._forget()
        self._answer(is_lost, rejected(refusal))

    def _ended(self, refusal: Refusal | None) -> None:
        node, outcome = self._node, self._outcome
        assert outcome is not None
        connection = node.connection
        host = connection.host
        host.recorder.settled(node.path, outcome, self._entries, connection.cause, self._since, host.clock(), refusal)
        if refusal is None:
            self._forget()
            self._answer(True, _ANSWERS[type(outcome)])

    def _forget(self) -> None:
        for delivery_id in self._delivery_ids:
            self._node.unsettled.pop(delivery_id, None)
            self._node.connection.forget(self._node.link, delivery_id)

    def _answer(self, is_final: bool, state: bytes) -> None:
        node = self._node
        if self._is_settled or node.link.detached:
            return
        for first, last in _ranges(self._delivery_ids):
            node.link.session.dispose(False, first, last, is_final, state)
        node.connection.flush_soon()


def _ranges(delivery_ids: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive ids as first and last."""
    runs: list[tuple[int, int]] = []
    for delivery_id in delivery_ids:
        if runs and delivery_id == (runs[-1][1] + 1) & 0xFFFFFFFF:
            runs[-1] = (runs[-1][0], delivery_id)
        else:
            runs.append((delivery_id, delivery_id))
    return runs
