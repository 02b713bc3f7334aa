"""Forward operations: messages that arrive in a forwarding queue, subscription or dead-letter queue go to another one.

See docs/reference/protocol.md#forwarding. A message is stored where it was sent and confirmed there; then one record
takes it from there and enqueues or publishes it at the destination, hop by hop, so that after a crash it is in one
place (forwarded.py). For each source only one such record is being written at a time: messages that arrive meanwhile go
with the next, in order.

A message that can't be forwarded goes to the source's dead-letter queue. A destination that is only busy (throttled,
say) is waited for. A dead letter that can't be forwarded stays where it is: as long as the destination can't take it
or, if the reason is the message itself, until the description of its entity changes or the broker restarts. A forward
that the disk refuses is tried again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pairbus.amqp.errors import AmqpError
from pairbus.broker.format import records
from pairbus.broker.format.content import Content
from pairbus.broker.format.forwarded import forwarded, pack_forward, travelled
from pairbus.broker.model.duplicates import Sighting
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import DUPLICATE, DeadLetter
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull
from pairbus.broker.storage.publish_record import PublishRecord
from pairbus.broker.storage.store import Done, Refused, Staged, Store
from pairbus.journal import JournalError

from .enqueue import EnqueueOperations, lay_out_entries
from .forward_decisions import UNREADABLE, full, misplaced, refused, room_in, too_many_hops, unavailable
from .publish import PublishOperations
from .registry import Registry
from .settlement import SettlementOperations

# Forwarded with one record; those behind them go with the next.
_COUNT_MAX: Final = 100
_BYTES_MAX: Final = 1 << 20
# After which what the disk refused is tried again, and after which a destination is asked again for dead letters.
_RETRY_S: Final = 1.0
_WAIT_S: Final = 10.0
_UNREADABLE_ERRORS: Final = (AmqpError, struct.error, ArithmeticError, LookupError, TypeError, ValueError)


class Forwarded(NamedTuple):
    """A message that has been forwarded; `number` is its new one, or what became of it (outcomes.py)."""

    old_number: int
    number: int
    message_id: object
    size: int


#: Path of the source, path of the destination, what has been forwarded
ForwardObserver = Callable[[str, str, Sequence[Forwarded]], None]


@dataclass(slots=True, eq=False)
class Forwarding:
    """A queue that forwards."""

    destination: str
    is_writing: bool = False
    #: Dead letters that can't be forwarded, for their own reasons.
    parked: list[Message] = field(default_factory=list)


class _Load:
    """What goes to one destination with one record."""

    def __init__(self, source: MessageQueue, target: QueueEntity, now: float) -> None:
        self.target = target
        self.now = now
        # A message that comes back to the same entity is no duplicate of itself.
        self.history = None if target is source.entity else target.duplicates
        if self.history is not None:
            self.history.forget(now, _COUNT_MAX)
        self.room = room_in(target)
        self.messages: list[Message] = []
        self.contents: list[Content] = []
        #: Where the destination has some: to which of them each message goes.
        self.partitions: list[int] = []
        self._partition = 0
        self.duplicates: list[tuple[Message, Content]] = []
        self.keys: dict[bytes, None] = {}
        self.size = 0
        #: What the next message may be a duplicate of, once it is written.
        self.pending: Sighting | None = None

    def sighting_of(self, content: Content) -> Sighting | bool:
        """Return False for a message that is new to the destination, True for a duplicate, or what must be known
        first."""
        if self.history is None:
            return False
        traits = content[4]
        assert traits is not None
        key = self.target.duplicate_key(traits)
        earlier = self.history.find(key, self.now)
        if key in self.keys:
            return True
        if earlier is None:
            self.keys[key] = None
            return False
        return earlier if earlier.is_pending else True

    @property
    def gone(self) -> list[Message]:
        """What leaves the source."""
        return [*self.messages, *(message for message, _ in self.duplicates)]

    def give_numbers(self) -> list[int]:
        """Return the numbers that the messages get in the destination, a queue."""
        target, numbers = self.target, []
        for index in range(len(self.messages)):
            if self.partitions:
                target.turn_to(self.partitions[index])
            target.last_sequence += 1
            numbers.append(target.last_sequence)
        return numbers

    def place(self, content: Content) -> Refusal | None:
        """Choose the partition of the next message, if the destination has some, or return why it can go to none."""
        if self.target.partitions is None:
            return None
        traits = content[4]
        assert traits is not None
        placed = self.target.choose_partition([traits])
        if isinstance(placed, Refusal):
            return placed
        self._partition = placed
        self.room = room_in(self.target, placed)
        return None

    def add(self, message: Message, content: Content) -> None:
        if self.target.partitions is not None:
            self.partitions.append(self._partition)
            self.target.partitions.used(self._partition)
        self.messages.append(message)
        self.contents.append(content)
        self.size += len(content[3])


class ForwardOperations:
    """Forwards messages and dead letters."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settlement: SettlementOperations,
        publish: PublishOperations,
        enqueue: EnqueueOperations,
    ) -> None:
        self._store = store
        self._journal = store.journal
        self._registry = registry
        self._settlement = settlement
        self._publish = publish
        self._enqueue = enqueue
        registry.on_watched = self._follow
        registry.on_forgotten = self._end
        self._forwarding: dict[MessageQueue, Forwarding] = {}
        # Sources that may have something to forward now, and when others are tried again.
        self._due: dict[MessageQueue, None] = {}
        self._is_forwarding = False
        self._forwards_at = -inf
        self._retries: dict[MessageQueue, float] = {}
        #: Called when `forward_due` has something to do; it may come as often as messages do.
        self.on_forwards_due: Callable[[], None] | None = None
        #: Called for a queue that begins to forward: its receivers have to go.
        self.on_forwarding: Callable[[MessageQueue], None] | None = None
        self.on_forwarded: ForwardObserver | None = None
        #: Asked with the path of a destination and the bytes of a message; True: it is to be tried again later.
        self.is_busy: Callable[[str, int], bool] | None = None

    # ---- which queues forward

    def _follow(self, entity: QueueEntity) -> None:
        for queue, destination in entity.forwards:
            self._set_forwarding(queue, destination)

    def _end(self, entity: QueueEntity) -> None:
        for queue, _ in entity.forwards:
            self._set_forwarding(queue, None)

    def _set_forwarding(self, queue: MessageQueue, destination: str | None) -> None:
        forwarding = self._forwarding.get(queue)
        if forwarding is None and destination is None:
            return
        self._retries.pop(queue, None)
        if forwarding is not None:
            for message in forwarding.parked:
                queue.offer(message)
            forwarding.parked.clear()
        if destination is None:
            del self._forwarding[queue]
            self._due.pop(queue, None)
            queue.on_available = None
            return
        if forwarding is None:
            self._forwarding[queue] = Forwarding(destination)
            if self.on_forwarding is not None:
                self.on_forwarding(queue)
            queue.on_available = partial(self._note_due, queue)
        else:
            forwarding.destination = destination
        self._note_due(queue)

    def _note_due(self, queue: MessageQueue) -> None:
        if queue in self._forwarding and queue not in self._retries:
            self._due[queue] = None
            if self.on_forwards_due is not None:
                self.on_forwards_due()

    @property
    def deadline(self) -> float:
        """When something is tried again."""
        return min(self._retries.values(), default=inf)

    def shift(self, seconds: float) -> None:
        self._retries = {queue: time + seconds for queue, time in self._retries.items()}

    # ---- forwarding

    def forward_due(self, now: float) -> None:
        """Begin to forward what waits for it."""
        for queue in [queue for queue, time in self._retries.items() if time <= now]:
            del self._retries[queue]
            self._due[queue] = None
        self._forwards_at = now
        if self._due and not self._is_forwarding:
            self._is_forwarding = True
            due, self._due = self._due, {}
            self._store.slices.run(lambda: self._forward_all(due), self._forwarded_all)

    def _forward_all(self, due: Iterable[MessageQueue]) -> Generator[None, None, None]:
        try:
            for queue in due:
                self._forward(queue, self._forwards_at)
                yield
        finally:
            self._is_forwarding = False

    def _forwarded_all(self) -> None:
        if self._due and self.on_forwards_due is not None:
            self.on_forwards_due()

    def _forward(self, source: MessageQueue, now: float) -> None:
        forwarding = self._forwarding.get(source)
        entity = source.entity
        if forwarding is None or forwarding.is_writing or entity.refuses_receives is not None:
            return
        if source in self._retries:
            return
        if entity.deleting:
            # Should the disk refuse the deletion, it goes on.
            self._wait(source, forwarding, now + _RETRY_S)
            return
        if source.lifetimes.next <= now and not self._settlement.clear_overdue(source, now):
            return
        target = self._registry.find(forwarding.destination)
        problem = unavailable(forwarding.destination, target)
        if problem is not None:
            self._refuse_all(source, forwarding, problem, now)
            return
        assert target is not None
        if target.deleting:
            self._wait(source, forwarding, now + _RETRY_S)
            return
        if isinstance(target, Topic):
            self._forward_in_slices(source, forwarding, target, now)
        else:
            self._write_load(source, forwarding, self._load(source, forwarding, target, now), None)

    def _write_load(
        self, source: MessageQueue, forwarding: Forwarding, load: _Load, record: PublishRecord | None
    ) -> None:
        if load.messages or load.duplicates:
            self._write_forward(source, forwarding, load, record)
        elif load.pending is not None and load.history is not None:
            forwarding.is_writing = True
            load.history.wait(load.pending, lambda _: self._resume(source, forwarding))
        elif source.available:
            self._note_due(source)

    def _forward_in_slices(self, source: MessageQueue, forwarding: Forwarding, topic: Topic, now: float) -> None:
        """Forward to a topic, behind what was sent there before."""
        forwarding.is_writing = True
        staged = Staged(self._store)
        work = staged.during(self._preparing_forward(source, forwarding, topic, now, staged))
        try:
            self._store.slices.start(
                work, partial(self._write_prepared_forward, source, forwarding, now), (topic.sending,)
            )
        except SlicesFull:
            forwarding.is_writing = False
            self._wait(source, forwarding, now + _RETRY_S)

    def _preparing_forward(
        self, source: MessageQueue, forwarding: Forwarding, topic: Topic, now: float, staged: Staged
    ) -> Generator[None, None, tuple[_Load, PublishRecord] | None]:
        """Take what goes with the next record and lay that out; None: it can't go there any more."""
        if not self._leads_to(source, forwarding, topic):
            return None
        load = self._load(source, forwarding, topic, now)
        is_ready = False
        try:
            yield
            payloads = [content[pairs_bytes:] for _, _, pairs_bytes, content, _ in load.contents]
            record = yield from self._publish.laying_out(
                topic, topic.rules, load.contents, payloads, now, False, staged, load.partitions
            )
            is_ready = self._leads_to(source, forwarding, topic)
            return (load, record) if is_ready else None
        finally:
            if not is_ready and not source.entity.deleted:
                self._store.restore(source, load.gone)

    def _leads_to(self, source: MessageQueue, forwarding: Forwarding, topic: Topic) -> bool:
        """Return whether a queue forwards to a topic that takes it."""
        return (
            self._forwarding.get(source) is forwarding
            and forwarding.destination.lower() == topic.name.lower()
            and not (source.entity.deleting or topic.deleting)
            and topic.refuses_sends is None
        )

    def _write_prepared_forward(
        self,
        source: MessageQueue,
        forwarding: Forwarding,
        now: float,
        job: Job[tuple[_Load, PublishRecord] | None],
    ) -> None:
        forwarding.is_writing = False
        try:
            prepared = job.result()
        except Refused:
            prepared = None
        if prepared is None:
            self._wait(source, forwarding, now + _RETRY_S)
        else:
            self._write_load(source, forwarding, *prepared)

    def _resume(self, source: MessageQueue, forwarding: Forwarding) -> None:
        forwarding.is_writing = False
        self._note_due(source)

    def _refuse_all(self, source: MessageQueue, forwarding: Forwarding, reason: DeadLetter, now: float) -> None:
        """Dead-letter what a destination can't take, some of it at a time; dead letters wait."""
        if source.is_dead_letter:
            self._wait(source, forwarding, now + _WAIT_S)
            return
        messages = source.draw(_COUNT_MAX)
        if messages:
            self._refuse(source, forwarding, messages, reason, now)
            self._note_due(source)

    def _refuse(
        self, source: MessageQueue, forwarding: Forwarding, messages: list[Message], reason: DeadLetter, now: float
    ) -> None:
        if source.is_dead_letter:
            forwarding.parked += messages
            return

        def finish(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._wait(source, forwarding, now + _RETRY_S)

        self._settlement.dead_letter_all(source, messages, lambda _: reason, finish)

    def _wait(self, source: MessageQueue, forwarding: Forwarding, until: float) -> None:
        if self._forwarding.get(source) is forwarding:
            self._retries[source] = until

    def _load(self, source: MessageQueue, forwarding: Forwarding, target: QueueEntity, now: float) -> _Load:
        """Take from the source what goes with the next record, and out of the way what can't go."""
        load = _Load(source, target, now)
        for _ in range(_COUNT_MAX):
            messages = source.draw(1) if load.size < _BYTES_MAX else []
            if not messages:
                break
            (message,) = messages
            try:
                content = self._forwarded_content(source, message, target, now)
            except JournalError:
                self._store.restore(source, messages)
                self._wait(source, forwarding, now + _RETRY_S)
                break
            if isinstance(content, DeadLetter):
                self._refuse(source, forwarding, messages, content, now)
                continue
            problem = load.place(content)
            if problem is not None:
                reason = misplaced(problem)
                if reason is not None:
                    self._refuse(source, forwarding, messages, reason, now)
                    continue
                source.offer(message)
                self._wait(source, forwarding, now + _RETRY_S)
                break
            if load.size + len(content[3]) > load.room:
                if not source.is_dead_letter:
                    self._refuse(source, forwarding, messages, full(target), now)
                    continue
                source.offer(message)
                self._wait(source, forwarding, now + _WAIT_S)
                break
            if self.is_busy is not None and self.is_busy(target.active.path, len(content[3])):
                source.offer(message)
                self._wait(source, forwarding, now + _RETRY_S)
                break
            if not self._take_in(source, forwarding, load, message, content):
                break
        return load

    def _take_in(
        self, source: MessageQueue, forwarding: Forwarding, load: _Load, message: Message, content: Content
    ) -> bool:
        """Add a message to what is forwarded, unless it is a duplicate there. Return False if that is not known yet, or
        can't be kept."""
        sighting = load.sighting_of(content)
        history = load.history
        if isinstance(sighting, Sighting):
            source.offer(message)
            load.pending = sighting
            return False
        if sighting:
            load.duplicates.append((message, content))
            return True
        if history is not None and not history.has_room(len(load.keys), load.now):
            load.keys.popitem()
            source.offer(message)
            self._wait(source, forwarding, load.now + _RETRY_S)
            return False
        load.add(message, content)
        return True

    def _forwarded_content(
        self, source: MessageQueue, message: Message, target: QueueEntity, now: float
    ) -> Content | DeadLetter:
        """Return what the destination gets of a message, or why it gets nothing."""
        store = self._store
        stored = store.content(message) if message.content is None else message.content
        changes = None if message.changes is None else store.changes(message)
        try:
            way = travelled(stored, message.pairs_count)
            content = forwarded(
                message.header,
                way,
                stored[message.pairs_bytes :],
                changes,
                message.sequence_number,
                source.entity.active.path if source.is_dead_letter else None,
                message.expires_at - now,
            )
        except _UNREADABLE_ERRORS:
            return UNREADABLE
        traits = content[4]
        assert traits is not None
        return too_many_hops(way.hops) or refused(target, message.length, traits.session_id) or content

    # ---- records

    def _write_forward(
        self, source: MessageQueue, forwarding: Forwarding, load: _Load, record: PublishRecord | None
    ) -> None:
        target, now, gone = load.target, load.now, load.gone
        results: list[int] = []
        done: Done = partial(self._forwarded, source, forwarding, load, results)
        forwarding.is_writing = True
        messages: list[Message] = []
        if record is not None:
            assert isinstance(target, Topic)
            kind, parts = records.PUBLISH, record.all_parts()
            results += record.numbers
            payloads = [content[pairs_bytes:] for _, _, pairs_bytes, content, _ in load.contents]
            done = self._publish.reporting_unmatched(target, record, payloads, done)
        else:
            kind = records.ENQUEUE
            results += load.give_numbers()
            messages, parts = lay_out_entries(target, load.contents, now, results)
        head_bytes = records.BATCH_HEAD_BYTES
        if not parts and load.keys:
            kind, head_bytes, parts = records.SEEN, records.ID_BYTES, [records.pack_id(target.id)]
        if not parts:
            self._settlement.remove(source, gone, False, done)
            return
        sighting: Sighting | None = None
        if load.keys:
            assert load.history is not None
            parts.append(records.pack_seen(now, load.keys))
            sighting = load.history.begin(tuple(load.keys), now)
        target.pending_bytes += load.size
        sent = partial(self._enqueue.sent, target, messages, record, load.size, 0, head_bytes, now, done, sighting)
        head = pack_forward(source.entity.id, kind, [message.sequence_number for message in gone])

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self._journal.release(segment, len(head))
                self._settlement.forget_removed(source, gone)
            elif not source.entity.deleted:
                self._store.restore(source, gone)
            sent(error, segment, offset + len(head))

        self._store.append(records.FORWARD, (head, *parts), written)

    def _forwarded(
        self,
        source: MessageQueue,
        forwarding: Forwarding,
        load: _Load,
        numbers: Sequence[int],
        refusal: Refusal | None,
    ) -> None:
        if refusal is not None:
            self._wait(source, forwarding, load.now + _RETRY_S)
            forwarding.is_writing = False
            source.wake()
            return
        source.entity.forwarded += len(load.messages) + len(load.duplicates)
        if self.on_forwarded is not None:
            stored = zip(load.messages, load.contents, numbers, strict=True)
            told = [_told(message, content, number) for message, content, number in stored]
            told += [_told(message, content, DUPLICATE) for message, content in load.duplicates]
            self.on_forwarded(source.path, load.target.name, told)
        self._resume(source, forwarding)


def _told(message: Message, content: Content, number: int) -> Forwarded:
    traits = content[4]
    assert traits is not None
    return Forwarded(message.sequence_number, number, traits.message_id, len(content[3]))
