"""A queue decides which message is next, who holds it, and what becomes of it when it is settled or expires.

Pure: it uses no clock, disk or network. Callers pass `now`, tokens come from a callable, and the caller writes the
journal: every step that needs a record is split into a begin (`claim`, `draw`, `expire`, `take_overdue` …) that takes
the message out of circulation and an answer that completes it (`remove`) or undoes it (`restore`, `offer`). message.py
lists the states of a message and the changes between them.

A `MessageQueue` is a queue or, as another instance, its dead-letter sub-queue; sequence numbers are the entity's, so a
dead letter keeps its own. Where sessions are required (sessions.py), messages wait in the ready lists of their
sessions, and the session's lock holds the delivered ones. The dead-letter sub-queue never requires sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from math import floor, inf
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.errors import MESSAGE_LOCK_LOST, SESSION_LOCK_LOST

from .due_heap import DueHeap
from .message import (
    DEFERRED,
    EXHAUSTED,
    GONE,
    LATE,
    LOCKED,
    OVERDUE,
    READY,
    SCHEDULED,
    SETTLING,
    Message,
)
from .outcomes import LocksLost
from .partitions import NONE_DOWN, PARTITION_SHIFT, partition_for
from .ready_list import PartitionedReadyList, ReadyList
from .sessions import Session, SessionLock, Sessions

if TYPE_CHECKING:
    from pairbus.broker.refusal import Refusal

    from .entity import QueueEntity

#: How many locks or lifetimes end in one step, which others wait for.
AT_ONCE_MAX: Final = 200
# Entries of a queue that is deleted that go at once.
_FREED_MAX: Final = 100
# Sequence numbers are dense, so 1,024 neighbours share a dict: no dict of a million entries is ever resized while the
# loop waits, and a reader that starts at a number finds its place by arithmetic.
_CHUNK_BITS: Final = 10
# How many entries of the lock heap may be stale beside those that are not.
_STALE_LOCKS_MAX: Final = 1024
# After how long a failed write is tried again.
_RETRY_S: Final = 1.0


def _expiry(message: Message) -> float:
    if message.lock_token == EXHAUSTED:
        return -inf
    return message.expires_at if message.state != GONE else inf


def _activation(message: Message) -> float:
    return message.enqueued_at if message.home == SCHEDULED and message.state != GONE else inf


class MessageQueue:
    """The messages of a queue, a subscription or a dead-letter sub-queue."""

    __slots__ = (
        "_chunks",
        "_count",
        "_expiries",
        "_expiry_entries",
        "_keys",
        "_locks",
        "_tie",
        "dead_letter",
        "down",
        "entity",
        "holds_back",
        "is_timed",
        "late",
        "lifetimes",
        "lock_duration",
        "max_delivery_count",
        "on_available",
        "on_session_free",
        "partition_sizes",
        "path",
        "ready_list",
        "refuses_receives",
        "resident_bytes",
        "schedule",
        "scheduled_count",
        "sessions",
        "size_bytes",
    )

    def __init__(self, entity: QueueEntity, dead_letter: MessageQueue | None) -> None:
        self.entity = entity
        self.path = ""
        self.dead_letter = dead_letter
        self.lock_duration = 60.0
        self.max_delivery_count = 10
        self.size_bytes = 0
        self.resident_bytes = 0
        #: Why nobody can receive from it: its entity is disabled, or it forwards its messages.
        self.refuses_receives: Refusal | None = None
        #: Whether what comes now is kept from receivers, and what was and is to be released.
        self.holds_back = False
        self.late: deque[Message] = deque()
        #: Called when messages become available: by its receivers' dispatcher, or by what forwards them.
        self.on_available: Callable[[], None] | None = None
        #: `Sessions.accept` may now find one: messages came, or a lock ended.
        self.on_session_free: Callable[[], None] | None = None
        self.sessions: Sessions | None = None
        self.scheduled_count = 0
        self._count = 0
        self._chunks: dict[int, dict[int, Message]] = {}
        self._keys: list[int] | None = None
        self.ready_list: ReadyList | PartitionedReadyList = ReadyList()
        #: Of a partitioned entity: the bytes in each partition, which its two queues count together, and the partitions
        #: from which nothing can be received.
        self.partition_sizes: list[int] | None = None
        self.down = NONE_DOWN
        #: Something is, or was, in one of the due heaps since nothing was due at all.
        self.is_timed = False
        self.lifetimes = DueHeap(_expiry)
        self.schedule = DueHeap(_activation)
        self._locks: dict[bytes, Message] = {}
        # (locked until, tie, messages locked together); stale entries stay until they come up or are too many.
        self._expiries: list[tuple[float, int, tuple[Message, ...]]] = []
        self._expiry_entries = 0
        self._tie = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<MessageQueue {self.path}: {self._count} messages, {self.available} ready, {len(self._locks)} locked>"

    @property
    def requires_session(self) -> bool:
        return self.sessions is not None

    @property
    def available(self) -> int:
        return len(self.ready_list) if self.sessions is None else self.sessions.available

    def available_in(self, lock: SessionLock) -> int:
        session = None if self.sessions is None else self.sessions.get(lock.session_id)
        if session is None or session.lock is not lock or self.is_down(session.id):
            return 0
        return len(session.ready_list)

    @property
    def active_count(self) -> int:
        """How many messages are in it, locked or not, without the scheduled ones."""
        return self._count - self.scheduled_count

    @property
    def locked(self) -> int:
        return len(self._locks)

    @property
    def is_dead_letter(self) -> bool:
        return self.dead_letter is None

    @property
    def message_bytes_max(self) -> int:
        return self.entity.message_bytes_max

    def deadline(self) -> float | None:
        """When the next lock or lifetime runs out or the next scheduled message is due."""
        earliest = min(self._lock_deadline(), self.lifetimes.deadline(), self.schedule.deadline())
        if self.sessions is not None:
            earliest = min(earliest, self.sessions.deadline())
        if earliest == inf:
            self.is_timed = False
            return None
        return earliest

    def _lock_deadline(self) -> float:
        expiries = self._expiries
        for _ in range(_STALE_LOCKS_MAX):
            if not expiries:
                return inf
            until, _, messages = expiries[0]
            if any(self._is_locked(message, until) for message in messages):
                break
            heappop(expiries)
            self._expiry_entries -= len(messages)
        return expiries[0][0] if expiries else inf

    def wake(self) -> None:
        """Notify receivers that messages are available."""
        if self.sessions is None:
            if self.on_available is not None and len(self.ready_list):
                self.on_available()
            return
        locks, is_free = self.sessions.take_touched()
        for lock in locks:
            if lock.on_available is not None:
                lock.on_available()
        if is_free and self.on_session_free is not None:
            self.on_session_free()

    # partitions

    def partition(self, sizes: list[int]) -> None:
        """Let messages be available in turn from each partition; those that are there must be offered again."""
        self.partition_sizes = sizes
        self.ready_list = PartitionedReadyList()

    def set_down(self, partitions: frozenset[int]) -> None:
        """Let nothing be received from these partitions, and from the others again."""
        if partitions == self.down:
            return
        self.down = partitions
        if isinstance(self.ready_list, PartitionedReadyList):
            self.ready_list.down = partitions
        if self.sessions is not None:
            self.sessions.touch_all()
        self.wake()

    @contextmanager
    def holding_back(self, partitions: frozenset[int]) -> Iterator[None]:
        """Let nothing be taken from these partitions for a while; their messages count as available."""
        ready_list = self.ready_list
        assert isinstance(ready_list, PartitionedReadyList)
        ready_list.held_back = partitions
        try:
            yield
        finally:
            ready_list.held_back = NONE_DOWN

    def available_without(self, partitions: frozenset[int]) -> int:
        """Return how many messages of other partitions are available."""
        assert isinstance(self.ready_list, PartitionedReadyList)
        return self.ready_list.count_without(partitions)

    def is_down(self, session_id: str) -> bool:
        """Return whether the partition of a session is down."""
        return bool(self.down) and partition_for(session_id) in self.down

    # what is in the queue, whatever its state

    def get(self, sequence_number: int) -> Message | None:
        chunk = self._chunks.get(sequence_number >> _CHUNK_BITS)
        return None if chunk is None else chunk.get(sequence_number)

    def scan(self, from_sequence: int) -> Iterator[Message]:
        """Yield messages in order of sequence number. The queue may change between two steps: what is gone by then is
        left out."""
        if self._keys is None:
            self._keys = sorted(self._chunks)
        keys = self._keys
        for key in keys[bisect_left(keys, from_sequence >> _CHUNK_BITS) :]:
            chunk = self._chunks.get(key, {})
            for number in sorted(chunk):
                if number >= from_sequence and (message := chunk.get(number)) is not None:
                    yield message

    def enqueue(self, message: Message) -> None:
        """Add a new message and, unless it is scheduled, make it available."""
        self.insert(message)
        is_special = message.home or message.expires_at != inf
        if is_special or self.sessions is not None or self.partition_sizes is not None or self.holds_back:
            self.put(message)
            return
        ready = self.ready_list.ready
        if not ready or ready[-1].sequence_number < message.sequence_number:
            ready.append(message)
        else:
            self.ready_list.add(message)

    def insert(self, message: Message) -> None:
        """Add a message without making it available."""
        number = message.sequence_number
        key = number >> _CHUNK_BITS
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = {}
            self._keys = None
        chunk[number] = message
        self._count += 1
        self.size_bytes += message.length
        if self.partition_sizes is not None:
            self.partition_sizes[number >> PARTITION_SHIFT] += message.length
        if message.home and message.home == SCHEDULED:
            self.scheduled_count += 1
        if self.sessions is not None:
            self.sessions.entered(message)

    def remove(self, message: Message) -> None:
        """Remove a message that is being settled (`claim`, `draw`, `expire`)."""
        number = message.sequence_number
        key = number >> _CHUNK_BITS
        chunk = self._chunks[key]
        del chunk[number]
        if not chunk:
            del self._chunks[key]
            self._keys = None
        self._count -= 1
        self.size_bytes -= message.length
        if self.partition_sizes is not None:
            self.partition_sizes[number >> PARTITION_SHIFT] -= message.length
        if message.home and message.home == SCHEDULED:
            self.scheduled_count -= 1
        if self.sessions is not None:
            self.sessions.left(message)
        message.state = GONE

    def reoffer(self) -> None:
        """Make all messages available that replay has inserted, in order."""
        self.late.clear()
        self.ready_list.clear()
        self.lifetimes.clear()
        self.schedule.clear()
        if self.sessions is not None:
            self.sessions.reset()
        for message in self.scan(0):
            if self.sessions is not None:
                self.sessions.entered(message)
            self.put(message)

    def close(self) -> Iterator[Message | Session | None]:
        """End all locks and make nothing available any more. Return an iterator over the messages and sessions, which
        lets go of each of them, and now and then gives None: at once a large queue would hold others up."""
        left: list[Any] = [self.lifetimes.clear(), self.schedule.clear(), *self.ready_list.parts()]
        left += [self._locks, self._expiries, self.late]
        self._locks, self._expiries, self._expiry_entries, self.late = {}, [], 0, deque()
        self.ready_list = ReadyList()
        sessions, self.sessions = self.sessions, None
        by_id = {} if sessions is None else sessions.close()
        return self._take_apart(by_id, left)

    def _take_apart(self, sessions: dict[str, Session], left: list[Any]) -> Iterator[Message | Session | None]:
        self._keys = None
        while self._chunks:
            chunk = self._chunks.popitem()[1]
            while chunk:
                yield chunk.popitem()[1]
        while sessions:
            yield sessions.popitem()[1]
        for container in left:
            while container:
                for _ in range(min(_FREED_MAX, len(container))):
                    container.popitem() if isinstance(container, dict) else container.pop()
                yield None

    # which message is next

    def offer(self, message: Message) -> None:
        """Return a message to its home: available, unless it was deferred or scheduled."""
        self._return(message, -inf)

    def _return(self, message: Message, delay: float) -> None:
        sessions = self.sessions
        if sessions is not None:
            sessions.let_go(message)
        message.lock_token = None
        home = message.state = message.home
        if home == READY:
            lifetimes = self.lifetimes
            if delay > 0.0 and message.expires_at <= lifetimes.asked:
                # Nobody receives it any more, whatever the disk answers.
                message.state = OVERDUE
                lifetimes.add(message, lifetimes.asked + delay)
                self.is_timed = True
                return
            self._make_available(message)
            # Up to there its entry has been taken out, while it was locked or being settled.
            if message.expires_at <= lifetimes.passed:
                lifetimes.add(message)
                self.is_timed = True
        elif home == SCHEDULED:
            self.schedule.add(message, self.schedule.asked + delay)
            self.is_timed = True

    def put(self, message: Message, *, was_late: bool = False) -> None:
        """Do the same as `offer` for a message that was not in the queue before."""
        home = message.state = message.home
        if not was_late and (self.holds_back or (self.sessions is not None and self.sessions.is_late(message))):
            # One that is scheduled can be called off, but does not become due.
            message.state = LATE if home == READY else home
            self.late.append(message)
            if self.sessions is not None:
                self.sessions.count_late(message, 1)
        elif home == READY:
            self._make_available(message)
            if message.expires_at != inf:
                self.lifetimes.add(message)
                self.is_timed = True
        elif home == SCHEDULED:
            self.schedule.add(message)
            self.is_timed = True

    def release_late(self, count: int) -> None:
        """Make up to this many messages available that were kept from receivers; `holds_back` has ended."""
        while self.late and count > 0:
            message = self.late.popleft()
            if self.sessions is not None:
                self.sessions.count_late(message, -1)
            if message.state in (LATE, SCHEDULED):
                self.put(message, was_late=True)
            count -= 1

    def _make_available(self, message: Message) -> None:
        if self.sessions is not None:
            self.sessions.offer(message)
        else:
            self.ready_list.add(message)

    def acquire(
        self, count: int, now: float, new_token: Callable[[], bytes], session: SessionLock | None = None
    ) -> list[Message]:
        """Lock and return up to `count` available messages; of a queue with sessions, those of the held session."""
        taken: list[Message] = []
        until = now + self.lock_duration
        ready_list, locks = self.ready_list, self._locks
        held: dict[bytes, Message] | None = None
        if self.sessions is not None:
            its = None if session is None else self.sessions.get(session.session_id)
            if session is None or its is None or its.lock is not session or not session.is_held(now):
                return taken
            if self.is_down(its.id):
                return taken
            ready_list, until, held = its.ready_list, session.locked_until, session.held
        ready = ready_list.ready
        while len(taken) < count:
            if ready_list.returned or ready_list.stale:
                message = ready_list.next()
                if message is None:
                    break
            elif ready:
                message = ready.popleft()
            else:
                break
            token = new_token()
            message.state = LOCKED
            message.lock_token = token
            message.locked_until = until
            locks[token] = message
            taken.append(message)
        if held is not None:
            held.update((message.lock_token or b"", message) for message in taken)
        elif taken:
            self._watch(until, tuple(taken))
        return taken

    def draw(self, count: int, now: float = 0.0, session: SessionLock | None = None) -> list[Message]:
        """Return messages for receive-and-delete: they are being settled at once, without a lock."""
        taken: list[Message] = []
        ready_list = self.ready_list
        if self.sessions is not None:
            its = None if session is None else self.sessions.get(session.session_id)
            if session is None or its is None or its.lock is not session or not session.is_held(now):
                return taken
            if self.is_down(its.id):
                return taken
            ready_list = its.ready_list
        while len(taken) < count and (message := ready_list.next()) is not None:
            message.state = SETTLING
            taken.append(message)
        return taken

    def draw_older(self, count: int, enqueued_before: float, session_id: str | None) -> Iterator[list[Message]]:
        """Do as `draw` with the oldest available messages that were enqueued by that time (which has milliseconds).
        Some hundred are looked at between two steps; each step gives those that were drawn."""
        taken: list[Message] = []
        for looked_at, message in enumerate(self.scan(0), 1):
            if looked_at % AT_ONCE_MAX == 0:
                yield taken
                taken = []
            if message.state != READY or not self._is_for(message, session_id):
                continue
            if not count:
                break
            if floor(message.enqueued_at * 1000.0) > enqueued_before * 1000.0:
                if self.partition_sizes is None:
                    break
                continue
            if message.sequence_number >> PARTITION_SHIFT in self.down:
                continue
            self._withdraw(message)
            taken.append(message)
            count -= 1
        yield taken

    def _is_for(self, message: Message, session_id: str | None) -> bool:
        """Return whether a message is of that session or, without one, of none that somebody holds."""
        if session_id is not None:
            return message.session_id == session_id
        return self.sessions is None or not self.sessions.is_held(message)

    def _withdraw(self, message: Message) -> None:
        """Begin to settle an available message, wherever it is in the order."""
        message.state = SETTLING
        if self.sessions is not None:
            self.sessions.discard(message)
        else:
            self.ready_list.discard(message)

    # those that are aside

    def fetch(
        self,
        numbers: Sequence[int],
        now: float,
        new_token: Callable[[], bytes] | None,
        session: SessionLock | None = None,
    ) -> list[Message] | None:
        """Return deferred messages by number, locked or, without tokens, being settled; None if any is missing."""
        messages = self._all_in_state(numbers, DEFERRED)
        if messages is None:
            return None
        if self.sessions is not None:
            session_id = None if session is None else session.session_id
            if session_id is None or any(message.session_id != session_id for message in messages):
                return None
        until = now + self.lock_duration if session is None else session.locked_until
        for message in messages:
            if new_token is None:
                message.state = SETTLING
                continue
            message.state = LOCKED
            message.locked_until = until
            token = message.lock_token = new_token()
            self._locks[token] = message
            if session is not None:
                session.held[token] = message
        if session is None and new_token is not None and messages:
            self._watch(until, tuple(messages))
        return messages

    def cancel(self, numbers: Sequence[int]) -> list[Message] | None:
        """Return scheduled messages by number, now being settled; None if any is missing."""
        messages = self._all_in_state(numbers, SCHEDULED)
        for message in messages or ():
            message.state = SETTLING
        return messages

    def _all_in_state(self, numbers: Sequence[int], state: int) -> list[Message] | None:
        messages = [self.get(number) for number in dict.fromkeys(numbers)]
        found = [message for message in messages if message is not None and message.state == state]
        return found if len(found) == len(messages) else None

    def take_due(self, now: float, count: int) -> list[Message]:
        """Return scheduled messages that are due, now being settled."""
        if self.schedule.next > now:
            return []
        due = []
        for message in self.schedule.take_due(now, count):
            # It may be listed twice, after it could not be called off.
            if message.state == SCHEDULED:
                message.state = SETTLING
                due.append(message)
        return due

    def renumber(self, message: Message, number: int, enqueued_at: float, expires_at: float) -> None:
        """Give a scheduled message the number and times of an active one; `put` makes it available."""
        self.remove(message)
        message.sequence_number = number
        message.enqueued_at = enqueued_at
        message.expires_at = expires_at
        message.home = READY
        self.insert(message)

    def take_overdue(self, now: float, count: int) -> list[Message]:
        """Return available messages whose lifetime is over, and what is to be dead-lettered once more (EXHAUSTED is its
        token), now being settled."""
        if self.lifetimes.next > now:
            return []
        overdue = []
        for message in self.lifetimes.take_due(now, count):
            # What is locked or being settled is looked at again when it comes back.
            if message.state == READY:
                self._withdraw(message)
                message.lock_token = None
                overdue.append(message)
            elif message.state == OVERDUE:
                message.state = SETTLING
                overdue.append(message)
        return overdue

    # locks

    def locked_by(self, token: bytes) -> Message | None:
        return self._locks.get(token)

    def _locked_until(self, message: Message) -> float:
        if self.sessions is None:
            return message.locked_until
        lock = self.sessions.lock_of(message)
        return -inf if lock is None else lock.locked_until

    def claim(self, token: bytes, now: float) -> Message | None:
        """Return the message that this token locks, now being settled; None when the lock is lost."""
        message = self._locks.get(token)
        if message is None:
            return None
        if (message.locked_until if self.sessions is None else self._locked_until(message)) <= now:
            return None
        del self._locks[token]
        message.state = SETTLING
        return message

    def claim_all(
        self, tokens: Sequence[bytes], now: float, session: SessionLock | None = None
    ) -> tuple[list[Message], LocksLost | None]:
        """Claim all messages of these tokens, and return them with a refusal that names the lost locks.

        With a session, only messages that were delivered under its lock count.
        """
        claimed = []
        lost = []
        for token in tokens:
            message = None if session is not None and token not in session.held else self.claim(token, now)
            if message is None:
                lost.append(token)
            else:
                claimed.append(message)
        return claimed, self._lost(lost, len(tokens), now, session) if lost else None

    def missing(self, tokens: Sequence[bytes], now: float, session: SessionLock | None = None) -> LocksLost | None:
        """Return what `claim_all` would say of lost locks, without claiming anything."""
        lost = []
        for token in tokens:
            message = None if session is not None and token not in session.held else self._locks.get(token)
            if message is None or self._locked_until(message) <= now:
                lost.append(token)
        return self._lost(lost, len(tokens), now, session) if lost else None

    def _lost(self, lost: Sequence[bytes], of: int, now: float, session: SessionLock | None) -> LocksLost:
        if self.sessions is None or (session is not None and session.is_held(now)):
            return self.locks_lost(lost, of)
        return self.session_lost(lost)

    def restore(self, message: Message) -> None:
        """Undo a settlement that could not be written: the lock holds as before, or ends at the next `expire`."""
        token = message.lock_token
        if token == EXHAUSTED:
            message.state = OVERDUE
            self.lifetimes.add(message, max(self.lifetimes.asked, message.locked_until) + _RETRY_S)
            self.is_timed = True
            return
        if token is None or (self.sessions is not None and self.sessions.lock_of(message) is None):
            # It was drawn or taken by time, or the session is no longer held.
            self._return(message, _RETRY_S)
            return
        message.state = LOCKED
        self._locks[token] = message
        if self.sessions is None:
            self._watch(message.locked_until, (message,))

    def renew(self, tokens: Sequence[bytes], now: float) -> float | LocksLost:
        """Renew these locks, all or none, and return until when they hold, or the refusal."""
        messages = []
        lost = []
        for token in tokens:
            message = self._locks.get(token)
            if message is None or message.locked_until <= now:
                lost.append(token)
            else:
                messages.append(message)
        if lost:
            return self.locks_lost(lost, len(tokens))
        until = now + self.lock_duration
        for message in messages:
            message.locked_until = until
        if messages:
            self._watch(until, tuple(messages))
        return until

    def expire(self, now: float, count: int = AT_ONCE_MAX) -> tuple[list[Message], list[Message]]:
        """Count a failed delivery for each of up to `count` expired locks. Return the messages that went home, and
        those to dead-letter. If there are more, `deadline` still says so.

        The latter are SETTLING: the caller writes the move and then removes them, or restores them.
        """
        if self.sessions is not None:
            return self._expire_sessions(self.sessions, now, count)
        expiries = self._expiries
        returned: list[Message] = []
        exhausted_messages: list[Message] = []
        while count > 0 and expiries and expiries[0][0] <= now:
            until, tie, messages = heappop(expiries)
            if len(messages) > count:
                heappush(expiries, (until, tie, messages[count:]))
                messages = messages[:count]
            count -= len(messages)
            self._expiry_entries -= len(messages)
            for message in messages:
                if not self._is_locked(message, until):
                    continue
                self._fail(message, returned, exhausted_messages)
        return returned, exhausted_messages

    def _expire_sessions(self, sessions: Sessions, now: float, count: int) -> tuple[list[Message], list[Message]]:
        returned: list[Message] = []
        exhausted_messages: list[Message] = []
        while count > 0 and (lock := sessions.run_out(now)) is not None:
            messages = sessions.end(lock, count)
            count -= 1 + len(messages)
            for message in messages:
                self._fail(message, returned, exhausted_messages)
            if lock.on_lost is not None and not lock.held:
                lock.on_lost()
        return returned, exhausted_messages

    def _fail(self, message: Message, returned: list[Message], exhausted_messages: list[Message]) -> None:
        del self._locks[message.lock_token or b""]
        message.delivery_count += 1
        if self.exhausts(message.delivery_count):
            message.state = SETTLING
            message.lock_token = EXHAUSTED
            exhausted_messages.append(message)
        else:
            self.offer(message)
            returned.append(message)

    def release_session(self, lock: SessionLock, count: int = AT_ONCE_MAX) -> bool:
        """Release a session whose receiver is done: unsettled messages are available as before. Return whether there
        were more than `count`: then call it again."""
        if self.sessions is None:
            return False
        lock.locked_until = inf  # it is over by now, not by time
        for message in self.sessions.end(lock, count):
            del self._locks[message.lock_token or b""]
            self.offer(message)
        return bool(lock.held)

    def exhausts(self, delivery_count: int) -> bool:
        # Dead letters have nowhere to go from here: they stay, whatever their count.
        return self.dead_letter is not None and delivery_count >= self.max_delivery_count

    def locks_lost(self, lost: Sequence[bytes], of: int) -> LocksLost:
        which = f" ({len(lost)} of {of} locks)" if of > 1 else ""
        text = (
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
            f"queue '{self.path}'{which}."
        )
        return LocksLost(MESSAGE_LOCK_LOST, text, tuple(lost))

    def session_lost(self, lost: Sequence[bytes] = ()) -> LocksLost:
        text = (
            f"The session lock has expired on the session of the queue '{self.path}'. Accept the session again to "
            "settle its messages."
        )
        return LocksLost(SESSION_LOCK_LOST, text, tuple(lost))

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: as much is left of each lock as before."""
        for chunk in self._chunks.values():
            for message in chunk.values():
                # Those that are being settled too: `restore` may give the lock back.
                if message.lock_token is not None:
                    message.locked_until += seconds
        self._expiries = [(until + seconds, tie, messages) for until, tie, messages in self._expiries]
        not_due = self.lifetimes.shift(seconds)
        self.schedule.shift(seconds)
        if self.sessions is not None:
            self.sessions.shift(seconds)
        for message in not_due:
            if message.state == OVERDUE:
                message.state = READY
                self._make_available(message)
        if not_due:
            self.wake()

    def _is_locked(self, message: Message, until: float) -> bool:
        # Its state alone does not tell: it may since have been dead-lettered, and be locked there until the same time.
        return message.locked_until == until and self._locks.get(message.lock_token or b"") is message

    def _watch(self, until: float, messages: tuple[Message, ...]) -> None:
        self._tie += 1
        heappush(self._expiries, (until, self._tie, messages))
        self._expiry_entries += len(messages)
        if self._expiry_entries > 2 * len(self._locks) + _STALE_LOCKS_MAX:
            self._forget_stale()

    def _forget_stale(self) -> None:
        kept = []
        entries = 0
        for until, tie, messages in self._expiries:
            held = tuple(message for message in messages if self._is_locked(message, until))
            if held:
                kept.append((until, tie, held))
                entries += len(held)
        heapify(kept)
        self._expiries = kept
        self._expiry_entries = entries
