"""Base of a move, an archive and a restore: progress that other threads may read, and a stop from any thread.

It owns the event, the lock and the clock, and goes from step to step as `TransferLoop` decides. Subclasses define a
step: a Spark job, or the same readers and writers called in this process, for a few thousand messages. For a long Spark
job it reports how many of its parts are done, wherever they run.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceWriter

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.syphon.api import started
from pairbus.syphon.core.destinations import Trouble
from pairbus.syphon.core.progress import Progress, Report

from .transfer_loop import Look, Over, Take, TransferLoop, Wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Job(NamedTuple):
    """The jobs of Spark's between two lines of ours, by their tag."""

    spark: SparkSession
    tag: str

    def parts(self) -> tuple[int, int]:
        """Return how many parts are done, and how many are known yet."""
        context = self.spark.sparkContext
        tracker = context.statusTracker()
        done = count = 0
        for number in context._jsc.sc().statusTracker().getJobIdsForTag(self.tag):
            job = tracker.getJobInfo(number)
            for stage in [] if job is None else map(tracker.getStageInfo, job.stageIds):
                if stage is not None:
                    done, count = done + stage.numCompletedTasks, count + stage.numTasks
        return done, count

    def cancel(self) -> None:
        self.spark.sparkContext.cancelJobsWithTag(self.tag)


class Transfer:
    """`where` chooses among the messages; the session is the given one, or is started with the other arguments.
    `in_process`: there is none, and our readers and writers are called from here; then there is no `where`."""

    def __init__(
        self,
        where: str | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        on_start: Callable[[float], None] | None = None,
        in_process: bool = False,
    ) -> None:
        self._where = where
        self._start: Callable[[], SparkSession | None] = partial(started, spark, master, on_start, conf)
        if in_process:
            self._start = lambda: None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._troubles: dict[str, Trouble] = {}
        self._job: Job | None = None
        self.progress = Progress(time.monotonic())

    def stop(self) -> None:
        """Stop after the round in progress, which is bounded by a third of the source's lock."""
        self._stop.set()

    def report(self) -> Report:
        with self._lock:
            self._look_at_job()
            return self.progress.report(time.monotonic(), self._troubles.items())

    @contextmanager
    def _known_as_job(self, spark: SparkSession | None) -> Iterator[None]:
        """Tag the jobs of the block, so that the report can tell how far they are."""
        if spark is None:
            yield
            return
        job = Job(spark, f"pairbus-{secrets.token_hex(4)}")
        # the context's tags: those of the session are known to the thread alone that set them
        spark.sparkContext.addJobTag(job.tag)
        try:
            with self._lock:
                self._job = job
            yield
        finally:
            with self._lock:
                self._job = self.progress.waiting_for = None
            spark.sparkContext.removeJobTag(job.tag)

    def _look_at_job(self) -> None:
        """Report the parts of the job that are done, while nothing has been moved, which says more."""
        from py4j.protocol import Py4JError

        if self._job is None:
            return
        self.progress.waiting_for = None
        if not self.progress.moved_count:
            with suppress(Py4JError):  # the JVM is going, and code that waits for the job will hear of it
                done, count = self._job.parts()
                self.progress.waiting_for = f"Spark, {done} of {count} parts done" if count else "Spark's plan"

    def _go_through(self, rounds: TransferLoop, take: Callable[[int], None], look: Callable[[], int]) -> Over | None:
        """Go on to the end and return it, or None where it was stopped. `take` runs a round and reports it to `rounds`;
        `look` returns how many of the chosen are still there."""
        while not self._stop.is_set():
            match rounds.next(time.monotonic()):
                case Take(count):
                    take(count)
                case Look():
                    rounds.looked(look(), time.monotonic())
                case Wait(seconds, why):
                    self.progress.waiting_for = why
                    self._stop.wait(seconds)
                    self.progress.waiting_for = None
                case Over() as over:
                    return over
        return None


def run_here(reader: DataSourceReader, writer: DataSourceWriter) -> None:
    """Run what would be a job of Spark's in this process: task by task, each only once."""
    writer.commit([writer.write(reader.read(task)) for task in reader.partitions()])  # type: ignore[arg-type]


def read_here(reader: DataSourceReader) -> Iterator[Any]:
    """Yield what all tasks of a reader read."""
    for task in reader.partitions():
        yield from reader.read(task)


def rate_of(max_rate: float | None) -> float | None:
    """Return the rate. Raises InvalidOption where it is not above 0."""
    if max_rate is not None and not (_is_number(max_rate) and 0 < max_rate < math.inf):
        raise InvalidOption(f"max_rate is a number of messages a second above 0, not {max_rate!r}")
    return max_rate


def seconds_of(name: str, seconds: float, most: float = math.inf) -> float:
    """Return the seconds of a setting. Raises InvalidOption where they are less than 0, or more than `most`."""
    if not (_is_number(seconds) and 0 <= seconds <= most):
        limit = "of at least 0" if most == math.inf else f"from 0 to {most:.0f}"
        raise InvalidOption(f"{name} is a number of seconds {limit}, not {seconds!r}")
    return seconds


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)
