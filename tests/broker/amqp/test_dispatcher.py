"""When a dispatcher asks the loop for a turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pairbus.broker.amqp.dispatcher import Dispatcher, Runs


class TurnCounter:
    """A loop that counts the turns that it is asked for."""

    def __init__(self) -> None:
        self.turns = 0

    def call_soon(self, callback: object) -> None:
        self.turns += 1


@pytest.mark.parametrize(
    ("credits", "is_draining", "turns"), [((), False, 0), ((0, 0), False, 0), ((0, 3), False, 1), ((0,), True, 1)]
)
def test_only_receivers_that_ask_for_something_cost_a_turn(
    credits: tuple[int, ...], is_draining: bool, turns: int
) -> None:
    loop: Any = TurnCounter()
    dispatcher = Dispatcher(lambda: 1, loop, Runs(loop))
    for credit in credits:
        source: Any = SimpleNamespace(link=SimpleNamespace(credit=credit, drain=is_draining))
        dispatcher.add(source)
    dispatcher.wake()
    dispatcher.wake()
    assert loop.turns == turns


class CountedLoop:
    """A loop on which time passes as its callbacks say."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def test_all_dispatchers_together_have_a_few_milliseconds_a_turn() -> None:
    loop = CountedLoop()
    runs = Runs(cast(Any, loop))
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        loop.now += 0.001

    for number in range(10):
        runs.soon(partial(run, number))
    loop.turn()
    assert ran == [0, 1, 2]
    runs.soon(partial(run, 10))
    while loop.soon:
        before = len(ran)
        loop.turn()
        assert len(ran) - before <= 3
    assert ran == list(range(11)) and repr(runs) == "<Runs: 0 due>"


def test_a_dispatcher_that_fails_keeps_no_other_from_its_turn() -> None:
    loop = CountedLoop()
    runs = Runs(cast(Any, loop))
    ran: list[str] = []

    def fail() -> None:
        raise KeyError("a bug")

    runs.soon(fail)
    runs.soon(lambda: ran.append("second"))
    with pytest.raises(KeyError):
        loop.turn()
    loop.turn()
    assert ran == ["second"] and not loop.soon


def test_a_dispatcher_that_has_more_goes_on_in_the_next_turn() -> None:
    loop = CountedLoop()
    runs = Runs(cast(Any, loop))
    ran: list[int] = []

    def run() -> None:
        ran.append(len(ran))
        if len(ran) < 3:
            runs.soon(run)

    runs.soon(run)
    loop.turn()
    assert ran == [0]
    loop.turn()
    assert ran == [0, 1]
