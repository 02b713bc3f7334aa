"""Decides whether a `send_messages` call goes to the primary or to a backlog queue next, waits, or fails.

The shell calls `step` and carries out its answer: try the primary, try a backlog queue, wait, return, raise. Every
attempt is answered once, by `…_sent`, `…_failed` or, when no answer will come, `abandon`. This module combines
verdicts, routes, busy pauses, the rotation and the caller's time. It never reports a message as sent unless a broker
confirmed it: `Sent` follows `primary_sent` and `backlog_sent`, and nothing else.

A message that no backlog queue takes is sent to the primary once more, whatever the state of the entity, and then to
the queues that others found failing and that it has not tried itself: so no send fails while either namespace takes
messages. Every attempt leaves time for the next. If the backlog refused, which takes no waiting, that was one round,
and there are as many further rounds as the SDK has retries, with its waits between them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.errors import (
    NOTHING_SENT,
    BacklogUnavailableError,
    EntityThrottledError,
    EntityUnreachableError,
    NoTimeLeftError,
    NotTriedError,
    PairingError,
    SentSoFar,
    is_nothing_sent,
)
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.patience import GIVEN_UP_S, PrimaryTerms
from pairbus.pairing.routing.rotation import Pick
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import Verdict, is_definite, is_of_host, is_of_message, is_reach, is_silence

if TYPE_CHECKING:
    from pairbus.pairing.routing.coordinator import Coordinator
    from pairbus.pairing.routing.failover import Failover


@dataclass(slots=True)  # one is made for every healthy send, and a frozen one costs twice as much
class TryPrimary:
    """Make one attempt at the primary entity, the SDK's retries included, within `timeout_s`."""

    timeout_s: float
    #: What else ends the attempt, and that it is to be measured; None: nothing, and it is not.
    terms: PrimaryTerms | None = field(default=None, compare=False)


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


@dataclass(frozen=True, slots=True)
class Diversion:
    """Why a message left for the backlog, which rule decided it, and how long the primary was given."""

    #: "interval zero", "interval over", "while suspect", "failed over", "busy for too long", "throttled", "not tried"
    #: or "unreachable".
    rule: str
    #: The failure of this message, or what brought the entity's state about; in words.
    why: str
    #: How long this message was at the primary; 0.0: it was not sent there.
    primary_s: float


Step = TryPrimary | TryBacklog | Wait | Sent | Failed
SENT: Final = Sent()
_HEALTHY: Final = EntityState.HEALTHY
_LEAST_S: Final = budget.LEAST_S


class Dispatch:
    """One call in progress: `step` says what to do, and the answers report the results."""

    # What most sends never change stands here, not in each of them: a healthy send sets little.
    #: Where the attempt under way, or the last one, went; after `Sent` the one that was confirmed.
    route_word: Literal["primary", "backlog"] = "primary"
    queue: int | None = None
    #: Why the message left for the backlog; None if it has not.
    reason: Diversion | None = None
    _outcome: Sent | Failed | None = None
    # Where the message is: "" = here, "primary", "backlog", "gone" = abandoned.
    _at = ""
    _epoch = 0
    _trial = False
    _leaving = False
    # It left because the primary is throttled, and for no other reason.
    _is_throttled = False
    # The attempt under way is the one at the primary that follows the last backlog queue.
    _once_more = False
    _was_once_more = False
    _was_diverting = False
    _pick: Pick | None = None
    _granted_s = 0.0
    # How long all attempts at the primary took.
    _primary_s = 0.0
    _terms: PrimaryTerms | None = None
    # What the backlog queues leave for the primary; set before the first of them is tried.
    _kept_s: float | None = None
    _tried: tuple[int, ...] = ()
    _was_trial = False
    # In this round: whether each queue that was asked refused, and whether one refusal holds for the whole host.
    _backlog_refuses: bool | None = None
    _host_refuses = False
    _refused_at = 0.0
    # How many rounds are over, and when the next one begins.
    _rounds = 0
    _resumes_at = 0.0
    _last_error: BaseException | None = None
    _backlog_error: BaseException | None = None
    _so_far = NOTHING_SENT
    _busy_error: BaseException | None = None

    def __init__(
        self, coordinator: Coordinator, failover: Failover, sender: Hashable, now: float, timeout_s: float
    ) -> None:
        self._coordinator = coordinator
        self._failover = failover
        self._sender = sender
        self._timeout_s = timeout_s
        #: When the caller's time is over.
        self.ends = now + timeout_s
        # When the last attempt at the primary began.
        self._began = now

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
            self._at = "primary"
            if self.route_word != "primary":
                self.route_word, self.queue = "primary", None
            self._epoch = failover.epoch
            self._began = now
            if failover.asked_at is None:
                failover.asked_at = now
            if coordinator.rotation.count:
                self._granted_s = granted_s = remaining / 2
                self._terms = terms = failover.terms
                return TryPrimary(granted_s, terms)
            self._granted_s = remaining
            self._terms = None
            return TryPrimary(remaining)
        coordinator.refresh(failover, now)
        if budget.is_over(remaining):
            return self._fail(self._no_time_left())
        if self._leaving:
            return self._to_backlog(now, remaining)
        until = coordinator.halted_until(failover.entity)
        if not failover.is_diverting:
            if until <= now:
                return self._to_primary(now, remaining, failover.terms)
            if not self._leaves_throttled():
                return self._wait(now, until)
            return self._to_backlog(now, remaining)
        if self._last_error is None and until <= now and failover.trial_due(now):
            self._trial = True  # first: a call that is interrupted here abandons it
            failover.begin_trial(now)
            return self._to_primary(now, remaining, coordinator.trial_terms)
        if failover.state is EntityState.UNREACHABLE and coordinator.settings.when_unreachable == "raise":
            return self._fail(self._unreachable())
        return self._to_backlog(now, remaining)

    def _to_primary(self, now: float, remaining: float, terms: PrimaryTerms | None) -> TryPrimary:
        self._asks_primary(now)
        has_backlog = bool(self._coordinator.rotation)
        self._granted_s = budget.share(remaining, has_backlog)
        self._terms = terms if has_backlog else None
        return TryPrimary(self._granted_s, self._terms)

    def _asks_primary(self, now: float) -> None:
        failover = self._failover
        self._at = self.route_word = "primary"
        self.queue = None
        self._epoch = failover.epoch
        self._began = now
        if failover.asked_at is None:
            failover.asked_at = now

    def _to_backlog(self, now: float, remaining: float) -> Step:
        rotation = self._coordinator.rotation
        if self.reason is None:
            self.reason = self._diversion()
        if now < self._resumes_at:
            return Wait(self._resumes_at)
        if self._was_once_more:
            return self._to_last_queue(now, remaining)
        kept_s = budget.kept_for_primary(remaining, self._timeout_s) if self._kept_s is None else self._kept_s
        if self._host_refuses or budget.is_over(remaining - kept_s):
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
        """Try the primary after the last backlog queue, whatever its state, but not during a busy pause."""
        failover = self._failover
        until = self._coordinator.halted_until(failover.entity)
        if until > now:
            if budget.halt_fits(until, self.ends):
                return Wait(until)
            return self._fail(self._throttled(now, until) if self._is_throttled else self._backlog_unavailable(now))
        self._once_more = True
        self._was_diverting = failover.is_diverting
        self._asks_primary(now)
        rounds_left = self._coordinator.retries.total - self._rounds
        if self._backlog_refuses and rounds_left > 0:
            granted_s = budget.share_of_round(remaining, rounds_left)
        else:
            granted_s = budget.share(remaining, self._has_last_queue())
        return TryPrimary(granted_s, self._coordinator.last_terms)

    def _has_last_queue(self) -> bool:
        return not self._host_refuses and self._coordinator.rotation.untried(self._tried) > 0

    def _to_last_queue(self, now: float, remaining: float) -> Step:
        """Try a queue that this message has not tried; another message may have ejected it, and it may work again."""
        rotation = self._coordinator.rotation
        pick = None if self._host_refuses else rotation.last_pick(self._tried, self)
        if pick is None:
            return self._end_round(now)
        self._at = self.route_word = "backlog"
        self.queue = pick.queue
        self._pick = pick
        self._granted_s = timeout_s = budget.share(remaining, rotation.untried((*self._tried, pick.queue)) > 0)
        return TryBacklog(pick.queue, timeout_s)

    def _end_round(self, now: float) -> Wait | Failed:
        """Ask both sides again after the SDK's wait, if the backlog refused and time is left; else fail."""
        wait_s = self._coordinator.retries.wait_s(self._rounds) if self._backlog_refuses else None
        if wait_s is None or not budget.halt_fits(self._refused_at + wait_s, self.ends):
            return self._fail(self._backlog_unavailable(now))
        self._rounds += 1
        self._resumes_at = self._refused_at + wait_s
        self._was_once_more = self._host_refuses = False
        self._backlog_refuses = self._kept_s = None
        self._tried = self._tried[1:]  # at least one queue is asked anew
        return Wait(self._resumes_at)

    def _wait(self, now: float, until: float) -> Wait | Failed:
        """Wait for the end of the busy pause of this entity, whichever call caused it."""
        if not budget.halt_fits(until, self.ends):
            return self._fail(self._busy_error or self._throttled(now, until))
        due = self._failover.deadline  # of a suspect entity: then the message has somewhere to go
        return Wait(until if due is None else min(until, due))

    # Answers

    def primary_sent(self, now: float, took_s: float | None = None) -> None:
        """Note that the primary confirmed the message; `took_s`: how long that took on an open link, if measured."""
        if self._at != "primary":
            self._arrived("primary")
        self._at = ""
        self._outcome = SENT
        failover = self._failover
        failover.asked_at = None
        self._coordinator.answered_at = now
        if (
            took_s is not None
            and not self._once_more
            and self._coordinator.is_brownout(failover, now, took_s, self._trial)
        ):
            self._coordinator.browned_out(failover, now, self._epoch, took_s, self._trial)
            self._trial = False
        elif failover.state is not _HEALTHY or self._trial or self._coordinator.halts:
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
        self._primary_s += max(0.0, now - self._began)
        if verdict is Verdict.BUSY or verdict is Verdict.REFUSED:
            self._failover.asked_at = None
        self._primary_answered(now, error, verdict)
        self._trial = False

    def _primary_answered(self, now: float, error: BaseException, verdict: Verdict | None) -> None:
        coordinator = self._coordinator
        failover = self._failover
        trial = self._trial
        coordinator.refresh(failover, now)
        stale = self._epoch != failover.epoch
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
        elif verdict is Verdict.QUALIFIES and self._busy_error is not None and is_silence(error):
            if not failover.is_diverting:  # what a broker has said wins over the silence after it
                self._fail(self._busy_error)
        elif verdict is Verdict.QUALIFIES:
            if trial:
                self._trial_failed(now, error)
            elif not self._is_given_up(now, error):
                patience = self._patience_s(error)
                hasty_s = patience if patience < self._granted_s else 0.0
                coordinator.primary_failed(failover, now, self._epoch, False, error, hasty_s=hasty_s)
            if failover.is_diverting:
                return
            # A stale failure is one that came after the timer had run out, the primary having returned meanwhile;
            # or the control file has pinned the entity to the primary, which tells nothing of the failure.
            self._leave_or_fail((stale and failover.pin is None) or self._is_spared_failures(), error)
        elif trial and not is_of_message(error):
            # By `AS_DESCRIBED` a refused connection doesn't count; but it is not a refusal by the entity.
            self._trial_failed(now, error)
            if not failover.is_diverting:
                self._fail(error)
        else:
            if trial:
                failover.trial_abandoned()
            self._fail(error)

    def _primary_busy(self, now: float, error: BaseException) -> None:
        """Pause this entity; leave for the backlog after too long, or fail if the pause does not fit."""
        coordinator, failover, ends = self._coordinator, self._failover, self.ends
        too_long = coordinator.send_busy(failover, now, self._epoch, self._trial, error)
        self._busy_error = error
        if failover.is_diverting:
            return
        if too_long and coordinator.rotation and self._is_spared_failures():
            self._leaving = True
        elif not self._leaves_throttled() and not budget.halt_fits(coordinator.halted_until(failover.entity), ends):
            self._fail(error)

    def _leaves_throttled(self) -> bool:
        """Divert this message to the backlog while the busy pause lasts, if the option says so and there is a backlog.
        The entity does not fail over by that."""
        coordinator = self._coordinator
        self._leaving = self._is_throttled = coordinator.diverts_throttled and bool(coordinator.rotation)
        return self._leaving

    def _trial_failed(self, now: float, error: BaseException) -> None:
        """Judge a trial like a ping, whatever the table says of messages."""
        if is_reach(error):
            self._coordinator.primary_failed(self._failover, now, self._epoch, True, error)
        else:
            self._coordinator.trial_refused(self._failover, now, error)

    def _failed_once_more(self, now: float, error: BaseException, verdict: Verdict | None) -> None:
        """End the call, unless the primary was busy and the caller has time for its pause."""
        coordinator, failover = self._coordinator, self._failover
        if verdict is Verdict.BUSY:
            coordinator.send_busy(failover, now, self._epoch, False, error)
            self._busy_error = error
            self._once_more = False
            return
        if verdict is Verdict.QUALIFIES and self._busy_error is not None and is_silence(error):
            self._last_error = self._busy_error  # what a broker has said wins over the silence after it (P18)
        elif verdict is Verdict.QUALIFIES:
            coordinator.primary_failed(failover, now, self._epoch, False, error)
        self._once_more = False
        self._was_once_more = self._leaving = True
        if verdict is not None and is_of_message(error):
            self._fail(error)
        elif not self._has_last_queue():
            self._end_round(now)

    def over_warm_link(self, queue: int) -> TryBacklog | None:
        """Direct the present attempt at this queue, to which a link is open, while its sender has no link to its own
        queue.

        Returns None where the message is the trial of its queue, or has tried this one, or the queue is ejected. The
        sender keeps the queue that it has picked.
        """
        pick = self._pick
        if self._at != "backlog" or pick is None or pick.trial or queue in self._tried:
            return None
        warm = self._coordinator.rotation.in_use(queue)
        if warm is None:
            return None
        self._pick = warm
        self.queue = queue
        return TryBacklog(queue, self._granted_s)

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
        refuses = is_definite(error)
        self._host_refuses = refuses and is_of_host(error)
        self._backlog_refuses = refuses and self._backlog_refuses is not False
        self._refused_at = now
        if is_of_message(error):
            rotation.inconclusive(pick, now)
            if so_far.confirmed:
                error.add_note(f"{so_far}.")
            self._fail(error)
        elif self._says_nothing(error):
            rotation.inconclusive(pick, now)
        else:
            self._coordinator.commands.extend(rotation.failed(pick, now, error, is_definite=refuses))

    def abandon(self, now: float, given_up: bool = False) -> None:
        """Give up the attempt under way, if there is one: no answer will come after a cancellation.

        `given_up`: the caller did not want to wait any longer. If the primary has been silent for longer than the
        patience, that counts as a failure: callers who all give up early must fail over too.
        """
        if given_up and self._at == "primary" and not self._trial and not self._once_more:
            patience = min(self._patience_s(), self._timeout_s / 2, GIVEN_UP_S)
            silent_s = self._failover.silent_for(now)
            if silent_s > patience:
                error = OperationTimeoutError(
                    message=f"{self._failover.entity}: no answer for {silent_s:.1f} s, and the callers gave up."
                )
                self._coordinator.refresh(self._failover, now)
                self._coordinator.primary_failed(self._failover, now, self._epoch, False, error)
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
        """Return whether the attempt did not begin, or had so little time that it only tells about the caller."""
        if isinstance(error, (OperationTimeoutError, TimeoutError)):
            patient = budget.is_patient(self._granted_s, self._coordinator.settings.send_timeout)
            return not patient or isinstance(error, NotTriedError)
        return False

    def _patience_s(self, error: BaseException | None = None) -> float:
        """Return how long the primary's silence is waited for; after an `error` in which no link was open, how long a
        link may take to open."""
        if self._terms is None:
            return math.inf
        was_opening = error is not None and is_nothing_sent(error)
        return self._terms.opening_s if was_opening else self._terms.silence_s

    def _is_given_up(self, now: float, error: BaseException) -> bool:
        """Return whether the caller's time was shorter than the patience, and the primary has not been silent for
        long."""
        patience = self._patience_s(error)
        if patience is math.inf or self._granted_s >= patience or not is_silence(error):
            return False
        return self._failover.silent_for(now) <= min(patience, GIVEN_UP_S)

    def _diversion(self) -> Diversion:
        failover, error = self._failover, self._last_error
        if self._is_throttled:
            why = "it answered another call that it is busy" if error is None else f"{type(error).__name__}: {error}"
            return Diversion("throttled", why, self._primary_s)
        if error is None:
            rule = "unreachable" if failover.state is EntityState.UNREACHABLE else "failed over"
            return Diversion(rule, f"{failover.state.value}: {failover.cause}", 0.0)
        if isinstance(error, NotTriedError):
            rule = "not tried"
        elif error is self._busy_error:
            rule = "busy for too long"
        elif self._coordinator.settings.failover_interval == 0:
            rule = "interval zero"
        else:
            rule = "interval over" if failover.is_diverting else "while suspect"
        return Diversion(rule, f"{type(error).__name__}: {error}", self._primary_s)

    def _is_spared_failures(self) -> bool:
        """Return whether the caller should see no failure of the primary: by option, or because the interval is
        zero."""
        settings = self._coordinator.settings
        return settings.while_suspect == "divert" or settings.failover_interval == 0

    def _leave_or_fail(self, leave: bool, error: BaseException) -> None:
        """Return whether this message goes to the backlog although the entity has not failed over, if there is a
        backlog."""
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
            if self._host_refuses:
                text = f"{entity}: the host of the {len(rotation)} backlog queues refuses"
            if self._rounds:
                text += f", each time of {self._rounds + 1}"
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

    def _throttled(self, now: float, until: float) -> EntityThrottledError:
        backlog = "" if self._backlog_error is None else f"; no backlog queue took it{_told(self._backlog_error)}"
        error = EntityThrottledError(
            f"{self._failover.entity}: throttled; sends halt for another {until - now:.1f} s, which does not "
            f"fit into the {max(0.0, self.ends - now):.1f} s left to this one{backlog}. {self._so_far}; send what is "
            "not confirmed again then, with the same message ids, or give the call more time (timeout=, or the option "
            "send_timeout)."
        )
        error.tells(self._so_far)
        error.__cause__ = self._busy_error or self._backlog_error
        return error


def _told(error: BaseException | None) -> str:
    return "" if error is None else f" (last: {type(error).__name__}: {error})"
