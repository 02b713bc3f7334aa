"""A fleet of paired clients on a virtual clock: all fail over in one second, and all come back.

Real is what each client decides: `Coordinator` with its `Failover` machines and a `Dispatch` for each call. Brokers are
counters that are there or not, with answers that take a little time. Clients share nothing but them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus.pairing.control_file import INTERVAL_S
from pairbus.pairing.events import OpenLinks, SendPing
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.patience import ANSWERS_MIN
from pairbus.pairing.routing.pins import Pins
from pairbus.pairing.routing.states import EntityState

REFUSED = ServiceBusConnectionError(message="refused")
SILENT = OperationTimeoutError(message="no answer")
ANSWER_S = 0.02


class Client:
    """One paired client, and when its timer is set to."""

    __slots__ = ("coordinator", "number", "planned")

    def __init__(self, number: int, coordinator: Coordinator) -> None:
        self.number = number
        self.coordinator = coordinator
        self.planned: float | None = None


class Fleet:
    """Clients that send to their entities and do what they decide, in the order of the virtual clock.

    `draws`: whether each client draws its ping phase and ramp at random; else all draw the same. `is_silent`: whether
    a primary that is down is a black hole; else it refuses.
    """

    def __init__(
        self,
        seed: int,
        clients: int,
        entities: int,
        settings: Settings,
        *,
        draws: bool = True,
        is_silent: bool = False,
    ) -> None:
        self._rng = random.Random(f"{seed} fleet")
        draw: Callable[[], float] = self._rng.random if draws else (lambda: 0.0)
        self.now = 0.0
        self.is_primary_up = True
        self.is_silent = is_silent
        self.entities = [f"queue-{number}" for number in range(entities)]
        self.clients = [
            Client(number, Coordinator(settings, range(10), choose=self._rng.choice, draw=draw))
            for number in range(clients)
        ]
        for client in self.clients:
            for entity in self.entities:
                client.coordinator.know(entity)
        #: By second: pings that reached or missed the primary, and links to it that were opened again.
        self.pings: Counter[int] = Counter()
        self.links: Counter[int] = Counter()
        #: By second: clients that had any contact with the primary for the first time since it is back.
        self.contacts: Counter[int] = Counter()
        self._in_contact: set[int] = set()
        #: By client and entity: calls that were told "sent", and messages that each broker holds.
        self.confirmed: Counter[tuple[int, str]] = Counter()
        self.at_primary: Counter[tuple[int, str]] = Counter()
        self.in_backlog: Counter[tuple[int, str]] = Counter()
        self.failed = 0
        self.last_return = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), do))

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, do = heapq.heappop(heap)
            do()
        self.now = until

    def all_send(self, begin: float, end: float) -> None:
        """Every client sends a message to each of its entities at a random time."""
        for client in self.clients:
            for entity in self.entities:
                self.at(self._rng.uniform(begin, end), partial(self._send, client, entity))

    def learn(self) -> None:
        """Every client gets to know its entities, by answers that take their time."""
        for client in self.clients:
            for entity in self.entities:
                for _ in range(ANSWERS_MIN):
                    dispatch = client.coordinator.begin(entity, entity, self.now, None)
                    dispatch.step(self.now)
                    dispatch.primary_sent(self.now, ANSWER_S)

    def control(self, when: float, pins: Pins) -> None:
        """The operator changes the control file; each client sees it at its next look."""
        for client in self.clients:
            begun = client.coordinator.phase * INTERVAL_S
            looks = max(0.0, -(-(when - begun) // INTERVAL_S))
            self.at(begun + looks * INTERVAL_S, partial(self._follow, client, pins))

    def primary(self, *, is_up: bool) -> None:
        self.is_primary_up = is_up
        self._in_contact.clear()
        self.contacts.clear()
        self.links.clear()

    def drain(self) -> None:
        """The syphon brings home what is in the backlog."""
        self.at_primary.update(self.in_backlog)
        self.in_backlog.clear()

    def states(self) -> Counter[EntityState]:
        return Counter(state for client in self.clients for state in client.coordinator.states().values())

    # -- one client

    def _follow(self, client: Client, pins: Pins) -> None:
        client.coordinator.set_pins(pins, self.now)
        self._attend(client)

    def _send(self, client: Client, entity: str) -> None:
        self._go_on(client, entity, client.coordinator.begin(entity, entity, self.now, None))

    def _go_on(self, client: Client, entity: str, dispatch: Dispatch) -> None:
        step = dispatch.step(self.now)
        self._attend(client)
        if isinstance(step, Sent):
            self.confirmed[client.number, entity] += 1
        elif isinstance(step, Failed):
            self.failed += 1
        elif isinstance(step, Wait):
            self.at(step.until, lambda: self._go_on(client, entity, dispatch))
        else:
            self.at(self.now + ANSWER_S, lambda: self._answer(client, entity, dispatch, step))

    def _answer(self, client: Client, entity: str, dispatch: Dispatch, step: TryPrimary | TryBacklog) -> None:
        if isinstance(step, TryBacklog):
            self.in_backlog[client.number, entity] += 1
            dispatch.backlog_sent(self.now)
        elif self.is_primary_up:
            self._meets(client)
            self.at_primary[client.number, entity] += 1
            dispatch.primary_sent(self.now, ANSWER_S)
        elif self.is_silent:
            silence_s = math.inf if step.terms is None else step.terms.silence_s
            ends = self.now - ANSWER_S + min(step.timeout_s, silence_s)
            self.at(ends, lambda: self._failed(client, entity, dispatch, SILENT))
            return
        else:
            self._failed(client, entity, dispatch, REFUSED)
            return
        self._go_on(client, entity, dispatch)

    def _failed(self, client: Client, entity: str, dispatch: Dispatch, error: Exception) -> None:
        dispatch.primary_failed(self.now, error)
        self._go_on(client, entity, dispatch)

    def _attend(self, client: Client) -> None:
        coordinator = client.coordinator
        commands = coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                self.pings[int(self.now)] += 1
                self.at(self.now + ANSWER_S, partial(self._ping_answered, client, command.entity))
            elif isinstance(command, OpenLinks):
                self.links[int(self.now)] += 1
                self.last_return = self.now
                self._meets(client)
        if coordinator.deadline is not None and coordinator.deadline != client.planned:
            client.planned = coordinator.deadline
            self.at(max(self.now, client.planned), lambda: self._tick(client))

    def _tick(self, client: Client) -> None:
        if client.coordinator.deadline is not None and self.now >= client.coordinator.deadline:
            client.planned = None
            client.coordinator.tick(self.now)
            self._attend(client)

    def _ping_answered(self, client: Client, entity: str) -> None:
        if self.is_primary_up:
            self._meets(client)
            client.coordinator.ping_succeeded(entity, self.now)
        else:
            client.coordinator.ping_failed(entity, self.now, REFUSED, False)
        self._attend(client)

    def _meets(self, client: Client) -> None:
        if client.number not in self._in_contact:
            self._in_contact.add(client.number)
            self.contacts[int(self.now)] += 1
