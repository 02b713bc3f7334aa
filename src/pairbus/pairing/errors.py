"""What pairing raises to the application.

    PairbusError
    └── PairingError
        ├── InvalidOptions               an option out of its bounds, or two that contradict        + ValueError
        ├── AlreadyPaired                a client or an options object used for a second pairing (P6)
        ├── PairingFailed                the secondary could not be set up (P3, P5)                 + ServiceBusError
        ├── AliasConflictError           the message carries an alias of ours already (P29)         + ValueError
        ├── BodyNotCopyableError         a body that can't be sent a second time (P22)              + TypeError
        ├── BacklogUnavailableError      no backlog queue took the message (P13, P22)               + ServiceBusError
        ├── NoTimeLeftError              the caller's time ran out, nothing was confirmed        + OperationTimeoutError
        │   └── NotTriedError            … before the message could even be tried
        ├── EntityUnreachableError       the primary refuses, and `when_unreachable="raise"` (P34)  + ServiceBusError
        ├── ScheduleDuringFailoverError  there is no sequence number to hand back (P25)             + ServiceBusError
        ├── ClientFaultedError           the partner closed or faulted (P43)                        + ServiceBusError
        ├── ForkedClientError            a client of the parent process, used in the child          + RuntimeError
        └── WrongLoopError               an async client, used on another loop than it was paired on + RuntimeError

Those that stand in for an error of the SDK derive from it, so that what an application catches today it catches still.
"""

from __future__ import annotations

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.errors import PairbusError


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


class BacklogUnavailableError(PairingError, ServiceBusError):
    pass


class NoTimeLeftError(PairingError, OperationTimeoutError):
    def __init__(self, message: str) -> None:
        OperationTimeoutError.__init__(self, message=message)


class NotTriedError(NoTimeLeftError):
    pass


class EntityUnreachableError(PairingError, ServiceBusError):
    pass


class ScheduleDuringFailoverError(PairingError, ServiceBusError):
    pass


class ClientFaultedError(PairingError, ServiceBusError):
    pass


class ForkedClientError(PairingError, RuntimeError):
    pass


class WrongLoopError(PairingError, RuntimeError):
    pass
