"""P20, P22, P26, P29: what is done to SDK messages before and on the way to the backlog."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._common.tracing import get_span_links_from_batch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message import (
    read_application_properties,
    read_header,
    read_message_annotations,
    read_properties,
    split,
    split_batch,
)
from pairbus.amqp.types import Timestamp
from pairbus.pairing.backlog import diversion
from pairbus.pairing.backlog.aliases import RestoredMessage, amqp_type, divert_encoded, restore_message
from pairbus.pairing.backlog.diversion import (
    argument_of,
    assign_ids,
    assign_ids_in_batch,
    batch_of,
    check_aliases,
    divert,
    divert_batch,
    encoded,
    message_ids,
    messages_of,
)
from pairbus.pairing.errors import AliasConflictError, BodyNotCopyableError
from tests.message_view import View

NOW = 1_800_000_000.5


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"new-{next(numbers)}"


def properties_of(message: Any) -> dict[str, Any]:
    payload = encoded(message)
    return View(payload).application_properties


def amqp_message(**parts: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(**{"data_body": b"x", **parts})


# what send_messages takes


def test_p7_the_messages_in_every_argument_that_send_messages_takes() -> None:
    one, two = ServiceBusMessage("1"), amqp_message()
    batch = ServiceBusMessageBatch()
    batch.add_message(one)
    batch.add_message(two)
    assert messages_of(one) == [one]
    assert messages_of(two) == [two]
    for many in ([one, two], (one, two), (each for each in (one, two)), {one: 1, two: 2}.keys()):
        assert messages_of(many) == [one, two]
    assert [encoded(message) for message in messages_of(batch)] == [encoded(one), encoded(two)]
    assert messages_of([]) == []
    (mapped,) = messages_of({"body": "hello", "session_id": "s"})
    assert isinstance(mapped, ServiceBusMessage)
    assert (str(mapped), mapped.session_id) == ("hello", "s")
    assert [str(each) for each in messages_of([{"body": "a"}, {"body": "b"}])] == ["a", "b"]


@pytest.mark.parametrize("wrong", [17, None, "text", ["text"], {"no": "body"}, [(1,)]])
def test_p14_what_is_no_message_is_refused_in_the_sdks_words(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings"):
        messages_of(wrong)


def test_p22_a_generator_is_read_once_and_both_tries_send_the_same() -> None:
    argument = (ServiceBusMessage(str(number)) for number in range(3))
    messages = messages_of(argument)
    assert argument_of(argument, messages) is messages
    assert len(messages) == 3


def test_p14_the_sdk_is_given_what_the_application_gave() -> None:
    message = ServiceBusMessage("1")
    batch = ServiceBusMessageBatch()
    assert argument_of(message, messages_of(message)) is message
    assert argument_of(batch, messages_of(batch)) is batch
    mapping = {"body": "1"}
    messages = messages_of(mapping)
    assert argument_of(mapping, messages) is messages[0]
    assert argument_of([mapping], messages_of([mapping]))[0].body_type == messages[0].body_type


# ids


def test_p20_a_message_without_an_id_gets_one_that_stays_with_it() -> None:
    bare, half, mine = amqp_message(), amqp_message(), amqp_message()
    half.properties = AmqpMessageProperties(subject="s")
    mine.properties = AmqpMessageProperties(message_id="mine")
    cleared = ServiceBusMessage("x")
    cleared.message_id = None
    made = ServiceBusMessage("x")
    before = made.message_id
    for _ in range(2):
        assign_ids([bare, half, mine, cleared, made], ids())
    assert message_ids([bare, half, mine, cleared, made]) == ("new-1", "new-2", "mine", "new-3", before)
    assert half.properties.subject == "s"


def test_p20_ids_of_every_type_are_left_and_shown() -> None:
    number, raw = amqp_message(), amqp_message()
    number.properties = AmqpMessageProperties(message_id=7)  # type: ignore[arg-type]
    raw.properties = AmqpMessageProperties(message_id=b"raw")
    assign_ids([number, raw], ids())
    assert message_ids([number, raw, amqp_message()]) == ("7", "raw")


def test_p20_messages_in_a_batch_get_theirs_too_though_they_are_encoded() -> None:
    batch = ServiceBusMessageBatch(max_size_in_bytes=1000)
    for message in (amqp_message(), ServiceBusMessage("x", message_id="mine"), amqp_message()):
        batch.add_message(message)
    size = batch.size_in_bytes
    assign_ids_in_batch(batch, ids())
    found = [View(each).properties.message_id for each in batch._message[5]]
    assert found == ["new-1", "mine", "new-2"]
    assert batch.size_in_bytes == sum(len(each) + 5 for each in batch._message[5]) > size


def test_p14_a_batch_does_not_outgrow_its_limit_for_an_id() -> None:
    batch = ServiceBusMessageBatch(max_size_in_bytes=30)
    batch.add_message(amqp_message())
    before = list(batch._message[5])
    assign_ids_in_batch(batch, lambda: "x" * 36)
    assert batch._message[5] == before


# aliases that are there already


@pytest.mark.parametrize("name", ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"])
def test_p29_a_message_with_an_alias_is_refused(name: str) -> None:
    for key in (name, name.encode()):
        for message in (
            ServiceBusMessage("x", application_properties={key: "a", "mine": 1}),
            amqp_message(application_properties={key: "a"}),
        ):
            with pytest.raises(AliasConflictError, match=f"application property {name}, which") as caught:
                check_aliases([ServiceBusMessage("fine"), message])
            assert isinstance(caught.value, ValueError)


def test_p29_others_pass() -> None:
    check_aliases([])
    check_aliases([ServiceBusMessage("x"), amqp_message(), amqp_message(application_properties={})])
    # it may have come through the backlog, and is sent on by its receiver
    check_aliases([ServiceBusMessage("x", application_properties={"x-pairbus-diverted-at": 1, "X-MS-PATH": 1})])


def test_p29_with_the_check_switched_off_ours_take_their_place() -> None:
    message = ServiceBusMessage("x", application_properties={b"x-ms-path": "a", "x-ms-sessionid": "b", "mine": 1})
    expected = {"mine": 1, "x-ms-path": "orders"}
    assert properties_of(divert(message, "orders", now_unix=NOW)) == expected
    away = divert_encoded(encoded(message), "orders")
    assert View(away).application_properties == expected


# to the backlog


def test_p26_session_life_and_schedule_are_put_away() -> None:
    at = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
    message = ServiceBusMessage(
        "hello",
        session_id="s",
        time_to_live=datetime.timedelta(seconds=5),
        scheduled_enqueue_time_utc=at,
        application_properties={"mine": 1},
        partition_key="s",
        message_id="m",
    )
    diverted = divert(message, "orders", now_unix=NOW)
    found = properties_of(diverted)
    assert found == {
        "mine": 1,
        "x-ms-path": "orders",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": 5000,
        "x-ms-scheduledenqueuetimeutc": int(at.timestamp() * 1000),
    }
    assert [amqp_type(found[name]) for name in found] == ["int", "string", "string", "long", "timestamp"]
    payload = encoded(diverted)
    s = split(payload)
    properties = read_properties(payload, s)
    assert (properties.message_id, properties.group_id) == ("m", None)
    assert properties.creation_time is properties.absolute_expiry_time is None
    assert read_header(payload, s).ttl is None
    assert read_message_annotations(payload, s) == {"x-opt-partition-key": "s"}


def test_p26_only_what_is_set_is_put_away() -> None:
    assert properties_of(divert(ServiceBusMessage("x"), "orders", now_unix=NOW)) == {"x-ms-path": "orders"}
    assert properties_of(divert(amqp_message(), "orders", now_unix=NOW)) == {"x-ms-path": "orders"}


def test_p26_the_callers_message_is_left_alone() -> None:
    message = ServiceBusMessage(
        "x",
        session_id="s",
        time_to_live=datetime.timedelta(seconds=5),
        application_properties={"mine": 1},
        scheduled_enqueue_time_utc=datetime.datetime(2030, 1, 1),
    )
    before = repr(message), repr(vars(message.raw_amqp_message))
    divert(message, "orders", now_unix=NOW, mark=True)
    assert (repr(message), repr(vars(message.raw_amqp_message))) == before


@pytest.mark.parametrize(
    "at",
    [
        datetime.datetime(2030, 1, 1, 12, 0, 0, 999999),
        datetime.datetime(2030, 1, 1, 13, 0, 0, 999999, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        {"TYPE": "TIMESTAMP", "VALUE": 1893499200999},
        1893499200999,  # as in a message that was received
    ],
)
@pytest.mark.parametrize("key", ["x-opt-scheduled-enqueue-time", b"x-opt-scheduled-enqueue-time"])
def test_p26_a_scheduled_time_in_every_form(at: Any, key: Any) -> None:
    found = properties_of(divert(amqp_message(annotations={key: at, "x-opt-a": 1}), "orders", now_unix=NOW))
    assert found["x-ms-scheduledenqueuetimeutc"] == Timestamp(1893499200999)


def test_p26_a_time_that_is_none() -> None:
    found = divert(amqp_message(annotations={b"x-opt-scheduled-enqueue-time": None}), "orders", now_unix=NOW)
    assert properties_of(found) == {"x-ms-path": "orders"}
    for wrong in ("soon", True, 1.5):
        with pytest.raises(ServiceBusError, match="x-opt-scheduled-enqueue-time is a time, not"):
            divert(amqp_message(annotations={b"x-opt-scheduled-enqueue-time": wrong}), "orders", now_unix=NOW)


def test_p26_a_session_id_that_is_none() -> None:
    message = amqp_message()
    message.properties = AmqpMessageProperties(group_id=7)  # type: ignore[arg-type]
    with pytest.raises(ServiceBusError, match="a session id is a string, not int"):
        divert(message, "orders", now_unix=NOW)


def test_p26_a_life_that_the_sdk_itself_could_not_encode() -> None:
    """For ever, as the SDK writes it: header.ttl has no room for it, and the alias has."""
    message = amqp_message()
    message.header = AmqpMessageHeader(time_to_live=922337203685477)
    away = encoded(divert(message, "orders", now_unix=NOW))
    home = restore_message(away, now=NOW)
    assert isinstance(home, RestoredMessage)
    assert home.payload == encoded(amqp_message())


def test_p26_a_life_beyond_32_bits() -> None:
    message = amqp_message()
    message.properties = AmqpMessageProperties(creation_time=1000, absolute_expiry_time=1000 + (1 << 33))
    away = encoded(divert(message, "orders", now_unix=NOW))
    assert View(away).application_properties["x-ms-timetolive"] == 1 << 33
    properties = View(away).properties
    assert properties.creation_time is properties.absolute_expiry_time is None


def test_p28_the_mark_says_when() -> None:
    for key in ("x-pairbus-diverted-at", b"x-pairbus-diverted-at"):
        message = ServiceBusMessage("x", application_properties={key: "before"})
        found = properties_of(divert(message, "orders", now_unix=NOW, mark=True))
        assert found["x-pairbus-diverted-at"] == NOW * 1000
        assert amqp_type(found["x-pairbus-diverted-at"]) == "timestamp"
        assert properties_of(divert(message, "orders", now_unix=NOW))["x-pairbus-diverted-at"] == "before"


def test_p22_a_body_that_can_be_read_only_once_is_an_error_and_not_an_empty_message() -> None:
    for kind in ("_data_body", "_sequence_body"):
        message = amqp_message()
        message._data_body = None
        setattr(message, kind, iter([b"once"]))
        with pytest.raises(BodyNotCopyableError, match="for orders has a body that can be read only once") as caught:
            divert(message, "orders", now_unix=NOW)
        assert isinstance(caught.value, TypeError)


def test_p7_a_received_message_can_be_sent_on() -> None:
    sent = ServiceBusMessage("hello", application_properties={"a": "b"}, session_id="s", message_id="m")
    sent.time_to_live = datetime.timedelta(seconds=9)
    frame: Any = [None] * 11
    received = ServiceBusReceivedMessage(
        decode_payload(memoryview(encoded(sent))), receive_mode="peeklock", receiver=None, frame=frame
    )
    home = restore_message(encoded(divert(received, "orders", now_unix=NOW)), now=NOW)
    assert isinstance(home, RestoredMessage)
    assert home.session_id == "s"
    payload = home.payload
    s = split(payload)
    assert read_application_properties(payload, s) == {"a": "b"}
    assert read_header(payload, s).ttl == 9000
    direct = encoded(received)  # whose id the SDK turns into a binary one
    assert read_properties(payload, s).message_id == View(direct).properties.message_id == b"m"


# batches


def test_p7_a_batch_holds_what_was_added_whatever_became_of_the_objects_since() -> None:
    message = ServiceBusMessage("one", message_id="1")
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    message.message_id, message.subject = "2", "changed"
    batch.add_message(message)
    away = divert_batch(batch, "orders", now_unix=NOW)
    assert [View(each).properties.message_id for each in away] == ["1", "2"]
    assert [View(each).properties.subject for each in away] == [None, "changed"]


def test_p7_a_batch_made_of_bytes_is_one_that_the_sdk_could_have_made() -> None:
    messages = [ServiceBusMessage(b"x" * size, message_id=str(size), partition_key="k") for size in (10, 300)]
    theirs = ServiceBusMessageBatch(max_size_in_bytes=5000)
    for message in messages:
        theirs.add_message(message)
    ours = batch_of([encoded(message) for message in messages], messages[0], 5000, PyamqpTransport)
    assert (len(ours), ours.size_in_bytes, ours.max_size_in_bytes) == (2, theirs.size_in_bytes, 5000)
    assert [bytes(each) for each in ours._message[5]] == [bytes(each) for each in theirs._message[5]]
    assert ours._message[:5] == theirs._message[:5]
    assert sent_bytes(ours) == sent_bytes(theirs)
    assert split_batch(sent_bytes(ours)) == [encoded(message) for message in messages]


@pytest.mark.parametrize(
    ("mine", "senders"), [(PyamqpTransport, PyamqpTransportAsync), (PyamqpTransportAsync, PyamqpTransport)]
)
def test_p22_a_sender_of_another_transport_fails_rather_than_send_an_empty_batch(mine: Any, senders: Any) -> None:
    """What the SDK does with a batch that is not of its sender's transport."""
    batch = batch_of([encoded(ServiceBusMessage("x"))], ServiceBusMessage("x"), 5000, mine)
    assert batch._amqp_transport is mine
    another = ServiceBusMessageBatch(amqp_transport=senders)
    with pytest.raises(TypeError):
        another._from_list(batch._messages)
    assert len(get_span_links_from_batch(batch)) == 1


def test_p26_the_envelope_of_a_diverted_batch_names_no_session() -> None:
    message = ServiceBusMessage("x", session_id="s", message_id="m")
    batch = batch_of([encoded(divert(message, "orders", now_unix=NOW))], message, 5000, PyamqpTransport)
    envelope = View(sent_bytes(batch)).properties
    assert (envelope.message_id, envelope.group_id) == ("m", None)
    bare = amqp_message()
    assert batch_of([encoded(bare)], bare, 5000, PyamqpTransport)._message[3] is None


def sent_bytes(batch: ServiceBusMessageBatch) -> bytes:
    from azure.servicebus._pyamqp._encode import encode_payload
    from azure.servicebus._pyamqp.message import BatchMessage

    return bytes(encode_payload(bytearray(), BatchMessage(*batch._message)))


def test_what_is_read_of_the_sdks_private_parts_is_there() -> None:
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("x", message_id="m"))
    assert isinstance(batch._message[5][0], bytearray)
    assert (batch._count, len(batch._messages)) == (1, 1)
    assert batch._size == batch.size_in_bytes
    assert batch._messages[0]._message.properties.message_id == "m"
    raw = amqp_message()
    assert raw._data_body == [b"x"]
    assert raw._sequence_body is raw._value_body is None
    assert callable(diversion.PyamqpTransport.set_batch_envelope_properties)


def test_tracing_adds_to_a_diverted_message_what_it_adds_to_any(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.settings import settings

    class Span:
        def __init__(self, **options: Any) -> None: ...

        def __enter__(self) -> Span:
            return self

        def __exit__(self, *exc: Any) -> None: ...

        def to_header(self) -> dict[str, str]:
            return {"traceparent": "00-1-2-01"}

        def add_attribute(self, key: str, value: Any) -> None: ...

    monkeypatch.setattr(type(settings), "tracing_implementation", lambda self: Span)
    message = ServiceBusMessage("x")
    assert properties_of(divert(message, "orders", now_unix=NOW)) == {
        "x-ms-path": "orders",
        "Diagnostic-Id": "00-1-2-01",
        "traceparent": "00-1-2-01",
    }
    assert message.application_properties is None
