from xml.etree import ElementTree

import pytest
from azure.servicebus.management import CorrelationRuleFilter
from azure.servicebus.management._generated import models
from azure.servicebus.management._generated.models import (
    QueueDescriptionEntry,
    QueueDescriptionFeed,
)
from azure.servicebus.management._models import (
    QueueProperties,
    QueueRuntimeProperties,
)
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.http import atom
from pairbus.broker.http.atom import RuntimeCounts, read_entry
from pairbus.broker.http.rule_xml import write_authorization_rules
from pairbus.broker.http.xml import INSTANCE, BadDocument
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.rule_description import CorrelationFilter, RuleDescription
from pairbus.sas import AuthorizationRule

NOW = 1_700_000_000.25


def entry(inside="", tag="QueueDescription", namespace=atom.SERVICE_BUS):
    return (
        f'<?xml version="1.0" encoding="utf-8"?><a:entry xmlns:a="{atom.ATOM}" xmlns="{namespace}">'
        f'<a:content type="application/xml"><{tag}>{inside}</{tag}></a:content></a:entry>'
    ).encode()


def test_an_empty_body_or_description_means_all_defaults():
    assert read_entry(b"") == (atom.QUEUE, {})
    assert read_entry(b" \r\n") == (atom.QUEUE, {})
    assert read_entry(entry()) == (atom.QUEUE, {})
    assert read_entry(b"", [atom.SUBSCRIPTION]) == (atom.SUBSCRIPTION, {})


def test_what_is_described_is_told_by_its_element():
    assert read_entry(entry(tag="TopicDescription")) == (atom.TOPIC, {})
    assert read_entry(entry(tag="RuleDescription"), [atom.RULE]) == (atom.RULE, {})
    with pytest.raises(BadDocument, match="holds QueueDescription; here it must be SubscriptionDescription in"):
        read_entry(entry(), [atom.SUBSCRIPTION])


def test_fields_are_read_by_namespace_whatever_the_prefix():
    body = (
        f'<entry xmlns="{atom.ATOM}" xmlns:s="{atom.SERVICE_BUS}" xmlns:o="urn:other"><content>'
        f"<s:QueueDescription><s:LockDuration> PT30S </s:LockDuration><o:MaxDeliveryCount>x</o:MaxDeliveryCount>"
        f"<s:MaxDeliveryCount>3</s:MaxDeliveryCount><s:RequiresSession>True</s:RequiresSession><s:ForwardTo/>"
        f"<s:UserMetadata>a &amp; b</s:UserMetadata><s:SizeInBytes>junk</s:SizeInBytes><s:Unheard><s:Of/></s:Unheard>"
        f"<s:CreatedAt>junk</s:CreatedAt><s:AuthorizationRules/></s:QueueDescription></content></entry>"
    )
    assert read_entry(body.encode())[1] == {
        "lock_duration": 30.0,
        "max_delivery_count": 3,
        "requires_session": True,
        "user_metadata": "a & b",
        "authorization_rules": (),
    }
    assert read_entry(body.encode("utf-16"))[1]["user_metadata"] == "a & b"


@pytest.mark.parametrize(
    ("element", "value", "allowed"),
    [
        ("LockDuration", "soon", "ISO 8601"),
        ("MaxDeliveryCount", "1.5", "whole number"),
        ("MaxDeliveryCount", "9" * 30, "whole number"),
        ("MaxSizeInMegabytes", "١", "whole number"),
        ("RequiresSession", "yes", "true or false"),
    ],
)
def test_a_bad_value_names_element_value_and_what_is_allowed(element, value, allowed):
    with pytest.raises(InvalidDescription) as info:
        read_entry(entry(f"<{element}>{value}</{element}>"))
    assert info.value.field == element and info.value.value == value[:80] and allowed in info.value.allowed


def test_a_field_is_not_taken_from_a_client_that_can_not_know_it():
    body = entry("<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>")
    assert read_entry(body, version="2021-05")[1] == {"max_message_size_kb": 1024}
    with pytest.raises(InvalidDescription, match="came with api-version 2021-05"):
        read_entry(body, version="2017-04")
    assert atom.QUEUE.unknown_to("2017-04") == {"max_message_size_kb"} and not atom.QUEUE.unknown_to("2021-05")
    for version, elements in (("2017-04", 0), ("2021-05", 2)):
        text = atom.write_description(atom.QUEUE, FULL, COUNTS, version)
        assert text.count("MaxMessageSizeInKilobytes") == elements


def test_a_subscription_may_come_with_a_rule():
    rule = f'<Filter xmlns:p="{INSTANCE}" p:type="CorrelationFilter"><Label>x</Label></Filter><Name>r</Name>'
    body = entry(f"<DefaultRuleDescription>{rule}</DefaultRuleDescription>", "SubscriptionDescription")
    assert read_entry(body, [atom.SUBSCRIPTION])[1] == {
        "default_rule": RuleDescription(name="r", filter=CorrelationFilter(label="x"))
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<entry", "well-formed"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "well-formed"),
        (b"<entry/>", "Atom entry"),
        (f'<feed xmlns="{atom.ATOM}"/>'.encode(), "Atom entry"),
        (f'<entry xmlns="{atom.ATOM}"/>'.encode(), "one description"),
        (f'<entry xmlns="{atom.ATOM}"><content/></entry>'.encode(), "one description"),
        (entry(tag="SubscriptionDescription"), "holds SubscriptionDescription"),
        (entry(namespace="urn:other"), "holds QueueDescription"),
        (entry("<MaxDeliveryCount>1</MaxDeliveryCount>" * 2), "stands twice"),
        (b'<!DOCTYPE a [<!ENTITY x "y">]>' + entry()[38:], "DOCTYPE"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "DOCTYPE"),
        (entry("<LockDuration>&undefined;</LockDuration>"), "well-formed"),
    ],
)
def test_bad_documents(body, said):
    with pytest.raises(BadDocument, match=said):
        read_entry(body)


@given(st.binary(max_size=300))
def test_nothing_else_comes_of_any_bytes(body):
    for candidate in (body, entry().replace(b"QueueDescription", body), entry(body.decode("latin-1"))):
        try:
            read_entry(candidate)
        except (BadDocument, InvalidDescription):
            pass


FULL = QueueDescription(
    name="a/<b>&c",
    lock_duration=13.0,
    max_size_mb=5120,
    requires_session=True,
    default_ttl=11.5,
    max_delivery_count=14,
    forward_to="sb://h/other",
    user_metadata="<tag> & \"quote\"\r\n\x00 ü 🚌",
    authorization_rules=(AuthorizationRule(key_name="k", rights=("Send", "Listen"), primary_key="p"),),
    created_at=NOW,
    updated_at=NOW + 1,
)  # fmt: skip
COUNTS = RuntimeCounts(active=5, dead_letter=2, scheduled=1, size_bytes=4321, accessed_at=NOW)


def written(description=FULL, counts=COUNTS):
    content = atom.write_description(atom.QUEUE, description, counts)
    return atom.write_entry(
        content,
        title=description.name,
        url="https://h/a?x=1&y=2",
        author="ns",
        published=description.created_at,
        updated=description.updated_at,
    )


def test_the_sdk_reads_what_is_written():
    parsed = QueueDescriptionEntry.deserialize(ElementTree.fromstring(written()))
    assert parsed.title == FULL.name
    queue = QueueProperties._from_internal_entity("a", parsed.content.queue_description)
    assert queue.lock_duration.total_seconds() == 13 and queue.default_message_time_to_live.total_seconds() == 11.5
    assert (queue.max_size_in_megabytes, queue.max_delivery_count) == (5120, 14)
    assert queue.requires_session and queue.enable_batched_operations and queue.status == "Active"
    assert queue.forward_to == "sb://h/other" and queue.user_metadata == '<tag> & "quote"\r\n� ü 🚌'
    assert queue.authorization_rules[0].key_name == "k" and queue.authorization_rules[0].rights == ["Send", "Listen"]
    runtime = QueueRuntimeProperties._from_internal_entity("a", parsed.content.queue_description)
    assert (runtime.total_message_count, runtime.active_message_count) == (8, 5)
    assert (runtime.dead_letter_message_count, runtime.scheduled_message_count) == (2, 1)
    assert runtime.size_in_bytes == 4321 and runtime.accessed_at_utc.timestamp() == NOW


@pytest.mark.parametrize("kind", [atom.QUEUE, atom.TOPIC, atom.SUBSCRIPTION, atom.RULE])
def test_the_elements_stand_in_the_services_order(kind):
    assert CorrelationRuleFilter is not None  # the SDK puts its tables in order when it is imported
    theirs = getattr(models, kind.tag)._attribute_map.values()
    names = [column.get("xml", {}).get("name", column["key"]) for column in theirs]
    ours = [column.element for column in kind.columns]
    assert [{"CountDetails": "MessageCountDetails"}.get(name, name).lower() for name in ours] == [
        {"CountDetails": "MessageCountDetails"}.get(name, name).lower() for name in names
    ]


def test_what_is_written_is_read_back_the_same():
    fields = {
        column.name: getattr(FULL, column.name)
        for column in atom.QUEUE.columns
        if isinstance(column, atom.Field) and not column.read_only and getattr(FULL, column.name) is not None
    }
    text = written(FULL).replace(write_authorization_rules(FULL.authorization_rules), "")
    assert read_entry(text.encode())[1] == fields | {"user_metadata": '<tag> & "quote"\r\n� ü 🚌'}


def test_a_feed_has_two_links_only_when_there_is_more():
    for next_url, links in ((None, 1), ("https://h/$Resources/queues?$skip=1&$top=1", 2)):
        text = atom.write_feed([written()], title="Queues", url="https://h/?a&b", updated=NOW, next_url=next_url)
        feed = QueueDescriptionFeed.deserialize(ElementTree.fromstring(text))
        assert len(feed.link) == links and feed.link[-1].href == (next_url or "https://h/?a&b")
        assert [found.title for found in feed.entry] == [FULL.name]


def test_errors_are_told_as_the_service_does():
    text = atom.write_error(409, "SubCode=40900. <x>", tracking_id="id", tracker="ns:q", now=NOW)
    assert text == (
        "<Error><Code>409</Code><Detail>SubCode=40900. &lt;x&gt; TrackingId:id, SystemTracker:ns:q, "
        "Timestamp:2023-11-14T22:13:20</Detail></Error>"
    )


def test_fields_have_the_services_names_in_errors():
    assert atom.QUEUE.element_of("max_size_mb") == "MaxSizeInMegabytes"
    assert atom.QUEUE.element_of("name") == "name"
