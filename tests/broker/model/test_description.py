import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.model import description as model
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.rule_description import CorrelationFilter, RuleDescription
from pairbus.sas import AuthorizationRule

TOPIC = model.TopicDescription(name="news")
SUBSCRIPTION = model.SubscriptionDescription(topic="news", name="all")
RULE = AuthorizationRule(key_name="reader", rights=("Listen",), primary_key="top-secret", secondary_key="hush-hush")


def test_the_defaults_are_the_services():
    q = model.QueueDescription(name="orders")
    assert (q.lock_duration, q.max_size_mb, q.max_delivery_count, q.duplicate_window) == (60.0, 1024, 10, 600.0)
    assert q.default_ttl == math.inf and q.auto_delete_on_idle == math.inf
    assert q.enable_batched_operations and q.status == "Active"
    model.validate(q)


def test_a_backlog_queue_of_a_pair_is_accepted():  # P9
    model.validate(
        model.QueueDescription(
            name="east/x-servicebus-transfer/0",
            max_size_mb=5120,
            max_delivery_count=2147483647,
            dead_letter_on_expiration=True,
            default_ttl=math.inf,
            auto_delete_on_idle=math.inf,
        )
    )


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("lock_duration", [0.001, 5, 60.0, 300.0], [0, -1.0, 300.001, math.inf, math.nan, "60", None, True]),
        ("max_size_mb", [1, 1024, 5120, 81920], [0, -1, 81921, 1.5, "1024", True, None]),
        ("max_delivery_count", [1, 10, 2147483647], [0, -1, 2147483648, 2.0, True]),
        ("enable_batched_operations", [True, False], [0, 1, "true", None]),
        ("enable_express", [True, False], [0, None]),
        ("dead_letter_on_expiration", [True, False], ["yes"]),
        ("user_metadata", [None, "", "x" * 1024], ["x" * 1025, 5]),
        ("max_message_size_kb", [1, 256, 1024, 102400], [0, 102401, False]),
        ("status", ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"], ["active", "Sleeping", None, 1]),
        ("requires_duplicate_detection", [True, False], ["true", 1]),
        ("requires_session", [True, False], [None]),
        ("default_ttl", [0.001, 60.0, math.inf], [0, -1, math.nan, None]),
        ("duplicate_window", [0.001, 7 * 86400.0], [0, 7 * 86400.1, math.inf]),
        ("auto_delete_on_idle", [300.0, math.inf], [299.0, 0, -5, None]),
        ("support_ordering", [True, False], [None]),
        ("dead_letter_on_filter_errors", [True, False], [None]),
    ],
)
def test_each_field_has_its_bounds(field, right, wrong):
    having = [each for each in (model.QueueDescription(name="q"), TOPIC, SUBSCRIPTION) if hasattr(each, field)]
    assert having
    for description in having:
        for value in right:
            model.validate(dataclasses.replace(description, **{field: value}))
        for value in wrong:
            with pytest.raises(InvalidDescription) as info:
                model.validate(dataclasses.replace(description, **{field: value}))
            assert info.value.field == field
            assert info.value.allowed in str(info.value)


def test_names_are_checked():
    for wrong in (
        model.QueueDescription(name="a//b"),
        model.TopicDescription(name="$t"),
        model.SubscriptionDescription(topic="t", name="a/b"),
        model.SubscriptionDescription(topic="t/", name="a"),
        model.SubscriptionDescription(topic="t", name="x" * 51),
        dataclasses.replace(SUBSCRIPTION, default_rule=RuleDescription(name="")),
    ):
        with pytest.raises(InvalidDescription) as info:
            model.validate(wrong)
        assert info.value.field == "name"


@pytest.mark.parametrize("description", [model.QueueDescription(name="q"), SUBSCRIPTION])
@pytest.mark.parametrize("field", ["forward_to", "forward_dead_lettered_to"])
def test_a_destination_is_the_name_of_a_queue_or_topic(description, field):
    for right in (None, "q", "a/b"):
        model.validate(dataclasses.replace(description, **{field: right}))
    for wrong in ("", "sb://h/other", "news/subscriptions/all", "q/$DeadLetterQueue", "x" * 261):
        with pytest.raises(InvalidDescription, match="the name of a queue or topic") as info:
            model.validate(dataclasses.replace(description, **{field: wrong}))
        assert info.value.field == field


def test_an_entity_with_sessions_forwards_its_dead_letters_alone():
    with_sessions = model.QueueDescription(name="q", requires_session=True, forward_dead_lettered_to="other")
    model.validate(with_sessions)
    with pytest.raises(InvalidDescription, match="none where RequiresSession is true"):
        model.validate(dataclasses.replace(with_sessions, forward_to="other"))


def test_express_and_duplicate_detection_exclude_each_other():
    for description in (
        model.QueueDescription(name="q", enable_express=True),
        model.TopicDescription(name="t", enable_express=True),
    ):
        model.validate(description)
        with pytest.raises(InvalidDescription, match="RequiresDuplicateDetection"):
            model.validate(dataclasses.replace(description, requires_duplicate_detection=True))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key_name": ""}, "key_name"),
        ({"key_name": "x" * 257}, "key_name"),
        ({"rights": ()}, "rights"),
        ({"rights": ("Listen", "Read")}, "rights"),
        ({"rights": ("Manage",)}, "rights"),
        ({"rights": ("Manage", "Send")}, "rights"),
        ({"primary_key": ""}, "primary_key"),
        ({"primary_key": "hush" * 65}, "primary_key"),
        ({"secondary_key": "hush" * 65}, "secondary_key"),
    ],
)
def test_an_authorization_rule_has_its_bounds_and_no_error_tells_a_key(change, field):
    model.validate_authorization_rule(RULE)
    model.validate_authorization_rule(dataclasses.replace(RULE, rights=model.RIGHTS, secondary_key=""))
    wrong = dataclasses.replace(RULE, **change)
    for description in (model.QueueDescription(name="q"), TOPIC):
        model.validate(dataclasses.replace(description, authorization_rules=(RULE,)))
        with pytest.raises(InvalidDescription) as info:
            model.validate(dataclasses.replace(description, authorization_rules=(RULE, wrong)))
        assert info.value.field == field
        assert "hush" not in str(info.value) and "secret" not in str(info.value)


def test_an_entity_has_twelve_rules_at_most_and_each_name_once():
    rules = tuple(dataclasses.replace(RULE, key_name=f"key{number}") for number in range(13))
    model.validate(model.QueueDescription(name="q", authorization_rules=rules[:12]))
    for wrong in (rules, (RULE, RULE)):
        with pytest.raises(InvalidDescription) as info:
            model.validate(model.QueueDescription(name="q", authorization_rules=wrong))
        assert info.value.field == "authorization_rules"


def test_an_update_may_not_touch_what_is_fixed():
    old = model.QueueDescription(name="q")
    model.validate_update(old, dataclasses.replace(old, name="Q", lock_duration=30.0, max_delivery_count=3))
    for change in ({"requires_session": True}, {"enable_partitioning": True}, {"requires_duplicate_detection": True}):
        with pytest.raises(InvalidDescription, match="fixed when the queue is created"):
            model.validate_update(old, dataclasses.replace(old, **change))
    with pytest.raises(InvalidDescription, match="renamed"):
        model.validate_update(old, dataclasses.replace(old, name="other"))
    with pytest.raises(InvalidDescription):
        model.validate_update(old, dataclasses.replace(old, lock_duration=0))
    with pytest.raises(InvalidDescription, match="fixed when the topic is created"):
        model.validate_update(TOPIC, dataclasses.replace(TOPIC, requires_duplicate_detection=True))
    with pytest.raises(InvalidDescription, match="fixed when the subscription is created"):
        model.validate_update(SUBSCRIPTION, dataclasses.replace(SUBSCRIPTION, requires_session=True))
    model.validate_update(SUBSCRIPTION, dataclasses.replace(SUBSCRIPTION, name="ALL", status="ReceiveDisabled"))


durations = st.one_of(st.just(math.inf), st.floats(min_value=0.001, max_value=1e9))
descriptions = st.builds(
    model.QueueDescription,
    name=st.text(min_size=1, max_size=20),
    lock_duration=st.floats(min_value=0.001, max_value=300),
    default_ttl=durations,
    auto_delete_on_idle=durations,
    duplicate_window=durations,
    max_delivery_count=st.integers(1, 2147483647),
    user_metadata=st.none() | st.text(max_size=50),
    forward_to=st.none() | st.text(max_size=50),
    enable_express=st.booleans(),
    authorization_rules=st.tuples() | st.just((RULE,)),
    created_at=st.floats(0, 4e9),
)


@given(descriptions)
def test_json_and_back_is_the_same(description):
    text = json.dumps(description.to_json(), allow_nan=False)
    assert model.QueueDescription.from_json(json.loads(text)) == description


topics = st.builds(
    model.TopicDescription,
    name=st.text(min_size=1, max_size=20),
    default_ttl=durations,
    duplicate_window=durations,
    support_ordering=st.booleans(),
    authorization_rules=st.tuples() | st.just((RULE,)),
)
subscriptions = st.builds(
    model.SubscriptionDescription,
    topic=st.text(max_size=5),
    name=st.text(max_size=5),
    auto_delete_on_idle=durations,
    default_rule=st.none()
    | st.just(RuleDescription(name="r", filter=CorrelationFilter(label="x", properties={"n": 1}), created_at=2.5)),
)


@given(topics | subscriptions)
def test_topics_and_subscriptions_go_round_too(description):
    text = json.dumps(description.to_json(), allow_nan=False)
    assert type(description).from_json(json.loads(text)) == description


def test_missing_fields_take_the_defaults_and_unknown_ones_are_refused():
    assert model.QueueDescription.from_json({"name": "q"}) == model.QueueDescription(name="q")
    with pytest.raises(InvalidDescription, match="colour"):
        model.QueueDescription.from_json({"name": "q", "colour": "red"})


def test_keys_stay_out_of_the_repr():
    shown = repr(model.QueueDescription(name="q", authorization_rules=(RULE,)))
    assert "reader" in shown and "top-secret" not in shown and "hush-hush" not in shown
