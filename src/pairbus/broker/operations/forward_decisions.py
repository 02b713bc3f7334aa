"""Decides whether a message can be forwarded, and if not, why; reads the addresses of destinations. Pure.

See docs/reference/protocol.md#forwarding.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import unquote, urlsplit

from pairbus.amqp.errors import SERVER_BUSY
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.outcomes import DeadLetter
from pairbus.broker.model.topic import SESSION_MISSING, Topic
from pairbus.broker.refusal import Refusal

#: How often a message is forwarded at most.
HOPS_MAX: Final = 4
_SCHEMES: Final = ("sb", "amqp", "amqps", "http", "https")

UNREADABLE: Final = DeadLetter("InvalidMessage", "The message can't be read, and so not be forwarded.")


def entity_at(address: str, host: str | None = None, ports: Collection[int] = ()) -> str | None:
    """Return the name of the entity that an address means: `sb://host:port/q`, `https://host/q` or `q` alone.

    Return None for an address that leads elsewhere: `host` is the name of this namespace that the client used, with the
    port; None takes any. `ports` are those of the namespace.
    """
    if "://" not in address:
        return address.strip("/")
    try:
        parts, own = urlsplit(address), urlsplit(f"//{host}")
        port, own_port = parts.port, own.port
    except ValueError:
        return None
    if parts.scheme.lower() not in _SCHEMES or parts.query or parts.fragment:
        return None
    if host is not None and (parts.hostname != own.hostname or not (port is None or port in (own_port, *ports))):
        return None
    return unquote(parts.path).strip("/")


def unavailable(name: str, destination: QueueEntity | None) -> DeadLetter | None:
    """Return why nothing at all can be forwarded to a destination."""
    if destination is None:
        text = f"The message could not be forwarded: the entity '{name}' does not exist."
        return DeadLetter("MessagingEntityNotFound", text)
    if destination.refuses_sends is not None:
        text = f"The message could not be forwarded: the entity '{name}' is {destination.description.status}."
        return DeadLetter("MessagingEntityDisabled", text)
    return None


def room_in(destination: QueueEntity, partition: int | None = None) -> int:
    """Return how many bytes of messages it, or one of its partitions, can still take."""
    if partition is not None:
        return destination.max_bytes - destination.held_bytes(partition) - destination.pending_bytes
    if isinstance(destination, Topic):
        return destination.max_bytes - destination.size_bytes - destination.pending_bytes
    held = destination.active.size_bytes + destination.dead_letter.size_bytes
    return destination.max_bytes - held - destination.pending_bytes


def too_many_hops(hops: int) -> DeadLetter | None:
    """Return why a message that was forwarded so often is not forwarded once more."""
    if hops < HOPS_MAX:
        return None
    text = f"The message was forwarded {hops} times; at most {HOPS_MAX} hops are allowed."
    return DeadLetter("MaxTransferHopCountExceeded", text)


def refused(destination: QueueEntity, size: int, session_id: str | None) -> DeadLetter | None:
    """Return why a destination can't take a message of so many bytes, for a reason that is the message's own."""
    if size > destination.message_bytes_max:
        text = (
            f"The message could not be forwarded: it has {size} bytes, and '{destination.name}' takes messages of up "
            f"to {destination.message_bytes_max} bytes."
        )
        return DeadLetter("MessageSizeExceeded", text)
    if destination.active.sessions is not None and session_id is None:
        return SESSION_MISSING
    return None


def misplaced(problem: Refusal) -> DeadLetter | None:
    """Return why a message can't go to any partition of a destination; None where its partition is only down."""
    if problem.condition == SERVER_BUSY:
        return None
    return DeadLetter("InvalidMessage", f"The message could not be forwarded: {problem.description}")


def full(destination: QueueEntity) -> DeadLetter:
    text = f"The message could not be forwarded: '{destination.name}' is full, with {destination.max_bytes} bytes."
    return DeadLetter("QuotaExceeded", text)
