"""Wraps the parts of threading that the paired clients need, under the names of `aio/concurrency.py`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from pairbus.pairing import fork
from pairbus.pairing.health_monitor import call_safely as run_safely
from pairbus.pairing.sdk import is_interruption
from pairbus.sync.sdk_sender import let_go, sockets_of

__all__ = ["is_interruption", "run_safely"]

T = TypeVar("T")
CLOSES_AT_ONCE_MAX: Final = 32
sleep = time.sleep


def pause(event: threading.Event, seconds: float) -> bool:
    """Wait until the event is set or the time is over, and return whether it is set."""
    return event.wait(seconds)


def call_all(calls: Sequence[Callable[[], T]], at_once_max: int) -> list[T]:
    """Make all the calls, a limited number at once, and return their results in order."""
    with ThreadPoolExecutor(max(1, min(at_once_max, len(calls))), "pairbus-calls") as pool:
        return list(pool.map(lambda call: call(), calls))


class RepeatedAttempt:
    """Calls `attempt` at every interval, on a thread, until it returns True or `stop` is called. In a forked child it
    begins anew."""

    def __init__(self, attempt: Callable[[], bool], interval_s: float, name: str, *, at_once: bool = False) -> None:
        self._attempt = attempt
        self._at_once = at_once
        self._interval_s = interval_s
        self._name = name
        self._is_over = False
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        self._stop = threading.Event()
        if not self._is_over:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        stop = self._stop
        wait_s = 0.0 if self._at_once else self._interval_s
        while not stop.wait(wait_s):
            wait_s = self._interval_s
            if self._attempt():
                self._is_over = True
                return

    def stop(self) -> None:
        self._is_over = True
        self._stop.set()


def administration_client() -> Any:
    from azure.servicebus.management import ServiceBusAdministrationClient

    return ServiceBusAdministrationClient


def closes_session_with(client: Any, manager: Any) -> None:
    """Do nothing: requests says nothing of a session that is left open."""


class ReceiverAfterFork:
    """Makes a receiver drop in a forked child what is its parent's: the link, and what it has locked. The next call
    opens another link. Below are the private parts of the SDK's receiver that it replaces."""

    _handler: Any
    _message_iter: Any
    _running: bool
    _shutdown: threading.Event
    _receive_context: threading.Event

    def _made_in_this_process(self) -> None:
        fork.register(self)

    def _check_process(self) -> None:
        pass

    def forked(self) -> None:
        let_go(sockets_of(self._handler))
        self._handler = None
        self._message_iter = None
        self._running = False
        closed = self._shutdown.is_set()
        self._shutdown = threading.Event()
        self._receive_context = threading.Event()
        if closed:
            self._shutdown.set()
