"""A paired sender without brokers: a clock that stands until it is moved, a health monitor, a recorder, and guarded
senders that answer as they are told."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.health_monitor import HealthMonitor
from pairbus.aio.sender import PairedSender, SenderContext
from pairbus.pairing.events import Event
from pairbus.pairing.health_monitor import Subscribers
from pairbus.pairing.observers import Observer
from pairbus.pairing.options import Settings
from pairbus.pairing.pending_send import Limits
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Diversion

from .background import called, wait_until

NOWHERE = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
Answer = BaseException | Callable[[], object] | None


class FakeGuardedSender:
    """Every call takes the next of its `answers` (an error to raise, something to call), or succeeds when there is
    none."""

    def __init__(self, make: Callable[[], Any] | None = None, entity: str = "", learns: Any = None) -> None:
        self.make = make
        self.entity = entity
        self.answers: deque[Answer] = deque()
        self.calls: list[tuple[str, Any, float]] = []
        #: How long the links may take to open that were begun without waiting for them.
        self.begun: list[float] = []
        self.max_message_size = 0
        self.max_batch_size = 0
        self.opening_s = 0.0
        self.is_closed = self.wants_link = False
        #: How long the next sends that are measured take.
        self.took_s: list[float] = []

    @property
    def is_open(self) -> bool:
        return self.max_message_size > 0

    @property
    def sent(self) -> list[Any]:
        return [argument for call, argument, _ in self.calls if call == "send"]

    async def _answer(self, call: str, argument: Any, timeout_s: float) -> None:
        self.calls.append((call, argument, timeout_s))
        answer = self.answers.popleft() if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            await called(answer)
        self.max_message_size = self.max_batch_size = 262144

    async def open(self, timeout_s: float, goes_on_s: float = 0.0, ends_at: Any = None) -> None:
        await self._answer("open", None, timeout_s)

    ping: Any = GuardedSender.ping

    def begin_opening(self, within_s: float) -> None:
        self.begun.append(within_s)

    async def send(self, message: Any, timeout_s: float, terms: Any = None, ends_at: Any = None) -> float:
        await self._answer("send", message, timeout_s)
        return self.took_s.pop(0) if terms is not None and self.took_s else 0.0

    async def schedule(self, messages: Any, schedule_time_utc: Any, timeout_s: float) -> list[int]:
        await self._answer("schedule", messages, timeout_s)
        return [1]

    async def cancel(self, sequence_numbers: Any, timeout_s: float) -> None:
        await self._answer("cancel", sequence_numbers, timeout_s)

    async def close(self, timeout_s: float = 2.0) -> None:
        self.is_closed = True


class Recorder(Observer):
    wants_sends = True

    def __init__(self) -> None:
        self.sends: list[tuple[str, int | None, int, str]] = []
        self.entities: set[str] = set()
        self.pings: list[tuple[str, str]] = []

    def sent(self, entity: str, route: Any, queue: int | None, messages: Any, outcome: str, ms: float) -> None:
        self.entities.add(entity)
        self.sends.append((route, queue, len(messages), outcome))

    def pinged(self, entity: str, outcome: str, ms: float) -> None:
        self.pings.append((entity, outcome))


class Reasons(Observer):
    """Keeps the rules by which messages were diverted."""

    wants_diversions = True

    def __init__(self) -> None:
        self.rules: list[str] = []

    def sent_to_backlog(
        self, entity: str, queue: int | None, messages: Any, outcome: str, ms: float, reason: Diversion
    ) -> None:
        self.rules.append(reason.rule)


class Stage:
    """Stands in for the paired client too: `_fault` is what it raises."""

    _is_closed = False

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.queues = settings.pop("queues", (0, 1))
        observers = settings.pop("observers", ())
        self.settings = Settings(**{"failover_interval": 0.0, "send_timeout": 8.0, **settings})
        self.events: list[Event] = []
        self.pinger = FakeGuardedSender()
        self.pinged: list[str] = []
        self.opened_again: list[str] = []
        subscribers = Subscribers()
        subscribers.subscribe(self.events.append)
        self.monitor = HealthMonitor(
            Coordinator(self.settings, self.queues, choose=lambda usable: usable[0]),
            self._open_pinger,
            ping_timeout_s=2.0,
            observers=observers,
            subscribers=subscribers,
            clock=lambda: self.now,
            open_links=self._open_links,
        )
        self.client = ServiceBusClient.from_connection_string(NOWHERE)
        self._fault: Exception | None = None
        self.context = SenderContext(self, self.monitor, self.settings, self._made, Limits(), None, deque())

    async def _open_links(self, entity: str) -> None:
        self.opened_again.append(entity)

    def _open_pinger(self, entity: str) -> FakeGuardedSender:
        self.pinged.append(entity)
        return self.pinger

    def _made(self, queue: int) -> Any:
        raise AssertionError("a fake guarded sender makes nothing")

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault

    def sender(self, entity: str = "orders") -> PairedSender:
        return PairedSender.adopt(self.client.get_queue_sender(entity), self.context, lambda: self._made(0))

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def backlog(self, sender: PairedSender, queue: int) -> Any:
        return sender._backlog_sender(queue)

    def named(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def close(self) -> None:
        await self.monitor.close()
        assert await wait_until(lambda: not self.monitor._has_timer())


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Stage]]:
    monkeypatch.setattr(PairedSender, "_guarded_sender", FakeGuardedSender)
    made: list[Stage] = []

    def make(**settings: Any) -> Stage:
        made.append(Stage(**settings))
        return made[-1]

    yield make
    for each in made:
        await each.close()
