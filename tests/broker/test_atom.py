import math
from xml.etree import ElementTree

import pytest
from azure.servicebus.management._generated.models import QueueDescription as Theirs
from azure.servicebus.management._generated.models import QueueDescriptionEntry, QueueDescriptionFeed
from azure.servicebus.management._models import QueueProperties, QueueRuntimeProperties
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import atom
from pairbus.broker.atom import BadDocument, RuntimeCounts, read_duration, read_entry, write_duration, write_time
from pairbus.broker.description import AuthorizationRule, InvalidDescription, QueueDescription

NOW = 1_700_000_000.25


def entry(inside="", tag="QueueDescription", namespace=atom.SERVICE_BUS):
    return (
        f'<?xml version="1.0" encoding="utf-8"?><a:entry xmlns:a="{atom.ATOM}" xmlns="{namespace}">'
        f'<a:content type="application/xml"><{tag}>{inside}</{tag}></a:content></a:entry>'
    ).encode()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60), ("PT5S", 5), ("P1D", 86400), ("P1DT2H3M4.5S", 93784.5), ("PT0.001S", 0.001), ("PT0S", 0),
        ("PT13S", 13), ("PT90M", 5400), ("P25D", 2160000), ("P1Y", 31536000), ("P2M", 5184000), ("-PT1M", -60),
        (atom.INFINITE, math.inf), ("P10675199DT2H48M5.477581S", math.inf), ("P10675199DT2H48M5.47758S", math.inf),
        ("P10675199DT2H48M5.477539S", math.inf), ("P10675199D", math.inf), ("P99999999D", math.inf),
    ],
)  # fmt: skip
def test_durations_read(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1M", "PT1", "P1S", "PT1M ", "PT٣S", "PT1.S", "P1DT", "00:01:00", "P1W2"]
)
def test_durations_that_are_none(text):
    with pytest.raises(ValueError):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "PT1M"), (0.5, "PT0.5S"), (93784.5, "P1DT2H3M4.5S"), (86400, "P1D"), (0, "PT0S"), (math.inf, atom.INFINITE)],
)
def test_durations_written(seconds, text):
    assert write_duration(seconds) == text


@given(st.integers(0, 10_000_000_000_000_000).map(lambda ticks: ticks / 10_000_000))
def test_durations_go_round(seconds):
    assert read_duration(write_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_times():
    assert write_time(NOW) == "2023-11-14T22:13:20.250Z"
    assert write_time(0) == "0001-01-01T00:00:00Z"


def test_an_empty_body_or_description_means_all_defaults():
    assert read_entry(b"") == (atom.QUEUE, {})
    assert read_entry(b" \r\n") == (atom.QUEUE, {})
    assert read_entry(entry()) == (atom.QUEUE, {})


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


def test_rules_of_an_entity_are_refused_for_now():
    with pytest.raises(InvalidDescription, match="not supported yet"):
        read_entry(entry("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<entry", "well-formed"),
        (b"not xml", "well-formed"),
        (b"<a></b>", "well-formed"),
        (b"\xff\xfe\x00", "well-formed"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "well-formed"),
        (b"<entry/>", "Atom entry"),
        (f'<feed xmlns="{atom.ATOM}"/>'.encode(), "Atom entry"),
        (f'<entry xmlns="{atom.ATOM}"/>'.encode(), "one description"),
        (f'<entry xmlns="{atom.ATOM}"><content/></entry>'.encode(), "one description"),
        (entry(tag="TopicDescription"), "holds TopicDescription"),
        (entry(namespace="urn:other"), "holds QueueDescription"),
        (entry("<MaxDeliveryCount>1</MaxDeliveryCount>" * 2), "stands twice"),
        (b"<!DOCTYPE a>" + entry()[38:], "DOCTYPE"),
        (b'<!DOCTYPE a [<!ENTITY x "y">]>' + entry()[38:], "DOCTYPE"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "DOCTYPE"),
        (entry("<x>" * 20 + "</x>" * 20), "deeper"),
        (entry("<x/>" * 3000), "elements"),
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


def test_the_elements_stand_in_the_services_order():
    theirs = [column["xml"]["name"] if "xml" in column else "CountDetails" for column in Theirs._attribute_map.values()]
    assert [column.element for column in atom.QUEUE.columns] == theirs


def test_what_is_written_is_read_back_the_same():
    fields = {
        column.name: getattr(FULL, column.name)
        for column in atom.QUEUE.columns
        if isinstance(column, atom.Field) and not column.read_only and getattr(FULL, column.name) is not None
    }
    text = written(FULL).replace(atom._write_rules(FULL.authorization_rules), "")
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
