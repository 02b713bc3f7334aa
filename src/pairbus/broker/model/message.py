"""A message as the broker holds it, and the states that it can be in. Decides nothing: queue.py moves it between them.

    state      where it is                                        leaves it by
    READY      available, in a ready list                         acquire → LOCKED, draw or overdue → SETTLING
    LOCKED     under its token                                    claim → SETTLING, release or expire → home
    DEFERRED   aside, to be asked for by number                   fetch → LOCKED or SETTLING
    SCHEDULED  aside, until its time                              due or cancel → SETTLING
    SETTLING   its record is being written                        remove → GONE, restore → LOCKED, offer → home
    RECOPIED   the same, and compaction copied it meanwhile: the record now stands before the copy and is written again
    OVERDUE    aside: the disk refused its expiry, or its dead-   overdue → SETTLING, a clock set back → READY
               lettering after the last delivery
    LATE       aside: the store stalled when it came                  release_late → READY
    GONE       nowhere

Its `home` is where it returns to from a lock or from a record that could not be written: READY, DEFERRED or SCHEDULED.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from pairbus.broker.format import records
from pairbus.broker.format.records import ENTRY_HEAD_BYTES

if TYPE_CHECKING:
    from .shared_bodies import Shared

READY: Final = 0
LOCKED: Final = 1
SETTLING: Final = 2
RECOPIED: Final = 3
GONE: Final = 4
DEFERRED: Final = 5
SCHEDULED: Final = 6
OVERDUE: Final = 7
LATE: Final = 8
#: The token of a message whose last delivery has failed, until it is dead-lettered.
EXHAUSTED: Final = b""
_STATES: Final = ("ready", "locked", "settling", "recopied", "gone", "deferred", "scheduled", "overdue", "late")

_PLACES: Final = {
    (READY, False): records.ACTIVE,
    (READY, True): records.DEAD,
    (DEFERRED, False): records.ACTIVE_DEFERRED,
    (DEFERRED, True): records.DEAD_DEFERRED,
    (SCHEDULED, False): records.SCHEDULED,
}
_SHARED_MAX: Final = 1024
#: The home that a place in a record means.
HOMES: Final = {place: home for (home, _), place in _PLACES.items()}


class Stored:
    """Bytes that are in the journal and not in memory."""

    __slots__ = ("length", "offset", "segment")

    def __init__(self, segment: int, offset: int, length: int) -> None:
        self.segment = segment
        self.offset = offset
        self.length = length


class SharedValues:
    """Makes equal byte strings one object: few headers and few changes differ."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def __call__(self, value: bytes) -> bytes:
        if len(self._values) >= _SHARED_MAX:
            self._values.clear()
        return self._values.setdefault(value, value)


class Message:
    """A message in a queue.

    `content` is the kept annotation pairs followed by the bare message and footer, or None while only the journal
    has it, at (`segment`, `offset`, `length`). `header` is the raw encoding of the sender's durable, priority, ttl and
    first-acquirer. `changes` is an encoded map to be laid over the application properties. `enqueued_at` of a scheduled
    message is the time at which it is to be active. `session_id` is that of an entity with sessions, else None.
    """

    __slots__ = (
        "changes",
        "content",
        "delivery_count",
        "enqueued_at",
        "expires_at",
        "header",
        "home",
        "length",
        "lock_token",
        "locked_until",
        "offset",
        "pairs_bytes",
        "pairs_count",
        "segment",
        "sequence_number",
        "session_id",
        "state",
    )

    #: What a subscription's copy has in common with others (shared_bodies.py).
    shared: Shared | None = None

    def __init__(
        self,
        sequence_number: int,
        enqueued_at: float,
        header: bytes,
        pairs_count: int,
        pairs_bytes: int,
        content: bytes | None,
        length: int,
        expires_at: float = inf,
        session_id: str | None = None,
    ) -> None:
        self.sequence_number = sequence_number
        self.enqueued_at = enqueued_at
        self.expires_at = expires_at
        self.header = header
        self.pairs_count = pairs_count
        self.pairs_bytes = pairs_bytes
        self.content = content
        self.length = length
        self.session_id = session_id
        self.segment = -1
        self.offset = -1
        self.delivery_count = 0
        self.lock_token: bytes | None = None
        self.locked_until = 0.0
        self.state = self.home = READY
        self.changes: bytes | Stored | None = None

    def __repr__(self) -> str:
        return f"<Message {self.sequence_number}: {_STATES[self.state]}, {self.delivery_count} failed deliveries>"


def message_bytes(message: Message) -> int:
    """Return what a message takes in its record, without its changes, which come and go with copies."""
    if message.session_id is None:
        return ENTRY_HEAD_BYTES + len(message.header) + message.length
    return ENTRY_HEAD_BYTES + len(message.header) + len(message.session_id.encode()) + message.length


def place_of(message: Message, is_dead_letter: bool) -> int:
    """Return the place of a message as records name it."""
    return _PLACES[message.home, is_dead_letter]
