from __future__ import annotations

import pytest

from pairbus.syphon.core.destinations import (
    AWAY_S_MAX,
    GONE_S,
    HALT_S,
    KNOWN_MAX,
    ROWS,
    Destinations,
    RefusalVerdict,
    verdict_of,
)
from pairbus.wire import errors

BUSY = errors.Busy("com.microsoft:server-busy", "slow down")
AWAY = errors.Unreachable("pairbus:unreachable", "refused")
GONE = errors.NotFound("amqp:not-found", "no such entity")


@pytest.fixture
def destinations() -> Destinations:
    return Destinations()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (errors.refusal("amqp:not-found"), RefusalVerdict.GONE),
        (errors.refusal("com.microsoft:entity-not-found"), RefusalVerdict.GONE),
        (errors.refusal("amqp:link:message-size-exceeded"), RefusalVerdict.REFUSED),
        (errors.refusal("amqp:not-allowed"), RefusalVerdict.REFUSED),
        (errors.refusal("amqp:invalid-field"), RefusalVerdict.REFUSED),
        (errors.refusal("com.microsoft:argument-error"), RefusalVerdict.REFUSED),
        (errors.refusal("com.microsoft:server-busy"), RefusalVerdict.BUSY),
        (errors.refusal("amqp:resource-limit-exceeded"), RefusalVerdict.FULL),
        (errors.refusal("amqp:unauthorized-access"), RefusalVerdict.DENIED),
        (errors.refusal("com.microsoft:entity-disabled"), RefusalVerdict.UNREACHABLE),
        (errors.refusal("amqp:internal-error"), RefusalVerdict.UNREACHABLE),
        (errors.refusal("com.microsoft:timeout"), RefusalVerdict.UNREACHABLE),
        (errors.refusal("something:nobody-knows"), RefusalVerdict.UNREACHABLE),
        (errors.refusal(None), RefusalVerdict.UNREACHABLE),
        (errors.Refused("pairbus:released"), RefusalVerdict.UNREACHABLE),
        (AWAY, RefusalVerdict.UNREACHABLE),
        (errors.LinkLost("pairbus:link-lost"), RefusalVerdict.UNREACHABLE),
        (errors.TimedOut("pairbus:timed-out"), RefusalVerdict.UNREACHABLE),
        (errors.WindowFull("pairbus:window-full"), RefusalVerdict.UNREACHABLE),
        (errors.ClientClosed("pairbus:client-closed"), RefusalVerdict.UNREACHABLE),
        (errors.WireError("amqp:unknown-error"), RefusalVerdict.UNREACHABLE),
    ],
)
def test_p40_what_a_refusal_means(error: errors.WireError, verdict: RefusalVerdict) -> None:
    assert verdict_of(error) is verdict


def test_p40_what_may_have_arrived_is_never_dead_lettered() -> None:
    for row in ROWS:
        error = row.kind(row.condition or "any:condition", "", outcome_unknown=True)
        assert verdict_of(error) is RefusalVerdict.UNREACHABLE


def test_p40_only_two_verdicts_are_for_good() -> None:
    assert {verdict for verdict in RefusalVerdict if verdict.is_for_good} == {
        RefusalVerdict.GONE,
        RefusalVerdict.REFUSED,
    }


def test_an_unknown_destination_flows(destinations: Destinations) -> None:
    assert destinations.obstacle("orders", 0.0) is None
    assert not destinations.is_trial("orders")
    assert destinations.trouble("orders") is None


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (AWAY, [1, 2, 4, 8, 16, 32, AWAY_S_MAX, AWAY_S_MAX]),
        (errors.refusal("amqp:resource-limit-exceeded"), [1, 2, 4, 8, 16, 32, AWAY_S_MAX]),
        (errors.Unauthorized("amqp:unauthorized-access"), [1, 2, 4]),
        (BUSY, [HALT_S, 20, 40, AWAY_S_MAX, AWAY_S_MAX]),
        (GONE, [GONE_S] * 3),
    ],
)
def test_p40_one_that_fails_again_and_again_is_left_alone_for_longer(
    error: errors.WireError, pauses: list[float]
) -> None:
    destinations = Destinations()
    now = 100.0
    for strikes, pause in enumerate(pauses, start=1):
        epoch = destinations.begin("orders")
        assert destinations.failed("orders", epoch, error, now)
        trouble = destinations.obstacle("orders", now + pause - 0.001)
        assert trouble is not None
        assert (trouble.strikes, trouble.since) == (strikes, 100.0)
        assert destinations.obstacle("orders", now + pause) is None
        now += pause


def test_p24_busy_halts_for_ten_seconds_at_least(destinations: Destinations) -> None:
    destinations.failed("orders", destinations.begin("orders"), BUSY, 5.0)
    assert destinations.obstacle("orders", 14.99) is not None
    assert destinations.obstacle("orders", 15.0) is None


def test_a_trial_is_one_message_and_its_answer_decides(destinations: Destinations) -> None:
    destinations.failed("orders", destinations.begin("orders"), AWAY, 0.0)
    assert destinations.due(0.5) == []
    assert destinations.due(1.0) == ["orders"]
    assert destinations.is_trial("orders")
    assert not destinations.is_trying("orders")
    epoch = destinations.begin("orders")
    assert destinations.is_trying("orders")
    assert destinations.due(1.0) == []
    trouble = destinations.obstacle("orders", 1.0)
    assert trouble is not None and trouble.verdict is RefusalVerdict.UNREACHABLE
    assert destinations.obstacle("orders", 1e9) is trouble, "until its answer"
    assert destinations.succeeded("orders", epoch)
    assert destinations.obstacle("orders", 1.0) is None
    assert not destinations.is_trial("orders")
    assert not destinations.succeeded("orders", epoch), "that is no news"


def test_p24_an_answer_from_before_the_failure_ends_nothing(destinations: Destinations) -> None:
    early = destinations.begin("orders")
    late = destinations.begin("orders")
    assert destinations.failed("orders", early, BUSY, 0.0)
    assert not destinations.succeeded("orders", late), "it began before the halt"
    assert destinations.obstacle("orders", 9.0) is not None
    assert not destinations.failed("orders", late, BUSY, 1.0)
    trouble = destinations.trouble("orders")
    assert trouble is not None and (trouble.strikes, trouble.until) == (1, 11.0), "told late, but told"


def test_p24_a_late_busy_halts_a_destination_that_failed_otherwise(destinations: Destinations) -> None:
    early = destinations.begin("orders")
    late = destinations.begin("orders")
    destinations.failed("orders", early, AWAY, 0.0)
    assert not destinations.failed("orders", late, BUSY, 0.5)
    assert destinations.obstacle("orders", 10.4) is not None
    assert destinations.obstacle("orders", 10.5) is None


def test_p15_one_destination_says_nothing_of_another(destinations: Destinations) -> None:
    destinations.failed("orders", destinations.begin("orders"), AWAY, 0.0)
    assert destinations.obstacle("news", 0.0) is None
    assert [path for path, _ in destinations.troubled()] == ["orders"]


def test_p24_a_halt_that_others_know_of_holds_here_too() -> None:
    halts = {"orders": 12.0}
    destinations = Destinations(lambda path: halts.get(path, 0.0))
    trouble = destinations.obstacle("orders", 11.0)
    assert trouble is not None and trouble.verdict is RefusalVerdict.BUSY
    assert destinations.obstacle("orders", 12.0) is None
    assert destinations.obstacle("news", 11.0) is None


def test_destinations_in_trouble_are_never_forgotten(destinations: Destinations) -> None:
    destinations.failed("orders", destinations.begin("orders"), AWAY, 0.0)
    for number in range(KNOWN_MAX + 10):
        destinations.begin(f"d{number}")
    assert len(destinations) <= KNOWN_MAX
    assert destinations.trouble("orders") is not None
    assert repr(destinations) == f"<Destinations {len(destinations)} known, 1 in trouble>"
