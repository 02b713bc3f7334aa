from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.errors import AmqpError, DecodeError
from pairbus.amqp.message import (
    Header,
    Properties,
    encode_message,
    read_delivery_annotations,
    read_header,
    read_message_annotations,
    split,
)
from pairbus.amqp.types import Int, Short, Symbol, Timestamp, UInt
from pairbus.broker.format import content
from pairbus.broker.format.content import (
    ACTIVE_STATE,
    CHANGES_BYTES_MAX,
    DEFERRED_STATE,
    NO_HEADER,
    OWNED,
    PING_CONTENT_TYPE,
    SCHEDULED_STATE,
    SCHEDULED_TIME,
    Traits,
    delivery,
    message_id_in,
    pack_changes,
    take_in,
    taking_in,
    with_changes,
    with_ttl,
)
from pairbus.broker.slices import finish
from tests.message_view import View


def new_id() -> str:
    return "made-by-the-broker"


def refused(payload: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        take_in(payload, new_id)
    return caught.value


def passed_on(payload: bytes, *, count: int = 0, locked_until: float | None = 1060.25) -> bytes:
    kept = take_in(payload, new_id)
    assert kept is not None
    header, pairs_count, pairs_bytes, body, _ = kept
    return delivery(header, count, 42, 1000.5, locked_until, pairs_count, pairs_bytes, body)


def test_a_plain_message_is_kept_as_it_is() -> None:
    payload = encode_message(properties=Properties(message_id="a"), body=b"hello")
    kept = take_in(payload, new_id)
    assert kept == (NO_HEADER, 0, 0, payload, None)
    assert kept[3] is payload


@pytest.mark.parametrize(
    "payload",
    [
        encode_message(properties=Properties(message_id="a"), body=bytes(500)),
        encode_message(body=bytes(500)),
        encode_message(Header(ttl=9), {"x": 1, SCHEDULED_TIME: Timestamp(5)}, Properties(), {"a": 1}, bytes(500)),
        encode_message(body=("data", [bytes(300), bytes(300)]), properties=Properties(message_id="a")),
        encode_message(body=("value", bytes(500)), delivery_annotations={"d": 1}),
        encode_message(body=("sequence", [[1] * 200, [2]]), properties=Properties(group_id="s")),
        encode_message(body=bytes(500), footer={"f": 1}),
        encode_message(properties=Properties(content_type=PING_CONTENT_TYPE), body=bytes(500)),
        bytes.fromhex("005378c10100") + encode_message(body=bytes(500)),
        encode_message(body=bytes(500)) + bytes.fromhex("005371c10100"),
        encode_message(properties=Properties(message_id="a" * 500)),
        encode_message(properties=Properties(message_id="a" * 129), body=bytes(500)),
        bytes(500),
    ],
)
def test_a_large_message_is_taken_in_slices_with_the_same_outcome(
    payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(take: Callable[[], object]) -> object:
        try:
            return repr(take())
        except AmqpError as error:
            return error.condition, error.description

    at_once = outcome(lambda: take_in(payload, new_id, True))
    monkeypatch.setattr(content, "COPIED_AT_ONCE", 100)
    assert outcome(lambda: finish(taking_in(payload, new_id, True))) == at_once


SDK_PROPERTIES = b"\x00Ss\xc03\r\xa1$0e2e0a50-c83a-4fb4-a1bb-47c514859817@@@@@@@@@@@@"


def test_what_the_sdk_sends_is_kept_as_it_is() -> None:
    payload = SDK_PROPERTIES + b"\x00Su\xa0\nxxxxxxxxxx"
    assert take_in(payload, new_id) == (NO_HEADER, 0, 0, payload, None)


@pytest.mark.parametrize(
    ("payload", "rest"),
    [
        (encode_message(body=b"hello"), {}),
        (encode_message(properties=Properties(), body=b"hello"), {}),
        (encode_message(properties=Properties(subject="s"), body=b"hello"), {"subject": "s"}),
        (b"\x00\x53\x73\x45" + encode_message(body=b"hello"), {}),
        (b"\x00\x53\x73\xc0\x03\x02\x40\x40" + encode_message(body=b"hello"), {}),
    ],
)
def test_a_message_without_id_gets_one(payload: bytes, rest: dict[str, str]) -> None:
    received = passed_on(payload)
    properties = View(received).properties
    assert properties.message_id == "made-by-the-broker"
    assert properties == Properties(message_id="made-by-the-broker", **rest)
    assert View(received).body == [("data", b"hello")]


@pytest.mark.parametrize("message_id", ["x" * 128, "ü" * 128, uuid.UUID(int=7), 5, b"x" * 128, ""])
def test_ids_of_every_type_pass(message_id: object) -> None:
    received = passed_on(encode_message(properties=Properties(message_id=message_id), body=b""))
    assert View(received).properties.message_id == message_id


@pytest.mark.parametrize("message_id", ["x" * 129, "ü" * 129, b"x" * 129, "x" * 300])
def test_an_id_that_is_too_long_is_refused(message_id: object) -> None:
    error = refused(encode_message(properties=Properties(message_id=message_id), body=b""))
    assert error.condition == "amqp:invalid-field"
    assert "128" in error.description
    assert (
        refused(encode_message(properties=Properties(group_id="s" * 129), body=b"")).condition == "amqp:invalid-field"
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello",
        b"\x00\x53\x75\xa0\x05hell",
        b"\x00\x53\x73\xc0\x05\x01\xa1\x02\xff\xfe" + b"\x00\x53\x75\xa0\x00",  # an id that is no UTF-8
        b"\x00\x53\x73\xc0\x04\x01\xa1\x09a" + b"\x00\x53\x75\xa0\x00",  # an id longer than its list
        b"\x00\x53\x73\xc0\x03\x02\x40\xa1" + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x74\xc1\x04\x02\xa1\x09a" + b"\x00\x53\x75\xa0\x00",  # a property longer than its map
        b"\x00\x53\x72\xc1\x04\x02\xa3\x09a" + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x72\xc1\x03\x02\x45\x40" + b"\x00\x53\x75\xa0\x00",  # an annotation under a list
        b"\x00\x53\x70\xc0\x04\x01\xa1\x01a" + b"\x00\x53\x75\xa0\x00",  # durable is no string
    ],
)
def test_nonsense_is_a_decode_error(payload: bytes) -> None:
    if payload == b"":
        # A message may have no section at all: pyamqp leaves out whatever is falsy.
        assert take_in(payload, new_id) is not None
    else:
        assert isinstance(refused(payload), DecodeError)


def test_a_ping_is_told_by_its_content_type() -> None:
    assert take_in(encode_message(properties=Properties(content_type=PING_CONTENT_TYPE), body=None), new_id) is None
    ping = Properties(message_id="p", content_type=PING_CONTENT_TYPE, group_id="random")
    assert take_in(encode_message(header=Header(ttl=1000), properties=ping, body=b""), new_id) is None
    assert take_in(encode_message(properties=Properties(content_type="text/plain"), body=b""), new_id) is not None
    assert take_in(encode_message(application_properties={"a": PING_CONTENT_TYPE}, body=b""), new_id) is not None


def test_annotations_of_the_broker() -> None:
    received = passed_on(encode_message(properties=Properties(message_id="a"), body=b"x"))
    annotations = View(received).message_annotations
    assert annotations == {
        "x-opt-sequence-number": 42,
        "x-opt-enqueued-time": 1000500,
        "x-opt-locked-until": 1060250,
    }
    types = {key: type(value) for key, value in annotations.items()}
    assert types == {
        "x-opt-sequence-number": int,
        "x-opt-enqueued-time": Timestamp,
        "x-opt-locked-until": Timestamp,
    }
    assert {type(key) for key in annotations} == {Symbol}
    unlocked = passed_on(encode_message(body=b"x"), locked_until=None)
    assert "x-opt-locked-until" not in View(unlocked).message_annotations


def test_a_senders_word_on_the_brokers_annotations_is_dropped() -> None:
    sent = dict.fromkeys(sorted(OWNED), 7) | {"x-opt-partition-key": "p", "mine": Short(5)}
    received = passed_on(encode_message(message_annotations=sent, body=b"x"))
    annotations = View(received).message_annotations
    assert annotations["x-opt-sequence-number"] == 42
    assert annotations["x-opt-partition-key"] == "p"
    assert (annotations["mine"], type(annotations["mine"])) == (5, Short)
    assert "x-opt-lock-token" not in annotations
    assert len(annotations) == 5


@pytest.mark.parametrize(
    ("count", "raw"), [(0, b"\x43"), (1, b"\x52\x01"), (255, b"\x52\xff"), (256, b"\x70\x00\x00\x01\x00")]
)
def test_the_header_says_how_often_delivery_failed(count: int, raw: bytes) -> None:
    received = passed_on(encode_message(body=b"x"), count=count)
    assert View(received).header.delivery_count == count
    assert received.startswith(b"\x00\x53\x70\xc0" + bytes((5 + len(raw), 5)) + b"\x40\x40\x40\x40" + raw)


def test_header_fields_of_the_sender_pass() -> None:
    header = Header(durable=True, priority=7, ttl=60000, first_acquirer=True, delivery_count=9)
    received = passed_on(encode_message(header=header, body=b"x"), count=3)
    assert View(received).header == Header(durable=True, priority=7, ttl=60000, first_acquirer=True, delivery_count=3)


@pytest.mark.parametrize(
    "header", [b"\x00\x53\x70\x45", b"\x00\x53\x70\x40", b"\x00\x53\x70\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41"]
)
def test_headers_in_other_forms(header: bytes) -> None:
    received = passed_on(header + encode_message(body=b"x"))
    assert View(received).header.durable is header.endswith(b"\x41")


TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize("told_by", [{}, {"x-opt-hop": Short(1), "x-opt-lock-token": "not yours"}])
@pytest.mark.parametrize("where", ["first", "last"])
def test_delivery_annotations_pass_with_the_lock_token_beside_them(told_by: dict[str, Any], where: str) -> None:
    bare = encode_message(properties=Properties(message_id="a"), body=b"x", footer={"f": 1})
    section = b"\x00\x53\x71" + encode({Symbol(key): value for key, value in told_by.items()})
    kept = take_in(section + bare if where == "first" else bare + section, str)  # pyamqp puts them last
    assert kept is not None
    header, count, pairs_bytes, body, _ = kept
    for told, expected in (
        (
            delivery(header, 0, 42, 1.0, 2.0, count, pairs_bytes, body, token=TOKEN.bytes_le),
            {"x-opt-lock-token": TOKEN},
        ),
        (delivery(header, 0, 42, 1.0, None, count, pairs_bytes, body), {}),
        (delivery(header, 0, 42, 1.0, None, count, pairs_bytes, body, DEFERRED_STATE, is_peeked=True), {}),
    ):
        s = split(told)
        assert read_delivery_annotations(told, s) == told_by | expected
        assert told[s.bare_start :] == bare
        assert read_message_annotations(told, s)["x-opt-sequence-number"] == 42


def test_the_lock_token_is_told_as_a_uuid_and_peeked_messages_have_none() -> None:
    kept = take_in(encode_message(properties=Properties(message_id="a"), body=b"x"), str)
    assert kept is not None
    locked = delivery(kept[0], 0, 1, 0.0, 1.0, 0, 0, kept[3], token=TOKEN.bytes_le)
    assert View(locked).delivery_annotations == {"x-opt-lock-token": TOKEN}
    removed = delivery(kept[0], 0, 1, 0.0, None, 0, 0, kept[3])
    assert split(removed).delivery_annotations is not None
    assert View(removed).delivery_annotations == {}
    peeked = delivery(kept[0], 0, 1, 0.0, None, 0, 0, kept[3], is_peeked=True)
    assert split(peeked).delivery_annotations is None


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1).map(UInt),
    st.text(max_size=10),
    st.binary(max_size=10),
    st.uuids(),
    st.integers(0, 2**40).map(Timestamp),
)
properties = st.builds(
    Properties,
    message_id=st.none() | st.text(max_size=10) | st.uuids() | st.binary(max_size=5),
    subject=st.none() | st.text(max_size=10),
    content_type=st.none() | st.text("abc/", max_size=10),
    group_id=st.none() | st.text(max_size=10),
)
headers = st.none() | st.builds(Header, durable=st.booleans(), ttl=st.none() | st.integers(0, 2**32 - 1))
bodies = st.binary(max_size=50) | st.tuples(st.just("value"), values) | st.none()


@given(
    headers,
    st.dictionaries(st.text("abcdefgh", min_size=1), values, max_size=4),
    st.none() | properties,
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    bodies,
    st.dictionaries(st.text("abcdefgh", min_size=1), values, max_size=2),
)
def test_everything_else_passes_through(
    header: Header | None,
    annotations: dict[str, object],
    props: Properties | None,
    application: dict[str, object],
    body: bytes | tuple[str, object] | None,
    footer: dict[str, object],
) -> None:
    payload = encode_message(header, annotations, props, application, body, footer=footer)
    received = passed_on(payload)
    sent, got = split(payload), split(received)
    if props is not None and props.message_id is not None:
        assert received.endswith(payload[sent.bare_start : sent.bare_end])
    else:
        for name in ("application_properties", "body", "footer"):
            before, after = getattr(sent, name), getattr(got, name)
            assert (before is None) == (after is None)
            if before is not None:
                assert payload[slice(*before)] == received[slice(*after)]
    kept = read_message_annotations(received, got)
    assert {key: value for key, value in kept.items() if key not in OWNED} == annotations
    if header is not None:
        assert read_header(received, got).ttl == header.ttl


def test_changes_are_laid_over_each_other() -> None:
    assert pack_changes(None, {}) is None
    first = pack_changes(None, {"a": UInt(1), "b": "x"})
    assert first is not None
    assert pack_changes(first, {}) is first
    second = pack_changes(first, {Symbol("b"): None, "c": 2.5})
    assert second is not None
    merged = decode(second)[0]
    assert merged == {"a": 1, "b": None, "c": 2.5}
    assert type(merged["a"]) is UInt
    assert {type(key) for key in merged} == {str}


def test_changes_end_up_in_the_application_properties() -> None:
    payload = encode_message(
        properties=Properties(message_id="a"),
        application_properties={"a": Short(1), "b": 2},
        body=b"x",
        footer={"f": 1},
    )
    changes = pack_changes(None, {"b": "new", "DeadLetterReason": "why"})
    assert changes is not None
    changed = with_changes(payload, changes)
    got = View(changed).application_properties
    assert got == {"a": 1, "b": "new", "DeadLetterReason": "why"}
    assert type(got["a"]) is Short
    assert changed.endswith(payload[split(payload).body[0] :])  # type: ignore[index]
    assert with_changes(encode_message(body=b"x"), changes)


@pytest.mark.parametrize(
    ("changes", "condition"),
    [({5: "a"}, "amqp:invalid-field"), ({"a": "x" * CHANGES_BYTES_MAX}, "amqp:invalid-field"), ({"a": object()}, None)],
)
def test_changes_that_cannot_be(changes: dict[object, object], condition: str | None) -> None:
    with pytest.raises(AmqpError) as caught:
        pack_changes(None, changes)
    if condition is not None:
        assert caught.value.condition == condition


# what decides where a message goes and how long it stays


def traits_of(payload: bytes, closely: bool = False) -> Traits | None:
    kept = take_in(payload, new_id, closely)
    assert kept is not None
    return kept[4]


def test_a_plain_message_has_no_traits_unless_it_is_looked_at_closely() -> None:
    payload = encode_message(properties=Properties(message_id="a", group_id="s"), body=b"")
    assert traits_of(payload) is None
    traits = traits_of(payload, closely=True)
    assert traits is not None
    assert (traits.message_id, traits.session_id, traits.ttl, traits.scheduled_at) == ("a", "s", None, None)
    traits = traits_of(encode_message(body=b""), closely=True)
    assert traits is not None
    assert (traits.message_id, traits.session_id) == (new_id(), None)
    traits = traits_of(SDK_PROPERTIES, closely=True)
    assert traits is not None
    assert traits.message_id == "0e2e0a50-c83a-4fb4-a1bb-47c514859817"


@pytest.mark.parametrize(
    ("header", "properties", "ttl"),
    [
        (Header(ttl=1500), Properties(message_id="a"), 1.5),
        (Header(ttl=0), Properties(message_id="a"), None),
        (Header(ttl=2**32 - 1), Properties(message_id="a"), 4294967.295),
        # as the Python SDK says a week
        (Header(ttl=604800000), Properties(creation_time=1000, absolute_expiry_time=604801000), 604800.0),
        # as it says a hundred days: the header has room for fewer
        (Header(ttl=2**32 - 1), Properties(creation_time=1000, absolute_expiry_time=8_640_001_000), 8_640_000.0),
        (None, Properties(creation_time=1000, absolute_expiry_time=8_640_001_000), 8_640_000.0),
        # an end without a life of its own is the application's business
        (None, Properties(creation_time=1000, absolute_expiry_time=2000), None),
        (None, Properties(absolute_expiry_time=2000), None),
        # JS says "for ever" so
        (None, Properties(creation_time=1000, absolute_expiry_time=253402300799999), None),
    ],
)
def test_how_long_it_lives(header: Header | None, properties: Properties, ttl: float | None) -> None:
    traits = traits_of(encode_message(header, None, properties, body=b""))
    assert (traits and traits.ttl) == ttl


def test_a_life_that_is_shortened_is_told_to_receivers() -> None:
    payload = encode_message(Header(durable=True, priority=7, ttl=60_000), body=b"")
    kept = take_in(payload, new_id)
    assert kept is not None
    told = delivery(with_ttl(kept[0], 1.5), 0, 1, 0.0, None, 0, 0, kept[3])
    header = View(told).header
    assert (header.durable, header.priority, header.ttl) == (True, 7, 1500)
    told = delivery(with_ttl(NO_HEADER, 1e9), 0, 1, 0.0, None, 0, 0, kept[3])
    assert View(told).header.ttl == 2**32 - 1


def test_a_time_to_be_enqueued_at_is_read_and_kept() -> None:
    payload = encode_message(None, {SCHEDULED_TIME: Timestamp(1_500_250)}, Properties(message_id="a"), body=b"")
    traits = traits_of(payload)
    assert traits is not None
    assert traits.scheduled_at == 1500.25
    told = passed_on(payload)
    assert View(told).message_annotations[SCHEDULED_TIME] == 1_500_250
    assert traits_of(encode_message(None, {SCHEDULED_TIME: None}, Properties(message_id="a"), body=b"")) is None
    error = refused(encode_message(None, {SCHEDULED_TIME: "tomorrow"}, body=b""))
    assert error.condition == "amqp:invalid-field"
    assert "timestamp" in error.description


@pytest.mark.parametrize("state", [ACTIVE_STATE, DEFERRED_STATE, SCHEDULED_STATE])
def test_the_state_is_told_where_it_is_not_active(state: int) -> None:
    told = delivery(NO_HEADER, 0, 1, 0.0, None, 0, 0, encode_message(body=b""), state)
    value = View(told).message_annotations.get("x-opt-message-state")
    assert (value, type(value)) == ((state, Int) if state else (None, type(None)))


@pytest.mark.parametrize("header", [None, Header(durable=True, ttl=UInt(5000))])
@pytest.mark.parametrize("annotations", [None, {Symbol("x-opt-a"): 1}, {Symbol("x-opt-a"): "x" * 300}])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("an id", "an id"),
        ("", ""),
        ("Bären", "Bären"),
        ("x" * 128, "x" * 128),
        (b"\xff id", "\ufffd id"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (12, "12"),
    ],
)
def test_the_message_id_in_what_was_sent_and_in_what_is_kept(
    header: Header | None, annotations: dict[Any, Any] | None, given: Any, wanted: str
) -> None:
    properties = Properties(message_id=given, subject="s" * 200)
    for extra in (properties, Properties(message_id=given)):
        payload = encode_message(header=header, message_annotations=annotations, properties=extra, body=b"b")
        assert message_id_in(payload) == wanted
        kept = take_in(payload, lambda: "none")
        assert kept is not None
        assert message_id_in(kept[3], kept[2]) == wanted


def test_a_message_without_an_id_gets_one_and_none_is_found_in_what_was_sent() -> None:
    payload = encode_message(body=b"b")
    kept = take_in(payload, lambda: "given")
    assert kept is not None
    assert (message_id_in(payload), message_id_in(kept[3], kept[2])) == (None, "given")
