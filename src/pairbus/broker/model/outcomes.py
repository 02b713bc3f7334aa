"""The outcomes of a locked message, including dead-letter reasons (docs/reference/protocol.md#outcomes).

It also has the refusal for a lost lock, and the results of sends that give no sequence number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.broker.refusal import Refusal

#: Results of a send in place of a sequence number; 0 stands for a message that a topic numbered only as copies.
PINGED: Final = -1
DUPLICATE: Final = -2
#: The ledger's outcome for a message that no subscription takes.
NO_SUBSCRIPTION: Final = "no-subscription"


@dataclass(frozen=True, slots=True)
class LocksLost(Refusal):
    """The locks of `tokens` no longer hold. The others of the same call were settled; on renewal, none was renewed."""

    tokens: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete:
    pass


@dataclass(frozen=True, slots=True)
class Release:
    """Makes the message available again, with the same delivery count."""


@dataclass(frozen=True, slots=True)
class Abandon:
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defer:
    """Sets the message aside until it is received by its number."""

    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    def changes(self) -> dict[str, Any]:
        """Return the additions to a dead letter's application properties (docs/reference/protocol.md#outcomes)."""
        changes = dict(self.properties)
        if self.reason is not None:
            changes["DeadLetterReason"] = self.reason
        if self.description is not None:
            changes["DeadLetterErrorDescription"] = self.description
        return changes


Outcome = Complete | Release | Abandon | Defer | DeadLetter

EXPIRED = DeadLetter("TTLExpiredException", "The message expired and was dead lettered.")


def exhausted(deliveries: int) -> DeadLetter:
    return DeadLetter(
        "MaxDeliveryCountExceeded", f"Message could not be consumed after {deliveries} delivery attempts."
    )
