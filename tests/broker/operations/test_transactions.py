"""Sends and settlements that are done together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, Outcome
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Topic
from pairbus.broker.model.transaction import (
    LIFETIME_S,
    OpenTransactions,
    Send,
    Settle,
    Transaction,
    rolled_back,
    root_of,
)
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import DEAD, Rig, body_of, make, make_special, refused


class Client:
    """One transaction after the other; `ends` is what each operation was told when its transaction ended."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.transaction = Transaction(b"1")
        self.ends: list[Refusal | None] = []

    def send(self, *payloads: bytes, path: str = "orders", via: str | None = None) -> Refusal | None:
        target = self.rig.namespace.resolve(path)
        assert isinstance(target, MessageQueue | Topic)
        return self.add(Send(target, payloads, self.ends.append), via or root_of(target.entity))

    def settle(
        self, tokens: list[bytes], outcome: Outcome | None = None, path: str = "orders", session: Any = None
    ) -> Refusal | None:
        queue = self.rig.queue(path)
        operation = Settle(queue, tokens, outcome or Complete(), self.ends.append, session)
        return self.add(operation, root_of(queue.entity))

    def add(self, operation: Send | Settle, via: str) -> Refusal | None:
        return self.rig.namespace.transactions.enlist(self.transaction, operation, via, self.rig.now)

    def commit(self) -> Refusal | None:
        return self.rig.do(self.rig.namespace.transactions.commit, self.transaction)

    def begin_commit(self) -> list[Refusal | None]:
        answers: list[Refusal | None] = []
        self.rig.namespace.transactions.commit(self.transaction, self.rig.now, answers.append)
        return answers


@pytest.fixture
def client(rig: Rig) -> Client:
    rig.create("others", lock_duration=30.0)
    return Client(rig)


def open_transactions(rig: Rig) -> OpenTransactions:
    return rig.namespace.store.transactions


def nothing_is_left(rig: Rig) -> None:
    transactions = open_transactions(rig)
    assert (len(transactions), transactions.size_bytes, transactions._tokens) == (0, 0, {})
    assert all(entity.pending_bytes == 0 for entity in rig.namespace.store.by_id.values())


def test_sends_and_settlements_are_done_together_and_survive(client: Client) -> None:
    rig = client.rig
    rig.send(b"one", b"two", b"three", b"four")
    one, two, three, four = rig.tokens(4)
    assert client.settle([one]) is None
    assert client.settle([two], Abandon({"tried": "yes"})) is None
    assert client.settle([three], DeadLetter("bad", "very")) is None
    assert client.settle([four], Defer()) is None
    assert client.send(make(b"here")) is None
    assert client.send(make(b"there", message_id="n"), path="others", via="orders") is None
    assert rig.bodies() == [b"one", b"two", b"three", b"four"]
    assert rig.bodies("others") == []
    answers = client.begin_commit()
    assert rig.bodies("others") == []
    rig.run()
    assert answers == [None]
    assert client.ends == [None] * 6
    nothing_is_left(rig)
    for life in rig.lives(lambda: rig.grow(8)):
        assert [body for body in life.bodies() if b"body" not in body] == [b"two", b"four", b"here"]
        assert life.bodies("others") == [b"there"]
        assert life.bodies(DEAD) == [b"three"]
        counts = {message.sequence_number: message.delivery_count for message in life.queue().scan(0)}
        assert (counts[2], counts[4]) == (1, 1)
        assert life.queue().entity.find(2)[1].changes is not None  # type: ignore[index]
        assert [len(message) for message in life.receive_deferred(4)[0:1]] == [1]


def test_sequence_numbers_are_given_out_at_the_commit(client: Client) -> None:
    rig = client.rig
    client.send(make(b"in it"))
    rig.send(b"before it")
    assert client.commit() is None
    numbers = {
        body_of(rig.namespace.receive.delivery(rig.queue(), m, locked=False)): m.sequence_number for m in rig.acquire(5)
    }
    assert numbers == {b"before it": 1, b"in it": 2}


def test_a_rollback_leaves_everything_as_it_was(client: Client) -> None:
    rig = client.rig
    rig.send(b"one")
    tokens = rig.tokens()
    client.settle(tokens)
    client.send(make(b"new"))
    reason = rolled_back("the client asked for it")
    rig.namespace.transactions.roll_back(client.transaction, reason)
    assert client.ends == [reason, reason]
    nothing_is_left(rig)
    assert rig.bodies() == [b"one"]
    assert rig.settle(tokens, Complete()) is None  # the lock still holds
    assert client.commit() == reason
    refused(client.send(make(b"late")), conditions.TRANSACTION_ROLLBACK)


def test_a_transaction_without_operations_is_committed(client: Client) -> None:
    assert client.commit() is None


def test_two_minutes_after_its_first_operation_it_is_rolled_back(client: Client) -> None:
    rig = client.rig
    rig.pass_time(500.0)
    client.send(make(b"new"))
    assert rig.pass_time(LIFETIME_S - 1) == rig.now + 1
    assert client.ends == []
    rig.pass_time(1.0)
    (end,) = client.ends
    refused(end, conditions.TRANSACTION_TIMEOUT, "120 seconds")
    refused(client.commit(), conditions.TRANSACTION_TIMEOUT)
    nothing_is_left(rig)
    assert rig.bodies() == []


@pytest.mark.parametrize("call", ["commit", "send"])
def test_its_time_is_over_even_if_nobody_has_looked(client: Client, call: str) -> None:
    client.send(make(b"new"))
    client.rig.now += LIFETIME_S
    answer = client.commit() if call == "commit" else client.send(make(b"more"))
    refused(answer, conditions.TRANSACTION_TIMEOUT)
    nothing_is_left(client.rig)


def test_a_lock_that_is_lost_before_the_commit_undoes_all(client: Client) -> None:
    rig = client.rig
    rig.send(b"one", b"two")
    one, two = rig.tokens(2)
    client.settle([one])
    client.settle([two])
    client.send(make(b"new"))
    assert rig.settle([two], Abandon()) is None  # by somebody else who knows the token
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, "lock supplied is invalid", "message-lock-lost")
    nothing_is_left(rig)
    assert rig.bodies() == [b"one", b"two"]
    assert rig.settle([one], Complete()) is None


def test_a_lock_that_expires_in_the_transaction_is_delivered_again_and_never_settled_by_it(client: Client) -> None:
    rig = client.rig
    rig.send(b"one")
    client.settle(rig.tokens())
    client.send(make(b"new"))
    rig.pass_time(31.0)
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK)
    assert rig.received() == [b"one"]


def test_a_message_is_settled_once(client: Client) -> None:
    rig = client.rig
    rig.send(b"one")
    tokens = rig.tokens()
    assert client.settle(tokens) is None
    refused(client.settle(tokens), conditions.MESSAGE_LOCK_LOST)
    other = Client(rig)
    refused(other.settle(tokens), conditions.MESSAGE_LOCK_LOST)
    refused(other.settle([b"unknown"]), conditions.MESSAGE_LOCK_LOST)
    assert client.commit() is None
    assert rig.bodies() == []


def test_a_full_queue_refuses_the_whole(bare: Rig) -> None:
    bare.create("small", max_size_mb=1, max_message_size_kb=1024)
    bare.create("orders")
    client = Client(bare)
    bare.send(b"one")
    tokens = bare.tokens()
    assert client.settle(tokens) is None
    assert client.send(make(b"x" * 600_000), path="small", via="orders") is None
    assert client.send(make(b"y" * 600_000), path="small", via="orders") is None  # each of them would fit
    last = bare.queue("small").entity.last_sequence
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, "'small' is full", conditions.RESOURCE_LIMIT_EXCEEDED)
    nothing_is_left(bare)
    assert bare.bodies("small") == []
    assert bare.queue("small").entity.last_sequence == last
    assert bare.settle(tokens, Complete()) is None


@pytest.mark.parametrize(
    ("fields", "payload", "expected"),
    [
        ({"requires_session": True}, make(b"x"), conditions.NOT_ALLOWED),
        ({"status": "SendDisabled"}, make(b"x"), conditions.ENTITY_DISABLED),
        ({"max_message_size_kb": 1}, make(b"x" * 2000), conditions.MESSAGE_SIZE_EXCEEDED),
        ({}, b"no message", conditions.DECODE_ERROR),
    ],
)
def test_what_could_not_be_sent_is_refused_before_the_commit(
    bare: Rig, fields: dict[str, Any], payload: bytes, expected: str
) -> None:
    bare.create(**fields)
    client = Client(bare)
    refused(client.send(payload), expected)
    assert client.commit() is None


def test_an_entity_that_is_deleted_meanwhile_undoes_all(client: Client) -> None:
    rig = client.rig
    client.send(make(b"here"))
    client.send(make(b"there"), path="others", via="orders")
    assert rig.do(rig.namespace.registry.delete_queue, "others") is None
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, "could not be found")
    assert rig.bodies() == []


@pytest.mark.parametrize("disk", ["refuses", "fails", "fails once more"])
def test_a_disk_that_refuses_undoes_all(client: Client, disk: str) -> None:
    rig = client.rig
    rig.send(b"one", b"two")
    one, two = rig.tokens(2)
    client.settle([one])
    client.settle([two], DeadLetter("bad"))
    client.send(make(b"new"))
    if disk == "refuses":
        with rig.refusing():
            answers = client.begin_commit()
    else:
        rig.fail_calls("pwrite", times=1 if disk == "fails" else 2)
        answers = client.begin_commit()
    rig.run()
    rig.wait(1.0, times=5)
    if disk == "fails once more":  # where the refusal should have been written down
        refused(answers[0], conditions.INTERNAL_ERROR, "Whether the transaction was committed is not known")
        assert answers[0].is_unknown
    else:
        refused(answers[0], conditions.TRANSACTION_ROLLBACK, "nothing was stored" if disk == "fails" else "rolled back")
        assert not answers[0].is_unknown
    nothing_is_left(rig)
    assert rig.bodies() == [b"one", b"two"]
    assert rig.settle([one, two], Complete()) is None
    with rig.reopened() as again:
        assert again.bodies() == []


def is_done(rig: Rig) -> bool:
    """Whether the transaction has been done; half of it is an error."""
    settled = {b"completed", b"dead-lettered"} - {*rig.bodies()}
    dead = rig.bodies(DEAD)
    sent = [body for body in rig.bodies() if body in (b"here", b"too")]
    sent += rig.bodies("others") + rig.bodies("news/Subscriptions/all")
    if settled or dead or sent:
        assert (len(settled), dead, sent) == (2, [b"dead-lettered"], [b"here", b"too", b"there", b"published"])
    return bool(sent)


def test_sessions(bare: Rig) -> None:
    bare.create(requires_session=True, lock_duration=30.0)
    client = Client(bare)
    bare.send_payloads(make_special(b"one", session_id="s"), make_special(b"two", session_id="s"))
    lock = bare.accept("s")
    one, two = (message.lock_token or b"" for message in bare.acquire(2, session=lock))
    assert client.settle([one], session=lock) is None
    assert client.send(make_special(b"three", session_id="s")) is None
    assert client.commit() is None
    assert bare.bodies() == [b"two", b"three"]
    client = Client(bare)
    assert client.settle([two], session=lock) is None
    bare.namespace.sessions.release(lock, bare.now)
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, conditions.SESSION_LOCK_LOST)
    assert bare.bodies() == [b"two", b"three"]


def test_scheduled_messages(client: Client) -> None:
    rig = client.rig
    assert client.send(make_special(b"later", at=rig.now + 100), make_special(b"now")) is None
    assert client.commit() is None
    assert rig.received() == [b"now"]
    for life in rig.lives():
        life.now = rig.now
        assert life.queue().scheduled_count == 1
    rig.pass_time(101.0)
    assert b"later" in rig.received()


def test_topics(bare: Rig) -> None:
    bare.create_topic()
    bare.subscribe("a")
    bare.subscribe("b")
    client = Client(bare)
    bare.send(b"first", path="news")
    path = "news/Subscriptions/a"
    tokens = bare.tokens(path=path)
    assert client.settle(tokens, path=path) is None
    assert client.send(make(b"second"), make(b"third"), path="news") is None
    assert client.commit() is None
    for life in bare.lives():
        assert life.bodies(path) == [b"second", b"third"]
        assert life.bodies("news/Subscriptions/b") == [b"first", b"second", b"third"]


def test_an_undone_publication_takes_no_numbers(bare: Rig) -> None:
    bare.create_topic()
    subscription = bare.subscribe("a")
    bare.create("small", max_size_mb=1, max_message_size_kb=1024)
    client = Client(bare)
    client.send(make(b"x"), path="news")
    client.send(make(b"x" * 600_000), path="small", via="news")
    client.send(make(b"y" * 600_000), path="small", via="news")
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK)
    assert subscription.last_sequence == 0
    assert bare.send(b"next", path="news") is None
    assert [message.sequence_number for message in subscription.active.scan(0)] == [1]


def test_duplicates_are_dropped_and_remembered_only_with_the_commit(bare: Rig) -> None:
    bare.create(requires_duplicate_detection=True)
    client = Client(bare)
    client.send(make(b"one", message_id="1"))
    client.send(make(b"one again", message_id="1"), make(b"two", message_id="2"))
    bare.namespace.transactions.roll_back(client.transaction, rolled_back("asked"))
    client = Client(bare)
    client.send(make(b"one", message_id="1"))
    client.send(make(b"one again", message_id="1"), make(b"two", message_id="2"))
    assert client.commit() is None
    for life in bare.lives():
        assert life.bodies() == [b"one", b"two"]
        assert life.send_payloads(make(b"two again", message_id="2")) is None
        assert life.bodies() == [b"one", b"two"]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_waits_for_a_message_on_its_way_that_it_repeats(bare: Rig, is_written: bool) -> None:
    bare.create(requires_duplicate_detection=True)
    client = Client(bare)
    client.send(make(b"mine", message_id="1"))
    client.send(make(b"more", message_id="2"))
    sent: list[Refusal | None] = []
    bare.namespace.enqueue.send(bare.queue(), [make(b"theirs", message_id="1")], bare.now, sent.append)
    answers = client.begin_commit()
    if not is_written:
        bare.fail_calls("pwrite", times=2)
    bare.run()
    bare.wait(1.0, times=5)
    assert answers == [None]
    assert [each is None for each in sent] == [is_written]
    assert bare.bodies() == ([b"theirs", b"more"] if is_written else [b"mine", b"more"])


@pytest.mark.parametrize("outcome", [Complete(), Abandon(), Defer(), DeadLetter("bad")])
def test_a_copy_that_compaction_makes_meanwhile_undoes_no_half_of_it(client: Client, outcome: Outcome) -> None:
    rig = client.rig
    rig.send(b"one")
    tokens = rig.tokens()
    filling = rig.grow(4)
    client.settle(tokens, outcome)
    client.send(make(b"new"), path="others", via="orders")
    task = rig.loop.create_task(rig.journal.compact(rig.namespace.store.live_records))
    answers = client.begin_commit()
    for _ in range(3):  # the copy is made behind the record of the commit, and both are written
        rig.loop.run_until_complete(_turn())
    rig.turn()
    with rig.reopened() as killed:
        assert killed.bodies("others") == [b"new"]
        _is_settled(killed, outcome, len(filling))
    while not task.done():
        rig.loop.run_until_complete(_turn())
        rig.run()
    assert answers == [None]
    for life in rig.lives():
        assert life.bodies("others") == [b"new"]
        _is_settled(life, outcome, len(filling))


async def _turn() -> None:
    pass


def _is_settled(rig: Rig, outcome: Outcome, others: int) -> None:
    found = rig.queue().entity.find(1)
    if isinstance(outcome, Complete):
        assert found is None
    elif isinstance(outcome, DeadLetter):
        assert found is not None and found[0].is_dead_letter
    else:
        assert found is not None and found[1].delivery_count == 1
    assert len([body for body in rig.bodies() if b"body" in body]) == others
