"""Hands the messages of one queue to the receivers that wait for them, in turn.

Competing receivers share the load (P45): while several have credit each gets a few at a time. One run of the loop hands
out a bounded number, so that a deep queue with a hungry receiver does not starve everyone else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from .queue import MessageQueue

if TYPE_CHECKING:
    from .links import Egress

_TURN_MESSAGES = 32
_RUN_MESSAGES = 512


class Dispatcher:
    __slots__ = ("_due", "_egresses", "_loop", "queue")

    def __init__(self, queue: MessageQueue, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = queue
        self._loop = loop
        self._egresses: deque[Egress] = deque()
        self._due = False
        queue.on_available = self.wake

    def __repr__(self) -> str:
        return f"<Dispatcher {self.queue!r}: {len(self._egresses)} receivers>"

    @property
    def is_idle(self) -> bool:
        return not self._egresses

    @property
    def egresses(self) -> list[Egress]:
        return list(self._egresses)

    def add(self, egress: Egress) -> None:
        self._egresses.append(egress)

    def remove(self, egress: Egress) -> None:
        if egress in self._egresses:
            self._egresses.remove(egress)

    def wake(self) -> None:
        if not self._due and self._egresses:
            self._due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._due = False
        budget = _RUN_MESSAGES
        touched = []
        while budget > 0 and self._egresses and self.queue.available:
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
                if not self.queue.available:
                    break
            self._egresses.rotate(-1)
            if not handed:
                break
        for egress in self._egresses:
            if egress.link.drain and (egress.is_full or not self.queue.available):
                egress.answer_drain()
                touched.append(egress)
        for egress in touched:
            egress.connection.flush_soon()
        if budget <= 0:
            self.wake()
