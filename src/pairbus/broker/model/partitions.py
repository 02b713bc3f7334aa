"""Decides to which partition of a partitioned queue or topic a message goes, and keeps the numbers of each. Pure.

See docs/reference/protocol.md#partitioned-entities. An entity has PARTITIONS partitions, each of the entity's full
size. The top 16 bits of a sequence number are the partition, the others count without gaps within it. A message goes to
the partition of its key: its session id, else its partition key, else, under duplicate detection, its message id.
Without a key it goes to the next partition that is not down. Messages that are sent together have one key, and go to
one partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from pairbus.amqp.errors import NOT_ALLOWED, SERVER_BUSY
from pairbus.broker.format.content import Traits
from pairbus.broker.refusal import Refusal

PARTITIONS: Final = 16
PARTITION_SHIFT: Final = 48
#: The part of a sequence number that counts within its partition.
COUNT_MASK: Final = (1 << PARTITION_SHIFT) - 1
NONE_DOWN: Final[frozenset[int]] = frozenset()


def partition_for(key: str) -> int:
    """Return the partition of a key: the same one forever, since what is stored lies there."""
    return crc32(key.encode()) % PARTITIONS


def key_of_message(traits: Traits) -> str | None:
    """Return the session id of a message, else its partition key. The empty session id yields to a partition key:
    JavaScript sends both."""
    return traits.session_id if traits.session_id or traits.partition_key is None else traits.partition_key


def common_key(entity: str, sent: Iterable[Traits], detects_duplicates: bool) -> str | Refusal | None:
    """Return the key of messages that are sent together, None if they have none, or why they can't be sent."""
    keys: dict[str | None, None] = {}
    for traits in sent:
        key = key_of_message(traits)
        if traits.session_id and traits.partition_key not in (None, key):
            text = (
                f"The message has the session id '{key}' and the partition key '{traits.partition_key}'; on the "
                f"partitioned entity '{entity}' they must be equal, or the partition key left out."
            )
            return Refusal(NOT_ALLOWED, text)
        if key is None and detects_duplicates:
            key = str(traits.message_id)
        keys[key] = None
    if len(keys) > 1:
        names = "message id, session id or partition key" if detects_duplicates else "session id or partition key"
        text = (
            f"The messages of a batch to the partitioned entity '{entity}' have {len(keys)} different keys; send "
            f"those together that have the same {names}."
        )
        return Refusal(NOT_ALLOWED, text)
    return next(iter(keys), None)


def place(entity: str, key: str | None, turn: int, down: frozenset[int]) -> int | Refusal:
    """Return the partition for messages with this key; without one, the first from `turn` on that is not down."""
    if key is not None:
        partition = partition_for(key)
        if partition not in down:
            return partition
        return partition_down(entity, partition)
    for step in range(PARTITIONS):
        partition = (turn + step) % PARTITIONS
        if partition not in down:
            return partition
    return partition_down(entity, turn)


def partition_down(entity: str, partition: int) -> Refusal:
    text = f"Partition {partition} of '{entity}' is not available. Please wait 2 seconds and try again."
    return Refusal(SERVER_BUSY, text)


class Partitions:
    """The partitions of one entity: their last numbers, their sizes, and which of them are down."""

    __slots__ = ("confirmed", "current", "down", "last", "sizes", "turn")

    def __init__(self, last_sequence: int, size_bytes: int) -> None:
        """`last_sequence` and `size_bytes` are what is known so far, all of it of partition 0."""
        #: The highest number given out in each; that of `current` is kept by the entity.
        self.last = [partition << PARTITION_SHIFT for partition in range(PARTITIONS)]
        self.last[0] = last_sequence
        self.current = 0
        #: The highest number of each whose record is known to be written.
        self.confirmed = list(self.last)
        #: Bytes of messages and dead letters in each.
        self.sizes = [0] * PARTITIONS
        self.sizes[0] = size_bytes
        #: Where the next messages without a key go.
        self.turn = 0
        #: Those to which nothing can be sent.
        self.down = NONE_DOWN

    def used(self, partition: int) -> None:
        """Note that messages went to a partition: if it was its turn, the next one's comes."""
        if place("", None, self.turn, self.down) == partition:
            self.turn = (partition + 1) % PARTITIONS

    def confirm(self, number: int) -> None:
        """Note that the record of a number is written; those of a partition come in order."""
        partition = number >> PARTITION_SHIFT
        self.confirmed[partition] = max(self.confirmed[partition], number)

    def __repr__(self) -> str:
        return f"<Partitions: {[number & COUNT_MASK for number in self.last]}, down: {sorted(self.down)}>"
