"""Decides what a refusal by the primary means for a message, and when a destination is tried again.

It decides whether messages for a destination may be sent now, how long an unreachable one is left alone, so that it
costs one attempt from time to time and not one per message, and which message is that attempt. A message's age and
other destinations' failures play no part. It does not send, and knows no queues: `transfer_state` asks it.

    state      means                                    an arriving message      leaves it by
    flowing    it takes messages                        is sent                  a failure → held
    held       it failed; nothing is sent until a time  is left to its lock      that time → due
    due        the time is over                         is sent, as the trial    that message's sending → trying
    trying     one message is under way                 waits for its answer     its answer → flowing or held

Answers carry the epoch in which their send began; one from before the last failure changes nothing, so that a batch
that was confirmed late does not shorten a pause.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pairbus.wire.batches import BatchHistory
from pairbus.wire.errors import (
    Busy,
    ClientClosed,
    LinkLost,
    NotFound,
    QuotaExceeded,
    Refused,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unreachable,
    WindowFull,
    WireError,
)

#: Server busy halts a destination for at least this long.
HALT_S: Final = 10.0
AWAY_S_FIRST: Final = 1.0
AWAY_S_MAX: Final = 60.0
#: How long until a destination that was not found is tried again.
GONE_S: Final = 10.0
#: Destinations that take messages are forgotten beyond this many; those in trouble never.
KNOWN_MAX: Final = 10_000


class RefusalVerdict(enum.Enum):
    GONE = "gone"  # there is no such destination: its messages are dead-lettered
    REFUSED = "refused"  # this message is refused permanently: it is dead-lettered, others may pass
    BUSY = "busy"
    FULL = "full"
    UNREACHABLE = "unreachable"
    DENIED = "access denied"  # to us: the fault of a key, not of a message

    @property
    def is_for_good(self) -> bool:
        return self is RefusalVerdict.GONE or self is RefusalVerdict.REFUSED


class Row(NamedTuple):
    """One row of the table of refusals. `condition` is the peer's; None stands for every condition of that error."""

    kind: type[WireError]
    condition: str | None
    verdict: RefusalVerdict


#: The first row that fits decides. An unknown condition is taken for a temporary failure.
ROWS: Final[tuple[Row, ...]] = (
    Row(NotFound, None, RefusalVerdict.GONE),
    Row(TooLarge, None, RefusalVerdict.REFUSED),
    Row(QuotaExceeded, None, RefusalVerdict.FULL),
    Row(Busy, None, RefusalVerdict.BUSY),
    Row(Unauthorized, None, RefusalVerdict.DENIED),
    Row(Refused, "amqp:not-allowed", RefusalVerdict.REFUSED),
    Row(Refused, "amqp:not-implemented", RefusalVerdict.REFUSED),
    Row(Refused, "amqp:invalid-field", RefusalVerdict.REFUSED),
    Row(Refused, "amqp:decode-error", RefusalVerdict.REFUSED),
    Row(Refused, "amqp:precondition-failed", RefusalVerdict.REFUSED),
    Row(Refused, "com.microsoft:argument-error", RefusalVerdict.REFUSED),
    Row(Refused, "com.microsoft:argument-out-of-range", RefusalVerdict.REFUSED),
    # it may be enabled again: a backlog that was dead-lettered meanwhile would have to be replayed
    Row(Refused, "com.microsoft:entity-disabled", RefusalVerdict.UNREACHABLE),
    Row(Refused, None, RefusalVerdict.UNREACHABLE),
    Row(LinkLost, None, RefusalVerdict.UNREACHABLE),
    Row(Unreachable, None, RefusalVerdict.UNREACHABLE),
    Row(TimedOut, None, RefusalVerdict.UNREACHABLE),
    Row(WindowFull, None, RefusalVerdict.UNREACHABLE),
    Row(ClientClosed, None, RefusalVerdict.UNREACHABLE),
)


def verdict_of(error: WireError) -> RefusalVerdict:
    if error.outcome_unknown:
        return RefusalVerdict.UNREACHABLE  # it may have arrived, so it must not be dead-lettered
    for kind, condition, verdict in ROWS:
        if isinstance(error, kind) and condition in (None, error.condition):
            return verdict
    return RefusalVerdict.UNREACHABLE


class Trouble(NamedTuple):
    """Says why nothing is sent to a destination."""

    verdict: RefusalVerdict
    text: str
    condition: str
    #: Failed attempts in a row.
    strikes: int
    since: float
    #: Until then nothing is sent.
    until: float


class _Record:
    __slots__ = ("batches", "epoch", "trouble", "trying")

    def __init__(self) -> None:
        self.batches: BatchHistory | None = None
        self.epoch = 0
        self.trouble: Trouble | None = None
        self.trying = False


class Destinations:
    """`halted_until(path)`: a pause that others in this process know of, in the same seconds as `now`; 0.0 for none."""

    def __init__(self, halted_until: Callable[[str], float] | None = None) -> None:
        self._records: dict[str, _Record] = {}
        self._halted_until = halted_until

    def __repr__(self) -> str:
        held = sum(1 for record in self._records.values() if record.trouble is not None)
        return f"<Destinations {len(self._records)} known, {held} in trouble>"

    def __len__(self) -> int:
        return len(self._records)

    # -- asked

    def obstacle(self, path: str, now: float) -> Trouble | None:
        """Return why a message for `path` must not be sent now, or None if it may."""
        record = self._records.get(path)
        if record is not None:
            trouble = record.trouble
            if trouble is not None and (record.trying or now < trouble.until):
                return trouble
        if self._halted_until is not None:
            until = self._halted_until(path)
            if until > now:
                return Trouble(RefusalVerdict.BUSY, "halted", "com.microsoft:server-busy", 1, now, until)
        return None

    def begin(self, path: str) -> int:
        """Note a send, and return the epoch that its answer must carry. There must be no obstacle."""
        record = self._records.get(path)
        if record is None:
            record = self._records[path] = _Record()
            if len(self._records) > KNOWN_MAX:
                self._forget()
        if record.trouble is not None:
            record.trying = True
        return record.epoch

    def is_trial(self, path: str) -> bool:
        """Return whether only a single message may be sent; its answer decides for the others."""
        record = self._records.get(path)
        return record is not None and record.trouble is not None

    def is_trying(self, path: str) -> bool:
        """Return whether that single message has been sent and has no answer yet."""
        record = self._records.get(path)
        return record is not None and record.trying

    def sends_singly(self, path: str) -> bool:
        """Return whether messages for `path` must not share a transfer."""
        record = self._records.get(path)
        return record is not None and record.batches is not None and record.batches.sends_singly

    def trouble(self, path: str) -> Trouble | None:
        """Return the last trouble of a destination, whether or not it may be tried again by now."""
        record = self._records.get(path)
        return None if record is None else record.trouble

    def troubled(self) -> Iterator[tuple[str, Trouble]]:
        for path, record in self._records.items():
            if record.trouble is not None:
                yield path, record.trouble

    def due(self, now: float) -> list[str]:
        """Return the destinations that wait for a message to be tried with."""
        return [
            path
            for path, record in self._records.items()
            if record.trouble is not None and not record.trying and record.trouble.until <= now
        ]

    # -- outcomes of sends

    def succeeded(self, path: str, epoch: int) -> bool:
        """Note a confirmed send; return whether it ended a trouble of the destination."""
        record = self._records.get(path)
        if record is None or record.epoch != epoch or record.trouble is None:
            return False
        record.trouble = None
        record.trying = False
        return True

    def batch_refused(self, path: str, error: WireError, count: int) -> None:
        """Note that a transfer of several messages was refused: each of them is then sent alone."""
        record = self._records.setdefault(path, _Record())
        record.batches = record.batches or BatchHistory()
        record.batches.refused(error.condition, count)

    def answered_alone(self, path: str, is_confirmed: bool) -> None:
        """Note the answer to a message that was sent alone."""
        record = self._records.get(path)
        if record is not None and record.batches is not None:
            record.batches.answered_alone(is_confirmed)

    def failed(self, path: str, epoch: int, error: WireError, now: float) -> bool:
        """Note a failed send; return False if it began before the last failure, which said the same."""
        record = self._records.setdefault(path, _Record())
        verdict = verdict_of(error)
        before = record.trouble
        if record.epoch != epoch and (verdict is not RefusalVerdict.BUSY or before is not None):
            if verdict is RefusalVerdict.BUSY and before is not None:
                # told late, but told: nothing is sent for ten seconds from now
                record.trouble = before._replace(until=max(before.until, now + HALT_S))
            return False
        strikes = 1 if before is None else before.strikes + 1
        since = now if before is None else before.since
        record.epoch += 1
        record.trying = False
        record.trouble = Trouble(
            verdict, error.description, error.condition, strikes, since, now + pause(verdict, strikes)
        )
        return True

    def epoch(self, path: str) -> int:
        record = self._records.get(path)
        return 0 if record is None else record.epoch

    def _forget(self) -> None:
        for path in [path for path, record in self._records.items() if record.trouble is None][: KNOWN_MAX // 2]:
            del self._records[path]


def pause(verdict: RefusalVerdict, strikes: int) -> float:
    """Return for how many seconds nothing is sent after so many failures in a row."""
    if verdict.is_for_good:
        return GONE_S
    first = HALT_S if verdict is RefusalVerdict.BUSY else AWAY_S_FIRST
    return min(AWAY_S_MAX, first * 2.0 ** min(strikes - 1, 16))
