from __future__ import annotations

import pytest

from pairbus.spark.connector.entities import is_glob, listed, resolved
from pairbus.spark.connector.options import InvalidOption

QUEUES = ["orders", "orders-eu", "bills", "contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]
SUBSCRIPTIONS = ["news/Subscriptions/all", "news/Subscriptions/some", "sport/Subscriptions/all"]


def test_a_list_in_its_order_each_once() -> None:
    assert listed("b, a,b,/c/,B") == ["b", "a", "c"], "names have no letter case"


def test_an_empty_place_in_the_list() -> None:
    with pytest.raises(InvalidOption, match="empty place"):
        listed("a,,b")


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["orders"], ["orders"]),
        (["not-there"], ["not-there"]),  # taken as it is: the broker says so, and no Manage right is needed
        (["order*"], ["orders", "orders-eu"]),
        (["*"], ["bills", "orders", "orders-eu"]),  # backlog queues are found only by their name
        (["contoso/x-servicebus-transfer/*"], ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]),
        (["news/Subscriptions/*"], ["news/Subscriptions/all", "news/Subscriptions/some"]),
        (["*/subscriptions/all"], ["news/Subscriptions/all", "sport/Subscriptions/all"]),
        (["order*/$DeadLetterQueue"], ["orders/$DeadLetterQueue", "orders-eu/$DeadLetterQueue"]),
        (["news/Subscriptions/a*/$deadletterqueue"], ["news/Subscriptions/all/$DeadLetterQueue"]),
        (["orders", "o*"], ["orders", "orders-eu"]),
        (["order[s]"], ["orders"]),
        (["BILL?"], ["bills"]),
    ],
)
def test_patterns_against_a_namespace(patterns: list[str], paths: list[str]) -> None:
    assert resolved(patterns, QUEUES, SUBSCRIPTIONS) == paths


def test_a_glob_that_finds_nothing_says_what_there_is() -> None:
    with pytest.raises(InvalidOption, match=r"'zzz\*'.*bills, contoso"):
        resolved(["zzz*"], QUEUES, SUBSCRIPTIONS)
    with pytest.raises(InvalidOption, match="none at all"):
        resolved(["*"], [], [])


def test_what_is_a_glob() -> None:
    assert [is_glob(p) for p in ("a", "a*", "a?", "[a]", "x/$DeadLetterQueue")] == [False, True, True, True, False]
