"""Reads one batch of locked messages as a DataFrame: the lock stream's reader in a job that ends.

It is not a general format: each evaluation of such a DataFrame locks other messages. Its caller writes it once, and
settles the written messages. `pairbus move` sends the rows on, `pairbus archive --remove` writes them to Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.spark.connector.lock_reader import Share, fill, packed, shares_of
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.schema import SCHEMA, Rows
from pairbus.spark.connector.selection import Selection
from pairbus.spark.connector.values import transfer_packs
from pairbus.spark.connector.values.option_text import as_text, of_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "servicebus-locked"


@dataclass(frozen=True)
class LockBatch:
    """What to lock: of the chosen messages, or of all where `chosen` is None, at most so many as `counts` says, task by
    task. `slim`: packed for the syphon's sink, since rows and columns cost more than the transfer of their messages."""

    address: Address
    entity: str
    counts: tuple[int, ...]
    chosen: Selection | None
    slim: bool = False
    #: Whether the entity has sessions.
    sessions: bool = False

    def load(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(LockedMessages)
        return spark.read.format(NAME).option("batch", as_text(self)).load()

    def reader(self) -> LockingReader:
        return LockingReader(self)


class LockedMessages(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._batch: LockBatch = of_text(options["batch"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return transfer_packs.SCHEMA if self._batch.slim else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._batch.reader()


class LockingReader(DataSourceReader):
    def __init__(self, batch: LockBatch) -> None:
        self._batch: LockBatch = batch

    def partitions(self) -> list[InputPartition]:
        more = {"chosen": self._batch.chosen, "sessions": self._batch.sessions}
        return shares_of(self._batch.entity, self._batch.counts, **more)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        address = self._batch.address
        return packed(address, partition) if self._batch.slim else fill(Rows(), address, partition)
