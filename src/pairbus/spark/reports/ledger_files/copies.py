"""Decides which ledger files are copies of others, by who wrote them and when, not by their names.

Pure. A copy may be compressed, renamed, or only the beginning of the other, since it was made while that grew. The
longest of such files counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

File = TypeVar("File", bound=Hashable)


class Contents(NamedTuple):
    """A file's first line, and for each place that it speaks of the time of the first event and how many there are."""

    writer: str
    pid: int | None
    started: float | None
    places: Mapping[Hashable, tuple[float, int]]

    @property
    def events(self) -> int:
        return sum(count for _, count in self.places.values())

    def is_in(self, other: Contents) -> bool:
        """Two files of one process can have the same first line where its clock stood still; then the events differ."""
        return all(
            (found := other.places.get(place)) is not None and found[0] == first and found[1] >= count
            for place, (first, count) in self.places.items()
        )


def copies(files: Mapping[File, Contents]) -> dict[File, File]:
    """Return each copy, and the file that counts in its stead. Of equal ones the first counts."""
    kept: dict[tuple[str, int | None, float | None], list[File]] = {}
    found: dict[File, File] = {}
    for file in sorted(files, key=lambda each: -files[each].events):
        each = files[file]
        known = kept.setdefault((each.writer, each.pid, each.started), [])
        original = next((other for other in known if each.is_in(files[other])), None)
        if original is None:
            known.append(file)
        else:
            found[file] = original
    return found
