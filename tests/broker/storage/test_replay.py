from __future__ import annotations

import gc
import itertools
import weakref
from dataclasses import replace
from math import inf

import pytest

from pairbus.broker.format import records
from pairbus.broker.format.forwarded import pack_forward
from pairbus.broker.format.publication import COPY_BYTES, pack_copy, pack_publication
from pairbus.broker.format.records import RecordError
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.message import DEFERRED, SCHEDULED, Stored
from pairbus.broker.model.rule_description import RuleDescription
from pairbus.broker.model.topic import Subscription, Topic, subscription_document
from pairbus.broker.slices import finish
from pairbus.broker.storage.replay import CHANGES_RESIDENT_BYTES_MAX, PartialReplay, ReplayedState, rebuild
from pairbus.journal import Record

NAMED = QueueDescription(name="orders")


class History:
    """Records as a journal would give them, each in a segment and at an offset of its own, and what was released."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.released: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def add(self, kind: int, payload: bytes) -> History:
        number = next(self._numbers)
        self.records.append(Record(number, kind, payload, number, number * 1000))
        return self

    def queue(self, id: int = 1, revision: int = 0, last: int = 0, description: QueueDescription = NAMED) -> History:
        return self.add(records.QUEUE, records.pack_queue(id, revision, last, description.to_json()))

    def enqueue(
        self,
        *numbers: int,
        id: int = 1,
        count: int = 0,
        place: int = records.ACTIVE,
        changes: bytes = b"",
        session_id: str | None = None,
        seen: tuple[float, list[bytes]] | None = None,
    ) -> History:
        payload = records.pack_batch_head(id, len(numbers))
        for number in numbers:
            payload += records.pack_entry(number, 1.5, 9.5, count, place, b"@@@@", session_id, 0, 0, changes, 3)
            payload += b"abc"
        if seen is not None:
            payload += records.pack_seen(*seen)
        return self.add(records.ENQUEUE, payload)

    def remove(self, *numbers: int, id: int = 1) -> History:
        return self.add(records.REMOVE, records.pack_remove(id, numbers))

    def update(self, number: int, count: int, place: int, changes: bytes | None = None, id: int = 1) -> History:
        return self.add(records.UPDATE, records.pack_updates(id, [(number, count, place, changes)])[0])

    def deleted(self, *ids: int) -> History:
        return self.add(records.DELETED, records.pack_deleted(*(ids or (1,))))

    def topic(self, id: int = 1) -> History:
        return self.add(records.TOPIC, records.pack_queue(id, 0, 0, TopicDescription(name="news").to_json()))

    def subscription(self, id: int, name: str, topic: int = 1, revision: int = 0) -> History:
        description = SubscriptionDescription(topic="news", name=name)
        document = subscription_document(topic, description, [RuleDescription()])
        return self.add(records.SUBSCRIPTION, records.pack_queue(id, revision, 0, document))

    def publish(self, *copies: tuple[int, int], scheduled: int = 0, place: int = records.ACTIVE) -> History:
        packed = [pack_copy(id, number, inf, 0, place, b"") for id, number in copies]
        head = pack_publication(scheduled, 1.5, b"@@@@", None, 0, 0, 3, packed)
        return self.add(records.PUBLISH, records.pack_batch_head(1, 1) + head + b"abc")

    def activated(self, old: int, new: int, id: int = 1) -> History:
        return self.add(records.ACTIVATED, records.pack_activated(id, [(old, new, 20.5, 30.5)]))

    def state(self, session_id: str, state: bytes | None, id: int = 1) -> History:
        return self.add(records.SESSION, records.pack_session(id, session_id, 7.5, state))

    def rebuild(self) -> ReplayedState:
        self.released.clear()

        def release(segment: int, nbytes: int) -> None:
            self.released[segment] = self.released.get(segment, 0) + nbytes

        return rebuild(self.records, release)

    def live(self) -> dict[int, int]:
        """Segment (one per record here) → bytes that were not released."""
        return {
            record.segment: len(record.payload) - self.released.get(record.segment, 0)
            for record in self.records
            if len(record.payload) != self.released.get(record.segment, 0)
        }


def there(rebuilt: ReplayedState, id: int = 1) -> tuple[list[int], list[int]]:
    entity = rebuilt.entities[id]
    return (
        [message.sequence_number for message in entity.active.scan(0)],
        [message.sequence_number for message in entity.dead_letter.scan(0)],
    )


def test_nothing() -> None:
    rebuilt = History().rebuild()
    assert (rebuilt.entities, rebuilt.next_id, rebuilt.meta, rebuilt.notes) == ({}, 1, None, [])


def test_a_plain_story() -> None:
    history = History().queue().enqueue(1, 2, 3).remove(2).update(3, 4, records.DEAD, b"\xc1\x01\x00")
    rebuilt = history.rebuild()
    assert there(rebuilt) == ([1], [3])
    entity = rebuilt.entities[1]
    assert (entity.last_sequence, entity.confirmed_sequence) == (3, 3)
    assert entity.active.available == entity.dead_letter.available == 1
    (dead,) = entity.dead_letter.scan(0)
    assert (dead.delivery_count, dead.changes, dead.segment, dead.length) == (4, b"\xc1\x01\x00", 2, 3)
    start = records.BATCH_HEAD_BYTES + 2 * (records.ENTRY_HEAD_BYTES + 4 + 3)
    assert dead.offset == 2000 + start + records.ENTRY_HEAD_BYTES + 4
    assert dead.content is None
    # what is left of the batch's record: two of its three messages
    assert history.live() == {1: len(history.records[0].payload), 2: 2 * (records.ENTRY_HEAD_BYTES + 4 + 3)}


def test_a_copy_replaces_what_was_known() -> None:
    history = History().queue().enqueue(1, 2).update(1, 1, records.DEAD).enqueue(1, count=1, place=records.DEAD)
    rebuilt = history.rebuild()
    assert there(rebuilt) == ([2], [1])
    (dead,) = rebuilt.entities[1].dead_letter.scan(0)
    assert (dead.segment, dead.delivery_count) == (4, 1)
    assert set(history.live()) == {1, 2, 4}


def test_what_is_told_before_its_entity_is_kept() -> None:
    rebuilt = History().remove(3).update(5, 1, records.ACTIVE).enqueue(7).queue(last=9).rebuild()
    assert there(rebuilt) == ([7], [])
    assert rebuilt.entities[1].last_sequence == 9


def test_numbers_of_what_is_gone_count() -> None:
    assert History().queue().enqueue(4).remove(4).rebuild().entities[1].last_sequence == 4
    assert History().queue().remove(6).rebuild().entities[1].last_sequence == 6
    assert History().queue(last=8).queue(revision=1, last=3).rebuild().entities[1].last_sequence == 8


def test_the_highest_revision_stands() -> None:
    newer = replace(NAMED, user_metadata="new")
    history = History().queue().queue(revision=2, description=newer).queue(revision=1)
    rebuilt = history.rebuild()
    entity = rebuilt.entities[1]
    assert (entity.description, entity.revision, entity.next_revision) == (newer, 2, 2)
    assert (entity.segment, entity.offset) == (2, 2000)
    assert set(history.live()) == {2}


def test_deleted_is_deleted() -> None:
    history = History().queue().enqueue(1, 2).deleted()
    rebuilt = history.rebuild()
    assert rebuilt.entities == {}
    assert rebuilt.next_id == 2
    assert history.live() == {}
    # copied meanwhile, and deleted once more behind the copies
    again = history.enqueue(1).queue().deleted().rebuild()
    assert again.entities == {}
    assert again.notes == []


def test_meta_keeps_ids_from_coming_back() -> None:
    rebuilt = History().add(records.META, records.pack_id(5)).queue().rebuild()
    assert (rebuilt.next_id, rebuilt.meta) == (5, (1, 1000))
    assert History().add(records.META, records.pack_id(2)).queue(id=7).rebuild().next_id == 8


def test_messages_that_nothing_describes_are_dropped_and_said() -> None:
    history = History().enqueue(1, 2, id=3)
    rebuilt = history.rebuild()
    assert rebuilt.entities == {}
    assert rebuilt.notes == ["2 messages of entity 3, which nothing describes, are dropped"]
    assert history.live() == {}


@pytest.mark.parametrize("ids", [(1, 2), (2, 1)])
def test_of_two_creations_of_one_name_the_later_stands(ids: tuple[int, int]) -> None:
    history = History()
    for id in ids:
        history.queue(id=id, description=replace(NAMED, name="ORDERS" if id == 1 else "orders"))
    rebuilt = history.enqueue(1, id=2).rebuild()
    assert list(rebuilt.entities) == [2]
    assert there(rebuilt, 2) == ([1], [])


def test_long_changes_stay_where_they_are() -> None:
    long = b"x" * (CHANGES_RESIDENT_BYTES_MAX + 1)
    rebuilt = History().queue().enqueue(1, changes=long).enqueue(2).update(2, 0, records.ACTIVE, long).rebuild()
    one, two = rebuilt.entities[1].active.scan(0)
    assert isinstance(one.changes, Stored)
    assert isinstance(two.changes, Stored)
    assert (one.changes.segment, one.changes.length) == (2, len(long))
    assert one.changes.offset == 2000 + records.BATCH_HEAD_BYTES + records.ENTRY_HEAD_BYTES + 4
    assert (two.changes.segment, two.changes.length) == (4, len(long))


def test_pings_leave_nothing() -> None:
    history = History().add(records.PING, records.pack_id(1) + b"ping")
    assert history.rebuild().entities == {}
    assert history.live() == {}


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (History().add(99, b"\x01"), "kind"),
        (History().queue().enqueue(1, place=7), "place 7"),
        (History().queue().enqueue(1).update(1, 0, 9), "place 9"),
        (History().add(records.REMOVE, b"\x02\x00\x00\x00\x01"), "version 2"),
    ],
)
def test_what_a_later_version_wrote_is_refused(history: History, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        history.rebuild()


# topics


def numbers(rebuilt: ReplayedState, id: int) -> list[int]:
    return [message.sequence_number for message in rebuilt.entities[id].active.scan(0)]


def test_copies_share_what_one_record_told() -> None:
    rebuilt = History().topic().subscription(2, "a").subscription(3, "b").publish((2, 1), (3, 7)).rebuild()
    topic = rebuilt.entities[1]
    assert isinstance(topic, Topic)
    assert list(topic.subscriptions) == ["a", "b"]
    first, second = (next(rebuilt.entities[id].active.scan(0)) for id in (2, 3))
    assert first.shared is second.shared
    assert (first.segment, first.offset) == (second.segment, second.offset)
    assert (topic.size_bytes, rebuilt.entities[3].last_sequence) == (3, 7)


def test_a_body_is_of_use_until_its_last_copy_is_gone() -> None:
    history = History().topic().subscription(2, "a").subscription(3, "b").publish((2, 1), (3, 1)).remove(1, id=2)
    whole = len(history.records[3].payload) - records.BATCH_HEAD_BYTES
    history.rebuild()
    assert history.live()[4] == whole - COPY_BYTES
    rebuilt = history.remove(1, id=3).rebuild()
    assert history.live().get(4, 0) == 0
    assert rebuilt.entities[1].size_bytes == 0


def test_a_copy_that_is_told_of_again_is_where_it_was_last_told() -> None:
    history = History().topic().subscription(2, "a").subscription(3, "b").publish((2, 1), (3, 1)).publish((3, 1))
    rebuilt = history.rebuild()
    (message,) = rebuilt.entities[3].active.scan(0)
    assert message.segment == 5
    assert next(rebuilt.entities[2].active.scan(0)).segment == 4
    assert rebuilt.entities[1].size_bytes == 6


def test_descriptions_may_come_last() -> None:
    history = History().publish((2, 4), (3, 5)).publish((1, 9), place=records.SCHEDULED)
    rebuilt = history.subscription(2, "a").topic().subscription(3, "b").rebuild()
    topic, first = rebuilt.entities[1], rebuilt.entities[2]
    assert isinstance(topic, Topic)
    assert isinstance(first, Subscription)
    assert first.topic is topic
    assert first.active.entity is first
    assert first.active.path == "news/Subscriptions/a"
    assert (numbers(rebuilt, 2), numbers(rebuilt, 3), numbers(rebuilt, 1)) == ([4], [5], [9])
    assert (topic.scheduled_count, topic.size_bytes, topic.last_sequence) == (1, 6, 9)
    assert rebuilt.notes == []


def test_a_scheduled_message_ends_when_it_is_published() -> None:
    history = History().topic().subscription(2, "a").publish((1, 5), place=records.SCHEDULED)
    history.publish((2, 1), scheduled=5)
    rebuilt = history.rebuild()
    assert (numbers(rebuilt, 1), numbers(rebuilt, 2)) == ([], [1])
    assert history.live().get(3, 0) == 0
    history.publish((1, 5), place=records.SCHEDULED)  # a copy made while the record before was on its way
    rebuilt = history.rebuild()
    assert (numbers(rebuilt, 1), numbers(rebuilt, 2)) == ([], [1])
    assert history.live().get(5, 0) == 0
    assert rebuilt.entities[1].size_bytes == 3


def test_of_two_publications_of_a_scheduled_message_the_later_stands() -> None:
    history = History().topic().subscription(2, "a").subscription(3, "b")
    history.publish((1, 5), place=records.SCHEDULED).publish((2, 1), (3, 1), scheduled=5).publish((2, 2), scheduled=5)
    rebuilt = history.rebuild()
    assert (numbers(rebuilt, 1), numbers(rebuilt, 2), numbers(rebuilt, 3)) == ([], [2], [])
    assert history.live().get(5, 0) == 0


def test_a_scheduled_message_may_become_several_publications_of_one_record() -> None:
    history = History().topic().subscription(2, "a").publish((1, 5), place=records.SCHEDULED)
    for number in (1, 3):  # what the disk answered with an error, and what was written instead
        parts = [records.pack_batch_head(1, 2)]
        for each in (number, number + 1):
            copy = pack_copy(2, each, inf, 0, records.ACTIVE, b"")
            parts += (pack_publication(5, 1.5, b"@@@@", None, 0, 0, 3, [copy]), b"abc")
        history.add(records.PUBLISH, b"".join(parts))
    rebuilt = history.rebuild()
    assert (numbers(rebuilt, 1), numbers(rebuilt, 2)) == ([], [3, 4])
    assert history.live().get(4, 0) == 0
    assert rebuilt.entities[1].size_bytes == 6


def test_a_topic_goes_with_its_subscriptions_whatever_was_told_before() -> None:
    history = History().publish((2, 1), (3, 1)).topic().subscription(2, "a").deleted(1, 2, 3)
    rebuilt = history.rebuild()
    assert (dict(rebuilt.entities), rebuilt.notes, rebuilt.next_id) == ({}, [], 4)
    assert sum(history.live().values()) == 0


def test_a_subscription_without_its_topic_is_nothing() -> None:
    history = History().topic().subscription(2, "a").deleted(1).publish((2, 1))
    rebuilt = history.rebuild()
    assert (dict(rebuilt.entities), rebuilt.notes) == ({}, [])
    assert sum(history.live().values()) == 0


def test_a_subscription_that_was_made_twice_is_the_later_one() -> None:
    rebuilt = History().topic().subscription(2, "a").subscription(3, "A").publish((2, 1)).rebuild()
    topic = rebuilt.entities[1]
    assert isinstance(topic, Topic)
    assert [each.id for each in topic.subscriptions.values()] == [3]
    assert (list(rebuilt.entities), topic.size_bytes) == ([1, 3], 0)


def test_the_highest_revision_of_a_subscription_stands() -> None:
    history = History().topic().subscription(2, "a", revision=3).subscription(2, "old", revision=2)
    rebuilt = history.rebuild()
    assert rebuilt.entities[2].name == "a"
    assert history.live().get(3, 0) == 0


# what waits, ends, belongs to sessions or is a duplicate


def test_homes_and_lifetimes() -> None:
    history = History().queue().enqueue(1).enqueue(2, place=records.SCHEDULED).enqueue(3, place=records.DEAD_DEFERRED)
    rebuilt = history.update(1, 1, records.ACTIVE_DEFERRED).rebuild()
    entity = rebuilt.entities[1]
    one, two = entity.active.scan(0)
    (three,) = entity.dead_letter.scan(0)
    assert [each.state for each in (one, two, three)] == [DEFERRED, SCHEDULED, DEFERRED]
    assert (entity.active.available, entity.active.scheduled_count, entity.active_count) == (0, 1, 1)
    assert (one.delivery_count, one.expires_at, two.enqueued_at) == (1, 9.5, 1.5)
    assert entity.active.deadline() == 1.5
    assert entity.active.is_timed


def test_what_is_dead_lettered_does_not_expire() -> None:
    rebuilt = History().queue().enqueue(1).update(1, 1, records.DEAD).rebuild()
    (dead,) = rebuilt.entities[1].dead_letter.scan(0)
    assert dead.expires_at == inf


def test_an_activation_gives_a_new_number() -> None:
    history = History().queue().enqueue(1, place=records.SCHEDULED).activated(1, 5)
    entity = history.rebuild().entities[1]
    (message,) = entity.active.scan(0)
    assert (message.sequence_number, message.enqueued_at, message.expires_at) == (5, 20.5, 30.5)
    assert (entity.last_sequence, entity.active.available, entity.active.scheduled_count) == (5, 1, 0)
    assert entity.find(1) == entity.find(5) == (entity.active, message)
    # its later records have the new number; a repeated one changes nothing
    assert there(history.activated(1, 5).rebuild()) == ([5], [])
    # copied since, under the new number
    entity = history.enqueue(5).rebuild().entities[1]
    assert entity.find(1) is None
    assert len(entity.renumbered) == 0
    assert there(history.remove(5).rebuild()) == ([], [])
    assert set(history.live()) == {1}


def test_a_copy_made_while_it_was_activated_is_the_same_message() -> None:
    history = History().queue().enqueue(1, place=records.SCHEDULED).activated(1, 5)
    history.enqueue(1, place=records.SCHEDULED)
    rebuilt = history.rebuild()
    assert there(rebuilt) == ([5], [])
    (message,) = rebuilt.entities[1].active.scan(0)
    assert message.segment == 4
    assert set(history.live()) == {1, 4}
    assert there(history.activated(1, 5).rebuild()) == ([5], [])
    assert there(History().queue().activated(1, 5).rebuild()) == ([], [])


def test_sessions_before_and_after_their_queue_is_described() -> None:
    with_sessions = replace(NAMED, requires_session=True)
    early = History().queue(description=with_sessions).enqueue(1, session_id="a").state("b", b"xyz")
    late = History().state("b", b"xyz").enqueue(1, session_id="a").queue(description=with_sessions)
    for history in (early, late):
        queue = history.rebuild().entities[1].active
        assert queue.sessions is not None
        assert sorted(finish(queue.sessions.listed(None, 0, 10))) == ["a", "b"]
        lock = queue.sessions.accept(None, 100.0)
        assert lock is not None
        assert queue.available_in(lock) == 1


def test_the_last_state_stands() -> None:
    history = History().queue().state("a", b"one").state("a", b"two").state("b", b"three").state("b", None)
    sessions = history.rebuild().entities[1].active.sessions
    assert sessions is not None
    assert finish(sessions.listed(7.0, 0, 10)) == ["a"]
    session = sessions.get("a")
    assert session is not None
    assert session.state is not None
    assert (session.state.segment, session.state.length, session.updated_at) == (3, 3, 7.5)
    assert set(history.live()) == {1, 3}
    assert history.deleted().rebuild().entities == {}
    assert history.live() == {}


def test_ids_that_were_seen() -> None:
    keys = [b"a" * 16, b"b" * 16]
    detecting = replace(NAMED, requires_duplicate_detection=True, duplicate_window=60.0)
    history = History().queue(description=detecting).enqueue(1, 2, seen=(100.0, keys)).remove(1, 2)
    duplicates = history.rebuild().entities[1].duplicates
    assert duplicates is not None
    assert duplicates.find(keys[1], 159.0) is not None
    assert history.live()[2] == len(records.pack_seen(100.0, keys))
    # their copy, and one so late that it ends their time
    seen = records.pack_id(1) + records.pack_seen(100.0, keys)
    assert history.add(records.SEEN, seen).rebuild().entities[1].duplicates is not None
    assert history.live()[4] == len(seen) - records.ID_BYTES
    assert 2 not in history.live()
    late = history.enqueue(3, seen=(160.0, [b"c" * 16])).rebuild().entities[1].duplicates
    assert len(late or ()) == 1
    assert 4 not in history.live()
    assert History().queue(description=detecting).rebuild().entities[1].duplicates is not None


def forward(history: History, source: int, numbers: tuple[int, ...], *new: int, id: int = 2) -> History:
    """Those numbers of the source become those of another entity."""
    inner = History().enqueue(*new, id=id).records[0].payload
    return history.add(records.FORWARD, pack_forward(source, records.ENQUEUE, numbers) + inner)


def test_a_forwarded_message_is_at_its_destination_and_its_content_is_found_there() -> None:
    history = History().queue().queue(2, description=replace(NAMED, name="other")).enqueue(1, 2)
    found = forward(history, 1, (1,), 7).rebuild()
    (left,), (come,) = ([*found.entities[id].active.scan(0)] for id in (1, 2))
    assert (left.sequence_number, come.sequence_number, found.entities[2].last_sequence) == (2, 7, 7)
    record = history.records[-1]
    assert record.payload[come.offset - record.offset :][:3] == b"abc" and come.segment == record.segment
    live = len(record.payload) - history.released.get(record.segment, 0)
    assert live == records.ENTRY_HEAD_BYTES + 4 + 3


def test_a_copy_that_was_made_while_its_message_was_forwarded_does_not_bring_it_back() -> None:
    history = History().queue().queue(2, description=replace(NAMED, name="other")).enqueue(1)
    forward(history, 1, (1,), 7).enqueue(1)
    found = history.rebuild()
    assert [len(found.entities[id].active) for id in (1, 2)] == [0, 1]
    assert history.released[history.records[-1].segment] == len(history.records[-1].payload)


def test_a_forward_of_a_message_that_nothing_is_known_of_still_brings_it() -> None:
    found = forward(History().queue().queue(2, description=replace(NAMED, name="other")), 1, (5,), 7).rebuild()
    assert [len(found.entities[id].active) for id in (1, 2)] == [0, 1]
    assert found.entities[1].last_sequence == 5


@pytest.mark.parametrize("payload", [b"", b"\x01\x00\x00", pack_forward(1, records.ENQUEUE, (1,))[:-1], b"\x02" * 30])
def test_a_forward_that_is_cut_or_of_a_later_version_is_refused(payload: bytes) -> None:
    with pytest.raises(RecordError):
        History().add(records.FORWARD, payload).rebuild()


def test_a_replay_is_gone_when_it_is_done_with_and_does_not_wait_for_the_cycle_collector() -> None:
    """A restarted entity would stay until then, with all its messages, beside the next ones that are rebuilt."""
    gc.disable()
    try:
        replay = PartialReplay({1}, lambda segment, nbytes: None)
        for record in History().queue().records:
            replay.apply(record)
        assert replay.finish().entities.keys() == {1}
        known = weakref.ref(replay)
        del replay
        assert known() is None
    finally:
        gc.enable()
