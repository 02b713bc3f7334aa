from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, exceptions
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pairbus.pairing.backlog.diversion import message_ids
from pairbus.pairing.errors import AliasConflictError, NotTriedError
from pairbus.pairing.options import Settings
from pairbus.pairing.pending_send import (
    BATCH_ROOM,
    Limits,
    ManagementCallTime,
    PendingSend,
    is_away,
    pack,
    schedule_refused,
)


def numbers() -> Callable[[], str]:
    counter = itertools.count(1)
    return lambda: f"id-{next(counter)}"


def packed(argument: Any, **settings: Any) -> PendingSend:
    pending = pack(argument, Settings(**settings), numbers())
    assert pending is not None
    return pending


def annotated(**properties: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**properties))


def batch(*messages: Any) -> ServiceBusMessageBatch:
    made = ServiceBusMessageBatch(max_size_in_bytes=262144)
    for message in messages:
        made.add_message(message)
    return made


def test_a_message_stays_what_it_is() -> None:
    message = ServiceBusMessage("x")
    pending = packed(message)
    assert pending.argument is message
    assert pending.messages == [message]


def test_p22_a_generator_is_read_once() -> None:
    messages = [ServiceBusMessage("a"), ServiceBusMessage("b")]
    pending = packed(message for message in messages)
    assert pending.argument == messages == pending.messages


@pytest.mark.parametrize("nothing", [[], (), iter([])])
def test_an_empty_list_is_nothing_to_send(nothing: Any) -> None:
    assert pack(nothing, Settings(), numbers()) is None


def test_an_empty_batch_is_nothing_to_send() -> None:
    assert pack(batch(), Settings(), numbers()) is None


def test_p20_every_message_has_an_id_before_the_first_try() -> None:
    mine = annotated(message_id="mine")
    pending = packed([annotated(), mine, AmqpAnnotatedMessage(value_body=1)])
    assert message_ids(pending.messages) == ("id-1", "mine", "id-2")
    assert message_ids(packed(annotated(), assign_message_id=False).messages) == ()


def test_p29_an_alias_is_refused_before_anything_is_sent() -> None:
    aliased = ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
    with pytest.raises(AliasConflictError, match="x-ms-path"):
        packed([ServiceBusMessage("y"), aliased])
    assert packed(aliased, check_aliases=False).messages == [aliased]


def addressed(pending: PendingSend, limits: Limits | None = None, transport: Any = PyamqpTransport) -> PendingSend:
    pending.address("orders", limits or Limits(), primary_batch=2**20, now_unix=0.0, mark=False, transport=transport)
    return pending


def test_p26_a_message_is_diverted_by_itself() -> None:
    message = ServiceBusMessage("x", session_id="s")
    (batch,) = addressed(packed(message)).batches
    assert batch.messages == [message]
    assert batch.argument.application_properties["x-ms-path"]["VALUE"] == "orders"
    assert message.session_id == "s"


def test_p30_what_grew_too_large_for_one_batch_is_split() -> None:
    limits = Limits()
    limits.learn_backlog(10_000, 3_000)
    messages = [ServiceBusMessage(bytes(1000)) for _ in range(5)]
    pending = addressed(packed(messages), limits)
    assert [len(batch.messages) for batch in pending.batches] == [2, 2, 1]
    assert repr(pending) == "<PendingSend of 5, 3 batches to divert>"


def test_p13_what_was_confirmed_is_not_made_again() -> None:
    pending = addressed(packed(ServiceBusMessage("x")))
    pending.batches.popleft()
    assert not addressed(pending).batches


def test_p30_too_large_for_the_backlog_is_an_error_with_both_sizes() -> None:
    limits = Limits()
    limits.learn_backlog(1000, 1000)
    with pytest.raises(exceptions.MessageSizeExceededError, match=r"has 9\d\d bytes, and 10\d\d with"):
        addressed(packed(ServiceBusMessage(bytes(960), message_id="m")), limits)


def test_p22_batches_carry_the_transport_of_their_sender() -> None:
    """Or the async SDK would take such a batch apart, find no messages in it, and send an empty one."""
    (batch,) = addressed(packed([ServiceBusMessage("x")]), transport=PyamqpTransportAsync).batches
    assert batch.argument._amqp_transport is PyamqpTransportAsync


def test_p30_the_healthy_send_warns() -> None:
    near = packed(ServiceBusMessage(bytes(960), message_id="m"))
    limits = Limits()
    warning = near.size_warning("orders", limits, 1000)
    assert warning is not None
    assert warning.size <= warning.limit < warning.diverted_size
    assert near.size_warning("orders", limits, 262144) is None
    assert near.size_warning("orders", limits, 0) is None


def test_limits_of_a_batch_without_a_primary() -> None:
    limits = Limits()
    assert limits.for_batch("orders", 0, 0) == (262144, 262144 - BATCH_ROOM)
    limits.learn_backlog(1_000_000, 900_000)
    assert limits.for_batch("orders", 0, 0) == (1_000_000, 900_000 - BATCH_ROOM)
    assert limits.for_batch("orders", 500, 400) == (500, 400)
    assert limits.knows("orders")
    assert limits.for_batch("orders", 0, 0) == (500, 400)


def test_limits_of_the_backlog_before_its_first_use_are_the_primarys() -> None:
    near = packed(ServiceBusMessage(bytes(960), message_id="m"))
    limits = Limits()
    assert near.size_warning("orders", limits, 1_000_000) is None
    limits.learn_backlog(0, 0)
    assert near.size_warning("orders", limits, 1_000_000) is None
    limits.learn_backlog(1000, 1000)
    assert near.size_warning("orders", limits, 1_000_000) is not None


@pytest.mark.parametrize("small_first", [True, False])
def test_p30_the_largest_message_of_a_list_counts(small_first: bool) -> None:
    messages = [ServiceBusMessage(b"small"), ServiceBusMessage(bytes(262_104), message_id="m")]
    pending = packed(messages if small_first else messages[::-1])
    assert pending.size_warning("orders", Limits(), 262_144) is not None
    assert pending.size_warning("orders", Limits(), 1_000_000) is None


def test_p24_a_management_call_waits_for_a_halt_that_fits() -> None:
    turns = ManagementCallTime("orders", 100.0, 30.0)
    assert turns.wait_s(100.0, 0.0) == 0.0
    assert turns.wait_s(101.0, 111.0) == 10.0
    assert turns.left_s(111.0) == 19.0
    with pytest.raises(exceptions.ServiceBusServerBusyError, match=r"halt for another 19\.0 s"):
        turns.wait_s(121.0, 140.0)
    busy = exceptions.ServiceBusServerBusyError()
    turns.busy(busy)
    with pytest.raises(exceptions.ServiceBusServerBusyError) as caught:
        turns.wait_s(121.0, 140.0)
    assert caught.value is busy


def test_p25_the_error_shows_the_other_way() -> None:
    assert "scheduled_enqueue_time_utc" in str(schedule_refused("orders"))


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (exceptions.OperationTimeoutError(), True),
        (exceptions.ServiceBusServerBusyError(), True),
        (NotTriedError("late"), True),
        (exceptions.MessagingEntityNotFoundError(), False),
        (ValueError(), False),
    ],
)
def test_p3_what_an_opening_that_failed_says(error: Exception, away: bool) -> None:
    assert is_away(error, Settings()) is away
