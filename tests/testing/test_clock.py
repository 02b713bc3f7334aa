from __future__ import annotations

import math
import time

import pytest

from pairbus.testing import ManualClock


def test_it_stands_still_until_told() -> None:
    clock = ManualClock(100)
    assert [clock(), clock()] == [100.0, 100.0]
    assert clock.advance(2.5) == 102.5
    assert clock() == 102.5
    assert clock.set(50) == 50.0
    assert repr(clock) == "<ManualClock 50.000>"


def test_only_the_wall_clock_is_stepped_and_only_it_goes_back() -> None:
    clock = ManualClock(100)
    clock.step(-60)
    assert (clock(), clock.monotonic()) == (40.0, 100.0)
    clock.advance(5)
    assert (clock(), clock.monotonic()) == (45.0, 105.0)
    clock.set(50)
    assert (clock(), clock.monotonic()) == (50.0, 110.0)
    clock.set(20)
    assert (clock(), clock.monotonic()) == (20.0, 110.0)
    with pytest.raises(ValueError, match="not by nan"):
        clock.step(math.nan)


def test_watchers_see_the_new_time_until_they_stop() -> None:
    clock = ManualClock(0)
    seen: list[float] = []
    stop = clock.watch(lambda: seen.append(clock()))
    clock.advance(1)
    clock.advance(0)
    stop()
    stop()
    clock.advance(1)
    assert seen == [1.0, 1.0]


def test_a_watcher_may_stop_itself() -> None:
    clock = ManualClock(0)
    seen: list[str] = []
    stop = clock.watch(lambda: (seen.append("first"), stop()))
    clock.watch(lambda: seen.append("second"))
    clock.advance(1)
    clock.advance(1)
    assert seen == ["first", "second", "second"]


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_advancing_backwards_is_a_mistake(seconds: float) -> None:
    clock = ManualClock(5)
    with pytest.raises(ValueError, match="advances by 0 seconds or more"):
        clock.advance(seconds)
    assert clock() == 5.0


def test_it_starts_now() -> None:
    before = time.time()
    assert before <= ManualClock()() <= time.time()
