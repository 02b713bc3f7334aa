"""How many messages the next batch or request may take: by a ceiling on the rate, and by their size. Pure.

Pure: `now` comes from outside.
"""

from __future__ import annotations

from typing import Final

#: Asked for at once while nobody knows how large they are.
COUNT_FIRST: Final = 32
REQUEST_BYTES: Final = 4 * 1024 * 1024


class Allowance:
    """Saves up one second's worth at most."""

    def __init__(self, rate_max: float | None) -> None:
        self._rate = rate_max
        self._saved = rate_max or 0.0
        self._at: float | None = None

    def __repr__(self) -> str:
        return (
            "<Allowance no limit>" if self._rate is None else f"<Allowance {self._rate:g}/s, {self._saved:.0f} saved>"
        )

    def take(self, now: float, rows_max: int | None) -> int | None:
        """None: no bound at all."""
        if self._rate is None:
            self._at = now
            return rows_max
        if self._at is not None:
            self._saved = min(max(1.0, self._rate), self._saved + (now - self._at) * self._rate)
        self._at = now
        allowed = max(0, int(self._saved))
        return allowed if rows_max is None else min(allowed, rows_max)

    def spend(self, count: int) -> None:
        if self._rate is not None:
            self._saved -= count


class Portions:
    """How many messages to ask for at once: about as many as have REQUEST_BYTES, by the size of the last ones."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = min(COUNT_FIRST, count_max)

    def __repr__(self) -> str:
        return f"<Portions of {self._count}>"

    @property
    def count(self) -> int:
        return self._count

    def came(self, sizes: list[int]) -> None:
        if sizes:
            mean = max(1, sum(sizes) // len(sizes))
            self._count = max(1, min(self._count_max, REQUEST_BYTES // mean))
