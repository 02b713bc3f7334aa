"""The wall clock is set while the broker runs: durations stay what they are, instants follow it."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import serve_sync
from pairbus.broker.clock import STEP_S_MIN, BrokerClock
from pairbus.broker.control.faults import Fault, Faults
from pairbus.broker.model.outcomes import Complete
from pairbus.testing import ManualClock

from .namespace_rig import Rig, make, make_special

HOUR = 3600.0
STEPS = pytest.mark.parametrize("step", [-HOUR, HOUR])


def set_wall(rig: Rig, seconds: float) -> None:
    """As the broker's tick does."""
    rig.now += seconds
    rig.namespace.shift(seconds)
    rig.namespace.tick(rig.now)
    rig.run()


def test_between_two_looks_time_passes_evenly() -> None:
    manual = ManualClock(1000)
    clock = BrokerClock(manual, manual.monotonic)
    steps: list[float] = []
    clock.followers.append(steps.append)
    manual.advance(5)
    clock.follow()
    assert (clock(), steps) == (1005.0, [])
    manual.step(-HOUR)
    assert clock() == 1005.0
    clock.follow()
    clock.follow()
    assert (clock(), steps) == (1005.0 - HOUR, [-HOUR])
    manual.step(2 * HOUR)
    manual.advance(1)
    clock.follow()
    assert (clock(), steps) == (1006.0 + HOUR, [-HOUR, 2 * HOUR])


def test_small_steps_count_when_they_have_added_up() -> None:
    manual = ManualClock(1000)
    clock = BrokerClock(manual, manual.monotonic)
    for _ in range(3):
        manual.step(0.4 * STEP_S_MIN)
        clock.follow()
    assert clock() == manual()


def test_a_pause_between_the_readings_is_no_step() -> None:
    manual = ManualClock(1000)

    def slow() -> float:
        manual.advance(7)
        return manual()

    clock = BrokerClock(manual, manual.monotonic)
    steps: list[float] = []
    clock.followers.append(steps.append)
    clock._wall = slow
    clock.follow()
    clock._wall = manual
    clock.follow()
    assert (clock(), steps) == (manual(), [])


@STEPS
def test_a_message_lock_lasts_as_long_as_before(step: float) -> None:
    with Rig() as rig:
        rig.create(lock_duration=30.0)
        rig.send(b"one")
        (message,) = rig.acquire()
        set_wall(rig, step)
        assert message.locked_until == rig.now + 30.0
        rig.pass_time(29.0)
        assert rig.acquire() == []
        assert rig.namespace.renew(rig.queue(), [message.lock_token or b""], rig.now) == [rig.now + 30.0]
        rig.pass_time(29.0)
        assert rig.acquire() == []
        rig.pass_time(1.0)
        assert [each.delivery_count for each in rig.acquire()] == [1]


@STEPS
def test_a_lock_that_a_refused_settlement_gives_back_lasts_as_long_as_before(step: float) -> None:
    with Rig() as rig:
        rig.create(lock_duration=30.0)
        rig.send(b"one")
        tokens = rig.tokens()
        queue = rig.queue()
        (message,) = queue.claim_all(tokens, rig.now)[0]
        set_wall(rig, step)
        queue.restore(message)
        assert queue.expire(rig.now + 29.0) == ([], [])
        assert queue.expire(rig.now + 30.0) == ([message], [])


@STEPS
def test_a_session_lock_lasts_as_long_as_before(step: float) -> None:
    with Rig() as rig:
        rig.create(lock_duration=30.0, requires_session=True)
        rig.send_payloads(make_special(b"one", session_id="s"), make_special(b"two", session_id="s"))
        lock = rig.accept("s")
        (first,) = rig.acquire(session=lock)
        set_wall(rig, step)
        assert lock.locked_until == first.locked_until == rig.now + 30.0
        rig.pass_time(29.0)
        assert rig.settle([first.lock_token or b""], Complete(), session=lock) is None
        assert len(rig.acquire(session=lock)) == 1
        rig.pass_time(1.0)
        assert lock.is_over
        assert len(rig.acquire(session=rig.accept())) == 1


@STEPS
def test_an_idle_queue_goes_when_it_has_been_idle_so_long(step: float) -> None:
    with Rig() as rig:
        rig.create(auto_delete_on_idle=300.0)
        set_wall(rig, step)
        rig.pass_time(299.0)
        assert "orders" in rig.namespace.queues
        rig.pass_time(1.0)
        assert "orders" not in rig.namespace.queues


def test_an_answer_from_before_the_step_does_not_make_a_queue_idle() -> None:
    with Rig() as rig:
        rig.create(auto_delete_on_idle=300.0)
        rig.namespace.send(rig.queue(), [make(b"one")], rig.now, lambda refusal: None)
        set_wall(rig, HOUR)  # the disk answers within it
        assert rig.bodies() == [b"one"]


@STEPS
def test_an_id_is_a_duplicate_as_long_as_before(step: float) -> None:
    with Rig() as rig:
        rig.create(requires_duplicate_detection=True, duplicate_window=60.0)
        rig.send_payloads(make(b"one", message_id="a"))
        set_wall(rig, step)
        rig.send_payloads(make(b"two", message_id="b"))
        rig.pass_time(59.0)
        rig.send_payloads(make(b"again", message_id="a"), make(b"again", message_id="b"))
        assert rig.bodies() == [b"one", b"two"]
        rig.pass_time(1.0)
        rig.send_payloads(make(b"later", message_id="a"))
        rig.pass_time(1.0)
        assert rig.bodies() == [b"one", b"two", b"later"]
        rig.compact_all()
        with rig.reopened() as again:
            assert again.bodies() == [b"one", b"two", b"later"]


def test_after_a_restart_on_a_clock_set_back_an_id_is_known_for_one_window() -> None:
    with Rig() as rig:
        rig.create(requires_duplicate_detection=True, duplicate_window=60.0)
        rig.send_payloads(make(b"one", message_id="a"))
        with rig.reopened(now=rig.now - HOUR) as again:
            again.pass_time(59.0)
            again.send_payloads(make(b"again", message_id="a"))
            assert again.bodies() == [b"one"]
            again.pass_time(1.0)
            again.send_payloads(make(b"later", message_id="a"))
            assert again.bodies() == [b"one", b"later"]


def test_lifetimes_and_schedules_go_by_the_wall_clock() -> None:
    with Rig() as rig:
        rig.create()
        at = rig.now
        rig.send_payloads(make_special(b"mortal", ttl=2 * HOUR))
        rig.schedule(make_special(b"later", at=at + 2 * HOUR))
        set_wall(rig, -HOUR)
        rig.pass_time(2 * HOUR)
        assert (rig.bodies(), rig.queue().scheduled_count) == ([b"mortal", b"later"], 1)
        set_wall(rig, HOUR)
        assert rig.now == at + 2 * HOUR
        assert (rig.bodies(), rig.queue().scheduled_count) == ([b"later"], 0)


@pytest.mark.parametrize("step", [-HOUR, -0.5, HOUR])
def test_a_second_try_comes_after_a_second_or_at_the_instant_that_is_due(step: float) -> None:
    with Rig() as rig:
        rig.create()
        ends = rig.now + 10.0
        rig.send_payloads(make_special(b"mortal", ttl=10))
        rig.journal._state = "closed"
        rig.pass_time(10.0)  # it can't be removed now
        rig.journal._state = "started"
        retry = rig.now + 1.0
        assert rig.queue().lifetimes.deadline() == retry
        set_wall(rig, step)
        assert rig.queue().lifetimes.deadline() == max(ends, retry + step)


@STEPS
def test_faults_and_throttles_last_as_long_as_before(step: float) -> None:
    faults, now = Faults(), 10_000.0
    faults.set(Fault("no-send", until=now + 20.0))
    faults.set(Fault("throttle", entity="orders", rate=1.0))
    assert faults.refusal("receive", "orders", now) is None
    faults.shift(step)
    now += step
    assert faults.deadline(now) == now + 20.0
    assert faults.refusal("receive", "orders", now) is not None
    assert faults.refusal("receive", "orders", now + 1.0) is None
    assert faults.refusal("send", None, now + 19.0) is not None
    assert faults.refusal("send", None, now + 20.0) is None


@pytest.mark.parametrize("step", [-HOUR, HOUR / 2])  # the SDK's tokens last for an hour, of the wall clock
def test_a_broker_on_a_clock_that_is_set(tmp_path: Path, step: float) -> None:
    clock = ManualClock()
    with serve_sync("contoso", data=tmp_path, clock=clock) as broker:
        contoso = broker.namespaces["contoso"]
        with ServiceBusAdministrationClient.from_connection_string(
            contoso.connection_string, connection_verify=contoso.ca_file
        ) as admin:
            admin.create_queue("orders")
        with ServiceBusClient.from_connection_string(contoso.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one book"))
            with client.get_queue_receiver("orders") as receiver:
                (first,) = receiver.receive_messages(max_wait_time=5)
                clock.step(step)
                assert receiver.receive_messages(max_wait_time=2.5) == []  # in which the broker looks at its clock
                assert abs(contoso.clock() - clock()) < 1.0
                assert (receiver.renew_message_lock(first).timestamp() - clock()) == pytest.approx(60, abs=1)
                clock.advance(61)
                (second,) = receiver.receive_messages(max_wait_time=5)
                assert (first.delivery_count, second.delivery_count) == (0, 1)
