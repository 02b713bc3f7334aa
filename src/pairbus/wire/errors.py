"""The errors of the wire client, and which of them a peer's condition becomes. Pure.

    PairbusError
    └── WireError               condition, description, outcome_unknown
        ├── Unreachable         no connection, or it was lost: refused, reset, name not found, TLS, closed by the peer
        │   └── LinkLost        the peer took the link away, or it went with its connection
        ├── TimedOut            nothing came in time; the description says what was waited for
        ├── WindowFull          `send_nowait` without room; nothing was sent
        ├── ClientClosed        used after `close()`, or in another process than the one that made it
        └── Refused             the peer said no; `condition` is its word
            ├── Busy            it asks to slow down                     com.microsoft:server-busy
            ├── Unauthorized    wrong key, expired token, missing right  amqp:unauthorized-access, SASL, $cbs 401
            ├── NotFound        no such entity or message                amqp:not-found, …:message-not-found
            ├── LockLost        settle or renew too late                 …:message-lock-lost, …:session-lock-lost
            ├── TooLarge        the message is beyond the link's limit   amqp:link:message-size-exceeded
            └── QuotaExceeded   the entity is full                       amqp:resource-limit-exceeded

`outcome_unknown` is true if a message or a settlement was on the wire and no answer came, or an answer with
`pairbus:outcome-unknown` (docs/explanation/durability.md): it may have happened. If it is false, it has not happened.
The caller decides whether to try again.
"""

from __future__ import annotations

from pairbus.errors import PairbusError

UNREACHABLE = "pairbus:unreachable"
LINK_LOST = "pairbus:link-lost"
TIMED_OUT = "pairbus:timed-out"
WINDOW_FULL = "pairbus:window-full"
CLIENT_CLOSED = "pairbus:client-closed"
RELEASED = "pairbus:released"
UNKNOWN = "amqp:unknown-error"

#: A peer's text is cut to this before it goes into an error or a log line.
DESCRIPTION_CHARS_MAX = 1000


class WireError(PairbusError):
    """Base of what the wire client raises."""

    #: Which deliveries were refused, if a settlement of several was refused for some.
    delivery_ids: tuple[int, ...] = ()

    def __init__(self, condition: str, description: str = "", *, outcome_unknown: bool = False) -> None:
        self.condition = condition
        self.description = description[:DESCRIPTION_CHARS_MAX]
        self.outcome_unknown = outcome_unknown
        super().__init__(condition, self.description)

    def __str__(self) -> str:
        text = f"{self.description or 'no description'} ({self.condition})"
        return f"{text}; outcome unknown" if self.outcome_unknown else text

    def __reduce__(self) -> tuple[object, ...]:
        # exceptions cross process borders on Spark; keyword arguments get lost there otherwise
        return _rebuild, (type(self), self.condition, self.description, self.outcome_unknown, self.delivery_ids)


def _rebuild(
    kind: type[WireError], condition: str, description: str, outcome_unknown: bool, delivery_ids: tuple[int, ...]
) -> WireError:
    error = kind(condition, description, outcome_unknown=outcome_unknown)
    error.delivery_ids = delivery_ids
    return error


class Unreachable(WireError):
    """There is no connection, or it was lost."""


class LinkLost(Unreachable):
    """The peer took the link away, or it went with its connection."""


class TimedOut(WireError):
    """No answer came in time; the description says what was waited for."""


class WindowFull(WireError):
    """`send_nowait` was called without room; nothing was sent."""


class ClientClosed(WireError):
    """The client was used after `close()`, or in another process than the one that made it."""


class Refused(WireError):
    """The peer refused; `condition` is its word."""


class Busy(Refused):
    """The peer asks to slow down."""


class Unauthorized(Refused):
    """The key is wrong, the token has expired, or a right is missing."""


class NotFound(Refused):
    """There is no such entity or message."""


class LockLost(Refused):
    """A message was settled or renewed too late."""


class TooLarge(Refused):
    """The message is beyond the limit of the link."""


class QuotaExceeded(Refused):
    """The entity is full."""


_BY_CONDITION: dict[str, type[Refused]] = {
    "com.microsoft:server-busy": Busy,
    "amqp:unauthorized-access": Unauthorized,
    "com.microsoft:auth-failed": Unauthorized,
    "amqp:not-found": NotFound,
    "com.microsoft:entity-not-found": NotFound,
    "com.microsoft:message-not-found": NotFound,
    "com.microsoft:session-not-found": NotFound,
    "com.microsoft:message-lock-lost": LockLost,
    "com.microsoft:session-lock-lost": LockLost,
    "amqp:link:message-size-exceeded": TooLarge,
    "amqp:resource-limit-exceeded": QuotaExceeded,
    "com.microsoft:quota-exceeded": QuotaExceeded,
}

# a response may come without a condition (docs/reference/protocol.md#requests-over-management): then the status code
# has to do
_BY_STATUS: dict[int, tuple[str, type[Refused]]] = {
    401: ("amqp:unauthorized-access", Unauthorized),
    403: ("amqp:unauthorized-access", Unauthorized),
    404: ("amqp:not-found", NotFound),
    410: ("com.microsoft:message-lock-lost", LockLost),
    503: ("com.microsoft:server-busy", Busy),
}


def refusal(condition: str | None, description: str | None = None, *, outcome_unknown: bool = False) -> Refused:
    """Return the error for the condition with which the peer refused one operation: it has not happened, unless the
    peer says that it does not know."""
    name = str(condition) if condition else UNKNOWN
    return _BY_CONDITION.get(name, Refused)(name, description or "", outcome_unknown=outcome_unknown)


def refusal_by_status(
    status: int, condition: str | None, description: str | None, *, outcome_unknown: bool = False
) -> Refused:
    """Return the error for a response, by its condition or else by its status code."""
    if condition:
        return refusal(condition, description, outcome_unknown=outcome_unknown)
    name, kind = _BY_STATUS.get(status, (UNKNOWN, Refused))
    return kind(name, description or f"status {status}")
