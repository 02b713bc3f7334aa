from __future__ import annotations

import datetime as dt

import pyarrow as pa
from pyspark.sql import Row

from pairbus.spark.connector.arrow_rows import ROWS_A_BATCH, batches
from pairbus.spark.connector.schema import outgoing, read


def test_arrow_batches_pass_as_they_are() -> None:
    given = [pa.RecordBatch.from_pylist([{"n": 1}]), pa.RecordBatch.from_pylist([{"n": 2}])]
    assert list(batches(iter(given))) == given


def test_rows_become_batches_that_the_sink_can_send() -> None:
    local = dt.datetime(2030, 1, 2, 3, 4, 5)  # as Spark 4.0 hands it over, in the worker's own zone
    row = Row(
        message_id="m1",
        body=bytearray(b"x"),
        application_properties={"k": "v"},
        scheduled_enqueue_time_utc=local,
        time_to_live=dt.timedelta(seconds=60),
        destination="orders",
    )
    (batch,) = batches(iter([row]))
    ((destination, payload, *_),) = outgoing(batch)
    found = read(payload)
    assert destination == "orders"
    assert found["message_id"] == "m1" and found["body"] == b"x"
    assert dict(found["application_properties"]) == {"k": "v"}
    assert found["scheduled_enqueue_time_utc"] == local.astimezone(dt.UTC)
    assert found["time_to_live"] == dt.timedelta(seconds=60)


def test_many_rows_are_several_batches_and_none_are_none() -> None:
    sizes = [batch.num_rows for batch in batches(Row(n=number) for number in range(2 * ROWS_A_BATCH + 1))]
    assert sizes == [ROWS_A_BATCH, ROWS_A_BATCH, 1]
    assert list(batches(iter([]))) == []
