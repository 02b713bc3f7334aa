"""What crosses the border to a real Spark: the source, the sink, the streams, and the syphon on one machine and on two
executors. A JVM for the module, and one for each program that needs its own."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Array, Byte, Char, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from pairbus.broker import NamespaceServer
from pairbus.pairing.backlog.aliases import BROKER_ANNOTATIONS, divert_encoded
from pairbus.spark import syphon
from pairbus.spark.connector.schema import read
from pairbus.syphon.core import queue_discovery
from tests.waiting import until

from .conftest import MakeQueue, Pair, admin_of, peeked, wire
from .standalone import cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]


def send(pair: Pair, entity: str, *payloads: bytes, secondary: bool = False) -> None:
    with wire(pair.secondary if secondary else pair.primary) as client:
        assert client.sender(entity).send_many(payloads) == [None] * len(payloads)


def plain(number: int) -> bytes:
    return encode_message(properties=Properties(message_id=f"m{number}", subject="s"), body=b"x" * 100)


def load(spark: Any, pair: Pair, **options: str) -> Any:
    return spark.read.format("servicebus").options(connectionString=pair.primary.connection_string, **options).load()


def test_a_queue_is_a_table_and_a_table_a_queue(spark: Any, pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "orders", "copies", "others")
    send(pair, "orders", *map(plain, range(2500)))
    table = load(spark, pair, entity="orders")
    assert table.count() == 2500
    assert table.where("sequence_number > 2490").count() == 10
    assert table.count() == 2500, "a filter of one query must not leak into the next"
    pushed = load(spark, pair, entity="orders", pushFilters="true").where("sequence_number between 11 and 20")
    assert sorted(row.message_id for row in pushed.select("message_id").collect()) == sorted(
        f"m{n}" for n in range(10, 20)
    )
    assert load(spark, pair, entity="orders", fromSequenceNumber="2400", toSequenceNumber="2410").count() == 11
    (
        table.selectExpr("amqp", "if(sequence_number % 2 = 0, 'copies', 'others') as destination")
        .write.format("servicebus").options(connectionString=pair.primary.connection_string).mode("append").save()
    )  # fmt: skip
    both = load(spark, pair, entity="copies,others").groupBy("entity").count().collect()
    assert {row.entity: row["count"] for row in both} == {"copies": 1250, "others": 1250}
    assert len(peeked(pair.primary, "orders")) == 1000, "peeking takes nothing away"
    globbed = load(spark, pair, entity="co*", caFile=pair.primary.ca_file)
    assert {row.entity for row in globbed.select("entity").distinct().collect()} == {"copies"}


def test_sql_alone_writes_and_reads(spark: Any, bus: NamespaceServer, make_queue: MakeQueue) -> None:
    make_queue(bus, "orders")
    text = (Path(__file__).parents[2] / "docs" / "reference" / "connector.md").read_text()
    program = text.split("```sql\n")[1].split("```")[0]
    with ExitStack() as tables:
        tables.callback(drop_tables, spark)
        rows = [spark.sql(each).collect() for each in re.split(r";\n", program) if each.strip()]
        assert sorted(map(tuple, rows[-1])) == [("coffee", "order-2"), ("tea", "order-1")]
        later = spark.sql("SELECT message_id FROM orders WITH (`fromSequenceNumber` = '2')").collect()
        assert len(later) == 1
        with pytest.raises(Exception, match="table of a catalog shows its options, so connectionString can't be one"):
            spark.sql("CREATE TABLE keyed USING servicebus OPTIONS (connectionString 'Endpoint=sb://x', entity 'o')")
        spark.sql("CREATE TABLE plain (body STRING) USING servicebus OPTIONS (connectionStringEnv 'BUS', entity 'o')")
        with pytest.raises(Exception, match="only where CREATE TABLE names no columns, and never as the sink"):
            spark.sql("INSERT INTO plain VALUES ('milk')")
        spark.sql("INSERT INTO plain WITH (connectionStringEnv = 'BUS', entity = 'orders') VALUES ('milk')")
        assert spark.table("orders").count() == 3
        for view, columns in (("reading", ""), ("writing", "(body STRING)")):
            at = f"OPTIONS (connectionString '{bus.connection_string}', entity 'orders')"
            spark.sql(f"CREATE TEMPORARY VIEW {view} {columns} USING servicebus {at}")
        spark.sql("INSERT INTO writing VALUES ('water')")
        spark.sql("INSERT INTO reading (body) VALUES (CAST('wine' AS BINARY))")
        assert [row.body for row in spark.sql("SELECT body FROM reading").collect()][3:] == [b"water", b"wine"]


def test_a_table_of_a_catalog_is_a_stream_s_source_and_sink(
    spark: Any, bus: NamespaceServer, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(bus, "orders", "copies")
    with ExitStack() as tables:
        tables.callback(drop_tables, spark)
        for name in ("orders", "copies"):
            spark.sql(f"CREATE TABLE {name} USING servicebus OPTIONS (connectionStringEnv 'BUS', entity '{name}')")
        spark.sql("INSERT INTO orders (body) VALUES (X'61')")
        # the rows carry the options of the table that they were read from, which must not lead them back there
        at = {"connectionStringEnv": "BUS", "entity": "copies"}
        spark.table("orders").write.format("servicebus").mode("append").options(**at).save()
        copying = spark.readStream.table("orders").writeStream.trigger(availableNow=True)
        for options in ({}, at):
            query = copying.options(checkpointLocation=str(tmp_path / str(len(options))), **options).toTable("copies")
            with pytest.raises(Exception, match="never as the sink of a stream") if not options else nullcontext():
                query.awaitTermination(120)
    assert [len(peeked(bus, name)) for name in ("orders", "copies")] == [1, 2]


def drop_tables(spark: Any) -> None:
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def test_wrong_options_and_columns_are_told_in_one_clear_line(spark: Any, pair: Pair) -> None:
    with pytest.raises(Exception, match=r"no option 'entitee'.*did you mean entity"):
        load(spark, pair, entitee="orders").count()
    with pytest.raises(Exception, match="no column 'colour'"):
        spark.createDataFrame([("x", "red")], "body string, colour string").write.format("servicebus").options(
            connectionString=pair.primary.connection_string, entity="orders"
        ).mode("append").save()


def test_no_secret_shows_in_a_plan(spark: Any, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    key = pair.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    table = load(spark, pair, entity="orders")
    table.explain(True)
    assert key not in capsys.readouterr().out
    assert key not in repr(table)


def test_streams_by_sequence_number(spark: Any, pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue(pair.primary, "in-1", "in-2", "out")
    send(pair, "in-1", *map(plain, range(300)))
    send(pair, "in-2", *map(plain, range(300, 350)))

    def run(mode: str, checkpoint: str) -> list[int]:
        stream = spark.readStream.format("servicebus").options(
            connectionString=pair.primary.connection_string, entity="in-1,in-2", mode=mode, maxMessagesPerTrigger="100"
        )
        query = (
            stream.load().select("message_id", "body").writeStream.format("servicebus")
            .options(connectionString=pair.primary.connection_string, entity="out")
            .option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    assert run("peek", "a") == [100, 100, 100, 50]
    assert run("peek", "a") == []
    assert len(peeked(pair.primary, "in-1")) == 300
    assert sum(run("delete", "b")) == 350
    run("delete", "b")
    assert peeked(pair.primary, "in-1") == peeked(pair.primary, "in-2") == []
    assert len(peeked(pair.primary, "out")) == 700


def test_streams_of_a_partitioned_queue(spark: Any, pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    """Written, read and streamed into a queue that takes no batch. A stream goes on where it was in each partition; one
    with a starting position begins there also after a restart; progress says how far a stream is behind."""
    make_queue(pair.primary, "parts", "parted", enable_partitioning=True, requires_duplicate_detection=True)
    bus = {"connectionString": pair.primary.connection_string}

    def write(name: str, count: int) -> None:
        rows = [(f"{name}-{number}", f"key {number % 50}" if number % 2 else None) for number in range(count)]
        frame = spark.createDataFrame(rows, "message_id string, partition_key string")
        frame = frame.selectExpr("*", "message_id AS body")
        frame.write.format("servicebus").options(**bus, entity="parts").mode("append").save()

    def run(mode: str, checkpoint: str, **options: str) -> tuple[list[int], list[Any]]:
        stream = spark.readStream.format("servicebus").options(
            **bus, entity="parts", mode=mode, maxMessagesPerTrigger="200", **options
        )
        query = (
            stream.load().select("message_id", "body").writeStream.format("servicebus").options(**bus, entity="parted")
            .option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(180)
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return [progress["numInputRows"] for progress in done], [progress["sources"][0] for progress in done]

    write("old", 500)
    assert load(spark, pair, entity="parts").selectExpr("count(distinct message_id)").first()[0] == 500
    counts, sources = run("peek", "a")
    assert sum(counts) == 500 and max(counts) <= 200
    lags = [json.loads(source["latestOffset"])["$lag"]["messages"] for source in sources]
    assert lags[0] == 500 - counts[0] and lags[-1] == 0, "also between two looks, reckoned from the offsets"
    assert len(json.loads(sources[-1]["endOffset"])["parts"]) == 16
    assert run("peek", "later", startingPosition="latest")[0] == []
    position = json.dumps(json.loads(sources[-1]["endOffset"]))
    write("new", 300)
    for checkpoint, options in (("a", {}), ("later", {"startingPosition": "latest"})):
        assert sum(run("peek", checkpoint, **options)[0]) == 300, checkpoint
    assert load(spark, pair, entity="parts", startingPosition=position).count() == 300
    assert load(spark, pair, entity="parts", endingPosition=position).count() == 500
    assert sum(run("delete", "b")[0]) == 800
    run("delete", "b")
    assert peeked(pair.primary, "parts") == []
    assert load(spark, pair, entity="parted").selectExpr("count(distinct message_id)").first()[0] == 800


# -- the syphon


EVERY_TYPE = {
    "ubyte": UByte(1), "ushort": UShort(2), "uint": UInt(3), "ulong": ULong(4), "byte": Byte(-1), "short": Short(-2),
    "int": Int(-3), "long": -4, "float": Float(1.5), "double": 2.5, "char": Char("x"), "time": Timestamp(1_700_000),
    "binary": b"\x00\xff", "string": "käse", "symbol": Symbol("sym"), "bool": True, "null": None,
}  # fmt: skip


def mixed(count: int) -> list[tuple[str, bytes]]:
    """(destination, message as it would have been sent there)."""
    bodies: list[Any] = [
        b"data",
        ("data", [b"a", b"b"]),
        ("value", {"k": [1, None]}),
        ("value", Array([1, 2], 0x81)),
        ("sequence", [[1, "two"]]),
    ]
    messages = []
    for number in range(count):
        scheduled = None
        if number % 7 == 3 and number % 3 != 2:  # what is scheduled on a topic nobody can see before its time
            scheduled = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)}
        messages.append(
            (
                ("orders", "bills", "news")[number % 3],
                encode_message(
                    Header(durable=True, ttl=3_600_000) if number % 2 else Header(durable=True),
                    scheduled,
                    Properties(message_id=f"m{number}", group_id=f"s{number % 4}" if number % 5 == 1 else None),
                    {"n": number, **EVERY_TYPE},
                    body=bodies[number % len(bodies)],
                ),
            )
        )
    return messages


@pytest.fixture
def backlog(pair: Pair, make_queue: MakeQueue) -> Iterator[dict[str, bytes]]:
    """A backlog of mixed messages; by message id what was meant to arrive."""
    make_queue(pair.primary, "orders", "bills")
    make_queue(pair.secondary, *BACKLOG, lock_duration=dt.timedelta(seconds=60))
    with admin_of(pair.primary) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "all")
    messages = mixed(210)
    for index, path in enumerate(BACKLOG):
        send(pair, path, *(divert_encoded(m, to) for to, m in messages[index :: len(BACKLOG)]), secondary=True)
    yield {str(read(message)["message_id"]): message for _, message in messages}
    with admin_of(pair.primary) as admin:
        admin.delete_topic("news")


def assert_all_home(pair: Pair, expected: dict[str, bytes]) -> None:
    found: dict[str, bytes] = {}
    for entity in ("orders", "bills", "news/Subscriptions/all"):
        for payload in peeked(pair.primary, entity):
            found[str(read(payload)["message_id"])] = payload
    assert found.keys() == expected.keys()
    for message_id, payload in found.items():
        assert _bare(payload) == _bare(expected[message_id]), message_id
    assert all(peeked(pair.secondary, path) == [] for path in BACKLOG)


def _bare(payload: bytes) -> Any:
    """What P27 says must be the same: all but what brokers and clocks add."""
    from pairbus.amqp.message import annotation_pairs, read_properties, split

    s = split(payload)
    properties = read_properties(payload, s)
    properties.creation_time = properties.absolute_expiry_time = None
    annotations = sorted(raw for key, raw in annotation_pairs(payload, s) if key not in BROKER_ANNOTATIONS)
    span, body = s.application_properties, s.body
    assert body is not None
    return (
        properties,
        annotations,
        None if span is None else payload[span[0] : span[1]],
        payload[body[0] : body[1]],
        read(payload).get("time_to_live"),
    )


def test_p36_queues_that_are_made_and_deleted_while_the_syphon_runs(
    spark: Any, pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_discovery, "FIRST_S", 0.5)
    monkeypatch.setattr(queue_discovery, "LIST_S", 0.5)
    make_queue(pair.primary, "orders")
    with (
        admin_of(pair.secondary) as admin,
        syphon(
            pair.primary.connection_string,
            pair.secondary.connection_string,
            spark=spark,
            primary_name="contoso",
            ca_file=pair.secondary.ca_file,
        ) as running,
    ):

        def brings_home(index: int, count: int) -> None:
            send(pair, BACKLOG[index], *(divert_encoded(plain(n), "orders") for n in range(count)), secondary=True)
            wanted, end = running.report().moved + count, time.monotonic() + 60
            while running.report().moved < wanted:
                assert time.monotonic() < end and running.is_running, running
                time.sleep(0.05)

        assert "has no backlog queue of contoso yet" in running.report().line()
        make_queue(pair.secondary, BACKLOG[0])
        brings_home(0, 10)
        admin.create_queue(BACKLOG[1])
        brings_home(1, 20)
        (query,) = running._inner._spark.streams.active  # in a session beside ours
        begun = query.runId
        admin.delete_queue(BACKLOG[1])
        make_queue(pair.secondary, BACKLOG[2])
        brings_home(2, 30)
        brings_home(0, 5)
        (query,) = running._inner._spark.streams.active
        assert query.runId == begun, "the query was not disturbed"
        assert running.report().waiting_for is None
    assert all(peeked(pair.secondary, BACKLOG[index]) == [] for index in (0, 2))


def test_p44_the_session_of_an_application_is_neither_changed_nor_stopped(
    spark: Any, pair: Pair, backlog: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is given or found in the process: our queries run in a session beside it."""
    theirs = spark.newSession()
    for name, value in (
        ("session.timeZone", "Asia/Tokyo"),
        ("shuffle.partitions", "7"),
        ("streaming.stopTimeout", "5s"),
    ):
        theirs.conf.set(f"spark.sql.{name}", value)
    monkeypatch.setattr(sys.modules["pairbus.spark.runtime.session"], "_started", None)
    monkeypatch.setattr(type(spark), "_instantiatedSession", theirs)
    before = dict(theirs.conf.getAll)
    for given in (theirs, None):
        send(pair, BACKLOG[0], divert_encoded(plain(1000), "orders"), secondary=True)
        running = syphon(
            pair.primary.connection_string, pair.secondary.connection_string, spark=given, primary_name="contoso",
            count=3, drain=True,
        )  # fmt: skip
        assert running.wait(120) == [] and running.report().moved >= 1
        assert dict(theirs.conf.getAll) == before
        assert theirs.range(3).count() == 3, "and it still runs"
        with pytest.raises(Exception, match="servicebus-syphon"):
            theirs.range(1).write.format("servicebus-syphon").option("syphon", "").mode("append").save()


PROGRAM = """
import json, sys
from pairbus.spark import syphon
if __name__ == "__main__":
    running = syphon(sys.argv[1], sys.argv[2], primary_name="contoso", count=3, drain=True, master=sys.argv[3])
    left = running.wait(300)
    print(json.dumps([running.report().as_json(), [each.as_json() for each in left]]))
"""


def run_program(pair: Pair, master: str, tmp_path: Path, **environ: str) -> Any:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py", pair.primary.connection_string, pair.secondary.connection_string, master],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, env={**os.environ, **environ},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[:3000] + ran.stderr[-1000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_p36_p39_the_syphon_on_one_machine_without_java_brings_all_home(
    pair: Pair, backlog: dict[str, bytes], tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    assert shutil.which("java", path=str(tools)) is None
    report, left = run_program(pair, "local[2,4]", tmp_path, PATH=str(tools), JAVA_HOME="")
    assert left == [] and report["moved"] == len(backlog) and report["remaining"] == 0
    assert_all_home(pair, backlog)


def test_p36_p39_the_syphon_on_two_executors_brings_all_home(
    pair: Pair, backlog: dict[str, bytes], tmp_path: Path
) -> None:
    report, left = run_program(pair, "local-cluster[2,1,1024]", tmp_path)
    assert left == [] and report["moved"] >= len(backlog)
    assert_all_home(pair, backlog)


def test_p36_p39_the_syphon_on_a_standalone_master_with_two_workers_brings_all_home(
    pair: Pair, backlog: dict[str, bytes], tmp_path: Path
) -> None:
    with cluster(tmp_path) as standalone:
        report, left = run_program(pair, standalone.url, tmp_path)
    assert left == [] and report["moved"] >= len(backlog)
    assert_all_home(pair, backlog)
    executors = [folder for number in range(2) for folder in (tmp_path / f"w{number}").glob("app-*/*")]
    assert len(executors) == 2


def test_p41_the_command_drains_on_spark(pair: Pair, backlog: dict[str, bytes], tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pairbus", "syphon", "--primary-name", "contoso", "--count", "3", "--drain", "--json",
         "--master", "local[2,4]", "--ledger", str(tmp_path / "ledger")],
        capture_output=True, text=True, timeout=400,
        env={
            **os.environ,
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
        },
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[:3000] + ran.stderr[-1000:]
    assert json.loads(ran.stdout.splitlines()[-1])["moved"] == len(backlog)
    assert_all_home(pair, backlog)
    lines = [json.loads(line) for file in (tmp_path / "ledger").iterdir() for line in file.read_text().splitlines()]
    assert {line["mid"] for line in lines if line.get("kind") == "move"} == set(backlog)


HOST = """
import sys
from pairbus import ServiceBusClient
if __name__ == "__main__":
    with ServiceBusClient.paired(sys.argv[1], sys.argv[2], primary_name="contoso", backlog_queue_count=3, manage=False,
                                 enable_syphon=True) as client:
        sys.stdin.readline()
"""


def test_p38_an_application_that_hosts_the_syphon_runs_it_on_spark(
    pair: Pair, backlog: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "host.py").write_text(HOST)
    with subprocess.Popen(
        [sys.executable, "host.py", pair.primary.connection_string, pair.secondary.connection_string],
        cwd=tmp_path, stdin=subprocess.PIPE, text=True,
    ) as host:  # fmt: skip
        until(lambda: host.poll() is not None or not any(peeked(pair.secondary, path) for path in BACKLOG), 300)
        assert host.poll() is None
        assert_all_home(pair, backlog)
        host.communicate("\n", timeout=120)
        assert host.returncode == 0


def test_the_tutorial_s_program_prints_what_the_tutorial_shows(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tutorial" / "queues-as-dataframes.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.strip() in text
