"""Queues, topics, subscriptions, rules and keys from first to last, through the SDK on a running broker."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import management as theirs

from pairbus.broker.operations.namespace import Namespace
from tests.untidy_sdk import UNTIDY_SDK

from .sdk import Sdk, fresh

pytestmark = UNTIDY_SDK


def stored(sdk: Sdk) -> Namespace:
    return sdk.namespace.namespace


async def test_the_life_of_a_queue(sdk: Sdk) -> None:
    name = fresh("Orders/EU")
    lower = name.lower()
    async with sdk.admin() as admin:
        made = await admin.create_queue(
            name, lock_duration=timedelta(seconds=30), max_delivery_count=5, max_size_in_megabytes=2048,
            user_metadata="for <b>orders</b> & more", dead_lettering_on_message_expiration=True,
        )  # fmt: skip
        assert made.name == name
        with pytest.raises(ResourceExistsError, match=rf"SubCode=40900\..*messaging entity '{lower}' already exists\."):
            await admin.create_queue(lower)
        got = await admin.get_queue(name.upper())
        assert got.lock_duration == timedelta(seconds=30) and got.max_delivery_count == 5
        assert got.max_size_in_megabytes == 2048 and got.user_metadata == "for <b>orders</b> & more"
        assert got.dead_lettering_on_message_expiration and got.availability_status == "Available"
        description = stored(sdk).queues[lower].description
        assert description.name == name and description.default_ttl == math.inf
        assert abs(description.created_at - time.time()) < 60

        got.max_delivery_count = 7
        got.user_metadata = None
        await admin.update_queue(got)
        changed = await admin.get_queue(lower)
        assert changed.max_delivery_count == 7 and changed.lock_duration == timedelta(seconds=30)
        assert not changed.user_metadata
        now = stored(sdk).queues[lower].description
        assert now.created_at == description.created_at and now.name == name
        await admin.update_queue(changed, lock_duration="PT45S", max_delivery_count=9)
        assert (await admin.get_queue(lower)).lock_duration == timedelta(seconds=45)
        assert name in [each.name for each in await admin.collect("list_queues")]

        await admin.delete_queue(name)
        for absent in (admin.get_queue, admin.delete_queue, admin.get_queue_runtime_properties):
            with pytest.raises(ResourceNotFoundError):
                await absent(name)
        with pytest.raises(ResourceNotFoundError):
            await admin.update_queue(changed)
        properties = await admin.get_namespace_properties()
        assert (properties.name, properties.messaging_sku) == ("contoso", "Standard")
        assert properties.namespace_type == "Messaging"


async def test_the_life_of_a_topic(sdk: Sdk) -> None:
    name, queue_name = fresh("News/EU"), await sdk.queue()
    lower = name.lower()
    async with sdk.admin() as admin:
        made = await admin.create_topic(name, default_message_time_to_live=timedelta(minutes=11), user_metadata="m")
        assert made.name == name and made.support_ordering
        for create in (admin.create_topic, admin.create_queue):
            with pytest.raises(ResourceExistsError, match=f"The messaging entity '{lower}' already exists"):
                await create(lower)
        with pytest.raises(ResourceExistsError, match=f"The messaging entity '{queue_name.upper()}' already exists"):
            await admin.create_topic(queue_name.upper())
        got = await admin.get_topic(name.upper())
        assert got.default_message_time_to_live == timedelta(minutes=11) and got.user_metadata == "m"
        assert not got.enable_partitioning and not got.requires_duplicate_detection
        await admin.update_topic(got, max_size_in_megabytes=2048, support_ordering=False, status="SendDisabled")
        changed = await admin.get_topic(lower)
        shown = (changed.max_size_in_megabytes, changed.support_ordering, changed.status)
        assert shown == (2048, False, "SendDisabled")
        assert stored(sdk).topics[lower].description.name == name
        changed.requires_duplicate_detection = True
        fixed = r"RequiresDuplicateDetection may not be True.*fixed when the topic is created"
        with pytest.raises(HttpResponseError, match=fixed):
            await admin.update_topic(changed)
        queue = await admin.get_queue(queue_name)
        queue.name = lower
        with pytest.raises(ResourceNotFoundError, match=f"The queue '{lower}' does not exist"):
            await admin.update_queue(queue)
        await admin.create_subscription(lower, "all")
        assert name in [each.name for each in await admin.collect("list_topics")]
        counted = await admin.collect("list_topics_runtime_properties")
        assert [each.subscription_count for each in counted if each.name == name] == [1]
        await admin.delete_topic(name.upper())
        assert name not in [each.name for each in await admin.collect("list_topics")]
        for absent in (admin.get_topic, admin.delete_topic):
            with pytest.raises(ResourceNotFoundError):
                await absent(lower)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_subscription(lower, "all")


async def test_the_life_of_a_subscription(sdk: Sdk) -> None:
    name = fresh("a/T")
    lower = name.lower()
    async with sdk.admin() as admin:
        for call in (
            lambda: admin.create_subscription(lower, "s"),
            lambda: admin.get_subscription(lower, "s"),
            lambda: admin.delete_subscription(lower, "s"),
            lambda: admin.collect("list_subscriptions", lower),
        ):
            with pytest.raises(ResourceNotFoundError, match=f"The topic '{lower}' does not exist"):
                await call()
        await admin.create_topic(name)
        await admin.create_subscription(
            lower, "Some", lock_duration="PT13S", requires_session=True, max_delivery_count=14,
            default_message_time_to_live=timedelta(minutes=11), auto_delete_on_idle=timedelta(minutes=10),
            dead_lettering_on_message_expiration=True, dead_lettering_on_filter_evaluation_exceptions=False,
        )  # fmt: skip
        with pytest.raises(ResourceExistsError, match=f"entity '{lower}/Subscriptions/SOME' already exists"):
            await admin.create_subscription(lower, "SOME")
        got = await admin.get_subscription(name.upper(), "some")
        assert got.lock_duration == timedelta(seconds=13) and got.requires_session and got.max_delivery_count == 14
        assert got.auto_delete_on_idle == timedelta(minutes=10) and got.dead_lettering_on_message_expiration
        assert not got.dead_lettering_on_filter_evaluation_exceptions and got.status == "Active"
        kept = stored(sdk).topics[lower].subscriptions["some"]
        assert (kept.description.topic, kept.description.name) == (name, "Some")
        await admin.update_subscription(lower, got, max_delivery_count=3, user_metadata="m", status="ReceiveDisabled")
        got = await admin.get_subscription(lower, "some")
        assert (got.max_delivery_count, got.user_metadata, got.status) == (3, "m", "ReceiveDisabled")
        for change, said in (
            ({"requires_session": False}, "fixed when the subscription is created"),
            ({"forward_to": "q"}, "ForwardTo may not be 'q'; allowed: none where RequiresSession is true"),
            ({"lock_duration": timedelta(days=25)}, "LockDuration may not be"),
        ):
            with pytest.raises(HttpResponseError, match=said) as info:
                await admin.update_subscription(lower, got, **change)
            assert info.value.status_code == 400
        for wrong, error in (("other", ResourceNotFoundError), ("", HttpResponseError)):
            got.name = wrong
            with pytest.raises(error):
                await admin.update_subscription(lower, got)
        with pytest.raises(HttpResponseError, match="name may not be"):
            await admin.create_subscription(lower, "x" * 51)
        await admin.create_subscription(lower, "another")
        assert [found.name for found in await admin.collect("list_subscriptions", lower)] == ["another", "Some"]
        runtime = await admin.get_subscription_runtime_properties(lower, "some")
        assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (0, 0)
        await admin.delete_subscription(lower, "SOME")
        with pytest.raises(ResourceNotFoundError, match="The subscription 'some' does not exist"):
            await admin.get_subscription(lower, "some")


async def test_the_life_of_a_rule(sdk: Sdk) -> None:
    topic = await sdk.topic()
    path = (topic, "s")

    async with sdk.admin() as admin:

        async def names() -> list[str]:
            return [rule.name for rule in await admin.collect("list_rules", *path)]

        with pytest.raises(ResourceNotFoundError, match="The subscription 's' does not exist"):
            await admin.create_rule(*path, "r")
        await admin.create_subscription(*path)
        (rule,) = await admin.collect("list_rules", *path)
        assert (rule.name, type(rule.filter)) == ("$Default", theirs.TrueRuleFilter)
        properties: dict[str, Any] = {
            "text": "str1", "int": 2, "long": 2**31 + 2, "flag": False, "double": 0.5,
            "time": datetime(2020, 7, 5, 11, 12, 13), "duration": timedelta(days=1, hours=2, minutes=3),
        }  # fmt: skip
        wanted = theirs.CorrelationRuleFilter(correlation_id="c", label="x", properties=properties)
        await admin.create_rule(*path, "One", filter=wanted)
        taken = f"The messaging entity '{topic}/Subscriptions/s/Rules/one' already exists"
        with pytest.raises(ResourceExistsError, match=taken):
            await admin.create_rule(*path, "one")
        got = await admin.get_rule(*path, "one")
        assert (got.filter.correlation_id, got.filter.label, got.action) == ("c", "x", None)
        assert dict(got.filter.properties) == properties
        assert abs(got.created_at_utc.timestamp() - time.time()) < 60
        kept: Any = stored(sdk).topics[topic].subscriptions["s"].rules["one"].filter
        assert {name: type(value).__name__ for name, value in kept.properties.items()} == {
            "text": "str", "int": "Int", "long": "int", "flag": "bool", "double": "float",
            "time": "UnzonedTimestamp", "duration": "Described",
        }  # fmt: skip
        got.filter = theirs.FalseRuleFilter()
        await admin.update_rule(*path, got)
        assert type((await admin.get_rule(*path, "One")).filter) is theirs.FalseRuleFilter
        await admin.create_rule(*path, "two")
        assert await names() == ["$Default", "One", "two"]
        sql = theirs.SqlRuleFilter("a = @p", parameters={"@p": 1})
        got.filter, got.action = sql, theirs.SqlRuleAction("SET a = 1")
        await admin.update_rule(*path, got)
        again = await admin.get_rule(*path, "one")
        assert (again.filter.sql_expression, again.filter.parameters) == ("a = @p", {"@p": 1})
        assert again.action.sql_expression == "SET a = 1"
        for refused in (
            lambda: admin.create_rule(*path, "sql", filter=theirs.SqlRuleFilter("a = ")),
            lambda: admin.create_rule(*path, "sql", action=theirs.SqlRuleAction("SET a = ")),
            lambda: admin.update_rule(*path, got, filter=theirs.SqlRuleFilter("a = ")),
        ):
            with pytest.raises(HttpResponseError, match=r"column \d: expected a value after '='") as info:
                await refused()
            assert info.value.status_code == 400
        for name in ("absent", ""):
            got.name = name
            with pytest.raises(HttpResponseError):
                await admin.update_rule(*path, got)
        await admin.delete_rule(*path, "$default")
        await admin.delete_rule(*path, "ONE")
        assert await names() == ["two"]
        for absent in (admin.get_rule, admin.delete_rule):
            with pytest.raises(ResourceNotFoundError, match="The rule 'one' does not exist"):
                await absent(*path, "one")


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_keys_of_an_entity(sdk: Sdk, kind: str) -> None:
    given = theirs.AuthorizationRule(
        type="SharedAccessAuthorizationRule", key_name="mine", claim_type="SharedAccessKey", claim_value="None",
        rights=["Listen", "Send"], primary_key="p-key", secondary_key="s-key",
    )  # fmt: skip
    name = fresh("keys").lower()

    def kept() -> Any:
        entities: Any = stored(sdk).queues if kind == "queue" else stored(sdk).topics
        return entities[name].description.authorization_rules

    async with sdk.admin() as admin:
        create, get, update = (getattr(admin, f"{verb}_{kind}") for verb in ("create", "get", "update"))
        await create(name, authorization_rules=[given])
        got = await get(name)
        (rule,) = got.authorization_rules
        assert (rule.key_name, rule.rights) == ("mine", ["Send", "Listen"])
        assert (rule.primary_key, rule.secondary_key) == ("p-key", "s-key")
        assert rule.created_at_utc == rule.modified_at_utc and rule.created_at_utc.year > 2020
        await update(got, user_metadata="x")  # what was read goes back as it came
        assert kept()[0].primary_key == "p-key"
        before = kept()[0]
        got.authorization_rules = [
            given,
            theirs.AuthorizationRule(key_name="other", rights=["Manage", "Send", "Listen"]),
        ]
        await update(got)
        same, new = kept()
        assert same == before and new.rights == ("Manage", "Send", "Listen")
        assert len(new.primary_key) == 44 and new.primary_key != new.secondary_key
        for wrong in (["Manage"], ["Read"], []):
            got.authorization_rules = [theirs.AuthorizationRule(key_name="bad", rights=wrong, primary_key="hush")]
            with pytest.raises(HttpResponseError, match="rights may not be") as info:
                await update(got)
            assert info.value.status_code == 400 and "hush" not in info.value.message
        got.authorization_rules = []
        await update(got)
        assert not (await get(name)).authorization_rules and not kept()
