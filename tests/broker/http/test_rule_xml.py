from datetime import datetime, timedelta
from xml.etree import ElementTree

import pytest
from azure.servicebus import management as sdk
from azure.servicebus.management._generated.models import CreateRuleBody, CreateRuleBodyContent, RuleDescriptionEntry
from azure.servicebus.management._utils import deserialize_rule_key_values, serialize_rule_key_values
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Int, Timestamp
from pairbus.broker.http import atom, rule_xml
from pairbus.broker.http.xml import INSTANCE, SCHEMA, BadDocument, parse
from pairbus.broker.model import rule_description as model
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.sas import AuthorizationRule
from tests.broker.model.test_rule_description import values


def sent(filter, action=None):
    """What the SDK makes of a rule."""
    rule = sdk.RuleProperties("r", filter=filter, action=action, created_at_utc=None)
    body = CreateRuleBody(content=CreateRuleBodyContent(rule_description=rule._to_internal_entity()))
    root = body.serialize(is_xml=True)
    serialize_rule_key_values(root, rule)
    return ElementTree.tostring(root)  # type: ignore[call-overload]


def shown(filter, action=None):
    """What the SDK reads from what is written of a rule."""
    ours = model.RuleDescription(name="r", filter=filter, action=action)
    content = atom.write_description(atom.RULE, ours, atom.RuntimeCounts())
    text = atom.write_entry(content, title="r", url="https://h/r", author="ns", published=1.0, updated=1.0)
    root = ElementTree.fromstring(text)
    entry = RuleDescriptionEntry.deserialize(root)
    rule = sdk.RuleProperties._from_internal_entity("r", entry.content.rule_description)
    deserialize_rule_key_values(root, rule)
    return rule


PROPERTIES = {
    "text": " str <1> ",
    "int": 2,
    "long": 2**31 + 2,
    "flag": False,
    "double": 2.5,
    "time": datetime(2020, 7, 5, 11, 12, 13),
    "duration": timedelta(days=1, hours=2, minutes=3),
}
OURS = {
    "text": " str <1> ",
    "int": Int(2),
    "long": 2**31 + 2,
    "flag": False,
    "double": 2.5,
    "time": model.UnzonedTimestamp(1593947533000),
    "duration": model.timespan(93780),
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (sdk.TrueRuleFilter(), model.TrueFilter()),
        (sdk.FalseRuleFilter(), model.FalseFilter()),
        (sdk.CorrelationRuleFilter(correlation_id="c"), model.CorrelationFilter(correlation_id="c")),
        (
            sdk.CorrelationRuleFilter(
                correlation_id=" a ", message_id="b", to="c", reply_to="d", label="e", session_id="f",
                reply_to_session_id="g", content_type="h<", properties=PROPERTIES,
            ),
            model.CorrelationFilter(
                correlation_id=" a ", message_id="b", to="c", reply_to="d", label="e", session_id="f",
                reply_to_session_id="g", content_type="h<", properties=OURS,
            ),
        ),
    ],
)  # fmt: skip
def test_the_sdks_filters_come_and_go(theirs, ours):
    kind, fields = atom.read_entry(sent(theirs), [atom.RULE])
    assert kind is atom.RULE and fields == {"filter": ours, "action": None}
    for key, value in getattr(fields["filter"], "properties", {}).items():
        assert type(value) is type(ours.properties[key])
    back = shown(fields["filter"])
    assert type(back.filter) is type(theirs) and back.action is None
    if isinstance(ours, model.CorrelationFilter):
        assert vars(back.filter) == vars(theirs) | {"properties": theirs.properties or {}}


safe = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))


@given(st.dictionaries(safe.filter(len), values.filter(lambda value: not isinstance(value, str)) | safe, max_size=4))
def test_what_is_written_is_read_back_with_its_types(properties):
    text = f'<x xmlns:i="{INSTANCE}">{rule_xml.write_filter(model.CorrelationFilter(properties=properties))}</x>'
    back = rule_xml.read_filter(parse(text.encode())[0]).properties
    assert back.keys() == properties.keys()
    for key, value in properties.items():
        assert type(back[key]) is type(value)
        if model.is_timespan(value):  # longer than a double has room for
            assert abs(back[key].value - value.value) <= 2**11
        else:
            assert back[key] == value


PARAMETERS = {f"@{name}": value for name, value in PROPERTIES.items()}
OUR_PARAMETERS = {f"@{name}": value for name, value in OURS.items()}


@pytest.mark.parametrize(
    ("filter", "action", "ours"),
    [
        (sdk.SqlRuleFilter("a < 'x&y'"), None, (model.SqlFilter("a < 'x&y'"), None)),
        (sdk.SqlRuleFilter("1=1"), None, (model.SqlFilter("1=1"), None)),
        (
            sdk.SqlRuleFilter("a = @text AND b = @time", parameters=PARAMETERS),
            sdk.SqlRuleAction("SET a = @int SET b = @duration", parameters=PARAMETERS),
            (
                model.SqlFilter("a = @text AND b = @time", OUR_PARAMETERS),
                model.SqlAction("SET a = @int SET b = @duration", OUR_PARAMETERS),
            ),
        ),
        (
            sdk.CorrelationRuleFilter(label="x"),
            sdk.SqlRuleAction("SET a = 1"),
            (model.CorrelationFilter(label="x"), model.SqlAction("SET a = 1")),
        ),
    ],
)
def test_sql_comes_and_goes_with_its_parameters(filter, action, ours):
    fields = atom.read_entry(sent(filter, action), [atom.RULE])[1]
    assert (fields["filter"], fields["action"]) == ours
    back = shown(**fields)
    for mine, theirs in ((back.filter, filter), (back.action, action)):
        if isinstance(theirs, sdk.SqlRuleFilter | sdk.SqlRuleAction):
            assert mine.sql_expression == theirs.sql_expression
            assert (mine.parameters or {}) == (theirs.parameters or {})
        else:
            assert type(mine) is type(theirs)


@pytest.mark.parametrize(
    ("filter", "action", "words"),
    [
        (sdk.SqlRuleFilter("Priority = "), None, "column 11: expected a value after '='"),
        (sdk.SqlRuleFilter("a = @p", parameters={"@q": 1}), None, "the parameter @p has no value; given are: @q"),
        (sdk.TrueRuleFilter(), sdk.SqlRuleAction("a = 1"), "column 1: expected SET or REMOVE, not 'a'"),
    ],
)
def test_wrong_sql_is_refused_with_its_column(filter, action, words):
    with pytest.raises(InvalidDescription, match=words) as info:
        atom.read_entry(sent(filter, action), [atom.RULE])
    assert info.value.field == "SqlExpression"


def properties(inside):
    text = f'<Filter xmlns:i="{INSTANCE}" i:type="CorrelationFilter"><Properties>{inside}</Properties></Filter>'
    return rule_xml.read_filter(parse(text.encode())).properties


def pair(value="x", kind="string", key="k"):
    return (
        f'<KeyValueOfstringanyType><Key>{key}</Key><Value xmlns:l28="{SCHEMA}" i:type="l28:{kind}">{value}</Value>'
        "</KeyValueOfstringanyType>"
    )


def test_properties_as_the_js_sdk_sends_them():
    assert properties(pair("2020-07-05T11:12:13.000Z", "dateTime")) == {"k": Timestamp(1593947533000)}
    assert properties(pair("7", "double")) == {"k": 7.0}
    assert properties("<KeyValueOfstringanyType><Key>k</Key><Value>t</Value></KeyValueOfstringanyType>") == {"k": "t"}
    assert properties("") == {}


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (pair("x", "int"), "k may not be 'x'; allowed: the text of a value of type int"),
        (pair("2147483648", "int"), "of type int"),
        (pair("9223372036854775808", "long"), "of type long"),
        (pair("maybe", "boolean"), "of type boolean"),
        (pair("yesterday", "dateTime"), "of type dateTime"),
        (pair("1h", "duration"), "of type duration"),
        (pair("x", "guid"), "k may not be 'of type guid'; allowed: one of the types string, int"),
        (pair() * 2, "twice"),
        ("<Other/>", "KeyValueOfstringanyType"),
        ("<KeyValueOfstringanyType><Key>k</Key></KeyValueOfstringanyType>", "a Key and a Value"),
        ("".join(pair(key=f"k{number}") for number in range(257)), "up to 256"),
    ],
)
def test_properties_that_may_not_be(inside, said):
    with pytest.raises((InvalidDescription, BadDocument), match=said):
        properties(inside)


def test_the_longest_duration_is_for_ever():
    assert properties(pair("P10675199DT2H48M5.4775807S", "duration"))["k"].value > 2**62


def test_a_default_rule_has_a_name_of_its_own():
    text = (
        f'<D xmlns:i="{INSTANCE}"><Filter i:type="FalseFilter"/><Action i:type="EmptyRuleAction"/><Name> r </Name></D>'
    )
    assert rule_xml.read_rule(parse(text.encode())) == model.RuleDescription(name="r", filter=model.FalseFilter())
    assert rule_xml.read_rule(parse(b"<D/>")) == model.RuleDescription()


def test_keys_of_an_entity_come_and_go():
    rules = (
        AuthorizationRule(
            key_name="k&1", rights=("Send", "Listen"), primary_key="p<", secondary_key="s", created_at=5.0
        ),
        AuthorizationRule(key_name="k2", rights=("Manage", "Send", "Listen"), primary_key="p2"),
    )
    text = f'<x xmlns:i="{INSTANCE}">{rule_xml.write_authorization_rules(rules)}</x>'
    back = rule_xml.read_authorization_rules(parse(text.encode())[0])
    assert [(rule.key_name, rule.rights, rule.primary_key, rule.secondary_key) for rule in back] == [
        ("k&1", ("Send", "Listen"), "p<", "s"),
        ("k2", ("Manage", "Send", "Listen"), "p2", ""),
    ]


@pytest.mark.parametrize("inside", ["<Other/>", f'<AuthorizationRule xmlns:i="{INSTANCE}" i:type="AllowRule"/>'])
def test_only_shared_keys_are_rules(inside):
    with pytest.raises(InvalidDescription, match="AuthorizationRules may not be"):
        rule_xml.read_authorization_rules(parse(f"<A>{inside}</A>".encode()))
