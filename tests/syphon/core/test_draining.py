from __future__ import annotations

from pairbus.syphon.core.destinations import Destinations
from pairbus.syphon.core.draining import LOOK_S, STRIKES, Finished, Seen, TryAgain, Unavailable, judge
from pairbus.wire.errors import refusal

FULL = refusal("amqp:resource-limit-exceeded", "5 GB of 5 GB")


def seen(number: int, path: str) -> Seen:
    return Seen(("q", number, 0), path)


def struck(destinations: Destinations, path: str, strikes: int, now: float = 0.0) -> None:
    for _ in range(strikes):
        destinations.failed(path, destinations.begin(path), FULL, now)


def test_p41_over_when_peek_finds_nothing() -> None:
    assert judge([], Destinations(), 0.0) == Finished([])


def test_p41_over_when_only_unavailable_destinations_remain() -> None:
    destinations = Destinations()
    struck(destinations, "orders", STRIKES)
    struck(destinations, "audit", STRIKES)
    verdict = judge([seen(1, "orders"), seen(2, "audit"), seen(3, "orders")], destinations, 0.0)
    reason = "full: 5 GB of 5 GB (amqp:resource-limit-exceeded)"
    assert verdict == Finished([Unavailable("audit", 1, reason), Unavailable("orders", 2, reason)])
    assert isinstance(verdict, Finished)
    assert verdict.remaining[0].as_json() == {"destination": "audit", "messages": 1, "reason": reason}


def test_p41_one_failure_is_not_enough() -> None:
    destinations = Destinations()
    struck(destinations, "orders", STRIKES - 1)
    assert judge([seen(1, "orders")], destinations, 0.5) == TryAgain([], 1.5)
    assert judge([seen(1, "orders")], destinations, 1.9) == TryAgain([], 2.0), "when it may be tried, not later"
    assert judge([seen(1, "orders")], destinations, 2.0) == TryAgain(["orders"], 2.0 + LOOK_S)


def test_what_somebody_else_holds_is_waited_for() -> None:
    assert judge([seen(1, "orders")], Destinations(), 0.0) == TryAgain([], LOOK_S)


def test_p41_one_that_can_be_delivered_keeps_the_drain_going() -> None:
    destinations = Destinations()
    struck(destinations, "orders", STRIKES)
    assert isinstance(judge([seen(1, "orders"), seen(2, "news")], destinations, 0.0), TryAgain)


def test_p41_a_replay_ends_with_what_is_refused_again() -> None:
    refused = {("q", 1, 0): "MissingPath: none", ("q", 2, 0): "DestinationNotFound: gone"}
    verdict = judge([seen(1, ""), seen(2, "orders")], Destinations(), 0.0, refused)
    assert verdict == Finished(
        [Unavailable("", 1, "MissingPath: none"), Unavailable("orders", 1, "DestinationNotFound: gone")]
    )
    assert isinstance(judge([seen(1, ""), seen(3, "orders")], Destinations(), 0.0, refused), TryAgain)
