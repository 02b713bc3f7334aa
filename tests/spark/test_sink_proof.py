"""The sink under a real Spark that runs its tasks again, and a lock pipeline with a function that is too slow."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import udf

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark import carry, locked
from pairbus.spark.connector.schema import read
from tests.spark.connector.test_writer import ids_in

from .conftest import MakeQueue, Pair, peeked, wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def write(rows: Any, pair: Pair, entity: str, **options: str) -> None:
    rows.write.format("servicebus").options(
        connectionString=pair.primary.connection_string, entity=entity, **options
    ).mode("append").save()


def test_a_row_that_is_too_large_multiplies_nothing(
    spark: Any, pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(pair.primary, "plain", "skipped")
    rows = spark.range(3000).selectExpr("if(id = 1234, repeat('x', 300000), string(id % 10)) AS Body").coalesce(1)
    with pytest.raises(Exception, match=r"1 of 3000 rows can't be sent to plain: the message has 300\d\d\d bytes"):
        write(rows, pair, "plain")
    assert ids_in(pair, "plain") == []
    write(rows, pair, "skipped", onRefused="skip", refusedPath=str(tmp_path / "refused"))
    found = ids_in(pair, "skipped")
    assert len(found) == len(set(found)) == 2999
    (row,) = spark.read.parquet(str(tmp_path / "refused")).collect()
    assert row.destination == "skipped" and len(row.amqp) > 300_000 and "262144" in row.reason


def test_a_task_that_is_run_again_makes_its_ids_again(
    spark: Any, pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """A part of the batch is sent before a later row fails: without detection the copies share their ids."""
    make_queue(pair.primary, "copies")
    make_queue(pair.primary, "detected", requires_duplicate_detection=True)
    for name in ("copies", "detected"):
        marker = tmp_path / name

        def fail_once(number: int, marker: Path = marker) -> str:
            if number == 399 and not marker.exists():
                marker.touch()
                raise ValueError("not this time")
            return "x" * 100_000

        rows = spark.range(400).select(udf(fail_once, "string", useArrow=False)("id").alias("body")).coalesce(1)
        write(rows, pair, name)
    found = ids_in(pair, "copies")
    assert len(set(found)) == 400 and len(found) > 400, "the first attempt sent some"
    assert len(ids_in(pair, "detected")) == 400


def test_typed_columns_of_any_case_reach_the_queue(spark: Any, pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "typed")
    rows = spark.sql(
        "SELECT 'x' AS BODY, 'm' AS Message_Id, map('n', 5) AS application_properties, "
        "timestamp_ntz'2030-01-02 03:04:05' AS scheduled_enqueue_time_utc"
    )
    write(rows, pair, "typed")
    (row,) = map(read, peeked(pair.primary, "typed"))
    assert (row["message_id"], row["application_properties"]) == ("m", [("n", "5")])
    assert row["scheduled_enqueue_time_utc"] == dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def test_a_slow_function_between_the_lock_and_the_sink_moves_everything_once(
    spark: Any, pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.secondary, "from", lock_duration=dt.timedelta(seconds=5))
    make_queue(pair.primary, "to")
    with wire(pair.secondary) as client:
        messages = [encode_message(properties=Properties(message_id=f"m{n}"), body=b"x") for n in range(100)]
        assert client.sender("from").send_many(messages) == [None] * 100

    def slow(text: str) -> str:
        time.sleep(0.07)  # 7 s for all of them
        return text

    rows = locked(spark, pair.secondary_address, "from").select(
        "amqp", "entity", udf(slow, "string", useArrow=False)("lock_token").alias("lock_token")
    )
    with carry(rows, pair.primary_address, "to", settle=pair.secondary_address) as carrying:
        end = time.monotonic() + 120
        while peeked(pair.secondary, "from") or carrying.sent < len(ids_in(pair, "to")):  # counted at the batch's end
            assert time.monotonic() < end and carrying.query.isActive, (carrying, carrying.query.exception())
            time.sleep(0.2)
        found = ids_in(pair, "to")
        assert set(found) == {f"m{n}" for n in range(100)}
        assert carrying.late > 0, "the first batch was too large for the lock, and it is told"
        assert len(found) == 100 + carrying.lost_locks
    assert carrying.sent == len(found)


@pytest.mark.parametrize(("entity", "words"), [("nowhere", "could not be found"), ("grouped", "session")])
def test_a_lock_stream_that_can_never_read_ends_with_an_error(
    spark: Any, pair: Pair, make_queue: MakeQueue, entity: str, words: str
) -> None:
    make_queue(pair.secondary, "grouped", requires_session=True)
    make_queue(pair.primary, "to")
    rows = locked(spark, pair.secondary_address, entity)
    with (
        carry(rows, pair.primary_address, "to", settle=pair.secondary_address) as carrying,
        pytest.raises(Exception, match=f"mode=lock can't receive from {entity}: .*{words}"),
    ):
        carrying.awaitTermination(60)
