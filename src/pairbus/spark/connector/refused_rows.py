"""Writes the rows of one task that are refused permanently to a Parquet file under the option `refusedPath`.

The file gets its name when the task is done, and is named after the task, so that a task that Spark runs again replaces
its earlier file. It does not decide which rows are refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from .options import InvalidOption

#: `amqp` is the encoded message; `columns`, where there is none, the row's columns as JSON.
SCHEMA: Final = pa.schema(
    {
        "destination": pa.string(),
        "reason": pa.string(),
        "amqp": pa.binary(),
        "columns": pa.string(),
    }
)


class RefusedRows:
    def __init__(self, folder: str, name: str) -> None:
        self._files, self._folder = _place(folder)
        self._path = f"{self._folder}/{name}.parquet"
        # readers of the folder pass over names that begin so
        self._partial = f"{self._folder}/_{name}.{secrets.token_hex(4)}"
        self._writer: Any = None
        self._stream: Any = None

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(list(rows), SCHEMA)
        if not batch.num_rows:
            return
        if self._writer is None:
            from pyarrow import parquet

            self._files.create_dir(self._folder, recursive=True)
            self._stream = self._files.open_output_stream(self._partial)
            self._writer = parquet.ParquetWriter(self._stream, SCHEMA)
        self._writer.write_batch(batch)

    def finish(self) -> None:
        """Give the file its name. Afterwards it survives a crash of this machine, where it is on its disk."""
        if self._writer is not None:
            self._close()
            if isinstance(self._files, fs.LocalFileSystem):
                _sync(self._partial)
            self._files.move(self._partial, self._path)
            if isinstance(self._files, fs.LocalFileSystem):
                _sync(self._folder)

    def discard(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._close()
                self._files.delete_file(self._partial)

    def _close(self) -> None:
        self._writer.close()
        self._stream.close()


def _place(folder: str) -> tuple[fs.FileSystem, str]:
    if "://" not in folder:
        return fs.LocalFileSystem(), os.path.abspath(folder)
    try:
        found, path = fs.FileSystem.from_uri(folder)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidOption(f"refusedPath {folder!r} can't be written to: {error}") from None
    return found, path.rstrip("/")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
