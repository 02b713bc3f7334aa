from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.core.rate_limit import BURST_S, CUT_S, QUIET_S, RELIEF_S, SHARE, TELLING_PER_S, RateLimit


@pytest.fixture
def rate() -> RateLimit:
    return RateLimit()


@pytest.mark.parametrize("ceiling", [0, -1, math.inf, math.nan])
def test_bad_ceilings(ceiling: float) -> None:
    with pytest.raises(ValueError, match="messages a second"):
        RateLimit(ceiling)


def test_without_a_ceiling_there_is_no_limit(rate: RateLimit) -> None:
    assert rate.batch(500, 10, 0.0) == 500
    rate.received(10**6, 0.0)
    assert rate.wait_s(0.0) == 0.0
    assert repr(rate) == "<Rate no limit>"


def test_p41_the_ceiling_holds_whatever_comes_at_once() -> None:
    rate = RateLimit(100)
    assert rate.wait_s(0.0) == 0.0
    rate.received(100, 0.0)
    assert rate.wait_s(0.0) == pytest.approx(1.0)
    assert rate.wait_s(0.5) == pytest.approx(0.5)
    assert rate.wait_s(1.0) == 0.0
    assert rate.batch(500, 1, 1.0) == 100 * BURST_S
    assert rate.batch(500, 10, 1.0) == 100 * BURST_S / 10
    assert rate.batch(500, 1000, 1.0) == 1, "an idle queue can always be listened to"
    assert repr(rate) == "<Rate 100/s>"


def test_what_was_not_used_is_not_saved_up() -> None:
    rate = RateLimit(100)
    assert rate.wait_s(0.0) == 0.0
    assert rate.wait_s(1000.0) == 0.0
    rate.received(150, 1000.0)
    assert rate.wait_s(1000.0) == pytest.approx(1.0)


@given(st.floats(1, 1000), st.lists(st.tuples(st.floats(0, 2), st.integers(1, 50)), max_size=60))
def test_p41_never_above_the_ceiling(ceiling: float, steps: list[tuple[float, int]]) -> None:
    """Whoever waits as told, and asks for as many as told, stays below the ceiling in any long span."""
    rate, now, moved = RateLimit(ceiling), 0.0, 0
    for pause, wanted in steps:
        now += pause + rate.wait_s(now + pause)
        count = min(wanted, rate.batch(500, 1, now))
        rate.received(count, now)
        moved += count
    assert moved <= ceiling * (now + 2 * BURST_S) + 2


def flowing(rate: RateLimit, per_s: float, since: float, until: float) -> None:
    now = since
    while now < until:
        rate.moved(round(per_s / 10), now)
        now += 0.1


def test_p24_busy_halves_what_was_moved(rate: RateLimit) -> None:
    flowing(rate, 1000, 0.0, 10.0)
    assert rate.measured(10.0) == pytest.approx(1000, rel=0.05)
    rate.busy(10.0)
    assert rate.limit(10.0) == pytest.approx(500, rel=0.05)
    assert math.isfinite(rate._refused)
    assert "yielding" in repr(rate)


def test_p40_one_that_gets_next_to_nothing_slows_nobody(rate: RateLimit) -> None:
    flowing(rate, 1000, 0.0, 10.0)
    for now in range(10, 500, 10):
        rate.busy(float(now), 0.0)
    assert rate.limit(500.0) == math.inf
    rate.busy(10.0, 0.4)
    assert rate.limit(10.0) == pytest.approx(800, rel=0.05), "half of its two fifths"
    assert rate.limit(35.0) == pytest.approx(920, rel=0.05), "four fifths of them, and all of the others"


def test_p24_one_cut_answers_for_all_that_was_under_way(rate: RateLimit) -> None:
    flowing(rate, 1000, 0.0, 10.0)
    for step in range(20):
        rate.busy(10.0 + step / 10)
    assert rate.limit(12.0) == pytest.approx(500, rel=0.05)
    flowing(rate, 500, 12.0, 10.0 + CUT_S)
    rate.busy(10.0 + CUT_S)
    assert rate.limit(10.0 + CUT_S) == pytest.approx(250, rel=0.1)


def test_p41_it_climbs_back_and_leaves_room_for_live_traffic(rate: RateLimit) -> None:
    flowing(rate, 1000, 0.0, 10.0)
    rate.busy(10.0)
    assert rate.limit(10.0 + QUIET_S) == pytest.approx(500, rel=0.05)
    half_way = rate.limit(12.0 + QUIET_S)
    assert 500 < half_way < 1000 * SHARE
    assert rate.limit(25.0 + QUIET_S) == pytest.approx(1000 * SHARE, rel=0.05), "not all that was refused"
    assert rate.limit(9.9 + RELIEF_S) == pytest.approx(1000 * SHARE, rel=0.05)
    assert rate.limit(100.0 + RELIEF_S) > 1000 * SHARE, "after a quiet minute a little more is tried"
    assert rate.limit(100.0 + 60 * RELIEF_S) == math.inf
    assert math.isinf(rate._refused)


def test_p41_the_ceiling_stays_the_ceiling() -> None:
    rate = RateLimit(800)
    flowing(rate, 800, 0.0, 10.0)
    rate.busy(10.0)
    for minute in range(1, 200):
        assert rate.limit(10.0 + minute * 60) <= 800
    assert rate.limit(10.0 + 200 * 60) == 800


def test_busy_before_anything_moved_tells_little_and_is_soon_forgotten(rate: RateLimit) -> None:
    rate.busy(0.0)
    assert rate.limit(0.0) == TELLING_PER_S / 2
    assert rate.limit(300.0) > 30 * TELLING_PER_S


def test_what_is_measured_is_what_was_moved_lately(rate: RateLimit) -> None:
    assert rate.measured(0.0) == 0.0
    rate.moved(100, 0.0)
    rate.moved(100, 0.01)
    assert rate.measured(1.0) == pytest.approx(200)
    assert rate.measured(4.0) == pytest.approx(50)
    assert rate.measured(100.0) == 0.0
