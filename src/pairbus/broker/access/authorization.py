"""Which rules are in force where, and what the tokens that a connection has put permit, and until when
(docs/reference/protocol.md#tokens-over-cbs).

Several tokens may be in force at once (JS puts one per link); the newest of a scope and key replaces the older.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from pairbus.broker.model.description import AuthorizationRule
from pairbus.sas import Claims, EntityRule, owner_path

#: A client puts one token per entity it touches; beyond this the oldest go.
_CLAIMS_MAX = 1000


class Entities(Protocol):
    """What is read of a namespace. Keys are lower-cased names."""

    @property
    def queues(self) -> Mapping[str, Any]: ...
    @property
    def topics(self) -> Mapping[str, Any]: ...


def rules_in_force(
    namespace_rules: Iterable[AuthorizationRule], namespace: Entities, path: str
) -> Iterator[AuthorizationRule]:
    """At a path, lower-cased: the namespace's own, and those of the queue or topic that the path belongs to. A
    subscription has none of its own."""
    yield from namespace_rules
    owner = owner_path(path)
    entity = namespace.queues.get(owner)
    if entity is None:
        entity = namespace.topics.get(owner)
    if entity is not None:
        for rule in entity.description.authorization_rules:
            yield EntityRule(entity=owner, **(rule.to_json() | {"rights": rule.rights}))


class Authorization:
    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claims] = {}

    def __repr__(self) -> str:
        return f"<Authorization {len(self._claims)} tokens>"

    def __bool__(self) -> bool:
        return bool(self._claims)

    def put(self, claims: Claims) -> None:
        key = (claims.scope_path, claims.key_name)
        self._claims.pop(key, None)
        self._claims[key] = claims
        if len(self._claims) > _CLAIMS_MAX:
            del self._claims[next(iter(self._claims))]

    def allows(self, right: str, path: str, now: float) -> bool:
        return any(claims.expires_at > now and claims.allows(right, path) for claims in self._claims.values())

    def expire(self, now: float) -> bool:
        """Drops what has run out and says whether anything did."""
        gone = [key for key, claims in self._claims.items() if claims.expires_at <= now]
        for key in gone:
            del self._claims[key]
        return bool(gone)

    @property
    def deadline(self) -> float | None:
        return min((claims.expires_at for claims in self._claims.values()), default=None)
