from __future__ import annotations

import datetime as dt
import struct
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pairbus.amqp.message import Header, Properties, encode_message, split
from pairbus.amqp.types import Array, Byte, Char, Float, Int, Short, Symbol, Timestamp, UInt
from pairbus.broker.format.content import take_in
from pairbus.spark.connector import schema as connector
from pairbus.spark.connector.options import InvalidOption, parse
from tests.message_view import View

TEXTS = st.none() | st.text(max_size=20).filter(bool)
TIMES = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(9000, 1, 1), timezones=st.just(dt.UTC)).map(
    lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)
)
WRITTEN = st.fixed_dictionaries(
    {
        **dict.fromkeys(["message_id", "correlation_id", "session_id", "reply_to_session_id", "partition_key"], TEXTS),
        **dict.fromkeys(["subject", "to", "reply_to"], TEXTS),
        "content_type": st.none() | st.sampled_from(["text/plain", "application/json"]),
        "time_to_live": st.none() | st.integers(1, 0xFFFFFFFF).map(lambda ms: dt.timedelta(milliseconds=ms)),
        "scheduled_enqueue_time_utc": st.none() | TIMES,
        "application_properties": st.none() | st.dictionaries(st.text(min_size=1), st.text(), min_size=1, max_size=4),
        "body": st.binary(max_size=50),
    }
)  # fmt: skip


@given(WRITTEN)
def test_what_is_written_is_read_again(row: dict[str, Any]) -> None:
    found = connector.read(connector.encode(row))
    if row["application_properties"] is not None:
        row["application_properties"] = list(row["application_properties"].items())
    assert {name: found.get(name) for name in row} == row


def delivered(**parts: Any) -> bytes:
    return encode_message(
        Header(delivery_count=3, ttl=1500),
        {
            Symbol("x-opt-sequence-number"): 42,
            Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_123),
            Symbol("x-opt-locked-until"): Timestamp(1_700_000_030_000),
            Symbol("x-opt-message-state"): 2,
            Symbol("x-opt-deadletter-source"): "orders",
        },
        Properties(message_id=UUID(int=7), content_type="text/plain", group_id="s"),
        {"DeadLetterReason": "too old", "DeadLetterErrorDescription": "by a day", "n": UInt(5), "flag": True},
        **parts,
    )


def test_what_the_broker_says_of_a_message() -> None:
    row = connector.read(delivered(body=b"x"))
    assert row["sequence_number"] == 42
    assert row["enqueued_time"] == dt.datetime.fromtimestamp(1_700_000_000.123, dt.UTC)
    assert row["locked_until"] == dt.datetime.fromtimestamp(1_700_000_030, dt.UTC)
    assert (row["state"], row["delivery_count"], row["message_id"]) == ("scheduled", 3, str(UUID(int=7)))
    assert (row["dead_letter_reason"], row["dead_letter_error_description"]) == ("too old", "by a day")
    assert (row["dead_letter_source"], row["time_to_live"]) == ("orders", dt.timedelta(seconds=1.5))
    assert dict(row["application_properties"])["n"] == "5" and dict(row["application_properties"])["flag"] == "true"


def test_a_locked_message_that_had_been_scheduled_is_active() -> None:
    """Its delivery says 2, as a peek says of one that is scheduled still."""
    rows = connector.Rows()
    rows.add("orders", delivered(body=b"x"), lock_token=UUID(int=1))
    rows.add("orders", delivered(body=b"x"))
    assert rows.batch()["state"].to_pylist() == ["active", "scheduled"]


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b"abc", "data", b"abc"),
        (("data", [b"a", b"b"]), "data", b"ab"),
        (("value", "käse"), "value", "käse".encode()),
        (("value", b"raw"), "value", b"raw"),
        (("value", {"a": [1, None, Timestamp(0)]}), "value", b'{"a": [1, null, "1970-01-01T00:00:00+00:00"]}'),
        (("sequence", [[1, 2], [Char("x")]]), "sequence", b'[1, 2, "x"]'),
        (("value", Array([1], 0x81)), "value", b"[1]"),
        (None, None, None),
    ],
)
def test_every_kind_of_body(body: Any, kind: str | None, shown: bytes | None) -> None:
    row = connector.read(delivered(body=body))
    assert (row.get("body_type"), row.get("body")) == (kind, shown)


def test_a_body_is_shown_however_deep_a_broker_takes_it() -> None:
    value = b"\x43"
    for _ in range(60):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    payload = encode_message(properties=Properties(message_id="m"), body=None) + b"\x00\x53\x77" + value
    assert take_in(payload, lambda: "m") is not None
    row = connector.read(payload)
    assert (row["body_type"], row["body"]) == ("value", b"[" * 60 + b"0" + b"]" * 60)


@given(st.binary(max_size=80))
def test_garbage_never_fails_a_read(payload: bytes) -> None:
    rows = connector.Rows()
    rows.add("orders", payload)
    batch = rows.batch()
    assert batch.column("amqp").to_pylist() == [payload]


def test_a_batch_has_the_columns_of_the_schema() -> None:
    rows = connector.Rows()
    rows.add("orders", delivered(body=b"x"), lock_token=UUID(int=1))
    rows.add("orders", connector.encode({"body": "y"}))
    batch = rows.batch()
    assert len(rows) == 0
    assert [(field.name, field.type) for field in batch.schema] == [
        (name, kind[1]) for name, kind in connector.COLUMNS.items()
    ]
    assert batch.num_rows == 2
    assert [field.name for field in connector.SCHEMA] == list(connector.COLUMNS)
    assert batch.column("lock_token").to_pylist() == [str(UUID(int=1)), None]


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize("name", connector.COLUMNS)
def test_one_column_is_what_it_is_among_all(name: str, kind: str) -> None:
    payload = delivered(body=b"x")
    given = {
        "connectionString": "Endpoint=sb://x",
        "applicationProperties": kind,
        "body": "text" if kind == "text" else "binary",
    }
    whole = connector.Rows(connector.columns_of(parse(given, {})))
    one = connector.Rows(connector.columns_of(parse({**given, "columns": name.upper()}, {})))
    for rows in (whole, one):
        rows.add("orders", payload, lock_token=UUID(int=1))
        assert len(rows) == 1 and not rows.is_full
    assert one.batch() == whole.batch().select([name])


@pytest.mark.parametrize(
    ("sent", "shown"), [(b"tea \xc3\xa9", "tea é"), (b"\xff", "\N{REPLACEMENT CHARACTER}"), (b"", "")]
)
def test_a_body_may_be_text(sent: bytes, shown: str) -> None:
    given = {"connectionString": "Endpoint=sb://x", "body": "text", "columns": "body"}
    rows = connector.Rows(connector.columns_of(parse(given, {})))
    rows.add("orders", delivered(body=sent))
    rows.add("orders", b"no message")
    assert rows.batch().to_pylist() == [{"body": shown}, {"body": None}]


def test_what_no_column_needs_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "read_application_properties", None)
    monkeypatch.setattr(connector, "read_body", None)
    monkeypatch.setattr(connector, "read_header", None)
    names = "sequence_number, session_id"
    rows = connector.Rows(connector.columns_of(parse({"connectionString": "Endpoint=sb://x", "columns": names}, {})))
    rows.add("orders", delivered(body=b"x" * 20_000_000))
    assert not rows.is_full, "what is not handed on does not count"
    assert rows.batch().schema.names == ["sequence_number", "session_id"]
    monkeypatch.setattr(connector, "split", None)
    names = "lock_token,entity,amqp"
    rows = connector.Rows(connector.columns_of(parse({"connectionString": "Endpoint=sb://x", "columns": names}, {})))
    rows.add("orders", b"no message", lock_token=UUID(int=1))
    assert rows.batch().to_pylist() == [{"lock_token": str(UUID(int=1)), "entity": "orders", "amqp": b"no message"}]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("body,boddy", "columns names 'boddy', and there is none; right are message_id, .*, state"),
        ("destination", "columns names 'destination', and there is none"),
        ("body,Body", "columns names 'body' twice"),
        ("body,,state", "has an empty place"),
        (" ", "columns is empty"),
    ],
)
def test_wrong_columns_are_named_with_the_right_ones(names: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        connector.columns_of(parse({"connectionString": "Endpoint=sb://x", "columns": names}, {}))


def test_exact_bytes_win_over_the_columns() -> None:
    exact = connector.encode({"body": "exact", "session_id": "s", "partition_key": "p"})
    batch = pa.RecordBatch.from_pylist(
        [{"amqp": exact, "body": b"other", "destination": "a"}, {"amqp": None, "body": b"typed", "destination": None}],
        pa.schema({"amqp": pa.binary(), "body": pa.binary(), "destination": pa.string()}),
    )
    first, second = connector.outgoing(batch)
    assert first == connector.Outgoing("a", exact, ("s", "p"))
    assert second.destination is None and connector.read(second.payload)["body"] == b"typed"


def table(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "entity", "words"),
    [
        (table(body=StringType(), colour=StringType()), "orders", "no column 'colour'; right are message_id"),
        (table(message_id=StringType()), "orders", "needs a column body"),
        (table(body=StringType()), None, "where to"),
        (table(body=IntegerType()), "orders", "'body' is int, but must be binary or string"),
        (table(body=BinaryType(), message_id=IntegerType()), "orders", "'message_id' is int, but must be string"),
        (
            table(body=BinaryType(), application_properties=MapType(StringType(), DecimalType())),
            "orders",
            "is map<string,decimal(10,0)>, but must be map<string,string> (or JSON as string, or a map to one of ",
        ),
        (table(body=StringType(), BODY=StringType()), "orders", "the column 'body' is there twice"),
        (table(BODY=IntegerType()), "orders", "'BODY' is int, but must be binary or string"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_sent(columns: StructType, entity: str | None, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        connector.check_writable(columns, entity)
    assert words in str(caught.value)


def test_what_was_read_can_be_written() -> None:
    connector.check_writable(connector.SCHEMA, "orders")
    connector.check_writable(table(body=StringType(), destination=StringType()), None)


def test_the_names_of_columns_are_taken_in_any_letter_case() -> None:
    connector.check_writable(table(Body=StringType(), MESSAGE_ID=StringType(), Destination=StringType()), None)
    batch = pa.RecordBatch.from_pylist([{"Body": "x", "MESSAGE_ID": "m", "Destination": "there"}])
    (message,) = connector.outgoing(batch)
    assert message.destination == "there"
    assert (connector.read(message.payload)["message_id"], connector.read(message.payload)["body"]) == ("m", b"x")


def test_a_time_without_a_zone_is_utc() -> None:
    connector.check_writable(table(body=StringType(), scheduled_enqueue_time_utc=TimestampNTZType()), "orders")
    time = dt.datetime(2030, 1, 2, 3, 4, 5)
    schema = pa.schema({"body": pa.string(), "scheduled_enqueue_time_utc": pa.timestamp("us")})
    (message,) = connector.outgoing(
        pa.RecordBatch.from_pylist([{"body": "x", "scheduled_enqueue_time_utc": time}], schema)
    )
    assert connector.read(message.payload)["scheduled_enqueue_time_utc"] == time.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "found"),
    [
        (BooleanType(), pa.bool_(), True, True),
        (ByteType(), pa.int8(), 5, Byte(5)),
        (ShortType(), pa.int16(), 5, Short(5)),
        (IntegerType(), pa.int32(), 5, Int(5)),
        (LongType(), pa.int64(), 2**40, 2**40),
        (FloatType(), pa.float32(), 1.5, Float(1.5)),
        (DoubleType(), pa.float64(), 1.5, 1.5),
        (BinaryType(), pa.binary(), b"\x00\xff", b"\x00\xff"),
        (TimestampType(), pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 2, tzinfo=dt.UTC), Timestamp(86_400_000)),
        (TimestampNTZType(), pa.timestamp("us"), dt.datetime(1970, 1, 2), Timestamp(86_400_000)),
        (IntegerType(), pa.int32(), None, None),
    ],
)
def test_application_properties_keep_the_type_of_their_map(
    kind: DataType, arrow: pa.DataType, value: Any, found: Any
) -> None:
    connector.check_writable(table(body=StringType(), application_properties=MapType(StringType(), kind)), "orders")
    schema = pa.schema({"body": pa.string(), "application_properties": pa.map_(pa.string(), arrow)})
    rows = [{"body": "x", "application_properties": [("n", value)]}, {"body": "y", "application_properties": None}]
    first, second = connector.outgoing(pa.RecordBatch.from_pylist(rows, schema))
    properties = View(first.payload).application_properties
    assert properties == {"n": found} and type(properties["n"]) is type(found)
    assert split(second.payload).application_properties is None


def test_a_time_to_live_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="at least a millisecond"):
        connector.encode({"body": b"", "time_to_live": dt.timedelta(0)})
