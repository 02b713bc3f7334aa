"""The sink of the syphon: takes rows of a lock stream, sends the messages home, and reports the results.

`write` runs in Python workers wherever Spark puts them, `commit` in a process on the driver's machine. A task has sent
and settled its messages before it reports success to Spark, so the commit only reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
from pairbus.spark.connector.process_mailbox import ProcessMailbox
from pairbus.spark.connector.values.option_text import of_text
from pairbus.spark.connector.values.transfer_packs import unpack
from pairbus.wire.sync import LoopThread

from .task import SinkOptions, TaskCounts, TransferTask

NAME: Final = "servicebus-syphon"
EVENTS: Final = "events"


_tasks_of_worker: dict[SinkOptions, tuple[int, LoopThread, TransferTask]] = {}


def task_of_worker(options: SinkOptions) -> tuple[LoopThread, TransferTask]:
    """Return this worker's own task and its loop, kept for the micro-batches to come."""
    kept = _tasks_of_worker.get(options)
    if kept is not None and kept[0] == os.getpid():
        return kept[1], kept[2]
    thread = LoopThread()

    async def make() -> TransferTask:
        return TransferTask(options)

    made = thread.run(make())
    _tasks_of_worker[options] = (os.getpid(), thread, made)
    return thread, made


def end_tasks(mailbox: str) -> None:
    """Close the tasks of a move that ran in this process; those of a worker end with it."""
    for options in [each for each in _tasks_of_worker if each.mailbox == mailbox]:
        _, thread, task = _tasks_of_worker.pop(options)
        thread.run(task.close())
        thread.stop()


@dataclass
class TaskResult(WriterCommitMessage):
    """The counts of a task's batches. `retried`: how many attempts at it have died before, with what they knew."""

    counts: list[TaskCounts]
    retried: int = 0


def attempts_before() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


class _TransferWriter:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        thread, task = task_of_worker(self._options)
        try:
            for batch in batches(iterator):
                for rows in unpack(batch):
                    thread.run(task.take(rows))
        finally:  # also where no more can be read: what was taken is settled
            counts = thread.run(task.finish())
        return TaskResult([counts], attempts_before())

    def _report(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        mailbox = ProcessMailbox(self._options.mailbox)
        results = [each for each in messages if isinstance(each, TaskResult)]
        counts = [each for result in results for each in result.counts]
        retried = sum(result.retried for result in results)
        mailbox.append(MOVES, {**summed(batch_id, counts), "retried": retried})
        for each in counts:
            if each.events:
                mailbox.append(EVENTS, {"events": each.events})


class TransferStreamWriter(_TransferWriter, StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._report(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was sent is settled, or left to its lock's end; Spark runs the batch again."""


class TransferBatchWriter(_TransferWriter, DataSourceArrowWriter):
    """Writes one batch of a move, which is a series of them (`transfer_loop`)."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._report(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing; what tasks sent before the job failed is not reported, but done."""


def summed(batch_id: int, counts: list[TaskCounts]) -> dict[str, Any]:
    """Return the notice for the application and the source."""
    moved: dict[str, int] = {}
    dead_lettered: dict[str, int] = {}
    troubles: dict[str, Any] = {}
    denied: dict[str, str] = {}
    for each in counts:
        for target, by_path in ((moved, each.moved), (dead_lettered, each.dead_lettered)):
            for path, count in by_path.items():
                target[path] = target.get(path, 0) + count
        for path, trouble in each.troubles.items():
            if path not in troubles or trouble[3] > troubles[path][3]:
                troubles[path] = list(trouble)
        denied.update(each.denied)
    return {
        "batch": batch_id,
        "moved": moved,
        "bytes": sum(each.moved_bytes for each in counts),
        "dead_lettered": dead_lettered,
        "left": [entry for each in counts for entry in each.left],
        "troubles": troubles,
        "refused": [entry for each in counts for entry in each.refused],
        "denied": denied,
        "busy": sorted({path for each in counts for path in each.busy}),
    }


class SyphonSink(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed: SinkOptions = of_text(options["syphon"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TransferBatchWriter(self._parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return TransferStreamWriter(self._parsed)
