"""Measures a rate: the number per second over the last seconds. `now` is any clock of seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

#: Counts closer together than this share of the span are kept as one.
_GRAIN: Final = 0.02


class Meter:
    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def __repr__(self) -> str:
        return f"<Meter {self._sum} in the last {self._span_s:g} s>"

    def count(self, count: int, now: float) -> None:
        self._sum += count
        if self._counts and now - self._counts[-1][0] < self._span_s * _GRAIN:
            at, before = self._counts.pop()
            self._counts.append((at, before + count))
        else:
            self._counts.append((now, count))

    def per_s(self, now: float) -> float:
        """Return the rate over the span, or since the first count in it if that is shorter; over a second at least."""
        while self._counts and self._counts[0][0] <= now - self._span_s:
            self._sum -= self._counts.popleft()[1]
        if not self._counts:
            return 0.0
        return self._sum / max(1.0, now - self._counts[0][0])
