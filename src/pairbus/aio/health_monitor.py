"""Runs the timers, pings and callbacks of a paired client on an event loop.

It holds the coordinator of the client. Code that changes a state calls `attend` afterwards: commands are carried out
and the timer is set. A timer of the loop is set only while an entity is sick (`coordinator.deadline` is not None) or a
control file is followed; since it is not a task, it keeps no loop alive. Each ping has its own task, so that a hanging
one delays neither the timers nor another entity's ping. Everything happens on the loop that the client was paired on.

It decides nothing: the coordinator decides when to fail over, when to ping and what a ping's answer means.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from pairbus.aio.concurrency import await_safely, pause, run_safely
from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.sdk_sender import HomeLoop
from pairbus.pairing.control_file import FIRST_LOOK_S
from pairbus.pairing.events import OpenLinks, SendPing
from pairbus.pairing.health_monitor import PINGS_AT_ONCE_MAX, HealthMonitorBase
from pairbus.pairing.routing.pins import Pins

#: How long closing waits for subscribers that are coroutines.
TELL_S: Final = 1.0


class HealthMonitor(HealthMonitorBase[GuardedSender]):
    def _prepare(self) -> None:
        self.lock = threading.RLock()  # nothing comes in between on a loop; it costs less than a `nullcontext`
        home = HomeLoop()
        self.loop, self.check_loop = home.loop, home.check
        self._telling = False
        self._pinging = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[Awaitable[object]] = deque()
        self._teller: asyncio.Task[None] | None = None
        self._first_look = asyncio.Event()

    def attend(self) -> None:
        commands = self.coordinator.commands
        while commands:
            command = commands.popleft()
            if isinstance(command, SendPing):
                self._begin_ping(command.entity)
            elif isinstance(command, OpenLinks):
                if self._open_links is not None and not self.closed:
                    self._spawn(self._open_links(command.entity), "pairbus-open-links")
            else:
                self._untold.append(command.event)
        self._keep_time()
        self._tell()

    async def close(self) -> None:
        """Ends timers and pings, and waits for those in progress, and for a limited time for subscribers that are
        coroutines."""
        self.closed = True
        self._pings_due.clear()
        self._keep_time()
        self._tell()
        here = asyncio.current_task()
        if self._teller is not None and self._teller is not here:
            await asyncio.wait({self._teller}, timeout=TELL_S)
        ending = [task for task in self._tasks if task is not here]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # The control file

    async def watch_control_file(self) -> None:
        """Follow the control file, if there is one. Returns when it was read once, or soon if that hangs."""
        if self._control_file is not None and self._begin_look() is not None:
            self.attend()  # or nobody would notice that it hangs
            await pause(self._first_look, FIRST_LOOK_S)

    def _start(self, thread: threading.Thread) -> None:
        thread.start()

    def _hand_over(self, news: Pins | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._looked, news)

    def _looked(self, news: Pins | Exception | None) -> None:
        super()._looked(news)
        self._first_look.set()

    # Timers

    def _keep_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._deadline
        if deadline is not None and not self.closed:
            self._timer = self.loop.call_later(max(0.0, deadline - self.clock()), self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._tick(self.clock())
        self.attend()

    def _has_timer(self) -> bool:
        return self._timer is not None

    def _pings_under_way(self) -> int:
        return self._pinging

    # Pings

    def _begin_ping(self, entity: str) -> None:
        if self.closed:
            return
        self._pings_due.append(entity)
        if self._pinging < PINGS_AT_ONCE_MAX:
            self._pinging += 1
            self._spawn(self._send_pings(), "pairbus-ping")

    async def _send_pings(self) -> None:
        try:
            while self._pings_due:
                await self._ping(self._pings_due.popleft())
        finally:
            self._pinging -= 1

    async def _ping(self, entity: str) -> None:
        began = self.clock()
        failure: Exception | None = None
        took_s = 0.0
        pinger: GuardedSender | None = None
        try:
            pinger = self._open_pinger(entity)
            took_s = await pinger.ping(self._ping_timeout_s, self.coordinator.settings.send_timeout)
        except Exception as error:
            failure = error
        self._pinged(entity, began, failure, took_s)
        if pinger is not None:
            await run_safely(pinger.close)

    # Telling

    @property
    def is_telling_here(self) -> bool:
        return self._teller is not None and asyncio.current_task() is self._teller

    def _tell(self) -> None:
        """Deliver pending events in order: those that a callback causes come after the one that it was called for."""
        if self._telling:
            return
        self._telling = True
        try:
            self._tell_untold()
        finally:
            self._telling = False

    def _take_answer(self, answer: object) -> None:
        if inspect.isawaitable(answer):
            self._await_in_turn(answer)

    def _await_in_turn(self, answer: Awaitable[object]) -> None:
        # One after the other, or a coroutine that waits would see later events first.
        self._answers.append(answer)
        if self._teller is None:
            self._teller = self._spawn(self._await_answers(), "pairbus-events")

    async def _await_answers(self) -> None:
        try:
            while self._answers:
                await await_safely(self._answers.popleft())
        finally:
            self._teller = None
            if self.closed:  # cancelled: those behind are not begun
                for answer in self._answers:
                    if inspect.iscoroutine(answer):
                        answer.close()
                self._answers.clear()
            elif self._answers:  # Ctrl-C in one of them is not the end of the others
                self._teller = self._spawn(self._await_answers(), "pairbus-events")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
