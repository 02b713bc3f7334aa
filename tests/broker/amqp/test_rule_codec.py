from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.types import Described, Timestamp
from pairbus.broker.amqp.rule_codec import UnknownRule, read_rule, write_rule
from pairbus.broker.model.rule_description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"sql-filter": {"expression": "1=1"}}, SqlFilter("1=1")),
        ({"sql-filter": {"expression": "colour = 'red'"}, "sql-rule-action": {}}, SqlFilter("colour = 'red'")),
        ({"true-filter": {}}, TrueFilter()),
        ({"false-filter": {}}, FalseFilter()),
        ({"correlation-filter": {"label": "l", "to": None}, "sql-rule-action": None}, CorrelationFilter(label="l")),
        (
            {"correlation-filter": {"correlation-id": "c", "properties": {"colour": "red"}}},
            CorrelationFilter(correlation_id="c", properties={"colour": "red"}),
        ),
    ],
)
def test_what_clients_ask_for(description: Any, expected: Any) -> None:
    assert read_rule("mine", description, 5.0) == RuleDescription(name="mine", filter=expected, created_at=5.0)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"sql-filter": {"expression": "colour = "}}, "column 9: expected a value after '='"),
        ({"correlation-filter": {}, "sql-rule-action": {"expression": "SET a"}}, "column 6: expected '=' after 'a'"),
        ({"correlation-filter": {"properties": {"a": b"x"}}}, "numbers of up to 64 bits"),
        ({}, "no filter"),
        (None, "must be a map"),
        ({"correlation-filter": {"label": 5}}, "label"),
        ({"correlation-filter": {"properties": {1: 2}}}, "string keys"),
    ],
)
def test_what_is_refused(description: Any, text: str) -> None:
    with pytest.raises(UnknownRule, match=text):
        read_rule("mine", description, 0.0)


def test_a_rule_with_an_action_comes_and_goes() -> None:
    description = {"sql-filter": {"expression": "a > 1"}, "sql-rule-action": {"expression": "SET a = 1"}}
    rule = read_rule("mine", description, 5.0)
    assert rule == RuleDescription(
        name="mine", filter=SqlFilter("a > 1"), action=SqlAction("SET a = 1"), created_at=5.0
    )
    decoded, _ = decode(encode(write_rule(rule)))
    written, action, *_ = decoded.value
    assert (written.descriptor, written.value) == (83483426822, ["a > 1"])
    assert (action.descriptor, action.value) == (1335734829062, ["SET a = 1"])


@pytest.mark.parametrize(
    ("filter", "descriptor", "fields"),
    [
        (TrueFilter(), 83483426823, []),
        (FalseFilter(), 83483426824, []),
        (
            CorrelationFilter(label="l", properties={"k": 1}),
            83483426825,
            [None, None, None, None, "l", None, None, None, {"k": 1}],
        ),
    ],
)
def test_listed_as_described_lists_with_the_codes_that_clients_know(filter: Any, descriptor: int, fields: Any) -> None:
    listed = write_rule(RuleDescription(name="mine", filter=filter, created_at=1.5))
    decoded, _ = decode(encode(listed))
    assert decoded.descriptor == 1335734829060
    written, action, name, created_at = decoded.value
    assert (written.descriptor, written.value) == (descriptor, fields)
    assert isinstance(action, Described)
    assert action.descriptor == 1335734829061
    assert (name, created_at) == ("mine", Timestamp(1500))
