"""A list of available messages, the lowest sequence number first, for a queue or one of its sessions. Pure."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from .message import Message
from .partitions import NONE_DOWN, PARTITION_SHIFT, PARTITIONS

# How many may have left the middle of the list before it is rebuilt.
_STALE_MAX: Final = 1024

Collection = deque[Message] | list[tuple[int, Message]] | set[int]


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

    def parts(self) -> list[Collection]:
        """Return what it is made of, to be emptied bit by bit."""
        return [self.ready, self.returned, self.stale]

    def _drop_stale_heads(self) -> None:
        stale = self.stale
        if not stale:
            return
        ready, returned = self.ready, self.returned
        while ready and ready[0].sequence_number in stale:
            stale.discard(ready.popleft().sequence_number)
        while returned and returned[0][0] in stale:
            stale.discard(heappop(returned)[0])


class PartitionedReadyList:
    """Available messages of a partitioned queue: from each partition in turn, in order within it.

    It says of itself that messages have come back, so that receivers ask `next`.
    """

    __slots__ = ("_lists", "_turn", "down", "held_back", "ready", "returned", "stale")

    def __init__(self) -> None:
        self._lists = [ReadyList() for _ in range(PARTITIONS)]
        self._turn = 0
        #: Partitions whose messages are not available now.
        self.down = NONE_DOWN
        #: Partitions of which `next` gives nothing now although they have messages.
        self.held_back = NONE_DOWN
        self.ready: deque[Message] = deque()
        self.returned = True
        self.stale = False

    def __len__(self) -> int:
        return self.count_without(NONE_DOWN)

    def count_without(self, partitions: frozenset[int]) -> int:
        out = self.down | partitions if partitions else self.down
        return sum(len(each) for partition, each in enumerate(self._lists) if partition not in out)

    def __repr__(self) -> str:
        return f"<PartitionedReadyList of {len(self)}>"

    def add(self, message: Message) -> None:
        self._lists[message.sequence_number >> PARTITION_SHIFT].add(message)

    def discard(self, message: Message) -> None:
        self._lists[message.sequence_number >> PARTITION_SHIFT].discard(message)

    def next(self) -> Message | None:
        out = self.down | self.held_back if self.held_back else self.down
        for step in range(PARTITIONS):
            partition = (self._turn + step) % PARTITIONS
            message = None if partition in out else self._lists[partition].next()
            if message is not None:
                self._turn = (partition + 1) % PARTITIONS
                return message
        return None

    def clear(self) -> None:
        for each in self._lists:
            each.clear()

    def parts(self) -> list[Collection]:
        """Return what it is made of, to be emptied bit by bit."""
        return [part for each in self._lists for part in each.parts()]
