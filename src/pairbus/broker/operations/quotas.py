"""The quotas of a namespace and its tier: how many entities, filters and connections. Pure.

The size of a single queue is not among them: `enqueue.py` refuses messages that would exceed it.

It decides whether a described entity is within the quotas, and how one that is not is refused, as on the service: 403
for an exhausted quota, 400 for a value or a feature that the tier does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp import errors as conditions
from pairbus.broker.model.description import (
    FORWARDS,
    MESSAGE_SIZE_KB_MAX,
    SIZE_MB_MAX,
    Description,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.model.rules import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX
from pairbus.broker.model.topic import SUBSCRIPTIONS_MAX
from pairbus.broker.model.transaction import MESSAGES_MAX
from pairbus.broker.refusal import Refusal

ENTITIES_MAX: Final = 10_000
#: The service's entities have whole gigabytes: 1 to 5, and up to 80 in Premium and where they are partitioned.
SIZE_STEP_MB: Final = 1024
#: A size that only this broker accepts, so that a test can fill a queue.
SIZE_FOR_TESTS_MB: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas of a namespace. `sku` is its name when a client asks for the namespace's properties."""

    sku: str = "Standard"
    entities: int = ENTITIES_MAX
    subscriptions: int = SUBSCRIPTIONS_MAX
    connections: int = 5_000
    size_mb: int = SIZE_MB_MAX
    message_size_kb: int = MESSAGE_SIZE_KB_MAX
    #: Per topic; true and false filters count as neither.
    sql_filters: int = SQL_FILTERS_MAX
    correlation_filters: int = CORRELATION_FILTERS_MAX
    #: Sent in one transaction, and settled in one.
    transaction_messages: int = MESSAGES_MAX
    #: Topics, sessions, duplicate detection, forwarding and transactions.
    has_all_features: bool = True

    def lacks(self, wanted: str) -> str:
        """Return the refusal for a feature that the tier doesn't have."""
        return f"{wanted} are not there in the tier {self.sku}; take Standard or Premium"

    def refuses_description(self, description: Description) -> Refusal | None:
        """Return why an entity can't be as described in this namespace, if it can't."""
        if not self.has_all_features:
            wanted = next((name for name, has in _FEATURES.items() if has(description)), None)
            if wanted is not None:
                return _wrong(self.lacks(wanted))
        if isinstance(description, SubscriptionDescription):
            return None
        for name, value, most in (
            ("MaxSizeInMegabytes", description.max_size_mb, self.size_mb),
            ("MaxMessageSizeInKilobytes", description.max_message_size_kb, self.message_size_kb),
        ):
            if value > most:
                return _wrong(f"{name} of '{description.name}' may be up to {most} in this namespace; it is {value}")
        size_mb = description.max_size_mb
        if size_mb % SIZE_STEP_MB and size_mb != SIZE_FOR_TESTS_MB:
            return _wrong(
                f"MaxSizeInMegabytes of '{description.name}' may be a multiple of {SIZE_STEP_MB}, or "
                f"{SIZE_FOR_TESTS_MB} for a test that fills it; it is {size_mb}"
            )
        return None


_FEATURES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "Topics": lambda described: isinstance(described, TopicDescription | SubscriptionDescription),
    "Sessions": lambda described: described.requires_session,
    "Duplicate detection and its settings": lambda described: described.requires_duplicate_detection,
    "Destinations of forwarding": lambda described: any(getattr(described, name) is not None for name in FORWARDS),
}
#: Of the service, for one messaging unit of Premium; the sizes are those of entities that are not partitioned.
TIERS: Final[Mapping[str, Quotas]] = {
    "basic": Quotas(sku="Basic", size_mb=5_120, message_size_kb=256, has_all_features=False),
    "standard": Quotas(size_mb=5_120, message_size_kb=256),
    "premium": Quotas(sku="Premium", entities=1_000),
}
#: Credits a second that a tier has unless the configuration says otherwise.
TIER_CREDITS: Final[Mapping[str, float]] = {"basic": 1_000.0, "standard": 1_000.0}


def _wrong(text: str) -> Refusal:
    return Refusal(conditions.ARGUMENT_OUT_OF_RANGE, f"{text}.")
