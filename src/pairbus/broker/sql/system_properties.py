"""The system properties of a message: which there are, and which of them an action may set. Pure."""

from __future__ import annotations

from typing import Final

from .kinds import DURATION, TEXT, TIME

#: Names in lower case → the one name under which a message is asked for it.
SYSTEM_PROPERTIES: Final = {
    name.lower(): name
    for name in (
        "MessageId", "CorrelationId", "SessionId", "ReplyToSessionId", "Label", "ContentType", "To", "ReplyTo",
        "PartitionKey", "ViaPartitionKey", "TimeToLive", "ExpiresAtUtc", "EnqueuedTimeUtc", "ScheduledEnqueueTimeUtc",
        "SequenceNumber", "DeliveryCount", "Size",
    )
} | {"subject": "Label"}  # fmt: skip

#: Those that an action may set, and the kind that each has.
SETTABLE: Final = {
    **dict.fromkeys(
        ("MessageId", "CorrelationId", "SessionId", "ReplyToSessionId", "Label", "ContentType", "To", "ReplyTo"), TEXT
    ),
    "PartitionKey": TEXT,
    "ViaPartitionKey": TEXT,
    "TimeToLive": DURATION,
    "ScheduledEnqueueTimeUtc": TIME,
}
