from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path

import pytest

from pairbus.broker import serve
from pairbus.broker.access.authorization import Authorization, claims_of_key, rules_in_force
from pairbus.broker.model.description import QueueDescription, TopicDescription
from pairbus.sas import LISTEN, SEND, AuthorizationRule, Claims, EntityRule
from pairbus.wire import Login, Unauthorized, WireClient
from tests.broker.fake_namespace import FakeNamespace, entity


def claims(path: str = "", *rights: str, expires_at: float = 100.0, key: str = "k") -> Claims:
    return Claims(path, frozenset(rights or (SEND, LISTEN)), expires_at, key)


def test_nothing_is_allowed_before_a_token_is_put() -> None:
    authorization = Authorization()
    assert not authorization
    assert not authorization.allows(SEND, "q", 0.0)
    assert authorization.deadline is None
    assert not authorization.expire(1e9)


def test_rights_and_scopes_of_several_tokens_add_up() -> None:
    authorization = Authorization()
    authorization.put(claims("q", SEND))
    authorization.put(claims("r", LISTEN))
    assert authorization.allows(SEND, "Q", 0.0)
    assert authorization.allows(LISTEN, "r/$DeadLetterQueue", 0.0)
    assert not authorization.allows(LISTEN, "q", 0.0)
    assert not authorization.allows(SEND, "r", 0.0)
    assert not authorization.allows(SEND, "q2", 0.0)


def test_a_token_counts_until_it_expires_and_is_dropped_then() -> None:
    authorization = Authorization()
    authorization.put(claims(expires_at=100.0))
    authorization.put(claims("q", expires_at=200.0))
    assert authorization.deadline == 100.0
    assert authorization.allows(SEND, "r", 99.9)
    assert not authorization.allows(SEND, "r", 100.0)
    assert authorization.expire(100.0)
    assert not authorization.expire(100.0)
    assert authorization.deadline == 200.0


def test_a_renewed_token_replaces_the_old_one() -> None:
    authorization = Authorization()
    authorization.put(claims(expires_at=100.0))
    authorization.put(claims(expires_at=500.0))
    assert authorization.deadline == 500.0
    authorization.put(claims(expires_at=math.inf, key="other"))
    assert authorization.deadline == 500.0


def test_the_number_of_tokens_is_bounded_and_the_oldest_go() -> None:
    authorization = Authorization()
    for number in range(1500):
        authorization.put(claims(f"q{number}"))
    assert not authorization.allows(SEND, "q0", 0.0)
    assert authorization.allows(SEND, "q1499", 0.0)
    assert repr(authorization) == "<Authorization 1000 tokens>"


def test_a_rule_is_in_force_where_it_stands() -> None:
    root = AuthorizationRule(key_name="root", rights=("Manage",), primary_key="p")
    own = AuthorizationRule(key_name="own", rights=("Send",), primary_key="q", created_at=5.0)
    namespace = FakeNamespace()
    namespace.queues["orders"] = entity(QueueDescription(name="Orders", authorization_rules=(own,)))
    namespace.queues["orders/eu"] = entity(QueueDescription(name="orders/eu"))
    namespace.topics["news"] = entity(TopicDescription(name="news", authorization_rules=(own,)))
    namespace.topics["news"].subscriptions["all"] = entity(None)

    def names(path: str) -> list[str]:
        return [rule.key_name for rule in rules_in_force((root,), namespace, path)]

    for path in ("orders", "orders/$deadletterqueue", "orders/$management", "news", "news/subscriptions/all"):
        assert names(path) == ["root", "own"]
    for path in ("", "orders/eu", "orders/other", "orders/eu/$deadletterqueue", "absent", "subscriptions/all"):
        assert names(path) == ["root"]
    found = list(rules_in_force((), namespace, "news/subscriptions/all"))
    assert found == [EntityRule(entity="news", **dataclasses.asdict(own))]
    assert "'q'" not in repr(found)


def test_a_key_opens_the_entities_that_it_belongs_to() -> None:
    root = AuthorizationRule(key_name="k", rights=("Manage",), primary_key="p")
    own = AuthorizationRule(key_name="k", rights=("Send",), primary_key="q")
    namespace = FakeNamespace()
    for name in ("orders", "orders/eu", "orders/eu/fr"):
        rules = (own,) if name != "orders/eu/fr" else ()
        namespace.queues[name] = entity(QueueDescription(name=name, authorization_rules=rules))
    namespace.topics["news"] = entity(TopicDescription(name="news", authorization_rules=(own,)))
    authorization = Authorization()
    for claims in claims_of_key((root,), namespace, "k", "q"):
        authorization.put(claims)
    for path in ("orders", "Orders/$management", "orders/eu", "news"):
        assert authorization.allows(SEND, path, 0.0) and not authorization.allows(LISTEN, path, 0.0)
    for path in ("", "orders/eu/fr", "absent"):
        assert not authorization.allows(SEND, path, 0.0)
    assert [claims.entity for claims in claims_of_key((root,), namespace, "k", "p")] == [""]
    assert claims_of_key((root,), namespace, "K", "q") == []


async def test_sasl_plain_takes_the_key_of_an_entity(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path) as broker:
        host = broker.namespaces["contoso"]
        for name in ("orders", "refunds"):
            rules = (AuthorizationRule(key_name="own", rights=("Send",), primary_key=f"key of {name}"),)
            made = asyncio.get_running_loop().create_future()
            host.namespace.registry.create(QueueDescription(name=name, authorization_rules=rules), 0.0, made.set_result)
            assert await made is None
        async with WireClient("127.0.0.1", host.port, tls=False, credential=Login("own", "key of orders")) as client:
            await client.sender("orders")
            with pytest.raises(Unauthorized):
                await client.sender("refunds")
            with pytest.raises(Unauthorized):
                await client.receiver("orders")
        async with WireClient("127.0.0.1", host.port, tls=False, credential=Login("own", "another")) as client:
            with pytest.raises(Unauthorized):
                await client.connect()
