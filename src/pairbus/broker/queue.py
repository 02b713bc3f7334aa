"""One queue: which message is next, who holds it, what becomes of it when it is settled or its lock runs out.

Pure: no clock, no disk, no wire. `now` comes in, tokens come from a callable, and what must be journalled is the
caller's business: every step that needs a record is split into a begin (`claim`, `draw`, `expire`) that takes the
message out of circulation and an answer that ends it (`remove`) or undoes it (`restore`, `offer`).

    state      where it is                                        leaves it by
    READY      in `_ready` or `_returned`, by sequence number     acquire → LOCKED, draw → SETTLING
    LOCKED     in `_locks` under its token                        claim → SETTLING, release or expire → READY
    SETTLING   its record is being written                        remove → GONE, restore → LOCKED, offer → READY
    RECOPIED   the same, and compaction copied it meanwhile: the record now stands before the copy and is written again
    GONE       nowhere

A `MessageQueue` is a queue or, as another instance, its dead-letter sub-queue; sequence numbers are the entity's, so a
dead letter keeps its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from pairbus.amqp.errors import MESSAGE_LOCK_LOST

from .outcomes import Abandon, Complete, DeadLetter, LocksLost, Outcome, Release
from .records import ENTRY_HEAD_BYTES

if TYPE_CHECKING:
    from .entity import QueueEntity

__all__ = [
    "Abandon",
    "Complete",
    "DeadLetter",
    "LocksLost",
    "Message",
    "MessageQueue",
    "Outcome",
    "Release",
    "Stored",
    "message_bytes",
]

READY: Final = 0
LOCKED: Final = 1
SETTLING: Final = 2
RECOPIED: Final = 3
GONE: Final = 4
_STATES: Final = ("ready", "locked", "settling", "recopied", "gone")

# Sequence numbers are dense, so 1,024 neighbours share a dict: no dict of a million entries is ever resized while the
# loop waits, and a reader that starts at a number finds its place by arithmetic.
_CHUNK_BITS: Final = 10
# How many entries of the lock heap may be stale beside those that are not.
_STALE_LOCKS_MAX: Final = 1024


class Stored:
    """Bytes that are in the journal and not in memory."""

    __slots__ = ("length", "offset", "segment")

    def __init__(self, segment: int, offset: int, length: int) -> None:
        self.segment = segment
        self.offset = offset
        self.length = length


class Message:
    """`content` is the kept annotation pairs followed by the bare message and footer, or None while only the journal
    has it, at (`segment`, `offset`, `length`). `header` is the raw encoding of the sender's durable, priority, ttl and
    first-acquirer. `changes` is an encoded map to be laid over the application properties.
    """

    __slots__ = (
        "changes",
        "content",
        "delivery_count",
        "enqueued_at",
        "header",
        "length",
        "lock_token",
        "locked_until",
        "offset",
        "pairs_bytes",
        "pairs_count",
        "segment",
        "sequence_number",
        "state",
    )

    def __init__(
        self,
        sequence_number: int,
        enqueued_at: float,
        header: bytes,
        pairs_count: int,
        pairs_bytes: int,
        content: bytes | None,
        length: int,
    ) -> None:
        self.sequence_number = sequence_number
        self.enqueued_at = enqueued_at
        self.header = header
        self.pairs_count = pairs_count
        self.pairs_bytes = pairs_bytes
        self.content = content
        self.length = length
        self.segment = -1
        self.offset = -1
        self.delivery_count = 0
        self.lock_token: bytes | None = None
        self.locked_until = 0.0
        self.state = READY
        self.changes: bytes | Stored | None = None

    @property
    def size(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<Message {self.sequence_number}: {_STATES[self.state]}, {self.delivery_count} failed deliveries>"


def message_bytes(message: Message) -> int:
    """What a message takes in its record. (Its changes are left out: they come and go with copies.)"""
    return ENTRY_HEAD_BYTES + len(message.header) + message.length


class MessageQueue:
    __slots__ = (
        "_chunks",
        "_count",
        "_expiries",
        "_expiry_entries",
        "_keys",
        "_locks",
        "_ready",
        "_returned",
        "_tie",
        "dead_letter",
        "entity",
        "lock_duration",
        "max_delivery_count",
        "on_available",
        "on_deleted",
        "path",
        "resident_bytes",
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
        self.on_available: Callable[[], None] | None = None
        self.on_deleted: Callable[[], None] | None = None
        self._count = 0
        self._chunks: dict[int, dict[int, Message]] = {}
        self._keys: list[int] | None = None
        # Rising; what comes back or arrives out of order waits in the heap beside it.
        self._ready: deque[Message] = deque()
        self._returned: list[int] = []
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
    def available(self) -> int:
        return len(self._ready) + len(self._returned)

    @property
    def has_available(self) -> bool:
        return bool(self._ready or self._returned)

    @property
    def active_count(self) -> int:
        """All that is in it, whoever holds it."""
        return self._count

    @property
    def locked(self) -> int:
        return len(self._locks)

    @property
    def is_dead_letter(self) -> bool:
        return self.dead_letter is None

    @property
    def message_bytes_max(self) -> int:
        return self.entity.message_bytes_max

    @property
    def lock_lost(self) -> LocksLost:
        return self.locks_lost((), 0)

    def deadline(self) -> float | None:
        """When the next lock runs out."""
        expiries = self._expiries
        while expiries:
            until, _, messages = expiries[0]
            if any(self._is_locked(message, until) for message in messages):
                return until
            heappop(expiries)
            self._expiry_entries -= len(messages)
        return None

    # what is in the queue, whatever its state

    def get(self, sequence_number: int) -> Message | None:
        chunk = self._chunks.get(sequence_number >> _CHUNK_BITS)
        return None if chunk is None else chunk.get(sequence_number)

    def scan(self, from_sequence: int) -> Iterator[Message]:
        """In order of sequence number. The queue may change between two steps: what is gone by then is left out."""
        if self._keys is None:
            self._keys = sorted(self._chunks)
        keys = self._keys
        for key in keys[bisect_left(keys, from_sequence >> _CHUNK_BITS) :]:
            chunk = self._chunks.get(key, {})
            for number in sorted(chunk):
                if number >= from_sequence and (message := chunk.get(number)) is not None:
                    yield message

    def enqueue(self, message: Message) -> None:
        """A new message: part of the queue and on offer."""
        self.insert(message)
        ready = self._ready
        if not ready or ready[-1].sequence_number < message.sequence_number:
            ready.append(message)
        else:
            heappush(self._returned, message.sequence_number)

    def insert(self, message: Message) -> None:
        """Part of the queue from now on, but not yet on offer."""
        number = message.sequence_number
        key = number >> _CHUNK_BITS
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = {}
            self._keys = None
        chunk[number] = message
        self._count += 1
        self.size_bytes += message.length

    def remove(self, message: Message) -> None:
        """Out of a queue that has taken it out of circulation (`claim`, `draw`, `expire`)."""
        number = message.sequence_number
        key = number >> _CHUNK_BITS
        chunk = self._chunks[key]
        del chunk[number]
        if not chunk:
            del self._chunks[key]
            self._keys = None
        self._count -= 1
        self.size_bytes -= message.length
        message.state = GONE

    def reoffer(self) -> None:
        """After replay: all that was inserted, in order."""
        self._returned.clear()
        self._ready = deque(message for message in self.scan(0) if message.state == READY)

    def close(self) -> None:
        """Nothing is on offer or locked any more; what is in it is left to `pop_chunk`."""
        self._ready.clear()
        self._returned.clear()
        self._locks.clear()
        self._expiries.clear()
        self._expiry_entries = 0

    def pop_chunk(self) -> list[Message] | None:
        """Of a queue that is no more: some of its messages, so that a large one is taken apart in small steps."""
        if not self._chunks:
            return None
        _, chunk = self._chunks.popitem()
        self._keys = None
        return list(chunk.values())

    # who is next

    def offer(self, message: Message) -> None:
        message.state = READY
        message.lock_token = None
        ready = self._ready
        if not ready or ready[-1].sequence_number < message.sequence_number:
            ready.append(message)
        else:
            heappush(self._returned, message.sequence_number)

    def _next(self) -> Message | None:
        ready, returned = self._ready, self._returned
        if returned and (not ready or returned[0] < ready[0].sequence_number):
            number = heappop(returned)
            return self._chunks[number >> _CHUNK_BITS][number]
        return ready.popleft() if ready else None

    def acquire(self, count: int, now: float, new_token: Callable[[], bytes]) -> list[Message]:
        taken: list[Message] = []
        until = now + self.lock_duration
        ready, locks = self._ready, self._locks
        while len(taken) < count:
            if self._returned:
                message = self._next()
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
        if taken:
            self._watch(until, tuple(taken))
        return taken

    def draw(self, count: int) -> list[Message]:
        """For receive-and-delete: out of circulation at once, without a lock."""
        taken: list[Message] = []
        while len(taken) < count and (message := self._next()) is not None:
            message.state = SETTLING
            taken.append(message)
        return taken

    # locks

    def holds(self, token: bytes, now: float) -> bool:
        message = self._locks.get(token)
        return message is not None and message.locked_until > now

    def locked_by(self, token: bytes) -> Message | None:
        return self._locks.get(token)

    def claim(self, token: bytes, now: float) -> Message | None:
        """The message that this token holds, now being settled; None when the lock is lost."""
        message = self._locks.get(token)
        if message is None or message.locked_until <= now:
            return None
        del self._locks[token]
        message.state = SETTLING
        return message

    def claim_all(self, tokens: Sequence[bytes], now: float) -> tuple[list[Message], LocksLost | None]:
        claimed = []
        lost = []
        for token in tokens:
            message = self.claim(token, now)
            if message is None:
                lost.append(token)
            else:
                claimed.append(message)
        return claimed, self.locks_lost(lost, len(tokens)) if lost else None

    def restore(self, message: Message) -> None:
        """The settlement could not be written: the lock stands as it stood, or runs out at the next `expire`."""
        token = message.lock_token
        if token is None:  # it was drawn
            self.offer(message)
            return
        message.state = LOCKED
        self._locks[token] = message
        self._watch(message.locked_until, (message,))

    def renew(self, tokens: Sequence[bytes], now: float) -> float | LocksLost:
        """All or none: a caller that is told of a lost lock must not think that the others got longer."""
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

    def expire(self, now: float) -> tuple[list[Message], list[Message]]:
        """Those whose locks have run out, each with one more failed delivery: (back on offer, to be dead-lettered).

        The latter are SETTLING: the caller writes the move and then removes them, or offers them again.
        """
        expiries = self._expiries
        returned: list[Message] = []
        doomed: list[Message] = []
        while expiries and expiries[0][0] <= now:
            until, _, messages = heappop(expiries)
            self._expiry_entries -= len(messages)
            for message in messages:
                if not self._is_locked(message, until):
                    continue
                del self._locks[message.lock_token or b""]
                message.delivery_count += 1
                if self.exhausts(message.delivery_count):
                    message.state = SETTLING
                    message.lock_token = None
                    doomed.append(message)
                else:
                    self.offer(message)
                    returned.append(message)
        return returned, doomed

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
