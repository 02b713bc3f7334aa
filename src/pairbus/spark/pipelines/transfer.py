"""What a move, an archive and a restore have in common: progress that others may read, and a stop from any thread.

Owns the event, the lock and the clock, and goes from step to step as `rounds` decides. What a step does is theirs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from pairbus.syphon.destinations import Trouble
from pairbus.syphon.progress import Progress, Report

from ..options import InvalidOption
from .rounds import Look, Over, Rounds, Take, Wait


class Transfer:
    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._troubles: dict[str, Trouble] = {}
        self.progress = Progress(time.monotonic())

    def stop(self) -> None:
        """The round under way is finished first; it is bounded by a third of the source's lock."""
        self._stop.set()

    def report(self) -> Report:
        with self._lock:
            return self.progress.report(time.monotonic(), self._troubles.items())

    def _go_through(self, rounds: Rounds, take: Callable[[int], None], look: Callable[[], int]) -> Over | None:
        """To the end, or None where it was stopped. `take` runs a round and tells `rounds` of it; `look` says how many
        of the chosen are still there."""
        while not self._stop.is_set():
            match rounds.next(time.monotonic()):
                case Take(count):
                    take(count)
                case Look():
                    rounds.looked(look(), time.monotonic())
                case Wait(seconds, why):
                    self.progress.waiting_for = why
                    self._stop.wait(seconds)
                    self.progress.waiting_for = None
                case Over() as over:
                    return over
        return None


def rate_of(max_rate: float | None) -> float | None:
    if max_rate is not None and not 0 < max_rate < math.inf:
        raise InvalidOption(f"max_rate is a number of messages a second above 0, not {max_rate!r}")
    return max_rate
