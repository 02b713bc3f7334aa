"""Topics, subscriptions and rules, through the official SDK."""

from __future__ import annotations

import datetime
import uuid

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk

pytestmark = UNTIDY_SDK


async def test_sql_rules_decide_and_actions_change(sdk: Sdk) -> None:
    topic = await sdk.topic()
    rules = {
        "high": (SqlRuleFilter("priority >= @least AND sys.Label LIKE 'order%'", parameters={"@least": 5}), None),
        "marked": (SqlRuleFilter("EXISTS(colour)"), SqlRuleAction("SET colour = 'was ' + colour; SET sys.To = 'x'")),
        "error": (SqlRuleFilter("sys.NoSuch = 1"), None),
    }
    async with sdk.admin() as admin:
        for name, (filter, action) in rules.items():
            await admin.create_subscription(topic, name, dead_lettering_on_filter_evaluation_exceptions=True)
            await admin.delete_rule(topic, name, "$Default")
            await admin.create_rule(topic, name, "mine", filter=filter, action=action)
        (listed,) = await admin.collect("list_rules", topic, "marked")
        assert (listed.filter.sql_expression, listed.action.sql_expression) == (
            "EXISTS(colour)", "SET colour = 'was ' + colour; SET sys.To = 'x'",
        )  # fmt: skip
    await sdk.publish(
        topic,
        ServiceBusMessage("1", application_properties={"priority": 7}, subject="order 1"),
        ServiceBusMessage("2", application_properties={"priority": 3, "colour": "red"}, subject="order 2"),
    )
    assert [str(m) for m in await sdk.read(topic, "high", 2, wait=1)] == ["1"]
    (marked,) = await sdk.read(topic, "marked", 2, wait=1)
    assert marked.application_properties == {b"priority": 3, b"colour": b"was red", b"RuleName": b"mine"}
    assert (str(marked), marked.to) == ("2", "x")
    assert await sdk.read(topic, "error", 1, wait=1) == []
    dead = await sdk.read(topic, "error", 2, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert [(str(m), m.dead_letter_reason) for m in dead] == [(n, "FilterEvaluationException") for n in "12"]


async def test_sessions_on_a_subscription(sdk: Sdk) -> None:
    topic = await sdk.topic("s", requires_session=True)
    await sdk.publish(topic, *[ServiceBusMessage(f"{s}{i}", session_id=s) for i in range(2) for s in "ab"])
    for session in "ab":
        got = await sdk.read(topic, "s", 3, wait=1, session_id=session)
        assert [str(m) for m in got] == [f"{session}0", f"{session}1"]


async def test_p32_pings_reach_no_subscription(sdk: Sdk) -> None:
    topic = await sdk.topic("s")
    ping = ServiceBusMessage(
        b"", content_type="application/vnd.ms-servicebus-ping", session_id=str(uuid.uuid4()),
        time_to_live=datetime.timedelta(seconds=1),
    )  # fmt: skip
    await sdk.publish(topic, ping, ServiceBusMessage("real"), [ping, ping])
    assert [str(m) for m in await sdk.read(topic, "s", 3, wait=1)] == ["real"]
    async with sdk.admin() as admin:
        runtime = await admin.get_subscription_runtime_properties(topic, "s")
        assert (runtime.active_message_count, runtime.dead_letter_message_count) == (0, 0)


async def test_nobody_receives_from_a_topic_or_sends_to_a_subscription(sdk: Sdk) -> None:
    topic = await sdk.topic("s")
    async with sdk.client() as client:
        with pytest.raises(ServiceBusError, match="subscription"):
            async with client.get_queue_receiver(topic) as receiver:
                await receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusError, match="can't be sent"):
            async with client.get_queue_sender(f"{topic}/Subscriptions/s") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(MessagingEntityNotFoundError):
            await sdk.read(topic, "nobody", 1, wait=1)


async def test_deleting_ends_links(sdk: Sdk) -> None:
    topic = await sdk.topic("s")
    async with sdk.client() as client, client.get_topic_sender(topic) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        async with sdk.admin() as admin:
            await admin.delete_topic(topic)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("y"))
        with pytest.raises(MessagingEntityNotFoundError):
            await sdk.read(topic, "s", 1, wait=1)
