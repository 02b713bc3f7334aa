from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal64,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.broker.model import rule_description as rules
from pairbus.broker.model.rules import Facts, RuleSet, comparable

TRUE, FALSE = rules.TrueFilter(), rules.FalseFilter()
AMQP_NAMES = {"label": "subject", "session_id": "group_id", "reply_to_session_id": "reply_to_group_id"}


def ruleset(*filters: rules.Filter) -> RuleSet:
    return RuleSet(rules.RuleDescription(name=f"r{n}", filter=each) for n, each in enumerate(filters))


def message(properties: dict[str, Any] | None = None, **system: Any) -> Facts:
    fields = {AMQP_NAMES.get(name, name): value for name, value in system.items()}
    return Facts(encode_message(properties=Properties(**fields), application_properties=properties, body=b"x"))


def wants(**properties: Any) -> rules.CorrelationFilter:
    return rules.CorrelationFilter(properties=properties)


@pytest.mark.parametrize(
    ("filters", "matches"),
    [
        ([], False),
        ([TRUE], True),
        ([FALSE], False),
        ([FALSE, TRUE], True),
        ([rules.CorrelationFilter()], True),
        ([FALSE, wants(color="red")], True),
        ([FALSE, wants(color="blue")], False),
        ([wants(color="blue"), wants(color="red")], True),
        ([wants(color="blue"), wants(size=1)], True),
        ([wants(color="red", size=1)], True),
        ([wants(color="red", size=2)], False),
        ([wants(color="red", weight=1)], False),
        ([rules.CorrelationFilter(label="news", properties={"color": "red"})], True),
        ([rules.CorrelationFilter(label="other", properties={"color": "red"})], False),
        ([rules.CorrelationFilter(label="news", properties={"color": "blue"})], False),
        ([wants(Color="red")], False),
        ([wants(color="Red")], False),
        ([wants(label="news")], False),
    ],
)
def test_one_matching_rule_is_enough(filters: list[rules.Filter], matches: bool) -> None:
    facts = message({"color": "red", "size": 1}, label="news")
    assert ruleset(*filters).matches(facts) is matches


@pytest.mark.parametrize("field", rules.SYSTEM_FIELDS)
def test_every_system_property_can_be_asked_for(field: str) -> None:
    filter = rules.CorrelationFilter(**{field: "a"})
    assert ruleset(filter).matches(message(**{field: "a"}))
    assert not ruleset(filter).matches(message(**{field: "A"}))
    assert not ruleset(filter).matches(message({field: "a"}))
    others = {name: "a" for name in rules.SYSTEM_FIELDS if name != field}
    assert not ruleset(filter).matches(message(**others))
    assert not ruleset(filter).matches(Facts(encode_message(body=b"no properties at all")))


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("text", "text"),
        (ULong(17), "17"),
        (UUID("00112233-4455-6677-8899-AABBCCDDEEFF"), "00112233-4455-6677-8899-aabbccddeeff"),
    ],
)
@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
def test_an_id_of_another_type_is_compared_as_its_text(field: str, sent: Any, shown: str) -> None:
    assert ruleset(rules.CorrelationFilter(**{field: shown})).matches(message(**{field: sent}))


def test_a_binary_id_matches_no_text() -> None:
    assert not ruleset(rules.CorrelationFilter(message_id="b'a'")).matches(message(message_id=b"a"))


NUMBERS = [UByte(1), UShort(1), UInt(1), ULong(1), Byte(1), Short(1), Int(1), 1, 1.0, Float(1.0)]
KINDS: list[list[Any]] = [
    NUMBERS,
    [2, 2.0, Int(2)],
    [2.5, Float(2.5)],
    [True],
    [False],
    [0, 0.0, -0.0, UByte(0)],
    ["1", Symbol("1")],
    [Char("1")],
    [b"1"],
    [Timestamp(1), rules.UnzonedTimestamp(1)],
    [UUID(int=1)],
    [rules.timespan(1.0), Described(Symbol("com.microsoft:timespan"), 10_000_000)],
    [rules.timespan(2.0)],
    [Described(Symbol("com.microsoft:uri"), "1")],
    [Decimal64(b"12345678")],
    [b"12345678"],
]


def test_values_of_one_kind_are_equal_whatever_their_width() -> None:
    for n, kind in enumerate(KINDS):
        for m, other in enumerate(KINDS):
            for left in kind:
                for right in other:
                    assert (comparable(left) == comparable(right)) is (n == m), (left, right)
                    if n == m:
                        assert hash(comparable(left)) == hash(comparable(right))


@pytest.mark.parametrize(
    "value", [None, math.nan, Float(math.nan), [1], {"a": 1}, Described(Symbol("a"), Described(Symbol("b"), 1))]
)
def test_what_equals_nothing(value: Any) -> None:
    assert comparable(value) is None
    assert not ruleset(wants(a=math.nan)).matches(message({"a": value}))
    assert not ruleset(wants(a=1)).matches(message({"a": value}))


def test_a_value_that_equals_nothing_spoils_only_its_own_filter() -> None:
    facts = message({"a": [1], "b": 1})
    assert not ruleset(wants(a=1, b=1)).matches(facts)
    assert ruleset(wants(b=1)).matches(facts)


def test_nothing_is_decoded_before_a_filter_asks() -> None:
    unreadable = Facts(b"not a message")
    assert ruleset(TRUE, wants(color="red")).matches(unreadable)
    assert not ruleset(FALSE).matches(unreadable)
    assert not ruleset().matches(unreadable)
    assert unreadable._sections is None
    facts = message({"color": "red"})
    assert ruleset(wants(color="red")).matches(facts)
    assert facts._sections is not None


def test_what_is_asked_for_alike_is_looked_up_once() -> None:
    facts = message({"color": "red"})
    many = [ruleset(wants(color=color)) for color in ("blue", "red", "green")]
    assert [each.matches(facts) for each in many] == [False, True, False]
    assert facts.values(("user.color",)) is facts.values(("user.color",))


def test_repr() -> None:
    assert repr(ruleset(TRUE)) == "<RuleSet: everything>"
    assert repr(ruleset()) == "<RuleSet: nothing>"
    filters = [wants(b=1, a=2), wants(a=3, b=4), rules.CorrelationFilter(label="x")]
    assert repr(ruleset(*filters)) == "<RuleSet: user.a user.b in 2, sys.subject in 1>"


# against the plain reading of the rule: some filter of which every value is equal

names = st.sampled_from(["a", "b", "c"])
values = st.one_of(
    st.sampled_from([each for kind in KINDS for each in kind]),
    st.sampled_from([None, math.nan]),
    st.integers(-3, 3),
    st.floats(width=32, allow_nan=False),
    st.text("aä", max_size=2),
)
filter_values = st.one_of(
    st.booleans(), st.integers(-3, 3), st.integers(-3, 3).map(Int), st.floats(), st.text("aä", max_size=2)
)
texts = st.sampled_from(["", "a", "b"])
systems = st.dictionaries(st.sampled_from(rules.SYSTEM_FIELDS), texts, max_size=3)
correlations = st.builds(
    lambda system, properties: rules.CorrelationFilter(**system, properties=properties),
    systems,
    st.dictionaries(names, filter_values, max_size=3),
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return type(left) is type(right) and left == right
    for kind in (Timestamp, Char):
        if isinstance(left, kind) or isinstance(right, kind):
            return isinstance(left, kind) and isinstance(right, kind) and left == right
    if isinstance(left, list | dict) or left is None:
        return False
    return bool(left == right)


@given(
    st.lists(st.one_of(st.just(TRUE), st.just(FALSE), correlations), max_size=5),
    st.dictionaries(names, values, max_size=3),
    systems,
)
@example([wants(a=True)], {"a": 1}, {})
@example([wants(a=1)], {"a": True}, {})
def test_rules_decide_as_they_read(
    filters: list[rules.Filter], properties: dict[str, Any], system: dict[str, str]
) -> None:
    decoded = decode(encode(properties))[0]

    def matches(filter: rules.Filter) -> bool:
        if not isinstance(filter, rules.CorrelationFilter):
            return isinstance(filter, rules.TrueFilter)
        asked = {name: wanted for name in rules.SYSTEM_FIELDS if (wanted := getattr(filter, name)) is not None}
        return all(system.get(name) == wanted for name, wanted in asked.items()) and all(
            name in decoded and same(decoded[name], wanted) for name, wanted in filter.properties.items()
        )

    assert ruleset(*filters).matches(message(properties, **system)) is any(map(matches, filters))


@given(st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=5))
def test_whatever_a_message_holds_can_be_compared(value: Any) -> None:
    facts = message({"a": value})
    assert isinstance(ruleset(wants(a=1)).matches(facts), bool)
