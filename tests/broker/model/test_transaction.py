from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp import errors as conditions
from pairbus.broker.model import transaction as subject
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.outcomes import Complete
from pairbus.broker.model.topic import Subscription
from pairbus.broker.model.transaction import (
    ALL_BYTES_MAX,
    BYTES_MAX,
    COMMITTED,
    COMMITTING,
    LIFETIME_S,
    MESSAGES_MAX,
    OPEN,
    ROLLED_BACK,
    OpenTransactions,
    Operation,
    Send,
    Settle,
    Transaction,
    rolled_back,
    root_of,
)
from pairbus.broker.refusal import Refusal

QUEUE = QueueEntity(1, QueueDescription(name="Orders")).active


def nobody(refusal: Refusal | None) -> None:
    pass


def send(count: int = 1, size: int = 1) -> Send:
    return Send(QUEUE, [b"x" * size] * count, nobody)


def settle(*tokens: bytes) -> Settle:
    return Settle(QUEUE, tokens, Complete(), nobody)


def condition(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.condition


class Huge(bytes):
    """As long as it says, without its bytes."""

    def __len__(self) -> int:
        return BYTES_MAX


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (send(1), send(1), None),
        (send(MESSAGES_MAX - 1), send(1), None),
        (send(MESSAGES_MAX), send(1), conditions.NOT_ALLOWED),
        (send(1), send(MESSAGES_MAX), conditions.NOT_ALLOWED),
        (send(MESSAGES_MAX), settle(b"a"), None),
        (settle(*(b"%d" % n for n in range(MESSAGES_MAX))), send(1), None),
        (settle(*(b"%d" % n for n in range(MESSAGES_MAX))), settle(b"a"), conditions.NOT_ALLOWED),
        (settle(b"a"), settle(b"b"), None),
        (settle(b"a"), settle(b"a"), conditions.MESSAGE_LOCK_LOST),
        (settle(b"a"), settle(b"b", b"b"), conditions.MESSAGE_LOCK_LOST),
        (Send(QUEUE, [Huge()], nobody), settle(b"a"), None),
        (Send(QUEUE, [Huge()], nobody), send(1), conditions.RESOURCE_LIMIT_EXCEEDED),
    ],
)
def test_what_a_transaction_takes(first: Operation, second: Operation, expected: str | None) -> None:
    transactions, transaction = OpenTransactions(), Transaction(b"1")
    assert transactions.add(transaction, first, "orders", 0.0) is None
    before = (transaction.sent, transaction.settled, transaction.size_bytes, list(transaction.operations))
    assert condition(transactions.add(transaction, second, "orders", 0.0)) == expected
    if expected is not None:
        assert (transaction.sent, transaction.settled, transaction.size_bytes, transaction.operations) == before


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("orders", "orders", None),
        ("orders", "others", conditions.NOT_ALLOWED),
        (None, "others", None),
        ("orders", None, None),
        (None, None, None),
    ],
)
def test_all_of_it_goes_through_one_entity(first: str | None, second: str | None, expected: str | None) -> None:
    transactions, transaction = OpenTransactions(), Transaction(b"1")
    assert transactions.add(transaction, send(), first, 0.0) is None
    assert condition(transactions.add(transaction, settle(b"a"), second, 0.0)) == expected


def test_a_message_is_settled_in_one_transaction_at_a_time() -> None:
    transactions, one, other = OpenTransactions(), Transaction(b"1"), Transaction(b"2")
    assert transactions.add(one, settle(b"a"), "orders", 0.0) is None
    assert condition(transactions.add(other, settle(b"b", b"a"), "orders", 0.0)) == conditions.MESSAGE_LOCK_LOST
    assert [type(each) for each in transactions.end(one, rolled_back("why"))] == [Settle]
    assert transactions.add(other, settle(b"b", b"a"), "orders", 0.0) is None


def test_all_transactions_of_a_namespace_share_a_limit() -> None:
    transactions = OpenTransactions()
    many = [Transaction(bytes((n,))) for n in range(ALL_BYTES_MAX // BYTES_MAX)]
    for transaction in many:
        assert transactions.add(transaction, Send(QUEUE, [Huge()], nobody), "orders", 0.0) is None
    late = Transaction(b"late")
    assert condition(transactions.add(late, send(), "orders", 0.0)) == conditions.SERVER_BUSY
    transactions.end(many[0])
    assert transactions.add(late, send(), "orders", 0.0) is None


def test_its_time_begins_with_its_first_operation_and_ends_two_minutes_later() -> None:
    transactions, transaction = OpenTransactions(), Transaction(b"1")
    assert transactions.deadline() == inf
    transactions.add(transaction, send(), "orders", 1000.0)
    transactions.add(transaction, send(), "orders", 1000.0 + LIFETIME_S - 1)
    assert transactions.deadline() == 1000.0 + LIFETIME_S
    assert transactions.overdue(1000.0 + LIFETIME_S - 0.1) == []
    assert transactions.overdue(1000.0 + LIFETIME_S) == [transaction]
    late = transactions.add(transaction, send(), "orders", 1000.0 + LIFETIME_S)
    assert condition(late) == conditions.TRANSACTION_TIMEOUT
    transactions.shift(60.0)
    assert transactions.overdue(1000.0 + LIFETIME_S) == []
    transaction.state = COMMITTING
    assert transactions.deadline() == inf
    assert transactions.overdue(2000.0) == []


@pytest.mark.parametrize("state", [COMMITTING, COMMITTED, ROLLED_BACK])
def test_one_that_is_not_open_takes_nothing(state: int) -> None:
    transactions, transaction = OpenTransactions(), Transaction(b"1")
    transaction.state = state
    transaction.failure = rolled_back("why") if state == ROLLED_BACK else None
    assert transactions.add(transaction, send(), "orders", 0.0) is not None


class Step:
    """What a client may do to one of three transactions, at a time."""

    __slots__ = ("at", "count", "kind", "token", "which")

    def __init__(self, which: int, kind: str, count: int, token: int, at: float) -> None:
        self.which, self.kind, self.count, self.token, self.at = which, kind, count, token, at

    def __repr__(self) -> str:
        return f"Step({self.which}, {self.kind!r}, {self.count}, {self.token}, {self.at})"


steps = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.sampled_from(["send", "settle", "commit", "rollback", "time"]),
        st.sampled_from([1, 40, 60, 100]),
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0, LIFETIME_S / 2]),
    ),
    max_size=30,
)


@given(steps)
def test_limits_hold_whatever_happens_and_the_end_of_all_leaves_nothing(history: list[Step]) -> None:
    transactions = OpenTransactions()
    three = [Transaction(bytes((n,))) for n in range(3)]
    now = 0.0
    for step in history:
        now += step.at
        transaction = three[step.which]
        if step.kind == "send":
            transactions.add(transaction, send(step.count, 10), "orders", now)
        elif step.kind == "settle":
            transactions.add(transaction, settle(b"%d" % step.token), "orders", now)
        elif step.kind == "time":
            for each in transactions.overdue(now):
                transactions.end(each, subject.timed_out(each))
        elif transaction.state == OPEN:
            transactions.end(transaction, None if step.kind == "commit" else rolled_back("asked"))
            three[step.which] = Transaction(transaction.id)
        held = [token for each in three for op in each.operations if isinstance(op, Settle) for token in op.tokens]
        assert len(set(held)) == len(held)
        assert all(each.sent <= MESSAGES_MAX for each in three)
        assert transactions.size_bytes == sum(each.size_bytes for each in three)
        assert all(each.deadline > now or each.state == OPEN for each in three if each.operations)
    for each in three:
        if each.state == OPEN:
            transactions.end(each, rolled_back("the end"))
    assert (len(transactions), transactions.size_bytes, transactions._tokens) == (0, 0, {})


def test_a_subscription_belongs_to_its_topic() -> None:
    subscription = Subscription(2, 1, SubscriptionDescription(topic="News", name="all"), [])
    assert (root_of(QUEUE.entity), root_of(subscription)) == ("orders", "news")
