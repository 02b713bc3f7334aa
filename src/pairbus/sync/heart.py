"""What beats in a paired client, on threads: its timers, its pings, and the telling of what happened.

The heart holds the coordinator of the client and the lock that guards it. Whoever changes a state under that lock calls
`attend` afterwards, without it: commands are carried out and the timer is set. A thread runs only while an entity is
sick (`coordinator.deadline` is not None), so a healthy client has none. Pings run on threads of their own, so that one
which hangs delays neither the timers nor another entity's ping (P31, P33).

Nothing is decided here: when to fail over, when to ping and what a ping's answer means is the coordinator's.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.pairing.coordinator import Coordinator
from pairbus.pairing.events import Event, SendPing
from pairbus.pairing.observers import Observer, outcome_of
from pairbus.pairing.ping import ping
from pairbus.pairing.verdicts import is_reach
from pairbus.sync import fork

_log: Final = logging.getLogger("pairbus.pairing")

#: Past this many hung pings, further entities' pings wait for a thread.
PINGS_AT_ONCE_MAX: Final = 32

Callback = Callable[[Event], object]


class Pinger(Protocol):
    """As much of an InnerSender as a ping needs."""

    def send(self, message: object, timeout_s: float) -> None: ...
    def close(self, timeout_s: float = ...) -> None: ...


class Subscribers:
    """Whom to tell. It is the client's, and may be older than the pairing."""

    def __init__(self) -> None:
        self.callbacks: tuple[Callback, ...] = ()
        self._lock = threading.Lock()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        with self._lock:
            self.callbacks = (*self.callbacks, callback)

        def unsubscribe() -> None:
            with self._lock:
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
        self.lock = threading.Lock()
        self.closed = False
        self._open_pinger = open_pinger
        self._ping_timeout_s = ping_timeout_s
        self._wake = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        self._pings_due: deque[str] = deque()
        self._pingers: set[Pinger] = set()
        self._pinging = 0
        self._subscribers = subscribers or Subscribers()
        self._untold: deque[Event] = deque()
        self._telling = False
        fork.register(self)

    def __repr__(self) -> str:
        beat = "closed" if self.closed else "beats" if self._thread is not None else "at rest"
        return f"<Heart {beat}, {self._pinging} pings under way, {len(self._subscribers.callbacks)} subscribers>"

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers.callbacks)

    def observe(self, observer: Observer) -> Callable[[], None]:
        with self.lock:
            self._set_observers((*self.observers, observer))

        def take_off() -> None:
            with self.lock:
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
        with self.lock:
            self._untold.extend(events)
        self._tell()

    def attend(self) -> None:
        """Carries out what the coordinator asks for. Without the lock, after whatever may have changed a state."""
        pings: list[str] = []
        with self.lock:
            commands = self.coordinator.commands
            while commands:
                command = commands.popleft()
                if isinstance(command, SendPing):
                    pings.append(command.entity)
                else:
                    self._untold.append(command.event)
            if not self.closed:
                self._keep_time()
                for entity in pings:
                    self._begin_ping(entity)
        self._tell()

    def close(self) -> None:
        """Ends timers and pings; the answer to a ping under way is not heard any more."""
        with self.lock:
            self.closed = True
            self._pings_due.clear()
            self._wake.notify_all()
            pingers = list(self._pingers)
        for pinger in pingers:
            guarded(pinger.close, 0.0)
        self._tell()

    def forked(self) -> None:
        """In a child process: the threads are the parent's, and a lock may have been held by one of them."""
        self.lock = threading.Lock()
        self._wake = threading.Condition(self.lock)
        self._thread = None
        self._pings_due.clear()
        self._pingers.clear()
        self._pinging = 0
        self._telling = False
        self.coordinator.forked()

    # Timers

    def _keep_time(self) -> None:
        # Holds the lock. The thread looks at the deadline itself, so waking it too often does no harm.
        if self._thread is not None:
            self._wake.notify()
        elif self.coordinator.deadline is not None:
            self._thread = threading.Thread(target=self._beat, name="pairbus-heart", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        try:
            while self._wait_and_tick():
                self.attend()
        except BaseException:
            # Without this the timers of this client would stand still for ever; the next send starts a thread again.
            with self.lock:
                self._thread = None
            raise

    def _wait_and_tick(self) -> bool:
        with self.lock:
            while True:
                deadline = self.coordinator.deadline
                if self.closed or deadline is None:
                    self._thread = None
                    return False
                now = self.clock()
                if deadline <= now:
                    self.coordinator.tick(now)
                    return True
                self._wake.wait(deadline - now)

    # Pings

    def _begin_ping(self, entity: str) -> None:
        # Holds the lock.
        self._pings_due.append(entity)
        if self._pinging < PINGS_AT_ONCE_MAX:
            self._pinging += 1
            threading.Thread(target=self._send_pings, name="pairbus-ping", daemon=True).start()

    def _send_pings(self) -> None:
        while True:
            with self.lock:
                if not self._pings_due:
                    self._pinging -= 1
                    return
                entity = self._pings_due.popleft()
            self._ping(entity)

    def _ping(self, entity: str) -> None:
        began = self.clock()
        failure: Exception | None = None
        pinger: Pinger | None = None
        try:
            pinger = self._open_pinger(entity)
            self._pingers.add(pinger)
            pinger.send(ping(uuid.uuid4().hex), self._ping_timeout_s)
        except Exception as error:
            failure = error
        now = self.clock()
        with self.lock:
            if not self.closed:
                if failure is None:
                    self.coordinator.ping_succeeded(entity, now)
                else:
                    self.coordinator.ping_failed(entity, now, failure, reachable=not is_reach(failure))
        for observer in self.observers:
            guarded(observer.pinged, entity, outcome_of(failure), (now - began) * 1000.0)
        self.attend()
        if pinger is not None:
            guarded(pinger.close)
            self._pingers.discard(pinger)

    # Telling

    def _tell(self) -> None:
        """In order, whoever called: one thread tells at a time, and it tells what others add meanwhile."""
        with self.lock:
            if self._telling or not self._untold:
                return
            self._telling = True
        while True:
            with self.lock:
                if not self._untold:
                    self._telling = False
                    return
                event = self._untold.popleft()
                callbacks = self._subscribers.callbacks
            for observer in self.observers:
                guarded(observer.announced, event)
            for callback in callbacks:
                guarded(callback, event)


def _wanting_sends(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if observer.wants_sends)


def _wanting_receives(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if observer.wants_receives)


def guarded(callback: Callable[..., object], *arguments: object) -> None:
    """Watching must never stop a send: what a watcher raises is logged."""
    try:
        callback(*arguments)
    except Exception:
        _log.exception("%r failed and is ignored", callback)
