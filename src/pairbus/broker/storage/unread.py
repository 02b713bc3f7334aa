"""Sets messages aside that can't be read because the disk does not answer, until it does. Pure.

They are passed over, so that the messages behind them can be received. That doesn't count as a delivery, and each is
passed over once in a stall. The number per second is limited: a receiver that meets more has to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from pairbus.broker.model.message import SETTLING, Message
from pairbus.broker.model.queue import MessageQueue

#: How soon unreadable messages are tried again.
UNREAD_S: Final = 1.0
#: How many messages may be passed over in a second.
PASSED_MAX: Final = 10_000
#: Messages that return in one step, which others wait for.
_RETURNED_MAX: Final = 2000


class UnreadMessages:
    """The unreadable messages of one namespace."""

    __slots__ = ("_batches", "_due", "_passed", "_since")

    def __init__(self) -> None:
        # Of each queue the messages that were passed over one after another, oldest first.
        self._batches: deque[tuple[MessageQueue, list[Message]]] = deque()
        self._due = inf
        self._since = -inf
        self._passed = 0

    def __len__(self) -> int:
        return sum(len(messages) for _, messages in self._batches)

    def __repr__(self) -> str:
        return f"<UnreadMessages: {len(self)} in {len(self._batches)} batches>"

    @property
    def deadline(self) -> float:
        """When to check whether they can be read."""
        return self._due

    def is_enough(self, now: float) -> bool:
        """Return whether no more may be passed over for now."""
        return self._passed >= PASSED_MAX and self._since <= now < self._since + UNREAD_S

    def add(self, queue: MessageQueue, message: Message, now: float) -> None:
        """Keep a message aside that was drawn from its queue, or locked in it: its lock ends, and does not count."""
        if message.lock_token is not None:
            queue.claim(message.lock_token, now)
            message.lock_token = None
        message.state = SETTLING
        if not self._since <= now < self._since + UNREAD_S:
            self._since, self._passed = now, 0
        self._passed += 1
        batches = self._batches
        if not batches or batches[-1][0] is not queue or len(batches[-1][1]) >= _RETURNED_MAX:
            batches.append((queue, []))
        batches[-1][1].append(message)
        self._due = min(self._due, now + UNREAD_S)

    def offer_due(self, now: float, can_read: Callable[[Message], bool]) -> MessageQueue | None:
        """Once it is time, return the messages to their queue that are next and can be read; return that queue."""
        if now < self._due:
            return None
        while self._batches:
            queue, messages = self._batches[0]
            if queue.entity.deleted:
                self._batches.popleft()
            elif can_read(messages[0]):
                self._batches.popleft()
                for message in messages:
                    queue.offer(message)
                self._due = now if self._batches else inf
                return queue
            else:
                self._due = now + UNREAD_S
                return None
        self._due = inf
        return None

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set."""
        self._due += seconds
        self._since += seconds
