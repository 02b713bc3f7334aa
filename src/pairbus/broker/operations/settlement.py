"""Settlement operations: complete, abandon, defer, dead-letter, cancel and delete; the expiry of locks and messages.

queue.py decides who may settle which message. Complete, abandon, defer and dead-letter are lazy records;
receive-and-delete, cancelling and deleting are synced before the answer. Locks are not journalled: a restart frees
them.

Compaction copies the live records of the oldest segment to the end of the journal, so a copy may end up behind a record
about the same message that is still on its way. Therefore, if a message is copied while it is being settled, its record
is written once more behind the copy (`again`), and answered after that. If the disk refuses the second record, the
message may or may not be on disk: it counts as settled, and the record is tried until it is written. A crash before
that can deliver it again, but never lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.broker.format import records
from pairbus.broker.format.content import pack_changes
from pairbus.broker.model.message import DEFERRED, EXHAUSTED, HOMES, RECOPIED, SCHEDULED, Message, Stored, place_of
from pairbus.broker.model.outcomes import EXPIRED, Abandon, Complete, DeadLetter, Defer, Outcome, Release, exhausted
from pairbus.broker.model.queue import AT_ONCE_MAX, MessageQueue
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.model.topic import Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.replay import CHANGES_RESIDENT_BYTES_MAX
from pairbus.broker.storage.store import (
    Done,
    Store,
    nobody,
    recopied,
    refusal_of,
    refusal_of_read,
    unavailable,
)
from pairbus.journal import JournalError

# A message's delivery count and place, and its changes or None where they stay, once the record is written
Change = tuple[Message, int, int, bytes | None]

_DELETED_MAX: Final = 4000


class SettlementOperations:
    """Settles, cancels, deletes and expires messages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._journal = store.journal

    def settle(
        self,
        queue: MessageQueue,
        tokens: Sequence[bytes],
        outcome: Outcome,
        now: float,
        done: Done,
        session: SessionLock | None = None,
    ) -> None:
        """Settle the messages of these lock tokens, no matter which link holds them.

        Messages whose locks still hold are settled; `done` gets a `LocksLost` that names the others.
        """
        refusal = self.refuses_to_settle(queue, outcome)
        if refusal is not None:
            done(refusal)
            return
        queue.entity.accessed_at = now
        messages, lost = queue.claim_all(tokens, now, session)
        if not messages:
            done(lost)
            return
        finish = done if lost is None else partial(_finish_partly, done, lost)
        if isinstance(outcome, Complete):
            self.remove(queue, messages, True, finish)
        elif isinstance(outcome, Release):
            for message in messages:
                queue.offer(message)
            finish(None)
            self._store.wake(queue)
        else:
            try:
                changes = [self._failed(queue, message, outcome) for message in messages]
            except (AmqpError, JournalError) as error:
                self._store.restore(queue, messages)
                if isinstance(error, JournalError):
                    finish(refusal_of_read(error))
                else:
                    finish(Refusal(error.condition, error.description))
                return
            if not isinstance(outcome, DeadLetter):
                finish = self._observe_dead_letters(queue, changes, finish)
            self._update_messages(queue, changes, finish)

    def refuses_to_settle(self, queue: MessageQueue, outcome: Outcome) -> Refusal | None:
        """Return why no message of the queue can be settled in this way, if none can; their locks stay."""
        if queue.entity.deleting:
            return unavailable(queue.entity, queue.path)
        if queue.is_dead_letter and isinstance(outcome, DeadLetter):
            text = f"The messages of '{queue.path}' are dead letters already; complete, abandon or defer them."
            return Refusal(conditions.NOT_ALLOWED, text)
        return None

    def _failed(self, queue: MessageQueue, message: Message, outcome: Abandon | Defer | DeadLetter) -> Change:
        """Return the state of a message once it is abandoned, deferred or dead-lettered."""
        count = message.delivery_count + 1
        is_dead = queue.is_dead_letter
        place = place_of(message, is_dead)
        if isinstance(outcome, DeadLetter):
            properties: Mapping[str, Any] = outcome.changes()
            count = message.delivery_count
            place = records.DEAD
        else:
            properties = outcome.properties
            if isinstance(outcome, Defer):
                place = records.DEAD_DEFERRED if is_dead else records.ACTIVE_DEFERRED
            elif is_dead:
                count = message.delivery_count  # the service does not count there
            elif queue.exhausts(count):
                properties = {**properties, **exhausted(count).changes()}
                place = records.DEAD
        if not properties:
            return message, count, place, None
        return message, count, place, pack_changes(self._store.changes(message), properties)

    def cancel_scheduled(self, target: MessageQueue | Topic, numbers: Sequence[int], now: float, done: Done) -> None:
        """Remove the scheduled messages with these sequence numbers: all of them or none."""
        queue = target.active if isinstance(target, Topic) else target
        if queue.entity.deleting:
            done(unavailable(queue.entity, queue.path))
            return
        queue.entity.accessed_at = now
        messages = queue.cancel(numbers)
        if messages is None:
            done(messages_not_found(queue, numbers, SCHEDULED))
        elif not messages:
            done(None)
        else:
            self.remove(queue, messages, False, self._store.observed("settle", queue, messages, done))

    def delete_messages(
        self,
        queue: MessageQueue,
        count: int,
        enqueued_before: float,
        now: float,
        done: Callable[[int, Refusal | None], None],
        session_id: str | None = None,
    ) -> None:
        """Delete the oldest available messages, up to 4,000 at once as the service does; `done` gets how many."""
        if queue.entity.deleting:
            done(0, unavailable(queue.entity, queue.path))
            return
        queue.entity.accessed_at = now
        deleted, under_way = 0, 1
        refused: Refusal | None = None

        def finish(count: int, refusal: Refusal | None) -> None:
            nonlocal deleted, under_way, refused
            under_way -= 1
            deleted += count if refusal is None else 0
            refused = refused or refusal
            if not under_way:
                done(deleted, None if deleted else refused)

        def draw() -> Generator[None, None, None]:
            nonlocal under_way
            for messages in queue.draw_older(min(count, _DELETED_MAX), enqueued_before, session_id):
                if messages:
                    under_way += 1
                    answer = self._store.observed("settle", queue, messages, partial(finish, len(messages)))
                    self.remove(queue, messages, False, answer)
                yield
                if queue.entity.deleting:
                    break

        self._store.slices.run(draw, lambda: finish(0, None))

    # ---- records

    def remove(
        self, queue: MessageQueue, messages: list[Message], lazy: bool, finish: Done, again: bool = False
    ) -> None:
        """Write the removal of messages that are being settled."""
        payload = records.pack_remove(queue.entity.id, [message.sequence_number for message in messages])

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if queue.entity.deleted:
                finish(None)
                return
            if error is not None:
                repeat = partial(self.remove, queue, messages, lazy, nobody, True) if again else None
                self._not_written(queue, messages, error, repeat, finish)
                return
            self._journal.release(segment, len(payload))
            if recopied(messages):
                self.remove(queue, messages, lazy, finish, True)
                return
            for message in messages:
                queue.remove(message)
                self._store.forget(queue, message)
            finish(None)

        try:
            self._journal.append(records.REMOVE, payload, written, lazy=lazy)
        except JournalError as error:
            written(error, -1, -1)

    def forget_removed(self, queue: MessageQueue, messages: list[Message]) -> None:
        """Forget messages that the record removes with which they were published or forwarded."""
        if queue.entity.deleted:
            return
        copied = [message for message in messages if message.state == RECOPIED]
        for message in messages:
            if message.state != RECOPIED:
                queue.remove(message)
                self._store.forget(queue, message)
        if recopied(copied):
            # Compaction has copied them meanwhile: their removal must be repeated behind the copy.
            self.remove(queue, copied, False, nobody, True)

    def _not_written(
        self,
        queue: MessageQueue,
        messages: Sequence[Message],
        error: JournalError,
        repeat: Callable[[], None] | None,
        finish: Done,
    ) -> None:
        """Undo a settlement that was not written or, of one that was written before a copy, repeat it later."""
        if repeat is not None:
            self._store.maintenance.retry(repeat)
            finish(None)
            return
        self._store.restore(queue, messages)
        queue.wake()
        finish(refusal_of(error))

    def _update_messages(self, queue: MessageQueue, changes: list[Change], finish: Done, again: bool = False) -> None:
        payload, places = records.pack_updates(
            queue.entity.id,
            [(message.sequence_number, count, place, change) for message, count, place, change in changes],
        )
        # The place of a lazy record is not for certain before it is synced; what shall be read back from it waits.
        lazy = not any(change is not None and len(change) > CHANGES_RESIDENT_BYTES_MAX for _, _, _, change in changes)

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if queue.entity.deleted:
                finish(None)
                return
            messages = [message for message, _, _, _ in changes]
            if error is not None:
                repeat = partial(self._update_messages, queue, changes, nobody, True) if again else None
                self._not_written(queue, messages, error, repeat, finish)
                return
            self._journal.release(segment, len(payload))
            if recopied(messages):
                self._update_messages(queue, changes, finish, True)
                return
            self._apply(queue, changes, places, segment, offset)
            finish(None)
            self._store.wake(queue)
            if queue.dead_letter is not None:
                queue.dead_letter.wake()

        self._store.append(records.UPDATE, payload, written, lazy)

    def _apply(self, queue: MessageQueue, changes: list[Change], places: list[int], segment: int, offset: int) -> None:
        """Give messages the counts, places and changes of an UPDATE record that is written."""
        for (message, count, place, change), at in zip(changes, places, strict=True):
            message.delivery_count = count
            if change is not None:
                if len(change) > CHANGES_RESIDENT_BYTES_MAX:
                    message.changes = Stored(segment, offset + at, len(change))
                else:
                    message.changes = self._store.same(change)
            if place == records.DEAD and queue.dead_letter is not None:
                self._dead_letter(queue, queue.dead_letter, message)
            else:
                message.home = HOMES[place]
                queue.offer(message)

    def _dead_letter(self, queue: MessageQueue, dead_letter: MessageQueue, message: Message) -> None:
        """Move a message to the dead-letter queue. Its body stays on disk only, as dead letters are seldom read."""
        queue.remove(message)
        self._store.evict(queue, message)
        message.content = None
        message.home = HOMES[records.DEAD]
        message.expires_at = inf
        dead_letter.insert(message)
        dead_letter.offer(message)

    # ---- time

    def expire_locks(self, queue: MessageQueue, now: float) -> None:
        """Count a failed delivery for locks that have expired, a bounded number at a time: the message becomes
        available again or, past the maximum, is dead-lettered."""
        returned, exhausted_messages = queue.expire(now)
        if returned:
            self._count(queue, returned)
        if exhausted_messages:
            self.dead_letter_all(queue, exhausted_messages, exhausted)
        if returned or queue.sessions is not None:
            self._store.wake(queue)

    def expire_messages(self, queue: MessageQueue, now: float) -> bool:
        """Dead-letter or drop messages whose lifetime is over, and dead-letter those that should be already: a bounded
        number at a time. Return whether all are out."""
        overdue = queue.take_overdue(now, AT_ONCE_MAX)
        # Told apart first: what is written at once is in another queue afterwards, without the token.
        failed = [message for message in overdue if message.lock_token == EXHAUSTED]
        expired = [message for message in overdue if message.lock_token != EXHAUSTED]
        if failed:
            self.dead_letter_all(queue, failed, exhausted)
        if expired and queue.dead_letter is not None and queue.entity.description.dead_letter_on_expiration:
            self.dead_letter_all(queue, expired, lambda count: EXPIRED)
        elif expired:
            self.remove(queue, expired, True, self._store.observed("expire", queue, expired, nobody))
        return queue.lifetimes.next > now

    def clear_overdue(self, queue: MessageQueue, now: float) -> bool:
        """Return whether all messages are out whose lifetime is over. If not, nobody may receive, and who asked to is
        woken when they are."""
        if queue not in self._store.clearing and not self.expire_messages(queue, now):
            self._store.clearing.add(queue)
            self._store.slices.run(lambda: self._clear(queue, now))
        return queue not in self._store.clearing

    def _clear(self, queue: MessageQueue, now: float) -> Generator[None, None, None]:
        try:
            while not queue.entity.deleting and not self.expire_messages(queue, now):
                yield
        finally:
            self._store.clearing.discard(queue)
        self._store.wake(queue)
        if queue.on_session_free is not None:
            queue.on_session_free()

    def _count(self, queue: MessageQueue, messages: list[Message]) -> None:
        """Write delivery counts. Nobody waits for them: a count that is lost costs no more than another delivery."""
        is_dead = queue.is_dead_letter
        payload, _ = records.pack_updates(
            queue.entity.id,
            [
                (message.sequence_number, message.delivery_count, place_of(message, is_dead), None)
                for message in messages
            ],
        )

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self._journal.release(segment, len(payload))

        self._store.append(records.UPDATE, payload, written, True)

    def dead_letter_all(
        self,
        queue: MessageQueue,
        messages: list[Message],
        reason: Callable[[int], DeadLetter],
        finish: Done = nobody,
    ) -> None:
        """Dead-letter messages for a reason that may name the delivery count."""
        changes: list[Change] = []
        for message in messages:
            count = message.delivery_count
            added = reason(count).changes()
            try:
                change = pack_changes(self._store.changes(message), added)
            except (AmqpError, JournalError):
                # Its earlier changes can't be read, or leave no room: it goes without them rather than round again.
                change = pack_changes(None, added)
            changes.append((message, count, records.DEAD, change))
        self._update_messages(queue, changes, self._observe_dead_letters(queue, changes, finish))

    def _observe_dead_letters(self, queue: MessageQueue, changes: list[Change], finish: Done) -> Done:
        """Return `finish` so that it also reports the messages that are dead-lettered although nobody asked for it."""
        if self._store.observer is None or queue.dead_letter is None:
            return finish
        dead = [message for message, _, place, _ in changes if place == records.DEAD]
        return self._store.observed("dead-letter", queue, dead, finish) if dead else finish


def messages_not_found(queue: MessageQueue, numbers: Sequence[int], state: int) -> Refusal:
    """Return the refusal that names the numbers which are not those of messages in this state."""
    missing = [n for n in numbers if (message := queue.get(n)) is None or message.state != state]
    which = ", ".join(map(str, missing[:10] or numbers[:10]))
    what = "deferred" if state == DEFERRED else "scheduled"
    text = f"'{queue.path}' has no {what} message of the sequence number {which}; nothing was done to any other."
    return Refusal(conditions.MESSAGE_NOT_FOUND, text)


def _finish_partly(done: Done, lost: Refusal, refusal: Refusal | None) -> None:
    done(lost if refusal is None else refusal)
