"""Measures how long the turns of the event loop are, since nobody is served while one lasts.

A beat comes as a timer of the loop, on any kind of loop: every few milliseconds while the loop is busy, and less often
while it is idle, since each beat wakes the process. The beat's delay is the time for which a turn kept it waiting. So a
turn is up to one interval longer than the measured time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 0.005
IDLE_EVERY_S: Final = 0.05
# A thread that uses a smaller share of the time than this has next to nothing to do.
_BUSY_SHARE: Final = 0.1
#: The longest turn is that of the last period that is over and of the one that has begun.
PERIOD_S: Final = 60.0
#: A turn that takes longer than this counts as too long.
LONG_S: Final = 0.02


class LoopTurns:
    """The longest recent turn, and how many were too long."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        """`cpu_clock` gives the seconds for which the calling thread had a processor."""
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_s = 0.0
        self._every = EVERY_S
        self._beat_at = clock()
        self._period_ends = self._beat_at + PERIOD_S
        self._longest = self._before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: Turns longer than LONG_S since the start.
        self.too_long = 0

    def __repr__(self) -> str:
        return f"<LoopTurns: {self.longest_s:.3f} s at most, {self.too_long} too long>"

    @property
    def longest_s(self) -> float:
        """The longest turn of the last one to two minutes, in seconds."""
        self._turn_period(self._clock())
        return max(self._longest, self._before)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on; what the loop has done until now does not count."""
        self._beat_later(loop, self._clock())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock()
        late = now - self._beat_at
        self._turn_period(now)
        if late > self._longest:
            self._longest = late
        if late > LONG_S:
            self.too_long += 1
        self._beat_later(loop, now)

    def _beat_later(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        cpu_s = self._cpu_clock()
        is_busy = cpu_s - self._cpu_s > _BUSY_SHARE * self._every
        self._cpu_s = cpu_s
        self._every = EVERY_S if is_busy else min(2 * self._every, IDLE_EVERY_S)
        self._beat_at = now + self._every
        self._timer = loop.call_later(self._every, self._beat, loop)

    def _turn_period(self, now: float) -> None:
        if now >= self._period_ends:
            is_recent = now < self._period_ends + PERIOD_S
            self._before, self._longest = (self._longest if is_recent else 0.0), 0.0
            self._period_ends = now + PERIOD_S
