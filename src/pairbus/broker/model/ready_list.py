"""A list of available messages, the lowest sequence number first, for a queue or one of its sessions. Pure."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from .message import Message

# How many may have left the middle of the list before it is rebuilt.
_STALE_MAX: Final = 1024


class ReadyList:
    """Available messages in order.

    `ready` is rising; what comes back or arrives out of order waits in the heap beside it. `stale` are those that
    have left and still stand in one of the two.
    """

    __slots__ = ("ready", "returned", "stale")

    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.returned: list[tuple[int, Message]] = []
        self.stale: set[int] = set()

    def __len__(self) -> int:
        return len(self.ready) + len(self.returned) - len(self.stale)

    def __repr__(self) -> str:
        return f"<ReadyList of {len(self)}>"

    def add(self, message: Message) -> None:
        number = message.sequence_number
        if self.stale and number in self.stale:
            self.stale.discard(number)
            return
        ready = self.ready
        if not ready or ready[-1].sequence_number < number:
            ready.append(message)
        else:
            heappush(self.returned, (number, message))

    def next(self) -> Message | None:
        self._drop_stale_heads()
        ready, returned = self.ready, self.returned
        if returned and (not ready or returned[0][0] < ready[0].sequence_number):
            return heappop(returned)[1]
        return ready.popleft() if ready else None

    def head(self) -> int | None:
        """Return the number of the next message."""
        self._drop_stale_heads()
        ready, returned = self.ready, self.returned
        if returned and (not ready or returned[0][0] < ready[0].sequence_number):
            return returned[0][0]
        return ready[0].sequence_number if ready else None

    def discard(self, message: Message) -> None:
        """Remove a message, wherever it is in the order."""
        stale = self.stale
        stale.add(message.sequence_number)
        self._drop_stale_heads()
        if len(stale) > len(self) + _STALE_MAX:
            self.ready = deque(each for each in self.ready if each.sequence_number not in stale)
            self.returned = [each for each in self.returned if each[0] not in stale]
            heapify(self.returned)
            stale.clear()

    def clear(self) -> None:
        self.ready.clear()
        self.returned.clear()
        self.stale.clear()

    def _drop_stale_heads(self) -> None:
        stale = self.stale
        if not stale:
            return
        ready, returned = self.ready, self.returned
        while ready and ready[0].sequence_number in stale:
            stale.discard(ready.popleft().sequence_number)
        while returned and returned[0][0] in stale:
            stale.discard(heappop(returned)[0])
