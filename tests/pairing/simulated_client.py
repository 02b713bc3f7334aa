"""The simulation's paired client: a shell as `pairbus.sync` and `pairbus.aio` are, without their I/O.

The decisions are the real ones (Coordinator, Dispatch and what they stand on); this file only carries out what they
say, on the simulated clock, and tells the audit. A client has a clock of its own, timers that fire a little late and
senders that do one thing at a time; it can be frozen, killed and started again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.events import Announce, SendPing
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.verdicts import is_reach

from .simulated_brokers import Answer, Namespace, Schedule, Stored, Timer, backlog_path

if TYPE_CHECKING:
    from .audit import Audit

# What the SDK raises for a broker's answer.
ERRORS: dict[str, Callable[[], BaseException]] = {
    "refuse": lambda: ServiceBusConnectionError(message="connection refused"),
    "reset": lambda: ServiceBusConnectionError(message="connection reset"),
    "busy": lambda: ServiceBusServerBusyError(message="throttled"),
    "full": lambda: ServiceBusQuotaExceededError(message="the queue is full"),
    "gone": lambda: MessagingEntityNotFoundError(message="deleted"),
    "disabled": lambda: MessagingEntityDisabledError(message="disabled"),
    "denied": lambda: ServiceBusAuthorizationError(message="no right to send"),
    "internal": lambda: ServiceBusError("internal server error", condition=b"amqp:internal-error"),
}
LATE_S = (0.0, 0.0, 0.001, 0.02)  # how late a timer may fire


@dataclass(eq=False, slots=True)
class Call:
    """One `send_messages` of the application."""

    number: int
    client: SimulatedClient
    entity: str
    sender: str
    mid: str
    timeout: float | None
    done: Callable[[BaseException | None], None]
    began: float = 0.0
    dispatch: Dispatch | None = None
    attempt: Attempt | None = None
    timer: Timer | None = None
    over: bool = False
    primary_tries: int = 0
    primary_at: float = 0.0
    backlog_tries: int = 0
    tried: set[int] = field(default_factory=set)
    busy: bool = False
    has_failed: bool = False
    confirms: int = 0
    #: What its backlog queues leave for the primary, and whether it goes there for the last time (P13).
    kept_s: float | None = None
    once_more: bool = False

    def __str__(self) -> str:
        return f"call {self.number} ({self.client.name}, {self.sender}, {self.mid})"


@dataclass(eq=False, slots=True)
class Attempt:
    call: Call
    queue: int | None
    deadline: float  # world time
    copy: Stored
    since: float
    over: bool = False
    began: bool = False


@dataclass(eq=False, slots=True)
class Inner:
    """What stands for the SDK's sender: one attempt at a time, the others wait and may never begin."""

    busy_with: Attempt | None = None
    waiting: deque[Attempt] = field(default_factory=deque)


class SimulatedClient:
    def __init__(
        self,
        name: str,
        schedule: Schedule,
        rng: random.Random,
        settings: Settings,
        primary: Namespace,
        secondary: Namespace,
        queues: list[int],
        audit: Audit,
    ) -> None:
        self.name = name
        self.schedule = schedule
        self.random = rng
        self.settings = settings
        self.primary = primary
        self.secondary = secondary
        self.queues = queues
        self.audit = audit
        self.offset = rng.choice((0.0, 1000.25, 86_400.0 * 40))
        self.calls: list[Call] = []
        self.frozen_until = 0.0
        self._life = 0
        self.start()

    @property
    def now(self) -> float:
        """This process's monotonic clock."""
        return self.schedule.now + self.offset

    # -- life

    def start(self) -> None:
        """A new process: it remembers nothing."""
        self._life += 1
        # Sometimes the secondary can't be set up at once (`on_secondary_unavailable="degrade"`).
        late = self.random.random() < 0.2
        self.has_queues = not late
        queues = [] if late else self.queues
        self.coordinator = Coordinator(self.settings, queues, choose=self.random.choice)
        if late:
            self._later(self.schedule.now + self.random.choice((0.5, 5.0, 20.0)), self._set_queues)
        self._inner: dict[tuple[str, int | None], Inner] = {}
        self._heart: Timer | None = None
        self._heart_at: float | None = None
        self.held: set[str] = set()
        self.audit.started(self)

    def _set_queues(self) -> None:
        self.has_queues = True
        self.coordinator.set_queues(self.queues)
        self.audit.note(f"{self.name} has its backlog queues")

    def kill(self) -> None:
        """Everything under way is forgotten; what is on the wire may still arrive."""
        for call in self.calls:
            if not call.over:
                call.over = True
                self.audit.forgotten(call)
        self.calls = []
        self.start()

    def freeze(self, seconds: float) -> None:
        """A suspended machine, a stopped process: nothing runs, and then everything that was due, at once."""
        self.frozen_until = max(self.frozen_until, self.schedule.now + seconds)
        self.audit.frozen(self, self.schedule.now, self.frozen_until)

    def _later(self, when: float, run: Callable[[], None]) -> Timer:
        life = self._life
        timer = self.schedule.at(when, lambda: fire())

        def fire() -> None:
            if life != self._life or timer.cancelled:
                return
            if self.schedule.now < self.frozen_until:
                self.schedule.at(self.frozen_until, fire)
                return
            run()

        return timer

    def _answer(self, run: Callable[[BaseException | None], None]) -> Answer:
        """What comes in from the network while the process stands still is read when it goes on."""
        life = self._life

        def came(said: str | None) -> None:
            if life == self._life:
                self._later(self.schedule.now, lambda: run(None if said is None else ERRORS[said]()))

        return came

    # -- the application's side

    def send(self, call: Call) -> None:
        if self.schedule.now < self.frozen_until:
            self._later(self.frozen_until, lambda: self.send(call))
            return
        self.calls.append(call)
        call.began = self.schedule.now
        call.dispatch = self.coordinator.begin(call.entity, call.sender, self.now, call.timeout)
        self.audit.began(call)
        self._step(call)

    def cancel(self, call: Call) -> None:
        """As asyncio cancels a task: whatever was under way is thrown away, and nobody is told anything."""
        if call.over or call.dispatch is None or self.schedule.now < self.frozen_until:
            return
        self._end(call)
        if call.attempt is not None:
            self._leave(call.attempt)
        call.dispatch.abandon(self.now)
        self.audit.forgotten(call)
        self._pump()

    def _end(self, call: Call) -> None:
        call.over = True
        self.calls.remove(call)
        if call.timer is not None:
            call.timer.cancel()

    def _step(self, call: Call) -> None:
        assert call.dispatch is not None
        step = call.dispatch.step(self.now)
        self._pump()
        self.audit.stepped(call, step)
        if isinstance(step, TryPrimary):
            self._try(call, None, step.timeout_s)
        elif isinstance(step, TryBacklog):
            self._try(call, step.queue, step.timeout_s)
        elif isinstance(step, Wait):
            call.timer = self._later(step.until - self.offset + self._late(), lambda: self._step(call))
        elif isinstance(step, Sent):
            self._end(call)
            self.audit.sent(call)
            call.done(None)
        else:
            assert isinstance(step, Failed)
            self._end(call)
            self.audit.failed(call, step.error)
            call.done(step.error)

    # -- one attempt

    def _try(self, call: Call, queue: int | None, timeout_s: float) -> None:
        path = call.entity if queue is None else backlog_path(queue)
        copy = Stored(call.mid, path, 0.0, call.entity)
        attempt = Attempt(call, queue, self.schedule.now + timeout_s, copy, self.schedule.now)
        call.attempt = attempt
        inner = self._inner.setdefault((call.sender, queue), Inner())
        call.timer = self._later(attempt.deadline + self._late(), lambda: self._timed_out(attempt))
        if inner.busy_with is None:
            self._begin(inner, attempt)
        else:
            inner.waiting.append(attempt)

    def _begin(self, inner: Inner, attempt: Attempt) -> None:
        inner.busy_with = attempt
        attempt.began = True
        self.audit.tried(attempt)
        namespace = self.primary if attempt.queue is None else self.secondary
        namespace.offer(attempt.copy.path, [attempt.copy], self._answer(lambda error: self._came(attempt, error)))

    def _timed_out(self, attempt: Attempt) -> None:
        if not attempt.over:
            if attempt.began:
                self._over(attempt, OperationTimeoutError(message="no answer in time"))
            else:
                self._over(attempt, NotTriedError("the sender was busy with another message"))

    def _came(self, attempt: Attempt, error: BaseException | None) -> None:
        if attempt.over:
            self.audit.late(attempt, error)
            return
        if error is None:
            attempt.copy.confirmed = True
            attempt.call.confirms += 1
        self._over(attempt, error)

    def _over(self, attempt: Attempt, error: BaseException | None) -> None:
        call = attempt.call
        self._leave(attempt)
        if call.timer is not None:
            call.timer.cancel()
        assert call.dispatch is not None
        with self.audit.fact(call, attempt, error):
            if attempt.queue is None:
                if error is None:
                    call.dispatch.primary_sent(self.now)
                else:
                    call.dispatch.primary_failed(self.now, error)
            elif error is None:
                call.dispatch.backlog_sent(self.now)
            else:
                call.dispatch.backlog_failed(self.now, error)
            self._pump()
        self._step(call)

    def _leave(self, attempt: Attempt) -> None:
        """The sender is free for the next one; a new one if this one never got its answer."""
        attempt.over = True
        attempt.call.attempt = None
        inner = self._inner[attempt.call.sender, attempt.queue]
        if inner.busy_with is not attempt:
            if attempt in inner.waiting:
                inner.waiting.remove(attempt)
            return
        inner.busy_with = None
        if inner.waiting:
            self._begin(inner, inner.waiting.popleft())

    # -- the heart: timers and pings

    def operate(self, entity: str, *, healthy: bool, hold: bool = False) -> None:
        if self.schedule.now < self.frozen_until:
            return
        with self.audit.operated(self, entity, healthy, hold):
            if healthy:
                self.held.discard(entity)
                self.coordinator.mark_healthy(entity, self.now)
            else:
                (self.held.add if hold else self.held.discard)(entity)
                self.coordinator.force_failover(entity, self.now, hold=hold)
            self._pump()

    def let_go(self) -> None:
        """The operator ends every drill that holds an entity."""
        for entity in sorted(self.held):
            self._later(self.schedule.now, partial(self.operate, entity, healthy=True))

    def _pump(self) -> None:
        commands = self.coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                self._ping(command.entity)
            else:
                assert isinstance(command, Announce)
                self.audit.announced(self, command.event)
        deadline = self.coordinator.deadline
        if deadline != self._heart_at:
            if self._heart is not None:
                self._heart.cancel()
            self._heart_at = deadline
            self._heart = None
            if deadline is not None:
                self._heart = self._later(deadline - self.offset + self._late(), self._beat)

    def _beat(self) -> None:
        self._heart = self._heart_at = None
        with self.audit.tick(self):
            self.coordinator.tick(self.now)
            self._pump()

    def _ping(self, entity: str) -> None:
        self.audit.pinging(self, entity)
        answered = False

        def came(error: BaseException | None) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            timer.cancel()
            with self.audit.pinged(self, entity, error):
                if error is None:
                    self.coordinator.ping_succeeded(entity, self.now)
                else:
                    self.coordinator.ping_failed(entity, self.now, error, not is_reach(error))
                self._pump()

        timer = self._later(
            self.schedule.now + self.ping_timeout + self._late(),
            lambda: came(OperationTimeoutError(message="no answer to the ping")),
        )
        self.primary.offer(entity, (), self._answer(came))

    @property
    def ping_timeout(self) -> float:
        """Longer than the shells', which is never beyond the interval: here answers may come after the next is due."""
        return self.settings.send_timeout / 2

    def _late(self) -> float:
        return self.random.choice(LATE_S)
