"""The management API of a running broker, through the official SDK: everything that can be described, and who may."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import AuthorizationRule, CorrelationRuleFilter

from pairbus.broker import Broker
from pairbus.broker.control.control_socket import request
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk, fresh

pytestmark = UNTIDY_SDK

REFUSED = (ServiceBusAuthorizationError, ServiceBusAuthenticationError, ClientAuthenticationError)


async def test_counts_are_live(sdk: Sdk) -> None:
    topic = fresh("topic")
    async with sdk.admin() as admin:
        await admin.create_topic(topic)
        for name in ("a", "b", "none"):
            await admin.create_subscription(topic, name)
        await admin.delete_rule(topic, "none", "$Default")
        await admin.create_rule(topic, "none", "x", filter=CorrelationRuleFilter(label="nothing has it"))
        await sdk.publish(topic, ServiceBusMessage("1"), ServiceBusMessage("2"))
        found = await admin.collect("list_subscriptions_runtime_properties", topic)
        assert [(each.name, each.active_message_count) for each in found] == [("a", 2), ("b", 2), ("none", 0)]
        runtime = await admin.get_topic_runtime_properties(topic)
        assert (runtime.subscription_count, runtime.scheduled_message_count) == (3, 0)
        assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1)
        assert runtime.size_in_bytes > 0 and runtime.accessed_at_utc.year > 2020
        later = ServiceBusMessage("later")
        later.scheduled_enqueue_time_utc = runtime.updated_at_utc + timedelta(days=300)
        await sdk.publish(topic, later)
        assert (await admin.get_topic_runtime_properties(topic)).scheduled_message_count == 1
        async with sdk.client() as client, client.get_subscription_receiver(topic, "a") as receiver:
            first, second = await receiver.receive_messages(max_message_count=2, max_wait_time=5)
            await receiver.dead_letter_message(first)
            await receiver.complete_message(second)
        runtime = await admin.get_subscription_runtime_properties(topic, "a")
        assert (runtime.active_message_count, runtime.dead_letter_message_count) == (0, 1)
        assert runtime.total_message_count == 1
        await admin.delete_topic(topic)


def with_key(sdk: Sdk, name: str, key: str) -> str:
    host = f"{sdk.namespace.host}:{sdk.namespace.port}"
    return f"Endpoint=sb://{host};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


async def may(sdk: Sdk, connection_string: str, queue: str) -> set[str]:
    """What that key lets one do with a queue. At once, as the SDK takes a second to say that it may not."""

    async def send() -> None:
        async with sdk.client(connection_string) as client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    async def listen() -> None:
        async with sdk.client(connection_string) as client, client.get_queue_receiver(queue) as receiver:
            await receiver.peek_messages()

    async def manage() -> None:
        async with sdk.admin(connection_string) as admin:
            await admin.get_queue(queue)

    results = await asyncio.gather(send(), listen(), manage(), return_exceptions=True)
    for result in results:
        if result is not None and not isinstance(result, REFUSED):
            raise result
    return {right for right, result in zip(("Send", "Listen", "Manage"), results, strict=True) if result is None}


async def add_rule(broker: Broker, **fields: Any) -> dict[str, Any]:
    message = {"command": "rule", "namespace": "contoso"} | fields
    return await asyncio.to_thread(request, broker.data, message)


@pytest.mark.parametrize("rights", [{"Send"}, {"Manage", "Send", "Listen"}])
async def test_a_key_of_a_queue_opens_that_queue(sdk: Sdk, broker: Broker, rights: set[str]) -> None:
    name, other = fresh("queue"), fresh("queue")
    below = f"{name}/below"
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None", key_name="given",
        rights=sorted(rights), primary_key=f"first-{name}", secondary_key=f"second-{name}",
    )  # fmt: skip
    async with sdk.admin() as admin:
        await admin.create_queue(name, authorization_rules=[rule])
        await admin.create_queue(other)
        await admin.create_queue(below)
    added = await add_rule(broker, name="added", rights=sorted(rights), entity=name.upper())
    first, second = with_key(sdk, "given", f"first-{name}"), with_key(sdk, "given", f"second-{name}")
    assert (
        await asyncio.gather(
            may(sdk, first, name),
            may(sdk, second, name),
            may(sdk, with_key(sdk, "added", added["primary_key"]), name),
            may(sdk, first, other),
            may(sdk, first, below),
            # the admin client signs for the whole namespace, where a key of an entity is not known
        )
        == [rights - {"Manage"}] * 3 + [set()] * 2
    )
    async with sdk.admin() as admin:
        got = await admin.get_queue(name)
        assert [each.key_name for each in got.authorization_rules] == ["given", "added"]
        got.authorization_rules = [each for each in got.authorization_rules if each.key_name == "added"]
        await admin.update_queue(got)
    assert await asyncio.gather(
        may(sdk, first, name), may(sdk, with_key(sdk, "added", added["secondary_key"]), name)
    ) == [set(), rights - {"Manage"}]


@pytest.mark.parametrize("rights", [{"Send"}, {"Manage", "Send", "Listen"}])
async def test_a_key_of_the_namespace_opens_all_of_it(sdk: Sdk, queue: str, broker: Broker, rights: set[str]) -> None:
    name = fresh("key")
    answer = await add_rule(broker, name=name, rights=sorted(rights))
    assert answer["ok"] and set(answer["rights"]) == rights
    assert await asyncio.gather(
        may(sdk, with_key(sdk, name, answer["primary_key"]), queue), may(sdk, with_key(sdk, name, "wrong"), queue)
    ) == [rights, set()]
    changed = await add_rule(broker, name=name, rights=["Listen"])
    assert changed["primary_key"] == answer["primary_key"]
    assert await may(sdk, with_key(sdk, name, answer["secondary_key"]), queue) == {"Listen"}


async def test_a_key_of_a_topic_opens_its_subscriptions(sdk: Sdk, broker: Broker) -> None:
    topic = fresh("topic")
    async with sdk.admin() as admin:
        await admin.create_topic(topic)
        await admin.create_subscription(topic, "s")
        sender = await add_rule(broker, name="sender", rights=["Send"], entity=topic)
        reader = await add_rule(broker, name="reader", rights=["Listen"], entity=topic)
        await sdk.publish(topic, ServiceBusMessage("x"), by=with_key(sdk, "sender", sender["primary_key"]))
        with pytest.raises(REFUSED):
            await sdk.publish(topic, ServiceBusMessage("x"), by=with_key(sdk, "reader", reader["primary_key"]))
        async with (
            sdk.client(with_key(sdk, "reader", reader["primary_key"])) as client,
            client.get_subscription_receiver(topic, "s") as receiver,
        ):
            (message,) = await receiver.receive_messages(max_wait_time=5)
            await receiver.complete_message(message)
        await admin.delete_topic(topic)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "k", "rights": ["Fly"]}, "one or more of Manage, Send, Listen"),
        ({"name": "k", "rights": ["Send"], "entity": "absent"}, "entity may not be 'absent'"),
        ({"name": "RootManageSharedAccessKey", "rights": ["Send"]}, "the root rule keeps all rights"),
    ],
)
async def test_a_rule_that_can_not_be_is_refused(broker: Broker, fields: dict[str, Any], says: str) -> None:
    answer = await add_rule(broker, **fields)
    assert not answer["ok"] and says in answer["error"]


async def test_no_key_is_ever_logged(sdk: Sdk, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pairbus")
    queue = await sdk.queue()
    keys = [
        (await add_rule(broker, name=fresh("key"), rights=["Send"], **where))[which]
        for where in ({}, {"entity": queue})
        for which in ("primary_key", "secondary_key")
    ]
    assert all(key not in record.getMessage() for record in caplog.records for key in keys)
