"""Wraps the SDK's async sender for one entity: calls end in time and run one by one, and a broken sender is replaced.

Whatever the peer does, a call returns or raises within its time plus a tenth of a second. On an open link it runs in
the caller's task under a time-out. Opening runs in a task of its own, since a cancelled opening first clears up, on a
connection that may be hung; the caller leaves it behind at the deadline. An opening that was asked for as such (`open`)
may go on past it: the next call waits for it, rather than begin anew (P13).

After a time-out, a cancelled call or a lost connection the SDK sender is thrown away and closed in the background,
never in the caller's time. A call that finds the link lost opens another one and goes on (P7); the SDK's other retries
are left as the user configured them, but server busy comes out at once (P24).

What a failure means for the entity is decided elsewhere (`pairing/routing/dispatch.py`).

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
import datetime
import math
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus.pairing import sdk
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.guarded_sender import (
    AFTER_STALL_S,
    CLOSE_S,
    CLOSED,
    GRACE_S,
    IDLE_S,
    LONGEST_S,
    STALLED_S,
    EndsAt,
    GuardedSenderBase,
    SdkSenderBase,
    answered_with,
    ends_call,
    last_word,
    time_left,
    to_retry_after,
    told,
    too_late,
)
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.verdicts import is_definite

T = TypeVar("T")

# Tasks that clear up; asyncio itself keeps only weak references to its tasks.
_background: set[asyncio.Task[None]] = set()

CANCELLATIONS = 4


class GuardedSender(GuardedSenderBase["_SdkSender", asyncio.Task[Any]]):
    """One SDK sender to one entity of one client. Any task of the loop may use it; calls go one after the other.

    `_opening` is what may open a link: the call that has the lock, or an opening that has outlived its call.
    """

    def __init__(
        self, make: Callable[[], ServiceBusSender], entity: str = "", learns: Callable[[float], None] | None = None
    ) -> None:
        super().__init__(make, entity, learns)
        self._lock = _Lock()
        self._process = os.getpid()

    def send(
        self, message: Any, timeout_s: float, terms: PrimaryTerms | None = None, ends_at: EndsAt | None = None
    ) -> Awaitable[float | None]:
        """Sends within the time; with terms, returns how long that took on an open link, or None if one was opened.
        `ends_at`, or that of the terms, says which failures end the call, whatever retries the SDK has left."""
        # Not a coroutine of its own: each one is passed again whenever the answer is waited for.
        return self._do(
            lambda sender, left_s: sender.send_messages(message, timeout=left_s), timeout_s, 0.0, terms, ends_at
        )

    async def schedule(self, messages: Any, schedule_time_utc: datetime.datetime, timeout_s: float) -> list[int]:
        return await self._do(
            lambda sender, left_s: sender.schedule_messages(messages, schedule_time_utc, timeout=left_s), timeout_s
        )

    async def cancel(self, sequence_numbers: int | list[int], timeout_s: float) -> None:
        await self._do(
            lambda sender, left_s: sender.cancel_scheduled_messages(sequence_numbers, timeout=left_s), timeout_s
        )

    async def open(self, timeout_s: float, goes_on_s: float = 0.0, ends_at: EndsAt | None = None) -> None:
        """Opens the link if it is not open, for whoever wants to know before the first send. What is not open in time
        goes on being opened for so long; meanwhile every call waits for it."""
        await self._do(
            lambda sender, left_s: sdk.open_link(sender, left_s, goes_on_s), timeout_s, goes_on_s, ends_at=ends_at
        )

    @property
    def awaits_link(self) -> bool:
        """Whether no link is open, and none has been opened for the next call."""
        return not self.is_open if self._opening is None else not self._opening.done()

    @property
    def is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    def begin_opening(self, within_s: float) -> None:
        """Begin to open the link if nobody does, without waiting for it: the next call finds it open, or waits. Nothing
        is tried again, or that call would wait for the retry of a link that is refused."""
        if self._closed or self._opening is not None or self._lock.locked() or self.is_open:
            return
        guarded = self._guarded = self._guarded or _SdkSender(self._make())
        guarded.ends_at, guarded.answer = is_definite, None
        deadline = asyncio.get_running_loop().time() + within_s
        self._begin(guarded, lambda sender, left_s: sdk.open_link(sender, left_s), deadline, None, GRACE_S)

    async def await_opening(self) -> None:
        """Wait for the end of the opening that is under way, if there is one."""
        opening = self._opening
        if opening is None:
            return
        await asyncio.wait({opening})
        if self._opening is opening and not opening.cancelled() and opening.exception() is None:
            self._took(asyncio.get_running_loop().time())

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Closes the link and waits for that, but not for a peer that doesn't answer."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                guarded, self._guarded = self._guarded, None
                opening, self._opening = self._opening, None
        except TimeoutError:  # a call hangs: it is ended, and throws the sender away itself
            if self._opening is not None:
                self._opening.cancel()
            elif self._guarded is not None:
                self._guarded.abort()
            return
        if guarded is not None:
            closing = guarded.throw_away() if opening is None or opening.done() else guarded.abandon(opening)
            await asyncio.wait({closing}, timeout=timeout_s)

    def close_soon(self) -> None:
        """Close the link in the background; nobody waits for that."""
        _in_background(self.close())

    async def _do(
        self,
        operation: _Operation[T],
        timeout_s: float,
        goes_on_s: float = 0.0,
        terms: PrimaryTerms | None = None,
        ends_at: EndsAt | None = None,
    ) -> T:
        if os.getpid() != self._process:
            raise sdk.forked(self._entity)
        if timeout_s > LONGEST_S:
            timeout_s = LONGEST_S
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = now + timeout_s
        lock = self._lock
        if not lock.take_now():
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                raise self._not_tried(timeout_s) from None
            now = loop.time()
        try:
            if self._closed:
                raise ValueError(CLOSED)
            if self._opening is not None and self._guarded is not None:
                await self._await_opening(self._opening, self._guarded, deadline, terms)
                now = loop.time()
            if terms is not None:
                ends_at = terms.ends_at
            lost: ServiceBusError | None = None
            answer: ServiceBusError | None = None
            guarded = self._guarded
            if guarded is not None and guarded.sender._running:
                guarded.ends_at = ends_at
                try:
                    if terms is None:
                        return await guarded.in_place(operation, loop, now, deadline)
                    took: T = await self._on_terms(guarded, operation, loop, now, deadline, terms)
                    return took
                except sdk.LinkLost as error:
                    lost = error.error
                    answer = answered_with(lost, guarded.answer)
                    self._discard(guarded)
                except BaseException as error:
                    self._failed_in_place(guarded, error, sdk.spoils(error))
                    raise
            if terms is not None:
                if lost is None and terms.has_left is not None and terms.has_left():
                    raise self._has_left()
                deadline = min(deadline, loop.time() + terms.opening_s)
            result = await self._by_errand(operation, deadline, lost, answer, timeout_s, goes_on_s, terms, ends_at)
            self._answered_at = loop.time()
            return result
        finally:
            lock.release()

    async def _on_terms(
        self,
        guarded: _SdkSender,
        operation: _Operation[T],
        loop: asyncio.AbstractEventLoop,
        began: float,
        deadline: float,
        terms: PrimaryTerms,
    ) -> Any:
        """Make a call on the open link and measure it. An idle link that says nothing is taken for lost."""
        left_s = deadline - began
        is_idle = terms.ends_at is not None and began - self._answered_at > IDLE_S
        silence_s = min(terms.opening_s, left_s) / 2 if is_idle else min(terms.silence_s, left_s)
        try:
            await guarded.in_place(operation, loop, began, began + silence_s)
        except OperationTimeoutError as error:
            if is_idle and guarded.answer is None and not isinstance(error, NotTriedError):
                raise sdk.LinkLost(error) from error
            raise
        self._answered_at = answered_at = loop.time()
        return answered_at - began

    async def _await_opening(
        self, opening: asyncio.Task[Any], guarded: _SdkSender, deadline: float, terms: PrimaryTerms | None
    ) -> None:
        """Wait for the opening that an earlier call began. If it has failed before, this call opens another link."""
        is_news = not opening.done()
        granted_s = deadline + GRACE_S - asyncio.get_running_loop().time()
        granted_s = max(0.0, granted_s if terms is None else min(granted_s, terms.opening_s))
        await asyncio.wait({opening}, timeout=granted_s)
        if not opening.done() or opening.cancelled():
            if self._closed or opening.cancelled():
                self._end_opening(opening, guarded)
            if self._closed:
                raise ValueError(CLOSED)
            not_open = self._not_open_yet(asyncio.get_running_loop().time(), terms)
            raise told(last_word(not_open, guarded.answer), was_open=False)
        self._opening = None
        error = opening.exception()
        if error is None:
            self._opened(guarded, asyncio.get_running_loop().time(), is_news)
            return
        self._refused(error)
        if sdk.spoils(error):
            self._discard(guarded)
        if is_news:
            raise told(last_word(error, guarded.answer), was_open=False)

    def _end_opening(self, opening: asyncio.Task[Any], guarded: _SdkSender) -> None:
        """End an opening whose time is over, or that was cancelled."""
        if self._opening is opening:
            self._opening = self._guarded = None
            guarded.abandon(opening)

    def _begin(
        self,
        guarded: _SdkSender,
        operation: _Operation[T],
        deadline: float,
        lost: ServiceBusError | None,
        goes_on_s: float,
    ) -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        task = loop.create_task(guarded.call(operation, deadline, lost))
        self._opening = task
        self._opening_began = loop.time()
        if goes_on_s:
            self._wanted_since = self._wanted_since or self._opening_began
            ending = loop.call_at(deadline + goes_on_s + GRACE_S, self._end_opening, task, guarded)
            task.add_done_callback(lambda _done: ending.cancel())
            task.add_done_callback(_seen)
        return task

    def _made(self, lost: ServiceBusError | None) -> _SdkSender:
        guarded = self._guarded
        if guarded is None:
            if self._closed:  # under a call that found its link lost
                raise lost or ValueError(CLOSED)
            guarded = self._guarded = _SdkSender(self._make())
        return guarded

    async def _by_errand(
        self,
        operation: _Operation[T],
        deadline: float,
        lost: ServiceBusError | None,
        answer: ServiceBusError | None,
        timeout_s: float,
        goes_on_s: float,
        terms: PrimaryTerms | None,
        ends_at: EndsAt | None,
    ) -> T:
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            raise answer or lost or too_late()
        guarded = self._made(lost)
        guarded.answer, guarded.ends_at = answer, ends_at
        if terms is not None:
            self._wanted_since = self._wanted_since or loop.time()
        task = self._begin(guarded, operation, deadline, lost, goes_on_s)
        goes_on = False
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline + GRACE_S - loop.time()))
            goes_on = goes_on_s > 0 and not task.done() and guarded.answer is None and not self._closed
        except BaseException:  # cancelled: nobody will look at the answer
            goes_on = goes_on_s > 0
            if not goes_on:
                self._guarded = None
                guarded.abandon(task)
            raise
        finally:
            if not goes_on:
                self._opening = None
        if goes_on:
            raise self._not_open_yet(loop.time())
        if task.cancelled():  # by close(): the caller's own cancelling comes out above
            self._discard(guarded)
            raise ValueError(CLOSED)
        if not task.done():
            self._guarded = None
            guarded.abandon(task)
            timed_out = last_word(self._timed_out(timeout_s), guarded.answer)
            raise told(timed_out, was_open=lost is not None or guarded.was_open)
        try:
            result = task.result()
        except BaseException as error:
            self._refused(error)
            if sdk.spoils(error):
                self._discard(guarded)
            word = told(last_word(error, guarded.answer), was_open=lost is not None or guarded.was_open)
            if word is not error:
                raise word from error
            raise
        finally:
            guarded.answer = None  # it holds the frames, and those hold it
        self._opened(guarded, loop.time())
        return result


#: Takes the SDK's sender and the seconds that are left.
_Operation = Callable[[Any, float], Awaitable[T]]


class _Lock(asyncio.Lock):
    """A lock that is taken, where nobody has it or waits for it, by one plain call.

    Private parts of asyncio's that it uses: `_locked`, and `_waiters`, in which each stays until it has the lock. After
    a release the lock is not `locked()` for a moment, and yet it is the first waiter's.
    """

    _locked: bool
    _waiters: Any

    def take_now(self) -> bool:
        """Take the lock if it is free; return whether it was."""
        if self._locked or self._waiters:
            return False
        self._locked = True
        return True


class _Alarm:
    """Cancels the task that has not ended by its deadline. One timer serves many calls.

    A timer that is set and cancelled for every send costs more than everything else here. This one is left to run: by
    the time it rings its call is usually long over, and it is set for the one that is under way then, if any.
    """

    __slots__ = ("_put_off", "_rings_at", "_timer", "deadline", "rung", "task")

    def __init__(self) -> None:
        self.rung = False
        self._put_off = False
        #: Of the call under way, and its task; who ends the call takes both out.
        self.deadline = math.inf
        self.task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When the timer is due; infinite where there is none.
        self._rings_at = math.inf

    def set(self, loop: asyncio.AbstractEventLoop, deadline: float) -> asyncio.Task[Any]:
        """Set the alarm for the current task, and return that task."""
        task = asyncio.current_task(loop)
        assert task is not None
        self.task = task
        self.deadline = deadline
        self._put_off = False
        if self._rings_at > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(deadline, self._ring)
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


class _SdkSender(SdkSenderBase):
    """An SDK sender, judged by our rules. Used by one task at a time; once thrown away never used again."""

    __slots__ = (
        "_alarm",
        "_create",
        "_handle",
        "_in_place",
        "_is_abandoned",
        "_open",
        "answer",
        "ends_at",
        "was_open",
    )

    def __init__(self, sender: ServiceBusSender) -> None:
        self.sender = sender
        self._in_place = False
        #: What ends the call under way before its time, if anything: see `PrimaryTerms`.
        self.ends_at: EndsAt | None = None
        #: What a broker answered to an earlier attempt of the call under way, if it did.
        self.answer: ServiceBusError | None = None
        untyped: Any = sender
        self._handle: Callable[[BaseException], Awaitable[Any]] = untyped._handle_exception
        untyped._handle_exception = self._judge
        #: A link was open, so something may have been sent. While it is False, an abandoned call will send nothing.
        self.was_open = False
        self._is_abandoned = False
        self._open: Callable[..., Awaitable[None]] = untyped._open
        untyped._open = self._open_first
        self._alarm = _Alarm()
        config = untyped._config
        if config.use_tls and config.ssl_context is None:
            with contextlib.suppress(OSError):  # the SDK says what is wrong with the file when it connects
                config.ssl_context = sdk.tls_context(config.connection_verify)
        self._create: Callable[[Any], None] = untyped._create_handler
        untyped._create_handler = self._create_handler

    async def in_place(
        self, operation: _Operation[T], loop: asyncio.AbstractEventLoop, now: float, deadline: float
    ) -> T:
        left = deadline - now
        if left <= 0:
            raise too_late()
        self._in_place = True
        self.answer = None
        alarm = self._alarm
        task = alarm.set(loop, deadline + GRACE_S)
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

    async def call(self, operation: _Operation[T], deadline: float, lost: ServiceBusError | None) -> T:
        """Make a call that may open a link."""
        sdk.quiet()
        sender, loop = self.sender, asyncio.get_running_loop()
        answered = to_retry_after(sender, lost, self.ends_at)
        if answered is None:
            return await operation(sender, time_left(deadline, loop.time()))
        await sdk.back_off(sender, answered, deadline)
        with sdk.one_retry_less(sender):
            return await operation(sender, time_left(deadline, loop.time()))

    def abandon(self, task: asyncio.Task[Any]) -> asyncio.Task[None]:
        """Ends a call that nobody waits for any more, and clears up after it."""
        self._is_abandoned = True
        self.abort()
        task.cancel()
        return _in_background(self._clear_up(task))

    def throw_away(self) -> asyncio.Task[None]:
        return _in_background(self._clear_up(None))

    async def _clear_up(self, task: asyncio.Task[Any] | None) -> None:
        sdk.quiet()
        self._alarm.end()
        if task is not None:
            await _end(task)
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
        """Open the first link; those after it, and sends on an open one, call the SDK's own method."""
        await self._open(*arguments, **options)
        if self._is_abandoned:
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
        if isinstance(error, ServiceBusServerBusyError) or ends_call(self.sender, self.ends_at, error):
            raise error
        self.answer = answered_with(error, self.answer)
        return error


def _transport_of(handler: Any) -> Any:
    return getattr(getattr(handler, "_connection", None), "_transport", None)


def _connection_of(transport: Any) -> Any:
    """The loop's own transport under one of the SDK's: its `abort` ends it at once, without a word to the peer."""
    writer = getattr(transport, "writer", None)
    if writer is not None:
        return writer.transport
    return getattr(getattr(getattr(transport, "sock", None), "_conn", None), "transport", None)


def _seen(done: asyncio.Task[Any]) -> None:
    """Look at the error of a task that nobody waits for, so that asyncio does not report it."""
    if not done.cancelled():
        done.exception()


async def _end(task: asyncio.Task[Any]) -> None:
    """Wait for a cancelled task, at most CLOSE_S. It is cancelled again: in the SDK an answer that arrives in the same
    turn of the loop can swallow the first cancellation, and the task would go on until its own time is over."""
    for _ in range(CANCELLATIONS):
        await asyncio.wait({task}, timeout=CLOSE_S / CANCELLATIONS)
        if task.done():
            _seen(task)
            return
        task.cancel()


def _in_background(work: Any) -> asyncio.Task[None]:
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task
