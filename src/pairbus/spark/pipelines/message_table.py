"""Decides for an ingest how its table is kept: file names, where a message may be already, what to write. Pure.

    TABLE/enqueued_date=2026-11-17/3fa29c01-17-2016-0b5e….parquet    committed: whole, and seen by every reader
    TABLE/_staging/RUN/0001/enqueued_date=2026-11-17/part-….parquet  being written: no reader looks into it
    TABLE/_pairbus.lock                                              one ingest at a time

A file's name says which entity (a digest) and which sequence numbers it may contain, so that a look-up of messages
reads only the files that can contain them: those of the same day (UTC), which is part of a message's identity, and of a
range that covers it. For a partitioned entity the numbers are those within the partitions, which grow in parallel.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

#: Which message it is, whatever was done with it since.
IDENTITY: Final = ("entity", "sequence_number", "enqueued_time")
DATE: Final = "enqueued_date"
#: Readers pass over names that begin so.
STAGING: Final = "_staging"
LOCK_FILE: Final = "_pairbus.lock"
#: The higher bits of a sequence number are a partition's.
_ORDINAL: Final = (1 << 48) - 1
_NAME: Final = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)-[0-9A-Za-z]+\.parquet")


class Identity(NamedTuple):
    """Names a message: the entity in lower case, and microseconds since 1970, None where it has no time."""

    entity: str
    number: int | None
    enqueued_us: int | None


class StagedRow(NamedTuple):
    """A message in a file that is not committed yet."""

    file: str
    date: str
    identity: Identity
    token: str
    #: Microseconds since 1970.
    locked_until: int
    size: int


class StagedFile(NamedTuple):
    path: str
    date: str
    #: Its name in the table.
    name: str


class CommitPlan(NamedTuple):
    """`drop`: tokens of rows that must not get into the table; `complete`: token → sequence number, of those that are
    in the table once the rest is committed; `known`: how many of these were in it before."""

    drop: frozenset[str]
    complete: Mapping[str, int]
    known: int


def plan_commit(rows: Sequence[StagedRow], present: Iterable[Identity]) -> CommitPlan:
    """Return what of a batch is to be committed, given which messages the table holds already.

    A message can be in a batch twice: locked by one task, and by another once that lock had ended. The last lock is the
    one that still holds. A message without a number is like no other: better twice in the table than not at all.
    """
    there = set(present)
    latest: dict[Identity | str, StagedRow] = {}
    drop: set[str] = set()
    for row in rows:
        key = row.token if row.identity.number is None else row.identity
        before = latest.get(key)
        if before is None or before.locked_until <= row.locked_until:
            latest[key] = row
        if before is not None:
            drop.add((before if latest[key] is row else row).token)
    known = [row.token for key, row in latest.items() if key in there]
    complete = {row.token: row.identity.number or 0 for row in latest.values()}
    return CommitPlan(frozenset([*drop, *known]), complete, len(known))


def staged_files(rows: Sequence[StagedRow], entity: str, unique: str) -> list[StagedFile]:
    """Return the files that hold these rows, with their names in the table. `unique`: of this batch, in all tables."""
    found: dict[str, tuple[str, list[int]]] = {}
    for row in rows:
        found.setdefault(row.file, (row.date, []))[1].append(ordinal(row.identity.number or 0))
    return [
        StagedFile(path, date, f"{digest(entity)}-{min(numbers)}-{max(numbers)}-{unique}x{index}.parquet")
        for index, (path, (date, numbers)) in enumerate(found.items())
    ]


def digest(entity: str) -> str:
    """Return eight digits for an entity, whose name has no letter case."""
    return hashlib.sha256(entity.lower().encode()).hexdigest()[:8]


def ordinal(number: int) -> int:
    """Return a sequence number without its partition."""
    return number & _ORDINAL


class FileIndex:
    """Knows the files of some days, in order to say which of them may hold given messages. At most `days_max` days are
    kept; those that are forgotten are listed again when they are needed."""

    def __init__(self, entity: str, days_max: int = 8) -> None:
        self._digest = digest(entity)
        self._days_max = days_max
        self._days: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"<FileIndex {sum(map(len, self._days.values()))} files of {len(self._days)} days>"

    def knows(self, date: str) -> bool:
        return date in self._days

    def listed(self, date: str, names: Iterable[str]) -> None:
        """Take the names of all files of a day."""
        self._days.pop(date, None)
        while len(self._days) >= self._days_max:
            del self._days[next(iter(self._days))]
        self._days[date] = [name for name in names if name.endswith(".parquet") and name[0] not in "._"]

    def committed(self, date: str, name: str) -> None:
        if date in self._days:
            self._days[date].append(name)

    def forget(self, date: str) -> None:
        self._days.pop(date, None)

    def may_hold(self, date: str, numbers: Iterable[int]) -> list[str]:
        """Return the files of the day that may hold messages with these sequence numbers. A file that somebody else has
        written may hold any."""
        wanted = sorted(map(ordinal, numbers))
        return [name for name in self._days[date] if self._may_hold(name, wanted)]

    def _may_hold(self, name: str, wanted: Sequence[int]) -> bool:
        found = _NAME.fullmatch(name)
        if found is None:
            return True
        at = bisect_left(wanted, int(found[2]))
        return found[1] == self._digest and at < len(wanted) and wanted[at] <= int(found[3])
