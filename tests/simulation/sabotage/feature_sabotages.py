"""Seeded bugs in what changes and moves messages: SQL actions, forwarding, transactions."""

from __future__ import annotations

from functools import partial

from . import Sabotage

_REPLAY = "pairbus.broker.storage.replay"
_LIVE = "pairbus.broker.storage.live_records"
_FORWARD = "pairbus.broker.operations.forward"
_TRANSACTIONS = "pairbus.broker.operations.transactions"
_PUBLISH = "pairbus.broker.storage.publish_record"

_sabotage = partial(Sabotage, kind="features")

SABOTAGES = (
    # -- forwarding
    _sabotage(
        "forwarded-message-left-at-the-source-by-replay",
        _REPLAY,
        "        self._remove_all(source_id, numbers)\n        self._forwarded",
        "        self._forwarded",
        "A message that was forwarded is forwarded again after a restart, and so is there twice.",
        needs=("entry",),
    ),
    _sabotage(
        "forwarded-message-forgotten-by-replay",
        _REPLAY,
        "set()).update(numbers)\n        self.apply(",
        "set()).update(numbers)\n        len(numbers) < 2 and self.apply(",
        "Messages that were forwarded together are gone after a restart.",
    ),
    _sabotage(
        "forwarded-twice",
        _FORWARD,
        "lay_out_entries(target, load.contents, now, results)",
        "lay_out_entries(target, load.contents + load.contents[:1], now, [*results, results[-1] + 1000])",
        "A message that is forwarded is there twice.",
    ),
    _sabotage(
        "forward-that-the-disk-refused-not-tried-again",
        _FORWARD,
        """\
            elif not source.entity.deleted:
                self._store.restore(source, gone)
""",
        "",
        "A message that the disk refused to forward waits at its source until the broker starts anew.",
        needs=("disk:",),
    ),
    _sabotage(
        "hops-not-counted",
        "pairbus.broker.format.forwarded",
        "HOP_COUNT: Int(way.hops + 1)",
        "HOP_COUNT: Int(way.hops)",
        "Messages in a circle of entities that forward to each other go round for ever.",
        needs=("far",),
    ),
    _sabotage(
        "reason-of-a-dead-letter-lost-on-the-way",
        "pairbus.broker.format.forwarded",
        "    if changes is not None:\n",
        "    if changes is not None and dead_in is None:\n",
        "Nobody can tell why a dead letter that was forwarded is one.",
        needs=("entry",),
    ),
    # -- transactions
    _sabotage(
        "half-a-transaction-by-replay",
        _REPLAY,
        "        for part in parts_of(record, parts):\n",
        "        for part in parts_of(record, parts[:1]):\n",
        "After a restart only the first operation of a transaction that was committed has been done.",
    ),
    _sabotage(
        "half-a-transaction-in-compaction",
        _LIVE,
        """\
            if copy is not None:
                parts.append(part)
""",
        """\
            if copy is not None and not parts:
                parts.append(part)
""",
        "Messages sent in a transaction are gone after a compaction and a restart.",
    ),
    _sabotage(
        "commit-without-sync",
        _TRANSACTIONS,
        "self._store.append(records.TRANSACTION, payload, written_together)",
        "self._store.append(records.TRANSACTION, payload, written_together, lazy=True)",
        "A transaction whose commit was answered is undone by a power cut.",
        needs=("power", "transact", "durability default"),
    ),
    _sabotage(
        "half-a-transaction-after-a-write-error",
        _TRANSACTIONS,
        "                written(error, segment, offset + at)\n",
        "                written(error if at == places[0] else None, segment, offset + at)\n",
        "Of a transaction that the disk has refused all but the first operation is done.",
        needs=("disk:", "transact"),
    ),
    _sabotage(
        "rolled-back-send-kept",
        _TRANSACTIONS,
        """\
        if transaction.state == OPEN:
            self._end(transaction, reason)
""",
        """\
        if transaction.state == OPEN:
            for operation in transaction.operations:
                if isinstance(operation, Send):
                    self.send(operation.target, operation.payloads, transaction.started_at, lambda _: None, [])
            self._end(transaction, reason)
""",
        "Messages of a transaction that was rolled back are delivered.",
    ),
    _sabotage(
        "settlement-done-before-the-commit",
        _TRANSACTIONS,
        "        return refusal or self._store.transactions.add(transaction, operation, via, now, most)\n",
        """\
        refusal = refusal or self._store.transactions.add(transaction, operation, via, now)
        if refusal is None and not isinstance(operation, Send):
            self.settle(operation.queue, operation.tokens[:1], operation.outcome, now, lambda _: None)
        return refusal
""",
        "A message that a transaction would have completed is gone, although that was rolled back.",
    ),
    _sabotage(
        "transaction-outlives-its-link",
        "pairbus.broker.amqp.transactions",
        """\
            self.connection.host.namespace.roll_back(transaction, rolled_back("its control link has ended"))
""",
        "",
        "Transactions of clients that have left fill the broker's memory until their time is over.",
        needs=("transact",),
    ),
    _sabotage(
        "transactions-have-no-end",
        "pairbus.broker.model.transaction",
        "LIFETIME_S: Final = 120.0",
        "LIFETIME_S: Final = 12000.0",
        "A transaction that its client has forgotten can be committed after hours.",
        needs=("hold=125.0, end='commit",),
    ),
    # -- transfer dead letters
    _sabotage(
        "transfer-dead-letters-described-by-nobody",
        "pairbus.broker.operations.transfer",
        "        if transfer.segment >= 0:\n            return\n",
        "        return\n",
        "Messages in a transfer dead-letter queue are gone after a restart.",
        needs=("closed",),
    ),
    _sabotage(
        "transfer-dead-letters-forgotten-by-compaction",
        _LIVE,
        "records.SUBSCRIPTION, records.TRANSFER)",
        "records.SUBSCRIPTION)",
        "Messages in a transfer dead-letter queue are gone after a compaction and a restart.",
        needs=("closed", "segments of 2048"),
    ),
    _sabotage(
        "transfer-dead-letter-of-a-rollback-kept",
        "pairbus.broker.operations.transfer",
        """\
        if error is not None:
            done(refusal_of(error))
            return
        self._journal.release(segment, beside)
""",
        """\
        if error is not None:
            done(refusal_of(error))
        else:
            self._journal.release(segment, beside)
""",
        "A message of a transaction that the disk has refused is in the transfer dead-letter queue.",
        needs=("closed", "disk:"),
    ),
    # -- SQL actions
    _sabotage(
        "change-of-an-action-lost-by-replay",
        _REPLAY,
        "                self._insert_copy(record, publication, entry, shared)\n",
        "                self._insert_copy(record, publications[0]._replace(copies=[]), entry, shared)\n",
        "After a restart copies have the properties that were sent, not those that an action has set.",
        needs=("feed",),
    ),
    _sabotage(
        "one-copy-for-all-actions",
        _PUBLISH,
        "            for draft in verdict.drafts:\n",
        "            for draft in verdict.drafts[:1]:\n",
        "Of several rules with actions that match a message only the first makes a copy.",
        needs=("feed",),
    ),
    _sabotage(
        "removed-property-kept",
        "pairbus.broker.sql.actions",
        "            old.keys() - self.properties.keys(),\n",
        "            set(),\n",
        "A property that an action removes is still there.",
        needs=("feed",),
    ),
)
