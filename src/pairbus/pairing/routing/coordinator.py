"""Coordinates all entities of one paired client: their failovers, busy pauses and timers, and the shared rotation.

An entity is known by its path regardless of letter case, as the service knows it (P15), and is shown as it was first
named.

It decides which entity a fact belongs to, when the next tick is due, when an entity has been busy for too long (P24),
and what is forgotten. It is called under the shell's lock and never calls back: it leaves what is to be done in
`commands`, which the shell takes out after every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pairbus.pairing.events import Announce, Command, EntityThrottled, PingFailed, StateChanged
from pairbus.pairing.routing.busy_pause import BusyPause
from pairbus.pairing.routing.dispatch import Dispatch
from pairbus.pairing.routing.failover import Failover
from pairbus.pairing.routing.rotation import Rotation
from pairbus.pairing.routing.states import EntityState, Route
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict

if TYPE_CHECKING:
    from pairbus.pairing.options import Settings


class Coordinator:
    """The state of every entity of a paired client; `choose` picks one of the usable backlog queues."""

    __slots__ = ("_entities", "_errors", "_timers", "commands", "deadline", "halts", "refusals", "rotation", "settings")

    def __init__(
        self, settings: Settings, queues: Sequence[int] = (), *, choose: Callable[[Sequence[int]], int]
    ) -> None:
        self.settings = settings
        self.rotation = Rotation(queues, retry_interval=settings.backlog_retry_interval, choose=choose)
        #: For the shell, in order; it takes them out.
        self.commands: deque[Command] = deque()
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
        """Return the state of the entity; one that was never used is healthy."""
        failover = self._entities.get(entity.lower())
        return EntityState.HEALTHY if failover is None else failover.state

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
        )
        return failover

    # Time, pings, the operator

    def tick(self, now: float) -> None:
        """Do what is due by now: end intervals, ask for pings."""
        self._forget_halts(now)
        if self.deadline is None or now < self.deadline:
            return
        for failover in [failover for failover, due in self._timers.items() if due <= now]:
            self._note(failover, failover.tick(now))

    def ping_succeeded(self, entity: str, now: float) -> None:
        if failover := self._entities.get(entity.lower()):
            self._note(failover, failover.ping_succeeded(now))

    def ping_failed(self, entity: str, now: float, error: BaseException, reachable: bool) -> None:
        """Note a failed ping. `reachable` says that the primary answered and refused (P34), which busy does not."""
        failover = self._entities.get(entity.lower())
        if failover is None:
            return
        entity = failover.entity
        until = 0.0
        # By our own table: a user's classifier may raise, and a ping without an answer would be the last one.
        if DEFAULT(error) is Verdict.BUSY:
            reachable = False
            until = self._halt(entity, now, sending=False).until
        self._note(failover, failover.expire(now))
        if failover.is_probing:
            self.commands.append(Announce(PingFailed(entity, reachable, error)))
            self._errors[entity] = error
            if reachable:
                self.refusals[entity] = error
        self._note(failover, failover.ping_failed(now, reachable, not_before=until))

    def force_failover(self, entity: str, now: float, *, hold: bool = False) -> None:
        failover = self._entities.get(entity.lower()) or self._met(entity)
        self._note(failover, failover.forced(now, hold))

    def mark_healthy(self, entity: str, now: float) -> None:
        failover = self._entities.get(entity.lower()) or self._met(entity)
        self._note(failover, failover.marked_healthy(now))

    # Busy pauses (P24)

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
            self.commands.append(Announce(EntityThrottled(known.entity if known else entity, halt.until - now)))
        return halt

    def _forget_halts(self, now: float) -> None:
        if self.halts:
            for entity in [entity for entity, halt in self.halts.items() if halt.is_over(now)]:
                del self.halts[entity]

    # For Dispatch: what its attempts say of the entity

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
        if trial:
            self._note(failover, failover.trial_succeeded(now))
        self._note(failover, failover.primary_sent(now, epoch))

    def sent_once_more(self, failover: Failover, now: float, epoch: int) -> None:
        self._note(failover, failover.sent_once_more(now, epoch))

    def primary_failed(self, failover: Failover, now: float, epoch: int, trial: bool, error: BaseException) -> None:
        self._errors[failover.entity] = error
        if trial:
            self._note(failover, failover.trial_failed(now, False))
        else:
            self._note(failover, failover.primary_failed(now, epoch))

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
