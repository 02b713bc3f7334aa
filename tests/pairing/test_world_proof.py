"""The Hypothesis world (P15–P24, P31–P35): any order of sends, weather, late and lost answers, time, cancelled calls
and operators, over two entities and three senders. world.py says what is checked after each step, and at the end."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pairbus.pairing.options import Settings

from .world import ENTITIES, LARGE, NOT_TRIED, SENDERS, Weather, World

OPTIONS = st.fixed_dictionaries(
    {
        "failover_interval": st.sampled_from([10.0, 20.0, 0.0]),
        "ping_primary_interval": st.sampled_from([10.0, 5.0, 20.0]),
        "pings_to_return": st.sampled_from([1, 2]),
        "probe": st.sampled_from(["ping", "trial"]),
        "while_suspect": st.sampled_from(["raise", "divert"]),
        "when_unreachable": st.sampled_from(["divert", "raise"]),
        "busy_failover_after": st.sampled_from([None, 0.0, 10.0, 20.0]),
        "send_timeout": st.sampled_from([40.0, 20.0]),
        "backlog_retry_interval": st.sampled_from([10.0, 20.0]),
    }
)
SENDER = st.sampled_from(["a1", "a1", "a2", "b1"])
ENTITY = st.sampled_from(["a", "a", "b"])
STORMS = st.sampled_from([weather for weather in Weather if weather is not Weather.FAIR])


class Life(RuleBasedStateMachine):
    world: World

    @initialize(
        options=OPTIONS,
        queues=st.sampled_from([3, 3, 2, 1, 0]),
        prompt=st.sampled_from([True, True, False]),
        weather=st.sampled_from(Weather),
    )
    def begins(self, options: dict[str, Any], queues: int, prompt: bool, weather: Weather) -> None:
        self.world = World(Settings(**options), range(queues), prompt=prompt)
        self.world.weather["a"] = weather

    @rule(sender=SENDER, timeout=st.sampled_from([None, None, 40.0, 20.0, 10.0, 1.0, 0.0]), dice=st.integers(0, 2))
    def sends(self, sender: str, timeout: float | None, dice: int) -> None:
        self.world.dice = dice
        self.world.send(sender, timeout)
        self.world.check()

    @rule(senders=st.lists(SENDER, min_size=2, max_size=4), weather=STORMS)
    def send_into_a_storm(self, senders: list[str], weather: Weather) -> None:
        self.world.weather[SENDERS[senders[0]]] = weather
        for sender in senders:
            self.world.send(sender, None)
            self.world.check()

    @rule(
        entity=ENTITY, by=st.sampled_from([0.0, 5.0]), then=st.sampled_from([Weather.FAIR, Weather.BUSY, Weather.DOWN])
    )
    def is_throttled(self, entity: str, by: float, then: Weather) -> None:
        """Two at once: the one is told that the server is busy, the other something else, a little later."""
        first, second = self.world.send(f"{entity}1", None), self.world.send(f"{entity}1", None)
        for message, weather in ((first, Weather.BUSY), (second, then)):
            if message.at and message.at.place == entity:
                self.world.answer(message.at, weather)
            self.world.check()
            self.world.advance(by, ticks_first=True)
        self.world.check()

    @precondition(lambda self: self.world.pending())
    @rule(data=st.data(), late=st.booleans())
    def answers(self, data: st.DataObject, late: bool) -> None:
        """By the weather of now, or late: by that of when it began."""
        self.world.reply(data.draw(st.sampled_from(self.world.pending())), late=late)
        self.world.check()

    @precondition(lambda self: len(self.world.pending()) > 1)
    @rule(backwards=st.booleans(), late=st.booleans())
    def all_answer(self, backwards: bool, late: bool) -> None:
        for attempt in sorted(self.world.pending(), key=lambda each: each.began, reverse=backwards):
            self.world.reply(attempt, late=late)
            self.world.check()

    @precondition(lambda self: self.world.open)
    @rule(data=st.data(), how=st.sampled_from([NOT_TRIED, LARGE, None]))
    def ends_otherwise(self, data: st.DataObject, how: Exception | None) -> None:
        """Others were first, the message is too large, the call is cancelled."""
        message = data.draw(st.sampled_from(self.world.open))
        if how is None:
            self.world.cancel(message)
        elif message.at is not None and not message.at.stored:
            self.world.finish(message.at, how)
        self.world.check()

    @rule(
        places=st.sets(st.sampled_from([*ENTITIES, 0, 1, 2]), min_size=1, max_size=4), weather=st.sampled_from(Weather)
    )
    def weather_changes(self, places: set[str | int], weather: Weather) -> None:
        for place in places:
            self.world.weather[place] = weather

    @rule(by=st.sampled_from([10.0, 5.0, 20.0]), ticks_first=st.booleans())
    def time_passes(self, by: float, ticks_first: bool) -> None:
        self.world.advance(by, ticks_first=ticks_first)
        self.world.check()

    @rule(entity=ENTITY, what=st.sampled_from(["force", "hold", "mark", "busy", "tick", "close"]))
    def meddles(self, entity: str, what: str) -> None:
        """The operator, a receiver that meets a busy server, a tick for nothing, a sender that closes."""
        self.meddle(entity, what)

    def meddle(self, entity: str, what: str) -> None:
        if what in ("force", "hold"):
            self.world.force(entity, what == "hold")
        elif what == "mark":
            self.world.mark(entity)
        elif what == "busy":
            self.world.receiver_busy(entity)
        elif what == "tick":
            self.world.tick()
        else:
            self.world.close(f"{entity}1")
        self.world.check()

    @precondition(lambda self: any(truth.probe for truth in self.world.truths.values()))
    @rule(drill=st.sampled_from([("mark", "force"), ("hold", "force"), ("mark", "hold", "force")]))
    def drills_while_a_probe_is_under_way(self, drill: tuple[str, ...]) -> None:
        entity = next(entity for entity, truth in self.world.truths.items() if truth.probe)
        for what in drill:
            self.meddle(entity, what)

    @precondition(lambda self: not self.world.queues)
    @rule(count=st.integers(1, 3))
    def pairing_completes(self, count: int) -> None:
        self.world.pair_later(range(count))
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world") and sys.exc_info()[0] is None:
            self.world.come_home()


class LongLife(Life):
    pass


Life.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
LongLife.TestCase.settings = settings(
    max_examples=int(1000 * float(os.environ.get("SOAK_MINUTES", "10"))), stateful_step_count=80
)
TestLife = pytest.mark.timeout(600)(Life.TestCase)
TestLongLife = pytest.mark.soak(LongLife.TestCase)
