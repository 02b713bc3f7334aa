"""The sink's work on a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pairbus.amqp.message import split_batch
from pairbus.spark.lock_reader import Share, receive
from pairbus.spark.options import parse
from pairbus.spark.schema import encode, read
from pairbus.spark.writer import NotSent, Sent, ServiceBusWriter, attempt, by_destination, send, settle_batch
from pairbus.wire.errors import Busy
from pairbus.wire.sender import Sender

from .conftest import Pair, peeked, wire


def test_rows_of_a_lock_stream_are_sent_and_then_settled(pair: Pair, make_queue: Callable[..., None]) -> None:
    make_queue(pair.secondary, "from")
    make_queue(pair.primary, "to")
    with wire(pair.secondary) as client:
        messages = [encode({"message_id": f"m{n}", "body": b"x"}) for n in range(300)]
        assert client.sender("from").send_many(messages) == [None] * 300
    options = parse({"connectionString": pair.secondary.connection_string, "mode": "lock"}, {})
    (batch,) = receive(options, Share("from", 300))
    assert send(pair.primary_address, by_destination("to", batch)) == 300
    assert len(peeked(pair.secondary, "from")) == 300
    with wire(pair.secondary) as client:  # one lock is lost in between: it costs a duplicate, and nothing else
        from uuid import UUID

        client.settle_by_token("from", [UUID(batch.column("lock_token")[7].as_py())], "abandoned")
    settle_batch(pair.secondary_address, batch)
    assert [read(each)["message_id"] for each in peeked(pair.secondary, "from")] == ["m7"]
    assert len(peeked(pair.primary, "to")) == 300


def test_what_is_not_confirmed_is_an_error_that_says_why(pair: Pair, make_queue: Callable[..., None]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"body": b"x", "destination": None}], pa.schema({"body": pa.binary(), "destination": pa.string()})
    )
    with pytest.raises(NotSent, match="no destination"):
        send(pair.primary_address, by_destination(None, batch))
    with pytest.raises(Exception, match=r"nowhere.*could not be found"):
        send(pair.primary_address, by_destination("nowhere", batch))


def test_what_a_broker_added_does_not_travel_on(pair: Pair, make_queue: Callable[..., None]) -> None:
    make_queue(pair.primary, "one", "two")
    with wire(pair.primary) as client:
        client.sender("one").send(encode({"message_id": "m", "body": b"x", "application_properties": {"a": "b"}}))
        (first,) = client.peek("one", 1, 10)
        batch = pa.RecordBatch.from_pylist([{"amqp": first}], pa.schema({"amqp": pa.binary()}))
        for _ in range(3):
            send(pair.primary_address, by_destination("two", batch))
        copies = client.peek("two", 1, 10)
    assert [read(each)["sequence_number"] for each in copies] == [1, 2, 3]
    assert {len(each) for each in copies} == {len(first)}


def test_batches_are_written_in_their_order_and_each_is_confirmed(pair: Pair, make_queue: Callable[..., None]) -> None:
    make_queue(pair.primary, "many")
    schema = pa.schema({"message_id": pa.string(), "body": pa.binary()})
    batches = [
        pa.RecordBatch.from_pylist([{"message_id": f"{number}-{each}", "body": b"x"} for each in range(50)], schema)
        for number in range(5)
    ]
    assert ServiceBusWriter(pair.primary_address, "many").write(iter(batches)) == Sent(250)
    ids = [read(each)["message_id"] for each in peeked(pair.primary, "many")]
    assert ids == [f"{number}-{each}" for number in range(5) for each in range(50)]


def transfers(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """Filled with the messages of each transfer, as they are sent."""
    made: list[list[dict[str, Any]]] = []
    submit = Sender._submit

    def watched(self: Sender, payload: bytes, message_format: int, deadline: float) -> Any:
        made.append([read(each) for each in (split_batch(payload) if message_format else [payload])])
        return submit(self, payload, message_format, deadline)

    monkeypatch.setattr(Sender, "_submit", watched)
    return made


def test_what_shares_a_transfer_has_one_session_and_one_partition_key(
    pair: Pair, make_queue: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "grouped", requires_session=True)
    make_queue(pair.primary, "keyed")
    made = transfers(monkeypatch)
    sessions = [{"message_id": f"{n}", "session_id": "ab"[n // 3 % 2], "body": b"x"} for n in range(12)]
    schema = pa.schema({name: pa.string() for name in ("message_id", "session_id", "partition_key")})
    assert send(pair.primary_address, by_destination("grouped", pa.RecordBatch.from_pylist(sessions))) == 12
    assert [[each["message_id"] for each in one] for one in made] == [
        [str(n) for n in range(first, first + 3)] for first in range(0, 12, 3)
    ]
    made.clear()
    keys = [{"message_id": f"{n}", "partition_key": (None, "a", "b")[n // 2]} for n in range(6)]
    send(pair.primary_address, by_destination("keyed", pa.RecordBatch.from_pylist(keys, schema)))
    assert [len(one) for one in made] == [2, 2, 2]
    made.clear()  # and the same where the message is given as it is
    exact = pa.RecordBatch.from_pylist([{"amqp": encode(row)} for row in [*sessions, *keys]])
    send(pair.primary_address, by_destination("keyed", exact))
    assert [len(one) for one in made] == [3, 3, 3, 3, 2, 2, 2]
    assert [read(each)["message_id"] for each in peeked(pair.primary, "keyed")][6:] == [
        row["message_id"] for row in [*sessions, *keys]
    ]


def test_one_that_is_refused_does_not_keep_its_company(pair: Pair, make_queue: Callable[..., None]) -> None:
    make_queue(pair.primary, "picky")
    rows = [{"message_id": "x" * 129 if n == 40 else f"m{n}", "body": b"x"} for n in range(100)]
    with pytest.raises(NotSent, match=r"^1 of 100 messages to picky were not confirmed: .*128"):
        send(pair.primary_address, by_destination("picky", pa.RecordBatch.from_pylist(rows)))
    arrived = [read(each)["message_id"] for each in peeked(pair.primary, "picky")]
    assert arrived == [f"m{n}" for n in range(100) if n != 40]


def test_what_was_confirmed_stays_so_where_the_link_is_lost_before_the_second_try(
    pair: Pair, make_queue: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a restore would send it again."""
    make_queue(pair.primary, "fickle")

    def lost(*_: Any, **__: Any) -> Any:
        raise Busy("com.microsoft:server-busy", "not now")

    monkeypatch.setattr("pairbus.wire.sync.Sender.send_many", lost)
    rows = [
        {"message_id": "x" * 129 if n == 5 else f"m{n}", "session_id": "ab"[n // 4], "body": b"x"} for n in range(8)
    ]
    answers = attempt(
        pair.primary_address, "fickle", by_destination("fickle", pa.RecordBatch.from_pylist(rows))["fickle"]
    )
    assert [type(answer) for answer in answers] == [type(None)] * 4 + [Busy] * 4
    assert len(peeked(pair.primary, "fickle")) == 4


def test_a_batch_that_fails_ends_the_task_whatever_came_before_and_after(
    pair: Pair, make_queue: Callable[..., None]
) -> None:
    make_queue(pair.primary, "good")
    schema = pa.schema({"body": pa.binary(), "destination": pa.string()})
    made = [
        pa.RecordBatch.from_pylist([{"body": b"x", "destination": name}], schema)
        for name in ("good", "nowhere", "good", "good")
    ]
    with pytest.raises(Exception, match=r"nowhere.*could not be found"):
        ServiceBusWriter(pair.primary_address, None).write(iter(made))
    assert len(peeked(pair.primary, "good")) == 1, "nothing is sent after a failure"
