"""Holds the chosen messages of an entity: sequence numbers as ranges, so that millions fit into a task.

Pure. Messages are chosen by peek, before any is locked; messages that are locked afterwards and not among the chosen
ones are released.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Self

from pairbus.wire.partitions import end_of, partition_of


class Selection:
    """A set of sequence numbers. `number in selection` costs a bisection."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Ranges with both ends included, in any order."""
        self._firsts, self._lasts = array("q"), array("q")
        for first, last in sorted(ranges):
            if first > last:
                continue
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        return cls((number, number) for number in numbers)

    def __repr__(self) -> str:
        if not self._firsts:
            return "<Selection of nothing>"
        return f"<Selection of {len(self)} numbers in {len(self._firsts)} ranges, {self.first} to {self.last}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and (self._firsts, self._lasts) == (other._firsts, other._lasts)

    def __hash__(self) -> int:
        return hash((tuple(self._firsts), tuple(self._lasts)))

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    @property
    def first(self) -> int:
        return self._firsts[0]

    @property
    def last(self) -> int:
        return self._lasts[-1]

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions in which numbers were chosen; those of a plain entity are all of partition 0."""
        return frozenset(
            partition
            for first, last in zip(self._firsts, self._lasts, strict=True)
            for partition in range(partition_of(first), partition_of(last) + 1)
        )

    def is_beyond(self, number: int) -> bool:
        """Whether a number comes after all that were chosen in its partition."""
        at = bisect_right(self._firsts, end_of(partition_of(number))) - 1
        return at < 0 or number > self._lasts[at]

    def without(self, numbers: Iterable[int]) -> Selection:
        """Return the selection without these numbers."""
        taken = sorted(set(numbers))
        kept: list[tuple[int, int]] = []
        at = 0
        for first, last in zip(self._firsts, self._lasts, strict=True):
            while at < len(taken) and taken[at] < first:
                at += 1
            while at < len(taken) and taken[at] <= last:
                kept.append((first, taken[at] - 1))  # an empty one is dropped by __init__
                first = taken[at] + 1
                at += 1
            kept.append((first, last))
        return Selection(kept)
