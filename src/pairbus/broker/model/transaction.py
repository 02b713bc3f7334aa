"""Decides which operations a transaction may contain, and when it is over. Pure.

    state        leaves it by
    OPEN         commit → COMMITTING; rolled back by its client, with its link or connection, or by time → ROLLED_BACK
    COMMITTING   its record is written → COMMITTED; it could not be → ROLLED_BACK
    COMMITTED    nothing: all of its operations are done
    ROLLED_BACK  nothing: none of them is

A transaction collects operations and does nothing before it is committed: messages that are settled in it stay locked
until then, and their locks may expire like any other, which makes the commit fail. Everything is bounded: the messages
of one transaction and their bytes, and the bytes of all transactions of a namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.broker.refusal import Refusal

from .entity import QueueEntity, TransferQueue
from .outcomes import Outcome
from .queue import MessageQueue
from .sessions import SessionLock
from .topic import Subscription, Topic

OPEN: Final = 0
COMMITTING: Final = 1
COMMITTED: Final = 2
ROLLED_BACK: Final = 3
_STATES: Final = ("open", "committing", "committed", "rolled back")

#: Sent in one transaction, as the service allows; and settled in one.
MESSAGES_MAX: Final = 100
#: From its first operation on.
LIFETIME_S: Final = 120.0
#: Of what is sent in one transaction, and in all of a namespace.
BYTES_MAX: Final = 32 << 20
ALL_BYTES_MAX: Final = 256 << 20

Ended = Callable[[Refusal | None], None]


@dataclass(slots=True, eq=False)
class Send:
    """Messages to send. `ended` gets None once they are stored, or why they are not; `results` then says what became
    of each (outcomes.py)."""

    target: MessageQueue | Topic
    payloads: Sequence[bytes]
    ended: Ended
    results: list[int] = field(default_factory=list)
    #: The entity through which they are sent, where it is another one.
    via: MessageQueue | Topic | None = None
    #: Of messages to a partitioned entity.
    key: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))


@dataclass(slots=True, eq=False)
class Settle:
    """Messages to settle. `ended` gets None once they are, or why they are not: their locks are as they were."""

    queue: MessageQueue
    tokens: Sequence[bytes]
    outcome: Outcome
    ended: Ended
    session: SessionLock | None = None


Operation = Send | Settle


class Transaction:
    """The operations of one transaction, and its state."""

    __slots__ = ("failure", "id", "key", "operations", "sent", "settled", "size_bytes", "started_at", "state", "via")

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.state = OPEN
        self.operations: list[Operation] = []
        #: How many messages are sent, and how many settled.
        self.sent = 0
        self.settled = 0
        self.size_bytes = 0
        #: When its first operation came.
        self.started_at = inf
        #: The queue or topic, in lower case, through which all of its operations go.
        self.via: str | None = None
        #: The key of all messages that it sends to partitioned entities.
        self.key: str | None = None
        #: Why it can't be committed any more, or why it was rolled back.
        self.failure: Refusal | None = None

    @property
    def deadline(self) -> float:
        return self.started_at + LIFETIME_S

    def __repr__(self) -> str:
        return f"<Transaction {self.id.hex()}: {_STATES[self.state]}, {self.sent} sent, {self.settled} settled>"


class OpenTransactions:
    """The transactions of a namespace that are not over."""

    __slots__ = ("_started", "_tokens", "size_bytes")

    def __init__(self) -> None:
        #: Bytes of the messages that wait for a commit.
        self.size_bytes = 0
        # Those that have an operation, in the order of the first one: so their time ends.
        self._started: dict[Transaction, None] = {}
        self._tokens: dict[bytes, Transaction] = {}

    def __len__(self) -> int:
        return len(self._started)

    def __repr__(self) -> str:
        return f"<OpenTransactions: {len(self._started)}, {self.size_bytes} bytes>"

    def add(
        self,
        transaction: Transaction,
        operation: Operation,
        via: str | None,
        now: float,
        messages_max: int = MESSAGES_MAX,
    ) -> Refusal | None:
        """Add an operation to a transaction, or return why not; the transaction is then unchanged.

        `via` is the queue or topic through which the operation goes: one for all operations of a transaction. None: it
        goes through that of the others, whichever it is.
        """
        refusal = self._refusal(transaction, operation, via, now, messages_max)
        if refusal is not None:
            return refusal
        if transaction.via is None:
            transaction.via = via
        if isinstance(operation, Send):
            transaction.key = transaction.key if operation.key is None else operation.key
            transaction.sent += len(operation.payloads)
            transaction.size_bytes += operation.size_bytes
            self.size_bytes += operation.size_bytes
        else:
            transaction.settled += len(operation.tokens)
            self._tokens.update(dict.fromkeys(operation.tokens, transaction))
        transaction.operations.append(operation)
        if transaction not in self._started:
            transaction.started_at = now
            self._started[transaction] = None
        return None

    def _refusal(
        self, transaction: Transaction, operation: Operation, via: str | None, now: float, messages_max: int
    ) -> Refusal | None:
        if transaction.state != OPEN or now >= transaction.deadline:
            return transaction.failure or timed_out(transaction)
        if via is not None and transaction.via not in (None, via):
            text = (
                f"The transaction works through '{transaction.via}'. A message to another entity is sent over a link "
                f"to it with the property com.microsoft:transfer-destination-address; messages of '{via}' are settled "
                "in another transaction."
            )
            return Refusal(conditions.NOT_ALLOWED, text)
        if isinstance(operation, Send):
            return self._refusal_of_send(transaction, operation, messages_max)
        if transaction.settled + len(operation.tokens) > messages_max:
            text = f"Cannot settle more than {messages_max} messages in a single transaction."
            return Refusal(conditions.NOT_ALLOWED, text)
        taken = [token for token in operation.tokens if token in self._tokens]
        if taken or len(set(operation.tokens)) < len(operation.tokens):
            text = f"A message of '{operation.queue.path}' is settled twice: a transaction that is open settles it."
            return Refusal(conditions.MESSAGE_LOCK_LOST, text)
        return None

    def _refusal_of_send(self, transaction: Transaction, operation: Send, messages_max: int) -> Refusal | None:
        if operation.target.entity.partitions is not None:
            path = operation.target.path
            if operation.key is None:
                text = f"A message to the partitioned entity '{path}' needs a partition key or session id here: it is"
                return Refusal(conditions.NOT_ALLOWED, f"{text} part of a transaction.")
            if transaction.key not in (None, operation.key):
                text = (
                    f"The messages of a transaction to partitioned entities have one partition key or session id; "
                    f"this one to '{path}' has '{operation.key}', those before it '{transaction.key}'."
                )
                return Refusal(conditions.NOT_ALLOWED, text)
        if transaction.sent + len(operation.payloads) > messages_max:
            text = f"Cannot send more than {messages_max} messages in a single transaction."
            return Refusal(conditions.NOT_ALLOWED, text)
        size = operation.size_bytes
        if transaction.size_bytes + size > BYTES_MAX:
            text = (
                f"The messages of the transaction would have {transaction.size_bytes + size} bytes; "
                f"{BYTES_MAX} are allowed."
            )
            return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        if self.size_bytes + size > ALL_BYTES_MAX:
            text = (
                f"{self.size_bytes} bytes of messages wait for the end of their transactions; {ALL_BYTES_MAX} may. "
                "Please wait 2 seconds and try again."
            )
            return Refusal(conditions.SERVER_BUSY, text)
        return None

    def end(self, transaction: Transaction, failure: Refusal | None = None) -> list[Operation]:
        """End a transaction, committed or, with a failure, rolled back; return what it held, whose ends are to be
        told."""
        transaction.state = COMMITTED if failure is None else ROLLED_BACK
        transaction.failure = failure
        self._started.pop(transaction, None)
        self.size_bytes -= transaction.size_bytes
        transaction.size_bytes = 0
        operations, transaction.operations = transaction.operations, []
        for operation in operations:
            if isinstance(operation, Settle):
                for token in operation.tokens:
                    self._tokens.pop(token, None)
        return operations

    def concerning(self, entities: Sequence[QueueEntity]) -> list[Transaction]:
        """Return the open transactions with an operation on one of these entities, or through one."""
        return [
            each
            for each in self._started
            if each.state == OPEN and any(_entities(operation) & set(entities) for operation in each.operations)
        ]

    # ---- time

    def deadline(self) -> float:
        """Return when the time of the next one is over; one that is being committed has no deadline."""
        return next((each.deadline for each in self._started if each.state == OPEN), inf)

    def overdue(self, now: float) -> list[Transaction]:
        """Return the open transactions whose time is over."""
        found = []
        for transaction in self._started:
            if transaction.deadline > now:
                break
            if transaction.state == OPEN:
                found.append(transaction)
        return found

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: as much is left of each transaction's time as before."""
        for transaction in self._started:
            transaction.started_at += seconds


def _target(operation: Operation) -> MessageQueue | Topic:
    return operation.target if isinstance(operation, Send) else operation.queue


def _entities(operation: Operation) -> set[QueueEntity]:
    via = operation.via if isinstance(operation, Send) else None
    return {each.entity for each in (_target(operation), via) if each is not None}


def root_of(entity: QueueEntity) -> str:
    """Return the queue or topic, in lower case, to which an entity belongs: a subscription's is its topic."""
    if isinstance(entity, TransferQueue) and entity.owner is not None:
        entity = entity.owner
    name = entity.description.topic if isinstance(entity, Subscription) else entity.name
    return name.lower()


def timed_out(transaction: Transaction) -> Refusal:
    text = (
        f"The transaction was rolled back: {LIFETIME_S:g} seconds have passed since its first operation. "
        "Begin another one."
    )
    return Refusal(conditions.TRANSACTION_TIMEOUT, text)


def rolled_back(reason: Refusal | str) -> Refusal:
    """Return what is told of a transaction that was rolled back for a reason, or may have been."""
    if isinstance(reason, Refusal) and reason.is_unknown:
        text = f"Whether the transaction was committed is not known: {reason.description}"
        return Refusal(reason.condition, text, is_unknown=True)
    why = reason if isinstance(reason, str) else f"{reason.description} ({reason.condition})"
    return Refusal(conditions.TRANSACTION_ROLLBACK, f"The transaction was rolled back: {why}")
