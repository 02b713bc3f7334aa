from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.types import Described, Timestamp
from pairbus.broker.amqp.rule_codec import UnknownRule, read_rule, write_rule
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, RuleDescription, TrueFilter


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"sql-filter": {"expression": "1=1"}}, TrueFilter()),
        ({"sql-filter": {"expression": " 1 = 0 "}}, FalseFilter()),
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
    ("description", "is_sql", "text"),
    [
        ({"sql-filter": {"expression": "colour = 'red'"}}, True, "SQL filters"),
        ({"correlation-filter": {}, "sql-rule-action": {"expression": "SET a = 1"}}, True, "SQL rule actions"),
        ({}, False, "no filter"),
        (None, False, "must be a map"),
        ({"correlation-filter": {"label": 5}}, False, "label"),
        ({"correlation-filter": {"properties": {1: 2}}}, False, "string keys"),
    ],
)
def test_what_is_refused(description: Any, is_sql: bool, text: str) -> None:
    with pytest.raises(UnknownRule, match=text) as caught:
        read_rule("mine", description, 0.0)
    assert caught.value.is_sql is is_sql


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
