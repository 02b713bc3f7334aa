"""The split of a caller's time (P19): at every attempt half of what remains is kept back while there is another place
to send the message to; the last place gets all. No attempt can use up the time of the next, and none passes the end.
All backlog queues together leave an eighth of the caller's time for the primary, which is tried once more after them
(P13): many queues that hang must not leave it with a thousandth.

Busy retries follow the same rule, each with half of what then remains: together with the halts they may use all of the
caller's time (P24), and the backlog is never without a share.
"""

from __future__ import annotations

from typing import Final

# Less than this is no attempt: an error then says that no time was left, rather than blame a broker.
LEAST_S: Final = 0.001
# A time-out after less than this tells of an impatient caller, not of a backlog queue (P13). Where all times are short,
# by `send_timeout`, it shrinks with them.
PATIENCE_S: Final = 1.0
# So long may the opening of a link to a backlog queue take, over any number of attempts (P13): enough for a namespace
# half a second away. After that the next attempt opens another one, and that there is none tells of the queue.
OPENING_S: Final = 10.0


def share(remaining: float, another: bool) -> float:
    """What the next attempt may take. `another`: there is one more place that could take the message."""
    return remaining / 2 if another else remaining


def kept_for_primary(remaining: float, total: float) -> float:
    """What all backlog queues together leave for the last attempt of a call that was granted `total`: nothing where
    only one attempt is left, which is then a queue's."""
    kept = min(total / 8, remaining / 2)
    return 0.0 if is_over(remaining - kept) else kept


def opening_goes_on(granted: float) -> float:
    """How long an opening that an attempt has begun goes on after it, for the next one (P13)."""
    return max(0.0, OPENING_S - granted)


def opening_tells(waited: float) -> bool:
    """Whether a link that was wanted so long ago and is still not open tells of the backlog queue."""
    return waited >= OPENING_S


def send_fits(remaining: float, opening_took: float) -> bool:
    """Whether what is left after the opening of a link is enough for a send, which takes one of the many exchanges that
    an opening takes. A send that times out would cost the link, and every attempt could go the same way (P13)."""
    return remaining >= min(opening_took, OPENING_S) / 4


def is_over(remaining: float) -> bool:
    return remaining < LEAST_S


def halt_fits(until: float, ends: float) -> bool:
    """Time for an attempt remains when the halt is over."""
    return not is_over(ends - until)


def is_patient(granted: float, send_timeout: float) -> bool:
    """Who waited this long for a backlog queue may take it out of everyone's rotation by a time-out."""
    return granted >= min(PATIENCE_S, send_timeout / 8)
