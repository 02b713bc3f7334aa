"""What comes into a queue: messages sent, messages scheduled for later, and those whose time has come.

A shell: bytes are taken apart in content.py, what is a duplicate is decided in duplicates.py, the layout of records is
in records.py. A message is there only when its record is synced; a refused send is never seen by anyone. A ping (P32)
goes the whole way of a message, to the synced disk, and is nowhere afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.broker.format import records
from pairbus.broker.format.content import Content, Traits, take_in, with_ttl
from pairbus.broker.model.duplicates import Sighting, key_of
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import SCHEDULED, Message
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.send_results import DUPLICATE, PINGED
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, StoreOperations, Written, not_found, recopied, refusal_of
from pairbus.journal import JournalError

_RECORD_HEAD_BYTES: Final = records.BATCH_HEAD_BYTES
# Activated with one record; those behind them are due at once.
_ACTIVATED_MAX: Final = 1000


class EnqueueOperations(StoreOperations):
    """Takes messages into queues; part of the namespace."""

    def enqueue(
        self,
        queue: MessageQueue,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        fates: list[int] | None = None,
    ) -> None:
        """All of them or none. `fates` is filled with each one's sequence number, or what became of it instead."""
        entity = queue.entity
        if entity.deleting or queue.dead_letter is None or entity.refuses_sends is not None:
            done(_refuses_sends(queue))
            return
        messages: list[Message] = []
        parts: list[bytes] = []
        pings: list[bytes] = []
        size = at = 0
        number = entity.last_sequence
        contents = contents_of(entity, payloads, self._store.new_token, entity.takes_closely)
        if isinstance(contents, Refusal):
            done(contents)
            return
        duplicates = Duplicates(entity, now) if entity.duplicates is not None else None
        for payload, kept in zip(payloads, contents, strict=True):
            if kept is None:
                pings.append(payload)
                size += len(payload)
                if fates is not None:
                    fates.append(PINGED)
                continue
            header, pairs_count, pairs_bytes, content, traits = kept
            length = len(content)
            if traits is None:
                number += 1
                message = Message(number, now, header, pairs_count, pairs_bytes, content, length)
                if messages:
                    head = records.pack_entry(
                        number, now, inf, 0, records.ACTIVE, header, None, pairs_count, pairs_bytes, b"", length
                    )
                else:
                    head = records.pack_first(
                        entity.id, len(payloads), number, now, inf, header, pairs_count, pairs_bytes, length
                    )
            else:
                refusal = _refuses(entity, traits)
                if refusal is not None:
                    done(refusal)
                    return
                if duplicates is not None and duplicates.has(traits):
                    if fates is not None:
                        fates.append(DUPLICATE)
                    continue
                number += 1
                message = _special(entity, number, now, header, pairs_count, pairs_bytes, content, traits)
                head = _head(message)
                if not messages:
                    head = records.pack_batch_head(entity.id, len(payloads)) + head
            size += length
            at += len(head)
            message.offset = at  # within the record, until its place is known
            at += length
            parts.append(head)
            parts.append(content)
            messages.append(message)
            if fates is not None:
                fates.append(number)
        held = entity.active.size_bytes + entity.dead_letter.size_bytes + entity.pending_bytes
        if held + size > entity.max_bytes:
            done(_full(entity, held, size))
            return
        if messages and len(messages) != len(payloads):
            # How many are stored, of a batch with pings or duplicates in it, is known only now.
            parts[0] = records.pack_batch_head(entity.id, len(messages)) + parts[0][_RECORD_HEAD_BYTES:]
        sighting: Sighting | None = None
        if duplicates is not None:
            refusal = duplicates.refusal()
            if refusal is not None:
                done(refusal)
                return
            done = duplicates.joined(done)
        written: Written
        if messages:
            kind = records.ENQUEUE
            if duplicates is not None:
                parts.append(records.pack_seen(now, duplicates.keys))
                sighting = duplicates.begin()
            written = partial(self._enqueued, queue, messages, size, len(pings), now, done, sighting)
        elif pings:
            kind = records.PING
            parts = [records.pack_ping(entity.id), *pings]
            written = partial(self._pinged, entity, size, len(pings), now, done)
        else:
            done(None)
            return
        try:
            self._journal.append(kind, tuple(parts), written)
        except JournalError as error:
            refusal = refusal_of(error)
            if sighting is not None and entity.duplicates is not None:
                entity.duplicates.refused(sighting, refusal)
            done(refusal)
            return
        entity.last_sequence = number
        entity.pending_bytes += size

    def _enqueued(
        self,
        queue: MessageQueue,
        messages: list[Message],
        size: int,
        pings: int,
        now: float,
        done: Done,
        sighting: Sighting | None,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        entity = queue.entity
        entity.pending_bytes -= size
        if error is not None:
            refusal = refusal_of(error)
            if sighting is not None and entity.duplicates is not None:
                entity.duplicates.refused(sighting, refusal)
            done(refusal)
            return
        store = self._store
        entity.accessed_at = now
        entity.pings += pings
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
        entity.confirmed_sequence = message.sequence_number
        self._journal.release(segment, _RECORD_HEAD_BYTES)
        if sighting is not None and entity.duplicates is not None:
            entity.duplicates.written(sighting, segment, len(records.pack_seen(now, sighting.keys)))
        if queue.is_timed:
            store.watched[queue] = None
        done(None)
        if queue.sessions is not None:
            queue.wake()
        elif queue.on_available is not None:
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
        self._journal.release(segment, size + len(records.pack_ping(0)))
        done(None)

    # ---- scheduled messages whose time has come

    def activate_due(self, queue: MessageQueue, now: float) -> None:
        due = queue.take_due(now, _ACTIVATED_MAX)
        if not due:
            return
        entity = queue.entity
        activations = []
        for message in due:
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
        payload = records.pack_activated(queue.entity.id, activations)
        # Synced: a number must not be given out twice, and these can be seen from now on.
        self._store.append(
            records.ACTIVATED, payload, partial(self._activated, queue, messages, activations, len(payload), again)
        )

    def _activated(
        self,
        queue: MessageQueue,
        messages: list[Message],
        activations: list[tuple[int, int, float, float]],
        nbytes: int,
        again: bool,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        entity = queue.entity
        if entity.deleted:
            return
        if error is not None:
            if again:
                self._store.maintenance.retry(partial(self._activate, queue, messages, activations, True))
                return
            for message in messages:
                queue.restore(message)
            return
        self._journal.release(segment, nbytes)
        if recopied(messages):
            self._activate(queue, messages, activations, True)
            return
        for message, (_, number, enqueued_at, expires_at) in zip(messages, activations, strict=True):
            entity.activate(message, number, enqueued_at, expires_at)
            queue.put(message)
        entity.confirmed_sequence = max(entity.confirmed_sequence, number)
        if queue.is_timed:
            self._store.watched[queue] = None
        queue.wake()


def contents_of(
    entity: QueueEntity, payloads: Sequence[bytes], new_token: Callable[[], bytes], closely: bool
) -> list[Content | None] | Refusal:
    """The messages of one send taken apart, None for a ping; or why they are refused, all of them."""
    limit = entity.message_bytes_max
    contents: list[Content | None] = []
    for payload in payloads:
        if len(payload) > limit:
            text = f"The message has {len(payload)} bytes; '{entity.name}' takes messages of up to {limit} bytes."
            return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)
        try:
            contents.append(take_in(payload, lambda: new_token().hex(), closely))
        except AmqpError as error:
            return Refusal(error.condition, error.description)
    return contents


class Duplicates:
    """Of one send: the ids that it makes known, and the earlier ones whose records are still on their way."""

    __slots__ = ("_entity", "_history", "_now", "_waits", "keys")

    def __init__(self, entity: QueueEntity, now: float) -> None:
        assert entity.duplicates is not None
        self._entity = entity
        self._history = entity.duplicates
        self._now = now
        self._waits: list[Sighting] = []
        self.keys: dict[bytes, None] = {}
        self._history.forget(now)

    def has(self, traits: Traits) -> bool:
        """Whether it is one; if not, the next one like it is."""
        key = key_of(traits.message_id)
        if key in self.keys:
            return True
        earlier = self._history.find(key, self._now)
        if earlier is None:
            self.keys[key] = None
            return False
        if earlier.is_pending and earlier not in self._waits:
            self._waits.append(earlier)
        return True

    def refusal(self) -> Refusal | None:
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
        """To be called once: `done` hears of it when all that this send leans on is known too."""
        waits = self._waits
        if not waits:
            return done
        left = len(waits) + 1
        refused: Refusal | None = None

        def finish(refusal: Refusal | None) -> None:
            nonlocal left, refused
            left -= 1
            refused = refused or refusal
            if not left:
                done(refused)

        for sighting in waits:
            self._history.wait(sighting, finish)
        return finish


def _special(
    entity: QueueEntity,
    number: int,
    now: float,
    header: bytes,
    pairs_count: int,
    pairs_bytes: int,
    content: bytes,
    traits: Traits,
) -> Message:
    """One that ends, waits, or belongs to a session."""
    default_ttl = entity.description.default_ttl
    ttl = traits.ttl
    if ttl is None or ttl > default_ttl:
        ttl = default_ttl
        if ttl != inf:
            header = with_ttl(header, ttl)
    at = now
    is_scheduled = traits.scheduled_at is not None and traits.scheduled_at > now
    if is_scheduled:
        at = traits.scheduled_at or now
    session_id = traits.session_id if entity.description.requires_session else None
    message = Message(number, at, header, pairs_count, pairs_bytes, content, len(content), at + ttl, session_id)
    if is_scheduled:
        message.state = message.home = SCHEDULED
    return message


def _head(message: Message) -> bytes:
    return records.pack_entry(
        message.sequence_number,
        message.enqueued_at,
        message.expires_at,
        0,
        records.SCHEDULED if message.home == SCHEDULED else records.ACTIVE,
        message.header,
        message.session_id,
        message.pairs_count,
        message.pairs_bytes,
        b"",
        message.length,
    )


def _refuses(entity: QueueEntity, traits: Traits) -> Refusal | None:
    if traits.session_id is None and entity.description.requires_session:
        text = f"The entity '{entity.name}' requires sessions: a message without a session id can't be sent to it."
        return Refusal(conditions.NOT_ALLOWED, text)
    return None


def _refuses_sends(queue: MessageQueue) -> Refusal:
    if queue.entity.deleting:
        return not_found(queue.path)
    if queue.dead_letter is None:
        return Refusal(conditions.NOT_ALLOWED, f"Messages can't be sent to '{queue.path}'.")
    assert queue.entity.refuses_sends is not None
    return queue.entity.refuses_sends


def _full(entity: QueueEntity, held: int, size: int) -> Refusal:
    text = (
        f"The queue '{entity.name}' is full: it holds {held} of {entity.max_bytes} bytes, "
        f"and {size} more were sent. Receive from it or raise its maximum size."
    )
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
