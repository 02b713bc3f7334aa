"""Sessions that stay locked after the task that has read from them, on a real broker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import serve_sync
from pairbus.spark.connector import connections, held_sessions
from pairbus.spark.connector.held_sessions import SESSIONS, check_worker
from pairbus.spark.connector.lock_reader import Share, take
from pairbus.spark.connector.options import InvalidOption
from pairbus.wire.received import ReceivedMessage
from tests.moving_clock import Clock
from tests.spark.conftest import Pair, admin_of, wire
from tests.waiting import until


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Pair]:
    data = tmp_path_factory.mktemp("held")
    with serve_sync("contoso", "backup", data=data, clock=clock) as broker:
        yield Pair(broker.namespaces["contoso"], broker.namespaces["backup"], data)
        connections.close_all()


@pytest.fixture
def talks(pair: Pair) -> Iterator[str]:
    """Three sessions with three messages each."""
    with admin_of(pair.primary) as admin:
        admin.create_queue("talks", requires_session=True, lock_duration=dt.timedelta(seconds=60))
    with wire(pair.primary) as client:
        for number in range(9):
            properties = Properties(message_id=f"m{number}", group_id=f"s{number % 3}")
            client.sender("talks").send(encode_message(properties=properties, body=b"x"))
    yield "talks"
    with admin_of(pair.primary) as admin:
        admin.delete_queue("talks")
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)


def taken(pair: Pair, count: int = 100) -> list[ReceivedMessage]:
    share = Share("talks", count, sessions=True, wait_s=5.0)
    return [message for messages in take(pair.primary_address, share) for message in list(messages)]


def settle(pair: Pair, messages: list[ReceivedMessage], disposition: str = "completed") -> None:
    with wire(pair.primary) as client:  # another connection than the one that holds the sessions
        client.settle_by_token("talks", [message.lock_token for message in messages if message.lock_token], disposition)


def free_session(pair: Pair, wait_s: float) -> Any:
    with wire(pair.primary) as client:
        found = client.next_session("talks", wait_s)
        return None if found is None else found.session_id


def test_a_task_reads_session_by_session_in_order_and_they_stay_locked_until_settled(pair: Pair, talks: str) -> None:
    found = taken(pair)
    assert [message.sequence_number for message in found] == [1, 4, 7, 2, 5, 8, 3, 6, 9]
    assert free_session(pair, 0.5) is None, "the task has ended, and all are held"
    settle(pair, found)
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)


@pytest.mark.parametrize("disposition", ["completed", "suspended", "defered", "abandoned"])
def test_a_session_is_free_once_its_messages_are_settled_however(pair: Pair, talks: str, disposition: str) -> None:
    found = taken(pair, 2)
    assert [message.sequence_number for message in found] == [1, 4]
    settle(pair, found[:1], disposition)
    until(lambda: SESSIONS._held[0].pause_s >= 0.7, 10)  # looked at several times meanwhile
    assert len(SESSIONS) == 1, "the last message that was read is not settled"
    settle(pair, found[1:], disposition)
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)
    assert free_session(pair, 5.0) == ("s0" if disposition == "abandoned" else "s1"), "the oldest message's"


@pytest.mark.parametrize("last", [0, 1, 2])
def test_one_message_that_is_not_settled_holds_its_session(pair: Pair, talks: str, last: int) -> None:
    found = taken(pair, 3)
    settle(pair, [each for each in found if each is not found[last]])
    until(lambda: SESSIONS._held[0].pause_s >= 0.7, 10)
    assert len(SESSIONS) == 1
    settle(pair, [found[last]])
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)


def test_long_batches_are_looked_at_by_pages(pair: Pair, talks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_sessions, "PEEKED", 2)
    found = taken(pair)
    settle(pair, found[:2] + found[3:5] + found[6:8])
    settle(pair, [each for each in found if each not in found[:2] + found[3:5] + found[6:8]], "defered")
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)


def test_a_lock_that_ends_is_a_delivery_and_the_session_comes_again_in_order(
    pair: Pair, talks: str, clock: Clock
) -> None:
    taken(pair, 2)
    clock.advance(61)
    until(lambda: len(SESSIONS) == 0, 10, lambda: SESSIONS)
    again = taken(pair, 3)
    assert [(each.sequence_number, each.delivery_count) for each in again] == [(1, 1), (4, 1), (7, 0)]
    settle(pair, again)


def test_a_task_that_is_broken_off_gives_its_sessions_back_at_once(pair: Pair, talks: str) -> None:
    reading = take(pair.primary_address, Share("talks", 100, sessions=True, wait_s=5.0))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert len(SESSIONS) == 0
    again = taken(pair, 3)
    assert [(each.sequence_number, each.delivery_count) for each in again] == [(1, 0), (4, 0), (7, 0)]
    settle(pair, again)


def test_workers_that_end_with_their_task_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    check_worker()  # no task of Spark's
    monkeypatch.setattr(held_sessions, "TaskContext", SimpleNamespace(get=lambda: object()))
    with pytest.raises(InvalidOption, match=r"start the session with spark\.python\.worker\.reuse=true"):
        check_worker()
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    check_worker()
