"""Lays out a PUBLISH record: which subscriptions get a copy of a message, their numbers, and the bytes on disk.

Pure. The work is done in small units (slices.py): a topic may have thousands of rules and subscriptions, and a batch
thousands of messages. Only one record of a topic is laid out at a time, as it gives the copies their numbers. rules.py
decides which subscriptions get a copy; a copy that an action has changed is one more body.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import Final, NamedTuple

from pairbus.broker.format import records
from pairbus.broker.format.content import Content, Traits, pack_changes, with_ttl
from pairbus.broker.format.publication import pack_copy, pack_new_copy, pack_publication
from pairbus.broker.model.message import SCHEDULED, Message
from pairbus.broker.model.outcomes import DeadLetter
from pairbus.broker.model.partitions import PARTITION_SHIFT
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rules import Facts, RuleIndex, Verdict, changed_content
from pairbus.broker.model.shared_bodies import Copy, header_of
from pairbus.broker.model.topic import FILTER_ERROR, SESSION_MISSING, Subscription, Topic

Work = Generator[None, None, None]
# Limit of the bodies that actions have changed, in one record.
_CHANGED_BYTES_MAX: Final = 64 << 20
_CHANGED_TOO_MUCH: Final = f"Actions of rules make more than {_CHANGED_BYTES_MAX} bytes of copies."
#: Copies that are made, or enter their queues, in one unit.
COPIES_AT_ONCE: Final = 8
#: How much is done at once rather than in slices, for a send with few copies: in units of a copy.
WEIGHT_AT_ONCE: Final = 16

_SESSION: Final = ("sys.group_id",)
_SESSION_MISSING: Final = pack_changes(None, SESSION_MISSING.changes()) or b""


class StoredPublication(NamedTuple):
    """The copies of one message, and where its content lies in the record; `nbytes` is what they share there."""

    copies: list[tuple[MessageQueue, Copy]]
    content_offset: int
    nbytes: int


class PublishRecord:
    """Lays out a PUBLISH record and gives the copies their numbers.

    `rules` are those by which the messages are judged, whatever the topic has by now. What takes longer than a unit is
    returned as work that is to be done before anything else is added.
    """

    __slots__ = (
        "_changed_bytes",
        "_deleting",
        "_is_of_due",
        "_joined",
        "_new_token",
        "_parts",
        "_rules",
        "_topic",
        "copies",
        "length",
        "numbers",
        "publications",
        "unmatched",
    )

    def __init__(
        self,
        topic: Topic,
        rules: RuleIndex[Subscription],
        new_token: Callable[[], bytes],
        is_of_due: bool = False,
    ) -> None:
        self._topic = topic
        self._is_of_due = is_of_due
        self._rules = rules
        self._new_token = new_token
        self._changed_bytes = 0
        self.publications: list[StoredPublication] = []
        self._parts = [b""]  # the head, once the count is known
        self._joined = 1
        self.length = records.BATCH_HEAD_BYTES
        #: How many copies there are.
        self.copies = 0
        self._deleting = 0
        #: The topic's number of each message that was sent, 0 where it needs none.
        self.numbers: list[int] = []
        #: Which of the messages, in their order, no subscription takes: they aren't stored.
        self.unmatched: list[int] = []

    def begin(self) -> None:
        """Note the present state, since adding messages takes a while."""
        self._deleting = self._count_deleting()

    @property
    def is_stale(self) -> bool:
        """Whether a subscription is being deleted since `begin`: nothing may be stored for it any more, so that all is
        to be laid out anew."""
        return self._count_deleting() != self._deleting

    def _count_deleting(self) -> int:
        return sum(subscription.deleting for subscription in self._rules.keys)

    def join(self) -> None:
        """Make one part of those that were added since the last time: a record of very many takes long to write."""
        self._parts[self._joined :] = [b"".join(self._parts[self._joined :])]
        self._joined += 1

    def all_parts(self) -> list[bytes]:
        """Return the parts of the record, its head first; none if nothing was added."""
        if not self.publications:
            return []
        self._parts[0] = records.pack_batch_head(self._topic.id, len(self.publications))
        return self._parts

    def add_sent(self, content: Content, payload: bytes, now: float, numbered: bool) -> Work | None:
        """Add a message that was just sent."""
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
        self.numbers.append(number)
        if at is not None:
            expires_at = at + lifetime
            copy = Copy(number, at, header, pairs_count, pairs_bytes, body, len(body), expires_at)
            copy.state = copy.home = SCHEDULED
            packed = [pack_copy(topic.id, number, expires_at, 0, records.SCHEDULED, b"")]
            self._add(0, at, content, None, [(topic.active, copy)], packed)
            return None
        session_id = None if traits is None else traits.session_id
        if self._rules.special:
            return self._add_judged(number, content, lifetime, session_id, now)
        return self._add_plain(number, content, lifetime, session_id, now, self._targets(Facts(payload)))

    def add_due(self, message: Message, body: bytes, now: float) -> Work | None:
        """Add a scheduled message whose time has come, for the subscriptions that take it now: it is gone with the
        record, whether one does or not."""
        topic = self._topic
        if topic.partitions is not None:
            topic.turn_to(message.sequence_number >> PARTITION_SHIFT)
        pairs = (message.pairs_count, message.pairs_bytes)
        facts = Facts(body, pairs)
        session = facts.values(_SESSION) if topic.has_sessions else None
        session_id = None if session is None else str(session[0])
        content: Content = (message.header, *pairs, body, None)
        lifetime = message.expires_at - message.enqueued_at
        number = message.sequence_number
        self.numbers.append(number)
        if self._rules.special:
            return self._add_judged(number, content, lifetime, session_id, now)
        return self._add_plain(number, content, lifetime, session_id, now, self._targets(facts))

    def _add_plain(
        self,
        number: int,
        content: Content,
        lifetime: float,
        session_id: str | None,
        now: float,
        targets: Sequence[Subscription],
    ) -> Work | None:
        """Add a message of which all of these get a copy."""
        if len(targets) > COPIES_AT_ONCE:
            return self._add_copies(number, content, lifetime, session_id, now, targets)
        if targets:
            copies: list[tuple[MessageQueue, Copy]] = []
            packed: list[bytes] = []
            _copies(targets, content, lifetime, session_id, now, copies, packed)
            self._add(number, now, content, session_id, copies, packed)
        else:
            self._add_nothing(number, content, session_id, now)
        return None

    def _add_nothing(self, number: int, content: Content, session_id: str | None, now: float) -> None:
        """Note that no subscription takes a message: one that was scheduled ends by this."""
        self.unmatched.append(len(self.numbers) - 1)
        if self._is_of_due:
            self._add(number, now, (*content[:3], b"", None), session_id, [], [])

    def _targets(self, facts: Facts) -> list[Subscription]:
        """Return the subscriptions that get a copy, except those that are to be asked
        (docs/reference/protocol.md#topics-and-rules)."""
        return [each for each in self._rules.matching(facts) if not each.deleting]

    def _add_judged(self, number: int, content: Content, lifetime: float, session_id: str | None, now: float) -> Work:
        """Add a message where rules are SQL or have actions. What these have changed become separate publications,
        under the same number."""
        stored = len(self.publications)
        default_ttl = self._topic.description.default_ttl
        facts = Facts(content[3], content[1:3], now, lifetime, self._new_token)
        verdicts: list[tuple[Subscription, Verdict]] = []
        for subscription, rules in self._rules.special.items():
            if not subscription.deleting:
                verdict = yield from rules.judge(facts)
                verdicts.append((subscription, verdict))
        changed: list[tuple[Subscription, Content, float]] = []
        errors: list[tuple[Subscription, str]] = []
        for subscription, verdict in verdicts:
            error = verdict.error
            for draft in verdict.drafts:
                yield
                made, its_lifetime = changed_content(content, draft, default_ttl, now)
                self._changed_bytes += len(made[3])
                if self._changed_bytes > _CHANGED_BYTES_MAX:
                    error = error or _CHANGED_TOO_MUCH
                    break
                changed.append((subscription, made, lifetime if its_lifetime is None else its_lifetime))
            if error is not None and subscription.description.dead_letter_on_filter_errors:
                errors.append((subscription, error))
        targets = self._targets(facts) + [subscription for subscription, verdict in verdicts if verdict.is_match]
        if targets or errors:
            yield from self._add_copies(number, content, lifetime, session_id, now, targets, errors)
        for index, (subscription, made, its_lifetime) in enumerate(changed):
            if index % COPIES_AT_ONCE == 0:
                yield
            self._add_plain(number, made, its_lifetime, session_id, now, [subscription])
        if len(self.publications) == stored:
            self._add_nothing(number, content, session_id, now)

    def _add_copies(
        self,
        number: int,
        content: Content,
        lifetime: float,
        session_id: str | None,
        now: float,
        targets: Sequence[Subscription],
        errors: Sequence[tuple[Subscription, str]] = (),
    ) -> Work:
        """Add a message with a copy for each of these, and those that could not evaluate a rule as dead letters."""
        copies: list[tuple[MessageQueue, Copy]] = []
        packed: list[bytes] = []
        for start in range(0, len(targets), COPIES_AT_ONCE):
            if start:
                yield
            _copies(targets[start : start + COPIES_AT_ONCE], content, lifetime, session_id, now, copies, packed)
        for subscription, error in errors:
            yield
            changes = pack_changes(None, DeadLetter(FILTER_ERROR, error).changes()) or b""
            copy, packed_copy = _dead_copy(subscription, content, content[0], now, changes)
            copies.append((subscription.dead_letter, copy))
            packed.append(packed_copy)
        self._add(number, now, content, session_id, copies, packed)

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
        self.copies += len(copies)
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
    targets: Sequence[Subscription],
    content: Content,
    lifetime: float,
    session_id: str | None,
    now: float,
    copies: list[tuple[MessageQueue, Copy]],
    packed: list[bytes],
) -> None:
    """Add one copy for each target, with its own number and lifetime, and the same as packed for the record."""
    sent_header, pairs_count, pairs_bytes, body, _ = content
    length = len(body)
    if targets[0].partitions is not None:
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


def _dead_copy(target: Subscription, content: Content, header: bytes, now: float, changes: bytes) -> tuple[Copy, bytes]:
    """Return a copy for the dead-letter queue of a subscription, and the same as packed for the record."""
    target.turn_with_topic()
    number = target.last_sequence = target.last_sequence + 1
    _, pairs_count, pairs_bytes, body, _ = content
    copy = Copy(number, now, header, pairs_count, pairs_bytes, None, len(body))
    copy.changes = changes
    return copy, pack_copy(target.id, number, inf, 0, records.DEAD, changes)
