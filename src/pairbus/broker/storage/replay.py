"""Rebuilds the entities and messages of a namespace from the records of its journal. Pure.

Nothing is read back and no content is kept in memory: a message knows where it is stored.

A compacted journal is out of order: a record that was copied forward stands behind later ones about the same entity or
message. So records of an entity whose description is yet to come are kept until the end; a REMOVE or UPDATE of an
unknown message is already reflected in the copy that follows, or the message is gone; and if a message is recorded
again, the last record counts. But an active message does not become scheduled again: a copy that says so was made while
the record of the activation was on its way. The same is true of a message that was scheduled on a topic and has been
published, that has been forwarded, or that a transaction has settled: otherwise a crash before its settlements are
repeated behind the copy would undo half of the transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from math import inf
from typing import Any, Final

from pairbus.broker.format import records
from pairbus.broker.format.forwarded import read_forward
from pairbus.broker.format.publication import COPY_BYTES, CopyEntry, Publication, read_publish
from pairbus.broker.format.records import Activation, Entry, RecordError, Seen, Update
from pairbus.broker.model.description import QueueDescription, TopicDescription
from pairbus.broker.model.entity import TRANSFER_SUFFIX, QueueEntity, TransferQueue
from pairbus.broker.model.message import HOMES, Message, SharedValues, Stored, message_bytes
from pairbus.broker.model.partitions import PARTITION_SHIFT
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Sessions
from pairbus.broker.model.shared_bodies import Account, Copy, Shared, header_of, let_go
from pairbus.broker.model.topic import Subscription, Topic, redescribe, take_over
from pairbus.journal import Record

#: Longer changes to a message's properties (a dead letter with a stack trace) stay on disk.
CHANGES_RESIDENT_BYTES_MAX: Final = 512

Release = Callable[[int, int], None]
_COMPOSED: Final = (records.FORWARD, records.TRANSACTION)
_UNKNOWN: Final = QueueDescription(name="-")


class ReplayedState:
    """The result of a replay."""

    __slots__ = ("entities", "meta", "next_id", "notes")

    def __init__(self) -> None:
        self.entities: dict[int, QueueEntity] = {}
        self.next_id = 1
        self.meta: tuple[int, int] | None = None
        self.notes: list[str] = []


def rebuild(history: Iterable[Record], release: Release) -> ReplayedState:
    """Return the result of these records; `release(segment, nbytes)` is called for bytes that are no longer needed."""
    replay = _Replay(release)
    for record in history:
        replay.apply(record)
    return replay.finish()


class _Replay:
    def __init__(self, release: Release) -> None:
        self.release = release
        self.rebuilt = ReplayedState()
        # Few headers and few changes differ, so equal ones are one object. So do session ids.
        self._same = SharedValues()
        self._session_ids: dict[str, str] = {}
        # What became active, by entity and old number: where a copy still calls it scheduled, it was being written.
        self._activated: dict[tuple[int, int], Activation] = {}
        # By topic: what its bodies take; and by topic and number, the copies that a scheduled message has become.
        self._accounts: dict[int, Account] = {}
        self._published: dict[tuple[int, int], set[tuple[int, int]]] = {}
        # By source: the numbers of what has been forwarded.
        self._forwarded: dict[int, set[int]] = {}
        # What the transactions of this segment and the last one have settled (None: removed), by entity and number. A
        # copy that was made while one of them was being written is not farther away.
        self._settled: dict[tuple[int, int], tuple[Record, Update] | None] = {}
        self._settled_before: dict[tuple[int, int], tuple[Record, Update] | None] = {}
        self._segment = -1

    def apply(self, record: Record) -> None:
        self._turn_to(record.segment)
        apply = _BY_KIND.get(record.kind)
        if apply is None:
            raise RecordError(f"{record!r} is of a kind that this version of pairbus does not know")
        apply(self, record)

    def _turn_to(self, segment: int) -> None:
        if segment != self._segment:
            self._segment = segment
            self._settled, self._settled_before = {}, self._settled

    def _commit(self, record: Record) -> None:
        parts, head_bytes = records.read_transaction(record.payload)
        self.release(record.segment, head_bytes)
        for part in parts_of(record, parts):
            if part.kind == records.TRANSACTION:
                raise RecordError(f"{record!r} is a transaction within a transaction")
            self.apply(part)
            if part.kind == records.REMOVE:
                id, numbers = records.read_remove(part.payload)
                self._settled.update(dict.fromkeys((id, number) for number in numbers))
            elif part.kind == records.UPDATE:
                id, updates = records.read_updates(part.payload)
                self._settled.update({(id, update.sequence_number): (part, update) for update in updates})

    def _settle_again(self, entity: QueueEntity, queue: MessageQueue, message: Message) -> None:
        """Do to a copy what a transaction before it has done to the message, if it was made before that was known."""
        key = (entity.id, message.sequence_number)
        for settled in (self._settled, self._settled_before):
            if key not in settled:
                continue
            said = settled[key]
            if said is None:
                self._take_out(queue, message)
                return
            # Both rise with every settlement.
            is_dead = _queue(entity, said[1]) is entity.dead_letter
            if (is_dead, said[1].delivery_count) > (queue.is_dead_letter, message.delivery_count):
                self._change(entity, queue, message, *said)
            return

    def _set_meta(self, record: Record) -> None:
        self.rebuilt.next_id = max(self.rebuilt.next_id, records.read_id(record.payload))
        self.rebuilt.meta = (record.segment, record.offset)

    def _ping(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))

    def _seen(self, record: Record) -> None:
        self.release(record.segment, records.ID_BYTES)
        self._see(self._entity(records.read_id(record.payload)), record, records.read_seen(record.payload))

    def finish(self) -> ReplayedState:
        rebuilt = self.rebuilt
        names: dict[tuple[int, str], QueueEntity] = {}
        for entity in list(rebuilt.entities.values()):
            rebuilt.next_id = max(rebuilt.next_id, entity.id + 1)
            if entity.revision < 0:
                count = len(entity.active) + len(entity.dead_letter)
                if count:
                    rebuilt.notes.append(
                        f"{count} messages of entity {entity.id}, which nothing describes, are dropped"
                    )
                self._drop(entity)
                continue
            # A creation that the disk answered with an error may still have been written, and made again.
            key = (entity.topic_id if isinstance(entity, Subscription) else 0, entity.name.lower())
            if isinstance(entity, TransferQueue):
                key = (entity.owner_id, TRANSFER_SUFFIX)
            twin = names.get(key)
            if twin is not None:
                self._drop(min(twin, entity, key=lambda e: e.id))
            names[key] = max(twin or entity, entity, key=lambda e: e.id)
        for entity in list(rebuilt.entities.values()):
            if isinstance(entity, Subscription):
                self._subscribe(entity)
            elif entity.detects_duplicates:
                entity.watch_duplicates(self.release)
        # Not before: a subscription learns from its topic that it has partitions.
        for entity in rebuilt.entities.values():
            entity.confirm_all()
            entity.active.reoffer()
            entity.dead_letter.reoffer()
        for entity in list(rebuilt.entities.values()):
            if isinstance(entity, TransferQueue):
                self._give_to_owner(entity)
        return rebuilt

    def _subscribe(self, subscription: Subscription) -> None:
        topic = self.rebuilt.entities.get(subscription.topic_id)
        if isinstance(topic, Topic):
            topic.add(subscription)
        else:
            # Its topic was deleted while it was being created, or copied forward.
            self._drop(subscription)

    def _give_to_owner(self, transfer: TransferQueue) -> None:
        owner = self.rebuilt.entities.get(transfer.owner_id)
        if owner is None:
            self._drop(transfer)
        else:
            transfer.follow(owner)

    def _entity(self, id: int) -> QueueEntity:
        entity = self.rebuilt.entities.get(id)
        if entity is None:
            entity = self.rebuilt.entities[id] = QueueEntity(id, _UNKNOWN, -1)
        return entity

    def _describe(self, record: Record) -> None:
        id, revision, last_sequence, description = records.read_queue(record.payload)
        entity = self._entity(id)
        for number in [last_sequence] if isinstance(last_sequence, int) else last_sequence:
            entity.note_number(number)
        if revision < entity.revision:
            self.release(record.segment, len(record.payload))
            return
        self.release(entity.segment, entity.record_bytes)
        if record.kind == records.QUEUE:
            entity.describe(QueueDescription.from_json(description), revision)
        elif record.kind == records.TOPIC:
            entity = self._describe_topic(entity, TopicDescription.from_json(description), revision)
        elif record.kind == records.TRANSFER:
            entity = self._describe_transfer(entity, description["owner_id"], revision)
        else:
            entity = self._describe_subscription(entity, description, revision)
        entity.segment, entity.offset, entity.record_bytes = record.segment, record.offset, len(record.payload)

    def _describe_topic(self, known: QueueEntity, description: TopicDescription, revision: int) -> Topic:
        if isinstance(known, Topic):
            known.describe(description, revision)
            return known
        topic = self.rebuilt.entities[known.id] = Topic(known.id, description, revision)
        topic.account = self._account(known.id)
        take_over(topic, known)
        return topic

    def _describe_subscription(self, known: QueueEntity, document: dict[str, Any], revision: int) -> Subscription:
        if isinstance(known, Subscription):
            redescribe(known, document, revision)
            return known
        subscription = Subscription.from_document(known.id, document, revision)
        self.rebuilt.entities[known.id] = subscription
        take_over(subscription, known)
        return subscription

    def _describe_transfer(self, known: QueueEntity, owner_id: int, revision: int) -> TransferQueue:
        if isinstance(known, TransferQueue):
            return known
        transfer = self.rebuilt.entities[known.id] = TransferQueue(known.id, owner_id, revision)
        take_over(transfer, known)
        return transfer

    def _account(self, topic_id: int) -> Account:
        return self._accounts.setdefault(topic_id, Account())

    def _delete(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        for id in records.read_deleted(record.payload):
            self.rebuilt.next_id = max(self.rebuilt.next_id, id + 1)
            entity = self.rebuilt.entities.get(id)
            if entity is not None:
                self._drop(entity)

    def _drop(self, entity: QueueEntity) -> None:
        del self.rebuilt.entities[entity.id]
        self.release(entity.segment, entity.record_bytes)
        for queue in (entity.active, entity.dead_letter):
            for message in queue.scan(0):
                self.release(message.segment, let_go(message))
        for session in entity.active.sessions or ():
            if session.state is not None:
                self.release(session.state.segment, session.record_bytes)
        if entity.duplicates is not None:
            entity.duplicates.forget(inf)
        entity.active.close()
        entity.let_go()

    def _enqueue(self, record: Record) -> None:
        id, entries, seen = records.read_enqueue(record.payload)
        entity = self._entity(id)
        self.release(record.segment, records.BATCH_HEAD_BYTES)
        for entry in entries:
            self._insert(entity, record, entry)
        if seen is not None:
            self._see(entity, record, seen)

    def _insert(self, entity: QueueEntity, record: Record, entry: Entry) -> None:
        session_id = entry.session_id
        message = Message(
            entry.sequence_number,
            entry.enqueued_at,
            self._same(entry.header),
            entry.pairs_count,
            entry.pairs_bytes,
            None,
            entry.content_length,
            entry.expires_at,
            None if session_id is None else self._session_ids.setdefault(session_id, session_id),
        )
        if self._forwarded and entry.sequence_number in self._forwarded.get(entity.id, ()):
            entity.note_number(entry.sequence_number)
            self.release(record.segment, let_go(message))
            return
        queue = self._place(record, entity, entry, entry.content_offset, message)
        if entry.place == records.SCHEDULED and (entity.id, entry.sequence_number) in self._activated:
            activation = self._activated[entity.id, entry.sequence_number]
            self._renumber(entity, queue, message, activation)
        if self._settled or self._settled_before:
            self._settle_again(entity, queue, message)

    def _place(
        self, record: Record, entity: QueueEntity, entry: Entry | CopyEntry, content_offset: int, message: Message
    ) -> MessageQueue:
        """Put a message into its queue, instead of what was known of one with its number, and return the queue."""
        number = entry.sequence_number
        if not entity.note_number(number):
            known = entity.find(number)
            if known is not None:
                self._take_out(*known)
        queue = _queue(entity, entry)
        message.delivery_count = entry.delivery_count
        message.home = HOMES[entry.place]
        message.segment = record.segment
        message.offset = record.offset + content_offset
        if entry.changes_length:
            message.changes = self._changes(record, entry.changes_offset, entry.changes_length)
        queue.insert(message)
        return queue

    def _publish(self, record: Record) -> None:
        topic_id, publications, seen = read_publish(record.payload)
        topic = self._entity(topic_id)
        self.release(record.segment, records.BATCH_HEAD_BYTES)
        ended: dict[int, set[tuple[int, int]]] = {}
        for publication in publications:
            # What actions have changed are separate publications, under the number of the scheduled message.
            if publication.scheduled:
                copies = ended.setdefault(publication.scheduled, set())
                copies.update((entry.subscription_id, entry.sequence_number) for entry in publication.copies)
        for number, copies in ended.items():
            self._end_schedule(topic, number, copies)
        for publication in publications:
            account = self._account(topic_id)
            if publication.copies:
                account = account.part(publication.copies[0].sequence_number >> PARTITION_SHIFT)
            shared = Shared(account, len(publication.head) + publication.content_length)
            for entry in publication.copies:
                self._insert_copy(record, publication, entry, shared)
            if not shared.copies:
                self.release(record.segment, shared.nbytes)
        if seen is not None:
            self._see(topic, record, seen)

    def _end_schedule(self, topic: QueueEntity, number: int, copies: set[tuple[int, int]]) -> None:
        """Remove a scheduled message that has become these copies. If it was published before, by a record that the
        disk answered with an error, they replace those of that record."""
        topic.note_number(number)
        gone = self._published.get((topic.id, number), set()) - copies
        self._published[topic.id, number] = copies
        for id, each in (*gone, (topic.id, number)):
            known = self._entity(id).find(each)
            if known is not None:
                self._take_out(*known)

    def _insert_copy(self, record: Record, publication: Publication, entry: CopyEntry, shared: Shared) -> None:
        entity = self._entity(entry.subscription_id)
        number = entry.sequence_number
        is_published = entry.place == records.SCHEDULED and (entity.id, number) in self._published
        if is_published or number in self._forwarded.get(entity.id, ()):
            self.release(record.segment, COPY_BYTES)
            return
        session_id = publication.session_id
        if session_id is not None:
            is_needed = entity.revision < 0 or entity.active.sessions is not None
            session_id = self._session_ids.setdefault(session_id, session_id) if is_needed else None
        copy = Copy(
            number,
            publication.enqueued_at,
            self._same(header_of(publication.header, entry.expires_at - publication.enqueued_at)),
            publication.pairs_count,
            publication.pairs_bytes,
            None,
            publication.content_length,
            entry.expires_at,
            session_id,
        )
        copy.join(shared)
        queue = self._place(record, entity, entry, publication.content_offset, copy)
        if self._settled or self._settled_before:
            self._settle_again(entity, queue, copy)

    def _activate(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        id, activations = records.read_activated(record.payload)
        entity = self._entity(id)
        for activation in activations:
            entity.note_number(activation.new)
            known = entity.find(activation.old)
            self._activated[id, activation.old] = activation
            if known is not None and known[1].sequence_number == activation.old:
                self._renumber(entity, *known, activation)

    def _renumber(self, entity: QueueEntity, queue: MessageQueue, message: Message, activation: Activation) -> None:
        known = queue.get(activation.new)
        if known is not None:
            self._take_out(queue, known)
        entity.activate(message, activation.new, activation.enqueued_at, activation.expires_at)

    def _set_state(self, record: Record) -> None:
        id, session_id, updated_at, offset, length = records.read_session(record.payload)
        queue = self._entity(id).active
        if queue.sessions is None:
            queue.sessions = Sessions(queue)
        session = queue.sessions.open(session_id)
        if session.state is not None:
            self.release(session.state.segment, session.record_bytes)
        session.updated_at = updated_at
        session.record_bytes = len(record.payload)
        if length is None:
            session.state = None
            self.release(record.segment, len(record.payload))
            queue.sessions.forget_if_empty(session)
        else:
            session.state = Stored(record.segment, record.offset + offset, length)

    def _see(self, entity: QueueEntity, record: Record, seen: Seen) -> None:
        history = entity.watch_duplicates(self.release)
        history.restore(seen.time, seen.keys, record.segment, seen.nbytes)
        if entity.revision >= 0:
            history.forget(seen.time)

    def _remove(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        self._remove_all(*records.read_remove(record.payload))

    def _forward(self, record: Record) -> None:
        source_id, numbers, kind, at = read_forward(record.payload)
        self.release(record.segment, at)
        self._remove_all(source_id, numbers)
        self._forwarded.setdefault(source_id, set()).update(numbers)
        self.apply(Record(record.lsn, kind, record.payload[at:], record.segment, record.offset + at))

    def _remove_all(self, id: int, numbers: Iterable[int]) -> None:
        entity = self._entity(id)
        for number in numbers:
            entity.note_number(number)
            if (known := entity.find(number)) is not None:
                self._take_out(*known)

    def _update(self, record: Record) -> None:
        self.release(record.segment, len(record.payload))
        id, updates = records.read_updates(record.payload)
        entity = self._entity(id)
        for update in updates:
            entity.note_number(update.sequence_number)
            known = entity.find(update.sequence_number)
            if known is None:
                continue
            self._change(entity, *known, record, update)

    def _change(
        self, entity: QueueEntity, queue: MessageQueue, message: Message, record: Record, update: Update
    ) -> None:
        message.delivery_count = update.delivery_count
        if update.changes_length is not None:
            message.changes = self._changes(record, update.changes_offset, update.changes_length)
        target = _queue(entity, update)
        if target is not queue:
            queue.remove(message)
            message.home = HOMES[update.place]
            message.expires_at = inf
            target.insert(message)
        else:
            message.home = HOMES[update.place]

    def _take_out(self, queue: MessageQueue, message: Message) -> None:
        queue.remove(message)
        queue.entity.stored_anew(message)
        self.release(message.segment, let_go(message))

    def _changes(self, record: Record, offset: int, length: int) -> bytes | Stored:
        if length > CHANGES_RESIDENT_BYTES_MAX:
            return Stored(record.segment, record.offset + offset, length)
        return self._same(record.payload[offset : offset + length])


# Of the class: with its own methods in it, a replay would wait for the cycle collector, and all that it has found.
_BY_KIND: Final[dict[int, Callable[[_Replay, Record], None]]] = {
    records.META: _Replay._set_meta,
    **dict.fromkeys((records.QUEUE, records.TOPIC, records.SUBSCRIPTION, records.TRANSFER), _Replay._describe),
    records.DELETED: _Replay._delete,
    records.ENQUEUE: _Replay._enqueue,
    records.REMOVE: _Replay._remove,
    records.UPDATE: _Replay._update,
    records.PING: _Replay._ping,
    records.ACTIVATED: _Replay._activate,
    records.SESSION: _Replay._set_state,
    records.SEEN: _Replay._seen,
    records.PUBLISH: _Replay._publish,
    records.FORWARD: _Replay._forward,
    records.TRANSACTION: _Replay._commit,
}


class PartialReplay(_Replay):
    """Rebuilds some entities of a namespace while it is served, from the records of its journal as they are read again.
    A topic is rebuilt together with its subscriptions. Nothing is released: `held_bytes` says what they hold.
    """

    def __init__(self, ids: Set[int], release: Release) -> None:
        """`release` is for what the entities forget later on."""
        super().__init__(_release_nothing)
        #: How many records were about these entities.
        self.count = 0
        self._ids = ids
        self._release_later = release

    def apply(self, record: Record) -> None:
        kind = record.kind
        if kind == records.META:
            return
        self._turn_to(record.segment)
        if kind not in _COMPOSED:
            is_deletion = kind == records.DELETED
            ids = records.read_deleted(record.payload) if is_deletion else (records.read_id(record.payload),)
            if self._ids.isdisjoint(ids):
                return
            self.count += 1
        super().apply(record)

    def _remove_all(self, id: int, numbers: Iterable[int]) -> None:
        if id in self._ids:
            self.count += 1
            super()._remove_all(id, numbers)

    def finish(self) -> ReplayedState:
        rebuilt = super().finish()
        for entity in rebuilt.entities.values():
            if entity.duplicates is not None:
                entity.duplicates.release = self._release_later
        return rebuilt


def _release_nothing(segment: int, nbytes: int) -> None:
    """Do nothing: these bytes were released when it happened."""


def held_bytes(entities: Iterable[QueueEntity]) -> Counter[int]:
    """Return the bytes of each segment that these entities will release when they and their messages are gone."""
    held: Counter[int] = Counter()
    bodies: set[Shared] = set()
    for entity in entities:
        held[entity.segment] += entity.record_bytes
        for session in entity.active.sessions or ():
            if session.state is not None:
                held[session.state.segment] += session.record_bytes
        if entity.duplicates is not None:
            for segment, nbytes in entity.duplicates.stored():
                held[segment] += nbytes
        for queue in (entity.active, entity.dead_letter):
            for message in queue.scan(0):
                shared = message.shared
                held[message.segment] += message_bytes(message) if shared is None else COPY_BYTES
                if shared is not None and shared not in bodies:
                    bodies.add(shared)
                    held[message.segment] += shared.nbytes
    return held


def parts_of(record: Record, parts: Iterable[tuple[int, int, int]]) -> Iterator[Record]:
    """Yield the records of which a TRANSACTION record is made, each with its own place."""
    for kind, at, length in parts:
        payload = record.payload[at : at + length]
        yield Record(record.lsn, kind, payload, record.segment, record.offset + at)


def _queue(entity: QueueEntity, said: Entry | Update | CopyEntry) -> MessageQueue:
    if said.place not in records.PLACES:
        raise RecordError(f"message {said.sequence_number} is in place {said.place}, which this version does not know")
    return entity.place(said.place)
