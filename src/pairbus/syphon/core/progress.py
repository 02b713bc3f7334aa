"""Counts the syphon's progress: moved, waiting, left, dead-lettered, the rate, the remaining time.

It neither reads a clock nor prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .destinations import Trouble
from .meter import Meter

#: The rate is that of the last seconds.
SPAN_S: Final = 10.0
#: Destinations that are counted by name; the others only in the sums.
DESTINATIONS_MAX: Final = 10_000


@dataclass(slots=True)
class TransferCounts:
    """The counts of one destination. `left` counts deliveries, so one message may be counted several times."""

    moved: int = 0
    left: int = 0
    dead_lettered: int = 0
    trouble: str | None = None

    def as_json(self) -> dict[str, Any]:
        counts = {"moved": self.moved, "left": self.left, "dead_lettered": self.dead_lettered}
        return counts | ({"trouble": self.trouble} if self.trouble else {})


@dataclass(frozen=True, slots=True)
class Report:
    moved: int
    moved_bytes: int
    #: Messages in the backlog, as far as known; None if they could not be counted.
    remaining: int | None
    left: int
    dead_lettered: int
    polls: int
    rate_per_s: float
    eta_s: float | None
    elapsed_s: float
    destinations: Mapping[str, TransferCounts] = field(default_factory=dict)
    #: The reason why nothing can be moved, such as a primary that can't be reached.
    waiting_for: str | None = None
    #: Tasks on Spark that died before they could report what they had moved: that work is done, but not counted.
    lost_tasks: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "moved": self.moved,
            "bytes": self.moved_bytes,
            "remaining": self.remaining,
            "left": self.left,
            "dead_lettered": self.dead_lettered,
            "polls": self.polls,
            "rate_per_s": round(self.rate_per_s, 1),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "elapsed_s": round(self.elapsed_s, 1),
            "waiting_for": self.waiting_for,
            "lost_tasks": self.lost_tasks,
            "destinations": {path: tally.as_json() for path, tally in self.destinations.items()},
        }

    def line(self) -> str:
        """Return the report as one line for a terminal."""
        parts = [f"{self.moved:,} moved"]
        if self.remaining is not None:
            parts.append(f"{self.remaining:,} to go")
        parts.append(f"{self.rate_per_s:,.0f}/s")
        if self.eta_s is not None and self.remaining:
            parts.append(f"{duration(self.eta_s)} left")
        if self.dead_lettered:
            parts.append(f"{self.dead_lettered:,} dead-lettered")
        if self.lost_tasks:
            parts.append(f"and what {self.lost_tasks:,} lost task{'s' if self.lost_tasks > 1 else ''} moved")
        away = sum(1 for tally in self.destinations.values() if tally.trouble)
        if away:
            parts.append(f"{away} destination{'s' if away > 1 else ''} unavailable")
        if self.waiting_for:
            parts.append(f"waiting: {self.waiting_for}")
        return ", ".join(parts)


class Progress:
    def __init__(self, now: float) -> None:
        self._began = now
        self._moved = self._moved_bytes = self._left = self._buried = self._polls = 0
        self._tallies: dict[str, TransferCounts] = {}
        self._meter = Meter(SPAN_S)
        self._depth: int | None = None
        self.waiting_for: str | None = None
        self.lost_tasks = 0

    def __repr__(self) -> str:
        return f"<Progress {self._moved} moved, {self._left} left, {self._buried} dead-lettered>"

    @property
    def moved_count(self) -> int:
        return self._moved

    def moved(self, path: str, count: int, size: int, now: float) -> None:
        self._moved += count
        self._moved_bytes += size
        self._tally(path).moved += count
        self._meter.count(count, now)

    def left(self, path: str, count: int) -> None:
        self._left += count
        self._tally(path).left += count

    def dead_lettered(self, path: str, count: int) -> None:
        self._buried += count
        self._tally(path).dead_lettered += count

    def polled(self) -> None:
        self._polls += 1

    def counted(self, depth: int) -> None:
        """Note how many messages the backlog holds now."""
        self._depth = depth + self._moved + self._buried

    def found(self, messages: int) -> None:
        """Note how many messages a newly found queue holds."""
        if self._depth is not None:
            self._depth += messages

    def report(self, now: float, troubled: Iterable[tuple[str, Trouble]] = ()) -> Report:
        for tally in self._tallies.values():
            tally.trouble = None
        for path, trouble in troubled:
            self._tally(path).trouble = f"{trouble.verdict.value}: {trouble.text}"
        remaining = None if self._depth is None else max(0, self._depth - self._moved - self._buried)
        rate = self._meter.per_s(now)
        eta = remaining / rate if remaining is not None and rate > 0 else None
        tallies = {path: TransferCounts(each.moved, each.left, each.dead_lettered, each.trouble)
                   for path, each in self._tallies.items()}  # fmt: skip
        return Report(
            self._moved,
            self._moved_bytes,
            remaining,
            self._left,
            self._buried,
            self._polls,
            rate,
            eta,
            now - self._began,
            tallies,
            self.waiting_for,
            self.lost_tasks,
        )

    def _tally(self, path: str) -> TransferCounts:
        tally = self._tallies.get(path)
        if tally is None:
            tally = TransferCounts()
            if len(self._tallies) < DESTINATIONS_MAX:
                self._tallies[path] = tally
        return tally


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
