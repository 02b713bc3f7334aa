"""What the state of one entity of a paired client must be, by a plain account of its own. Pure.

paired.py keeps one `Entity` for each, and says what calls may do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.states import EntityState

HALT_S: Final = 10.0
CLOSE_S: Final = 1e-6
HEALTHY, SUSPECT, FAILED_OVER, UNREACHABLE = EntityState


class Broken(Exception):
    """A rule was broken."""


def demand(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


def is_close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE_S


@dataclass(slots=True, eq=False)
class Attempt:
    """A message at a broker: at the primary, or (`queue`) in the backlog."""

    queue: int | None
    granted_s: float
    returns: int = 0
    is_trial: bool = False
    is_once_more: bool = False  # at the primary, after the last backlog queue
    began_left: bool = False
    term: int = 0
    patience_s: float = math.inf  # with the primary's silence
    opening_s: float = math.inf  # and with a link to it that is being opened


@dataclass(slots=True, eq=False)
class Probe:
    """A ping or a trial, and in which stay it began."""

    stay: int


class Entity:
    """What the state of one entity must be: P16, P17, P21, P23, P24, P31, P34, P35, in plain words."""

    def __init__(self, settings: Settings, draw: float) -> None:
        self.settings = settings
        self.first_ping_s = settings.ping_primary_interval * (1 - draw)
        self.ramp_s = settings.return_ramp * draw
        self.home: float | None = None  # when the return ramp ends
        self.pin: str | None = None
        self.first_failure: float | None = None
        self.left = False
        self.refused = False
        self.held = False
        self.good = 0
        self.due = 0.0
        self.is_soon = False
        self.freed = 0.0  # when the last ping ended: the next may have been due before
        self.probe: Probe | None = None
        #: Counted: how often the primary was taken again, and how often it was left (or held).
        self.returns = 0
        self.stay = 0
        self.halted_until = 0.0
        self.busy_since: float | None = None
        #: When the primary was first asked since its last answer.
        self.asked: float | None = None
        self.slow: list[bool] = []  # of the last sends
        #: How long each answer on an open link took, and how often adaptive patience was doubled: 1, 2, 4 …
        self.took: list[float] = []
        self.widened, self.widened_at = 1.0, 0.0

    @property
    def state(self) -> EntityState:
        if self.left:
            return UNREACHABLE if self.refused else FAILED_OVER
        return HEALTHY if self.first_failure is None else SUSPECT

    def wake(self) -> float | None:
        """When the clock, rather than an answer, a message or the operator, will wake a sick entity."""
        if self.first_failure is not None:
            return self.first_failure + self.settings.failover_interval
        if self.home is not None:
            return self.home
        if self.left and not self.held and self.probe is None and self.settings.probe == "ping":
            return self.due
        return None

    def clock(self, now: float) -> None:
        if self.first_failure is not None and now >= self.first_failure + self.settings.failover_interval:
            self.leave(self.first_failure + self.settings.failover_interval)
        if self.home is not None and now >= self.home:
            self.come_back()

    def leave(self, at: float) -> None:
        self.left, self.refused, self.held = True, False, False
        self.first_failure = None
        self.good = 0
        self.slow = []
        self.stay += 1
        self.due, self.is_soon = at + self.first_ping_s, False

    def come_back(self) -> None:
        self.left = self.refused = self.held = False
        self.first_failure = self.home = None
        self.slow = []
        self.returns += 1
        self.asked = None  # what brought it back is an answer

    def begin_return(self, now: float) -> None:
        """At once, or when the ramp has come to this client."""
        if self.ramp_s:
            self.refused, self.home = False, now + self.ramp_s
        else:
            self.come_back()

    def sent(self, now: float) -> None:
        self.clock(now)
        if self.first_failure is not None:
            self.slow = []
        self.first_failure = None
        self.busy_since = None

    def is_slow(self, took_s: float) -> bool:
        brownout = self.settings.brownout
        return brownout is not None and took_s > brownout.slower_than_s

    def is_browned_out(self, took_s: float) -> bool:
        """Note how long a send took; return whether more than the share of the last ones was slow (P24)."""
        brownout = self.settings.brownout
        if brownout is None:
            return False
        self.slow = [*self.slow, self.is_slow(took_s)][-brownout.sends :]
        return len(self.slow) == brownout.sends and sum(self.slow) > brownout.share * brownout.sends

    def silent_for(self, now: float) -> float:
        return 0.0 if self.asked is None else now - self.asked

    def judge_patience(self, silence_s: float, now: float) -> None:
        """Adaptive patience is a multiple of what nine of ten of the last answers took, counted at each of the
        first 64 and then at every eighth of them, and doubled for each false alarm, which is forgotten after an hour
        (P19)."""
        count = len(self.took)
        if count < 20:
            demand(silence_s == math.inf, f"P19: after {count} answers it is half of the caller's time")
            return
        last = sorted(self.took[: count if count < 64 else count - count % 8][-64:])
        widened = silence_s / max(0.25, 12 * last[math.ceil(len(last) * 0.9) - 1])
        is_doubled = any(math.isclose(widened, 2.0**times) for times in range(7))
        demand(is_doubled, f"P19: adaptive patience of {silence_s:.3f} s is not what the sends took lately")
        if not math.isclose(widened, self.widened):
            is_calm = now - self.widened_at >= 1800.0  # the alarm came before it was seen here
            demand(widened > self.widened or is_calm, "P19: a false alarm was forgotten")
            self.widened, self.widened_at = widened, now

    def failed(self, now: float, returns: int) -> None:
        self.clock(now)
        if not self.left and self.first_failure is None and returns == self.returns and self.pin is None:
            self.first_failure = now
            self.clock(now)

    def busy(self, now: float, *, sending: bool) -> bool:
        """Return whether it was busy for too long."""
        if now >= self.halted_until + HALT_S:
            self.busy_since = None
        if sending and self.busy_since is None:
            self.busy_since = now
        self.halted_until = max(self.halted_until, now + HALT_S)
        limit = self.settings.busy_failover_after
        return sending and limit is not None and self.busy_since is not None and now - self.busy_since >= limit

    def begin_probe(self, now: float) -> None:
        demand(self.left, f"P33: probed, and {self.state.value}")
        demand(not self.held, "P23: probed, and held by the operator or the control file")
        demand(self.home is None, "P33: probed, and found healthy already")
        demand(self.probe is None, "P33: two probes under way")
        demand(now >= self.due - CLOSE_S, f"P31: probed at {now:.3f}, before {self.due:.3f}")
        self.probe = Probe(self.stay)
        # After a ping that came before its time the others are spread over the interval again.
        self.due = now + (self.first_ping_s if self.is_soon else self.settings.ping_primary_interval)
        self.is_soon = False

    def end_probe(self, now: float, how: Literal["good", "refused", "unanswered", "nothing"]) -> bool:
        """Return whether it was of the present failover."""
        self.clock(now)
        probe, self.probe = self.probe, None
        demand(probe is not None, "P33: an answer to a probe that was over")
        counts = self.left and not self.held and probe is not None and probe.stay == self.stay and self.home is None
        if how == "nothing" or not counts:
            return counts
        if how == "good":
            self.count_good(now)
        else:
            self.good = 0
            self.refused = how == "refused"
        return True

    def count_good(self, now: float, *, is_link_open: bool = False) -> None:
        self.good += 1
        self.refused = False
        if self.good >= self.settings.pings_to_return:
            self.come_back() if is_link_open else self.begin_return(now)

    def sent_once_more(self, now: float, attempt: Attempt) -> None:
        """As a good ping, if it began in this stay."""
        self.clock(now)
        if self.left and not self.held and attempt.began_left and attempt.returns == self.returns and self.pin is None:
            self.count_good(now, is_link_open=True)

    def forced(self, now: float, hold: bool) -> None:
        self.clock(now)
        if not self.left:
            self.leave(now)
        elif (self.held or self.home is not None) and not hold:  # the pings begin anew
            self.due, self.is_soon = now + self.first_ping_s, False
            self.good = 0
        self.refused, self.home = False, None
        self.held = hold
        if hold:
            self.stay += 1

    def marked(self, now: float) -> None:
        self.clock(now)
        if self.left or self.first_failure is not None:
            self.come_back()

    def pinned(self, now: float, pin: str | None) -> None:
        """The control file says where the entity is; None: nothing any more."""
        self.clock(now)
        if pin == self.pin:
            return
        self.pin = pin
        if pin == "failed-over":
            self.forced(now, True)
        elif pin == "healthy":
            self.held = False
            if self.left:
                self.begin_return(now)
            else:
                self.marked(now)
        elif self.left:
            self.forced(now, False)
