"""Records what a namespace does, always in its counters, and in its ledger if one is kept.

The links report here what they did; it decides nothing. With the ledger off a report is a few additions; with it on,
each message costs one read of its properties for the id, and one line. Each counted operation is also a line of the
same kind, with the same bytes, so the sums of both are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence

from pairbus.amqp.errors import UNAUTHORIZED_ACCESS, AmqpError
from pairbus.amqp.message import read_properties, split
from pairbus.billing import APP, MANAGE, PING
from pairbus.broker.format.content import PING_CONTENT_TYPE, message_id_in
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import (
    DUPLICATE,
    PINGED,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    LocksLost,
    Outcome,
    Release,
)
from pairbus.broker.operations.forward import Forwarded
from pairbus.broker.refusal import Refusal
from pairbus.ledger import LedgerWriter

from .metrics import NamespaceCounters

log = logging.getLogger("pairbus.broker.observation")

#: A delivery that waits for its settlement: lock token, sequence number, message id where it is known.
UnsettledDelivery = tuple[bytes, int, str | None]

_LOG_EVERY_S = 10.0
_OUTCOMES: dict[type, str] = {
    Complete: "complete",
    Abandon: "abandon",
    Defer: "defer",
    DeadLetter: "dead-letter",
    Release: "release",
}


class Recorder:
    """The counters and the ledger of one namespace."""

    __slots__ = ("_clock", "_count", "_counters", "_name", "_unauthorized_logged_at", "ledger", "meter")

    def __init__(
        self,
        name: str,
        counters: NamespaceCounters,
        ledger: LedgerWriter | None,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._unauthorized_logged_at = float("-inf")
        self._name = name
        self._counters = counters
        self.meter = counters.meter
        self._count = self.meter.count
        self.ledger = ledger

    def __repr__(self) -> str:
        return f"<Recorder of {self._name}: {'no ledger' if self.ledger is None else self.ledger.path}>"

    def merge_deleted(self, exists: Callable[[str], bool]) -> Generator[None, None, None]:
        """Keep the counters small; `exists` tells whether there is something at a path. To be done in slices."""
        return self._counters.merge_deleted(exists)

    def connected(self) -> None:
        self._counters.connections_total += 1

    def sent(
        self,
        path: str,
        payloads: Sequence[bytes],
        results: Sequence[int],
        cause: str,
        since: float,
        refusal: Refusal | None,
    ) -> None:
        """Record messages that were all sent or all refused. `results`: of each that was sent
        (model/outcomes.py)."""
        counters = self._counters.entity(path)
        if refusal is not None:
            counters.refused(refusal.condition, len(payloads))
            if self.ledger is not None:
                self._write_refused(path, payloads, cause, since, self._clock(), refusal)
            return
        counters.sends += len(payloads)
        count = self._count
        if len(payloads) == 1 and results[0] != PINGED:
            size = len(payloads[0])
            counters.send_bytes += size
            count(path, "send", cause, size)
        else:
            for payload, result in zip(payloads, results, strict=True):
                size = len(payload)
                counters.send_bytes += size
                if result == PINGED:
                    count(path, "ping", PING, size)
                else:
                    count(path, "send", cause, size)
        if self.ledger is not None:
            self._write_sends(path, payloads, results, cause, since, self._clock())

    def _write_sends(
        self, path: str, payloads: Sequence[bytes], results: Sequence[int], cause: str, since: float, now: float
    ) -> None:
        assert self.ledger is not None
        event, name, ms = self.ledger.event, self._name, (now - since) * 1000
        for payload, result in zip(payloads, results, strict=True):
            mid = message_id_in(payload)
            if result == PINGED:
                event("ping", now, name, path, mid=mid, size=len(payload), ms=ms, cause=PING)
            elif result == DUPLICATE:
                event("send", now, name, path, mid=mid, size=len(payload), outcome="duplicate", ms=ms, cause=cause)
            else:
                event("send", now, name, path, mid=mid, seq=result or None, size=len(payload), ms=ms, cause=cause)

    def _write_refused(
        self, path: str, payloads: Sequence[bytes], cause: str, since: float, now: float, refusal: Refusal
    ) -> None:
        assert self.ledger is not None
        for payload in payloads:
            mid, is_ping = _identity(payload)
            self.ledger.event(
                "ping" if is_ping else "send",
                now,
                self._name,
                path,
                mid=mid,
                size=len(payload),
                outcome=refusal.condition,
                ms=(now - since) * 1000,
                cause=PING if is_ping else cause,
            )

    def not_sent(self, path: str, size: int, cause: str, since: float, now: float, refusal: Refusal) -> None:
        """Record a delivery that was refused before it could be split into messages."""
        self._counters.entity(path).refused(refusal.condition)
        if self.ledger is not None:
            ms = (now - since) * 1000
            self.ledger.event(
                "send", now, self._name, path, size=size, outcome=refusal.condition, ms=ms, cause=cause
            )  # fmt: skip

    def received(
        self, path: str, message: Message, payload: bytes, cause: str, now: float, removed: bool = False
    ) -> str | None:
        """Record a delivery, and with `removed` its settlement too. Return the message id where a ledger is kept."""
        counters = self._counters.entity(path)
        size = len(payload)
        counters.receives += 1
        counters.receive_bytes += size
        self._count(path, "receive", cause, size)
        if self.ledger is None:
            return None
        # what is kept begins with the properties; a delivery has other sections before them
        content = message.content
        mid = message_id_in(payload) if content is None else message_id_in(content, message.pairs_bytes)
        number = message.sequence_number
        self.ledger.event("receive", now, self._name, path, mid=mid, seq=number, size=size, cause=cause)
        if removed:
            self.ledger.event("settle", now, self._name, path, mid=mid, seq=number, cause=cause)
        return mid

    def not_received(self, path: str, cause: str, now: float, refusal: Refusal) -> None:
        """Record a refused receive of messages by sequence number."""
        self._counters.entity(path).refused(refusal.condition)
        if self.ledger is not None:
            self.ledger.event("receive", now, self._name, path, outcome=refusal.condition, cause=cause)

    def polled(self, path: str, cause: str, now: float) -> None:
        """Record a receive that got nothing: it costs as much as one that did."""
        self._counters.entity(path).polls += 1
        self._count(path, "poll", cause, 0)
        if self.ledger is not None:
            self.ledger.event("poll", now, self._name, path, size=0, cause=cause)

    def id_at_hand(self, message: Message) -> str | None:
        """Return the message id, where a ledger is kept and memory has it."""
        if self.ledger is None or message.content is None:
            return None
        return message_id_in(message.content, message.pairs_bytes)

    def settled(
        self,
        path: str,
        outcome: Outcome,
        entries: Sequence[UnsettledDelivery],
        cause: str,
        since: float,
        now: float,
        refusal: Refusal | None,
    ) -> None:
        counters = self._counters.entity(path)
        lost = set(refusal.tokens) if isinstance(refusal, LocksLost) else None
        refused = 0 if refusal is None else len(entries) if lost is None else sum(e[0] in lost for e in entries)
        if refusal is not None and refused:
            counters.refused(refusal.condition, refused)
        if len(entries) > refused:
            counters.settled(_OUTCOMES[type(outcome)], len(entries) - refused)
        if self.ledger is None:
            return
        kind = "dead-letter" if isinstance(outcome, DeadLetter) else "settle"
        ms = (now - since) * 1000
        for token, number, mid in entries:
            is_refused = refusal is not None and (lost is None or token in lost)
            word = refusal.condition if is_refused and refusal is not None else "ok"
            self.ledger.event(kind, now, self._name, path, mid=mid, seq=number, outcome=word, ms=ms, cause=cause)

    def witnessed(self, kind: str, path: str, number: int | None, mid: str | None, outcome: str) -> None:
        """Record that a message went without a receiver's doing (`Store.observer`)."""
        if self.ledger is not None:
            self.ledger.event(kind, self._clock(), self._name, path, mid=mid, seq=number, outcome=outcome)

    def forwarded(self, source: str, destination: str, messages: Sequence[Forwarded]) -> None:
        """Record messages that went from one entity to another: they are settled there and sent here, which is one
        operation."""
        now = self._clock()
        for old_number, number, message_id, size in messages:
            self._count(destination, "send", APP, size)
            if self.ledger is None:
                continue
            mid = message_id.decode("utf-8", "replace") if isinstance(message_id, bytes) else str(message_id)
            outcome = "duplicate" if number == DUPLICATE else "ok"
            event, name = self.ledger.event, self._name
            event("settle", now, name, source, mid=mid, seq=old_number, cause=APP)
            seq = number if number > 0 else None
            event("send", now, name, destination, mid=mid, seq=seq, size=size, outcome=outcome, cause=APP)

    def unauthorized(self, reason: str) -> None:
        """Count a refused token; one in a while is logged too, or anybody could fill the log."""
        self._counters.refused(UNAUTHORIZED_ACCESS)
        now = self._clock()
        if abs(now - self._unauthorized_logged_at) >= _LOG_EVERY_S:
            self._unauthorized_logged_at = now
            log.warning("%s: a token was refused: %s", self._name, reason)

    def peeked(self, path: str, count: int) -> None:
        self._counters.entity(path).peeks += count

    def renewed(self, path: str, count: int) -> None:
        self._counters.entity(path).renews += count

    def refused(self, path: str | None, refusal: Refusal) -> None:
        if path is None:
            self._counters.refused(refusal.condition)
        else:
            self._counters.entity(path).refused(refusal.condition)

    def asked(self, path: str) -> None:
        """Count a request on the entity's `$management`, of whatever kind."""
        self._counters.entity(path).manages += 1

    def managed(self, path: str, outcome: str, size: int, cause: str, since: float, now: float) -> None:
        """Record a management request that is no send, receive or settlement, and its answer of so many bytes."""
        if outcome == "ok":
            self._count(path, "manage", cause, size)
        if self.ledger is not None:
            ms = (now - since) * 1000
            self.ledger.event("manage", now, self._name, path, size=size, outcome=outcome, ms=ms, cause=cause)

    def answered(self, method: str, path: str, status: int, size: int, seconds: float) -> None:
        """Record a request of the HTTP API and its answer of so many bytes."""
        self._counters.requested(status)
        if path.lower() in ("health", "metrics"):
            return
        outcome = "ok" if status < 400 else str(status)
        if outcome == "ok":
            self._count(path, "manage", MANAGE, size)
        if self.ledger is not None:
            self.ledger.event(
                "manage", self._clock(), self._name, path,
                size=size, outcome=outcome, ms=seconds * 1000, cause=MANAGE,
            )  # fmt: skip


def _identity(payload: bytes) -> tuple[str | None, bool]:
    """Return the message's id as text, and whether it is a ping."""
    try:
        properties = read_properties(payload, split(payload))
    except AmqpError:
        return None, False
    mid = properties.message_id
    return None if mid is None else str(mid), properties.content_type == PING_CONTENT_TYPE
