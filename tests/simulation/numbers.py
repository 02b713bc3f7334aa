"""Keeps the highest sequence numbers that are known, for the checker."""

from __future__ import annotations

from pairbus.broker.model.partitions import PARTITION_SHIFT


class Highest:
    """The highest numbers of each home and partition."""

    def __init__(self, known: dict[str, dict[int, int]] | None = None) -> None:
        self._known: dict[str, dict[int, int]] = {} if known is None else known

    def __repr__(self) -> str:
        return f"<Highest of {len(self._known)} homes>"

    def note(self, home: str, number: int) -> None:
        known = self._known.setdefault(home, {})
        known[number >> PARTITION_SHIFT] = max(known.get(number >> PARTITION_SHIFT, 0), number)

    def of(self, home: str) -> dict[int, int]:
        """Return the highest number of each partition."""
        return dict(self._known.get(home, {}))

    def forget(self, home: str) -> None:
        self._known.pop(home, None)

    def copy(self) -> Highest:
        return Highest({home: dict(known) for home, known in self._known.items()})


def highest_of(number: int, highest: dict[int, int]) -> int:
    """Return the highest of the partition of a number."""
    return highest.get(number >> PARTITION_SHIFT, 0)


def is_within(number: int, highest: dict[int, int]) -> bool:
    """Return whether a number is not above the highest of its partition."""
    return number <= highest_of(number, highest)
