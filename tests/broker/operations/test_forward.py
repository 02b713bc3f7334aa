"""Forwarding on the simulated disk: what goes where, what can't, and that a kill leaves a message in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import encode_message
from pairbus.amqp.types import Symbol
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.outcomes import DeadLetter, Defer
from pairbus.broker.model.rule_description import CorrelationFilter
from pairbus.broker.operations.forward import Forwarded
from tests.broker.namespace_rig import Rig, body_of, make, make_special, properties_of, refused
from tests.message_view import View

DEAD = "/$DeadLetterQueue"


@pytest.fixture
def pair(bare: Rig) -> Rig:
    """`first` forwards to `second`."""
    bare.create("second")
    bare.create("first", forward_to="second")
    return bare


def forward(rig: Rig) -> None:
    """Let all that is due be forwarded, hop by hop."""
    for _ in range(20):
        rig.pass_time(0.0)


def said_of(payload: bytes) -> dict[str, Any]:
    return {str(key): value for key, value in View(payload).message_annotations.items()}


def update(rig: Rig, name: str, **fields: Any) -> None:
    description = replace(rig.queue(name).entity.description, **fields)
    assert rig.do(rig.namespace.registry.update, description) is None


def reason(payload: bytes) -> object:
    return properties_of(payload).get("DeadLetterReason")


def where(rig: Rig) -> dict[str, list[bytes]]:
    """All messages of a namespace, by path."""
    found: dict[str, list[bytes]] = {}
    for entity in rig.namespace.store.by_id.values():
        for queue in (entity.active, entity.dead_letter):
            if len(queue):
                found[queue.path] = rig.bodies(queue.path)
    return found


def test_what_is_sent_arrives_at_the_destination_and_nowhere_else(pair: Rig) -> None:
    pair.send(b"a", b"b", path="first")
    forward(pair)
    for life in pair.lives():
        assert where(life) == {"second": [b"a", b"b"]}
    assert pair.queue("first").entity.forwarded == 2


def test_what_is_forwarded_to_several_partitions_at_once_is_confirmed_in_each(bare: Rig) -> None:
    """Compaction keeps what is not confirmed: it would bring back a message that was received since."""
    bare.create("second", enable_partitioning=True)
    bare.create("first", enable_partitioning=True)
    for body in (b"a", b"b", b"c"):
        bare.send(body, path="first")
    update(bare, "first", forward_to="second")
    forward(bare)
    entity = bare.queue("second").entity
    numbers = [message.sequence_number for message in entity.active.scan(0)]
    assert len({number >> 48 for number in numbers}) == 3
    assert all(entity.is_confirmed(number) for number in numbers)


def test_a_message_has_a_new_number_and_keeps_its_original_one(pair: Rig) -> None:
    pair.send(b"direct", b"direct", b"direct", path="second")
    pair.send(b"a", path="first")
    forward(pair)
    payload = pair.peeked("second", start=4)[0]
    said = said_of(payload)
    assert (said["x-opt-sequence-number"], said["x-opt-enqueue-sequence-number"]) == (4, 1)
    assert said["x-opt-transfer-hop-count"] == 1 and "x-opt-deadletter-source" not in said


def test_a_sender_can_not_claim_where_its_message_has_been(pair: Rig) -> None:
    claims = {Symbol("x-opt-transfer-hop-count"): 4, Symbol("x-opt-enqueue-sequence-number"): 99, Symbol("mine"): 1}
    pair.send_payloads(encode_message(None, claims, None, body=b"a"), path="first")
    forward(pair)
    said = said_of(pair.peeked("second")[0])
    assert (said["x-opt-enqueue-sequence-number"], said["x-opt-transfer-hop-count"], said["mine"]) == (1, 1, 1)


def test_messages_that_wait_already_go_when_forwarding_is_set_and_new_ones_stay_when_it_ends(bare: Rig) -> None:
    bare.create("second")
    bare.create("first")
    bare.send(b"a", path="first")
    update(bare, "first", forward_to="second")
    forward(bare)
    assert where(bare) == {"second": [b"a"]}
    update(bare, "first", forward_to=None)
    bare.send(b"b", path="first")
    forward(bare)
    assert where(bare) == {"second": [b"a"], "first": [b"b"]}
    assert bare.received(path="first") == [b"b"]


def test_nobody_receives_from_what_forwards_but_its_dead_letters(pair: Rig) -> None:
    pair.create("third", forward_to="second", forward_dead_lettered_to="second")
    update(pair, "second", status="SendDisabled")
    pair.send(b"a", path="first")
    forward(pair)
    refusal = pair.take(path="first")[1]
    refused(refusal, conditions.NOT_ALLOWED, "'first'", "forwards to 'second'", "ForwardTo")
    refused(pair.receive_deferred(1, path="first")[1], conditions.NOT_ALLOWED, "forwards to 'second'")
    assert pair.received(path="first" + DEAD) == [b"a"]
    refused(pair.take(path="third" + DEAD)[1], conditions.NOT_ALLOWED, "ForwardDeadLetteredMessagesTo")


def test_receivers_are_told_when_a_queue_begins_to_forward(bare: Rig) -> None:
    told: list[str] = []
    bare.namespace.forwarding.on_forwarding = lambda queue: told.append(queue.path)
    bare.create("second")
    bare.create("first")
    update(bare, "first", forward_to="second")
    update(bare, "first", lock_duration=5.0)
    update(bare, "first", forward_to=None, forward_dead_lettered_to="second")
    assert told == ["first", "first" + DEAD]


@pytest.mark.parametrize("field", ["forward_to", "forward_dead_lettered_to"])
def test_the_destination_must_exist_when_it_is_set_and_only_then(bare: Rig, field: str) -> None:
    bare.create("second")
    answer = bare.do(bare.namespace.registry.create, QueueDescription(name="first", **{field: "nowhere"}))
    words = {"forward_to": "ForwardTo", "forward_dead_lettered_to": "ForwardDeadLetteredMessagesTo"}
    refused(answer, conditions.INVALID_FIELD, f"{words[field]} may not be 'nowhere'", "'contoso'")
    bare.create("first", **{field: "SECOND"})
    topic = bare.create_topic()
    changed = replace(bare.subscribe("all").description, **{field: "nowhere"})
    refused(bare.do(bare.namespace.subscriptions.update, changed), conditions.INVALID_FIELD, "may not be 'nowhere'")
    assert bare.do(bare.namespace.subscriptions.update, replace(changed, **{field: topic.name})) is None
    assert bare.do(bare.namespace.registry.delete_queue, "second") is None
    update(bare, "first", lock_duration=5.0)
    assert bare.queue("first").lock_duration == 5.0


# -- hops


def chain(rig: Rig, *names: str, **fields: Any) -> None:
    following = None
    for name in reversed(names):
        rig.create(name, forward_to=following, **fields)
        following = name


def test_four_hops_are_allowed(bare: Rig) -> None:
    chain(bare, "q0", "q1", "q2", "q3", "q4")
    bare.send(b"a", path="q0")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"q4": [b"a"]}


def test_the_fifth_hop_ends_in_the_dead_letter_queue_of_the_last(bare: Rig) -> None:
    chain(bare, "q0", "q1", "q2", "q3", "q4", "q5")
    bare.send(b"a", path="q0")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"q4" + DEAD: [b"a"]}
        (dead,) = life.peeked("q4" + DEAD)
        assert reason(dead) == "MaxTransferHopCountExceeded"
        assert properties_of(dead)["DeadLetterErrorDescription"] == (
            "The message was forwarded 4 times; at most 4 hops are allowed."
        )


def test_a_circle_ends_after_four_hops(bare: Rig) -> None:
    bare.create("a")
    bare.create("b", forward_to="a")
    update(bare, "a", forward_to="b", forward_dead_lettered_to="a")
    bare.send(b"x", path="a")
    forward(bare)
    assert where(bare) == {"a" + DEAD: [b"x"]}
    update(bare, "a", forward_to=None)
    forward(bare)
    assert where(bare) == {"a" + DEAD: [b"x"]}, "a dead letter of so many hops goes nowhere either"
    update(bare, "a", forward_dead_lettered_to=None)
    assert bare.received(path="a" + DEAD) == [b"x"]


def test_a_queue_may_forward_to_itself_and_is_no_duplicate_there(bare: Rig) -> None:
    bare.create("a", requires_duplicate_detection=True)
    update(bare, "a", forward_to="a")
    bare.send(b"x", path="a")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"a" + DEAD: [b"x"]}


# -- what a destination can't take


def disable(rig: Rig) -> None:
    update(rig, "second", status="SendDisabled")


def delete(rig: Rig) -> None:
    assert rig.do(rig.namespace.registry.delete_queue, "second") is None


def fill(rig: Rig) -> None:
    rig.send(b"x" * 1_048_000, path="second")


def shrink(rig: Rig) -> None:
    update(rig, "second", max_message_size_kb=1)


UNAVAILABLE: list[tuple[Callable[[Rig], None], str, str]] = [
    (disable, "MessagingEntityDisabled", "'second' is SendDisabled"),
    (delete, "MessagingEntityNotFound", "'second' does not exist"),
    (fill, "QuotaExceeded", "'second' is full"),
    (shrink, "MessageSizeExceeded", "takes messages of up to 1024 bytes"),
]


@pytest.mark.parametrize(("make_unable", "expected", "words"), UNAVAILABLE)
def test_what_a_destination_can_not_take_is_dead_lettered_at_the_source(
    bare: Rig, make_unable: Callable[[Rig], None], expected: str, words: str
) -> None:
    bare.create("second", max_size_mb=1, max_message_size_kb=2048)
    bare.create("first", forward_to="second")
    make_unable(bare)
    for _ in range(3):
        bare.send(b"y" * 2000, path="first")
    forward(bare)
    for life in bare.lives():
        dead = life.peeked("first" + DEAD)
        assert [reason(each) for each in dead] == [expected] * 3 and not len(life.queue("first"))
        assert words in str(properties_of(dead[0])["DeadLetterErrorDescription"])


@pytest.mark.parametrize(("make_unable", "again"), [
    (disable, lambda rig: update(rig, "second", status="Active")),
    (delete, lambda rig: rig.create("second")),
    (fill, lambda rig: rig.take(path="second")),
])  # fmt: skip
def test_dead_letters_wait_for_their_destination(
    bare: Rig, make_unable: Callable[[Rig], None], again: Callable[[Rig], Any]
) -> None:
    bare.create("second", max_size_mb=1, max_message_size_kb=2048)
    bare.create("first", forward_dead_lettered_to="second")
    make_unable(bare)
    bare.send(b"y" * 2000, path="first")
    bare.settle(bare.tokens(path="first"), DeadLetter("bad"), path="first")
    forward(bare)
    assert len(bare.queue("first" + DEAD)) == 1
    again(bare)
    deadline = bare.namespace.deadline
    assert deadline is not None and 0 < deadline - bare.now <= 10.0
    bare.pass_time(deadline - bare.now)
    assert not len(bare.queue("first" + DEAD)) and bare.bodies("second") == [b"y" * 2000]


def test_a_message_without_a_session_is_no_message_for_an_entity_with_sessions(bare: Rig) -> None:
    bare.create("second", requires_session=True)
    bare.create("first", forward_to="second")
    bare.send_payloads(make_special(b"a", session_id="s"), make_special(b"b"), path="first")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"second": [b"a"], "first" + DEAD: [b"b"]}
        assert reason(life.peeked("first" + DEAD)[0]) == "Session ID is null"
        assert life.received(path="second", session=life.accept("s", path="second")) == [b"a"]


def test_a_source_that_is_disabled_keeps_its_messages_until_it_is_active(pair: Rig) -> None:
    update(pair, "first", status="ReceiveDisabled")
    pair.send(b"a", path="first")
    forward(pair)
    assert where(pair) == {"first": [b"a"]}
    update(pair, "first", status="Active")
    forward(pair)
    assert where(pair) == {"second": [b"a"]}


def test_what_the_disk_refuses_is_tried_again(pair: Rig) -> None:
    pair.send(b"a", b"b", path="first")
    with pair.refusing():
        forward(pair)
        assert where(pair) == {"first": [b"a", b"b"]} and pair.queue("second").entity.pending_bytes == 0
    forward(pair)
    assert where(pair) == {"first": [b"a", b"b"]}, "not before a second is over"
    pair.pass_time(1.0)
    assert where(pair) == {"second": [b"a", b"b"]}


def test_a_destination_that_is_busy_is_waited_for(pair: Rig) -> None:
    """Nothing is dead-lettered; what the destination takes goes, in order, and what is left a second later."""
    permits = [2]
    asked: list[tuple[str, int]] = []

    def is_busy(path: str, size: int) -> bool:
        asked.append((path, size))
        permits[0] -= 1
        return permits[0] < 0

    pair.namespace.forwarding.is_busy = is_busy
    pair.send(*(bytes([number]) for number in range(5)), path="first")
    forward(pair)
    assert where(pair) == {"first": [b"\2", b"\3", b"\4"], "second": [b"\0", b"\1"]}
    assert {path for path, _ in asked} == {"second"} and asked[0][1] > 10
    assert pair.namespace.deadline == pair.now + 1.0
    pair.pass_time(0.9)
    assert len(asked) == 3  # not asked again before its time
    permits[0] = 10
    pair.pass_time(0.1)
    assert where(pair) == {"second": [bytes([number]) for number in range(5)]}


def test_dead_letters_wait_for_a_busy_destination(bare: Rig) -> None:
    bare.create("second")
    bare.create("first", forward_dead_lettered_to="second")
    bare.namespace.forwarding.is_busy = lambda path, size: True
    bare.send(b"one", path="first")
    assert bare.settle(bare.tokens(path="first"), DeadLetter("bad"), "first") is None
    forward(bare)
    assert where(bare) == {"first/$DeadLetterQueue": [b"one"]}
    bare.namespace.forwarding.is_busy = lambda path, size: False
    bare.pass_time(1.0)
    assert where(bare) == {"second": [b"one"]}


def test_a_refusal_that_the_disk_refuses_is_tried_again(pair: Rig) -> None:
    delete(pair)
    pair.send(b"a", path="first")
    with pair.refusing():
        forward(pair)
        assert where(pair) == {"first": [b"a"]}
    pair.pass_time(1.0)
    assert where(pair) == {"first" + DEAD: [b"a"]}


# -- duplicates


def test_a_destination_drops_what_it_has_seen(bare: Rig) -> None:
    bare.create("second", requires_duplicate_detection=True)
    bare.create("first", forward_to="second")
    bare.send_payloads(make(b"a", message_id="1"), make(b"b", message_id="1"), path="first")
    forward(bare)
    bare.send_payloads(make(b"c", message_id="1"), make(b"d", message_id="2"), path="first")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"second": [b"a", b"d"]}
        life.send_payloads(make(b"e", message_id="2"), path="second")
        assert where(life) == {"second": [b"a", b"d"]}


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_duplicate_of_what_is_being_written_waits_for_it(bare: Rig, is_stored: bool) -> None:
    second = bare.create("second", requires_duplicate_detection=True)
    bare.create("first", forward_to="second")
    bare.send_payloads(make(b"b", message_id="1"), path="first")
    bare.namespace.enqueue.send(second, [make(b"a", message_id="1")], bare.now, lambda _: None)
    bare.namespace.tick(bare.now)
    assert bare.bodies("first") == [b"b"]
    if not is_stored:
        bare.fail_calls("pwrite", times=10)
    forward(bare)
    bare.files.faults.clear()
    bare.pass_time(10.0)
    forward(bare)
    assert where(bare) == {"second": [b"a"] if is_stored else [b"b"]}


# -- topics


def test_a_topic_publishes_what_is_forwarded_to_it_by_its_rules(bare: Rig) -> None:
    bare.create_topic()
    bare.subscribe("all")
    bare.subscribe("bad", CorrelationFilter(properties={"DeadLetterReason": "bad"}))
    bare.create("first", forward_to="news", forward_dead_lettered_to="news")
    bare.send(b"a", path="first")
    forward(bare)
    update(bare, "first", forward_to=None)
    bare.send(b"b", path="first")
    bare.settle(bare.tokens(path="first"), DeadLetter("bad", "for a test"), path="first")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"news/Subscriptions/all": [b"a", b"b"], "news/Subscriptions/bad": [b"b"]}
        (dead,) = life.peeked("news/Subscriptions/bad")
        said = said_of(dead)
        assert (said["x-opt-deadletter-source"], said["x-opt-enqueue-sequence-number"]) == ("first", 2)
        assert properties_of(dead) == {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "for a test"}


def test_a_topic_that_nobody_subscribes_to_takes_a_message_all_the_same(bare: Rig) -> None:
    told: list[tuple[Any, ...]] = []
    bare.namespace.store.observer = lambda *each: told.append(each)
    bare.create_topic(requires_duplicate_detection=True)
    bare.create("first", forward_to="news")
    bare.send(b"a", path="first")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {}
    assert told == [("expire", "news", None, "m", "no-subscription")]


def test_a_subscription_forwards_its_copies_on(bare: Rig) -> None:
    bare.create_topic()
    bare.create("second")
    bare.subscribe("all", forward_to="second")
    bare.subscribe("other")
    bare.send(b"a", b"b", path="news")
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"second": [b"a", b"b"], "news/Subscriptions/other": [b"a", b"b"]}
    assert said_of(bare.peeked("second")[1])["x-opt-enqueue-sequence-number"] == 2


# -- time


def test_a_scheduled_message_is_forwarded_when_it_is_due(pair: Rig) -> None:
    pair.schedule(make_special(b"a", at=pair.now + 10), path="first")
    forward(pair)
    assert where(pair) == {"first": [b"a"]}
    pair.pass_time(10.0)
    forward(pair)
    for life in pair.lives():
        assert where(life) == {"second": [b"a"]}
    assert said_of(pair.peeked("second")[0])["x-opt-enqueue-sequence-number"] == 2


def test_a_lifetime_goes_on_at_the_destination_and_is_cut_to_what_it_allows(bare: Rig) -> None:
    bare.create("second", default_ttl=60.0)
    bare.create("first", forward_to="second")
    update(bare, "first", status="ReceiveDisabled")
    bare.send_payloads(make_special(b"short", ttl=40), make_special(b"long", ttl=500), make(b"ever"), path="first")
    bare.pass_time(10.0)
    update(bare, "first", status="Active")
    forward(bare)
    for life in bare.lives():
        queue, deliver = life.queue("second"), life.namespace.receive.delivery
        ends = {body_of(deliver(queue, each, locked=False)): each.expires_at for each in queue.scan(0)}
        assert {body: round(end - life.now) for body, end in ends.items()} == {b"short": 30, b"long": 60, b"ever": 60}
    assert [View(each).header.ttl for each in bare.peeked("second")] == [30_000, 60_000, 60_000]


def test_what_has_expired_is_not_forwarded(pair: Rig) -> None:
    update(pair, "first", status="ReceiveDisabled")
    pair.send_payloads(make_special(b"a", ttl=5), make(b"b"), path="first")
    update(pair, "first", status="Active")
    pair.now += 5.0
    forward(pair)
    assert where(pair) == {"second": [b"b"]}


def test_a_dead_letter_that_expired_does_not_expire_again(bare: Rig) -> None:
    bare.create("second")
    bare.create("first", forward_dead_lettered_to="second", dead_letter_on_expiration=True)
    bare.send_payloads(make_special(b"a", ttl=5), path="first")
    bare.pass_time(5.0)
    forward(bare)
    bare.pass_time(100.0)
    for life in bare.lives():
        assert where(life) == {"second": [b"a"]}
        (dead,) = life.peeked("second")
        assert reason(dead) == "TTLExpiredException" and said_of(dead)["x-opt-deadletter-source"] == "first"


def test_a_deferred_message_stays_and_a_locked_one_goes_when_its_lock_ends(bare: Rig) -> None:
    bare.create("second")
    bare.create("first", lock_duration=30.0)
    bare.send(b"aside", b"locked", path="first")
    aside, _ = bare.tokens(2, path="first")
    assert bare.settle([aside], Defer(), path="first") is None
    update(bare, "first", forward_to="second")
    forward(bare)
    assert where(bare) == {"first": [b"aside", b"locked"]}
    bare.pass_time(30.0)
    forward(bare)
    for life in bare.lives():
        assert where(life) == {"first": [b"aside"], "second": [b"locked"]}
        (message,) = list(life.queue("second").scan(0))
        assert message.delivery_count == 0
    update(bare, "first", forward_to=None)
    assert [len(messages) for messages, _ in [bare.receive_deferred(1, path="first")]] == [1]


def test_the_wall_clock_does_not_change_when_something_is_tried_again(pair: Rig) -> None:
    pair.send(b"a", path="first")
    with pair.refusing():
        forward(pair)
    pair.now -= 3600.0
    pair.namespace.shift(-3600.0)
    pair.pass_time(1.0)
    assert where(pair) == {"second": [b"a"]}


def test_an_entity_that_forwards_is_never_idle(bare: Rig) -> None:
    bare.create("second")
    bare.create("first", forward_to="second", auto_delete_on_idle=300.0)
    bare.pass_time(10_000.0)
    assert "first" in bare.namespace.queues
    update(bare, "first", forward_to=None)
    bare.pass_time(300.0)
    assert "first" not in bare.namespace.queues


# -- records


def test_who_observes_is_told_what_went_where(pair: Rig) -> None:
    told: list[tuple[Any, ...]] = []
    pair.namespace.forwarding.on_forwarded = lambda *each: told.append(each)
    pair.send(b"a", path="first")
    forward(pair)
    ((source, destination, (one,)),) = told
    assert (source, destination) == ("first", "second")
    assert one == Forwarded(1, 1, "m", one.size)


def test_more_than_one_record_holds_goes_in_order(pair: Rig) -> None:
    bodies = [b"%d" % number for number in range(250)]
    pair.send(*bodies, path="first")
    forward(pair)
    assert where(pair) == {"second": bodies}


def test_nothing_is_left_of_what_was_forwarded_and_received(pair: Rig) -> None:
    before = pair.live_bytes()
    for _ in range(3):
        pair.send(b"a" * 100, b"b" * 100, path="first")
        forward(pair)
    assert len(pair.take(6, path="second")[0]) == 6
    pair.run()
    assert pair.live_bytes() == before


def test_a_destination_that_is_deleted_meanwhile_takes_its_messages_with_it(pair: Rig) -> None:
    pair.send(b"a", path="first")
    pair.namespace.tick(pair.now)
    assert pair.do(pair.namespace.registry.delete_queue, "second") is None
    forward(pair)
    for life in pair.lives():
        assert where(life) == {}


def test_a_source_that_is_deleted_meanwhile_is_gone(pair: Rig) -> None:
    pair.send(b"a", path="first")
    pair.namespace.tick(pair.now)
    assert pair.do(pair.namespace.registry.delete_queue, "first") is None
    forward(pair)
    for life in pair.lives():
        assert where(life) == {"second": [b"a"]}
