"""The errors that this folder raises, and the error conditions on the wire that pairbus uses.

AmqpError
 ├── DecodeError         bytes that are no valid AMQP (amqp:decode-error)
 ├── EncodeError         a value that AMQP can't carry (amqp:internal-error: it is ours, not the peer's)
 ├── FramingError        a frame that can't be cut out of the stream (amqp:connection:framing-error)
 ├── LimitExceeded       more than we are willing to hold (amqp:resource-limit-exceeded)
 └── ProtocolViolation   valid bytes at the wrong time (amqp:illegal-state, or the condition given)

It decides nothing: the engine and the broker choose which condition to send.
"""

from __future__ import annotations

# AMQP 2.8.15–2.8.18
INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_DELETED = "amqp:resource-deleted"
ILLEGAL_STATE = "amqp:illegal-state"
CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
DETACH_FORCED = "amqp:link:detach-forced"
LINK_STOLEN = "amqp:link:stolen"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
# AMQP 4.5.8
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT = "amqp:transaction:timeout"

#: With this in the info of an error, or beside a response's status, our broker says that the refused operation may
#: still have been done (docs/explanation/durability.md).
OUTCOME_UNKNOWN = "pairbus:outcome-unknown"

# Service Bus (docs/reference/protocol.md#error-conditions, #outcomes, #requests-over-management)
SERVER_BUSY = "com.microsoft:server-busy"
TIMEOUT = "com.microsoft:timeout"
QUOTA_EXCEEDED = "com.microsoft:quota-exceeded"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
ENTITY_NOT_FOUND = "com.microsoft:entity-not-found"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
SESSION_NOT_FOUND = "com.microsoft:session-not-found"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
ARGUMENT_ERROR = "com.microsoft:argument-error"
ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
DEAD_LETTER = "com.microsoft:dead-letter"


class AmqpError(Exception):
    """Base of the errors of this folder; `condition` is the one to send to a peer."""

    condition = INTERNAL_ERROR

    def __init__(self, description: str, condition: str | None = None) -> None:
        super().__init__(description)
        self.description = description
        if condition is not None:
            self.condition = condition

    def __str__(self) -> str:
        return f"{self.description} ({self.condition})"


class DecodeError(AmqpError):
    """The bytes are no valid AMQP."""

    condition = DECODE_ERROR


class EncodeError(AmqpError):
    """AMQP can't carry the value."""

    condition = INTERNAL_ERROR


class FramingError(AmqpError):
    """A frame can't be cut out of the stream."""

    condition = FRAMING_ERROR


class LimitExceeded(AmqpError):
    """The peer asks for more than a limit allows."""

    condition = RESOURCE_LIMIT_EXCEEDED


class ProtocolViolation(AmqpError):
    """The peer sends valid bytes at the wrong time."""

    condition = ILLEGAL_STATE
