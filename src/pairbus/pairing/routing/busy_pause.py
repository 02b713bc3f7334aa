"""Pauses all calls of a client to one entity for at least ten seconds after the server said that it is busy.

Decides when the pause ends, and for how long the entity has been busy without a break. `dispatch` decides which calls
wait and which give up.
"""

from __future__ import annotations

from typing import Final

HALT_S: Final = 10.0


class BusyPause:
    """The pause of one entity, and since when its sends have met only a busy server."""

    __slots__ = ("_busy_since", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._busy_since: float | None = None

    def __repr__(self) -> str:
        return f"<BusyPause until {self.until:.1f}>"

    def is_on(self, now: float) -> bool:
        return now < self.until

    def is_over(self, now: float) -> bool:
        """Return whether the pause can be forgotten: no refusal came for ten seconds after its end."""
        return now >= self.until + HALT_S

    def busy(self, now: float, *, sending: bool) -> None:
        """Note a refusal. Each caller's pause is counted from its own refusal, so the pause can only grow longer."""
        if self.is_over(now):
            self._busy_since = None
        if sending and self._busy_since is None:
            self._busy_since = now
        self.until = max(self.until, now + HALT_S)

    def sent(self) -> None:
        """Note that a message was sent: the pause stays, the unbroken run of refusals is over."""
        self._busy_since = None

    def busy_for(self, now: float) -> float:
        """Return for how long sends have met only a busy server."""
        return 0.0 if self._busy_since is None else now - self._busy_since
