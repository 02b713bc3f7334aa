"""Runs the timers, pings and callbacks of a paired client on threads.

It holds the coordinator of the client and the lock that protects it. Code that changes a state under that lock calls
`attend` afterwards, without it: commands are carried out and the timer is set. A thread runs only while an entity is
sick (`coordinator.deadline` is not None) or a control file is followed, so other healthy clients have none. Pings run
on separate threads, so that a hanging one delays neither the timers nor another entity's ping.

It decides nothing: the coordinator decides when to fail over, when to ping and what a ping's answer means.
"""

from __future__ import annotations

import threading

from pairbus.pairing import fork
from pairbus.pairing.control_file import FIRST_LOOK_S
from pairbus.pairing.events import Announce, SendPing
from pairbus.pairing.health_monitor import PINGS_AT_ONCE_MAX, HealthMonitorBase, call_safely
from pairbus.pairing.routing.pins import Pins
from pairbus.sync.guarded_sender import GuardedSender
from pairbus.sync.interrupts import start, take


class HealthMonitor(HealthMonitorBase[GuardedSender]):
    def _prepare(self) -> None:
        self._make_lock()
        self._turn = threading.Lock()  # to tell
        self._telling: int | None = None  # whose turn it is
        self._thread: threading.Thread | None = None
        self._ping_threads: set[threading.Thread] = set()
        self._pingers: set[GuardedSender] = set()
        fork.register(self)

    def _make_lock(self) -> None:
        # Reentrant because of signal handlers: one that closes the client may interrupt the holder of the lock.
        self.lock = lock = threading.RLock()
        self._wake = threading.Condition(lock)

    def attend(self) -> None:
        """Carry out what the coordinator asks for. The caller must not hold the lock."""
        returned: list[str] = []
        with self.lock:
            if not self.closed:
                self._keep_time()
            commands = self.coordinator.commands
            while commands:
                # Taken out only when it is carried out: a ping that a signal handler prevented would be the last one.
                command = commands[0]
                if isinstance(command, Announce):
                    self._untold.append(command.event)
                elif self.closed:
                    pass
                elif isinstance(command, SendPing):
                    self._begin_ping(command.entity)
                else:
                    returned.append(command.entity)
                commands.popleft()
        self._tell()
        for entity in returned if self._open_links is not None else ():
            opening = threading.Thread(target=self._open_links, args=(entity,), name="pairbus-open-links", daemon=True)
            start(opening)

    def close(self) -> None:
        """Ends timers and pings; the answer to a ping under way is not heard any more."""
        with self.lock:
            self.closed = True
            self._pings_due.clear()
            self._wake.notify_all()
            pingers = list(self._pingers)
        for pinger in pingers:
            call_safely(pinger.close, 0.0)
        self._tell()

    def forked(self) -> None:
        """In a child process: the threads are the parent's, and a lock may have been held by one of them."""
        self._make_lock()
        self._thread = None
        self._pings_due.clear()
        self._pingers.clear()
        self._ping_threads.clear()
        self._turn = threading.Lock()
        self._telling = None
        self.coordinator.forked()
        if self._control_file is not None and not self.closed:
            # A child that only sends, and is healthy, would else never look.
            self._look_due, self._look_late = self.clock(), None
            with self.lock:
                self._keep_time()

    def watch_control_file(self) -> None:
        """Follow the control file, if there is one. Returns when it was read once, or soon if that hangs."""
        if self._control_file is not None and (thread := self._begin_look()) is not None:
            self.attend()  # or nobody would notice that it hangs
            thread.join(FIRST_LOOK_S)

    def _start(self, thread: threading.Thread) -> None:
        start(thread)

    def _hand_over(self, news: Pins | Exception | None) -> None:
        self._looked(news)

    # Timers

    def _keep_time(self) -> None:
        # Holds the lock. The thread looks at the deadline itself, so waking it too often does no harm.
        if self._thread is not None and self._thread.is_alive():
            self._wake.notify()
        elif self._deadline is not None:
            self._thread = threading.Thread(target=self._run_timers, name="pairbus-timers", daemon=True)
            start(self._thread)

    def _run_timers(self) -> None:
        try:
            while self._wait_and_tick():
                self.attend()
        except BaseException:
            # Without this the timers of this client would stand still forever; the next send starts a thread again.
            with self.lock:
                self._thread = None
            raise

    def _wait_and_tick(self) -> bool:
        with self.lock:
            while True:
                deadline = self._deadline
                if self.closed or deadline is None:
                    self._thread = None
                    return False
                now = self.clock()
                if deadline <= now:
                    self._tick(now)
                    return True
                self._wake.wait(deadline - now)

    def _has_timer(self) -> bool:
        return self._thread is not None

    def _pings_under_way(self) -> int:
        return len(self._ping_threads)

    # Pings

    def _begin_ping(self, entity: str) -> None:
        # Holds the lock.
        self._pings_due.append(entity)
        self._ping_threads = {thread for thread in self._ping_threads if thread.is_alive()}
        if len(self._ping_threads) < PINGS_AT_ONCE_MAX:
            thread = threading.Thread(target=self._send_pings, name="pairbus-ping", daemon=True)
            self._ping_threads.add(thread)
            start(thread)

    def _send_pings(self) -> None:
        while True:
            with self.lock:
                if not self._pings_due:
                    self._ping_threads.discard(threading.current_thread())
                    return
                entity = self._pings_due.popleft()
            self._ping(entity)

    def _ping(self, entity: str) -> None:
        began = self.clock()
        failure: Exception | None = None
        took_s = 0.0
        pinger: GuardedSender | None = None
        try:
            pinger = self._open_pinger(entity)
            self._pingers.add(pinger)
            took_s = pinger.ping(self._ping_timeout_s, self.coordinator.settings.send_timeout)
        except Exception as error:
            failure = error
        self._pinged(entity, began, failure, took_s)
        if pinger is not None:
            call_safely(pinger.close)
            self._pingers.discard(pinger)

    # Telling

    @property
    def is_telling_here(self) -> bool:
        return self._telling == threading.get_ident()

    def _tell(self) -> None:
        """Deliver pending events in order: one thread at a time does, including those that others add meanwhile."""
        while self._untold and self._tell_in_turn():
            pass

    def _tell_in_turn(self) -> bool:
        """Return False if another thread delivers events, or a caller of this one: it will find the pending ones."""
        held: list[bool] = []
        try:
            take(held, self._turn)
            if held[0]:
                self._telling = threading.get_ident()
                self._tell_untold()
            return held[0]
        finally:
            if held and held[0]:
                self._telling = None
                self._turn.release()
