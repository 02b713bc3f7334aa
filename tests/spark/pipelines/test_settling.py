"""Settling by token in requests of many: a lock that has ended keeps no other from being settled, and the counts are
true. From DataFrames: test_ingest_proof."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.sql.types import StringType, StructType

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector.lock_reader import Share, take
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.schema import read
from pairbus.spark.pipelines.settling import (
    ABANDONED,
    COMPLETED,
    DEAD_LETTERED,
    DEFERRED,
    RENEWED,
    Settled,
    _settle_task,
    abandon,
    complete,
    dead_letter,
    defer,
    renew,
    settle,
)

from ..conftest import MakeQueue, Pair, peeked, wire

DEAD = "orders/$DeadLetterQueue"


@pytest.fixture
def locked(pair: Pair, make_queue: MakeQueue) -> Any:
    """Five messages, of which the first was given back: its token is worth nothing."""
    make_queue(pair.primary, "orders")
    with wire(pair.primary) as client:
        messages = [encode_message(properties=Properties(message_id=f"m{n}"), body=b"x") for n in range(5)]
        client.sender("orders").send_many(messages)
        receiver = client.receiver("orders")
        found: list[Any] = []
        while len(found) < 5:
            found += receiver.receive(5 - len(found), max_wait=5)
        receiver.abandon(found[0])
        yield {each.lock_token: each.sequence_number for each in found}


@pytest.mark.parametrize(
    ("disposition", "counts", "left", "dead"),
    [
        (COMPLETED, (4, 1), {"active": 1}, 0),
        (DEAD_LETTERED, (4, 1), {"active": 1}, 4),
        (DEFERRED, (4, 1), {"active": 1, "deferred": 4}, 0),
        (RENEWED, (4, 1), {"active": 5}, 0),
        (ABANDONED, (5, 0), {"active": 5}, 0),  # given back is given back
    ],
)
def test_a_lock_that_has_ended_keeps_no_other_from_being_settled(
    pair: Pair, locked: dict[UUID, int], disposition: str, counts: tuple[int, int], left: dict[str, int], dead: int
) -> None:
    assert settle(pair.primary_address, "orders", locked, disposition) == counts
    states = [read(each)["state"] for each in peeked(pair.primary, "orders")]
    assert {state: states.count(state) for state in set(states)} == left
    assert len(peeked(pair.primary, DEAD)) == dead


def test_all_are_settled_with_their_words(pair: Pair, locked: dict[UUID, int]) -> None:
    good = dict(list(locked.items())[1:])
    words = {"reason": "too late", "description": "by the test"}
    assert settle(pair.primary_address, "orders", good, DEAD_LETTERED, **words) == (4, 0)
    rows = [read(each) for each in peeked(pair.primary, DEAD)]
    assert {(each["dead_letter_reason"], each["dead_letter_error_description"]) for each in rows} == {
        ("too late", "by the test")
    }
    assert settle(pair.primary_address, "orders", {uuid4(): 1}) == (0, 1)
    assert settle(pair.primary_address, "orders", {}) == (0, 0)


def test_tokens_that_the_namespace_never_gave_can_t_be_told_from_those_that_it_has_settled(
    pair: Pair, make_queue: MakeQueue, locked: dict[UUID, int]
) -> None:
    """A task that Spark runs again finds its own work done, and the answers are the same: see Settled."""
    good = dict(list(locked.items())[1:])
    make_queue(pair.primary, "empty")
    assert settle(pair.primary_address, "orders", good) == settle(pair.primary_address, "orders", good) == (4, 0)
    assert settle(pair.primary_address, "empty", {uuid4(): number for number in range(1, 6)}) == (5, 0)
    assert "tokens of another namespace" in (Settled.__doc__ or "") and "never gave" in (complete.__doc__ or "")


@pytest.mark.parametrize("call", [complete, abandon, dead_letter, defer, renew])
def test_options_that_would_be_ignored_are_refused(call: Any) -> None:
    with pytest.raises(InvalidOption) as found:
        call(None, connectionString="Endpoint=sb://x", entity="bills", Mode="lock")
    assert str(found.value) == (
        "Mode, entity can't be given here, where only the namespace is named and the rows say what to settle; right "
        "are connectionString, connectionStringEnv, fullyQualifiedNamespace, credential, caFile"
    )


def test_a_task_settles_its_rows_by_entity(pair: Pair, make_queue: MakeQueue, locked: dict[UUID, int]) -> None:
    rows: list[tuple[str | None, str | None, int | None]] = [
        ("orders", str(token), number) for token, number in locked.items()
    ]
    assert list(_settle_task(pair.primary_address, COMPLETED, {}, rows)) == [Settled(4, 1)]
    for wrong in (("orders", None, 1), (None, str(uuid4()), 1), ("orders", "nonsense", 1)):
        (refused,) = _settle_task(pair.primary_address, COMPLETED, {}, [wrong])
        assert refused == (
            f"a row has the entity {wrong[0]!r} and the lock_token {wrong[1]!r}: it is not of a stream with mode=lock"
        )


def test_rows_of_a_dead_letter_queue_can_t_be_dead_lettered_again(
    pair: Pair, make_queue: MakeQueue, locked: dict[UUID, int]
) -> None:
    assert settle(pair.primary_address, "orders", locked, DEAD_LETTERED) == (4, 1)
    found = [each for messages in take(pair.primary_address, Share(DEAD, 4)) for each in list(messages)]
    rows = [(DEAD, str(message.lock_token), message.sequence_number) for message in found]
    (refused,) = _settle_task(pair.primary_address, DEAD_LETTERED, {}, rows)
    assert refused == f"messages of {DEAD} are dead letters already; complete, abandon or defer them"
    assert list(_settle_task(pair.primary_address, ABANDONED, {}, rows[:1])) == [Settled(1, 0)]
    assert list(_settle_task(pair.primary_address, COMPLETED, {}, rows[1:])) == [Settled(3, 0)]


def test_rows_that_are_not_those_of_a_lock_stream_are_told() -> None:
    namespace = {"connectionString": "Endpoint=sb://x/"}
    with pytest.raises(InvalidOption, match=r"are a DataFrame, a batch of a lock stream, and not \[1\]"):
        complete([1], **namespace)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="reason is text, and not 5"):
        dead_letter([1], reason=5, **namespace)  # type: ignore[arg-type]
    columns = StructType().add("Entity", StringType()).add("lock_token", StringType())
    with pytest.raises(InvalidOption, match=r"need the column sequence_number .* these have Entity, lock_token"):
        complete(rows_of(columns), **namespace)
    with pytest.raises(InvalidOption, match="column sequence_number is string, and in the lock stream it is bigint"):
        complete(rows_of(columns.add("sequence_number", StringType())), **namespace)


def rows_of(columns: StructType) -> Any:
    return SimpleNamespace(isStreaming=False, schema=columns, columns=columns.names)


def test_messages_of_a_session_are_settled_by_token_and_not_renewed(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "talks", requires_session=True)
    with wire(pair.primary) as client:
        payload = encode_message(properties=Properties(group_id="s"), body=b"x")
        assert client.sender("talks").send_many([payload] * 4) == [None] * 4
        found = [
            message
            for messages in take(pair.primary_address, Share("talks", 4, sessions=True))
            for message in list(messages)
        ]
    rows = [("talks", str(message.lock_token), message.sequence_number) for message in found]
    (refused,) = _settle_task(pair.primary_address, RENEWED, {}, rows)
    assert isinstance(refused, str) and "renew the session's" in refused, "told, since an error would end the worker"
    assert list(_settle_task(pair.primary_address, COMPLETED, {}, rows[:3])) == [Settled(3, 0)]
    assert list(_settle_task(pair.primary_address, DEAD_LETTERED, {"reason": "late"}, rows[3:])) == [Settled(1, 0)]
    assert peeked(pair.primary, "talks") == [] and len(peeked(pair.primary, "talks/$DeadLetterQueue")) == 1
