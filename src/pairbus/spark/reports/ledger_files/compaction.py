"""Turns finished ledger files into Parquet, one by one, each line a row; the reports read them from there.

A file is finished when its last line says so (`end`); one without that line is being written, or was cut by a kill, and
stays as it is. So does one with content that Parquet would not preserve exactly. It needs no Spark.

The Parquet is written beside the file under a name that no report reads, synced, renamed, and only then is the file
removed. A kill in between leaves the file, or both: the reports take the two for copies of each other and count one,
and the next run removes the file.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from pairbus.errors import file_problem
from pairbus.ledger import COMPACTED

from ..ledgers import BadLedger, check_first_line, ledger_files
from .line_blocks import (
    FIRST_LINE,
    LINE_BYTES_MAX,
    SOURCE_BYTES,
    NotAsIs,
    blocks,
    line_schema,
    parquet_writer,
    parsed,
    rows_of,
)

_UNFINISHED: Final = "it has no last line: it is still being written, or a kill cut it"
_BY_ANOTHER: Final = "another process has just compacted it"


@dataclass(frozen=True, slots=True)
class Compacted:
    file: Path
    parquet: Path
    lines: int
    bytes: int
    parquet_bytes: int


@dataclass(frozen=True, slots=True)
class Left:
    """A file that stays as it is, and why; `failed`: it should have become Parquet."""

    file: Path
    why: str
    failed: bool = False


@dataclass(slots=True)
class Compaction:
    """What became of each file."""

    compacted: list[Compacted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return int(any(each.failed for each in self.left))

    def summary(self) -> dict[str, Any]:
        return {
            "files": len(self.compacted),
            "lines": sum(each.lines for each in self.compacted),
            "bytes": sum(each.bytes for each in self.compacted),
            "parquet_bytes": sum(each.parquet_bytes for each in self.compacted),
            "compacted": [
                {"file": str(each.file), "parquet": str(each.parquet), "lines": each.lines, "bytes": each.bytes,
                 "parquet_bytes": each.parquet_bytes}
                for each in self.compacted
            ],
            "left": [{"file": str(each.file), "why": each.why, "failed": each.failed} for each in self.left],
        }  # fmt: skip

    def text(self) -> str:
        found = self.summary()
        word = "file" if found["files"] == 1 else "files"
        lines = [
            f"{found['files']:,} {word} compacted: {found['lines']:,} lines,"
            f" {found['bytes'] / 1e6:,.1f} MB became {found['parquet_bytes'] / 1e6:,.1f} MB"
        ]
        return "\n".join([*lines, *(f"left: {each.file}: {each.why}" for each in self.left)])


def compact(
    *folders_or_files: str | Path, on_file: Callable[[int, int, Path], None] = lambda done, total, file: None
) -> Compaction:
    """Compact every finished file there, folders searched all the way down. `on_file` gets how many are done, of how
    many, and the next. Raises BadLedger where there is no ledger at all."""
    files = [file for file in ledger_files(*folders_or_files) if file.suffix == ".jsonl"]
    found = Compaction()
    for done, file in enumerate(files):
        on_file(done, len(files), file)
        try:
            found.compacted.append(_compact(file))
        except (NotAsIs, BadLedger) as error:
            found.left.append(Left(file, str(error)))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and _target(file).exists():
                found.left.append(Left(file, _BY_ANOTHER))
            else:
                found.left.append(Left(file, file_problem(error), failed=True))
    return found


def _target(file: Path) -> Path:
    return file.with_name(file.name + COMPACTED)


def _compact(file: Path) -> Compacted:
    if file.is_symlink():
        raise NotAsIs("it is a symbolic link; name the file itself")
    target = _target(file)
    with file.open("rb") as source:
        try:
            # The compaction of a file holds it locked; writers and reports do not ask for the lock.
            fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotAsIs("another process is compacting it") from None
        about = os.fstat(source.fileno())
        if not file.exists():
            raise NotAsIs(_BY_ANOTHER)
        first = _first_of_finished(file, source, about.st_size)
        is_there = target.exists()
        lines = _lines_in(target, first, about.st_size) if is_there else _write(source, first, about, target)
        if os.fstat(source.fileno()).st_size != about.st_size:
            raise NotAsIs("it has grown while it was read; whoever writes to it is not pairbus")
        parquet_bytes = target.stat().st_size
        _sync_folder(file.parent)  # the new name must outlast a power cut before the old one goes
        file.unlink()
        _sync_folder(file.parent)
    return Compacted(file, target, lines, about.st_size, parquet_bytes)


def _first_of_finished(path: Path, file: IO[bytes], size: int) -> bytes:
    """Return the first line of a finished file. Raises otherwise."""
    first = file.readline(LINE_BYTES_MAX)
    line = parsed(first)
    if line is None or not first.endswith(b"\n"):
        raise NotAsIs("it has no line, or only a part of the first")
    check_first_line(str(path), line.get("schema"), line.get("writer"))
    file.seek(max(0, size - LINE_BYTES_MAX))
    last = file.read().rpartition(b"\n")
    end = parsed(last[0].rpartition(b"\n")[2])
    if last[2] or end is None or end.get("kind") != "end":
        raise NotAsIs(_UNFINISHED)
    file.seek(0)
    return first


def _lines_in(target: Path, first: bytes, size: int) -> int:
    """Return how many lines an earlier run has written, which was killed before it could remove the file. Raises where
    the Parquet is of another file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(target)
    except pa.ArrowInvalid:
        raise NotAsIs(f"{target.name} is beside it and is no Parquet file; move that away") from None
    metadata = about.metadata or {}
    if (metadata.get(FIRST_LINE), metadata.get(SOURCE_BYTES)) != (first, str(size).encode()):
        raise NotAsIs(f"{target.name} is beside it and was made of another file; rename one of the two")
    return int(about.num_rows)


def _write(source: IO[bytes], first: bytes, about: os.stat_result, target: Path) -> int:
    """Write the Parquet, and return how many lines it has. It is there whole or not at all."""
    draft = target.with_name(f".{target.name}.draft")
    schema = line_schema().with_metadata({FIRST_LINE: first, SOURCE_BYTES: str(about.st_size).encode()})
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            # As its file is: who could read the lines can read the Parquet, and nobody else.
            os.fchmod(file.fileno(), stat.S_IMODE(about.st_mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), about.st_uid, about.st_gid)
            lines = 0
            with parquet_writer(file, schema, "zstd") as writer:
                for block in blocks(source):
                    table = rows_of(block, schema)
                    lines += table.num_rows
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return lines


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
