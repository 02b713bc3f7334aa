"""What the broker may believe the time is, when the wall clock is set under it. Pure."""

from __future__ import annotations

import itertools
from math import inf

from .history import GRACE_S, TICK_S


class WallClock:
    """How far the wall clock was ahead of the time that passes evenly, since when. The broker notices a step within
    `notice_s`."""

    def __init__(self, notice_s: float = GRACE_S) -> None:
        self._notice_s = notice_s
        self._steps: list[tuple[float, float]] = [(-inf, 0.0)]

    def __repr__(self) -> str:
        return f"<WallClock: {self._steps[-1][1]} s ahead after {len(self._steps) - 1} steps>"

    def step(self, seconds: float, at: float) -> None:
        self._steps.append((at, self._steps[-1][1] + seconds))

    def offsets(self, at: float, before_s: float = 0.0) -> list[float]:
        """Return how far ahead the broker may believe the wall clock to be, then and so long before."""
        ends = [begun for begun, _ in self._steps[1:]] + [inf]
        both = zip(self._steps, ends, strict=True)
        return [offset for (begun, offset), end in both if begun <= at and end > at - self._notice_s - before_s]

    def moments(self, time: float, since: float, at: float) -> list[float]:
        """Return the moments between these two at which the broker may have believed that it was this time."""
        ends = [begun + self._notice_s for begun, _ in self._steps[1:]] + [inf]
        both = zip(self._steps, ends, strict=True)
        return [
            time - offset
            for (begun, offset), end in both
            if max(begun, since) - TICK_S <= time - offset <= min(end, at)
        ]

    def earliest(self, at: float, before_s: float = 0.0) -> float:
        """Return the earliest time that the broker may have believed it was, then and so long before."""
        return at - before_s + min(self.offsets(at, before_s))

    def latest(self, since: float, at: float) -> float:
        """Return the latest time that the broker may have believed it was, between these."""
        ends = [begun + self._notice_s for begun, _ in self._steps[1:]] + [inf]
        both = zip(self._steps, ends, strict=True)
        return max(min(end, at) + offset for (begun, offset), end in both if begun <= at and end > since)

    @property
    def last_set(self) -> float:
        """The time that it showed when it had last been set: what is due by then may have waited for it."""
        begun, offset = self._steps[-1]
        return begun + offset

    def moved(self, since: float) -> float:
        """Return by how much the wall clock was set since then, forth and back."""
        return sum(abs(new - old) for (_, old), (at, new) in itertools.pairwise(self._steps) if at > since)
