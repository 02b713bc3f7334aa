from __future__ import annotations

from typing import Any

import pytest

from pairbus.pairing.backlog.backlog_queues import path
from pairbus.syphon.core.queue_discovery import FIRST_S, LIST_S, Listed, QueueDiscovery


def queue(number: int | str, messages: int = 0) -> Listed:
    if isinstance(number, str):
        return Listed(f"contoso/x-servicebus-transfer/{number}", None, messages, 0)
    return Listed(path("contoso", number), number, messages, 0)


def discovery(*known: int, **options: Any) -> QueueDiscovery:
    return QueueDiscovery("contoso", "backup", [path("contoso", number) for number in known], **options)


@pytest.mark.parametrize(
    ("options", "known", "found", "new"),
    [
        ({}, [], [0, 1], [0, 1]),
        ({}, [0, 1], [0, 1], []),
        ({}, [0, 1], [0, 1, 2, 11], [2, 11]),
        ({}, [0, 1], [1], []),
        ({}, [0], [0, "odd"], []),
        ({"orphans": True}, [0], [0, 7, "odd"], [7, "odd"]),
        ({"count": 3}, [0], [0, 2, 3, "odd"], [2]),
        ({"count": 3, "orphans": True}, [0], [0, 2, 3, "odd"], [2, 3, "odd"]),
        ({"is_blind": True}, [0, 1], [0, 12], [12]),
    ],
)  # fmt: skip
def test_p36_which_queues_are_new(options: Any, known: list[int], found: list[Any], new: list[Any]) -> None:
    made = discovery(*known, **options)
    listed = [queue(each) for each in found]
    assert made.listed(listed).queues == [queue(each) for each in new]
    assert made.listed(listed).queues == [], "they are new once"


def test_names_are_compared_without_case() -> None:
    assert discovery(0).listed([Listed(path("CONTOSO", 0), 0, 0, 0)]).queues == []


@pytest.mark.parametrize(
    ("options", "known", "pause_s"),
    [
        ({}, [], FIRST_S),
        ({}, [0], LIST_S),
        ({"is_blind": True}, [0], LIST_S),
        ({"count": 2}, [], FIRST_S),
        ({"count": 2}, [1], LIST_S),
        ({"count": 2}, [0, 1], None),
        ({"count": 2, "orphans": True}, [0, 1], LIST_S),
    ],
)  # fmt: skip
def test_when_to_list_again(options: Any, known: list[int], pause_s: float | None) -> None:
    assert discovery(*known, **options).pause_s == pause_s


def test_listing_ends_when_all_that_are_wanted_are_known() -> None:
    made = discovery(0, count=2)
    made.listed([queue(0), queue(1)])
    assert made.pause_s is None


def test_the_first_queue_is_waited_for_in_words() -> None:
    made = discovery()
    assert made.greeting() == (
        "backup has no backlog queue of contoso yet; waiting for the first to appear (pairbus provision makes them)"
    )
    assert made.waiting_for == "backup has no backlog queue of contoso yet"
    assert made.listed([]).lines == []
    assert made.listed([queue(0)]).lines == ["a new backlog queue: contoso/x-servicebus-transfer/0"]
    assert (made.greeting(), made.waiting_for, repr(made)) == (
        None,
        None,
        "<QueueDiscovery contoso on backup: 1 queues>",
    )


def test_many_are_told_in_a_line() -> None:
    (line,) = discovery().listed([queue(number) for number in range(10)]).lines
    front = "contoso/x-servicebus-transfer/"
    assert line == f"10 new backlog queues: {front}0, {front}1, {front}2 …"


@pytest.mark.parametrize(("known", "then"), [([0], "those that are known are read on"), ([], "it is tried again")])
def test_a_listing_that_fails_is_told_once_until_one_succeeds(known: list[int], then: str) -> None:
    made = discovery(*known)
    told = f"backup: the backlog queues of contoso can't be listed: no Manage right; {then}"
    assert [made.failed("no Manage right"), made.failed("no Manage right"), made.failed("gone")] == [told, None, None]
    assert made.listed([queue(0)] if known else []).lines == ["the backlog queues of contoso can be listed again"]
    assert made.listed([]).lines == []
    assert made.failed("no Manage right") == told
    assert discovery(0, is_blind=True).failed("no Manage right") is None, "it was said at the start"
