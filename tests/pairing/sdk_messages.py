"""Hypothesis strategies for messages as the SDK's users make them: every body, every AMQP type that the SDK encodes."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import strategies as st

UTC = datetime.UTC
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
short_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
# Around the edges where an encoding needs another width.
sizes = st.sampled_from([0, 1, 3, 200, 225, 230, 235, 240, 245, 250, 253, 254, 255, 256, 257, 300])
long_text = sizes.map(lambda size: "x" * size)
times = st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(9990, 1, 1), timezones=st.none() | st.just(UTC))


def typed(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda value: {"TYPE": kind, "VALUE": value})


def bits(width: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    return st.sampled_from([low, high, 0, 1, 127, min(128, high), min(255, high)]) | st.integers(low, high)


simple: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    bits(32, signed=True),
    text,
    long_text,
    st.floats(allow_nan=False),
    st.uuids(),
    times,
    st.decimals(-1000, 1000, places=3).map(decimal.Decimal),
    typed("BOOL", st.booleans()),
    typed("UBYTE", bits(8, signed=False)),
    typed("BYTE", bits(8, signed=True)),
    typed("USHORT", bits(16, signed=False)),
    typed("SHORT", bits(16, signed=True)),
    typed("UINT", bits(32, signed=False)),
    typed("INT", bits(32, signed=True)),
    typed("ULONG", bits(64, signed=False)),
    typed("LONG", bits(64, signed=True)),
    typed("FLOAT", st.floats(width=32, allow_nan=False)),
    typed("DOUBLE", st.floats(allow_nan=False)),
    typed("TIMESTAMP", bits(50, signed=True)),
    typed("UUID", st.uuids()),
    typed("BINARY", st.binary(max_size=12)),
    typed("STRING", text),
    typed("SYMBOL", st.text("abc-:x", max_size=8)),
)
compound: st.SearchStrategy[Any] = st.recursive(
    simple | st.binary(max_size=12),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(text | st.integers(0, 99), inner, max_size=3),
        st.tuples(typed("SYMBOL", st.text("abc:", min_size=1, max_size=8)), inner),
    ),
    max_leaves=6,
)
arrays = st.one_of(
    typed("ARRAY", st.lists(typed("LONG", bits(64, signed=True)), min_size=1, max_size=4)),
    typed("ARRAY", st.lists(typed("SYMBOL", st.text("abc", max_size=4)), min_size=1, max_size=4)),
    typed("ARRAY", st.lists(st.uuids(), min_size=1, max_size=3)),
)
anything = compound | arrays

# Bytes among application properties become a string in the SDK's hands, so they must be one.
application_properties = st.none() | st.dictionaries(
    short_text | short_text.map(str.encode), simple | text.map(str.encode), max_size=4
)
scheduled = st.one_of(times, typed("TIMESTAMP", st.integers(0, 1 << 45)))
annotation_keys = st.text("abc", min_size=1, max_size=5).map(lambda name: f"x-opt-{name}")


@st.composite
def message_annotations(draw: st.DrawFn) -> dict[Any, Any] | None:
    keys = annotation_keys | annotation_keys.map(str.encode) | st.integers(0, 1 << 60)
    found: dict[Any, Any] = draw(st.dictionaries(keys, anything, max_size=3))
    if draw(st.booleans()):
        found[draw(st.sampled_from(["x-opt-partition-key", b"x-opt-partition-key"]))] = draw(short_text)
    if draw(st.booleans()):
        name = "x-opt-scheduled-enqueue-time"
        found[draw(st.sampled_from([name, name.encode()]))] = draw(scheduled)
    return found or draw(st.sampled_from([None, {}]))


ids = st.one_of(st.none(), short_text, st.uuids(), bits(64, signed=False), st.binary(min_size=1, max_size=8))
optional_text = st.none() | text | text.map(str.encode)


@st.composite
def properties(draw: st.DrawFn) -> AmqpMessageProperties | None:
    if draw(st.integers(0, 9)) == 0:
        return None
    lives = draw(st.booleans())
    created = draw(st.integers(1, 1 << 41))
    return AmqpMessageProperties(
        message_id=draw(ids),
        user_id=draw(st.none() | st.binary(max_size=8)),
        to=draw(optional_text),
        subject=draw(optional_text | long_text),
        reply_to=draw(optional_text),
        correlation_id=draw(ids),
        content_type=draw(st.none() | st.text("abc/", max_size=8)),
        content_encoding=draw(st.none() | st.text("abc", max_size=8)),
        creation_time=created if lives else None,
        absolute_expiry_time=created + draw(st.sampled_from([1, 1000, 0xFFFFFFFF])) if lives else None,
        group_id=draw(optional_text),
        group_sequence=draw(st.none() | bits(32, signed=False)),
        reply_to_group_id=draw(optional_text),
    )


headers = st.none() | st.builds(
    AmqpMessageHeader,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
    time_to_live=st.none() | st.integers(0, 0xFFFFFFFF) | st.sampled_from([0, 1, 1000, 0xFFFFFFFF]),
    first_acquirer=st.none() | st.booleans(),
    delivery_count=st.none() | st.integers(0, 9),
)
bodies: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"data_body": st.binary(max_size=300) | text}),
    st.fixed_dictionaries({"data_body": st.lists(st.binary(max_size=300), max_size=4)}),
    st.fixed_dictionaries({"value_body": anything}),
    st.fixed_dictionaries({"sequence_body": st.lists(st.lists(anything, max_size=3), max_size=3)}),
    st.fixed_dictionaries({"sequence_body": st.lists(simple, min_size=1, max_size=3)}),
)


@st.composite
def messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    message = AmqpAnnotatedMessage(
        **draw(bodies),
        application_properties=draw(application_properties),
        annotations=draw(message_annotations()),
        delivery_annotations=draw(st.none() | st.dictionaries(annotation_keys, anything, max_size=2)),
        footer=draw(st.none() | st.dictionaries(annotation_keys, simple, max_size=2)),
    )
    given_properties, given_header = draw(properties()), draw(headers)
    if given_properties is not None:
        message.properties = given_properties
    if given_header is not None:
        message.header = given_header
    return message
