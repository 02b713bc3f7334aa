"""Decides when a drain is over: when nothing is left in the backlog, or only what can't be delivered.

It decides by the results of peeks that are made while no message is in hand. It neither peeks nor waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from .destinations import Trouble
from .transfer import Key

#: A destination is given up after so many attempts in a row that failed: with the pauses between them 3 s for one that
#: can't be reached or is full, half a minute for one that is busy.
STRIKES: Final = 3
#: How long to wait before looking again at messages that another receiver holds.
LOOK_S: Final = 1.0


class Known(Protocol):
    """The questions of `judge` about destinations."""

    def trouble(self, path: str) -> Trouble | None: ...
    def troubled(self) -> Iterable[tuple[str, Trouble]]: ...
    def due(self, now: float) -> Iterable[str]: ...


class Seen(NamedTuple):
    """A message that a peek found. `path` is "" where no destination can be read."""

    key: Key
    path: str


class Unavailable(NamedTuple):
    path: str
    messages: int
    reason: str

    def as_json(self) -> dict[str, object]:
        return {"destination": self.path, "messages": self.messages, "reason": self.reason}


class Finished(NamedTuple):
    """The drain is over. `remaining` is empty if the backlog is."""

    remaining: list[Unavailable]


class TryAgain(NamedTuple):
    """Destinations to be tried now with one message each, and when to look again."""

    paths: list[str]
    at: float


def judge(
    seen: Iterable[Seen], destinations: Known, now: float, refused: Mapping[Key, str] | None = None
) -> Finished | TryAgain:
    """Return whether the drain is over, from what was seen.

    `refused` holds the messages that were refused permanently and can't be dead-lettered, with the reasons.
    """
    known_refused = refused or {}
    counts: dict[str, int] = {}
    reasons: dict[str, str] = {}
    hopeful: set[str] = set()
    for key, path in seen:
        counts[path] = counts.get(path, 0) + 1
        reason = known_refused.get(key)
        trouble = destinations.trouble(path)
        if reason is not None:
            reasons.setdefault(path, reason)
        elif trouble is not None and trouble.strikes >= STRIKES:
            reasons[path] = f"{trouble.verdict.value}: {trouble.text} ({trouble.condition})"
        else:
            hopeful.add(path)
    if not hopeful:
        return Finished([Unavailable(path, count, reasons[path]) for path, count in sorted(counts.items())])
    due = set(destinations.due(now)) & hopeful
    ends = [trouble.until for path, trouble in destinations.troubled() if path in hopeful and trouble.until > now]
    return TryAgain(sorted(due), min([now + LOOK_S, *ends]))
