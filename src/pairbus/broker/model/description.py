"""Descriptions of queues, topics and subscriptions: their fields, defaults and bounds.

It decides whether a description is allowed, and whether it may replace another one. It knows neither XML (atom.py) nor
the journal (records.py): `to_json`/`from_json` are the neutral form that is stored. Rules are described in
rule_description.py.

Defaults and bounds are the service's (docs/reference/protocol.md#http-management-api).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeAlias

from pairbus.sas import AuthorizationRule

from .bounds import (
    BOOLEAN,
    Check,
    InvalidDescription,
    check_all,
    optional_text,
    seconds,
    validate_name,
    validate_subscription_name,
    whole,
)
from .rule_description import (
    RuleDescription,
    validate_rule,
)

RIGHTS = ("Manage", "Send", "Listen")
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

LOCK_DURATION_S_MAX = 300.0
SIZE_MB_MAX = 81920
MESSAGE_SIZE_KB_MAX = 102400
DELIVERY_COUNT_MAX = 2147483647
USER_METADATA_CHARS_MAX = 1024
AUTHORIZATION_RULES_MAX = 12
KEY_CHARS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _EntityDescription:
    """The fields that all entities have. Durations and times are seconds; `math.inf` stands for the service's
    "never"."""

    name: str
    default_ttl: float = math.inf
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle: float = math.inf
    user_metadata: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return every field, so that a later default does not change what is stored. Infinity becomes null."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _INFINITE & data.keys():
            if data[name] == math.inf:
                data[name] = None
        if "authorization_rules" in data:
            data["authorization_rules"] = [rule.to_json() for rule in data["authorization_rules"]]
        if data.get("default_rule") is not None:
            data["default_rule"] = data["default_rule"].to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        for name in data:
            if name not in known:
                # Dropping it would lose it permanently at the next write.
                raise InvalidDescription(name, data[name], "a field of this version: " + ", ".join(sorted(known)))
        data = dict(data)
        for name in _INFINITE & data.keys():
            if data[name] is None:
                data[name] = math.inf
        if "authorization_rules" in data:
            data["authorization_rules"] = tuple(AuthorizationRule.from_json(r) for r in data["authorization_rules"])
        if data.get("default_rule") is not None:
            data["default_rule"] = RuleDescription.from_json(data["default_rule"])
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription(_EntityDescription):
    lock_duration: float = 60.0
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    dead_letter_on_expiration: bool = False
    duplicate_window: float = 600.0
    max_delivery_count: int = 10
    enable_partitioning: bool = False
    enable_express: bool = False
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    max_message_size_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(_EntityDescription):
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_window: float = 600.0
    support_ordering: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription(_EntityDescription):
    """`default_rule` is what a new subscription starts with; None stands for `$Default`, which is always true."""

    topic: str
    lock_duration: float = 60.0
    requires_session: bool = False
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_errors: bool = True
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    default_rule: RuleDescription | None = None


Description: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription

_INFINITE: Final = {"default_ttl", "auto_delete_on_idle", "duplicate_window"}

FORWARDS: Final = ("forward_to", "forward_dead_lettered_to")

IMMUTABLE: Final = ("requires_session", "requires_duplicate_detection", "enable_partitioning")

_KIND: Final = {QueueDescription: "queue", TopicDescription: "topic", SubscriptionDescription: "subscription"}


def as_queue(description: Description, name: str) -> QueueDescription:
    """Return the description of a queue with this name that has all the fields that both kinds of entity know."""
    shared = {f.name: getattr(description, f.name) for f in fields(QueueDescription) if hasattr(description, f.name)}
    return QueueDescription(**shared | {"name": name})


def validate(description: Description) -> None:
    """Raise `InvalidDescription` for the first invalid field."""
    if isinstance(description, SubscriptionDescription):
        validate_name(description.topic)
        validate_subscription_name(description.name)
    else:
        validate_name(description.name)
    check_all(description, _CHECKS[type(description)])
    if not isinstance(description, TopicDescription):
        _validate_forwards(description)
    if isinstance(description, SubscriptionDescription):
        if description.default_rule is not None:
            validate_rule(description.default_rule)
        return
    if description.enable_express and description.requires_duplicate_detection:
        raise InvalidDescription("enable_express", True, "False where RequiresDuplicateDetection is true")
    names = set()
    for rule in description.authorization_rules:
        validate_authorization_rule(rule)
        if rule.key_name in names:
            raise InvalidDescription("authorization_rules", f"{rule.key_name} twice", "every key name once")
        names.add(rule.key_name)


def _validate_forwards(description: QueueDescription | SubscriptionDescription) -> None:
    for field in FORWARDS:
        to = getattr(description, field)
        if to is None:
            continue
        try:
            validate_name(to)
        except InvalidDescription:
            raise InvalidDescription(field, to, "the name of a queue or topic of the namespace, or none") from None
    if description.requires_session and description.forward_to is not None:
        raise InvalidDescription("forward_to", description.forward_to, "none where RequiresSession is true")


def validate_update(old: Description, new: Description) -> None:
    """Raise `InvalidDescription` unless `new` is valid and changes nothing of `old` that is fixed at creation."""
    kind = _KIND[type(old)]
    if old.name.lower() != new.name.lower():
        raise InvalidDescription("name", new.name, f"{old.name!r}; a {kind} can't be renamed")
    for name in IMMUTABLE:
        stands, asked = getattr(old, name, None), getattr(new, name, None)
        if stands != asked:
            raise InvalidDescription(name, asked, f"{stands!r}; it is fixed when the {kind} is created")
    validate(new)


def validate_authorization_rule(rule: AuthorizationRule) -> None:
    """Raise `InvalidDescription` for an invalid authorization rule; the error never shows a key."""
    name = rule.key_name
    if not isinstance(name, str) or not 0 < len(name) <= KEY_CHARS_MAX:
        raise InvalidDescription("key_name", name, f"1 to {KEY_CHARS_MAX} characters")
    rights = set(rule.rights)
    if not rights or not rights <= set(RIGHTS):
        raise InvalidDescription("rights", ", ".join(map(str, rule.rights)), f"one or more of {', '.join(RIGHTS)}")
    if "Manage" in rights and len(rights) < len(RIGHTS):
        raise InvalidDescription("rights", ", ".join(rule.rights), "Manage only together with Send and Listen")
    for which, key in (("primary_key", rule.primary_key), ("secondary_key", rule.secondary_key)):
        missing = which == "primary_key" and not key
        if missing or not isinstance(key, str) or len(key) > KEY_CHARS_MAX:
            raise InvalidDescription(which, f"text of {len(key)} characters", f"1 to {KEY_CHARS_MAX} characters")


# The service takes only 256 or ≥ 1024 for max_message_size_kb; we take smaller ones too. Which sizes an entity may have
# in its namespace is decided in operations/quotas.py.
_ALL_CHECKS: Final[dict[str, Check]] = {
    "lock_duration": (seconds(0.0, LOCK_DURATION_S_MAX), "a duration above zero, up to 5 minutes"),
    "max_size_mb": (whole(1, SIZE_MB_MAX), f"a whole number from 1 to {SIZE_MB_MAX}"),
    "requires_duplicate_detection": BOOLEAN,
    "requires_session": BOOLEAN,
    "default_ttl": (seconds(0.0, math.inf), "a duration above zero"),
    "dead_letter_on_expiration": BOOLEAN,
    "dead_letter_on_filter_errors": BOOLEAN,
    "duplicate_window": (seconds(0.0, 7 * 86400.0), "a duration above zero, up to 7 days"),
    "max_delivery_count": (whole(1, DELIVERY_COUNT_MAX), f"a whole number from 1 to {DELIVERY_COUNT_MAX}"),
    "enable_batched_operations": BOOLEAN,
    "status": (lambda value: value in STATUSES, ", ".join(STATUSES)),
    "support_ordering": BOOLEAN,
    "auto_delete_on_idle": (seconds(299.999, math.inf), "a duration of at least 5 minutes"),
    "enable_partitioning": BOOLEAN,
    "enable_express": BOOLEAN,
    "user_metadata": (optional_text(USER_METADATA_CHARS_MAX), f"up to {USER_METADATA_CHARS_MAX} characters"),
    "max_message_size_kb": (whole(1, MESSAGE_SIZE_KB_MAX), f"a whole number from 1 to {MESSAGE_SIZE_KB_MAX}"),
    "authorization_rules": (
        lambda value: isinstance(value, tuple) and len(value) <= AUTHORIZATION_RULES_MAX,
        f"up to {AUTHORIZATION_RULES_MAX} rules",
    ),
}

_CHECKS: Final[dict[type, Mapping[str, Check]]] = {
    kind: {name: check for name, check in _ALL_CHECKS.items() if name in {f.name for f in fields(kind)}}
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}
