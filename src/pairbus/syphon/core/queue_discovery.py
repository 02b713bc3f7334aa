"""Decides which backlog queues a running syphon reads, and when they are listed again.

Queues may be created while it runs: by an application that pairs for the first time, or with a larger count. This
module decides which of the listed queues are wanted, which of them are new, when to list again and what is worth a line
of output. It neither lists nor reads. A queue that is gone stays known: its reader keeps looking for it, since it may
come back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pairbus.amqp.errors import ENTITY_NOT_FOUND, NOT_FOUND

#: A listing is a management call, and billed: twelve an hour, beside the forty polls of ten idle queues.
LIST_S: Final = 300.0
#: While there is nothing to read.
FIRST_S: Final = 60.0
NAMED_MAX: Final = 3
#: The conditions of a queue that is not there: an attempt to open it is refused with one, and its links end with one
#: when it is deleted.
GONE: Final = (NOT_FOUND, ENTITY_NOT_FOUND)


class Listed(NamedTuple):
    path: str
    #: None: the name is one of ours, except for its end.
    number: int | None
    messages: int
    dead_letters: int


class News(NamedTuple):
    """The queues that a listing found to be new, and the lines to log."""

    queues: list[Listed]
    lines: list[str]


class QueueDiscovery:
    """Of the queues of `primary_name` at `secondary`: those below `count`, or all with a number; with `orphans` all.
    `known` are read already. `is_blind`: the first listing failed, and that was said."""

    def __init__(
        self,
        primary_name: str,
        secondary: str,
        known: Iterable[str] = (),
        *,
        count: int | None = None,
        orphans: bool = False,
        is_blind: bool = False,
    ) -> None:
        self._whose = primary_name
        self._where = secondary
        self._count = count
        self._orphans = orphans
        self._known = {path.lower() for path in known}
        self._is_blind = is_blind

    def __repr__(self) -> str:
        return f"<QueueDiscovery {self._whose} on {self._where}: {len(self._known)} queues{', blind' * self._is_blind}>"

    @property
    def pause_s(self) -> float | None:
        """Return the seconds until the next listing, or None if all wanted queues are known."""
        if not self._known:
            return FIRST_S
        if self._count is not None and not self._orphans and len(self._known) >= self._count:
            return None
        return LIST_S

    @property
    def waiting_for(self) -> str | None:
        """Return in a few words what the syphon waits for."""
        return None if self._known else f"{self._where} has no backlog queue of {self._whose} yet"

    def greeting(self) -> str | None:
        """Return the line to log at the start if there is no queue to read."""
        told = self.waiting_for
        return None if told is None else f"{told}; waiting for the first to appear (pairbus provision makes them)"

    def wants(self, queue: Listed) -> bool:
        return self._orphans or (queue.number is not None and (self._count is None or queue.number < self._count))

    def listed(self, found: Iterable[Listed]) -> News:
        lines = [f"the backlog queues of {self._whose} can be listed again"] if self._is_blind else []
        self._is_blind = False
        new = [each for each in found if self.wants(each) and each.path.lower() not in self._known]
        self._known.update(each.path.lower() for each in new)
        if new:
            noun = "a new backlog queue" if len(new) == 1 else f"{len(new)} new backlog queues"
            names = ", ".join(each.path for each in new[:NAMED_MAX])
            lines.append(f"{noun}: {names}{' …' if len(new) > NAMED_MAX else ''}")
        return News(new, lines)

    def failed(self, reason: str) -> str | None:
        """Return the line to log for a failed listing: once, until one succeeds."""
        if self._is_blind:
            return None
        self._is_blind = True
        then = "those that are known are read on" if self._known else "it is tried again"
        return f"{self._where}: the backlog queues of {self._whose} can't be listed: {reason}; {then}"
