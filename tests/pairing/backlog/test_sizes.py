"""P30: what is close to the limit is warned of, what is past it is an error, lists and batches are split in order."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pairbus.amqp.message import split_batch
from pairbus.pairing.backlog import diversion, sizes
from pairbus.pairing.backlog.diversion import divert, encoded, messages_of
from pairbus.pairing.backlog.sizes import DivertedBatch, bound, parts, warning
from pairbus.pairing.events import SizeWarning
from tests.message_view import View
from tests.pairing.sdk_messages import messages

NOW = 1_800_000_000.0
LIMIT = 262_144


def sized(size: int, **options: Any) -> ServiceBusMessage:
    """A message of exactly that encoded size."""
    empty = len(encoded(ServiceBusMessage(b"x" * 300, message_id="m", **options))) - 300
    return ServiceBusMessage(b"x" * (size - empty), message_id="m", **options)


def diverted_size(message: Any, path: str = "orders") -> int:
    return len(encoded(divert(message, path, now_unix=NOW)))


def sent_size(argument: Any) -> int:
    """What goes over the wire."""
    if isinstance(argument, ServiceBusMessageBatch):
        return len(encode_payload(bytearray(), BatchMessage(*argument._message)))
    return len(encoded(argument))


def split_up(argument: Any, *, message: int = LIMIT, batch: int = LIMIT, mark: bool = False) -> list[DivertedBatch]:
    return parts(
        argument,
        messages_of(argument),
        "orders",
        max_message_size=message,
        max_batch_size=batch,
        now_unix=NOW,
        mark=mark,
    )


# at the healthy send


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"session_id": "s" * 128},
        {"time_to_live": datetime.timedelta(days=1), "scheduled_enqueue_time_utc": datetime.datetime(2030, 1, 1)},
        {"application_properties": {"pad": "x" * 220}},  # the map needs wider sizes with the aliases in it
    ],
    ids=["plain", "session", "life and schedule", "wider map"],
)
def test_p30_a_message_that_would_not_fit_the_backlog_is_warned_of_at_the_healthy_send(
    options: dict[str, Any],
) -> None:
    growth = diverted_size(sized(1000, **options)) - 1000
    last_good = sized(LIMIT - growth, **options)
    assert diverted_size(last_good) == LIMIT
    assert warning("orders", last_good, [last_good], LIMIT) is None
    first_bad = sized(LIMIT - growth + 1, **options)
    expected = SizeWarning("orders", LIMIT - growth + 1, LIMIT + 1, LIMIT)
    assert warning("orders", first_bad, [first_bad], LIMIT) == expected
    largest = sized(LIMIT, **options)
    assert warning("orders", largest, [largest], LIMIT) == SizeWarning("orders", LIMIT, LIMIT + growth, LIMIT)


def test_p30_what_the_primary_refuses_itself_needs_no_warning() -> None:
    message = sized(LIMIT + 1)
    assert warning("orders", message, [message], LIMIT) is None


def test_p30_a_limit_that_is_not_known_yet_is_none() -> None:
    message = sized(LIMIT)
    assert warning("orders", message, [message], 0) is None


def test_p30_in_a_list_or_batch_each_message_counts_for_itself_since_they_are_split() -> None:
    many = [sized(100_000) for _ in range(3)]
    assert warning("orders", many, many, LIMIT) is None
    bad = sized(LIMIT)
    assert warning("orders", [*many, bad], [*many, bad], LIMIT) is not None
    batch = ServiceBusMessageBatch(max_size_in_bytes=LIMIT + 8)
    batch.add_message(sized(LIMIT))
    assert warning("orders", batch, messages_of(batch), LIMIT) is not None
    small = ServiceBusMessageBatch()
    small.add_message(sized(1000))
    assert warning("orders", small, messages_of(small), LIMIT) is None


def test_p14_small_messages_are_not_encoded_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(diversion, "encoded", lambda message: calls.append(message) or b"")
    message = ServiceBusMessage(b"x" * 200_000, application_properties={"a": "b" * 1000}, session_id="s")
    assert warning("orders", message, [message], LIMIT) is None
    assert calls == []


def test_p14_what_cannot_be_encoded_is_left_to_the_sdk() -> None:
    odd = AmqpAnnotatedMessage(value_body=[object()] * LIMIT)
    assert warning("orders", odd, [odd], LIMIT) is None


def test_p22_a_body_that_can_be_read_only_once_is_not_read_for_it() -> None:
    message = AmqpAnnotatedMessage(data_body=b"")
    body = iter([b"x" * LIMIT])
    message._data_body = body  # type: ignore[assignment]
    assert warning("orders", message, [message], LIMIT) is None
    assert next(body) == b"x" * LIMIT


@settings(max_examples=80)
@given(messages(), st.sampled_from(["orders", "ü" * 50, "x" * 260]), st.booleans())
def test_p30_the_bound_is_never_too_low_and_aliases_never_take_more_than_the_docs_say(
    message: AmqpAnnotatedMessage, path: str, mark: bool
) -> None:
    try:
        size = len(encoded(message))
    except ValueError:
        assume(False)
    assert size <= bound(message)
    diverted = divert(message, path, now_unix=NOW, mark=mark)
    grown = len(encoded(diverted))
    assert grown <= bound(message) + sizes._ALIAS_BYTES + 4 * len(path)
    assert grown <= bound(diverted)
    session = message.properties.group_id if message.properties is not None else None
    session_bytes = len(session.encode() if isinstance(session, str) else session or b"")
    assert grown <= size + 140 + len(path.encode()) + session_bytes


def test_p30_text_outside_ascii_takes_up_to_four_bytes_a_character() -> None:
    text = "𝄞" * 1000
    for message in (
        AmqpAnnotatedMessage(value_body=text),
        AmqpAnnotatedMessage(sequence_body=[[text]]),
        ServiceBusMessage("", subject=text),
        ServiceBusMessage("", application_properties={text: text}),
        AmqpAnnotatedMessage(data_body=b"", annotations={"x-opt-a": [text]}),
    ):
        assert 4000 < len(encoded(message)) <= bound(message)


# on the way


def test_p30_a_message_stays_a_message_and_one_too_large_is_an_error_with_both_sizes() -> None:
    message = ServiceBusMessage("hello", session_id="s")
    (part,) = split_up(message)
    assert isinstance(part.argument, AmqpAnnotatedMessage)
    assert part.messages == [message]
    growth = diverted_size(sized(1000)) - 1000
    (part,) = split_up(sized(LIMIT - growth))
    assert sent_size(part.argument) == LIMIT
    with pytest.raises(MessageSizeExceededError) as caught:
        split_up(sized(LIMIT - growth + 1))
    text = str(caught.value)
    assert f"has {LIMIT - growth + 1} bytes, and {LIMIT + 1} with" in text
    assert "takes 262144" in text
    assert isinstance(caught.value, ValueError)


def test_p30_the_mark_counts() -> None:
    growth = diverted_size(sized(1000)) - 1000
    with pytest.raises(MessageSizeExceededError):
        split_up(sized(LIMIT - growth), mark=True)


def texts(part: DivertedBatch) -> list[str]:
    """The bodies in a part, as they are on the wire, and that each knows its way home."""
    if isinstance(part.argument, ServiceBusMessageBatch):
        payloads = split_batch(bytes(encode_payload(bytearray(), BatchMessage(*part.argument._message))))
    else:
        payloads = [encoded(part.argument)]
    found = []
    for payload in payloads:
        view = View(payload)
        assert view.application_properties["x-ms-path"] == "orders"
        found.append("".join(value.decode() for _, value in view.body))
    return found


def as_list(messages: list[ServiceBusMessage]) -> Any:
    return messages


def as_batch(messages: list[ServiceBusMessage]) -> Any:
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000_000)
    for message in messages:
        batch.add_message(message)
    return batch


BOTH = pytest.mark.parametrize("made", [as_list, as_batch])


@BOTH
def test_p30_what_fits_stays_together(made: Any) -> None:
    messages = [ServiceBusMessage(str(number)) for number in range(50)]
    (part,) = split_up(made(messages))
    assert texts(part) == [str(number) for number in range(50)]
    assert part.messages == messages
    assert len(part.argument) == 50
    assert sent_size(part.argument) <= part.argument.max_size_in_bytes == LIMIT


@BOTH
@settings(max_examples=60)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 100, 150, 200, 255, 300, 700, 900]), min_size=1, max_size=12),
    limit=st.integers(400, 2500),
)
def test_p30_what_does_not_fit_is_split_in_order_and_every_part_fits(made: Any, lengths: list[int], limit: int) -> None:
    messages = [ServiceBusMessage("x" * length, session_id="s") for length in lengths]
    sizes_diverted = [diverted_size(message) for message in messages]
    large = 1400
    found = split_up(made(messages), message=large, batch=limit)
    assert [text for part in found for text in texts(part)] == ["x" * length for length in lengths]
    assert [message for part in found for message in part.messages] == messages
    for part in found:
        is_batch = isinstance(part.argument, ServiceBusMessageBatch)
        assert sent_size(part.argument) <= (limit if is_batch else large)
    # as few as will do: a part could not have taken the first of the next
    for part, following in itertools.pairwise(found):
        if isinstance(part.argument, ServiceBusMessageBatch) and isinstance(following.argument, ServiceBusMessageBatch):
            assert sent_size(part.argument) + sizes_diverted[messages.index(following.messages[0])] > limit - 150


@BOTH
def test_p30_one_that_no_batch_takes_goes_by_itself_where_single_messages_may_be_larger(made: Any) -> None:
    messages = [ServiceBusMessage("a"), ServiceBusMessage("b" * 5000), ServiceBusMessage("c")]
    found = split_up(made(messages), message=10_000, batch=2_000)
    assert [texts(part) for part in found] == [["a"], ["b" * 5000], ["c"]]
    assert isinstance(found[1].argument, AmqpAnnotatedMessage)


@BOTH
def test_p30_one_that_fits_nowhere_is_an_error_and_nothing_is_sent(made: Any) -> None:
    messages = [ServiceBusMessage("a"), ServiceBusMessage("b" * 5000)]
    size, grown = len(encoded(messages[1])), diverted_size(messages[1])
    with pytest.raises(MessageSizeExceededError, match=f"has {size} bytes, and {grown} with"):
        split_up(made(messages), message=2_000, batch=2_000)


def test_p30_a_batch_whose_message_was_changed_since_can_only_go_as_bytes() -> None:
    message = ServiceBusMessage("b" * 5000)
    batch = as_batch([message])
    message.subject = "changed"
    with pytest.raises(MessageSizeExceededError):
        split_up(batch, message=10_000, batch=2_000)
    (part,) = split_up(batch, message=10_000, batch=10_000)
    payload = bytes(part.argument._message[5][0])
    assert View(payload).properties.subject is None


def test_p30_the_envelope_counts() -> None:
    """It repeats the first message's id and partition key, and the SDK does not count it."""
    message = AmqpAnnotatedMessage(data_body=b"x", annotations={"x-opt-partition-key": "k" * 128})
    message.properties = AmqpMessageProperties(message_id="ü" * 128)
    size = diverted_size(message)
    (part,) = split_up([message], message=size, batch=size + 100)
    assert isinstance(part.argument, AmqpAnnotatedMessage)
    (part,) = split_up([message], message=size, batch=size + 900)
    assert isinstance(part.argument, ServiceBusMessageBatch)
    assert sent_size(part.argument) <= size + 900
