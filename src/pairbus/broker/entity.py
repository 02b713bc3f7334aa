"""A queue as the namespace knows it: its description, its two message queues, its numbers and its accounts.

Pure. Who may do what when is namespace.py's; here is only what an entity is.
"""

from __future__ import annotations

from typing import Final

from .description import QueueDescription
from .queue import Message, MessageQueue

DEAD_LETTER_SUFFIX: Final = "/$DeadLetterQueue"


class QueueEntity:
    """A queue and its dead-letter sub-queue, under an id that no other entity of the namespace ever had."""

    __slots__ = (
        "accessed_at",
        "active",
        "confirmed_sequence",
        "dead_letter",
        "deleted",
        "deleting",
        "description",
        "id",
        "last_sequence",
        "max_bytes",
        "message_bytes_max",
        "next_revision",
        "offset",
        "pending_bytes",
        "pings",
        "recopied",
        "record_bytes",
        "revision",
        "segment",
    )

    def __init__(self, id: int, description: QueueDescription, revision: int = 0) -> None:
        self.id = id
        self.dead_letter = MessageQueue(self, None)
        self.active = MessageQueue(self, self.dead_letter)
        #: The highest number given out, and the highest whose record is known to be written.
        self.last_sequence = 0
        self.confirmed_sequence = 0
        #: Of sends under way: they count as if they were there, or many at once would overfill the queue.
        self.pending_bytes = 0
        self.pings = 0
        self.accessed_at = 0.0
        self.deleting = False
        self.deleted = False
        #: As RECOPIED, for a deletion under way.
        self.recopied = False
        # where the record of this description is
        self.segment = -1
        self.offset = -1
        self.record_bytes = 0
        self.next_revision = revision
        self.describe(description, revision)

    def describe(self, description: QueueDescription, revision: int) -> None:
        self.description = description
        self.revision = revision
        self.next_revision = max(self.next_revision, revision)
        self.max_bytes = description.max_size_mb << 20
        self.message_bytes_max = description.max_message_size_kb << 10
        self.active.path = description.name
        self.dead_letter.path = description.name + DEAD_LETTER_SUFFIX
        for queue in (self.active, self.dead_letter):
            queue.lock_duration = description.lock_duration
            queue.max_delivery_count = description.max_delivery_count

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def size_bytes(self) -> int:
        return self.active.size_bytes + self.dead_letter.size_bytes

    @property
    def active_count(self) -> int:
        return len(self.active)

    @property
    def dead_letter_count(self) -> int:
        return len(self.dead_letter)

    def place(self, place: int) -> MessageQueue:
        """`records.ACTIVE` or `records.DEAD`."""
        return self.dead_letter if place else self.active

    def find(self, sequence_number: int) -> tuple[MessageQueue, Message] | None:
        for queue in (self.active, self.dead_letter):
            message = queue.get(sequence_number)
            if message is not None:
                return queue, message
        return None

    def __repr__(self) -> str:
        return f"<QueueEntity {self.name}: {len(self.active)} active, {len(self.dead_letter)} dead-lettered>"
