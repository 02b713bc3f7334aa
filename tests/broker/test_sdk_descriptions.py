"""Topics, subscriptions, rules and keys through the SDK on the management API alone, where every field can be seen."""

import time
from datetime import datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import AuthorizationRule as TheirRule
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from pairbus.broker.model.description import SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import RuleDescription
from tests.broker.http.test_admin import NOW, certs, client, namespace, served

from .fake_namespace import entity

__all__ = ["certs", "client", "namespace", "served"]


def test_sdk_the_life_of_a_topic(client, served):
    made = client.create_topic("News/EU", default_message_time_to_live=timedelta(minutes=11), user_metadata="m")
    assert made.name == "News/EU" and made.support_ordering
    for create in (client.create_topic, client.create_queue):
        with pytest.raises(ResourceExistsError, match="The messaging entity 'news/eu' already exists"):
            create("news/eu")
    client.create_queue("q")
    with pytest.raises(ResourceExistsError, match="The messaging entity 'Q' already exists"):
        client.create_topic("Q")
    got = client.get_topic("NEWS/eu")
    assert got.default_message_time_to_live == timedelta(minutes=11) and got.user_metadata == "m"
    assert not got.enable_partitioning and not got.requires_duplicate_detection
    client.update_topic(got, max_size_in_megabytes=2048, support_ordering=False, status="SendDisabled")
    changed = client.get_topic("news/eu")
    assert (changed.max_size_in_megabytes, changed.support_ordering, changed.status) == (2048, False, "SendDisabled")
    assert served.namespace.topics["news/eu"].description.name == "News/EU"
    changed.requires_duplicate_detection = True
    with pytest.raises(HttpResponseError, match=r"RequiresDuplicateDetection may not be True.*fixed"):
        client.update_topic(changed)
    queue = client.get_queue("q")
    queue.name = "news/eu"
    with pytest.raises(ResourceNotFoundError, match="The queue 'news/eu' does not exist"):
        client.update_queue(queue)

    topic = served.namespace.topics["news/eu"]
    topic.scheduled_count, topic.size_bytes, topic.accessed_at = 3, 77, NOW
    client.create_subscription("news/eu", "all")
    client.create_rule("news/eu", "all", "r", filter=CorrelationRuleFilter(label="x"))
    runtime = client.get_topic_runtime_properties("news/eu")
    assert (runtime.subscription_count, runtime.scheduled_message_count, runtime.size_in_bytes) == (1, 3, 77)
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (1, 1)
    assert runtime.accessed_at_utc.timestamp() == NOW
    assert [found.name for found in client.list_topics()] == ["News/EU"]
    assert [found.subscription_count for found in client.list_topics_runtime_properties()] == [1]
    client.delete_topic("NEWS/EU")
    assert list(client.list_topics()) == []
    with pytest.raises(ResourceNotFoundError):
        client.delete_topic("news/eu")


def test_sdk_the_life_of_a_subscription(client, served):
    for call in (
        lambda: client.create_subscription("t", "s"),
        lambda: client.get_subscription("t", "s"),
        lambda: client.delete_subscription("t", "s"),
        lambda: list(client.list_subscriptions("t")),
    ):
        with pytest.raises(ResourceNotFoundError, match="The topic 't' does not exist"):
            call()
    client.create_topic("a/T")
    client.create_subscription(
        "a/t", "Some", lock_duration="PT13S", requires_session=True, max_delivery_count=14,
        default_message_time_to_live=timedelta(minutes=11), auto_delete_on_idle=timedelta(minutes=10),
        dead_lettering_on_message_expiration=True, dead_lettering_on_filter_evaluation_exceptions=False,
    )  # fmt: skip
    with pytest.raises(ResourceExistsError, match="The messaging entity 'a/t/Subscriptions/SOME' already exists"):
        client.create_subscription("a/t", "SOME")
    got = client.get_subscription("A/T", "some")
    assert got.lock_duration == timedelta(seconds=13) and got.requires_session and got.max_delivery_count == 14
    assert got.auto_delete_on_idle == timedelta(minutes=10) and got.dead_lettering_on_message_expiration
    assert not got.dead_lettering_on_filter_evaluation_exceptions and got.status == "Active"
    stored = served.namespace.topics["a/t"].subscriptions["some"]
    assert (stored.description.topic, stored.description.name) == ("a/T", "Some")
    client.update_subscription("a/t", got, max_delivery_count=3, user_metadata="m", status="ReceiveDisabled")
    got = client.get_subscription("a/t", "some")
    assert (got.max_delivery_count, got.user_metadata, got.status) == (3, "m", "ReceiveDisabled")
    for change in ({"requires_session": False}, {"forward_to": "q"}, {"lock_duration": timedelta(days=25)}):
        with pytest.raises(HttpResponseError) as info:
            client.update_subscription("a/t", got, **change)
        assert info.value.status_code == 400
    got.name = "other"
    with pytest.raises(ResourceNotFoundError):
        client.update_subscription("a/t", got)
    got.name = ""
    with pytest.raises(HttpResponseError):
        client.update_subscription("a/t", got)
    with pytest.raises(HttpResponseError, match="name may not be"):
        client.create_subscription("a/t", "x" * 51)

    stored.active_count, stored.dead_letter_count, stored.accessed_at = 5, 2, NOW
    runtime = client.get_subscription_runtime_properties("a/t", "some")
    assert (runtime.active_message_count, runtime.dead_letter_message_count, runtime.total_message_count) == (5, 2, 7)
    assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (0, 0)
    client.create_subscription("a/t", "another")
    assert [found.name for found in client.list_subscriptions("a/t")] == ["another", "Some"]
    assert [each.active_message_count for each in client.list_subscriptions_runtime_properties("a/t")] == [0, 5]
    client.delete_subscription("a/t", "SOME")
    with pytest.raises(ResourceNotFoundError, match="The subscription 'some' does not exist"):
        client.get_subscription("a/t", "some")


def test_sdk_the_life_of_a_rule(client, served):
    client.create_topic("t")
    with pytest.raises(ResourceNotFoundError, match="The subscription 's' does not exist"):
        client.create_rule("t", "s", "r")
    client.create_subscription("t", "s")
    assert [(rule.name, type(rule.filter)) for rule in client.list_rules("t", "s")] == [("$Default", TrueRuleFilter)]
    properties = {
        "text": "str1", "int": 2, "long": 2**31 + 2, "flag": False, "double": 0.5,
        "time": datetime(2020, 7, 5, 11, 12, 13), "duration": timedelta(days=1, hours=2, minutes=3),
    }  # fmt: skip
    client.create_rule("t", "s", "One", filter=CorrelationRuleFilter(correlation_id="c", properties=properties))
    with pytest.raises(ResourceExistsError, match="The messaging entity 't/Subscriptions/s/Rules/one' already exists"):
        client.create_rule("t", "s", "one")
    got = client.get_rule("t", "s", "one")
    assert got.filter.correlation_id == "c" and dict(got.filter.properties) == properties and got.action is None
    assert abs(got.created_at_utc.timestamp() - time.time()) < 60
    kept = served.namespace.topics["t"].subscriptions["s"].rules["one"].filter.properties
    assert {name: type(value).__name__ for name, value in kept.items()} == {
        "text": "str", "int": "Int", "long": "int", "flag": "bool", "double": "float",
        "time": "UnzonedTimestamp", "duration": "Described",
    }  # fmt: skip
    got.filter = FalseRuleFilter()
    client.update_rule("t", "s", got)
    assert type(client.get_rule("t", "s", "One").filter) is FalseRuleFilter
    client.create_rule("t", "s", "two")
    assert [rule.name for rule in client.list_rules("t", "s")] == ["$Default", "One", "two"]
    for refused in (
        lambda: client.create_rule("t", "s", "sql", filter=SqlRuleFilter("a = 1")),
        lambda: client.create_rule("t", "s", "sql", action=SqlRuleAction("SET a = 1")),
        lambda: client.update_rule("t", "s", got, filter=SqlRuleFilter("a = 1")),
    ):
        with pytest.raises(HttpResponseError, match="SQL rules are not supported yet") as info:
            refused()
        assert info.value.status_code == 400
    for name in ("absent", ""):
        got.name = name
        with pytest.raises(HttpResponseError):
            client.update_rule("t", "s", got)
    client.delete_rule("t", "s", "$default")
    client.delete_rule("t", "s", "ONE")
    assert [rule.name for rule in client.list_rules("t", "s")] == ["two"]
    for absent in (client.get_rule, client.delete_rule):
        with pytest.raises(ResourceNotFoundError, match="The rule 'one' does not exist"):
            absent("t", "s", "one")


def test_sdk_lists_of_topics_subscriptions_and_rules_have_pages_too(client, served):
    for number in range(101):
        served.namespace.topics[f"t{number:03d}"] = entity(TopicDescription(name=f"t{number:03d}"))
    first = served.namespace.topics["t000"]
    for number in range(201):
        name = f"s{number:03d}"
        first.subscriptions[name] = entity(SubscriptionDescription(topic="t000", name=name))
    for number in range(150):
        first.subscriptions["s000"].rules[f"r{number:03d}"] = RuleDescription(name=f"r{number:03d}")
    assert [len(list(page)) for page in client.list_topics().by_page()] == [100, 1]
    assert [len(list(page)) for page in client.list_subscriptions("t000").by_page()] == [100, 100, 1]
    assert [len(list(page)) for page in client.list_rules("t000", "s000").by_page()] == [100, 50]
    assert len({rule.name for rule in client.list_rules("t000", "s000")}) == 150
    assert list(client.list_rules("t000", "s001")) == []


def test_sdk_keys_of_an_entity(client, served):
    given = TheirRule(
        type="SharedAccessAuthorizationRule", key_name="mine", claim_type="SharedAccessKey", claim_value="None",
        rights=["Listen", "Send"], primary_key="p-key", secondary_key="s-key",
    )  # fmt: skip
    for create, get, update, stored in (
        (client.create_queue, client.get_queue, client.update_queue, served.namespace.queues),
        (client.create_topic, client.get_topic, client.update_topic, served.namespace.topics),
    ):
        name = f"e{len(served.namespace.queues)}"
        create(name, authorization_rules=[given])
        got = get(name)
        (rule,) = got.authorization_rules
        assert (rule.key_name, rule.rights) == ("mine", ["Send", "Listen"])
        assert (rule.primary_key, rule.secondary_key) == ("p-key", "s-key")
        assert rule.created_at_utc == rule.modified_at_utc and rule.created_at_utc.year > 2020
        update(got, user_metadata="x")  # what was read goes back as it came
        assert stored[name].description.authorization_rules[0].primary_key == "p-key"
        before = stored[name].description.authorization_rules[0]
        got.authorization_rules = [given, TheirRule(key_name="other", rights=["Manage", "Send", "Listen"])]
        update(got)
        kept, new = stored[name].description.authorization_rules
        assert kept == before and new.rights == ("Manage", "Send", "Listen")
        assert len(new.primary_key) == 44 and new.primary_key != new.secondary_key
        for wrong in (["Manage"], ["Read"], []):
            got.authorization_rules = [TheirRule(key_name="bad", rights=wrong, primary_key="hush")]
            with pytest.raises(HttpResponseError, match="rights may not be") as info:
                update(got)
            assert info.value.status_code == 400 and "hush" not in info.value.message
        got.authorization_rules = []
        update(got)
        assert not get(name).authorization_rules and not stored[name].description.authorization_rules
