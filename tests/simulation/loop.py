"""An asyncio loop on which time is simulated and several processes live, each of which can be killed or frozen.

A callback belongs to the process in whose context it was made, and so do the tasks and timers that it makes. What
belongs to a dead process never runs again: its `finally` blocks do not either, as after a kill -9. Callbacks take no
time; when none is ready, the clock jumps to the next timer. Nothing here depends on the real clock, on threads, or on
the order of sets.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .disk import MachineStopped

T = TypeVar("T")
#: More callbacks than this in one run mean that the world turns without moving on.
CALLBACKS_MAX = 300_000
EPOCH = 1_800_000_000.0


class Process:
    """One program of the world."""

    __slots__ = ("frozen_since", "frozen_until", "is_alive", "name", "on_death")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.frozen_since = self.frozen_until = 0.0
        self.on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}: {'alive' if self.is_alive else 'dead'}>"

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function as this process would: what it begins belongs to it."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        return context.run(function, *arguments)

    def freeze(self, now: float, seconds: float) -> None:
        """Let it do nothing for a time, or for longer than it does nothing anyway."""
        if self.frozen_until < now:
            self.frozen_since = now
        self.frozen_until = max(self.frozen_until, now + seconds)

    def kill(self) -> None:
        """End it between two callbacks; what it had begun goes no further."""
        if self.is_alive:
            self.is_alive = False
            for tell in self.on_death:
                tell()


#: What belongs to no process is the world's own and always runs.
WORLD = Process("the world")
_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=WORLD)


def current_process() -> Process:
    return _process.get()


class Clock:
    """The clocks of one machine: the wall clock can be set, the monotonic one passes evenly."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset = EPOCH

    def __call__(self) -> float:
        return self._loop.now + self.offset

    def monotonic(self) -> float:
        return self._loop.now


class Livelock(Exception):
    """The world turns and turns, and the clock stands still or nothing ends."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self.now = 0.0
        self.callbacks = self.turns = 0
        #: What callbacks and tasks of living processes raised and nobody caught.
        self.problems: list[str] = []
        #: Tasks are kept until the world ends: one that is collected would run its `finally` blocks.
        self.tasks: list[tuple[Process, asyncio.Task[Any]]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._connect: Callable[..., Coroutine[Any, Any, Any]]
        self._adopt: Callable[..., Coroutine[Any, Any, Any]]

    def __repr__(self) -> str:
        return f"<SimulatedLoop at {self.now:.6f}: {len(self._ready)} ready, {len(self._timers)} timers>"

    # -- running

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the world's to its end, and everything else meanwhile."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(coroutine)
            while not task.done():
                self._turn()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise Livelock("nothing is ready and no timer is set")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:  # type: ignore[attr-defined]
                ready.append(timer)
        self.turns += 1
        self.callbacks += len(ready)
        if self.callbacks > CALLBACKS_MAX:
            raise Livelock(f"more than {CALLBACKS_MAX:,} callbacks by {self.now:.3f} s")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(_process, WORLD)  # type: ignore[attr-defined]
            if process is not WORLD:
                if not process.is_alive:
                    continue
                if process.frozen_until > self.now:
                    self._later(process.frozen_until, handle)
                    continue
            handle._run()  # type: ignore[attr-defined]

    def _later(self, when: float, handle: asyncio.Handle) -> None:
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))  # type: ignore[arg-type]

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._later(when, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append((current_process(), task))
        return task

    def count_tasks(self, process: Process | None) -> int:
        """Return how many tasks of a process are under way."""
        return sum(each is process and not task.done() for each, task in self.tasks)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, MachineStopped):
            self.problems.append(f"{context.get('message')}: {error!r}")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call it here and now: a thread of its own would be another order at every run."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:  # type: ignore[override]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    # -- sockets, which network.py makes

    def join(self, connect: Callable[..., Coroutine[Any, Any, Any]], adopt: Callable[..., Any]) -> None:
        """Take the network's ways to connect and to serve an accepted socket."""
        self._connect, self._adopt = connect, adopt

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await self._connect(protocol_factory, host, port)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:  # type: ignore[override]
        return await self._adopt(protocol_factory, sock)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        fd.watch(callback, *args)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        fd.unwatch()
        return True
