"""The routing under test: a coordinator that chooses the first usable queue, and the errors that its calls meet."""

from __future__ import annotations

from typing import Any

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator

T = 1000.0
DOWN = ServiceBusConnectionError(message="refused")
LATE = OperationTimeoutError(message="no answer")
BUSY = ServiceBusServerBusyError(message="busy")
GONE = MessagingEntityNotFoundError(message="no such queue")
OFF = MessagingEntityDisabledError(message="disabled")
LARGE = MessageSizeExceededError(message="too large")


def coordinator(*queues: int, **options: Any) -> Coordinator:
    return Coordinator(Settings(**options), queues or (0, 1, 2), choose=lambda usable: usable[0])
