"""Wraps the SDK's sender for one entity: calls end in time and run one by one, and a broken sender is replaced.

Whatever the peer does, a call returns or raises within its time plus a tenth of a second. On an open link the call is
made directly; a call that may have to open one runs beside its caller (`Opening`), which abandons it at the deadline.
An opening requested by `open` may go on past the deadline: the next call waits for it rather than begin another.

After a time-out, an interrupted call or a lost connection the SDK's sender is thrown away and closed in the background,
never in the caller's time. A call that finds the link lost opens another one and goes on; the SDK's other retries are
left as the user configured them, but server busy is raised at once.

What tasks and threads do differently is in `sdk_sender.py`; what a failure means for the entity is decided elsewhere
(`pairing/routing/dispatch.py`).
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.aio.sdk_sender import Opening, Operation, SdkSender, SenderAfterFork, in_background, take, take_if_free
from pairbus.pairing import sdk
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.guarded_sender import (
    CLOSE_S,
    CLOSED,
    GRACE_S,
    IDLE_S,
    LONGEST_S,
    EndsAt,
    GuardedSenderBase,
    annotated,
    answered_with,
    last_word,
    time_left,
    to_retry_after,
    too_late,
)
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.ping import ping
from pairbus.pairing.routing.verdicts import is_definite

T = TypeVar("T")


class GuardedSender(SenderAfterFork, GuardedSenderBase[SdkSender, Opening[Any]]):
    """One SDK sender to one entity of one client. Calls from any task or thread go one after the other.

    `_opening` is the call that may open a link: the one that has the lock, or an opening that has outlived its call.
    """

    def __init__(
        self, make: Callable[[], ServiceBusSender], entity: str = "", learns: Callable[[float], None] | None = None
    ) -> None:
        super().__init__(make, entity, learns)
        self._made_in_this_process()

    def send(
        self, message: Any, timeout_s: float, terms: PrimaryTerms | None = None, ends_at: EndsAt | None = None
    ) -> Awaitable[float | None]:
        """Sends within the time; with terms, returns how long that took on an open link, or None if one was opened.
        `ends_at`, or that of the terms, says which failures end the call, whatever retries the SDK has left."""
        # Not a coroutine of its own: each one is passed again whenever the answer is waited for.
        sent: Awaitable[float | None] = self._do(
            lambda sender, left_s: sender.send_messages(message, timeout=left_s), timeout_s, 0.0, terms, ends_at
        )
        return sent

    async def schedule(self, messages: Any, schedule_time_utc: datetime.datetime, timeout_s: float) -> list[int]:
        return await self._do(
            lambda sender, left_s: sender.schedule_messages(messages, schedule_time_utc, timeout=left_s), timeout_s
        )

    async def cancel(self, sequence_numbers: int | list[int], timeout_s: float) -> None:
        await self._do(
            lambda sender, left_s: sender.cancel_scheduled_messages(sequence_numbers, timeout=left_s), timeout_s
        )

    async def open(self, timeout_s: float, goes_on_s: float = 0.0, ends_at: EndsAt | None = None) -> None:
        """Opens the link if it is not open, for callers that want to know before the first send. An opening that isn't
        done in time goes on for a while longer; meanwhile every call waits for it."""
        await self._do(
            lambda sender, left_s: sdk.open_link(sender, left_s, goes_on_s), timeout_s, goes_on_s, ends_at=ends_at
        )

    async def ping(self, opening_s: float, send_timeout_s: float) -> float:
        """Open the link, send a ping, and return how long its answer took: what counts is how fast the entity answers,
        as a send would find it, not how long opening a link takes."""
        await self.open(opening_s)
        return await self.send(ping(uuid.uuid4().hex), budget.share(send_timeout_s, True), PrimaryTerms()) or 0.0

    @property
    def awaits_link(self) -> bool:
        """Whether no link is open, and none has been opened for the next call."""
        opening = self._opening
        return not self.is_open if opening is None else not opening.is_over

    @property
    def is_opening(self) -> bool:
        opening = self._opening
        return opening is not None and not opening.is_over

    def begin_opening(self, within_s: float) -> None:
        """Begin to open the link if nobody does, without waiting for it: the next call finds it open, or waits. There
        are no retries, or that call would wait for the retry of a refused link."""
        loop = asyncio.get_running_loop()
        held: list[bool] = []
        try:
            take_if_free(held, self._lock)
            if not held[0] or self._closed or self._opening is not None or self.is_open:
                return
            sdk_sender = self._sdk_sender = self._sdk_sender or SdkSender(self._make())
            sdk_sender.ends_at, sdk_sender.answer = is_definite, None
            self._opening_began = loop.time()
            self._wanted_since = self._wanted_since or self._opening_began
            deadline = self._opening_began + within_s
            ends = deadline + 2 * GRACE_S
            opening = Opening(sdk_sender, lambda: self._call(sdk_sender, sdk.open_link, deadline, None), ends)
            try:
                opening.start()
                self._opening = opening
            finally:
                if self._opening is not opening:  # no thread, or a signal handler: nobody will look at the answer
                    self._give_up(opening)
        finally:
            if held and held[0]:
                self._lock.release()

    async def await_opening(self) -> None:
        """Wait for the end of the opening that is under way, if there is one."""
        loop = asyncio.get_running_loop()
        opening = self._opening
        if opening is None:
            return
        is_over = await opening.wait(max(0.0, opening.ends - loop.time()) + CLOSE_S)
        if is_over and self._opening is opening and opening.error is None and not opening.spoilt:
            self._took(loop.time())

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Closes the link and waits for that, but not for a peer that doesn't answer."""
        self._closed = True
        held: list[bool] = []
        try:
            await take(held, self._lock, timeout_s)
            sdk_sender, opening = self._sdk_sender, self._opening
            if held[0]:
                self._sdk_sender = self._opening = None
            else:  # a call hangs: it is ended, and throws the sender away itself
                hanging = opening or sdk_sender
                if hanging is not None:
                    hanging.abort()
                return
        finally:
            if held and held[0]:
                self._lock.release()
        if opening is not None and (not opening.abandon() or opening.spoilt):
            await opening.cleared_up(timeout_s)
        elif sdk_sender is not None:
            await sdk_sender.close_within(timeout_s)

    def close_soon(self) -> None:
        """Close the link in the background; nobody waits for that."""
        in_background(self.close)

    async def _do(
        self,
        operation: Operation[T],
        timeout_s: float,
        goes_on_s: float = 0.0,
        terms: PrimaryTerms | None = None,
        ends_at: EndsAt | None = None,
    ) -> T:
        self._check_process()
        timeout_s = timeout_s if 0.0 <= timeout_s <= LONGEST_S else LONGEST_S if timeout_s > 0 else 0.0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        held: list[bool] = []
        try:
            await take(held, self._lock, timeout_s)
            if not held[0]:
                raise self._not_tried(timeout_s)
            if self._closed:
                raise ValueError(CLOSED)
            if self._opening is not None:
                await self._await_opening(self._opening, deadline, terms)
            if terms is not None:
                ends_at = terms.ends_at
            lost: ServiceBusError | None = None
            answer: ServiceBusError | None = None
            sdk_sender = self._sdk_sender
            if sdk_sender is not None and sdk_sender.is_ready():
                sdk_sender.ends_at = ends_at
                try:
                    if terms is None:
                        result = await sdk_sender.in_place(operation, loop.time(), deadline)
                    else:
                        result = await self._on_terms(sdk_sender, operation, deadline, terms)
                    if sdk_sender.fired:  # in the moment in which the answer came: the socket is shut
                        self._discard(sdk_sender)
                    return result
                except sdk.LinkLost as error:
                    lost = error.error
                    answer = answered_with(lost, sdk_sender.answer)
                    self._discard(sdk_sender)
                except BaseException as error:
                    self._failed_in_place(sdk_sender, error, sdk_sender.fired or sdk.spoils(error))
                    raise
            if terms is not None:
                if lost is None and terms.has_left is not None and terms.has_left():
                    raise self._has_left()
                if lost is None and ends_at is not None and sdk_sender is not None and sdk_sender.wants_fresh_link():
                    # The token would be fetched by an opening, in which a link that has gone stale would pass for an
                    # outage: a fresh link brings a fresh token.
                    self._discard(sdk_sender)
                deadline = min(deadline, loop.time() + terms.opening_s)
            result = await self._by_opening(operation, deadline, lost, answer, timeout_s, goes_on_s, terms, ends_at)
            self._answered_at = loop.time()
            return result
        finally:
            if held and held[0]:
                self._lock.release()

    async def _on_terms(
        self, sdk_sender: SdkSender, operation: Operation[T], deadline: float, terms: PrimaryTerms
    ) -> Any:
        """Make a call on the open link and measure it. An idle link that doesn't answer is taken for lost."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        left_s = deadline - began
        is_idle = terms.ends_at is not None and began - self._answered_at > IDLE_S
        silence_s = min(terms.opening_s, left_s) / 2 if is_idle else min(terms.silence_s, left_s)
        try:
            await sdk_sender.in_place(operation, began, began + silence_s)
        except OperationTimeoutError as error:
            if is_idle and sdk_sender.answer is None and not isinstance(error, NotTriedError):
                raise sdk.LinkLost(error) from error
            raise
        self._answered_at = answered_at = loop.time()
        return answered_at - began

    async def _await_opening(self, opening: Opening[Any], deadline: float, terms: PrimaryTerms | None) -> None:
        """Wait for the opening that an earlier call began. If it has failed before, this call opens another link."""
        loop = asyncio.get_running_loop()
        is_news = not opening.is_over
        granted_s = deadline + GRACE_S - loop.time()
        granted_s = max(0.0, granted_s if terms is None else min(granted_s, terms.opening_s))
        if not opening.is_abandoned and not await opening.wait(granted_s):
            if opening.is_abandoned or (loop.time() >= opening.ends and not opening.abandon()):
                self._sdk_sender = self._opening = None
            if self._closed:
                raise ValueError(CLOSED)
            not_open = self._not_open_yet(loop.time(), terms)
            raise annotated(last_word(not_open, opening.sdk_sender.answer), was_open=False)
        if opening.spoilt:
            self._sdk_sender = None
        self._opening = None
        if opening.is_abandoned:  # its time was over before this call came
            return
        error = opening.error
        if error is None:
            if not opening.spoilt:
                self._opened(opening.sdk_sender, loop.time(), is_news)
            return
        self._refused(error)
        if is_news:
            try:
                raise annotated(last_word(error, opening.sdk_sender.answer), was_open=False)
            finally:
                opening.error = None
                del error  # it holds the frames, and those hold it

    async def _by_opening(
        self,
        operation: Operation[T],
        deadline: float,
        lost: ServiceBusError | None,
        answer: ServiceBusError | None,
        timeout_s: float,
        goes_on_s: float,
        terms: PrimaryTerms | None,
        ends_at: EndsAt | None,
    ) -> T:
        """Make a call that may open a link."""
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            raise answer or lost or too_late()
        sdk_sender = self._new_sdk_sender(lost) if self._sdk_sender is None else self._sdk_sender
        sdk_sender.answer, sdk_sender.ends_at = answer, ends_at
        self._opening_began = loop.time()
        if (goes_on_s or terms is not None) and self._wanted_since is None:
            self._wanted_since = self._opening_began
        ends = deadline + goes_on_s + GRACE_S
        opening = Opening(sdk_sender, lambda: self._call(sdk_sender, operation, deadline, lost), ends)
        is_over = goes_on = False
        try:
            opening.start()
            self._opening = opening
            is_over = await opening.wait(max(0.0, deadline + GRACE_S - loop.time()))
            if not is_over and goes_on_s and sdk_sender.answer is None and not self._closed:
                raise self._not_open_yet(loop.time())
            is_over = is_over or opening.abandon()
        except BaseException:  # an opening that was asked for as such goes on, although its caller stopped waiting
            goes_on = goes_on_s > 0 and self._opening is opening
            raise
        finally:
            if not goes_on:
                self._opening = None
                if not is_over or opening.spoilt:
                    self._give_up(opening)
        was_open = lost is not None or sdk_sender.was_open
        if not is_over:
            raise annotated(last_word(self._timed_out(timeout_s), sdk_sender.answer), was_open=was_open)
        error = opening.error
        if error is None:
            self._opened(sdk_sender, loop.time())
            answered: T = opening.answer
            return answered
        self._refused(error)
        try:
            raise annotated(last_word(error, sdk_sender.answer), was_open=was_open)
        finally:
            opening.error = sdk_sender.answer = None
            del error  # it holds the frames, and those hold it

    def _new_sdk_sender(self, lost: ServiceBusError | None) -> SdkSender:
        if self._closed:  # under a call that found its link lost
            raise lost or ValueError(CLOSED)
        sdk_sender = self._sdk_sender = SdkSender(self._make())
        if self._closed:  # by who saw no sender that could be shut
            self._sdk_sender = None
            raise lost or ValueError(CLOSED)
        return sdk_sender

    async def _call(
        self, sdk_sender: SdkSender, operation: Operation[T], deadline: float, lost: ServiceBusError | None
    ) -> T:
        """Make a call that may open a link, after the first of the user's retries if the broker has refused before."""
        loop = asyncio.get_running_loop()
        sdk.quiet()
        sender = sdk_sender.sender
        answered = to_retry_after(sender, lost, sdk_sender.ends_at)
        if answered is None:
            return await operation(sender, time_left(deadline, loop.time()))
        await sdk.back_off(sender, answered, deadline)
        with sdk.one_retry_less(sender):
            return await operation(sender, time_left(deadline, loop.time()))

    def _give_up(self, opening: Opening[Any]) -> None:
        """Release a sender whose opening failed, or whose answer nobody will look at."""
        self._sdk_sender = None
        if opening.abandon() and not opening.spoilt:
            opening.sdk_sender.throw_away()
