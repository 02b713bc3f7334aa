"""The entities of a namespace by name: they are created, updated and deleted, each by a record in the journal.

An entity exists once its record is synced, and is gone once the record of its deletion is. Ids are never reused, so
records of a deleted entity never belong to another one. Names are compared regardless of letter case; queues and topics
share one set of names. subscriptions.py handles subscriptions and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final

from pairbus.amqp import errors as conditions
from pairbus.broker.format import records
from pairbus.broker.model.description import Description, QueueDescription, TopicDescription
from pairbus.broker.model.duplicates import DuplicateHistory
from pairbus.broker.model.entity import QueueEntity, TransferQueue
from pairbus.broker.model.message import Message
from pairbus.broker.model.partitions import NONE_DOWN
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Session
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.live_records import UNPLACED
from pairbus.broker.storage.store import Done, Store, nobody, refusal_of, unavailable
from pairbus.journal import JournalError

from .quotas import Quotas

#: Path of an entity → partitions to which nothing can be sent, and those from which nothing can be received
PartitionsDown = Callable[[str], tuple[frozenset[int], frozenset[int]]]
_DEAD_LETTERS_TO: Final = "ForwardDeadLetteredMessagesTo"

#: How many late messages are released at once.
_RELEASED: Final = 100


class Registry:
    """Holds the entities of a namespace by name, and creates, describes and deletes them."""

    def __init__(self, store: Store, name: str, quotas: Quotas) -> None:
        self._store = store
        self._journal = store.journal
        self.name = name
        self.quotas = quotas
        self._queues: dict[str, QueueEntity] = {}
        self._topics: dict[str, Topic] = {}
        #: Queues and topics by name in lower case.
        self.queues: Mapping[str, QueueEntity] = MappingProxyType(self._queues)
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics)
        #: Ends the links to what was deleted, before the deletion is answered: a client that has the answer must not
        #: send on one of them.
        self.detach_deleted: Callable[[Sequence[QueueEntity]], Generator[None, None, None]] = _no_links
        #: Called for an entity that was described or restored, and for one that leaves memory.
        self.on_watched: Callable[[QueueEntity], None] = _ignore
        self.on_forgotten: Callable[[QueueEntity], None] = _ignore
        #: Entities with deadlines: they forget message ids, or are deleted when nobody uses them.
        self.aging: dict[int, QueueEntity] = {}
        self._partitions_down: PartitionsDown | None = None
        self._holds_back = False
        # names that are being created
        self._claimed: set[str] = set()

    def restore(self, entities: Iterable[QueueEntity], now: float) -> None:
        """Add the entities that replay has found."""
        for entity in entities:
            self._store.by_id[entity.id] = entity
            entity.accessed_at = now
            if entity.duplicates is not None:
                entity.duplicates.resume(now)
            if isinstance(entity, Topic):
                self._topics[entity.name.lower()] = entity
            elif not isinstance(entity, Subscription | TransferQueue):
                self._queues[entity.name.lower()] = entity
            self.watch(entity)

    def watch(self, entity: QueueEntity) -> None:
        """Watch the deadlines of an entity that was described or restored."""
        self._set_down(entity)
        entity.active.holds_back = self._holds_back
        if entity.active.is_timed:
            self._store.watched[entity.active] = None
        if entity.detects_duplicates:
            entity.watch_duplicates(self._journal.release)
        if entity.duplicates is not None or entity.description.auto_delete_on_idle != inf:
            self.aging[entity.id] = entity
        else:
            self.aging.pop(entity.id, None)
        self.on_watched(entity)

    def find(self, name: str) -> QueueEntity | Topic | None:
        """Return the queue or topic with this name, in any case."""
        key = name.lower()
        return self._queues.get(key) or self._topics.get(key)

    def find_subscription(self, topic: str, name: str) -> Subscription | None:
        """Return the subscription with this name, in any case."""
        found = self._topics.get(topic.lower())
        return None if found is None else found.subscriptions.get(name.lower())

    def transfer_queue(self, owner: QueueEntity) -> TransferQueue:
        """Return the entity that holds the transfer dead letters of an entity. Its record is written with the first of
        them."""
        if owner.transfer is None:
            live_records = self._store.live_records
            transfer = TransferQueue(live_records.next_id, owner.id)
            live_records.next_id += 1
            self._store.by_id[transfer.id] = transfer
            transfer.follow(owner)
        assert owner.transfer is not None
        return owner.transfer

    # ---- partitions

    def set_partitions_down(self, down: PartitionsDown | None) -> None:
        """Take partitions out of service as `down` says, from now on, and back those of which it says nothing."""
        self._partitions_down = down
        for entity in list(self._store.by_id.values()):
            self._set_down(entity)

    def set_late(self, *, holds_back: bool, releases: bool) -> None:
        """Hold messages that arrive from now on back from receivers (`holds_back`), and release those held before."""
        if holds_back != self._holds_back:
            self._holds_back = holds_back
            for entity in list(self._store.by_id.values()):
                entity.active.holds_back = holds_back
        if releases and self.late_count:
            self._store.slices.run(self._release_late)

    @property
    def late_count(self) -> int:
        """How many messages are kept from receivers."""
        return sum(len(entity.active.late) for entity in self._store.by_id.values())

    def _release_late(self) -> Generator[None, None, None]:
        for entity in list(self._store.by_id.values()):
            queue = entity.active
            while queue.late and not self._holds_back:
                queue.release_late(_RELEASED)
                self._store.wake(queue)
                yield

    def _set_down(self, entity: QueueEntity) -> None:
        if entity.partitions is None or entity.deleting:
            return
        nothing = NONE_DOWN, NONE_DOWN
        sends, receives = nothing if self._partitions_down is None else self._partitions_down(entity.active.path)
        entity.partitions.down = sends
        for queue in (entity.active, entity.dead_letter):
            queue.set_down(receives)

    # ---- queues and topics

    def create(self, description: QueueDescription | TopicDescription, now: float, done: Done) -> None:
        """Create a queue or topic; `done` gets the refusal if one of its name exists or there are too many."""
        refusal = self._refuses(description) or self.refuses_forwards(description, None)
        if refusal is not None:
            done(refusal)
            return
        id, key = self._store.live_records.next_id, description.name.lower()
        described: Any = replace(description, created_at=now, updated_at=now)
        entity: QueueEntity
        if isinstance(description, TopicDescription):
            entity = topic = Topic(id, described)
            enter = partial(self._topics.__setitem__, key, topic)
        else:
            entity = QueueEntity(id, described)
            enter = partial(self._queues.__setitem__, key, entity)
        self.write_new(entity, key, enter, now, done)

    def update(self, description: QueueDescription | TopicDescription, now: float, done: Done) -> None:
        """Replace the description of the queue or topic with its name, but for the name and when it was created."""
        by_name: Mapping[str, QueueEntity] = self._topics if isinstance(description, TopicDescription) else self._queues
        entity = by_name.get(description.name.lower())
        if entity is None or entity.deleting:
            done(unavailable(entity, description.name))
            return
        old = entity.description
        refusal = self.quotas.refuses_description(description) or self.refuses_forwards(description, old)
        if refusal is not None:
            done(refusal)
            return
        new: Any = replace(description, name=old.name, created_at=old.created_at, updated_at=now)
        self.write_description(entity, new.to_json(), partial(entity.describe, new), now, done)

    def delete_queue(self, name: str, now: float, done: Done) -> None:
        """Delete a queue and its messages."""
        self.delete(self._queues.get(name.lower()), name, done)

    def delete_topic(self, name: str, now: float, done: Done) -> None:
        """Delete a topic and its subscriptions."""
        self.delete(self._topics.get(name.lower()), name, done)

    def _refuses(self, description: QueueDescription | TopicDescription) -> Refusal | None:
        """Return why a queue or topic can't be created with this name and description, if it can't."""
        name = description.name
        key = name.lower()
        if key in self.queues or key in self.topics or key in self._claimed:
            return self.already_exists(name)
        most = self.quotas.entities
        if len(self.queues) + len(self.topics) + len(self._claimed) >= most:
            text = f"Namespace '{self.name}' has {most} entities, the most that it can have."
            return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        return self.quotas.refuses_description(description)

    def refuses_forwards(self, new: Description, old: Description | None) -> Refusal | None:
        """Return why an entity can't forward to where its new description says: the destination must exist when it is
        set."""
        for field, element in (("forward_to", "ForwardTo"), ("forward_dead_lettered_to", _DEAD_LETTERS_TO)):
            name = getattr(new, field, None)
            if name is None or name == getattr(old, field, None):
                continue
            entity = self.find(name)
            if entity is not None and entity.suspended is not None:
                return entity.suspended
            if entity is None or entity.deleting:
                text = f"{element} may not be '{name}': there is no queue or topic '{name}' in namespace '{self.name}'."
                return Refusal(conditions.INVALID_FIELD, text)
        return None

    def already_exists(self, name: str) -> Refusal:
        text = f"The messaging entity '{name}' already exists in namespace '{self.name}'."
        return Refusal(conditions.ENTITY_ALREADY_EXISTS, text)

    # ---- any entity

    def delete(self, entity: QueueEntity | None, name: str, done: Done) -> None:
        """Delete the entity that was found under a name, with everything that belongs to it."""
        if entity is None or entity.deleting:
            done(unavailable(entity, name))
            return
        entities = entity.with_parts()
        for each in entities:
            each.deleting = True
        self._write_deletion(entities, done, False)

    def delete_idle(self, entity: QueueEntity, now: float) -> None:
        # Should the disk refuse it, it is as idle after another while.
        entity.accessed_at = now
        self.delete(entity, entity.name, nobody)

    def write_new(self, entity: QueueEntity, claim: str, enter: Callable[[], None], now: float, done: Done) -> None:
        """Write a new entity, then `enter` it where others find it; until then its name is reserved by `claim`."""
        entity.accessed_at = now
        payload = records.pack_queue(entity.id, 0, entity.last_numbers, entity.document())
        entity.record_bytes = len(payload)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            self._claimed.discard(claim)
            if error is not None:
                entity.deleted = True
                entity.let_go()
                del self._store.by_id[entity.id]
                done(refusal_of(error))
                return
            entity.segment, entity.offset = segment, offset
            enter()
            self.watch(entity)
            done(None)

        try:
            self._write_meta()
            self._journal.append(entity.KIND, payload, written)
        except JournalError as error:
            entity.let_go()
            done(refusal_of(error))
            return
        self._store.live_records.next_id += 1
        self._claimed.add(claim)
        self._store.by_id[entity.id] = entity

    def write_description(
        self, entity: QueueEntity, document: dict[str, Any], apply: Callable[[int], None], now: float, done: Done
    ) -> None:
        """Write a new description, then call `apply` with its revision."""
        entity.next_revision += 1
        revision = entity.next_revision
        payload = records.pack_queue(entity.id, revision, entity.last_numbers, document)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is not None:
                done(refusal_of(error))
                return
            self._journal.release(entity.segment, entity.record_bytes)
            entity.segment, entity.offset, entity.record_bytes = segment, offset, len(payload)
            apply(revision)
            entity.accessed_at = now
            self.watch(entity)
            done(None)

        self._store.append(entity.KIND, payload, written)

    def _write_deletion(self, entities: Sequence[QueueEntity], done: Done, again: bool) -> None:
        payload = records.pack_deleted(*(entity.id for entity in entities))

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self._journal.release(segment, len(payload))
                if any(entity.recopied for entity in entities):
                    for entity in entities:
                        entity.recopied = False
                    self._write_deletion(entities, done, True)
                    return
            elif again:
                self._store.maintenance.retry(partial(self._write_deletion, entities, nobody, True))
            else:
                for entity in entities:
                    entity.deleting, entity.recopied = entity.suspended is not None, False
                done(refusal_of(error))
                return
            self._store.slices.run(lambda: self._forget_all(entities), lambda: done(None))

        self._store.append(records.DELETED, payload, written)

    def _forget_all(self, entities: Sequence[QueueEntity]) -> Generator[None, None, None]:
        for entity in entities:
            if not entity.deleted:
                self.forget(entity)
                yield
        yield from self.detach_deleted(entities)
        for entity in entities:
            entity.let_go()

    def forget(self, entity: QueueEntity, forget: Callable[[MessageQueue, Message], None] | None = None) -> None:
        """Take an entity out of memory; `forget` is called for each of its messages, in small steps."""
        self.on_forgotten(entity)
        entity.deleted = True
        self._unlist(entity)
        store = self._store
        del store.by_id[entity.id]
        self.aging.pop(entity.id, None)
        self._journal.release(entity.segment, entity.record_bytes)
        if entity.duplicates is not None:
            store.maintenance.take_apart(_forget_ids(entity.duplicates))
        for queue in (entity.active, entity.dead_letter):
            store.watched.pop(queue, None)
            store.maintenance.take_apart(self._take_apart(queue, queue.close(), forget or store.drop))

    def _take_apart(
        self,
        queue: MessageQueue,
        parts: Iterator[Message | Session | None],
        forget: Callable[[MessageQueue, Message], None],
    ) -> Iterator[None]:
        for part in parts:
            if isinstance(part, Message):
                forget(queue, part)
            elif part is not None and part.state is not None:
                self._journal.release(part.state.segment, part.record_bytes)
            yield

    def _unlist(self, entity: QueueEntity) -> None:
        key = entity.name.lower()
        if isinstance(entity, Subscription):
            if entity.topic is not None:
                entity.topic.drop(entity)
        elif isinstance(entity, Topic):
            del self._topics[key]
        elif not isinstance(entity, TransferQueue):
            del self._queues[key]

    def _write_meta(self) -> None:
        live_records = self._store.live_records
        if live_records.meta is not None:
            return

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            # When it failed, so did the creation behind it, and the next one writes it again.
            live_records.meta = (segment, offset) if error is None else None

        self._journal.append(records.META, records.pack_id(live_records.next_id), written)
        live_records.meta = UNPLACED


def _no_links(entities: Sequence[QueueEntity]) -> Generator[None, None, None]:
    yield from ()


def _ignore(entity: QueueEntity) -> None:
    """Do nothing about an entity."""


def _forget_ids(history: DuplicateHistory) -> Iterator[None]:
    while history.forget(inf, 1):
        yield
