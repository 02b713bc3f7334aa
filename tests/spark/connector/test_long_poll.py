"""The long poll of a queue with sessions, on a real broker; without sessions: test_lock_reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector import connections
from pairbus.spark.connector.long_poll import LongPoll
from pairbus.wire.errors import WireError
from tests.spark.conftest import MakeQueue, Pair, admin_of, wire
from tests.waiting import until


class Told:
    def __init__(self) -> None:
        self.polled: list[str] = []
        self.failed: list[WireError] = []
        self.found: list[Any] = []


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def poll(pair: Pair, make_queue: MakeQueue, told: Told) -> Iterator[LongPoll]:
    make_queue(pair.primary, "talks", requires_session=True)
    made = LongPoll(
        lambda: connections.endpoint(pair.primary_address).client(),
        ["talks"],
        polled=told.polled.append,
        failed=lambda _, error: told.failed.append(error),
        found=told.found.append,
        poll_s=0.3,
        sessions=True,
    )
    yield made
    made.stop()


def send(pair: Pair, session_id: str) -> None:
    with wire(pair.primary) as client:
        client.sender("talks").send(encode_message(properties=Properties(group_id=session_id), body=b"x"))


def test_p37_a_poll_waits_for_a_free_session_and_leaves_it_as_it_was(pair: Pair, poll: LongPoll, told: Told) -> None:
    until(lambda: len(told.polled) >= 2, 10)
    assert poll.ready() == [] and told.failed == []
    send(pair, "a")
    until(lambda: poll.ready() == ["talks"], 10)
    with wire(pair.primary) as client:
        receiver = client.next_session("talks", 5.0)
        assert receiver is not None and receiver.session_id == "a"
        (message,) = receiver.receive(1, 5.0)
        assert message.delivery_count == 0
        poll.taken(["talks"])
        polled = len(told.polled)
        send(pair, "a")  # of a session that somebody holds
        until(lambda: len(told.polled) >= polled + 2, 10)
        assert poll.ready() == []
    until(lambda: poll.ready() == ["talks"], 10)


def test_a_queue_that_is_deleted_is_an_error_and_polled_again_when_it_is_back(
    pair: Pair, poll: LongPoll, told: Told
) -> None:
    until(lambda: told.polled, 10)
    with admin_of(pair.primary) as admin:
        admin.delete_queue("talks")
        until(lambda: told.failed, 10)
        admin.create_queue("talks", requires_session=True)
    send(pair, "b")
    until(lambda: poll.ready() == ["talks"], 20)
