"""Limits the rate of a transfer: it stays below a ceiling and yields to a server that is busy.

Decides when the next messages may be asked for and how many at once. Without a ceiling and without trouble there is no
limit. When a destination says busy, the limit falls by half of the rate of recent transfers to it; after a quiet time
it rises again, but stays a fifth below the rate that was refused, which is left to live traffic. Every quiet half
minute that rate is assumed to be twice as high, so that one busy minute does not slow a whole night. Received messages
are charged after they arrive, so the level may go below zero; then all wait. It reads no clock and does not sleep.
"""

from __future__ import annotations

import math
from typing import Final

from .meter import Meter

#: One reduction covers all the sends that were in progress when the first of them was refused.
CUT_S: Final = 10.0
#: The limit doesn't rise before this many seconds without a refusal.
QUIET_S: Final = 10.0
#: The share of the refused rate that the syphon keeps to; the rest is for live traffic.
SHARE: Final = 0.8
SHARE_MIN: Final = 0.05
#: Of the way to that share, each second.
CLIMB: Final = 0.05
#: After each such quiet time the refused rate is assumed to be this much higher.
RELIEF_S: Final = 30.0
RELIEF: Final = 2.0
FLOOR: Final = 1.0
#: A syphon that was idle, or has just begun, moves little, which says nothing about the destination's limits. Messages
#: to a busy destination pause anyway, so the limit need not stop them.
TELLING_PER_S: Final = 100.0
#: The rate of recent transfers is measured over this span.
SPAN_S: Final = 5.0
#: How much is asked for at once, in seconds of the limit: messages that come together are sent together.
BURST_S: Final = 0.5


class RateLimit:
    """A limit on messages a second. `ceiling` is the highest rate ever allowed, None for no ceiling."""

    def __init__(self, ceiling: float | None = None) -> None:
        if ceiling is not None and not (ceiling > 0 and math.isfinite(ceiling)):
            raise ValueError(f"a ceiling of {ceiling} messages a second; right is more than 0, or None for no ceiling")
        self.ceiling = math.inf if ceiling is None else float(ceiling)
        self._limit = self.ceiling
        #: The rate at which a server last said busy; infinite if none did, or long ago.
        self._refused = math.inf
        #: How much of that it keeps to.
        self._kept = SHARE
        self._busy_at = self._cut_at = self._relieved_at = self._climbed_at = -math.inf
        self._level = 0.0
        self._level_at: float | None = None
        self._moved = Meter(SPAN_S)

    def __repr__(self) -> str:
        limit = "no limit" if math.isinf(self._limit) else f"{self._limit:.3g}/s"
        return f"<Rate {limit}{', yielding' if math.isfinite(self._refused) else ''}>"

    def limit(self, now: float) -> float:
        """Return the limit in messages a second; infinite if there is none."""
        self._climb(now)
        return self._limit

    def wait_s(self, now: float) -> float:
        """Return the seconds until more messages may be asked for; 0.0 means now."""
        limit = self.limit(now)
        if math.isinf(limit):
            return 0.0
        self._refill(now, limit)
        return 0.0 if self._level > -1e-9 else -self._level / limit

    def batch(self, count_max: int, readers: int, now: float) -> int:
        """Return how many messages one of `readers` may ask for; at least one, so that an idle queue can be polled."""
        limit = self.limit(now)
        if math.isinf(limit):
            return count_max
        return max(1, min(count_max, int(limit * BURST_S / max(1, readers))))

    def measured(self, now: float) -> float:
        """Return the rate of the last seconds in messages a second."""
        return self._moved.per_s(now)

    # -- reports

    def received(self, count: int, now: float) -> None:
        if math.isfinite(self._limit):
            self._refill(now, self._limit)
            self._level -= count

    def moved(self, count: int, now: float) -> None:
        self._moved.count(count, now)

    def busy(self, now: float, share: float = 1.0) -> None:
        """Lower the limit, since a destination is too busy; `share` of what was lately moved went there.

        A destination that gets almost nothing doesn't slow others down: its own pause is enough.
        """
        if share < SHARE_MIN:
            return
        self._climb(now)
        self._busy_at = self._relieved_at = now
        if now - self._cut_at < CUT_S:
            return
        self._cut_at = now
        self._refused = max(FLOOR, min(self._limit, max(TELLING_PER_S, self.measured(now))))
        self._kept = 1.0 - (1.0 - SHARE) * share
        self._limit = max(FLOOR, min(self.ceiling, self._refused * (1.0 - share / 2)))
        self._level = min(self._level, 0.0)
        self._level_at = now

    # -- the limit's way back

    def _climb(self, now: float) -> None:
        if math.isinf(self._refused):
            return
        if now - self._relieved_at >= RELIEF_S:
            minutes = int((now - self._relieved_at) // RELIEF_S)
            self._relieved_at += minutes * RELIEF_S
            self._refused *= RELIEF ** min(minutes, 1000)
        start = max(self._climbed_at, self._busy_at + QUIET_S)
        if now > start:
            goal = min(self.ceiling, self._refused * self._kept)
            if goal > self._limit:
                self._limit = min(goal, self._limit + goal * CLIMB * (now - start))
            self._climbed_at = now
        if self._refused > 1e6:  # a rate that nothing here reaches: as good as none
            self._refused, self._limit = math.inf, self.ceiling

    def _refill(self, now: float, limit: float) -> None:
        if self._level_at is not None and now > self._level_at:
            self._level = min(limit * BURST_S, self._level + (now - self._level_at) * limit)
        self._level_at = now
