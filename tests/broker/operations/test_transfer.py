"""Messages that are sent through another entity, and the transfer dead-letter queue of that entity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Topic
from pairbus.broker.model.transaction import Send, Settle, Transaction, root_of
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import PING, Rig, body_of, make, make_special, properties_of, refused

TRANSFER = "orders/$Transfer/$DeadLetterQueue"


class Client:
    """A transaction that goes through `orders`."""

    def __init__(self, rig: Rig, via: str = "orders") -> None:
        self.rig = rig
        self.via = via
        self.transaction = Transaction(b"1")
        self.ends: list[Refusal | None] = []

    def target(self, path: str) -> MessageQueue | Topic:
        found = self.rig.namespace.resolve(path)
        assert found is not None
        return found

    def send(self, *payloads: bytes, path: str = "others") -> Refusal | None:
        operation = Send(self.target(path), payloads, self.ends.append, via=self.target(self.via))
        return self.rig.namespace.transactions.enlist(self.transaction, operation, self.via, self.rig.now)

    def settle(self, tokens: list[bytes], path: str = "orders") -> Refusal | None:
        operation = Settle(self.rig.queue(path), tokens, Complete(), self.ends.append)
        return self.rig.namespace.transactions.enlist(
            self.transaction, operation, root_of(operation.queue.entity), self.rig.now
        )

    def commit(self) -> Refusal | None:
        return self.rig.do(self.rig.namespace.transactions.commit, self.transaction)


@pytest.fixture
def client(rig: Rig) -> Client:
    rig.create("others")
    disable(rig)
    return Client(rig)


def describe(rig: Rig, name: str, **fields: Any) -> None:
    description = rig.namespace.queues[name].description
    assert rig.do(rig.namespace.registry.update, replace(description, **fields)) is None


def disable(rig: Rig, name: str = "others", status: str = "SendDisabled") -> None:
    describe(rig, name, status=status)


def through(rig: Rig, *payloads: bytes, via: str = "orders", path: str = "others") -> tuple[Refusal | None, list[int]]:
    """Send in no transaction."""
    answers: list[Refusal | None] = []
    results: list[int] = []
    namespace = rig.namespace
    namespace.transfer.send(namespace.resolve(via), namespace.resolve(path), payloads, rig.now, answers.append, results)  # type: ignore[arg-type]
    rig.run()
    assert len(answers) == 1
    return answers[0], results


def holds(rig: Rig, *bodies: bytes) -> None:
    """The transfer dead-letter queue has these messages, with the reason; one restart or many."""
    payloads = rig.peeked(TRANSFER)
    assert [body_of(payload) for payload in payloads] == list(bodies)
    for payload in payloads:
        assert properties_of(payload) == {
            "DeadLetterReason": "MessagingEntityDisabled",
            "DeadLetterErrorDescription": "The message could not be forwarded: the entity 'others' is SendDisabled.",
        }
    owner = rig.namespace.queues["orders"]
    assert owner.transfer_dead_letter_count == len(bodies)
    assert sorted(rig.namespace.queues) == ["orders", "others"]


@pytest.mark.parametrize("status", ["SendDisabled", "Disabled"])
def test_what_is_sent_to_a_disabled_entity_goes_to_the_transfer_dead_letter_queue_of_the_via(
    client: Client, status: str
) -> None:
    rig = client.rig
    rig.send(b"one")
    assert client.settle(rig.tokens()) is None
    assert client.send(make(b"a"), make_special(b"b", session_id="s", ttl=5.0, at=rig.now + 99)) is None
    assert rig.bodies(TRANSFER) == []
    assert client.commit() is None
    assert client.ends == [None, None]
    for life in rig.lives(lambda: rig.grow(8)):
        holds(life, b"a", b"b")
        assert b"one" not in life.bodies()
        assert life.bodies("others") == []
        life.pass_time(10.0)
        holds(life, b"a", b"b")  # dead letters don't expire


def test_a_destination_that_is_disabled_after_the_send_is_looked_at_in_the_commit(client: Client) -> None:
    disable(client.rig, status="Active")
    assert client.send(make(b"a")) is None
    disable(client.rig)
    assert client.commit() is None
    holds(client.rig, b"a")


def test_a_destination_that_is_deleted_is_not_found(client: Client) -> None:
    rig = client.rig
    assert client.send(make(b"a")) is None
    assert rig.do(rig.namespace.registry.delete_queue, "others") is None
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, "could not be found", conditions.NOT_FOUND)
    assert rig.bodies(TRANSFER) == []


def test_a_destination_that_is_full_refuses_the_send(client: Client) -> None:
    rig = client.rig
    describe(rig, "others", max_size_mb=1, max_message_size_kb=1024, status="Active")
    assert rig.send(b"x" * 600_000, path="others") is None
    refused(client.send(make(b"y" * 600_000)), conditions.RESOURCE_LIMIT_EXCEEDED)
    assert client.commit() is None
    assert rig.bodies(TRANSFER) == []
    assert rig.namespace.queues["orders"].transfer is not None  # it was asked for


def test_without_a_transaction_likewise(client: Client) -> None:
    rig = client.rig
    assert through(rig, make(b"a"), make(b"b")) == (None, [0, 0])
    assert through(rig, make(b"c")) == (None, [0])
    for life in rig.lives(lambda: rig.grow(6)):
        holds(life, b"a", b"b", b"c")
    disable(rig, status="Active")
    assert through(rig, make(b"d")) == (None, [1])
    assert rig.bodies("others") == [b"d"]


def test_a_ping_is_answered_for_the_destination(client: Client) -> None:
    refusal, _ = through(client.rig, PING)
    refused(refusal, conditions.ENTITY_DISABLED)
    assert client.rig.bodies(TRANSFER) == []


def test_a_via_that_is_disabled_or_gone_takes_nothing(client: Client) -> None:
    rig = client.rig
    via = rig.namespace.resolve("orders")
    disable(rig, "orders")
    for answer in (client.send(make(b"a")), through(rig, make(b"a"))[0]):
        refused(answer, conditions.ENTITY_DISABLED, "'orders'")
    assert rig.do(rig.namespace.registry.delete_queue, "orders") is None
    operation = Send(client.target("others"), [make(b"a")], client.ends.append, via=via)
    refused(
        rig.namespace.transactions.enlist(client.transaction, operation, "orders", rig.now),
        conditions.NOT_FOUND,
        "'orders'",
    )


def test_what_the_via_could_not_hold_is_refused(client: Client) -> None:
    describe(client.rig, "orders", max_message_size_kb=1)
    refused(client.send(make(b"x" * 2000)), conditions.MESSAGE_SIZE_EXCEEDED)
    describe(client.rig, "orders", max_message_size_kb=1024, max_size_mb=1)
    assert client.send(make(b"x" * 600_000)) is None
    assert client.send(make(b"x" * 600_000)) is None
    refused(client.commit(), conditions.TRANSACTION_ROLLBACK, "is full", "$Transfer")
    assert client.rig.bodies(TRANSFER) == []
    assert client.rig.namespace.queues["orders"].transfer.last_sequence == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_disk_that_fails_leaves_nothing_of_it(client: Client, call: str, in_transaction: bool) -> None:
    rig = client.rig
    rig.send(b"one")
    tokens = rig.tokens()
    rig.fail_calls(call, times=2)
    if in_transaction:
        client.settle(tokens)
        client.send(make(b"a"))
        answers: list[Refusal | None] = []
        rig.namespace.transactions.commit(client.transaction, rig.now, answers.append)
        rig.run()
        rig.wait(1.0, times=5)
        assert answers[0] is not None
    else:
        refusal, _ = through(rig, make(b"a"))
        rig.wait(1.0, times=5)
        assert refusal is not None
    holds(rig)
    assert rig.bodies() == [b"one"]
    assert through(rig, make(b"b"))[0] is None  # described anew
    for life in rig.lives(lambda: rig.grow(6)):
        assert [body for body in life.bodies(TRANSFER) if body != b"a"] == [b"b"]
        # what was answered with "it may yet turn up" may: then whole
        assert (b"a" in life.bodies(TRANSFER)) == (b"one" not in life.bodies()) or not in_transaction


def test_two_that_are_written_at_once_describe_it_twice(client: Client) -> None:
    rig = client.rig
    namespace = rig.namespace
    answers: list[Refusal | None] = []
    for body in (b"a", b"b"):
        payloads = [make(body)]
        namespace.transfer.send(client.target("orders"), client.target("others"), payloads, rig.now, answers.append, [])
    rig.run()
    assert answers == [None, None]
    for life in rig.lives(lambda: rig.grow(6)):
        holds(life, b"a", b"b")


def test_dead_letters_are_settled_like_others_and_stay_where_they_are(client: Client) -> None:
    rig = client.rig
    describe(rig, "orders", max_delivery_count=1)
    through(rig, *(make(bytes([number])) for number in range(5)))
    one, two, three, four = rig.tokens(4, TRANSFER)
    assert rig.settle([one], Complete(), TRANSFER) is None
    assert rig.settle([two], Abandon(), TRANSFER) is None
    refused(rig.settle([three], DeadLetter("again"), TRANSFER), "amqp:not-allowed", "are dead letters already")
    assert rig.settle([four], Defer(), TRANSFER) is None
    for life in rig.lives(lambda: rig.grow(6)):
        assert life.bodies(TRANSFER) == [b"\1", b"\2", b"\3", b"\4"]
        life.pass_time(61.0)
        assert life.received(path=TRANSFER) == [b"\1", b"\2", b"\4"]
        life.pass_time(61.0)
        assert len(life.receive_deferred(4, path=TRANSFER)[0]) == 1
        life.pass_time(61.0)


def test_they_are_sent_again_in_a_transaction_through_their_owner(client: Client) -> None:
    rig = client.rig
    through(rig, make(b"a"))
    disable(rig, status="Active")
    assert client.settle(rig.tokens(path=TRANSFER), TRANSFER) is None
    assert client.send(make(b"a")) is None
    assert client.commit() is None
    for life in rig.lives(lambda: rig.grow(6)):
        holds(life)
        assert life.bodies("others") == [b"a"]


def test_it_goes_with_its_owner(client: Client) -> None:
    rig = client.rig
    through(rig, make(b"a"))
    assert rig.do(rig.namespace.registry.delete_queue, "orders") is None
    assert rig.namespace.resolve(TRANSFER) is None
    assert [path for path, _, _ in rig.namespace.contents()] == []
    assert rig.live_bytes() < 700  # two descriptions, no message
    rig.create("orders")
    for life in rig.lives(lambda: rig.grow(6)):
        holds(life)


def test_it_has_path_limits_and_status_of_its_owner(client: Client) -> None:
    rig = client.rig
    queue = rig.queue(TRANSFER)
    assert queue.path == TRANSFER
    describe(rig, "orders", lock_duration=7.0, status="ReceiveDisabled", max_message_size_kb=3)
    assert (queue.lock_duration, queue.message_bytes_max) == (7.0, 3072)
    assert queue.refuses_receives is not None


def test_topics_and_subscriptions_have_one_too(bare: Rig) -> None:
    bare.create_topic()
    bare.subscribe("all")
    bare.create("others")
    disable(bare)
    assert bare.send(b"news", path="news") is None
    path = "news/Subscriptions/all"
    client = Client(bare, via="news")
    assert client.settle(bare.tokens(path=path), path) is None
    assert client.send(make(b"a")) is None
    assert client.commit() is None
    for life in bare.lives():
        assert life.bodies("news/$Transfer/$DeadLetterQueue") == [b"a"]
        assert life.bodies(f"{path}/$Transfer/$DeadLetterQueue") == life.bodies(path) == []
        assert life.namespace.topics["news"].transfer_dead_letter_count == 1
        assert life.namespace.resolve("news/$Transfer") is None
        assert life.namespace.resolve("nowhere/$Transfer/$DeadLetterQueue") is None
    assert bare.do(bare.namespace.registry.delete_topic, "news") is None
    assert [path for path, _, _ in bare.namespace.contents()] == []


def test_an_entity_is_in_use_while_somebody_reads_its_transfer_dead_letters(bare: Rig) -> None:
    bare.create(auto_delete_on_idle=300.0)
    queue = bare.queue(TRANSFER)
    queue.entity.links += 1
    bare.pass_time(400.0)
    assert "orders" in bare.namespace.queues
    queue.entity.links -= 1
    bare.pass_time(400.0)
    assert "orders" not in bare.namespace.queues


def test_a_via_that_is_inferred_counts_as_one(client: Client) -> None:
    """Clients that have all links on the coordinator's session name no via."""
    rig = client.rig
    rig.send(b"one")
    assert client.settle(rig.tokens()) is None
    operation = Send(client.target("others"), [make(b"a")], client.ends.append)
    assert rig.namespace.transactions.enlist(client.transaction, operation, None, rig.now) is None
    assert client.commit() is None
    holds(rig, b"a")
