import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.description import (
    AuthorizationRule,
    InvalidDescription,
    QueueDescription,
    validate,
    validate_name,
    validate_update,
)


def test_the_defaults_are_the_services():
    q = QueueDescription(name="orders")
    assert (q.lock_duration, q.max_size_mb, q.max_delivery_count, q.duplicate_window) == (60.0, 1024, 10, 600.0)
    assert q.default_ttl == math.inf and q.auto_delete_on_idle == math.inf
    assert q.enable_batched_operations and q.status == "Active"
    validate(q)


def test_a_backlog_queue_of_a_pair_is_accepted():  # P9
    validate(
        QueueDescription(
            name="east/x-servicebus-transfer/0",
            max_size_mb=5120,
            max_delivery_count=2147483647,
            dead_letter_on_expiration=True,
            default_ttl=math.inf,
            auto_delete_on_idle=math.inf,
        )
    )


@pytest.mark.parametrize(
    "name",
    ["a", "Orders", "orders-2", "a.b_c~d", "txt/.-_123", "a/b/c", "subscriptions", "x" * 260, "0", "a/b..c/d"],
)
def test_names_that_may_be(name):
    validate_name(name)
    validate(QueueDescription(name=name))


@pytest.mark.parametrize(
    "name",
    [
        "", "/a", "a/", "a//b", "x" * 261, "$Resources", "a b", "a?b", "a#b", "a%2Fb", "a\n", "-a", "a.", "grün",
        "a/$DeadLetterQueue", "a/./b", "a/../b", "t/Subscriptions/s", "a:b", "a\\b", None, 7,
    ],
)  # fmt: skip
def test_names_that_may_not_be(name):
    with pytest.raises(InvalidDescription) as info:
        validate_name(name)
    assert info.value.field == "name"


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
        ("status", ["Active"], ["active", "Sleeping", None, 1]),
    ],
)
def test_each_field_has_its_bounds(field, right, wrong):
    for value in right:
        validate(dataclasses.replace(QueueDescription(name="q"), **{field: value}))
    for value in wrong:
        with pytest.raises(InvalidDescription) as info:
            validate(dataclasses.replace(QueueDescription(name="q"), **{field: value}))
        assert info.value.field == field
        assert info.value.allowed in str(info.value)


RULE = AuthorizationRule(key_name="reader", rights=("Listen",), primary_key="top-secret", secondary_key="hush-hush")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requires_duplicate_detection", True),
        ("requires_session", True),
        ("default_ttl", 60.0),
        ("duplicate_window", 30.0),
        ("status", "Disabled"),
        ("auto_delete_on_idle", 300.0),
        ("enable_partitioning", True),
        ("forward_to", "sb://h/other"),
        ("forward_dead_lettered_to", "sb://h/other"),
        ("authorization_rules", (RULE,)),
    ],
)
def test_what_is_not_built_yet_is_refused_and_said(field, value):
    with pytest.raises(InvalidDescription, match="not supported yet") as info:
        validate(dataclasses.replace(QueueDescription(name="q"), **{field: value}))
    assert info.value.field == field


def test_an_update_may_not_touch_what_is_fixed():
    old = QueueDescription(name="q")
    validate_update(old, dataclasses.replace(old, name="Q", lock_duration=30.0, max_delivery_count=3))
    for change in ({"requires_session": True}, {"enable_partitioning": True}, {"requires_duplicate_detection": True}):
        with pytest.raises(InvalidDescription, match="fixed when the queue is created"):
            validate_update(old, dataclasses.replace(old, **change))
    with pytest.raises(InvalidDescription, match="renamed"):
        validate_update(old, dataclasses.replace(old, name="other"))
    with pytest.raises(InvalidDescription):
        validate_update(old, dataclasses.replace(old, lock_duration=0))


durations = st.one_of(st.just(math.inf), st.floats(min_value=0.001, max_value=1e9))
descriptions = st.builds(
    QueueDescription,
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
    assert QueueDescription.from_json(json.loads(text)) == description


def test_missing_fields_take_the_defaults_and_unknown_ones_are_refused():
    assert QueueDescription.from_json({"name": "q"}) == QueueDescription(name="q")
    with pytest.raises(InvalidDescription, match="colour"):
        QueueDescription.from_json({"name": "q", "colour": "red"})


def test_keys_stay_out_of_the_repr():
    shown = repr(QueueDescription(name="q", authorization_rules=(RULE,)))
    assert "reader" in shown and "top-secret" not in shown and "hush-hush" not in shown
