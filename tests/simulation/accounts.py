"""What the checker keeps of messages, sends, settlements and transactions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from .history import ABANDON, RELEASE, Sending, Settling
from .locks import Lock


@dataclass(slots=True, eq=False)
class Together:
    """A transaction: what it has sent, and what says that it happened, or that it did not."""

    name: str
    sends: list[Send] = field(default_factory=list)
    said: dict[bool, str] = field(default_factory=dict)
    is_certain: bool = True  # no power cut may have undone a part of it


@dataclass(slots=True, eq=False)
class Send:
    of: Sending
    begun: int
    copies: list[Copy] = field(default_factory=list)
    ended: float = inf  # when its outcome was known, in events: what began later is later
    together: Together | None = None


@dataclass(slots=True, eq=False)
class Change:
    of: Settling
    copy: Copy
    begun: int
    lock: Lock | None
    ended_at: float = inf
    together: Together | None = None

    @property
    def why(self) -> tuple[str | None, str | None]:
        return self.of.reason, self.of.description


@dataclass(slots=True, eq=False)
class Copy:
    home: str
    id: str
    of: Sending
    order: int
    floor: dict[int, int]  # the highest sequence number of each partition that was known when the send began
    base: set[str]
    sends: list[Send]  # that may have stored it
    is_again: bool = False  # it has the id of one that is gone
    fact: int = 0  # when `base` was known, in events,
    fact_at: float = 0.0  # and in time
    doubts: dict[int, Change] = field(default_factory=dict)  # under way, or without an answer
    numbers: dict[bool, int] = field(default_factory=dict)  # was it scheduled then → sequence number
    reasons: set[tuple[str | None, str | None]] = field(default_factory=set)
    deliveries: int = 0  # at least
    counted: int = 0  # of them, those that were answered
    stored_at: float = inf  # since when it is certainly there, and not scheduled
    answered_at: float = -inf  # when its send was confirmed
    left: dict[str, float] = field(default_factory=dict)  # state → since when it is certainly not in it
    locks: list[Lock] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        return self.home, self.id

    @property
    def states(self) -> set[str]:
        """Those in which it may be by what clients did."""
        return self.base | {change.of.to for change in self.doubts.values() if change.of.to not in (ABANDON, RELEASE)}

    def is_before(self, other: Copy) -> bool:
        """Return whether it was certainly stored before the other one."""
        if self.of.due or other.of.due or not self.sends or not other.sends:
            return False
        if self.sends == other.sends:
            return self.order < other.order
        return self.sends[-1].ended < other.sends[0].begun


class Past(NamedTuple):
    """What a copy may have been before something that a power cut may undo."""

    event: int
    at: float
    is_lazy: bool
    copy: Copy
    states: set[str]
    counted: int
    reasons: set[tuple[str | None, str | None]]
