"""The same argument, sent healthy and diverted, gets the same answer (P14): success, or the same kind of error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import ServiceBusClient
from pairbus.broker import serve_sync

SCHEDULED = b"x-opt-scheduled-enqueue-time"


def text(**options: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", **options)


def annotated(**options: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(**{"data_body": b"x", **options})


def life(milliseconds: Any) -> AmqpAnnotatedMessage:
    return annotated(header=AmqpMessageHeader(time_to_live=milliseconds))


def batch(sender: Any, *messages: Any) -> Any:
    made = sender.create_message_batch()
    for message in messages:
        made.add_message(message)
    return made


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "None": lambda _: None,
    "a number": lambda _: 5,
    "a string": lambda _: "abc",
    "bytes": lambda _: b"abc",
    "an empty list": lambda _: [],
    "an empty generator": lambda _: (each for each in ()),
    "an empty mapping": lambda _: {},
    "a mapping": lambda _: {"body": "x"},
    "a wrong mapping": lambda _: {"bodi": "x"},
    "a list": lambda _: [text(), text()],
    "a tuple": lambda _: (text(), text()),
    "a generator": lambda _: (text() for _ in range(3)),
    "a list of mappings": lambda _: [{"body": "x"}],
    "a list with None": lambda _: [text(), None],
    "a list in a list": lambda _: [[text()]],
    "a list of 200 KB": lambda _: [ServiceBusMessage(bytes(1024)) for _ in range(200)],
    "a list of 1 MB": lambda _: [ServiceBusMessage(bytes(1024)) for _ in range(1000)],
    "a message too large": lambda _: ServiceBusMessage(bytes(300_000)),
    "a message too large in a list": lambda _: [ServiceBusMessage(bytes(300_000)), text()],
    "a batch": lambda sender: batch(sender, text(), text()),
    "an empty batch": lambda sender: batch(sender),
    **{
        f"a life of {days} days": lambda _, days=days: text(time_to_live=timedelta(days=days))  # type: ignore[misc]
        for days in (0, 49, 50, 3650, -1)
    },
    "the longest life": lambda _: text(time_to_live=timedelta.max),
    "a long life in a list": lambda _: [text(time_to_live=timedelta(days=60))],
    "a long life by header": lambda _: life(2**40),
    "a life that is a string": lambda _: life("5"),
    "scheduled in the past": lambda _: text(scheduled_enqueue_time_utc=datetime(2000, 1, 1, tzinfo=UTC)),
    "scheduled far ahead": lambda _: text(scheduled_enqueue_time_utc=datetime(9999, 1, 1, tzinfo=UTC)),
    "scheduled without a zone": lambda _: text(scheduled_enqueue_time_utc=datetime(2100, 1, 1)),
    "scheduled for a string": lambda _: annotated(annotations={SCHEDULED: "x"}),
    "a session": lambda _: text(session_id="s"),
    "the empty session": lambda _: text(session_id=""),
    "a session that is a number": lambda _: annotated(properties=AmqpMessageProperties(group_id=5)),  # type: ignore[arg-type]
    "a session that is a number, in a batch": lambda sender: batch(
        sender,
        annotated(properties=AmqpMessageProperties(group_id=5)),  # type: ignore[arg-type]
    ),
    "a user id that is text": lambda _: annotated(properties=AmqpMessageProperties(user_id="u", to="t")),
    "a user id that is text, in a batch": lambda sender: batch(
        sender, annotated(properties=AmqpMessageProperties(user_id="u", to="t"))
    ),
    "a user id that is text, and an id, in a batch": lambda sender: batch(
        sender, annotated(properties=AmqpMessageProperties(user_id="u", to="t", message_id="m"))
    ),
    "a partition key": lambda _: text(partition_key="p"),
    "data": lambda _: annotated(data_body=[b"x", b"y"]),
    "a value": lambda _: AmqpAnnotatedMessage(value_body={"a": 1}),
    "a sequence": lambda _: AmqpAnnotatedMessage(sequence_body=[[1], ["a"]]),
    "a value that can't be encoded": lambda _: AmqpAnnotatedMessage(value_body=object()),
    "a body that is a generator": lambda _: annotated(data_body=(each for each in [b"x"])),
    "a property that can't be encoded": lambda _: text(application_properties={"a": object()}),  # type: ignore[dict-item]
    "a property too large": lambda _: text(application_properties={"a": 2**40}),
    "no body": lambda _: ServiceBusMessage(None),
}


@pytest.fixture(scope="module")
def senders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with serve_sync("contoso", "backup", data=tmp_path_factory.mktemp("pair")) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        with ServiceBusAdministrationClient.from_connection_string(
            primary.connection_string, connection_verify=primary.ca_file
        ) as admin:
            for queue in ("healthy", "diverted"):
                admin.create_queue(queue)
        with ServiceBusClient.paired(
            primary.connection_string,
            secondary.connection_string,
            ca_file=primary.ca_file,
            primary_name="contoso",
            backlog_queue_count=1,
            client_options={"retry_total": 0},
        ) as client:
            client.force_failover("diverted", hold=True)
            yield client.get_queue_sender("healthy"), client.get_queue_sender("diverted")


def answer(sender: Any, make: Callable[[Any], Any]) -> str:
    try:
        sender.send_messages(make(sender), timeout=10)
    except Exception as error:
        return type(error).__name__
    return "sent"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_p14_healthy_and_diverted_sends_give_the_same_answer(senders: tuple[Any, Any], name: str) -> None:
    healthy, diverted = senders
    said = answer(healthy, ARGUMENTS[name])
    assert answer(diverted, ARGUMENTS[name]) == said
    assert said != "DecodeError", "an error of ours that the SDK's users do not know"
