"""Reads the lines of ledger files as Arrow tables, block by block, where they are exactly as pairbus writes them.

Arrow reads JSON lines several times as fast as Spark. Both must give the same result, so input that they might read
differently (an unknown field, a string for a number, an empty line) is refused here and left to Spark.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from pairbus.errors import PairbusError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

#: A line as the reports read it: an event, or a file's first line (schema, writer, pid, t, pairbus, series,
#: number) or last (reason, events). `_bad` is a line that is none.
LINE: Final = (
    "t double, kind string, ns string, entity string, mid string, seq bigint, bytes bigint, units bigint, "
    "outcome string, ms double, cause string, queue int, `from` string, `to` string, reason string, events bigint, "
    "schema int, writer string, pid bigint, pairbus string, series string, number int, _bad string"
)
#: What the reports do not read of a line, and people might.
_UNREPORTED: Final = "rule string, why string, given_ms double"
#: Columns with few values. Ids and times are written as they are: a dictionary of them takes more room than it saves.
_REPEATED: Final = (
    "kind", "ns", "entity", "units", "outcome", "cause", "queue", "from", "to", "reason", "schema", "writer",
    "pairbus", "series", "rule", "why",
)  # fmt: skip
#: In the metadata of a compacted file: what it was made of.
FIRST_LINE, SOURCE_BYTES = b"pairbus.first_line", b"pairbus.source_bytes"
#: How many bytes of lines become a row group; memory does not depend on the size of a file.
BLOCK_BYTES: Final = 16 * 1024 * 1024
#: No line of ours is as long: a message id has 128 characters, a reason 300.
LINE_BYTES_MAX: Final = 64 * 1024


class NotAsIs(PairbusError):
    """A file that can't become Parquet without a change of what it says."""


def line_schema() -> pa.Schema:
    """Return the columns of lines in Parquet: all that a line can have."""
    import pyarrow as pa

    types = {"double": pa.float64(), "string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    columns = (column.rsplit(" ", 1) for column in f"{LINE}, {_UNREPORTED}".split(", "))
    return pa.schema([(name.strip("`"), types[kind]) for name, kind in columns])


def first_line_of(path: Path) -> bytes:
    """Return the first line of the file that a Parquet file was made of. Raises NotAsIs where that is unknown."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
    except pa.ArrowInvalid:
        metadata = {}
    if FIRST_LINE not in metadata:
        raise NotAsIs("`pairbus ledger compact` did not write it")
    return bytes(metadata[FIRST_LINE])


def parquet_writer(where: Path | IO[bytes], schema: pa.Schema, compression: str) -> parquet.ParquetWriter:
    """Return a writer of lines."""
    from pyarrow import parquet

    return parquet.ParquetWriter(where, schema, compression=compression, use_dictionary=list(_REPEATED))


def opened(path: Path) -> IO[bytes]:
    """Open a file of lines, compressed or not."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Return the lines of a file, whole ones, as many together as a block holds. The last of all may be half a line."""
    rest = b""
    while data := file.read(BLOCK_BYTES):
        whole, newline, after = data.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = after
        elif len(rest := rest + after) > BLOCK_BYTES:
            raise NotAsIs(f"a line in it is longer than {BLOCK_BYTES:,} bytes")
    if rest:
        yield rest


def rows_of(block: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows of these whole lines. Raises NotAsIs where Spark might read anything else than this."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if b"\r" in block or not _is_utf8(block):
        raise NotAsIs("it has a line that is not as pairbus writes them: a carriage return, or no UTF-8")
    fields = pa.schema([field for field in schema if field.name != "_bad"])
    parsing = arrow_json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="error")
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(block), read_options=reading, parse_options=parsing)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split()).removeprefix("JSON parse error: ")[:200]
        raise NotAsIs(f"it has a line that is not as this pairbus writes them: {reason}") from None
    if table.num_rows != block.count(b"\n"):
        raise NotAsIs("it has an empty line, or one that is no JSON object")
    bad = pa.nulls(table.num_rows, pa.string())
    columns = [bad if name == "_bad" else table.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)


def rows_of_last(line: bytes, schema: pa.Schema) -> pa.Table:
    """Return the row of a file's last line, which a kill may have cut: what is no JSON is `_bad`."""
    import pyarrow as pa

    if parsed(line) is not None:
        return rows_of(line + b"\n", schema)
    return pa.table({**{name: [None] for name in schema.names}, "_bad": [line.decode(errors="replace")]}, schema=schema)


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, or None where it holds none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
