"""The wall clock is set while the broker runs: durations stay what they are, instants follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import serve_sync
from pairbus.broker.clock import STEP_S_MIN, BrokerClock
from pairbus.broker.control.faults import Fault, Faults
from pairbus.broker.model.outcomes import Complete
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.testing import ManualClock, fault

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
def test_a_message_lock_lasts_as_long_as_before(bare: Rig, step: float) -> None:
    bare.create(lock_duration=30.0)
    bare.send(b"one")
    (message,) = bare.acquire()
    set_wall(bare, step)
    assert message.locked_until == bare.now + 30.0
    bare.pass_time(29.0)
    assert bare.acquire() == []
    assert bare.namespace.receive.renew(bare.queue(), [message.lock_token or b""], bare.now) == [bare.now + 30.0]
    bare.pass_time(29.0)
    assert bare.acquire() == []
    bare.pass_time(1.0)
    assert [each.delivery_count for each in bare.acquire()] == [1]


@STEPS
def test_a_lock_that_a_refused_settlement_gives_back_lasts_as_long_as_before(bare: Rig, step: float) -> None:
    bare.create(lock_duration=30.0)
    bare.send(b"one")
    tokens = bare.tokens()
    queue = bare.queue()
    (message,) = queue.claim_all(tokens, bare.now)[0]
    set_wall(bare, step)
    queue.restore(message)
    assert queue.expire(bare.now + 29.0) == ([], [])
    assert queue.expire(bare.now + 30.0) == ([message], [])


@STEPS
def test_a_session_lock_lasts_as_long_as_before(bare: Rig, step: float) -> None:
    bare.create(lock_duration=30.0, requires_session=True)
    bare.send_payloads(make_special(b"one", session_id="s"), make_special(b"two", session_id="s"))
    lock = bare.accept("s")
    (first,) = bare.acquire(session=lock)
    set_wall(bare, step)
    assert lock.locked_until == first.locked_until == bare.now + 30.0
    bare.pass_time(29.0)
    assert bare.settle([first.lock_token or b""], Complete(), session=lock) is None
    assert len(bare.acquire(session=lock)) == 1
    bare.pass_time(1.0)
    assert lock.is_over
    assert len(bare.acquire(session=bare.accept())) == 1


@STEPS
def test_an_idle_queue_goes_when_it_has_been_idle_so_long(bare: Rig, step: float) -> None:
    bare.create(auto_delete_on_idle=300.0)
    set_wall(bare, step)
    bare.pass_time(299.0)
    assert "orders" in bare.namespace.queues
    bare.pass_time(1.0)
    assert "orders" not in bare.namespace.queues


def test_an_answer_from_before_the_step_does_not_make_a_queue_idle(bare: Rig) -> None:
    bare.create(auto_delete_on_idle=300.0)
    bare.namespace.enqueue.send(bare.queue(), [make(b"one")], bare.now, lambda refusal: None)
    set_wall(bare, HOUR)  # the disk answers within it
    assert bare.bodies() == [b"one"]


@STEPS
def test_an_id_is_a_duplicate_as_long_as_before(bare: Rig, step: float) -> None:
    bare.create(requires_duplicate_detection=True, duplicate_window=60.0)
    bare.send_payloads(make(b"one", message_id="a"))
    set_wall(bare, step)
    bare.send_payloads(make(b"two", message_id="b"))
    bare.pass_time(59.0)
    bare.send_payloads(make(b"again", message_id="a"), make(b"again", message_id="b"))
    assert bare.bodies() == [b"one", b"two"]
    bare.pass_time(1.0)
    bare.send_payloads(make(b"later", message_id="a"))
    bare.pass_time(1.0)
    assert bare.bodies() == [b"one", b"two", b"later"]
    bare.compact_all()
    with bare.reopened() as again:
        assert again.bodies() == [b"one", b"two", b"later"]


def test_after_a_restart_on_a_clock_set_back_an_id_is_known_for_one_window(bare: Rig) -> None:
    bare.create(requires_duplicate_detection=True, duplicate_window=60.0)
    bare.send_payloads(make(b"one", message_id="a"))
    with bare.reopened(now=bare.now - HOUR) as again:
        again.pass_time(59.0)
        again.send_payloads(make(b"again", message_id="a"))
        assert again.bodies() == [b"one"]
        again.pass_time(1.0)
        again.send_payloads(make(b"later", message_id="a"))
        assert again.bodies() == [b"one", b"later"]


def test_lifetimes_and_schedules_go_by_the_wall_clock(bare: Rig) -> None:
    bare.create()
    at = bare.now
    bare.send_payloads(make_special(b"mortal", ttl=2 * HOUR))
    bare.schedule(make_special(b"later", at=at + 2 * HOUR))
    set_wall(bare, -HOUR)
    bare.pass_time(2 * HOUR)
    assert (bare.bodies(), bare.queue().scheduled_count) == ([b"mortal", b"later"], 1)
    set_wall(bare, HOUR)
    assert bare.now == at + 2 * HOUR
    assert (bare.bodies(), bare.queue().scheduled_count) == ([b"later"], 0)


@pytest.mark.parametrize("step", [-HOUR, -0.5, HOUR])
def test_a_second_try_comes_after_a_second_or_at_the_instant_that_is_due(bare: Rig, step: float) -> None:
    bare.create()
    ends = bare.now + 10.0
    bare.send_payloads(make_special(b"mortal", ttl=10))
    bare.journal._state = "closed"
    bare.pass_time(10.0)  # it can't be removed now
    bare.journal._state = "started"
    retry = bare.now + 1.0
    assert bare.queue().lifetimes.deadline() == retry
    set_wall(bare, step)
    assert bare.queue().lifetimes.deadline() == max(ends, retry + step)
    assert len(bare.queue().lifetimes) == 1


@pytest.mark.parametrize("sessions", [False, True])
def test_what_could_not_expire_is_available_when_the_clock_is_set_back(bare: Rig, sessions: bool) -> None:
    queue = bare.create(requires_session=sessions)
    bare.send_payloads(make_special(b"mortal", ttl=10, session_id="s" if sessions else None))
    with bare.refusing():
        bare.pass_time(10.0)
    set_wall(bare, -0.5)
    assert queue.available == 0  # until the second try: it is due by then
    calls: list[str] = []
    queue.on_available = queue.on_session_free = lambda: calls.append("available")
    set_wall(bare, -1.0)
    assert (queue.available, calls) == (1, ["available"])
    bare.pass_time(1.5)
    assert len(queue) == 0


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


@contextmanager
def served(data: Path, clock: ManualClock) -> Iterator[tuple[Broker, NamespaceServer, ServiceBusReceiver]]:
    """A broker on that clock, with one message in the queue `orders`, and a receiver of it."""
    with serve_sync("contoso", data=data, clock=clock) as broker:
        contoso = broker.namespaces["contoso"]
        with ServiceBusAdministrationClient.from_connection_string(
            contoso.connection_string, connection_verify=contoso.ca_file
        ) as admin:
            admin.create_queue("orders")
        with ServiceBusClient.from_connection_string(contoso.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one book"))
            with client.get_queue_receiver("orders") as receiver:
                yield broker, contoso, receiver


@pytest.mark.parametrize("step", [-HOUR, HOUR / 2])  # the SDK's tokens last for an hour, of the wall clock
def test_a_broker_on_a_clock_that_is_set(tmp_path: Path, step: float) -> None:
    clock = ManualClock()
    with served(tmp_path, clock) as (_broker, contoso, receiver):
        (first,) = receiver.receive_messages(max_wait_time=5)
        clock.step(step)
        assert receiver.receive_messages(max_wait_time=2.5) == []  # in which the broker looks at its clock
        assert abs(contoso.clock() - clock()) < 1.0
        assert (receiver.renew_message_lock(first).timestamp() - clock()) == pytest.approx(60, abs=1)
        clock.advance(61)
        (second,) = receiver.receive_messages(max_wait_time=5)
        assert (first.delivery_count, second.delivery_count) == (0, 1)


def test_a_settlement_that_is_answered_late_goes_by_the_clock_as_it_is_then(tmp_path: Path) -> None:
    clock = ManualClock()
    with served(tmp_path, clock) as (broker, contoso, receiver):
        (message,) = receiver.receive_messages(max_wait_time=5)
        with fault(broker, "latency", entity="orders", delay=2.5):
            clock.step(-HOUR)  # which the broker sees while the settlement waits
            receiver.complete_message(message)
        assert abs(contoso.clock() - clock()) < 1.0
        assert receiver.peek_messages() == []
