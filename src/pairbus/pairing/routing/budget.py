"""Splits a caller's time between attempts.

While there is another place to send the message to, an attempt gets half of the remaining time; the last place gets all
of it. No attempt can use up the time of the next, and none exceeds the caller's time. All backlog queues together leave
an eighth of it for the primary, which is tried once more after them: otherwise many queues that hang would leave it
with a thousandth.

Busy retries follow the same rule, each with half of the time that then remains: together with the pauses they may use
all of the caller's time, and the backlog always keeps a share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# With less than this there is no attempt: an error then says that no time was left, rather than blame a broker.
LEAST_S: Final = 0.001
# A time-out after less than this shows an impatient caller, not a failing backlog queue. If `send_timeout` makes all
# times short, it shrinks with them.
PATIENCE_S: Final = 1.0
# How long the opening of a link to a backlog queue may take, over any number of attempts: enough for a namespace half a
# second away. After that the next attempt opens another one, and the missing link counts against the queue.
OPENING_S: Final = 10.0


def share(remaining: float, another: bool) -> float:
    """Return the time of the next attempt; `another` says that one more place could take the message."""
    return remaining / 2 if another else remaining


def kept_for_primary(remaining: float, total: float) -> float:
    """Return the time that all backlog queues together leave for the last attempt of a call that was granted `total`.

    It is nothing where only one attempt is left, which then goes to a queue.
    """
    kept = min(total / 8, remaining / 2)
    return 0.0 if is_over(remaining - kept) else kept


def opening_goes_on(granted: float) -> float:
    """Return how long the opening of a link goes on after the attempt that began it, for the next attempt."""
    return max(0.0, OPENING_S - granted)


def opening_tells(waited: float) -> bool:
    """Return whether a link that is still not open after `waited` seconds counts against the backlog queue."""
    return waited >= OPENING_S


def send_fits(remaining: float, opening_took: float) -> bool:
    """Return whether the time left after the opening of a link is enough for a send.

    A send takes one of the many exchanges that an opening takes. One that times out would cost the link, and every
    attempt could go the same way.
    """
    return remaining >= min(opening_took, OPENING_S) / 4


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a send that both sides refuse asks them again, and how long it waits before that.

    These are the SDK's own retries, as the user configured them: the bare SDK would try the primary so often.
    """

    total: int = 0
    backoff_s: float = 0.8
    backoff_max_s: float = 120.0
    is_fixed: bool = False

    def wait_s(self, done: int) -> float | None:
        """Return the wait after `done` retries; None: there are no more."""
        if done >= self.total:
            return None
        growth = 1.0 if self.is_fixed else 2.0 ** min(done + 1, _DOUBLINGS_MAX)
        return min(self.backoff_max_s, self.backoff_s * growth)


#: The retries of the profile "interactive": each side is asked twice, a second apart.
INTERACTIVE: Final = Retries(1, 1.0, 1.0, is_fixed=True)
_DOUBLINGS_MAX: Final = 32
#: The primary's share of a round is halved for each round that follows, up to so many.
_ROUNDS_MAX: Final = 3


def share_of_round(remaining: float, rounds_left: int) -> float:
    """Return the time of the attempt at the primary that ends a round in which the backlog refused.

    A silent primary must not use up the time in which the backlog may take messages again.
    """
    return remaining / 2.0 ** min(1 + rounds_left, 1 + _ROUNDS_MAX)


def is_over(remaining: float) -> bool:
    return remaining < LEAST_S


def halt_fits(until: float, ends: float) -> bool:
    """Return whether time for an attempt remains after a busy pause that ends at `until`."""
    return not is_over(ends - until)


def is_patient(granted: float, send_timeout: float) -> bool:
    """Return whether an attempt with this much time may eject a backlog queue by a time-out."""
    return granted >= min(PATIENCE_S, send_timeout / 8)
