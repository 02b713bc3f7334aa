"""What comes into a topic: one record with the message's body and a copy for each subscription whose rules let it in.

A shell, as intake.py is for queues. Which subscriptions get a copy is decided in topic.py and rules.py when the message
is published: at once or, if it is scheduled, when it is due; until then it waits on the topic. What nobody wants is
checked and confirmed like the rest, and stored nowhere. A ping goes as far as the disk and reaches nobody (P32).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pairbus.amqp import errors as conditions
from pairbus.broker.format import records
from pairbus.broker.format.content import Content, Traits, message_id_in, pack_changes, with_ttl
from pairbus.broker.format.publication import pack_copy, pack_new_copy, pack_publication
from pairbus.broker.model.duplicates import Sighting
from pairbus.broker.model.message import RECOPIED, SCHEDULED, SETTLING, Message
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rules import Facts
from pairbus.broker.model.send_results import DUPLICATE, NO_SUBSCRIPTION, PINGED
from pairbus.broker.model.shared_bodies import Copy, Shared, header_of
from pairbus.broker.model.topic import SESSION_MISSING, Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, nobody, not_found, refusal_of
from pairbus.journal import JournalError

from .enqueue import Duplicates, contents_of
from .settlement import SettlementOperations

# Published with one record; those behind them are due at once.
_DUE_MAX: Final = 100
_DUE_BYTES_MAX: Final = 1 << 20

_SESSION: Final = ("sys.group_id",)
_SESSION_MISSING: Final = pack_changes(None, SESSION_MISSING.changes()) or b""


class Issue(NamedTuple):
    """A message that is to be published, or to wait on the topic until `scheduled_at`."""

    content: Content
    header: bytes
    lifetime: float
    session_id: str | None
    scheduled_at: float | None
    targets: list[Subscription]


class Printed(NamedTuple):
    """The copies of one message, and where its content lies in the record; `nbytes` is what they share there."""

    copies: list[tuple[MessageQueue, Copy]]
    content_offset: int
    nbytes: int


class PublishOperations(SettlementOperations):
    """Takes messages into topics; part of the namespace."""

    def publish(
        self,
        topic: Topic,
        payloads: Sequence[bytes],
        now: float,
        done: Done,
        fates: list[int] | None = None,
        numbered: bool = False,
    ) -> None:
        """All of them or none. `fates` is filled with what became of each: the number that the topic gave it, if that
        was asked for (`numbered`) or is needed, or a word of fates.py."""
        if topic.deleting or topic.refuses_sends is not None:
            done(not_found(topic.path) if topic.deleting else topic.refuses_sends)
            return
        issues: list[Issue | int] = []
        pings: list[bytes] = []
        size = 0
        contents = contents_of(topic, payloads, self._store.new_token, topic.takes_closely or topic.has_sessions)
        if isinstance(contents, Refusal):
            done(contents)
            return
        duplicates = Duplicates(topic, now) if topic.duplicates is not None else None
        for payload, kept in zip(payloads, contents, strict=True):
            if kept is None:
                pings.append(payload)
                size += len(payload)
                issues.append(PINGED)
                continue
            traits = kept[4]
            if duplicates is not None and traits is not None and duplicates.has(traits):
                issues.append(DUPLICATE)
                continue
            size += len(kept[3])
            issues.append(_issue(topic, kept, traits, payload, now))
        held = topic.size_bytes + topic.pending_bytes
        if held + size > topic.max_bytes:
            done(_full(topic, held, size))
            return
        if duplicates is not None:
            refusal = duplicates.refusal()
            if refusal is not None:
                done(refusal)
                return
            done = duplicates.joined(done)
        if self._store.witness is not None:
            done = self._unwanted(topic, issues, payloads, done)
        press = _Press(topic)
        for issue in issues:
            fate = issue if isinstance(issue, int) else press.print(issue, now, numbered)
            if fates is not None:
                fates.append(fate)
        sighting: Sighting | None = None
        parts = press.parts
        if press.printed:
            kind, head = records.PUBLISH, records.pack_batch_head(topic.id, len(press.printed))
        elif duplicates is not None and duplicates.keys:
            kind, head = records.SEEN, records.pack_seen_head(topic.id)
        elif pings:
            kind, head = records.PING, records.pack_ping(topic.id) + b"".join(pings)
        else:
            topic.accessed_at = now
            done(None)
            return
        if duplicates is not None and duplicates.keys:
            parts.append(records.pack_seen(now, duplicates.keys))
            sighting = duplicates.begin()
        topic.pending_bytes += size
        written = partial(self._published, topic, press.printed, size, len(pings), len(head), now, done, sighting)
        self._store.append(kind, (head, *parts), written)

    def _unwanted(self, topic: Topic, issues: Sequence[Issue | int], payloads: Sequence[bytes], done: Done) -> Done:
        """`done`, and then the witness hears of those that no subscription takes."""
        witness = self._store.witness
        unwanted = [
            message_id_in(payload)
            for issue, payload in zip(issues, payloads, strict=True)
            if isinstance(issue, Issue) and not issue.targets and issue.scheduled_at is None
        ]
        if witness is None or not unwanted:
            return done

        def told(refusal: Refusal | None) -> None:
            done(refusal)
            for mid in unwanted if refusal is None else ():
                witness("expire", topic.path, None, mid, NO_SUBSCRIPTION)

        return told

    def _published(
        self,
        topic: Topic,
        printed: list[Printed],
        size: int,
        pings: int,
        head_bytes: int,
        now: float,
        done: Done,
        sighting: Sighting | None,
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        topic.pending_bytes -= size
        if error is not None:
            refusal = refusal_of(error)
            if sighting is not None and topic.duplicates is not None:
                topic.duplicates.refused(sighting, refusal)
            done(refusal)
            return
        topic.accessed_at = now
        topic.pings += pings
        self._journal.release(segment, head_bytes)
        woken = self._hand_out(topic, printed, segment, offset)
        if sighting is not None and topic.duplicates is not None:
            topic.duplicates.written(sighting, segment, len(records.pack_seen(now, sighting.keys)))
        done(None)
        for queue in woken:
            queue.wake()

    def _hand_out(self, topic: Topic, printed: list[Printed], segment: int, offset: int) -> dict[MessageQueue, None]:
        """The copies are there from now on; returns the queues in which they are."""
        store = self._store
        woken: dict[MessageQueue, None] = {}
        for copies, content_offset, nbytes in printed:
            shared = Shared(topic.account, nbytes)
            place = offset + content_offset
            for queue, copy in copies:
                copy.segment = segment
                copy.offset = place
                copy.join(shared)
                if copy.content is not None:
                    store.keep(queue, copy)
                queue.enqueue(copy)
                queue.entity.confirmed_sequence = copy.sequence_number
                woken[queue] = None
        for queue in woken:
            if queue.is_timed:
                store.watched[queue] = None
        return woken

    # ---- scheduled messages whose time has come

    def publish_due(self, topic: Topic, now: float) -> None:
        while due := topic.active.take_due(now, _DUE_MAX):
            while due:
                due = self._publish_some(topic, due, now)

    def _publish_some(self, topic: Topic, due: list[Message], now: float) -> list[Message]:
        """With one record, those that fit in; returns the others."""
        press = _Press(topic)
        messages: list[Message] = []
        left = list(due)
        witness = self._store.witness
        unwanted: list[tuple[int, str | None]] = []
        while left and press.length < _DUE_BYTES_MAX:
            message = left.pop(0)
            try:
                content = self._store.content(message) if message.content is None else message.content
            except JournalError:
                topic.active.restore(message)
                continue
            press.print_due(message, content, now)
            messages.append(message)
            if witness is not None and not press.printed[-1].copies:
                unwanted.append((message.sequence_number, message_id_in(content, message.pairs_bytes)))
        if messages:
            head = records.pack_batch_head(topic.id, len(press.printed))
            written = partial(self._due_published, topic, messages, press.printed, unwanted)
            self._store.append(records.PUBLISH, (head, *press.parts), written)
        return left

    def _due_published(
        self,
        topic: Topic,
        messages: list[Message],
        printed: list[Printed],
        unwanted: list[tuple[int, str | None]],
        error: JournalError | None,
        segment: int,
        offset: int,
    ) -> None:
        if topic.deleted:
            return
        queue = topic.active
        if error is not None:
            for message in messages:
                queue.restore(message)
            self._store.watched[queue] = None
            return
        self._journal.release(segment, records.BATCH_HEAD_BYTES)
        for each in printed:
            if not each.copies:
                self._journal.release(segment, each.nbytes)
        witness = self._store.witness
        for number, mid in unwanted:
            assert witness is not None
            witness("expire", topic.path, number, mid, NO_SUBSCRIPTION)
        woken = self._hand_out(topic, printed, segment, offset)
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


class _Press:
    """Lays out the body of a PUBLISH record and draws the numbers of the copies."""

    __slots__ = ("_topic", "length", "parts", "printed")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.printed: list[Printed] = []
        self.parts: list[bytes] = []
        self.length = records.BATCH_HEAD_BYTES

    def print(self, issue: Issue, now: float, numbered: bool) -> int:
        """The number that the topic gives it, or 0 if none is needed."""
        topic = self._topic
        number = 0
        if numbered or issue.scheduled_at is not None:
            number = topic.last_sequence = topic.last_sequence + 1
        if issue.scheduled_at is not None:
            self._print_scheduled(issue, number, issue.scheduled_at)
        elif issue.targets:
            _, pairs_count, pairs_bytes, content, _ = issue.content
            copies, packed = _copies(issue, now)
            self._add(number, now, issue.header, issue.session_id, pairs_count, pairs_bytes, content, copies, packed)
        return number

    def print_due(self, message: Message, content: bytes, now: float) -> None:
        topic = self._topic
        facts = Facts(content[message.pairs_bytes :])
        targets = topic.targets(facts)
        session = facts.values(_SESSION) if topic.has_sessions else None
        session_id = None if session is None else str(session[0])
        lifetime = message.expires_at - message.enqueued_at
        kept = (message.header, message.pairs_count, message.pairs_bytes, content, None)
        issue = Issue(kept, message.header, lifetime, session_id, None, targets)
        copies, packed = _copies(issue, now)
        self._add(
            message.sequence_number,
            now,
            message.header,
            session_id,
            message.pairs_count,
            message.pairs_bytes,
            content if copies else b"",
            copies,
            packed,
        )

    def _print_scheduled(self, issue: Issue, number: int, at: float) -> None:
        topic = self._topic
        _, pairs_count, pairs_bytes, content, _ = issue.content
        expires_at = at + issue.lifetime
        copy = Copy(number, at, issue.header, pairs_count, pairs_bytes, content, len(content), expires_at)
        copy.state = copy.home = SCHEDULED
        packed = [pack_copy(topic.id, number, expires_at, 0, records.SCHEDULED, b"")]
        self._add(0, at, issue.header, None, pairs_count, pairs_bytes, content, [(topic.active, copy)], packed)

    def _add(
        self,
        number: int,
        enqueued_at: float,
        header: bytes,
        session_id: str | None,
        pairs_count: int,
        pairs_bytes: int,
        content: bytes,
        copies: list[tuple[MessageQueue, Copy]],
        packed: list[bytes],
    ) -> None:
        length = len(content)
        head = pack_publication(number, enqueued_at, header, session_id, pairs_count, pairs_bytes, length, packed)
        content_offset = self.length + len(head)
        self.length = content_offset + length
        self.parts += (head, content)
        own = sum(map(len, packed))
        self.printed.append(Printed(copies, content_offset, len(head) - own + length))


def _issue(topic: Topic, kept: Content, traits: Traits | None, payload: bytes, now: float) -> Issue:
    header = kept[0]
    lifetime = topic.description.default_ttl
    session_id = scheduled_at = None
    if traits is not None:
        session_id = traits.session_id
        if traits.scheduled_at is not None and traits.scheduled_at > now:
            scheduled_at = traits.scheduled_at
    if traits is not None and traits.ttl is not None and traits.ttl <= lifetime:
        lifetime = traits.ttl
    elif lifetime != inf:
        header = with_ttl(header, lifetime)
    targets = topic.targets(Facts(payload)) if scheduled_at is None else []
    return Issue(kept, header, lifetime, session_id, scheduled_at, targets)


def _copies(issue: Issue, now: float) -> tuple[list[tuple[MessageQueue, Copy]], list[bytes]]:
    """One for each target, with its own number and lifetime."""
    _, pairs_count, pairs_bytes, content, _ = issue.content
    length = len(content)
    copies: list[tuple[MessageQueue, Copy]] = []
    packed: list[bytes] = []
    for target in issue.targets:
        number = target.last_sequence = target.last_sequence + 1
        header = issue.header
        lifetime = issue.lifetime
        if target.default_ttl < lifetime:
            lifetime = target.default_ttl
            header = header_of(header, lifetime)
        queue = target.active
        session_id = None
        if queue.sessions is not None:
            session_id = issue.session_id
            if session_id is None:
                copy = Copy(number, now, header, pairs_count, pairs_bytes, None, length)
                copy.changes = _SESSION_MISSING
                copies.append((target.dead_letter, copy))
                packed.append(pack_copy(target.id, number, inf, 0, records.DEAD, _SESSION_MISSING))
                continue
        expires_at = now + lifetime
        copies.append(
            (queue, Copy(number, now, header, pairs_count, pairs_bytes, content, length, expires_at, session_id))
        )
        packed.append(pack_new_copy(target.id, number, expires_at))
    return copies, packed


def _full(topic: Topic, held: int, size: int) -> Refusal:
    text = (
        f"The topic '{topic.name}' is full: it holds {held} of {topic.max_bytes} bytes, "
        f"and {size} more were sent. Receive from its subscriptions or raise its maximum size."
    )
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
