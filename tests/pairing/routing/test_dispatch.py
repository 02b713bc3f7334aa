"""One send, step by step: what is tried next after every answer, with how much time, and what the caller is told."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.errors import (
    BacklogUnavailableError,
    EntityUnreachableError,
    NoTimeLeftError,
    NotTriedError,
)
from pairbus.pairing.events import Announce, BacklogQueueEjected, BacklogQueueReturned, SendPing
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.pins import parse
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import Verdict

from .rig import BUSY, DOWN, GONE, LARGE, LATE, T, coordinator


def failed_over(*queues: int, at: float = T, **options: Any) -> Coordinator:
    made = coordinator(*queues, **options)
    made.force_failover("orders", at)
    made.commands.clear()
    return made


def begin(made: Coordinator, now: float = T, timeout: float | None = None, sender: str = "s") -> Dispatch:
    return made.begin("orders", sender, now, timeout)


def attempt(made: Coordinator, now: float = T, **options: Any) -> Dispatch:
    """Begin a send and let it take its first step."""
    send = begin(made, now, **options)
    send.step(now)
    return send


def begun(made: Coordinator, now: float = T, **options: Any) -> tuple[Coordinator, Dispatch]:
    return made, begin(made, now, **options)


def attempted(made: Coordinator, now: float = T, **options: Any) -> tuple[Coordinator, Dispatch]:
    return made, attempt(made, now, **options)


def error_of(step: object) -> BaseException:
    assert isinstance(step, Failed)
    return step.error


# The healthy send


def test_p14_a_healthy_send_goes_to_the_primary_and_nothing_else_happens() -> None:
    made, send = begun(coordinator())
    assert send.step(T) == TryPrimary(30.0)
    send.primary_sent(T + 1.0)
    assert send.step(T + 1.0) == Sent()
    assert (send.route_word, send.queue) == ("primary", None)
    assert not made.commands
    assert made.deadline is None


def test_p19_the_primary_gets_half_of_what_the_caller_grants() -> None:
    made = coordinator(send_timeout=40.0)
    assert begin(made).step(T) == TryPrimary(20.0)
    assert begin(made, timeout=8.0).step(T) == TryPrimary(4.0)
    assert begin(made, timeout=8.0).step(T + 4.0) == TryPrimary(2.0), "what it waited for is gone"


def test_p3_without_any_backlog_queue_the_primary_gets_all() -> None:
    made = Coordinator(Settings(), choose=max)
    assert begin(made).step(T) == TryPrimary(60.0)
    made.set_queues([0])
    assert begin(made).step(T) == TryPrimary(30.0)


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.0005])
def test_p22_no_time_at_all(timeout: float) -> None:
    error = error_of(begin(coordinator(), timeout=timeout).step(T))
    assert type(error) is NoTimeLeftError
    assert isinstance(error, OperationTimeoutError)
    assert "orders" in str(error)


# What a failure of the primary leads to


def test_p17_until_the_interval_is_over_the_caller_sees_the_failure() -> None:
    made, send = attempted(coordinator())
    send.primary_failed(T + 1.0, DOWN)
    assert send.step(T + 1.0) == Failed(DOWN)
    assert send.step(T + 2.0) == Failed(DOWN)
    assert made.state("orders") is EntityState.SUSPECT
    assert made.deadline == T + 61.0


def test_p17_with_interval_zero_the_message_that_failed_goes_to_the_backlog() -> None:
    send = attempt(coordinator(failover_interval=0.0))
    send.primary_failed(T + 30.0, LATE)
    assert send.step(T + 30.0) == TryBacklog(0, 11.25)
    send.backlog_sent(T + 31.0)
    assert send.step(T + 31.0) == Sent()
    assert (send.route_word, send.queue) == ("backlog", 0)


def test_p17_so_does_a_message_whose_failure_comes_after_the_timer_has_run_out() -> None:
    made = coordinator()
    first, late = begin(made), begin(made, T + 50.0)
    first.step(T)
    late.step(T + 50.0)
    first.primary_failed(T, DOWN)
    late.primary_failed(T + 60.0, DOWN)
    assert late.step(T + 60.0) == TryBacklog(0, 21.25)


def test_p17_also_when_the_primary_has_returned_meanwhile_and_nothing_starts() -> None:
    made, send = attempted(coordinator())
    made.force_failover("orders", T + 1.0)
    made.mark_healthy("orders", T + 2.0)
    send.primary_failed(T + 10.0, LATE)
    assert send.step(T + 10.0) == TryBacklog(0, 21.25)
    assert made.state("orders") is EntityState.HEALTHY


def test_p23_but_not_when_the_control_file_has_pinned_it_to_the_primary() -> None:
    made = coordinator()
    first, late = begin(made), begin(made, T + 50.0)
    first.step(T)
    late.step(T + 50.0)
    first.primary_failed(T, DOWN)
    made.set_pins(parse({"orders": "healthy"}), T + 55.0)
    late.primary_failed(T + 60.0, DOWN)
    assert error_of(late.step(T + 60.0)) is DOWN


def test_p17_with_divert_no_caller_sees_a_failure_and_the_primary_is_still_tried() -> None:
    made = coordinator(while_suspect="divert")
    for now in (T, T + 1.0):
        send = begin(made, now)
        assert isinstance(send.step(now), TryPrimary)
        send.primary_failed(now, DOWN)
        assert send.step(now) == TryBacklog(0, 26.25)
    assert made.state("orders") is EntityState.SUSPECT
    later = begin(made, T + 60.0)
    assert later.step(T + 60.0) == TryBacklog(0, 26.25), "the timer decides when it is no longer tried"


@pytest.mark.parametrize("options", [{"while_suspect": "divert"}, {}])
def test_p3_with_nowhere_to_divert_to_the_caller_sees_the_failure(options: dict[str, Any]) -> None:
    made, send = attempted(Coordinator(Settings(**options), choose=max))
    made.force_failover("orders", T)
    made.mark_healthy("orders", T)
    send.primary_failed(T, DOWN)
    assert send.step(T) == Failed(DOWN)


@pytest.mark.parametrize("error", [GONE, LARGE, TypeError("no"), ValueError("no")])
@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_p18_what_does_not_qualify_is_the_callers(error: Exception, interval: float) -> None:
    made, send = attempted(coordinator(failover_interval=interval, while_suspect="divert"))
    send.primary_failed(T, error)
    assert send.step(T) == Failed(error)
    assert made.state("orders") is EntityState.HEALTHY


def test_p18_the_table_can_be_replaced() -> None:
    send = attempt(coordinator(failover_interval=0.0, classifier=lambda error: Verdict.QUALIFIES))
    send.primary_failed(T, LARGE)
    assert isinstance(send.step(T), TryBacklog)


def test_p18_a_classifier_that_fails_leaves_the_attempt_to_be_abandoned() -> None:
    def broken(error: BaseException) -> Verdict:
        raise KeyError(type(error).__name__)

    made, send = begun(failed_over(probe="trial", classifier=broken), T + 60.0)
    assert isinstance(send.step(T + 60.0), TryPrimary)
    with pytest.raises(KeyError):
        send.primary_failed(T + 61.0, DOWN)
    send.abandon(T + 61.0)
    assert isinstance(begin(made, T + 120.0).step(T + 120.0), TryPrimary), "the trial is free again"


def test_p18_a_classifier_that_returns_something_else_is_told() -> None:
    send = attempt(coordinator(classifier=lambda error: "qualifies"))
    with pytest.raises(TypeError, match="must return a Verdict"):
        send.primary_failed(T, DOWN)


def test_p19_no_time_left_for_the_backlog() -> None:
    send = attempt(coordinator(failover_interval=0.0), timeout=10.0)
    send.primary_failed(T + 10.0, LATE)
    error = error_of(send.step(T + 10.0))
    assert type(error) is NoTimeLeftError
    assert error.__cause__ is LATE
    assert "10 s" in str(error)


# An attempt that did not begin


@pytest.mark.parametrize(
    ("options", "next_step"),
    [
        ({}, None),
        ({"while_suspect": "divert"}, TryBacklog(0, 11.25)),
        ({"failover_interval": 0.0}, TryBacklog(0, 11.25)),
    ],
)
def test_p17_who_waited_in_vain_says_nothing_of_the_primary(
    options: dict[str, Any], next_step: TryBacklog | None
) -> None:
    made, send = attempted(coordinator(**options))
    error = NotTriedError("others were first")
    send.primary_failed(T + 30.0, error)
    assert send.step(T + 30.0) == (next_step or Failed(error))
    assert made.state("orders") is EntityState.HEALTHY


def test_p16_who_waited_in_vain_follows_when_the_entity_has_failed_over() -> None:
    made, send = attempted(coordinator())
    made.force_failover("orders", T + 1.0)
    send.primary_failed(T + 30.0, NotTriedError("others were first"))
    assert send.step(T + 30.0) == TryBacklog(0, 11.25)


# The backlog


def test_p13_every_attempt_leaves_half_for_the_next_queue_and_an_eighth_for_the_primary() -> None:
    made, send = begun(failed_over())
    now = T
    for queue, granted in [(0, 26.25), (1, 13.125), (2, 13.125)]:
        assert send.step(now) == TryBacklog(queue, granted)
        now += granted
        if queue < 2:
            send.backlog_failed(now, DOWN)
    send.backlog_sent(now)
    assert send.step(now) == Sent()
    assert list(made.commands) == [Announce(BacklogQueueEjected(0, DOWN)), Announce(BacklogQueueEjected(1, DOWN))]


def test_p13_many_queues_that_hang_leave_the_primary_its_share() -> None:
    send = begin(failed_over(*range(10)), timeout=8.0)
    now = T
    for _ in range(10):
        step = send.step(now)
        assert isinstance(step, TryBacklog)
        now += step.timeout_s
        send.backlog_failed(now, LATE)
    assert send.step(now) == TryPrimary(1.0)


def refused_by_all(send: Dispatch, now: float, error: Exception | None = None) -> None:
    while isinstance(step := send.step(now), TryBacklog):
        send.backlog_failed(now, error or OSError(f"queue {step.queue}"))
    assert isinstance(step, TryPrimary)


def test_p13_all_failing_is_said_and_the_last_error_is_inside() -> None:
    made, send = begun(failed_over())
    for queue in range(3):
        assert isinstance(send.step(T + queue), TryBacklog)
        send.backlog_failed(T + queue, OSError(f"queue {queue}"))
    assert send.step(T + 3.0) == TryPrimary(57.0)
    send.primary_failed(T + 3.0, DOWN)
    error = error_of(send.step(T + 3.0))
    assert type(error) is BacklogUnavailableError
    assert error.__cause__ is DOWN
    assert error.inner_exception is DOWN
    assert "orders: all 3 backlog queues failed, 3 of them in this call" in str(error)
    assert "in 27.0 s (last: OSError: queue 2); the primary, tried once more, failed too" in str(error)
    assert made.state("orders") is EntityState.FAILED_OVER


def test_p13_a_queue_that_refused_is_asked_again_before_the_primary_since_that_costs_no_waiting() -> None:
    made, send = begun(failed_over(0))
    refused_by_all(send, T)
    send.primary_failed(T, DOWN)
    assert type(error_of(send.step(T))) is BacklogUnavailableError
    after, beside = begin(made, T + 2.0), begin(made, T + 2.0)
    assert after.step(T + 2.0) == TryBacklog(0, 52.5)
    assert beside.step(T + 2.0) == TryPrimary(30.0), "one trial at a time"
    after.backlog_failed(T + 2.0, DOWN)
    assert after.step(T + 2.0) == TryPrimary(58.0 + 2.0)
    following = begin(made, T + 3.0)
    following.step(T + 3.0)
    following.backlog_sent(T + 3.0)
    assert made.rotation.queues == (0,)


def test_p13_with_one_queue_only_the_primary_is_next_and_the_next_send_asks_it_at_once() -> None:
    made, send = begun(failed_over(0))
    assert send.step(T) == TryBacklog(0, 52.5)
    send.backlog_failed(T + 1.0, LATE)
    assert send.step(T + 1.0) == TryPrimary(59.0)
    send.primary_failed(T + 1.0, DOWN)
    assert type(error_of(send.step(T + 1.0))) is BacklogUnavailableError
    after = begin(made, T + 2.0)
    assert after.step(T + 2.0) == TryPrimary(30.0)
    after.primary_failed(T + 2.0, DOWN)
    assert after.step(T + 2.0) == TryBacklog(0, 60.0), "it was not there itself, and the queue may be well again"
    after.backlog_failed(T + 2.0, DOWN)
    error = error_of(after.step(T + 2.0))
    assert type(error) is BacklogUnavailableError
    assert "1 of them in this call" in str(error)


def test_p13_no_send_fails_for_a_queue_that_others_found_failing_and_that_is_well_again() -> None:
    made, send = begun(failed_over(0, 1))
    refused_by_all(send, T, LATE)
    send.primary_failed(T, DOWN)
    error_of(send.step(T))
    made.commands.clear()
    first, second = begin(made, T + 1.0), begin(made, T + 1.0)
    for each in (first, second):
        assert each.step(T + 1.0) == TryPrimary(30.0)
        each.primary_failed(T + 1.0, DOWN)
        assert each.step(T + 1.0) == TryBacklog(0, 30.0)
    second.backlog_sent(T + 1.0)
    assert made.rotation.queues == (), "the first is the trial"
    first.backlog_sent(T + 1.0)
    assert list(made.commands) == [Announce(BacklogQueueReturned(0))]
    assert first.step(T + 1.0) == second.step(T + 1.0) == Sent()


@pytest.mark.parametrize("state", [EntityState.FAILED_OVER, EntityState.UNREACHABLE])
def test_p13_a_message_that_the_primary_takes_once_more_is_as_good_as_a_ping(state: EntityState) -> None:
    made = failed_over()
    if state is EntityState.UNREACHABLE:
        made.tick(T + 60.0)
        made.ping_failed("orders", T + 60.0, GONE, True)
    assert made.state("orders") is state
    send = begin(made, T + 60.0)
    refused_by_all(send, T + 60.0)
    send.primary_sent(T + 61.0)
    assert send.step(T + 61.0) == Sent()
    assert send.route_word == "primary"
    assert made.state("orders") is EntityState.HEALTHY
    assert made.deadline is None, "no more pings"


def test_p35_it_is_one_of_the_good_pings_that_are_asked_for() -> None:
    made = failed_over(pings_to_return=2)
    made.tick(T + 60.0)
    made.ping_succeeded("orders", T + 60.0)
    send = begin(made, T + 61.0)
    refused_by_all(send, T + 61.0)
    send.primary_sent(T + 61.0)
    assert made.state("orders") is EntityState.HEALTHY


def test_p23_an_entity_that_the_operator_holds_takes_the_message_and_stays() -> None:
    made = failed_over()
    made.force_failover("orders", T, hold=True)
    send = begin(made)
    refused_by_all(send, T)
    send.primary_sent(T + 1.0)
    assert send.step(T + 1.0) == Sent()
    assert made.state("orders") is EntityState.FAILED_OVER


def test_p13_while_suspect_too_the_primary_is_tried_once_more() -> None:
    made, send = attempted(coordinator(while_suspect="divert"))
    send.primary_failed(T, DOWN)
    refused_by_all(send, T)
    send.primary_sent(T + 1.0)
    assert send.step(T + 1.0) == Sent()
    assert made.state("orders") is EntityState.HEALTHY


def test_p21_a_success_from_before_the_failover_ends_nothing() -> None:
    made, send = attempted(coordinator(while_suspect="divert"))
    send.primary_failed(T, DOWN)
    refused_by_all(send, T)
    made.force_failover("orders", T + 1.0)
    send.primary_sent(T + 2.0)
    assert send.step(T + 2.0) == Sent()
    assert made.state("orders") is EntityState.FAILED_OVER


def test_p24_the_last_attempt_keeps_the_halt_and_is_made_again_after_it() -> None:
    send = begin(failed_over(0))
    refused_by_all(send, T)
    send.primary_failed(T, BUSY)
    assert send.step(T) == Wait(T + 10.0)
    assert send.step(T + 10.0) == TryPrimary(50.0)
    send.primary_sent(T + 11.0)
    assert send.step(T + 11.0) == Sent()
    short = begin(failed_over(0), timeout=5.0)
    refused_by_all(short, T)
    short.primary_failed(T, BUSY)
    assert error_of(short.step(T)).__cause__ is BUSY


@pytest.mark.parametrize("error", [LARGE, TypeError("body")])
def test_p18_what_the_primary_says_of_the_message_itself_is_told_as_it_is(error: Exception) -> None:
    send = begin(failed_over(0))
    refused_by_all(send, T)
    send.primary_failed(T, error)
    assert send.step(T) == Failed(error)


def test_p22_an_empty_rotation_leaves_the_primary() -> None:
    made = Coordinator(Settings(), choose=max)
    made.force_failover("orders", T)
    send = begin(made)
    assert send.step(T) == TryPrimary(60.0)
    send.primary_failed(T, DOWN)
    error = error_of(send.step(T))
    assert type(error) is BacklogUnavailableError
    assert "no backlog queue yet; the primary, tried once more, failed too" in str(error)


def test_p13_a_trial_message_goes_first_and_on_to_its_own_queue() -> None:
    made, send = attempted(failed_over(0, 1))
    send.backlog_failed(T, DOWN)
    send.step(T)
    send.backlog_sent(T)
    trial, other = begin(made, T + 30.0), begin(made, T + 30.0, sender="other")
    assert trial.step(T + 30.0) == TryBacklog(0, 26.25)
    assert other.step(T + 30.0) == TryBacklog(1, 52.5)
    trial.backlog_failed(T + 31.0, DOWN)
    assert trial.step(T + 31.0) == TryBacklog(1, 51.5)
    again = begin(made, T + 61.0)
    assert again.step(T + 61.0) == TryBacklog(0, 26.25)
    made.commands.clear()
    again.backlog_sent(T + 61.0)
    assert list(made.commands) == [Announce(BacklogQueueReturned(0))]


@pytest.mark.parametrize("error", [LARGE, TypeError("body"), ValueError("alias")])
def test_p30_what_is_the_messages_own_fault_ejects_nothing(error: Exception) -> None:
    made, send = attempted(failed_over())
    send.backlog_failed(T, error)
    assert send.step(T) == Failed(error)
    assert made.rotation.queues == (0, 1, 2)


def test_p13_a_bad_certificate_is_the_hosts_fault_though_it_is_a_value_error() -> None:
    made, send = attempted(failed_over())
    send.backlog_failed(T, ssl.SSLCertVerificationError(1, "expired"))
    assert send.step(T) == TryPrimary(60.0)
    assert made.rotation.queues == (1, 2)


@pytest.mark.parametrize(
    ("error", "timeout", "ejected"),
    [
        (LATE, 4.0, True),
        (LATE, 1.0, False),
        (TimeoutError(), 1.0, False),
        (NotTriedError("others were first"), 60.0, False),
        (DOWN, 1.0, True),
    ],
)
def test_p13_who_had_little_time_ejects_nothing_by_a_time_out(error: Exception, timeout: float, ejected: bool) -> None:
    made, send = attempted(failed_over(), timeout=timeout)
    send.backlog_failed(T, error)
    assert (0 not in made.rotation.queues) == ejected
    step = send.step(T)
    assert isinstance(step, TryBacklog)
    assert step.queue == 1
    send.backlog_sent(T)
    after = begin(made).step(T)
    assert isinstance(after, TryBacklog)
    assert after.queue == 1, "the sender stays with the queue that took its message"


def test_p21_a_message_that_no_queue_took_may_go_to_the_primary_when_it_is_back() -> None:
    made, send = attempted(failed_over(0))
    send.backlog_failed(T + 10.0, DOWN)
    made.mark_healthy("orders", T + 10.0)
    assert send.step(T + 10.0) == TryPrimary(25.0)
    send.primary_sent(T + 11.0)
    assert (send.step(T + 11.0), send.route_word, send.queue) == (Sent(), "primary", None)


# Unreachable, and trials


def test_p34_while_unreachable_messages_wait_in_the_backlog_or_raise() -> None:
    for option, expected in [("divert", TryBacklog), ("raise", Failed)]:
        made = failed_over(when_unreachable=option)
        made.tick(T + 60.0)
        assert list(made.commands) == [SendPing("orders")]
        made.ping_failed("orders", T + 61.0, GONE, True)
        step = begin(made, T + 62.0).step(T + 62.0)
        assert isinstance(step, expected)
        if isinstance(step, Failed):
            assert type(step.error) is EntityUnreachableError
            assert step.error.__cause__ is GONE
            assert "no such queue" in str(step.error)


def test_p31_the_next_message_is_the_trial_with_the_backlog_behind_it() -> None:
    made = failed_over(probe="trial")
    assert isinstance(begin(made, T + 59.0).step(T + 59.0), TryBacklog)
    trial, other = begin(made, T + 60.0), begin(made, T + 60.0)
    assert trial.step(T + 60.0) == TryPrimary(30.0)
    assert isinstance(other.step(T + 60.0), TryBacklog)
    trial.primary_failed(T + 90.0, LATE)
    assert trial.step(T + 90.0) == TryBacklog(0, 11.25)
    assert made.state("orders") is EntityState.FAILED_OVER
    again = begin(made, T + 120.0)
    assert isinstance(again.step(T + 120.0), TryPrimary)
    again.primary_sent(T + 121.0)
    assert made.state("orders") is EntityState.HEALTHY
    assert again.step(T + 121.0) == Sent()


def test_p31_a_refused_trial_marks_the_entity_and_its_message_goes_on() -> None:
    made, send = attempted(failed_over(probe="trial"), T + 60.0)
    send.primary_failed(T + 61.0, GONE)
    assert made.state("orders") is EntityState.UNREACHABLE
    assert send.step(T + 61.0) == TryBacklog(0, 25.75)


def test_p31_a_trial_can_end_what_raises() -> None:
    made, send = attempted(failed_over(probe="trial", when_unreachable="raise"), T + 60.0)
    send.primary_failed(T + 61.0, GONE)
    assert type(error_of(send.step(T + 61.0))) is EntityUnreachableError
    again = begin(made, T + 120.0)
    assert isinstance(again.step(T + 120.0), TryPrimary)
    again.primary_sent(T + 120.0)
    assert made.state("orders") is EntityState.HEALTHY


def test_p31_a_trial_with_a_bad_message_says_nothing_of_the_entity() -> None:
    made, send = attempted(failed_over(probe="trial"), T + 60.0)
    send.primary_failed(T + 60.0, LARGE)
    assert send.step(T + 60.0) == Failed(LARGE)
    assert made.state("orders") is EntityState.FAILED_OVER
    assert isinstance(begin(made, T + 120.0).step(T + 120.0), TryPrimary)


def test_p31_a_trial_that_did_not_begin_goes_on_to_the_backlog() -> None:
    made, send = attempted(failed_over(probe="trial"), T + 60.0)
    send.primary_failed(T + 60.0, NotTriedError("others were first"))
    assert isinstance(send.step(T + 60.0), TryBacklog)
    assert isinstance(begin(made, T + 120.0).step(T + 120.0), TryPrimary)


def test_p31_a_busy_trial_goes_on_to_the_backlog_and_the_next_keeps_the_halt() -> None:
    made, send = attempted(failed_over(probe="trial", ping_primary_interval=1.0), T + 1.0)
    send.primary_failed(T + 2.0, BUSY)
    assert isinstance(send.step(T + 2.0), TryBacklog)
    assert isinstance(begin(made, T + 11.9).step(T + 11.9), TryBacklog)
    assert isinstance(begin(made, T + 12.0).step(T + 12.0), TryPrimary)


def test_p24_no_trial_during_a_halt() -> None:
    made = failed_over(probe="trial")
    made.busy("orders", T + 55.0)
    assert isinstance(begin(made, T + 60.0).step(T + 60.0), TryBacklog)
    assert isinstance(begin(made, T + 65.0).step(T + 65.0), TryPrimary)


@pytest.mark.parametrize("error", [DOWN, GONE])
def test_p23_a_trial_overtaken_by_the_operator(error: Exception) -> None:
    made, send = attempted(failed_over(probe="trial"), T + 60.0)
    made.mark_healthy("orders", T + 61.0)
    send.primary_failed(T + 62.0, error)
    assert made.state("orders") is EntityState.HEALTHY
    assert send.step(T + 62.0) == (TryBacklog(0, 25.25) if error is DOWN else Failed(GONE))


def test_p16_a_trial_overtaken_by_the_operator_still_stops_a_timer() -> None:
    made = failed_over(probe="trial")
    trial = attempt(made, T + 60.0)
    made.mark_healthy("orders", T + 61.0)
    other = attempt(made, T + 62.0)
    other.primary_failed(T + 62.0, DOWN)
    trial.primary_sent(T + 63.0)
    assert made.state("orders") is EntityState.HEALTHY


def test_p21_a_late_success_during_the_failover_is_a_success_for_its_caller() -> None:
    made, send = attempted(coordinator())
    made.force_failover("orders", T + 1.0)
    send.primary_sent(T + 2.0)
    assert send.step(T + 2.0) == Sent()
    assert made.state("orders") is EntityState.FAILED_OVER


# Giving up, and misuse


def test_an_abandoned_send_says_nothing() -> None:
    made, send = attempted(coordinator(failover_interval=0.0))
    send.abandon(T + 1.0)
    send.abandon(T + 1.0)
    assert made.state("orders") is EntityState.HEALTHY
    with pytest.raises(RuntimeError):
        send.step(T + 2.0)


def test_p31_an_abandoned_trial_is_free_again_in_its_time() -> None:
    made, send = attempted(failed_over(probe="trial"), T + 60.0)
    send.abandon(T + 61.0)
    assert isinstance(begin(made, T + 119.0).step(T + 119.0), TryBacklog), "who gives up early is not always the trial"
    assert isinstance(begin(made, T + 120.0).step(T + 120.0), TryPrimary)


def test_p13_an_abandoned_trial_of_a_queue_is_free_again_in_its_time() -> None:
    made, send = attempted(failed_over(0, 1))
    send.backlog_failed(T, DOWN)
    send.step(T)
    send.abandon(T)
    assert made.rotation.queues == (1,)
    trial = begin(made, T + 30.0)
    assert trial.step(T + 30.0) == TryBacklog(0, 26.25)
    trial.abandon(T + 31.0)
    assert begin(made, T + 60.0).step(T + 60.0) == TryBacklog(1, 52.5)
    assert begin(made, T + 61.0).step(T + 61.0) == TryBacklog(0, 26.25)


def test_abandoning_what_is_over_changes_nothing() -> None:
    send = attempt(coordinator())
    send.primary_sent(T)
    send.abandon(T)
    assert send.step(T) == Sent()


def test_p22_nothing_is_sent_by_an_answer_that_was_not_asked_for() -> None:
    send = begin(failed_over())
    for answer in (send.primary_sent, send.backlog_sent):
        with pytest.raises(RuntimeError, match="under way"):
            answer(T)
    send.step(T)
    with pytest.raises(RuntimeError, match="under way"):
        send.primary_sent(T)
    with pytest.raises(RuntimeError, match="before the next step"):
        send.step(T)


def test_it_shows_where_the_message_is() -> None:
    send = begin(failed_over())
    assert repr(send) == "<Dispatch orders: waiting for a step, ends at 1060.0>"
    send.step(T)
    assert repr(send) == "<Dispatch orders: at backlog queue 0, ends at 1060.0>"
    send.backlog_sent(T)
    assert repr(send) == "<Dispatch orders: Sent(), ends at 1060.0>"
    healthy = coordinator(while_suspect="divert").begin("orders", "s", T, None)
    healthy.step(T)
    assert repr(healthy) == "<Dispatch orders: at the primary, ends at 1060.0>"
    healthy.primary_failed(T, DOWN)
    assert repr(healthy) == "<Dispatch orders: leaving for the backlog, ends at 1060.0>"
    healthy.abandon(T)
    assert repr(healthy) == "<Dispatch orders: gone, ends at 1060.0>"
