from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus.exceptions import MessagingEntityNotFoundError, OperationTimeoutError

from pairbus.aio import health_monitor as monitor_module
from pairbus.pairing.errors import ForkedClientError, WrongLoopError
from pairbus.pairing.events import (
    BacklogQueueReturned,
    Event,
    PairingCompleted,
    PingFailed,
    PingSucceeded,
    StateChanged,
)
from pairbus.pairing.routing.ping import CONTENT_TYPE
from pairbus.pairing.routing.states import EntityState

from .background import wait_until
from .stage import Recorder, Stage

MakeStage = Callable[..., Stage]


def running(stage: MakeStage, **settings: Any) -> Stage:
    """With the real clock: its timers are what is tested."""
    given = stage(**{"ping_primary_interval": 0.05, **settings})
    given.monitor.clock = time.monotonic
    return given


def fail_over(given: Stage, entity: str = "orders", **options: Any) -> None:
    given.monitor.coordinator.force_failover(entity, given.monitor.clock(), **options)
    given.monitor.attend()


def states(given: Stage) -> list[tuple[EntityState, str]]:
    return [(event.state, event.cause) for event in given.named(StateChanged)]


async def test_p31_a_failed_over_entity_is_pinged_until_it_is_healthy(stage: MakeStage) -> None:
    recorder = Recorder()
    given = running(stage, observers=(recorder,))
    given.pinger.answers.extend([OperationTimeoutError(), OperationTimeoutError(), None])
    fail_over(given)
    assert await wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)
    assert await wait_until(lambda: given.monitor._timer is None), "pings stop, and the timer with them (P33)"
    assert given.pinged == ["orders"] * 3
    assert recorder.pings == [("orders", "OperationTimeoutError")] * 2 + [("orders", "ok")]
    assert [message.content_type for message in given.pinger.sent] == [CONTENT_TYPE] * 3
    assert len({message.session_id for message in given.pinger.sent}) == 3, "a session of its own each"
    assert [timeout_s for call, _, timeout_s in given.pinger.calls] == [2.0] * 3
    assert len(given.named(PingFailed)) == 2
    assert len(given.named(PingSucceeded)) == 1
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
    dispatch = monitor.coordinator.begin("orders", 1, monitor.clock(), None)
    dispatch.step(monitor.clock())
    dispatch.primary_failed(monitor.clock(), OperationTimeoutError())
    monitor.attend()
    assert await wait_until(lambda: monitor.coordinator.state("orders") is EntityState.FAILED_OVER)
    assert await wait_until(lambda: states(given)[-1:] == [(EntityState.FAILED_OVER, "interval over")])


async def test_p33_a_ping_that_hangs_delays_no_other_entity(stage: MakeStage) -> None:
    given = running(stage)
    release = asyncio.Event()
    given.pinger.answers.append(release.wait)
    fail_over(given, "hung")
    assert await wait_until(lambda: given.pinged == ["hung"])
    fail_over(given, "news")
    assert await wait_until(lambda: given.monitor.coordinator.state("news") is EntityState.HEALTHY)
    assert given.pinged == ["hung", "news"], "and never are two under way for one entity"
    release.set()
    assert await wait_until(lambda: given.monitor.coordinator.state("hung") is EntityState.HEALTHY)


async def test_p31_pings_have_a_bounded_number_of_tasks(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "PINGS_AT_ONCE_MAX", 2)
    given = running(stage)
    release = asyncio.Event()
    given.pinger.answers.extend([release.wait] * 2)
    for number in range(5):
        fail_over(given, f"e{number}")
    assert await wait_until(lambda: len(given.monitor._pings_due) == 3)
    assert given.monitor._pinging == 2
    release.set()
    assert await wait_until(lambda: set(given.monitor.coordinator.states().values()) == {EntityState.HEALTHY})
    assert await wait_until(lambda: given.monitor._pinging == 0)


async def test_p44_closing_ends_timers_and_pings(stage: MakeStage) -> None:
    given = running(stage)
    release = asyncio.Event()
    given.pinger.answers.append(release.wait)
    fail_over(given)
    assert await wait_until(lambda: given.pinged == ["orders"])
    told = len(given.events)
    await given.monitor.close()
    assert given.monitor._pinging == 0
    assert given.monitor._timer is None
    assert len(given.events) == told
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


async def test_p23_what_a_callback_lets_pass_is_not_the_end_of_all_events(stage: MakeStage) -> None:
    given = stage()
    heard: list[Event] = []
    awaited: list[Event] = []

    def broken(event: Event) -> None:
        raise GeneratorExit

    async def cancelled(event: Event) -> None:
        awaited.append(event)
        raise asyncio.CancelledError

    for callback in (broken, cancelled, heard.append):
        given.monitor._subscribers.subscribe(callback)
    with pytest.raises(GeneratorExit):
        given.monitor.announce(BacklogQueueReturned(1), BacklogQueueReturned(2))
    assert heard == [BacklogQueueReturned(1), BacklogQueueReturned(2)]
    with pytest.raises(GeneratorExit):
        given.monitor.announce(BacklogQueueReturned(3))
    assert heard[-1] == BacklogQueueReturned(3)
    while len(awaited) < 3:
        await asyncio.sleep(0)


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


async def test_p23_callbacks_may_be_coroutines_and_are_awaited_in_order(stage: MakeStage) -> None:
    given = stage()
    seen: list[int] = []

    async def slow(event: Event) -> None:
        assert isinstance(event, PairingCompleted)
        await asyncio.sleep(0.02 / event.backlog_queue_count)
        seen.append(event.backlog_queue_count)
        if event.backlog_queue_count == 2:
            raise RuntimeError("logged and ignored")

    given.monitor._subscribers.subscribe(slow)
    given.monitor.announce(*(PairingCompleted(number) for number in (1, 2, 3)))
    assert seen == [], "the caller is not kept waiting"
    await given.monitor.close()
    assert seen == [1, 2, 3], "closing waits for them"


async def test_p44_closing_does_not_wait_for_ever_for_a_coroutine(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "TELL_S", 0.02)
    given = stage()

    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    given.monitor._subscribers.subscribe(hang)
    given.monitor.announce(PairingCompleted(1), PairingCompleted(2))
    await asyncio.wait_for(given.monitor.close(), 1)


async def test_a_client_belongs_to_one_loop(stage: MakeStage) -> None:
    given = stage()
    given.monitor._check_loop()

    async def elsewhere() -> None:
        given.monitor._check_loop()

    def on_another_loop() -> None:
        asyncio.run(elsewhere())

    with pytest.raises(WrongLoopError, match="from another one"):
        await asyncio.to_thread(on_another_loop)
    with pytest.raises(WrongLoopError, match="outside of a loop"):
        await asyncio.to_thread(given.monitor._check_loop)


async def test_in_a_forked_child_the_loop_is_the_parents(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    given = stage()
    monkeypatch.setattr(monitor_module.os, "getpid", lambda: -1)  # type: ignore[attr-defined]
    with pytest.raises(ForkedClientError):
        await asyncio.to_thread(given.monitor._check_loop)


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
    assert given.monitor.observers == given.monitor.send_observers == ()


async def test_p23_held_entities_are_not_pinged(stage: MakeStage) -> None:
    given = running(stage)
    fail_over(given, hold=True)
    await asyncio.sleep(0.2)
    assert given.pinged == []
    assert given.monitor._timer is None


def test_a_timer_keeps_no_loop_alive() -> None:
    async def main() -> None:
        given = Stage()
        fail_over(given)
        assert given.monitor._timer is not None

    asyncio.run(asyncio.wait_for(main(), 5))
