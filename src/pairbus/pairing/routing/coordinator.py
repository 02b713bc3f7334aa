"""Coordinates all entities of one paired client: their failovers, busy pauses and timers, and the shared rotation.

An entity is known by its path regardless of letter case, as the service knows it, and is shown in its first spelling.

It decides which entity a fact belongs to, when the next tick is due, when an entity has been busy for too long, and
which data is forgotten. It is called under the shell's lock and never calls back: it leaves commands in `commands`,
which the shell takes out after every call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.errors import PinnedEntityError, is_nothing_sent
from pairbus.pairing.events import (
    Action,
    Announce,
    Command,
    ControlFileChanged,
    EntityThrottled,
    OpenLinks,
    OperatorActed,
    PingFailed,
    StateChanged,
)
from pairbus.pairing.routing.budget import INTERACTIVE, Retries
from pairbus.pairing.routing.busy_pause import BusyPause
from pairbus.pairing.routing.dispatch import Dispatch
from pairbus.pairing.routing.failover import Failover
from pairbus.pairing.routing.patience import Patience, PrimaryTerms, SlowSends, patience_with_openings
from pairbus.pairing.routing.pins import NO_PINS, Pins
from pairbus.pairing.routing.rotation import Rotation
from pairbus.pairing.routing.states import EntityState, Route
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict, is_definite, is_silence

if TYPE_CHECKING:
    from pairbus.pairing.options import Settings

NO_RETRIES: Final = Retries()


class Coordinator:
    """The state of every entity of a paired client.

    `choose` picks one of the usable backlog queues. `draw` returns numbers from 0 up to 1, at random for a client of a
    fleet: one for its ping phase, and one for each entity's share of the return ramp. `retries` are those of its SDK.
    """

    __slots__ = (
        "_draw", "_entities", "_errors", "_openings", "_pinned_at", "_terms", "_timers", "answered_at", "commands",
        "deadline", "halts", "last_terms", "phase", "pins", "refusals", "retries", "rotation", "settings",
        "trial_terms",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[int] = (),
        *,
        choose: Callable[[Sequence[int]], int],
        draw: Callable[[], float] = lambda: 0.0,
        retries: Retries = NO_RETRIES,
    ) -> None:
        self.settings = settings
        #: How often a send that both sides refuse asks them again.
        self.retries = INTERACTIVE if settings.profile == "interactive" else retries
        #: The share of an interval after which this client does for the first time what it does once per interval.
        self.phase = 1.0 - draw()
        self._draw = draw
        #: The pins of the control file, and since when they apply.
        self.pins: Pins = NO_PINS
        self._pinned_at = 0.0
        self.rotation = Rotation(queues, retry_interval=settings.backlog_retry_interval, choose=choose)
        #: Commands for the shell, in order; it takes them out.
        self.commands: deque[Command] = deque()
        #: When the primary last confirmed a message, of whatever entity.
        self.answered_at = -math.inf
        #: When `tick` is needed next; None: not before something else happens. It may lie in the past.
        self.deadline: float | None = None
        #: Entities that are, or were just now, busy, in lower case.
        self.halts: dict[str, BusyPause] = {}
        #: Why each UNREACHABLE entity refuses.
        self.refusals: dict[str, BaseException] = {}
        self._entities: dict[str, Failover] = {}
        #: The last failure that counted of each entity that is not healthy.
        self._errors: dict[str, BaseException] = {}
        self._timers: dict[Failover, float] = {}
        #: The terms of an attempt at the primary that has the backlog behind it whatever the options say: a trial.
        self.trial_terms = PrimaryTerms(self.ends_at)
        #: The same for the attempt that follows the last backlog queue: it ends with any refusal.
        self.last_terms = PrimaryTerms(is_definite)
        # How long links to the primary may take to open; None: as long as attempts may take.
        self._openings = patience_with_openings() if settings.primary_patience == "adaptive" else None
        self._terms = self._common_terms()
        if self._openings is not None:
            self._take_openings(self._openings)

    def __repr__(self) -> str:
        sick = [failover for failover in self._entities.values() if failover.state is not EntityState.HEALTHY]
        return f"<Coordinator {len(self._entities)} entities, {len(sick)} not healthy, {self.rotation!r}>"

    # Entities

    def begin(self, entity: str, sender: Hashable, now: float, timeout: float | None) -> Dispatch:
        """Begin a send; `timeout` None means the option `send_timeout`."""
        failover = self._entities.get(entity.lower()) or self._met(entity)
        return Dispatch(self, failover, sender, now, self.settings.send_timeout if timeout is None else timeout)

    def know(self, entity: str) -> str:
        """Return the name under which the entity is shown: the first that was used for it."""
        return (self._entities.get(entity.lower()) or self._met(entity)).entity

    def state(self, entity: str) -> EntityState:
        """Return the state of the entity; one never used is healthy, unless the control file says otherwise."""
        failover = self._entities.get(entity.lower())
        if failover is not None:
            return failover.state
        return EntityState.FAILED_OVER if self.pins.of(entity) == "failed-over" else EntityState.HEALTHY

    def states(self) -> dict[str, EntityState]:
        """Return the state of every entity that was used, in the order of first use."""
        return {failover.entity: failover.state for failover in self._entities.values()}

    def route(self, entity: str) -> Route:
        """Return where a new message would go."""
        state = self.state(entity)
        if state is EntityState.HEALTHY or state is EntityState.SUSPECT:
            return Route.PRIMARY
        if state is EntityState.UNREACHABLE and self.settings.when_unreachable == "raise":
            return Route.REFUSED
        return Route.BACKLOG

    def set_queues(self, queues: Sequence[int]) -> None:
        """Replace the backlog queues, by index."""
        self.rotation.replace(queues)

    def forget_sender(self, sender: Hashable) -> None:
        self.rotation.forget(sender)

    def forked(self) -> None:
        """Abandon the attempts of the parent process in a forked child, where no answer to them will come."""
        for failover in self._entities.values():
            failover.trial_abandoned()
            self._note(failover, [])
        self.rotation.forked()

    def _met(self, entity: str) -> Failover:
        settings = self.settings
        failover = self._entities[entity.lower()] = Failover(
            entity,
            failover_interval=settings.failover_interval,
            ping_interval=settings.ping_primary_interval,
            pings_to_return=settings.pings_to_return,
            probe=settings.probe,
            phase=self.phase,
            return_delay=settings.return_ramp and settings.return_ramp * self._draw(),
        )
        failover.terms = self._terms
        if self._terms is not None and self._terms.ends_at is not None:
            failover.terms = replace(self._terms, has_left=lambda: failover.is_diverting)
        if settings.primary_patience == "adaptive" and self._terms is not None and self._terms.ends_at is not None:
            failover.patience = Patience()
        if settings.brownout is not None:
            failover.slow_sends = SlowSends(settings.brownout)
        if self.pins is not NO_PINS:
            self._note(failover, failover.pinned(self._pinned_at, self.pins.of(entity)))
        return failover

    def _common_terms(self) -> PrimaryTerms | None:
        """Return the terms of attempts at the primary, before anything is known of the entity.

        Only where the backlog is next does anything end an attempt early: otherwise the caller sees its failure.
        """
        settings = self.settings
        if settings.while_suspect != "divert" and settings.failover_interval > 0:
            return None if settings.brownout is None else PrimaryTerms()
        if isinstance(settings.primary_patience, float):
            return PrimaryTerms(self.ends_at, settings.primary_patience, settings.primary_patience)
        return PrimaryTerms(self.ends_at)

    # Time, pings, the operator

    def tick(self, now: float) -> None:
        """Do what is due by now: end intervals, ask for pings."""
        self._forget_halts(now)
        if self.deadline is None or now < self.deadline:
            return
        for failover in [failover for failover, due in self._timers.items() if due <= now]:
            self._note(failover, failover.tick(now))

    def ping_succeeded(self, entity: str, now: float, took_s: float = 0.0) -> None:
        """Note a good ping; `took_s`: how long its answer took, which may be too long."""
        failover = self._entities.get(entity.lower())
        if failover is None:
            return
        brownout = self.settings.brownout
        if brownout is not None and took_s > brownout.slower_than_s:
            slow = OperationTimeoutError(
                message=f"{failover.entity}: the ping took {took_s:.1f} s, longer than {brownout.slower_than_s:g} s"
            )
            self.ping_failed(entity, now, slow, reachable=False)
            return
        if failover.patience is not None and failover.patience.doubted and failover.is_probing:
            self._false_alarm(failover, now)
        self._note(failover, failover.ping_succeeded(now))

    def ping_failed(self, entity: str, now: float, error: BaseException, reachable: bool) -> None:
        """Note a failed ping. `reachable` says that the primary answered and refused, which busy does not."""
        failover = self._entities.get(entity.lower())
        if failover is None:
            return
        entity = failover.entity
        until = 0.0
        # Uses our own table: a user's classifier may raise, and a ping without an answer would be the last one.
        if DEFAULT(error) is Verdict.BUSY:
            reachable = False
            until = self._halt(entity, now, sending=False).until
        self._note(failover, failover.expire(now))
        if failover.patience is not None:
            failover.patience.doubted = False
        if failover.is_probing:
            self.commands.append(Announce(PingFailed(entity, reachable, error)))
            self._errors[entity] = error
            if reachable:
                self.refusals[entity] = error
        self._note(failover, failover.ping_failed(now, reachable, not_before=until))

    def force_failover(self, entity: str, now: float, *, hold: bool = False) -> None:
        failover = self._operated(entity, "force failover and hold" if hold else "force failover")
        self._note(failover, failover.forced(now, hold))

    def mark_healthy(self, entity: str, now: float) -> None:
        failover = self._operated(entity, "mark healthy")
        self._note(failover, failover.marked_healthy(now))

    def _operated(self, entity: str, action: Action) -> Failover:
        failover = self._entities.get(entity.lower()) or self._met(entity)
        if failover.pin is not None:
            raise PinnedEntityError(
                f"{failover.entity}: can't {action}, since the control file keeps it {failover.pin!r}; change its line"
                ' there, or set it to "auto"'
            )
        self.commands.append(Announce(OperatorActed(failover.entity, action)))
        return failover

    def set_pins(self, pins: Pins, now: float) -> None:
        """Follow these pins of the control file from now on."""
        self.commands.append(Announce(ControlFileChanged(pins.written)))
        self.pins, self._pinned_at = pins, now
        for failover in self._entities.values():
            self._note(failover, failover.pinned(now, pins.of(failover.entity)))

    # Busy pauses

    def busy(self, entity: str, now: float) -> None:
        """Pause the entity after a receive or a management call met a busy server; this leads to no failover."""
        self._halt(entity, now, sending=False)

    def halted_until(self, entity: str) -> float:
        """Return when the busy pause of the entity ends; 0.0 if there is none."""
        halt = self.halts.get(entity.lower()) if self.halts else None
        return 0.0 if halt is None else halt.until

    def _halt(self, entity: str, now: float, *, sending: bool) -> BusyPause:
        self._forget_halts(now)
        key = entity.lower()
        halt = self.halts.get(key)
        if halt is None:
            halt = self.halts[key] = BusyPause()
        was_on = halt.is_on(now)
        halt.busy(now, sending=sending)
        if not was_on:
            known = self._entities.get(key)
            diverted = known is not None and self.diverts_throttled and bool(self.rotation)
            self.commands.append(
                Announce(EntityThrottled(known.entity if known else entity, halt.until - now, diverted))
            )
        return halt

    def _forget_halts(self, now: float) -> None:
        if self.halts:
            for entity in [entity for entity, halt in self.halts.items() if halt.is_over(now)]:
                del self.halts[entity]

    # For Dispatch: what its attempts say of the entity

    @property
    def diverts_throttled(self) -> bool:
        """Whether messages go to the backlog while their entity pauses."""
        return self.settings.while_throttled == "divert"

    def verdict(self, error: BaseException) -> Verdict:
        verdict = self.settings.classifier(error)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"the classifier returned {verdict!r} for {type(error).__name__}; it must return a Verdict")
        return verdict

    def refresh(self, failover: Failover, now: float) -> None:
        """Bring the state up to date before it is acted on."""
        self._forget_halts(now)
        self._note(failover, failover.expire(now))

    def primary_sent(self, failover: Failover, now: float, epoch: int, trial: bool) -> None:
        if halt := self.halts.get(failover.entity.lower()):
            halt.sent()
        if failover.patience is not None and failover.patience.doubted and not failover.is_diverting:
            self._false_alarm(failover, now)
        if trial:
            self._note(failover, failover.trial_succeeded(now))
        self._note(failover, failover.primary_sent(now, epoch))

    def sent_once_more(self, failover: Failover, now: float, epoch: int) -> None:
        self._note(failover, failover.sent_once_more(now, epoch))

    def primary_failed(
        self, failover: Failover, now: float, epoch: int, trial: bool, error: BaseException, *, hasty_s: float = 0.0
    ) -> None:
        """Note a failure that counts. `hasty_s`: how long the attempt had, if the caller would have given it more.

        Then it may be a false alarm. If the primary was heard meanwhile it probably is one, and a ping asks at once; if
        not, the first ping comes at this client's phase: a fleet that met one outage must not ping in one second.
        """
        self._errors[failover.entity] = error
        if trial:
            self._note(failover, failover.trial_failed(now, False))
            return
        was_diverting = failover.is_diverting
        commands = failover.primary_failed(now, epoch)
        if hasty_s and failover.patience is not None and not was_diverting and is_silence(error):
            failover.patience.doubted = not is_nothing_sent(error)
            if now - self.answered_at < hasty_s / 2:  # what was on its way when an outage began was heard before that
                failover.ping_soon(now)
        self._note(failover, commands)

    def ends_at(self, error: BaseException) -> bool:
        """Return whether an attempt ends with this failure, where the backlog is next; silence is waited for."""
        try:
            return not is_silence(error) and self.verdict(error) is Verdict.QUALIFIES
        except Exception:  # of the user's classifier: the code that handles the answer raises it
            return False

    def is_brownout(self, failover: Failover, now: float, took_s: float, trial: bool) -> bool:
        """Note how long the primary took for an answer; return whether it is in a brownout, of which a trial
        tells by itself."""
        patience = failover.patience
        if patience is not None and patience.noted(took_s, now):
            self._take_patience(failover, patience)
        slow_sends = failover.slow_sends
        return slow_sends is not None and (slow_sends.is_slow(took_s) if trial else slow_sends.noted(took_s))

    def browned_out(self, failover: Failover, now: float, epoch: int, took_s: float, trial: bool) -> None:
        brownout = self.settings.brownout
        assert brownout is not None
        self._errors[failover.entity] = OperationTimeoutError(
            message=f"{failover.entity}: more than {brownout.share:.0%} of the last {brownout.sends} sends took longer "
            f"than {brownout.slower_than_s:g} s, the last one {took_s:.1f} s"
        )
        self._note(failover, failover.trial_failed(now, False) if trial else failover.browned_out(now, epoch))

    def link_opened(self, now: float, took_s: float) -> None:
        """Note how long a link to the primary took to open, of whatever entity."""
        if self._openings is not None and self._openings.noted(took_s, now):
            self._take_openings(self._openings)

    def _take_openings(self, openings: Patience) -> None:
        self.trial_terms = replace(self.trial_terms, opening_s=openings.silence_s)
        if self._terms is not None and self._terms.ends_at is not None:
            self._terms = replace(self._terms, opening_s=openings.silence_s)
        for failover in self._entities.values():
            if failover.patience is not None:
                self._take_patience(failover, failover.patience)

    def _false_alarm(self, failover: Failover, now: float) -> None:
        assert failover.patience is not None
        failover.patience.false_alarm(now)
        self._take_patience(failover, failover.patience)

    def _take_patience(self, failover: Failover, patience: Patience) -> None:
        assert self._openings is not None
        terms, opening_s = failover.terms, self._openings.silence_s
        if terms is None or (terms.silence_s, terms.opening_s) != (patience.silence_s, opening_s):
            failover.terms = PrimaryTerms(
                self.ends_at, patience.silence_s, opening_s, has_left=lambda: failover.is_diverting
            )

    def send_busy(self, failover: Failover, now: float, epoch: int, trial: bool, error: BaseException) -> bool:
        """Pause the entity; return whether it has been busy for too long, which counts as a failure."""
        halt = self._halt(failover.entity, now, sending=True)
        if trial:
            self._note(failover, failover.trial_failed(now, False))
            return False
        limit = self.settings.busy_failover_after
        if limit is None or halt.busy_for(now) < limit:
            return False
        self._errors[failover.entity] = error
        self._note(failover, failover.primary_failed(now, epoch, busy=True))
        return True

    def trial_refused(self, failover: Failover, now: float, error: BaseException) -> None:
        if failover.is_probing:
            self.refusals[failover.entity] = self._errors[failover.entity] = error
        self._note(failover, failover.trial_failed(now, True))

    def _explained(self, command: Command) -> Command:
        """Add the error that caused a change for the worse to its event."""
        match command:
            case Announce(StateChanged(entity=entity, state=state) as change) if state is not EntityState.HEALTHY:
                return Announce(replace(change, error=self._errors.get(entity)))
        return command

    def _note(self, failover: Failover, commands: list[Command]) -> None:
        entity = failover.entity
        if commands:
            self.commands.extend(self._explained(command) for command in commands)
            if any(_is_return(command) for command in commands):
                self.commands.append(OpenLinks(entity))
            if failover.slow_sends is not None and failover.state is not EntityState.SUSPECT and _has_changed(commands):
                failover.slow_sends.clear()
        if self.refusals and failover.state is not EntityState.UNREACHABLE:
            self.refusals.pop(entity, None)
        if self._errors and failover.state is EntityState.HEALTHY:
            self._errors.pop(entity, None)
        due = failover.deadline
        if self._timers.get(failover) == due:
            return
        timers = {each: at for each, at in self._timers.items() if each is not failover}
        if due is not None:
            timers[failover] = due
        # In this order: who is interrupted between the two does both again, at the next report of this entity.
        self.deadline = min(timers.values(), default=None)
        self._timers = timers


def _is_return(command: Command) -> bool:
    """Return whether an entity that had failed over takes messages at the primary again."""
    match command:
        case Announce(StateChanged(previous=previous, state=EntityState.HEALTHY)):
            return previous is not EntityState.SUSPECT
    return False


def _has_changed(commands: list[Command]) -> bool:
    """Return whether the state of an entity has changed."""
    return any(isinstance(command, Announce) and isinstance(command.event, StateChanged) for command in commands)
