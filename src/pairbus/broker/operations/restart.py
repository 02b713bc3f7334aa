"""Restart operations: entities are suspended, rebuilt from the journal, and served again.

Everything that was answered is in the journal, and the memory is discarded: locks are free, as after a restart of the
broker, and transactions that are not committed are rolled back. A topic is restarted with its subscriptions, as they
share what is published.

While an entity is suspended nothing new is written about it. Records that were on their way are written first, and more
may follow them, such as a removal that is repeated behind a copy. So the journal is read again until nothing more
comes. It is not compacted meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pairbus.broker.model.entity import QueueEntity, TransferQueue
from pairbus.broker.model.topic import Subscription
from pairbus.broker.model.transaction import rolled_back
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.replay import PartialReplay, held_bytes
from pairbus.broker.storage.store import Store
from pairbus.journal import JournalError
from pairbus.journal.journal import START

from .registry import Registry
from .transactions import TransactionOperations

#: How soon what the disk refused to write, or what still enters its queues, is looked at again.
_UNWRITTEN_S: Final = 0.1

#: Does long work with data that nobody else changes meanwhile.
Aside = Callable[[Callable[[], None]], Awaitable[None]]


class RestartFailed(JournalError):
    """The journal does not say what an entity is."""


class Rebuilt:
    """Entities of a namespace, as they are in memory and in the journal."""

    __slots__ = ("by_id", "held", "old")

    def __init__(self, old: Sequence[QueueEntity]) -> None:
        self.old = list(old)
        self.by_id: dict[int, QueueEntity] = {}
        #: Bytes of each segment that the rebuilt ones hold.
        self.held: dict[int, int] = {}

    def finish(self, replay: PartialReplay) -> None:
        """Take the entities that a replay has found. Raises RestartFailed if a queue or topic is missing."""
        self.by_id = replay.finish().entities
        owners = [entity for entity in self.old if not isinstance(entity, Subscription | TransferQueue)]
        missing = [entity.name for entity in owners if entity.id not in self.by_id]
        if missing:
            raise RestartFailed(f"the journal does not describe {', '.join(missing)}")
        self.held = held_bytes(self.by_id.values())


class RestartOperations:
    """Suspends entities, rebuilds them from the journal and replaces the old ones."""

    def __init__(self, store: Store, registry: Registry, transactions: TransactionOperations) -> None:
        self._store = store
        self._journal = store.journal
        self._registry = registry
        self._transactions = transactions

    def suspend(self, entities: Sequence[QueueEntity], refusal: Refusal) -> None:
        """Refuse all requests to these entities, and roll back the transactions that they are part of."""
        for entity in entities:
            entity.suspend(refusal)
        for transaction in self._store.transactions.concerning(entities):
            self._transactions.roll_back(transaction, rolled_back(refusal))

    def resume(self, entities: Sequence[QueueEntity]) -> None:
        """Serve these entities again."""
        for entity in entities:
            entity.resume()
            self._registry.watch(entity)
            for queue in (entity.active, entity.dead_letter):
                queue.wake()

    @asynccontextmanager
    async def rebuilding(self, entities: Sequence[QueueEntity], aside: Aside) -> AsyncIterator[Rebuilt]:
        """Read the journal again and give what it says of entities that are suspended; `replace` puts it in their
        place, before the block is left. Raises JournalError."""
        async with self._journal.without_compaction():
            replay = PartialReplay({entity.id for entity in entities}, self._journal.release)
            position = START
            while True:
                known = replay.count
                position = await self._journal.read_again(position, replay.apply)
                if self._store.maintenance.has_unwritten or any(entity.entering for entity in entities):
                    await asyncio.sleep(_UNWRITTEN_S)
                elif replay.count == known:
                    break
            # Some may have been deleted, or could not be created, while that was still being written.
            rebuilt = Rebuilt([entity for entity in entities if not entity.deleted])
            await aside(lambda: rebuilt.finish(replay))
            yield rebuilt

    def replace(self, rebuilt: Rebuilt, refusal: Refusal, now: float) -> list[QueueEntity]:
        """Throw away what is in memory of these entities, and enter what the journal says, suspended. Return them."""
        for segment, nbytes in rebuilt.held.items():
            # The others release as much as they hold when they are taken apart.
            self._journal.reclaim(segment, nbytes)
        # Subscriptions first: their topic would drop them one by one.
        for old in sorted(rebuilt.old, key=lambda each: not isinstance(each, Subscription)):
            self._registry.forget(old, self._store.forget)
        new = list(rebuilt.by_id.values())
        for entity in new:
            entity.suspend(refusal)
        self._registry.restore(new, now)
        for old in rebuilt.old:
            rebuilt_one = rebuilt.by_id.get(old.id)
            if rebuilt_one is not None:
                rebuilt_one.pings, rebuilt_one.forwarded = old.pings, old.forwarded
            old.let_go()
        return new
