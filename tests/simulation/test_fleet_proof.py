"""Ten thousand clients fail over in one second and come back: no storm of pings, none of links, nothing lost."""

from __future__ import annotations

import pytest

from pairbus.pairing.control_file import INTERVAL_S
from pairbus.pairing.options import PROFILES, Settings
from pairbus.pairing.routing.pins import parse
from pairbus.pairing.routing.states import EntityState

from .fleet import Fleet

BEGINS = 100
PROFILE = pytest.mark.parametrize("profile", PROFILES)


def outage(
    clients: int,
    entities: int,
    *,
    seconds: int,
    ping_s: float,
    ramp_s: float = 30.0,
    seed: int = 1,
    draws: bool = True,
    profile: str = "as-described",
    is_silent: bool = False,
) -> Fleet:
    """A fleet after an outage that all clients noticed within its first second, and its return."""
    options = {**PROFILES[profile], "failover_interval": 0.0, "ping_primary_interval": ping_s, "return_ramp": ramp_s}
    fleet = Fleet(seed, clients, entities, Settings(**options), draws=draws, is_silent=is_silent)
    fleet.learn()
    ends = BEGINS + seconds
    fleet.all_send(0.0, BEGINS - 1.0)
    fleet.all_send(BEGINS, BEGINS + 1.0)
    fleet.all_send(BEGINS + 1.0, ends)
    fleet.all_send(ends, ends + 2 * ping_s)
    fleet.at(BEGINS - 0.5, lambda: fleet.primary(is_up=False))
    fleet.at(float(ends), lambda: fleet.primary(is_up=True))
    fleet.run(ends + 3 * ping_s)
    return fleet


def peak_to_mean(fleet: Fleet, begin: int, end: int) -> float:
    by_second = [fleet.pings[second] for second in range(begin, end)]
    return max(by_second) / (sum(by_second) / len(by_second))


def judge(fleet: Fleet, clients: int, entities: int, *, seconds: int, ping_s: float) -> None:
    ends = BEGINS + seconds
    assert fleet.failed == 0
    assert fleet.states() == {EntityState.HEALTHY: clients * entities}
    assert fleet.last_return <= ends + 2 * ping_s, "the last is back within two ping intervals"
    assert sum(fleet.links.values()) == clients * entities, "each returned once"
    assert fleet.links[ends] <= clients * entities / 10
    assert fleet.contacts[ends] <= clients / 10, "pings count, too"
    assert sum(fleet.in_backlog.values()) >= clients * entities
    fleet.drain()
    assert fleet.confirmed == fleet.at_primary, "nothing is lost, and nothing is there twice"
    assert sum(fleet.confirmed.values()) == 4 * clients * entities


@PROFILE
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "black hole"])
def test_p21_p31_a_fleet_neither_pings_nor_returns_in_one_second(profile: str, is_silent: bool) -> None:
    fleet = outage(1000, 3, seconds=200, ping_s=20.0, ramp_s=15.0, profile=profile, is_silent=is_silent)
    assert peak_to_mean(fleet, BEGINS + 1, BEGINS + 200) <= 2.0
    judge(fleet, 1000, 3, seconds=200, ping_s=20.0)


def test_p31_without_a_phase_of_its_own_each_client_would_ping_in_the_same_second() -> None:
    fleet = outage(200, 2, seconds=60, ping_s=20.0, draws=False)
    assert peak_to_mean(fleet, BEGINS + 1, BEGINS + 60) > 5.0


@pytest.mark.parametrize(("ramp_s", "holds"), [(30.0, True), (0.0, False)])
def test_p21_p23_a_fleet_that_the_control_file_sends_home_returns_as_a_ramp(ramp_s: float, holds: bool) -> None:
    fleet = Fleet(2, 1000, 2, Settings(return_ramp=ramp_s))
    fleet.control(20.0, parse('"*" = "failed-over"'))
    fleet.control(60.0, parse('"*" = "healthy"'))
    fleet.all_send(0.0, 10.0)
    fleet.all_send(30.0, 50.0)
    fleet.run(50.0)
    assert fleet.states() == {EntityState.FAILED_OVER: 2000}
    assert not fleet.pings, "nobody asks a primary that the file keeps them from"
    fleet.primary(is_up=True)
    fleet.all_send(60.0, 120.0)
    fleet.run(130.0)
    assert fleet.states() == {EntityState.HEALTHY: 2000}
    assert fleet.last_return <= 60.0 + INTERVAL_S + ramp_s
    assert (max(fleet.links.values()) <= 2000 / 10) is holds
    fleet.drain()
    assert fleet.confirmed == fleet.at_primary and fleet.failed == 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
@PROFILE
def test_p21_p31_ten_thousand_clients_with_twenty_entities_and_an_outage_of_an_hour(profile: str) -> None:
    fleet = outage(10_000, 20, seconds=3600, ping_s=300.0, profile=profile, is_silent=profile == "interactive")
    assert peak_to_mean(fleet, BEGINS + 1, BEGINS + 3600) <= 2.0
    judge(fleet, 10_000, 20, seconds=3600, ping_s=300.0)
