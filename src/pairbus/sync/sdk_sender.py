"""An SDK sender under our rules, for threads; `aio/sdk_sender.py` has the same names for an event loop.

On an open link a call runs on the caller's thread with the watchdog beside it. Everything that may block where no
socket can be shut (DNS, a TCP connect, a token's issuer) belongs to opening, and that runs on another thread, which the
caller leaves behind at the deadline; it ends by itself a little later and clears up. What a failure leads to is decided
in `guarded_sender.py`.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing import sdk
from pairbus.pairing.guarded_sender import CLOSE_S, GRACE_S, SdkSenderBase, too_late
from pairbus.sync import fork
from pairbus.sync.interrupts import Latch, start, take
from pairbus.sync.watchdog import Guard

__all__ = ["Opening", "Operation", "SdkSender", "SenderAfterFork", "in_background", "take", "take_if_free"]

T = TypeVar("T")

#: Takes the SDK's sender and the seconds that are left.
Operation = Callable[[Any, float], T]
take_if_free = take


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Run what nobody waits for."""
    thread = threading.Thread(target=work, name="pairbus-close", daemon=True)
    start(thread)
    return thread


class SenderAfterFork:
    """Makes a sender use nothing of its parent's in a forked child, nor write to it; the next call opens anew."""

    _guarded: SdkSender | None
    _opening: Opening[Any] | None
    _wanted_since: float | None

    def _made_in_this_process(self) -> None:
        self._lock = threading.Lock()
        fork.register(self)

    def _check_process(self) -> None:
        pass

    def forked(self) -> None:
        self._lock = threading.Lock()
        guarded, self._guarded = self._guarded, None
        self._opening = self._wanted_since = None
        if guarded is not None:
            guarded.forget()


class SdkSender(Guard, SdkSenderBase):
    """An SDK sender and its guard. Used by one thread at a time; once thrown away never used again."""

    __slots__ = ("_native",)

    def __init__(self, sender: ServiceBusSender) -> None:
        self._native = sdk.is_native(sender)
        super().__init__(sender, self._native)

    def is_ready(self) -> bool:
        """Whether a call can be made on the open link."""
        return self._native and self.sender._running and not self.wants_token()

    def wants_fresh_link(self) -> bool:
        """Whether a link that is open can't be used before another token is there."""
        return self._native and sdk.is_open(self.sender) and self.wants_token()

    def in_place(self, operation: Operation[T], now: float, deadline: float) -> T:
        """Make a call on the open link, on the caller's thread."""
        timeout_s = deadline - now
        if timeout_s <= 0:
            raise too_late()
        self.is_in_place = True
        self.answer = None
        self.arm(deadline + GRACE_S)
        try:
            return operation(self.sender, timeout_s)
        except Exception as error:
            if self.disarm() and not isinstance(error, OperationTimeoutError):
                raise OperationTimeoutError(message="The broker did not answer in time.") from error
            raise
        finally:
            self.disarm()
            self.is_in_place = False

    def throw_away(self) -> None:
        """Close it in the background; nobody waits for that."""
        in_background(self.close)

    def close_within(self, timeout_s: float) -> None:
        """Close it, and wait so long for that."""
        in_background(self.close).join(timeout_s)

    def close(self) -> None:
        """Close it in its own time: the SDK says goodbye to the peer, and a hung one costs that time."""
        self.is_in_place = False
        self.arm(time.monotonic() + CLOSE_S)
        try:
            self.sender.close()
        except Exception:  # noqa: S110  # it is being thrown away: there is nobody to tell, and nothing to be done
            pass
        finally:
            self.disarm()
            self.close_sockets()


class Opening(Generic[T]):
    """A call on a thread of its own, because it may open a link. Left behind at the deadline, it clears up itself."""

    def __init__(self, guarded: SdkSender, call: Callable[[], T], ends: float) -> None:
        self.guarded = guarded
        self._call = call
        #: When it is ended, if nobody has done so before.
        self.ends = ends
        self.answer: Any = None
        self.error: BaseException | None = None
        #: Its sender must not be used again, and is closed.
        self.spoilt = False
        #: Nobody waits for its answer any more.
        self.is_abandoned = False
        self._done = Latch()
        self._lock = threading.RLock()  # a signal handler that closes the sender may interrupt who holds it

    def start(self) -> None:
        # The caller's context, so that traces and log records of the SDK belong to the caller's span.
        run = contextvars.copy_context().run
        start(threading.Thread(target=run, args=(self._run,), name="pairbus-open", daemon=True))

    def _run(self) -> None:
        guarded = self.guarded
        guarded.arm(self.ends)
        try:
            if self.is_abandoned or guarded.fired:  # before it began, so that no socket was there to be shut
                raise too_late()
            self.answer = self._call()
        except BaseException as error:
            self.error = error
            self.spoilt = guarded.fired or sdk.spoils(error)
        guarded.disarm()
        with self._lock:
            self.spoilt = self.spoilt or self.is_abandoned or guarded.fired
            self._done.set()
        if self.is_abandoned:
            self.error = None
        if self.spoilt:
            guarded.close()

    @property
    def is_over(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, at most so long, and return whether it has come."""
        return self._done.wait(timeout_s) and not self.is_abandoned

    def abort(self) -> None:
        """End the call; who waits for it learns that it was not answered in time."""
        self.guarded.abort()

    def abandon(self) -> bool:
        """End a call that nobody waits for any more; return True if its answer had come in the same instant."""
        with self._lock:
            if self.is_abandoned or self.is_over:
                return not self.is_abandoned
            self.is_abandoned = True
        self.guarded.abort()
        return False

    def cleared_up(self, timeout_s: float) -> None:
        """Wait until a sender that it has spoilt is being closed, at most so long."""
        self._done.wait(timeout_s)
