"""Decides how a bounded run over an entity continues: take messages, check what is still there, wait, or end. Pure.

A round is one Spark job that locks, sends and settles a number of messages. This module decides how many the next round
takes, when to peek instead, how long to wait for messages that another receiver holds locked or for an unreachable
destination, and when the run is over. Pure: callers pass `now`, and it neither locks nor peeks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pairbus.spark.connector.batch_limits import shares
from pairbus.syphon.core.destinations import HALT_S
from pairbus.syphon.core.draining import STRIKES
from pairbus.syphon.core.rate_limit import RateLimit

ROUND_MAX: Final = 20_000
#: Of one task: a link may have 5,000 deliveries open, and those settled by token, elsewhere, count until it is swept.
TASK_MAX: Final = 5_000
#: Until something has arrived: a destination that takes none of them should be tried with few.
ROUND_FIRST: Final = 500
#: Between two tries of a destination that is away, or two looks at messages that others hold: doubled each time.
PAUSE_S_FIRST: Final = 1.0
PAUSE_S_MAX: Final = 8.0
#: A message whose holder died comes back when its lock ends, after five minutes at most.
PATIENCE_S: Final = 330.0
LOOK_MAX: Final = 100
#: How many rounds in a row may fail as a whole.
FAILURES_MAX: Final = 4


class Take(NamedTuple):
    messages: int


class Look(NamedTuple):
    """Check by peek which chosen messages are still there."""


class Wait(NamedTuple):
    seconds: float
    why: str | None


class Over(NamedTuple):
    """`reason`: why some could not be moved."""

    reason: str | None = None


Step = Take | Look | Wait | Over


def spread(count: int, left: int | None) -> tuple[int, ...]:
    """Return how many messages of a round each task receives. `left`: how many there are by all accounts; a task
    that finds none waits for them, so that there should be no more tasks than have something to do."""
    likely = min(count, left or 0)
    return (count,) if likely <= TASK_MAX else shares(likely, 1, TASK_MAX)


class RoundResult(NamedTuple):
    """The result of a round. `left` were locked and not moved; `refused` of them are refused permanently."""

    moved: int
    left: int
    refused: int
    #: Of the destination, where it is in trouble: the text, and whether it said busy.
    trouble: str | None = None
    is_busy: bool = False


class TransferLoop:
    """`chosen`: how many there are to be moved, None where nobody counted them. An end without a reason comes only
    after a look that found nothing but what was refused."""

    def __init__(self, chosen: int | None, rate: RateLimit, now: float, *, patience_s: float = PATIENCE_S) -> None:
        self._chosen = chosen
        self._rate = rate
        self._patience_s = patience_s
        self._moved = self._refused = 0
        self._strikes = self._failures = self._idle = 0
        self._progress_at = now
        self._held_until = now
        self._why: str | None = None
        self._asked = 0
        self._fruitful = False
        self._must_look = False
        self._over: Over | None = None

    def __repr__(self) -> str:
        of = "" if self._chosen is None else f" of {self._chosen}"
        return f"<TransferLoop {self._moved}{of} moved, {self._refused} refused, {self._strikes} strikes>"

    def next(self, now: float) -> Step:
        if self._over is not None:
            return self._over
        # a message whose completion was lost came twice and was counted twice: only a look can tell
        if self._must_look or self._is_enough():
            return Look()
        if now < self._held_until:
            return Wait(self._held_until - now, self._why)
        wait_s = self._rate.wait_s(now)
        if wait_s > 0:
            return Wait(wait_s, None)
        at_once = ROUND_MAX if self._moved else ROUND_FIRST
        count = 1 if self._strikes or self._idle else self._rate.batch(at_once, 1, now)
        if self._chosen is not None:
            count = min(count, self._chosen - self._moved - self._refused)
        self._asked = count
        return Take(count)

    def ended(self, result: RoundResult, now: float) -> None:
        self._failures = 0
        self._rate.received(result.moved + result.left, now)
        if result.moved:
            self._rate.moved(result.moved, now)
        if result.is_busy:
            self._rate.busy(now)
        self._moved += result.moved
        self._refused += result.refused
        self._fruitful = bool(result.moved or result.refused)
        if self._fruitful:
            self._progress_at = now
            self._strikes = self._idle = 0
        if result.left > result.refused:
            # an unreachable destination; one that accepted others of this round still gets its time
            self._strikes += 0 if result.moved else 1
            self._pause(now, self._strikes, f"the destination: {result.trouble or 'no answer in time'}")
            if result.is_busy:
                self._held_until = max(self._held_until, now + HALT_S)
            if self._strikes >= STRIKES:
                self._over = Over(result.trouble or "the destination gave no answer in time")
        elif result.moved + result.left < max(1, self._asked):
            self._must_look = True
        if not self._moved and self._refused >= ROUND_FIRST:
            self._over = Over("the destination refuses them for good; the others were not tried")

    def looked(self, remaining: int, now: float) -> None:
        """`remaining`: up to LOOK_MAX of them, which is as many as it takes to know."""
        self._must_look = False
        if not remaining:
            self._over = Over()
        elif now - self._progress_at >= self._patience_s:
            self._over = Over("locked by another receiver, or behind more messages than can be passed over at once")
        elif self._is_enough():
            self._chosen = None
        elif not self._fruitful:
            self._idle += 1
            self._pause(now, self._idle, f"{_some(remaining)} locked elsewhere")

    def failed(self, text: str, now: float) -> bool:
        """Note that the round ended with an error; return whether to go on."""
        self._failures += 1
        self._pause(now, self._failures, text)
        return self._failures < FAILURES_MAX

    def _is_enough(self) -> bool:
        return self._chosen is not None and self._moved + self._refused >= self._chosen

    def _pause(self, now: float, times: int, why: str) -> None:
        self._why = why
        self._held_until = now + min(PAUSE_S_MAX, PAUSE_S_FIRST * 2.0 ** max(0, times - 1))


def _some(count: int) -> str:
    if count == 1:
        return "1 message that is"
    return f"{count} {'or more ' if count >= LOOK_MAX else ''}messages that are"
