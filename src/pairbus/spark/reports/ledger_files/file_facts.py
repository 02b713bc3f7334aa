"""Holds what is known of each ledger file as a whole, and decides which files are missing. Pure.

A file's first line names the series that it belongs to and its number in it. If a number is missing, or a file that
ended `rotated` has no successor, a file is missing, and its content is unknown. Files of earlier versions have no
numbers: the next file is then the one that the same process began right after the other had ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

#: A file is begun at once when the one before it has ended.
_AT_ONCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file as a whole; `gap`: when its last gap was. `series` and `number` are None in files of
    earlier versions."""

    file: str
    writer: str
    pid: int | None
    started: float
    last: float
    ended: bool
    rotated: bool
    gap_events: int
    bad_lines: int
    gap: float | None
    series: str | None = None
    number: int | None = None

    @property
    def note(self) -> tuple[str, str, bool, int, int]:
        return self.file, self.writer, not self.ended, self.gap_events, self.bad_lines


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """Files of a series that are not there, between two that are: `files` of them, or None: nobody knows how many.
    What is in them happened between `since` and `until`."""

    writer: str
    files: int | None
    after: str | None
    before: str | None
    since: float
    until: float

    @property
    def note(self) -> str:
        count = (
            "at least one file" if self.files is None else f"{self.files:,} {'file' if self.files == 1 else 'files'}"
        )
        where = " and ".join(
            f"{word} {file}" for word, file in (("after", self.after), ("before", self.before)) if file is not None
        )
        return f"{count} of a ledger ({self.writer}) missing {where}: what is in there is unknown; audit again with it"


def missing_files(files: Iterable[FileFacts]) -> list[MissingFiles]:
    """Return what is missing of each series, in the order of the files' names."""
    by_series: dict[tuple[str, str | int | None], list[FileFacts]] = {}
    for each in files:
        by_series.setdefault((each.writer, each.pid if each.series is None else each.series), []).append(each)
    found = []
    for series in by_series.values():
        found += _without_numbers(series) if series[0].number is None else _by_number(series)
    return sorted(found, key=lambda each: (each.after or each.before or "", each.since))


def _by_number(series: list[FileFacts]) -> list[MissingFiles]:
    found = []
    before: FileFacts | None = None
    for each in sorted(series, key=lambda file: (file.number or 0, file.started)):
        missing = (each.number or 0) - (before.number or 0 if before else 0) - 1
        if missing > 0:
            since, after = (before.last, before.file) if before else (-inf, None)
            found.append(MissingFiles(each.writer, missing, after, each.file, since, each.started))
        before = each
    if before is not None and before.rotated:
        found.append(MissingFiles(before.writer, None, before.file, None, before.last, inf))
    return found


def _without_numbers(series: list[FileFacts]) -> list[MissingFiles]:
    found = []
    for each in series:
        later = sorted((file for file in series if file.started >= each.last), key=lambda file: file.started)
        if each.rotated and not (later and later[0].started <= each.last + _AT_ONCE_S):
            before, until = (later[0].file, later[0].started) if later else (None, inf)
            found.append(MissingFiles(each.writer, None, each.file, before, each.last, until))
    return found
