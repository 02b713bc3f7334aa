"""Counts billable operations, their 64 KB units and bytes, by entity, operation and cause. Pure.

pairbus.billing says what counts; the ledger's lines of the same operations add up to the same figures,
to the operation, unit and byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from pairbus.billing import OPERATIONS, UNIT_BYTES, units

#: Entities beyond this number share one name: nobody may fill the memory by asking for ever new ones.
KEYS_MAX: Final = 400_000
OTHER: Final = "(other)"
#: Rows from which on those of deleted entities are merged.
MERGE_MIN: Final = 100
#: A client's bytes come in with what it sends, and go out with what it asks for.
DIRECTIONS: Final = {each: "in" if each in ("send", "ping") else "out" for each in OPERATIONS}


class Key(NamedTuple):
    """What usage is counted by."""

    entity: str
    operation: str
    cause: str


@dataclass(slots=True, eq=False)
class Usage:
    """The operations, units and bytes of one key."""

    operations: int = 0
    units: int = 0
    nbytes: int = 0

    def add(self, other: Usage) -> None:
        self.operations += other.operations
        self.units += other.units
        self.nbytes += other.nbytes

    def __repr__(self) -> str:
        return f"<Usage {self.operations} operations, {self.units} units, {self.nbytes} bytes>"


class Meter:
    """The usage of one namespace."""

    __slots__ = ("_merge_at", "_usage")

    def __init__(self) -> None:
        self._usage: dict[tuple[str, str, str], Usage] = {}
        self._merge_at: float = MERGE_MIN

    def __repr__(self) -> str:
        return f"<Meter {sum(usage.operations for usage in self._usage.values())} operations>"

    def count(self, entity: str, operation: str, cause: str, size: int) -> None:
        """Count one operation of so many bytes. On the way of every message: one look-up and three additions."""
        usage = self._usage.get((entity, operation, cause)) or self._new(entity, operation, cause)
        usage.operations += 1
        usage.units += 1 if size <= UNIT_BYTES else units(size)
        usage.nbytes += size

    def rows(self) -> Iterator[tuple[Key, Usage]]:
        """Yield the usage of each key, in a fixed order."""
        for key, usage in sorted(self._usage.items()):
            yield Key(*key), usage

    def merge_deleted(self, exists: Callable[[str], bool]) -> Iterator[None]:
        """Add the rows of entities that no longer exist to those of `(other)`, each time that the table has doubled:
        the sums stay, and names that are used once do not fill the memory. To be done in slices."""
        if len(self._usage) < self._merge_at:
            return
        self._merge_at = inf  # not again meanwhile
        for (entity, operation, cause), usage in list(self._usage.items()):
            if entity != OTHER and not exists(entity):
                del self._usage[entity, operation, cause]
                self._usage.setdefault((OTHER, operation, cause), Usage()).add(usage)
            yield
        self._merge_at = max(MERGE_MIN, 2 * len(self._usage))

    def _new(self, entity: str, operation: str, cause: str) -> Usage:
        if len(self._usage) >= KEYS_MAX:
            entity = OTHER
        return self._usage.setdefault((entity, operation, cause), Usage())
