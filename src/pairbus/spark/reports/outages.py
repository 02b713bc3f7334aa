"""Decides what an outage of an entity is when several clients recorded it, and its share of time and sends.

Pure. Clients notice at different times and return at different times: as long as one of them can't use the primary
entity, it is out. Overlapping times are one outage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .results import MergedOutage


@dataclass(frozen=True, slots=True)
class Outage:
    """As one client saw it. `end` None: not over when its ledger ended. `last_failed_at`: a send or ping of its own."""

    start: float
    end: float | None
    failed_over_at: float | None
    last_failed_at: float | None

    @property
    def time_to_fail_over_s(self) -> float | None:
        """From the beginning of the first send that failed to the first that goes to the backlog."""
        return None if self.failed_over_at is None else max(0.0, self.failed_over_at - self.start)

    @property
    def time_to_return_s(self) -> float | None:
        """At most: when the primary came back nobody can say, only that the last failure was before it."""
        if self.end is None:
            return None
        since = max(filter(None, (self.last_failed_at, self.failed_over_at)), default=self.start)
        return max(0.0, self.end - since)


def merged_outages(outages: Iterable[Outage], now: float) -> list[MergedOutage]:
    """Return the outages of all clients, what overlaps as one; one that is not over is taken to last until `now`."""
    merged: list[list[Outage]] = []
    until = 0.0
    for outage in sorted(outages, key=lambda each: each.start):
        if merged and outage.start <= until:
            merged[-1].append(outage)
        else:
            merged.append([outage])
            until = outage.start
        until = max(until, now if outage.end is None else outage.end)
    return [_as_one(each, now) for each in merged]


def _as_one(outages: Sequence[Outage], now: float) -> MergedOutage:
    start = min(each.start for each in outages)
    is_open = any(each.end is None for each in outages)
    end = now if is_open else max(each.end for each in outages if each.end is not None)
    to_fail_over = [each.time_to_fail_over_s for each in outages if each.time_to_fail_over_s is not None]
    to_return = [each.time_to_return_s for each in outages if each.time_to_return_s is not None]
    return {
        "start": start,
        "end": None if is_open else end,
        "seconds": max(0.0, end - start),
        "open": is_open,
        "failed_over": bool(to_fail_over),
        "clients": len(outages),
        "time_to_fail_over_s": max(to_fail_over, default=None),
        "time_to_return_s": max(to_return, default=None),
    }


def share(part: int, whole: int) -> float | None:
    """Return a share in per cent, or None where there is nothing to take a share of."""
    return None if whole == 0 else 100.0 * part / whole


def primary_availability(outages: Sequence[MergedOutage], start: float | None, end: float | None) -> float | None:
    """Return the share of the ledgers' time in which every client could use the primary entity."""
    if start is None or end is None or end <= start:
        return None
    out = sum(each["seconds"] for each in outages)
    return max(0.0, 100.0 * (1 - out / (end - start)))
