"""As much of Spark as a round of `pairbus move` needs, in this process and without a JVM, on one thread.

The data sources are ours and real; only what calls them is not Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pairbus.spark.syphon import sink


class SmallSpark:
    def __init__(self) -> None:
        self.sources: dict[str, Any] = {}
        self.dataSource = self
        self.read = _Reading(self)
        #: Called with the number of each job before it runs.
        self.before_job: Callable[[int], None] = lambda number: None
        self.jobs = self.tasks = 0

    def register(self, source: Any) -> None:
        self.sources[source.name()] = source

    def createDataFrame(self, *_: object) -> None:
        pass

    @property
    def conf(self) -> SmallSpark:
        return self

    def set(self, *_: str) -> None:
        pass


class _Reading:
    def __init__(self, spark: SmallSpark) -> None:
        self._spark = spark
        self._options: dict[str, str] = {}
        self._format = ""

    def format(self, name: str) -> _Reading:
        made = type(self)(self._spark)
        made._format = name
        return made

    def option(self, name: str, value: str) -> _Reading:
        self._options[name] = value
        return self

    def load(self) -> _Rows:
        return _Rows(self._spark, self._spark.sources[self._format](self._options))


class _Rows:
    def __init__(self, spark: SmallSpark, source: Any) -> None:
        self._spark, self.source = spark, source
        self.write = _Writing(spark, self)


class _Writing(_Reading):
    def __init__(self, spark: SmallSpark, rows: _Rows | None = None) -> None:
        super().__init__(spark)
        self._rows = rows

    def format(self, name: str) -> _Writing:
        self._format = name
        return self

    def mode(self, _: str) -> _Writing:
        return self

    def save(self) -> None:
        assert self._rows is not None
        self._spark.jobs += 1
        self._spark.before_job(self._spark.jobs)
        source = self._rows.source
        reader = source.reader(source.schema())
        writer = self._spark.sources[self._format](self._options).writer(source.schema(), False)
        partitions = reader.partitions()
        self._spark.tasks += len(partitions)
        writer.commit([writer.write(reader.read(partition)) for partition in partitions])


@contextmanager
def no_tasks_left() -> Iterator[None]:
    """A worker's process ends with its tasks; here they are closed by hand."""
    try:
        yield
    finally:
        for _, thread, task in sink._tasks_of_worker.values():
            thread.run(task.close())
            thread.stop()
        sink._tasks_of_worker.clear()
