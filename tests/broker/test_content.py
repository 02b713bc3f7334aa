from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec import decode
from pairbus.amqp.errors import AmqpError, DecodeError
from pairbus.amqp.message import (
    Header,
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_header,
    read_message_annotations,
    read_properties,
    split,
)
from pairbus.amqp.types import Int, Short, Symbol, Timestamp, UInt
from pairbus.broker.content import (
    CHANGES_BYTES_MAX,
    NO_HEADER,
    OWNED,
    PING_CONTENT_TYPE,
    delivery,
    pack_changes,
    take_in,
    with_changes,
)


def new_id() -> str:
    return "made-by-the-broker"


def refused(payload: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        take_in(payload, new_id)
    return caught.value


def passed_on(payload: bytes, *, count: int = 0, locked_until: float | None = 1060.25) -> bytes:
    kept = take_in(payload, new_id)
    assert kept is not None
    header, pairs_count, pairs_bytes, body = kept
    return delivery(header, count, 42, 1000.5, locked_until, pairs_count, pairs_bytes, body)


def test_a_plain_message_is_kept_as_it_is() -> None:
    payload = encode_message(properties=Properties(message_id="a"), body=b"hello")
    kept = take_in(payload, new_id)
    assert kept == (NO_HEADER, 0, 0, payload)
    assert kept[3] is payload


SDK_PROPERTIES = b"\x00Ss\xc03\r\xa1$0e2e0a50-c83a-4fb4-a1bb-47c514859817@@@@@@@@@@@@"


def test_what_the_sdk_sends_is_kept_as_it_is() -> None:
    payload = SDK_PROPERTIES + b"\x00Su\xa0\nxxxxxxxxxx"
    assert take_in(payload, new_id) == (NO_HEADER, 0, 0, payload)


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
    properties = read_properties(received, split(received))
    assert properties.message_id == "made-by-the-broker"
    assert properties == Properties(message_id="made-by-the-broker", **rest)
    assert read_body(received, split(received)) == [("data", b"hello")]


@pytest.mark.parametrize("message_id", ["x" * 128, "ü" * 128, uuid.UUID(int=7), 5, b"x" * 128, ""])
def test_ids_of_every_type_pass(message_id: object) -> None:
    received = passed_on(encode_message(properties=Properties(message_id=message_id), body=b""))
    assert read_properties(received, split(received)).message_id == message_id


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
    annotations = read_message_annotations(received, split(received))
    assert annotations == {
        "x-opt-sequence-number": 42,
        "x-opt-enqueued-time": 1000500,
        "x-opt-message-state": 0,
        "x-opt-enqueue-sequence-number": 42,
        "x-opt-locked-until": 1060250,
    }
    types = {key: type(value) for key, value in annotations.items()}
    assert types == {
        "x-opt-sequence-number": int,
        "x-opt-enqueued-time": Timestamp,
        "x-opt-message-state": Int,
        "x-opt-enqueue-sequence-number": int,
        "x-opt-locked-until": Timestamp,
    }
    assert {type(key) for key in annotations} == {Symbol}
    unlocked = passed_on(encode_message(body=b"x"), locked_until=None)
    assert "x-opt-locked-until" not in read_message_annotations(unlocked, split(unlocked))


def test_a_senders_word_on_the_brokers_annotations_is_dropped() -> None:
    sent = dict.fromkeys(sorted(OWNED), 7) | {"x-opt-partition-key": "p", "mine": Short(5)}
    received = passed_on(encode_message(message_annotations=sent, body=b"x"))
    annotations = read_message_annotations(received, split(received))
    assert annotations["x-opt-sequence-number"] == 42
    assert annotations["x-opt-partition-key"] == "p"
    assert (annotations["mine"], type(annotations["mine"])) == (5, Short)
    assert "x-opt-lock-token" not in annotations
    assert len(annotations) == 7


@pytest.mark.parametrize(
    ("count", "raw"), [(0, b"\x43"), (1, b"\x52\x01"), (255, b"\x52\xff"), (256, b"\x70\x00\x00\x01\x00")]
)
def test_the_header_says_how_often_delivery_failed(count: int, raw: bytes) -> None:
    received = passed_on(encode_message(body=b"x"), count=count)
    assert read_header(received, split(received)).delivery_count == count
    assert received.startswith(b"\x00\x53\x70\xc0" + bytes((5 + len(raw), 5)) + b"\x40\x40\x40\x40" + raw)


def test_header_fields_of_the_sender_pass() -> None:
    header = Header(durable=True, priority=7, ttl=60000, first_acquirer=True, delivery_count=9)
    received = passed_on(encode_message(header=header, body=b"x"), count=3)
    assert read_header(received, split(received)) == Header(
        durable=True, priority=7, ttl=60000, first_acquirer=True, delivery_count=3
    )


@pytest.mark.parametrize(
    "header", [b"\x00\x53\x70\x45", b"\x00\x53\x70\x40", b"\x00\x53\x70\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41"]
)
def test_headers_in_other_forms(header: bytes) -> None:
    received = passed_on(header + encode_message(body=b"x"))
    assert read_header(received, split(received)).durable is header.endswith(b"\x41")


def test_delivery_annotations_end_here() -> None:
    payload = encode_message(delivery_annotations={"x-opt-hop": 1}, properties=Properties(message_id="a"), body=b"x")
    received = passed_on(payload)
    assert split(received).delivery_annotations is None
    # pyamqp puts them last
    bare = encode_message(properties=Properties(message_id="a"), body=b"x", footer={"f": 1})
    last = bare + b"\x00\x53\x71\xc1\x05\x02\xa3\x01a\x40"
    assert passed_on(last).endswith(bare)


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
    got = read_application_properties(changed, split(changed))
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
