"""What is seen of a namespace from outside: its counters always, its ledger where one is kept.

The links report here what they did; nothing is decided. With the ledger off an observation is a few additions; with
it on, each message costs one read of its properties for the id, and one line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pairbus.amqp.errors import UNAUTHORIZED_ACCESS, AmqpError
from pairbus.amqp.events import Delivered
from pairbus.amqp.message import BATCH_FORMAT, read_properties, split, split_batch
from pairbus.ledger import LedgerWriter

from .content import PING_CONTENT_TYPE
from .metrics import NamespaceCounters
from .outcomes import Abandon, Complete, DeadLetter, Defer, Outcome, Release
from .queue import Message
from .refusal import Refusal

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0
_OUTCOMES: dict[type, str] = {
    Complete: "complete",
    Abandon: "abandon",
    Defer: "defer",
    DeadLetter: "dead-letter",
    Release: "release",
}


class Observation:
    __slots__ = ("_clock", "_counters", "_ledger", "_name", "_unauthorized_logged_at")

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
        self._ledger = ledger

    def connected(self) -> None:
        self._counters.connections_total += 1

    def sent(self, path: str, event: Delivered, count: int, since: float, now: float, refusal: Refusal | None) -> None:
        counters = self._counters.entity(path)
        if refusal is None:
            counters.sends += count
            counters.send_bytes += len(event.payload)
        else:
            counters.refused(refusal.condition, count)
        if self._ledger is not None:
            try:
                payloads = split_batch(event.payload) if event.message_format == BATCH_FORMAT else [event.payload]
            except AmqpError:
                payloads = []
            self._write_sends(path, payloads, since, now, refusal)

    def _write_sends(self, path: str, payloads: list[bytes], since: float, now: float, refusal: Refusal | None) -> None:
        assert self._ledger is not None
        outcome = "ok" if refusal is None else refusal.condition
        for payload in payloads:
            mid, is_ping = _identity(payload)
            self._ledger.event(
                "ping" if is_ping else "send",
                now,
                self._name,
                path,
                mid=mid,
                size=len(payload),
                outcome=outcome,
                ms=(now - since) * 1000,
                cause="ping" if is_ping else "app",
            )

    def scheduled(self, path: str, payloads: list[bytes], since: float, now: float, refusal: Refusal | None) -> None:
        counters = self._counters.entity(path)
        if refusal is None:
            counters.sends += len(payloads)
            counters.send_bytes += sum(map(len, payloads))
        else:
            counters.refused(refusal.condition, len(payloads))
        if self._ledger is not None:
            self._write_sends(path, payloads, since, now, refusal)

    def received(self, path: str, message: Message, payload: bytes, now: float) -> None:
        counters = self._counters.entity(path)
        counters.receives += 1
        counters.receive_bytes += len(payload)
        if self._ledger is not None:
            mid, _ = _identity(payload)
            self._ledger.event(
                "receive", now, self._name, path, mid=mid, seq=message.sequence_number, size=len(payload), cause="app"
            )

    def polled(self, path: str, now: float) -> None:
        """A receive that got nothing: it costs as much as one that did."""
        self._counters.entity(path).polls += 1
        if self._ledger is not None:
            self._ledger.event("poll", now, self._name, path, cause="app")

    def settled(
        self, path: str, outcome: Outcome, messages: list[int], since: float, now: float, refusal: Refusal | None
    ) -> None:
        counters = self._counters.entity(path)
        if refusal is None:
            counters.settled(_OUTCOMES[type(outcome)], len(messages))
        else:
            counters.refused(refusal.condition, len(messages))
        if self._ledger is not None:
            kind = "dead-letter" if isinstance(outcome, DeadLetter) else "settle"
            for sequence_number in messages:
                self._ledger.event(
                    kind,
                    now,
                    self._name,
                    path,
                    seq=sequence_number,
                    outcome="ok" if refusal is None else refusal.condition,
                    ms=(now - since) * 1000,
                    cause="app",
                )

    def unauthorized(self, reason: str) -> None:
        """A token was refused. All are counted; one in a while is logged, or anybody could fill the log."""
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

    def managed(self, path: str, operation: str, now: float) -> None:
        """A request on the entity's `$management`."""
        self._counters.entity(path).manages += 1
        if self._ledger is not None:
            self._ledger.event("manage", now, self._name, path, cause="app")

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """A call of the HTTP API."""
        self._counters.requested(status)
        if self._ledger is not None and path.lower() not in ("health", "metrics"):
            outcome = "ok" if status < 400 else str(status)
            self._ledger.event(
                "manage", self._clock(), self._name, path, outcome=outcome, ms=seconds * 1000, cause="manage"
            )


def _identity(payload: bytes) -> tuple[str | None, bool]:
    """The message's id as text, and whether it is a ping (P31)."""
    try:
        properties = read_properties(payload, split(payload))
    except AmqpError:
        return None, False
    mid = properties.message_id
    return None if mid is None else str(mid), properties.content_type == PING_CONTENT_TYPE
