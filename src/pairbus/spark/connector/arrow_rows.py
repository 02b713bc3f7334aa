"""Converts the input of a stream's sink into Arrow batches on every Spark: before 4.1 the sink gets rows. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter

try:  # Spark 4.1 and later
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
except ImportError:  # 4.0
    StreamWriter = DataSourceStreamWriter  # type: ignore[misc,assignment]

__all__ = ["StreamWriter", "batches", "by_bytes"]

ROWS_A_BATCH: Final = 1000


def batches(handed: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches as they are, and rows a thousand at a time."""
    rows: list[dict[str, Any]] = []
    for each in handed:
        if isinstance(each, pa.RecordBatch):
            yield each
            continue
        rows.append({name: _plain(value) for name, value in each.asDict().items()})
        if len(rows) == ROWS_A_BATCH:
            yield pa.RecordBatch.from_pylist(rows)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows)


def by_bytes(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch in parts of about so many bytes: as many rows in each as that is on average, one at least."""
    rows = max(1, batch.num_rows * bytes_max // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.astimezone(dt.UTC)  # a row's times are the worker's local ones
    return value
