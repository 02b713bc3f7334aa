from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus.exceptions import MessagingEntityNotFoundError, OperationTimeoutError

from pairbus.aio import health_monitor as monitor_module
from pairbus.pairing.events import Event, PairingCompleted, PingFailed, PingSucceeded, StateChanged
from pairbus.pairing.routing.patience import Brownout
from pairbus.pairing.routing.ping import CONTENT_TYPE
from pairbus.pairing.routing.states import EntityState

from .background import Event as Signal
from .background import wait_until
from .stage import Recorder, Stage

MakeStage = Callable[..., Stage]


def running(stage: MakeStage, **settings: Any) -> Stage:
    """With the real clock: its timers are what is tested."""
    given = stage(**{"ping_primary_interval": 0.05, **settings})
    given.monitor.clock = time.monotonic
    return given


def fail_over(given: Stage, entity: str = "orders", **options: Any) -> None:
    with given.monitor.lock:
        given.monitor.coordinator.force_failover(entity, given.monitor.clock(), **options)
    given.monitor.attend()


def states(given: Stage) -> list[tuple[EntityState, str]]:
    return [(event.state, event.cause) for event in given.named(StateChanged)]


async def test_p31_a_failed_over_entity_is_pinged_until_it_is_healthy(stage: MakeStage) -> None:
    recorder = Recorder()
    given = running(stage, observers=(recorder,))
    given.pinger.answers.extend([None, OperationTimeoutError(), OperationTimeoutError(), None, None])
    fail_over(given)
    assert await wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)
    assert await wait_until(lambda: not given.monitor._has_timer()), "pings stop, and the timer with them (P33)"
    assert given.pinged == ["orders"] * 3
    assert recorder.pings == [("orders", "OperationTimeoutError")] * 2 + [("orders", "ok")]
    assert [message.content_type for message in given.pinger.sent] == [CONTENT_TYPE] * 2, "the second has no link"
    assert len({message.session_id for message in given.pinger.sent}) == 2, "a session of its own each"
    opening, answer = ("open", 2.0), ("send", 4.0)  # an answer has what the primary gets of a send
    assert [(call, s) for call, _, s in given.pinger.calls] == [opening, answer, opening, opening, answer]
    assert len(given.named(PingFailed)) == 2
    assert len(given.named(PingSucceeded)) == 1
    assert states(given)[-1] == (EntityState.HEALTHY, "ping succeeded")


async def test_p19_after_a_return_links_are_opened_before_somebody_sends(stage: MakeStage) -> None:
    given = running(stage)
    fail_over(given)
    assert await wait_until(lambda: given.opened_again == ["orders"])
    assert states(given)[-1] == (EntityState.HEALTHY, "ping succeeded")


async def test_p34_a_ping_that_is_refused_marks_the_entity(stage: MakeStage) -> None:
    given = running(stage)
    given.pinger.answers.extend([MessagingEntityNotFoundError(), None])
    fail_over(given)
    assert await wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)
    assert states(given)[1:] == [(EntityState.UNREACHABLE, "ping refused"), (EntityState.HEALTHY, "ping succeeded")]


async def test_p16_the_timer_fires_by_itself(stage: MakeStage) -> None:
    given = running(stage, failover_interval=0.05, ping_primary_interval=60.0)
    monitor = given.monitor
    with monitor.lock:
        dispatch = monitor.coordinator.begin("orders", 1, monitor.clock(), None)
        dispatch.step(monitor.clock())
        dispatch.primary_failed(monitor.clock(), OperationTimeoutError())
    monitor.attend()
    assert await wait_until(lambda: monitor.coordinator.state("orders") is EntityState.FAILED_OVER)
    assert await wait_until(lambda: states(given)[-1:] == [(EntityState.FAILED_OVER, "interval over")])


async def test_p33_a_ping_that_hangs_delays_no_other_entity(stage: MakeStage) -> None:
    given = running(stage)
    release = Signal()
    given.pinger.answers.append(release.wait)
    fail_over(given, "hung")
    assert await wait_until(lambda: given.pinged == ["hung"])
    fail_over(given, "news")
    assert await wait_until(lambda: given.monitor.coordinator.state("news") is EntityState.HEALTHY)
    assert given.pinged == ["hung", "news"], "and never are two under way for one entity"
    release.set()
    assert await wait_until(lambda: given.monitor.coordinator.state("hung") is EntityState.HEALTHY)


async def test_p31_so_many_pings_are_under_way_at_once(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "PINGS_AT_ONCE_MAX", 2)
    given = running(stage)
    release = Signal()
    given.pinger.answers.extend([release.wait] * 2)
    for number in range(5):
        fail_over(given, f"e{number}")
    assert await wait_until(lambda: len(given.monitor._pings_due) == 3)
    assert given.monitor._pings_under_way() == 2
    release.set()
    assert await wait_until(lambda: set(given.monitor.coordinator.states().values()) == {EntityState.HEALTHY})
    assert await wait_until(lambda: given.monitor._pings_under_way() == 0)


async def test_p44_closing_ends_timers_and_pings(stage: MakeStage) -> None:
    given = running(stage)
    release = Signal()
    given.pinger.answers.append(release.wait)
    fail_over(given)
    assert await wait_until(lambda: given.pinged == ["orders"])
    told = len(given.events)
    await given.monitor.close()
    release.set()
    assert await wait_until(lambda: given.monitor._pings_under_way() == 0 and not given.monitor._has_timer())
    assert len(given.events) == told, "its answer is not heard any more"
    assert repr(given.monitor) == "<HealthMonitor closed, 0 pings under way, 1 subscribers>"


async def test_p23_a_callback_that_raises_is_logged_and_the_others_are_told(
    stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    given = stage()

    def broken(event: Event) -> None:
        raise RuntimeError("not my day")

    given.monitor._subscribers.callbacks = (broken, given.events.append)
    with caplog.at_level(logging.ERROR, "pairbus.pairing"):
        given.monitor.announce(PairingCompleted(1))
    assert given.events == [PairingCompleted(1)]
    assert "not my day" in caplog.text


async def test_p23_events_come_in_order_even_if_a_callback_brings_more_about(stage: MakeStage) -> None:
    given = stage()
    monitor = given.monitor
    seen: list[Event] = []

    def first(event: Event) -> None:
        seen.append(event)
        if len(seen) == 1:
            monitor.announce(PairingCompleted(2))
            assert len(given.events) == 0, "told after this one, not inside it"

    monitor._subscribers.callbacks = (first, given.events.append)
    monitor.announce(PairingCompleted(1))
    assert given.events == [PairingCompleted(1), PairingCompleted(2)]


async def test_p23_unsubscribe(stage: MakeStage) -> None:
    given = stage()
    seen: list[Event] = []
    unsubscribe = given.monitor._subscribers.subscribe(seen.append)
    unsubscribe()
    unsubscribe()
    given.monitor.announce(PairingCompleted(1))
    assert seen == []
    assert len(given.events) == 1


async def test_p23_observers_can_come_and_go(stage: MakeStage) -> None:
    given = stage()
    recorder = Recorder()
    take_off = given.monitor.observe(recorder)
    assert given.monitor.send_observers == (recorder,)
    take_off()
    take_off()
    assert not given.monitor.observers and not given.monitor.send_observers


async def test_p23_held_entities_are_not_pinged(stage: MakeStage) -> None:
    given = running(stage)
    fail_over(given, hold=True)
    assert given.monitor.coordinator.deadline is None and not given.monitor._has_timer()
    assert given.pinged == []


async def test_p24_after_a_brownout_only_a_fast_ping_brings_the_entity_back(stage: MakeStage) -> None:
    given = running(stage, brownout=Brownout(0.5, 5, 1.0))
    given.pinger.took_s = [3.0, 0.2]
    fail_over(given)
    assert await wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)
    assert [call for call, _, _ in given.pinger.calls] == ["open", "send"] * 2, "opening a link is not measured"
    assert [type(event) for event in given.named(PingFailed)] == [PingFailed]
    assert "took 3.0 s" in str(given.named(PingFailed)[0].error)


async def test_what_is_no_observer_is_refused(stage: MakeStage) -> None:
    given = stage()
    before = given.monitor.observers
    with pytest.raises(TypeError, match="derive its class"):
        given.monitor.observe(object())  # type: ignore[arg-type]
    assert given.monitor.observers == before
