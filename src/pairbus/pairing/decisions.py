"""Remembers why a paired client did what it did, for an operator's question "why did we fail over?".

`client.explain("orders")` returns what is kept here in words: changes of state with their cause and error, pings, what
operators and the control file said, and which rule sent messages to the backlog. Healthy sends are not recorded.
Decisions that repeat between two changes of state are one entry with a count, so that a long outage does not push out
how it began. Memory is bounded: `ENTRIES_MAX` entries for each of `ENTITIES_MAX` entities, texts cut to `CHARS_MAX`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pairbus.pairing import events, fork
from pairbus.pairing.observers import OK, Observer, brief, line_of
from pairbus.pairing.routing.dispatch import Diversion

ENTRIES_MAX: Final = 50
ENTITIES_MAX: Final = 1000
CHARS_MAX: Final = 400

Kind = Literal["state", "ping", "diverted", "operator", "throttled", "client"]

#: The causes of a change of state, as `failover.Input` calls them, in whole words.
CAUSES: Final[dict[str, str]] = {
    "send succeeded": "the primary took a message",
    "send failed": "a send to the primary failed",
    "busy for too long": "the primary was busy for longer than busy_failover_after",
    "brownout": "too many sends took too long, as the option brownout says",
    "interval over": "no send succeeded within failover_interval",
    "ping succeeded": "the primary took a ping",
    "ping refused": "the primary answered a ping and refused it",
    "ping unanswered": "the primary did not answer a ping",
    "trial succeeded": "the primary took a trial message",
    "trial refused": "the primary answered a trial message and refused it",
    "trial unanswered": "the primary did not answer a trial message",
    "message sent once more": "the primary took a message that no backlog queue had taken",
    "return delayed": "the return waits for its turn in return_ramp",
    "return ramp over": "its turn in return_ramp has come",
    "forced": "the operator called force_failover",
    "marked healthy": "the operator called mark_healthy",
    "control file": "the control file says so",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a client, or an instruction to it, in words. `str()` puts the time before them."""

    at: datetime
    kind: Kind
    text: str
    #: How often it happened, or how many messages were diverted, and when it last did.
    count: int
    last: datetime

    def __str__(self) -> str:
        more = "" if self.count == 1 else f" ({self.count:,} times, last at {self.last:%H:%M:%S})"
        return f"{self.at:%Y-%m-%d %H:%M:%S}Z {self.text}{more}"


class DecisionLog(Observer):
    """Keeps the last decisions of a paired client, entity by entity."""

    wants_diversions = True

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: By entity in lower case; "" for what concerns the whole client.
        self._kept: dict[str, deque[tuple[object, Decision]]] = {}
        fork.register(self)

    def __repr__(self) -> str:
        return f"<DecisionLog of {len(self._kept)} entities>"

    def forked(self) -> None:
        """Take a new lock in a forked child: a thread that the child does not have may hold the old one."""
        self._lock = threading.Lock()

    def explain(self, entity: str) -> list[Decision]:
        """Return the last decisions about this entity and about the client as a whole, oldest first."""
        with self._lock:
            found = [each for name in {entity.lower(), ""} for _, each in self._kept.get(name, ())]
        return sorted(found, key=lambda each: each.at)

    def sent_to_backlog(
        self, entity: str, queue: int | None, messages: Sequence[Any], outcome: str, ms: float, reason: Diversion
    ) -> None:
        if outcome != OK:
            return  # a queue that fails is an event
        given = f"; the primary was given {reason.primary_s:.1f} s" if reason.primary_s else ""
        text = f"messages went to the backlog by the rule {reason.rule!r}: {reason.why}{given}"
        self._keep(entity, "diverted", text, (reason.rule,), len(messages))

    def announced(self, event: events.Event) -> None:
        match event:
            case events.StateChanged(entity, previous, state, cause, error):
                behind = "" if error is None else f" ({brief(error)})"
                text = f"{previous.value} → {state.value}: {CAUSES.get(cause, cause)}{behind}"
                self._keep(entity, "state", text, None)
            case events.PingSucceeded(entity, good, needed, delay_s):
                later = f"; returns in {delay_s:.1f} s by return_ramp" if delay_s and good >= needed else ""
                self._keep(entity, "ping", f"ping succeeded, {good} of {needed} in a row{later}", ("good", good))
            case events.PingFailed(entity, reachable, error):
                how = "refused" if reachable else "not answered"
                self._keep(entity, "ping", f"ping {how}: {brief(error)}", (how, type(error)))
            case events.OperatorActed(entity, action):
                self._keep(entity, "operator", f"the operator says: {action}", (action,))
            case events.EntityThrottled(entity, until_s, diverted):
                what = "messages go to the backlog, all else waits" if diverted else "everything waits"
                self._keep(entity, "throttled", f"throttled: {what} for {until_s:.1f} s", ())
            case events.SizeWarning() | events.MessageDiverted():
                pass
            case _:
                if (line := line_of(event)) is not None:
                    self._keep("", "client", line, (type(event), line))

    def _keep(self, entity: str, kind: Kind, text: str, key: tuple[object, ...] | None, count: int = 1) -> None:
        """Add an entry, or count it with the one of that key since the last change of state; None: never counted."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        text = text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}…"
        with self._lock:
            entries = self._entries(entity.lower())
            for index in range(len(entries) - 1, -1, -1):
                known, entry = entries[index]
                if known is None or key is None:
                    break
                if known == (kind, *key):
                    entries[index] = known, Decision(entry.at, kind, text, entry.count + count, now)
                    return
            entries.append((None if key is None else (kind, *key), Decision(now, kind, text, count, now)))

    def _entries(self, entity: str) -> deque[tuple[object, Decision]]:
        entries = self._kept.get(entity)
        if entries is None:
            if len(self._kept) >= ENTITIES_MAX:  # the one that was first heard of, but not the client's own
                del self._kept[next(name for name in self._kept if name)]
            entries = self._kept[entity] = deque(maxlen=ENTRIES_MAX)
        return entries
