"""Receive operations: messages are locked, received and deleted, received by number, peeked, or their locks renewed.

queue.py and sessions.py decide which message is next, and content.py makes the bytes of a delivery. Expired messages
are removed before anyone receives them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.broker.format.content import (
    ACTIVE_STATE,
    DEFERRED_STATE,
    SCHEDULED_STATE,
    delivery,
    rendered,
    was_scheduled,
    with_changes,
)
from pairbus.broker.model.message import DEFERRED, LATE, LOCKED, READY, SCHEDULED, Message
from pairbus.broker.model.outcomes import Release
from pairbus.broker.model.partitions import PARTITION_SHIFT, partition_down
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Store, nobody, refusal_of_read, unavailable
from pairbus.journal import JournalError, JournalStalled

from .settlement import SettlementOperations, messages_not_found

Taken = Callable[[list[Message], Refusal | None], None]

PEEK_BYTES_MAX: Final = 1 << 20
# Messages that a peek passes over at once, and messages that it reads.
_LOOKED_AT_MAX: Final = 500
_PEEKED_MAX: Final = 16
#: Raised for messages that an earlier version has stored and that can't be delivered as they were sent.
_UNREADABLE: Final = (AmqpError, struct.error, ArithmeticError, LookupError, TypeError, ValueError)
_RELEASE: Final = Release()
_STATES: Final = {READY: ACTIVE_STATE, DEFERRED: DEFERRED_STATE, SCHEDULED: SCHEDULED_STATE}


class ReceiveOperations:
    """Locks, takes, peeks and renews messages."""

    def __init__(self, store: Store, settlement: SettlementOperations) -> None:
        self._store = store
        self._settlement = settlement

    def acquire(self, queue: MessageQueue, count: int, now: float, session: SessionLock | None = None) -> list[Message]:
        """Return up to `count` messages, locked, or held by the session's lock; none while receiving is disabled."""
        entity = queue.entity
        if entity.deleting or queue.refuses_receives is not None:
            return []
        if queue.lifetimes.next <= now and not self._settlement.clear_overdue(queue, now):
            return []
        messages = queue.acquire(count, now, self._store.new_token, session)
        if messages:
            self._store.watched[queue] = None
            entity.accessed_at = now
        return messages

    def take(
        self, queue: MessageQueue, count: int, now: float, done: Taken, session: SessionLock | None = None
    ) -> bool:
        """Receive and delete: call `done` with the messages once their removal is synced, or with the refusal. Return
        False where no more should be asked for in this second: what is next can't be read, or too much could not."""
        refusal = _refusal(queue)
        if refusal is not None:
            done([], refusal if not queue.entity.deleting else None)
            return True
        if queue.lifetimes.next <= now and not self._settlement.clear_overdue(queue, now):
            done([], None)
            return True
        messages = queue.draw(count, now, session)
        if not messages:
            done([], None)
            return True
        queue.entity.accessed_at = now
        return self._take_readable(queue, messages, now, done)

    def _take_readable(self, queue: MessageQueue, messages: list[Message], now: float, done: Taken) -> bool:
        """Remove those that can be read. Others are passed over in a stall, or waited for within a session."""
        store = self._store
        readable: list[Message] = []
        goes_on = True
        for index, message in enumerate(messages):
            try:
                store.fetch(queue, message)
            except JournalStalled:
                if queue.sessions is None:
                    goes_on = self.pass_over(queue, message, now)
                    continue
                store.restore(queue, messages[index:])
                goes_on = False
                break
            except JournalError as error:
                store.restore(queue, readable + messages[index:])
                done([], refusal_of_read(error))
                return True
            readable.append(message)
        if readable:
            self._remove(queue, readable, done)
        else:
            done([], None)
        return goes_on

    def pass_over(self, queue: MessageQueue, message: Message, now: float) -> bool:
        """Keep a message aside that was acquired and can't be read, until it can be; that counts as no delivery. Return
        False where no more should be asked for in this second."""
        self._store.unread.add(queue, message, now)
        return not self._store.unread.is_enough(now)

    def give_back(
        self, queue: MessageQueue, messages: Sequence[Message], now: float, session: SessionLock | None = None
    ) -> None:
        """Return messages that were acquired but not delivered: that doesn't count as a delivery."""
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if tokens:
            self._settlement.settle(queue, tokens, _RELEASE, now, nobody, session=session)

    def offer_unread(self, now: float) -> None:
        """Return some messages that could not be read, once they can be."""
        queue = self._store.unread.offer_due(now, lambda each: self._store.journal.answers(each.segment, each.offset))
        if queue is not None:
            self._store.wake(queue)

    def receive_deferred(
        self,
        queue: MessageQueue,
        numbers: Sequence[int],
        now: float,
        done: Taken,
        *,
        delete: bool,
        session: SessionLock | None = None,
    ) -> None:
        """Receive deferred messages by number, all of them or none: locked, or deleted with `delete`."""
        refusal = _refusal(queue)
        if refusal is None and queue.requires_session:
            if session is None:
                text = f"'{queue.path}' requires sessions: deferred messages are received by who holds their session."
                refusal = Refusal(conditions.NOT_ALLOWED, text)
            elif not session.is_held(now):
                refusal = queue.session_lost()
        down = next((number for number in numbers if number >> PARTITION_SHIFT in queue.down), None)
        if refusal is None and down is not None:
            refusal = partition_down(queue.path, down >> PARTITION_SHIFT)
        if refusal is not None:
            done([], refusal)
            return
        queue.entity.accessed_at = now
        session = session if queue.requires_session else None
        messages = queue.fetch(numbers, now, None if delete else self._store.new_token, session)
        if messages is None:
            done([], messages_not_found(queue, numbers, DEFERRED))
        elif delete and messages:
            self._take_deferred(queue, messages, done)
        else:
            self._store.watched[queue] = None
            done(messages, None)

    def _take_deferred(self, queue: MessageQueue, messages: list[Message], done: Taken) -> None:
        try:
            for message in messages:
                self._store.fetch(queue, message)
        except JournalError as error:
            self._store.restore(queue, messages)
            done([], refusal_of_read(error))
            return
        self._remove(queue, messages, done)

    def _remove(self, queue: MessageQueue, messages: list[Message], done: Taken) -> None:
        """Remove messages that are received and deleted, and then give them to `done`."""
        self._settlement.remove(
            queue, messages, False, lambda refusal: done([] if refusal is not None else messages, refusal)
        )

    def delivery(self, queue: MessageQueue, message: Message, *, locked: bool, is_peeked: bool = False) -> bytes:
        """Return the bytes of a delivery. Raises JournalError when the content is on disk and can't be read."""
        content = message.content
        if content is None:
            content = self._store.content(message)
        locked_until = message.locked_until if locked else None
        token = message.lock_token if locked else None
        state = 0 if message.home == READY else _STATES[message.home]
        count, number, enqueued_at = message.delivery_count, message.sequence_number, message.enqueued_at
        changes = None if message.changes is None else self._store.changes(message)
        try:
            pairs_bytes = message.pairs_bytes
            if pairs_bytes and not (state or is_peeked) and was_scheduled(content, message.pairs_count, pairs_bytes):
                state = SCHEDULED_STATE  # the service says so of a delivery, not of a peek
            payload = delivery(
                message.header,
                count,
                number,
                enqueued_at,
                locked_until,
                message.pairs_count,
                pairs_bytes,
                content,
                state,
                token,
                is_peeked,
            )
            return payload if changes is None else with_changes(payload, changes)
        except _UNREADABLE:
            # it can be received, moved and removed like any other, and doesn't break a connection
            return rendered(count, number, enqueued_at, locked_until, content, state, token, is_peeked)

    def peek(
        self, queue: MessageQueue, from_sequence: int, count: int, now: float, session_id: str | None = None
    ) -> Generator[None, None, list[bytes]]:
        """Return messages without locking them, whatever their state; fewer than `count` when they are large. To be
        done in slices."""
        queue.entity.accessed_at = now
        peeked: list[bytes] = []
        size = 0
        for looked_at, message in enumerate(queue.scan(from_sequence), 1):
            if looked_at % _LOOKED_AT_MAX == 0 or len(peeked) % _PEEKED_MAX == _PEEKED_MAX - 1:
                yield
            if len(peeked) >= count or (peeked and size + message.length > PEEK_BYTES_MAX):
                break
            if session_id is not None and message.session_id != session_id:
                continue
            if queue.down and message.sequence_number >> PARTITION_SHIFT in queue.down:
                continue
            if message.expires_at <= now and message.home == READY and message.state != LOCKED:
                continue
            if message.state == LATE:
                continue
            payload = self.delivery(queue, message, locked=False, is_peeked=True)
            size += len(payload)
            peeked.append(payload)
        return peeked

    def renew(self, queue: MessageQueue, tokens: Sequence[bytes], now: float) -> list[float] | Refusal:
        """Renew these locks, all or none, and return until when each holds, or the refusal."""
        queue.entity.accessed_at = now
        if queue.requires_session:
            text = f"'{queue.path}' requires sessions: its messages have no locks of their own; renew the session's."
            return Refusal(conditions.NOT_ALLOWED, text)
        until = queue.renew(tokens, now)
        return until if isinstance(until, Refusal) else [until] * len(tokens)


def _refusal(queue: MessageQueue) -> Refusal | None:
    return unavailable(queue.entity, queue.path) if queue.entity.deleting else queue.refuses_receives
