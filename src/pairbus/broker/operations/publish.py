"""Publish operations: a message sent to a topic becomes one record with its body and a copy for each subscription.

Which subscriptions get a copy is decided in topic.py and rules.py when the message is published: at once or, if it is
scheduled, when it is due; until then it waits on the topic. What an action of a rule has changed is one more body in
the same record, with a single copy. What no subscription takes is checked and confirmed like the rest, and stored
nowhere. A ping goes as far as the disk and reaches nobody (P32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pairbus.broker.format import records
from pairbus.broker.format.content import Content, Traits, message_id_in, pack_changes, with_ttl
from pairbus.broker.format.publication import pack_copy, pack_new_copy, pack_publication
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import RECOPIED, SCHEDULED, SETTLING, Message
from pairbus.broker.model.outcomes import NO_SUBSCRIPTION, DeadLetter
from pairbus.broker.model.partitions import PARTITION_SHIFT
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rules import Facts, changed_content
from pairbus.broker.model.shared_bodies import Copy, Shared, header_of
from pairbus.broker.model.topic import FILTER_ERROR, SESSION_MISSING, Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, nobody
from pairbus.journal import JournalError

from .settlement import SettlementOperations

# Published with one record; those behind them are due at once.
_DUE_MAX: Final = 100
_DUE_BYTES_MAX: Final = 1 << 20

# Of the bodies that actions have changed, in one record.
_CHANGED_BYTES_MAX: Final = 64 << 20
_CHANGED_TOO_MUCH: Final = f"Actions of rules make more than {_CHANGED_BYTES_MAX} bytes of copies."

_SESSION: Final = ("sys.group_id",)
_SESSION_MISSING: Final = pack_changes(None, SESSION_MISSING.changes()) or b""


class StoredPublication(NamedTuple):
    """The copies of one message, and where its content lies in the record; `nbytes` is what they share there."""

    copies: list[tuple[MessageQueue, Copy]]
    content_offset: int
    nbytes: int


class PublishOperations(SettlementOperations):
    """Publishes to the subscriptions of a topic; part of the namespace."""

    def _lay_out_publications(
        self,
        topic: Topic,
        contents: Sequence[Content],
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        numbered: bool,
        partitions: Sequence[int] = (),
    ) -> tuple[list[StoredPublication], list[bytes], list[int], Done]:
        """Return what a topic stores of these messages, the parts of the PUBLISH record (none if nothing is stored),
        the number of each message (0: it has none) and `done`, which then also reports what no subscription takes.
        They go to these partitions, or all to the one that the topic was turned to."""
        record = _PublishRecord(topic, self._store.new_token)
        numbers = []
        unmatched: list[str | None] = []
        for index, (content, payload) in enumerate(zip(contents, payloads, strict=True)):
            if partitions:
                topic.turn_to(partitions[index])
            number, is_stored = record.add_sent(content, payload, now, numbered)
            numbers.append(number)
            if not is_stored and self._store.observer is not None:
                unmatched.append(message_id_in(payload))
        if unmatched:
            done = partial(self._report_unmatched, topic, unmatched, done)
        return record.publications, record.all_parts(), numbers, done

    def _report_unmatched(
        self, topic: Topic, message_ids: list[str | None], done: Done, refusal: Refusal | None
    ) -> None:
        done(refusal)
        observer = self._store.observer
        if refusal is None and observer is not None:
            for mid in message_ids:
                observer("expire", topic.path, None, mid, NO_SUBSCRIPTION)

    def _insert_copies(
        self, topic: QueueEntity, publications: list[StoredPublication], segment: int, offset: int
    ) -> dict[MessageQueue, None]:
        """Put the copies of a written record into their queues, and return those queues."""
        assert isinstance(topic, Topic)
        store = self._store
        woken: dict[MessageQueue, None] = {}
        for copies, content_offset, nbytes in publications:
            account = topic.account
            if topic.partitions is not None and copies:
                account = account.part(copies[0][1].sequence_number >> PARTITION_SHIFT)
            shared = Shared(account, nbytes)
            place = offset + content_offset
            for queue, copy in copies:
                copy.segment = segment
                copy.offset = place
                copy.join(shared)
                if copy.content is not None:
                    store.keep(queue, copy)
                queue.enqueue(copy)
                if queue.entity.partitions is None:
                    queue.entity.confirmed_sequence = copy.sequence_number
                else:
                    queue.entity.partitions.confirm(copy.sequence_number)
                woken[queue] = None
        for queue in woken:
            if queue.is_timed:
                store.watched[queue] = None
        return woken

    # ---- scheduled messages whose time has come

    def _publish_due(self, topic: Topic, now: float) -> None:
        while due := topic.active.take_due(now, _DUE_MAX):
            while due:
                due = self._publish_some(topic, due, now)

    def _publish_some(self, topic: Topic, due: list[Message], now: float) -> list[Message]:
        """Publish with one record those that fit into it, and return the others."""
        record = _PublishRecord(topic, self._store.new_token)
        messages: list[Message] = []
        left = list(due)
        unmatched: list[tuple[int, str | None]] = []
        while left and record.length < _DUE_BYTES_MAX:
            message = left.pop(0)
            try:
                content = self._store.content(message) if message.content is None else message.content
            except JournalError:
                self._store.restore(topic.active, [message])
                continue
            is_stored = record.add_due(message, content, now)
            messages.append(message)
            if self._store.observer is not None and not is_stored:
                unmatched.append((message.sequence_number, message_id_in(content, message.pairs_bytes)))
        if messages:
            written = partial(self._due_published, topic, messages, record.publications, unmatched)
            self._store.append(records.PUBLISH, tuple(record.all_parts()), written)
        return left

    def _due_published(
        self,
        topic: Topic,
        messages: list[Message],
        publications: list[StoredPublication],
        unmatched: list[tuple[int, str | None]],
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        if topic.deleted:
            return
        queue = topic.active
        if error is not None:
            self._store.restore(queue, messages)
            return
        self._journal.release(segment, records.BATCH_HEAD_BYTES)
        for each in publications:
            if not each.copies:
                self._journal.release(segment, each.nbytes)
        observer = self._store.observer
        for number, mid in unmatched:
            assert observer is not None
            observer("expire", topic.path, number, mid, NO_SUBSCRIPTION)
        woken = self._insert_copies(topic, publications, segment, offset)
        recopied = [message for message in messages if message.state == RECOPIED]
        for message in messages:
            if message.state != RECOPIED:
                queue.remove(message)
                self._store.forget(queue, message)
        if recopied:
            # Compaction has copied them meanwhile: that they are no more must stand behind the copy.
            for message in recopied:
                message.state = SETTLING
            self.remove(queue, recopied, False, nobody, True)
        for woken_queue in woken:
            woken_queue.wake()


class _PublishRecord:
    """Lays out a PUBLISH record and gives the copies their numbers."""

    __slots__ = ("_changed_bytes", "_new_token", "_parts", "_topic", "length", "publications")

    def __init__(self, topic: Topic, new_token: Callable[[], bytes]) -> None:
        self._topic = topic
        self._new_token = new_token
        self._changed_bytes = 0
        self.publications: list[StoredPublication] = []
        self._parts = [b""]  # the head, once the count is known
        self.length = records.BATCH_HEAD_BYTES

    def all_parts(self) -> list[bytes]:
        """Return the parts of the record, its head first; none if nothing was added."""
        if not self.publications:
            return []
        self._parts[0] = records.pack_batch_head(self._topic.id, len(self.publications))
        return self._parts

    def add_sent(self, content: Content, payload: bytes, now: float, numbered: bool) -> tuple[int, bool]:
        """Add a message that was just sent. Return the topic's number for it, 0 if it needs none, and whether it is
        stored: it is not when no subscription takes it."""
        topic = self._topic
        header, pairs_count, pairs_bytes, body, traits = content
        sent_header = header
        header, lifetime = limit_lifetime(header, traits, topic.description.default_ttl)
        if header is not sent_header:
            content = (header, pairs_count, pairs_bytes, body, traits)
        at = (
            None if traits is None or traits.scheduled_at is None or traits.scheduled_at <= now else traits.scheduled_at
        )
        number = 0
        if numbered or at is not None:
            number = topic.last_sequence = topic.last_sequence + 1
        if at is not None:
            expires_at = at + lifetime
            copy = Copy(number, at, header, pairs_count, pairs_bytes, body, len(body), expires_at)
            copy.state = copy.home = SCHEDULED
            packed = [pack_copy(topic.id, number, expires_at, 0, records.SCHEDULED, b"")]
            self._add(0, at, content, None, [(topic.active, copy)], packed)
            return number, True
        session_id = None if traits is None else traits.session_id
        if not topic.is_plain:
            return number, self._add_judged(number, content, lifetime, session_id, now)
        targets = topic.targets(Facts(payload))
        if targets:
            self._add(number, now, content, session_id, *_copies(targets, content, lifetime, session_id, now))
        return number, bool(targets)

    def add_due(self, message: Message, body: bytes, now: float) -> bool:
        """Add a scheduled message whose time has come, for the subscriptions that take it now. Return whether one
        does."""
        topic = self._topic
        if topic.partitions is not None:
            topic.turn_to(message.sequence_number >> PARTITION_SHIFT)
        pairs = (message.pairs_count, message.pairs_bytes)
        facts = Facts(body, pairs)
        session = facts.values(_SESSION) if topic.has_sessions else None
        session_id = None if session is None else str(session[0])
        content: Content = (message.header, *pairs, body, None)
        lifetime = message.expires_at - message.enqueued_at
        if topic.is_plain:
            targets = topic.targets(facts)
        elif self._add_judged(message.sequence_number, content, lifetime, session_id, now):
            return True
        else:
            targets = []
        copies, packed = _copies(targets, content, lifetime, session_id, now)
        if not copies:
            content = (*content[:3], b"", None)
        self._add(message.sequence_number, now, content, session_id, copies, packed)
        return bool(copies)

    def _add_judged(self, number: int, content: Content, lifetime: float, session_id: str | None, now: float) -> bool:
        """Add a message to a topic with SQL rules or actions, and return whether a subscription takes it. What actions
        have changed are publications of their own, under the same number."""
        topic = self._topic
        facts = Facts(content[3], content[1:3], now, lifetime, self._new_token)
        verdicts = topic.verdicts(facts)
        changed: list[tuple[Subscription, Content, float]] = []
        errors: list[tuple[Subscription, str]] = []
        for subscription, verdict in verdicts:
            error = verdict.error
            for draft in verdict.drafts:
                made, its_lifetime = changed_content(content, draft, topic.description.default_ttl, now)
                self._changed_bytes += len(made[3])
                if self._changed_bytes > _CHANGED_BYTES_MAX:
                    error = error or _CHANGED_TOO_MUCH
                    break
                changed.append((subscription, made, lifetime if its_lifetime is None else its_lifetime))
            if error is not None and subscription.description.dead_letter_on_filter_errors:
                errors.append((subscription, error))
        targets = topic.targets(facts) + [subscription for subscription, verdict in verdicts if verdict.is_match]
        copies, packed = _copies(targets, content, lifetime, session_id, now)
        for subscription, error in errors:
            changes = pack_changes(None, DeadLetter(FILTER_ERROR, error).changes()) or b""
            copy, packed_copy = _dead_copy(subscription, content, content[0], now, changes)
            copies.append((subscription.dead_letter, copy))
            packed.append(packed_copy)
        if copies:
            self._add(number, now, content, session_id, copies, packed)
        for subscription, made, its_lifetime in changed:
            self._add(number, now, made, session_id, *_copies([subscription], made, its_lifetime, session_id, now))
        return bool(copies or changed)

    def _add(
        self,
        number: int,
        enqueued_at: float,
        content: Content,
        session_id: str | None,
        copies: list[tuple[MessageQueue, Copy]],
        packed: list[bytes],
    ) -> None:
        header, pairs_count, pairs_bytes, body, _ = content
        head = pack_publication(number, enqueued_at, header, session_id, pairs_count, pairs_bytes, len(body), packed)
        content_offset = self.length + len(head)
        self.length = content_offset + len(body)
        self._parts += (head, body)
        own = sum(map(len, packed))
        self.publications.append(StoredPublication(copies, content_offset, len(head) - own + len(body)))


def limit_lifetime(header: bytes, traits: Traits | None, default_ttl: float) -> tuple[bytes, float]:
    """Return how many seconds a message lives that an entity keeps for at most `default_ttl`, and its header fields,
    which tell the limit where it applies."""
    if traits is not None and traits.ttl is not None and traits.ttl <= default_ttl:
        return header, traits.ttl
    return header if default_ttl == inf else with_ttl(header, default_ttl), default_ttl


def _copies(
    targets: Sequence[Subscription], content: Content, lifetime: float, session_id: str | None, now: float
) -> tuple[list[tuple[MessageQueue, Copy]], list[bytes]]:
    """Return one copy for each target, with its own number and lifetime, and the same as packed for the record."""
    sent_header, pairs_count, pairs_bytes, body, _ = content
    length = len(body)
    copies: list[tuple[MessageQueue, Copy]] = []
    packed: list[bytes] = []
    if targets and targets[0].partitions is not None:
        for target in targets:
            target.turn_with_topic()
    for target in targets:
        header, ends_after = sent_header, lifetime
        if target.default_ttl < lifetime:
            ends_after = target.default_ttl
            header = header_of(header, ends_after)
        queue = target.active
        if queue.sessions is not None and session_id is None:
            copy, packed_copy = _dead_copy(target, content, header, now, _SESSION_MISSING)
            copies.append((target.dead_letter, copy))
            packed.append(packed_copy)
            continue
        number = target.last_sequence = target.last_sequence + 1
        expires_at = now + ends_after
        its_session = None if queue.sessions is None else session_id
        copy = Copy(number, now, header, pairs_count, pairs_bytes, body, length, expires_at, its_session)
        copies.append((queue, copy))
        packed.append(pack_new_copy(target.id, number, expires_at))
    return copies, packed


def _dead_copy(target: Subscription, content: Content, header: bytes, now: float, changes: bytes) -> tuple[Copy, bytes]:
    """Return a copy for the dead-letter queue of a subscription, and the same as packed for the record."""
    target.turn_with_topic()
    number = target.last_sequence = target.last_sequence + 1
    _, pairs_count, pairs_bytes, body, _ = content
    copy = Copy(number, now, header, pairs_count, pairs_bytes, None, len(body))
    copy.changes = changes
    return copy, pack_copy(target.id, number, inf, 0, records.DEAD, changes)
