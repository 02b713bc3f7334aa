"""Decides the failover of one entity: when to leave the primary, when to probe it, when to return.

Implements P15 to P17, P21, P31 and P33 to P35.

A pure machine: callers report facts with the time at which they learned them, and get commands back; `deadline` says
when `tick` is due. The state moves only by `TABLE`, in `_move`. What a failure means (`verdicts`), what a message does
next (`dispatch`) and which entity pauses (`busy_pause`) is decided elsewhere.

Late answers. An attempt at the primary carries the `epoch` of when it began, and the epoch grows whenever the primary
is taken again: a failure of an attempt from before says nothing of now and starts nothing. The answer to a probe that
left before the present failover began is stale in the same way. The late success of an attempt from before the
failover changes nothing: a probe, the operator, or a message that the primary took once more brings the entity back
(P21).

A message that no backlog queue took, and that the primary then confirmed, counts as a good ping: a ping is refused
whenever a message would be, so the confirmation of a message says at least as much. Where several good pings are asked
for (P35), it is one of them. Its failure counts for nothing: it may have had little time left, and pings go on.

What wakes a sick entity is always one thing: the interval's end (SUSPECT), the answer of the probe that is under way,
the time of the next ping, the first send after the time of the next trial, or the operator (`hold`).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

from pairbus.pairing.events import Announce, Command, PingSucceeded, SendPing, StateChanged
from pairbus.pairing.routing.states import EntityState


class Input(enum.Enum):
    """The facts that move an entity. Up to the comma: the cause that `StateChanged` names."""

    SEND_SUCCEEDED = "send succeeded"
    SEND_FAILED = "send failed"
    SEND_FAILED_AT_ONCE = "send failed, interval zero"
    BUSY_TOO_LONG = "busy for too long"
    BUSY_TOO_LONG_AT_ONCE = "busy for too long, interval zero"
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
    FORCED = "forced"
    MARKED_HEALTHY = "marked healthy"

    @property
    def cause(self) -> str:
        return self.value.partition(",")[0]


H, S, F, U = EntityState
# State × input → state. docs/explanation/failover.md and its diagram are printed from this.
TABLE: Final[dict[Input, dict[EntityState, EntityState]]] = {
    heading: dict(zip(EntityState, states, strict=True))
    for heading, states in {
        #                            HEALTHY, SUSPECT, FAILED_OVER, UNREACHABLE
        Input.SEND_SUCCEEDED:        (H, H, F, U),  # P16; P21: no late success ends a failover
        Input.SEND_FAILED:           (S, S, F, U),  # P16: the first failure starts the timer, others don't move it
        Input.SEND_FAILED_AT_ONCE:   (F, S, F, U),  # P17: and then nothing is ever suspect
        Input.BUSY_TOO_LONG:         (S, S, F, U),  # P24
        Input.BUSY_TOO_LONG_AT_ONCE: (F, S, F, U),
        Input.INTERVAL_OVER:         (H, F, F, U),  # P16
        Input.PING_SUCCEEDED:        (H, S, H, H),  # P21
        Input.PING_COUNTED:          (H, S, F, F),  # P35: a good ping takes back what a refused one said
        Input.PING_REFUSED:          (H, S, U, U),  # P34
        Input.PING_UNANSWERED:       (H, S, F, F),  # the state says what the last ping met
        Input.TRIAL_SUCCEEDED:       (H, S, H, H),  # P31
        Input.TRIAL_COUNTED:         (H, S, F, F),
        Input.TRIAL_REFUSED:         (H, S, U, U),
        Input.TRIAL_UNANSWERED:      (H, S, F, F),
        Input.SENT_ONCE_MORE:        (H, S, H, H),  # P13
        Input.SENT_ONCE_MORE_COUNTED: (H, S, F, F),
        Input.FORCED:                (F, F, F, F),  # P23
        Input.MARKED_HEALTHY:        (H, H, H, H),  # P23
    }.items()
}  # fmt: skip


class Failover:
    __slots__ = (
        "_good", "_held", "_next", "_probing", "_stale", "entity", "epoch", "failover_interval", "ping_interval",
        "pings_to_return", "probe", "since", "state",
    )  # fmt: skip

    def __init__(
        self,
        entity: str,
        *,
        failover_interval: float,
        ping_interval: float,
        pings_to_return: int = 1,
        probe: Literal["ping", "trial"] = "ping",
    ) -> None:
        self.entity = entity
        self.failover_interval = failover_interval
        self.ping_interval = ping_interval
        self.pings_to_return = pings_to_return
        self.probe = probe
        self.state = EntityState.HEALTHY
        #: When the state was entered; 0.0: it was never left.
        self.since = 0.0
        #: How often the primary has been taken again.
        self.epoch = 0
        self._good = 0
        self._held = False
        self._next = 0.0
        self._probing = False
        self._stale = False

    def __repr__(self) -> str:
        if self.state is H:
            return f"<Failover {self.entity}: healthy>"
        return f"<Failover {self.entity}: {self.state.value} since {self.since:.1f}, {self._awaited()}>"

    def _awaited(self) -> str:
        if self.state is S:
            return f"fails over at {self.since + self.failover_interval:.1f}"
        if self._held:
            return "held"
        if self._probing:
            return f"{self.probe} under way"
        return f"next {self.probe} at {self._next:.1f}"

    @property
    def is_diverting(self) -> bool:
        return self.state is F or self.state is U

    @property
    def is_probing(self) -> bool:
        """Whether a ping or a trial of this failover is under way."""
        return self._probing and not self._stale and not self._held and self.is_diverting

    @property
    def deadline(self) -> float | None:
        """When `tick` must be called; None: not before something else is reported."""
        if self.state is S:
            return self.since + self.failover_interval
        if self.state is H or self._held or self._probing or self.probe == "trial":
            return None
        return self._next

    def expire(self, now: float) -> list[Command]:
        """End the failover interval if it is over. The failover counts from that time, however late this is called."""
        if self.state is S and now >= self.since + self.failover_interval:
            return self._move(Input.INTERVAL_OVER, self.since + self.failover_interval)
        return []

    def tick(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if self.is_diverting and (due := self.deadline) is not None and now >= due:
            self._probing = True
            self._next = now + self.ping_interval
            commands.append(SendPing(self.entity))
        return commands

    def primary_sent(self, now: float, epoch: int) -> list[Command]:
        """Note that the primary confirmed a message; of whatever epoch, since the confirmation is recent."""
        return self.expire(now) + self._move(Input.SEND_SUCCEEDED, now)

    def primary_failed(self, now: float, epoch: int, *, busy: bool = False) -> list[Command]:
        """Note a failure that qualifies (P18) or, with `busy`, a refusal after being busy for too long (P24)."""
        commands = self.expire(now)
        if epoch != self.epoch:
            return commands
        if self.failover_interval > 0:
            return commands + self._move(Input.BUSY_TOO_LONG if busy else Input.SEND_FAILED, now)
        return commands + self._move(Input.BUSY_TOO_LONG_AT_ONCE if busy else Input.SEND_FAILED_AT_ONCE, now)

    def ping_succeeded(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good += 1
        commands.append(Announce(PingSucceeded(self.entity, self._good, self.pings_to_return)))
        enough = self._good >= self.pings_to_return
        return commands + self._move(Input.PING_SUCCEEDED if enough else Input.PING_COUNTED, now)

    def ping_failed(self, now: float, reachable: bool, *, not_before: float = 0.0) -> list[Command]:
        """Note a failed ping; the next one waits at least until `not_before`, the end of a busy pause."""
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good = 0
        self._next = max(self._next, not_before)
        return commands + self._move(Input.PING_REFUSED if reachable else Input.PING_UNANSWERED, now)

    def trial_due(self, now: float) -> bool:
        """Return whether the next message may try the primary, with the backlog to fall back on (P31)."""
        return (
            self.probe == "trial" and self.is_diverting and not self._held and not self._probing and now >= self._next
        )

    def begin_trial(self, now: float) -> None:
        self._probing = True
        self._next = now + self.ping_interval

    def trial_succeeded(self, now: float) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good += 1
        enough = self._good >= self.pings_to_return
        return commands + self._move(Input.TRIAL_SUCCEEDED if enough else Input.TRIAL_COUNTED, now)

    def trial_failed(self, now: float, reachable: bool) -> list[Command]:
        commands = self.expire(now)
        if not self._answered():
            return commands
        self._good = 0
        return commands + self._move(Input.TRIAL_REFUSED if reachable else Input.TRIAL_UNANSWERED, now)

    def sent_once_more(self, now: float, epoch: int) -> list[Command]:
        """The primary confirmed a message that no backlog queue had taken, in an attempt that began while failed over.
        An entity that the operator holds stays where it is."""
        commands = self.expire(now)
        if not self.is_diverting or self._held or epoch != self.epoch:
            return commands
        self._good += 1
        enough = self._good >= self.pings_to_return
        return commands + self._move(Input.SENT_ONCE_MORE if enough else Input.SENT_ONCE_MORE_COUNTED, now)

    def trial_abandoned(self) -> None:
        """Note that no answer will come. The next trial comes at its time, since callers may all give up early."""
        self._answered()

    def forced(self, now: float, hold: bool) -> list[Command]:
        """Fail over for the operator. Probes bring the entity back, unless `hold` keeps it until `marked_healthy`."""
        commands = self.expire(now)
        if self.state is F and self._held and not hold:  # the pings begin anew
            self._next = now + self.ping_interval
            self._good = 0
        commands += self._move(Input.FORCED, now)
        self._held = hold
        self._stale = self._stale or (hold and self._probing)
        return commands

    def marked_healthy(self, now: float) -> list[Command]:
        return self.expire(now) + self._move(Input.MARKED_HEALTHY, now)

    def _answered(self) -> bool:
        """Note that no probe is under way any more; return whether its answer is about the present failover."""
        counts = self.is_probing
        self._probing = self._stale = False
        return counts

    def _move(self, heading: Input, at: float) -> list[Command]:
        previous = self.state
        state = TABLE[heading][previous]
        if state is previous:
            return []
        self.state = state
        self.since = at
        if state is H:
            self._held = False
            self._good = 0
            if (
                heading is not Input.SEND_SUCCEEDED
            ):  # the primary was not merely suspect: attempts from before are stale
                self.epoch += 1
        elif state is F and (previous is H or previous is S):
            self._good = 0
            self._next = at + self.ping_interval
            self._stale = self._probing
        return [Announce(StateChanged(self.entity, previous, state, heading.cause))]
