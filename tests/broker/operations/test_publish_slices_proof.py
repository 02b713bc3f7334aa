"""What is published in slices: nobody waits for it, nothing of it is half done, and nothing overtakes it.

Work is counted, not timed: a unit is one step of a job, and a turn of the loop has UNITS of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Timestamp
from pairbus.broker.format.content import SCHEDULED_TIME
from pairbus.broker.model.outcomes import Complete
from pairbus.broker.model.rule_description import FalseFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.model.transaction import Send, Transaction
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Slices
from pairbus.broker.storage import store
from pairbus.broker.storage.publish_record import StoredPublication
from pairbus.journal import Options
from tests.broker.namespace_rig import Rig, body_of, condition, make, properties_of, refused

from .test_restart import restart

UNITS = 10
A, B = "news/Subscriptions/a", "news/Subscriptions/b"
ROOMY = Options(segment_bytes=1 << 20, reserve_bytes=1024, allocate_bytes=256)


class Turns:
    """The loop of a rig: `most` is the most units that any of its turns has done."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.made = self.units = self.most = 0
        self._soon: list[Callable[[], None]] = []
        rig.namespace.store.slices = Slices(self._clock, self._soon.append, slice_s=UNITS)

    def _clock(self) -> float:
        """Return a time that passes by one with each unit: the clock is read after each."""
        self.units += 1
        return self.units

    @property
    def slices(self) -> Slices:
        return self.rig.namespace.store.slices

    def slow_down(self) -> None:
        """Let a turn do no more than one unit from now on."""
        self.slices._slice_s = self.slices._left = 1

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.made += 1
            before = self.units
            soon = list(self._soon)
            self._soon.clear()
            for callback in soon:
                callback()
            self.most = max(self.most, self.units - before)

    def do(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call of the rig and turns until it is answered."""
        answers: list[Refusal | None] = []
        call(*arguments, self.rig.now, answers.append)
        self.rig.run()
        while not answers:
            self.turn()
            self.rig.run()
        assert answers == [None]

    def run(self) -> None:
        """Make turns until all is done, on the disk too."""
        for _ in range(4):
            while self._soon:
                self.turn()
            self.rig.run()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(options=ROOMY) as rig:
        rig.create_topic()
        rig.subscribe("a", FalseFilter())
        rig.subscribe("b")
        set_rules(rig, "a", 20)
        yield rig


@pytest.fixture
def turns(rig: Rig) -> Turns:
    return Turns(rig)


def topic_of(rig: Rig) -> Topic:
    return rig.namespace.topics["news"]


def subscription(rig: Rig, name: str) -> Subscription:
    return topic_of(rig).subscriptions[name]


def set_rules(rig: Rig, name: str, count: int, value: int = 1) -> None:
    """Let a subscription have so many rules, each of which makes a copy of its own of what has a colour."""
    rules = [
        RuleDescription(name=f"r{n}", filter=SqlFilter("color = 'red'"), action=SqlAction(f"SET value = {value}"))
        for n in range(count)
    ]
    subscription(rig, name).set_rules(rules)


def red(body: bytes, **properties: Any) -> bytes:
    return encode_message(
        properties=Properties(message_id="m", **properties), application_properties={"color": "red"}, body=body
    )


def send(rig: Rig, *payloads: bytes, path: str = "news") -> list[Refusal | None]:
    answers: list[Refusal | None] = []
    target = rig.namespace.resolve(path)
    assert target is not None
    rig.namespace.enqueue.send(target, payloads, rig.now, answers.append)
    return answers


def batch(count: int, name: str = "") -> list[bytes]:
    return [red(f"{name}{n}".encode()) for n in range(count)]


def counts(rig: Rig) -> tuple[int, int]:
    return len(rig.queue(A)), len(rig.queue(B))


# nobody waits


def test_no_turn_does_more_than_its_slice_whatever_the_batch_and_the_rules(rig: Rig, turns: Turns) -> None:
    rig.create("orders")
    answers = send(rig, *batch(30))
    bystander = send(rig, make(b"x"), path="orders")
    rig.run()
    assert (bystander, answers) == ([None], [])
    turns.run()
    assert answers == [None]
    assert counts(rig) == (600, 30)
    assert turns.most <= UNITS + 1
    assert turns.made > 600 * 2 / UNITS


def test_many_subscriptions_are_laid_out_and_entered_in_slices(rig: Rig, turns: Turns) -> None:
    for n in range(100):
        rig.subscribe(f"s{n}")
    set_rules(rig, "a", 0)
    answers = send(rig, *batch(20))
    turns.run()
    assert answers == [None]
    assert turns.most <= UNITS + 1
    assert turns.made > 2 * 20 * 100 / 32 / UNITS, "both take their time"
    assert all(len(rig.queue(f"news/Subscriptions/s{n}")) == 20 for n in range(100))


def test_what_a_large_batch_became_is_freed_as_it_enters(rig: Rig, turns: Turns) -> None:
    """To free a million copies' places at once would take longer than a turn may."""
    gc.collect()  # what earlier tests have left in cycles
    assert not stored_publications()
    send(rig, *batch(30))
    seen: list[int] = []
    while turns.slices:
        turns.turn(2)
        rig.run()
        seen.append(stored_publications())
    entering = seen[seen.index(max(seen)) :]
    assert len(set(entering)) > 5 and entering[-1] == 0


def stored_publications() -> int:
    """Return how many are in memory."""
    return sum(isinstance(each, StoredPublication) for each in gc.get_objects())


def test_all_links_together_have_one_slice_a_turn(rig: Rig, turns: Turns) -> None:
    rig.create_topic("more")
    rig.subscribe("b", topic="more")
    rig.namespace.topics["more"].subscriptions["b"].set_rules(subscription(rig, "a").rules.values())
    answers = [send(rig, red(b"x"), path=path) for _ in range(30) for path in ("news", "more")]
    turns.run()
    assert answers == [[None]] * 60
    assert turns.most <= UNITS + 1


def test_a_small_send_is_laid_out_at_once(rig: Rig, turns: Turns) -> None:
    set_rules(rig, "a", 1)
    answers = send(rig, red(b"x"))
    assert len(turns.slices) == 0
    rig.run()
    assert answers == [None]
    assert counts(rig) == (1, 1)


# order


def test_what_is_sent_later_does_not_overtake(rig: Rig, turns: Turns) -> None:
    order: list[int] = []
    for n, size in enumerate((20, 1, 5, 1)):
        rig.namespace.enqueue.send(topic_of(rig), batch(size, f"{n}."), rig.now, lambda _, n=n: order.append(n))  # type: ignore[misc]
        turns.turn()
    turns.run()
    assert order == [0, 1, 2, 3]
    bodies = rig.bodies(B)
    assert bodies == [b"%d.%d" % (n, each) for n, size in enumerate((20, 1, 5, 1)) for each in range(size)]
    assert [body_of(p) for p in rig.peeked(A)][::20] == bodies


def test_a_small_send_waits_behind_a_record_that_enters_its_queues(rig: Rig, turns: Turns) -> None:
    for n in range(30):
        rig.subscribe(f"s{n}")
    set_rules(rig, "a", 0)
    first = send(rig, *batch(20))
    while not rig.journal.pending_bytes:
        turns.turn()
    subscription(rig, "b").set_rules([])
    for n in range(30):
        subscription(rig, f"s{n}").set_rules([RuleDescription(filter=TrueFilter())] if n == 0 else [])
    rig.turn()
    rig.answer()
    second = send(rig, red(b"later"))
    rig.turn()
    rig.answer()
    assert (first, second) == ([], [])
    turns.run()
    assert (first, second) == ([None], [None])
    assert rig.bodies("news/Subscriptions/s0")[-1] == b"later"


def test_other_topics_are_not_held_up(rig: Rig, turns: Turns) -> None:
    rig.create_topic("more")
    rig.subscribe("b", topic="more")
    answers = send(rig, *batch(50))
    other = send(rig, make(b"x"), path="more")
    rig.run()
    assert (answers, other) == ([], [None])


# what changes meanwhile


def test_rules_are_those_of_the_moment_of_the_send(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(5, "old"))
    turns.turn()
    set_rules(rig, "a", 3, value=2)
    rig.subscribe("late")
    later = send(rig, *batch(5, "new"))
    turns.run()
    assert (answers, later) == ([None], [None])
    found = rig.peeked(A)
    assert [properties_of(each)["value"] for each in found] == [1] * 100 + [2] * 15
    assert rig.bodies("news/Subscriptions/late") == [b"new%d" % n for n in range(5)]


def test_a_subscription_that_is_deleted_meanwhile_gets_nothing(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(5))
    turns.turn(8)
    turns.do(rig.namespace.subscriptions.delete, "news", "b")
    assert answers == []
    turns.run()
    assert answers == [None]
    assert len(rig.queue(A)) == 100
    with rig.reopened() as again:
        assert again.namespace.notes == []
        assert len(again.queue(A)) == 100


@pytest.mark.parametrize("turn_count", [1, 8, 30])
def test_a_topic_that_is_deleted_meanwhile_takes_nothing(rig: Rig, turns: Turns, turn_count: int) -> None:
    answers = send(rig, *batch(20))
    turns.turn(turn_count)
    turns.do(rig.namespace.registry.delete_topic, "news")
    turns.run()
    refused(answers[0], conditions.NOT_FOUND)
    assert rig.live_bytes() == 0 or "news" not in rig.namespace.topics
    assert rig.namespace.resident_bytes == rig.namespace.store.staged_bytes == 0
    with rig.reopened() as again:
        assert again.namespace.notes == []
        assert again.namespace.message_count == 0


def test_a_topic_that_is_disabled_meanwhile_refuses(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(20))
    turns.turn()
    description = replace(topic_of(rig).description, status="SendDisabled")
    turns.do(rig.namespace.registry.update, description)
    turns.run()
    refused(answers[0], conditions.ENTITY_DISABLED)
    assert counts(rig) == (0, 0)


def test_the_quota_is_that_of_the_commit(rig: Rig, turns: Turns) -> None:
    first, second = send(rig, *batch(5)), send(rig, *batch(5))
    topic_of(rig).max_bytes = 7 * len(red(b"0"))
    turns.run()
    assert first == [None]
    refused(second[0], conditions.RESOURCE_LIMIT_EXCEEDED, "is full")
    assert counts(rig) == (100, 5)
    assert topic_of(rig).pending_bytes == 0


def test_a_restart_of_the_topic_keeps_what_was_written_and_refuses_what_was_not(rig: Rig, turns: Turns) -> None:
    written = send(rig, *batch(5))
    while not rig.journal.pending_bytes:
        turns.turn()
    turns.slow_down()
    pending = send(rig, *batch(5))
    run = rig.run

    def run_slowly() -> None:
        turns.turn()
        run()

    rig.run = run_slowly  # type: ignore[method-assign]
    found = restart(rig, "news")
    turns.run()
    assert [each for each in found if "description" not in each] == [], "but for the rules, which the rig has set"
    assert written == [None]
    assert condition(pending[0]) == conditions.INTERNAL_ERROR
    assert counts(rig) == (100, 5)
    assert all(rig.settle(rig.tokens(100, path), Complete(), path) is None for path in (A, B))
    assert topic_of(rig).size_bytes == 0


# the bound


def test_beyond_the_bound_the_server_is_busy(rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STAGED_BYTES_MAX", 100_000)
    answers = [send(rig, *batch(20)) for _ in range(10)]
    late = [each[0] for each in answers if each]
    assert late
    for each in late:
        refused(each, conditions.SERVER_BUSY, "Please wait")
    turns.run()
    assert [each for (each,) in answers if each is None]
    assert rig.namespace.store.staged_bytes == 0
    assert send(rig, red(b"x")) == []
    turns.run()
    assert rig.bodies(B)[-1] == b"x"


def test_one_batch_that_becomes_more_than_the_bound_is_too_large(
    rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STAGED_BYTES_MAX", 30_000)
    answers = send(rig, *batch(20))
    turns.run()
    refused(answers[0], conditions.MESSAGE_SIZE_EXCEEDED, "Send fewer messages at once")
    assert rig.namespace.store.staged_bytes == 0
    assert counts(rig) == (0, 0)


def test_with_too_many_jobs_the_server_is_busy(rig: Rig, turns: Turns) -> None:
    turns.slices._jobs_max = 1
    first, second = send(rig, *batch(5)), send(rig, *batch(5))
    refused(second[0], conditions.SERVER_BUSY)
    turns.run()
    assert first == [None]
    assert rig.namespace.store.staged_bytes == 0


# crashes, shutdown, compaction


def test_a_crash_leaves_all_or_nothing(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(5))
    found = set()
    for _ in range(60):
        turns.turn()
        rig.turn()
        with rig.reopened() as again:
            found.add(counts(again))
            assert not answers or counts(again) == (100, 5), "what is confirmed is there"
        rig.answer()
    assert found == {(0, 0), (100, 5)}
    assert answers == [None]


def test_when_the_broker_stops_what_is_written_is_there_and_the_rest_is_not(rig: Rig, turns: Turns) -> None:
    written = send(rig, *batch(5))
    while not rig.journal.pending_bytes:
        turns.turn()
    turns.slow_down()
    rig.turn()
    rig.answer()
    turns.turn()
    pending = send(rig, *batch(5))
    assert 0 < sum(counts(rig)) < 105
    turns.slices.close()
    assert (written, pending) == ([None], [])
    assert counts(rig) == (100, 5)
    assert rig.namespace.store.staged_bytes == topic_of(rig).pending_bytes == 0
    refused(send(rig, *batch(5))[0], conditions.SERVER_BUSY)


def test_a_subscription_that_is_deleted_while_copies_enter_it_leaves_nothing(rig: Rig, turns: Turns) -> None:
    before = rig.live_bytes()
    send(rig, *batch(5))
    while not rig.journal.pending_bytes:
        turns.turn()
    turns.slow_down()
    rig.turn()
    rig.answer()
    turns.turn()
    assert 0 < sum(counts(rig)) < 105
    for name in "ab":
        turns.do(rig.namespace.subscriptions.delete, "news", name)
    rig.namespace.maintenance.take_some_apart()
    turns.run()
    assert rig.live_bytes() < before
    assert rig.namespace.resident_bytes == topic_of(rig).size_bytes == topic_of(rig).pending_bytes == 0


def test_compaction_waits_for_copies_that_enter_their_queues() -> None:
    with Rig() as rig:
        rig.create_topic()
        rig.subscribe("a", FalseFilter())
        rig.subscribe("b")
        set_rules(rig, "a", 20)
        turns = Turns(rig)
        answers = send(rig, *batch(5))
        while not rig.journal.pending_bytes:
            turns.turn()
        turns.slow_down()
        rig.turn()
        rig.answer()
        turns.turn()
        rig.create("orders")
        rig.grow(4)
        for _ in range(4):
            rig.compact()
        assert answers == []
        turns.run()
        assert answers == [None]
        rig.compact_all()
        for life in (rig, rig.reopened()):
            assert counts(life) == (100, 5)
            assert rig.bodies(B) == [b"%d" % n for n in range(5)]


# transactions, forwarding, scheduled messages


def begin(rig: Rig, *sends: tuple[str, list[bytes]]) -> tuple[Transaction, list[Refusal | None]]:
    """Enlist these sends and begin to commit them."""
    transaction = Transaction(b"1")
    for path, payloads in sends:
        target = rig.namespace.resolve(path)
        assert target is not None
        assert (
            rig.namespace.transactions.enlist(transaction, Send(target, payloads, lambda _: None), None, rig.now)
            is None
        )
    answers: list[Refusal | None] = []
    rig.namespace.transactions.commit(transaction, rig.now, answers.append)
    return transaction, answers


def test_a_transaction_is_prepared_in_slices_and_done_whole(rig: Rig, turns: Turns) -> None:
    rig.create("orders")
    _, answers = begin(rig, ("orders", [make(b"x")]), *(("news", [each]) for each in batch(20)))
    later = send(rig, red(b"later"))
    rig.run()
    assert len(rig.queue()) == 0
    found = set()
    for _ in range(100):
        turns.turn()
        rig.turn()
        with rig.reopened() as again:
            found.add((*counts(again), len(again.queue())))
        rig.answer()
    turns.run()
    assert (answers, later) == ([None], [None])
    assert (0, 0, 0) in found
    assert {each[2] for each in found if each[0] == 0} == {0}
    assert turns.most <= UNITS + 1
    assert (*counts(rig), len(rig.queue())) == (420, 21, 1)
    assert rig.bodies(B)[-1] == b"later"


def test_a_transaction_into_a_topic_that_is_disabled_meanwhile_is_rolled_back(rig: Rig, turns: Turns) -> None:
    rig.create("orders")
    _, answers = begin(rig, ("orders", [make(b"x")]), ("news", batch(20)))
    turns.turn()
    description = replace(topic_of(rig).description, status="SendDisabled")
    turns.do(rig.namespace.registry.update, description)
    turns.run()
    refused(answers[0], conditions.TRANSACTION_ROLLBACK, "SendDisabled")
    assert (*counts(rig), len(rig.queue())) == (0, 0, 0)
    assert rig.namespace.store.staged_bytes == 0


def test_transactions_over_the_same_topics_do_not_block_each_other(rig: Rig, turns: Turns) -> None:
    rig.create_topic("more")
    rig.subscribe("b", topic="more")
    one = begin(rig, ("news", batch(10, "1.")), ("more", batch(10, "1.")))[1]
    two = begin(rig, ("more", batch(10, "2.")), ("news", batch(10, "2.")))[1]
    turns.run()
    assert (one, two) == ([None], [None])
    for path in (B, "more/Subscriptions/b"):
        assert [body[:1] for body in rig.bodies(path)] == [b"1"] * 10 + [b"2"] * 10


def test_duplicates_are_found_in_slices_too(rig: Rig) -> None:
    rig.create_topic("strict", requires_duplicate_detection=True)
    rig.subscribe("b", topic="strict")
    rig.subscribe("a", FalseFilter(), topic="strict")
    strict = rig.namespace.topics["strict"]
    strict.subscriptions["a"].set_rules(subscription(rig, "a").rules.values())
    turns = Turns(rig)
    messages = [
        encode_message(
            properties=Properties(message_id=f"m{n}"), application_properties={"color": "red"}, body=b"%d" % n
        )
        for n in range(6)
    ]
    answers = [send(rig, *messages[:4], path="strict"), send(rig, *messages[2:5], path="strict")]
    _, both = begin(rig, ("strict", messages[3:]), ("strict", messages[5:]))
    turns.run()
    assert [*answers, both] == [[None]] * 3
    assert rig.bodies("strict/Subscriptions/b") == [b"%d" % n for n in range(6)]


def test_what_is_forwarded_into_a_topic_keeps_its_order_and_is_never_in_two_places(rig: Rig, turns: Turns) -> None:
    rig.create("first", forward_to="news")
    for n in range(10):
        assert rig.send_payloads(red(b"%d" % n), path="first") is None
    rig.namespace.forwarding.forward_due(rig.now)
    for _ in range(150):
        turns.turn()
        rig.turn()
        with rig.reopened() as again:
            assert len(again.queue("first")) + len(again.queue(B)) == 10
        rig.answer()
        rig.namespace.forwarding.forward_due(rig.now)
    turns.run()
    assert rig.bodies(B) == [b"%d" % n for n in range(10)]
    assert counts(rig) == (200, 10)
    assert turns.most <= UNITS + 1


def test_what_can_not_be_forwarded_any_more_goes_back(rig: Rig, turns: Turns) -> None:
    rig.create("first", forward_to="news")
    assert rig.send_payloads(*batch(10), path="first") is None
    rig.namespace.forwarding.forward_due(rig.now)
    turns.turn(3)
    description = replace(rig.queue("first").entity.description, forward_to=None)
    turns.do(rig.namespace.registry.update, description)
    turns.run()
    assert rig.received(path="first") == [b"%d" % n for n in range(10)]
    assert counts(rig) == (0, 0)


def test_scheduled_messages_that_are_due_are_published_in_slices(rig: Rig, turns: Turns) -> None:
    payloads = [
        encode_message(
            message_annotations=each[1],
            properties=Properties(message_id="m"),
            application_properties={"color": "red"},
            body=b"%d" % each[0],
        )
        for each in ((n, due_at(rig.now + 10)) for n in range(20))
    ]
    assert send(rig, *payloads) == []
    turns.run()
    rig.now += 10
    rig.namespace.tick(rig.now)
    later = send(rig, red(b"later"))
    rig.namespace.tick(rig.now)
    turns.turn(3)
    with rig.reopened() as again:
        assert topic_of(again).scheduled_count == 20
    turns.run()
    assert later == [None]
    assert rig.bodies(B) == [*(b"%d" % n for n in range(20)), b"later"]
    assert len(rig.queue(A)) == 21 * 20
    assert turns.most <= UNITS + 1
    assert topic_of(rig).scheduled_count == 0


def due_at(at: float) -> dict[Any, Any]:
    """Return the annotations of a message that is scheduled."""

    return {SCHEDULED_TIME: Timestamp(int(at * 1000))}
