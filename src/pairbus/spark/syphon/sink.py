"""The sink of the syphon: rows of a lock stream in, messages home, and a notice of what became of them.

`write` runs in Python workers wherever Spark puts them, `commit` in a process on the driver's machine. Everything that
a task did is done and settled before Spark hears of it: nothing is left for the commit but to tell.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pairbus.spark.connector.arrow_rows import StreamWriter, batches
from pairbus.spark.connector.lock_reader import MOVES
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.schema import TRANSFER_COLUMNS
from pairbus.spark.runtime import connections
from pairbus.spark.runtime.process_mailbox import ProcessMailbox
from pairbus.wire.sync import LoopThread

from .task import Locked, TaskCounts, TransferTask

NAME: Final = "servicebus-syphon"
EVENTS: Final = "events"


@dataclass(frozen=True)
class SinkOptions:
    """As text through Spark's options, since that is all that reaches the workers."""

    primary: Address
    secondary: Address
    mailbox: str
    count_backlog_time: bool = False
    is_replay: bool = False
    wants_events: bool = False
    #: Where all go, as they are (`pairbus move`); None: each home.
    destination: str | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> SinkOptions:
        found = json.loads(text)
        return cls(**{**found, "primary": Address(**found["primary"]), "secondary": Address(**found["secondary"])})


_tasks_of_worker: dict[SinkOptions, tuple[int, LoopThread, TransferTask]] = {}


def carrier(options: SinkOptions) -> tuple[LoopThread, TransferTask]:
    """This worker's own, kept for the micro-batches to come."""
    kept = _tasks_of_worker.get(options)
    if kept is not None and kept[0] == os.getpid():
        return kept[1], kept[2]
    thread = LoopThread()

    async def make() -> TransferTask:
        return TransferTask(
            connections.endpoint(options.primary),
            connections.endpoint(options.secondary),
            count_backlog_time=options.count_backlog_time,
            is_replay=options.is_replay,
            wants_events=options.wants_events,
            destination=options.destination,
        )

    made = thread.run(make())
    _tasks_of_worker[options] = (os.getpid(), thread, made)
    return thread, made


@dataclass
class TaskResult(WriterCommitMessage):
    """`retried`: how many attempts at this task have died before, with what they knew."""

    tallies: list[TaskCounts]
    retried: int = 0


def attempts_before() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


class _TransferWriter:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        thread, carrying = carrier(self._options)
        tallies = [thread.run(carrying.carry(_rows(batch))) for batch in batches(iterator) if batch.num_rows]
        return TaskResult(tallies, attempts_before())

    def _tell(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        mailbox = ProcessMailbox(self._options.mailbox)
        tallies = [tally for each in messages if isinstance(each, TaskResult) for tally in each.tallies]
        retried = sum(each.retried for each in messages if isinstance(each, TaskResult))
        mailbox.append(MOVES, {**summed(batch_id, tallies), "retried": retried})
        for tally in tallies:
            if tally.events:
                mailbox.append(EVENTS, {"events": tally.events})


class TransferStreamWriter(_TransferWriter, StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._tell(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was carried is home, and settled or known by its lock's end; Spark runs the batch again."""


class TransferBatchWriter(_TransferWriter, DataSourceArrowWriter):
    """One batch, of a run that is a row of them (`rounds`)."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tell(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As above; what tasks had carried before the job failed is not told, but done."""


def _rows(batch: pa.RecordBatch) -> list[Locked]:
    entities, tokens, payloads = (batch.column(name).to_pylist() for name in TRANSFER_COLUMNS)
    return [Locked(*row) for row in zip(entities, map(UUID, tokens), payloads, strict=True)]


def summed(batch_id: int, tallies: list[TaskCounts]) -> dict[str, Any]:
    """A notice for the application and the source."""
    moved: dict[str, int] = {}
    buried: dict[str, int] = {}
    troubles: dict[str, Any] = {}
    denied: dict[str, str] = {}
    for tally in tallies:
        for target, counts in ((moved, tally.moved), (buried, tally.dead_lettered)):
            for path, count in counts.items():
                target[path] = target.get(path, 0) + count
        for path, trouble in tally.troubles.items():
            if path not in troubles or trouble[3] > troubles[path][3]:
                troubles[path] = list(trouble)
        denied.update(tally.denied)
    return {
        "batch": batch_id,
        "moved": moved,
        "bytes": sum(tally.moved_bytes for tally in tallies),
        "from": min((tally.moved_from for tally in tallies if tally.moved_from is not None), default=None),
        "until": max((tally.moved_until for tally in tallies if tally.moved_until is not None), default=None),
        "dead_lettered": buried,
        "left": [entry for tally in tallies for entry in tally.left],
        "troubles": troubles,
        "refused": [entry for tally in tallies for entry in tally.refused],
        "denied": denied,
        "busy": sorted({path for tally in tallies for path in tally.busy}),
    }


class SyphonSink(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed = SinkOptions.of_text(options["syphon"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TransferBatchWriter(self._parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return TransferStreamWriter(self._parsed)
