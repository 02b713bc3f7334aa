"""The throttle halt of one entity (P24): told that the server is busy, all that a client does with it pauses for ten
seconds at least. Decides until when, and for how long the entity has been busy without a break.

Who waits and who gives up is `dispatch`'s business.
"""

from __future__ import annotations

from typing import Final

HALT_S: Final = 10.0


class BusyPause:
    __slots__ = ("_busy_since", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._busy_since: float | None = None

    def __repr__(self) -> str:
        return f"<Halt until {self.until:.1f}>"

    def is_on(self, now: float) -> bool:
        return now < self.until

    def is_over(self, now: float) -> bool:
        """It can be forgotten: as long again as it lasted at least, nobody has been told that the server is busy."""
        return now >= self.until + HALT_S

    def busy(self, now: float, *, sending: bool) -> None:
        """Everyone's halt is counted from their own refusal, so each one can only lengthen it."""
        if self.is_over(now):
            self._busy_since = None
        if sending and self._busy_since is None:
            self._busy_since = now
        self.until = max(self.until, now + HALT_S)

    def sent(self) -> None:
        """A message got through. The halt stays, the unbroken run of refusals is over."""
        self._busy_since = None

    def busy_for(self, now: float) -> float:
        """How long sends have met nothing but a busy server."""
        return 0.0 if self._busy_since is None else now - self._busy_since
