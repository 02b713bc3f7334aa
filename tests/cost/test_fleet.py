"""What an outage asks of a fleet's namespaces, in figures that can be worked out by hand."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.operations.quotas import TIER_CREDITS as BROKER_CREDITS
from pairbus.cost import Scenario, estimate
from pairbus.cost.estimate import InvalidScenario
from pairbus.cost.fleet import SYPHON_SHARE, TIER_CREDITS
from pairbus.syphon.core.rate_limit import SHARE


def test_p53_the_figures_of_a_fleet() -> None:
    made = estimate(clients=10_000, entities=20, rate=100, size=1024, ping_interval_s=300, failover_interval_s=0)
    fleet = made.fleet
    assert fleet.pings_per_s == pytest.approx(666.667, abs=0.001)
    assert made.diverted == 360_000
    assert fleet.backlog_gb == pytest.approx(360_000 * 1124 / 1024**3)
    assert fleet.live_credits == 200
    # 800 credits are left, a message takes two of them, and the syphon keeps to four fifths.
    assert fleet.drain_per_s == 320
    assert fleet.drain_s == 360_000 / 320
    assert fleet.limited_by == "the primary's credits, beside live traffic"
    assert fleet.warnings == ()


def test_p53_pings_beyond_the_tier_are_warned_of_with_the_interval_that_would_do() -> None:
    (warning,) = estimate(clients=10_000, entities=20).fleet.warnings
    assert "3,333 pings a second" in warning and "ping_primary_interval of 200 s" in warning
    assert estimate(clients=10_000, entities=20, ping_interval_s=200).fleet.warnings == ()


def test_p53_live_traffic_that_takes_all_credits_leaves_none_for_the_drain() -> None:
    made = estimate(rate=500)
    assert made.fleet.drain_s == math.inf
    assert "the backlog never comes home" in made.warnings[0]
    found = json.loads(json.dumps(made.to_dict(), allow_nan=False))["fleet"]
    assert (found["drain_s"], found["drain_ends"], found["drain_messages_per_s"]) == (None, False, 0)


def test_p53_a_ceiling_and_a_tier_without_credits() -> None:
    assert estimate(rate=10, max_rate=50).fleet.limited_by == "the syphon's ceiling"
    assert estimate(rate=10, max_rate=50).fleet.drain_s == estimate(rate=10).diverted / 50
    premium = estimate(rate=5000, tier="premium").fleet
    assert (premium.credits, premium.drain_per_s, premium.drain_s) == (None, None, None)
    assert estimate(rate=5000, tier="premium", max_rate=100).fleet.drain_per_s == 100
    assert estimate(rate=0).fleet.drain_s == 0 == estimate(outage_s=0).fleet.drain_s
    assert estimate(outage_s=0).fleet.pings_per_s == 0


@pytest.mark.parametrize(
    "wrong", [{"tier": "gold"}, {"max_rate": 0}, {"max_rate": -1}, {"max_rate": math.inf}, {"max_rate": True}]
)
def test_p53_what_is_no_tier_or_rate_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidScenario, match="may not be"):
        Scenario(**wrong)  # type: ignore[arg-type]


def test_p53_its_constants_are_those_of_broker_and_syphon() -> None:
    assert {tier: credits for tier, credits in TIER_CREDITS.items() if credits is not None} == BROKER_CREDITS
    assert SYPHON_SHARE == SHARE


@given(
    rate=st.floats(0, 2000),
    outage_s=st.floats(0, 86_400),
    clients=st.integers(1, 100_000),
    tier=st.sampled_from(list(TIER_CREDITS)),
    max_rate=st.none() | st.floats(0.1, 1e5),
)
def test_p53_more_live_traffic_never_speeds_the_drain(
    rate: float, outage_s: float, clients: int, tier: str, max_rate: float | None
) -> None:
    case = Scenario(rate=rate, outage_s=outage_s, clients=clients, tier=tier, max_rate=max_rate)
    more = Scenario(rate=rate * 1.5 + 1, outage_s=outage_s, clients=clients, tier=tier, max_rate=max_rate)
    before, after = estimate(case).fleet, estimate(more).fleet
    json.dumps(before.to_dict(), allow_nan=False)
    if before.drain_per_s is not None and after.drain_per_s is not None:
        assert after.drain_per_s <= before.drain_per_s
