import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Byte, Char, Described, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.rule_description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    UnzonedTimestamp,
    is_timespan,
    property_value,
    timespan,
    timespan_seconds,
    validate_rule,
)


def test_a_rule_is_true_and_called_default_unless_said_otherwise():
    assert RuleDescription() == RuleDescription(name="$Default", filter=TrueFilter())
    validate_rule(RuleDescription())


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("text", "text"), (Symbol("sym"), "sym"), (True, True), (Int(5), Int(5)), (Byte(5), Int(5)), (Short(5), Int(5)),
        (UByte(5), Int(5)), (UShort(5), Int(5)), (5, 5), (UInt(5), 5), (ULong(5), 5), (2**63 - 1, 2**63 - 1),
        (1.5, 1.5), (Float(1.5), 1.5), (Timestamp(7), Timestamp(7)), (UnzonedTimestamp(7), UnzonedTimestamp(7)),
        (timespan(1.5), timespan(1.5)),
    ],
)  # fmt: skip
def test_values_are_kept_as_one_of_few_types(value, kept):
    assert property_value(value) == kept and type(property_value(value)) is type(kept)
    validate_rule(RuleDescription(filter=CorrelationFilter(properties={"x": value})))


@pytest.mark.parametrize(
    "value",
    [
        None, b"x", [], {}, 2**63, -(2**63) - 1, ULong(2**63), "x" * 32769, Char("x"), Described(Symbol("x"), 1),
        Described(Symbol("com.microsoft:timespan"), "1"), Timestamp(253402300800000), Timestamp(-62135596800001),
    ],
)  # fmt: skip
def test_values_that_no_filter_can_have(value):
    with pytest.raises(ValueError):
        property_value(value)
    with pytest.raises(InvalidDescription) as info:
        validate_rule(RuleDescription(filter=CorrelationFilter(properties={"x": value})))
    assert info.value.field == "properties" and len(str(info.value)) < 400


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (RuleDescription(name=""), "name"),
        (RuleDescription(name="a b"), "name"),
        (RuleDescription(filter="1=1"), "filter"),
        (RuleDescription(action="SET x = 1"), "action"),
        (RuleDescription(filter=CorrelationFilter(label=7)), "label"),
        (RuleDescription(filter=CorrelationFilter(to="x" * 32769)), "to"),
        (RuleDescription(filter=CorrelationFilter(properties={"": 1})), "properties"),
        (RuleDescription(filter=CorrelationFilter(properties={7: 1})), "properties"),
        (RuleDescription(filter=CorrelationFilter(properties={"x" * 1025: 1})), "properties"),
        (RuleDescription(filter=CorrelationFilter(properties={str(n): 1 for n in range(257)})), "properties"),
    ],
)
def test_what_a_rule_may_not_be(rule, field):
    with pytest.raises(InvalidDescription) as info:
        validate_rule(rule)
    assert info.value.field == field


@pytest.mark.parametrize("kind", [SqlFilter, SqlAction])
@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        (("a = ",), "SqlExpression", "in this, column "),
        (("a = @p",), "SqlExpression", "in this, column "),
        ((" " * 1025,), "SqlExpression", "1025 characters; 1024 are allowed"),
        ((7,), "SqlExpression", "text"),
        (("a = 1", {"@p": b"x"}), "Parameters", "numbers of up to 64 bits"),
        (("a = 1", {"": 1}), "Parameters", "names of 1 to 1024 characters"),
    ],
)
def test_sql_that_can_t_be_is_refused_when_it_is_described(kind, arguments, field, words):
    with pytest.raises(InvalidDescription, match=words) as info:
        kind(*arguments)
    assert info.value.field == field and len(str(info.value)) < 300


def test_durations_are_counted_in_ticks():
    assert timespan(1.5).value == 15_000_000 and timespan_seconds(timespan(1.5)) == 1.5
    assert is_timespan(timespan(0)) and not is_timespan(15_000_000)


values = st.one_of(
    st.text(max_size=20),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.integers(-62135596800000, 253402300799999).map(Timestamp),
    st.integers(-62135596800000, 253402300799999).map(UnzonedTimestamp),
    st.integers(-(2**62), 2**62).map(lambda ticks: Described(Symbol("com.microsoft:timespan"), ticks)),
)
texts = st.none() | st.text(max_size=10)
filters = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(
        CorrelationFilter,
        correlation_id=texts,
        label=texts,
        content_type=texts,
        properties=st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=5),
    ),
    st.builds(SqlFilter, st.just("a = @p"), st.fixed_dictionaries({"@p": values})),
)
actions = st.none() | st.builds(SqlAction, st.just("SET a = @p"), st.fixed_dictionaries({"@P": values}))


@given(st.builds(RuleDescription, name=st.just("r"), filter=filters, action=actions, created_at=st.floats(0, 4e9)))
def test_json_and_back_is_the_same_with_its_types(rule):
    back = RuleDescription.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False)))
    assert back == rule
    for mine, other in ((rule.filter, back.filter), (rule.action, back.action)):
        for name in ("properties", "parameters"):
            for key, value in getattr(mine, name, {}).items():
                assert type(getattr(other, name)[key]) is type(value)


def test_not_a_number_survives_too():
    rule = RuleDescription(filter=CorrelationFilter(properties={"x": math.nan}))
    back = RuleDescription.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False)))
    assert math.isnan(back.filter.properties["x"])


def test_a_filter_of_a_later_version_is_not_guessed_at():
    data = RuleDescription().to_json() | {"filter": {"kind": "odd"}}
    with pytest.raises(InvalidDescription):
        RuleDescription.from_json(data)
    assert dataclasses.replace(RuleDescription(), name="x").to_json()["name"] == "x"
