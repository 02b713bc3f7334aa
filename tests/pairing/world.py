"""The world round the decisions, for test_world_proof.py: brokers with weather, and a shell that does what it is told.

Every I/O is split into begin and answer; between the two anything may happen. Times are drawn from a few values that
meet, and at equal times the order is drawn. All that happens goes into a history, and the simulation's checker judges
it: tests/simulation/paired.py says by which rules.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.errors import NotTriedError, PinnedEntityError
from pairbus.pairing.events import OpenLinks, SendPing
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.budget import Retries
from pairbus.pairing.routing.coordinator import NO_RETRIES, Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, TryBacklog, Wait
from pairbus.pairing.routing.patience import ANSWERS_MIN
from pairbus.pairing.routing.pins import parse
from pairbus.pairing.routing.states import EntityState
from tests.simulation.checker import Checker
from tests.simulation.history import History
from tests.simulation.paired import view_of

ENTITIES = ("a", "b")
SENDERS = {"a1": "a", "a2": "a", "b1": "b"}
PING_TIMEOUT_S = 20.0

DOWN = ServiceBusConnectionError(message="refused")
LATE = OperationTimeoutError(message="no answer")
UNPLUGGED = ServiceBusConnectionError(message="refused by the host")
UNPLUGGED.__cause__ = ConnectionRefusedError()
BUSY = ServiceBusServerBusyError(message="busy")
GONE = MessagingEntityNotFoundError(message="no such entity")
LARGE = MessageSizeExceededError(message="too large")
NOT_TRIED = NotTriedError("others were first")


class Weather(enum.Enum):
    FAIR = "confirms"
    DOWN = "resets the connection"
    UNPLUGGED = "refuses the connection"
    SILENT = "takes nothing and says nothing"
    SWALLOWING = "stores and says nothing"
    BUSY = "is throttled"
    GONE = "says that there is no such entity"


ANSWERS: dict[Weather, Exception | None] = {
    Weather.FAIR: None,
    Weather.DOWN: DOWN,
    Weather.UNPLUGGED: UNPLUGGED,
    Weather.BUSY: BUSY,
    Weather.GONE: GONE,
}


@dataclass(eq=False)
class Message:
    """One call of send_messages."""

    number: int
    entity: str
    dispatch: Dispatch
    at: Attempt | None = None
    wakes: float | None = None
    is_sent: bool = False


@dataclass(eq=False)
class Attempt:
    """Something under way: a message at a broker, or a ping (no message)."""

    place: str | int  # entity of the primary, or number of a backlog queue
    began: float
    ends: float
    weather: Weather
    message: Message | None
    stored: bool = False


class World:
    def __init__(
        self,
        settings: Settings,
        queues: Sequence[int],
        *,
        prompt: bool,
        draw: float = 0.0,
        retries: Retries = NO_RETRIES,
    ) -> None:
        self.settings = settings
        self.prompt = prompt
        self.now = 1000.0
        self.dice = 0
        #: The backlog queue to which a link stands ready; None: none does.
        self.warm: int | None = None
        #: Pings are answered at once, as the end of a brownout needs it.
        self.is_fast = False
        self.history, self.checker = History(), Checker()
        self.has_queues = bool(queues)
        self.coordinator = Coordinator(
            settings,
            queues,
            choose=lambda usable: usable[self.dice % len(usable)] if usable else 1 // 0,
            draw=lambda: draw,
            retries=retries,
        )
        waits = [retries.wait_s(done) for done in range(retries.total)]
        self.weather: dict[str | int, Weather] = {}
        self.stores: dict[str | int, list[Message]] = {place: [] for place in (*ENTITIES, 0, 1, 2)}
        self.count = 0
        self.open: list[Message] = []
        self.pings: list[Attempt] = []
        self.held: set[str] = set()
        self.history.paired("began", settings, queues, prompt, draw, waits)
        for entity in ENTITIES:
            self.coordinator.know(entity)
            for _ in range(ANSWERS_MIN):  # so many answers adaptive patience must know; here it comes to 3 s
                dispatch = self.coordinator.begin(entity, "before", self.now, None)
                dispatch.step(self.now)
                dispatch.primary_sent(self.now, 0.25)
            self.history.paired("learned", entity, (0.25,) * ANSWERS_MIN)
            if slow_sends := self.coordinator._entities[entity].slow_sends:
                slow_sends.clear()

    # The shell

    def send(self, sender: str, timeout: float | None) -> Message:
        entity = SENDERS[sender]
        self.count += 1
        message = Message(self.count, entity, self.coordinator.begin(entity, sender, self.now, timeout))
        self.history.paired("called", message.number, entity, sender, self.now, timeout)
        self.open.append(message)
        self.drive(message)
        return message

    def drive(self, message: Message) -> None:
        """Steps, and begins what the step asks for."""
        message.wakes = None
        dispatch = message.dispatch
        step = dispatch.step(self.now)
        self.history.paired("stepped", message.number, step, self.now, (dispatch.route_word, dispatch.queue))
        if isinstance(step, Sent | Failed):
            message.is_sent = isinstance(step, Sent)
            self.open.remove(message)
        elif isinstance(step, Wait):
            message.wakes = step.until
        else:
            place: str | int = message.entity
            timeout_s = step.timeout_s
            if isinstance(step, TryBacklog):
                place = self.over_warm_link(message, step.queue)
            elif step.terms is not None:
                timeout_s = min(timeout_s, step.terms.silence_s)
            message.at = self.begin_attempt(place, timeout_s, message)
        self.drain()

    def over_warm_link(self, message: Message, queue: int) -> int:
        """The link that stands ready takes the message, if there is one and it may."""
        if self.warm is not None:
            over = message.dispatch.over_warm_link(self.warm)
            if over is not None:
                self.history.paired("redirected", message.number, over.queue)
                return over.queue
        return queue

    def begin_attempt(self, place: str | int, timeout_s: float, message: Message | None) -> Attempt:
        weather = self.weather.get(place, Weather.FAIR)
        attempt = Attempt(place, self.now, self.now + timeout_s, weather, message)
        if weather is Weather.SWALLOWING and message is not None:
            self.store(attempt, message)
        return attempt

    def store(self, attempt: Attempt, message: Message) -> None:
        attempt.stored = True
        self.stores[attempt.place].append(message)

    def drain(self) -> None:
        commands = self.coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                self.history.paired("pinged", command.entity, self.now)
                self.pings.append(self.begin_attempt(command.entity, PING_TIMEOUT_S, None))
            elif isinstance(command, OpenLinks):
                self.history.paired("reopens", command.entity)
            else:
                self.history.paired("told", command.event)
        if self.is_fast and self.pings:
            self.finish_ping(self.pings[0], None)

    def pending(self) -> list[Attempt]:
        return [message.at for message in self.open if message.at] + self.pings

    def probed(self) -> list[str]:
        """Entities that have left the primary, and to which something is under way all the same."""
        places = {attempt.place for attempt in self.pending()}
        healthy = (EntityState.HEALTHY, EntityState.SUSPECT)
        return [name for name, state in self.coordinator.states().items() if state not in healthy and name in places]

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
        if message is None:
            self.finish_ping(attempt, error)
            return
        message.at = None
        if error is None:
            self.store(attempt, message)
        took_s = self.now - attempt.began
        self.history.paired("answered", message.number, error, self.now, attempt.stored, took_s)
        dispatch, is_primary = message.dispatch, isinstance(attempt.place, str)
        if error is None and is_primary:
            dispatch.primary_sent(self.now, took_s)
        elif error is None:
            dispatch.backlog_sent(self.now)
        else:
            (dispatch.primary_failed if is_primary else dispatch.backlog_failed)(self.now, error)
        self.drain()
        self.drive(message)

    def finish_ping(self, attempt: Attempt, error: Exception | None) -> None:
        assert isinstance(attempt.place, str)
        if attempt not in self.pings:  # another answer came first
            return
        self.pings.remove(attempt)
        took_s = self.now - attempt.began
        self.history.paired("ping_answered", attempt.place, error, self.now, took_s)
        if error is None:
            self.coordinator.ping_succeeded(attempt.place, self.now, took_s)
        else:
            # Whatever the shell thinks of busy, it is no refusal.
            self.coordinator.ping_failed(attempt.place, self.now, error, error is GONE or error is BUSY)
        self.drain()

    def cancel(self, message: Message) -> None:
        self.open.remove(message)
        self.history.paired("given_up", message.number, self.now)
        message.dispatch.abandon(self.now, given_up=True)
        self.drain()

    def tick(self) -> None:
        self.coordinator.tick(self.now)
        self.drain()
        self.history.paired("ticked", self.now, view_of(self.coordinator))

    def operate(self, entity: str, what: str) -> None:
        """The operator forces, holds or marks an entity; or a receiver meets a busy server."""
        if what != "busy" and self.coordinator.pins.of(entity) is not None:
            with contextlib.suppress(PinnedEntityError):
                self.coordinator.force_failover(entity, self.now)
                raise AssertionError("P23: the control file pins it, and the operator was let")
            return
        self.history.paired("operated", entity, what, self.now)
        if what == "mark":
            self.coordinator.mark_healthy(entity, self.now)
        elif what == "busy":
            self.coordinator.busy(entity, self.now)
        else:
            self.coordinator.force_failover(entity, self.now, hold=what == "hold")
        if what != "busy":
            (self.held.add if what == "hold" else self.held.discard)(entity)
        self.drain()

    def control(self, pins: dict[str, str]) -> None:
        """The control file was changed, and read."""
        self.history.paired("control_file", {name.lower(): word for name, word in pins.items()}, self.now)
        before, after = self.coordinator.pins, parse(pins)
        self.coordinator.set_pins(after, self.now)
        self.held -= {entity for entity in ENTITIES if (before.of(entity), after.of(entity)) != (None, None)}
        self.drain()

    def close(self, sender: str) -> None:
        self.history.paired("closed", sender)
        self.coordinator.forget_sender(sender)

    def pair_later(self, queues: Sequence[int]) -> None:
        self.has_queues = True
        self.history.paired("extended", queues)
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

    # The judgement

    def check(self) -> None:
        """After each rule."""
        if self.prompt:
            self.tick()
        self.history.paired("looked", self.now, view_of(self.coordinator))
        self.history.paired("found", Counter(each.number for store in self.stores.values() for each in store))
        self.checker.fold(self.history.take())
        assert not self.checker.problems, self.checker.problems

    def come_home(self) -> None:
        """The weather clears for good, and everything comes home."""
        self.weather.clear()
        self.is_fast = True
        self.control({})
        if not self.has_queues:
            self.pair_later([0])
        for entity in sorted(self.held):
            self.operate(entity, "mark")
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
        for message in [self.send(sender, None) for sender in SENDERS]:
            assert message.at is not None
            assert message.at.place == message.entity, "every sender is back (P21)"
            self.finish(message.at, None)
            assert message.is_sent
        self.check()
        for sender in SENDERS:
            self.close(sender)
        assert "0 senders" in repr(self.coordinator.rotation)
        assert self.coordinator.halts == {}
        assert self.coordinator.refusals == {}
