"""A namespace: its entities and their messages over a journal. What the AMQP front and the HTTP API call.

A shell: it holds no rule of its own but the order of things. All of it runs on the loop's thread; answers come through
callbacks, on that thread. Rules about messages are in queue.py, bytes in content.py, the
layout of records in records.py.

- A message is there only when its record is synced; a refused send is never seen by anyone.
- Complete, abandon and dead-letter are lazy records; receive-and-delete is synced before the answer.
- Locks are not journalled: a restart frees them.
- A ping (P32) goes the whole way of a message, to the synced disk, and is nowhere afterwards.

Compaction copies what lives of the oldest segment to the end of the journal, so a copy can come to stand after a
record about the same message that is still on its way. Hence: what is being settled or deleted and is copied meanwhile
gets that record written once more behind the copy (`again`), and is answered after that. Should the disk refuse the
second one, nobody can say whether the message is on disk: it is as good as settled, and the record is tried until it is
written. A crash before that can deliver it again, never lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.journal import Journal, JournalBusy, JournalError, JournalFull, RecordTooLarge

from . import records
from .content import delivery, pack_changes, take_in, with_changes
from .description import QueueDescription
from .entity import DEAD_LETTER_SUFFIX, QueueEntity
from .outcomes import Abandon, Complete, DeadLetter, Outcome, Release, exhausted
from .queue import RECOPIED, SETTLING, Message, MessageQueue, Stored
from .refusal import Refusal
from .replay import CHANGES_RESIDENT_BYTES_MAX, rebuild
from .survivors import UNPLACED, Survivors
from .tokens import random_tokens
from .upkeep import Upkeep

Done = Callable[[Refusal | None], None]
# A message's changes as they will be once the record is written, or None where they stay
Change = tuple[Message, int, int, bytes | None]

ENTITIES_MAX: Final = 10_000
PEEK_BYTES_MAX: Final = 1 << 20
_SHARED_MAX: Final = 1024
_SUFFIX: Final = DEAD_LETTER_SUFFIX.lower()
_RECORD_HEAD_BYTES: Final = records.BATCH_HEAD_BYTES
_ENTRY_HEAD_BYTES: Final = records.ENTRY_HEAD_BYTES


def refusal_of(error: JournalError) -> Refusal:
    kept = "it may yet turn up after a restart" if error.unknown else "nothing was stored"
    if isinstance(error, JournalFull):
        return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, f"The broker's disk is full; {kept}. ({error})")
    if isinstance(error, JournalBusy):
        text = f"The broker's disk can't keep up; {kept}. Please wait 2 seconds and try again. ({error})"
        return Refusal(conditions.SERVER_BUSY, text)
    if isinstance(error, RecordTooLarge):
        return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, f"The batch is larger than the broker can store. ({error})")
    return Refusal(conditions.INTERNAL_ERROR, f"The broker's disk refused; {kept}. ({error})")


class Namespace:
    def __init__(self, name: str, journal: Journal, memory_budget: int, new_token: Callable[[], bytes]) -> None:
        self.name = name
        self.journal = journal
        self.notes: list[str] = []
        self._new_token = new_token
        self._memory_budget = memory_budget
        self._resident = 0
        self._queues: dict[str, QueueEntity] = {}
        self.queues: Mapping[str, QueueEntity] = MappingProxyType(self._queues)
        self._by_id: dict[int, QueueEntity] = {}
        # names that are being created
        self._claimed: set[str] = set()
        # queues that may have locks to watch
        self._watched: dict[MessageQueue, None] = {}
        # changes that many messages have alike, such as the reason of a dead letter
        self._shared: dict[bytes, bytes] = {}
        self.survivors = Survivors(self._by_id, journal.read, journal.release)
        self.upkeep = Upkeep(journal, self.survivors, self.notes)

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
        self._by_id.update(rebuilt.entities)
        self.survivors.next_id = rebuilt.next_id
        self.survivors.meta = rebuilt.meta
        for entity in rebuilt.entities.values():
            entity.accessed_at = now
            self._queues[entity.name.lower()] = entity
        return self

    def __repr__(self) -> str:
        return f"<Namespace {self.name}: {len(self._queues)} queues, {self._resident} bytes in memory>"

    @property
    def resident_bytes(self) -> int:
        """Contents held in memory."""
        return self._resident

    def resolve(self, path: str) -> MessageQueue | None:
        key = path.lower()
        entity = self._queues.get(key)
        if entity is not None:
            return entity.active
        if key.endswith(_SUFFIX):
            entity = self._queues.get(key[: -len(_SUFFIX)])
            if entity is not None:
                return entity.dead_letter
        return None

    # ---- entities

    def create_queue(self, description: QueueDescription, now: float, done: Done) -> None:
        key = description.name.lower()
        if key in self._queues or key in self._claimed:
            text = f"The messaging entity '{description.name}' already exists in namespace '{self.name}'."
            done(Refusal(conditions.ENTITY_ALREADY_EXISTS, text))
            return
        if len(self._by_id) >= ENTITIES_MAX:
            text = f"Namespace '{self.name}' has {ENTITIES_MAX} entities, the most that it can have."
            done(Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text))
            return
        entity = QueueEntity(self.survivors.next_id, replace(description, created_at=now, updated_at=now))
        entity.accessed_at = now
        payload = records.pack_queue(entity.id, 0, 0, entity.description.to_json())
        entity.record_bytes = len(payload)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            self._claimed.discard(key)
            if error is not None:
                del self._by_id[entity.id]
                done(refusal_of(error))
                return
            entity.segment, entity.offset = segment, offset
            self._queues[key] = entity
            done(None)

        try:
            self._write_meta()
            self.journal.append(records.QUEUE, payload, written)
        except JournalError as error:
            done(refusal_of(error))
            return
        self.survivors.next_id += 1
        self._claimed.add(key)
        self._by_id[entity.id] = entity

    def update_queue(self, description: QueueDescription, now: float, done: Done) -> None:
        entity = self._queues.get(description.name.lower())
        if entity is None or entity.deleting:
            done(self._not_found(description.name))
            return
        stands = entity.description
        new = replace(description, name=stands.name, created_at=stands.created_at, updated_at=now)
        entity.next_revision += 1
        revision = entity.next_revision
        payload = records.pack_queue(entity.id, revision, entity.last_sequence, new.to_json())

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is not None:
                done(refusal_of(error))
                return
            self.journal.release(entity.segment, entity.record_bytes)
            entity.segment, entity.offset, entity.record_bytes = segment, offset, len(payload)
            entity.describe(new, revision)
            entity.accessed_at = now
            done(None)

        self._append(records.QUEUE, payload, written)

    def delete_queue(self, name: str, now: float, done: Done) -> None:
        entity = self._queues.get(name.lower())
        if entity is None or entity.deleting:
            done(self._not_found(name))
            return
        entity.deleting = True
        self._delete(entity, done, False)

    def _delete(self, entity: QueueEntity, done: Done, again: bool) -> None:
        payload = records.pack_deleted(entity.id)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self.journal.release(segment, len(payload))
                if entity.recopied:
                    entity.recopied = False
                    self._delete(entity, done, True)
                    return
            elif again:
                self.upkeep.retry(partial(self._delete, entity, _nobody, True))
            else:
                entity.deleting = entity.recopied = False
                done(refusal_of(error))
                return
            if not entity.deleted:
                self._forget(entity)
            done(None)

        self._append(records.DELETED, payload, written)

    def _forget(self, entity: QueueEntity) -> None:
        entity.deleted = True
        del self._queues[entity.name.lower()]
        del self._by_id[entity.id]
        self.journal.release(entity.segment, entity.record_bytes)
        for queue in (entity.active, entity.dead_letter):
            self._watched.pop(queue, None)
            self._resident -= queue.resident_bytes
            queue.close()
            self.upkeep.take_apart(queue)
            if queue.on_deleted is not None:
                queue.on_deleted()

    def _not_found(self, name: str) -> Refusal:
        return Refusal(conditions.NOT_FOUND, f"The messaging entity '{name}' could not be found.")

    def _write_meta(self) -> None:
        survivors = self.survivors
        if survivors.meta is not None:
            return

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            # When it failed, so did the creation behind it, and the next one writes it again.
            survivors.meta = (segment, offset) if error is None else None

        self.journal.append(records.META, records.pack_meta(survivors.next_id), written)
        survivors.meta = UNPLACED

    def _append(
        self,
        kind: int,
        payload: bytes,
        written: Callable[[JournalError | None, int, int], None],
        lazy: bool = False,
    ) -> None:
        """As the journal's, with what it raises at once told to the callback too."""
        try:
            self.journal.append(kind, payload, written, lazy=lazy)
        except JournalError as error:
            written(error, -1, -1)

    # ---- sending

    def send(self, queue: MessageQueue, payloads: Sequence[bytes], now: float, done: Done) -> None:
        entity = queue.entity
        if entity.deleting or queue.dead_letter is None:
            done(self._refuses_sends(queue))
            return
        messages: list[Message] = []
        parts: list[bytes] = []
        pings = 0
        size = at = 0
        number = entity.last_sequence
        limit = entity.message_bytes_max
        for payload in payloads:
            if len(payload) > limit:
                text = f"The message has {len(payload)} bytes; '{queue.path}' takes messages of up to {limit} bytes."
                done(Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text))
                return
            try:
                kept = take_in(payload, self._new_id)
            except AmqpError as error:
                done(Refusal(error.condition, error.description))
                return
            if kept is None:
                pings += 1
                size += len(payload)
                continue
            header, pairs_count, pairs_bytes, content = kept
            number += 1
            length = len(content)
            size += length
            message = Message(number, now, header, pairs_count, pairs_bytes, content, length)
            if messages:
                head = records.pack_entry(number, now, 0, records.ACTIVE, header, pairs_count, pairs_bytes, b"", length)
            else:
                count = len(payloads) - pings
                head = records.pack_first(entity.id, count, number, now, header, pairs_count, pairs_bytes, length)
            at += len(head)
            message.offset = at  # within the record, until its place is known
            at += length
            parts.append(head)
            parts.append(content)
            messages.append(message)
        held = entity.active.size_bytes + entity.dead_letter.size_bytes + entity.pending_bytes
        if held + size > entity.max_bytes:
            text = (
                f"The queue '{entity.name}' is full: it holds {held} of {entity.max_bytes} bytes, "
                f"and {size} more were sent. Receive from it or raise its maximum size."
            )
            done(Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text))
            return
        if pings and messages:
            # A batch with pings in it: how many are stored is known only now.
            head = parts[0]
            parts[0] = records.pack_batch_head(entity.id, len(messages)) + head[_RECORD_HEAD_BYTES:]
        written: Callable[[JournalError | None, int, int], None]
        if messages:
            kind = records.ENQUEUE
            written = partial(self._enqueued, queue, messages, size, pings, now, done)
        elif pings:
            kind = records.PING
            parts = [records.pack_ping(entity.id), *payloads]
            written = partial(self._pinged, entity, size, pings, now, done)
        else:
            done(None)
            return
        try:
            self.journal.append(kind, tuple(parts), written)
        except JournalError as error:
            done(refusal_of(error))
            return
        entity.last_sequence = number
        entity.pending_bytes += size

    def _refuses_sends(self, queue: MessageQueue) -> Refusal:
        if queue.entity.deleting:
            return self._not_found(queue.path)
        return Refusal(conditions.NOT_ALLOWED, f"Messages can't be sent to '{queue.path}'.")

    def _new_id(self) -> str:
        return self._new_token().hex()

    def _enqueued(
        self,
        queue: MessageQueue,
        messages: list[Message],
        size: int,
        pings: int,
        now: float,
        done: Done,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        entity = queue.entity
        entity.pending_bytes -= size
        if error is not None:
            done(refusal_of(error))
            return
        entity.accessed_at = now
        entity.pings += pings
        for message in messages:
            message.segment = segment
            message.offset += offset
            length = message.length
            # A share of what is left, not all of it: one deep queue can't push all others to the disk.
            if queue.resident_bytes + length <= self._memory_budget - self._resident:
                queue.resident_bytes += length
                self._resident += length
            else:
                message.content = None
            queue.enqueue(message)
        entity.confirmed_sequence = message.sequence_number
        self.journal.release(segment, _RECORD_HEAD_BYTES)
        done(None)
        if queue.on_available is not None:
            queue.on_available()

    def _pinged(
        self,
        entity: QueueEntity,
        size: int,
        pings: int,
        now: float,
        done: Done,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        entity.pending_bytes -= size
        if error is not None:
            done(refusal_of(error))
            return
        entity.accessed_at = now
        entity.pings += pings
        self.journal.release(segment, size + len(records.pack_ping(0)))
        done(None)

    # ---- receiving

    def acquire(self, queue: MessageQueue, count: int, now: float) -> list[Message]:
        if queue.entity.deleting:
            return []
        messages = queue.acquire(count, now, self._new_token)
        if messages:
            self._watched[queue] = None
            queue.entity.accessed_at = now
        return messages

    def take(
        self,
        queue: MessageQueue,
        count: int,
        now: float,
        done: Callable[[list[Message], Refusal | None], None],
    ) -> None:
        messages = [] if queue.entity.deleting else queue.draw(count)
        if not messages:
            done([], None)
            return
        queue.entity.accessed_at = now

        def finish(refusal: Refusal | None) -> None:
            done([] if refusal is not None else messages, refusal)

        try:
            for message in messages:
                if message.content is None:
                    # Once removed its place on disk may go at any time.
                    message.content = self._content(message)
                    queue.resident_bytes += message.length
                    self._resident += message.length
        except JournalError as error:
            for message in messages:
                queue.restore(message)
            done([], refusal_of(error))
            return
        self._remove(queue, messages, False, finish)

    def delivery(self, queue: MessageQueue, message: Message, *, locked: bool) -> bytes:
        """Raises JournalError when the content is on disk and can't be read."""
        content = message.content
        if content is None:
            content = self._content(message)
        payload = delivery(
            message.header,
            message.delivery_count,
            message.sequence_number,
            message.enqueued_at,
            message.locked_until if locked else None,
            message.pairs_count,
            message.pairs_bytes,
            content,
        )
        if message.changes is not None:
            return with_changes(payload, self._changes(message) or b"")
        return payload

    def _content(self, message: Message) -> bytes:
        return self.journal.read(message.segment, message.offset, message.length)

    def _changes(self, message: Message) -> bytes | None:
        changes = message.changes
        if isinstance(changes, Stored):
            return self.journal.read(changes.segment, changes.offset, changes.length)
        return changes

    def peek(self, queue: MessageQueue, from_sequence: int, count: int, now: float) -> list[bytes]:
        """Without locking, locked ones too. Ends early when the answer would be large."""
        queue.entity.accessed_at = now
        peeked: list[bytes] = []
        size = 0
        for message in queue.scan(from_sequence):
            if len(peeked) >= count or (peeked and size + message.length > PEEK_BYTES_MAX):
                break
            payload = self.delivery(queue, message, locked=False)
            size += len(payload)
            peeked.append(payload)
        return peeked

    def renew(self, queue: MessageQueue, tokens: Sequence[bytes], now: float) -> list[float] | Refusal:
        """All or none."""
        queue.entity.accessed_at = now
        until = queue.renew(tokens, now)
        return until if isinstance(until, Refusal) else [until] * len(tokens)

    # ---- settling

    def settle(self, queue: MessageQueue, tokens: Sequence[bytes], outcome: Outcome, now: float, done: Done) -> None:
        """By lock token, whoever holds it. Those that still hold are settled; a `LocksLost` names the others."""
        if queue.entity.deleting:
            done(self._not_found(queue.path))
            return
        queue.entity.accessed_at = now
        messages, lost = queue.claim_all(tokens, now)
        if not messages:
            done(lost)
            return
        finish = done if lost is None else partial(_finish_partly, done, lost)
        if isinstance(outcome, Complete):
            self._remove(queue, messages, True, finish)
        elif isinstance(outcome, Release):
            for message in messages:
                queue.offer(message)
            finish(None)
            if queue.on_available is not None:
                queue.on_available()
        else:
            try:
                changes = [self._failed(queue, message, outcome) for message in messages]
            except (AmqpError, JournalError) as error:
                for message in messages:
                    queue.restore(message)
                self._watched[queue] = None
                if isinstance(error, JournalError):
                    finish(refusal_of(error))
                else:
                    finish(Refusal(error.condition, error.description))
                return
            self._update(queue, changes, finish)

    def _failed(self, queue: MessageQueue, message: Message, outcome: Abandon | DeadLetter) -> Change:
        """What a message will be once it is abandoned or dead-lettered."""
        count = message.delivery_count + 1
        place = records.DEAD
        if isinstance(outcome, DeadLetter):
            properties: Mapping[str, Any] = outcome.changes()
            if queue.dead_letter is not None:
                count = message.delivery_count
        else:
            properties = outcome.properties
            if queue.exhausts(count):
                properties = {**properties, **exhausted(count).changes()}
            elif queue.dead_letter is not None:
                place = records.ACTIVE
        if not properties:
            return message, count, place, None
        return message, count, place, pack_changes(self._changes(message), properties)

    def _remove(
        self, queue: MessageQueue, messages: list[Message], lazy: bool, finish: Done, again: bool = False
    ) -> None:
        payload = records.pack_remove(queue.entity.id, [message.sequence_number for message in messages])
        written = partial(self._removed, queue, messages, len(payload), lazy, finish, again)
        try:
            self.journal.append(records.REMOVE, payload, written, lazy=lazy)
        except JournalError as error:
            written(error, -1, -1)

    def _removed(
        self,
        queue: MessageQueue,
        messages: list[Message],
        nbytes: int,
        lazy: bool,
        finish: Done,
        again: bool,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        if queue.entity.deleted:
            finish(None)
            return
        if error is not None:
            if again:
                self.upkeep.retry(partial(self._remove, queue, messages, lazy, _nobody, True))
                finish(None)
            else:
                self._undo(queue, messages)
                finish(refusal_of(error))
            return
        release = self.journal.release
        release(segment, nbytes)
        if _recopied(messages):
            self._remove(queue, messages, lazy, finish, True)
            return
        for message in messages:
            queue.remove(message)
            if message.content is not None:
                queue.resident_bytes -= message.length
                self._resident -= message.length
            release(message.segment, _ENTRY_HEAD_BYTES + len(message.header) + message.length)
        finish(None)

    def _undo(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        for message in messages:
            queue.restore(message)
        self._watched[queue] = None
        if queue.has_available and queue.on_available is not None:
            queue.on_available()

    def _update(self, queue: MessageQueue, changes: list[Change], finish: Done, again: bool = False) -> None:
        payload, places = records.pack_updates(
            queue.entity.id,
            [(message.sequence_number, count, place, change) for message, count, place, change in changes],
        )
        # The place of a lazy record is not for certain before it is synced; what shall be read back from it waits.
        lazy = not any(change is not None and len(change) > CHANGES_RESIDENT_BYTES_MAX for _, _, _, change in changes)
        written = partial(self._updated, queue, changes, places, len(payload), finish, again)
        self._append(records.UPDATE, payload, written, lazy)

    def _updated(
        self,
        queue: MessageQueue,
        changes: list[Change],
        places: list[int],
        nbytes: int,
        finish: Done,
        again: bool,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        if queue.entity.deleted:
            finish(None)
            return
        messages = [message for message, _, _, _ in changes]
        if error is not None:
            if again:
                self.upkeep.retry(partial(self._update, queue, changes, _nobody, True))
                finish(None)
            else:
                self._undo(queue, messages)
                finish(refusal_of(error))
            return
        self.journal.release(segment, nbytes)
        if _recopied(messages):
            self._update(queue, changes, finish, True)
            return
        for (message, count, place, change), at in zip(changes, places, strict=True):
            message.delivery_count = count
            if change is not None:
                if len(change) > CHANGES_RESIDENT_BYTES_MAX:
                    message.changes = Stored(segment, offset + at, len(change))
                else:
                    message.changes = self._same(change)
            if place == records.DEAD and queue.dead_letter is not None:
                self._bury(queue, queue.dead_letter, message)
            else:
                queue.offer(message)
        finish(None)
        for woken in (queue, queue.dead_letter):
            if woken is not None and woken.on_available is not None and woken.has_available:
                woken.on_available()

    def _bury(self, queue: MessageQueue, dead_letter: MessageQueue, message: Message) -> None:
        """Its body stays where it is on disk. Dead letters are seldom read, so memory is for others."""
        queue.remove(message)
        if message.content is not None:
            queue.resident_bytes -= message.length
            self._resident -= message.length
            message.content = None
        dead_letter.insert(message)
        dead_letter.offer(message)

    def _same(self, change: bytes) -> bytes:
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(change, change)

    # ---- time

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        earliest: float | None = None
        for queue in list(self._watched):
            deadline = queue.deadline()
            if deadline is None:
                del self._watched[queue]
            elif earliest is None or deadline < earliest:
                earliest = deadline
        return earliest

    def tick(self, now: float) -> float | None:
        """Locks that have run out: one more failed delivery, back to the queue or, past the maximum, dead-lettered."""
        for queue in list(self._watched):
            if queue.entity.deleting:
                continue
            returned, doomed = queue.expire(now)
            if returned:
                self._count(queue, returned)
                if queue.on_available is not None:
                    queue.on_available()
            if doomed:
                self._exhaust(queue, doomed)
        return self.deadline

    def _count(self, queue: MessageQueue, messages: list[Message]) -> None:
        """Nobody waits for it, and a count that was not written costs no more than another delivery."""
        place = records.DEAD if queue.dead_letter is None else records.ACTIVE
        payload, _ = records.pack_updates(
            queue.entity.id, [(message.sequence_number, message.delivery_count, place, None) for message in messages]
        )

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self.journal.release(segment, len(payload))

        self._append(records.UPDATE, payload, written, True)

    def _exhaust(self, queue: MessageQueue, messages: list[Message]) -> None:
        changes: list[Change] = []
        for message in messages:
            count = message.delivery_count
            try:
                change = pack_changes(self._changes(message), exhausted(count).changes())
            except (AmqpError, JournalError):
                # Its earlier changes can't be read, or leave no room: it goes without them rather than round again.
                change = pack_changes(None, exhausted(count).changes())
            changes.append((message, count, records.DEAD, change))
        self._update(queue, changes, _nobody)

    async def maintain(self, interval_s: float = 0.5) -> None:
        """For ever: the journal kept small. A task of the broker's."""
        await self.upkeep.run(interval_s)


def _nobody(refusal: Refusal | None) -> None:
    """Who waits for the answer to what the broker does by itself."""


def _finish_partly(done: Done, lost: Refusal, refusal: Refusal | None) -> None:
    done(lost if refusal is None else refusal)


def _recopied(messages: Sequence[Message]) -> bool:
    found = False
    for message in messages:
        if message.state == RECOPIED:
            message.state = SETTLING
            found = True
    return found
