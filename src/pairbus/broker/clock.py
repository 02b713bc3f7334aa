"""The broker's time: unix seconds that pass evenly, and that follow the wall clock when that is set. Pure.

Durations (locks, idle times, faults, throttle rates) must not end early or late because somebody sets the wall clock;
instants (expiry, schedules, tokens) are the wall clock's. Both are compared with one `now`: a monotonic clock plus its
distance from the wall clock. When the wall clock was set, `follow` takes over the new distance and tells the followers
by how much; they move the ends of their durations along, so that as much of each is left as before, and what is told
to clients (`locked_until`) is again an instant of the wall clock. Between two calls of `follow` no step is visible.

Pure: both clocks are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Smaller steps are noticed when they add up to this; two clocks cannot be read at one instant.
STEP_S_MIN: Final = 0.1


class BrokerClock:
    """Returns the broker's time when it is called."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._distance = wall() - monotonic()
        #: Called with the seconds by which the wall clock was set forward (or back: negative).
        self.followers: list[Callable[[float], None]] = []

    def __call__(self) -> float:
        return self._monotonic() + self._distance

    def __repr__(self) -> str:
        return f"<BrokerClock {self():.3f}>"

    def follow(self) -> None:
        """Take over the wall clock's time if it was set, and tell the followers by how many seconds."""
        before = self._monotonic()
        step = self._wall() - before - self._distance
        # A pause between the two readings looks like a step: the next call looks again.
        if abs(step) < STEP_S_MIN or self._monotonic() - before > STEP_S_MIN / 2:
            return
        self._distance += step
        for follower in self.followers:
            follower(step)
