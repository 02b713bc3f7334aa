"""Transfer operations: messages that are sent to one entity through another one, its *via*.

See docs/reference/protocol.md#transactions. They go straight to their destination. If that is disabled, they go to the
transfer dead-letter queue of the via; if that queue doesn't exist yet, the same record creates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from pairbus.broker.format import records
from pairbus.broker.format.content import pack_changes
from pairbus.broker.model.entity import QueueEntity, TransferQueue
from pairbus.broker.model.message import Message
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, Store, refusal_of, unavailable
from pairbus.journal import JournalError

from . import forward_decisions
from .enqueue import EnqueueOperations, PreparedSend, read_batch
from .registry import Registry


class TransferOperations:
    """Sends messages through another entity, and keeps those that can't go on."""

    def __init__(self, store: Store, registry: Registry, enqueue: EnqueueOperations) -> None:
        self._store = store
        self._registry = registry
        self._enqueue = enqueue

    def refuses(
        self, via: MessageQueue | Topic, target: MessageQueue | Topic, payloads: Sequence[bytes]
    ) -> Refusal | None:
        """Return why these messages could not be sent through an entity now."""
        refusal = _refuses(via)
        if refusal is not None or not is_disabled(target):
            return refusal or self._enqueue.refuses(target, payloads)
        batch = read_batch(self._registry.transfer_queue(via.entity), payloads, None, self._store.new_id)
        return batch if isinstance(batch, Refusal) else None

    def send_in_transaction(
        self,
        via: MessageQueue | Topic,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int],
        prepared: PreparedSend | None = None,
    ) -> None:
        """Store messages at their destination, or in the transfer dead-letter queue of their via. The caller gathers
        the records of the latter."""
        refusal = _refuses(via)
        if refusal is not None:
            done(refusal)
        elif is_disabled(target):
            self._dead_letter_transfer(via.entity, target, payloads, now, done, results)
        else:
            self._enqueue.send(target, payloads, now, done, results, prepared=prepared)

    def send(
        self,
        via: MessageQueue | Topic,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int],
    ) -> None:
        """Send messages through another entity, outside of a transaction."""
        if not is_disabled(target):
            self.send_in_transaction(via, target, payloads, now, done, results)
            return
        with self._store.journal.gathering() as gathered:
            self.send_in_transaction(via, target, payloads, now, done, results)
        if gathered:
            self._store.append_together(gathered)

    def _dead_letter_transfer(
        self,
        owner: QueueEntity,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int],
    ) -> None:
        transfer = self._registry.transfer_queue(owner)
        batch = read_batch(transfer, payloads, None, self._store.new_id)
        if isinstance(batch, Refusal):
            done(batch)
            return
        contents, _, outcomes, size, _ = batch
        results += outcomes  # 0: stored without a number of the destination
        if not contents:
            done(target.entity.refuses_sends)  # pings alone: they ask whether it can be sent to
            return
        reason = forward_decisions.unavailable(target.path, target.entity)
        assert reason is not None
        changes = pack_changes(None, reason.changes())
        assert changes is not None
        parts = [records.pack_batch_head(transfer.id, len(contents))]
        at = len(parts[0])
        messages = []
        for header, pairs_count, pairs_bytes, content, _ in contents:
            transfer.last_sequence += 1
            message = Message(
                transfer.last_sequence, now, header, pairs_count, pairs_bytes, None, len(content), inf, None
            )
            message.changes = self._store.same(changes)
            head = records.pack_entry(
                transfer.last_sequence, now, inf, 0, records.DEAD, header, None, pairs_count, pairs_bytes, changes,
                len(content),
            )  # fmt: skip
            message.offset = at + len(head)  # within the record, until its place is known
            at = message.offset + len(content)
            parts += (head, content)
            messages.append(message)
        self._describe_transfer(transfer)
        transfer.pending_bytes += size
        beside = len(parts[0]) + len(contents) * len(changes)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            transfer.pending_bytes -= size
            if error is not None:
                done(refusal_of(error))
                return
            self._store.journal.release(segment, beside)
            for message in messages:
                message.segment = segment
                message.offset += offset
                transfer.dead_letter.insert(message)
                transfer.dead_letter.offer(message)
            transfer.confirmed_sequence = messages[-1].sequence_number
            done(None)
            transfer.dead_letter.wake()

        self._store.append(records.ENQUEUE, tuple(parts), written)

    def _describe_transfer(self, transfer: TransferQueue) -> None:
        """Write its record, unless one is known to be written."""
        if transfer.segment >= 0:
            return
        payload = records.pack_queue(transfer.id, 0, 0, transfer.document())

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self._store.journal.release(transfer.segment, transfer.record_bytes)
                transfer.segment, transfer.offset, transfer.record_bytes = segment, offset, len(payload)

        self._store.append(transfer.KIND, payload, written)


def is_disabled(target: MessageQueue | Topic) -> bool:
    return target.entity.refuses_sends is not None and not target.entity.deleting


def _refuses(via: MessageQueue | Topic) -> Refusal | None:
    return unavailable(via.entity, via.path) if via.entity.deleting else via.entity.refuses_sends
