"""Writes a queue, a subscription or a dead-letter queue to Parquet files, and back: `archive` and `restore`.

    FOLDER/batch=20261116T024500-1f3a-0001/part-….parquet         the connector's columns; `amqp` is the exact message

With `remove` a message is completed only after the file that holds it is committed: messages that an interrupted run
has not completed are still in the entity, and a rerun archives them again. A message that is in the folder twice (same
entity, sequence number and enqueued time) counts once when the folder is read. Without `remove` it is a copy by peek,
scheduled and deferred messages included.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import secrets
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pairbus.billing import MOVE
from pairbus.errors import first_line
from pairbus.spark.connector.batch_reader import ServiceBusReader, Wanted
from pairbus.spark.connector.entities import subscription_of, without_dead_letters
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.connector.values.option_text import as_text
from pairbus.spark.connector.writer import NotSent
from pairbus.spark.runtime.locations import escaped, local_path, located
from pairbus.spark.syphon.api import address_of_text
from pairbus.syphon.core.draining import Unavailable
from pairbus.syphon.core.progress import Report
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import WireError

from . import local_archive
from .folder_namespace import check_single, claim, files_of, here, holds_waiting, name_of
from .lock_batches import LockBatch
from .message_table import DATE, IDENTITY
from .preflight import (
    TransferFailed,
    check_destination,
    check_filter,
    check_source,
    choose,
    filtered,
    is_empty,
    peeked_rows,
    still_there,
)
from .restore_sink import NAME, SENT, RestoreOptions, RestoreSink, RestoreWriter, shares
from .settling import settle
from .transfer import Transfer, rate_of, read_here, seconds_of
from .transfer_loop import LOOK_MAX, PATIENCE_S, RoundResult, TransferLoop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Between two attempts to break off a job.
CANCEL_S: Final = 0.2


class Archived(NamedTuple):
    """`messages` in this run's files. `remaining`: what should have been removed and was not, and why."""

    messages: int
    removed: int
    remaining: list[Unavailable]


class Archiver(Transfer):
    """Runs one archive: `run` once; `stop` from any thread, which finishes the round in progress."""

    def __init__(
        self,
        address: Address,
        entity: str,
        folder: str | Path,
        *,
        remove: bool = False,
        where: str | None = None,
        same_namespace: bool = False,
        label: str = "the namespace",
        patience_s: float = PATIENCE_S,
        **session: Any,
    ) -> None:
        super().__init__(where, **session)
        self._address = replace(address, cause=MOVE)
        self._entity = entity
        self._shown, self._folder = str(folder), located(folder)
        self._remove = remove
        self._same_namespace = same_namespace
        self._label = label
        self._patience_s = seconds_of("patience_s", patience_s)
        now = dt.datetime.now(dt.UTC)
        self._name = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self.archived = 0

    def __repr__(self) -> str:
        return f"<Archiver {self._entity} to {self._shown}: {self.archived} archived>"

    def run(self) -> list[Unavailable]:
        check_source(self._address, self._entity, self._label, locks=self._remove)
        check_filter(self._where)
        if is_empty(self._address, self._entity, is_active_only=self._remove):
            self.progress.counted(0)
            return []  # Spark is not started for nothing
        spark = self._start()
        claim(
            files_of(spark, self._shown),
            name_of(self._address, self._label),
            self._shown,
            self._same_namespace,
            lambda: self._holds_waiting(spark),
        )
        if self._remove:
            return self._take_away(spark)
        self._copy(spark)
        return []

    def _holds_waiting(self, spark: SparkSession | None) -> bool:
        if spark is None:
            return local_archive.holds_any(self._batch_here(0).parent, read_here(self._peeking()))
        return holds_waiting(spark, self._address, self._entity, archived(spark, self._shown))

    def _peeking(self) -> ServiceBusReader:
        return ServiceBusReader(self._address, lambda: [self._entity], Wanted())

    def _copy(self, spark: SparkSession | None) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            if spark is None:
                batch = local_archive.Batch(self._batch_here(1))
                batch.write(read_here(self._peeking()))
                found = batch.messages, batch.size
            else:
                rows = peeked_rows(spark, self._address, self._entity, self._where)
                with self._known_as_job(spark):
                    found = self._write(spark, rows, 1)
            self._count(*found)
        except (PySparkException, Py4JJavaError, WireError, OSError) as error:  # the second for a full disk
            raise TransferFailed(f"{self._entity} can't be archived to {self._shown}: {first_line(error)}") from None

    def _write(self, spark: SparkSession, rows: DataFrame, number: int) -> tuple[int, int]:
        """Write a batch; return how many messages it holds, and their bytes."""
        rows.write.parquet(self._batch(number))
        written = spark.read.parquet(escaped(self._batch(number)))
        (found,) = written.selectExpr("count(*)", "sum(length(amqp))").collect()
        return int(found[0]), int(found[1] or 0)

    def _batch(self, number: int) -> str:
        return f"{self._folder}/batch={self._name}-{number:04d}"

    def _batch_here(self, number: int) -> Path:
        return here(self._shown) / f"batch={self._name}-{number:04d}"

    def _count(self, messages: int, size: int) -> None:
        with self._lock:
            self.archived += messages
            self.progress.moved(self._entity, messages, size, time.monotonic())

    # -- with `remove`

    def _take_away(self, spark: SparkSession | None) -> list[Unavailable]:
        chosen = choose(spark, self._address, self._entity, self._where, counted=True)
        assert chosen.messages is not None
        self.progress.counted(chosen.messages)
        if not chosen.messages:
            return []
        rounds = TransferLoop(chosen.messages, RateLimit(), time.monotonic(), patience_s=self._patience_s)
        numbers = itertools.count(1)

        def take(count: int) -> None:
            batch = LockBatch(self._address, self._entity, (count,), chosen.selection)
            self._round(spark, rounds, batch, next(numbers))

        def look() -> int:
            return len(still_there(self._address, self._entity, chosen.selection, LOOK_MAX))

        over = self._go_through(rounds, take, look)
        if over is None or over.reason is None:
            return []
        left = len(still_there(self._address, self._entity, chosen.selection))
        self.progress.counted(left)
        return [Unavailable(self._entity, left, over.reason)] if left else []

    def _round(self, spark: SparkSession | None, rounds: TransferLoop, batch: LockBatch, number: int) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            if spark is None:
                made = local_archive.Batch(self._batch_here(number))
                made.write(read_here(batch.reader()))
                messages, size, locked = made.messages, made.size, made.tokens
            else:
                messages, size = self._write(spark, batch.load(spark), number)
                # From the file, not from what was read: nothing else can be said to be archived.
                rows = spark.read.parquet(escaped(self._batch(number)))
                written = rows.select("lock_token", "sequence_number").toArrow()
                tokens, numbers = (column.to_pylist() for column in written.columns)
                locked = dict(zip(map(UUID, tokens), numbers, strict=True))
            completed = settle(batch.address, batch.entity, locked).settled
        except (PySparkException, Py4JJavaError, WireError, OSError) as error:
            if not rounds.failed(f"a round failed: {first_line(error)}", time.monotonic()):
                check_source(self._address, self._entity, self._label)
                raise TransferFailed(
                    f"{self._entity} can't be archived to {self._shown}: {first_line(error)}; what was not removed "
                    "is still there"
                ) from None
            return
        self._count(completed, size)
        trouble = "the locks ended before the file was committed; a longer lock duration helps"
        lost = messages - completed
        rounds.ended(RoundResult(completed, lost, 0, trouble if lost else None), time.monotonic())


def archive(
    spark: SparkSession,
    namespace: str | Address,
    entity: str,
    folder: str | Path,
    remove: bool = False,
    *,
    where: str | None = None,
    **options: Any,
) -> Archived:
    """Writes what `entity` holds now to Parquet files in `folder`, beside what is there already.

    `namespace`: a connection string, or a host name (then DefaultAzureCredential), or an Address. `same_namespace`: the
    messages that are there are this namespace's, which had another name.
    """
    archiver = Archiver(address_of(namespace), entity, folder, remove=remove, where=where, spark=spark, **options)
    remaining = archiver.run()
    return Archived(archiver.archived, archiver.archived if remove else 0, remaining)


def archived(spark: SparkSession, folder: str | Path, where: str | None = None) -> DataFrame:
    """Return the messages of an archive, or of a table of `ingest`, each once, with the connector's columns. `where`
    chooses among them before they are compared, so that files are passed over. Raises TransferFailed."""
    from pyspark.errors import PySparkException

    check_single(files_of(spark, folder).root_names(), folder)
    try:
        rows = spark.read.parquet(escaped(located(folder)))
    except PySparkException as error:
        raise TransferFailed(f"{folder} holds no archive: {first_line(error)}") from None
    return (rows if where is None else filtered(rows, where)).dropDuplicates(list(IDENTITY))


class Restorer(Transfer):
    """Runs one restore: `run` once; `stop` from any thread, which cancels the job: how much was sent nobody knows
    then."""

    def __init__(
        self,
        folder: str | Path,
        address: Address,
        entity: str | None = None,
        *,
        where: str | None = None,
        max_rate: float | None = None,
        label: str = "the namespace",
        **session: Any,
    ) -> None:
        super().__init__(where, **session)
        self._rate_max = rate_of(max_rate)
        self._shown, self._folder = str(folder), located(folder)
        self._address = replace(address, cause=MOVE)
        self._entity, self._label = entity, label
        self._mailbox: ProcessMailbox | None = None
        #: By destination: messages and bytes that progress has not been told of.
        self._to_go: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Restorer {self._shown} to {self._entity or 'where they came from'}>"

    def stop(self) -> None:
        self._stop.set()
        with self._lock, contextlib.suppress(OSError):  # it was removed just now
            if self._mailbox is not None:
                self._mailbox.raise_flag(STOP)
        threading.Thread(target=self._break_off, name="pairbus-restore-stop", daemon=True).start()

    def _break_off(self) -> None:
        """Again and again until it has ended: a job that Spark is still planning is not there to be cancelled."""
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError):  # the JVM is gone, and the job with it
            while True:
                with self._lock:
                    if self._job is None:
                        return
                    self._job.cancel()
                time.sleep(CANCEL_S)

    def run(self) -> list[Unavailable]:
        check_folder(self._shown)
        check_filter(self._where, DATE)
        if self._entity is not None:
            check_destination(self._address, self._entity, self._label)
        spark = self._start()
        rows = None if spark is None else archived(spark, self._shown, self._where)
        sums = self._sums(rows)
        with self._lock:
            self.progress.counted(sum(messages for _, messages, _ in sums))
            for entity, count, length in sums:
                path = self._entity or entity
                messages, size = self._to_go.get(path, (0, 0))
                self._to_go[path] = (messages + count, size + length)
        for path in [entity for entity, _, _ in sums] if self._entity is None else [self._entity]:
            if self._entity is None:
                _check_way_back(path)
            check_destination(self._address, path, self._label)
        restoring = RestoreOptions(self._address, self._entity, self._rate_max)
        with tempfile.TemporaryDirectory(prefix="pairbus-restore-", ignore_cleanup_errors=True) as folder:
            with self._lock:
                self._mailbox = ProcessMailbox(folder)
            is_sent = self._send(rows, replace(restoring, mailbox=folder))
        if is_sent:
            with self._lock:
                for path, (messages, size) in list(self._to_go.items()):
                    self._moved(path, messages, size)
        return []

    def _sums(self, rows: DataFrame | None) -> list[tuple[str, int, int]]:
        """Return for each entity how many messages of it there are, and their bytes."""
        found: dict[str, tuple[int, int]] = {}
        if rows is not None:
            from pyspark.sql import functions as F

            sums = rows.groupBy("entity").agg(F.count("*"), F.sum(F.length("amqp"))).collect()
            return [(entity, count, size or 0) for entity, count, size in sums]
        check_single(files_of(None, self._shown).root_names(), self._shown)
        for batch in local_archive.read(here(self._shown)):
            for entity, payload in zip(*(batch.column(name).to_pylist() for name in ("entity", "amqp")), strict=True):
                count, size = found.get(entity, (0, 0))
                found[entity] = count + 1, size + len(payload)
        return [(entity, *sums) for entity, sums in found.items()]

    def report(self) -> Report:
        with self._lock:
            for notice in [] if self._mailbox is None else self._mailbox.read_new(SENT):
                self._moved(notice["to"], notice["messages"], notice["bytes"])
        return super().report()

    def _moved(self, path: str, messages: int, size: int) -> None:
        """No more than there is: a task that Spark runs again sends again, and says so again."""
        left, left_size = self._to_go.get(path, (0, 0))
        messages, size = min(messages, left), min(size, left_size)
        self._to_go[path] = (left - messages, left_size - size)
        if messages:
            self.progress.moved(path, messages, size, time.monotonic())

    def _send(self, rows: DataFrame | None, restoring: RestoreOptions) -> bool:
        """Send the rows; return False where it was stopped before it had begun."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            with self._known_as_job(None if rows is None else rows.sparkSession):
                if self._stop.is_set():
                    return False
                if rows is None:
                    writer = RestoreWriter(restoring)
                    writer.commit([writer.write(local_archive.read(here(self._shown), self._entity))])
                else:
                    self._send_by_spark(rows, restoring)
        except (PySparkException, Py4JJavaError, NotSent) as error:  # the second for a job that was cancelled
            why = "it was stopped" if self._stop.is_set() else first_line(error)
            raise TransferFailed(
                f"{self._shown} was not restored as a whole: {why}; what was sent stays sent, and a rerun sends all of "
                "it again"
            ) from None
        return True

    def _send_by_spark(self, rows: DataFrame, restoring: RestoreOptions) -> None:
        from pyspark.sql import functions as F

        target = F.col("entity") if self._entity is None else F.lit(self._entity)
        rows = rows.select("amqp", "entity", target.alias("destination"))
        if self._rate_max is not None:
            tasks = shares(self._rate_max)
            rows, restoring = rows.repartition(tasks), replace(restoring, rate_max=self._rate_max / tasks)
        rows.sparkSession.dataSource.register(RestoreSink)
        rows.write.format(NAME).option("restoring", as_text(restoring)).mode("append").save()


def restore(
    spark: SparkSession,
    folder: str | Path,
    namespace: str | Address,
    entity: str | None = None,
    **options: Any,
) -> int:
    """Send the messages of an archive, each once, to `entity`, or to where they came from; return how many.

    At least once: run again, it sends all of them again; duplicate detection at the destination drops those.
    `options`: where, max_rate (messages a second, all tasks together), master, conf.
    """
    restorer = Restorer(folder, address_of(namespace), entity, spark=spark, **options)
    restorer.run()
    return restorer.progress.moved_count


def check_folder(folder: str) -> None:
    """Raise TransferFailed for a folder that is neither an archive nor a table of `ingest`, before Spark starts, where
    that can be seen from here."""
    path = local_path(folder)
    if path is not None and not any(next(path.glob(f"{kind}=*/*.parquet"), None) for kind in ("batch", DATE)):
        raise TransferFailed(
            f"{folder} holds no messages: it has neither batch=*/*.parquet nor {DATE}=*/*.parquet; name the FOLDER of "
            "`archive`, or the TABLE of `ingest`"
        )


def _check_way_back(path: str) -> None:
    head, is_dead = without_dead_letters(path)
    topic, _, subscription = subscription_of(head)
    if is_dead or subscription:
        what = "dead letters" if is_dead else "what a subscription got"
        raise TransferFailed(
            f"the archive holds messages of {path}, and {what} can't be put back there; name the ENTITY to send them "
            f"to, such as {topic}"
        )


def address_of(namespace: str | Address) -> Address:
    return namespace if isinstance(namespace, Address) else address_of_text(namespace)
