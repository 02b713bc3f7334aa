"""Decides the failover of one entity: when to leave the primary, when to probe it, when to return.

A pure machine: callers report facts with the time at which they learned them, and get commands back; `deadline` says
when `tick` is due. The state changes only by `TABLE`, in `_move`. What a failure means (`verdicts`), where a message
goes next (`dispatch`) and which entity pauses (`busy_pause`) are decided elsewhere.

Late answers. An attempt at the primary carries the `epoch` in which it began, and the epoch grows at each return to the
primary: the failure of an attempt from an earlier epoch says nothing about the present and starts nothing. The answer
to a probe that left before the present failover began is stale in the same way. The late success of an attempt from
before the failover changes nothing: a probe, the operator, or a message that the primary took once more brings the
entity back.

A message that no backlog queue took, and that the primary then confirmed, counts as a good ping: a ping is refused
whenever a message would be, so the confirmation of a message says at least as much. Where several good pings are asked
for, it is one of them. Its failure counts for nothing: it may have had little time left, and pings go on.

What wakes a sick entity is always one thing: the interval's end (SUSPECT), the answer of the probe that is under way,
the time of the next ping, the first send after the time of the next trial, the end of the return ramp, or the operator
(`hold`, and the control file that pins it).

Fleets. Each client has a `phase`, its share of the first ping interval, so that clients that failed over in the same
second do not ping in the same second. A good probe ends the failover `return_delay` seconds later, the client's share
of the option `return_ramp`: messages go to the backlog until then, no ping is sent, and a message that the primary took
once more ends the wait, since its link is open already.

Pins. The control file wins over everything else: failures, probes and messages do not change the state of a pinned
entity; `_move` ignores them.
"""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

from pairbus.pairing.events import Announce, Command, PingSucceeded, SendPing, StateChanged
from pairbus.pairing.routing.patience import Patience, PrimaryTerms, SlowSends
from pairbus.pairing.routing.pins import Pin
from pairbus.pairing.routing.states import EntityState


class Input(enum.Enum):
    """The facts that move an entity. Up to the comma: the cause that `StateChanged` names."""

    SEND_SUCCEEDED = "send succeeded"
    SEND_FAILED = "send failed"
    SEND_FAILED_AT_ONCE = "send failed, interval zero"
    BUSY_TOO_LONG = "busy for too long"
    BUSY_TOO_LONG_AT_ONCE = "busy for too long, interval zero"
    BROWNED_OUT = "brownout"
    BROWNED_OUT_AT_ONCE = "brownout, interval zero"
    INTERVAL_OVER = "interval over"
    PING_SUCCEEDED = "ping succeeded"
    PING_COUNTED = "ping succeeded, more needed"
    PING_REFUSED = "ping refused"
    PING_UNANSWERED = "ping unanswered"
    TRIAL_SUCCEEDED = "trial succeeded"
    TRIAL_COUNTED = "trial succeeded, more needed"
    TRIAL_REFUSED = "trial refused"
    TRIAL_UNANSWERED = "trial unanswered"
    SENT_ONCE_MORE = "message sent once more"
    SENT_ONCE_MORE_COUNTED = "message sent once more, more needed"
    RETURN_DELAYED = "return delayed"
    RAMP_OVER = "return ramp over"
    FORCED = "forced"
    MARKED_HEALTHY = "marked healthy"
    PINNED_FAILED_OVER = "control file, failed-over"
    PINNED_HEALTHY = "control file, healthy"

    @property
    def cause(self) -> str:
        return self.value.partition(",")[0]


H, S, F, U = EntityState
# State × input → state. docs/explanation/failover.md and its diagram are printed from this.
TABLE: Final[dict[Input, dict[EntityState, EntityState]]] = {
    heading: dict(zip(EntityState, states, strict=True))
    for heading, states in {
        #                            HEALTHY, SUSPECT, FAILED_OVER, UNREACHABLE
        Input.SEND_SUCCEEDED:        (H, H, F, U),  # no late success ends a failover
        Input.SEND_FAILED:           (S, S, F, U),  # the first failure starts the timer, others don't move it
        Input.SEND_FAILED_AT_ONCE:   (F, S, F, U),  # the interval is zero, so nothing is ever suspect
        Input.BUSY_TOO_LONG:         (S, S, F, U),
        Input.BUSY_TOO_LONG_AT_ONCE: (F, S, F, U),
        Input.BROWNED_OUT:           (S, S, F, U),
        Input.BROWNED_OUT_AT_ONCE:   (F, S, F, U),
        Input.INTERVAL_OVER:         (H, F, F, U),
        Input.PING_SUCCEEDED:        (H, S, H, H),
        Input.PING_COUNTED:          (H, S, F, F),  # a good ping takes back what a refused one said
        Input.PING_REFUSED:          (H, S, U, U),
        Input.PING_UNANSWERED:       (H, S, F, F),  # the state says what the last ping met
        Input.TRIAL_SUCCEEDED:       (H, S, H, H),
        Input.TRIAL_COUNTED:         (H, S, F, F),
        Input.TRIAL_REFUSED:         (H, S, U, U),
        Input.TRIAL_UNANSWERED:      (H, S, F, F),
        Input.SENT_ONCE_MORE:        (H, S, H, H),
        Input.SENT_ONCE_MORE_COUNTED: (H, S, F, F),
        Input.RETURN_DELAYED:        (H, S, F, F),  # a good probe, with a ramp
        Input.RAMP_OVER:             (H, S, H, H),
        Input.FORCED:                (F, F, F, F),
        Input.MARKED_HEALTHY:        (H, H, H, H),
        Input.PINNED_FAILED_OVER:    (F, F, F, F),
        Input.PINNED_HEALTHY:        (H, H, H, H),
    }.items()
}  # fmt: skip


@dataclass(slots=True, repr=False, eq=False)
class Failover:
    entity: str
    _: KW_ONLY
    failover_interval: float
    ping_interval: float
    pings_to_return: int = 1
    probe: Literal["ping", "trial"] = "ping"
    #: The share of the ping interval, above 0 and up to 1, after which the first ping of a failover comes.
    phase: float = 1.0
    #: Seconds from the probe that brings the entity back to its return.
    return_delay: float = 0.0
    state: EntityState = EntityState.HEALTHY
    #: Where the control file keeps the entity; None: nowhere.
    pin: Pin | None = None
    #: When the state was entered; 0.0: it was never left.
    since: float = 0.0
    #: How often the primary has been taken again.
    epoch: int = 0
    #: The cause of the state, in the words of `Input`; "" if it was never left.
    cause: str = ""
    #: When the primary was first asked since its last answer; None: it has answered.
    asked_at: float | None = None
    #: What holds for attempts at the primary, if anything beyond their time; the coordinator keeps the three.
    terms: PrimaryTerms | None = None
    patience: Patience | None = None
    slow_sends: SlowSends | None = None
    _good: int = 0
    _held: bool = False
    # When the return ramp is over; None: no return is under way.
    _home_at: float | None = None
    _next: float = 0.0
    _probing: bool = False
    # The next ping comes before its time.
    _soon: bool = False
    _stale: bool = False

    def __repr__(self) -> str:
        if self.state is H:
            return f"<Failover {self.entity}: healthy>"
        return f"<Failover {self.entity}: {self.state.value} since {self.since:.1f}, {self._awaited()}>"

    def _awaited(self) -> str:
        if self.state is S:
            return f"fails over at {self.since + self.failover_interval:.1f}"
        if self._held:
            return "held" if self.pin is None else "pinned"
        if self._home_at is not None:
            return f"returns at {self._home_at:.1f}"
        if self._probing:
            return f"{self.probe} under way"
        return f"next {self.probe} at {self._next:.1f}"

    @property
    def is_diverting(self) -> bool:
        return self.state is F or self.state is U

    @property
    def is_probing(self) -> bool:
        """Whether a ping or a trial of this failover is under way."""
        return self._probing and not self._stale and not self._held and self._home_at is None and self.is_diverting

    @property
    def deadline(self) -> float | None:
        """When `tick` must be called; None: not before something else is reported."""
        if self.state is S:
            return self.since + self.failover_interval
        if self._home_at is not None:
            return self._home_at
        if self.state is H or self._held or self._probing or self.probe == "trial":
            return None
        return self._next

    def expire(self, now: float) -> list[Command]:
        """End the failover interval or the return ramp if it is over, as of that time, however late this is called."""
        if self.state is S and now >= self.since + self.failover_interval:
            return self._move(Input.INTERVAL_OVER, self.since + self.failover_interval)
        if self._home_at is not None and now >= self._home_at:
            return self._move(Input.RAMP_OVER, self._home_at)
        return []

    def tick(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if self.is_diverting and (due := self.deadline) is not None and now >= due:
            self._probing = True
            self._next = now + self.ping_interval
            commands.append(SendPing(self.entity))
            if self._soon:  # the others keep to the client's phase, whatever made it ping before
                self._next, self._soon = now + self.phase * self.ping_interval, False
        return commands

    def primary_sent(self, now: float, epoch: int) -> list[Command]:
        """Note that the primary confirmed a message; of whatever epoch, since the confirmation is recent."""
        return self.expire(now) + self._move(Input.SEND_SUCCEEDED, now)

    def primary_failed(self, now: float, epoch: int, *, busy: bool = False) -> list[Command]:
        """Note a failure that qualifies or, with `busy`, a refusal after being busy for too long."""
        commands = self.expire(now)
        if epoch != self.epoch:
            return commands
        if self.failover_interval > 0:
            return commands + self._move(Input.BUSY_TOO_LONG if busy else Input.SEND_FAILED, now)
        return commands + self._move(Input.BUSY_TOO_LONG_AT_ONCE if busy else Input.SEND_FAILED_AT_ONCE, now)

    def browned_out(self, now: float, epoch: int) -> list[Command]:
        """Note that too many of the last sends were slow, although they succeeded."""
        commands = self.expire(now)
        if epoch != self.epoch:
            return commands
        at_once = self.failover_interval == 0
        return commands + self._move(Input.BROWNED_OUT_AT_ONCE if at_once else Input.BROWNED_OUT, now)

    def ping_soon(self, now: float) -> None:
        """Make the next ping due at once: the failover is probably a false alarm."""
        if self.probe == "ping" and self.is_diverting and not self._probing and not self._held:
            self._next = min(self._next, now)
            self._soon = True

    def silent_for(self, now: float) -> float:
        """Return since when the primary was asked and has not answered, as seconds until now."""
        return 0.0 if self.asked_at is None else now - self.asked_at

    def ping_succeeded(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good += 1
        commands.append(Announce(PingSucceeded(self.entity, self._good, self.pings_to_return, self.return_delay)))
        enough = self._good >= self.pings_to_return
        return commands + (self._return(Input.PING_SUCCEEDED, now) if enough else self._move(Input.PING_COUNTED, now))

    def ping_failed(self, now: float, reachable: bool, *, not_before: float = 0.0) -> list[Command]:
        """Note a failed ping; the next one waits at least until `not_before`, the end of a busy pause."""
        return self._probe_failed(Input.PING_REFUSED if reachable else Input.PING_UNANSWERED, now, not_before)

    def trial_due(self, now: float) -> bool:
        """Return whether the next message may try the primary, with the backlog to fall back on."""
        if self.probe != "trial" or not self.is_diverting or self._held or self._home_at is not None:
            return False
        return not self._probing and now >= self._next

    def begin_trial(self, now: float) -> None:
        self._probing = True
        self._next = now + self.ping_interval

    def trial_succeeded(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good += 1
        enough = self._good >= self.pings_to_return
        return commands + (self._return(Input.TRIAL_SUCCEEDED, now) if enough else self._move(Input.TRIAL_COUNTED, now))

    def trial_failed(self, now: float, reachable: bool) -> list[Command]:
        return self._probe_failed(Input.TRIAL_REFUSED if reachable else Input.TRIAL_UNANSWERED, now)

    def _probe_failed(self, heading: Input, now: float, not_before: float = 0.0) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good = 0
        self._next = max(self._next, not_before)
        return commands + self._move(heading, now)

    def sent_once_more(self, now: float, epoch: int) -> list[Command]:
        """Note that the primary confirmed a message that no backlog queue had taken, in an attempt that began while
        failed over. An entity that the operator holds keeps its state."""
        commands = self.expire(now)
        if not self.is_diverting or self._held or epoch != self.epoch:
            return commands
        self._good += 1
        enough = self._good >= self.pings_to_return
        return commands + self._move(Input.SENT_ONCE_MORE if enough else Input.SENT_ONCE_MORE_COUNTED, now)

    def trial_abandoned(self) -> None:
        """Note that no answer will come. The next trial comes at its usual time, since callers may all give up
        early."""
        self._answered()

    def forced(self, now: float, hold: bool, heading: Input = Input.FORCED) -> list[Command]:
        """Fail over for the operator. Probes bring the entity back, unless `hold` keeps it until `marked_healthy`."""
        commands = self.expire(now)
        if self.state is F and not hold and (self._held or self._home_at is not None):  # the pings begin anew
            self._next = now + self.phase * self.ping_interval
            self._good = 0
            self._soon = False
        self._home_at = None
        commands += self._move(heading, now)
        self._held = hold
        self._stale = self._stale or (hold and self._probing)
        return commands

    def marked_healthy(self, now: float) -> list[Command]:
        return self.expire(now) + self._move(Input.MARKED_HEALTHY, now)

    def pinned(self, now: float, pin: Pin | None) -> list[Command]:
        """Put the entity into the state that the control file pins, and keep it there; None: failures and probes decide
        again."""
        commands = self.expire(now)
        if pin == self.pin:
            return commands
        self.pin = None  # or the change itself would be held off
        if pin == "failed-over":
            commands += self.forced(now, hold=True, heading=Input.PINNED_FAILED_OVER)
        elif pin == "healthy":
            self._held = False
            commands += self._return(Input.PINNED_HEALTHY, now)
        elif self.is_diverting:
            commands += self.forced(now, hold=False)
        self.pin = pin
        return commands

    def _return(self, heading: Input, now: float) -> list[Command]:
        """Take the primary again: now, or when this client's share of the return ramp is over."""
        if not self.return_delay or not self.is_diverting:
            return self._move(heading, now)
        self._home_at = now + self.return_delay
        return self._move(Input.RETURN_DELAYED, now)

    def _answered(self) -> bool:
        """Note that no probe is under way any more; return whether its answer is about the present failover."""
        counts = self.is_probing
        self._probing = self._stale = False
        return counts

    def _move(self, heading: Input, at: float) -> list[Command]:
        previous = self.state
        state = TABLE[heading][previous]
        if state is previous or (self.pin is not None and heading is not Input.RAMP_OVER):
            return []
        self.state = state
        self.since = at
        self.cause = heading.cause
        if state is H:
            self._held = False
            self._home_at = None
            self._good = 0
            self.asked_at = None  # what said so is an answer
            if heading is not Input.SEND_SUCCEEDED:
                self.epoch += 1  # the primary was not merely suspect: attempts from before are stale
        elif state is F and (previous is H or previous is S):
            self._good = 0
            self._next = at + self.phase * self.ping_interval
            self._soon = False
            self._stale = self._probing
        return [Announce(StateChanged(self.entity, previous, state, heading.cause))]
