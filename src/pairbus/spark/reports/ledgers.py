"""Reads ledgers as tables, on Spark: the JSON lines of clients, syphons and brokers, or the Parquet made of them.

It owns the reading and the cache, and decides only which files are not ledgers. A file whose last line was cut by a
kill is read up to there, and `files` says so; an empty file and a copy of another are left out, and `notes` says so; a
file without its first line, or of another schema, is an error that names it. `event_location` (where), `coverage` (what
they can't tell) and the reports decide what the lines mean.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from pairbus.errors import PairbusError
from pairbus.ledger import COMPACTED, SCHEMA
from pairbus.spark.runtime import cached_tables
from pairbus.spark.runtime.locations import below, escaped, local_path, located
from pairbus.spark.runtime.session import is_local

from . import event_location, event_numbers
from .ledger_files.copies import Contents, copies
from .ledger_files.file_facts import FileFacts, MissingFiles, missing_files
from .ledger_files.line_blocks import LINE, NotAsIs, first_line_of
from .ledger_files.staging import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS: Final = (
    "t", "kind", "ns", "entity", "mid", "seq", "bytes", "units", "outcome", "ms", "cause", "queue", "from_state",
    "to_state", "reason", "writer", "pid", "file",
)  # fmt: skip
FILES: Final = (
    "file string, writer string, pid bigint, started double, last double, ended boolean, cut boolean, "
    "gap_events bigint, bad_lines bigint, rotated boolean, series string, number int"
)
#: Names of the two tables in a folder of Parquet.
TABLES: Final = ("events", "files")
#: Bytes of JSON lines that are one of Parquet, about.
_PACKED: Final = 10
_SUFFIXES: Final = (".jsonl", ".jsonl.gz", f".jsonl{COMPACTED}")
#: How many lines, about, are one task's: few enough that it keeps what it counts in memory.
_TASK_LINES: Final = 150_000
_READ_BYTES: Final = 1 << 20
_FIRST_LINE_MAX: Final = 4096


class BadLedger(PairbusError):
    """Something that was given as a ledger is none."""


class Ledgers:
    """The tables of some ledgers. `events`: a row an event. `files`: a row a file. `close` gives back the memory and
    the temporary files that they, and the reports on them, take."""

    def __init__(
        self,
        spark: SparkSession,
        events: DataFrame,
        files: DataFrame,
        lines: Lines | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """`lines`: where there is nothing else, they have been counted when they were read. `notes`: what was given and
        is not among the files, and why."""
        self.spark = spark
        self._left_out = notes
        self.events = events
        self.files = files
        self._lines = lines
        self._to_close: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        kept = self.file_facts.values()
        cut = sum(not each.ended for each in kept)
        writers = ", ".join(sorted({each.writer for each in kept}))
        return f"<Ledgers {len(kept)} files of {writers or 'nobody'}{f', {cut} of them cut' if cut else ''}>"

    def __enter__(self) -> Ledgers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def to_parquet(self, folder: str | Path) -> None:
        """Write two tables, `events` and `files`, for `read_ledgers(folder)`. Replaces those of an earlier run."""
        for name, table in zip(TABLES, (self.events, self.files), strict=True):
            table.write.mode("overwrite").parquet(below(folder, name))

    def close(self) -> None:
        cached_tables.release(self)
        for give_back in self._to_close:
            give_back()

    @cached_property
    def _counts(self) -> list[dict[str, Any]]:
        """What each file says of each place, in few words: one pass over all events."""
        if self._lines is not None:
            return self._lines.counted
        told = self.events.selectExpr("*", f"writer = '{event_location.BROKER}' as by_broker")
        return [row.asDict() for row in _counted(told, ("file", "by_broker"), _LINES).collect()]

    @cached_property
    def facts(self) -> list[event_location.Fact]:
        return event_location.facts(self._counts)

    @cached_property
    def file_facts(self) -> dict[str, FileFacts]:
        gaps: dict[str, float] = {}
        for fact in self.facts:
            if fact.gap is not None:
                gaps[fact.file] = max(fact.gap, gaps.get(fact.file, fact.gap))
        return {
            row["file"]: FileFacts(gap=gaps.get(row["file"]), **{name: row[name] for name in _FILE_FACTS})
            for row in sorted(self.files.collect(), key=lambda row: row["file"])
        }

    @cached_property
    def missing_files(self) -> list[MissingFiles]:
        """The files that are missing, except those from before the first event."""
        start, _ = self.span
        return [each for each in missing_files(self.file_facts.values()) if start is not None and each.until > start]

    @property
    def notes(self) -> list[str]:
        """What is not among the files, and why."""
        return [*self._left_out, *(each.note for each in self.missing_files)]

    @property
    def span(self) -> tuple[float | None, float | None]:
        """The first and the last event; None, None: there is none."""
        firsts, lasts = [fact.first for fact in self.facts], [fact.last for fact in self.facts]
        return (min(firsts), max(lasts)) if firsts else (None, None)

    @cached_property
    def tasks(self) -> int:
        """How many tasks a question is for that gathers the lines of each message."""
        return int(sum(row["lines"] for row in self._counts)) // _TASK_LINES + 1

    @cached_property
    def numbers(self) -> event_numbers.Numbers:
        writers = {file: facts.writer for file, facts in self.file_facts.items()}
        return event_numbers.numbered(self._counts, writers, event_location.homes(self.facts))

    @cached_property
    def normal(self) -> DataFrame:
        """`events` with where they happened, by name and by number: see `event_location` and `event_numbers`."""
        from pyspark.sql import functions as F

        numbers = self.numbers
        if self._lines is not None:
            table, key, by_key = self._lines.table, "uri", self._lines.files
        else:
            table, key, by_key = self.events, "file", {file: file for file in self.file_facts}
        of_files = [(each, *numbers.files[file]) for each, file in by_key.items()]
        for on, rows, columns in (
            ("entity", numbers.entities, event_numbers.ENTITIES),
            ("ns", numbers.namespaces, event_numbers.NAMESPACES),
            (key, of_files, f"{key} string, {event_numbers.FILES}"),
        ):
            table = table.join(
                F.broadcast(small_table(self.spark, rows, columns)), on, "inner" if on == key else "left"
            )
        told = {
            "in_backlog": event_location.IN_BACKLOG,
            "home": event_numbers.HOME,
            "home_no": event_numbers.HOME_NO,
        }
        return table.withColumn("is_dead", F.expr("coalesce(is_dead, false)")).selectExpr(
            "*", *event_location.named(told)
        )


class Lines:
    """What was read as lines. `table`: the events, with `uri`, the file as Spark calls it. `counted`: the rows of
    `event_location.facts`. `files`: by uri, the files as people call them, but for copies of others."""

    def __init__(self, table: DataFrame, counted: list[dict[str, Any]], files: Mapping[str, str]) -> None:
        self.table = table
        self.counted = counted
        self.files = files

    def events(self, writers: Mapping[str, tuple[str, int | None]]) -> DataFrame:
        """Names of files are long and few: they come from a small table rather than with every line."""
        from pyspark.sql import functions as F

        rows = [(uri, file, *writers[file]) for uri, file in self.files.items()]
        by_uri = small_table(self.table.sparkSession, rows, "uri string, file string, writer string, pid bigint")
        return self.table.join(F.broadcast(by_uri), "uri").select(*EVENTS)


#: How many lines there are: as counted from lines, and as summed up from those.
_LINES: Final[Mapping[str, tuple[str, str]]] = {"lines": ("count(*)", "sum(lines)")}


def _counted(table: DataFrame, keys: Sequence[str], more: Mapping[str, tuple[str, str]]) -> DataFrame:
    """Return `event_location.FACTS` by `keys` and place. `more`: further figures, as counted from lines and as summed
    up of that."""
    from pyspark.sql import functions as F

    of_lines = {**event_location.OF_LINES, **{name: first for name, (first, _) in more.items()}}
    of_places = {**event_location.FACTS, **{name: then for name, (_, then) in more.items()}}
    return (
        table.groupBy(*keys, *(F.expr(key).alias(name) for name, key in event_location.LINE_KEYS.items()))
        .agg(*(F.expr(expression).alias(name) for name, expression in of_lines.items()))
        # Names are taken apart here, where each stands once.
        .selectExpr("*", *event_location.named({**event_location.BY_ENTITY, "in_backlog": event_location.IN_BACKLOG}))
        .groupBy(*keys, *event_location.FACT_KEYS)
        .agg(*(F.expr(expression).alias(name) for name, expression in of_places.items()))
    )


def read_ledgers(spark: SparkSession, *folders_or_files: str | Path) -> Ledgers:
    """Read everything that was written there, each file once: folders are searched for *.jsonl, *.jsonl.gz and
    *.jsonl.parquet, all the way down."""
    if not folders_or_files:
        raise BadLedger("name a ledger: a folder with *.jsonl files, such a file, or a folder of Parquet made of them")
    lines: list[Path | str] = []
    tables: list[Table] = []
    found, empty = _given(folders_or_files)
    for given in found:
        if isinstance(given, Path):
            lines.append(given)
        elif (parquet := _parquet(spark, given)) is not None:
            tables.append(parquet)
        else:
            lines.append(given)
    notes = [_empty(path) for path in empty]
    to_close: list[Callable[[], object]] = []
    told = None
    if lines:
        try:
            told, first = _read_lines(spark, list(dict.fromkeys(lines)), notes, to_close)
        except BaseException:
            for give_back in to_close:
                give_back()
            raise
        tables.insert(0, first)
    if len(tables) > 1:
        tables, told = _without_copies(tables, notes), None
    events, files = tables[0]
    for more_events, more_files in tables[1:]:
        events, files = events.unionByName(more_events), files.unionByName(more_files)
    read = Ledgers(spark, events, files, told, notes)
    read._to_close += to_close
    return read


def ledger_files(*folders_or_files: str | Path) -> list[Path]:
    """Return the files of this machine that hold ledgers, folders searched all the way down. Raises BadLedger."""
    found: list[Path] = []
    for given in folders_or_files:
        path = local_path(given)
        if path is None:
            raise BadLedger(f"{given} is not on this machine; name a folder with *.jsonl files, or such a file")
        found += _local(path)
    return list(dict.fromkeys(Path(os.path.abspath(each)) for each in found))


def check_ledgers(*folders_or_files: str | Path) -> list[str]:
    """Raise BadLedger for what is no ledger as far as this machine's files show it, before Spark takes its seconds to
    start. Returns what is left out, and why."""
    found, empty = _given(folders_or_files)
    if not found:
        more = f" and {len(empty) - 1} more are empty" if len(empty) > 1 else " is empty"
        raise BadLedger(f"{empty[0]}{more}: there is nothing to report")
    return [_empty(path) for path in empty]


def size_of(*folders_or_files: str | Path) -> int | None:
    """Return the bytes of what `read_ledgers` would read, as JSON lines, or None: somewhere else than on this
    machine."""
    size = 0
    for given in folders_or_files:
        path = local_path(given)
        if path is None:
            return None
        if _is_parquet(path):
            size += _PACKED * sum(each.stat().st_size for each in (path / "events").rglob("*.parquet"))
        else:
            size += sum(
                each.stat().st_size * (_PACKED if each.suffix in (".gz", COMPACTED) else 1)
                for each in ([path] if path.is_file() else _searched(path))
            )
    return size


def _given(folders_or_files: Iterable[str | Path]) -> tuple[list[Path | str], list[Path]]:
    """What there is to read, files of this machine as paths and everything else as URLs; and the files that are empty.
    Raises BadLedger."""
    found: list[Path | str] = []
    empty: list[Path] = []
    for given in folders_or_files:
        path = local_path(given)
        if path is None or _is_parquet(path):
            found.append(located(given))
            continue
        for file in _local(path):
            if _holds_lines(file):
                found.append(Path(os.path.abspath(file)))
            else:
                empty.append(file)
    return found, list(dict.fromkeys(empty))


def _is_parquet(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in TABLES)


def _searched(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file())


def _local(given: Path) -> list[Path]:
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise BadLedger(f"{given} does not exist; name a folder with *.jsonl files, or such a file")
    found = _searched(given)
    if not found:
        raise BadLedger(
            f"{given} holds no ledger: no *.jsonl file in it or below; a broker writes one with --ledger, to "
            "DATA/NAMESPACE/ledger, a paired client with ledger=FOLDER"
        )
    return found


def _holds_lines(path: Path) -> bool:
    """False: it is empty, or a kill cut it within its first line. Raises where it is no ledger."""
    try:
        line = _first_line(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadLedger(f"{path} can't be unpacked: {error}; give the file that it was made of") from None
    except NotAsIs as error:
        raise BadLedger(f"{path} is no ledger: {error}") from None
    except OSError as error:
        raise BadLedger(f"{path} can't be read: {error.strerror}; a ledger is its writer's alone (mode 0600)") from None
    if not line.strip() or (line.startswith(b'{"schema"') and not line.endswith(b"\n")):
        return False
    try:
        first = json.loads(line)
    except ValueError:  # that it is no UTF-8 is one, too
        first = None
    is_first = isinstance(first, dict) and isinstance(first.get("schema"), int)
    check_first_line(str(path), first["schema"] if is_first else None, first.get("writer") if is_first else None)
    return True


def _first_line(path: Path) -> bytes:
    if path.suffix == COMPACTED:
        return first_line_of(path)
    if path.suffix != ".gz":
        with path.open("rb") as file:
            return file.readline(_FIRST_LINE_MAX)
    with gzip.open(path) as packed:
        line = packed.readline(_FIRST_LINE_MAX)
        while packed.read(_READ_BYTES):  # Spark would not say which file is damaged
            pass
        return line


def _empty(path: Path | str) -> str:
    return f"{path} is empty and left out: what its writer did is unknown"


_FILE_FACTS: Final = (
    "file", "writer", "pid", "started", "last", "ended", "rotated", "gap_events", "bad_lines", "series", "number",
)  # fmt: skip
#: Of a file as a whole: as counted from lines, and as summed up from those.
_OF_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "started": ("min(if(schema is not null, t, null))", "min(started)"),
    "ends": ("count_if(kind = 'end')", "sum(ends)"),
    "rotated": ("count_if(kind = 'end' and reason = 'rotated')", "sum(rotated)"),
    "gap_events": ("sum(if(kind = 'gap', events, 0))", "sum(gap_events)"),
    "bad_lines": ("count(_bad)", "sum(bad_lines)"),
    **_LINES,
}
#: The tables `events` and `files`.
Table = tuple["DataFrame", "DataFrame"]


def _read_lines(
    spark: SparkSession, given: list[Path | str], notes: list[str], to_close: list[Callable[[], object]]
) -> tuple[Lines, Table]:
    """The lines, and the tables. Adds to `notes` what is left out, and to `to_close` what gives back what they take."""
    scans, names, could_be_empty = _scans(spark, given, to_close)
    raw = scans[0]
    for more in scans[1:]:
        raw = raw.unionByName(more)
    raw = raw.selectExpr("*", "schema is null and _bad is null and kind is not null as is_event")
    # One pass tells the files, and counts what they say: a row for each file and place.
    of_files = ("uri", "schema", "writer", "pid", "series", "number", "is_event")
    found = [row.asDict() for row in _counted(raw, of_files, _OF_FILES).collect()]
    by_file: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        row["file"] = names.get(file := file_name(row["uri"]), file)
        by_file.setdefault(row["file"], []).append(row)
    if not by_file:
        raise BadLedger(f"{', '.join(map(str, given))}: no ledger there: no *.jsonl file with lines in it")
    notes += [_empty(file) for file in sorted(could_be_empty - set(by_file))]
    contents = {}
    for file, told in sorted(by_file.items()):
        schema, writer, pid = (_most(told, name) for name in ("schema", "writer", "pid"))
        check_first_line(file, schema, writer)
        contents[file] = Contents(writer, pid, _most(told, "started", min), _in_places(told))
    left_out = copies(contents)
    notes += [_is_copy(*each) for each in sorted(left_out.items())]
    found = [row for row in found if row["file"] not in left_out]
    rows = []
    for file, told in sorted(by_file.items()):
        if file in left_out:
            continue
        writer, pid = contents[file].writer, contents[file].pid
        ended = any(row["ends"] for row in told)
        rows.append(
            (file, writer, pid, contents[file].started, _most(told, "last"), ended, not ended,
             sum(row["gap_events"] or 0 for row in told), sum(row["bad_lines"] for row in told),
             any(row["rotated"] for row in told), _most(told, "series"), _most(told, "number"))
        )  # fmt: skip
    writers = {row[0]: (row[1], row[2]) for row in rows}
    table = raw.where("is_event").drop(
        "writer", "pid", "schema", "pairbus", "series", "number", "events", "_bad", "is_event"
    )
    counted = [
        {**row, "by_broker": writers[row["file"]][0] == event_location.BROKER} for row in found if row["is_event"]
    ]
    lines = Lines(
        table.withColumnsRenamed({"from": "from_state", "to": "to_state"}),
        counted,
        {row["uri"]: row["file"] for row in found},
    )
    return lines, (lines.events(writers), small_table(spark, rows, FILES))


def _scans(
    spark: SparkSession, given: list[Path | str], to_close: list[Callable[[], object]]
) -> tuple[list[DataFrame], dict[str, str], set[str]]:
    """Return the lines as tables, the names of files by those that Spark knows them by, and files that may be empty."""
    from pyspark.errors import AnalysisException

    here = [path for path in given if isinstance(path, Path)]
    compacted = [path for path in here if path.suffix == COMPACTED]
    lines = [path for path in here if path.suffix != COMPACTED]
    names: dict[str, str] = {}
    if is_local(spark.conf.get("spark.master", "") or ""):
        stage = Stage(lines)
        to_close.append(stage.remove)
        names, lines = {draft: str(file) for draft, file in stage.files.items()}, stage.left
    urls = [url for url in given if isinstance(url, str)]
    scans, could_be_empty = [], set()
    try:
        if made := [*names, *map(str, compacted)]:
            scans.append(_with_uri(spark.read.schema(LINE).parquet(*map(escaped, made))))
        if lines or urls:
            reader = spark.read.schema(LINE).option("columnNameOfCorruptRecord", "_bad").option("mode", "PERMISSIVE")
            read = reader.option("recursiveFileLookup", "true").json([*map(escaped, lines), *urls])
            could_be_empty = {file_name(uri) for uri in read.inputFiles()}
            scans.append(_with_uri(read).persist())
            to_close.append(scans[-1].unpersist)
    except AnalysisException as error:
        raise BadLedger(f"the ledger can't be read: {str(error).splitlines()[0]}") from None
    return scans, names, could_be_empty


def _with_uri(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("*", "_metadata.file_path as uri")


def _most(rows: Iterable[Mapping[str, Any]], name: str, choose: Callable[..., Any] = max) -> Any:
    return choose((row[name] for row in rows if row[name] is not None), default=None)


def file_name(uri: str) -> str:
    """Return a file's name as people know it: Spark gives a URI. A plus sign is none of its escapes."""
    return re.sub("^file:/+", "/", unquote(uri, errors="replace"))


def check_first_line(file: str, schema: int | None, writer: str | None) -> None:
    """Raise BadLedger for a file that is no ledger of this schema; the error says what to do."""
    if schema is None or writer is None:
        raise BadLedger(_no_first_line(file))
    if schema != SCHEMA:
        raise BadLedger(
            f"{file} is a ledger of schema {schema}, and this pairbus reads schema {SCHEMA}; "
            + ("update pairbus" if schema > SCHEMA else "read it with the pairbus that wrote it")
        )


def _no_first_line(file: str) -> str:
    return (
        f"{file} is no ledger: the first line, which names its schema and its writer, is missing; if a kill cut the "
        "file right there, move it away, for there is nothing in it"
    )


def _parquet(spark: SparkSession, root: str) -> Table | None:
    """None: there is no such table."""
    from pyspark.errors import AnalysisException

    try:
        # An earlier version wrote fewer columns; which of its files ended as rotated is unknown then.
        return spark.read.parquet(f"{root}/events").select(*EVENTS), spark.read.schema(FILES).parquet(f"{root}/files")
    except AnalysisException:
        return None


def _without_copies(tables: Sequence[Table], notes: list[str]) -> list[Table]:
    """A file may be in several tables: as lines, and in the Parquet that was made of them. Adds to `notes`."""
    from pyspark.sql import functions as F

    contents: dict[tuple[int, str], Contents] = {}
    for number, (events, files) in enumerate(tables):
        by_file: dict[str, list[dict[str, Any]]] = {}
        for row in _counted(events, ("file",), _LINES).collect():
            by_file.setdefault(row["file"], []).append({**row.asDict(), "is_event": True})
        for file in files.collect():
            told = _in_places(by_file.get(file["file"], []))
            contents[number, file["file"]] = Contents(file["writer"], file["pid"], file["started"], told)
    left_out = copies(contents)
    notes += [_is_copy(copy, file) for (_, copy), (_, file) in sorted(left_out.items())]
    kept = []
    for number, (events, files) in enumerate(tables):
        gone = F.col("file").isin([file for at, file in left_out if at == number])
        kept.append((events.where(~gone), files.where(~gone)))
    return kept


def _in_places(rows: Iterable[Mapping[str, Any]]) -> dict[Any, tuple[float, int]]:
    """For `copies`, from what was counted by file and place."""
    found: dict[Any, tuple[float, int]] = {}
    for row in rows:
        if row["is_event"]:
            place = tuple(row[key] for key in event_location.FACT_KEYS)
            first, count = found.get(place, (row["first"], 0))
            found[place] = (min(first, row["first"]), count + row["lines"])
    return found


def _is_copy(copy: str, file: str) -> str:
    return f"{copy} is {'given twice' if copy == file else f'a copy of {file}'} and counts once"


def small_table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    """Return a table of rows that the driver has. Spark keeps them there, and needs no job to hand them to the
    tasks."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = to_arrow_schema(cast(StructType, StructType.fromDDL(columns)))
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return spark.createDataFrame(pa.table(arrays, schema=schema))


def in_sql(table: DataFrame) -> DataFrame:
    """Return a cached table as `spark.sql(query, name=…)` may be given it. That makes a view for the time of the call,
    and with a view Spark drops what is cached of the same table; a table with a condition is another one."""
    from pyspark.sql import functions as F

    return table.where(F.lit(True))


def write_rows(spark: SparkSession, rows: list[Any], schema: str, location: str) -> None:
    """Write a small table of a report as Parquet: one file, replacing that of an earlier run. `location`: as Spark is
    told of it."""
    spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").parquet(location)
