"""Hands the messages of one queue, or of one session, to the receivers that wait for them, in turn.

Competing receivers share the load (P45): while several have credit each gets a few at a time. One run of the loop hands
out a bounded number, so that a deep queue with a hungry receiver does not starve everyone else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .links import Egress

_TURN_MESSAGES = 32
_RUN_MESSAGES = 512


class Dispatcher:
    __slots__ = ("_available", "_due", "_egresses", "_loop")

    def __init__(self, available: Callable[[], int], loop: asyncio.AbstractEventLoop) -> None:
        """`available()` says how many messages could be handed out now."""
        self._available = available
        self._loop = loop
        self._egresses: deque[Egress] = deque()
        self._due = False

    def __repr__(self) -> str:
        return f"<Dispatcher {self._available()} available, {len(self._egresses)} receivers>"

    def add(self, egress: Egress) -> None:
        self._egresses.append(egress)

    def remove(self, egress: Egress) -> None:
        if egress in self._egresses:
            self._egresses.remove(egress)

    def has_messages(self) -> bool:
        return self._available() > 0

    def wake(self) -> None:
        if not self._due and self._egresses:
            self._due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._due = False
        budget = _RUN_MESSAGES
        touched = []
        while budget > 0 and self._egresses and self._available():
            for egress in self._egresses:
                if egress.is_full:
                    egress.sweep()
            hungry = [egress for egress in self._egresses if egress.capacity > 0]
            if not hungry:
                break
            turn = _TURN_MESSAGES if len(hungry) > 1 else budget
            handed = 0
            for egress in hungry:
                count = min(egress.capacity, turn, budget)
                if count <= 0:
                    break
                handed += egress.deliver(count)
                budget -= count
                touched.append(egress)
                if not self._available():
                    break
            self._egresses.rotate(-1)
            if not handed:
                break
        for egress in self._egresses:
            if egress.link.drain and (egress.is_full or not self._available()):
                egress.answer_drain()
                touched.append(egress)
        for egress in touched:
            egress.connection.flush_soon()
        if budget <= 0:
            self.wake()
