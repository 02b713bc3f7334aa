from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.routing import budget


def test_p13_the_waits_are_those_of_the_sdk() -> None:
    assert [budget.Retries(3).wait_s(done) for done in range(4)] == [1.6, 3.2, 6.4, None]
    assert [budget.Retries(3, 0.5, 120.0, is_fixed=True).wait_s(done) for done in range(4)] == [0.5, 0.5, 0.5, None]
    assert budget.Retries(1_000_000, backoff_max_s=7.0).wait_s(999_999) == 7.0
    assert budget.Retries().wait_s(0) is None


def test_p19_half_is_kept_back_while_there_is_another_place() -> None:
    assert budget.share(60.0, another=True) == 30.0
    assert budget.share(60.0, another=False) == 60.0


@given(
    total=st.floats(0.001, 3600.0),
    places=st.integers(1, 12),
    used=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
)
def test_p19_no_chain_of_attempts_passes_the_end_and_the_last_has_a_share(
    total: float, places: int, used: list[float]
) -> None:
    now = 0.0
    for place in range(places):
        remaining = total - now
        granted = budget.share(remaining, another=place < places - 1)
        assert 0 < granted <= remaining
        now += granted * used[place] * 0.999
    assert now <= total


def test_p13_an_opening_goes_on_until_it_would_tell_of_the_queue() -> None:
    assert budget.opening_goes_on(1.5) == 8.5
    assert budget.opening_goes_on(26.0) == 0.0
    assert not budget.opening_tells(9.9)
    assert budget.opening_tells(10.0)


def test_p13_a_send_fits_behind_an_opening_or_is_left_to_the_next_attempt() -> None:
    assert budget.send_fits(0.8, opening_took=3.2)
    assert not budget.send_fits(0.7, opening_took=3.2)
    assert budget.send_fits(2.5, opening_took=600.0)
    assert budget.send_fits(0.01, opening_took=0.0)


def test_p13_the_queues_leave_an_eighth_for_the_primary_or_half_of_what_is_left() -> None:
    assert budget.kept_for_primary(80.0, total=80.0) == 10.0
    assert budget.kept_for_primary(12.0, total=80.0) == 6.0
    assert budget.kept_for_primary(0.0019, total=80.0) == 0.0, "one attempt is left, and it is a queue's"


@pytest.mark.parametrize(
    ("remaining", "over"), [(1.0, False), (0.001, False), (0.0009, True), (0.0, True), (-5.0, True)]
)
def test_p22_no_time_left(remaining: float, over: bool) -> None:
    assert budget.is_over(remaining) is over


@pytest.mark.parametrize(("until", "fits"), [(110.0, True), (119.9, True), (120.0, False), (130.0, False)])
def test_p24_a_halt_fits_if_time_for_an_attempt_remains(until: float, fits: bool) -> None:
    assert budget.halt_fits(until, ends=120.0) is fits


@pytest.mark.parametrize(
    ("granted", "send_timeout", "patient"),
    [(1.0, 60.0, True), (0.9, 60.0, False), (0.25, 2.0, True), (0.2, 2.0, False), (30.0, 3600.0, True)],
)
def test_p13_an_impatient_caller_tells_nothing_of_a_queue(granted: float, send_timeout: float, patient: bool) -> None:
    assert budget.is_patient(granted, send_timeout) is patient
