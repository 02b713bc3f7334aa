"""The longest turn of the loop, by a clock and a loop that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pairbus.broker.telemetry.loop_turns import EVERY_S, IDLE_EVERY_S, LONG_S, PERIOD_S, LoopTurns


class Loop:
    """Keeps the timers that are set, and the time."""

    def __init__(self) -> None:
        self.now = self.cpu_s = 100.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: object) -> Loop:
        self.due.append((self.now + delay, lambda: callback(*arguments)))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def turn(self, seconds: float) -> None:
        """Let the next timer be due, and a turn that began then take so long."""
        ((at, callback),) = self.due
        self.due.clear()
        self.now = at + seconds
        callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def turns(loop: Loop) -> LoopTurns:
    turns = LoopTurns(lambda: loop.now, lambda: loop.cpu_s)
    turns.start(cast(asyncio.AbstractEventLoop, loop))
    return turns


def test_the_longest_turn_is_what_a_beat_was_late_at_most(loop: Loop, turns: LoopTurns) -> None:
    for seconds in (0.0, 0.015, 0.003):
        loop.turn(seconds)
    assert turns.longest_s == pytest.approx(0.015) and turns.too_long == 0
    loop.turn(0.25)
    loop.turn(LONG_S * 2)
    assert turns.longest_s == pytest.approx(0.25) and turns.too_long == 2


def test_it_is_forgotten_after_one_to_two_periods(loop: Loop, turns: LoopTurns) -> None:
    loop.turn(0.25)
    loop.now += PERIOD_S
    assert turns.longest_s == pytest.approx(0.25)
    loop.now += PERIOD_S
    assert turns.longest_s == 0.0 and turns.too_long == 1


def test_what_was_before_a_gap_of_a_period_is_not_of_late(loop: Loop, turns: LoopTurns) -> None:
    loop.turn(0.25)
    loop.now += 2 * PERIOD_S
    assert turns.longest_s == 0.0


def test_what_the_loop_did_before_the_start_does_not_count(loop: Loop) -> None:
    turns = LoopTurns(lambda: loop.now)
    loop.now += 3.0
    turns.start(cast(asyncio.AbstractEventLoop, loop))
    loop.turn(0.001)
    assert turns.longest_s == pytest.approx(0.001)


def test_it_beats_until_it_is_stopped(loop: Loop, turns: LoopTurns) -> None:
    loop.cpu_s += EVERY_S
    loop.turn(0.0)
    ((at, _),) = cast(Any, loop.due)
    assert at == pytest.approx(loop.now + EVERY_S)
    turns.stop()
    assert not loop.due


def test_it_beats_less_often_while_there_is_nothing_to_do(loop: Loop, turns: LoopTurns) -> None:
    waits = []
    for used_s in (0.0, 0.0, 0.0, 0.0, 0.02, 0.0):
        loop.cpu_s += used_s
        loop.turn(0.0)
        waits.append(loop.due[0][0] - loop.now)
    assert waits == pytest.approx([0.01, 0.02, 0.04, IDLE_EVERY_S, EVERY_S, 0.01])
