"""The store that all operations of a namespace share: the journal, the memory for contents, tokens, watched queues.

It decides only how memory is shared between queues.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, TypeVar

from pairbus.amqp import errors as conditions
from pairbus.broker.format import records
from pairbus.broker.format.content import message_id_in
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SETTLING, Message, SharedValues, Stored
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.shared_bodies import let_go, load, unload
from pairbus.broker.model.transaction import OpenTransactions
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Slices
from pairbus.journal import Journal, JournalBusy, JournalError, JournalFull, JournalStalled, RecordTooLarge
from pairbus.journal.journal import Gathered

from .live_records import LiveRecords
from .maintenance import Maintenance
from .unread import UnreadMessages

T = TypeVar("T")

#: Limits of the data that is prepared in slices before it is written.
STAGED_BYTES_MAX: Final = 128 << 20

Done = Callable[[Refusal | None], None]
Written = Callable[[JournalError | None, int, int], None]
#: The ledger's kind, the path of the queue or topic, sequence number, message id, outcome
RemovalObserver = Callable[[str, str, int | None, str | None, str], None]


def refusal_of(error: JournalError) -> Refusal:
    """Return the refusal for a client when the journal can't write."""
    kept = "it may yet turn up after a restart" if error.unknown else "nothing was stored"
    if isinstance(error, JournalFull):
        text = f"The broker's disk is full; {kept}. ({error})"
        return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text, is_unknown=error.unknown)
    if isinstance(error, JournalBusy):
        text = f"The broker's disk can't keep up; {kept}. Please wait 2 seconds and try again. ({error})"
        return Refusal(conditions.SERVER_BUSY, text)
    if isinstance(error, RecordTooLarge):
        return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, f"The batch is larger than the broker can store. ({error})")
    failed = "does not answer" if isinstance(error, JournalStalled) else "refused"
    text = f"The broker's disk {failed}; {kept}. ({error})"
    return Refusal(conditions.INTERNAL_ERROR, text, is_unknown=error.unknown)


def refusal_of_read(error: JournalError) -> Refusal:
    """Return the refusal for a client when stored data can't be read."""
    failed = "does not answer" if isinstance(error, JournalStalled) else "refused"
    return Refusal(conditions.INTERNAL_ERROR, f"The broker's disk {failed}; what it holds can't be read now. ({error})")


def not_found(name: str) -> Refusal:
    return Refusal(conditions.NOT_FOUND, f"The messaging entity '{name}' could not be found.")


def unavailable(entity: QueueEntity | None, name: str) -> Refusal:
    """Return why nothing can be done with an entity that is deleted or suspended, or that does not exist."""
    return not_found(name) if entity is None or entity.suspended is None else entity.suspended


def nobody(refusal: Refusal | None) -> None:
    """Ignore the answer to an operation of the broker's own."""


class Refused(Exception):
    """Ends the preparation of a send with the reason why nothing is stored."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Staged:
    """The bytes that one send takes in memory while it is prepared in slices; all of them together are bounded."""

    __slots__ = ("_nbytes", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nbytes = 0

    def hold(self, nbytes: int) -> None:
        """Count more bytes, or fewer. Raise Refused where that is too much, for this one or for all."""
        self._nbytes += nbytes
        self._store.staged_bytes += nbytes
        if nbytes > 0 and self._nbytes > STAGED_BYTES_MAX:
            text = (
                f"Rules and subscriptions make more than {STAGED_BYTES_MAX} bytes of copies of what was sent at once. "
                "Send fewer messages at once."
            )
            raise Refused(Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text))
        if nbytes > 0 and self._store.staged_bytes > STAGED_BYTES_MAX:
            raise Refused(busy())

    def during(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """Return this work, at whose end, whatever that is, all of its bytes are forgotten."""
        guarded = self._guarded(work)
        next(guarded)  # from now on `close` gets to `finally`
        return guarded

    def _guarded(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        try:
            yield
            return (yield from work)
        finally:
            self._store.staged_bytes -= self._nbytes
            self._nbytes = 0


def busy() -> Refusal:
    """Return the refusal for when too much is being prepared to be written."""
    text = "Rules and subscriptions make the broker work for longer than it can keep up with; nothing was stored."
    return Refusal(conditions.SERVER_BUSY, f"{text} Please wait 2 seconds and try again.")


class Store:
    """Holds what the operations of one namespace share."""

    def __init__(self, journal: Journal, memory_budget: int, new_token: Callable[[], bytes], slices: Slices) -> None:
        self.journal = journal
        #: For work whose length a client controls.
        self.slices = slices
        self.memory_budget = memory_budget
        self.new_token = new_token
        #: Bytes of sends that are being prepared in slices.
        self.staged_bytes = 0
        #: Bytes of contents held in memory.
        self.resident = 0
        self.notes: list[str] = []
        self.by_id: dict[int, QueueEntity] = {}
        #: Queues for which something may become due.
        self.watched: dict[MessageQueue, None] = {}
        #: Queues whose receivers wait until the messages are out whose lifetime is over.
        self.clearing: set[MessageQueue] = set()
        #: Called, if a ledger is kept, for each message that leaves without a receiver's action: expired, taken by no
        #: subscription, dead-lettered, cancelled or deleted.
        self.observer: RemovalObserver | None = None
        self.live_records = LiveRecords(self.by_id, journal.read, journal.release)
        self.maintenance = Maintenance(journal, self.live_records, self.notes)
        #: For changes that many messages have alike, such as the reason of a dead letter.
        self.same = SharedValues()
        self.transactions = OpenTransactions()
        self.unread = UnreadMessages()

    def __repr__(self) -> str:
        return f"<Store: {len(self.by_id)} entities, {self.resident} bytes in memory>"

    def new_id(self) -> str:
        """Return the id of a message that was sent without one."""
        return self.new_token().hex()

    def append(self, kind: int, payload: tuple[bytes, ...] | bytes, written: Written, lazy: bool = False) -> None:
        """Append to the journal; what it raises at once goes to the callback too."""
        try:
            self.journal.append(kind, payload, written, lazy=lazy)
        except JournalError as error:
            written(error, -1, -1)

    def append_together(self, gathered: list[Gathered]) -> None:
        """Write records as one, and answer each as if it had been written alone."""
        if len(gathered) == 1:
            kind, parts, written = gathered[0]
            assert written is not None
            self.append(kind, parts, written)
            return
        payload, places, head_bytes = records.pack_transaction((kind, parts) for kind, parts, _ in gathered)

        def written_together(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self.journal.release(segment, head_bytes)
            for (_, _, written), at in zip(gathered, places, strict=True):
                assert written is not None
                written(error, segment, offset + at)

        self.append(records.TRANSACTION, payload, written_together)

    def wake(self, queue: MessageQueue) -> None:
        """Tell the receivers of a queue that messages are available, and watch its deadlines."""
        if queue.is_timed:
            self.watched[queue] = None
        queue.wake()

    # contents

    def keep(self, queue: MessageQueue, message: Message) -> None:
        """Keep the content in memory if there is room: a queue gets a share of what is left, so that one deep queue
        can't push all others to the disk."""
        length = message.length
        if queue.resident_bytes + length <= self.memory_budget - self.resident:
            queue.resident_bytes += length
            self.resident += load(message)
        else:
            message.content = None

    def evict(self, queue: MessageQueue, message: Message) -> None:
        """No longer count the content as held in memory; code that has the message may still read it."""
        if message.content is not None:
            queue.resident_bytes -= message.length
            self.resident -= unload(message)

    def forget(self, queue: MessageQueue, message: Message) -> None:
        """Release what a removed message takes in memory and on disk."""
        if message.content is not None:
            length = message.length
            queue.resident_bytes -= length
            self.resident -= length if message.shared is None else unload(message)
        entity = queue.entity
        if entity.renumbered.old:
            entity.stored_anew(message)
        self.journal.release(message.segment, let_go(message))

    def drop(self, queue: MessageQueue, message: Message) -> None:
        """Forget a message whose entity was deleted, and report it."""
        if self.observer is not None:
            self.observer("expire", queue.path, message.sequence_number, self.message_id(message), "entity-deleted")
        self.forget(queue, message)

    def content(self, message: Message) -> bytes:
        """Read the content from the journal. Raises JournalError."""
        return self.journal.read(message.segment, message.offset, message.length)

    def restore(self, queue: MessageQueue, messages: Iterable[Message]) -> None:
        """Give messages back to their queue after a change that could not be written; time brings them out again."""
        for message in messages:
            queue.restore(message)
        self.watched[queue] = None

    def fetch(self, queue: MessageQueue, message: Message) -> None:
        """Read the content into memory, room or not: once removed, its place on disk may go at any time."""
        if message.content is None:
            message.content = self.content(message)
            queue.resident_bytes += message.length
            self.resident += load(message)

    def message_id(self, message: Message) -> str | None:
        """Return the message id; reads the disk when the content is not in memory."""
        try:
            content = self.content(message) if message.content is None else message.content
        except JournalError:
            return None
        return message_id_in(content, message.pairs_bytes)

    def observed(self, kind: str, queue: MessageQueue, messages: Sequence[Message], done: Done) -> Done:
        """Return `done` so that it first reports these messages to the observer. Their ids are read now: later the
        disk may have no trace of them."""
        observer = self.observer
        if observer is None:
            return done
        known = [(message.sequence_number, self.message_id(message)) for message in messages]

        def reported(refusal: Refusal | None) -> None:
            if refusal is None:
                for number, mid in known:
                    observer(kind, queue.path, number, mid, "ok")
            done(refusal)

        return reported

    def changes(self, message: Message) -> bytes | None:
        """Return the encoded changes to the application properties. Raises JournalError when they can't be read."""
        changes = message.changes
        if isinstance(changes, Stored):
            return self.journal.read(changes.segment, changes.offset, changes.length)
        return changes


def recopied(messages: list[Message]) -> bool:
    """Return whether compaction has copied one of them while its record was being written: the record must then be
    written again, behind the copy."""
    found = False
    for message in messages:
        if message.state == RECOPIED:
            message.state = SETTLING
            found = True
    return found
