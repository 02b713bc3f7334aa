"""The events that the engine reports to its shell, in the order in which they happened on the wire.

Events are in the past tense and carry only data; the shell acts on them. One is created per frame on the hot path, so
they are plain slotted classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .link import Link, ReceiverLink, SenderLink
    from .performative_types import Attach, Error, Open
    from .session import Session


@dataclass(slots=True)
class SaslInitiated:
    """The server learned who connects: mechanism, and the user name where the mechanism carries one."""

    mechanism: str
    username: str | None


@dataclass(slots=True)
class SaslDone:
    """The client's authentication was accepted."""


@dataclass(slots=True)
class Opened:
    open: Open


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttached:
    """For a server: the peer asks, answer with `link.accept` or `link.refuse`. For a client: the peer's answer."""

    link: Link
    attach: Attach


@dataclass(slots=True)
class LinkDetached:
    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class Delivered:
    """One whole message, however many frames it came in."""

    link: ReceiverLink
    delivery_id: int
    tag: bytes
    payload: bytes
    message_format: int
    settled: bool


@dataclass(slots=True)
class TransactionalDelivered(Delivered):
    """One whole message that is sent in a transaction."""

    txn_id: bytes


@dataclass(slots=True)
class DeliveryTooLarge:
    """A message beyond `Limits.message_bytes_max`; its bytes were discarded, the link stays usable."""

    link: ReceiverLink
    delivery_id: int
    size: int
    settled: bool


@dataclass(slots=True)
class Disposed:
    """The peer spoke about deliveries `first` to `last`; `role` is the peer's, as on the wire (True: receiver)."""

    session: Session
    role: bool
    first: int
    last: int
    settled: bool
    state: Any


@dataclass(slots=True)
class CreditChanged:
    link: SenderLink


@dataclass(slots=True)
class Closed:
    """The connection is over: the peer closed it, or we did because of `error`."""

    error: Error | None


Event = (
    SaslInitiated
    | SaslDone
    | Opened
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | Delivered
    | TransactionalDelivered
    | DeliveryTooLarge
    | Disposed
    | CreditChanged
    | Closed
)
