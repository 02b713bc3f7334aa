"""Whatever a sender may put into a message: it is refused, or every client can peek, receive and settle it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import uuid
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from pairbus.amqp.codec import DEPTH_MAX, decode, encode
from pairbus.amqp.errors import INVALID_FIELD, MESSAGE_SIZE_EXCEEDED, AmqpError
from pairbus.amqp.message import Header, Properties, encode_message, join_batch
from pairbus.amqp.types import Array, Byte, Described, Float, Int, Short, Symbol, Timestamp, UByte, ULong
from pairbus.broker import serve_sync
from pairbus.broker.format import content
from pairbus.broker.format.content import SCHEDULED_TIME, pack_changes, take_in
from pairbus.broker.format.content_checks import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_BYTES_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
    VALUES_AT_ONCE,
    Checked,
    checking,
    checking_request,
)
from pairbus.broker.server import NamespaceServer
from pairbus.broker.slices import finish
from pairbus.broker.sql import actions
from pairbus.wire import WireClient
from tests.broker.crash_load import admin_client
from tests.broker.namespace_rig import Rig
from tests.message_view import View
from tests.untidy_sdk import UNTIDY_SDK

pytestmark = UNTIDY_SDK

TIMES = (-(2**63), TIME_MS_MIN - 1, TIME_MS_MIN, -1, 0, TIME_MS_MAX, TIME_MS_MAX + 1, 2**63 - 1)
IN_TIME = TIMES[2:6]
DATA = b"\x00\x53\x75\xa0\x01x"
SIMPLE: dict[str, Any] = {
    "null": None, "float": Float(1.5), "nan": float("nan"), "infinity": float("inf"), "uuid": uuid.UUID(int=1),
    "byte": Byte(-128), "ubyte": UByte(255), "short": Short(-32768), "int": Int(-(2**31)), "ulong": ULong(2**64 - 1),
    "long": -(2**63), "symbol": Symbol("s" * 300), "binary": b"\xff\xfe", "string": "ü\x00", "list": [1, [2, "x"]],
    "map": {"a": {"b": 1}}, "described": Described(ULong(1), "x"), "array": Array.of(0x71, [Int(1), Int(2)]),
    "least time": Timestamp(-(2**63)), "last time": Timestamp(2**63 - 1),
}  # fmt: skip
#: What azure-servicebus can't decode.
UNDECODED = {"char": b"\x73\x00\x00\x00a", "decimal32": b"\x74\x22\x50\x00\x01", "decimal64": b"\x84" + bytes(8)}


def message(**properties: Any) -> bytes:
    return encode_message(properties=Properties(**{"message_id": "m", **properties}), body=None)


def nested(levels: int, constructor: str = "list") -> bytes:
    value = b"\x43"
    for _ in range(levels):
        match constructor:
            case "list":
                value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
            case "map":
                value = b"\xd1" + struct.pack(">II", len(value) + 6, 2) + b"\x54\x01" + value
            case _:
                value = b"\x00\x53\x01" + value
    return value


def in_map(section: int, key: bytes, value: bytes) -> bytes:
    return bytes((0, 0x53, section, 0xD1)) + struct.pack(">II", len(key) + len(value) + 4, 2) + key + value


def everywhere(name: str, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """A value in each place where a sender may put any."""
    key = b"\xa3\x03x-a"
    yield f"{name} as an annotation", in_map(0x72, key, raw) + message() + DATA
    yield f"{name} as a delivery annotation", in_map(0x71, key, raw) + message() + DATA
    yield f"{name} as an application property", message() + in_map(0x74, b"\xa1\x01a", raw) + DATA
    yield f"{name} as a body", message() + b"\x00\x53\x77" + raw
    yield f"{name} in a footer", message() + DATA + in_map(0x78, key, raw)


def taken() -> dict[str, bytes]:
    table = {
        "no body": message(), "no id": DATA, "nothing": b"", "no properties": b"\x00\x53\x73\x40" + DATA,
        "null application properties": message() + b"\x00\x53\x74\x40" + DATA,
        "the longest life": message(creation_time=TIME_MS_MIN, absolute_expiry_time=TIME_MS_MAX) + DATA,
        "every field of the header": encode_message(
            Header(durable=True, priority=255, ttl=2**32 - 1, first_acquirer=True, delivery_count=2**32 - 1)
        ),
        "no time to live": encode_message(Header(ttl=0), properties=Properties(message_id="m")),
        "group-sequence": message(group_sequence=2**32 - 1) + DATA,
        "several data sections": message() + DATA + DATA,
        "sequences": encode_message(properties=Properties(message_id="m"), body=("sequence", [[1], [2, "a"]])),
        "a long user id": message(user_id=b"\xff" * 60_000) + DATA,
        "a long property name": encode_message(application_properties={"n" * 60_000: 1}),
        "a batch of one in a message": join_batch([message() + DATA]),
        "a deep body": message() + b"\x00\x53\x77" + nested(DEPTH_MAX),
        "a deep body of maps": message() + b"\x00\x53\x77" + nested(DEPTH_MAX, "map"),
        "a deep body of described values": message() + b"\x00\x53\x77" + nested(DEPTH_MAX, "described"),
    }  # fmt: skip
    for field in ("to", "subject", "reply_to", "content_type", "content_encoding", "correlation_id"):
        table[f"a long {field}"] = message(**{field: "x" * 30_000}) + DATA
    for id in (ULong(2**64 - 1), uuid.UUID(int=2**128 - 1), b"\xff\xfe", "", "ü" * 128):
        table[f"message-id {id!r:.20}"] = message(message_id=id) + DATA
        table[f"correlation-id {id!r:.20}"] = message(correlation_id=id) + DATA
    for name, value in SIMPLE.items():
        table |= dict(everywhere(name, encode(value)))
    for ms in IN_TIME:
        table[f"creation-time {ms}"] = message(creation_time=ms) + DATA
        table[f"absolute-expiry-time {ms}"] = message(absolute_expiry_time=ms) + DATA
        table[f"scheduled for {ms}"] = encode_message(
            None, {SCHEDULED_TIME: Timestamp(ms)}, Properties(message_id="m"), body=b"x"
        )
    for key in ("x-opt-partition-key", "x-opt-via-partition-key"):
        for value in (None, "", "k" * 128, b"k", ("ü" * 128).encode()):
            table[f"{key} {value!r:.9}"] = encode_message(None, {key: value}, Properties(message_id="m"), body=b"x")
    return table


def refused() -> dict[str, bytes]:
    table = {
        "a deeper body": message() + b"\x00\x53\x77" + nested(DEPTH_MAX + 1),
        "a far deeper body": message() + b"\x00\x53\x77" + nested(5000),
        "a list that does not hold what it says": message() + b"\x00\x53\x77\xc0\x03\x02\x01\x02",
        "an annotation that is none": in_map(0x72, b"\xa3\x01a", b"\xc0\x03\x02\x01\x02") + message() + DATA,
        "a footer that is none": message() + DATA + b"\x00\x53\x78\xc1\x05\x02\x01\x02\x03\x04",
        "a wide descriptor of the properties": b"\x00\x80" + bytes(7) + b"\x73\xc0\x04\x01\xa1\x01m" + DATA,
        "a wide descriptor of the body": message() + b"\x00\x80" + bytes(7) + b"\x75\xa0\x01x",
        "a symbolic descriptor of the body": message() + b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
        "text that is none": message(subject=None) + in_map(0x74, b"\xa1\x01a", b"\xa1\x02\xff\xfe") + DATA,
    }
    for ms in set(TIMES) - set(IN_TIME):
        table[f"creation-time {ms}"] = message(creation_time=ms) + DATA
        table[f"absolute-expiry-time {ms}"] = message(absolute_expiry_time=ms) + DATA
        table[f"scheduled for {ms}"] = encode_message(
            None, {SCHEDULED_TIME: Timestamp(ms)}, Properties(message_id="m"), body=b"x"
        )
    for field in ("message_id", "group_id", "reply_to_group_id"):
        table[f"a long {field}"] = message(**{field: "x" * 129}) + DATA
    for key in ("x-opt-partition-key", "x-opt-via-partition-key"):
        for value in ("k" * 129, Int(5), b"k" * 129, b"\xff"):
            table[f"{key} {value!r:.9}"] = encode_message(None, {key: value}, Properties(message_id="m"), body=b"x")
    return table


@pytest.mark.parametrize("payload", refused().values(), ids=refused())
def test_what_some_receiver_could_not_read_is_refused_with_a_reason(payload: bytes) -> None:
    with pytest.raises(AmqpError) as error:
        take_in(payload, lambda: "id")
    assert error.value.condition in (INVALID_FIELD, "amqp:decode-error")
    assert len(error.value.description) > 20


@pytest.mark.parametrize("raw", UNDECODED.values(), ids=UNDECODED)
def test_every_type_of_amqp_is_taken_though_the_sdk_cannot_decode_it(raw: bytes) -> None:
    for payload in dict(everywhere("it", raw)).values():
        assert take_in(payload, lambda: "id") is not None
    assert pack_changes(None, {"a": decode(raw)[0]}) is not None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceServer]:
    with serve_sync("contoso", data=tmp_path_factory.mktemp("readable")) as broker:
        yield broker.namespaces["contoso"]


@contextlib.contextmanager
def queue_of(served: NamespaceServer, name: str) -> Iterator[str]:
    with admin_client(served.connection_string, served.ca_file) as admin:
        admin.create_queue(name)
        yield name
        admin.delete_queue(name)


def look_at(received: ServiceBusReceivedMessage) -> None:
    """All that the SDK makes of a message."""
    names = (
        "application_properties body_type content_type correlation_id dead_letter_reason delivery_count "
        "enqueued_time_utc expires_at_utc message_id partition_key reply_to scheduled_enqueue_time_utc session_id "
        "subject time_to_live to sequence_number state"
    )
    for name in names.split():
        getattr(received, name)
    raw = received.raw_amqp_message
    assert raw.header is not None
    for part in (raw.properties, raw.annotations, raw.delivery_annotations, raw.footer, received.body):
        if hasattr(part, "__next__"):
            list(part)


async def send(served: NamespaceServer, queue: str, payloads: list[bytes]) -> list[Exception | None]:
    async with WireClient.from_connection_string(served.connection_string) as client:
        sender = await client.sender(queue)
        return list(await sender.send_many(payloads))


def test_what_is_taken_can_be_peeked_received_dead_lettered_and_completed(served: NamespaceServer) -> None:
    table = taken()
    with queue_of(served, "table") as queue:
        outcomes = asyncio.run(send(served, queue, list(table.values())))
        assert {name: each for name, each in zip(table, outcomes, strict=True) if each is not None} == {}
        with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
            with client.get_queue_receiver(queue) as receiver:
                peeked: list[ServiceBusReceivedMessage] = []
                while more := receiver.peek_messages(
                    100, sequence_number=peeked[-1].sequence_number + 1 if peeked else 1
                ):
                    peeked += more
                for name, each in zip(table, peeked, strict=True):
                    try:
                        look_at(each)
                    except Exception as error:
                        error.add_note(name)
                        raise
                waiting = sum(each.state == ServiceBusMessageState.SCHEDULED for each in peeked)
                assert len(peeked) == len(table) and waiting == 1
                for each in received(receiver, len(table) - waiting):
                    receiver.dead_letter_message(each, reason="r", error_description="d")
            with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
                for each in received(receiver, len(table) - waiting):
                    assert each.dead_letter_reason == "r"
                    receiver.complete_message(each)


def received(receiver: ServiceBusReceiver, count: int) -> Iterator[ServiceBusReceivedMessage]:
    while count:
        messages = receiver.receive_messages(100, max_wait_time=10)
        assert messages
        count -= len(messages)
        for each in messages:
            look_at(each)
            yield each


async def test_refusals_reach_the_sender_and_leave_its_link_alone(served: NamespaceServer) -> None:
    with queue_of(served, "refusing") as queue:
        async with WireClient.from_connection_string(served.connection_string) as client:
            sender = await client.sender(queue)
            for name, payload in refused().items():
                (outcome,) = await sender.send_many([payload])
                assert outcome is not None, name
            assert await sender.send_many([message() + DATA]) == [None]
            assert len(await client.peek(queue, 1, 10)) == 1


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the broker takes what earlier versions took."""
    for name in ("check_time", "check_sections", "check_value"):
        monkeypatch.setattr(content, name, lambda *_: None)


def test_a_bad_message_that_is_stored_already_takes_no_connection_with_it(
    served: NamespaceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = encode_message(None, {SCHEDULED_TIME: Timestamp(2**63 - 1)}, Properties(message_id="bad"), body=b"x")
    with queue_of(served, "planted") as queue:
        with monkeypatch.context() as earlier:
            plant(earlier)
            assert asyncio.run(send(served, queue, [planted])) == [None]
        assert asyncio.run(send(served, queue, [message() + DATA])) == [None]
        with (
            ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            bad, good = receiver.peek_messages(10)
            assert (bad.sequence_number, bad.state, good.message_id) == (1, ServiceBusMessageState.SCHEDULED, "m")
            assert bad.enqueued_time_utc is not None
            (each,) = receiver.receive_messages(10, max_wait_time=5)
            receiver.complete_message(each)


def test_stored_nonsense_is_delivered_as_what_was_stored(bare: Rig) -> None:
    queue = bare.create()
    bare.send_payloads(message() + DATA)
    (stored,) = bare.acquire()
    sound = bare.namespace.receive.delivery(queue, stored, locked=True)
    stored.enqueued_at = float("inf")
    stored.delivery_count = 2**40
    stored.changes = b"\xff no AMQP"
    payload = bare.namespace.receive.delivery(queue, stored, locked=True)
    assert payload != sound
    view = View(payload)
    assert view.body == [("data", message() + DATA)]
    assert view.message_annotations["x-opt-sequence-number"] == 1
    assert bare.peeked() != []


def with_properties(**properties: Any) -> bytes:
    return encode_message(properties=Properties(message_id="m"), application_properties=properties, body=None)


def test_application_properties_are_bounded_each_and_together() -> None:
    assert (PROPERTY_BYTES_MAX, PROPERTIES_BYTES_MAX) == (actions.PROPERTY_BYTES_MAX, actions.PROPERTIES_BYTES_MAX)
    most = "x" * (PROPERTY_BYTES_MAX - 5)  # with five bytes before it
    full = {"a": most, "b": "x" * 32_700}
    aliases = {"x-ms-path": most, "x-pairbus-diverted-at": "x" * 40_000, "DeadLetterReason": "x" * 40_000}
    properties: dict[str, Any]
    for properties in ({"a": most}, full, full | aliases, aliases):
        assert take_in(with_properties(**properties), str) is not None
    for properties in ({"a": most + "x"}, full | {"c": "x" * 100}, aliases | {"a": b"x" * 40_000}):
        with pytest.raises(AmqpError, match="are allowed") as caught:
            take_in(with_properties(**properties), str)
        assert caught.value.condition == MESSAGE_SIZE_EXCEEDED


def compound(code: int, count: int, content: bytes) -> bytes:
    return bytes((code,)) + struct.pack(">II", len(content) + 4, count) + content


def units(payload: bytes) -> int:
    """In how many units a message that is sound is checked; each is at most so many values."""
    checked = Checked()

    def work() -> Generator[None, None, None]:
        nonlocal checked
        checked = yield from checking(payload, False)

    count = sum(1 for _ in work())
    assert checked == payload and checked.error is None
    return count


VALUE = message() + b"\x00\x53\x77"


@pytest.mark.parametrize(
    "body",
    [
        compound(0xD0, 50_000, b"\x40" * 50_000),
        compound(0xD0, 50_000, b"\xc0\x01\x00" * 50_000),
        compound(0xD0, 25_000, b"\x00\x53\x01\x40" * 25_000),
        compound(0xF0, 50_000, b"\xa1" + bytes(50_000)),
        compound(0xD0, 50, (b"\xc0\xfa\xf9" + b"\x40" * 249) * 50),
    ],
    ids=["values", "lists", "described", "an array", "lists of values"],
)
def test_a_message_of_many_values_is_checked_in_units(body: bytes) -> None:
    assert units(VALUE + body) >= 12_000 // VALUES_AT_ONCE


def test_an_array_whose_elements_have_one_width_is_checked_at_once_however_long_it_is() -> None:
    nulls = b"\xf0" + struct.pack(">II", 5, 1024) + b"\x40"
    assert units(VALUE + compound(0xD0, 400, nulls * 400)) <= 2
    assert units(VALUE + compound(0xF0, 50_000, b"\x80" + bytes(400_000))) <= 2


@pytest.mark.parametrize(
    "body",
    [
        b"\xf0" + struct.pack(">II", 5, 1025) + b"\x40",
        compound(0xF0, 3, b"\x80" + bytes(17)),
        compound(0xF0, 2, b"\x00\x40\x40"),
        compound(0xF0, 1, b"\x00\x53\x01\x00\x53\x01\x40"),
        compound(0xF0, 1, b"\x3f"),
        compound(0xF0, 3, b"\xa1\x00\x00"),
        compound(0xF0, 1, b"\xa1\x00\x00"),
        compound(0xF0, 2, b"\xc0\x01\x00\x03\x01"),
        b"\xc5\x01\x00",
        b"\x3f",
    ],
)
def test_an_array_that_is_not_sound_is_refused(body: bytes) -> None:
    with pytest.raises(AmqpError):
        take_in(VALUE + body, str)
    with pytest.raises(AmqpError):
        decode(body)


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        (compound(0xD0, 60_000, b"\x40" * 60_000), True),
        (compound(0xD0, 80_000, b"\x40" * 80_000), False),
        (compound(0xD0, 20_000, b"\xc0\x01\x00" * 20_000), True),
        (compound(0xD0, 25_000, b"\xc0\x01\x00" * 25_000), False),
        (compound(0xF0, 80_000, b"\x50" + bytes(80_000)), False),
        (compound(0xD0, 1, compound(0xD1, 80_000, b"\x40" * 80_000)), False),
        (compound(0xD0, 40_000, b"\x00\x53\x01\x40" * 40_000), False),
    ],
)
def test_the_values_of_a_request_are_counted_in_slices(body: bytes, is_taken: bool) -> None:
    work = checking_request(VALUE + body)
    steps = 0
    while True:
        try:
            next(work)
            steps += 1
        except StopIteration as end:
            checked = end.value
            break
    assert checked == VALUE + body
    assert checked.error is None if is_taken else checked.error.condition == MESSAGE_SIZE_EXCEEDED
    assert steps >= 20_000 // VALUES_AT_ONCE or body[0] == 0xF0


def test_what_is_wrong_with_a_large_message_is_kept_for_who_takes_it() -> None:
    checked = finish(checking(join_batch([message() + DATA, VALUE + nested(DEPTH_MAX + 1)]), True))
    assert checked.error is not None and checked.error.condition == INVALID_FIELD


def test_what_is_beside_the_body_is_bounded() -> None:
    notes = {Symbol(f"n{n}"): None for n in range(30_000)}
    with pytest.raises(AmqpError, match=r"beside the body .* are allowed") as caught:
        take_in(encode_message(None, notes, body=b"x"), str)
    assert caught.value.condition == MESSAGE_SIZE_EXCEEDED
    assert take_in(encode_message(properties=Properties(message_id="m"), body=bytes(300_000)), str) is not None


def test_sections_are_bounded() -> None:
    with pytest.raises(AmqpError, match="10000 sections"):
        take_in(message() + b"\x00\x53\x75\xa0\x00" * 10_000, str)
