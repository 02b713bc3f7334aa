"""A plan carried out: on a namespace of plain dictionaries, and on the broker's own."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.broker import NamespaceServer, serve
from pairbus.broker.access.keys import KeyRing
from pairbus.broker.config.apply_plan import apply_keys, apply_plan, read_config
from pairbus.broker.config.config_file import parse
from pairbus.broker.config.plan import NamespacePlan
from pairbus.broker.model.rule_description import RuleDescription, TrueFilter
from pairbus.broker.refusal import Refusal
from pairbus.errors import PairbusError
from pairbus.sas import AuthorizationRule
from tests.broker.fake_namespace import FakeNamespace
from tests.broker.namespace_rig import Rig
from tests.broker.sdk import Sdk

from .test_config_file import block

NOW = 1_700_000_000.0


def planned(text: str) -> NamespacePlan:
    return parse(text, is_json=False)[0]


async def carried_out(namespace: Any, plan: NamespacePlan) -> list[str]:
    namespace.asked.clear()
    await apply_plan(namespace, plan, lambda: NOW)
    return list(namespace.asked)


async def test_what_is_missing_is_made_once() -> None:
    namespace, plan = FakeNamespace("contoso"), planned(block("toml"))
    assert await carried_out(namespace, plan) == [
        "create orders",
        "create carts",
        "create news",
        "create news/all",
        "create news/sport",
        "create news/sport/chess",
    ]
    assert list(namespace.topics["news"].subscriptions["all"].rules) == ["$default"]
    assert list(namespace.topics["news"].subscriptions["sport"].rules) == ["football", "chess"]
    (web,) = namespace.queues["orders"].description.authorization_rules
    assert web.primary_key == "a key that a test can know"
    assert len(web.secondary_key) == 44
    assert await carried_out(namespace, plan) == []


async def test_what_differs_is_changed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    namespace, plan = FakeNamespace("contoso"), planned(block("toml"))
    await carried_out(namespace, plan)
    orders = namespace.queues["orders"]
    orders.description = replace(orders.description, max_delivery_count=9, user_metadata="kept")
    sport = namespace.topics["news"].subscriptions["sport"]
    sport.rules["chess"] = RuleDescription(name="chess", filter=TrueFilter())
    sport.rules["golf"] = RuleDescription(name="golf")
    sport.description = replace(sport.description, max_delivery_count=1)
    with caplog.at_level(logging.WARNING):
        assert await carried_out(namespace, plan) == ["update orders", "update news/sport", "update news/sport/chess"]
    assert [record.getMessage() for record in caplog.records] == [
        "contoso: queue 'orders' is changed, as configured",
        "contoso: subscription news/sport is changed, as configured",
        "contoso: rule 'chess' of subscription news/sport is changed, as configured",
    ]
    assert (orders.description.max_delivery_count, orders.description.user_metadata) == (5, "kept")
    assert set(sport.rules) == {"football", "chess", "golf"}


async def test_what_is_fixed_stays_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    namespace, plan = FakeNamespace("contoso"), planned(block("toml"))
    await carried_out(namespace, plan)
    carts = namespace.queues["carts"]
    carts.description = replace(carts.description, requires_session=False)
    with caplog.at_level(logging.WARNING):
        assert await carried_out(namespace, plan) == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "contoso: queue 'carts' stands otherwise than configured: "
        "requires_session can't become True; it stays False; it is fixed when the queue is created"
    )


async def test_a_refusal_ends_the_start() -> None:
    namespace, plan = FakeNamespace("contoso"), planned(block("toml"))
    namespace.error = Refusal("amqp:internal-error", "the disk is full")
    with pytest.raises(PairbusError, match=r"contoso: queue 'orders' of the configuration can't be made: the disk"):
        await carried_out(namespace, plan)


def test_keys_of_the_namespace(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path)
    root = ring.root
    job = AuthorizationRule(key_name="job", rights=("Listen",), primary_key="")
    apply_keys(ring, NamespacePlan(name="contoso", keys=(job,)), NOW)
    assert [rule.key_name for rule in ring.rules] == [root.key_name, "job"]
    everything = ("Manage", "Send", "Listen")
    known = AuthorizationRule(key_name=root.key_name, rights=everything, primary_key="SAS_KEY_VALUE")
    apply_keys(ring, NamespacePlan(name="contoso", keys=(known,)), NOW)
    again = KeyRing.load(tmp_path)
    assert (again.root.primary_key, again.root.secondary_key) == ("SAS_KEY_VALUE", root.secondary_key)
    assert len(again.rules) == 2
    with pytest.raises(PairbusError, match=r"contoso: authorization rules .* keeps all rights"):
        apply_keys(ring, NamespacePlan(name="contoso", keys=(replace(known, rights=("Send",)),)), NOW)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.toml", b"\xff", "the file is not UTF-8 (byte 0)"),
        ("x.toml", b"[namespaces.A]", "x.toml: namespaces.A can't name a namespace"),
        ("x.json", b"[namespaces.a]", "x.json: the file is not JSON"),
        ("x.toml", b'{"UserConfig": {}}', "x.toml: the file is not TOML"),
        ("x", b' {"UserConfig": {}}', "x: Namespaces is empty"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PairbusError) as caught:
        read_config(tmp_path / name)
    assert words in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PairbusError, match=r"can't be read: .*No such file"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(PairbusError, match="can't be read"):
        read_config(tmp_path)


def test_a_mark_in_front_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "a"}]}}), encoding="utf-8-sig")
    assert [plan.name for plan in read_config(path)] == ["a"]


QUEUES = """
[namespaces.contoso]
link_idle_timeout = 30

[[namespaces.contoso.queues]]
name = "orders"
lock_duration = 30

[[namespaces.contoso.authorization_rules]]
name = "sender"
rights = ["Send"]
primary_key = "a2V5"
[namespaces.fabrikam]
"""


async def test_a_broker_with_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(QUEUES)
    async with serve(data=tmp_path / "data", config=config) as broker:
        assert list(broker.namespaces) == ["contoso", "fabrikam"]
        contoso = broker.namespaces["contoso"]
        assert contoso.link_idle_timeout_s == 30.0
        sdk = Sdk(True, contoso)
        await sdk.send("orders", ServiceBusMessage("hello"))
        async with sdk.admin() as admin:
            assert (await admin.get_queue("orders")).lock_duration.total_seconds() == 30
            await admin.create_queue("mine")
        head = contoso.connection_string.partition("SharedAccessKeyName=")[0]
        text = f"{head}SharedAccessKeyName=sender;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
        async with sdk.client(text) as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("by the sender's key"))
    config.write_text(QUEUES.replace("lock_duration = 30", "lock_duration = 20"))
    async with serve("contoso", data=tmp_path / "data", config=config) as broker:
        assert list(broker.namespaces) == ["contoso"]
        sdk = Sdk(True, broker.namespaces["contoso"])
        async with sdk.admin() as admin:
            assert (await admin.get_queue("orders")).lock_duration.total_seconds() == 20
            assert (await admin.get_queue("mine")).name == "mine"
        assert len(await sdk.receive("orders", 2)) == 2


async def received(sdk: Sdk, topic: str, subscription: str) -> list[str]:
    async with sdk.client() as client:
        receiver = client.target.get_subscription_receiver(topic, subscription)
        async with receiver:
            return sorted(str(m) for m in await receiver.receive_messages(max_message_count=10, max_wait_time=0.5))


@pytest.mark.parametrize("language", ["toml", "json"])
async def test_the_document_s_examples_run(tmp_path: Path, language: str) -> None:
    config = tmp_path / f"example.{language}"
    config.write_text(block(language))
    for _ in range(2):
        async with serve(data=tmp_path / "data", config=config) as broker:
            served: NamespaceServer = next(iter(broker.namespaces.values()))
            sdk = Sdk(True, served)
            async with sdk.admin() as admin:
                topics = [topic.name for topic in await admin.collect("list_topics")]
            assert topics == (["news"] if language == "toml" else ["topic.1"])
    if language == "json":
        return
    async with serve("contoso", data=tmp_path / "data", config=config) as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        async with sdk.client() as client, client.target.get_topic_sender("news") as sender:
            for game, live in (("football", True), ("football", False), ("chess", False)):
                properties = {"game": game, "live": live}
                await sender.send_messages(
                    ServiceBusMessage(f"{game} {live}", subject="sport", application_properties=properties)
                )
        assert await received(sdk, "news", "all") == ["chess False", "football False", "football True"]
        assert await received(sdk, "news", "sport") == ["chess False", "football True"]


FORWARDING = """
[[namespaces.contoso.queues]]
name = "first"
forward_to = "news"
[[namespaces.contoso.queues]]
name = "round"
forward_to = "sb://contoso.example/round"
forward_dead_lettered_messages_to = "first"
[[namespaces.contoso.topics]]
name = "news"
[[namespaces.contoso.topics.subscriptions]]
name = "all"
forward_to = "last"
[[namespaces.contoso.queues]]
name = "last"
"""


async def test_entities_forward_once_all_of_them_exist(bare: Rig, caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(FORWARDING)

    async def carry_out(plan: NamespacePlan) -> None:
        task = asyncio.create_task(apply_plan(bare.namespace, plan, lambda: bare.now))
        while not task.done():
            bare.run()
            await asyncio.sleep(0)
        await task

    with caplog.at_level(logging.WARNING):
        await carry_out(plan)
        await carry_out(plan)
    assert caplog.records == []
    queues = bare.namespace.queues
    assert queues["first"].description.forward_to == "news"
    assert (queues["round"].description.forward_to, queues["round"].description.forward_dead_lettered_to) == (
        "round", "first"
    )  # fmt: skip
    subscription = bare.namespace.registry.find_subscription("news", "all")
    assert subscription is not None and subscription.description.forward_to == "last"
    with pytest.raises(PairbusError, match="queue 'first' of the configuration can't be changed: ForwardTo may not be"):
        await carry_out(planned(FORWARDING.replace('forward_to = "news"', 'forward_to = "gone"')))
    await carry_out(planned('[[namespaces.contoso.queues]]\nname = "first"\nforward_to = ""'))
    assert queues["first"].description.forward_to is None
