"""Decides whether a `send_messages` call goes to the primary or to a backlog queue next, waits, or fails.

The shell asks `step` and does what it says: try the primary, try a backlog queue, wait, return, raise. Every attempt is
answered once, by `…_sent`, `…_failed` or, when no answer will come, `abandon`. This module joins verdicts, routes, busy
pauses, the rotation and the caller's time to one path (P13, P16, P17, P19, P22, P24, P31, P34). It never reports a
message as sent that no broker confirmed: `Sent` follows `primary_sent` and `backlog_sent`, and nothing else.

A message that no backlog queue takes is sent to the primary once more, whatever the state of the entity (P13), and then
to the queues that others found failing and that it was not at itself: so no send fails while either namespace takes
messages. Every attempt leaves time for the next.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusServerBusyError

from pairbus.pairing.errors import (
    NOTHING_SENT,
    BacklogUnavailableError,
    EntityUnreachableError,
    NoTimeLeftError,
    NotTriedError,
    PairingError,
    SentSoFar,
)
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.rotation import Pick
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import Verdict, is_of_message, is_reach

if TYPE_CHECKING:
    from pairbus.pairing.routing.coordinator import Coordinator
    from pairbus.pairing.routing.failover import Failover


@dataclass(frozen=True, slots=True)
class TryPrimary:
    """Make one attempt at the primary entity, the SDK's retries included, within `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class TryBacklog:
    """Make one attempt at this backlog queue within `timeout_s`."""

    queue: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until`, then step again; an earlier step does no harm."""

    until: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A broker has confirmed the message: return to the caller."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Raise this error to the caller."""

    error: BaseException


Step = TryPrimary | TryBacklog | Wait | Sent | Failed
SENT: Final = Sent()
_HEALTHY: Final = EntityState.HEALTHY
_LEAST_S: Final = budget.LEAST_S


class Dispatch:
    """One call on its way: `step` says what to do, the answers say what came of it."""

    __slots__ = (
        "_at", "_backlog_error", "_busy_error", "_coordinator", "_epoch", "_failover", "_granted_s", "_kept_s",
        "_last_error", "_leaving", "_once_more", "_outcome", "_pick", "_sender", "_so_far", "_timeout_s", "_trial",
        "_tried", "_was_diverting", "_was_once_more", "_was_trial", "ends", "queue", "route_word",
    )  # fmt: skip

    def __init__(
        self, coordinator: Coordinator, failover: Failover, sender: Hashable, now: float, timeout_s: float
    ) -> None:
        self._coordinator = coordinator
        self._failover = failover
        self._sender = sender
        self._timeout_s = timeout_s
        #: When the caller's time is over.
        self.ends = now + timeout_s
        #: Where the attempt under way, or the last one, went; after `Sent` the one that was confirmed.
        self.route_word: Literal["primary", "backlog"] = "primary"
        self.queue: int | None = None
        self._outcome: Sent | Failed | None = None
        # Where the message is: "" = here, "primary", "backlog", "gone" = abandoned.
        self._at = ""
        self._epoch = 0
        self._trial = False
        self._leaving = False
        # The attempt under way is the one at the primary that follows the last backlog queue.
        self._once_more = False
        self._was_once_more = False
        self._was_diverting = False
        self._pick: Pick | None = None
        self._granted_s = 0.0
        # What the backlog queues leave for the primary; set before the first of them is tried.
        self._kept_s: float | None = None
        self._tried: tuple[int, ...] = ()
        self._was_trial = False
        self._last_error: BaseException | None = None
        self._backlog_error: BaseException | None = None
        self._so_far = NOTHING_SENT
        self._busy_error: BaseException | None = None

    def __repr__(self) -> str:
        if self._outcome is not None:
            place = repr(self._outcome)
        elif self._at == "backlog":
            place = f"at backlog queue {self.queue}"
        elif self._at:
            place = f"at the {self._at}" if self._at == "primary" else self._at
        else:
            place = "leaving for the backlog" if self._leaving else "waiting for a step"
        return f"<Dispatch {self._failover.entity}: {place}, ends at {self.ends:.1f}>"

    # What next?

    def step(self, now: float) -> Step:
        """Return what to do next; raise RuntimeError while an attempt is unanswered."""
        if self._outcome is not None:
            return self._outcome
        if self._at:
            raise RuntimeError(f"{self!r}: answer the attempt under way before the next step")
        failover = self._failover
        coordinator = self._coordinator
        remaining = self.ends - now
        if failover.state is _HEALTHY and not coordinator.halts and not self._leaving and remaining >= _LEAST_S:
            self._at = self.route_word = "primary"
            self.queue = None
            self._epoch = failover.epoch
            return TryPrimary(remaining / 2 if coordinator.rotation.count else remaining)
        coordinator.refresh(failover, now)
        if budget.is_over(remaining):
            return self._fail(self._no_time_left())
        if self._leaving:
            return self._to_backlog(now, remaining)
        until = coordinator.halted_until(failover.entity)
        if not failover.is_diverting:
            return self._wait(now, until) if until > now else self._to_primary(remaining)
        if self._last_error is None and until <= now and failover.trial_due(now):
            self._trial = True  # first: whoever is interrupted here abandons it
            failover.begin_trial(now)
            return self._to_primary(remaining)
        if failover.state is EntityState.UNREACHABLE and coordinator.settings.when_unreachable == "raise":
            return self._fail(self._unreachable())
        return self._to_backlog(now, remaining)

    def _to_primary(self, remaining: float) -> TryPrimary:
        self._at = self.route_word = "primary"
        self.queue = None
        self._epoch = self._failover.epoch
        return TryPrimary(budget.share(remaining, bool(self._coordinator.rotation)))

    def _to_backlog(self, now: float, remaining: float) -> Step:
        rotation = self._coordinator.rotation
        if self._was_once_more:
            return self._to_last_queue(now, remaining)
        kept_s = budget.kept_for_primary(remaining, self._timeout_s) if self._kept_s is None else self._kept_s
        if budget.is_over(remaining - kept_s):
            return self._to_primary_once_more(now, remaining)
        pick = rotation.pick(self._sender, self._failover.epoch, now, self._tried, may_try=not self._was_trial, by=self)
        if pick is None:
            return self._to_primary_once_more(now, remaining)
        self._at = self.route_word = "backlog"
        self.queue = pick.queue
        self._pick = pick
        self._kept_s = kept_s
        self._was_trial = self._was_trial or pick.trial
        another = rotation.has_another(pick, now, self._tried)
        self._granted_s = timeout_s = budget.share(remaining - kept_s, another)
        return TryBacklog(pick.queue, timeout_s)

    def _to_primary_once_more(self, now: float, remaining: float) -> Step:
        """Try the primary after the last backlog queue, whatever its state (P13), but not during a busy pause."""
        failover = self._failover
        until = self._coordinator.halted_until(failover.entity)
        if until > now:
            return Wait(until) if budget.halt_fits(until, self.ends) else self._fail(self._backlog_unavailable(now))
        self._once_more = True
        self._was_diverting = failover.is_diverting
        self._at = self.route_word = "primary"
        self.queue = None
        self._epoch = failover.epoch
        return TryPrimary(budget.share(remaining, self._coordinator.rotation.untried(self._tried) > 0))

    def _to_last_queue(self, now: float, remaining: float) -> Step:
        """Try a queue that this message has not tried; another message may have ejected it, and it may work again."""
        rotation = self._coordinator.rotation
        pick = rotation.last_pick(self._tried, self)
        if pick is None:
            return self._fail(self._backlog_unavailable(now))
        self._at = self.route_word = "backlog"
        self.queue = pick.queue
        self._pick = pick
        self._granted_s = timeout_s = budget.share(remaining, rotation.untried((*self._tried, pick.queue)) > 0)
        return TryBacklog(pick.queue, timeout_s)

    def _wait(self, now: float, until: float) -> Wait | Failed:
        """Wait for the end of the busy pause of this entity, whoever caused it (P24)."""
        if not budget.halt_fits(until, self.ends):
            return self._fail(self._busy_error or self._throttled(now, until))
        due = self._failover.deadline  # of a suspect entity: then the message has somewhere to go (P17)
        return Wait(until if due is None else min(until, due))

    # Answers

    def primary_sent(self, now: float) -> None:
        """Note that the primary confirmed the message."""
        self._arrived("primary")
        self._outcome = SENT
        failover = self._failover
        if failover.state is not _HEALTHY or self._trial or self._coordinator.halts:
            if self._once_more and self._was_diverting:
                self._coordinator.sent_once_more(failover, now, self._epoch)
            self._coordinator.primary_sent(failover, now, self._epoch, self._trial)
            self._trial = False

    def primary_failed(self, now: float, error: BaseException, so_far: SentSoFar = NOTHING_SENT) -> None:
        """Note that the attempt at the primary failed. Raises what the user's classifier raises."""
        # First of all: if the classifier raises, the attempt is still to be abandoned.
        verdict = None if isinstance(error, NotTriedError) else self._coordinator.verdict(error)
        self._arrived("primary")
        self._last_error = error
        self._so_far = so_far
        self._primary_answered(now, error, verdict)
        self._trial = False

    def _primary_answered(self, now: float, error: BaseException, verdict: Verdict | None) -> None:
        coordinator = self._coordinator
        failover = self._failover
        trial = self._trial
        stale = self._epoch != failover.epoch
        coordinator.refresh(failover, now)
        if self._once_more:
            self._failed_once_more(now, error, verdict)
        elif (
            verdict is None
        ):  # it waited behind others and did not even begin: it says nothing, and may go where they go
            if trial:
                failover.trial_abandoned()
            if not failover.is_diverting:
                self._leave_or_fail(self._is_spared_failures(), error)
        elif verdict is Verdict.BUSY:
            self._primary_busy(now, error)
        elif verdict is Verdict.QUALIFIES:
            if trial:
                self._trial_failed(now, error)
            else:
                coordinator.primary_failed(failover, now, self._epoch, False, error)
            if failover.is_diverting:
                return
            # A stale failure is one that came after the timer had run out (P17), the primary having returned meanwhile.
            self._leave_or_fail(stale or self._is_spared_failures(), error)
        elif trial and not is_of_message(error):
            # By `AS_DESCRIBED` a refused connection counts for nothing; a refusal by the entity it is not (P34).
            self._trial_failed(now, error)
            if not failover.is_diverting:
                self._fail(error)
        else:
            if trial:
                failover.trial_abandoned()
            self._fail(error)

    def _primary_busy(self, now: float, error: BaseException) -> None:
        """Pause this entity; leave for the backlog after too long, or fail if the pause does not fit (P24)."""
        coordinator, failover = self._coordinator, self._failover
        too_long = coordinator.send_busy(failover, now, self._epoch, self._trial, error)
        self._busy_error = error
        if failover.is_diverting:
            return
        if too_long and coordinator.rotation and self._is_spared_failures():
            self._leaving = True
        elif not budget.halt_fits(coordinator.halted_until(failover.entity), self.ends):
            self._fail(error)

    def _trial_failed(self, now: float, error: BaseException) -> None:
        """Judge a trial like a ping, whatever the table says of messages (P34)."""
        if is_reach(error):
            self._coordinator.primary_failed(self._failover, now, self._epoch, True, error)
        else:
            self._coordinator.trial_refused(self._failover, now, error)

    def _failed_once_more(self, now: float, error: BaseException, verdict: Verdict | None) -> None:
        """End the call, unless the primary was busy and the caller has time for its pause (P24)."""
        coordinator, failover = self._coordinator, self._failover
        if verdict is Verdict.BUSY:
            coordinator.send_busy(failover, now, self._epoch, False, error)
            self._once_more = False
            return
        if verdict is Verdict.QUALIFIES:
            coordinator.primary_failed(failover, now, self._epoch, False, error)
        self._once_more = False
        self._was_once_more = self._leaving = True
        if verdict is not None and is_of_message(error):
            self._fail(error)
        elif not coordinator.rotation.untried(self._tried):
            self._fail(self._backlog_unavailable(now))

    def backlog_sent(self, now: float) -> None:
        """Note that the backlog queue confirmed the message."""
        self._arrived("backlog")
        self._outcome = SENT
        assert self._pick is not None
        self._coordinator.commands.extend(self._coordinator.rotation.sent(self._pick))

    def backlog_failed(self, now: float, error: BaseException, so_far: SentSoFar = NOTHING_SENT) -> None:
        """Note that the attempt at the backlog queue failed."""
        self._arrived("backlog")
        pick = self._pick
        assert pick is not None
        self._last_error = self._backlog_error = error
        self._so_far = so_far
        if not (isinstance(error, NotTriedError) and error.link_is_open):  # else it is the best place for the next try
            self._tried += (pick.queue,)
        rotation = self._coordinator.rotation
        if is_of_message(error):
            rotation.spared(pick, now)
            if so_far.confirmed:
                error.add_note(f"{so_far}.")
            self._fail(error)
        elif self._says_nothing(error):
            rotation.spared(pick, now)
        else:
            self._coordinator.commands.extend(rotation.failed(pick, now, error))

    def abandon(self, now: float) -> None:
        """Give up the attempt under way, if there is one: no answer will come after a cancellation."""
        self._at = "gone"
        if self._trial:
            self._failover.trial_abandoned()
        self._coordinator.rotation.abandoned(self, now)
        self._trial = False

    def _arrived(self, place: str) -> None:
        if self._at != place:
            raise RuntimeError(f"{self!r}: no attempt at the {place} is under way")
        self._at = ""

    def _says_nothing(self, error: BaseException) -> bool:
        """The attempt did not begin, or its time was too short to tell of anything but the caller."""
        if isinstance(error, (OperationTimeoutError, TimeoutError)):
            patient = budget.is_patient(self._granted_s, self._coordinator.settings.send_timeout)
            return not patient or isinstance(error, NotTriedError)
        return False

    def _is_spared_failures(self) -> bool:
        """The caller is to see no failure of the primary (P17): by option, or because the interval is zero."""
        settings = self._coordinator.settings
        return settings.while_suspect == "divert" or settings.failover_interval == 0

    def _leave_or_fail(self, leave: bool, error: BaseException) -> None:
        """This message goes to the backlog though the entity has not failed over; if there is a backlog."""
        if leave and self._coordinator.rotation:
            self._leaving = True
        else:
            self._fail(error)

    # Errors

    def _fail(self, error: BaseException) -> Failed:
        self._outcome = failed = Failed(error)
        return failed

    def _no_time_left(self) -> PairingError:
        error = NoTimeLeftError(
            f"{self._failover.entity}: the {self._timeout_s:g} s for this send are over before a broker has confirmed "
            f"all of it{_told(self._last_error)}. {self._so_far}; send what is not confirmed again, with the same "
            "message ids, or give the call more time (timeout=, or the option send_timeout)."
        )
        error.tells(self._so_far)
        error.__cause__ = self._last_error
        return error

    def _backlog_unavailable(self, now: float) -> PairingError:
        rotation = self._coordinator.rotation
        entity = self._failover.entity
        if not rotation:
            text = f"{entity}: the message would go to the backlog, but the client has no backlog queue yet"
        else:
            text = f"{entity}: all {len(rotation)} backlog queues failed, {len(self._tried)} of them in this call"
            if waiting := rotation.ejected:
                text += f"; the next is tried again in {max(0.0, min(waiting.values()) - now):.1f} s"
        if self._was_once_more:
            text += f"{_told(self._backlog_error)}; the primary, tried once more, failed too"
        error = BacklogUnavailableError(
            f"{text}{_told(self._last_error)}. {self._so_far}; see to the secondary namespace, and send what is not "
            "confirmed again, with the same message ids.",
            error=self._last_error,
        )
        error.tells(self._so_far)
        error.__cause__ = self._last_error
        return error

    def _unreachable(self) -> PairingError:
        refusal = self._coordinator.refusals.get(self._failover.entity)
        error = EntityUnreachableError(
            f"{self._failover.entity}: the primary answers and refuses{_told(refusal)}. {self._so_far}; see to the "
            'entity, or let messages wait in the backlog meanwhile (when_unreachable="divert").',
            error=refusal,
        )
        error.tells(self._so_far)
        error.__cause__ = refusal
        return error

    def _throttled(self, now: float, until: float) -> ServiceBusServerBusyError:
        return ServiceBusServerBusyError(
            message=f"{self._failover.entity}: throttled; sends halt for another {until - now:.1f} s, which does not "
            f"fit into the {max(0.0, self.ends - now):.1f} s left to this one. {self._so_far}; send it again then, "
            "or give the call more time (timeout=, or the option send_timeout)."
        )


def _told(error: BaseException | None) -> str:
    return "" if error is None else f" (last: {type(error).__name__}: {error})"
