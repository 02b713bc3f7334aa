"""A heap of messages by the time at which they expire or become active. Pure.

Messages that leave are not searched for: an entry is valid as long as `time_of` its message still gives its time. Now
and then the valid entries move to a new heap, a few with each that is added: to go through all of a large heap at once
would hold others up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from .message import Message

_STALE_MAX: Final = 1024
# Entries that no longer count and are removed in one step, which others wait for.
_REMOVED_MAX: Final = 1000
# Entries that move to the new heap with each that is added.
_MOVED_AT_ONCE: Final = 4

Entries = list[tuple[float, int, Message]]


class DueHeap:
    __slots__ = ("_entries", "_entries_max", "_old", "_time_of", "asked", "next", "passed")

    def __init__(self, time_of: Callable[[Message], float]) -> None:
        #: No entry is due before it.
        self.next = inf
        #: The time up to which due messages have been taken out.
        self.passed = -inf
        self.asked = -inf
        self._time_of = time_of
        self._entries: Entries = []
        self._entries_max = _STALE_MAX
        #: The heap from which entries move, until it is empty.
        self._old: Entries = []

    def __len__(self) -> int:
        return len(self._entries) + len(self._old)

    def __repr__(self) -> str:
        return f"<DueHeap: {len(self)} entries, the next at {self.next}>"

    def add(self, message: Message, not_before: float = -inf) -> None:
        time = max(self._time_of(message), not_before)
        heappush(self._entries, (time, message.sequence_number, message))
        if time < self.next:
            self.next = time
        if self._old:
            self._move()
        elif len(self._entries) > self._entries_max:
            self._old, self._entries = self._entries, []

    def _move(self) -> None:
        """Move some entries, those behind which nothing stands in the heap, and leave out what no longer counts."""
        old = self._old
        for _ in range(min(_MOVED_AT_ONCE, len(old))):
            entry = old.pop()
            if self._time_of(entry[2]) <= entry[0]:
                heappush(self._entries, entry)
        if not old:
            self._entries_max = 2 * len(self._entries) + _STALE_MAX

    @property
    def _first(self) -> Entries:
        """The heap with the earliest entry."""
        entries, old = self._entries, self._old
        return old if old and (not entries or old[0][:2] < entries[0][:2]) else entries

    def take_due(self, now: float, count: int) -> list[Message]:
        """Remove up to `count` entries that are due, and return the messages of those that count."""
        due: list[Message] = []
        self.asked = max(self.asked, now)
        while count and (entries := self._first) and entries[0][0] <= now:
            count -= 1
            time, _, message = heappop(entries)
            self.passed = max(self.passed, time)
            if self._time_of(message) <= time:
                due.append(message)
        self._note_next()
        return due

    def _note_next(self) -> None:
        entries = self._first
        self.next = entries[0][0] if entries else inf

    def deadline(self) -> float:
        """Return when the next message is due, or earlier where many have left; infinity: never."""
        for _ in range(_REMOVED_MAX):
            entries = self._first
            if not entries or self._time_of(entries[0][2]) <= entries[0][0]:
                break
            heappop(entries)
        self._note_next()
        return self.next

    def shift(self, seconds: float) -> list[Message]:
        """Adapt to a wall clock that was set: what is due at an instant stays so, what waits to be tried again waits no
        longer. Return what waited for that and now has its own time ahead of it."""
        self.asked += seconds
        self._entries, self._old = self._entries + self._old, []
        not_due = []
        for at, (time, number, message) in enumerate(self._entries):
            due = self._time_of(message)
            if due < time:
                self._entries[at] = (max(due, time + seconds), number, message)
                if time + seconds <= due:
                    not_due.append(message)
        heapify(self._entries)
        self._note_next()
        return not_due

    def clear(self) -> Entries:
        """Remove all entries and return them."""
        entries, self._entries, self._old = self._entries + self._old, [], []
        self.next = inf
        return entries
