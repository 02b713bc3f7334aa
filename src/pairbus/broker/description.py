"""What a queue is said to be: the fields of its description, their defaults and what each may hold.

Decides whether a description may be created or replace another one. Does not know XML (atom.py) nor the journal
(records.py): `to_json`/`from_json` are the neutral form that is stored.

Defaults and bounds are the service's (dialect 7). Features that are not built yet are refused when they are asked for,
never taken and ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Self

from pairbus.errors import PairbusError

RIGHTS = ("Manage", "Send", "Listen")
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

NAME_CHARS_MAX = 260
LOCK_DURATION_S_MAX = 300.0
SIZE_MB_MAX = 81920
MESSAGE_SIZE_KB_MAX = 102400
DELIVERY_COUNT_MAX = 2147483647
USER_METADATA_CHARS_MAX = 1024
AUTHORIZATION_RULES_MAX = 12

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?", re.ASCII)


class InvalidDescription(PairbusError, ValueError):
    """A field holds what it may not hold. `field` is our name for it; atom.py knows the service's."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} may not be {value!r}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys and what they permit. The keys stay out of `repr`."""

    key_name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    created_at: float = 0.0
    modified_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"rights": list(self.rights)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**(data | {"rights": tuple(data["rights"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """Durations and times are seconds; `math.inf` stands for the service's "never"."""

    name: str
    lock_duration: float = 60.0
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl: float = math.inf
    dead_letter_on_expiration: bool = False
    duplicate_window: float = 600.0
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle: float = math.inf
    enable_partitioning: bool = False
    enable_express: bool = False
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    max_message_size_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    created_at: float = 0.0
    updated_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Every field, so that a later change of a default does not change what is stored. Infinity becomes null."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _INFINITE:
            if data[name] == math.inf:
                data[name] = None
        data["authorization_rules"] = [rule.to_json() for rule in self.authorization_rules]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        for name in data:
            if name not in known:
                # Dropping it would lose it for good at the next write.
                raise InvalidDescription(name, data[name], "a field of this version: " + ", ".join(sorted(known)))
        data = dict(data)
        for name in _INFINITE:
            if name in data and data[name] is None:
                data[name] = math.inf
        data["authorization_rules"] = tuple(AuthorizationRule.from_json(r) for r in data.get("authorization_rules", ()))
        return cls(**data)


_INFINITE = ("default_ttl", "auto_delete_on_idle", "duplicate_window")

# Built by later work; until then only the default is taken.
_NOT_SUPPORTED_YET = (
    "requires_duplicate_detection",
    "requires_session",
    "default_ttl",
    "duplicate_window",
    "status",
    "auto_delete_on_idle",
    "enable_partitioning",
    "forward_to",
    "forward_dead_lettered_to",
    "authorization_rules",
)

_IMMUTABLE = ("requires_session", "requires_duplicate_detection", "enable_partitioning")

_DEFAULTS = QueueDescription(name="a")


def validate(description: QueueDescription) -> None:
    """Raise `InvalidDescription` for the first field that can't be."""
    validate_name(description.name)
    for name, (right, allowed) in _CHECKS.items():
        value = getattr(description, name)
        if not right(value):
            raise InvalidDescription(name, value, allowed)
    for name in _NOT_SUPPORTED_YET:
        value = getattr(description, name)
        default = getattr(_DEFAULTS, name)
        if value != default:
            raise InvalidDescription(name, value, f"{default!r}; anything else is not supported yet")


def validate_update(old: QueueDescription, new: QueueDescription) -> None:
    """`old` is what stands, `new` what shall stand: valid in itself, and nothing changed that is fixed at creation."""
    if old.name.lower() != new.name.lower():
        raise InvalidDescription("name", new.name, f"{old.name!r}; a queue can't be renamed")
    for name in _IMMUTABLE:
        stands, asked = getattr(old, name), getattr(new, name)
        if stands != asked:
            raise InvalidDescription(name, asked, f"{stands!r}; it is fixed when the queue is created")
    validate(new)


def validate_name(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidDescription("name", name, f"1 to {NAME_CHARS_MAX} characters")
    segments = name.split("/")
    if not _NAME.fullmatch(name) or "" in segments:
        raise InvalidDescription(
            "name",
            name,
            "letters, digits, and . - _ ~ / between them; it starts and ends with a letter or digit, no empty segment",
        )
    for index, segment in enumerate(segments):
        # Dots are folded away by HTTP clients; the other one is how a subscription is addressed (dialect 3).
        if segment in (".", "..") or (index and segment.lower() == "subscriptions"):
            raise InvalidDescription("name", name, f"a name without the segment {segment!r}")


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _seconds(low: float, high: float) -> Callable[[Any], bool]:
    """Past `low`, up to `high`. A NaN compares false and is out."""
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and low < value <= high


def _optional_text(chars_max: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (isinstance(value, str) and len(value) <= chars_max)


_BOOLEAN = (_flag, "true or false")

# The service takes only 1024 … 5120 (Standard) or its Premium steps for max_size_mb, and 256 or ≥ 1024 for
# max_message_size_kb; we take smaller ones too, so that a test can fill a queue.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lock_duration": (_seconds(0.0, LOCK_DURATION_S_MAX), "a duration above zero, up to 5 minutes"),
    "max_size_mb": (_whole(1, SIZE_MB_MAX), f"a whole number from 1 to {SIZE_MB_MAX}"),
    "requires_duplicate_detection": _BOOLEAN,
    "requires_session": _BOOLEAN,
    "default_ttl": (_seconds(0.0, math.inf), "a duration above zero"),
    "dead_letter_on_expiration": _BOOLEAN,
    "duplicate_window": (_seconds(0.0, 7 * 86400.0), "a duration above zero, up to 7 days"),
    "max_delivery_count": (_whole(1, DELIVERY_COUNT_MAX), f"a whole number from 1 to {DELIVERY_COUNT_MAX}"),
    "enable_batched_operations": _BOOLEAN,
    "status": (lambda value: value in STATUSES, ", ".join(STATUSES)),
    "auto_delete_on_idle": (_seconds(299.999, math.inf), "a duration of at least 5 minutes"),
    "enable_partitioning": _BOOLEAN,
    "enable_express": _BOOLEAN,
    "user_metadata": (_optional_text(USER_METADATA_CHARS_MAX), f"up to {USER_METADATA_CHARS_MAX} characters"),
    "max_message_size_kb": (_whole(1, MESSAGE_SIZE_KB_MAX), f"a whole number from 1 to {MESSAGE_SIZE_KB_MAX}"),
    "authorization_rules": (
        lambda value: isinstance(value, tuple) and len(value) <= AUTHORIZATION_RULES_MAX,
        f"up to {AUTHORIZATION_RULES_MAX} rules",
    ),
}
