"""The errors that pairing raises to the application. Pure.

    PairbusError
    └── PairingError
        ├── InvalidOptions               an option out of its bounds, or two that contradict        + ValueError
        ├── AlreadyPaired                a client or an options object used for a second pairing
        ├── PairingFailed                the secondary could not be set up                          + ServiceBusError
        ├── AliasConflictError           the message carries an alias of ours already               + ValueError
        ├── BodyNotCopyableError         a body that can't be sent a second time                    + TypeError
        ├── BacklogUnavailableError      no backlog queue took the message                          + ServiceBusError
        ├── NoTimeLeftError              the caller's time ran out, nothing was confirmed        + OperationTimeoutError
        │   └── NotTriedError            … before the message could even be tried
        ├── EntityThrottledError         busy for longer than the caller waits           + ServiceBusServerBusyError
        ├── EntityUnreachableError       the primary refuses, and `when_unreachable="raise"`        + ServiceBusError
        ├── PinnedEntityError            the operator's call contradicts the control file
        ├── ControlFileError             a control file that can't be followed                      + ValueError
        ├── ScheduleDuringFailoverError  there is no sequence number to hand back                   + ServiceBusError
        ├── ClientFaultedError           the partner closed or faulted                              + ServiceBusError
        ├── ForkedClientError            a client of the parent process, used in the child          + RuntimeError
        └── WrongLoopError               an async client, used on another loop than it was paired on + RuntimeError

Those that stand in for an error of the SDK derive from it, so that an application's existing handlers still catch them.
docs/how-to/handle-errors.md says what each of them tells, and what to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus.errors import PairbusError


class SentSoFar(NamedTuple):
    """What is known about the messages of a send that failed. Messages without an id are only counted."""

    total: int = 1
    confirmed: int = 0
    confirmed_ids: tuple[str, ...] = ()
    #: How many may have arrived: they were sent, and no answer came.
    unknown: int = 0
    outcome_unknown_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.confirmed and not self.unknown:
            return "Nothing was sent"
        parts = []
        if self.confirmed:
            parts.append(f"{self.confirmed} of {self.total} messages were confirmed{_listed(self.confirmed_ids)}")
        if self.unknown:
            parts.append(
                f"{self.unknown} of {self.total} may have arrived all the same{_listed(self.outcome_unknown_ids)}"
            )
        rest = self.total - self.confirmed - self.unknown
        if rest:
            parts.append(f"{rest} were not sent")
        return ", ".join(parts)


NOTHING_SENT: Final = SentSoFar()
_LISTED_MAX: Final = 10


def _listed(ids: tuple[str, ...]) -> str:
    more = ", …" if len(ids) > _LISTED_MAX else ""
    return f" ({', '.join(ids[:_LISTED_MAX])}{more})" if ids else ""


def note_nothing_sent(error: BaseException) -> None:
    """Note on the error of an attempt that no link was open in it: nothing was sent, whatever else the error says."""
    error._pairbus_nothing_sent = True  # type: ignore[attr-defined]


def is_nothing_sent(error: BaseException) -> bool:
    return getattr(error, "_pairbus_nothing_sent", False)


def note_time_over(error: BaseException) -> None:
    """Note on the error of a call that its time was over before the SDK's retries were."""
    error._pairbus_time_over = True  # type: ignore[attr-defined]


def is_time_over(error: BaseException) -> bool:
    return getattr(error, "_pairbus_time_over", False)


class PairingError(PairbusError):
    pass


class InvalidOptions(PairingError, ValueError):
    pass


class AlreadyPaired(PairingError):
    pass


class PairingFailed(PairingError, ServiceBusError):
    pass


class AliasConflictError(PairingError, ValueError):
    pass


class BodyNotCopyableError(PairingError, TypeError):
    pass


class _TellsWhatWasSent:
    """Tells what happened to the messages of the send: a list or batch may have been sent in part."""

    #: Ids of the messages that a broker confirmed: do not send them again.
    confirmed_ids: tuple[str, ...] = ()
    #: Ids of the messages that may have arrived: send them again with the same id.
    outcome_unknown_ids: tuple[str, ...] = ()

    def tells(self, so_far: SentSoFar) -> None:
        self.confirmed_ids, self.outcome_unknown_ids = so_far.confirmed_ids, so_far.outcome_unknown_ids


class BacklogUnavailableError(_TellsWhatWasSent, PairingError, ServiceBusError):
    """No backlog queue took the message, and the primary did not either: see docs/how-to/handle-errors.md."""


class NoTimeLeftError(_TellsWhatWasSent, PairingError, OperationTimeoutError):
    def __init__(self, message: str) -> None:
        OperationTimeoutError.__init__(self, message=message)


class NotTriedError(NoTimeLeftError):
    #: The link was opened, too late for a send in this attempt's time: another attempt there needs not wait for it.
    link_is_open = False


class EntityThrottledError(_TellsWhatWasSent, PairingError, ServiceBusServerBusyError):
    def __init__(self, message: str) -> None:
        ServiceBusServerBusyError.__init__(self, message=message)


class EntityUnreachableError(_TellsWhatWasSent, PairingError, ServiceBusError):
    pass


class PinnedEntityError(PairingError):
    pass


class ControlFileError(PairingError, ValueError):
    pass


class ScheduleDuringFailoverError(PairingError, ServiceBusError):
    pass


class ClientFaultedError(PairingError, ServiceBusError):
    pass


class ForkedClientError(PairingError, RuntimeError):
    pass


class WrongLoopError(PairingError, RuntimeError):
    pass
