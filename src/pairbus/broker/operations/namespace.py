"""A namespace: its entities and their messages over a journal, as the AMQP and HTTP servers call it.

It runs on the thread of the event loop, and answers come through callbacks on that thread. What can be done with
messages and entities is in the other files of this folder, each an object with the few things that it needs. This file
makes them, finds the entity behind an address, and does what is due with time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from math import inf
from pathlib import Path
from typing import Final

from pairbus.broker.model.entity import DEAD_LETTER_SUFFIX, TRANSFER_SUFFIX, QueueEntity
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import SUBSCRIPTIONS, Topic
from pairbus.broker.slices import Slices
from pairbus.broker.storage.replay import rebuild
from pairbus.broker.storage.store import Store, refusal_of_read
from pairbus.broker.storage.unread import UNREAD_S
from pairbus.journal import Journal

from .enqueue import EnqueueOperations
from .forward import ForwardOperations
from .lock_tokens import random_tokens
from .publish import PublishOperations
from .quotas import Quotas
from .receive import ReceiveOperations
from .registry import Registry
from .restart import RestartOperations
from .session_access import SessionAccess
from .settlement import SettlementOperations
from .subscriptions import SubscriptionOperations
from .transactions import TransactionOperations
from .transfer import TransferOperations

__all__ = ["UNREAD_S", "Namespace", "refusal_of_read"]

_SUFFIX: Final = DEAD_LETTER_SUFFIX.lower()
_TRANSFER: Final = TRANSFER_SUFFIX.lower()
_SUBSCRIPTIONS: Final = SUBSCRIPTIONS.lower()

# Of one queue, done before it is the others' turn; each of a few hundred messages.
_UNITS: Final = 8
#: Message ids that are forgotten at once.
_FORGOTTEN_MAX: Final = 1000
#: After which what failed is tried again.
_RETRY_S: Final = 1.0


class Namespace:
    """The entities of a namespace and their messages, and what can be done with them."""

    def __init__(self, store: Store, name: str, quotas: Quotas) -> None:
        self.store = store
        self.name = name
        self.notes = store.notes
        self.maintenance = store.maintenance
        self.slices = store.slices
        self.registry = Registry(store, name, quotas)
        #: Queues and topics by name in lower case.
        self.queues = self.registry.queues
        self.topics = self.registry.topics
        self.subscriptions = SubscriptionOperations(store, self.registry)
        self.settlement = SettlementOperations(store)
        self.receive = ReceiveOperations(store, self.settlement)
        self.sessions = SessionAccess(store, self.settlement)
        self.publish = PublishOperations(store, self.settlement)
        self.enqueue = EnqueueOperations(store, self.publish)
        self.forwarding = ForwardOperations(store, self.registry, self.settlement, self.publish, self.enqueue)
        self.transfer = TransferOperations(store, self.registry, self.enqueue)
        self.transactions = TransactionOperations(store, self.registry, self.settlement, self.enqueue, self.transfer)
        self.restart = RestartOperations(store, self.registry, self.transactions)
        # What `tick` knows: the time of the last one, and when something is due in queues and entities.
        self._now = -inf
        self._due_at = -inf
        self._is_going_through = False

    @classmethod
    def open(
        cls,
        name: str,
        folder: Path,
        *,
        journal: Journal,
        now: float,
        memory_budget: int = 64 << 20,
        new_token: Callable[[], bytes] | None = None,
        slices: Slices | None = None,
        quotas: Quotas | None = None,
    ) -> Namespace:
        """Return the namespace that the journal, which is open and not yet started, leads to when it is replayed.

        `folder` only stands in the notes. Without `slices`, work that takes long is done in one go.
        """
        store = Store(journal, memory_budget, new_token or random_tokens(), Slices() if slices is None else slices)
        self = cls(store, name, quotas or Quotas())
        rebuilt = rebuild(journal.replay(), journal.release)
        self.notes += [f"{folder}: {note}" for note in rebuilt.notes]
        self.registry.restore(rebuilt.entities.values(), now)
        store.live_records.next_id = rebuilt.next_id
        store.live_records.meta = rebuilt.meta
        return self

    def __repr__(self) -> str:
        return f"<Namespace {self.name}: {len(self.queues)} queues, {self.resident_bytes} bytes in memory>"

    @property
    def resident_bytes(self) -> int:
        """Bytes of message contents that are held in memory."""
        return self.store.resident

    def resolve(self, path: str) -> MessageQueue | Topic | None:
        """Return the queue, dead-letter queue of either kind, subscription or topic at an address, or None
        (docs/reference/protocol.md#addresses)."""
        key = path.lower()
        entity = self.queues.get(key)
        if entity is not None:
            return entity.active
        topic = self.topics.get(key)
        if topic is not None:
            return topic
        entity_key = key.removesuffix(_SUFFIX)
        owner_key = entity_key.removesuffix(_TRANSFER)
        entity = self.queues.get(owner_key)
        if entity is None:
            entity = self.registry.find_subscription(*_parts(owner_key))
        if owner_key != entity_key:
            entity = entity or self.topics.get(owner_key)
            if entity is None or entity_key == key:
                return None
            if entity.deleting and entity.transfer is None:
                return entity.dead_letter  # as unavailable: one that is made now would be left over
            return self.registry.transfer_queue(entity).dead_letter
        if entity is None:
            return None
        return entity.active if entity_key == key else entity.dead_letter

    # ---- for ledgers and inventories

    @property
    def message_count(self) -> int:
        return sum(len(entity.active) + len(entity.dead_letter) for entity in self.store.by_id.values())

    def contents(self) -> Iterator[tuple[str, int, str | None]]:
        """Yield path, sequence number and message id of every message, whatever its state.

        What happens between two steps may be included or not; what is dead-lettered meanwhile may come twice, and is
        never left out.
        """
        for entity in list(self.store.by_id.values()):
            for queue in (entity.active, entity.dead_letter):
                for message in queue.scan(0):
                    yield queue.path, message.sequence_number, self.store.message_id(message)

    # ---- time

    @property
    def deadline(self) -> float | None:
        """When `tick` next has something to do, as far as was known at its end; None: never."""
        store = self.store
        earliest = min(self._due_at, store.transactions.deadline(), store.unread.deadline, self.forwarding.deadline)
        return None if earliest == inf else earliest

    def tick(self, now: float) -> float | None:
        """Do what is due at `now`, or begin to, and return the next deadline.

        Locks, lifetimes and transactions end, scheduled messages become active, message ids are forgotten, idle
        entities are deleted, messages return that could not be read, messages are forwarded. What takes long is done in
        slices: `tick` is to be called again at once.
        """
        self._now = now
        self.transactions.expire(now)
        if not self._is_going_through:
            self._is_going_through = True
            self._due_at = now
            self.slices.run(self._go_through)
        self.receive.offer_unread(now)
        self.forwarding.forward_due(now)
        return self.deadline

    def _go_through(self) -> Generator[None, None, None]:
        """Do what is due of queues and entities, and note when more of it is."""
        earliest = self._now + _RETRY_S
        try:
            deadlines = [inf]
            for queue in list(self.store.watched):
                for _ in range(_UNITS):
                    deadline = self._do_due(queue)
                    yield
                    if deadline > self._now:
                        break
                deadlines.append(deadline)
            for entity in list(self.registry.aging.values()):
                deadlines.append(self._age(entity))
                yield
            earliest = min(deadlines)
        finally:
            self._due_at = earliest
            self._is_going_through = False

    def _do_due(self, queue: MessageQueue) -> float:
        """Do some of what is due of a queue, and return when more of it is."""
        if queue.entity.deleting:
            return inf  # should it be served again, its queues are looked at within a second
        now = self._now
        self.settlement.expire_locks(queue, now)
        self.settlement.expire_messages(queue, now)
        if isinstance(queue.entity, Topic):
            self.publish.publish_due(queue.entity, now)
        else:
            self.enqueue.activate_due(queue, now)
        deadline = queue.deadline()
        if deadline is None:
            self.store.watched.pop(queue, None)
            return inf
        return deadline

    def _age(self, entity: QueueEntity) -> float:
        """Forget message ids of an entity, or delete it where nobody uses it; return when there is more to do."""
        if entity.deleting:
            return inf
        duplicates = entity.duplicates
        if duplicates is not None:
            duplicates.forget(self._now, _FORGOTTEN_MAX)
        if entity.is_idle(self._now):
            self.registry.delete_idle(entity, self._now)
        return min(entity.idle_deadline, inf if duplicates is None else duplicates.deadline())

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: locks, idle times and windows keep what was left of them. Call `tick`
        afterwards."""
        self.store.transactions.shift(seconds)
        self.store.unread.shift(seconds)
        for entity in self.store.by_id.values():
            entity.shift(seconds)
        self.forwarding.shift(seconds)


def _parts(key: str) -> tuple[str, str]:
    """Split a subscription's path into topic and name: topics may have slashes in their names, but never that word."""
    topic, _, name = key.partition(_SUBSCRIPTIONS)
    return topic, name
