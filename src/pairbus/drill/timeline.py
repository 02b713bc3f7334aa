"""Turns the facts that the processes of a drill print into the lines of a timeline. Pure.

It decides what is worth a line, its text, and the counts (the depth of the backlog is computed as diverted minus moved
messages, since looking would cost operations). Every fact has its time, in unix seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Literal

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.states import EntityState

from .plan import PRIMARY, SECONDARY, DrillPlan, listed

Kind = Literal[
    "start", "traffic", "OUTAGE", "RETURN", "state", "ping", "status", "syphon", "receive", "report", "raised"
]
#: A status line every so often.
STATUS_S: Final = 2.0
HEALTHY: Final = EntityState.HEALTHY.value


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A line of the timeline; `t` is in seconds since the drill began."""

    t: float
    kind: Kind
    text: str

    def __str__(self) -> str:
        word = "failed" if self.kind == "raised" else self.kind  # the word of --json is kept as it was
        return f"{self.t:6.1f} s  {word:<8}{self.text}"

    def as_json(self) -> dict[str, Any]:
        return {"kind": "timeline", "t": round(self.t, 3), "what": self.kind, "text": self.text}


@dataclass(slots=True)
class TrafficCounts:
    """The counts of the senders, the receivers and the syphon so far."""

    confirmed: int = 0
    diverted: int = 0
    raised: int = 0
    received: int = 0
    settled: int = 0
    moved: int = 0
    deepest: int = 0

    @property
    def depth(self) -> int:
        return max(0, self.diverted - self.moved)


class Timeline:
    """Collects facts; the methods return the lines that they add."""

    def __init__(self, plan: DrillPlan, began: float) -> None:
        self.plan = plan
        self.began = began
        self.lines: list[TimelineEntry] = []
        self.tally = TrafficCounts()
        self.outage: tuple[float, float | None] | None = None
        self.states = {each.name: HEALTHY for each in plan.entities}
        #: Entity → seconds from the outage's begin to its first confirmed message in the backlog, and from the
        #: primary's return to its first message there.
        self.diverted_after: dict[str, float] = {}
        self.returned_after: dict[str, float] = {}
        #: Entity → ids of messages whose send failed for its caller.
        self.raised: dict[str, list[str]] = {}
        #: The longest that a caller waited for a send.
        self.longest_wait_s = 0.0
        self._pings: Counter[bool] = Counter()
        self._told_at = began

    def __repr__(self) -> str:
        return f"<Timeline {self.plan!r}: {len(self.lines)} lines, {self.tally.depth} in the backlog>"

    @property
    def is_healthy(self) -> bool:
        return all(state == HEALTHY for state in self.states.values())

    def say(self, now: float, kind: Kind, text: str) -> list[TimelineEntry]:
        line = TimelineEntry(now - self.began, kind, text)
        self.lines.append(line)
        return [line]

    # -- what the drill does

    def outage_began(self, now: float) -> list[TimelineEntry]:
        self.outage = (now, None)
        return self.say(now, "OUTAGE", f"{PRIMARY} {self.plan.drill_fault.begins}")

    def outage_ended(self, now: float) -> list[TimelineEntry]:
        assert self.outage is not None
        began, _ = self.outage
        self.outage = (began, now)
        return self.say(now, "RETURN", f"{PRIMARY} {self.plan.drill_fault.ends}, after {now - began:.1f} s")

    def moved(self, now: float, count: int) -> list[TimelineEntry]:
        """Note how many messages the syphon has moved so far."""
        self.tally.moved = count
        return self.tick(now)

    # -- what the processes tell

    def heard(self, fact: dict[str, Any]) -> list[TimelineEntry]:
        now = fact["t"]
        match fact["fact"]:
            case "sent":
                self.tally.confirmed, self.tally.diverted = fact["confirmed"], fact["diverted"]
                self.tally.raised = fact["raised"]
                self.longest_wait_s = max(self.longest_wait_s, fact["waited_s"])
                self.tally.deepest = max(self.tally.deepest, self.tally.depth)
                return self.tick(now)
            case "received":
                self.tally.received, self.tally.settled = fact["count"], fact["settled"]
                return self.tick(now)
            case "state":
                return self._state(now, fact)
            case "ping":
                self._pings[fact["ok"]] += 1
                return []
            case "route":
                return self._route(now, fact["entity"], fact["route"])
            case "raised":
                return self._raised(now, fact)
            case "deaf":
                return self.say(now, "receive", f"{fact['entity']}: nothing can be received ({fact['error']})")
            case "hears":
                return self.say(now, "receive", f"{fact['entity']}: receiving again")
            case other:
                raise ValueError(f"{other!r} is no fact of the drill's")

    def _state(self, now: float, fact: dict[str, Any]) -> list[TimelineEntry]:
        entity = fact["entity"]
        self.states[entity] = fact["to"]
        return self.say(now, "state", f"{entity}: {fact['from']} → {fact['to']} ({fact['cause']})")

    def _raised(self, now: float, fact: dict[str, Any]) -> list[TimelineEntry]:
        """Count failed sends; only the first of each entity has a line."""
        entity, ids = fact["entity"], fact["ids"]
        is_first = entity not in self.raised
        self.raised.setdefault(entity, []).extend(ids)
        if not is_first:
            return []
        what = ids[0] if len(ids) == 1 else f"{len(ids)} messages"
        return self.say(now, "raised", f"{entity}: {fact['error']} for the caller that sent {what}")

    def _route(self, now: float, entity: str, route: str) -> list[TimelineEntry]:
        if self.outage is None:
            return []
        began, ended = self.outage
        if route == "backlog" and entity not in self.diverted_after:
            self.diverted_after[entity] = now - began
            return self.say(
                now, "state", f"{entity}: first message in the backlog, {now - began:.2f} s after the outage began"
            )
        if route == "primary" and ended is not None and entity not in self.returned_after:
            self.returned_after[entity] = now - ended
            return self.say(
                now, "state", f"{entity}: first new message at {PRIMARY}, {now - ended:.2f} s after it returned"
            )
        return []

    def tick(self, now: float) -> list[TimelineEntry]:
        """Return a line with the pings since the last time and one with the counts, if they are due."""
        if now - self._told_at < STATUS_S:
            return []
        self._told_at = now
        lines: list[TimelineEntry] = []
        if self._pings:
            words = [f"{count} {'answered' if ok else 'unanswered'}" for ok, count in sorted(self._pings.items())]
            lines += self.say(now, "ping", ", ".join(words))
            self._pings.clear()
        return lines + self.say(now, "status", self.status())

    def status(self) -> str:
        tally = self.tally
        # after a slow start of Spark there are more than planned: the sender goes on until the outage is over
        planned = f" of {self.plan.messages:,}" if tally.confirmed <= self.plan.messages else ""
        return (
            f"sent {tally.confirmed:,}{planned} ({tally.diverted:,} to the backlog), "
            f"failed {tally.raised:,}, received {tally.received:,}, backlog {tally.depth:,}"
        )


def introduction(plan: DrillPlan) -> list[str]:
    """Return lines that describe the drill, above all that its intervals are not those of production."""
    usual = Settings()
    short = [
        f"{name} {plan.pairing[name]:g} s ({getattr(usual, name):g})"
        for name in ("failover_interval", "ping_primary_interval", "send_timeout", "backlog_retry_interval")
    ]
    names = listed([each.name for each in plan.entities])
    return [
        f"{plan.messages:,} messages, {plan.rate_per_s:,.0f} a second, to {names}; {PRIMARY} fails ({plan.fault}) for "
        f"{plan.outage_s:g} s; {SECONDARY} holds {plan.backlog_queues} backlog queues",
        f"intervals are shorter than their defaults (in brackets), so that it fits: {', '.join(short)}",
    ]
