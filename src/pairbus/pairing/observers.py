"""Observers of a paired client: the log, the ledger, and the base class for others.

The client holds a tuple of observers. Each gets every event; sends are reported only to those with `wants_sends`,
receives only to those with `wants_receives`, so that a healthy client without such observers pays nothing. Observers
decide nothing. An observer is called on the thread or loop of the caller and must not block. The client logs and
swallows its exceptions, since an observer must never stop a send.

`sent` is called once for every completed attempt, not once for each call of the application: a primary attempt that
failed and the backlog attempt after it are two lines of the ledger, as they are two operations on the bill.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pairbus.billing import APP, PING
from pairbus.ledger import LedgerWriter
from pairbus.pairing import fork
from pairbus.pairing.backlog.sizes import bound
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.pairing.routing.ping import is_ping, ping

from . import events

RouteWord = Literal["primary", "backlog"]

OK: Final = "ok"
_FLUSH_S: Final = 0.2
_WHY_CHARS_MAX: Final = 300


class Observer:
    """Does nothing: derive from it and override the methods that you need. Safe to call from any thread."""

    #: Whether `sent` is called at all.
    wants_sends: bool = False
    #: Whether `sent_to_backlog` is called although `sent` is not.
    wants_diversions: bool = False
    #: Whether `received` and `settled` are called at all.
    wants_receives: bool = False

    def sent(
        self, entity: str, route: RouteWord, queue: int | None, messages: Sequence[Any], outcome: str, ms: float
    ) -> None:
        """An attempt ended. `outcome` is `ok` or `outcome_of(error)`; `queue` is the backlog queue's index."""

    def received(self, entity: str, messages: Sequence[Any], removed: bool) -> None:
        """A receiver got these messages, pings included, or none in time. `removed`: the broker has deleted them."""

    def settled(self, entity: str, message: Any, is_dead_letter: bool, outcome: str, ms: float) -> None:
        """A receiver completed, abandoned or deferred a message, or dead-lettered it, or failed to."""

    def sent_to_backlog(
        self, entity: str, queue: int | None, messages: Sequence[Any], outcome: str, ms: float, reason: Diversion
    ) -> None:
        """An attempt at a backlog queue ended; `reason` says why the messages did not go to the primary, and which rule
        decided that. Unless it is overridden, it is an attempt like any other."""
        if self.wants_sends:
            self.sent(entity, "backlog", queue, messages, outcome, ms)

    def pinged(self, entity: str, outcome: str, ms: float) -> None:
        """A ping ended."""

    def announced(self, event: events.Event) -> None:
        """Something happened, in the order in which it did."""

    def close(self) -> None:
        """The paired client has closed; there will be no more calls."""


def outcome_of(error: BaseException | None) -> str:
    """Return `ok`, the AMQP condition of the error (`com.microsoft:server-busy`), or its class if it has none."""
    if error is None:
        return OK
    condition = getattr(error, "_condition", None) or getattr(error, "condition", None)
    text = getattr(condition, "value", condition)  # the SDK keeps an enum member
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    return text if isinstance(text, str) and text else type(error).__name__


class LoggingObserver(Observer):
    """Logs one line per change of state, and per anything else that an operator should know."""

    def __init__(self, namespace: str, logger: logging.Logger | None = None) -> None:
        self._namespace = namespace
        self._log = logger or logging.getLogger("pairbus.pairing")
        # Entities near the size limit would fill the log, a line a send.
        self._size_warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<LoggingObserver {self._namespace} to {self._log.name}>"

    def announced(self, event: events.Event) -> None:
        line = _LINES.get(type(event))
        if line is None:
            return
        if isinstance(event, events.SizeWarning):
            if event.entity in self._size_warned:
                return
            self._size_warned.add(event.entity)
        level, text = line(event)
        if self._log.isEnabledFor(level):
            self._log.log(level, "%s: %s", self._namespace, text)


Line = Callable[[Any], tuple[int, str]]


def _state_changed(event: events.StateChanged) -> tuple[int, str]:
    # The return is a warning too: a reader who saw that an outage began must not have to guess that it is over.
    behind = "" if event.error is None else f"; last error: {brief(event.error)}"
    return logging.WARNING, f"{event.entity} is {event.state.value}, was {event.previous.value}: {event.cause}{behind}"


_LINES: Final[dict[type[events.Event], Line]] = {
    events.StateChanged: _state_changed,
    events.PingFailed: lambda e: (logging.DEBUG, f"{e.entity}: ping failed: {brief(e.error)}"),
    events.OperatorActed: lambda e: (logging.INFO, f"{e.entity}: the operator says: {e.action}"),
    events.ControlFileChanged: lambda e: (
        logging.WARNING,
        f"the control file says: {', '.join(f'{name} = {word}' for name, word in e.pins) or 'nothing'}",
    ),
    events.ControlFileUnusable: lambda e: (
        logging.WARNING,
        f"the control file can't be followed, what it said last goes on to hold: {brief(e.error)}",
    ),
    events.BacklogQueueEjected: lambda e: (
        logging.WARNING,
        f"backlog queue {e.queue} is out of the rotation: {brief(e.error)}",
    ),
    events.BacklogQueueReturned: lambda e: (logging.INFO, f"backlog queue {e.queue} is back in the rotation"),
    events.BacklogQueueLeftOut: lambda e: (
        logging.WARNING,
        f"backlog queue {e.queue} could not be made and is left out: {brief(e.error)}",
    ),
    events.WarmLinkFailed: lambda e: (
        logging.WARNING,
        f"no link to the backlog stands ready (queue {e.queue}); trying again in the background: {brief(e.error)}",
    ),
    events.SizeWarning: lambda e: (
        logging.WARNING,
        f"{e.entity}: a message of {e.size} bytes would have {e.diverted_size} in the backlog, the limit is {e.limit}: "
        f"in an outage it can't be sent; make such messages smaller (told once per entity)",
    ),
    events.EntityThrottled: lambda e: (
        logging.WARNING,
        f"{e.entity} is throttled: its {'messages go to the backlog' if e.diverted else 'sends wait'} for "
        f"{e.until_s:.1f} s",
    ),
    events.PairingDegraded: lambda e: (
        logging.WARNING,
        f"not paired yet, sends have no backlog; trying again in the background: {brief(e.error)}",
    ),
    events.PairingCompleted: lambda e: (logging.INFO, f"paired, {e.backlog_queue_count} backlog queues"),
    events.SyphonStarted: lambda e: (logging.INFO, "the syphon runs"),
    events.SyphonStopped: lambda e: (logging.WARNING, f"the syphon stopped: {brief(e.error)}"),
    events.ClientFaulted: lambda e: (logging.ERROR, f"the client of {e.namespace} is faulted: {brief(e.error)}"),
}


def line_of(event: events.Event) -> str | None:
    """Return what the log says of an event; None: nothing."""
    line = _LINES.get(type(event))
    return None if line is None else line(event)[1]


def brief(error: BaseException | None) -> str:
    """Return the first line of an error: those of the SDK have several."""
    if error is None:
        return "no reason given"
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


class LedgerObserver(Observer):
    """Writes `send`, `divert`, `receive`, `poll`, `settle`, `dead-letter`, `ping` and `state` lines
    (docs/reference/ledger.md).

    A line costs a few microseconds in the caller's thread; a separate daemon thread writes the file, and a forked child
    starts a new one at its first line. `primary` and `secondary` are the namespaces' names in the ledger.
    """

    wants_sends = True
    wants_receives = True

    def __init__(
        self,
        folder: Path | str,
        primary: str,
        secondary: str,
        *,
        writer: str = "client",
        size_of: Callable[[Any], int | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.writer = LedgerWriter(Path(folder), writer, clock=clock)
        self._primary = primary
        self._secondary = secondary
        self._size_of = size_of or _size
        self._clock = clock
        self._stop: threading.Event | None = None
        # At exit, or when the client was dropped without close: what is buffered is written.
        self._end = weakref.finalize(self, _close, self.writer)
        fork.register(self)
        self._start()

    def __repr__(self) -> str:
        return f"<LedgerObserver {self._primary} and {self._secondary} to {self.writer.path}>"

    def sent(
        self,
        entity: str,
        route: RouteWord,
        queue: int | None,
        messages: Sequence[Any],
        outcome: str,
        ms: float,
        reason: Diversion | None = None,
    ) -> None:
        now = self._clock()
        kind, namespace = ("send", self._primary) if route == "primary" else ("divert", self._secondary)
        rule = why = given_ms = None
        if reason is not None:
            rule, why, given_ms = reason.rule, reason.why[:_WHY_CHARS_MAX], reason.primary_s * 1000
        event = self.writer.event
        size_of = self._size_of
        for message in messages:
            mid = message_id_of(message)
            event(
                kind, now, namespace, entity,
                mid=mid, size=size_of(message), outcome=outcome, ms=ms, cause=APP, queue=queue,
                rule=rule, why=why, given_ms=given_ms,
            )  # fmt: skip
        if self._stop is None:
            self._start()

    def sent_to_backlog(
        self, entity: str, queue: int | None, messages: Sequence[Any], outcome: str, ms: float, reason: Diversion
    ) -> None:
        self.sent(entity, "backlog", queue, messages, outcome, ms, reason)

    def received(self, entity: str, messages: Sequence[Any], removed: bool) -> None:
        now = self._clock()
        event = self.writer.event
        for message in messages:
            mid, number, size = message_id_of(message), message.sequence_number, self._size_of(message)
            cause = PING if is_ping(message) else APP
            event("receive", now, self._primary, entity, mid=mid, seq=number, size=size, cause=cause)
            if removed:
                event("settle", now, self._primary, entity, mid=mid, seq=number, cause=cause)
        if not messages:
            event("poll", now, self._primary, entity, size=0, cause=APP)
        if self._stop is None:
            self._start()

    def settled(self, entity: str, message: Any, is_dead_letter: bool, outcome: str, ms: float) -> None:
        kind = "dead-letter" if is_dead_letter else "settle"
        mid, number = message_id_of(message), message.sequence_number
        self._write(kind, entity, mid=mid, seq=number, outcome=outcome, ms=ms, cause=APP)

    def pinged(self, entity: str, outcome: str, ms: float) -> None:
        self._write("ping", entity, size=_PING_BYTES, outcome=outcome, ms=ms, cause=PING)

    def announced(self, event: events.Event) -> None:
        if isinstance(event, events.StateChanged):
            why = event.cause if event.error is None else f"{event.cause}: {brief(event.error)}"
            old, new = event.previous.value, event.state.value
            self._write("state", event.entity, outcome=None, cause=None, old=old, new=new, why=why[:_WHY_CHARS_MAX])

    def _write(self, kind: str, entity: str, **fields: Any) -> None:
        self.writer.event(kind, self._clock(), self._primary, entity, **fields)
        if self._stop is None:
            self._start()

    def close(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()
        self._end()

    def _start(self) -> None:
        if not self._end.alive:
            return
        self._stop = threading.Event()
        threading.Thread(
            target=_keep_flushing, args=(weakref.ref(self.writer), self._stop), name="pairbus-ledger", daemon=True
        ).start()

    def forked(self) -> None:
        """Note that the thread is gone in the child; the next line starts another."""
        self._stop = None


def _keep_flushing(reference: weakref.ref[LedgerWriter], stop: threading.Event) -> None:
    while not stop.wait(_FLUSH_S):
        writer = reference()
        if writer is None:
            return
        writer.flush()
        del writer  # or nobody could ever drop it


def _close(writer: LedgerWriter) -> None:
    writer.close()


def ledger_entity(entity: str, path: str) -> str:
    """Return the name of a receiver's entity in the ledger: as the broker writes it, whatever the case of the path."""
    for suffix in ("/$Transfer/$DeadLetterQueue", "/$DeadLetterQueue"):
        if path.lower().endswith(suffix.lower()):
            return entity + suffix
    return entity


def message_id_of(message: Any) -> str | None:
    """Return the id of a ServiceBusMessage or an AmqpAnnotatedMessage as text."""
    try:
        mid = message.message_id
    except AttributeError:
        properties = getattr(message, "properties", None)
        mid = getattr(properties, "message_id", None)
    if mid is None or isinstance(mid, str):
        return mid
    return mid.decode("utf-8", "replace") if isinstance(mid, bytes) else str(mid)


def _size(message: Any) -> int | None:
    """Return an upper bound, 150 to 200 bytes above the encoded size: measuring would cost ten times as much."""
    try:
        return bound(message)
    except AttributeError:  # not a message of the SDK's: nothing is known
        return None


#: Of a ping, whose session id is 32 digits.
_PING_BYTES: Final = bound(ping("0" * 32))
