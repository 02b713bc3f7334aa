"""Decides which authorization rules hold at a path, and what the tokens of a connection permit until when. Pure.

See docs/reference/protocol.md#tokens-over-cbs.

Several tokens may be in force at once (the JavaScript SDK sends one per link); a newer token of the same scope and key
replaces the older one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote

from pairbus.broker.model.description import RIGHTS
from pairbus.sas import AuthorizationRule, Claims, EntityRule, owner_path

#: A client puts one token per entity it touches; beyond this the oldest go.
_CLAIMS_MAX = 1000


class Entities(Protocol):
    """The queues and topics of a namespace, by lower-case name. A pure module can't import `Namespace` itself."""

    @property
    def queues(self) -> Mapping[str, Any]: ...
    @property
    def topics(self) -> Mapping[str, Any]: ...


def rules_in_force(
    namespace_rules: Iterable[AuthorizationRule], namespace: Entities, path: str
) -> Iterator[AuthorizationRule]:
    """Yield the rules in force at a lower-case path: the namespace's own, and those of the queue or topic that the path
    belongs to. A subscription has no rules of its own."""
    yield from namespace_rules
    owner = owner_path(path)
    entity = namespace.queues.get(owner)
    if entity is None:
        entity = namespace.topics.get(owner)
    if entity is not None:
        for rule in entity.description.authorization_rules:
            yield EntityRule(entity=owner, **(rule.to_json() | {"rights": rule.rights}))


def claims_of_key(
    namespace_rules: Iterable[AuthorizationRule], namespace: Entities, key_name: str, key: str
) -> list[Claims]:
    """Return what the rules permit of which this is name and key: one of the namespace, or those of its entities, each
    for its entity alone."""
    # in one turn of the loop: ten thousand entities take two milliseconds
    entities = [*namespace.queues.items(), *namespace.topics.items()]
    owned = [("", rule) for rule in namespace_rules]
    owned += [(path, rule) for path, entity in entities for rule in entity.description.authorization_rules]
    return [
        Claims(path, frozenset(rule.rights), float("inf"), key_name, path)
        for path, rule in owned
        if rule.key_name == key_name and _is_key_of(rule, key.encode())
    ]


def _is_key_of(rule: AuthorizationRule, given: bytes) -> bool:
    matches = [hmac.compare_digest(each.encode(), given) for each in (rule.primary_key, rule.secondary_key)]
    return any(matches) and bool(given)


def key_name_in(token: str) -> str:
    """Return the name of the key that a token says it is signed with; it is not checked."""
    _, _, rest = token.partition("skn=")
    return unquote(rest.partition("&")[0])


def ordered_rights(rights: Collection[str]) -> tuple[str, ...]:
    """Return the rights in the service's order; unknown ones, which validation refuses by name, come last."""
    return tuple(right for right in RIGHTS if right in rights) + tuple(r for r in rights if r not in RIGHTS)


def complete_rule(
    rule: AuthorizationRule, before: AuthorizationRule | None, new_key: Callable[[], str], now: float
) -> AuthorizationRule:
    """Return the rule with its times, and in place of each empty key that of `before`, the rule that it replaces, or a
    new one."""
    complete = replace(
        rule,
        primary_key=rule.primary_key or (before.primary_key if before else new_key()),
        secondary_key=rule.secondary_key or (before.secondary_key if before else new_key()),
        created_at=before.created_at if before else now,
        modified_at=before.modified_at if before else now,
    )
    return complete if complete == before else replace(complete, modified_at=now)


class Authorization:
    """The tokens of one connection."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claims] = {}

    def __repr__(self) -> str:
        return f"<Authorization {len(self._claims)} tokens>"

    def __bool__(self) -> bool:
        return bool(self._claims)

    def put(self, claims: Claims) -> None:
        """Add a verified token; it replaces an older one of the same scope and key."""
        key = (claims.scope_path, claims.key_name)
        self._claims.pop(key, None)
        self._claims[key] = claims
        if len(self._claims) > _CLAIMS_MAX:
            del self._claims[next(iter(self._claims))]

    @property
    def key_names(self) -> set[str]:
        """The names of the keys that signed them."""
        return {key_name for _, key_name in self._claims}

    def allows(self, right: str, path: str, now: float) -> bool:
        """Return whether one of the tokens that have not expired permits this on the entity at the path."""
        return any(claims.expires_at > now and claims.allows(right, path) for claims in self._claims.values())

    def expire(self, now: float) -> bool:
        """Forget the tokens that have expired and return whether there were any."""
        gone = [key for key, claims in self._claims.items() if claims.expires_at <= now]
        for key in gone:
            del self._claims[key]
        return bool(gone)

    @property
    def deadline(self) -> float | None:
        """When the next token expires."""
        return min((claims.expires_at for claims in self._claims.values()), default=None)
