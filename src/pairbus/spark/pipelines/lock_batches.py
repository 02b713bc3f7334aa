"""Reads one batch of locked messages as a DataFrame: the lock stream's reader in a job that ends.

Not a format for everybody: each evaluation of such a DataFrame locks other messages. Whoever makes one writes it once,
and settles what was written. `pairbus move` sends the rows on, `pairbus archive --remove` writes them to Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.spark.connector.lock_reader import Share, fill
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.schema import SCHEMA, TRANSFER_SCHEMA, Rows, TransferRows
from pairbus.spark.connector.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "servicebus-locked"


@dataclass(frozen=True)
class LockBatch:
    """What to lock: of the chosen messages at most so many as `counts` says, task by task. `slim`: only what the
    syphon's sink needs, since a message's other columns cost more than its transfer."""

    address: Address
    entity: str
    counts: tuple[int, ...]
    chosen: Selection
    slim: bool = False

    def load(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(LockedMessages)
        return spark.read.format(NAME).option("batch", self.as_text()).load()

    def as_text(self) -> str:
        fields = {"entity": self.entity, "counts": self.counts, "chosen": self.chosen.as_text(), "slim": self.slim}
        return json.dumps({"address": asdict(self.address), **fields})

    @classmethod
    def of_text(cls, text: str) -> LockBatch:
        found = json.loads(text)
        address, chosen = Address(**found["address"]), Selection.of_text(found["chosen"])
        return cls(address, found["entity"], tuple(found["counts"]), chosen, found["slim"])


class LockedMessages(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._batch = LockBatch.of_text(options["batch"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return TRANSFER_SCHEMA if self._batch.slim else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return LockingReader(self._batch)


class LockingReader(DataSourceReader):
    def __init__(self, batch: LockBatch) -> None:
        self._batch = batch

    def partitions(self) -> list[InputPartition]:
        return [Share(self._batch.entity, count, self._batch.chosen) for count in self._batch.counts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        rows = TransferRows() if self._batch.slim else Rows()
        return fill(rows, self._batch.address, partition)
