"""An ingest that dies wherever it may: each message is in the table once, none is lost, the source is empty at the end.

All of it is real, the broker, the locks, the files and the commits, but what Spark does: to write rows to Parquet and
read them again. With Spark and real kills: test_ingest_kill_proof."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import Broker, serve_sync
from pairbus.spark.connector import connections
from pairbus.spark.connector.lock_reader import Share, fill
from pairbus.spark.connector.options import Address, InvalidOption
from pairbus.spark.connector.schema import Rows, read
from pairbus.spark.pipelines import ingest as ingest_module
from pairbus.spark.pipelines import transfer_loop
from pairbus.spark.pipelines.ingest import Ingester
from pairbus.spark.pipelines.message_table import DATE, CommitPlan, Identity, StagedRow
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.table_files import LocalFiles
from pairbus.spark.pipelines.transfer_loop import RoundResult
from pairbus.wire.errors import Unreachable
from tests.moving_clock import Clock

from ..conftest import admin_of, peeked, wire

#: A clock that was moved on by an hour would end the clients' tokens as well.
LOCK_S = 20.0
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_queues = itertools.count(1)


class Dies(BaseException):
    """The driver's process ends here; nothing of it runs on."""


class ArrowIngester(Ingester):
    """Writes and reads with Arrow what the product writes and reads with Spark. Dies at the given step; `relocks`:
    locks end while a batch is staged, and one of its tasks gets messages of the other."""

    def __init__(self, *given: Any, dies_at: int, relocks: bool, expire: Callable[[], None], **more: Any) -> None:
        super().__init__(*given, drain=True, **more)
        self._left, self._relocks, self._expire = dies_at, relocks, expire

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Dies

    def _session(self) -> Any:
        return None

    def _stage(self, spark: Any, stage: str, count: int) -> list[StagedRow]:
        self.step()
        for part in range(2):
            self._write_part(Path(stage.removeprefix("file:")), part, max(1, min(count, 7) // 2))
            if self._relocks:
                self._relocks = False
                self._expire()
        self.step()
        return self._staged(spark, stage)

    def _write_part(self, stage: Path, part: int, count: int) -> None:
        share = Share(self._entity, count, wait_s=0.02)
        for batch in fill(Rows(), self._address, share):
            days = [each.date().isoformat() for each in batch.column("enqueued_time").to_pylist()]
            for day in set(days):
                rows = batch.filter(pyarrow.array([each == day for each in days]))
                folder = stage / f"{DATE}={day}"
                folder.mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(pyarrow.table(rows), folder / f"part-{part}.parquet")

    def _staged(self, spark: Any, stage: str) -> list[StagedRow]:
        return [
            StagedRow(
                f"file://{file}",
                file.parent.name.partition("=")[2],
                _identity(row),
                row["lock_token"],
                _micros(row["locked_until"]),
                len(row["amqp"]),
            )
            for file in sorted(Path(stage.removeprefix("file:")).glob(f"{DATE}=*/*.parquet"))
            for row in pyarrow.parquet.read_table(file, partitioning=None).to_pylist()
        ]

    def _stored(self, spark: Any, paths: list[str], numbers: list[int]) -> set[Identity]:
        self.step()
        rows = [
            row
            for path in paths
            for row in pyarrow.parquet.read_table(path.removeprefix("file:"), partitioning=None).to_pylist()
        ]
        return {_identity(row) for row in rows if row["sequence_number"] in numbers}

    def _rewrite(self, spark: Any, stage: str, rest: str, plan: CommitPlan) -> list[StagedRow]:
        self.step()
        for file in Path(stage.removeprefix("file:")).glob(f"{DATE}=*/*.parquet"):
            rows = pyarrow.parquet.read_table(file, partitioning=None)
            kept = rows.filter(pyarrow.array([token not in plan.drop for token in rows["lock_token"].to_pylist()]))
            if kept.num_rows:
                folder = Path(rest.removeprefix("file:")) / file.parent.name
                folder.mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(kept, folder / file.name)
        return self._staged(spark, rest)


def _micros(time: dt.datetime) -> int:
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def _identity(row: dict[str, Any]) -> Identity:
    return Identity(row["entity"].lower(), row["sequence_number"], _micros(row["enqueued_time"]))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_loop, "PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(transfer_loop, "PAUSE_S_MAX", 0.001)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[Broker]:
    with serve_sync("contoso", data=tmp_path / "bus", clock=clock) as broker:
        yield broker
        connections.close_all()


class World:
    """A queue, a table, and every message that was sent."""

    def __init__(self, served: Broker, clock: Clock, folder: Path) -> None:
        self.namespace = served.namespaces["contoso"]
        self.address = Address(self.namespace.connection_string)
        self.clock = clock
        self.queue = f"orders{next(_queues)}"
        self.table = folder / self.queue
        self.sent: list[str] = []
        with admin_of(self.namespace) as admin:
            admin.create_queue(self.queue, lock_duration=dt.timedelta(seconds=LOCK_S), max_delivery_count=1000)

    def send(self, count: int) -> None:
        names = [f"m{len(self.sent) + number}" for number in range(count)]
        with wire(self.namespace) as client:
            payloads = [encode_message(properties=Properties(message_id=each), body=b"x") for each in names]
            assert client.sender(self.queue).send_many(payloads) == [None] * count
        self.sent += names

    def expire(self) -> None:
        self.clock.advance(LOCK_S + 1)

    def run(self, monkeypatch: pytest.MonkeyPatch, dies_at: int, relocks: bool) -> ArrowIngester | None:
        """Runs an ingest to its end or its death, and looks at what is left."""
        made = ArrowIngester(
            self.address, self.queue, self.table, dies_at=dies_at, relocks=relocks, expire=self.expire, patience_s=5.0
        )
        with monkeypatch.context() as patch:
            _count_steps(patch, made)
            try:
                assert made.run() == []
            except Dies:
                found = None
            else:
                found = made
        there, waiting = self.in_table(), {_id(each) for each in peeked(self.namespace, self.queue)}
        assert max(there.values(), default=1) == 1, "twice in the table"
        assert {*there, *waiting} == set(self.sent), "lost"
        if found is not None:
            assert not waiting and set(there) == set(self.sent)
        self.expire()
        return found

    def in_table(self) -> Counter[str]:
        """As any reader sees it."""
        if not any(self.table.glob(f"{DATE}=*/*.parquet")):
            return Counter()
        found = pyarrow.dataset.dataset(self.table, partitioning="hive").to_table(columns=["message_id"])
        return Counter(found.column("message_id").to_pylist())


def _count_steps(patch: pytest.MonkeyPatch, made: ArrowIngester) -> None:
    """Before and after each file and each settlement; what is dead clears nothing up."""
    commit, clear, settle = LocalFiles.commit, LocalFiles.clear, ingest_module.settle

    def committed(self: LocalFiles, *given: str) -> None:
        made.step()
        commit(self, *given)
        made.step()

    def settled(*given: Any) -> Any:
        made.step()
        found = settle(*given)
        made.step()
        return found

    patch.setattr(LocalFiles, "commit", committed)
    patch.setattr(LocalFiles, "clear", lambda self, below="": None if made._left <= 0 else clear(self, below))
    patch.setattr(ingest_module, "settle", settled)


def _id(payload: bytes) -> str:
    return str(read(payload)["message_id"])


@pytest.mark.parametrize("dies_at", range(1, 12))
def test_whatever_step_it_dies_at_the_next_run_makes_up_for_it(
    served: Broker, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    world = World(served, clock, tmp_path)
    world.send(9)
    assert world.run(monkeypatch, dies_at, False) is None
    waiting = {_id(each) for each in peeked(world.namespace, world.queue)}
    there = len(waiting & world.in_table().keys())
    found = world.run(monkeypatch, 1000, False)
    assert found is not None and (found.report().moved, found.already) == (len(waiting), there)


@pytest.mark.timeout(300)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.booleans()), min_size=1, max_size=5))
def test_it_dies_again_and_again(
    served: Broker, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int, bool]]
) -> None:
    world = World(served, clock, tmp_path)
    for count, dies_at, relocks in runs:
        if count:
            world.send(count)
        world.run(monkeypatch, dies_at, relocks)
    assert world.run(monkeypatch, 1000, False) is not None


def test_a_namespace_that_is_away_is_waited_for_and_other_failures_end_it(
    served: Broker, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(served, clock, tmp_path)
    world.send(3)
    failures = itertools.count(1)

    class Failing(ArrowIngester):
        is_away = True

        def _stage(self, spark: Any, stage: str, count: int) -> list[StagedRow]:
            if next(failures) < 10:
                raise Unreachable("", "no answer") if self.is_away else OSError(28, "No space left on device")
            return super()._stage(spark, stage, count)

        def _is_away(self) -> bool:
            return self.is_away

    more: dict[str, Any] = {"dies_at": 1000, "relocks": False, "expire": world.expire}
    assert Failing(world.address, world.queue, world.table, **more).run() == []
    assert world.in_table().total() == 3 and next(failures) == 11
    world.send(3)
    failures = itertools.count(1)
    Failing.is_away = False
    with pytest.raises(TransferFailed, match=r"can't be ingested into .*No space left on device; what is not in the"):
        Failing(world.address, world.queue, world.table, **more).run()
    assert next(failures) == 5 and world.in_table().total() == 3


def test_a_second_namespace_with_the_same_numbers_and_times_is_refused_before_a_message_is_taken(
    tmp_path: Path,
) -> None:
    now = time.time()
    with serve_sync("contoso", "backup", data=tmp_path / "bus", clock=lambda: now) as broker:
        for name, namespace in broker.namespaces.items():
            with admin_of(namespace) as admin:
                admin.create_queue("orders")
            with wire(namespace) as client:
                payloads = [
                    encode_message(properties=Properties(message_id=f"{name} {n}"), body=b"x") for n in range(9)
                ]
                assert client.sender("orders").send_many(payloads) == [None] * 9

        def run(name: str, **options: Any) -> object:
            address = Address(broker.namespaces[name].connection_string)
            more: dict[str, Any] = {"dies_at": 1000, "relocks": False, "expire": lambda: None, **options}
            return ArrowIngester(address, "orders", tmp_path / "table", **more).run()

        assert run("contoso") == [] == run("contoso")
        with pytest.raises(TransferFailed, match="holds messages of the namespace contoso, and this is backup"):
            run("backup")
        assert [_id(each) for each in peeked(broker.namespaces["backup"], "orders")] == [
            f"backup {n}" for n in range(9)
        ]
        connections.close_all()


def test_a_commit_that_fails_after_its_rename_leads_to_no_second_copy(
    served: Broker, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(served, clock, tmp_path)
    world.send(3)
    assert world.run(monkeypatch, 1000, False) is not None, "the day has files"
    world.send(6)
    commit, calls = LocalFiles.commit, itertools.count(1)

    def loses_an_answer(self: LocalFiles, *given: str) -> None:
        commit(self, *given)
        if next(calls) == 2:
            world.expire()
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalFiles, "commit", loses_an_answer)
    ingester = ArrowIngester(
        world.address, world.queue, world.table, dies_at=1000, relocks=False, expire=world.expire, patience_s=5.0
    )
    assert ingester.run() == [] and ingester.already == 6
    assert world.in_table() == Counter(world.sent) and peeked(world.namespace, world.queue) == []


def test_that_the_jvm_has_died_is_told_where_the_staging_can_t_be_cleared_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Files:
        jvm_lives = True

        def clear(self, below: str = "") -> None:
            if not self.jvm_lives:
                raise Py4JNetworkError("Answer from Java side is empty")

    files = Files()

    class Dying(Ingester):
        def _session(self) -> Any:
            return None

        def _ingest(self, *given: Any) -> Any:
            files.jvm_lives = False
            raise TransferFailed("Spark's JVM has died; run again, and it goes on where it was")

    for name in ("check_writable", "has_sessions"):
        monkeypatch.setattr(ingest_module, name, lambda *given: None)
    monkeypatch.setattr(ingest_module, "leased", lambda *given: contextlib.nullcontext(files))
    monkeypatch.setattr(ingest_module.listing, "depth", lambda *given: None)
    monkeypatch.setattr(Dying, "_claim", lambda *given: None)
    with pytest.raises(TransferFailed, match="Spark's JVM has died"):
        Dying(Address(host="x"), "orders", "s3a://lake/table").run()


def test_paths_are_read_as_they_are_and_not_as_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    reader: Any = SimpleNamespace(schema=lambda schema: reader, parquet=lambda *paths: seen.extend(paths))
    spark: Any = SimpleNamespace(read=reader)
    ingest_module._read(spark, "file:/t[1]/a", "file:/t[1]/b")
    assert seen == [r"file:/t\[1\]/a", r"file:/t\[1\]/b"]
    ingester = Ingester(Address("x"), "orders", tmp_path / "t[1]", write=lambda rows: seen.append(rows))
    row = StagedRow("file", "2026-11-17", Identity("orders", 1, 1), "token", 1, 1)
    monkeypatch.setattr(ingester, "_stage", lambda *given: [row])
    monkeypatch.setattr(ingester, "_settle", lambda *given: RoundResult(1, 0, 0))
    monkeypatch.setattr(ingest_module, "_without", lambda rows, plan: SimpleNamespace(drop=lambda name: "rows"))
    ingester._take(spark, None, "run/000001", 1)  # type: ignore[arg-type]
    assert seen[2:] == [f"file:{tmp_path}/t\\[1\\]/_staging/run/000001", "rows"]


def test_files_that_can_t_be_read_are_never_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look-up passes over would be written a second time."""
    found = {"spark.sql.files.ignoreCorruptFiles": "true"}
    session = SimpleNamespace(conf=SimpleNamespace(set=found.__setitem__), createDataFrame=lambda *given: None)
    monkeypatch.setattr(ingest_module, "beside", lambda spark: session)
    ingester = Ingester(Address("x"), "orders", "t")
    ingester._start = lambda: None  # type: ignore[assignment,misc,return-value]
    assert ingester._session() is session
    assert [found[f"spark.sql.files.ignore{kind}Files"] for kind in ("Corrupt", "Missing")] == ["false"] * 2


@pytest.mark.parametrize(
    ("setting", "values", "words"),
    [
        ("min_partitions", (0, 2.5, float("nan"), "2"), "is a whole number of at least 1, not "),
        ("min_partitions", (1001, 10**6), "is at most 1000, not .*: each is a task with a receiver"),
        ("max_rate", (-1, 0, "x", float("nan"), float("inf")), "is a number of messages a second above 0, not "),
        ("every_s", (-1, "x", float("nan"), float("inf"), 1e12), "is a number of seconds from 0 to 31622400, not "),
        ("patience_s", (-1, "x", float("nan"), None, True), "is a number of seconds of at least 0, not "),
        ("write", ("delta", True), "is a function that gets each batch as a DataFrame, and not "),
    ],
)
def test_wrong_settings_are_told(setting: str, values: tuple[Any, ...], words: str) -> None:
    for value in values:
        with pytest.raises(InvalidOption, match=f"^{setting} {words}"):
            Ingester(Address("x"), "orders", "t", **{setting: value})


def test_settings_at_their_limits_are_taken() -> None:
    Ingester(Address("x"), "orders", "t", min_partitions=1000, every_s=0, patience_s=float("inf"), max_rate=0.1)
