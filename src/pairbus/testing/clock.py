"""A clock that moves when it is told to: pass it where a `clock` is asked for.

A call gives unix seconds. It starts at the time of its making, since a broker that runs on it makes certificates and
checks tokens that clients date by the true time. Whoever waits for a time can `watch`, and is told after every move; a
broker looks at its clock every second anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class ManualClock:
    def __init__(self, start: float | None = None) -> None:
        self._now = time.time() if start is None else float(start)
        self._watchers: list[Callable[[], object]] = []

    def __call__(self) -> float:
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:.3f}>"

    def advance(self, seconds: float) -> float:
        if not seconds >= 0:
            raise ValueError(f"a clock advances by 0 seconds or more, not {seconds!r}; `set` can take it back")
        return self.set(self._now + seconds)

    def set(self, now: float) -> float:
        """To any time, back too: wall clocks do that when they are corrected."""
        self._now = float(now)
        for watcher in tuple(self._watchers):
            watcher()
        return self._now

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Calls `watcher` after every move, on the mover's thread, until the returned function is called."""
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop
