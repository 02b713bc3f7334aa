"""Lock streams, settling and ingest of entities with sessions, on a real Spark: a session is on one task and in order,
and whatever dies, nothing is lost and first deliveries are in order."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark import abandon, carry, complete, dead_letter, defer, ingest, locked, renew
from pairbus.spark.connector.held_sessions import WORKER_S
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.schema import read
from pairbus.testing import fault

from .conftest import MakeQueue, Pair, peeked, wire
from .fault_scene import kill, until, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SESSIONS, EACH = 12, 30


@pytest.fixture(autouse=True)
def talks(pair: Pair, make_queue: MakeQueue) -> None:
    lock = dt.timedelta(minutes=5)
    make_queue(pair.secondary, "talks", requires_session=True, lock_duration=lock, max_delivery_count=100)
    make_queue(pair.primary, "to", requires_session=True)
    with wire(pair.secondary) as client:
        payloads = [
            encode_message(properties=Properties(message_id=f"m{number}", group_id=f"s{number % SESSIONS}"), body=b"x")
            for number in range(SESSIONS * EACH)
        ]
        assert client.sender("talks").send_many(payloads) == [None] * len(payloads)


def by_session(pair: Pair, *, first: bool) -> dict[str, list[str]]:
    """The message ids of each session at the destination, in order; with `first` without what came again."""
    found: dict[str, list[str]] = {}
    with wire(pair.primary) as client:
        at = 1
        while payloads := client.peek("to", at, 250):
            for row in map(read, payloads):
                ids = found.setdefault(row["session_id"], [])
                if not (first and row["message_id"] in ids):
                    ids.append(row["message_id"])
                at = row["sequence_number"] + 1
    return found


IN_ORDER = {f"s{n}": [f"m{number}" for number in range(n, SESSIONS * EACH, SESSIONS)] for n in range(SESSIONS)}


def carried(spark: Any, pair: Pair, **options: Any) -> Any:
    rows = locked(spark, pair.secondary_address, "talks", sessions=True, minPartitions=2, **options)
    return carry(rows, pair.primary_address, "to", settle=pair.secondary_address)


def test_sessions_are_carried_in_order_each_message_once(spark: Any, pair: Pair) -> None:
    with carried(spark, pair, maxMessagesPerTrigger=100) as carrying:
        until(lambda: not peeked(pair.secondary, "talks"), 240, lambda: (carrying, carrying.query.exception()))
        assert by_session(pair, first=False) == IN_ORDER
        assert (carrying.late, carrying.lost_locks) == (0, 0)


def test_workers_that_are_killed_lose_nothing_and_first_deliveries_are_in_order(spark: Any, pair: Pair) -> None:
    """The killed ones hold the sessions, or are sending: their sessions are free at once, and go on on other tasks."""
    total, killed = SESSIONS * EACH, 0
    with (
        fault(pair.data, "latency", namespace="contoso", entity="to", delay=0.3),
        carried(spark, pair, maxMessagesPerTrigger=60) as carrying,
    ):
        for share in (0.1, 0.3, 0.5, 0.7):
            until(lambda share=share: arrived(pair) >= share * total, 120, lambda: (carrying, arrived(pair)))
            killed += kill(workers_of(os.getpid()))
        until(
            lambda: not peeked(pair.secondary, "talks"),
            240,
            lambda: (carrying, carrying.query.exception()),
        )
        assert carrying.query.isActive
    found = by_session(pair, first=False)
    doubled = sum(map(len, found.values())) - total
    print(f"{killed} workers killed, {doubled} messages came twice")
    assert by_session(pair, first=True) == IN_ORDER
    assert killed >= 4
    assert doubled <= 4 * 60, "at most a batch for each time"


def arrived(pair: Pair) -> int:
    queue = pair.primary.namespace.resolve("to")
    assert queue is not None
    return queue.active_count


def test_rows_of_sessions_are_settled_in_a_foreach_batch(
    spark: Any, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS", pair.secondary.connection_string)
    bus = {"connectionStringEnv": "BUS"}
    settled: list[Any] = []
    failed: list[str] = []
    took: list[float] = []
    tasks: set[tuple[Any, ...]] = set()
    done = threading.Event()

    def each(rows: Any, number: int) -> None:
        begun = time.monotonic()
        rows = rows.localCheckpoint()
        if done.is_set():
            return
        ordinal = "cast(substring(message_id, 2) AS int)"
        parts = [rows.where(f"{ordinal} div {SESSIONS} % 4 = {rest}") for rest in range(4)]
        try:
            renew(rows, **bus)
        except InvalidOption as error:
            failed.append(str(error))
        found = [complete(parts[0], **bus), defer(parts[1], **bus)]
        # Last of all what is to be delivered again: with it the sessions are free.
        dead = dead_letter(parts[2], reason="late", **bus)
        found += [abandon(parts[3], **bus), dead]
        if not any(map(sum, found)):
            return  # a first batch that came before the watcher had found anything
        settled.append(found)
        took.append(time.monotonic() - begun)
        tasks.update(map(tuple, rows.selectExpr("session_id", "spark_partition_id()").collect()))
        done.set()

    rows = locked(spark, pair.secondary_address, "talks", sessions=True, minPartitions=2)
    query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path)).start()
    try:
        until(done.is_set, 400, query.exception)
    finally:
        query.stop()
    assert len(tasks) == SESSIONS, "each is on one task"
    assert "can't be renewed" in failed[0] and "renew the session's" in failed[0]
    counts = settled[0]
    assert sum(map(sum, counts)) == SESSIONS * EACH, "all free sessions are in one batch"
    if took[0] < WORKER_S:  # after that Spark may have ended the worker that holds them
        assert all(each.lost == 0 and each.settled for each in counts), counts
    assert len(peeked(pair.secondary, "talks/$DeadLetterQueue")) == counts[3].settled
    states = [read(each)["state"] for each in peeked(pair.secondary, "talks")]
    assert states.count("deferred") == counts[1].settled
    assert len(states) == SESSIONS * EACH - counts[0].settled - counts[3].settled


def test_a_queue_with_sessions_is_ingested_each_message_once_though_workers_die(
    spark: Any, pair: Pair, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    running = ingest(spark, pair.secondary_address, "talks", table, drain=True, min_partitions=2, every_s=0.1)
    until(lambda: (table / "_staging").exists() and workers_of(os.getpid()), 120)
    kill(workers_of(os.getpid()))
    assert running.wait(300) == []
    rows = spark.read.parquet(str(table))
    assert rows.count() == rows.select("message_id").distinct().count() == SESSIONS * EACH
    assert rows.select("session_id").distinct().count() == SESSIONS and peeked(pair.secondary, "talks") == []
