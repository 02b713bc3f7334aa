from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec import encode, skip
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.message import (
    BATCH_FORMAT,
    Header,
    Properties,
    Sections,
    annotation_pairs,
    encode_annotations,
    encode_message,
    join_batch,
    read_application_properties,
    read_body,
    read_delivery_annotations,
    read_header,
    read_message_annotations,
    read_properties,
    split,
    split_batch,
    with_application_properties,
    with_fields,
    with_properties,
)
from pairbus.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong

from .values import damaged, integers, typed

NAMES = (
    "header", "delivery_annotations", "message_annotations", "properties", "application_properties", "body", "footer",
)  # fmt: skip


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def parts(payload: bytes) -> dict[str, bytes | None]:
    """Each section's raw bytes."""
    s = split(payload)
    spans = {name: getattr(s, name) for name in NAMES}
    return {name: None if span is None else payload[span[0] : span[1]] for name, span in spans.items()}


HEADER = section(0x70, [True])
DELIVERY = section(0x71, {Symbol("d"): 1})
ANNOTATIONS = section(0x72, {Symbol("m"): 2})
PROPERTIES = section(0x73, ["id"])
APPLICATION = section(0x74, {"a": 3})
DATA = section(0x75, b"body")
SEQUENCE = section(0x76, [1])
VALUE = section(0x77, "v")
FOOTER = section(0x78, {Symbol("f"): 4})
WHOLE = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + APPLICATION + DATA + FOOTER


def test_all_sections_are_found() -> None:
    assert list(parts(WHOLE).values()) == [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, FOOTER]
    s = split(WHOLE)
    assert WHOLE[s.bare_start : s.bare_end] == PROPERTIES + APPLICATION + DATA + FOOTER


@pytest.mark.parametrize(
    ("payload", "bare"),
    [
        (DATA, DATA),
        (DATA + DATA, DATA + DATA),
        (SEQUENCE + SEQUENCE, SEQUENCE + SEQUENCE),
        (VALUE, VALUE),
        (section(0x77, None), section(0x77, None)),
        (section(0x77, Described(ULong(1), {"a": [1]})), section(0x77, Described(ULong(1), {"a": [1]}))),
        (HEADER + APPLICATION + DATA, APPLICATION + DATA),
        (ANNOTATIONS + DATA + FOOTER, DATA + FOOTER),
        # pyamqp writes delivery annotations last
        (HEADER + PROPERTIES + DATA + DELIVERY, PROPERTIES + DATA),
        (PROPERTIES + DATA + FOOTER + DELIVERY, PROPERTIES + DATA + FOOTER),
        # rhea writes the footer before the body
        (FOOTER + DATA + DATA, FOOTER + DATA + DATA),
        (HEADER + PROPERTIES + FOOTER + VALUE, PROPERTIES + FOOTER + VALUE),
        # and pyamqp no body where a value is falsy
        (b"", b""),
        (HEADER, b""),
        (DELIVERY, b""),
        (HEADER + DELIVERY, b""),
        (PROPERTIES, PROPERTIES),
        (HEADER + PROPERTIES + DELIVERY, PROPERTIES),
        # empty, null and wide sections
        (section(0x70, []) + section(0x72, None) + section(0x74, {}) + DATA, section(0x74, {}) + DATA),
        (section(0x75, bytes(300)), section(0x75, bytes(300))),
        (section(0x76, [bytes(300)]), section(0x76, [bytes(300)])),
    ],
)
def test_the_bare_message_is_found(payload: bytes, bare: bytes) -> None:
    s = split(payload)
    assert payload[s.bare_start : s.bare_end] == bare


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (PROPERTIES + HEADER + DATA, "header out of order"),
        (DATA + PROPERTIES, "properties out of order"),
        (HEADER + HEADER + DATA, "header out of order"),
        (VALUE + VALUE, "amqp-value out of order"),
        (FOOTER + FOOTER + DATA, "footer out of order"),
        (FOOTER + DATA + FOOTER, "footer out of order"),
        (DATA + FOOTER + DATA, "data out of order"),
        (FOOTER + PROPERTIES + DATA, "properties out of order"),
        (PROPERTIES + DELIVERY + DATA, "delivery-annotations out of order"),
        (DELIVERY + DATA + DELIVERY, "delivery-annotations out of order"),
        (DATA + SEQUENCE, "not of a mix"),
        (DATA + VALUE, "not of a mix"),
        (SEQUENCE + VALUE, "not of a mix"),
        (DATA[:-1], "runs past the end"),
        (section(0x75, bytes(300))[:-1], "runs past the end"),
        (PROPERTIES + b"\x00\x53\x75", "runs past the end"),
        (PROPERTIES + b"\x00", "runs past the end"),
        (DATA + b"x", "described value"),
        (encode("text"), "described value"),
        (section(0x79, b""), "no message section"),
        (section(0x10, []), "no message section"),
        (encode(Described(Symbol("amqp:nothing:list"), [])), "no message section"),
        (encode(Described("amqp:data:binary", b"")), "a ulong or a symbol"),
        (section(0x75, "text"), "data can't be of type 0xa1"),
        (section(0x75, None), "data can't be of type 0x40"),
        (section(0x70, {}), "header can't be of type 0xc1"),
        (section(0x74, [1]), "application-properties can't be of type 0xc0"),
        (b"\x00\x53\x72\xc1\x00", "can't even hold its count"),
        (b"\x00\x53\x76\xd0\x00\x00\x00\x03\x00\x00\x00", "can't even hold its count"),
        (b"\x00\x53\x77\x3f", "unknown constructor"),
    ],
)
def test_what_is_no_message_is_a_decode_error(payload: bytes, told: str) -> None:
    with pytest.raises(DecodeError, match=told):
        split(payload)


def test_a_message_is_plain_when_nothing_in_it_is_passed_on_unread() -> None:
    long = b"\x00\x80" + (0x75).to_bytes(8, "big") + encode(b"body")
    usual = HEADER + ANNOTATIONS + PROPERTIES + APPLICATION
    assert all(split(payload).is_plain for payload in (b"", usual, usual + DATA, DATA + section(0x75, bytes(300))))
    for payload in (WHOLE, usual + SEQUENCE, usual + VALUE, DATA + FOOTER, FOOTER + DATA, DATA + DELIVERY, long):
        assert not split(payload).is_plain


def test_sections_are_found_by_every_form_of_descriptor() -> None:
    long = b"\x00\x80" + (0x75).to_bytes(8, "big") + encode(b"body")
    named = encode(Described(Symbol("amqp:application-properties:map"), {"a": 3}))
    payload = named + long
    s = split(payload)
    assert read_application_properties(payload, s) == {"a": 3}
    assert read_body(payload, s) == [("data", b"body")]
    assert split_batch(long + encode(Described(Symbol("amqp:data:binary"), b"two"))) == [b"body", b"two"]


def test_the_readers_of_a_full_message() -> None:
    properties = Properties(
        message_id=UUID(int=1), user_id=b"u", to="t", subject="s", reply_to="r", correlation_id=ULong(5),
        content_type="c", content_encoding="e", absolute_expiry_time=2, creation_time=1, group_id="g",
        group_sequence=7, reply_to_group_id="rg",
    )  # fmt: skip
    header = Header(durable=True, priority=9, ttl=60000, first_acquirer=True, delivery_count=3)
    payload = encode_message(
        header, {"x-opt-a": Timestamp(1), ULong(5): None}, properties, {"a": UInt(1)}, ("value", {"k": [1]}),
        delivery_annotations={"x-opt-lock-token": UUID(int=2)}, footer={"f": 1},
    )  # fmt: skip
    s = split(payload)
    assert read_header(payload, s) == header
    assert read_properties(payload, s) == properties
    assert typed(read_application_properties(payload, s)) == typed({"a": UInt(1)})
    assert typed(read_message_annotations(payload, s)) == typed({Symbol("x-opt-a"): Timestamp(1), ULong(5): None})
    assert read_delivery_annotations(payload, s) == {"x-opt-lock-token": UUID(int=2)}
    assert read_body(payload, s) == [("value", {"k": [1]})]
    assert repr(s).startswith("<Sections ")


def test_the_readers_of_an_empty_message() -> None:
    s = split(b"")
    assert read_header(b"", s) == Header()
    assert read_properties(b"", s) == Properties()
    assert (read_application_properties(b"", s), read_message_annotations(b"", s), read_body(b"", s)) == ({}, {}, [])
    assert annotation_pairs(b"", s) == []


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"x", [("data", b"x")]),
        (("data", [b"x", b"y"]), [("data", b"x"), ("data", b"y")]),
        (("data", b"x"), [("data", b"x")]),
        (("sequence", [1, 2]), [("sequence", [1, 2])]),
        (("sequence", [[1], [2]]), [("sequence", [1]), ("sequence", [2])]),
        (("sequence", []), [("sequence", [])]),
        (("value", None), [("value", None)]),
        (None, []),
    ],
)
def test_bodies_of_each_kind(body: Any, read: Any) -> None:
    payload = encode_message(body=body)
    assert read_body(payload, split(payload)) == read


def test_a_body_of_no_kind_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="'data', 'sequence' or 'value'"):
        encode_message(body=("json", {}))


@pytest.mark.parametrize(
    "payload", [section(0x73, [1]) + DATA, section(0x73, [None] * 14) + DATA, section(0x73, [None, "u"]) + DATA]
)
def test_properties_of_the_wrong_shape_are_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError, match="Properties"):
        read_properties(payload, split(payload))


def test_annotations_pass_through_raw() -> None:
    """Also those in an encoding that we wouldn't choose."""
    wide = b"\xb3\x00\x00\x00\x01w" + b"\x81\x00\x00\x00\x00\x00\x00\x00\x01"
    plain = encode(Symbol("x")) + encode([1, {"a": 2}])
    body = wide + plain
    payload = b"\x00\x53\x72\xd1" + (len(body) + 4).to_bytes(4, "big") + (4).to_bytes(4, "big") + body + DATA
    pairs = annotation_pairs(payload, split(payload))
    assert pairs == [("w", wide), ("x", plain)]
    again = encode_annotations([raw for _, raw in pairs], len(pairs)) + DATA
    assert read_message_annotations(again, split(again)) == {"w": 1, "x": [1, {"a": 2}]}
    assert encode_annotations([], 0) == b"\x00\x53\x72\xc1\x01\x00"


@pytest.mark.parametrize(
    "wire",
    [
        "c1020140",
        "c10203a101",
        "c1030440" + "40",
        "c10502a1016140" + "40",
        "c1030245" + "40",
        "c10504a1016140",
        "c10602" + "00532445" + "40",
        "c10502c1010040",
    ],
)
def test_annotations_that_do_not_add_up_are_a_decode_error(wire: str) -> None:
    payload = b"\x00\x53\x72" + bytes.fromhex(wire)
    with pytest.raises(DecodeError):
        annotation_pairs(payload, split(payload))


# Of each shape one: what values can be is the business of test_codec.
some_values = st.sampled_from(
    [
        None,
        True,
        1,
        UInt(300),
        1.5,
        "é",
        "x" * 300,
        b"b",
        Symbol("s"),
        UUID(int=1),
        [1, ["a"]],
        {"k": {}},
        Array.of(0x56, [True]),
        Described(ULong(5), [1]),
    ]
)


def wide_text(text: str) -> bytes:
    raw = text.encode()
    return b"\xb1" + len(raw).to_bytes(4, "big") + raw


raw_ids = st.text(max_size=9).map(wide_text) | st.uuids().map(encode) | st.integers(0, 9).map(ULong).map(encode)
raw_texts = st.none().map(encode) | st.text(max_size=9).map(wide_text) | st.text(max_size=9).map(encode)
raw_times = st.none().map(encode) | st.integers(0, 2**40).map(Timestamp).map(encode)
RAW_PROPERTIES = (
    raw_ids, st.binary(max_size=9).map(encode), raw_texts, raw_texts, raw_texts, raw_ids, raw_texts, raw_texts,
    raw_times, raw_times, raw_texts, st.integers(0, 300).map(UInt).map(encode), raw_texts,
)  # fmt: skip
RAW_HEADER = (
    st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x56\x01"]),
    st.sampled_from([b"\x40", b"\x50\x07"]),
    st.sampled_from([b"\x40", b"\x43", b"\x52\x05", b"\x70\x00\x00\x00\x05"]),
    st.sampled_from([b"\x40", b"\x56\x00"]),
    st.sampled_from([b"\x40", b"\x70\x00\x00\x00\x00"]),
)


@st.composite
def raw_lists(draw: st.DrawFn, code: int, columns: tuple[st.SearchStrategy[bytes], ...]) -> bytes:
    items = [draw(column) for column in columns[: draw(st.integers(0, len(columns)))]]
    body = b"".join(items)
    if draw(st.booleans()) or len(body) > 250:
        size = (len(body) + 4).to_bytes(4, "big")
        return b"\x00\x53" + bytes((code, 0xD0)) + size + len(items).to_bytes(4, "big") + body
    return b"\x00\x53" + bytes((code, 0xC0, len(body) + 1, len(items))) + body


def maps(code: int, keys: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.dictionaries(keys, some_values, max_size=3).map(lambda pairs: section(code, pairs))


annotation_keys = st.sampled_from(["x-opt-a", "x-opt-b", "mine", ""]).map(Symbol)
property_keys = st.sampled_from(["a", "é", "DeadLetterReason", ""])
none = st.just(b"")
bodies = st.one_of(
    none,
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda x: b"".join(section(0x75, b) for b in x)),
    st.lists(st.lists(some_values, max_size=2), min_size=1, max_size=2).map(
        lambda x: b"".join(section(0x76, b) for b in x)
    ),
    some_values.map(lambda value: section(0x77, value)),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    delivery = draw(none | maps(0x71, annotation_keys))
    last = draw(st.booleans())
    return b"".join(
        (
            draw(none | raw_lists(0x70, RAW_HEADER)),
            b"" if last else delivery,
            draw(none | maps(0x72, annotation_keys)),
            draw(none | raw_lists(0x73, RAW_PROPERTIES)),
            draw(none | maps(0x74, property_keys)),
            draw(bodies),
            draw(none | maps(0x78, annotation_keys)),
            delivery if last else b"",
        )
    )


def unchanged_but(name: str, before: bytes, after: bytes) -> None:
    old, new = parts(before), parts(after)
    del old[name], new[name]
    assert old == new


@given(messages())
def test_the_sections_cover_the_message(payload: bytes) -> None:
    assert sum(len(raw) for raw in parts(payload).values() if raw is not None) == len(payload)


@given(messages(), st.dictionaries(property_keys, some_values, max_size=2), st.sets(property_keys, max_size=3))
def test_application_properties_are_set_and_removed_alone(payload: bytes, new: Any, remove: Any) -> None:
    s = split(payload)
    old = read_application_properties(payload, s)
    changed = with_application_properties(payload, s, new, remove)
    expected = {key: value for key, value in old.items() if key not in new and key not in remove} | new
    assert typed(read_application_properties(changed, split(changed))) == typed(expected)
    unchanged_but("application_properties", payload, changed)
    assert with_application_properties(payload, s, {}) == payload


def raw_fields(payload: bytes, span: tuple[int, int] | None, count: int) -> list[bytes]:
    """The fields' raw bytes, with the omitted ones as nulls."""
    if span is None:
        return [b"\x40"] * count
    o = span[0] + 3
    o += {0x45: 1, 0xC0: 3, 0xD0: 9}[payload[o]]
    found = []
    while o < span[1]:
        end = skip(payload, o)
        found.append(payload[o:end])
        o = end
    return found + [b"\x40"] * (count - len(found))


@given(
    messages(),
    st.dictionaries(st.sampled_from(["message_id", "to", "subject", "group_id"]), st.none() | st.text(max_size=5)),
)
def test_properties_are_changed_field_by_field(payload: bytes, new: dict[str, Any]) -> None:
    s = split(payload)
    changed = with_properties(payload, s, **new)
    unchanged_but("properties", payload, changed)
    names = [field.name for field in Properties.SCHEMA]
    before, after = raw_fields(payload, s.properties, 13), raw_fields(changed, split(changed).properties, 13)
    for name, old_raw, new_raw in zip(names, before, after, strict=True):
        assert new_raw == (encode(new[name]) if name in new else old_raw)


@given(messages(), st.none() | integers(32, False), integers(32, False))
def test_the_header_is_changed_field_by_field(payload: bytes, ttl: int | None, count: int) -> None:
    s = split(payload)
    start, end = s.header or (None, 0)
    changed = with_fields(Header, payload, start, {"ttl": ttl, "delivery_count": count}) + payload[end:]
    unchanged_but("header", payload, changed)
    before, after = raw_fields(payload, s.header, 5), raw_fields(changed, split(changed).header, 5)
    assert after == [*before[:2], b"\x40" if ttl is None else encode(UInt(ttl)), before[3], encode(UInt(count))]


def test_a_field_that_does_not_exist_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="Properties has no field session_id"):
        with_properties(WHOLE, split(WHOLE), session_id="x")
    with pytest.raises(EncodeError, match="message_id must be id"):
        with_properties(WHOLE, split(WHOLE), message_id=["x"])


def everything(payload: bytes) -> None:
    s: Sections = split(payload)
    for read in (
        read_header, read_properties, read_application_properties, read_message_annotations, read_delivery_annotations,
        read_body, annotation_pairs,
    ):  # fmt: skip
        with contextlib.suppress(DecodeError):
            read(payload, s)
    for write in (
        lambda: with_application_properties(payload, s, {"a": 1}, ()),
        lambda: with_properties(payload, s, to="a"),
        lambda: with_fields(Header, payload, s.header and s.header[0], {"ttl": 1}),
    ):
        with contextlib.suppress(DecodeError):
            split(write())


@given(st.binary(max_size=40) | damaged(messages()))
def test_whatever_comes_is_a_message_or_a_decode_error(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        everything(payload)
    with contextlib.suppress(DecodeError):
        split_batch(payload)


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_batches_are_joined_and_split(inner: list[bytes]) -> None:
    batch = join_batch(inner, {"x-opt-partition-key": "k"}, Properties(message_id="m", group_id="g"))
    assert split_batch(batch) == inner
    assert BATCH_FORMAT == 0x80013700


def test_a_batch_is_made_of_data() -> None:
    with pytest.raises(DecodeError, match="a batch is made of data sections, not of amqp-value"):
        split_batch(VALUE)
    assert split_batch(b"") == []


def sent_by_the_sdk(message: Any) -> bytes:
    outgoing = transform_outbound_messages(message, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message)
    out = bytearray()
    pyamqp_encode.encode_payload(out, outgoing._message)
    return bytes(out)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (ServiceBusMessage(None), []),
        (ServiceBusMessage(b""), [("data", b"")]),
        (ServiceBusMessage(""), [("data", b"")]),
        (ServiceBusMessage("é"), [("data", "é".encode())]),
        (ServiceBusMessage(bytes(70000)), [("data", bytes(70000))]),
        (AmqpAnnotatedMessage(data_body=[b"a", b"b"]), [("data", b"a"), ("data", b"b")]),
        (AmqpAnnotatedMessage(data_body=[]), []),
        (AmqpAnnotatedMessage(value_body={"a": [1, {"b": 2}]}), [("value", {"a": [1, {"b": 2}]})]),
        (AmqpAnnotatedMessage(value_body=0), []),
        (AmqpAnnotatedMessage(value_body=None), []),
        (AmqpAnnotatedMessage(sequence_body=[1, 2]), [("sequence", [1, 2])]),
        (AmqpAnnotatedMessage(sequence_body=[[1], [2]]), [("sequence", [1]), ("sequence", [2])]),
    ],
    ids=str,
)
def test_each_body_that_the_sdk_sends(message: Any, body: Any) -> None:
    payload = sent_by_the_sdk(message)
    s = split(payload)
    assert read_body(payload, s) == body
    if isinstance(message, ServiceBusMessage):
        assert read_properties(payload, s).message_id == message.message_id is not None


def test_all_that_the_sdk_can_set_is_read() -> None:
    message = ServiceBusMessage(
        b"x", message_id="m", session_id="s", content_type="ct", correlation_id="c", subject="sub", to="t",
        reply_to="r", reply_to_session_id="rs", partition_key="s", time_to_live=timedelta(hours=1),
        application_properties={"text": "t", "number": 1, "yes": True, b"bytes": b"b", "none": None, "float": 1.5},
    )  # fmt: skip
    payload = sent_by_the_sdk(message)
    s = split(payload)
    p = read_properties(payload, s)
    assert (p.message_id, p.group_id, p.content_type, p.correlation_id, p.subject, p.to, p.reply_to) == (
        "m", "s", "ct", "c", "sub", "t", "r",
    )  # fmt: skip
    assert p.reply_to_group_id == "rs"
    assert p.absolute_expiry_time is not None and p.creation_time is not None
    assert p.absolute_expiry_time - p.creation_time == 3600000
    assert read_header(payload, s).ttl == 3600000
    assert read_message_annotations(payload, s) == {"x-opt-partition-key": "s"}
    assert typed(read_application_properties(payload, s)) == typed(
        {"text": "t", "number": Int(1), "yes": True, "bytes": "b", "none": None, "float": 1.5}
    )


def test_the_delivery_annotations_that_pyamqp_writes_last_stay_out_of_the_bare_message() -> None:
    payload = sent_by_the_sdk(AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={"d": 1}, footer={"f": 1}))
    s = split(payload)
    assert read_delivery_annotations(payload, s) == {"d": 1}
    assert b"\x71" not in payload[s.bare_start : s.bare_end]


def test_batches_of_the_sdk_are_split() -> None:
    batch = ServiceBusMessageBatch()
    sent = [ServiceBusMessage(b"one", session_id="s", partition_key="s"), ServiceBusMessage("two" * 100)]
    for message in sent:
        batch.add_message(message)
    out = bytearray()
    pyamqp_encode.encode_payload(out, batch._message)
    inner = split_batch(bytes(out))
    assert [read_body(raw, split(raw)) for raw in inner] == [[("data", b"one")], [("data", b"two" * 100)]]
    assert [read_properties(raw, split(raw)).message_id for raw in inner] == [message.message_id for message in sent]


def test_pyamqp_reads_what_we_write() -> None:
    payload = encode_message(
        Header(durable=True, delivery_count=2),
        {"x-opt-sequence-number": 5, "x-opt-enqueued-time": Timestamp(1)},
        Properties(message_id="m", group_id="g"),
        {"a": Int(1)},
        b"body",
    )
    got = pyamqp_decode.decode_payload(memoryview(payload))
    assert got.header.delivery_count == 2
    assert got.message_annotations == {b"x-opt-sequence-number": 5, b"x-opt-enqueued-time": 1}
    assert (got.properties.message_id, got.properties.group_id) == (b"m", b"g")
    assert got.application_properties == {b"a": 1}
    assert got.data == [b"body"]
