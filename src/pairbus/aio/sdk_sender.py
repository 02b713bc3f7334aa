"""Calls an SDK sender under our deadlines, on an event loop; `sync/sdk_sender.py` has the same names for threads.

On an open link a call runs in the caller's task under a time-out. Opening runs in its own task, since a cancelled
opening first cleans up, on a connection that may hang; the caller abandons it at the deadline. `guarded_sender.py`
decides what follows from a failure.

Private parts of the SDK that it touches (the rest is in `pairing/sdk.py`):

    sender._create_handler                called for every new link: its AMQP client's `close_async` is replaced
    sender._handler                       that AMQP client
    sender._open                          replaced until the first link is open: was anything sent?
    handler._connection._transport        .writer (a StreamWriter), or .session and .sock of aiohttp for a WebSocket;
                                          of the latter aiohttp's own ._conn.transport
    handler._keep_alive_thread            a task, in spite of its name: ended before closing, not waited for
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing import sdk
from pairbus.pairing.errors import WrongLoopError, note_time_over
from pairbus.pairing.guarded_sender import (
    AFTER_STALL_S,
    CLOSE_S,
    CLOSED,
    GRACE_S,
    STALLED_S,
    SdkSenderBase,
    too_late,
)
from pairbus.pairing.routing.verdicts import said

T = TypeVar("T")

# Tasks that clean up; asyncio itself keeps only weak references to its tasks.
_background: set[asyncio.Task[None]] = set()

CANCELLATIONS: Final = 4


class Lock(asyncio.Lock):
    """Gives a sender to one call after the other.

    Private parts of asyncio's that it uses: `_locked`, and `_waiters`, in which each stays until it has the lock. After
    a release the lock is not `locked()` for a moment, and yet it is the first waiter's.
    """

    _locked: bool
    _waiters: Any


async def take(held: list[bool], lock: Lock, timeout_s: float) -> None:
    """Append to `held` whether the lock could be taken within the time."""
    if not lock._locked and not lock._waiters:
        lock._locked = True
        held.append(True)
        return
    try:
        async with asyncio.timeout(timeout_s):
            held.append(await lock.acquire())
    except TimeoutError:
        held.append(False)


def take_if_free(held: list[bool], lock: Lock) -> None:
    """Append to `held` whether the lock was free; it is taken then."""
    is_free = not lock._locked and not lock._waiters
    if is_free:
        lock._locked = True
    held.append(is_free)


class HomeLoop:
    """The event loop, and the process, that clients belong to."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()

    def check(self) -> None:
        """Raise where the caller is not on the loop that the SDK's connections, and our timers, belong to."""
        running = asyncio._get_running_loop()
        if running is self.loop:
            return
        if os.getpid() != self._process:
            raise sdk.forked("")
        where = "outside of a loop" if running is None else "from another one"
        raise WrongLoopError(
            f"this client was paired on an event loop and is used {where};"
            " pair a client of its own on each loop, and use pairbus.ServiceBusClient where there is none"
        )


class SenderAfterFork:
    """Makes a sender refuse to work in a forked child, since it belongs to the parent's loop."""

    _entity: str

    def _made_in_this_process(self) -> None:
        self._lock = Lock()
        self._process = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise sdk.forked(self._entity)


#: Takes the SDK's sender and the seconds that are left.
Operation = Callable[[Any, float], Awaitable[T]]


class _Alarm:
    """Cancels the task that has not ended by its deadline. One timer serves many calls.

    A timer that is set and cancelled for every send costs more than everything else here. This one is left to run: by
    the time it rings its call is usually long over, and it is set for the one that is under way then, if any.
    """

    __slots__ = ("_put_off", "_rings_at", "_timer", "deadline", "rung", "task")

    def __init__(self) -> None:
        self.rung = False
        self._put_off = False
        #: Of the present call, and its task; the code that ends the call removes both.
        self.deadline = math.inf
        self.task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When the timer is due; infinite where there is none.
        self._rings_at = math.inf

    def set(self, deadline: float) -> asyncio.Task[Any]:
        """Set the alarm for the current task, and return that task."""
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.deadline = deadline
        self._put_off = False
        if self._rings_at > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = task.get_loop().call_at(deadline, self._ring)
            self._rings_at = deadline
        return task

    def end(self) -> None:
        self.deadline, self.task = math.inf, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._rings_at = math.inf

    def _ring(self) -> None:
        self._timer = None
        self._rings_at = math.inf
        task = self.task
        if task is None:
            return
        loop = task.get_loop()
        now = loop.time()
        if now - self.deadline > STALLED_S and not self._put_off:  # the loop stood still: the answer may be there
            self._put_off = True
            self.deadline = now + AFTER_STALL_S
        if now < self.deadline:
            self._timer = loop.call_at(self.deadline, self._ring)
            self._rings_at = self.deadline
            return
        self.rung = True
        task.cancel()


class SdkSender(SdkSenderBase):
    """An SDK sender under our rules. Used by one task at a time; never used again once it is discarded."""

    __slots__ = ("_alarm", "_create", "_in_place", "is_abandoned")

    def __init__(self, sender: ServiceBusSender) -> None:
        super().__init__(sender)
        untyped: Any = sender
        self._in_place = False
        self.is_abandoned = False
        self._alarm = _Alarm()
        config = untyped._config
        if config.use_tls and config.ssl_context is None:
            with contextlib.suppress(OSError):  # the SDK says what is wrong with the file when it connects
                config.ssl_context = sdk.tls_context(config.connection_verify)
        self._create: Callable[[Any], None] = untyped._create_handler
        untyped._create_handler = self._create_handler

    #: Nothing shuts the socket under an answer, as happens between threads.
    fired: Final = False

    def wants_fresh_link(self) -> bool:
        """Return False: a token is fetched in place."""
        return False

    def is_ready(self) -> bool:
        """Whether a call can be made on the open link."""
        running: bool = self.sender._running
        return running

    async def in_place(self, operation: Operation[T], now: float, deadline: float) -> T:
        """Make a call on the open link, in the caller's task."""
        left = deadline - now
        if left <= 0:
            raise too_late()
        self._in_place = True
        self.answer = None
        alarm = self._alarm
        task = alarm.set(deadline + GRACE_S)
        cancelling = task.cancelling()
        try:
            return await operation(self.sender, left)
        except asyncio.CancelledError:
            if alarm.rung:
                alarm.rung = False
                if task.uncancel() <= cancelling:  # otherwise the caller was cancelled too, and that goes first
                    raise OperationTimeoutError(message=f"The broker did not answer within {left:.3g} s.") from None
            raise
        finally:
            if alarm.rung:  # the SDK made something else of it
                alarm.rung = False
                task.uncancel()
            alarm.deadline, alarm.task = math.inf, None
            self._in_place = False

    def throw_away(self) -> None:
        in_background(self.close)

    async def close_within(self, timeout_s: float) -> None:
        """Close it, and wait this long for that."""
        await asyncio.wait({in_background(self.close)}, timeout=timeout_s)

    async def close(self) -> None:
        """Close it in the background: the SDK says goodbye to the peer, and waits that long for one that hangs."""
        sdk.quiet()
        self._alarm.end()
        self._in_place = False
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.sender.close()
        except Exception:  # noqa: S110  # it is being thrown away: there is nobody to tell, and nothing to be done
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        connection = _connection_of(_transport_of(self.sender._handler))
        if connection is not None:
            connection.abort()

    async def _open_first(self, *arguments: Any, **options: Any) -> None:
        await self._open(*arguments, **options)
        if self.is_abandoned:
            raise too_late()
        self.was_open = True
        del self.sender._open

    def _create_handler(self, auth: Any) -> None:
        self._create(auth)
        handler = self.sender._handler
        close = handler.close_async

        async def close_all() -> None:
            # The SDK leaves the socket of a connection that failed half-way to the garbage collector, and it waits up
            # to a second for its keep-alive task.
            transport = _transport_of(handler)
            connection = _connection_of(transport)
            keep_alive, handler._keep_alive_thread = handler._keep_alive_thread, None
            if keep_alive is not None:
                keep_alive.cancel()
            try:
                await close()
            finally:
                if connection is not None:
                    connection.abort()
                session = getattr(transport, "session", None)
                if session is not None:
                    await session.close()

        handler.close_async = close_all

    async def _judge(self, exception: BaseException) -> Any:
        if self._in_place:
            error = sdk.judged(self.sender, exception)
        else:
            error = await self._handle(exception)
        return self._failed(error)

    async def _back_off(self, **wait: Any) -> None:
        try:
            await self._wait(**wait)
        except ServiceBusError as error:
            note_time_over(said(error))
            raise


class Opening(Generic[T]):
    """A call in its own task, because it may open a link. Abandoned at the deadline, it cleans up itself."""

    def __init__(self, sdk_sender: SdkSender, call: Callable[[], Awaitable[T]], ends: float) -> None:
        self.sdk_sender = sdk_sender
        self._call = call
        #: When it is ended, if nobody has done so before.
        self.ends = ends
        self.answer: Any = None
        self.error: BaseException | None = None
        #: Set when its sender must not be used again and is to be closed.
        self.spoilt = False
        #: Nobody waits for its answer any longer.
        self.is_abandoned = False
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task = loop.create_task(self._run())
        ending = loop.call_at(self.ends, self.abandon)
        task.add_done_callback(lambda _done: ending.cancel())

    async def _run(self) -> None:
        try:
            self.answer = await self._call()
        except asyncio.CancelledError:
            self.error, self.spoilt = ValueError(CLOSED), True
        except (KeyboardInterrupt, SystemExit):
            self.spoilt = True
            raise
        except BaseException as error:
            self.error, self.spoilt = error, sdk.spoils(error)
        if self.is_abandoned:
            self.error, self.spoilt = None, True
        elif self.spoilt:
            self._closing = in_background(self.sdk_sender.close)

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, at most this long, and return whether it came."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_s)
        return self.is_over and not self.is_abandoned

    def abort(self) -> None:
        """End the call; its waiter learns that the sender is closed."""
        self.sdk_sender.abort()
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> bool:
        """End a call that nobody waits for any more; return True if its answer had come in the same instant."""
        if self.is_abandoned or self.is_over:
            return not self.is_abandoned
        self.is_abandoned = self.spoilt = self.sdk_sender.is_abandoned = True
        self.abort()
        self._closing = in_background(self._end)
        return False

    async def _end(self) -> None:
        """Wait for the cancelled task, at most CLOSE_S. It is cancelled again: in the SDK an answer that arrives in the
        same turn of the loop can swallow the first cancellation, and it would go on until its own time is over."""
        task = self._task
        for _ in range(CANCELLATIONS):
            if task is None or task.done():
                break
            await asyncio.wait({task}, timeout=CLOSE_S / CANCELLATIONS)
            task.cancel()
        await self.sdk_sender.close()

    async def cleared_up(self, timeout_s: float) -> None:
        """Wait until a sender that it made unusable is closed, at most this long."""
        if self._closing is not None:
            await asyncio.wait({self._closing}, timeout=timeout_s)


def _transport_of(handler: Any) -> Any:
    return getattr(getattr(handler, "_connection", None), "_transport", None)


def _connection_of(transport: Any) -> Any:
    """The loop's own transport under one of the SDK's: its `abort` ends it at once, without telling the peer."""
    writer = getattr(transport, "writer", None)
    if writer is not None:
        return writer.transport
    return getattr(getattr(getattr(transport, "sock", None), "_conn", None), "transport", None)


def in_background(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Run a coroutine that nobody waits for."""
    task = asyncio.get_running_loop().create_task(work())
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task
