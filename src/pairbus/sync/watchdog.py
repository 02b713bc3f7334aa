"""Ends calls of the sync SDK that would hang: shuts the socket under them at their deadline.

The SDK's sync client waits forever for a peer that accepts TCP and then says nothing: its TLS handshake and its SASL
exchange have no time-out, whatever `timeout=`, `try_timeout=` or `socket_timeout=` say. A blocked read or write on a
socket that another thread shuts down returns at once, so one daemon thread per process does that for every sender.

While calls are answered in time it costs almost nothing: arming a sender (`sdk_sender.py`) writes a float and compares
it with the time at which the thread will look anyway; disarming takes a free lock. The thread sleeps until the earliest
deadline that it knew; by then that call is usually long over, and it looks for the next one. It is woken only for a
deadline earlier than that.

It decides only which deadlines have passed. What a closed socket means for the sender is decided in
`guarded_sender.py`.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Protocol

from pairbus.pairing import fork
from pairbus.sync.interrupts import start

NEVER = math.inf


class Watched(Protocol):
    """Something that the watchdog watches."""

    deadline: float

    def fire(self, now: float) -> None:
        """Called at the deadline, on the watchdog's thread."""


class Watchdog:
    """The senders of one process that have a deadline, and the thread that watches them."""

    def __init__(self) -> None:
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start as in a new process; a forked child calls it, since the parent's thread and locks don't exist in it."""
        self._lock = threading.RLock()  # a signal handler that closes the client may interrupt who holds it
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self.next_look = NEVER

    def watch(self, sender: Watched) -> None:
        with self._lock:
            self._watched.add(sender)

    def wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # a signal handler may have kept it from starting
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name="pairbus-watchdog", daemon=True)
                    start(self._thread)
        self._woken.set()

    def _run(self) -> None:
        woken = self._woken
        while True:
            # Order matters: a sender armed after this line sees NEVER and wakes us; one armed before is found below.
            self.next_look = NEVER
            woken.clear()
            now = time.monotonic()
            with self._lock:
                senders = list(self._watched)
            earliest = NEVER
            for sender in senders:
                if sender.deadline <= now:
                    sender.fire(now)
                earliest = min(earliest, sender.deadline)
            del senders
            sender = None  # type: ignore[assignment]  # a sleeping thread keeps no sender alive
            self.next_look = earliest
            woken.wait(None if earliest is NEVER else max(0.0, earliest - time.monotonic()))


WATCHDOG = Watchdog()
