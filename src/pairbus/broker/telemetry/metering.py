"""The broker's bill: operations, their 64 KB units and their bytes, by entity, operation and cause (P51). Pure.

Pure sums. What counts is said in pairbus.billing; the ledger's lines of the same operations add up to the same figures,
to the operation, unit and byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pairbus.billing import OPERATIONS, UNIT_BYTES, units

#: Entities beyond this number share one name: nobody may fill the memory by asking for ever new ones.
KEYS_MAX: Final = 400_000
OTHER: Final = "(other)"
#: A client's bytes come in with what it sends, and go out with what it asks for.
DIRECTIONS: Final = {each: "in" if each in ("send", "ping") else "out" for each in OPERATIONS}


class Key(NamedTuple):
    entity: str
    operation: str
    cause: str


class Usage:
    __slots__ = ("nbytes", "operations", "units")

    def __init__(self) -> None:
        self.operations = self.units = self.nbytes = 0

    def __repr__(self) -> str:
        return f"<Tally {self.operations} operations, {self.units} units, {self.nbytes} bytes>"


class Meter:
    """Of one namespace."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Usage] = {}

    def __repr__(self) -> str:
        return f"<Meter {sum(tally.operations for tally in self._tallies.values())} operations>"

    def count(self, entity: str, operation: str, cause: str, size: int) -> None:
        """One operation of so many bytes. On the way of every message: a look and three sums."""
        tally = self._tallies.get((entity, operation, cause)) or self._new(entity, operation, cause)
        tally.operations += 1
        tally.units += 1 if size <= UNIT_BYTES else units(size)
        tally.nbytes += size

    def rows(self) -> Iterator[tuple[Key, Usage]]:
        """In a fixed order."""
        for key, tally in sorted(self._tallies.items()):
            yield Key(*key), tally

    def _new(self, entity: str, operation: str, cause: str) -> Usage:
        if len(self._tallies) >= KEYS_MAX:
            entity = OTHER
        return self._tallies.setdefault((entity, operation, cause), Usage())
