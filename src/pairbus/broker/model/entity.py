"""An entity: its description, its queue and dead-letter queue, its sequence numbers and sizes.

Pure. What happens to entities, and when, is decided in broker/operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, ClassVar, Final

from pairbus.amqp.errors import ENTITY_DISABLED, NOT_ALLOWED
from pairbus.broker.format import records
from pairbus.broker.format.content import Traits
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Line

from .description import QueueDescription
from .duplicates import DuplicateHistory, key_of
from .message import Message
from .partitions import PARTITION_SHIFT, Partitions, common_key, key_of_message, place
from .queue import MessageQueue
from .sessions import Sessions

DEAD_LETTER_SUFFIX: Final = "/$DeadLetterQueue"
TRANSFER_SUFFIX: Final = "/$Transfer"
_REFUSES_SENDS: Final = ("Disabled", "SendDisabled")
_REFUSES_RECEIVES: Final = ("Disabled", "ReceiveDisabled")


class Renumbered:
    """Maps the numbers that entries on disk still have to those that the messages have now."""

    __slots__ = ("new", "old")

    def __init__(self) -> None:
        #: Old → new, and new → old.
        self.new: dict[int, int] = {}
        self.old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.new)

    def __repr__(self) -> str:
        return f"<Renumbered: {len(self.new)}>"

    def number_of(self, number: int) -> int:
        return self.new.get(number, number)

    def note(self, old: int, new: int) -> None:
        self.new[old] = new
        self.old[new] = old

    def drop(self, new: int) -> None:
        old = self.old.pop(new, None)
        if old is not None:
            del self.new[old]


class QueueEntity:
    """A queue and its dead-letter sub-queue, under an id that no other entity of the namespace ever had."""

    __slots__ = (
        "_accessed_at",
        "active",
        "confirmed_sequence",
        "dead_letter",
        "deleted",
        "deleting",
        "description",
        "duplicates",
        "entering",
        "forwarded",
        "forwards",
        "id",
        "last_sequence",
        "links",
        "max_bytes",
        "message_bytes_max",
        "needs_traits",
        "next_revision",
        "offset",
        "partitions",
        "pending_bytes",
        "pings",
        "receivers",
        "recopied",
        "record_bytes",
        "refuses_receives",
        "refuses_sends",
        "renumbered",
        "revision",
        "segment",
        "sending",
        "suspended",
        "transfer",
    )

    #: Of the record that describes it.
    KIND: ClassVar[int] = records.QUEUE

    def __init__(self, id: int, description: QueueDescription, revision: int = 0) -> None:
        self.id = id
        self.dead_letter = MessageQueue(self, None)
        self.active = MessageQueue(self, self.dead_letter)
        #: The highest number given out, and the highest whose record is known to be written. Where there are
        #: partitions, the former is that of the one that was turned to, and the latter is kept there for each.
        self.last_sequence = 0
        self.confirmed_sequence = 0
        self.partitions: Partitions | None = None
        #: Bytes of sends that are being written: they count as stored, or many at once would overfill the queue.
        self.pending_bytes = 0
        #: Sends that are prepared in slices, in their order; and records that are written, whose messages enter it.
        self.sending = Line()
        self.entering = Line()
        self.pings = 0
        #: Messages and dead letters that it has forwarded since the start.
        self.forwarded = 0
        self._accessed_at = 0.0
        #: Of clients, sending or receiving: an entity with links is not idle.
        self.links = 0
        #: Links of clients that receive, or wait for a session to receive from; a topic has those of its subscriptions.
        self.receivers = 0
        #: Of an entity that detects duplicates.
        self.duplicates: DuplicateHistory | None = None
        #: Scheduled messages that became active and whose entry on disk has their old number.
        self.renumbered = Renumbered()
        self.deleting = False
        self.deleted = False
        #: Why it can't be used for now: it is being rebuilt from the journal. It is `deleting` then, too.
        self.suspended: Refusal | None = None
        #: As RECOPIED, for a deletion that is being written.
        self.recopied = False
        # where the record of this description is
        self.segment = -1
        self.offset = -1
        self.record_bytes = 0
        self.next_revision = revision
        #: What holds its transfer dead letters, once it was asked for.
        self.transfer: TransferQueue | None = None
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
        if description.requires_session and self.active.sessions is None:
            self.active.sessions = Sessions(self.active)
        if self.duplicates is not None:
            self.duplicates.window = description.duplicate_window
        if description.enable_partitioning:
            self.partition()
        #: Whether what is sent must be parsed for its id, session, partition key, lifetime and schedule.
        self.needs_traits = (
            description.requires_session
            or description.requires_duplicate_detection
            or description.enable_partitioning
            or description.default_ttl != inf
        )
        self.refuses_sends = self._refusal(_REFUSES_SENDS, "sent to")
        self.refuses_receives = self._refusal(_REFUSES_RECEIVES, "received from")
        #: Its two queues, each with the name of the queue or topic that it forwards to, None where it does not.
        self.forwards = (
            (self.active, description.forward_to),
            (self.dead_letter, description.forward_dead_lettered_to),
        )
        for queue, to in self.forwards:
            queue.refuses_receives = self.refuses_receives
            if to is not None and self.refuses_receives is None:
                queue.refuses_receives = _forwards(queue, to)
        if self.transfer is not None:
            self.transfer.follow(self)

    def _refusal(self, statuses: tuple[str, ...], what: str) -> Refusal | None:
        status = self.description.status
        if status not in statuses:
            return None
        text = f"The messaging entity '{self.name}' is {status}: nothing can be {what} it. Set its status to Active."
        return Refusal(ENTITY_DISABLED, text)

    # ---- numbers

    def partition(self) -> Partitions:
        """Give it partitions, if it has none; what it holds is in the first of them."""
        if self.partitions is None:
            self.partitions = Partitions(self.last_sequence, self.active.size_bytes + self.dead_letter.size_bytes)
            for queue in (self.active, self.dead_letter):
                queue.partition(self.partitions.sizes)
        return self.partitions

    def choose_partition(self, sent: Sequence[Traits]) -> int | Refusal:
        """Return the partition to which messages go that are sent together, or why they can't be sent."""
        partitions = self.partition()
        key = common_key(self.name, sent, self.detects_duplicates)
        return key if isinstance(key, Refusal) else place(self.name, key, partitions.turn, partitions.down)

    def turn_to_placed(self, partition: int) -> None:
        """Turn to a partition that was chosen for messages; the next ones without a key go to another."""
        self.turn_to(partition)
        self.partition().used(partition)

    def held_bytes(self, partition: int) -> int:
        """Return how many bytes a partition holds."""
        return self.partition().sizes[partition]

    def duplicate_key(self, traits: Traits) -> bytes:
        """Return the key by which duplicate detection compares messages: the id, in partitions also the partition
        key."""
        key = None
        if self.partitions is not None:
            key = key_of_message(traits)
        return key_of(traits.message_id if key is None else [key, traits.message_id])

    def turn_to(self, partition: int) -> None:
        """Let `last_sequence` be the last number of this partition from now on."""
        partitions = self.partition()
        partitions.last[partitions.current] = self.last_sequence
        partitions.current = partition
        self.last_sequence = partitions.last[partition]

    def note_number(self, number: int) -> bool:
        """Note a number that was given out, and return whether it is higher than those known before."""
        partition = number >> PARTITION_SHIFT
        if partition or self.partitions is not None:
            self.turn_to(partition)
        if number <= self.last_sequence:
            return False
        self.last_sequence = number
        return True

    @property
    def last_numbers(self) -> int | list[int]:
        """The last number or, where there are partitions, those of all of them."""
        if self.partitions is None:
            return self.last_sequence
        self.turn_to(self.partitions.current)
        return list(self.partitions.last)

    def restore_numbers(self, numbers: int | list[int]) -> None:
        """Take back the numbers given out since then, which nobody has seen."""
        if isinstance(numbers, int):
            self.last_sequence = numbers
        else:
            partitions = self.partition()
            partitions.last = list(numbers)
            self.last_sequence = numbers[partitions.current]

    def confirm_all(self) -> None:
        """Note that the records of all numbers are written."""
        self.confirmed_sequence = self.last_sequence
        if self.partitions is not None:
            self.turn_to(self.partitions.current)
            self.partitions.confirmed = list(self.partitions.last)

    def is_confirmed(self, number: int) -> bool:
        """Return whether the record of a number is known to be written."""
        if self.partitions is None:
            return number <= self.confirmed_sequence
        return number <= self.partitions.confirmed[number >> PARTITION_SHIFT]

    def count_receiver(self, step: int) -> None:
        """Count a link that begins to receive (1) or ends (-1)."""
        self.receivers += step

    def watch_duplicates(self, release: Callable[[int, int], None]) -> DuplicateHistory:
        if self.duplicates is None:
            self.duplicates = DuplicateHistory(self.description.duplicate_window, release)
        return self.duplicates

    def suspend(self, refusal: Refusal) -> None:
        """Refuse everything from now on, and let nothing become due, as while it is deleted."""
        self.suspended = refusal
        self.deleting = True

    def resume(self) -> None:
        """Serve again."""
        self.suspended = None
        self.deleting = self.recopied = False

    def let_go(self) -> None:
        """Release the queues when the entity is deleted: otherwise they would wait for the cycle collector. Code that
        still has a queue finds the entity, which says that it is deleted; code that has the entity finds no queues."""
        for queue in (self.active, self.dead_letter):
            queue.on_available = queue.on_session_free = None
        self.active, self.dead_letter = _NOTHING.active, _NOTHING.dead_letter
        self.forwards = _NOTHING.forwards

    def document(self) -> dict[str, Any]:
        """Return the document of the record that describes it."""
        return self.description.to_json()

    def with_parts(self) -> list[QueueEntity]:
        """Return the entity and those that are deleted with it."""
        return [self] if self.transfer is None else [self, self.transfer]

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def detects_duplicates(self) -> bool:
        return self.description.requires_duplicate_detection

    @property
    def size_bytes(self) -> int:
        return self.active.size_bytes + self.dead_letter.size_bytes

    @property
    def active_count(self) -> int:
        return self.active.active_count

    @property
    def scheduled_count(self) -> int:
        return self.active.scheduled_count

    @property
    def dead_letter_count(self) -> int:
        return len(self.dead_letter)

    @property
    def transfer_dead_letter_count(self) -> int:
        return 0 if self.transfer is None else len(self.transfer.dead_letter)

    @property
    def accessed_at(self) -> float:
        return self._accessed_at

    @accessed_at.setter
    def accessed_at(self, now: float) -> None:
        # Never back: an answer from the disk may bring the time of a call from before the wall clock was set.
        if now > self._accessed_at:
            self._accessed_at = now

    @property
    def idle_deadline(self) -> float:
        """When it has been idle for too long, as far as is known now
        (docs/reference/protocol.md#http-management-api)."""
        if self.deleting or self.forwards[0][1] is not None:
            return inf
        return self.accessed_at + self.description.auto_delete_on_idle

    def is_idle(self, now: float) -> bool:
        transfer = self.transfer
        is_read = transfer is not None and (transfer.links or transfer.dead_letter.locked)
        if is_read or self.links or self.active.scheduled_count or self.active.locked or self.dead_letter.locked:
            self.accessed_at = now
        return now >= self.idle_deadline

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: as much is left of each duration as before."""
        self._accessed_at += seconds
        self.active.shift(seconds)
        self.dead_letter.shift(seconds)
        if self.duplicates is not None:
            self.duplicates.shift(seconds)

    def place(self, place: int) -> MessageQueue:
        """Return the queue that a place in a record means."""
        return self.dead_letter if place in (records.DEAD, records.DEAD_DEFERRED) else self.active

    def find(self, sequence_number: int) -> tuple[MessageQueue, Message] | None:
        """Return a message, with its queue, by the number that it has or has on disk."""
        number = self.renumbered.number_of(sequence_number)
        for queue in (self.active, self.dead_letter):
            message = queue.get(number)
            if message is not None:
                return queue, message
        return None

    def activate(self, message: Message, number: int, enqueued_at: float, expires_at: float) -> None:
        """Give a scheduled message its new number (docs/reference/protocol.md#scheduled-messages); the caller makes it
        available."""
        old = message.sequence_number
        self.active.renumber(message, number, enqueued_at, expires_at)
        self.renumbered.note(old, number)

    def stored_anew(self, message: Message) -> None:
        """Note that the entry on disk has the message's own number now, or is of no more use."""
        if self.renumbered.old:
            self.renumbered.drop(message.sequence_number)

    def __repr__(self) -> str:
        return f"<QueueEntity {self.name}: {len(self.active)} active, {len(self.dead_letter)} dead-lettered>"


class TransferQueue(QueueEntity):
    """Holds the transfer dead letters of another entity: messages that were sent through it and could not go on to
    their destination.

    They are in its dead-letter queue; nobody sees the rest of it, and it is deleted with its owner. Most entities never
    have one: it is made when it is first asked for (operations/transfer.py).
    """

    __slots__ = ("owner", "owner_id")

    KIND = records.TRANSFER

    def __init__(self, id: int, owner_id: int, revision: int = 0) -> None:
        self.owner_id = owner_id
        self.owner: QueueEntity | None = None
        super().__init__(id, QueueDescription(name="-"), revision)

    def follow(self, owner: QueueEntity) -> None:
        """Take path, limits and status of the entity to which it belongs."""
        self.owner = owner
        owner.transfer = self
        description = QueueDescription(
            name=owner.active.path + TRANSFER_SUFFIX,
            lock_duration=owner.active.lock_duration,
            max_size_mb=owner.max_bytes >> 20,
            max_message_size_kb=owner.message_bytes_max >> 10,
            status=owner.description.status,
        )
        self.describe(description, self.revision)

    def document(self) -> dict[str, Any]:
        return {"owner_id": self.owner_id}

    def let_go(self) -> None:
        super().let_go()
        if self.owner is not None and self.owner.transfer is self:
            self.owner.transfer = None
        self.owner = None


def _forwards(queue: MessageQueue, to: str) -> Refusal:
    name = "ForwardDeadLetteredMessagesTo" if queue.is_dead_letter else "ForwardTo"
    text = f"Nothing can be received from '{queue.path}': it forwards to '{to}'. Receive there, or clear its {name}."
    return Refusal(NOT_ALLOWED, text)


#: Has the queues of all entities that are deleted.
_NOTHING: Final = QueueEntity(-1, QueueDescription(name="deleted"))
_NOTHING.deleting = _NOTHING.deleted = True
