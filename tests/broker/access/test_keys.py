from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path

import pytest

from pairbus.broker.access.authorization import claims_of_key
from pairbus.broker.access.keys import NAMESPACE_RULES_MAX, ROOT_RULE, KeyRing, grant_on_entity, random_key
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import RIGHTS, QueueDescription, TopicDescription
from pairbus.broker.refusal import Refusal
from pairbus.errors import BrokerError
from pairbus.sas import AuthorizationRule
from tests.broker.fake_namespace import FakeNamespace, entity

NOW = 1_700_000_000.0


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path)
    (rule,) = ring.rules
    assert rule is ring.root and rule.key_name == ROOT_RULE
    assert set(rule.rights) == {"Manage", "Send", "Listen"}
    assert len(base64.b64decode(rule.primary_key)) == len(base64.b64decode(rule.secondary_key)) == 32
    assert rule.primary_key != rule.secondary_key
    assert KeyRing.load(tmp_path).rules == ring.rules
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_namespaces_have_different_keys(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert KeyRing.load(tmp_path / "a").root.primary_key != KeyRing.load(tmp_path / "b").root.primary_key


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"key_name": 1', "null", "[1]",
        '[{"key_name": "other", "rights": ["Send"], "primary_key": "p"}]',
        '[{"key_name": "RootManageSharedAccessKey", "rights": ["Fly"], "primary_key": "p"}]',
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BrokerError, match=r"keys\.json"):
        KeyRing.load(tmp_path)
    assert (tmp_path / "keys.json").read_text() == text


def test_rules_are_added_and_survive(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path)
    sender = ring.grant("sender", ("Send",), NOW)
    assert (sender.rights, sender.created_at, sender.modified_at) == (("Send",), NOW, NOW)
    ring.grant("all", ("Listen", "Send", "Manage"), NOW)
    again = ring.grant("sender", ("Listen", "Send"), NOW + 1)
    assert (again.rights, again.created_at, again.modified_at) == (("Send", "Listen"), NOW, NOW + 1)
    assert again.primary_key == sender.primary_key
    assert [rule.key_name for rule in ring.rules] == [ROOT_RULE, "sender", "all"]
    assert KeyRing.load(tmp_path).rules == ring.rules
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        (ROOT_RULE, ("Send",)),
        ("", ("Send",)),
        ("x" * 300, ("Send",)),
        ("x", ()),
        ("x", ("Read",)),
        ("x", ("Manage",)),
    ],
)
def test_a_rule_that_can_not_be_changes_nothing(tmp_path: Path, name: str, rights: tuple[str, ...]) -> None:
    ring = KeyRing.load(tmp_path)
    before = (tmp_path / "keys.json").read_text()
    with pytest.raises(InvalidDescription) as info:
        ring.grant(name, rights, NOW)
    assert len(ring.rules) == 1 and (tmp_path / "keys.json").read_text() == before
    assert ring.root.primary_key not in str(info.value)


def test_a_namespace_has_so_many_rules_and_no_more(tmp_path: Path) -> None:
    rules = [KeyRing.load(tmp_path).root]
    for number in range(NAMESPACE_RULES_MAX - 1):
        rules.append(AuthorizationRule(key_name=f"k{number}", rights=("Send",), primary_key="p"))
    (tmp_path / "keys.json").write_text(json.dumps([rule.to_json() for rule in rules]))
    ring = KeyRing.load(tmp_path)
    ring.grant("k1", ("Listen",), NOW)
    with pytest.raises(InvalidDescription, match=str(NAMESPACE_RULES_MAX)):
        ring.grant("new", ("Listen",), NOW)


def test_a_key_is_found_by_its_name_and_either_half(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path)
    rule = ring.grant("k", ("Send",), NOW)

    def found(name: str, key: str) -> list[frozenset[str]]:
        return [claims.rights for claims in claims_of_key(ring.rules, FakeNamespace(), name, key)]

    assert found("k", rule.primary_key) == found("k", rule.secondary_key) == [frozenset(rule.rights)]
    assert found(ROOT_RULE, ring.root.secondary_key) == [frozenset(ring.root.rights)]
    for name, key in (("k", ring.root.primary_key), ("K", rule.primary_key), ("k", ""), ("", ""), ("k", "ü")):
        assert found(name, key) == []
    assert rule.primary_key not in repr(ring) and "k" in repr(ring)


async def granted_on(namespace: FakeNamespace, path: str, name: str, rights: tuple[str, ...]) -> object:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    grant_on_entity(namespace, path, name, rights, NOW, answer.set_result)
    return await answer


async def test_a_queue_or_topic_has_rules_of_its_own() -> None:
    namespace = FakeNamespace()
    namespace.queues["orders"] = entity(QueueDescription(name="Orders"))
    namespace.topics["news"] = entity(TopicDescription(name="News"))
    for path, stored in (("ORDERS", namespace.queues["orders"]), ("/news/", namespace.topics["news"])):
        rule = await granted_on(namespace, path, "k", ("Listen",))
        assert isinstance(rule, AuthorizationRule) and rule.rights == ("Listen",)
        assert stored.description.authorization_rules == (rule,) and stored.description.updated_at == NOW
        again = await granted_on(namespace, path, "k", RIGHTS)
        assert isinstance(again, AuthorizationRule) and again.primary_key == rule.primary_key
        assert stored.description.authorization_rules == (again,)


async def test_a_rule_of_an_entity_that_can_not_be() -> None:
    namespace = FakeNamespace()
    full = tuple(AuthorizationRule(key_name=f"k{n}", rights=("Send",), primary_key="p") for n in range(12))
    namespace.queues["orders"] = entity(QueueDescription(name="orders", authorization_rules=full))
    for path, name, rights in (("absent", "k", ("Send",)), ("orders", "k1", ("Fly",)), ("orders", "new", ("Send",))):
        assert isinstance(await granted_on(namespace, path, name, rights), InvalidDescription)
    namespace.error = Refusal("amqp:not-found", "gone")
    assert await granted_on(namespace, "orders", "k1", ("Send",)) == namespace.error
    assert namespace.queues["orders"].description.authorization_rules == full


def test_keys_are_random() -> None:
    assert len({random_key() for _ in range(100)}) == 100
