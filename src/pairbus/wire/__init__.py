"""A lean AMQP client for Service Bus and similar brokers: messages go in and come out as exact bytes.

`pairbus.wire.sync` is the same client for code without an event loop. May import `pairbus.amqp` and the credentials.
"""

from pairbus.connection_string import ConnectionString, ConnectionStringError
from pairbus.credentials import Login, SharedKey, SharedSignature

from .client import WireClient
from .errors import (
    Busy,
    ClientClosed,
    LinkLost,
    LockLost,
    NotFound,
    QuotaExceeded,
    Refused,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unreachable,
    WindowFull,
    WireError,
)
from .received import ReceivedMessage
from .receiver import Receiver
from .sender import Sender
from .transactions import Transaction

__all__ = [
    "Busy",
    "ClientClosed",
    "ConnectionString",
    "ConnectionStringError",
    "LinkLost",
    "LockLost",
    "Login",
    "NotFound",
    "QuotaExceeded",
    "ReceivedMessage",
    "Receiver",
    "Refused",
    "Sender",
    "SharedKey",
    "SharedSignature",
    "TimedOut",
    "TooLarge",
    "Transaction",
    "Unauthorized",
    "Unreachable",
    "WindowFull",
    "WireClient",
    "WireError",
]
