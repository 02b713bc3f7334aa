"""P27: what comes home is what was sent, byte for byte, but for what P27 names.

On the one side an SDK message as the SDK encodes it for the primary; on the other the same message diverted, encoded by
the SDK, taken in and delivered by the broker's own code, and brought home. Every body, every AMQP type.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pairbus.amqp import message as amqp
from pairbus.amqp.codec import decode, encode, skip
from pairbus.broker.format import content
from pairbus.pairing.backlog import aliases, diversion
from pairbus.pairing.backlog.aliases import RestoredMessage, restore_message

from .sdk_messages import messages

NOW = 1_800_000_000.0
PATHS = st.sampled_from(["orders", "a/b/orders", "topic-ü", "x" * 260])


def delivered(payload: bytes, *, deliveries: int = 0, state: int = 0, locked: bool = True) -> bytes:
    """What the broker of the backlog hands to a receiver for what it was sent."""
    taken = content.take_in(payload, lambda: "given-by-the-broker")
    assert taken is not None
    header, count, size, body, _ = taken
    token = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF).bytes_le if locked else None
    until = NOW + 60 if locked else None
    return content.delivery(header, deliveries, 1 << 52, NOW - 30, until, count, size, body, state=state, token=token)


def fields(payload: bytes, span: tuple[int, int] | None) -> list[bytes]:
    """The raw fields of a list section; trailing nulls say nothing (AMQP 1.4)."""
    if span is None:
        return []
    at = span[0] + 3
    if payload[at] == 0x45:
        return []
    count, at = (payload[at + 2], at + 3) if payload[at] == 0xC0 else (int.from_bytes(payload[at + 5 : at + 9]), at + 9)
    found = []
    for _ in range(count):
        end = skip(payload, at)
        found.append(payload[at:end])
        at = end
    while found and found[-1] == b"\x40":
        found.pop()
    return found


def pairs(payload: bytes, span: tuple[int, int] | None) -> dict[Any, bytes]:
    found = amqp.raw_pairs(payload, span)
    assert len(dict(found)) == len(found)
    return {key: raw for key, raw in found if key not in aliases.BROKER_ANNOTATIONS}


def field(found: list[bytes], index: int) -> bytes:
    return found[index] if index < len(found) else b"\x40"


def shape(payload: bytes, *, with_life: bool) -> dict[str, Any]:
    """A message as what P27 compares: raw bytes, section by section."""
    s = amqp.split(payload)
    header = fields(payload, s.header)
    properties = fields(payload, s.properties)
    if with_life and len(properties) > 8:
        # creation and expiry time are computed anew
        properties = [b"" if index in (8, 9) else raw for index, raw in enumerate(properties)]
    if field(properties, 0) in (b"\x40", b"\xa1\x13given-by-the-broker"):
        properties[:1] = [b"no id"]
    ttl = decode(field(header, 2), 0)[0]
    return {
        "durable": field(header, 0),
        "priority": field(header, 1),
        "ttl": ttl,
        "annotations": pairs(payload, s.message_annotations),
        # written anew by the broker, type by type: they are for one hop (AMQP 3.2.2), and it passes them on
        "delivery annotations": {
            key: encode(decode(raw, skip(raw, 0))[0]) for key, raw in pairs(payload, s.delivery_annotations).items()
        },
        "properties": properties,
        "application properties": None
        if s.application_properties is None
        else payload[slice(*s.application_properties)],
        "body": None if s.body is None else payload[slice(*s.body)],
        "footer": None if s.footer is None else payload[slice(*s.footer)],
    }


def life(message: AmqpAnnotatedMessage) -> bool:
    return bool(message.header is not None and message.header.time_to_live)


def can_be_sent(message: AmqpAnnotatedMessage) -> bool:
    """Not so: the same name as bytes and as text, which makes a map with a key twice; and what the SDK can't encode."""
    for section in (message.annotations, message.application_properties):
        names = [key.decode() if isinstance(key, bytes) else key for key in section or {}]
        if len(set(names)) != len(names):
            return False
    try:
        diversion.encoded(message)
    except ValueError:  # as a whole body a typed value is but a map, and its number an int
        return False
    return True


@settings(max_examples=200)
@given(
    message=messages(),
    path=PATHS,
    mark=st.booleans(),
    deliveries=st.sampled_from([0, 1, 300]),
    state=st.sampled_from([0, 1]),
    locked=st.booleans(),
)
def test_p26_p27_a_diverted_message_comes_home_as_it_was_sent(
    message: AmqpAnnotatedMessage, path: str, mark: bool, deliveries: int, state: int, locked: bool
) -> None:
    assume(can_be_sent(message))
    sent = diversion.encoded(message)
    before = copy.deepcopy(message)

    away = diversion.encoded(diversion.divert(message, path, now_unix=NOW, mark=mark))
    assert vars_of(message) == vars_of(before), "the caller's message was touched"
    in_backlog = amqp.split(away)
    properties = amqp.read_properties(away, in_backlog)
    assert properties.group_id is None
    assert amqp.read_header(away, in_backlog).ttl is None
    assert aliases.SCHEDULED_ANNOTATION not in amqp.read_message_annotations(away, in_backlog)
    if life(message):
        assert properties.creation_time is properties.absolute_expiry_time is None

    delivery = delivered(away, deliveries=deliveries, state=state, locked=locked)
    home = restore_message(delivery, now=NOW)
    assert isinstance(home, RestoredMessage), home
    s = amqp.split(delivery)
    assert restore_message(delivery, now=NOW, known=(s, amqp.read_message_annotations(delivery, s))) == home
    assert home.path == path
    check(sent, home, life(message), mark)


def check(sent: bytes, home: RestoredMessage, with_life: bool, mark: bool) -> None:
    payload = home.payload
    if mark:
        s = amqp.split(payload)
        assert int(amqp.read_application_properties(payload, s)[aliases.DIVERTED_AT]) == NOW * 1000
        payload = amqp.with_application_properties(payload, s, {}, {aliases.DIVERTED_AT})
    assert shape(payload, with_life=with_life) == shape(sent, with_life=with_life)
    s = amqp.split(payload)
    assert not aliases.BROKER_ANNOTATIONS & amqp.read_message_annotations(payload, s).keys()
    assert not aliases.BROKER_ANNOTATIONS & amqp.read_delivery_annotations(payload, s).keys()
    header, properties = amqp.read_header(payload, s), amqp.read_properties(payload, s)
    assert header.first_acquirer == amqp.read_header(sent, amqp.split(sent)).first_acquirer
    assert header.delivery_count == 0
    assert home.session_id == properties.group_id
    if with_life:
        assert properties.creation_time == NOW * 1000
        assert properties.absolute_expiry_time == NOW * 1000 + (header.ttl or 0)
    at = amqp.read_message_annotations(payload, s).get(aliases.SCHEDULED_ANNOTATION)
    assert home.scheduled == (None if at is None else at / 1000)


@settings(max_examples=60)
@given(batch=st.lists(messages(), min_size=1, max_size=3), path=PATHS, mark=st.booleans())
def test_p7_p27_so_does_one_that_the_application_had_put_into_a_batch(
    batch: list[AmqpAnnotatedMessage], path: str, mark: bool
) -> None:
    assume(all(can_be_sent(message) for message in batch))
    made = ServiceBusMessageBatch()
    for message in batch:
        made.add_message(message)
    away = diversion.divert_batch(made, path, now_unix=NOW, mark=mark)
    for message, payload in zip(batch, away, strict=True):
        home = restore_message(delivered(payload), now=NOW)
        assert isinstance(home, RestoredMessage), home
        assert home.path == path
        check(diversion.encoded(message), home, life(message), mark)


@settings(max_examples=60)
@given(message=messages(), path=PATHS, mark=st.booleans())
def test_both_ways_into_the_backlog_lead_to_the_same_message(
    message: AmqpAnnotatedMessage, path: str, mark: bool
) -> None:
    assume(can_be_sent(message))
    as_object = diversion.encoded(diversion.divert(message, path, now_unix=NOW, mark=mark))
    as_bytes = aliases.divert_encoded(diversion.encoded(message), path, diverted_at=NOW if mark else None)
    assert shape(as_object, with_life=False) == shape(as_bytes, with_life=False)


def vars_of(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """Everything in a message, as text: so 1 and True, and 0.0 and -0.0, differ."""
    return {name: repr(value) for name, value in vars(message).items()}
