"""Decides what follows for one client of a pair when the other closes or faults, where the syphon runs.

    closed    `close()` was called
    faulted   the syphon's access to that namespace has been refused for five seconds

When one is closed or faulted and its partner is neither within five seconds, the partner is faulted; with
`fault_partner=False` the syphon stops instead, reports it, and is started again after a while. If access comes back in
time, neither happens. This module only decides; `now` is any clock of seconds.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Which = Literal["primary", "secondary"]

GRACE_S: Final = 5.0
REFUSED_S: Final = 5.0
RETRY_S: Final = 30.0


class Fault(NamedTuple):
    """Command: the client of `which` raises an error with this text from now on."""

    which: Which
    text: str


class StopSyphon(NamedTuple):
    text: str


class StartSyphon(NamedTuple):
    pass


class _Side:
    __slots__ = ("closed_at", "error", "namespace", "refused_at")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.closed_at: float | None = None
        self.refused_at: float | None = None
        self.error = ""

    @property
    def ends_at(self) -> float | None:
        """Return when this side counts as closed or faulted; the time may lie ahead."""
        if self.closed_at is not None:
            return self.closed_at
        return None if self.refused_at is None else self.refused_at + REFUSED_S

    def has_ended(self, now: float) -> bool:
        return self.ends_at is not None and self.ends_at <= now

    @property
    def ending(self) -> str:
        if self.closed_at is not None:
            return "was closed"
        return f"has faulted: the syphon's access to it has been refused for {REFUSED_S:g} s ({self.error})"


class PairLifecycle:
    def __init__(self, primary: str, secondary: str, *, fault_partner: bool = True) -> None:
        self._sides: dict[Which, _Side] = {"primary": _Side(primary), "secondary": _Side(secondary)}
        self._fault_partner = fault_partner
        self._is_over = False
        #: When the syphon, which was stopped, starts again.
        self._restart_at: float | None = None

    def __repr__(self) -> str:
        told = ", ".join(
            f"{which} {'open' if side.ends_at is None else 'closed' if side.closed_at is not None else 'refused'}"
            for which, side in self._sides.items()
        )
        return f"<PairLifecycle {told}>"

    @property
    def deadline(self) -> float | None:
        if self._is_over:
            return None
        if self._restart_at is not None:
            return self._restart_at
        due = self._due()
        return None if due is None else due[0]

    def closed(self, which: Which, now: float) -> None:
        side = self._sides[which]
        if side.closed_at is None:
            side.closed_at = now

    def refused(self, which: Which, error: str, now: float) -> None:
        side = self._sides[which]
        if side.refused_at is None:
            side.refused_at = now
        side.error = error

    def granted(self, which: Which) -> None:
        self._sides[which].refused_at = None

    def tick(self, now: float) -> list[Fault | StopSyphon | StartSyphon]:
        if self._is_over:
            return []
        if self._restart_at is not None:
            if now < self._restart_at:
                return []
            self._restart_at = None
            for side in self._sides.values():
                side.refused_at = None  # it is found out anew
            return [StartSyphon()]
        due = self._due()
        if due is None or now < due[0]:
            return []
        _, which = due
        ended, other = self._sides[which], self._sides[_partner(which)]
        if other.has_ended(now):
            self._is_over = True
            return []
        reason = f"its partner, the client of {ended.namespace}, {ended.ending}"
        if self._fault_partner:
            self._is_over = True
            text = (
                f"the client of {other.namespace} was faulted: {reason}, and it was not closed within {GRACE_S:g} s; "
                "close it, and make and pair new clients"
            )
            return [Fault(_partner(which), text)]
        if ended.closed_at is not None:
            self._is_over = True
        else:
            self._restart_at = now + RETRY_S
        return [
            StopSyphon(
                f"the syphon from {self._sides['secondary'].namespace} stopped: {reason.removeprefix('its partner, ')}"
            )
        ]

    def _due(self) -> tuple[float, Which] | None:
        """Return when the grace period of the side that did not end first is over."""
        ends = [(side.ends_at + GRACE_S, which) for which, side in self._sides.items() if side.ends_at is not None]
        return min(ends, default=None)


def _partner(which: Which) -> Which:
    return "secondary" if which == "primary" else "primary"
