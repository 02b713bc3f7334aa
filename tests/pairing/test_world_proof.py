"""The Hypothesis world (P15–P24, P31–P35): any order of sends, weather, late and lost answers, time, cancelled calls,
operators and control files, over two entities and three senders. tests/simulation/paired.py says what must hold after
each step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.budget import Retries
from pairbus.pairing.routing.busy_pause import BusyPause
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch
from pairbus.pairing.routing.failover import Failover
from pairbus.pairing.routing.patience import Brownout, PrimaryTerms
from pairbus.pairing.routing.rotation import Pick, Rotation
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import DEFAULT, Table, Verdict

from .world import BUSY, ENTITIES, GONE, LARGE, NOT_TRIED, SENDERS, Weather, World

OPTIONS = st.fixed_dictionaries(
    {
        "failover_interval": st.sampled_from([10.0, 20.0, 0.0]),
        "ping_primary_interval": st.sampled_from([10.0, 5.0, 20.0]),
        "pings_to_return": st.sampled_from([1, 2]),
        "probe": st.sampled_from(["ping", "trial"]),
        "while_suspect": st.sampled_from(["raise", "divert"]),
        "while_throttled": st.sampled_from(["wait", "divert"]),
        "when_unreachable": st.sampled_from(["divert", "raise"]),
        "busy_failover_after": st.sampled_from([None, 0.0, 10.0, 20.0]),
        "send_timeout": st.sampled_from([40.0, 20.0]),
        "backlog_retry_interval": st.sampled_from([10.0, 20.0]),
        "primary_patience": st.sampled_from(["half", 5.0, 15.0, "adaptive"]),
        "brownout": st.sampled_from([None, None, Brownout(0.5, 5, 4.0)]),
        "return_ramp": st.sampled_from([0.0, 0.0, 20.0]),
    }
)
SENDER = st.sampled_from(["a1", "a1", "a2", "b1"])
ENTITY = st.sampled_from(["a", "a", "b"])
PIN = st.sampled_from(["failed-over", "healthy", "auto"])
STORMS = st.sampled_from([weather for weather in Weather if weather is not Weather.FAIR])


class Life(RuleBasedStateMachine):
    world: World

    @initialize(
        options=OPTIONS,
        queues=st.sampled_from([3, 3, 2, 1, 0]),
        prompt=st.sampled_from([True, True, False]),
        weather=st.sampled_from(Weather),
        warm=st.sampled_from([None, 0, 1]),
        draw=st.sampled_from([0.0, 0.5]),
        retries=st.sampled_from([Retries(), Retries(2, 2.5, is_fixed=True), Retries(3)]),
    )
    def begins(
        self,
        options: dict[str, Any],
        queues: int,
        prompt: bool,
        weather: Weather,
        warm: int | None,
        draw: float,
        retries: Retries,
    ) -> None:
        if options["probe"] == "trial":  # the world's trials are slow, and a brownout would never end
            options["brownout"] = None
        self.world = World(Settings(**options), range(queues), prompt=prompt, draw=draw, retries=retries)
        self.world.weather["a"] = weather
        self.world.warm = warm

    @rule(warm=st.sampled_from([None, 0, 1, 2]))
    def warm_link_moves(self, warm: int | None) -> None:
        self.world.warm = warm

    @rule(sender=SENDER, patience=st.sampled_from([0.5, 3.0, 6.0]), count=st.integers(1, 4), weather=STORMS)
    def impatient_callers(self, sender: str, patience: float, count: int, weather: Weather) -> None:
        """Each is cancelled before the primary's share is over."""
        self.world.weather[SENDERS[sender]] = weather
        for _ in range(count):
            message = self.world.send(sender, None)
            self.world.advance(patience, ticks_first=True)
            if message in self.world.open:
                self.world.cancel(message)
            self.world.check()

    @rule(sender=SENDER, takes=st.sampled_from([1.0, 4.5]), count=st.integers(2, 6))
    def answers_take(self, sender: str, takes: float, count: int) -> None:
        """Sends that succeed, all fast or all slow."""
        for _ in range(count):
            message = self.world.send(sender, None)
            self.world.advance(takes, ticks_first=True)
            if message in self.world.open and message.at is not None and not message.at.stored:
                self.world.finish(message.at, None)
            self.world.check()

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
        if what == "tick":
            self.world.tick()
        elif what == "close":
            self.world.close(f"{entity}1")
        else:
            self.world.operate(entity, what)
        self.world.check()

    @rule(pins=st.dictionaries(st.sampled_from(["A", "a", "b", "*"]), PIN, max_size=2))
    def control_file_changes(self, pins: dict[str, str]) -> None:
        if {"a", "A"} <= set(pins):
            del pins["A"]  # or it would contradict itself
        self.world.control(pins)
        self.world.check()

    @precondition(lambda self: self.world.probed())
    @rule(word=PIN)
    def control_file_changes_while_a_probe_is_under_way(self, word: str) -> None:
        self.world.control({self.world.probed()[0]: word})
        self.world.check()

    @precondition(lambda self: self.world.probed())
    @rule(drill=st.sampled_from([("mark", "force"), ("hold", "force"), ("mark", "hold", "force")]))
    def drills_while_a_probe_is_under_way(self, drill: tuple[str, ...]) -> None:
        entity = self.world.probed()[0]
        for what in drill:
            self.meddle(entity, what)

    @precondition(lambda self: not self.world.has_queues)
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


def busy_does_not_pause(real: Any, *args: Any) -> float:
    return 0.0


def pause_is_short(real: Any, self: BusyPause, now: float, *, sending: bool) -> None:
    real(self, now, sending=sending)
    self.until = now + 9.0


def busy_is_a_failure(real: Any, self: Table, error: BaseException) -> Verdict:
    return Verdict.QUALIFIES if error is BUSY and self is DEFAULT else real(self, error)


def refusal_is_a_failure(real: Any, self: Table, error: BaseException) -> Verdict:
    return Verdict.QUALIFIES if error is GONE and self is DEFAULT else real(self, error)


def one_ping_is_enough(real: Any, self: Failover, now: float) -> Any:
    self.pings_to_return = 1
    return real(self, now)


def stale_failure_counts(real: Any, self: Failover, now: float, epoch: int, **more: Any) -> Any:
    return real(self, now, self.epoch, **more)


def operator_moves_what_is_pinned(real: Any, self: Coordinator, entity: str, action: Any) -> Any:
    failover = self._entities.get(entity.lower()) or self._met(entity)
    failover.pin = None
    return real(self, entity, action)


def cancelled_trial_is_never_freed(real: Any, *args: Any, **more: Any) -> None:
    pass


def given_up_sends_say_nothing(real: Any, self: Dispatch, now: float, given_up: bool = False) -> None:
    real(self, now)


def patience_is_forgotten(real: Any, self: Coordinator) -> PrimaryTerms | None:
    terms = real(self)
    return None if terms is None else PrimaryTerms(terms.ends_at)


def slow_sends_count_for_nothing(real: Any, *args: Any) -> bool:
    return False


def slow_ping_is_good(real: Any, self: Coordinator, entity: str, now: float, took_s: float) -> None:
    real(self, entity, now)


def ready_link_to_an_ejected_queue(real: Any, self: Rotation, queue: int) -> Pick:
    return Pick(queue, False, self._terms.get(queue, 0))


# Bugs in what worlds with real brokers never meet: throttling, refusals by an entity, several pings, cancelled calls,
# patience, brownouts, links that stand ready.
# tests/simulation/sabotage/pairing.py and clients.py have the others.
SABOTAGES: tuple[tuple[type, str, Callable[..., Any], str], ...] = (
    (Coordinator, "halted_until", busy_does_not_pause, "P24"),
    (BusyPause, "busy", pause_is_short, "P24"),
    (Table, "__call__", busy_is_a_failure, "P15|P23|P24"),
    (Table, "__call__", refusal_is_a_failure, "P15|P17"),
    (Failover, "ping_succeeded", one_ping_is_enough, "P15"),
    (Failover, "primary_failed", stale_failure_counts, "P15"),
    (Dispatch, "abandon", cancelled_trial_is_never_freed, "P13|P15|P16|P19|P31"),
    (Dispatch, "abandon", given_up_sends_say_nothing, "P15"),
    (Coordinator, "_common_terms", patience_is_forgotten, "P19: (a link may take|the patience is)"),
    (Coordinator, "is_brownout", slow_sends_count_for_nothing, "P15|P19"),
    (Coordinator, "ping_succeeded", slow_ping_is_good, "P15|P23"),
    (Rotation, "in_use", ready_link_to_an_ejected_queue, "P13"),
    (Coordinator, "_operated", operator_moves_what_is_pinned, "P23"),
)


@pytest.mark.parametrize(("owner", "name", "do", "rule"), SABOTAGES, ids=[each[2].__name__ for each in SABOTAGES])
def test_it_is_noticed(
    owner: type, name: str, do: Callable[..., Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: do(real, *args, **more))
    quick = settings(
        max_examples=2000, stateful_step_count=50, phases=[Phase.generate], derandomize=True, database=None
    )
    with pytest.raises(AssertionError, match=rule):
        run_state_machine_as_test(Life, settings=quick)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("is_freed", [True, False])
def test_p19_a_trial_that_is_never_freed_leaves_the_next_one_without_its_terms(
    is_freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By P19 alone it shows where no backlog queue is left, and none that said no, which would be asked first: the next
    call goes to the primary all the same and has the same share of the time, but as the last way out, which ends with
    whatever says no, and not as the trial that it must be."""
    if not is_freed:
        monkeypatch.setattr(Dispatch, "abandon", lambda *args, **more: None)
    world = World(Settings(probe="trial", ping_primary_interval=5.0, send_timeout=40.0), [0], prompt=True)
    world.weather.update({"a": Weather.SILENT, 0: Weather.SILENT})
    world.operate("a", "force")
    world.advance(5.0, ticks_first=True)
    trial = world.send("a1", None)
    other = world.send("a2", 8.0)
    assert trial.at is not None and trial.at.place == "a" and other.at is not None and other.at.place == 0
    world.advance(10.0, ticks_first=True)
    assert world.coordinator.rotation.ejected
    world.check()
    world.cancel(trial)
    world.send("a1", None)
    if is_freed:
        world.check()
    else:
        with pytest.raises(AssertionError, match="P19: what ends the attempt"):
            world.check()


@pytest.mark.parametrize("is_false_alarm", [True, False])
def test_p31_a_silence_long_after_the_last_answer_is_no_false_alarm(
    is_false_alarm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping at once shows it, which only follows a short silence where the patience is adaptive."""
    real = Coordinator.primary_failed

    def as_if_just_heard(self: Coordinator, failover: Failover, now: float, *args: Any, **more: Any) -> None:
        self.answered_at = now
        real(self, failover, now, *args, **more)

    if is_false_alarm:
        monkeypatch.setattr(Coordinator, "primary_failed", as_if_just_heard)
    world = World(Settings(primary_patience="adaptive", failover_interval=0.0), [0], prompt=True)
    world.weather["a"] = Weather.SILENT
    world.advance(10.0, ticks_first=True)
    world.send("a1", None)
    world.advance(5.0, ticks_first=True)
    if is_false_alarm:
        with pytest.raises(AssertionError, match="P31: a ping at"):
            world.check()
    else:
        world.check()
        assert world.coordinator.states()["a"] is EntityState.FAILED_OVER
