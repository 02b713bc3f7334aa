"""A namespace: its entities and their messages over a journal. What the AMQP front and the HTTP API call.

A shell: it holds no rule of its own but the order of things. All of it runs on the loop's thread; answers come through
callbacks, on that thread. What comes in is intake.py's, what goes out deliveries.py's, what becomes of it
settlement.py's, and sessions are session_access.py's; the entities themselves are registry.py's and topics.py's. Their
calls are the namespace's own. Here are only the way to an entity, and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Final

from pairbus.broker.model.entity import DEAD_LETTER_SUFFIX
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import SUBSCRIPTIONS, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.replay import rebuild
from pairbus.broker.storage.store import Done, Store, Witness, refusal_of
from pairbus.journal import Journal

from .enqueue import EnqueueOperations
from .lock_tokens import random_tokens
from .publish import PublishOperations
from .receive import ReceiveOperations
from .registry import ENTITIES_MAX
from .session_access import SessionAccess
from .topics import TopicOperations

__all__ = ["ENTITIES_MAX", "Done", "Namespace", "refusal_of"]

_SUFFIX: Final = DEAD_LETTER_SUFFIX.lower()
_SUBSCRIPTIONS: Final = SUBSCRIPTIONS.lower()


class Namespace(EnqueueOperations, PublishOperations, ReceiveOperations, SessionAccess, TopicOperations):
    """The entities of a namespace and their messages: everything that the AMQP and HTTP servers call."""

    def __init__(self, name: str, journal: Journal, memory_budget: int, new_token: Callable[[], bytes]) -> None:
        store = Store(journal, memory_budget, new_token)
        super().__init__(name, store)
        self.journal = journal
        self.notes = store.notes
        self.live_records = store.live_records
        self.maintenance = store.maintenance

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
    ) -> Namespace:
        """Replays the journal, which is open and not yet started. `folder` is only for the notes."""
        self = cls(name, journal, memory_budget, new_token or random_tokens())
        rebuilt = rebuild(journal.replay(), journal.release)
        self.notes += [f"{folder}: {note}" for note in rebuilt.notes]
        self._restore(rebuilt.entities.values(), now)
        self.live_records.next_id = rebuilt.next_id
        self.live_records.meta = rebuilt.meta
        return self

    def __repr__(self) -> str:
        return f"<Namespace {self.name}: {len(self.queues)} queues, {self.resident_bytes} bytes in memory>"

    @property
    def resident_bytes(self) -> int:
        """Contents held in memory."""
        return self._store.resident

    def resolve(self, path: str) -> MessageQueue | Topic | None:
        """What stands behind an address (docs/reference/protocol.md#addresses)."""
        key = path.lower()
        entity = self.queues.get(key)
        if entity is not None:
            return entity.active
        topic = self.topics.get(key)
        if topic is not None:
            return topic
        entity_key = key.removesuffix(_SUFFIX)
        entity = self.queues.get(entity_key)
        if entity is None:
            entity = self.find_subscription(*_parts(entity_key))
        if entity is None:
            return None
        return entity.active if entity_key == key else entity.dead_letter

    # ---- what queues and topics take alike

    def send(
        self,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        fates: list[int] | None = None,
        *,
        numbered: bool = False,
    ) -> None:
        """All of them or none. `fates` is filled with what became of each (fates.py); `numbered`: by its number in any
        case."""
        if isinstance(target, Topic):
            self.publish(target, payloads, now, done, fates, numbered)
        else:
            self.enqueue(target, payloads, now, done, fates)

    def schedule(
        self,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Callable[[list[int], Refusal | None], None],
        fates: list[int] | None = None,
    ) -> None:
        """As `send`; tells the numbers by which they can be cancelled. 0 is that of a duplicate, which is dropped."""
        became: list[int] = [] if fates is None else fates

        def finish(refusal: Refusal | None) -> None:
            done([] if refusal is not None else [max(0, fate) for fate in became], refusal)

        self.send(target, payloads, now, finish, became, numbered=True)

    # ---- what somebody who keeps books wants to know

    def tell(self, witness: Witness) -> None:
        """From now on, of messages that go without their receivers' doing: outlived, unwanted, dead-lettered, called
        off, deleted."""
        self._store.witness = witness

    @property
    def message_count(self) -> int:
        return sum(len(entity.active) + len(entity.dead_letter) for entity in self._store.by_id.values())

    def contents(self) -> Iterator[tuple[str, int, str | None]]:
        """Path, sequence number and message id of all that is there, in whatever state. What happens between two steps
        may be in it or not; what is moved to the dead letters meanwhile may be in it twice, and is never left out."""
        for entity in list(self._store.by_id.values()):
            for queue in (entity.active, entity.dead_letter):
                for message in queue.scan(0):
                    yield queue.path, message.sequence_number, self._store.message_id(message)

    # ---- time

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        earliest: float | None = None
        watched = self._store.watched
        for queue in list(watched):
            deadline = queue.deadline()
            if deadline is None:
                del watched[queue]
            elif earliest is None or deadline < earliest:
                earliest = deadline
        for entity in self._aging.values():
            deadline = min(entity.idle_deadline, inf if entity.duplicates is None else entity.duplicates.deadline())
            if deadline != inf and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest

    def tick(self, now: float) -> float | None:
        """What time brings: locks and lifetimes that have run out, scheduled messages that are due, message ids that
        may come again, entities that nobody has used for too long."""
        for queue in list(self._store.watched):
            if queue.entity.deleting:
                continue
            self.expire_locks(queue, now)
            self.expire_messages(queue, now)
            if isinstance(queue.entity, Topic):
                self.publish_due(queue.entity, now)
            else:
                self.activate_due(queue, now)
        for entity in list(self._aging.values()):
            if entity.duplicates is not None:
                entity.duplicates.forget(now)
            if entity.is_idle(now):
                self._delete_idle(entity, now)
        return self.deadline

    def shift(self, seconds: float) -> None:
        """The wall clock was set: of locks, idle times and windows as much is left as before. To be followed by
        `tick`."""
        for entity in self._store.by_id.values():
            entity.shift(seconds)

    async def maintain(self, interval_s: float = 0.5) -> None:
        """For ever: the journal kept small. A task of the broker's."""
        await self.maintenance.run(interval_s)


def _parts(key: str) -> tuple[str, str]:
    """Of a subscription's path: the names of topics hold slashes, but never that word."""
    topic, _, name = key.partition(_SUBSCRIPTIONS)
    return topic, name
