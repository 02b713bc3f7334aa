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
from pairbus.broker.format.content import SCHEDULED_TIME
from pairbus.broker.model import rule_description as rules
from pairbus.broker.model.rules import Facts, RuleIndex, RuleSet, comparable
from pairbus.broker.slices import finish
from pairbus.broker.sql.system_properties import SYSTEM_PROPERTIES

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


# ---- SQL and actions


def sql(expression: str, action: str | None = None, name: str = "r") -> rules.RuleDescription:
    return rules.RuleDescription(
        name=name,
        filter=rules.SqlFilter(expression),
        action=None if action is None else rules.SqlAction(action),
    )


def judged(*described: rules.RuleDescription, **properties: Any) -> tuple[bool, list[dict[str, Any]], str | None]:
    verdict = finish(RuleSet(described).judge(message(properties, label="news")))
    return verdict.is_match, [draft.properties for draft in verdict.drafts], verdict.error


def test_matches_without_an_action_make_one_copy_and_each_with_one_its_own() -> None:
    described = [
        sql("n > 1"),
        sql("n > 2"),
        rules.RuleDescription(name="plain", filter=wants(n=3)),
        sql("n = 3", "SET a = 1", name="First"),
        rules.RuleDescription(name="second", filter=wants(n=3), action=rules.SqlAction("SET n = n + 1")),
        sql("n = 4", "SET a = 1"),
        rules.RuleDescription(filter=FALSE, action=rules.SqlAction("SET a = 1")),
    ]
    is_match, changed, error = judged(*described, n=3)
    assert (is_match, error) == (True, None)
    assert changed == [{"n": 4, "RuleName": "second"}, {"n": 3, "a": 1, "RuleName": "First"}]


@pytest.mark.parametrize(
    ("filter", "count"), [(TRUE, 1), (FALSE, 0), (rules.SqlFilter("1=1"), 1), (rules.CorrelationFilter(), 1)]
)
def test_an_action_alone_makes_a_copy_wherever_its_filter_matches(filter: rules.Filter, count: int) -> None:
    made = RuleSet([rules.RuleDescription(name="r", filter=filter, action=rules.SqlAction("SET a = 1"))])
    verdict = finish(made.judge(message()))
    assert not made.always
    assert (verdict.is_match, len(verdict.drafts), verdict.error) == (False, count, None)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([sql("sys.Odd = 1")], (False, 0, "The filter of rule 'r' can't be evaluated: messages have no system")),
        ([sql("sys.Odd = 1"), sql("n = 1")], (True, 0, None)),
        ([sql("n = 1"), sql("sys.Odd = 1")], (True, 0, None)),
        ([sql("1 / (n - 1) = 1"), rules.RuleDescription()], (True, 0, None)),
        ([sql("n = 1"), sql("sys.Odd = 1", "SET a = 1")], (True, 0, "The filter of rule 'r' can't be evaluated")),
        ([sql("n = 1", "SET sys.Odd = 1")], (False, 0, "The action of rule 'r' can't be carried out: messages have")),
        ([sql("n = 1", "SET a = 1 / 0"), sql("n = 1", "SET a = 1")], (False, 1, "The action of rule 'r'")),
        ([sql("absent = 1")], (False, 0, None)),
        ([sql("n = 'one'")], (False, 0, None)),
    ],
)
def test_what_can_t_be_evaluated(described: list[rules.RuleDescription], expected: tuple[Any, ...]) -> None:
    is_match, changed, error = judged(*described, n=1)
    assert (is_match, len(changed)) == expected[:2]
    assert (error is None) if expected[2] is None else str(error).startswith(expected[2])


def test_what_sql_asks_of_a_message() -> None:
    properties = Properties(
        message_id=UUID(int=1), subject="s", to="t", reply_to="r", group_id="g", reply_to_group_id="rg",
        correlation_id=ULong(5), content_type="c",
    )  # fmt: skip
    bare = encode_message(properties=properties, application_properties={"A": 1, "a": 2, "null": None}, body=b"x")
    pairs = encode(Symbol("x-opt-partition-key")) + encode("pk") + encode(Symbol(SCHEDULED_TIME))
    pairs += encode(Timestamp(7000))
    facts = Facts(pairs + bare, (2, len(pairs)), 1000.5, 60.0, lambda: bytes(16))
    assert {name: facts.system(name) for name in set(SYSTEM_PROPERTIES.values())} == {
        "MessageId": str(UUID(int=1)), "CorrelationId": "5", "SessionId": "g", "ReplyToSessionId": "rg", "Label": "s",
        "ContentType": "c", "To": "t", "ReplyTo": "r", "PartitionKey": "pk", "ViaPartitionKey": None,
        "TimeToLive": rules.timespan(60.0), "ExpiresAtUtc": Timestamp(1_060_500), "EnqueuedTimeUtc": Timestamp(1000500),
        "ScheduledEnqueueTimeUtc": Timestamp(7000), "SequenceNumber": None, "DeliveryCount": 0,
        "Size": len(pairs) + len(bare),
    }  # fmt: skip
    assert (facts.user("a"), facts.user("null"), facts.user("b")) == (1, None, None)
    assert (facts.has_user("a"), facts.has_user("null"), facts.has_user("b")) == (True, True, False)
    assert facts.new_id() == UUID(bytes=bytes(16), version=4)
    endless = Facts(bare)
    assert endless.system("TimeToLive").value == 2**63 - 1
    assert endless.system("ExpiresAtUtc") == 253402300799999


def test_rules_are_counted_by_kind() -> None:
    made = RuleSet([sql("a = 1"), sql("1=1"), rules.RuleDescription(), rules.RuleDescription(filter=wants(a=1))])
    assert made.counts == [2, 1]
    assert repr(RuleSet([sql("a = 1")])) == "<RuleSet: 1 in SQL>"
    assert not made.is_plain
    assert RuleSet([sql("1=1"), rules.RuleDescription(filter=wants(a=1))]).is_plain


LOOKED_UP = st.lists(
    st.sampled_from([TRUE, FALSE, wants(a=1), wants(a=2), wants(b=1), wants(a=1, b=2), rules.SqlFilter("a = 1")]),
    max_size=4,
)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.none() | LOOKED_UP), max_size=12), st.integers(0, 3))
def test_the_index_knows_what_the_rules_of_each_would_say(changes: list[tuple[str, Any]], value: int) -> None:
    index: RuleIndex[str] = RuleIndex()
    known: dict[str, RuleSet] = {}
    facts = message({"a": value, "b": 2})
    snapshots: list[tuple[RuleIndex[str], set[str], set[str]]] = []
    for name, filters in changes:
        snapshots.append((index.snapshot(), set(index.matching(facts)), set(index.special)))
        if filters is None:
            index.drop(name)
            known.pop(name, None)
        else:
            known[name] = ruleset(*filters)
            index.put(name, known[name])
    assert index.weight == sum(each.weight for each in known.values())
    assert index.special == {name: each for name, each in known.items() if not each.is_plain}
    assert set(index.matching(facts)) == {name for name, each in known.items() if each.is_plain and each.matches(facts)}
    for name in known:
        index.drop(name)
    for taken, matching, special in snapshots:
        assert (set(taken.matching(facts)), set(taken.special)) == (matching, special), "a snapshot stays as it was"
    assert repr(index) == "<RuleIndex: 0 subscriptions, 0 combinations of properties>"
