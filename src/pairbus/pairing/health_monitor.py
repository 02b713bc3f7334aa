"""Non-blocking base of the sync and async health monitors: notifies observers and subscribers of events.

It also passes the results of pings, and the content of the control file, to the coordinator.

Observers are called at once, on the thread or task where the event occurs. An exception from an observer is logged, and
stops nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

from pairbus.pairing.control_file import INTERVAL_S, LATE_S, ControlFileReader
from pairbus.pairing.events import ControlFileUnusable, Event
from pairbus.pairing.observers import Observer, outcome_of
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.pins import SETTLED_S, Pins
from pairbus.pairing.routing.verdicts import is_reach

_log: Final = logging.getLogger("pairbus.pairing")
#: Beyond this many hung pings, the pings of further entities wait for their turn.
PINGS_AT_ONCE_MAX: Final = 32

Callback = Callable[[Event], object]
PingerT = TypeVar("PingerT")


class Subscribers:
    """The callbacks that get each event. They are the client's, and may be older than its pairing."""

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


class HealthMonitorBase(Generic[PingerT]):
    """`open_pinger` gives a fresh sender to a primary entity; it is used for one ping and closed. `open_links` opens
    the links of an entity's senders.

    `lock` protects the coordinator; on a loop, where nothing comes in between, it is never waited for.
    """

    lock: AbstractContextManager[Any]
    #: Raises where this client can't be used from: a loop's, from elsewhere. None where it can be used from anywhere.
    check_loop: Callable[[], None] | None = None

    def __init__(
        self,
        coordinator: Coordinator,
        open_pinger: Callable[[str], PingerT],
        *,
        ping_timeout_s: float,
        observers: tuple[Observer, ...] = (),
        subscribers: Subscribers | None = None,
        clock: Callable[[], float] = time.monotonic,
        control_file: ControlFileReader | None = None,
        open_links: Callable[[str], Any] | None = None,
    ) -> None:
        self.coordinator = coordinator
        self._control_file = control_file
        #: When to look at the control file next; None: there is none, or a look is under way.
        self._look_due: float | None = None
        #: When the present look will have taken too long; None if there is none, or that was reported.
        self._look_late: float | None = None
        self._has_looked = False
        self._set_observers(observers)
        self.clock = clock
        self.closed = False
        self._open_pinger = open_pinger
        self._open_links = open_links
        self._ping_timeout_s = ping_timeout_s
        self._pings_due: deque[str] = deque()
        self._subscribers = subscribers or Subscribers()
        self._untold: deque[Event] = deque()
        self._prepare()

    def __repr__(self) -> str:
        timer = "closed" if self.closed else "timer set" if self._has_timer() else "no timer"
        pings, subscribers = self._pings_under_way(), len(self._subscribers.callbacks)
        return f"<HealthMonitor {timer}, {pings} pings under way, {subscribers} subscribers>"

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
        """Close the observers, once nothing more will happen."""
        for observer in self.observers:
            call_safely(observer.close)

    def _set_observers(self, observers: tuple[Observer, ...]) -> None:
        for each in observers:
            if not isinstance(each, Observer):
                raise TypeError(
                    f"{each!r} is no observer; derive its class from pairbus.Observer and override its methods"
                )
        self.observers = observers
        #: Those that want to hear of sends; empty for most clients, so that the healthy path calls nothing.
        self.send_observers = tuple(each for each in observers if each.wants_sends)
        self.divert_observers = tuple(each for each in observers if each.wants_sends or each.wants_diversions)
        self.receive_observers = tuple(each for each in observers if each.wants_receives)

    def announce(self, *events: Event) -> None:
        """Tell observers and subscribers of events that do not come from the coordinator."""
        with self.lock:
            self._untold.extend(events)
        self._tell()

    # Time

    @property
    def _deadline(self) -> float | None:
        """When `_tick` is due."""
        due = self.coordinator.deadline
        look_due = self._look_late if self._look_due is None else self._look_due
        if look_due is None or due is None:
            return due if look_due is None else look_due
        return min(due, look_due)

    def _tick(self, now: float) -> None:
        """Do what is due by now; the caller holds the lock."""
        if self._look_due is not None and now >= self._look_due:
            self._begin_look()
        elif self._look_late is not None and now >= self._look_late:
            self._look_late = None
            assert self._control_file is not None
            if (hangs := self._control_file.hangs()) is not None:
                self._untold.append(ControlFileUnusable(hangs))
        self.coordinator.tick(now)

    # The control file

    def _begin_look(self) -> threading.Thread | None:
        self._look_due = None
        self._look_late = self.clock() + LATE_S
        thread = threading.Thread(target=self._look, name="pairbus-control-file", daemon=True)
        try:
            self._start(thread)
        except RuntimeError:  # the process has too many threads; timers and pings must go on
            self._look_due = self.clock() + INTERVAL_S
            self._look_late = None
            return None
        return thread

    def _look(self) -> None:
        assert self._control_file is not None
        news: Pins | Exception | None = None
        try:
            news = self._control_file.look()
        finally:
            self._hand_over(news)

    def _looked(self, news: Pins | Exception | None) -> None:
        with self.lock:
            if self.closed:
                return
            now = self.clock()
            self._look_late = None
            if self._control_file is not None and self._control_file.is_changing:
                self._look_due = now + min(INTERVAL_S, SETTLED_S)
            else:  # clients of a fleet that began in the same second look at different times
                self._look_due = now + INTERVAL_S * (1.0 if self._has_looked else self.coordinator.phase)
                self._has_looked = True
            if isinstance(news, Pins):
                self.coordinator.set_pins(news, now)
            elif news is not None:
                self._untold.append(ControlFileUnusable(news))
        self.attend()

    def link_opened(self, took_s: float) -> None:
        """Note how long a link to the primary took to open."""
        with self.lock:
            self.coordinator.link_opened(self.clock(), took_s)

    def _pinged(self, entity: str, began: float, failure: Exception | None, took_s: float = 0.0) -> None:
        """`took_s`: how long the answer took on an open link, if that was measured."""
        now = self.clock()
        with self.lock:
            if not self.closed:
                if failure is None:
                    self.coordinator.ping_succeeded(entity, now, took_s)
                else:
                    self.coordinator.ping_failed(entity, now, failure, reachable=not is_reach(failure))
        for observer in self.observers:
            call_safely(observer.pinged, entity, outcome_of(failure), (now - began) * 1000.0)
        self.attend()

    def _tell_untold(self) -> None:
        """Pass every pending event to all listeners, whatever one of them raises."""
        passing: BaseException | None = None
        while self._untold:
            event = self._untold.popleft()
            for listener in (*(observer.announced for observer in self.observers), *self._subscribers.callbacks):
                try:
                    self._take_answer(call_safely(listener, event))
                except BaseException as error:
                    passing = error
        if passing is not None:
            raise passing

    def _take_answer(self, answer: object) -> None:
        """Take what a callback returned; on a loop it may be a coroutine."""

    # Implemented by the sync and async subclasses

    @property
    def is_telling_here(self) -> bool:
        """Return whether the caller is a subscriber's callback."""
        raise NotImplementedError

    def _prepare(self) -> None:
        raise NotImplementedError

    def attend(self) -> None:
        """Carry out the coordinator's commands, after anything that may have changed a state."""
        raise NotImplementedError

    def _tell(self) -> None:
        raise NotImplementedError

    def _start(self, thread: threading.Thread) -> None:
        raise NotImplementedError

    def _hand_over(self, news: Pins | Exception | None) -> None:
        """Calls `_looked`, from the thread that has looked at the control file."""
        raise NotImplementedError

    def _has_timer(self) -> bool:
        raise NotImplementedError

    def _pings_under_way(self) -> int:
        raise NotImplementedError


def call_safely(callback: Callable[..., object], *arguments: object) -> object:
    """Call an observer or subscriber, and log what it raises: it must never stop a send.

    On the main thread Ctrl-C and `sys.exit` pass: there a signal handler may have raised them.
    """
    try:
        return callback(*arguments)
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        _log.exception("%r failed and is ignored", callback)
        return None
