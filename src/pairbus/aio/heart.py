"""What beats in a paired client, on an event loop: its timers, its pings, and the telling of what happened.

The heart holds the coordinator of the client. Whoever changes a state calls `attend` afterwards: commands are carried
out and the timer is set. A timer of the loop stands only while an entity is sick (`coordinator.deadline` is not None)
and, being no task, keeps no loop alive. Pings are tasks of their own, so that one which hangs delays neither the timers
nor another entity's ping (P31, P33). Everything happens on the loop that the client was paired on.

Nothing is decided here: when to fail over, when to ping and what a ping's answer means is the coordinator's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from pairbus.pairing import sdk
from pairbus.pairing.coordinator import Coordinator
from pairbus.pairing.errors import WrongLoopError
from pairbus.pairing.events import Event, SendPing
from pairbus.pairing.observers import Observer, outcome_of
from pairbus.pairing.ping import ping
from pairbus.pairing.verdicts import is_reach

_log: Final = logging.getLogger("pairbus.pairing")

#: Past this many hung pings, further entities' pings wait for a turn.
PINGS_AT_ONCE_MAX: Final = 32
#: How long closing waits for subscribers that are coroutines.
TELL_S: Final = 1.0

Callback = Callable[[Event], object]


class Pinger(Protocol):
    """As much of an InnerSender as a ping needs."""

    async def send(self, message: object, timeout_s: float) -> None: ...
    async def close(self, timeout_s: float = ...) -> None: ...


class Subscribers:
    """Whom to tell. It is the client's, and may be older than the pairing."""

    def __init__(self) -> None:
        self.callbacks: tuple[Callback, ...] = ()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        self.callbacks = (*self.callbacks, callback)

        def unsubscribe() -> None:
            kept = list(self.callbacks)
            if callback in kept:
                kept.remove(callback)
            self.callbacks = tuple(kept)

        return unsubscribe


class Heart:
    """`open_pinger` gives a fresh sender to a primary entity; it is used for one ping and closed."""

    def __init__(
        self,
        coordinator: Coordinator,
        open_pinger: Callable[[str], Pinger],
        *,
        ping_timeout_s: float,
        observers: tuple[Observer, ...] = (),
        subscribers: Subscribers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.coordinator = coordinator
        self.observers = observers
        #: Those that want to hear of sends; empty for most clients, so that the healthy path calls nothing (P14).
        self.send_observers = _wanting_sends(observers)
        self.receive_observers = _wanting_receives(observers)
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.closed = False
        self._open_pinger = open_pinger
        self._ping_timeout_s = ping_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._pings_due: deque[str] = deque()
        self._pinging = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribers = subscribers or Subscribers()
        self._untold: deque[Event] = deque()
        self._telling = False
        self._answers: deque[Awaitable[object]] = deque()
        self._teller: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        beat = "closed" if self.closed else "beats" if self._timer is not None else "at rest"
        return f"<Heart {beat}, {self._pinging} pings under way, {len(self._subscribers.callbacks)} subscribers>"

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers.callbacks)

    def check_loop(self) -> None:
        """The SDK's connections, and our timers, belong to one loop."""
        running = asyncio._get_running_loop()
        if running is self.loop:
            return
        if os.getpid() != self._pid:
            raise sdk.forked("")
        where = "outside of a loop" if running is None else "from another one"
        raise WrongLoopError(
            f"this client was paired on an event loop and is used {where};"
            " pair a client of its own on each loop, and use pairbus.ServiceBusClient where there is none"
        )

    def observe(self, observer: Observer) -> Callable[[], None]:
        self._set_observers((*self.observers, observer))

        def take_off() -> None:
            self._set_observers(tuple(each for each in self.observers if each is not observer))

        return take_off

    def close_observers(self) -> None:
        """When nothing more will come, the last send included."""
        for observer in self.observers:
            guarded(observer.close)

    def _set_observers(self, observers: tuple[Observer, ...]) -> None:
        self.observers = observers
        self.send_observers = _wanting_sends(observers)
        self.receive_observers = _wanting_receives(observers)

    def announce(self, *events: Event) -> None:
        """Tells what a shell, not the coordinator, has seen."""
        self._untold.extend(events)
        self._tell()

    def attend(self) -> None:
        """Carries out what the coordinator asks for, after whatever may have changed a state."""
        commands = self.coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                self._begin_ping(command.entity)
            else:
                self._untold.append(command.event)
        self._keep_time()
        self._tell()

    async def close(self) -> None:
        """Ends timers and pings, and waits for the end of those that were under way; and for coroutines that are still
        being told, but not for ever."""
        self.closed = True
        self._pings_due.clear()
        self._keep_time()
        self._tell()
        here = asyncio.current_task()
        if self._teller is not None and self._teller is not here:
            await asyncio.wait({self._teller}, timeout=TELL_S)
        ending = [task for task in self._tasks if task is not here]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # Timers

    def _keep_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.coordinator.deadline
        if deadline is not None and not self.closed:
            self._timer = self.loop.call_later(max(0.0, deadline - self.clock()), self._beat)

    def _beat(self) -> None:
        self._timer = None
        self.coordinator.tick(self.clock())
        self.attend()

    # Pings

    def _begin_ping(self, entity: str) -> None:
        if self.closed:
            return
        self._pings_due.append(entity)
        if self._pinging < PINGS_AT_ONCE_MAX:
            self._pinging += 1
            self._spawn(self._send_pings(), "pairbus-ping")

    async def _send_pings(self) -> None:
        try:
            while self._pings_due:
                await self._ping(self._pings_due.popleft())
        finally:
            self._pinging -= 1

    async def _ping(self, entity: str) -> None:
        began = self.clock()
        failure: Exception | None = None
        pinger: Pinger | None = None
        try:
            pinger = self._open_pinger(entity)
            await pinger.send(ping(uuid.uuid4().hex), self._ping_timeout_s)
        except Exception as error:
            failure = error
        now = self.clock()
        if not self.closed:
            if failure is None:
                self.coordinator.ping_succeeded(entity, now)
            else:
                self.coordinator.ping_failed(entity, now, failure, reachable=not is_reach(failure))
        for observer in self.observers:
            guarded(observer.pinged, entity, outcome_of(failure), (now - began) * 1000.0)
        self.attend()
        if pinger is not None:
            await guarded_await(pinger.close())

    # Telling

    def _tell(self) -> None:
        """In order: what a callback brings about is told after the event that it was called for."""
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                event = self._untold.popleft()
                for observer in self.observers:
                    guarded(observer.announced, event)
                for callback in self._subscribers.callbacks:
                    answer = guarded(callback, event)
                    if inspect.isawaitable(answer):
                        self._await_in_turn(answer)
        finally:
            self._telling = False

    def _await_in_turn(self, answer: Awaitable[object]) -> None:
        # One after the other, or a coroutine that waits would see later events first.
        self._answers.append(answer)
        if self._teller is None:
            self._teller = self._spawn(self._await_answers(), "pairbus-events")

    async def _await_answers(self) -> None:
        try:
            while self._answers:
                await guarded_await(self._answers.popleft())
        finally:
            self._teller = None
            for answer in self._answers:  # cancelled: those behind are not begun
                if inspect.iscoroutine(answer):
                    answer.close()
            self._answers.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _wanting_sends(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if observer.wants_sends)


def _wanting_receives(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if observer.wants_receives)


def guarded(callback: Callable[..., object], *arguments: object) -> object:
    """Watching must never stop a send: what a watcher raises is logged."""
    try:
        return callback(*arguments)
    except Exception:
        _log.exception("%r failed and is ignored", callback)
        return None


async def guarded_await(answer: Awaitable[object]) -> None:
    try:
        await answer
    except Exception:
        _log.exception("%r failed and is ignored", answer)
