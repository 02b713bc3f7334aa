"""Writes and reads the Parquet files of an archive on this machine, for an archive or a restore in this process.

The folders, columns and types are those that Spark writes, so that each can read the other's files. A file and its name
are on the disk before its messages are removed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from pairbus.spark.connector.schema import DESTINATION, SCHEMA

from .message_table import IDENTITY
from .preflight import TransferFailed
from .table_files import make_folder, sync

ROWS_AT_ONCE: Final = 1000
#: Under this key Spark keeps the types that Parquet has no name for, such as that of `time_to_live`.
_SPARK_SCHEMA: Final = "org.apache.spark.sql.parquet.row.metadata"


class Batch:
    """One folder `batch=…`; `tokens`: lock token → sequence number, of what was locked when it was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.messages = self.size = 0
        self.tokens: dict[uuid.UUID, int] = {}

    def write(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write a file with these rows, or none where there are none. It outlasts a power cut when this returns."""
        make_folder(self._folder)
        name = f"part-00000-{uuid.uuid4()}.snappy.parquet"
        unfinished = self._folder / f"_{name}"  # readers pass over names that begin so
        try:
            self._write(unfinished, rows)
            sync(unfinished)
            if self.messages:
                unfinished.rename(self._folder / name)
                sync(self._folder)
        finally:
            unfinished.unlink(missing_ok=True)

    def _write(self, file: Path, rows: Iterable[pa.RecordBatch]) -> None:
        writer: Any = None
        with open(file, "wb", opener=_private) as stream:
            for batch in rows:
                table = _as_parquet(pa.Table.from_batches([batch]))
                if writer is None:
                    writer = parquet.ParquetWriter(stream, table.schema, use_deprecated_int96_timestamps=True)
                writer.write_table(table)
                self._note(batch)
            if writer is not None:
                writer.close()

    def _note(self, batch: pa.RecordBatch) -> None:
        self.messages += batch.num_rows
        self.size += size_of(batch)
        tokens, numbers = (batch.column(name).to_pylist() for name in ("lock_token", "sequence_number"))
        self.tokens |= {uuid.UUID(token): number for token, number in zip(tokens, numbers, strict=True) if token}


def _private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read, whatever the umask: it holds messages."""
    return os.open(path, flags, 0o600)


def size_of(batch: pa.RecordBatch) -> int:
    return sum(map(len, batch.column("amqp").to_pylist()))


def _as_parquet(table: pa.Table) -> pa.Table:
    """Return the table with numbers in place of spans of time, which Parquet does not have."""
    fields = [pa.field(each.name, pa.int64()) if pa.types.is_duration(each.type) else each for each in table.schema]
    return table.cast(pa.schema(fields, {_SPARK_SCHEMA: SCHEMA.json()}))


def files_in(folder: Path) -> list[Path]:
    """Return the files that Spark would read: all in the folder and below, except names that begin with _ or a dot."""
    found = (each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
    return sorted(folder / each for each in found if not any(name[0] in "._" for name in each.parts))


def count(folder: Path) -> int | None:
    """Return how many messages the files hold, each as often as it is there; None where that can't be told."""
    try:
        return sum(parquet.read_metadata(file).num_rows for file in files_in(folder)) or None
    except (OSError, pa.ArrowException):
        return None


def read(folder: Path, destination: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the messages, each once, as columns `amqp`, `entity` and `destination`, by default where they came from.
    Raises TransferFailed."""
    known: set[tuple[object, ...]] = set()
    for batch in _read(folder, (*IDENTITY, "amqp")):
        fresh = []
        for index, identity in enumerate(identities(batch)):
            if identity not in known:
                known.add(identity)
                fresh.append(index)
        payloads, entities = (batch.column(name).take(pa.array(fresh, pa.int64())) for name in ("amqp", "entity"))
        targets = entities if destination is None else pa.array([destination] * len(fresh), pa.string())
        yield pa.RecordBatch.from_arrays([payloads, entities, targets], names=["amqp", "entity", DESTINATION])


def holds_any(folder: Path, waiting: Iterable[pa.RecordBatch]) -> bool:
    """Return whether one of these messages is in the files, whatever the case of its entity's name. Raises
    TransferFailed."""
    known = {each for batch in _read(folder, IDENTITY) for each in identities(batch, str.lower)}
    return any(each in known for batch in waiting for each in identities(batch, str.lower))


def _read(folder: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
    try:
        for file in files_in(folder):
            # times in nanoseconds end in 2262
            with parquet.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
                if missing := set(columns).difference(opened.schema_arrow.names):
                    raise TransferFailed(f"{folder} holds no archive: {file.name} has no column {min(missing)}")
                yield from opened.iter_batches(ROWS_AT_ONCE, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise TransferFailed(f"{folder} holds no archive: {str(error).splitlines()[0]}") from None


def identities(batch: pa.RecordBatch, entity: Callable[[str], str] = str) -> list[tuple[object, ...]]:
    """Return which messages these are."""
    names, numbers, times = (batch.column(name) for name in IDENTITY)
    microseconds = times.cast(pa.timestamp("us")).cast(pa.int64())
    rows = zip(names.to_pylist(), numbers.to_pylist(), microseconds.to_pylist(), strict=True)
    return [(None if name is None else entity(name), number, time) for name, number, time in rows]
