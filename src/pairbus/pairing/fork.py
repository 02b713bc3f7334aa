"""Lets a forked child use the sync clients that it has inherited: it drops their connections and opens its own.

A connection can't be shared: two processes that read one TLS stream destroy it for both. So the child closes its copies
of the sockets without telling the peer, creates new locks (the parent's may have been held by a thread that the child
does not have), and starts threads when they are next needed. The parent is not affected.

A thread that has opened a link clears up after its caller has gone on. OpenSSL then holds a lock for a moment, and in a
child that was forked in that moment it would stay taken: no TLS handshake would ever end. So a fork waits until such
threads have ended.

Not covered is a socket that the parent was just connecting: the child keeps an unused copy of it until it ends.

The method `forked` of every registered object is called. Async clients are not registered; they belong to the loop of
the parent and refuse to work in the child (`ForkedClientError`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Final, Protocol

_log = logging.getLogger("pairbus.pairing")

#: A fork waits no longer than this for threads that are ending.
_ENDING_S: Final = 0.5
#: What the system calls the threads that were about to end when they were last heard of.
_ending: deque[int] = deque(maxlen=256)


class Inheritable(Protocol):
    def forked(self) -> None:
        """Called in the child, on its only thread, before anything else runs there."""


# Not a WeakSet: the fork may come while another thread is changing it, and a dict's own operations are atomic.
_inheritable: dict[int, weakref.ref[Any]] = {}


def register(thing: Inheritable) -> None:
    """Has `thing.forked()` called in each child that is forked from now on, for as long as the thing lives."""
    key = id(thing)
    _inheritable[key] = weakref.ref(thing, lambda _gone: _inheritable.pop(key, None))


def note_ending() -> None:
    """Note that this thread has done its work and is about to end."""
    _ending.append(threading.get_native_id())


def _before() -> None:
    until = time.monotonic() + _ENDING_S
    while _ending:
        thread = _ending.popleft()
        while os.path.exists(f"/proc/self/task/{thread}") and time.monotonic() < until:
            time.sleep(0.001)


def _in_child() -> None:
    for reference in list(_inheritable.values()):
        thing = reference()
        if thing is None:
            continue
        try:
            thing.forked()
        except Exception:
            # The caller of fork can't do anything about it, and the other clients must be told too.
            _log.exception("%r could not be made ready for use in a forked process", thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
