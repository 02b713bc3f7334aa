"""The sink's work on a real broker, without Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from azure.servicebus.management import SqlRuleFilter
from pyarrow import parquet

from pairbus.amqp.message import split_batch
from pairbus.spark.connector import writer
from pairbus.spark.connector.lock_reader import Share, receive
from pairbus.spark.connector.options import Address, InvalidOption, parse
from pairbus.spark.connector.schema import Outgoing, encode, read
from pairbus.spark.connector.source import ServiceBusDataSource
from pairbus.spark.connector.writer import (
    NotSent,
    Sent,
    ServiceBusStreamWriter,
    ServiceBusWriter,
    WriterConfig,
    attempt,
)
from pairbus.testing import fault
from pairbus.wire.errors import Busy
from pairbus.wire.sender import Sender
from tests.message_view import View
from tests.spark.conftest import MakeQueue, Pair, admin_of, peeked, wire


def write(pair: Pair, entity: str | None, rows: pa.RecordBatch | list[dict[str, Any]], **options: Any) -> Sent:
    given = [rows] if isinstance(rows, pa.RecordBatch) else [pa.RecordBatch.from_pylist(rows)]
    found = ServiceBusWriter(WriterConfig(pair.primary_address, entity, **options)).write(iter(given))
    assert isinstance(found, Sent)
    return found


def ids_in(pair: Pair, entity: str) -> list[str]:
    with wire(pair.primary) as client:
        found: list[str] = []
        at = 1
        while messages := client.peek(entity, at, 1000):
            rows = list(map(read, messages))
            found += [row["message_id"] for row in rows]
            at = rows[-1]["sequence_number"] + 1
        return found


def locked_rows(pair: Pair, count: int, **properties: object) -> pa.RecordBatch:
    with wire(pair.secondary) as client:
        messages = [encode({"message_id": f"m{n}", "body": b"x", **properties}) for n in range(count)]
        assert client.sender("from").send_many(messages) == [None] * count
    options = parse({"connectionString": pair.secondary.connection_string, "mode": "lock"}, {})
    (batch,) = receive(options, Share("from", count))
    return batch


def test_rows_of_a_lock_stream_are_sent_and_then_settled_and_lost_locks_are_counted(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.secondary, "from")
    make_queue(pair.primary, "to")
    batch = locked_rows(pair, 300)
    with wire(pair.secondary) as client:  # one lock is lost in between: it costs a duplicate, and nothing else
        client.settle_by_token("from", [UUID(batch.column("lock_token")[7].as_py())], "abandoned")
    sink = ServiceBusStreamWriter(WriterConfig(pair.primary_address, "to", pair.secondary_address))
    assert sink.write(iter([batch])) == Sent(300, lost=1)
    assert [read(each)["message_id"] for each in peeked(pair.secondary, "from")] == ["m7"]
    assert len(peeked(pair.primary, "to")) == 300


@pytest.mark.parametrize("column", ["amqp", "locked_until"])
def test_rows_whose_locks_have_ended_are_left(pair: Pair, make_queue: MakeQueue, column: str) -> None:
    make_queue(pair.secondary, "from", lock_duration=dt.timedelta(seconds=5))
    make_queue(pair.primary, "to")
    batch = locked_rows(pair, 3)
    if column == "locked_until":
        batch = batch.select(["body", "entity", "lock_token", "locked_until"])
    sink = ServiceBusStreamWriter(WriterConfig(pair.primary_address, "to", pair.secondary_address))
    with wire(pair.secondary) as client:  # until the broker gives them out again
        receiver = client.receiver("from")
        assert len(receiver.receive(3, max_wait=20)) >= 1
        receiver.close()
    assert sink.write(iter([batch])) == Sent(0, late=3)
    assert peeked(pair.primary, "to") == []
    assert len(peeked(pair.secondary, "from")) == 3


def test_a_missing_destination_is_an_error_whatever_is_done_with_refused_rows(pair: Pair) -> None:
    for on_refused in ("fail", "skip"):
        with pytest.raises(NotSent, match=r"1 messages to nowhere were not confirmed: .*could not be found"):
            write(pair, "nowhere", [{"body": b"x"}], on_refused=on_refused)
    with pytest.raises(NotSent, match="1 of 1 rows can't be sent to None: the row has no destination"):
        write(pair, None, [{"body": b"x", "destination": None}])


def test_what_a_broker_added_does_not_travel_on(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "one", "two")
    with wire(pair.primary) as client:
        client.sender("one").send(encode({"message_id": "m", "body": b"x", "application_properties": {"a": "b"}}))
        (first,) = client.peek("one", 1, 10)
        for _ in range(3):
            write(pair, "two", [{"amqp": first}])
        copies = client.peek("two", 1, 10)
    assert [read(each)["sequence_number"] for each in copies] == [1, 2, 3]
    assert {len(each) for each in copies} == {len(first)}


# -- busy, full, unreachable


def test_p24_a_busy_destination_is_waited_for_and_each_row_arrives_once(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "busy")
    monkeypatch.setattr(writer, "HALT_S", 0.3)
    with fault(pair.data, "throttle", namespace="contoso", entity="busy", rate=400):
        assert write(pair, "busy", [{"body": f"{n}"} for n in range(1500)]) == Sent(1500)
    found = ids_in(pair, "busy")
    assert len(found) == len(set(found)) == 1500


def test_a_destination_that_takes_nothing_for_too_long_is_an_error_that_says_so(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "shut")
    monkeypatch.setattr(writer, "HALT_S", 0.1)
    with (
        fault(pair.data, "throttle", namespace="contoso", entity="shut", rate=0),
        pytest.raises(NotSent, match=r"shut has taken no message for 1 s: .*throttled.*; try later"),
    ):
        write(pair, "shut", [{"body": "x"}] * 10, patience_s=1.0)
    assert peeked(pair.primary, "shut") == []


# -- refused for good


def test_one_row_that_is_too_large_is_found_before_anything_of_its_batch_is_sent(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(pair.primary, "sizes")
    rows = [{"message_id": f"m{n}", "body": "x" * (300_000 if n == 1234 else 10)} for n in range(3000)]
    with pytest.raises(
        NotSent, match=r"1 of 3000 rows can't be sent to sizes: the message has 300\d\d\d bytes, and sizes takes 262144"
    ):
        write(pair, "sizes", rows)
    assert ids_in(pair, "sizes") == []
    assert write(pair, "sizes", rows, on_refused="skip", refused_path=str(tmp_path)) == Sent(2999, refused=1)
    assert ids_in(pair, "sizes") == [f"m{n}" for n in range(3000) if n != 1234]
    (row,) = parquet.read_table(tmp_path).to_pylist()
    assert row["destination"] == "sizes" and read(row["amqp"])["message_id"] == "m1234"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"message_id": "x" * 129}, "message_id has 129 characters; at most 128"),
        ({"session_id": "x" * 129}, "session_id has 129 characters; at most 128"),
        ({"time_to_live": dt.timedelta(0)}, "time_to_live is at least a millisecond"),
        ({"amqp": b"garbage"}, "holds no encoded message"),
        ({"destination": "nowhere"}, "could not be found"),
    ],
)
def test_what_no_destination_takes_is_found_first_and_named(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path, bad: dict[str, Any], why: str
) -> None:
    make_queue(pair.primary, "picky")
    (name,) = bad
    kinds = {"time_to_live": pa.duration("us"), "amqp": pa.binary()}
    schema = pa.schema({"body": pa.string(), name: kinds.get(name, pa.string())})
    batch = pa.RecordBatch.from_pylist([{"body": f"{n}", **(bad if n == 40 else {})} for n in range(100)], schema)
    with pytest.raises(NotSent, match=f"^1 of 100 rows can't be sent to .*{why}.*; nothing of their part"):
        write(pair, "picky", batch)
    assert ids_in(pair, "picky") == []
    assert write(pair, "picky", batch, on_refused="skip", refused_path=str(tmp_path)) == Sent(99, refused=1)
    assert len(ids_in(pair, "picky")) == 99
    (row,) = parquet.read_table(tmp_path).to_pylist()
    assert why in row["reason"] and ((row["amqp"] is None) != (row["columns"] is None))


def test_rows_without_a_session_for_an_entity_that_wants_one_are_found_first(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "grouped", requires_session=True)
    rows = [{"message_id": f"m{n}", "session_id": None if n % 3 == 1 else "s", "body": "x"} for n in range(9)]
    with pytest.raises(NotSent, match=r"3 of 9 rows can't be sent to grouped: .*requires sessions"):
        write(pair, "grouped", rows)
    assert ids_in(pair, "grouped") == []
    assert write(pair, "grouped", rows, on_refused="skip") == Sent(6, refused=3)
    assert ids_in(pair, "grouped") == [f"m{n}" for n in range(9) if n % 3 != 1]


def test_refused_rows_of_a_lock_stream_are_dead_lettered(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.secondary, "from")
    make_queue(pair.primary, "to", requires_session=True)
    sink = ServiceBusStreamWriter(
        WriterConfig(pair.primary_address, "to", pair.secondary_address, on_refused="deadLetter")
    )
    assert sink.write(iter([locked_rows(pair, 3)])) == Sent(0, refused=3)
    assert peeked(pair.secondary, "from") == []
    dead = [read(each) for each in peeked(pair.secondary, "from/$DeadLetterQueue")]
    assert [row["message_id"] for row in dead] == ["m0", "m1", "m2"]
    assert {row["dead_letter_reason"] for row in dead} == {"refused by the destination"}
    assert "requires sessions" in dead[0]["dead_letter_error_description"]
    # those of a dead-letter queue are there already: they are left to their locks
    options = parse({"connectionString": pair.secondary.connection_string, "mode": "lock"}, {})
    (batch,) = receive(options, Share("from/$DeadLetterQueue", 3))
    assert sink.write(iter([batch])) == Sent(0, refused=3)
    assert len(peeked(pair.secondary, "from/$DeadLetterQueue")) == 3


def test_a_task_that_is_run_again_in_another_order_sends_the_same_ids_again(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "once", requires_duplicate_detection=True)
    make_queue(pair.primary, "twice")
    rows = [{"body": f"{n % 7}"} for n in range(50)]
    for name in ("once", "twice"):
        sink = ServiceBusWriter(WriterConfig(pair.primary_address, name))
        for given in (rows, rows[::-1]):
            sink.write(iter([pa.RecordBatch.from_pylist(given[:20]), pa.RecordBatch.from_pylist(given[20:])]))
    assert len(ids_in(pair, "once")) == 50
    found = ids_in(pair, "twice")
    assert len(found) == 100 and len(set(found)) == 50 and set(found[:50]) == set(found[50:])
    sink = ServiceBusWriter(WriterConfig(pair.primary_address, "once"))
    assert sink.write(iter([pa.RecordBatch.from_pylist(rows)])) == Sent(50), "another write is another matter"
    assert len(ids_in(pair, "once")) == 100


def test_batches_are_written_in_their_order_and_each_is_confirmed(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "many")
    schema = pa.schema({"message_id": pa.string(), "body": pa.binary()})
    batches = [
        pa.RecordBatch.from_pylist([{"message_id": f"{number}-{each}", "body": b"x"} for each in range(50)], schema)
        for number in range(5)
    ]
    assert ServiceBusWriter(WriterConfig(pair.primary_address, "many")).write(iter(batches)) == Sent(250)
    ids = [read(each)["message_id"] for each in peeked(pair.primary, "many")]
    assert ids == [f"{number}-{each}" for number in range(5) for each in range(50)]


def transfers(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """Filled with the messages of each transfer, as they are sent."""
    made: list[list[dict[str, Any]]] = []
    submit = Sender._submit

    def watched(self: Sender, payload: bytes, message_format: int, *rest: Any) -> Any:
        made.append([read(each) for each in (split_batch(payload) if message_format else [payload])])
        return submit(self, payload, message_format, *rest)

    monkeypatch.setattr(Sender, "_submit", watched)
    return made


def test_what_shares_a_transfer_has_one_session_and_one_partition_key(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "grouped", requires_session=True)
    make_queue(pair.primary, "keyed")
    made = transfers(monkeypatch)
    sessions = [{"message_id": f"{n}", "session_id": "ab"[n // 3 % 2], "body": b"x"} for n in range(12)]
    schema = pa.schema({name: pa.string() for name in ("message_id", "session_id", "partition_key")})
    assert write(pair, "grouped", sessions) == Sent(12)
    assert [[each["message_id"] for each in one] for one in made] == [
        [str(n) for n in range(first, first + 3)] for first in range(0, 12, 3)
    ]
    made.clear()
    keys = [{"message_id": f"{n}", "partition_key": (None, "a", "b")[n // 2]} for n in range(6)]
    write(pair, "keyed", pa.RecordBatch.from_pylist(keys, schema))
    assert [len(one) for one in made] == [1, 1, 2, 2], "the first without a session goes by itself"
    made.clear()  # and the same where the message is given as it is
    exact = pa.RecordBatch.from_pylist([{"amqp": encode(row)} for row in [*sessions, *keys]])
    write(pair, "keyed", exact)
    assert [len(one) for one in made] == [1, 3, 3, 3, 3, 1, 2, 2]
    wanted = [row["message_id"] for row in [keys[0], *sessions, *keys[1:]]]
    assert [read(each)["message_id"] for each in peeked(pair.primary, "keyed")][6:] == wanted


def encoded(rows: list[dict[str, Any]]) -> list[Outgoing]:
    """Without a look at what can be sent."""
    return [Outgoing(None, encode(row), (row.get("session_id"), None)) for row in rows]


def test_one_that_is_refused_does_not_keep_its_company(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "choosy")
    rows = [{"message_id": "x" * 129 if n == 40 else f"m{n}", "body": b"x"} for n in range(100)]
    answers = attempt(pair.primary_address, "choosy", encoded(rows))
    assert [n for n, answer in enumerate(answers) if answer is not None] == [40]
    assert ids_in(pair, "choosy") == [f"m{n}" for n in range(100) if n != 40]


def test_what_was_confirmed_stays_so_where_the_link_is_lost_before_the_second_try(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a restore would send it again."""
    make_queue(pair.primary, "fickle")

    def lost(*_: Any, **__: Any) -> Any:
        raise Busy("com.microsoft:server-busy", "not now")

    monkeypatch.setattr("pairbus.wire.sync.Sender.send_many", lost)
    rows = [
        {"message_id": "x" * 129 if n == 5 else f"m{n}", "session_id": "ab"[n // 4], "body": b"x"} for n in range(8)
    ]
    answers = attempt(pair.primary_address, "fickle", encoded(rows))
    assert [type(answer) for answer in answers] == [type(None)] * 4 + [Busy] * 4
    assert len(peeked(pair.primary, "fickle")) == 4


def test_a_chunk_that_fails_ends_the_task_whatever_came_before_and_after(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "good")
    monkeypatch.setattr(writer, "CHUNK_BYTES", 1)
    schema = pa.schema({"body": pa.binary(), "destination": pa.string()})
    made = [
        pa.RecordBatch.from_pylist([{"body": b"x", "destination": name}], schema)
        for name in ("good", "nowhere", "good", "good")
    ]
    with pytest.raises(NotSent, match=r"nowhere.*could not be found"):
        ServiceBusWriter(WriterConfig(pair.primary_address, None)).write(iter(made))
    assert len(peeked(pair.primary, "good")) == 1, "nothing is sent after a failure"


def test_rows_are_sent_in_chunks_of_about_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHUNK_BYTES", 100_000)
    batch = pa.RecordBatch.from_pylist([{"body": b"x" * 9_600}] * 50)
    sizes: list[int] = []

    def chunk(self: Any, rows: list[Outgoing]) -> None:
        sizes.append(len(rows))

    monkeypatch.setattr(writer._Sending, "chunk", chunk)
    ServiceBusWriter(WriterConfig(Address("Endpoint=sb://x"), "to")).write(iter([batch, batch]))
    assert sum(sizes) == 100 and set(sizes[:-1]) == {10}


class Context:
    """What a Spark task knows of itself."""

    def __init__(self, partition: int, **properties: str) -> None:
        self._partition = partition
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


def test_with_speculation_on_nothing_is_sent(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "calm")
    monkeypatch.setattr(writer.TaskContext, "get", lambda: Context(0, spark_speculation="true"))
    with pytest.raises(InvalidOption, match=r"spark\.speculation is on: .*nothing was sent\. Start the session with"):
        write(pair, "calm", [{"body": "x"}])
    assert peeked(pair.primary, "calm") == []
    monkeypatch.setattr(writer.TaskContext, "get", lambda: Context(0, spark_speculation="false"))
    assert write(pair, "calm", [{"body": "x"}]) == Sent(1)


def test_the_batch_of_a_stream_has_its_name_from_spark_and_one_of_a_write_from_the_writer(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "named")
    rows = pa.RecordBatch.from_pylist([{"body": "x"}])

    def run(kind: type[Any], batch: str, partition: int) -> None:
        context = Context(partition, sql_streaming_queryId="q", streaming_sql_batchId=batch)
        monkeypatch.setattr(writer.TaskContext, "get", lambda: context)
        kind(WriterConfig(pair.primary_address, "named")).write(iter([rows]))

    for batch, partition in (("1", 0), ("1", 0), ("2", 0), ("1", 1)):
        run(ServiceBusStreamWriter, batch, partition)
    first, again, other_batch, other_partition = ids_in(pair, "named")
    assert first == again and len({first, other_batch, other_partition}) == 3
    for _ in range(2):
        run(ServiceBusWriter, "1", 0)
    assert len(set(ids_in(pair, "named"))) == 5


def test_a_sql_rule_on_a_number_matches_what_was_written_and_json_that_was_read_is_written_again(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.primary, "copies")
    with admin_of(pair.primary) as admin:
        admin.create_topic("rated")
        admin.create_subscription("rated", "urgent")
        admin.create_rule("rated", "urgent", "by-number", filter=SqlRuleFilter("priority > 5 AND price < 2.5"))
        admin.delete_rule("rated", "urgent", "$Default")
    properties = [
        '{"priority": 9, "price": 1.5, "code": {"int": 7}, "at": {"timestamp": "2030-01-02T03:04:05Z"}, "note": null}',
        '{"priority": 9, "price": 3.5}',
        '{"priority": 1, "price": 1.5}',
        '{"priority": "9", "price": 1.5}',
        None,
    ]
    rows = [{"body": f"{n}", "application_properties": text} for n, text in enumerate(properties)]
    assert write(pair, "rated", rows).count == 5
    given = {
        "connectionString": pair.primary.connection_string,
        "entity": "rated/Subscriptions/urgent",
        "applicationProperties": "json",
    }
    for mode in ("peek", "lock"):
        source = ServiceBusDataSource({**given, "mode": mode})
        options = parse({**given, "mode": mode}, {})
        if mode == "peek":
            reader = source.reader(source.schema())
            (part,) = reader.partitions()
            (batch,) = reader.read(part)
        else:
            (batch,) = receive(options, Share("rated/Subscriptions/urgent", 1))
        assert batch.schema.names == source.schema().names
        assert batch.column("body").to_pylist() == [b"0"]
        (text,) = batch.column("application_properties").to_pylist()
        assert json.loads(text) == {
            "priority": 9,
            "price": 1.5,
            "code": {"int": 7},
            "at": {"timestamp": "2030-01-02T03:04:05+00:00"},
            "note": None,
        }
    write(pair, "copies", batch.select(["body", "application_properties"]))
    (copy,) = peeked(pair.primary, "copies")
    found = View(copy).application_properties
    assert found == {"priority": 9, "price": 1.5, "code": 7, "at": 1893553445000, "note": None}
    assert [type(value).__name__ for value in found.values()] == ["int", "float", "Int", "Timestamp", "NoneType"]


def test_rows_whose_properties_are_no_json_or_out_of_range_are_refused(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(pair.primary, "strict")
    rows = [
        {"body": "a", "application_properties": "priority=5"},
        {"body": "b", "application_properties": '{"n": {"byte": 300}}'},
        {"body": "c", "application_properties": '{"n": 9223372036854775808}'},
        {"body": "d", "application_properties": "{}"},
    ]
    with pytest.raises(NotSent, match="application_properties is not JSON"):
        write(pair, "strict", rows)
    done = write(pair, "strict", rows, on_refused="skip", refused_path=str(tmp_path))
    assert (done.count, done.refused) == (1, 3)
    reasons = [row["reason"] for file in tmp_path.iterdir() for row in parquet.read_table(file).to_pylist()]
    assert [reason for reason in reasons if "out of range" in reason] == reasons[1:] and len(reasons) == 3
