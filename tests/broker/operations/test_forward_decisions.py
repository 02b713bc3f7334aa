"""What can be forwarded, and to which address: a table for each decision."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from pairbus.broker.model.description import QueueDescription, TopicDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.topic import Topic
from pairbus.broker.operations import forward_decisions as decisions


@pytest.mark.parametrize(
    ("address", "host", "ports", "expected"),
    [
        ("q", "h:1", (), "q"),
        ("a/b", "h:1", (), "a/b"),
        ("sb://h:1/q", "h:1", (), "q"),
        ("sb://H:1/q/", "h:1", (), "q"),
        ("https://h/q", "h:1", (), "q"),
        ("sb://h:5672/q", "h:5300", (5672, 5300), "q"),
        ("sb://[::1]:1/q", "[::1]:1", (), "q"),
        ("sb://h/a%20b", "h", (), "a b"),
        ("sb://anywhere:1/q", None, (), "q"),
        ("sb://h:2/q", "h:1", (1,), None),
        ("sb://other:1/q", "h:1", (), None),
        ("ftp://h:1/q", "h:1", (), None),
        ("sb://h:1/q?x=1", "h:1", (), None),
        ("sb://h:port/q", "h:1", (), None),
        ("sb://h:1", "h:1", (), ""),
    ],
)
def test_an_address_names_an_entity_of_this_namespace(
    address: str, host: str | None, ports: Collection[int], expected: str | None
) -> None:
    assert decisions.entity_at(address, host, ports) == expected


@pytest.mark.parametrize(("hops", "is_allowed"), [(0, True), (3, True), (4, False), (5, False)])
def test_four_hops_are_allowed(hops: int, is_allowed: bool) -> None:
    assert (decisions.too_many_hops(hops) is None) is is_allowed


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("Active", None),
        ("ReceiveDisabled", None),
        ("SendDisabled", "MessagingEntityDisabled"),
        ("Disabled", "MessagingEntityDisabled"),
    ],
)
def test_a_destination_is_there_and_takes_sends(status: str, reason: str | None) -> None:
    for entity in (QueueEntity(1, QueueDescription(name="q", status=status)),
                   Topic(1, TopicDescription(name="q", status=status))):  # fmt: skip
        problem = decisions.unavailable("q", entity)
        assert (None if problem is None else problem.reason) == reason
    missing = decisions.unavailable("q", None)
    assert missing is not None and missing.reason == "MessagingEntityNotFound" and "'q'" in str(missing.description)


@pytest.mark.parametrize(
    ("size", "requires_session", "session_id", "reason"),
    [
        (1024, False, None, None),
        (1025, False, None, "MessageSizeExceeded"),
        (10, True, None, "Session ID is null"),
        (10, True, "", None),
        (10, False, "s", None),
    ],
)
def test_a_destination_takes_what_it_would_take_from_a_sender(
    size: int, requires_session: bool, session_id: str | None, reason: str | None
) -> None:
    entity = QueueEntity(1, QueueDescription(name="q", max_message_size_kb=1, requires_session=requires_session))
    problem = decisions.refused(entity, size, session_id)
    assert (None if problem is None else problem.reason) == reason


def test_the_room_of_a_destination_is_what_is_not_held_or_on_its_way() -> None:
    queue = QueueEntity(1, QueueDescription(name="q", max_size_mb=1))
    topic = Topic(1, TopicDescription(name="t", max_size_mb=1))
    queue.active.size_bytes, queue.dead_letter.size_bytes, queue.pending_bytes = 100, 20, 3
    topic.account.stored_bytes, topic.pending_bytes = 100, 3
    assert [decisions.room_in(each) for each in (queue, topic)] == [(1 << 20) - 123, (1 << 20) - 103]
