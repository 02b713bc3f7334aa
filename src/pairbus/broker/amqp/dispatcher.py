"""Delivers the messages of one queue, or of one session, to the receivers that have credit, in turn.

Competing receivers share the load: while several have credit each gets a few at a time. One run of the loop
delivers a bounded number, so that a deep queue with a fast receiver does not starve everyone else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .links import SourceNode

_TURN_MESSAGES = 32
_RUN_MESSAGES = 512
# Time of all dispatchers together in one turn of the loop.
_TURN_S = 0.003
#: How soon throttled receivers are tried again.
_THROTTLED_S = 0.05


class Runs:
    """Runs the dispatchers of a broker in turn, for a few milliseconds in each turn of the loop: however many have
    something to deliver, others are served meanwhile."""

    __slots__ = ("_due", "_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<Runs: {len(self._due)} due>"

    def soon(self, run: Callable[[], None]) -> None:
        """Call `run` in the next turn of the loop, or in a later one."""
        self._due.append(run)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        due, time = self._due, self._loop.time
        until = time() + _TURN_S
        try:
            for _ in range(len(due)):  # what comes meanwhile waits for the next turn
                due.popleft()()
                if time() >= until:
                    break
        finally:
            self._is_scheduled = bool(due)
            if due:
                self._loop.call_soon(self._turn)


class Dispatcher:
    """The receivers of one queue or session."""

    __slots__ = ("_available", "_due", "_is_later", "_is_paused", "_loop", "_runs", "_sources")

    def __init__(self, available: Callable[[], int], loop: asyncio.AbstractEventLoop, runs: Runs) -> None:
        """`available()` returns how many messages could be delivered now."""
        self._available = available
        self._runs = runs
        self._is_later = False
        self._is_paused = False
        self._loop = loop
        self._sources: deque[SourceNode] = deque()
        self._due = False

    def __repr__(self) -> str:
        return f"<Dispatcher {self._available()} available, {len(self._sources)} receivers>"

    def add(self, source: SourceNode) -> None:
        self._sources.append(source)

    def remove(self, source: SourceNode) -> None:
        if source in self._sources:
            self._sources.remove(source)

    def has_messages(self) -> bool:
        return self._available() > 0

    def available(self) -> int:
        return self._available()

    def wake(self) -> None:
        """Deliver in the next turn of the loop: there are messages, or credit."""
        if self._due:
            return
        for source in self._sources:
            if source.link.credit or source.link.drain:  # or else a turn of the loop would be for nothing
                self._due = True
                self._runs.soon(self._run)
                return

    def wake_later(self) -> None:
        """Deliver in a moment: there are messages and credit, but a threshold is reached."""
        if not self._is_later:
            self._is_later = True
            self._loop.call_later(_THROTTLED_S, self._end_delay)

    def _end_delay(self) -> None:
        self._is_later = False
        self.wake()

    def pause(self, seconds: float) -> None:
        """Deliver nothing for this long: the next message can't be read."""
        if not self._is_paused:
            self._is_paused = True
            self._loop.call_later(seconds, self._end_pause)

    def _end_pause(self) -> None:
        self._is_paused = False
        self.wake()

    def _run(self) -> None:
        self._due = False
        budget = _RUN_MESSAGES
        touched = []
        while budget > 0 and self._sources and not self._is_paused and self._available():
            for source in self._sources:
                if source.is_full:
                    source.sweep()
            ready = [source for source in self._sources if source.capacity > 0]
            if not ready:
                break
            turn = _TURN_MESSAGES if len(ready) > 1 else budget
            delivered = 0
            for source in ready:
                count = min(source.capacity, turn, budget)
                if count <= 0:
                    break
                delivered += source.deliver(count)
                budget -= count
                touched.append(source)
                if self._is_paused or not self._available():
                    break
            self._sources.rotate(-1)
            if not delivered:
                break
        for source in self._sources:
            link = source.link
            if link.drain and (not link.credit or source.is_shut or self._is_paused or not self._available()):
                source.answer_drain()
                touched.append(source)
        for source in touched:
            source.connection.flush_soon()
        if budget <= 0 and not self._is_paused:
            self.wake()
