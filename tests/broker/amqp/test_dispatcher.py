"""When a dispatcher asks the loop for a turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.broker.amqp.dispatcher import Dispatcher


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
    dispatcher = Dispatcher(lambda: 1, loop)
    for credit in credits:
        source: Any = SimpleNamespace(link=SimpleNamespace(credit=credit, drain=is_draining))
        dispatcher.add(source)
    dispatcher.wake()
    dispatcher.wake()
    assert loop.turns == turns
