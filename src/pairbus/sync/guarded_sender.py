"""Wraps the SDK's sender for one entity: calls end in time and run one by one, and a broken sender is replaced.

Whatever the peer does, a call returns or raises within its time plus a tenth of a second. On an open link it runs on
the caller's thread with the watchdog beside it. Everything that may block where no socket can be shut (DNS, a TCP
connect, a token's issuer) belongs to opening, and that runs on a thread of its own, which the caller leaves behind at
the deadline; it ends by itself a little later and clears up. An opening that was asked for as such (`open`) may go on
past the caller's deadline: the next call waits for it, rather than begin anew (P13).

After a time-out or a lost connection the SDK sender is thrown away and closed in the background, never in the caller's
time. A call that finds the link lost opens another one and goes on (P7); the SDK's other retries are left as the user
configured them, but server busy comes out at once (P24).

What a failure means for the entity is decided elsewhere (`pairing/routing/dispatch.py`).
"""

from __future__ import annotations

import contextvars
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

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
    SdkSenderBase,
    answered_with,
    last_word,
    time_left,
    to_retry_after,
    told,
    too_late,
)
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.verdicts import is_definite
from pairbus.sync import fork
from pairbus.sync.interrupts import Latch, start, take
from pairbus.sync.watchdog import Guard

T = TypeVar("T")


class GuardedSender(GuardedSenderBase["_SdkSender", "_Errand"]):
    """One SDK sender to one entity of one client. Any thread may use it; calls go one after the other.

    `_opening` is an opening that has outlived the call which began it.
    """

    def __init__(
        self, make: Callable[[], ServiceBusSender], entity: str = "", learns: Callable[[float], None] | None = None
    ) -> None:
        super().__init__(make, entity, learns)
        self._lock = threading.Lock()
        fork.register(self)

    def send(
        self, message: Any, timeout_s: float, terms: PrimaryTerms | None = None, ends_at: EndsAt | None = None
    ) -> float | None:
        """Sends within the time; with terms, returns how long that took on an open link, or None if one was opened.
        `ends_at`, or that of the terms, says which failures end the call, whatever retries the SDK has left."""
        took_s: float | None = self._do(
            lambda sender, left_s: sender.send_messages(message, timeout=left_s), timeout_s, 0.0, terms, ends_at
        )
        return took_s

    def schedule(self, messages: Any, schedule_time_utc: datetime.datetime, timeout_s: float) -> list[int]:
        return self._do(
            lambda sender, left_s: sender.schedule_messages(messages, schedule_time_utc, timeout=left_s), timeout_s
        )

    def cancel(self, sequence_numbers: int | list[int], timeout_s: float) -> None:
        self._do(lambda sender, left_s: sender.cancel_scheduled_messages(sequence_numbers, timeout=left_s), timeout_s)

    def open(self, timeout_s: float, goes_on_s: float = 0.0, ends_at: EndsAt | None = None) -> None:
        """Opens the link if it is not open, for whoever wants to know before the first send. What is not open in time
        goes on being opened for so long; meanwhile every call waits for it."""
        self._do(lambda sender, left_s: sdk.open_link(sender, left_s, goes_on_s), timeout_s, goes_on_s, ends_at=ends_at)

    @property
    def awaits_link(self) -> bool:
        """Whether no link is open, and none has been opened for the next call."""
        opening = self._opening
        return not self.is_open if opening is None else not opening.wait(0.0)

    @property
    def is_opening(self) -> bool:
        opening = self._opening
        return opening is not None and not opening.wait(0.0)

    def begin_opening(self, within_s: float) -> None:
        """Begin to open the link if nobody does, without waiting for it: the next call finds it open, or waits. Nothing
        is tried again, or that call would wait for the retry of a link that is refused."""
        held: list[bool] = []
        try:
            take(held, self._lock, 0.0)
            if not held[0] or self._closed or self._opening is not None or self.is_open:
                return
            guarded = self._guarded = self._guarded or _SdkSender(self._make())
            guarded.guard.ends_at, guarded.guard.answer = is_definite, None
            self._opening_began = time.monotonic()
            self._wanted_since = self._wanted_since or self._opening_began
            errand = _Errand(guarded, sdk.open_link, time.monotonic() + within_s, None, 0.0)
            try:
                errand.start()
                self._opening = errand
            finally:
                if self._opening is not errand:  # no thread, or a signal handler: nobody will look at the answer
                    self._guarded = None
                    if errand.abandon() and not errand.spoilt:
                        guarded.throw_away()
        finally:
            if held and held[0]:
                self._lock.release()

    def await_opening(self) -> None:
        """Wait for the end of the opening that is under way, if there is one."""
        opening = self._opening
        if opening is None:
            return
        is_over = opening.wait(max(0.0, opening.ends - time.monotonic()) + CLOSE_S)
        if is_over and self._opening is opening and opening.error is None and not opening.spoilt:
            self._took(time.monotonic())

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Closes the link and waits for that, but not for a peer that doesn't answer."""
        self._closed = True
        lock = self._lock
        held: list[bool] = []
        try:
            take(held, lock, timeout_s)
            guarded, opening = self._guarded, self._opening
            if held[0]:
                self._guarded = self._opening = None
            elif guarded is not None:  # a call hangs: it is ended, and throws the sender away itself
                guarded.guard.abort()
                return
        finally:
            if held and held[0]:
                lock.release()
        if opening is not None and (not opening.abandon() or opening.spoilt):
            opening.wait(timeout_s)  # it clears up itself
        elif guarded is not None:
            guarded.throw_away().join(timeout_s)

    def close_soon(self) -> None:
        """Close the link in the background; nobody waits for that."""
        start(threading.Thread(target=self.close, name="pairbus-close", daemon=True))

    def forked(self) -> None:
        """In a forked child: nothing of the parent's is used, nor written to; the next call opens anew."""
        self._lock = threading.Lock()
        guarded, self._guarded = self._guarded, None
        self._opening = self._wanted_since = None
        if guarded is not None:
            guarded.guard.forget()

    def _do(
        self,
        operation: _Operation[T],
        timeout_s: float,
        goes_on_s: float = 0.0,
        terms: PrimaryTerms | None = None,
        ends_at: EndsAt | None = None,
    ) -> T:
        timeout_s = timeout_s if 0.0 <= timeout_s <= LONGEST_S else LONGEST_S if timeout_s > 0 else 0.0
        deadline = time.monotonic() + timeout_s
        lock = self._lock
        held: list[bool] = []
        try:
            held.extend(map(lock.acquire, (True,), (timeout_s,)))  # as `interrupts.take`, without its call
            if not held[0]:
                raise self._not_tried(timeout_s)
            if self._closed:
                raise ValueError(CLOSED)
            if self._opening is not None:
                self._await_opening(self._opening, deadline, terms)
            if terms is not None:
                ends_at = terms.ends_at
            lost: ServiceBusError | None = None
            answer: ServiceBusError | None = None
            guarded = self._guarded
            if guarded is not None and guarded.is_ready():
                guarded.guard.ends_at = ends_at
                try:
                    if terms is None:
                        result = guarded.in_place(operation, time.monotonic(), deadline)
                    else:
                        result = self._on_terms(guarded, operation, deadline, terms)
                    if guarded.guard.fired:  # in the very moment in which the answer came: the socket is shut
                        self._discard(guarded)
                    return result
                except sdk.LinkLost as error:
                    lost = error.error
                    answer = answered_with(lost, guarded.answer)
                    self._discard(guarded)
                except BaseException as error:
                    self._failed_in_place(guarded, error, guarded.guard.fired or sdk.spoils(error))
                    raise
            if terms is not None:
                if lost is None and terms.has_left is not None and terms.has_left():
                    raise self._has_left()
                if lost is None and terms.ends_at is not None and guarded is not None and guarded.is_native_and_open():
                    # Its token is due, so the call goes by an errand, in which a link that has gone stale would pass
                    # for an outage (P19): a fresh link brings a fresh token.
                    self._discard(guarded)
                deadline = min(deadline, time.monotonic() + terms.opening_s)
            result = self._by_errand(operation, deadline, lost, answer, timeout_s, goes_on_s, terms, ends_at)
            self._answered_at = time.monotonic()
            return result
        finally:
            if held and held[0]:
                lock.release()

    def _on_terms(self, guarded: _SdkSender, operation: _Operation[T], deadline: float, terms: PrimaryTerms) -> Any:
        """Make a call on the open link and measure it. An idle link that says nothing is taken for lost."""
        began = time.monotonic()
        left_s = deadline - began
        is_idle = terms.ends_at is not None and began - self._answered_at > IDLE_S
        silence_s = min(terms.opening_s, left_s) / 2 if is_idle else min(terms.silence_s, left_s)
        try:
            guarded.in_place(operation, began, began + silence_s)
        except OperationTimeoutError as error:
            if is_idle and guarded.answer is None and not isinstance(error, NotTriedError):
                raise sdk.LinkLost(error) from error
            raise
        self._answered_at = answered_at = time.monotonic()
        return answered_at - began

    def _await_opening(self, opening: _Errand, deadline: float, terms: PrimaryTerms | None) -> None:
        """Wait for the opening that an earlier call began. If it has failed before, this call opens another link."""
        is_news = not opening.wait(0.0)
        granted_s = deadline + GRACE_S - time.monotonic()
        granted_s = max(0.0, granted_s if terms is None else min(granted_s, terms.opening_s))
        if not opening.wait(granted_s):
            if time.monotonic() >= opening.ends and not opening.abandon():  # in a connect, say: no socket to be shut
                self._guarded = self._opening = None
            not_open = self._not_open_yet(time.monotonic(), terms)
            raise told(last_word(not_open, opening.guarded.answer), was_open=False)
        if opening.spoilt:
            self._guarded = None
        self._opening = None
        error, opening.error = opening.error, None
        if error is not None:
            self._refused(error)
        if error is None and not opening.spoilt:
            self._opened(opening.guarded, time.monotonic(), is_news)
        elif error is not None and is_news:
            try:
                raise told(last_word(error, opening.guarded.answer), was_open=False)
            finally:
                del error, opening  # they hold the frames, and those hold them

    def _by_errand(
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
        if deadline <= time.monotonic():
            raise answer or lost or too_late()
        guarded = self._guarded
        if guarded is None:
            if self._closed:  # under a call that found its link lost
                raise lost or ValueError(CLOSED)
            guarded = self._guarded = _SdkSender(self._make())
            if self._closed:  # by who saw no sender that could be shut
                self._guarded = None
                raise lost or ValueError(CLOSED)
        guard = guarded.guard
        guard.answer = answer
        guard.ends_at = ends_at
        errand = _Errand(guarded, operation, deadline, lost, goes_on_s)
        self._opening_began = time.monotonic()
        if (goes_on_s or terms is not None) and self._wanted_since is None:
            self._wanted_since = self._opening_began
        done = is_good = False
        try:
            errand.start()
            done = errand.wait(max(0.0, deadline + GRACE_S - time.monotonic()))
            if not done and goes_on_s and guard.answer is None:
                self._opening = errand
                is_good = True
                raise self._not_open_yet(time.monotonic())
            done = done or errand.abandon()
            is_good = done and not errand.spoilt
        finally:
            if not is_good:  # it came to nothing, or the wait was interrupted and nobody will look at the answer
                self._guarded = None
                if not done and errand.abandon() and not errand.spoilt:
                    guarded.throw_away()
        was_open = lost is not None or guard.was_open
        if not done:
            raise told(last_word(self._timed_out(timeout_s), guard.answer), was_open=was_open)
        if errand.error is not None:
            self._refused(errand.error)
            try:
                raise told(last_word(errand.error, guard.answer), was_open=was_open)
            finally:
                errand.error = guard.answer = None  # they hold the frames, and those hold the errand
        self._opened(guarded, time.monotonic())
        return errand.answer  # type: ignore[no-any-return]


#: Takes the SDK's sender and the seconds that are left.
_Operation = Callable[[Any, float], T]


class _SdkSender(SdkSenderBase):
    """An SDK sender and its guard. Used by one thread at a time; once thrown away never used again."""

    __slots__ = ("guard", "native")

    def __init__(self, sender: ServiceBusSender) -> None:
        self.sender = sender
        self.native = sdk.is_native(sender)
        self.guard = Guard(sender, self.native)

    @property
    def answer(self) -> ServiceBusError | None:
        return self.guard.answer

    def is_native_and_open(self) -> bool:
        return self.native and sdk.is_open(self.sender)

    def is_ready(self) -> bool:
        return self.native and self.sender._running and not self.guard.wants_token()

    def in_place(self, operation: _Operation[T], now: float, deadline: float) -> T:
        timeout_s = deadline - now
        if timeout_s <= 0:
            raise too_late()
        guard = self.guard
        guard.in_place = True
        guard.answer = None
        guard.arm(deadline + GRACE_S)
        try:
            return operation(self.sender, timeout_s)
        except Exception as error:
            if guard.disarm() and not isinstance(error, OperationTimeoutError):
                raise OperationTimeoutError(message="The broker did not answer in time.") from error
            raise
        finally:
            guard.disarm()
            guard.in_place = False

    def throw_away(self) -> threading.Thread:
        thread = threading.Thread(target=self.close, name="pairbus-close", daemon=True)
        start(thread)
        return thread

    def close(self) -> None:
        """Closes for good, in its own time: the SDK says goodbye to the peer, and a hung one costs that time."""
        self.guard.in_place = False
        self.guard.arm(time.monotonic() + CLOSE_S)
        try:
            self.sender.close()
        except Exception:  # noqa: S110  # it is being thrown away: there is nobody to tell, and nothing to be done
            pass
        finally:
            self.guard.disarm()
            self.guard.close_sockets()


class _Errand:
    """A call on a thread of its own, because it may open a link. Left behind at the deadline, it clears up itself."""

    def __init__(
        self,
        guarded: _SdkSender,
        operation: _Operation[Any],
        deadline: float,
        lost: ServiceBusError | None,
        goes_on_s: float,
    ) -> None:
        self._done = Latch()
        self.answer: Any = None
        self.error: BaseException | None = None
        self.spoilt = False
        self._abandoned = False
        self._lock = threading.RLock()  # a signal handler that closes the sender may interrupt who holds it
        self.guarded = guarded
        self._operation = operation
        self._deadline = deadline
        #: When it is ended, if the caller has not done so.
        self.ends = deadline + goes_on_s + GRACE_S
        self._lost = lost

    def start(self) -> None:
        # The caller's context, so that traces and log records of the SDK belong to the caller's span.
        run = contextvars.copy_context().run
        start(threading.Thread(target=run, args=(self._run,), name="pairbus-open", daemon=True))

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def abandon(self) -> bool:
        """End a call that nobody waits for any more; return True if its answer had come in the same instant."""
        with self._lock:
            if self._done.is_set():
                return True
            self._abandoned = True
        self.guarded.guard.abort()
        return False

    def _run(self) -> None:
        sdk.quiet()
        guard = self.guarded.guard
        guard.arm(self.ends)
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error
            self.spoilt = guard.fired or sdk.spoils(error)
        guard.disarm()
        with self._lock:
            self.spoilt = self.spoilt or self._abandoned or guard.fired
            self._done.set()
        if self._abandoned:
            self.error = None
        if self.spoilt:
            self.guarded.close()

    def _call(self) -> Any:
        if self._abandoned or self.guarded.guard.fired:  # before it began, so that no socket was there to be shut
            raise too_late()
        sender = self.guarded.sender
        answered = to_retry_after(sender, self._lost, self.guarded.guard.ends_at)
        if answered is None:
            return self._operation(sender, time_left(self._deadline, time.monotonic()))
        sdk.back_off(sender, answered, self._deadline)
        with sdk.one_retry_less(sender):
            return self._operation(sender, time_left(self._deadline, time.monotonic()))
