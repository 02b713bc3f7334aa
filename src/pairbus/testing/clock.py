"""A clock that moves only when a test moves it: pass it where a `clock` is asked for.

A call gives unix seconds. It starts at the real time of its creation, since a broker that uses it creates certificates
and checks tokens that clients date by the real time. `advance` lets time pass; `step` sets the wall clock while no time
passes, as an administrator would, so that locks and other durations stay the same. Code that waits for a time can
`watch` the clock and is called after every move; a broker checks its clock every second anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite


class ManualClock:
    def __init__(self, start: float | None = None) -> None:
        self._now = self._monotonic = time.time() if start is None else float(start)
        self._watchers: list[Callable[[], object]] = []

    def __call__(self) -> float:
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:.3f}>"

    def monotonic(self) -> float:
        """Return seconds for durations: `step` leaves them alone."""
        return self._monotonic

    def advance(self, seconds: float) -> float:
        if not seconds >= 0:
            raise ValueError(f"a clock advances by 0 seconds or more, not {seconds!r}; `step` can take it back")
        self._monotonic += seconds
        return self._move(self._now + seconds)

    def step(self, seconds: float) -> float:
        """Set the wall clock forward or back, while no time passes."""
        if not isfinite(seconds):
            raise ValueError(f"a clock is set forward or back by some seconds, not by {seconds!r}")
        return self._move(self._now + seconds)

    def set(self, now: float) -> float:
        """Set any time: forward as `advance` does; back as `step` does, since only wall clocks go back."""
        now = float(now)
        self._monotonic += max(0.0, now - self._now)
        return self._move(now)

    def _move(self, now: float) -> float:
        self._now = now
        for watcher in tuple(self._watchers):
            watcher()
        return now

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Call `watcher` after every move, on the mover's thread, until the returned function is called."""
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop
