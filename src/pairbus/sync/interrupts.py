"""Takes locks and starts threads safely in code that a signal handler may interrupt (Ctrl-C, an alarm, a time limit).

A handler runs on the main thread between two bytecodes, and an exception from it is raised there. CPython looks for
signals when a function begins, at the end of a loop's turn, and after a call has returned. So `lock.acquire()` may have
taken the lock when the next thing that happens is the exception, before any `try` is entered and before the result is
stored: the lock is then taken permanently. `with lock:` is safe, since the interpreter enters the block before it
looks; but it has no time-out. Hence `take`, which is one call from the interpreter's point of view: the lock is taken
and the fact is in the list, or neither.

    held: list[bool] = []
    try:
        take(held, lock, timeout_s)
        …
    finally:
        if held and held[0]:        # no call, no loop: nothing is looked for before the lock is released
            lock.release()
"""

from __future__ import annotations

import _thread
import threading


def take(held: list[bool], lock: threading.Lock, timeout_s: float = 0.0) -> None:
    """Appends to `held` whether the lock could be taken within the time."""
    if timeout_s > 0:
        held.extend(map(lock.acquire, (True,), (timeout_s,)))
    else:
        held.extend(map(lock.acquire, (False,)))


class Latch:
    """A flag that one thread sets once, and another waits for.

    An exception from a signal handler leaves `wait` unchanged. From `threading.Event.wait`, which is Python code around
    a lock, it may come out as a RuntimeError.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until the flag is set or the time is over, and return whether it is set; without a time, forever."""
        if not self._is_set and self._lock.acquire(timeout=timeout_s):
            self._lock.release()
        return self._is_set


def start(thread: threading.Thread) -> None:
    """Starts a thread. Interrupted in `Thread.start`, threading may raise a KeyError of its own, and forget the thread;
    so on the main thread it is started by another one, which no signal handler interrupts."""
    if threading.current_thread() is not threading.main_thread():
        thread.start()
        return
    started = Latch()

    def run() -> None:
        try:
            thread.start()
        finally:
            started.set()

    _thread.start_new_thread(run, ())
    started.wait()
