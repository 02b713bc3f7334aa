"""The world round the decisions, for test_world_proof.py: brokers with weather, a shell that does what it is told, and
a plain second account (`Truth`) of what each entity's state must be, kept from the same facts.

Every I/O is split into begin and answer; between the two anything may happen. Times are drawn from a few values that
meet, and at equal times the order is drawn. Every rule ends in `check`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.errors import BacklogUnavailableError, EntityUnreachableError, NoTimeLeftError, NotTriedError
from pairbus.pairing.events import Announce, BacklogQueueEjected, BacklogQueueReturned, SendPing, StateChanged
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.states import EntityState

ENTITIES = ("a", "b")
SENDERS = {"a1": "a", "a2": "a", "b1": "b"}
PING_TIMEOUT_S = 20.0
HALT_S = 10.0

DOWN = ServiceBusConnectionError(message="refused")
LATE = OperationTimeoutError(message="no answer")
BUSY = ServiceBusServerBusyError(message="busy")
GONE = MessagingEntityNotFoundError(message="no such entity")
LARGE = MessageSizeExceededError(message="too large")
NOT_TRIED = NotTriedError("others were first")
UNAVAILABLE = BacklogUnavailableError("stands for the one that is raised")


class Weather(enum.Enum):
    FAIR = "confirms"
    DOWN = "refuses the connection"
    SILENT = "takes nothing and says nothing"
    SWALLOWING = "stores and says nothing"
    BUSY = "is throttled"
    GONE = "says that there is no such entity"


ANSWERS: dict[Weather, Exception | None] = {
    Weather.FAIR: None,
    Weather.DOWN: DOWN,
    Weather.BUSY: BUSY,
    Weather.GONE: GONE,
}


@dataclass(eq=False, repr=False)
class Message:
    """One call of send_messages."""

    number: int
    entity: str
    sender: str
    began: float
    ends: float
    dispatch: Dispatch
    at: Attempt | None = None
    wakes: float | None = None
    outcome: Literal["", "sent", "failed", "cancelled"] = ""
    confirmed: bool = False
    swallowed: int = 0
    # What the account expects of its next steps.
    leaving: bool = False
    due_error: Exception | None = None
    failures: int = 0
    tried: set[int] = field(default_factory=set)
    was_trial: bool = False
    goes_once_more: bool = False
    was_once_more: bool = False
    #: What its backlog queues leave for the primary.
    kept_s: float | None = None

    def __repr__(self) -> str:
        return f"<Message {self.number} of {self.sender}: {self.outcome or self.dispatch}>"


@dataclass(eq=False, repr=False)
class Attempt:
    """Something under way: a message at a broker, or a ping (no message)."""

    place: str | int  # entity of the primary, or number of a backlog queue
    began: float
    ends: float
    weather: Weather
    message: Message | None
    returns: int = 0
    stay: int = 0
    trial: bool = False
    #: At the primary, after the last backlog queue.
    once_more: bool = False
    began_left: bool = False
    term: int = 0
    stored: bool = False

    def __repr__(self) -> str:
        return f"<{self.message or 'Ping'} at {self.place!r} until {self.ends}>"


class Truth:
    """What the state of one entity must be: P16, P17, P21, P23, P24, P31, P34, P35, in plain words."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.first_failure: float | None = None
        self.left = False
        self.refused = False
        self.held = False
        self.good = 0
        self.due = 0.0
        self.probe: Attempt | None = None
        #: Counted: how often the primary was taken again, and how often it was left (or held).
        self.returns = 0
        self.stay = 0
        self.halted_until = 0.0
        self.busy_since: float | None = None

    @property
    def state(self) -> EntityState:
        if self.left:
            return EntityState.UNREACHABLE if self.refused else EntityState.FAILED_OVER
        return EntityState.HEALTHY if self.first_failure is None else EntityState.SUSPECT

    def wake(self) -> float | None:
        """When the clock, rather than an answer, a message or the operator, will wake a sick entity."""
        if self.first_failure is not None:
            return self.first_failure + self.settings.failover_interval
        if self.left and not self.held and self.probe is None and self.settings.probe == "ping":
            return self.due
        return None

    def clock(self, now: float) -> None:
        if self.first_failure is not None and now >= self.first_failure + self.settings.failover_interval:
            self.leave(self.first_failure + self.settings.failover_interval)

    def leave(self, at: float) -> None:
        self.left, self.refused, self.held = True, False, False
        self.first_failure = None
        self.good = 0
        self.stay += 1
        self.due = at + self.settings.ping_primary_interval

    def come_back(self) -> None:
        self.left = self.refused = self.held = False
        self.first_failure = None
        self.returns += 1

    def sent(self, now: float) -> None:
        self.clock(now)
        self.first_failure = None
        self.busy_since = None

    def failed(self, now: float, returns: int) -> None:
        self.clock(now)
        if not self.left and self.first_failure is None and returns == self.returns:
            self.first_failure = now
            self.clock(now)

    def busy(self, now: float, *, sending: bool) -> bool:
        """True: busy for too long."""
        if now >= self.halted_until + HALT_S:
            self.busy_since = None
        if sending and self.busy_since is None:
            self.busy_since = now
        self.halted_until = max(self.halted_until, now + HALT_S)
        limit = self.settings.busy_failover_after
        return sending and limit is not None and self.busy_since is not None and now - self.busy_since >= limit

    def begin_probe(self, now: float, attempt: Attempt) -> None:
        assert self.left
        assert not self.held
        assert self.probe is None, "two probes under way"
        assert now >= self.due, "a probe before its time"
        attempt.stay = self.stay
        self.probe = attempt
        self.due = now + self.settings.ping_primary_interval

    def end_probe(self, now: float, attempt: Attempt, how: Literal["good", "refused", "unanswered", "nothing"]) -> None:
        self.clock(now)
        assert self.probe is attempt
        self.probe = None
        if how == "nothing" or not self.left or self.held or attempt.stay != self.stay:
            return
        if how == "good":
            self.good += 1
            self.refused = False
            if self.good >= self.settings.pings_to_return:
                self.come_back()
        else:
            self.good = 0
            self.refused = how == "refused"

    def sent_once_more(self, now: float, attempt: Attempt) -> None:
        """As a good ping, if it began in this stay."""
        self.clock(now)
        if not self.left or self.held or not attempt.began_left or attempt.returns != self.returns:
            return
        self.good += 1
        self.refused = False
        if self.good >= self.settings.pings_to_return:
            self.come_back()

    def forced(self, now: float, hold: bool) -> None:
        self.clock(now)
        if not self.left:
            self.leave(now)
        elif self.held and not hold:  # the pings begin anew
            self.due = now + self.settings.ping_primary_interval
            self.good = 0
        self.refused = False
        self.held = hold
        if hold:
            self.stay += 1

    def marked(self, now: float) -> None:
        self.clock(now)
        if self.left or self.first_failure is not None:
            self.come_back()


class World:
    def __init__(self, settings: Settings, queues: Sequence[int], *, prompt: bool) -> None:
        self.settings = settings
        self.prompt = prompt
        self.now = 1000.0
        self.dice = 0
        self.queues = list(queues)
        self.coordinator = Coordinator(
            settings, queues, choose=lambda usable: usable[self.dice % len(usable)] if usable else 1 // 0
        )
        self.truths = {entity: Truth(settings) for entity in ENTITIES}
        self.told = dict.fromkeys(ENTITIES, EntityState.HEALTHY)
        self.weather: dict[str | int, Weather] = {}
        self.stores: dict[str | int, list[Message]] = {place: [] for place in (*ENTITIES, 0, 1, 2)}
        self.messages: list[Message] = []
        self.open: list[Message] = []
        self.pings: list[Attempt] = []
        #: When the last ping ended: the next may have been due before.
        self.freed: dict[str, float] = {}
        self.out: dict[int, float] = {}
        self.trying: set[int] = set()
        self.terms: dict[int, int] = {}
        self.kept: dict[str, tuple[int, int]] = {}
        for entity in ENTITIES:
            self.coordinator.know(entity)

    # The shell

    def send(self, sender: str, timeout: float | None) -> Message:
        entity = SENDERS[sender]
        total = self.settings.send_timeout if timeout is None else timeout
        dispatch = self.coordinator.begin(entity, sender, self.now, timeout)
        message = Message(len(self.messages), entity, sender, self.now, self.now + total, dispatch)
        self.messages.append(message)
        self.open.append(message)
        self.drive(message)
        return message

    def drive(self, message: Message) -> None:
        """Steps, and begins what the step asks for."""
        assert message.at is None
        message.wakes = None
        truth = self.truths[message.entity]
        truth.clock(self.now)
        remaining = message.ends - self.now
        message.goes_once_more = False
        step = message.dispatch.step(self.now)
        self.compare(message, truth, remaining, step)
        if isinstance(step, Sent):
            message.outcome = "sent"
        elif isinstance(step, Failed):
            message.outcome = "failed"
        elif isinstance(step, Wait):
            message.wakes = step.until
        else:
            place = message.entity if isinstance(step, TryPrimary) else step.queue
            attempt = self.begin_attempt(place, step.timeout_s, message)
            attempt.returns = truth.returns
            if isinstance(step, TryPrimary):
                attempt.once_more = message.goes_once_more
                attempt.began_left = truth.left
                attempt.trial = truth.left and not attempt.once_more
            else:
                attempt.trial = self.picked(message, truth, step.queue)
            attempt.term = 0 if isinstance(step, TryPrimary) else self.terms.get(step.queue, 0)
            if isinstance(step, TryPrimary) and attempt.trial:
                truth.begin_probe(self.now, attempt)
            message.at = attempt
        if message.outcome:
            self.open.remove(message)
        self.drain()

    def begin_attempt(self, place: str | int, timeout_s: float, message: Message | None) -> Attempt:
        weather = self.weather.get(place, Weather.FAIR)
        attempt = Attempt(place, self.now, self.now + timeout_s, weather, message)
        if weather is Weather.SWALLOWING and message is not None:
            self.store(attempt, message)
            message.swallowed += 1
        return attempt

    def store(self, attempt: Attempt, message: Message) -> None:
        attempt.stored = True
        self.stores[attempt.place].append(message)

    def drain(self) -> None:
        commands = self.coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                assert self.settings.probe == "ping"
                attempt = self.begin_attempt(command.entity, PING_TIMEOUT_S, None)
                truth = self.truths[command.entity]
                truth.clock(self.now)
                if self.prompt:
                    assert self.now == truth.due or self.now == self.freed[command.entity], "a ping after its time"
                truth.begin_probe(self.now, attempt)
                self.pings.append(attempt)
            else:
                self.hear(command)

    def hear(self, command: Announce) -> None:
        event = command.event
        if isinstance(event, StateChanged):
            assert self.told[event.entity] is event.previous, "a change was not told"
            assert event.state is not event.previous
            self.told[event.entity] = event.state
        elif isinstance(event, BacklogQueueEjected):
            assert event.queue in self.out
        elif isinstance(event, BacklogQueueReturned):
            assert event.queue not in self.out

    def pending(self) -> list[Attempt]:
        return [message.at for message in self.open if message.at] + self.pings

    def reply(self, attempt: Attempt, *, late: bool) -> None:
        """By the weather of now, or late: by that of when it began. Others may have ended it by now."""
        if attempt in self.pending():
            self.answer(attempt, attempt.weather if late else self.weather.get(attempt.place, Weather.FAIR))

    def answer(self, attempt: Attempt, weather: Weather) -> None:
        """The broker answers by this weather, or, in silence, only when the attempt's time is over."""
        if weather in ANSWERS and not attempt.stored:
            self.finish(attempt, ANSWERS[weather])
        elif self.now >= attempt.ends:
            self.finish(attempt, LATE)

    def finish(self, attempt: Attempt, error: Exception | None) -> None:
        message = attempt.message
        assert self.now <= attempt.ends
        if message is None:
            self.finish_ping(attempt, error)
            return
        assert message.at is attempt
        message.at = None
        if error is None:
            self.store(attempt, message)
            message.confirmed = True
        else:
            message.failures += 1
        if isinstance(attempt.place, str):
            self.account_primary(message, attempt, error)
            if error is None:
                message.dispatch.primary_sent(self.now)
            else:
                message.dispatch.primary_failed(self.now, error)
        else:
            self.account_backlog(message, attempt, error)
            if error is None:
                message.dispatch.backlog_sent(self.now)
            else:
                message.dispatch.backlog_failed(self.now, error)
        self.drain()
        self.drive(message)

    def finish_ping(self, attempt: Attempt, error: Exception | None) -> None:
        assert isinstance(attempt.place, str)
        entity, truth = attempt.place, self.truths[attempt.place]
        self.pings.remove(attempt)
        self.freed[entity] = self.now
        counts = truth.left and not truth.held and attempt.stay == truth.stay
        if error is BUSY:
            truth.busy(self.now, sending=False)
        truth.end_probe(self.now, attempt, "good" if error is None else "refused" if error is GONE else "unanswered")
        if error is BUSY and counts:
            truth.due = max(truth.due, truth.halted_until)
        if error is None:
            self.coordinator.ping_succeeded(entity, self.now)
        else:
            # Whatever the shell thinks of busy, it is no refusal.
            self.coordinator.ping_failed(entity, self.now, error, error is GONE or error is BUSY)
        self.drain()

    def cancel(self, message: Message) -> None:
        attempt = message.at
        message.outcome, message.at = "cancelled", None
        self.open.remove(message)
        message.dispatch.abandon(self.now)
        if attempt is None or not attempt.trial:
            return
        if isinstance(attempt.place, str):
            self.truths[attempt.place].end_probe(self.now, attempt, "nothing")
        else:
            self.trying.discard(attempt.place)
            self.out[attempt.place] = self.now + self.settings.backlog_retry_interval

    def tick(self) -> None:
        for truth in self.truths.values():
            truth.clock(self.now)
        self.coordinator.tick(self.now)
        self.drain()
        # Exactly one thing will wake a sick entity: the clock here, else its probe, a message, or the operator.
        wakes = [wake for truth in self.truths.values() if (wake := truth.wake()) is not None]
        assert self.coordinator.deadline == min(wakes, default=None)
        assert self.coordinator.deadline is None or self.coordinator.deadline > self.now, "never later"

    def force(self, entity: str, hold: bool) -> None:
        self.truths[entity].forced(self.now, hold)
        self.coordinator.force_failover(entity, self.now, hold=hold)
        self.drain()

    def mark(self, entity: str) -> None:
        self.truths[entity].marked(self.now)
        self.coordinator.mark_healthy(entity, self.now)
        self.drain()

    def receiver_busy(self, entity: str) -> None:
        self.truths[entity].busy(self.now, sending=False)
        self.coordinator.busy(entity, self.now)
        self.drain()

    def close(self, sender: str) -> None:
        self.kept.pop(sender, None)
        self.coordinator.forget_sender(sender)

    def pair_later(self, queues: Sequence[int]) -> None:
        self.queues = list(queues)
        self.coordinator.set_queues(queues)

    # Time

    def advance(self, by: float, *, ticks_first: bool) -> None:
        target = self.now + by
        for turn in range(1000):
            assert turn < 999, "the clock stands still: something is due for ever"
            times = [attempt.ends for attempt in self.pending()]
            times += [message.wakes for message in self.open if message.wakes is not None]
            if self.prompt and self.coordinator.deadline is not None:
                times.append(self.coordinator.deadline)
            at = min(times, default=target)
            if at > target:
                break
            self.now = max(self.now, at)
            self.run_due(ticks_first)
            if at == target and not self.has_due():
                break
        self.now = target

    def has_due(self) -> bool:
        return (
            any(attempt.ends <= self.now for attempt in self.pending())
            or any(message.wakes is not None and message.wakes <= self.now for message in self.open)
            or (self.prompt and self.coordinator.deadline is not None and self.coordinator.deadline <= self.now)
        )

    def run_due(self, ticks_first: bool) -> None:
        """Everything due now, each once, in one of two orders."""
        if self.prompt and ticks_first:
            self.tick()
        for attempt in self.pending():
            if attempt.ends <= self.now:
                self.finish(attempt, LATE)
        for message in list(self.open):
            if message.wakes is not None and message.wakes <= self.now:
                self.drive(message)
        if self.prompt:
            self.tick()

    # The account

    def spared(self) -> bool:
        return bool(self.queues) and (self.settings.while_suspect == "divert" or self.settings.failover_interval == 0)

    def account_primary(self, message: Message, attempt: Attempt, error: Exception | None) -> None:
        truth = self.truths[message.entity]
        truth.clock(self.now)
        stale = attempt.returns != truth.returns
        if error is None:
            if attempt.once_more:
                truth.sent_once_more(self.now, attempt)
            if attempt.trial:
                truth.end_probe(self.now, attempt, "good")
            truth.sent(self.now)
            return
        if attempt.once_more:
            self.account_once_more(message, attempt, error)
            return
        if attempt.trial:
            how: Any = {DOWN: "unanswered", LATE: "unanswered", BUSY: "unanswered", GONE: "refused"}
            truth.end_probe(self.now, attempt, how.get(error, "nothing"))
        too_long = error is BUSY and truth.busy(self.now, sending=True) and not attempt.trial
        if not attempt.trial and (too_long or error in (DOWN, LATE)):
            truth.failed(self.now, attempt.returns)
        if error is LARGE or (error is GONE and not (attempt.trial and truth.left)):
            message.due_error = error
        elif truth.left:
            pass
        elif error is BUSY:
            message.leaving = too_long and self.spared()
            if not message.leaving and truth.halted_until >= message.ends:
                message.due_error = error
        elif self.spared() or (stale and error is not NOT_TRIED and self.queues):
            message.leaving = True
        else:
            message.due_error = error

    def account_once_more(self, message: Message, attempt: Attempt, error: Exception) -> None:
        truth = self.truths[message.entity]
        if error is BUSY:
            if truth.busy(self.now, sending=True):
                truth.failed(self.now, attempt.returns)
            return
        if error in (DOWN, LATE):
            truth.failed(self.now, attempt.returns)
        message.was_once_more = message.leaving = True
        if error is LARGE:
            message.due_error = LARGE
        elif not set(self.queues) - message.tried:
            message.due_error = UNAVAILABLE

    def account_backlog(self, message: Message, attempt: Attempt, error: Exception | None) -> None:
        queue = attempt.place
        assert isinstance(queue, int)
        message.tried.add(queue)
        impatient = error is LATE and attempt.ends - attempt.began < min(1.0, self.settings.send_timeout / 8)
        says_nothing = error in (LARGE, NOT_TRIED) or impatient
        stale = attempt.term != self.terms.get(queue, 0)
        if error is LARGE:
            message.due_error = error
        if attempt.trial:
            self.trying.discard(queue)
            if error is None:
                del self.out[queue]
                self.terms[queue] = self.terms.get(queue, 0) + 1
            else:
                self.out[queue] = self.now + self.settings.backlog_retry_interval
        elif error is not None and not says_nothing and queue not in self.out and not stale:
            self.out[queue] = self.now + self.settings.backlog_retry_interval

    def usable(self, message: Message) -> tuple[set[int], set[int]]:
        """Queues in the rotation, and ejected ones that a trial may try, that this message has not been at."""
        usable = set(self.queues) - set(self.out) - message.tried
        due = {queue for queue, at in self.out.items() if self.now >= at} - self.trying - message.tried
        return usable, due

    def picked(self, message: Message, truth: Truth, queue: int) -> bool:
        """Takes note of the pick; True if it is the one trial of an ejected queue (P13)."""
        if message.was_once_more:
            is_trial = queue in self.out and queue not in self.trying
            if is_trial:
                self.trying.add(queue)
            return is_trial
        usable, due = self.usable(message)
        if due and (not message.was_trial or not usable):
            assert queue in due, "who sends next tries the ejected queue first"
            self.trying.add(queue)
            message.was_trial = True
            return True
        assert queue in usable, "a queue that is out, or that failed this message already"
        kept = self.kept.get(message.sender)
        if kept is not None and kept[0] == truth.returns and kept[1] in usable:
            assert queue == kept[1], "a sender keeps its queue (P12)"
        self.kept[message.sender] = (truth.returns, queue)
        return False

    def compare(self, message: Message, truth: Truth, remaining: float, step: Step) -> None:
        """Is this the step that the account expects?"""
        if message.confirmed:
            assert isinstance(step, Sent)
            return
        assert not isinstance(step, Sent), "reported as sent, and no broker confirmed it (P22)"
        if message.due_error is not None:
            assert isinstance(step, Failed)
            if message.due_error is UNAVAILABLE:
                assert type(step.error) is BacklogUnavailableError
            else:
                assert step.error is message.due_error
            return
        if remaining < 0.001:
            assert isinstance(step, Failed)
            assert type(step.error) is NoTimeLeftError
            return
        halted = truth.halted_until > self.now
        if not message.leaving:
            if not truth.left:
                self.compare_primary(message, truth, remaining, step, halted)
                return
            if (
                self.settings.probe == "trial" and not truth.held and truth.probe is None and not halted
                and self.now >= truth.due and not message.failures
            ):  # fmt: skip
                assert isinstance(step, TryPrimary), "whoever sends next is the trial"
                self.compare_primary(message, truth, remaining, step, halted)
                return
            if truth.refused and self.settings.when_unreachable == "raise":
                assert isinstance(step, Failed)
                assert type(step.error) is EntityUnreachableError
                return
        if message.was_once_more:
            self.compare_last_queue(message, remaining, step)
            return
        kept_s = message.kept_s
        if kept_s is None:
            kept_s = min((message.ends - message.began) / 8, remaining / 2)
            kept_s = kept_s if remaining - kept_s >= 0.001 else 0.0
        left = remaining - kept_s
        usable, due = self.usable(message)
        if left < 0.001 or (not usable and not due):
            self.compare_once_more(message, truth, remaining, step, halted)
            return
        assert isinstance(step, TryBacklog)
        message.kept_s = kept_s
        others = (usable | due) - {step.queue}
        assert step.timeout_s == (left / 2 if others else left)

    def compare_last_queue(self, message: Message, remaining: float, step: Step) -> None:
        """After that, the queues that it was not at, out of the rotation or not."""
        left = set(self.queues) - message.tried
        if not left:
            assert isinstance(step, Failed)
            assert type(step.error) is BacklogUnavailableError
            return
        assert isinstance(step, TryBacklog)
        assert step.queue in left
        assert step.timeout_s == (remaining / 2 if len(left) > 1 else remaining)

    def compare_once_more(self, message: Message, truth: Truth, remaining: float, step: Step, halted: bool) -> None:
        """The primary, whatever its state (P13), but for a halt."""
        if not halted:
            assert step == TryPrimary(remaining / 2 if set(self.queues) - message.tried else remaining)
            message.goes_once_more = True
        elif truth.halted_until < message.ends:
            assert step == Wait(truth.halted_until)
        else:
            assert isinstance(step, Failed)
            assert type(step.error) is BacklogUnavailableError

    def compare_primary(self, message: Message, truth: Truth, remaining: float, step: Step, halted: bool) -> None:
        if not halted:
            assert isinstance(step, TryPrimary)
            assert step.timeout_s == (remaining / 2 if self.queues else remaining), "at most half (P19)"
        elif truth.halted_until < message.ends:
            assert isinstance(step, Wait)
            wake = truth.wake()
            assert step.until == (truth.halted_until if wake is None else min(wake, truth.halted_until))
        else:
            assert isinstance(step, Failed)
            assert isinstance(step.error, ServiceBusServerBusyError)

    def check(self) -> None:
        """After each rule."""
        if self.prompt:
            self.tick()
        coordinator = self.coordinator
        assert not coordinator.commands
        states = coordinator.states()
        assert states == self.told, "the commands tell the true route"
        for entity, truth in self.truths.items():
            if self.prompt:
                truth.clock(self.now)
            assert states[entity] is truth.state or self.is_late(states[entity], truth)
            assert coordinator.halted_until(entity) in (truth.halted_until, 0.0)
            assert coordinator.halted_until(entity) or truth.halted_until <= self.now
        assert coordinator.rotation.ejected == self.out
        assert sorted(coordinator.rotation.queues) == sorted(set(self.queues) - set(self.out))
        for message in self.open:
            assert (message.at is None) != (message.wakes is None), "a message that nobody will wake"
            assert self.now < message.ends, "no caller past its timeout (P19)"
            assert (message.at.ends if message.at else message.wakes or 0.0) <= message.ends
        self.check_messages()

    def is_late(self, state: EntityState, truth: Truth) -> bool:
        """Nobody has ticked: the interval is over, and the account may have noticed it with a message that did not need
        to know. Whoever asks the coordinator when to tick hears that it is time."""
        if self.prompt:
            return False
        deadline = self.coordinator.deadline
        is_over = state is EntityState.SUSPECT and truth.state is EntityState.FAILED_OVER
        return self.now >= (truth.wake() or self.now) or (is_over and deadline is not None and deadline <= self.now)

    def check_messages(self) -> None:
        copies: dict[int, int] = {}
        for store in self.stores.values():
            for message in store:
                copies[message.number] = copies.get(message.number, 0) + 1
        for message in self.messages:
            count = copies.get(message.number, 0)
            if message.outcome == "sent":
                assert message.confirmed
                assert count >= 1, "lost"
            # Copies are of one message, with its one id; a second exists only where an answer was lost (P20).
            assert count <= message.confirmed + message.swallowed, "doubled for nothing"

    # The end

    def come_home(self) -> None:
        """The weather clears for good, and everything comes home."""
        self.weather.clear()
        if not self.queues:
            self.pair_later([0])
        for entity, truth in self.truths.items():
            if truth.held:
                self.mark(entity)
        for _ in range(self.settings.pings_to_return + 4):
            for _ in range(3):
                for attempt in self.pending():
                    self.answer(attempt, Weather.FAIR)
                self.advance(20.0, ticks_first=True)
                self.tick()
            self.check()
            if self.settings.probe == "trial":
                for sender in SENDERS:
                    self.send(sender, 40.0)
        for attempt in self.pending():
            self.answer(attempt, Weather.FAIR)
        self.advance(40.0, ticks_first=False)
        self.tick()
        self.check()
        assert set(self.coordinator.states().values()) == {EntityState.HEALTHY}
        assert self.coordinator.deadline is None
        assert not self.pings
        assert not self.open
        last = [self.send(sender, None) for sender in SENDERS]
        for message in last:
            assert message.at is not None
            assert message.at.place == message.entity, "every sender is back (P21)"
            self.finish(message.at, None)
            assert message.outcome == "sent"
        self.check()
        for queue in range(3):
            for message in self.stores[queue]:  # the syphon
                self.stores[message.entity].append(message)
        for message in self.messages:
            if message.outcome == "sent":
                assert message in self.stores[message.entity], "lost"
        for sender in SENDERS:
            self.close(sender)
        assert "0 senders" in repr(self.coordinator.rotation)
        assert self.coordinator.halts == {}
        assert self.coordinator.refusals == {}
