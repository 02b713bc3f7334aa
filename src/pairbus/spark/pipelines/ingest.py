"""Takes the messages of a queue, a subscription or a dead-letter queue into a table, each once: `ingest`.

    wait by long poll ──▶ lock and stage ──▶ look up ──▶ commit file by file ──▶ complete by token ──▶ again

A message is completed only after the file that holds it is in the table. A message that was committed but not
completed, because something died in between, comes again when its lock expires; it is then found in the table, and
completed without being written a second time. So it doesn't matter how far a batch came, and no batch is repeated: only
messages count. `message_table` decides what is written and where a message may be already; `table_files` renames, syncs
and locks.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pairbus.billing import MOVE
from pairbus.errors import first_line
from pairbus.spark.connector import connections, listing
from pairbus.spark.connector.batch_limits import shares
from pairbus.spark.connector.held_sessions import WORKER_S
from pairbus.spark.connector.lock_batch_size import LockBatchSize
from pairbus.spark.connector.long_poll import LongPoll
from pairbus.spark.connector.options import PARTITIONS_MAX, Address, InvalidOption
from pairbus.spark.connector.schema import SCHEMA
from pairbus.spark.runtime.locations import check_writable, escaped, located
from pairbus.spark.runtime.running import Running
from pairbus.spark.runtime.session import beside, is_gone
from pairbus.syphon.core.draining import Unavailable
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import TimedOut, Unreachable, WireError

from .archive import address_of
from .folder_namespace import claim, holds_waiting, name_of
from .lock_batches import LockBatch
from .message_table import DATE, STAGING, CommitPlan, FileIndex, Identity, StagedRow, plan_commit, staged_files
from .preflight import EVERYTHING, TransferFailed, has_sessions, is_empty, still_there
from .settling import settle
from .table_files import TableFiles, check_table, folder_of, leased, owned
from .transfer import Transfer, rate_of, seconds_of
from .transfer_loop import LOOK_MAX, PATIENCE_S, TASK_MAX, Over, RoundResult, TransferLoop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Between the beginnings of two batches of a continuous ingest that has caught up: each makes a file.
EVERY_S: Final = 10.0
EVERY_S_MAX: Final = 366 * 86_400.0
_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
#: The day in UTC, whatever the session's time zone.
_DAY: Final = "date_from_unix_date(cast(floor(unix_micros(enqueued_time) / 86400000000) as int))"
_STAGED: Final = (
    "_metadata.file_path",
    f"coalesce({DATE}, '{_NO_DATE}')",
    "lower(entity)",
    "sequence_number",
    "unix_micros(enqueued_time)",
    "lock_token",
    "unix_micros(locked_until)",
    "length(amqp)",
)
_PEEK_S: Final = 5.0

#: Writes a batch to a user's own table, so that a message that is written twice is there once.
Write = Callable[["DataFrame"], None]


class Ingester(Transfer):
    """Runs one ingest: `run` once; `stop` from any thread, which finishes the batch in progress. `already`: messages
    that were in the table and were completed only."""

    def __init__(
        self,
        address: Address,
        entity: str,
        table: str | Path,
        *,
        drain: bool = False,
        write: Write | None = None,
        max_rate: float | None = None,
        min_partitions: int = 1,
        every_s: float = EVERY_S,
        same_namespace: bool = False,
        label: str = "the namespace",
        patience_s: float = PATIENCE_S,
        **session: Any,
    ) -> None:
        super().__init__(None, **session)
        if not isinstance(min_partitions, int) or min_partitions < 1:
            raise InvalidOption(f"min_partitions is a whole number of at least 1, not {min_partitions!r}")
        if min_partitions > PARTITIONS_MAX:
            raise InvalidOption(
                f"min_partitions is at most {PARTITIONS_MAX}, not {min_partitions}: each is a task with a receiver"
            )
        if write is not None and not callable(write):
            raise InvalidOption(f"write is a function that gets each batch as a DataFrame, and not {write!r}")
        self._address = replace(address, cause=MOVE)
        self._entity = (entity or "").strip("/")
        self._shown, self._table = str(table), located(table)
        self._drain, self._write = drain, write
        self._rate = RateLimit(rate_of(max_rate))
        self._min_partitions = min_partitions
        self._every_s = seconds_of("every_s", every_s, EVERY_S_MAX)
        self._same_namespace = same_namespace
        self._label, self._patience_s = label, seconds_of("patience_s", patience_s)
        self._name = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._index = FileIndex(self._entity)
        self._pace = LockBatchSize()
        self._poll: LongPoll | None = None
        self._was_full = False
        self._sessions = False
        self._batch_at = self._progress_at = time.monotonic()
        self.already = 0

    def __repr__(self) -> str:
        return f"<Ingester {self._entity} to {self._shown}: {self.progress.moved_count} ingested>"

    def run(self) -> list[Unavailable]:
        """Ingest; return what a drain could not take, and why, or nothing where it was stopped. Raises
        TransferFailed."""
        self._sessions = has_sessions(self._address, self._entity, self._label)
        folder = check_table(self._shown)
        with contextlib.ExitStack() as stack:
            files: TableFiles | None = None
            if folder is not None:
                files = stack.enter_context(owned(folder, self._shown))
            if self._drain and is_empty(self._address, self._entity, is_active_only=True):
                self.progress.counted(0)
                return []  # Spark is not started for nothing
            spark = self._session()
            if files is None:
                check_writable(spark, self._shown)
                files = stack.enter_context(leased(spark, self._shown))
            self._claim(spark, files)
            files.clear()
            stack.callback(_clear, files)
            stack.callback(self._stop_polling)
            depth = listing.depth(self._address, self._entity)
            if depth is not None:
                self.progress.counted(depth)
            return self._ingest(spark, files)

    def _session(self) -> SparkSession:
        """Return a session with our settings, beside the application's."""
        spark = beside(self._start())  # type: ignore[arg-type]  # an ingest always has one
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # with statistics, unlike INT96
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            spark.conf.set(f"spark.sql.files.{name}", "false")  # what is passed over would be written a second time
        spark.createDataFrame([], "none int")  # makes it this thread's
        return spark

    def _claim(self, spark: SparkSession, files: TableFiles) -> None:
        """Record of which namespace the table's messages are. Raises TransferFailed where they are another's."""

        def holds_some() -> bool:
            return holds_waiting(spark, self._address, self._entity, _read(spark, self._table))

        claim(files, name_of(self._address, self._label), self._shown, self._same_namespace, holds_some)

    def _ingest(self, spark: SparkSession, files: TableFiles) -> list[Unavailable]:
        while True:
            rounds = TransferLoop(None, self._rate, time.monotonic(), patience_s=self._patience_s)

            def take(count: int, rounds: TransferLoop = rounds) -> None:
                self._round(spark, files, rounds, min(count, self._pace.batch(self._rate.measured(time.monotonic()))))

            over = self._go_through(rounds, take, self._look)
            if over is None:
                return []
            if self._drain:
                return self._remaining(over)
            if not self._wait_for_messages():
                return []

    def _look(self) -> int:
        """A continuous ingest that has found fewer messages than it could take waits for more, and looks later."""
        if not self._drain:
            return int(self._was_full)
        return len(still_there(self._address, self._entity, EVERYTHING, LOOK_MAX))

    def _remaining(self, over: Over) -> list[Unavailable]:
        left = [] if over.reason is None else still_there(self._address, self._entity, EVERYTHING)
        self.progress.counted(len(left))
        return [Unavailable(self._entity, len(left), over.reason or "")] if left else []

    # -- one batch

    def _round(self, spark: SparkSession, files: TableFiles, rounds: TransferLoop, count: int) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self._batch_at = time.monotonic()
        self._pace.began(count, self._batch_at)
        part = f"{self._name}/{next(self._numbers):06d}"
        try:
            result = self._take(spark, files, part, count)
        except (PySparkException, Py4JError, WireError, OSError) as error:
            self._failed(rounds, error)
            return
        finally:
            self._pace.ended(time.monotonic())
            with contextlib.suppress(Py4JError):
                files.clear(part)
        self._was_full = result.moved + result.left >= count
        self._progress_at = time.monotonic()
        rounds.ended(result, self._progress_at)

    def _take(self, spark: SparkSession, files: TableFiles, part: str, count: int) -> RoundResult:
        begun = time.time()
        stage = f"{self._table}/{STAGING}/{part}"
        rows = self._stage(spark, stage, count)
        if not rows:
            return RoundResult(0, 0, 0)
        present = set() if self._write is not None else self._present(spark, files, rows)
        plan = plan_commit(rows, present)
        if self._write is not None:
            self._write(_without(spark.read.parquet(escaped(stage)), plan).drop(DATE))
        else:
            self._commit(spark, files, stage, rows, plan)
        result = self._settle(rows, plan)
        # a lock that was lost brings its message again: the batch was too large for its locks
        lock_s = max(row.locked_until for row in rows) / 1e6 - begun
        self._pace.found(min(lock_s, WORKER_S) if self._sessions else lock_s, result.left)
        return result

    def _stage(self, spark: SparkSession, stage: str, count: int) -> list[StagedRow]:
        """Lock messages and write them where no reader looks; return what was written, as the files have it."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        counts = shares(count, self._min_partitions, TASK_MAX)
        taken = Observation()
        rows = LockBatch(self._address, self._entity, counts, None, sessions=self._sessions).load(spark)
        rows = rows.withColumn(DATE, F.expr(_DAY)).observe(taken, F.count(F.lit(1)).alias("messages"))
        rows.write.partitionBy(DATE).parquet(stage)
        found = self._staged(spark, stage)
        if not found and taken.get["messages"]:
            raise TransferFailed(
                f"the executors have written {taken.get['messages']} messages, and the driver finds none of them in "
                f"{self._shown}: the table has to be in a folder or at a URL that driver and executors share"
            )
        return found

    def _staged(self, spark: SparkSession, stage: str) -> list[StagedRow]:
        found = _read(spark, stage).selectExpr(*_STAGED).toArrow()
        columns = (column.to_pylist() for column in found.columns)
        return [
            StagedRow(file, date, Identity(entity, number, enqueued), token, until or 0, size)
            for file, date, entity, number, enqueued, token, until, size in zip(*columns, strict=True)
        ]

    def _present(self, spark: SparkSession, files: TableFiles, rows: list[StagedRow]) -> set[Identity]:
        """Return which of these messages may be in the table already; reads only files that can hold them."""
        from pyspark.errors import PySparkException

        days: dict[str, list[int]] = {}
        for row in rows:
            if row.identity.number is not None:
                days.setdefault(row.date, []).append(row.identity.number)
        found: set[Identity] = set()
        for date, numbers in days.items():
            known = self._index.knows(date)
            try:
                found |= self._identities(spark, files, date, numbers)
            except PySparkException:
                if not known:
                    raise
                self._index.forget(date)  # somebody has compacted the day: its files have other names now
                found |= self._identities(spark, files, date, numbers)
        return found

    def _identities(self, spark: SparkSession, files: TableFiles, date: str, numbers: list[int]) -> set[Identity]:
        if not self._index.knows(date):
            self._index.listed(date, files.names(date))
        names = self._index.may_hold(date, numbers)
        return self._stored(spark, [f"{self._table}/{folder_of(date)}/{each}" for each in names], numbers)

    def _stored(self, spark: SparkSession, paths: list[str], numbers: list[int]) -> set[Identity]:
        """Return which messages with these sequence numbers the files hold."""
        import pyarrow

        if not paths:
            return set()
        wanted = spark.createDataFrame(pyarrow.table({"sequence_number": pyarrow.array(numbers, pyarrow.int64())}))
        found = _read(spark, *paths).where(f"sequence_number between {min(numbers)} and {max(numbers)}")
        found = found.join(wanted, "sequence_number", "left_semi")
        columns = found.selectExpr("lower(entity)", "sequence_number", "unix_micros(enqueued_time)").toArrow().columns
        return {Identity(*each) for each in zip(*(column.to_pylist() for column in columns), strict=True)}

    def _commit(
        self, spark: SparkSession, files: TableFiles, stage: str, rows: list[StagedRow], plan: CommitPlan
    ) -> None:
        if plan.drop:
            rows = self._rewrite(spark, stage, f"{stage}/_rest", plan)
        for each in staged_files(rows, self._entity, f"{self._name}{stage[-6:]}"):
            try:
                files.commit(each.path, each.date, each.name)
            except BaseException:
                self._index.forget(each.date)  # the file may still be in the table
                raise
            self._index.committed(each.date, each.name)

    def _rewrite(self, spark: SparkSession, stage: str, rest: str, plan: CommitPlan) -> list[StagedRow]:
        """Write a staged batch again without what must not get into the table."""
        _without(_read(spark, stage), plan).write.partitionBy(DATE).parquet(rest)
        return self._staged(spark, rest)

    def _settle(self, rows: list[StagedRow], plan: CommitPlan) -> RoundResult:
        done = settle(self._address, self._entity, {UUID(token): number for token, number in plan.complete.items()})
        now = time.monotonic()
        with self._lock:
            self.already += plan.known
            size = sum(row.size for row in rows if row.token in plan.complete)
            self.progress.moved(self._entity, done.settled, size, now)
            self.progress.left(self._entity, done.lost)
        trouble = "the locks ended before the files were committed; a longer lock duration helps" if done.lost else None
        return RoundResult(done.settled, done.lost, 0, trouble)

    def _failed(self, rounds: TransferLoop, error: Exception) -> None:
        """Continue, unless it fails repeatedly for another reason than an unreachable namespace."""
        now = time.monotonic()
        text = first_line(error)
        if is_gone():
            raise TransferFailed(f"Spark's JVM has died; run again, and it goes on where it was: {text}") from None
        if rounds.failed(f"a batch failed: {text}", now):
            return
        if self._is_away() and not (self._drain and now - self._progress_at > self._patience_s):
            return
        has_sessions(self._address, self._entity, self._label)
        raise TransferFailed(
            f"{self._entity} can't be ingested into {self._shown}: {text}; what is not in the table is still there"
        ) from None

    def _is_away(self) -> bool:
        try:
            connections.client(self._address).peek(self._entity, 1, 1, timeout=_PEEK_S)
        except (Unreachable, TimedOut):
            return True
        except WireError:
            return False
        return False

    # -- between batches

    def _wait_for_messages(self) -> bool:
        """Return True as soon as there is something, False where it was stopped."""
        if self._stop.wait(max(0.0, self._batch_at + self._every_s - time.monotonic())):
            return False
        if self._poll is None:
            self._poll = LongPoll(
                lambda: connections.endpoint(self._address).client(),
                [self._entity],
                polled=lambda _: self.progress.polled(),
                failed=lambda _, error: setattr(self.progress, "waiting_for", str(error)),
                found=lambda _: None,
                sessions=self._sessions,
            )
        else:
            self._poll.taken([self._entity])
        self.progress.waiting_for = "messages"
        while not self._poll.ready() and not self._stop.is_set():
            self._poll.wait(0.2)
        self.progress.waiting_for = None
        return not self._stop.is_set()

    def _stop_polling(self) -> None:
        if self._poll is not None:
            self._poll.stop()


class Ingesting(Running):
    """An ingest that runs on a thread: `report()` at any time; `stop()` ends it after its batch; `wait()` for a
    drain."""

    _inner: Ingester

    def __init__(self, inner: Ingester) -> None:
        super().__init__(inner, "the ingest")

    @property
    def already(self) -> int:
        """Messages that were in the table already, and were completed only."""
        return self._inner.already


def _clear(files: TableFiles) -> None:
    """Remove what is staged, unless the JVM has died: then the next run does it, and the error that says so stays."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):
        files.clear()


def _read(spark: SparkSession, *paths: str) -> DataFrame:
    from pyspark.sql.types import StringType, StructType

    schema = StructType([*SCHEMA.fields]).add(DATE, StringType())
    return spark.read.schema(schema).parquet(*map(escaped, paths))


def _without(rows: DataFrame, plan: CommitPlan) -> DataFrame:
    """Return the rows of a batch that are not to be dropped."""
    import pyarrow
    from pyspark.sql import functions as F

    if not plan.drop:
        return rows
    dropped = rows.sparkSession.createDataFrame(pyarrow.table({"lock_token": sorted(plan.drop)}))
    return rows.join(F.broadcast(dropped), "lock_token", "left_anti").select(*rows.columns)


def ingest(
    spark: SparkSession,
    namespace: str | Address,
    entity: str,
    table: str | Path,
    *,
    drain: bool = False,
    write: Write | None = None,
    **options: Any,
) -> Ingesting:
    """Start an ingest of `entity` into the Parquet table in the folder `table`, and return at once.

    `namespace`: a connection string, or a host name (then DefaultAzureCredential), or an Address. `drain`: end when the
    entity is empty. `write`: a function that gets each batch as a DataFrame and writes it to a table of your own, such
    as Delta's or Iceberg's, so that a message (entity, sequence_number, enqueued_time) that comes twice is there once;
    `table` is then only where batches are staged. `options`: max_rate, min_partitions, every_s, patience_s, and
    same_namespace, which says that the table's messages are this namespace's where it has another name now.
    """
    ingester = Ingester(address_of(namespace), entity, table, drain=drain, write=write, spark=spark, **options)
    return Ingesting(ingester)
