"""Non-blocking base of the sync and async guarded senders: the state of their link, and the texts of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.pairing import sdk
from pairbus.pairing.errors import NotTriedError, note_nothing_sent
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.verdicts import is_answer, is_definite, is_silence

# The SDK is given the caller's time; it is late by up to its socket time-out (0.2 s). This is how long it may be late.
GRACE_S = 0.03
CLOSE_S = 2.0
#: A link that was not used for so long may have gone stale silently: a network forgets an idle connection.
IDLE_S = 30.0
#: A deadline that is noticed this late was noticed late by a pause of this process; the answer may be there already.
STALLED_S = 0.05
#: How long a call goes on after such a pause, once.
AFTER_STALL_S = 0.1
LONGEST_S = 1e6  # locks and timers can't wait for infinity
CLOSED = "The sender has been closed. Use ServiceBusClient to create a new one."


EndsAt = Callable[[BaseException], bool]


class SdkSenderBase:
    """An SDK sender whose failed attempts are judged by our rules, used by one call at a time; once thrown away never
    used again."""

    __slots__ = ("_handle", "_open", "_wait", "answer", "ends_at", "sender", "was_open")

    def __init__(self, sender: Any) -> None:
        self.sender = sender
        #: What ends the call under way before its time, if anything: see `PrimaryTerms`.
        self.ends_at: EndsAt | None = None
        #: The broker's answer to an earlier attempt of the present call, if there was one.
        self.answer: ServiceBusError | None = None
        #: A link was open, so something may have been sent. While it is False, a call that was ended sends nothing.
        self.was_open = False
        self._handle, sender._handle_exception = sender._handle_exception, self._judge
        self._wait, sender._backoff = sender._backoff, self._back_off
        self._open, sender._open = sender._open, self._open_first

    def _failed(self, error: ServiceBusError) -> ServiceBusError:
        """Return the failure of an attempt, after which the SDK may try again; raise it where it ends the call."""
        if isinstance(error, ServiceBusServerBusyError) or ends_call(self.sender, self.ends_at, error):
            raise error
        self.answer = answered_with(error, self.answer)
        return error

    # Implemented by the sync and async subclasses

    def _judge(self, exception: BaseException) -> Any:
        """Called by the SDK with each failed attempt."""
        raise NotImplementedError

    def _back_off(self, **wait: Any) -> Any:
        """Wait before a retry; the SDK raises the failure where that would take longer than the call has."""
        raise NotImplementedError

    def _open_first(self, *arguments: Any, **options: Any) -> Any:
        """Open the first link; those after it, and sends on an open one, call the SDK's own method."""
        raise NotImplementedError

    def throw_away(self) -> Any:
        """Close it in the background; nobody waits for that."""
        raise NotImplementedError


SdkSenderT = TypeVar("SdkSenderT", bound=SdkSenderBase)
OpeningT = TypeVar("OpeningT")
ErrorT = TypeVar("ErrorT", bound=BaseException)


class GuardedSenderBase(Generic[SdkSenderT, OpeningT]):
    """One SDK sender to one entity of one client; calls go one after the other."""

    def __init__(
        self, make: Callable[[], Any], entity: str = "", learns: Callable[[float], None] | None = None
    ) -> None:
        """`learns` is called with the duration of each opening that somebody waited for."""
        self._make = make
        self._learns = learns
        self._entity = entity
        self._sdk_sender: SdkSenderT | None = None
        self._opening: OpeningT | None = None
        # Since when there should be a link and is none, and nobody has answered.
        self._wanted_since: float | None = None
        # When the last opening began.
        self._opening_began = 0.0
        self._closed = False
        # When the link answered last: it was opened, or confirmed a message that was sent on terms.
        self._answered_at = 0.0
        #: How long the opening of the link took, where the caller that first found it open had to wait for it.
        self.opening_s = 0.0
        self.max_message_size = 0
        self.max_batch_size = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self.is_open else "not open"
        return f"<GuardedSender {self._entity or '?'}: {state}>"

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_open(self) -> bool:
        sdk_sender = self._sdk_sender
        return sdk_sender is not None and self._opening is None and sdk.is_open(sdk_sender.sender)

    @property
    def is_alive(self) -> bool:
        """Whether the link is open and the peer is not known to have closed it."""
        sdk_sender = self._sdk_sender
        return sdk_sender is not None and self._opening is None and sdk.is_alive(sdk_sender.sender)

    @property
    def was_opened(self) -> bool:
        """Whether a link was ever asked for."""
        return self._opening_began > 0.0

    @property
    def wants_link(self) -> bool:
        """Whether a call that had to open a link has failed, and none has been opened since."""
        return self._wanted_since is not None

    def _opened(self, sdk_sender: SdkSenderT, now: float, waited: bool = True) -> None:
        self.opening_s = now - self._opening_began if waited else 0.0
        self._wanted_since = None
        if waited:
            self._took(now)
        self.max_message_size, self.max_batch_size = sdk.sizes(sdk_sender.sender)

    def _took(self, now: float) -> None:
        if self._learns is not None:
            self._learns(now - self._opening_began)

    def _refused(self, error: BaseException) -> None:
        """Note that an opening failed: if somebody refused it, the wait for a link begins anew with the next call."""
        if not is_silence(error):
            self._wanted_since = None

    def _discard(self, sdk_sender: SdkSenderT) -> None:
        self._sdk_sender = None
        sdk_sender.throw_away()

    def _failed_in_place(self, sdk_sender: SdkSenderT, error: BaseException, is_spoilt: bool) -> None:
        """Throw the sender away where it must not be used again, and raise what a broker answered before."""
        if is_spoilt:
            self._discard(sdk_sender)
        if (word := last_word(error, sdk_sender.answer)) is not error:
            raise word from error

    def _not_open_yet(self, now: float, terms: PrimaryTerms | None = None) -> OperationTimeoutError:
        """Return the error of a call that has waited for the opening; at the primary, on terms, it tells of silence."""
        return sdk.not_open_yet(self._entity, now - (self._wanted_since or now), terms is not None)

    def _not_tried(self, timeout_s: float) -> NotTriedError:
        return NotTriedError(
            f"The message for {self._entity or 'the entity'} was not tried: other sends of this sender took "
            f"all of its {timeout_s:g} s. Use several senders, or a longer timeout."
        )

    def _has_left(self) -> NotTriedError:
        return NotTriedError(f"The message for {self._entity or 'the entity'} was not tried: it failed over meanwhile.")

    def _timed_out(self, timeout_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(
            message=f"Sending to {self._entity or 'the entity'} took longer than the {timeout_s:g} s that it had."
        )


def annotated(error: ErrorT, *, was_open: bool) -> ErrorT:
    """Return the error of a call; where no link was open during it, with a note that nothing was sent."""
    if not was_open:
        note_nothing_sent(error)
    return error


def answered_with(error: ServiceBusError | None, earlier: ServiceBusError | None) -> ServiceBusError | None:
    """Return the broker's answer in this call: the failure of an attempt, if it is an answer, else the earlier one.

    The SDK tries again after it, and silence that the retry meets must not pass for an outage.
    """
    return error if error is not None and is_answer(error) else earlier


def last_word(error: BaseException, answer: ServiceBusError | None) -> BaseException:
    """Return the error that ends a call: after a broker's answer silence is only its cause."""
    if answer is None or not isinstance(error, OperationTimeoutError):
        return error
    answer.__cause__ = error
    return answer


def time_left(deadline: float, now: float) -> float:
    """Return the seconds until the deadline; raise NotTriedError when it has passed."""
    left = deadline - now
    if left <= 0:
        raise too_late()
    return left


def too_late() -> NotTriedError:
    return NotTriedError("The message was not tried: the time was over before it could be.")


def to_retry_after(sender: Any, lost: ServiceBusError | None, ends_at: EndsAt | None) -> ServiceBusError | None:
    """Return the error that the broker answered on the open link, where opening again is the first of the user's
    retries; None where no answer came, and where another link is tried at once because the backlog is next. Raises the
    error where the user wants no retries."""
    if lost is None or isinstance(lost, ServiceBusConnectionError | OperationTimeoutError):
        return None
    if ends_call(sender, ends_at, lost):
        return None
    if sdk.retries(sender) <= 0:
        raise lost
    return lost


def ends_call(sender: Any, ends_at: EndsAt | None, error: BaseException) -> bool:
    """Return whether a call ends with this failure of an attempt: there is no link, and another place is next.

    With `is_definite` it ends so on an open link, too: the retries are made elsewhere.
    """
    return ends_at is not None and (ends_at is is_definite or not sdk.is_open(sender)) and ends_at(error)
