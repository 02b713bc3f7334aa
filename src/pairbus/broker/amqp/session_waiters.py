"""Keeps the receivers that wait for the next free session of a queue, first come, first served.

See docs/reference/protocol.md#sessions.

A shell: it holds the unanswered attaches and their timers. The queue decides which session is free.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pairbus.amqp import errors as conditions
from pairbus.amqp.link import SenderLink
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.refusal import Refusal

from .attach import open_session

if TYPE_CHECKING:
    from pairbus.broker.server import NamespaceServer

    from .connection import AmqpConnection

_DEFAULT_WAIT_S = 60.0
_WAITING_MAX = 10_000


class SessionWaiters:
    """The receivers that wait for a session of one queue."""

    __slots__ = ("_due", "_host", "_queue", "_waiting")

    def __init__(self, host: NamespaceServer, queue: MessageQueue) -> None:
        self._host = host
        self._queue = queue
        self._due = False
        self._waiting: dict[SenderLink, Waiting] = {}
        queue.on_session_free = self.wake

    def __repr__(self) -> str:
        return f"<SessionWaiters {self._queue.path}: {len(self._waiting)} waiting>"

    def wait(self, connection: AmqpConnection, link: SenderLink, seconds: float | None) -> Refusal | None:
        """Answer the attach when a session is free, or refuse it after this many seconds; return a refusal at once if
        too many wait."""
        if len(self._waiting) >= _WAITING_MAX:
            return Refusal(
                conditions.SERVER_BUSY, f"{_WAITING_MAX} receivers wait for a session of '{self._queue.path}'"
            )
        delay = _DEFAULT_WAIT_S if seconds is None else seconds
        timer = self._host.loop.call_later(delay, self._timed_out, link)
        self._queue.entity.count_receiver(1)
        waiting = self._waiting[link] = Waiting(self, connection, link, self._queue.path, timer)
        connection.put_node(link, waiting)
        self._open()
        return None

    def wake(self) -> None:
        """Look in the next turn of the loop: a session has become free."""
        if not self._due and self._waiting:
            self._due = True
            self._host.loop.call_soon(self._open)

    def leave(self, link: SenderLink) -> None:
        found = self._waiting.pop(link, None)
        if found is not None:
            self._queue.entity.count_receiver(-1)
            found.timer.cancel()

    def _open(self) -> None:
        self._due = False
        for link, waiting in list(self._waiting.items()):
            accepted = self._host.namespace.sessions.accept(self._queue, None, self._host.clock())
            if accepted is None:
                return
            if isinstance(accepted, SessionLock):
                self.leave(link)
                open_session(waiting.connection, link, self._queue, accepted)
            else:
                waiting.connection.cut(link, accepted)

    def close(self, refusal: Refusal) -> None:
        """Refuse all: the queue is deleted."""
        for link, waiting in list(self._waiting.items()):
            waiting.connection.cut(link, refusal)

    def _timed_out(self, link: SenderLink) -> None:
        found = self._waiting.get(link)
        if found is not None:
            text = f"There was no free session of '{self._queue.path}' with messages in the time allowed."
            found.connection.cut(link, Refusal(conditions.TIMEOUT, text))


class Waiting:
    """The node behind a link that waits for a session: its attach is not answered yet."""

    __slots__ = ("_waiters", "connection", "link", "path", "timer")

    def __init__(
        self,
        waiters: SessionWaiters,
        connection: AmqpConnection,
        link: SenderLink,
        path: str,
        timer: asyncio.TimerHandle,
    ) -> None:
        self._waiters = waiters
        self.connection = connection
        self.link = link
        self.path = path
        self.timer = timer

    def __repr__(self) -> str:
        return f"<Waiting for a session of {self.path}>"

    def closed(self) -> None:
        self._waiters.leave(self.link)
