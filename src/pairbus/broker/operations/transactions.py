"""Transaction operations: sends and settlements that are done together, or not at all.

model/transaction.py decides what a transaction may contain. Nothing is done before the commit: it runs the usual
operations of queues and topics, collects their records, and writes these as one TRANSACTION record. If one of the
operations is refused, the others are undone as if the disk had refused them, before anyone could see their results.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import partial

from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.rules import RuleIndex
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.model.transaction import (
    COMMITTING,
    OPEN,
    Operation,
    Send,
    Settle,
    Transaction,
    rolled_back,
    root_of,
    timed_out,
)
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull
from pairbus.broker.storage.publish_record import WEIGHT_AT_ONCE
from pairbus.broker.storage.store import Done, Refused, Staged, Store, busy
from pairbus.journal import JournalError
from pairbus.journal.journal import Gathered

from .enqueue import EnqueueOperations, PreparedSend
from .registry import Registry
from .settlement import SettlementOperations
from .transfer import TransferOperations, is_disabled


class TransactionOperations:
    """Enlists operations in transactions, commits and rolls them back."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settlement: SettlementOperations,
        enqueue: EnqueueOperations,
        transfer: TransferOperations,
    ) -> None:
        self._store = store
        self._registry = registry
        self._settlement = settlement
        self._enqueue = enqueue
        self._transfer = transfer

    def new_id(self) -> bytes:
        return self._store.new_token()

    def enlist(self, transaction: Transaction, operation: Operation, via: str | None, now: float) -> Refusal | None:
        """Add an operation to a transaction, or return why not; transaction.py explains `via`."""
        if transaction.state == OPEN and now >= transaction.deadline:
            self.roll_back(transaction, timed_out(transaction))
        if isinstance(operation, Send):
            refusal = self._refuses_to_send(transaction, operation, via)
            operation.key = None if refusal is not None else self._enqueue.key_of(operation.target, operation.payloads)
        else:
            refusal = self._settlement.refuses_to_settle(operation.queue, operation.outcome)
            refusal = refusal or operation.queue.missing(operation.tokens, now, operation.session)
        most = self._registry.quotas.transaction_messages
        return refusal or self._store.transactions.add(transaction, operation, via, now, most)

    def _refuses_to_send(self, transaction: Transaction, operation: Send, via: str | None) -> Refusal | None:
        target = operation.target
        if via is None and transaction.via not in (None, root_of(target.entity)):
            found = self._registry.find(transaction.via)
            operation.via = found.active if found is not None and not isinstance(found, Topic) else found
        if operation.via is None:
            return self._enqueue.refuses(target, operation.payloads)
        return self._transfer.refuses(operation.via, target, operation.payloads)

    def roll_back(self, transaction: Transaction, reason: Refusal) -> None:
        """Drop the operations of an open transaction: messages that it would have settled are locked as before."""
        if transaction.state == OPEN:
            self.end(transaction, reason)

    def expire(self, now: float) -> None:
        """Roll back the transactions whose time is over."""
        for transaction in self._store.transactions.overdue(now):
            self.roll_back(transaction, timed_out(transaction))

    def commit(self, transaction: Transaction, now: float, done: Done) -> None:
        """Carry out all operations of a transaction and call `done` with None once they are on disk; or carry out none,
        and call `done` with the reason."""
        if transaction.state == OPEN and now >= transaction.deadline:
            self.roll_back(transaction, timed_out(transaction))
        if transaction.state == OPEN and transaction.failure is not None:
            self.roll_back(transaction, transaction.failure)
        if transaction.state != OPEN:
            done(transaction.failure)
            return
        transaction.state = COMMITTING
        self._commit(transaction, now, done)

    def _commit(self, transaction: Transaction, now: float, done: Done, *_: object) -> None:
        if not self._may_begin(transaction, now, done):
            return
        sends = [each for each in transaction.operations if isinstance(each, Send) and not is_disabled(each.target)]
        rules = {each: each.target.entity.rules for each in sends if isinstance(each.target.entity, Topic)}
        weight = sum(len(each.payloads) * index.weight for each, index in rules.items())
        if weight <= WEIGHT_AT_ONCE and not any(each.target.entity.sending for each in sends):
            _Commit(self._store, self, transaction, {}, done).begin(now)
            return
        staged = Staged(self._store)
        work = staged.during(self._preparing_all(rules, now, staged))
        lines = {id(line): line for line in (each.target.entity.sending for each in sends)}
        try:
            staged.hold(transaction.size_bytes)
            self._store.slices.start(
                work, partial(self._commit_prepared, transaction, now, done), tuple(lines.values())
            )
        except (Refused, SlicesFull):
            work.close()
            self.end(transaction, rolled_back(busy()), done)

    def _preparing_all(
        self, sends: Mapping[Send, RuleIndex[Subscription]], now: float, staged: Staged
    ) -> Generator[None, None, dict[Send, PreparedSend]]:
        """Prepare the sends of a transaction to topics, by these rules."""
        while True:
            prepared: dict[Send, PreparedSend] = {}
            known: dict[QueueEntity, set[bytes]] = {}
            for send, rules in sends.items():
                topic = send.target.entity
                assert isinstance(topic, Topic)
                keys = known.setdefault(topic, set())
                ready = prepared[send] = yield from self._enqueue.preparing(
                    topic, rules, send.payloads, now, False, staged, keys
                )
                if ready.duplicates is not None:
                    keys.update(ready.duplicates.keys)
            if not any(ready.record is not None and ready.record.is_stale for ready in prepared.values()):
                return prepared

    def _commit_prepared(
        self, transaction: Transaction, now: float, done: Done, job: Job[dict[Send, PreparedSend]]
    ) -> None:
        try:
            prepared = job.result()
        except Refused as refused:
            self.end(transaction, rolled_back(refused.refusal), done)
            return
        if any(each.duplicates is not None and each.duplicates.has_waited for each in prepared.values()):
            self._commit(transaction, now, done)
        elif self._may_begin(transaction, now, done):
            _Commit(self._store, self, transaction, prepared, done).begin(now)

    def _may_begin(self, transaction: Transaction, now: float, done: Done) -> bool:
        """Return whether a commit can begin now. It ends where it never can, and is tried again later where it can't
        yet."""
        for operation in transaction.operations:
            if isinstance(operation, Settle):
                refusal = operation.queue.missing(operation.tokens, now, operation.session)
                if refusal is not None:
                    self.end(transaction, rolled_back(refusal), done)
                    return False
                continue
            pending = self._enqueue.pending_duplicate(operation.target, operation.payloads, now)
            if pending is not None:
                # The outcome of this one depends on that of the other.
                history, sighting = pending
                history.wait(sighting, partial(self._commit, transaction, now, done))
                return False
        return True

    def end(self, transaction: Transaction, failure: Refusal | None, done: Done | None = None) -> None:
        operations = self._store.transactions.end(transaction, failure)
        for operation in operations:
            operation.ended(failure)
        if done is not None:
            done(failure)

    def begin(self, operation: Operation, ready: Mapping[Send, PreparedSend], now: float, done: Done) -> None:
        """Begin one operation of a commit, while the journal gathers the records."""
        if isinstance(operation, Settle):
            tokens, outcome, session = operation.tokens, operation.outcome, operation.session
            self._settlement.settle(operation.queue, tokens, outcome, now, done, session=session)
            return
        operation.results.clear()
        target, payloads, results = operation.target, operation.payloads, operation.results
        prepared = ready.get(operation)
        if operation.via is None:
            self._enqueue.send(target, payloads, now, done, results, prepared=prepared)
        else:
            self._transfer.send_in_transaction(operation.via, target, payloads, now, done, results, prepared)


class _Commit:
    """One commit under way: which of its operations are answered."""

    __slots__ = ("_done", "_is_prepared", "_left", "_ready", "_refusal", "_store", "_transaction", "_transactions")

    def __init__(
        self,
        store: Store,
        transactions: TransactionOperations,
        transaction: Transaction,
        ready: Mapping[Send, PreparedSend],
        done: Done,
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._transaction = transaction
        self._ready = ready
        self._done = done
        self._left = len(transaction.operations)
        self._is_prepared = False
        self._refusal: Refusal | None = None

    def begin(self, now: float) -> None:
        operations = self._transaction.operations
        numbers = _last_numbers(operations)
        store = self._store
        # Another job's records must not be among these.
        with store.slices.holding(), store.journal.gathering() as gathered:
            for operation in operations:
                self._transactions.begin(operation, self._ready, now, self._answered)
                if self._refusal is not None:
                    break
        if self._refusal is not None:
            self._undo(gathered, numbers)
            return
        self._is_prepared = True
        if gathered:
            store.append_together(gathered)
        else:
            self._end_if_answered()

    def _undo(self, gathered: Iterable[Gathered], numbers: dict[QueueEntity, int | list[int]]) -> None:
        refusal = self._refusal
        assert refusal is not None
        error = JournalError("the transaction was rolled back")
        for _, _, written in gathered:
            assert written is not None
            written(error, -1, -1)
        for entity, number in numbers.items():
            entity.restore_numbers(number)
        self._transactions.end(self._transaction, rolled_back(refusal), self._done)

    def _answered(self, refusal: Refusal | None) -> None:
        self._refusal = self._refusal or refusal
        self._left -= 1
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._is_prepared and self._left == 0:
            failure = None if self._refusal is None else rolled_back(self._refusal)
            self._transactions.end(self._transaction, failure, self._done)


def _last_numbers(operations: Iterable[Operation]) -> dict[QueueEntity, int | list[int]]:
    """Return the last sequence numbers of the entities to which messages are sent."""
    numbers: dict[QueueEntity, int | list[int]] = {}
    for operation in operations:
        if isinstance(operation, Send):
            entity = operation.target.entity
            numbers[entity] = entity.last_numbers
            if isinstance(entity, Topic):
                numbers.update((each, each.last_numbers) for each in entity.subscriptions.values())
            transfer = None if operation.via is None else operation.via.entity.transfer
            if transfer is not None:
                numbers[transfer] = transfer.last_numbers
    return numbers
