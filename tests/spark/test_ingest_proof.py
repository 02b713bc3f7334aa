"""`ingest`, the way back, and settling rows from a DataFrame, on a real Spark in one session. What dies when:
test_ingest_kill_proof."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import serve_sync
from pairbus.spark import (
    abandon,
    complete,
    dead_letter,
    defer,
    ingest,
    locked,
    renew,
    restore,
)
from pairbus.spark.connector import connections
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.schema import read
from pairbus.spark.pipelines import ingest as ingest_module
from pairbus.spark.pipelines import table_files
from pairbus.spark.pipelines.ingest import Ingester
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.table_files import HadoopFiles, leased
from tests.moving_clock import Clock
from tests.waiting import until

from .conftest import MakeQueue, Pair, peeked
from .test_move_proof import ROOT, _plain, exact, folder, free, message, run_console, send

assert folder  # a fixture
LOCK = dt.timedelta(minutes=5)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Pair]:
    """With a clock that ends locks: they are long, since a busy machine takes its time for a batch."""
    data = tmp_path_factory.mktemp("pair")
    with serve_sync("contoso", "backup", data=data, clock=clock) as broker:
        yield Pair(broker.namespaces["contoso"], broker.namespaces["backup"], data)
        connections.close_all()


@pytest.fixture(autouse=True)
def queues(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "orders", lock_duration=LOCK, max_delivery_count=50)
    make_queue(pair.secondary, "copies")


@contextlib.contextmanager
def each_failure(ingester: Ingester, do: Any) -> Iterator[None]:
    """Calls a function whenever a batch has failed."""
    failed = ingester._failed

    def called(*given: Any) -> None:
        do()
        failed(*given)

    ingester._failed = called  # type: ignore[method-assign,assignment]
    yield


def ids(spark: Any, table: Path) -> Counter[str]:
    return Counter(row[0] for row in spark.read.parquet(str(table)).select("message_id").collect())


def named(*numbers: int) -> Counter[str]:
    return Counter(f"m{number}" for number in range(*numbers))


def test_a_queue_becomes_a_table_and_goes_back_to_the_byte(
    spark: Any, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = {f"m{number}": message(number) for number in range(48)}
    send(pair.primary, "orders", *list(messages.values())[:24])
    time.sleep(0.05)
    table = tmp_path / "a table"
    running = ingest(spark, pair.primary.connection_string, "orders", table, drain=True, min_partitions=2)
    assert running.wait(900) == [] and running.report().moved == 24 and peeked(pair.primary, "orders") == []
    between = dt.datetime.now(dt.UTC)
    send(pair.primary, "orders", *list(messages.values())[24:])
    assert ingest(spark, pair.primary_address, "orders", str(table), drain=True).wait(900) == []
    rows = spark.read.parquet(str(table))
    assert rows.where("enqueued_date = date(enqueued_time)").count() == 48 and ids(spark, table) == named(48)
    assert {_plain(bytes(row[0])) for row in rows.select("amqp").collect()} == set(map(_plain, messages.values()))
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96", "the application's session is untouched"
    # and back
    where = f"enqueued_time between '{between.isoformat()}' and '2999-01-01' and enqueued_date > '2020-01-01'"
    assert restore(spark, table, pair.secondary.connection_string, "copies", where=where) == 24
    late = {name: _plain(each) for name, each in list(messages.items())[24:]}
    assert exact(pair.secondary, "copies") == late
    key = pair.primary.connection_string.split("SharedAccessKey=")[1][:20].encode()
    assert not [file for file in table.rglob("*") if file.is_file() and key in file.read_bytes()]
    assert key.decode() not in capsys.readouterr().err


def test_what_is_in_the_table_is_completed_and_not_written_again_even_after_a_compaction(
    spark: Any, pair: Pair, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    send(pair.primary, "orders", *map(message, range(30)))
    real = ingest_module.settle

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ingest_module, "settle", dies)
    with pytest.raises(KeyboardInterrupt):  # as if the process had died: files are committed, nothing is completed
        ingest(spark, pair.primary_address, "orders", table, drain=True).wait(900)
    monkeypatch.setattr(ingest_module, "settle", real)
    assert ids(spark, table) == named(30) and len(peeked(pair.primary, "orders")) == 30
    clock.advance(LOCK.total_seconds() + 1)
    (day,) = table.glob("enqueued_date=*")
    spark.read.parquet(str(day)).coalesce(1).write.parquet(str(tmp_path / "compacted"))
    for file in day.iterdir():
        file.unlink()
    (compacted,) = (tmp_path / "compacted").glob("*.parquet")
    compacted.rename(day / "compacted.parquet")
    send(pair.primary, "orders", *map(message, range(30, 40)))
    ingester = Ingester(pair.primary_address, "orders", table, drain=True, spark=spark)
    assert ingester.run() == [] and ingester.already == 30 and ingester.report().moved == 40
    assert ids(spark, table) == named(40) and peeked(pair.primary, "orders") == []


def test_a_table_of_an_earlier_version_is_taken_over_unless_messages_could_be_confused(
    spark: Any, pair: Pair, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    send(pair.primary, "orders", *map(message, range(10)))
    with monkeypatch.context() as patch:
        patch.setattr(ingest_module, "settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):  # files are committed, nothing is completed
            ingest(spark, pair.primary_address, "orders", table, drain=True).wait(900)
    clock.advance(LOCK.total_seconds() + 1)
    mark = table / "_pairbus.namespace.contoso"
    mark.unlink()  # as an earlier version would have left it
    with pytest.raises(TransferFailed, match="was written by an earlier version"):
        ingest(spark, pair.primary_address, "orders", table, drain=True).wait(900)
    assert free(pair.primary, "orders") == 10 and not mark.exists()
    running = ingest(spark, pair.primary_address, "orders", table, drain=True, same_namespace=True)
    assert running.wait(900) == [] and running.already == 10 and mark.exists()
    mark.unlink()
    send(pair.primary, "orders", *map(message, range(10, 20)))  # none of these is in the table
    assert ingest(spark, pair.primary_address, "orders", table, drain=True).wait(900) == [] and mark.exists()
    assert ids(spark, table) == named(20)


def test_a_write_of_one_s_own_gets_each_batch_before_it_is_completed(
    spark: Any, pair: Pair, clock: Clock, tmp_path: Path
) -> None:
    send(pair.primary, "orders", *map(message, range(20)))
    seen: list[int] = []

    def write(rows: Any) -> None:
        if not seen:
            seen.append(0)
            clock.advance(LOCK.total_seconds() + 1)
            raise OSError("the table is away")
        assert len(peeked(pair.primary, "orders")) == 20 and rows.columns[-1] == "state"
        seen.append(rows.count())
        rows.write.mode("append").parquet(str(tmp_path / "mine"))

    running = ingest(spark, pair.primary_address, "orders", tmp_path / "stage", drain=True, write=write)
    assert running.wait(900) == [] and seen == [0, 20] and peeked(pair.primary, "orders") == []
    assert spark.read.parquet(str(tmp_path / "mine")).select("message_id").distinct().count() == 20
    assert [each.name for each in (tmp_path / "stage").iterdir() if each.name[0] != "_"] == []


def test_a_continuous_ingest_goes_on_and_a_second_one_is_refused(spark: Any, pair: Pair, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with ingest(spark, pair.primary_address, "orders", table, every_s=0.2) as running:
        for count in (5, 10):
            send(pair.primary, "orders", *map(message, range(count - 5, count)))
            until(lambda count=count: running.report().moved == count, 600, lambda: running)
        with pytest.raises(TransferFailed, match="another ingest writes to"):
            ingest(spark, pair.primary_address, "orders", table).wait(30)
        until(lambda: running.report().waiting_for == "messages", 600, lambda: running)
        assert running.is_running and ids(spark, table) == named(10)
    assert not running.is_running and free(pair.primary, "orders") == 0


def test_a_table_elsewhere_is_kept_through_spark_s_file_systems(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "RENEW_S", 0.1)
    table = f"file:{tmp_path / 'a table'}"
    staged = tmp_path / "a table" / "_staging" / "r" / "part-1.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"rows")
    with leased(spark, table) as files:
        with pytest.raises(TransferFailed, match=r"another ingest writes to .*a killed one's lock ends 120 s after"):
            leased(spark, table).__enter__()
        assert files.names("2026-11-17") == []
        files.commit(f"file://{str(staged).replace(' ', '%20')}", "2026-11-17", "x.parquet")
        assert files.names("2026-11-17") == ["x.parquet"] and not staged.exists()
        with pytest.raises((OSError, Py4JError)):  # as the file system has it
            files.commit(f"file://{str(staged).replace(' ', '%20')}", "2026-11-17", "y.parquet")
        files.clear()
        assert not staged.parent.exists()
        assert files.lease is not None
        before = files.lease._renewed_at
        until(lambda: files.lease._renewed_at > before, 10)
        files.write_root("_pairbus.lock.abandoned")
        monkeypatch.setattr(table_files, "LEASE_S", 0.0)
        until(lambda: not files.lease.holds(), 10)
        with pytest.raises(TransferFailed, match="was not renewed in time, and another may have it"):
            files.commit("file:/x", "2026-11-17", "z.parquet")
        with leased(spark, table):  # which nobody has renewed
            pass
    assert not [each for each in (tmp_path / "a table").iterdir() if "lock" in each.name]
    (tmp_path / "a table" / "_delta_log").mkdir()
    with pytest.raises(TransferFailed, match=r"holds a table with a log \(_delta_log\)"):
        leased(spark, table).__enter__()
    assert HadoopFiles(spark, table).locks() == {}


# -- settling rows


@pytest.fixture
def batches(spark: Any, pair: Pair, tmp_path: Path) -> Iterator[Any]:
    """Runs a function on the batches of a lock stream until it returns something, and returns that."""
    queries: list[Any] = []

    def run(do: Any, **options: Any) -> Any:
        found: list[Any] = []
        done = threading.Event()

        def each(rows: Any, number: int) -> None:
            if not done.is_set():
                try:
                    result = do(rows)
                except Exception as error:
                    result = error
                if result is not None:
                    found.append(result)
                    done.set()

        rows = locked(spark, pair.primary_address, "orders", **options)
        writing = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.append(writing.start())
        assert done.wait(900)
        queries[-1].stop()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    yield run
    for query in queries:
        query.stop()


def test_rows_of_a_lock_stream_are_settled_by_token_and_only_those_that_were_seen(
    spark: Any, pair: Pair, batches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS", pair.primary.connection_string)
    bus = {"connectionStringEnv": "BUS"}

    def settle(rows: Any) -> Any:
        for anew in (rows, rows.persist(), rows.where("sequence_number > 0").repartition(2)):
            with pytest.raises(
                InvalidOption, match=r"lock other messages than those .* rows = rows.localCheckpoint\(\)"
            ):
                complete(anew, **bus)
        rows.unpersist()
        receivers = rows.rdd.getNumPartitions()
        rows = rows.localCheckpoint()
        if not rows.count():
            return None  # a first batch that came before the messages
        assert receivers == 3, "three receivers compete for the queue"
        with pytest.raises(InvalidOption, match="need the columns entity, lock_token of the lock stream; these have "):
            complete(rows.select("sequence_number"), **bus)
        with pytest.raises(InvalidOption, match="name the namespace by connectionString"):
            complete(rows)
        number = rows.selectExpr("min(sequence_number)").first()[0]
        part = [rows.where(f"(sequence_number - {number}) % 4 = {rest}") for rest in range(4)]
        found = (
            renew(rows, **bus),
            complete(part[0].orderBy("sequence_number"), **bus),
            dead_letter(part[1], reason="late", description="by the test", **bus),
            defer(part[2], **bus),
            abandon(part[3], **bus),
        )
        return rows.count(), found, complete(part[0], **bus)

    send(pair.primary, "orders", *map(message, range(40)))
    until(lambda: len(peeked(pair.primary, "orders")) == 40)
    count, found, again = batches(settle, minPartitions=3)
    # how many the three receivers have got is theirs; each was settled as it was told
    renewed, completed, buried, deferred, abandoned = found
    assert renewed == (count, 0) and sum(each.settled for each in found[1:]) == count
    assert again == completed, "completed again, what is gone is not said to be lost"
    assert len(peeked(pair.primary, "orders/$DeadLetterQueue")) == buried.settled
    states = Counter(read(each)["state"] for each in peeked(pair.primary, "orders"))
    assert states["deferred"] == deferred.settled and states.total() == 40 - completed.settled - buried.settled
    assert abandoned.settled and {
        read(each)["dead_letter_reason"] for each in peeked(pair.primary, "orders/$DeadLetterQueue")
    } == {"late"}


def test_a_stream_as_such_can_t_be_settled(spark: Any, pair: Pair) -> None:
    with pytest.raises(InvalidOption, match="settle its batches, in a function for foreachBatch"):
        complete(locked(spark, pair.primary_address, "orders"), connectionString=pair.primary.connection_string)


# -- the command


def test_ctrl_c_ends_a_continuous_ingest_after_its_batch(pair: Pair, tmp_path: Path) -> None:
    send(pair.primary, "orders", *map(message, range(50)))
    (tmp_path / "contoso").write_text(pair.primary.connection_string)
    command = [sys.executable, "-m", "pairbus", "ingest", "@contoso", "orders", "table", "--json", "--every", "0.5"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        for line in running.stdout:
            if json.loads(line)["moved"] == 50:
                break
        running.send_signal(signal.SIGINT)
        result = json.loads(running.stdout.read().splitlines()[-1])
        assert running.wait(60) == 0, running.stderr.read()
        assert "Traceback" not in running.stderr.read()
    assert (result["outcome"], result["moved"], result["already_in_table"]) == ("stopped", 50, 0)
    assert result["not_moved"] == [] and peeked(pair.primary, "orders") == []
    assert [each.name for each in (tmp_path / "table").rglob("*") if "_staging" in each.parts and each.is_file()] == []


# -- the documents


def test_the_how_to_prints_what_it_shows(
    spark: Any, pair: Pair, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(pair.primary, "orders", *map(message, range(100)))
    assert len(run_console("docs/how-to/ingest-a-queue.md", capsys)) == 2
    assert exact(pair.secondary, "copies").keys() == named(100).keys()


def test_the_how_to_s_own_batches_are_settled(
    spark: Any, pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = marked("docs/how-to/ingest-a-queue.md", "test_the_how_to_s_own_batches_are_settled")
    monkeypatch.setenv("BUS", pair.primary.connection_string)
    send(
        pair.primary,
        "orders",
        *map(message, range(19)),
        encode_message(properties=Properties(message_id="b"), body=b"x"),
    )
    names: dict[str, Any] = {"spark": spark, "CONTOSO": pair.primary.connection_string, "FOLDER": str(tmp_path)}
    exec(compile(program, "how-to", "exec"), names)
    printed: list[str] = []

    def has_told_both() -> bool:
        printed.append(capfd.readouterr().out)
        return all(f"Settled(settled={count}, lost=0)" in "".join(printed) for count in (19, 1))

    until(has_told_both, 600, lambda: printed)
    names["query"].stop()
    assert not peeked(pair.primary, "orders")
    assert len(peeked(pair.primary, "orders/$DeadLetterQueue")) == 1
    assert spark.read.parquet(str(tmp_path / "mine")).count() == 19


def test_the_tutorial_prints_what_it_shows(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    document = "docs/tutorial/from-queue-to-lakehouse.md"
    (program,) = marked(document, "test_the_tutorial_prints_what_it_shows")
    (shown,) = re.findall(r"<!-- output -->\n```text\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    exec(compile(program, "tutorial", "exec"), {"__name__": "tutorial"})
    assert capsys.readouterr().out == shown


def marked(document: str, test: str) -> list[str]:
    """The Python blocks of a document that name a test."""
    text = (ROOT / document).read_text()
    return re.findall(rf"<!-- tested by: \S+::{test} -->\n```python\n(.*?)```", text, re.DOTALL)
