"""A paired sender without brokers, as far as it is the same on threads and on a loop: a clock that stands until it is
moved, a heart, a recorder. The inner senders, which answer as they are told, are in the two other `stage.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from pairbus.paired.heart import Subscribers
from pairbus.paired.sender import Surroundings
from pairbus.pairing.coordinator import Coordinator
from pairbus.pairing.events import Event
from pairbus.pairing.observers import Observer
from pairbus.pairing.options import Settings
from pairbus.pairing.sending import Limits

NOWHERE = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
Answer = BaseException | Callable[[], object] | None


class FakeHalf:
    """Stands in for InnerSender: every call takes the next of its `answers` (an error to raise, something to call), or
    succeeds when there is none."""

    def __init__(self, make: Callable[[], Any] | None = None, entity: str = "") -> None:
        self.make = make
        self.entity = entity
        self.answers: deque[Answer] = deque()
        self.calls: list[tuple[str, Any, float]] = []
        self.max_message_size = 0
        self.max_batch_size = 0
        self.opening_s = 0.0
        self.is_closed = False

    def _called(self, call: str, argument: Any, timeout_s: float) -> Callable[[], object] | None:
        self.calls.append((call, argument, timeout_s))
        answer = self.answers.popleft() if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _succeeded(self) -> None:
        self.max_message_size = self.max_batch_size = 262144

    @property
    def is_open(self) -> bool:
        return self.max_message_size > 0

    @property
    def sent(self) -> list[Any]:
        return [argument for call, argument, _ in self.calls if call == "send"]


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


class StageHalf:
    """`client`, `heart`, `sender`, `inner`: of the SDK, ours twice, and the one that stands in for an inner sender."""

    kinds: ClassVar[tuple[Any, Any, Any, Any]]

    def __init__(self, **settings: Any) -> None:
        client, heart, self._sender, inner = self.kinds
        self.now = 1000.0
        self.queues = settings.pop("queues", (0, 1))
        observers = settings.pop("observers", ())
        self.settings = Settings(**{"failover_interval": 0.0, "send_timeout": 8.0, **settings})
        self.events: list[Event] = []
        self.pinger = inner()
        self.pinged: list[str] = []
        subscribers = Subscribers()
        subscribers.subscribe(self.events.append)
        self.heart = heart(
            Coordinator(self.settings, self.queues, choose=lambda usable: usable[0]),
            self._open_pinger,
            ping_timeout_s=2.0,
            observers=observers,
            subscribers=subscribers,
            clock=lambda: self.now,
        )
        self.client = client.from_connection_string(NOWHERE)
        self.refusal: Exception | None = None
        self.surroundings: Surroundings[Any, Any] = Surroundings(
            self.heart, self.settings, self._made, self._check, Limits()
        )

    def _open_pinger(self, entity: str) -> Any:
        self.pinged.append(entity)
        return self.pinger

    def _made(self, queue: int) -> Any:
        raise AssertionError("a fake inner sender makes nothing")

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def sender(self, entity: str = "orders") -> Any:
        return self._sender.adopt(self.client.get_queue_sender(entity), self.surroundings, lambda: self._made(0))

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def backlog(self, sender: Any, queue: int) -> Any:
        return sender._backlog_sender(queue)

    def named(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
