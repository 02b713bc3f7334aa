from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.routing.busy_pause import HALT_S, BusyPause

TIMES = st.sampled_from([0.0, 1.0, 5.0, 9.0, 10.0, 11.0, 20.0])


@pytest.fixture
def pause() -> BusyPause:
    return BusyPause()


def test_p24_a_halt_lasts_ten_seconds(pause: BusyPause) -> None:
    assert not pause.is_on(0.0)
    pause.busy(100.0, sending=True)
    assert HALT_S == 10.0
    assert pause.until == 110.0
    assert pause.is_on(109.9)
    assert not pause.is_on(110.0)
    assert repr(pause) == "<BusyPause until 110.0>"


def test_p24_each_refusal_counts_its_own_ten_seconds(pause: BusyPause) -> None:
    pause.busy(100.0, sending=True)
    pause.busy(104.0, sending=False)
    assert pause.until == 114.0


def test_p24_busy_is_counted_from_the_first_refusal_of_a_send(pause: BusyPause) -> None:
    pause.busy(90.0, sending=False)
    assert pause.busy_for(95.0) == 0.0
    pause.busy(95.0, sending=True)
    pause.busy(106.0, sending=True)
    assert pause.busy_for(106.0) == 11.0


def test_p24_a_message_that_gets_through_ends_the_run_but_not_the_halt(pause: BusyPause) -> None:
    pause.busy(100.0, sending=True)
    pause.sent()
    assert pause.is_on(105.0)
    assert pause.busy_for(105.0) == 0.0
    pause.busy(107.0, sending=True)
    assert pause.busy_for(109.0) == 2.0


def test_p24_quiet_after_the_halt_ends_the_run(pause: BusyPause) -> None:
    pause.busy(100.0, sending=True)
    assert not pause.is_over(119.9)
    assert pause.is_over(120.0)
    pause.busy(120.0, sending=True)
    assert pause.busy_for(121.0) == 1.0


@given(st.lists(st.tuples(TIMES, st.sampled_from(["send", "receive", "sent"])), max_size=20))
def test_p24_never_shorter_than_ten_seconds_from_the_last_refusal(steps: list[tuple[float, str]]) -> None:
    pause, now, last = BusyPause(), 0.0, None
    for after, what in steps:
        now += after
        if what == "sent":
            pause.sent()
        else:
            pause.busy(now, sending=what == "send")
            last = now
        assert pause.is_on(now) == (last is not None and now < last + HALT_S)
        assert 0.0 <= pause.busy_for(now) <= now
