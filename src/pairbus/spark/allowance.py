"""How many messages a ceiling on the rate permits in the next batch. Pure: `now` comes from outside."""

from __future__ import annotations


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
