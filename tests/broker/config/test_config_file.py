"""What a configuration file means, and what is said of one that can't be meant."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import QueueProperties, SubscriptionProperties, TopicProperties
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Timestamp
from pairbus.broker.access.throttling import MEASURES
from pairbus.broker.config.config_file import PROPERTIES, ConfigError, parse
from pairbus.broker.config.config_table import snake_case
from pairbus.broker.config.plan import EntityPlan, NamespacePlan, SubscriptionPlan, TopicPlan
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.broker.operations.quotas import TIERS, Quotas
from pairbus.sas import AuthorizationRule

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    return str(found)


def toml(text: str) -> list[NamespacePlan]:
    return parse(text, is_json=False)


def emulator(namespace: dict[str, Any], **others: Any) -> list[NamespacePlan]:
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns"} | namespace]} | others}
    return parse(json.dumps(config), is_json=True)


# -- what is meant


def test_several_ports() -> None:
    assert toml("[namespaces.a]\nports = [5672, 0, 5300]") == [NamespacePlan(name="a", ports=(5672, 0, 5300))]
    assert toml("[namespaces.a]\nport = 5672") == [NamespacePlan(name="a", ports=(5672,))]


def test_the_document_s_toml() -> None:
    contoso, fabrikam = toml(block("toml"))
    assert contoso == NamespacePlan(
        name="contoso",
        ports=(0,),
        link_idle_timeout=600.0,
        storage_stall_timeout=5.0,
        keys=(AuthorizationRule(key_name="dashboard", rights=("Listen",), primary_key=""),),
        throttling={"credits": 1000.0},
        quotas=Quotas(entities=100),
        nodes=4,
        queues=(
            EntityPlan(
                description=QueueDescription(
                    name="orders",
                    lock_duration=30.0,
                    max_delivery_count=5,
                    default_ttl=14 * 86400.0,
                    dead_letter_on_expiration=True,
                    requires_duplicate_detection=True,
                    duplicate_window=600.0,
                ),
                given=frozenset(
                    {
                        "lock_duration",
                        "max_delivery_count",
                        "default_ttl",
                        "dead_letter_on_expiration",
                        "requires_duplicate_detection",
                        "duplicate_window",
                    }
                ),
                keys=(AuthorizationRule(key_name="web", rights=("Send",), primary_key="a key that a test can know"),),
                throttling={"messages": 500.0, "links": 100.0},
            ),
            EntityPlan(
                description=QueueDescription(name="carts", requires_session=True), given=frozenset({"requires_session"})
            ),
        ),
        topics=(
            TopicPlan(
                entity=EntityPlan(description=TopicDescription(name="news")),
                subscriptions=(
                    SubscriptionPlan(entity=EntityPlan(description=SubscriptionDescription(topic="news", name="all"))),
                    SubscriptionPlan(
                        entity=EntityPlan(
                            description=SubscriptionDescription(topic="news", name="sport", max_delivery_count=3),
                            given=frozenset({"max_delivery_count"}),
                        ),
                        rules=(
                            RuleDescription(
                                name="football",
                                filter=CorrelationFilter(label="sport", properties={"game": "football", "live": True}),
                            ),
                            RuleDescription(
                                name="chess", filter=CorrelationFilter(label="sport", properties={"game": "chess"})
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )
    assert fabrikam == NamespacePlan(name="fabrikam")


def test_p47_a_tier_sets_quotas_and_credits_and_the_file_may_change_them() -> None:
    (plan,) = toml("[namespaces.a]\ntier='standard'\nquotas={connections=10}")
    assert plan.quotas == replace(TIERS["standard"], connections=10)
    assert plan.throttling == {"credits": 1000.0}
    (plan,) = toml("[namespaces.a]\ntier='basic'\nthrottling={credits_per_second=7}")
    assert (plan.quotas.sku, plan.throttling) == ("Basic", {"credits": 7.0})
    (plan,) = toml("[namespaces.a]\ntier='premium'")
    assert (plan.quotas, plan.throttling) == (TIERS["premium"], {})


def test_each_quota_can_be_set() -> None:
    table = DOCUMENT[DOCUMENT.index("| quota | `basic`") :].partition("\n\n")[0]
    keys = [key for key in re.findall(r"^\| `(\w+)`", table, re.MULTILINE) if key != "credits_per_second"]
    assert len(keys) == 8
    (plan,) = toml("[namespaces.a.quotas]\n" + "\n".join(f"{key} = {number}" for number, key in enumerate(keys, 1)))
    assert plan.quotas == Quotas(
        entities=1, subscriptions=2, connections=3, size_mb=4, message_size_kb=5, sql_filters=6, correlation_filters=7,
        transaction_messages=8,
    )  # fmt: skip


def test_p47_thresholds_are_known_by_the_paths_of_what_they_are_for() -> None:
    (plan,) = toml(
        "[namespaces.a]\nthrottling={cpu_percent=90}\n"
        "[[namespaces.a.queues]]\nname='Orders'\nthrottling={bytes_per_second=5}\n"
        "[[namespaces.a.topics]]\nname='News'\nthrottling={links=2}\n"
        "[[namespaces.a.topics.subscriptions]]\nname='All'\nthrottling={concurrent_receives=1}\n"
    )
    assert plan.thresholds == {
        None: {"cpu": 90.0},
        "orders": {"bytes": 5.0},
        "news": {"links": 2.0},
        "news/subscriptions/all": {"receives": 1.0},
    }


def test_the_document_names_every_threshold_and_quota() -> None:
    for measure, about in MEASURES.items():
        assert f"| `{about.key}` | `{measure}` |" in DOCUMENT
    for tier in TIERS:
        assert f"`{tier}`" in DOCUMENT


def test_the_document_s_config_json() -> None:
    (plan,) = parse(block("json"), is_json=True)
    (queue,) = plan.queues
    assert plan.name == "sbemulatorns"
    assert queue.description == QueueDescription(
        name="queue.1", default_ttl=3600.0, duplicate_window=20.0, lock_duration=60.0, max_delivery_count=3
    )
    assert {"forward_to", "requires_session"} <= queue.given
    (topic,) = plan.topics
    assert topic.entity.description == TopicDescription(name="topic.1", default_ttl=3600.0)
    (subscription,) = topic.subscriptions
    assert subscription.entity.description.max_delivery_count == 3
    assert subscription.rules == (
        RuleDescription(
            name="app-prop-filter-1", filter=CorrelationFilter(label="subject1", properties={"prop1": "value1"})
        ),
    )


def test_the_documents_table_names_every_property() -> None:
    told = set(re.findall(r"`([a-z_]+)`", DOCUMENT[DOCUMENT.index("| property |") : DOCUMENT.index("## Microsoft")]))
    known = {snake_case(name) for properties in PROPERTIES.values() for name in properties}
    assert known - told == set()


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (QueueDescription, QueueProperties),
        (TopicDescription, TopicProperties),
        (SubscriptionDescription, SubscriptionProperties),
    ],
)
def test_names_are_those_of_the_sdk(kind: type, theirs: type) -> None:
    known = set(re.findall(r"self\.([a-z_]+) = ", inspect.getsource(theirs)))
    assert {snake_case(name) for name in PROPERTIES[kind]} - known == set()


def test_a_rule_without_a_type_and_one_of_every_type() -> None:
    (plan,) = toml(
        """
        [[namespaces.n.topics]]
        name = "t"
        subscriptions = [{ name = "s", rules = [
          { name = "a", filter_type = "true" },
          { name = "b", filter_type = "False" },
          { name = "c", filter_type = "sql", sql_filter = { sql_expression = "a = @p", parameters = { "@p" = 1 } } },
          { name = "f", filter_type = "true", action = { sql_expression = "SET a = 1" } },
          { name = "d", filter_type = "correlation", correlation_filter = { session_id = "x" } },
          { name = "e", correlation_filter = { properties = { at = 1970-01-01T00:00:01Z, n = 3, x = 1.5 } } },
        ] }]
        """
    )
    rules = plan.topics[0].subscriptions[0].rules
    assert [rule.action for rule in rules] == [None, None, None, SqlAction("SET a = 1"), None, None]
    assert [rule.filter for rule in rules] == [
        TrueFilter(),
        FalseFilter(),
        SqlFilter("a = @p", {"@p": 1}),
        TrueFilter(),
        CorrelationFilter(session_id="x"),
        CorrelationFilter(properties={"at": Timestamp(1000), "n": 3, "x": 1.5}),
    ]


def test_capitals_of_keys_make_no_difference_in_json() -> None:
    (plan,) = emulator({"queues": [{"name": "Q", "properties": {"lockduration": "PT5S"}}]}, Logging={"type": "Console"})
    assert plan.queues[0].description == QueueDescription(name="Q", lock_duration=5.0)


def test_null_is_not_said() -> None:
    (plan,) = emulator({"Queues": [{"Name": "q", "Properties": {"LockDuration": None, "ForwardTo": ""}}]})
    assert plan.queues[0].given == {"forward_to"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("'PT1M'", 60), ("'P1DT2H3M4.5S'", 93784.5), ("90", 90), ("0.5", 0.5), ("'P10675199DT2H48M5.4775807S'", math.inf)],
)
def test_durations(text: str, seconds: float) -> None:
    (plan,) = toml(f"[[namespaces.n.queues]]\nname='q'\ndefault_message_time_to_live={text}")
    assert plan.queues[0].description.default_ttl == seconds


# -- what is wrong


@pytest.mark.parametrize(
    ("namespace", "place", "words"),
    [
        ({"Queues": [{"Name": "a"}, {}]}, "Namespaces[0].Queues[1].Name", "is missing"),
        ({"Queues": [{"Name": "/a"}]}, "Namespaces[0].Queues[0].Name", "'/a'; allowed: letters, digits"),
        ({"Queues": [{"Name": 7}]}, "Namespaces[0].Queues[0].Name", "7; allowed: text"),
        (
            {"Queues": [{"Name": "a"}, {"Name": "A"}]},
            "Namespaces[0].Queues[1].Name",
            "Namespaces[0].Queues[0] has this",
        ),
        ({"Queues": [{"Name": "a"}], "Topics": [{"Name": "a"}]}, "Namespaces[0].Topics[0].Name", "a name of its own"),
        ({"Queues": {}}, "Namespaces[0].Queues", "a list of tables"),
        ({"Queues": ["a"]}, "Namespaces[0].Queues[0]", "'a'; allowed: a table"),
        ({"Queue": []}, "Namespaces[0].Queue", "did you mean 'Queues'? allowed here: Name, Queues, Topics"),
        ({"Name": "Not_A_Name"}, "Namespaces[0].Name", "lower-case letters, digits and inner dashes"),
        ({"Name": "a:1"}, "Namespaces[0].Name", "'a:1'; allowed: lower-case letters"),
    ],
)
def test_wrong_namespaces(namespace: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        emulator(namespace)
    assert caught.value.place == place
    assert str(caught.value).startswith(place + " ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LockDuration", "PT10M", "may not be 'PT10M'; allowed: a duration above zero, up to 5 minutes"),
        ("LockDuration", "1 minute", "may not be '1 minute'; allowed: an ISO 8601 duration such as PT1M30S"),
        ("LockDuration", 60, "may not be 60; allowed: an ISO 8601 duration"),
        ("DefaultMessageTimeToLive", "-PT1M", "allowed: a duration above zero"),
        ("MaxDeliveryCount", 0, "may not be 0; allowed: a whole number from 1"),
        ("MaxDeliveryCount", "3", "may not be '3'; allowed: a whole number"),
        ("MaxDeliveryCount", True, "may not be true; allowed: a whole number"),
        ("RequiresSession", "yes", "may not be 'yes'; allowed: true or false"),
        ("Status", "Asleep", "allowed: Active, Disabled, SendDisabled, ReceiveDisabled"),
        ("ForwardTo", "ftp://host/other", "allowed: a queue or topic: its name, or sb://HOST/NAME; empty for none"),
        ("ForwardTo", "sb://host", "allowed: a queue or topic: its name"),
        ("ForwardDeadLetteredMessagesTo", "a//b", "allowed: the name of a queue or topic"),
        ("LockDurations", "PT1M", "is not known; did you mean 'LockDuration'?"),
        ("Colour", "red", "is not known; allowed here: "),
        ("UserMetadata", "x" * 2000, "allowed: up to 1024 characters"),
    ],
)
def test_wrong_properties(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        emulator({"Queues": [{"Name": "a"}, {"Name": "b"}, {"Name": "c", "Properties": {name: value}}]})
    assert caught.value.place == f"Namespaces[0].Queues[2].Properties.{name}"
    assert words in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        ({"Name": "r"}, "Properties", "is missing"),
        (
            {"Name": "r", "Properties": {}},
            "Properties.FilterType",
            "is missing; allowed: Correlation, Sql, True, False",
        ),
        ({"Name": "r", "Properties": {"FilterType": "Odd"}}, "Properties.FilterType", "'Odd'; allowed: Correlation"),
        ({"Name": "r", "Properties": {"FilterType": "Correlation"}}, "Properties.CorrelationFilter", "is missing"),
        ({"Name": "r", "Properties": {"FilterType": "Sql"}}, "Properties.SqlFilter", "is missing"),
        (
            {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a > "}}},
            "Properties.SqlFilter.SqlExpression",
            "column 4: expected a value after '>'",
        ),
        (
            {"Name": "r", "Properties": {"FilterType": "True", "Action": {"SqlExpression": "a = 1"}}},
            "Properties.Action.SqlExpression",
            "column 1: expected SET or REMOVE, not 'a'",
        ),
        (
            {"Name": "r", "Properties": {"CorrelationFilter": {"Labels": "x"}}},
            "Properties.CorrelationFilter.Labels",
            "did you mean 'Label'?",
        ),
        (
            {"Name": "r", "Properties": {"CorrelationFilter": {"Label": "x" * 40_000}}},
            "Properties.CorrelationFilter.Label",
            "characters",
        ),
        (
            {"Name": "r", "Properties": {"CorrelationFilter": {"Properties": {"a": [1]}}}},
            "Properties.CorrelationFilter.Properties",
            "numbers",
        ),
        ({"Name": "a b", "Properties": {"FilterType": "True"}}, "Name", "letters, digits"),
    ],
)
def test_wrong_rules(rule: dict[str, Any], place: str, words: str) -> None:
    topic = {"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}
    with pytest.raises(ConfigError) as caught:
        emulator({"Topics": [topic]})
    assert caught.value.place == f"Namespaces[0].Topics[0].Subscriptions[0].Rules[0].{place}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "namespaces", "is missing"),
        ("[namespaces]", "namespaces", "at least one namespace"),
        ("[namespace.a]", "namespaces", "is missing"),
        ("[namespaces.a]\n[other]", "other", "allowed here: namespaces"),
        ("namespaces = 3", "namespaces", "a table"),
        ("[namespaces]\na = 3", "namespaces.a", "a table"),
        ("[namespaces.A]", "namespaces.A", "lower-case letters"),
        ("[namespaces.a]\nport = 70000", "namespaces.a.port", "65535"),
        ("[namespaces.a]\nports = [1, 70000]", "namespaces.a.ports", "65535"),
        ("[namespaces.a]\nports = [1, true]", "namespaces.a.ports", "65535"),
        ("[namespaces.a]\nports = [[1]]", "namespaces.a.ports", "65535"),
        ("[namespaces.a]\nports = [1, 2, 1]", "namespaces.a.ports", "given once"),
        ("[namespaces.a]\nports = []", "namespaces.a.ports", "1 to 16"),
        ("[namespaces.a]\nports = 5672", "namespaces.a.ports", "a list"),
        ("[namespaces.a]\nport = 1\nports = [2]", "namespaces.a.port", "not both"),
        ("[namespaces.a]\nlink_idle_timeout = 0", "namespaces.a.link_idle_timeout", "above zero"),
        ("[namespaces.a]\nstorage_stall_timeout = 0", "namespaces.a.storage_stall_timeout", "0.05 to 600 seconds"),
        ("[namespaces.a]\nstandby = 5", "namespaces.a.standby", "the path of a folder"),
        ("[namespaces.a]\nstandby = ''", "namespaces.a.standby", "the path of a folder"),
        ("[namespaces.a]\nstandby = ' '", "namespaces.a.standby", "the path of a folder"),
        ("[namespaces.a]\nLinkIdleTimeout = 5", "namespaces.a.LinkIdleTimeout", "is not known"),
        ("[[namespaces.a.queues]]\nname='q'\nlock_duraton=5", "namespaces.a.queues[0].lock_duraton", "'lock_duration'"),
        ("[[namespaces.a.queues]]\nname='q'\nlock_duration=301", "namespaces.a.queues[0].lock_duration", "5 minutes"),
        ("[[namespaces.a.queues]]\nname='q'\nlock_duration=nan", "namespaces.a.queues[0].lock_duration", "above zero"),
        (
            "[[namespaces.a.authorization_rules]]\nname='r'\nrights=['Manage']",
            "namespaces.a.authorization_rules[0].rights",
            "Manage only together with",
        ),
        (
            "[[namespaces.a.authorization_rules]]\nname='r'\nrights=['Sing']",
            "namespaces.a.authorization_rules[0].rights",
            "a list of Manage, Send, Listen",
        ),
        (
            "[[namespaces.a.authorization_rules]]\nname='r'\nrights=['Send']\n" * 2,
            "namespaces.a.authorization_rules[1].name",
            "a name of its own",
        ),
        (
            "[[namespaces.a.queues]]\nname='q'\n"
            + "".join(f"[[namespaces.a.queues.authorization_rules]]\nname='{n}'\nrights=['Send']\n" for n in range(13)),
            "namespaces.a.queues[0].authorization_rules",
            "up to 12",
        ),
        ("[namespaces.a]\ntier='gold'", "namespaces.a.tier", "one of basic, standard, premium"),
        ("[namespaces.a]\ntier=['basic']", "namespaces.a.tier", "one of basic, standard, premium"),
        ("[namespaces.a.quotas]\nconnections=0", "namespaces.a.quotas.connections", "a whole number from 1"),
        ("[namespaces.a.quotas]\nqueues=5", "namespaces.a.quotas.queues", "queues_and_topics, sql_filters_per_topic"),
        ("[namespaces.a.throttling]\nlinks=-1", "namespaces.a.throttling.links", "a number from 0"),
        ("[namespaces.a.throttling]\nlinks=nan", "namespaces.a.throttling.links", "a number from 0"),
        (
            "[[namespaces.a.queues]]\nname='q'\nthrottling={credits_per_second=5}",
            "namespaces.a.queues[0].throttling.credits_per_second",
            "is not known",
        ),
        ("[namespaces.a", "", "is not TOML: "),
        ("[namespaces.a]\nport=1\nport=2", "", "is not TOML: "),
    ],
)
def test_wrong_toml(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toml(text)
    assert (caught.value.place, words in str(caught.value)) == (place, True), caught.value


COMMENTED = """
// The emulator's published file is commented like this.
{ // here
  "UserConfig": {
    "Namespaces": [ // "Name" and { [ are nothing in here
      {
        "Name": "sbemulatorns", //
        "Queues": [{"Name": "q", "Properties": {"UserMetadata": "sb://not/a/comment \\" // nor this"}}] // }
      }
    ]
  } //, "UserConfig": {}
}
// end"""


def test_comments_are_read_over_but_not_within_strings() -> None:
    (plan,) = parse(COMMENTED, is_json=True)
    assert (plan.name, plan.queues[0].description.name) == ("sbemulatorns", "q")
    assert plan.queues[0].description.user_metadata == 'sb://not/a/comment " // nor this'


def test_an_error_behind_comments_names_its_line_and_column() -> None:
    with pytest.raises(ConfigError, match="line 3 column 12"):
        parse('{ // one\n"a": 1, // two\n      "b": }', is_json=True)


def test_the_sql_rule_of_the_emulator_s_file_is_taken_as_it_is() -> None:
    rule = {
        "Name": "app-prop-filter-2",
        "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
            "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
        },
    }
    topic = {"Name": "topic.1", "Subscriptions": [{"Name": "subscription.4", "Rules": [rule]}]}
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Topics": [topic]}]}}
    (plan,) = parse(json.dumps(config), is_json=True)
    assert plan.topics[0].subscriptions[0].rules == (
        RuleDescription(
            name="app-prop-filter-2",
            filter=SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'"),
            action=SqlAction("SET sys.To = 'Entity'"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON: "),
        ("[]", "an object with the key UserConfig"),
        ("{}", "UserConfig is missing"),
        ('{"UserConfig": {}}', "Namespaces is empty"),
        ('{"UserConfig": {"Namespaces": [], "Loging": {}}}', "did you mean 'Logging'?"),
        ('{"UserConfig": {"Logging": {"Level": 3}}}', "Logging.Level is not known"),
        ('{"UserConfig": {}, "UserConfig": {}}', "'UserConfig' twice"),
        ('{"UserConfig": {}, "userconfig": {}}', "a key twice, in different capitals"),
        ('{"UserConfig": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "is not JSON: "),
        (" " * 17_000_000, "allowed: up to 16777216"),
        ('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "a"}]}}', "a name of its own for every namespace"),
    ],
)
def test_wrong_json(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, is_json=True)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", ["12345678", "{ a = 'topsecret' }", "'" + "topsecret" * 40 + "'", "['topsecret']"])
def test_a_key_is_never_repeated(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toml(f"[[namespaces.a.authorization_rules]]\nname='r'\nrights=['Send']\nprimary_key={value}")
    assert caught.value.place == "namespaces.a.authorization_rules[0].primary_key"
    assert "topsecret" not in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_a_key_is_not_shown_in_a_plan() -> None:
    (plan,) = toml("[[namespaces.a.authorization_rules]]\nname='r'\nrights=['Send']\nprimary_key='topsecret'")
    assert "topsecret" not in repr(plan)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["Name", "Queues", "Topics", "Subscriptions", "Rules", "Properties", "FilterType", "LockDuration",
                 "CorrelationFilter", "SqlFilter", "UserConfig", "Namespaces", "Logging", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(_VALUES)
def test_any_json_is_plans_or_one_error(value: Any) -> None:
    for content in (value, {"UserConfig": value}, {"UserConfig": {"Namespaces": [{"Name": "a", "Queues": value}]}}):
        with contextlib.suppress(ConfigError):
            assert parse(json.dumps(content), is_json=True)
