"""Keeps the keys of a namespace: the root rule, created at random at the first start, and those added later.

They are kept in one file that only its owner can read. An entity's own rules are part of its description.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import (
    RIGHTS,
    QueueDescription,
    TopicDescription,
    validate,
    validate_authorization_rule,
)
from pairbus.broker.operations.namespace import Namespace
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.durable_files import write_file
from pairbus.errors import BrokerError
from pairbus.sas import AuthorizationRule

from .authorization import complete_rule, ordered_rights

ROOT_RULE = "RootManageSharedAccessKey"
NAMESPACE_RULES_MAX = 100
_FILE = "keys.json"


def random_key() -> str:
    """Return a new key of 32 random bytes, in base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def granted(
    rules: Iterable[AuthorizationRule], name: str, rights: tuple[str, ...], now: float
) -> tuple[tuple[AuthorizationRule, ...], AuthorizationRule]:
    """Return `rules` with the rule of that name added or given these rights, and that rule. An existing one keeps its
    keys. Raise InvalidDescription for a name or rights that can't be."""
    by_name = {rule.key_name: rule for rule in rules}
    wanted = AuthorizationRule(key_name=name, rights=ordered_rights(rights), primary_key="")
    new = dataclasses.replace(complete_rule(wanted, by_name.get(name), random_key, now), modified_at=now)
    validate_authorization_rule(new)
    by_name[name] = new
    return tuple(by_name.values()), new


class KeyRing:
    """The rules of a namespace, the root rule first."""

    def __init__(self, path: Path, rules: tuple[AuthorizationRule, ...]) -> None:
        self._path = path
        self._stored = rules
        self._lent: str | None = None
        self.rules = rules
        """The rules in force."""

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(rule.key_name for rule in self.rules)}>"

    @property
    def root(self) -> AuthorizationRule:
        return self.rules[0]

    @classmethod
    def load(cls, folder: Path) -> KeyRing:
        """Read the key file of a namespace's folder, or make it with a new root rule. Raise BrokerError for a file that
        is damaged."""
        path = folder / _FILE
        try:
            rules = tuple(AuthorizationRule.from_json(each) for each in json.loads(path.read_text()))
            for rule in rules:
                validate_authorization_rule(rule)
            if not rules or rules[0].key_name != ROOT_RULE:
                raise ValueError(f"its first rule is not {ROOT_RULE}")
            return cls(path, rules)
        except FileNotFoundError:
            ring = cls(path, ())
            ring._put(granted((), ROOT_RULE, RIGHTS, 0.0)[0])
            return ring
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerError(
                f"{path} is not a key file ({error}); put it back from a copy, or remove it to have new keys made"
            ) from None

    def grant(self, name: str, rights: tuple[str, ...], now: float) -> AuthorizationRule:
        """Add a rule, or give the one of that name these rights; it is on disk when this returns. Raise
        InvalidDescription for what can't be, and OSError."""
        if name == ROOT_RULE:
            raise InvalidDescription("name", name, "another: the root rule keeps all rights")
        rules, rule = granted(self._stored, name, rights, now)
        if len(rules) > NAMESPACE_RULES_MAX:
            raise InvalidDescription(
                "name", name, f"one of those there are: a namespace has up to {NAMESPACE_RULES_MAX}"
            )
        self._put(rules)
        return rule

    def lend(self, root_key: str) -> None:
        """Replace the root rule's primary key while the process runs. It is never written to disk: a key that everybody
        knows must not be in force at the next start, when others may reach the broker."""
        self._lent = root_key
        self.rules = self._in_force(self._stored)

    def _in_force(self, stored: tuple[AuthorizationRule, ...]) -> tuple[AuthorizationRule, ...]:
        if self._lent is None:
            return stored
        return (dataclasses.replace(stored[0], primary_key=self._lent), *stored[1:])

    def put(self, rules: tuple[AuthorizationRule, ...]) -> None:
        """Replace all rules; the first must be the root rule with all rights. They are on disk when this returns."""
        for rule in rules:
            validate_authorization_rule(rule)
        if not rules or rules[0].key_name != ROOT_RULE or set(rules[0].rights) != set(RIGHTS):
            raise InvalidDescription("rights", f"less than all of {ROOT_RULE}", "the root rule keeps all rights")
        if len(rules) > NAMESPACE_RULES_MAX:
            raise InvalidDescription("rules", f"{len(rules)} of them", f"up to {NAMESPACE_RULES_MAX} for a namespace")
        if rules != self._stored:
            self._put(rules)

    def _put(self, rules: tuple[AuthorizationRule, ...]) -> None:
        # written whole and synced before it has its name: half a key file would lock everybody out
        write_file(self._path, json.dumps([rule.to_json() for rule in rules]).encode())
        self._stored = rules
        self.rules = self._in_force(rules)


def grant_on_entity(
    namespace: Namespace,
    path: str,
    name: str,
    rights: tuple[str, ...],
    now: float,
    done: Callable[[AuthorizationRule | Refusal | Exception], None],
) -> None:
    """Do as `KeyRing.grant`, on a queue or topic; `done` gets the rule when it is on disk, or the reason why not."""
    entity = namespace.registry.find(path.strip("/"))
    try:
        if entity is None:
            raise InvalidDescription("entity", path, "the name of a queue or topic that exists")
        old = entity.description
        assert isinstance(old, QueueDescription | TopicDescription)
        rules, rule = granted(old.authorization_rules, name, rights, now)
        new = dataclasses.replace(old, authorization_rules=rules, updated_at=now)
        validate(new)
    except InvalidDescription as error:
        done(error)
        return
    namespace.registry.update(new, now, lambda failure: done(rule if failure is None else failure))
