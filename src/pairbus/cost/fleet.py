"""Estimates the load of an outage on the two namespaces of a fleet: pings a second, the backlog, and the drain.

The service throttles by credits: one for a message sent or received. A diverted message takes two of the primary's on
its way home, and a live one two as well; it takes one of the secondary's when it is diverted and one when it is
drained. The drain is limited by the smallest of three: the primary's credits that live traffic leaves, the secondary's
credits, and the syphon's ceiling. The syphon stays below the rate at which a namespace says that it is busy, and so
does the estimate.

Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pairbus.cost.estimate import Scenario

#: Credits a second of a namespace; None: the tier throttles by what its units have of CPU and memory, by no number.
TIER_CREDITS: Final[dict[str, int | None]] = {"basic": 1000, "standard": 1000, "premium": None}
#: A message is sent to the primary and received from there.
CREDITS_AT_PRIMARY: Final = 2
#: The share of the refused rate that the syphon keeps to; the rest is left to live traffic.
SYPHON_SHARE: Final = 0.8
GB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of a fleet in an outage and after it."""

    #: Credits a second of each namespace; None: no number is known.
    credits: int | None
    #: Of all clients while they are failed over, spread over the ping interval.
    pings_per_s: float
    #: The primary's credits that live traffic takes.
    live_credits: float
    backlog_gb: float
    #: Messages a second that come home; None: nothing known limits it.
    drain_per_s: float | None
    #: None: it takes as long as the syphon needs, which depends on where it runs; infinite: it never ends.
    drain_s: float | None
    limited_by: str
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "credits_per_s": self.credits,
            "pings_per_s": round(self.pings_per_s, 3),
            "live_credits_per_s": round(self.live_credits, 3),
            "backlog_gb": round(self.backlog_gb, 3),
            "drain_messages_per_s": None if self.drain_per_s is None else round(self.drain_per_s, 3),
            # JSON has no infinity: without an end there is no number.
            "drain_s": None if self.drain_s is None or math.isinf(self.drain_s) else round(self.drain_s, 3),
            "drain_ends": None if self.drain_s is None else math.isfinite(self.drain_s),
            "drain_limited_by": self.limited_by,
        }


def fleet_load(case: Scenario, backlog_bytes: int) -> FleetLoad:
    credits = TIER_CREDITS[case.tier]
    pings_per_s = case.clients * case.entities / case.ping_interval_s if case.fails_over else 0.0
    live_credits = CREDITS_AT_PRIMARY * case.rate
    limits: dict[str, float] = {}
    if credits is not None:
        free = max(0.0, credits - live_credits)
        limits["the primary's credits, beside live traffic"] = SYPHON_SHARE * free / CREDITS_AT_PRIMARY
        limits["the secondary's credits"] = SYPHON_SHARE * credits
    if case.max_rate is not None:
        limits["the syphon's ceiling"] = case.max_rate
    limited_by = min(limits, key=lambda name: limits[name], default="the syphon's machine")
    drain_per_s = limits.get(limited_by)
    if not case.diverted:
        drain_s: float | None = 0.0
    elif drain_per_s is None:
        drain_s = None
    else:
        drain_s = case.diverted / drain_per_s if drain_per_s else math.inf
    warnings = tuple(_warnings(case, credits, pings_per_s, live_credits))
    return FleetLoad(credits, pings_per_s, live_credits, backlog_bytes / GB, drain_per_s, drain_s, limited_by, warnings)


def _warnings(case: Scenario, credits: int | None, pings_per_s: float, live_credits: float) -> list[str]:
    if credits is None:
        return []
    found = []
    if pings_per_s > credits:
        needed = math.ceil(case.clients * case.entities / credits)
        found.append(
            f"{pings_per_s:,.0f} pings a second are more than the {credits:,} credits a second of the {case.tier} tier:"
            f" a primary that comes back is throttled; take a ping_primary_interval of {needed:,} s or more"
        )
    if live_credits >= credits:
        found.append(
            f"live traffic of {case.rate:g} messages a second, sent and received, takes all {credits:,} credits a"
            f" second of the {case.tier} tier: the backlog never comes home"
        )
    if case.fails_over and case.rate > credits:
        found.append(
            f"{case.rate:g} messages a second are more than the secondary takes in the {case.tier} tier,"
            f" {credits:,}: it throttles what is diverted"
        )
    return found
