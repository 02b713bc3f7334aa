"""Limits the memory of connections without a token: how many bytes each, and all of them together. Pure.

A connection reports how many bytes it holds whenever that changes, and gets None or the reason why it must be closed.
One quota is shared by all namespaces of a broker, since it protects the process. A connection counts from the moment
when it is accepted, before any byte has come over it, until it has presented a token. Over HTTP it counts as long as it
is open: each request there carries its own token, and some need none.
"""

from __future__ import annotations

from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.broker.refusal import Refusal

#: The limit of all together; the objects of a connection count too.
TOTAL_BYTES_MAX: Final = 50_000_000
#: The limit of one, besides its objects: the largest frame, and some more.
EACH_BYTES_MAX: Final = 96 * 1024
#: Before a token only `$cbs` and a coordinator can be attached to: two links in one session are enough for a token.
LINKS_MAX: Final = 8
SESSIONS_MAX: Final = 4
#: Those that are open and, since no other link is there, empty.
TRANSACTIONS_MAX: Final = 32
#: A connection without a token is closed after this long.
WAIT_S_MAX: Final = 60.0
#: The memory of a connection's objects, measured: 11 KB, and up to 70 KB with TLS on uvloop.
CONNECTION_BYTES: Final = 16 * 1024
TLS_BYTES: Final = 96 * 1024
#: Of an empty transaction, measured: 0.3 KB.
TRANSACTION_BYTES: Final = 512
#: A larger read makes the buffers of TLS grow, of which there are two, and they stay as large.
TLS_READ_BYTES: Final = 16 * 1024


class UnauthenticatedQuota:
    """The bytes that each connection without a token holds."""

    __slots__ = ("_held", "held_bytes")

    def __init__(self) -> None:
        self._held: dict[object, int] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<UnauthenticatedQuota: {len(self._held)} hold {self.held_bytes} of {TOTAL_BYTES_MAX} bytes>"

    def hold(
        self, who: object, is_secure: bool, size: int, each_bytes_max: int = EACH_BYTES_MAX, largest_read: int = 0
    ) -> Refusal | None:
        """Set what a connection holds now besides its objects, and how much has come over it at once. Return why it
        must be closed, if it must."""
        if size > each_bytes_max:
            text = f"A connection that has put no token may hold {each_bytes_max} bytes; this one holds {size}."
            return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        if is_secure:
            size += TLS_BYTES + (2 * largest_read if largest_read > TLS_READ_BYTES else 0)
        else:
            size += CONNECTION_BYTES
        held = self.held_bytes - self._held.get(who, 0) + size
        if held > TOTAL_BYTES_MAX:
            text = (
                f"The {len(self._held)} connections that have put no token hold {self.held_bytes} bytes, "
                f"and may hold {TOTAL_BYTES_MAX} together. Try again later."
            )
            return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        self._held[who] = size
        self.held_bytes = held
        return None

    def release(self, who: object) -> None:
        """Stop counting a connection that has put a token or is closed."""
        self.held_bytes -= self._held.pop(who, 0)


def too_many(name: str, count_max: int) -> Refusal:
    """Return the refusal of links, sessions or transactions beyond the limit."""
    text = f"A connection that has put no token may have {count_max} {name}; put a token to '$cbs' first."
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)


def too_late(seconds: float) -> Refusal:
    """Return the reason for closing a connection that has put no token in time."""
    text = f"No token was put to '$cbs' for {seconds:.0f} s; a connection without one is closed after {WAIT_S_MAX:g} s."
    return Refusal(conditions.UNAUTHORIZED_ACCESS, text)
