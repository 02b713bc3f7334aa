"""Enqueue operations: messages sent to a queue or topic, and scheduled messages of a queue that become active.

Content is parsed in content.py, duplicates are found in duplicates.py, the layout of records is in records.py, and what
a topic makes of a message is in publish.py. A message exists only when its record is synced; a refused send is never
seen by anyone. A ping is processed like a message, up to the synced disk, but it is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.broker.format import records
from pairbus.broker.format.content import COPIED_AT_ONCE, Content, Traits, take_in, taking_in
from pairbus.broker.model.duplicates import DuplicateHistory, Sighting
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import SCHEDULED, Message
from pairbus.broker.model.outcomes import DUPLICATE, PINGED
from pairbus.broker.model.partitions import PARTITION_SHIFT, common_key
from pairbus.broker.model.queue import AT_ONCE_MAX, MessageQueue
from pairbus.broker.model.rules import RuleIndex
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull
from pairbus.broker.storage.publish_record import WEIGHT_AT_ONCE, PublishRecord, limit_lifetime
from pairbus.broker.storage.store import Done, Refused, Staged, Store, busy, recopied, refusal_of, unavailable
from pairbus.journal import JournalError

from .publish import PublishOperations

# Activated with one record; those behind them are due at once.
_ACTIVATED_MAX: Final = 200
# Of old message ids that are forgotten before new ones are taken.
_FORGOTTEN_MAX: Final = 100
# Messages that are parsed in one unit.
_READ_AT_ONCE: Final = 32
# What a message that waits for that takes in memory beside its payload.
_STAGED_BYTES: Final = 512
# What a message to a queue weighs beside the copies of one to a topic.
_QUEUE_WEIGHT: Final = WEIGHT_AT_ONCE / AT_ONCE_MAX


class EnqueueOperations:
    """Stores what is sent to queues and topics."""

    def __init__(self, store: Store, publish: PublishOperations) -> None:
        self._store = store
        self._journal = store.journal
        self._publish = publish

    def send(  # noqa: C901, PLR0912  # in as few calls as can be
        self,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int] | None = None,
        *,
        numbered: bool = False,
        prepared: PreparedSend | None = None,
    ) -> None:
        """Store these messages, all of them or none, and call `done` with None or the refusal once that is certain.

        `results` is filled with what becomes of each (outcomes.py). `numbered` makes a topic give each message a
        number of its own even when that is not needed to store it. `prepared` is what was read and laid out in slices.
        """
        # Longer than most: the hot path of queues and topics alike, in as few calls per send as can be.
        entity = target.entity
        if entity.deleting or target.dead_letter is None or entity.refuses_sends is not None:
            done(_refuses_sends(target))
            return
        record: PublishRecord | None = None
        messages: list[Message] = []
        numbers: Sequence[int]
        batch: _Batch | Refusal
        if prepared is not None:
            batch, duplicates, record = prepared
            _, _, _, size, partition = batch
            batch = _refuses_size(entity, partition, size) or batch
        else:
            is_small = len(payloads) == 1 and len(payloads[0]) <= COPIED_AT_ONCE
            if not is_small or entity.sending or isinstance(entity, Topic):
                became = [] if results is None else results
                if self._is_sent_in_slices(entity, target, payloads, now, done, became, numbered):
                    return
            duplicates = None if entity.duplicates is None else _SendDuplicates(entity, now)
            batch = read_batch(entity, payloads, duplicates, self._store.new_id)
        if isinstance(batch, Refusal):
            done(batch)
            return
        contents, pings, outcomes, size, partition = batch
        if duplicates is not None:
            done = duplicates.joined(done)
        if partition is not None and record is None:
            entity.turn_to_placed(partition)
        if isinstance(entity, Topic):
            kept = _kept(payloads, outcomes)
            if record is None:
                record = self._publish.lay_out(entity, entity.rules, contents, kept, now, numbered)
            done = self._publish.reporting_unmatched(entity, record, kept, done)
            numbers, parts = record.numbers, record.all_parts()
        else:
            first = entity.last_sequence + 1
            numbers = (first,) if len(contents) == 1 else range(first, first + len(contents))
            messages, parts = lay_out_entries(entity, contents, now, numbers)
        if results is not None:
            if len(numbers) == len(outcomes):
                results += numbers
            else:
                stored = iter(numbers)
                results += [outcome or next(stored) for outcome in outcomes]
        kind, head_bytes = records.ENQUEUE if record is None else records.PUBLISH, records.BATCH_HEAD_BYTES
        if not parts:
            kind, head_bytes, parts = _record_without_messages(entity.id, pings, duplicates)
            if not parts:
                entity.accessed_at = now
                done(None)
                return
        sighting: Sighting | None = None
        if duplicates is not None and duplicates.keys:
            parts.append(records.pack_seen(now, duplicates.keys))
            sighting = duplicates.begin()
        entity.pending_bytes += size
        written = partial(self.sent, entity, messages, record, size, len(pings), head_bytes, now, done, sighting)
        try:
            self._journal.append(kind, tuple(parts), written)
        except JournalError as error:
            written(error, -1, -1)
            return
        if messages:
            entity.last_sequence = messages[-1].sequence_number

    def sent(
        self,
        entity: QueueEntity,
        messages: list[Message],
        record: PublishRecord | None,
        size: int,
        pings: int,
        head_bytes: int,
        now: float,
        done: Done,
        sighting: Sighting | None,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        if error is not None:
            entity.pending_bytes -= size
            refusal = refusal_of(error)
            if sighting is not None and entity.duplicates is not None:
                entity.duplicates.refused(sighting, refusal)
            done(refusal)
            return
        store = self._store
        queue = entity.active
        entity.accessed_at = now
        entity.pings += pings
        self._journal.release(segment, head_bytes)
        if sighting is not None and entity.duplicates is not None:
            entity.duplicates.written(sighting, segment, len(records.pack_seen(now, sighting.keys)))
        if record is not None:
            assert isinstance(entity, Topic)
            self._publish.enter_copies(entity, record, size, segment, offset, partial(done, None))
            return
        entity.pending_bytes -= size
        for message in messages:
            message.segment = segment
            message.offset += offset
            length = message.length
            if queue.resident_bytes + length <= store.memory_budget - store.resident:
                queue.resident_bytes += length
                store.resident += length
            else:
                message.content = None
            queue.enqueue(message)
        if messages:
            if entity.partitions is None:
                entity.confirmed_sequence = message.sequence_number
            else:
                for message in messages:  # those of one forwarding may be in several partitions
                    entity.partitions.confirm(message.sequence_number)
            if queue.is_timed:
                store.watched[queue] = None
        done(None)
        if messages and queue.sessions is None:
            if queue.on_available is not None:
                queue.on_available()
        elif messages:
            queue.wake()

    def schedule(
        self,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Callable[[list[int], Refusal | None], None],
        results: list[int] | None = None,
    ) -> None:
        """Send messages and call `done` with the numbers by which they can be cancelled, 0 for a dropped duplicate."""
        became: list[int] = [] if results is None else results

        def finish(refusal: Refusal | None) -> None:
            done([] if refusal is not None else [max(0, result) for result in became], refusal)

        self.send(target, payloads, now, finish, became, numbered=True)

    # ---- sends that are prepared in slices

    def _is_sent_in_slices(
        self,
        entity: QueueEntity,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int],
        numbered: bool,
    ) -> bool:
        """Prepare a send in slices, behind those that came before it, and then write it if the entity still takes it.
        Return False where it can be written at once, or has to be: other records would not wait for this one."""
        weight = len(payloads) * (entity.rules.weight if isinstance(entity, Topic) else _QUEUE_WEIGHT)
        is_large = len(payloads) == 1 and len(payloads[0]) > COPIED_AT_ONCE
        if not (is_large or entity.sending or weight > WEIGHT_AT_ONCE):
            return False
        staged, nbytes = Staged(self._store), _STAGED_BYTES * len(payloads)
        if isinstance(entity, Topic):
            if self._journal.is_gathering:
                done(busy())
                return True
            nbytes += sum(map(len, payloads))
            work = self.preparing(entity, entity.rules, payloads, now, numbered, staged)
        elif self._journal.is_gathering:
            return False
        else:
            work = self._preparing_for_queue(entity, payloads, now)
        work = staged.during(work)
        try:
            staged.hold(nbytes)
            self._store.slices.start(
                work, partial(self._write_prepared, target, payloads, now, done, results), (entity.sending,)
            )
        except Refused as refused:
            work.close()
            done(refused.refusal)
        except SlicesFull:
            done(busy())
        return True

    def _write_prepared(
        self,
        target: MessageQueue | Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        results: list[int],
        job: Job[PreparedSend],
    ) -> None:
        try:
            prepared = job.result()
        except Refused as refused:
            done(refused.refusal)
            return
        self.send(target, payloads, now, done, results, prepared=prepared)

    def preparing(
        self,
        topic: Topic,
        rules: RuleIndex[Subscription],
        payloads: Sequence[bytes],
        now: float,
        numbered: bool,
        staged: Staged,
        known: Container[bytes] = (),
    ) -> Generator[None, None, PreparedSend]:
        """Prepare a send to a topic. Ids that are `known` are duplicates."""
        duplicates = None if topic.duplicates is None else _SendDuplicates(topic, now, known)
        batch = yield from _reading_batch(topic, payloads, duplicates, self._store.new_id)
        if isinstance(batch, Refusal):
            raise Refused(batch)
        contents, _, outcomes, _, partition = batch
        if partition is not None:
            topic.turn_to_placed(partition)
        yield
        record = yield from self._publish.laying_out(
            topic, rules, contents, _kept(payloads, outcomes), now, numbered, staged
        )
        return PreparedSend(batch, duplicates, record)

    def _preparing_for_queue(
        self, queue: QueueEntity, payloads: Sequence[bytes], now: float
    ) -> Generator[None, None, PreparedSend]:
        """Prepare a send to a queue; anew where a message came meanwhile, on another way, that makes a duplicate of one
        of these."""
        while True:
            duplicates = None if queue.duplicates is None else _SendDuplicates(queue, now)
            batch = yield from _reading_batch(queue, payloads, duplicates, self._store.new_id)
            if isinstance(batch, Refusal):
                raise Refused(batch)
            if duplicates is None or not duplicates.is_stale:
                return PreparedSend(batch, duplicates, None)

    def refuses(self, target: MessageQueue | Topic, payloads: Sequence[bytes]) -> Refusal | None:
        """Return why these messages could not be sent now, as far as can be told without sending them."""
        entity = target.entity
        if entity.deleting or target.dead_letter is None or entity.refuses_sends is not None:
            return _refuses_sends(target)
        batch = read_batch(entity, payloads, None, self._store.new_id)
        return batch if isinstance(batch, Refusal) else None

    def key_of(self, target: MessageQueue | Topic, payloads: Sequence[bytes]) -> str | None:
        """Return the key by which a partitioned entity places these messages, which `refuses` has let through."""
        entity = target.entity
        if entity.partitions is None:
            return None
        contents = (take_in(payload, lambda: "", True) for payload in payloads)
        sent = [content[4] for content in contents if content is not None and content[4] is not None]
        key = common_key(entity.name, sent, entity.detects_duplicates)
        return None if isinstance(key, Refusal) else key

    def pending_duplicate(
        self, target: MessageQueue | Topic, payloads: Sequence[bytes], now: float
    ) -> tuple[DuplicateHistory, Sighting] | None:
        """Return a message on its way to the disk of which one of these is a duplicate, if there is one."""
        history = target.entity.duplicates
        if history is None:
            return None
        for payload in payloads:
            content = take_in(payload, lambda: "", True)
            traits = None if content is None else content[4]
            sighting = None if traits is None else history.find(target.entity.duplicate_key(traits), now)
            if sighting is not None and sighting.is_pending:
                return history, sighting
        return None

    # ---- scheduled messages whose time has come

    def activate_due(self, queue: MessageQueue, now: float) -> None:
        due = queue.take_due(now, _ACTIVATED_MAX)
        if not due:
            return
        entity = queue.entity
        activations = []
        for message in due:
            if entity.partitions is not None:
                entity.turn_to(message.sequence_number >> PARTITION_SHIFT)
            entity.last_sequence += 1
            lifetime = message.expires_at - message.enqueued_at
            activations.append((message.sequence_number, entity.last_sequence, now, now + lifetime))
        self._activate(queue, due, activations, False)

    def _activate(
        self,
        queue: MessageQueue,
        messages: list[Message],
        activations: list[tuple[int, int, float, float]],
        again: bool,
    ) -> None:
        entity = queue.entity
        payload = records.pack_activated(entity.id, activations)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if entity.deleted:
                return
            if error is not None and again:
                self._store.maintenance.retry(partial(self._activate, queue, messages, activations, True))
                return
            if error is not None:
                self._store.restore(queue, messages)
                return
            self._journal.release(segment, len(payload))
            if recopied(messages):
                self._activate(queue, messages, activations, True)
                return
            for message, (_, number, enqueued_at, expires_at) in zip(messages, activations, strict=True):
                entity.activate(message, number, enqueued_at, expires_at)
                queue.put(message)
                if entity.partitions is not None:
                    entity.partitions.confirm(number)
            if entity.partitions is None:
                entity.confirmed_sequence = max(entity.confirmed_sequence, number)
            self._store.wake(queue)

        # Synced: a number must not be given out twice, and these can be seen from now on.
        self._store.append(records.ACTIVATED, payload, written)


#: The contents to store, the pings, what becomes of each payload (0: it is to be stored), bytes that count as sent, and
#: the partition to which they go
_Batch = tuple[list[Content], list[bytes], list[int], int, int | None]
_Take = Callable[[bytes, Callable[[], str], bool], Content | None]


class PreparedSend(NamedTuple):
    """A send up to the point where it is written; what a topic stores of it is laid out already."""

    batch: _Batch
    duplicates: _SendDuplicates | None
    record: PublishRecord | None


def _kept(payloads: Sequence[bytes], outcomes: Sequence[int]) -> Sequence[bytes]:
    """Return the payloads that are to be stored."""
    if any(outcomes):
        return [payload for payload, outcome in zip(payloads, outcomes, strict=True) if not outcome]
    return payloads


def read_batch(
    entity: QueueEntity,
    payloads: Sequence[bytes],
    duplicates: _SendDuplicates | None,
    new_id: Callable[[], str],
    earlier: list[Traits] | None = None,
    take: _Take = take_in,
) -> _Batch | Refusal:
    """Parse the messages of one send and check that the entity can take them, or return why it takes none of them.

    With `earlier` they are a part of what is sent: it gets what tells the partition, and the whole is checked later.
    """
    limit = entity.message_bytes_max
    needs_session = entity.active.sessions is not None
    needs_traits = entity.needs_traits
    contents: list[Content] = []
    pings: list[bytes] = []
    outcomes: list[int] = []
    size = 0
    sent = earlier
    if sent is None and entity.partitions is not None:
        sent = []
    for payload in payloads:
        if len(payload) > limit:
            text = f"The message has {len(payload)} bytes; '{entity.name}' takes messages of up to {limit} bytes."
            return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)
        try:
            content = take(payload, new_id, needs_traits)
        except AmqpError as error:
            return Refusal(error.condition, error.description)
        if content is None:
            pings.append(payload)
            outcomes.append(PINGED)
            size += len(payload)
            continue
        traits = content[4]
        if needs_session and (traits is None or traits.session_id is None):
            text = f"The entity '{entity.name}' requires sessions: a message without a session id can't be sent to it."
            return Refusal(conditions.NOT_ALLOWED, text)
        if sent is not None and traits is not None:
            sent.append(traits)
        if duplicates is not None and traits is not None and duplicates.has(traits):
            outcomes.append(DUPLICATE)
            continue
        contents.append(content)
        outcomes.append(0)
        size += len(content[3])
    batch = contents, pings, outcomes, size, None
    if earlier is not None:
        return batch
    if sent or duplicates is not None:
        return _checked(entity, batch, sent, duplicates)
    return _refuses_size(entity, None, size) or batch


def _reading_batch(
    entity: QueueEntity,
    payloads: Sequence[bytes],
    duplicates: _SendDuplicates | None,
    new_id: Callable[[], str],
) -> Generator[None, None, _Batch | Refusal]:
    """Do the same in slices."""
    contents: list[Content] = []
    pings: list[bytes] = []
    outcomes: list[int] = []
    sent: list[Traits] = []
    size, take = 0, take_in
    if len(payloads) == 1 and COPIED_AT_ONCE < len(payloads[0]) <= entity.message_bytes_max:
        try:
            taken = yield from taking_in(payloads[0], new_id, entity.needs_traits)
        except AmqpError as error:
            return Refusal(error.condition, error.description)
        take = lambda *_: taken  # noqa: E731
    for start in range(0, len(payloads), _READ_AT_ONCE):
        part = read_batch(entity, payloads[start : start + _READ_AT_ONCE], duplicates, new_id, sent, take)
        if isinstance(part, Refusal):
            return part
        contents += part[0]
        pings += part[1]
        outcomes += part[2]
        size += part[3]
        yield
    return _checked(entity, (contents, pings, outcomes, size, None), sent, duplicates)


def _checked(
    entity: QueueEntity, batch: _Batch, sent: list[Traits] | None, duplicates: _SendDuplicates | None
) -> _Batch | Refusal:
    """Return a batch that was read, with its partition, or why the entity can't take all of it."""
    if sent and entity.partitions is not None:
        placed = entity.choose_partition(sent)
        if isinstance(placed, Refusal):
            return placed
        batch = (*batch[:4], placed)
    refusal = _refuses_size(entity, batch[4], batch[3])
    if refusal is None and duplicates is not None:
        refusal = duplicates.refusal()
    return refusal or batch


def _refuses_size(entity: QueueEntity, partition: int | None, size: int) -> Refusal | None:
    """Return a refusal when the entity has no room for so many bytes more."""
    if partition is not None:
        held = entity.held_bytes(partition)
    elif isinstance(entity, Topic):
        held = entity.size_bytes
    else:
        held = entity.active.size_bytes + entity.dead_letter.size_bytes
    held += entity.pending_bytes
    return _full(entity, partition, held, size) if held + size > entity.max_bytes else None


def partition_for_send(entity: QueueEntity, payloads: Sequence[bytes]) -> int | None:
    """Return the partition to which messages that are sent together would go; None if there is none, or no good one."""
    if entity.partitions is None:
        return None
    try:
        taken = [take_in(payload, str, True) for payload in payloads]
    except AmqpError:
        return None
    placed = entity.choose_partition(
        [content[4] for content in taken if content is not None and content[4] is not None]
    )
    return None if isinstance(placed, Refusal) else placed


def _full(entity: QueueEntity, partition: int | None, held: int, size: int) -> Refusal:
    is_topic = isinstance(entity, Topic)
    noun, receive = ("topic", "Receive from its subscriptions") if is_topic else ("queue", "Receive from it")
    which = f"The {noun}" if partition is None else f"Partition {partition} of the {noun}"
    text = (
        f"{which} '{entity.name}' is full: it holds {held} of {entity.max_bytes} bytes, "
        f"and {size} more were sent. {receive} or raise its maximum size."
    )
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)


def _record_without_messages(
    id: int, pings: Sequence[bytes], duplicates: _SendDuplicates | None
) -> tuple[int, int, list[bytes]]:
    """Return the kind, the bytes to release and the parts (none: nothing is to be written) of a send's record where no
    message is stored."""
    if duplicates is not None and duplicates.keys:
        return records.SEEN, records.ID_BYTES, [records.pack_id(id)]
    parts = [records.pack_id(id), *pings] if pings else []
    return records.PING, sum(map(len, parts)), parts


def lay_out_entries(
    entity: QueueEntity, contents: Sequence[Content], now: float, numbers: Sequence[int]
) -> tuple[list[Message], list[bytes]]:
    """Return the messages that a queue gets under these numbers, with their offsets in the ENQUEUE record, and the
    parts of that record."""
    if len(contents) == 1 and contents[0][4] is None:  # most sends, a microsecond faster
        header, pairs_count, pairs_bytes, content, _ = contents[0]
        length = len(content)
        message = Message(numbers[0], now, header, pairs_count, pairs_bytes, content, length)
        head = records.pack_first(entity.id, 1, numbers[0], now, inf, header, pairs_count, pairs_bytes, length)
        message.offset = len(head)
        return [message], [head, content]
    messages: list[Message] = []
    parts: list[bytes] = []
    at = 0
    for number, (header, pairs_count, pairs_bytes, content, traits) in zip(numbers, contents, strict=True):
        length = len(content)
        if traits is not None:
            message, head = _entry_with_traits(entity, number, now, (header, pairs_count, pairs_bytes, content, traits))
            if not messages:
                head = records.pack_batch_head(entity.id, len(contents)) + head
        else:
            message = Message(number, now, header, pairs_count, pairs_bytes, content, length)
            if messages:
                head = records.pack_entry(
                    number, now, inf, 0, records.ACTIVE, header, None, pairs_count, pairs_bytes, b"", length
                )
            else:
                head = records.pack_first(
                    entity.id, len(contents), number, now, inf, header, pairs_count, pairs_bytes, length
                )
        at += len(head)
        message.offset = at  # within the record, until its place is known
        at += length
        parts.append(head)
        parts.append(content)
        messages.append(message)
    return messages, parts


def _entry_with_traits(entity: QueueEntity, number: int, now: float, content: Content) -> tuple[Message, bytes]:
    """Return a message that may expire, be scheduled or belong to a session, and its entry up to the content."""
    header, pairs_count, pairs_bytes, body, traits = content
    assert traits is not None
    header, lifetime = limit_lifetime(header, traits, entity.description.default_ttl)
    at, place = now, records.ACTIVE
    if traits.scheduled_at is not None and traits.scheduled_at > now:
        at, place = traits.scheduled_at, records.SCHEDULED
    session_id = None if entity.active.sessions is None else traits.session_id
    length = len(body)
    message = Message(number, at, header, pairs_count, pairs_bytes, body, length, at + lifetime, session_id)
    if place == records.SCHEDULED:
        message.state = message.home = SCHEDULED
    head = records.pack_entry(
        number, at, at + lifetime, 0, place, header, session_id, pairs_count, pairs_bytes, b"", length
    )
    return message, head


class _SendDuplicates:
    """Duplicate detection for one send: the ids that it adds, and the pending earlier ones that it must wait for."""

    __slots__ = ("_done", "_entity", "_history", "_known", "_left", "_now", "_refusal", "_waits", "keys")

    def __init__(self, entity: QueueEntity, now: float, known: Container[bytes] = ()) -> None:
        assert entity.duplicates is not None
        self._entity = entity
        self._history = entity.duplicates
        self._now = now
        self._known = known
        self._waits: list[Sighting] = []
        # What is to be waited for, why some of it failed, and who asks.
        self._left = 0
        self._refusal: Refusal | None = None
        self._done: Done | None = None
        self.keys: dict[bytes, None] = {}
        self._history.forget(now, _FORGOTTEN_MAX)

    def has(self, traits: Traits) -> bool:
        """Return whether this id is a duplicate; otherwise remember it."""
        key = self._entity.duplicate_key(traits)
        if key in self.keys or key in self._known:
            return True
        earlier = self._history.find(key, self._now)
        if earlier is None:
            self.keys[key] = None
            return False
        if earlier.is_pending and earlier not in self._waits:
            self._waits.append(earlier)
            self._left += 1
            self._history.wait(earlier, self._finish)
        return True

    @property
    def is_stale(self) -> bool:
        """Whether one of the ids that it adds was added by another one since."""
        return any(self._history.find(key, self._now) is not None for key in self.keys)

    @property
    def has_waited(self) -> bool:
        """Whether one of its messages was a duplicate of one on its way to the disk."""
        return bool(self._waits)

    def refusal(self) -> Refusal | None:
        """Return a refusal when the history has no room for the ids of this send."""
        if self._history.has_room(len(self.keys), self._now):
            return None
        text = (
            f"'{self._entity.name}' remembers {len(self._history)} message ids of the last {self._history.window:g} s, "
            "the most that it can. Please wait 10 seconds and try again, or shorten its duplicate detection window."
        )
        return Refusal(conditions.SERVER_BUSY, text)

    def begin(self) -> Sighting:
        return self._history.begin(tuple(self.keys), self._now)

    def joined(self, done: Done) -> Done:
        """Return a `done`, to be called once, that also waits for the earlier messages that this send duplicates."""
        if not self._waits:
            return done
        self._done = done
        self._left += 1
        return self._finish

    def _finish(self, refusal: Refusal | None) -> None:
        self._left -= 1
        self._refusal = self._refusal or refusal
        if not self._left and self._done is not None:
            self._done(self._refusal)


def _refuses_sends(target: MessageQueue | Topic) -> Refusal:
    if target.entity.deleting:
        return unavailable(target.entity, target.path)
    if target.dead_letter is None:
        return Refusal(conditions.NOT_ALLOWED, f"Messages can't be sent to '{target.path}'.")
    assert target.entity.refuses_sends is not None
    return target.entity.refuses_sends
