"""The routing under test: a coordinator that chooses the first usable queue, and the errors that its calls meet."""

from __future__ import annotations

from typing import Any

from azure.servicebus import exceptions

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator

T = 1000.0
DOWN = exceptions.ServiceBusConnectionError(message="refused")
LATE = exceptions.OperationTimeoutError(message="no answer")
BUSY = exceptions.ServiceBusServerBusyError(message="busy")
GONE = exceptions.MessagingEntityNotFoundError(message="no such queue")
OFF = exceptions.MessagingEntityDisabledError(message="disabled")
LARGE = exceptions.MessageSizeExceededError(message="too large")


def coordinator(*queues: int, **options: Any) -> Coordinator:
    return Coordinator(Settings(**options), queues or (0, 1, 2), choose=lambda usable: usable[0])
