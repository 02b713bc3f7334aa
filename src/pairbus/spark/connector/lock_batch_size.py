"""Decides how many messages a batch of a `lock` stream may lock, so that it is settled within a third of the locks.

It decides by the lock that the entity really gives, by the rate of earlier batches if it is known, and by redeliveries:
a redelivered message after a batch that took longer than its share of the lock shows that the batch was too large.

Pure: callers pass `now`.
"""

from __future__ import annotations

from typing import Final

#: A backlog queue's lock, and the size of a batch with such a lock while no rate is known.
LOCK_S: Final = 60.0
ROWS_FIRST: Final = 2000


class LockBatchSize:
    def __init__(self) -> None:
        self._lock_s = LOCK_S
        self._bound: int | None = None
        self._count = 0
        self._begun_at = 0.0
        self._took_s: float | None = None
        self._came_again = False

    def __repr__(self) -> str:
        bound = "no bound" if self._bound is None else f"at most {self._bound}"
        return f"<LockBatchSize locks of {self._lock_s:.0f} s, {bound}>"

    def found(self, lock_s: float, delivery_count: int) -> None:
        """Learn from a message that was seen: how long its lock is, and how often it was delivered before."""
        self._lock_s = max(1.0, lock_s)
        self._came_again = self._came_again or delivery_count > 0

    def batch(self, measured: float) -> int:
        """Return how many the next batch may lock. `measured`: recent messages per second, 0.0 if unknown."""
        share_s = self._lock_s / 3
        ceiling = max(1, int(max(measured * share_s, ROWS_FIRST * min(1.0, self._lock_s / LOCK_S))))
        took_s = self._took_s
        if took_s is not None:
            if self._came_again and took_s > share_s:
                self._bound = max(1, int(self._count * share_s / took_s))
            elif self._bound is not None and (took_s <= share_s / 2 or took_s > self._lock_s):
                # longer than the lock, and nothing came again: Spark waited for its trigger, the batch was in time
                self._bound *= 2
        self._came_again = False
        if self._bound is not None and self._bound >= ceiling:
            self._bound = None
        return ceiling if self._bound is None else self._bound

    def began(self, count: int, now: float) -> None:
        self._count, self._begun_at, self._took_s = count, now, None

    def ended(self, now: float) -> None:
        """Note that Spark asks for the next batch; only the first time counts."""
        if self._count and self._took_s is None:
            self._took_s = now - self._begun_at
