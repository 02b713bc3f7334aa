"""What is meant and what is possible, asked of a real broker, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.spark.connector.options import Address, InvalidOption
from pairbus.spark.connector.selection import Selection
from pairbus.spark.pipelines import preflight
from tests.spark.conftest import MakeQueue, Pair, admin_of, wire

NO_SPARK: Any = None


def message(number: int, scheduled: bool = False) -> bytes:
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)} if scheduled else None
    return encode_message(None, later, Properties(message_id=f"m{number}"), body=b"x")


@pytest.fixture
def orders(pair: Pair, make_queue: MakeQueue) -> str:
    make_queue(pair.primary, "orders")
    with wire(pair.primary) as client:
        sender = client.sender("orders")
        for number in range(1, 6):
            sender.send(message(number, scheduled=number == 2))
        (first,) = client.receiver("orders").receive(1, max_wait=5)
        assert first.sequence_number == 1
        client.receiver("orders").complete(first) if first.settled else client.settle_by_token(
            "orders", [first.lock_token], "completed"
        )
    return "orders"


def test_what_is_there_now_is_a_range(pair: Pair, orders: str) -> None:
    found = preflight.choose(NO_SPARK, pair.primary_address, orders)
    assert found.messages is None
    assert (found.selection.first, found.selection.last) == (2, 5)
    assert preflight.still_there(pair.primary_address, orders, found.selection) == [3, 4, 5], (
        "2 is scheduled: nobody gets it"
    )
    assert preflight.still_there(pair.primary_address, orders, Selection.of([4, 9])) == [4]
    assert preflight.still_there(pair.primary_address, orders, Selection()) == []


def test_a_count_is_of_the_oldest_that_a_receiver_can_get(pair: Pair, orders: str) -> None:
    assert preflight.choose(NO_SPARK, pair.primary_address, orders, count=2) == (Selection.of([3, 4]), 2)
    assert preflight.choose(NO_SPARK, pair.primary_address, orders, count=100).messages == 3
    assert preflight.choose(NO_SPARK, pair.primary_address, orders, counted=True) == (Selection.of([3, 4, 5]), 3)


def test_an_empty_entity_holds_nothing(pair: Pair, orders: str) -> None:
    assert preflight.choose(NO_SPARK, pair.primary_address, "orders/$DeadLetterQueue").selection == Selection()


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        ("nowhere", "contoso has no queue or subscription 'nowhere'; check the name"),
        ("in-sessions", "in-sessions requires sessions, .* (its dead-letter queue has no sessions"),
        ("news", "news is a topic; name one of its subscriptions, news/Subscriptions/…"),
        ("a,b", "'a,b' is not the name of one entity"),
        ("order*", "'order*' is not the name of one entity"),
        ("", "'' is not the name of one entity"),
    ],
)
def test_a_source_that_can_t_be_one(pair: Pair, make_queue: MakeQueue, entity: str, words: str) -> None:
    import re

    make_queue(pair.primary, "in-sessions", requires_session=True)
    with admin_of(pair.primary) as admin:
        admin.create_topic("news")
        try:
            with pytest.raises(preflight.TransferFailed, match=re.escape(words).replace(r"\.\*", ".*")) as raised:
                preflight.check_source(pair.primary_address, entity, "contoso")
            assert "\n" not in str(raised.value)
            preflight.check_source(pair.primary_address, "in-sessions/$DeadLetterQueue", "contoso")
            preflight.check_source(pair.primary_address, "in-sessions", "contoso", locks=False)
        finally:
            admin.delete_topic("news")


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        ("nowhere", "contoso has no queue or topic 'nowhere'; check the name, or make it first"),
        ("orders/$DeadLetterQueue", "nothing can be sent to the dead-letter queue .*; name orders"),
        ("news/Subscriptions/all", "nothing can be sent to the subscription .*; name its topic, news"),
    ],
)
def test_a_destination_that_can_t_be_one(pair: Pair, entity: str, words: str) -> None:
    with pytest.raises(preflight.TransferFailed, match=words):
        preflight.check_destination(pair.primary_address, entity, "contoso")


def test_a_wrong_key_and_a_wrong_port_say_what_to_look_at(pair: Pair, orders: str) -> None:
    text = pair.primary.connection_string
    key = text.split("SharedAccessKey=")[1].split(";")[0]
    for check, right in ((preflight.check_source, "Listen"), (preflight.check_destination, "Send")):
        with pytest.raises(preflight.TransferFailed, match=f"refuses to let us .*; it needs {right}"):
            check(Address(text.replace(key, "d3Jvbmc=")), orders, "contoso")
    away = Address("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true")
    with pytest.raises(preflight.TransferFailed, match="check host and port, and that it is up"):
        preflight.check_source(away, orders, "contoso")


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("", "it is empty"),
        ("subject = 'a", "a quote is not closed"),
        ("(subject = 'a'", "a parenthesis has no other half"),
        ("colour = 'red'", "there is no column colour"),
        ("subject = 'x' AND colour IN ('red')", "there is no column colour"),
    ],
)
def test_a_wrong_filter_is_told_without_spark(where: str, wrong: str) -> None:
    with pytest.raises(InvalidOption, match=f"{wrong}; the columns are"):
        preflight.check_filter(where)


@pytest.mark.parametrize(
    "where",
    [
        "dead_letter_reason = 'TooLate'",
        "Subject like '%)%' or (sequence_number between 1 and 5)",
        "application_properties['colour'] = 'it''s \\' red'",
        'not `subject` = "x"',
        "enqueued_time < '2026-01-01' and cast(body as string) = 'x'",
        "case when subject is null then 1 else 2 end = 1",
        "exists(map_keys(application_properties), k -> k = 'x')",
        "enqueued_time > current_timestamp - interval 1 day",
        "true = (delivery_count > 1)",
    ],
)
def test_a_right_filter_is_left_to_spark(where: str) -> None:
    preflight.check_filter(where)
