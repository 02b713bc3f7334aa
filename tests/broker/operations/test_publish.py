from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import UInt
from pairbus.broker.format.content import PING_CONTENT_TYPE
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter
from pairbus.broker.model.shared_bodies import Copy
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage import publish_record
from pairbus.journal import Options
from tests.broker.namespace_rig import PING, Rig, body_of, condition, make, make_special, properties_of, refused
from tests.message_view import View

A, B, C = (f"news/Subscriptions/{name}" for name in "abc")
RED = CorrelationFilter(properties={"color": "red"})
ROOMY = Options(segment_bytes=1 << 20, reserve_bytes=1024, allocate_bytes=256)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create_topic()
        rig.subscribe("a", max_delivery_count=3)
        rig.subscribe("b")
        yield rig


def colored(body: bytes, color: str, **properties: Any) -> bytes:
    return encode_message(
        properties=Properties(message_id="m", **properties), application_properties={"color": color}, body=body
    )


def copies(rig: Rig, *paths: str) -> list[Copy]:
    found = [message for path in paths for message in rig.queue(path).scan(0)]
    assert all(isinstance(each, Copy) for each in found)
    return found  # type: ignore[return-value]


def pass_time(rig: Rig, seconds: float) -> None:
    rig.now += seconds
    for _ in range(3):
        rig.namespace.tick(rig.now)
        rig.run()


# copies


def test_every_subscription_gets_its_copy_when_the_record_is_synced(rig: Rig) -> None:
    woken: list[str] = []
    for path in (A, B):
        rig.queue(path).on_available = lambda path=path: woken.append(path)  # type: ignore[misc]
    answers: list[Refusal | None] = []
    rig.namespace.enqueue.send(rig.namespace.topics["news"], [make(b"x"), make(b"y")], rig.now, answers.append)
    rig.turn()
    assert (rig.bodies(A), answers, woken) == ([], [], [])
    rig.answer()
    assert (rig.bodies(A), rig.bodies(B)) == ([b"x", b"y"], [b"x", b"y"])
    assert (answers, woken) == ([None], [A, B])


def test_each_subscription_has_its_own_numbers(rig: Rig) -> None:
    rig.subscribe("c", RED)
    for n in range(3):
        rig.send_payloads(colored(b"%d" % n, "red" if n == 1 else "blue"), path="news")
    assert [copy.sequence_number for copy in copies(rig, A)] == [1, 2, 3]
    assert [copy.sequence_number for copy in copies(rig, C)] == [1]
    with rig.reopened() as again:
        again.send_payloads(colored(b"3", "red"), path="news")
        assert [copy.sequence_number for copy in copies(again, A)] == [1, 2, 3, 4]
        assert [copy.sequence_number for copy in copies(again, C)] == [1, 2]


def test_copies_share_one_body_in_memory_and_on_disk(rig: Rig) -> None:
    before = rig.live_bytes()
    rig.send(b"x" * 500, path="news")
    first, second = copies(rig, A, B)
    assert first.content is second.content
    assert (first.segment, first.offset) == (second.segment, second.offset)
    assert first.shared is second.shared
    assert rig.namespace.resident_bytes == first.length
    assert rig.namespace.topics["news"].size_bytes == first.length
    assert first.length < rig.live_bytes() - before < first.length + 120
    with rig.reopened() as again:
        first, second = copies(again, A, B)
        assert (first.segment, first.offset) == (second.segment, second.offset)
        assert first.shared is second.shared
        assert again.namespace.topics["news"].size_bytes == first.length
        assert again.bodies(A) == again.bodies(B) == [b"x" * 500]
        assert again.live_bytes() == rig.live_bytes()


def test_the_body_is_released_with_the_last_copy(rig: Rig) -> None:
    before = rig.live_bytes()
    rig.send(b"x" * 500, path="news")
    whole = rig.live_bytes()
    rig.settle(rig.tokens(1, A), Complete(), A)
    assert whole - 40 < rig.live_bytes() < whole
    assert rig.namespace.resident_bytes == rig.namespace.topics["news"].size_bytes > 500
    assert rig.bodies(B) == [b"x" * 500]
    rig.take(1, B)
    assert rig.live_bytes() == before
    assert rig.namespace.resident_bytes == rig.namespace.topics["news"].size_bytes == 0
    with rig.reopened() as again:
        assert again.live_bytes() == before
        assert again.namespace.topics["news"].size_bytes == 0


def test_the_body_is_released_with_the_last_subscription(rig: Rig) -> None:
    rig.send(b"x" * 500, path="news")
    rig.do(rig.namespace.subscriptions.delete, "news", "a")
    rig.live_bytes()
    assert rig.namespace.resident_bytes == rig.namespace.topics["news"].size_bytes > 500
    assert rig.bodies(B) == [b"x" * 500]
    rig.do(rig.namespace.subscriptions.delete, "news", "b")
    assert rig.live_bytes() < 500
    assert rig.namespace.resident_bytes == rig.namespace.topics["news"].size_bytes == 0


def test_copies_are_settled_apart(rig: Rig) -> None:
    rig.subscribe("c", max_delivery_count=1)
    rig.send(b"x", path="news")
    rig.settle(rig.tokens(1, A), DeadLetter("why"), A)
    rig.settle(rig.tokens(1, B), Abandon({"tried": 1}), B)
    rig.settle(rig.tokens(1, B), Defer({"later": True}), B)
    rig.settle(rig.tokens(1, C), Abandon(), C)
    for each in (rig, rig.reopened()):
        dead, deferred, exhausted = A + "/$DeadLetterQueue", B, C + "/$DeadLetterQueue"
        assert [body_of(payload) for path in (dead, deferred, exhausted) for payload in each.peeked(path)] == [b"x"] * 3
        properties = [properties_of(payload) for path in (dead, deferred, exhausted) for payload in each.peeked(path)]
        assert properties[0] == {"DeadLetterReason": "why"}
        assert properties[1] == {"tried": 1, "later": True}
        assert properties[2]["DeadLetterReason"] == "MaxDeliveryCountExceeded"
        assert [copy.delivery_count for copy in copies(each, dead, deferred, exhausted)] == [0, 2, 1]
        assert each.acquire(1, B) == []
        assert len({copy.shared for copy in copies(each, dead, deferred, exhausted)}) == 1


def test_a_batch_is_one_record_and_stands_or_falls_whole(rig: Rig) -> None:
    big = make(b"x" * 300_000)
    assert condition(rig.send_payloads(make(b"a"), big, path="news")) == "amqp:link:message-size-exceeded"
    assert condition(rig.send_payloads(make(b"a"), b"nonsense", path="news")) == "amqp:decode-error"
    assert rig.bodies(A) == []
    lsn = rig.journal.last_lsn
    assert rig.send(b"a", b"b", b"c", path="news") is None
    assert rig.journal.last_lsn == lsn + 1
    with rig.reopened() as again:
        assert again.bodies(A) == again.bodies(B) == [b"a", b"b", b"c"]
        assert copies(again, A)[0].sequence_number == 1


def test_what_the_disk_refuses_is_nowhere(rig: Rig) -> None:
    rig.fail_calls()
    answers: list[Refusal | None] = []
    topic = rig.namespace.topics["news"]
    rig.namespace.enqueue.send(topic, [make(b"x")], rig.now, answers.append)
    rig.wait(0.3, 20)
    assert condition(answers[0]) == "amqp:internal-error"
    assert rig.bodies(A) == []
    assert (topic.pending_bytes, topic.size_bytes, rig.namespace.resident_bytes) == (0, 0, 0)


def test_contents_that_do_not_fit_into_memory_are_read_back() -> None:
    with Rig(memory_budget=700) as rig:
        rig.create_topic()
        rig.subscribe("a")
        rig.subscribe("b")
        for n in range(5):
            rig.send(b"%d" % n * 300, path="news")
        assert rig.bodies(A) == rig.bodies(B) == [b"%d" % n * 300 for n in range(5)]
        assert rig.namespace.resident_bytes <= 700
        assert rig.take(5, A)[0] == rig.take(5, B)[0] == [b"%d" % n * 300 for n in range(5)]
        assert rig.namespace.resident_bytes == 0


# who gets one


def test_rules_decide(rig: Rig) -> None:
    rig.do(rig.namespace.subscriptions.delete_rule, "news", "b", "$Default")
    rig.do(rig.namespace.subscriptions.create_rule, "news", "b", RuleDescription(name="red", filter=RED))
    rig.do(rig.namespace.subscriptions.create_rule, "news", "b", RuleDescription(name="too", filter=RED))
    rig.subscribe("c", FalseFilter())
    rig.send_payloads(colored(b"1", "red"), colored(b"2", "blue"), make(b"3"), path="news")
    assert rig.bodies(A) == [b"1", b"2", b"3"]
    assert rig.bodies(B) == [b"1"]
    assert rig.bodies(C) == []


def test_what_nobody_wants_is_confirmed_and_stored_nowhere(rig: Rig) -> None:
    rig.create_topic("lonely", max_message_size_kb=1)
    lsn, live = rig.journal.last_lsn, rig.live_bytes()
    assert rig.send(b"x", path="lonely") is None
    assert (rig.journal.last_lsn, rig.live_bytes()) == (lsn, live)
    assert condition(rig.send(b"x" * 1024, path="lonely")) == "amqp:link:message-size-exceeded"
    assert condition(rig.send_payloads(b"nonsense", path="lonely")) == "amqp:decode-error"
    rig.subscribe("late", topic="lonely")
    assert rig.bodies("lonely/Subscriptions/late") == []


def test_a_subscription_with_sessions_dead_letters_what_has_none(rig: Rig) -> None:
    entity = rig.subscribe("c", requires_session=True)
    rig.send_payloads(make(b"x", group_id="s"), make(b"y"), path="news")
    assert rig.bodies(A) == [b"x", b"y"]
    for each in (rig, rig.reopened()):
        entity = each.namespace.topics["news"].subscriptions["c"]
        assert each.bodies(C) == [b"x"]
        (dead,) = each.peeked(C + "/$DeadLetterQueue")
        assert properties_of(dead) == {
            "DeadLetterReason": "Session ID is null",
            "DeadLetterErrorDescription": "Session enabled entity doesn't allow a message whose session identifier is "
            "null.",
        }
        lock = each.namespace.sessions.accept(entity.active, None, each.now)
        assert lock is not None
        assert not isinstance(lock, Refusal)
        assert lock.session_id == "s"
        assert [message.session_id for message in each.namespace.receive.acquire(entity.active, 9, each.now, lock)] == [
            "s"
        ]
        assert [copy.session_id for copy in copies(each, A)] == [None, None]


def test_sending_to_a_subscription_or_a_disabled_topic_is_refused(rig: Rig) -> None:
    rig.create_topic("closed", status="SendDisabled")
    rig.subscribe("all", topic="closed")
    assert condition(rig.send(b"x", path="closed")) == "com.microsoft:entity-disabled"
    assert condition(rig.send_payloads(PING, path="closed")) == "com.microsoft:entity-disabled"
    topic = rig.namespace.topics["closed"]
    rig.do(rig.namespace.registry.update, topic.description.__class__(name="closed"))
    assert rig.send(b"x", path="closed") is None


def test_a_subscription_that_lets_nobody_receive_still_gets_copies(rig: Rig) -> None:
    entity = rig.subscribe("c", status="ReceiveDisabled")
    rig.send(b"x", path="news")
    assert rig.acquire(1, C) == []
    assert entity.active_count == 1


# the size of a topic


def test_a_full_topic_refuses_until_there_is_room() -> None:
    with Rig(options=ROOMY) as rig:
        topic = rig.create_topic(max_size_mb=1)
        rig.subscribe("a")
        rig.subscribe("b")
        body = b"x" * 250_000
        for _ in range(4):
            assert rig.send(body, path="news") is None
        for payload in (make(body), encode_message(properties=Properties(content_type=PING_CONTENT_TYPE), body=body)):
            refused(rig.send_payloads(payload, path="news"), "amqp:resource-limit-exceeded", "topic 'news' is full")
        rig.take(1, A)
        assert condition(rig.send(body, path="news")) == "amqp:resource-limit-exceeded"
        rig.take(1, B)
        assert rig.send(body, path="news") is None
        with rig.reopened(options=ROOMY) as again:
            assert again.namespace.topics["news"].size_bytes == topic.size_bytes
            assert condition(again.send(body, path="news")) == "amqp:resource-limit-exceeded"


def test_publishes_under_way_count() -> None:
    with Rig(options=ROOMY) as rig:
        topic = rig.create_topic(max_size_mb=1)
        rig.subscribe("a")
        answers: list[Refusal | None] = []
        for _ in range(5):
            rig.namespace.enqueue.send(topic, [make(b"x" * 250_000)], rig.now, answers.append)
        rig.run()
        assert [condition(answer) for answer in answers] == ["amqp:resource-limit-exceeded"] + [None] * 4
        assert topic.pending_bytes == 0


# pings (P32)


def test_pings_reach_nobody_are_written_and_counted(rig: Rig) -> None:
    topic = rig.namespace.topics["news"]
    live = rig.live_bytes()
    lsn = rig.journal.last_lsn
    assert rig.send_payloads(PING, PING, path="news") is None
    assert rig.journal.last_lsn == lsn + 1
    assert (topic.pings, rig.live_bytes()) == (2, live)
    assert rig.send_payloads(PING, make(b"x"), path="news") is None
    assert rig.bodies(A) == rig.bodies(B) == [b"x"]
    assert topic.pings == 3
    with rig.reopened() as again:
        assert again.bodies(A) == [b"x"]


# time


def test_a_copy_lives_as_long_as_sender_topic_and_subscription_allow(bare: Rig) -> None:
    bare.create_topic(default_ttl=100.0)
    bare.subscribe("a")
    bare.subscribe("b", default_ttl=20.0, dead_letter_on_expiration=True)
    bare.subscribe("c", default_ttl=500.0)
    short = encode_message(header=Header(ttl=UInt(10_000)), properties=Properties(message_id="m"), body=b"short")
    bare.send_payloads(short, make(b"long"), path="news")
    for each in (bare, bare.reopened()):
        lives = [[copy.expires_at - copy.enqueued_at for copy in copies(each, path)] for path in (A, B, C)]
        assert lives == [[10.0, 100.0], [10.0, 20.0], [10.0, 100.0]]
        told = [[View(payload).header.ttl for payload in each.peeked(path)] for path in (A, B, C)]
        assert told == [[10_000, 100_000], [10_000, 20_000], [10_000, 100_000]]
    pass_time(bare, 10.0)
    assert [bare.bodies(path) for path in (A, B, C)] == [[b"long"]] * 3
    pass_time(bare, 10.0)
    assert [bare.bodies(path) for path in (A, B, C)] == [[b"long"], [], [b"long"]]
    assert bare.bodies(B + "/$DeadLetterQueue") == [b"short", b"long"]


def test_scheduled_messages_wait_on_the_topic_and_are_published_when_due(rig: Rig) -> None:
    topic = rig.namespace.topics["news"]
    assert rig.schedule(make_special(b"x", at=rig.now + 10.0), path="news") == ([1], None)
    assert rig.send_payloads(make_special(b"y", at=rig.now + 20.0), make(b"now"), path="news") is None
    assert (topic.scheduled_count, rig.bodies(A)) == (2, [b"now"])
    rig.subscribe("c")
    with rig.reopened() as again:
        assert again.namespace.topics["news"].scheduled_count == 2
        assert again.namespace.tick(again.now) == 1010.0
        pass_time(again, 20.0)
        assert again.namespace.topics["news"].scheduled_count == 0
        assert again.bodies(A) == [b"now", b"x", b"y"]
        assert again.bodies(C) == [b"x", b"y"]
        assert [copy.enqueued_at for copy in copies(again, A)] == [1000.0, 1020.0, 1020.0]
        with again.reopened() as last:
            assert last.namespace.topics["news"].scheduled_count == 0
            assert last.bodies(A) == [b"now", b"x", b"y"]
            assert last.schedule(make_special(b"z", at=last.now + 10.0), path="news") == ([3], None)


def test_scheduled_messages_can_be_cancelled(rig: Rig) -> None:
    live = rig.live_bytes()
    topic = rig.namespace.topics["news"]
    numbers, _ = rig.schedule(make_special(b"x", at=rig.now + 10.0), make_special(b"y", at=rig.now + 10.0), path="news")
    assert numbers == [1, 2]
    assert (
        condition(rig.do(rig.namespace.settlement.cancel_scheduled, topic, [1, 9])) == "com.microsoft:message-not-found"
    )
    assert rig.do(rig.namespace.settlement.cancel_scheduled, topic, [1]) is None
    pass_time(rig, 10.0)
    assert rig.bodies(A) == [b"y"]
    assert condition(rig.do(rig.namespace.settlement.cancel_scheduled, topic, [2])) == "com.microsoft:message-not-found"
    rig.take(1, A)
    rig.take(1, B)
    assert rig.live_bytes() == live
    assert (topic.size_bytes, rig.namespace.resident_bytes) == (0, 0)


def test_a_scheduled_message_that_nobody_wants_when_it_is_due(rig: Rig) -> None:
    live = rig.live_bytes()
    rig.schedule(make_special(b"x", at=rig.now + 10.0), path="news")
    for name in "ab":
        rig.do(rig.namespace.subscriptions.delete_rule, "news", name, "$Default")
    pass_time(rig, 10.0)
    topic = rig.namespace.topics["news"]
    assert (topic.scheduled_count, topic.size_bytes, rig.bodies(A)) == (0, 0, [])
    assert rig.live_bytes() <= live
    with rig.reopened() as again:
        assert again.namespace.topics["news"].scheduled_count == 0


def test_a_scheduled_message_lives_from_when_it_is_due(bare: Rig) -> None:
    bare.create_topic(default_ttl=100.0)
    bare.subscribe("a", default_ttl=50.0)
    bare.subscribe("b", requires_session=True)
    bare.schedule(
        make_special(b"x", at=bare.now + 10.0, session_id="s"), make_special(b"y", at=bare.now + 10.0), path="news"
    )
    pass_time(bare, 15.0)
    assert [copy.expires_at for copy in copies(bare, A)] == [1065.0, 1065.0]
    assert [(copy.expires_at, copy.session_id) for copy in copies(bare, B)] == [(1115.0, "s")]
    assert bare.bodies(B + "/$DeadLetterQueue") == [b"y"]


def test_many_and_large_scheduled_messages_are_published_with_several_records() -> None:
    with Rig(options=ROOMY) as rig:
        rig.create_topic()
        rig.subscribe("a")
        bodies = [b"%03d" % n * (80_000 if n < 12 else 1) for n in range(230)]
        at = rig.now + 10.0
        for start in range(0, 230, 10):
            rig.schedule(*(make_special(body, at=at) for body in bodies[start : start + 10]), path="news")
        lsn = rig.journal.last_lsn
        pass_time(rig, 10.0)
        assert rig.journal.last_lsn >= lsn + 4
        assert sorted(rig.take(300, A)[0]) == sorted(bodies)


def test_a_due_message_that_could_not_be_written_is_tried_again(rig: Rig) -> None:
    rig.schedule(make_special(b"x", at=rig.now + 10.0), path="news")
    rig.fail_calls("fdatasync", times=1)
    for _ in range(40):
        pass_time(rig, 0.5)
    assert rig.files.struck
    for each in (rig, rig.reopened()):
        assert each.namespace.topics["news"].scheduled_count == 0
        assert each.bodies(A) == each.bodies(B) == [b"x"]


def test_a_cancelled_message_of_which_nobody_knew_whether_it_was_published_does_not_come_back(rig: Rig) -> None:
    (number,), _ = rig.schedule(make_special(b"x", at=rig.now + 10.0), path="news")
    rig.fail_calls("fdatasync", "truncate", "create", "rename")  # it is written, and can be neither synced nor cut off
    rig.pass_time(10.0)
    assert rig.bodies(A) == []
    with rig.reopened() as again:
        assert again.bodies(A) == [b"x"]
    rig.files.faults = [fault for fault in rig.files.faults if fault.call == "truncate"]
    rig.wait(0.5, times=2)
    assert rig.cancel(number, path="news") is None
    for files in (rig.files.kill(), rig.files.power_cut(), rig.files.power_cut(everything=True)):
        with rig.reopened(files) as again:
            assert again.namespace.topics["news"].scheduled_count == 0
            assert again.bodies(A) == again.bodies(B) == []


# duplicates


def test_duplicates_are_found_on_the_topic(bare: Rig) -> None:
    bare.create_topic(requires_duplicate_detection=True, duplicate_window=60.0)
    bare.subscribe("a", RED)
    assert bare.send_payloads(colored(b"1", "red"), colored(b"2", "red"), path="news") is None
    assert bare.bodies(A) == [b"1"]
    assert bare.send_payloads(colored(b"3", "red"), path="news") is None
    assert bare.bodies(A) == [b"1"]
    with bare.reopened() as again:
        again.send_payloads(colored(b"4", "red"), path="news")
        assert again.bodies(A) == [b"1"]
        pass_time(again, 61.0)
        again.send_payloads(colored(b"5", "red"), path="news")
        assert again.bodies(A) == [b"1", b"5"]


def test_an_id_that_nobody_wanted_is_remembered_too(bare: Rig) -> None:
    bare.create_topic(requires_duplicate_detection=True, duplicate_window=60.0)
    assert bare.send_payloads(make(b"1"), PING, path="news") is None
    assert bare.namespace.topics["news"].pings == 1
    bare.subscribe("a")
    bare.send(b"2", path="news")
    assert bare.bodies(A) == []
    with bare.reopened() as again:
        again.send(b"3", path="news")
        assert again.bodies(A) == []
        assert again.schedule(
            make_special(b"4", at=again.now + 9.0), make_special(b"5", at=2e9, id="n"), path="news"
        ) == (
            [0, 1],
            None,
        )


def test_a_duplicate_waits_for_what_becomes_of_the_first() -> None:
    with Rig() as rig:
        topic = rig.create_topic(requires_duplicate_detection=True)
        rig.subscribe("a")
        answers: list[str] = []
        rig.namespace.enqueue.send(topic, [make(b"1")], rig.now, lambda refusal: answers.append("first"))
        rig.namespace.enqueue.send(topic, [make(b"2")], rig.now, lambda refusal: answers.append("second"))
        assert answers == []
        rig.run()
        assert sorted(answers) == ["first", "second"]
        assert rig.bodies(A) == [b"1"]


# compaction


def test_compaction_copies_a_shared_body_once_for_the_copies_that_live(rig: Rig) -> None:
    rig.subscribe("c")
    for n in range(8):
        rig.send(b"%d" % n * 200, path="news")
    rig.settle(rig.tokens(8, A), Complete(), A)
    rig.settle(rig.tokens(2, B), Abandon({"tried": "x" * 600}), B)
    rig.settle(rig.tokens(1, B), DeadLetter("why", "because " * 100), B)
    rig.settle(rig.tokens(3, C), Complete(), C)
    expected = {path: rig.peeked(path) for path in (A, B, B + "/$DeadLetterQueue", C)}
    assert [len(each) for each in expected.values()] == [0, 7, 1, 5]
    for _ in range(3):
        rig.compact_all()
        assert {path: rig.peeked(path) for path in expected} == expected
        for first in copies(rig, B):
            for second in copies(rig, C):
                if first.shared is second.shared:
                    assert (first.segment, first.offset) == (second.segment, second.offset)
        bodies = {(copy.segment, copy.offset) for copy in copies(rig, *expected)}
        assert len(bodies) == 8
        with rig.reopened() as again:
            assert {path: again.peeked(path) for path in expected} == expected
            assert again.namespace.topics["news"].size_bytes == rig.namespace.topics["news"].size_bytes
            again.compact_all()
            assert {path: again.peeked(path) for path in expected} == expected


def test_a_scheduled_message_that_is_copied_while_it_is_published_is_published_once(rig: Rig) -> None:
    rig.schedule(make_special(b"x", at=rig.now + 10.0), path="news")
    while len(rig.journal.segments()) < 3:
        rig.create(f"q{rig.journal.last_lsn}")
    topic = rig.namespace.topics["news"]
    rig.now += 10.0

    def publish() -> None:
        rig.namespace.tick(rig.now)
        assert topic.scheduled_count == 1

    rig.compact(publish)
    rig.run()
    for each in (rig, rig.reopened()):
        assert each.namespace.topics["news"].scheduled_count == 0
        assert each.bodies(A) == [b"x"]
    rig.compact_all()
    with rig.reopened() as again:
        assert again.namespace.topics["news"].scheduled_count == 0
        assert again.bodies(A) == [b"x"]


# SQL rules and actions


def rule(expression: str, action: str | None = None, name: str = "$Default") -> RuleDescription:
    return RuleDescription(
        name=name, filter=SqlFilter(expression), action=None if action is None else SqlAction(action)
    )


def add_rules(rig: Rig, name: str, *rules: RuleDescription) -> None:
    rig.do(rig.namespace.subscriptions.delete_rule, "news", name, "$Default")
    for each in rules:
        assert rig.do(rig.namespace.subscriptions.create_rule, "news", name, each) is None


def test_sql_decides(rig: Rig) -> None:
    add_rules(rig, "b", rule("color = 'red' AND sys.Label LIKE 'u%'"), rule("color = 'green'", name="green"))
    rig.send_payloads(
        colored(b"1", "red", subject="urgent"), colored(b"2", "red"), colored(b"3", "green"), make(b"4"), path="news"
    )
    assert rig.bodies(A) == [b"1", b"2", b"3", b"4"]
    assert rig.bodies(B) == [b"1", b"3"]


def test_five_matches_of_which_two_have_actions_are_three_copies(rig: Rig) -> None:
    add_rules(
        rig,
        "b",
        rule("color = 'red'", name="one"),
        rule("color LIKE 'r%'", name="two"),
        RuleDescription(name="three", filter=RED),
        rule("color = 'red'", "SET color = 'blue'; SET sys.To = 'Entity'; SET n = 1", name="four"),
        RuleDescription(name="five", filter=RED, action=SqlAction("REMOVE color")),
    )
    rig.send_payloads(colored(b"x", "red"), colored(b"y", "green"), path="news")
    for each in rig.lives():
        assert each.bodies(A) == [b"x", b"y"]
        peeked = each.peeked(B)
        assert [body_of(payload) for payload in peeked] == [b"x"] * 3
        assert [properties_of(payload) for payload in peeked] == [
            {"color": "red"},
            {"RuleName": "five"},
            {"color": "blue", "n": 1, "RuleName": "four"},
        ]
        assert [View(payload).properties.to for payload in peeked] == [None, None, "Entity"]
        assert [copy.sequence_number for copy in copies(each, B)] == [1, 2, 3]
        assert [len({copy.shared for copy in copies(each, *paths)}) for paths in ((A, B), (B,))] == [4, 3]


def test_changed_copies_are_settled_and_released_like_any_other(rig: Rig) -> None:
    add_rules(rig, "a", rule("1=1", "SET n = 1", name="one"))
    add_rules(rig, "b", rule("1=1", "SET n = 2", name="two"))
    before = rig.live_bytes()
    rig.send(b"x" * 300, path="news")
    assert rig.namespace.topics["news"].size_bytes > 600
    rig.settle(rig.tokens(1, A), Abandon({"tried": 1}), A)
    rig.settle(rig.tokens(1, B), DeadLetter("why"), B)
    for each in rig.lives():
        (first,), (second,) = each.peeked(A), each.peeked(B + "/$DeadLetterQueue")
        assert properties_of(first) == {"n": 1, "RuleName": "one", "tried": 1}
        assert properties_of(second) == {"n": 2, "RuleName": "two", "DeadLetterReason": "why"}
    with rig.reopened() as again:
        again.settle(again.tokens(1, A), Complete(), A)
        again.settle(again.tokens(1, B + "/$DeadLetterQueue"), Complete(), B + "/$DeadLetterQueue")
        assert again.namespace.topics["news"].size_bytes == 0
        assert again.live_bytes() <= before


def test_a_filter_error_is_dead_lettered_where_the_subscription_asks_for_it(rig: Rig) -> None:
    broken = SqlFilter("sys.NoSuch = 1")
    rig.subscribe("asks", broken, dead_letter_on_filter_errors=True)
    rig.subscribe("not", broken, dead_letter_on_filter_errors=False)
    rig.send(b"x", path="news")
    assert rig.bodies(A) == rig.bodies(B) == [b"x"]
    for each in rig.lives():
        asks, does_not = "news/Subscriptions/asks", "news/Subscriptions/not"
        (dead,) = each.peeked(asks + "/$DeadLetterQueue")
        assert body_of(dead) == b"x"
        assert properties_of(dead) == {
            "DeadLetterReason": "FilterEvaluationException",
            "DeadLetterErrorDescription": "The filter of rule '$Default' can't be evaluated: messages have no system "
            "property 'NoSuch'.",
        }
        assert [each.bodies(path) for path in (asks, does_not, does_not + "/$DeadLetterQueue")] == [[], [], []]


def test_an_action_that_fails_is_an_error_of_its_rule_alone(rig: Rig) -> None:
    add_rules(rig, "a", rule("1=1", "SET sys.Size = 1", name="fails"), rule("1=1", "SET n = 1", name="works"))
    rig.send(b"x", path="news")
    assert [properties_of(payload) for payload in rig.peeked(A)] == [{"n": 1, "RuleName": "works"}]
    (dead,) = rig.peeked(A + "/$DeadLetterQueue")
    assert "The action of rule 'fails'" in str(properties_of(dead)["DeadLetterErrorDescription"])


def test_copies_that_would_take_too_much_are_errors(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_record, "_CHANGED_BYTES_MAX", 500)
    add_rules(rig, "a", *(rule("1=1", "SET n = 1", name=f"r{n}") for n in range(4)))
    rig.send(b"x" * 200, path="news")
    assert len(rig.peeked(A)) == 2
    assert len(rig.peeked(A + "/$DeadLetterQueue")) == 1


def test_what_an_action_says_of_time_to_live_counts_and_of_the_session_does_not(rig: Rig) -> None:
    entity = rig.subscribe("c", SqlFilter("1=0"), requires_session=True)
    change = "SET sys.TimeToLive = '00:01:00' SET sys.SessionId = 'other' SET sys.MessageId = 'new'"
    add_rules(rig, "c", rule("1=1", change, name="r"))
    rig.send_payloads(make(b"x", group_id="s"), path="news")
    for each in rig.lives():
        entity = each.namespace.topics["news"].subscriptions["c"]
        (copy,) = copies(each, C)
        assert (copy.session_id, copy.expires_at) == ("s", 1060.0)
        view = View(each.peeked(C)[0])
        assert (view.header.ttl, view.properties.group_id, view.properties.message_id) == (60_000, "other", "new")
        assert entity.active.sessions is not None
    pass_time(rig, 61.0)
    assert rig.bodies(C) == []


def test_the_lifetime_that_a_topic_allows_is_the_most_that_an_action_can_give() -> None:
    with Rig() as rig:
        rig.create_topic(default_ttl=30.0)
        rig.subscribe("a")
        add_rules(
            rig,
            "a",
            rule("1=1", "SET sys.TimeToLive = '1.00:00:00'", name="more"),
            rule("1=1", "REMOVE sys.TimeToLive", name="x"),
        )
        rig.send(b"x", path="news")
        assert [copy.expires_at for copy in copies(rig, A)] == [1030.0, 1030.0]
        assert [View(payload).header.ttl for payload in rig.peeked(A)] == [30_000, 30_000]


def test_a_scheduled_message_meets_the_rules_of_its_time(rig: Rig) -> None:
    rig.subscribe("c", SqlFilter("1=0"))
    rig.schedule(make_special(b"x", at=1060.0), make_special(b"y", at=1060.0, id="y"), path="news")
    add_rules(rig, "a", rule("sys.MessageId = 'm'", "SET n = 1", name="one"), rule("1=1", name="all"))
    add_rules(rig, "b", rule("sys.MessageId = 'm'", "SET n = sys.EnqueuedTimeUtc", name="two"))
    pass_time(rig, 60.0)
    for each in rig.lives():
        assert [body_of(payload) for payload in each.peeked(A)] == [b"x", b"x", b"y"]
        assert [properties_of(payload) for payload in each.peeked(A)] == [{}, {"n": 1, "RuleName": "one"}, {}]
        assert [properties_of(payload)["n"] for payload in each.peeked(B)] == [1_060_000]
        assert each.namespace.topics["news"].scheduled_count == 0
        assert each.bodies(C) == []


def test_a_scheduled_message_whose_publication_the_disk_answered_with_an_error_is_not_doubled(rig: Rig) -> None:
    add_rules(rig, "a", rule("1=1", "SET n = 1", name="one"), rule("1=1", name="all"))
    rig.schedule(make_special(b"x", at=1060.0), path="news")
    rig.fail_calls("fdatasync", "fsync", times=1)
    for _ in range(20):
        pass_time(rig, 60.0)
    for each in rig.lives():
        assert [properties_of(payload) for payload in each.peeked(A)] == [{}, {"n": 1, "RuleName": "one"}]


def test_new_ids(rig: Rig) -> None:
    add_rules(rig, "a", rule("1=1", "SET a = newid() SET b = newid()", name="one"))
    rig.send(b"x", path="news")
    (payload,) = rig.peeked(A)
    ids = properties_of(payload)
    assert isinstance(ids["a"], UUID)
    assert ids["a"] != ids["b"]
