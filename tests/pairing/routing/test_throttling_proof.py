"""What becomes of a send while the entity's server is busy (P24): it waits, goes to the backlog, or fails."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.pairing.errors import BacklogUnavailableError, EntityThrottledError, SentSoFar
from pairbus.pairing.events import Announce, EntityThrottled
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Diversion, Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.states import EntityState

from .rig import BUSY, DOWN, LATE, T, coordinator
from .test_dispatch import attempt, attempted, begin, begun, error_of


def test_p24_a_busy_send_halts_ten_seconds_and_is_sent_again() -> None:
    made, send = attempted(coordinator())
    send.primary_failed(T + 1.0, BUSY)
    assert send.step(T + 1.0) == Wait(T + 11.0)
    assert send.step(T + 5.0) == Wait(T + 11.0)
    assert send.step(T + 11.0) == TryPrimary(24.5)
    assert made.state("orders") is EntityState.HEALTHY
    assert list(made.commands) == [Announce(EntityThrottled("orders", 10.0))]


def test_p24_the_halt_holds_for_all_senders_of_that_entity_and_no_other() -> None:
    made, send = attempted(coordinator())
    send.primary_failed(T, BUSY)
    assert begin(made, T + 3.0, sender="other").step(T + 3.0) == Wait(T + 10.0)
    assert isinstance(made.begin("news", "s", T + 3.0, None).step(T + 3.0), TryPrimary)


def test_p24_where_the_halt_does_not_fit_the_error_comes_at_once() -> None:
    made, send = attempted(coordinator(), timeout=10.0)
    send.primary_failed(T + 1.0, BUSY)
    assert send.step(T + 1.0) == Failed(BUSY)
    error = error_of(begin(made, T + 2.0, timeout=5.0).step(T + 2.0))
    assert isinstance(error, ServiceBusServerBusyError)
    assert "orders: throttled; sends halt for another 9.0 s, which does not fit into the 5.0 s" in str(error)


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_p18_busy_then_silence_is_busy_for_this_send_and_silence_for_the_next(interval: float) -> None:
    made, send = attempted(coordinator(failover_interval=interval))
    send.primary_failed(T, BUSY)
    assert send.step(T + 10.0) == TryPrimary(25.0)
    send.primary_failed(T + 35.0, LATE)
    assert send.step(T + 35.0) == Failed(BUSY)
    assert made.state("orders") is EntityState.HEALTHY
    following = attempt(made, T + 35.0)
    following.primary_failed(T + 65.0, LATE)
    assert isinstance(following.step(T + 65.0), Failed if interval else TryBacklog)
    assert made.state("orders") is (EntityState.SUSPECT if interval else EntityState.FAILED_OVER)


@pytest.mark.parametrize("interval", [0.0, 5.0])
def test_p18_busy_then_silence_is_busy_also_where_the_message_found_no_backlog_in_between(interval: float) -> None:
    made, send = attempted(hiding(0, failover_interval=interval))
    send.primary_failed(T, BUSY)
    assert isinstance(send.step(T), TryBacklog)
    send.backlog_failed(T + 1.0, DOWN)
    assert send.step(T + 1.0) == Wait(T + 10.0)
    assert isinstance(send.step(T + 10.0), TryPrimary)
    send.primary_failed(T + 20.0, LATE)
    assert made.state("orders") is EntityState.HEALTHY
    failed = send.step(T + 20.0)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BacklogUnavailableError)
    assert failed.error.__cause__ is BUSY


def test_p18_busy_then_a_refused_connection_is_an_outage() -> None:
    send = attempt(coordinator(failover_interval=0.0))
    send.primary_failed(T, BUSY)
    assert send.step(T + 10.0) == TryPrimary(25.0)
    send.primary_failed(T + 11.0, DOWN)
    assert isinstance(send.step(T + 11.0), TryBacklog)


def test_p17_busy_then_silence_goes_where_an_entity_that_failed_over_meanwhile_sends() -> None:
    made, send = attempted(coordinator())
    send.primary_failed(T, BUSY)
    send.step(T + 10.0)
    made.force_failover("orders", T + 20.0)
    send.primary_failed(T + 35.0, LATE)
    assert isinstance(send.step(T + 35.0), TryBacklog)


def test_p24_a_halt_that_grew_out_of_the_callers_time_gives_its_own_error() -> None:
    made, send = attempted(coordinator(), timeout=15.0)
    send.primary_failed(T, BUSY)
    assert send.step(T) == Wait(T + 10.0)
    made.busy("orders", T + 9.0)
    assert send.step(T + 10.0) == Failed(BUSY)


def test_p24_a_busy_send_may_use_all_of_the_callers_time() -> None:
    send = begin(coordinator(), timeout=35.0)
    now, tries = T, 0
    while isinstance(step := send.step(now), TryPrimary | Wait):
        if isinstance(step, Wait):
            now = step.until
        else:
            tries += 1
            send.primary_failed(now, BUSY)
    assert (step, tries, now) == (Failed(BUSY), 4, T + 30.0)


def test_p24_busy_for_too_long_counts_as_a_failure() -> None:
    made, send = begun(coordinator(busy_failover_after=20.0, failover_interval=0.0))
    for now in (T, T + 10.0):
        send.step(now)
        send.primary_failed(now, BUSY)
        assert send.step(now) == Wait(now + 10.0)
    send.step(T + 20.0)
    send.primary_failed(T + 20.0, BUSY)
    assert send.step(T + 20.0) == TryBacklog(0, 16.25)
    assert made.state("orders") is EntityState.FAILED_OVER


@pytest.mark.parametrize(("while_suspect", "diverted"), [("raise", False), ("divert", True)])
def test_p24_busy_for_too_long_makes_suspect(while_suspect: str, diverted: bool) -> None:
    made, send = attempted(coordinator(busy_failover_after=0.0, while_suspect=while_suspect))
    send.primary_failed(T, BUSY)
    assert made.state("orders") is EntityState.SUSPECT
    assert send.step(T) == (TryBacklog(0, 26.25) if diverted else Wait(T + 10.0))


def test_p17_a_message_that_halts_leaves_when_the_timer_runs_out() -> None:
    made = coordinator(failover_interval=5.0)
    other, send = begin(made), begin(made)
    other.step(T)
    send.step(T)
    other.primary_failed(T, DOWN)
    send.primary_failed(T, BUSY)
    assert send.step(T) == Wait(T + 5.0)
    assert send.step(T + 5.0) == TryBacklog(0, 23.75)


def test_p24_a_success_ends_the_run_of_refusals() -> None:
    made = coordinator(busy_failover_after=10.0, failover_interval=0.0)
    busy, good = begin(made), begin(made)
    busy.step(T)
    good.step(T)
    busy.primary_failed(T, BUSY)
    good.primary_sent(T + 1.0)
    assert busy.step(T + 10.0) == TryPrimary(25.0)
    busy.primary_failed(T + 10.0, BUSY)
    assert made.state("orders") is EntityState.HEALTHY


# Throttling that callers don't see


def hiding(*queues: int, **options: Any) -> Coordinator:
    return coordinator(*queues, while_throttled="divert", **options)


def test_p24_with_divert_a_busy_message_goes_to_the_backlog_and_nothing_fails_over() -> None:
    made, send = attempted(hiding())
    send.primary_failed(T + 1.0, BUSY)
    assert isinstance(send.step(T + 1.0), TryBacklog)
    send.backlog_sent(T + 2.0)
    assert send.step(T + 2.0) == Sent()
    assert send.reason == Diversion("throttled", "ServiceBusServerBusyError: busy", 1.0)
    assert made.state("orders") is EntityState.HEALTHY
    assert made.deadline is None, "no ping is due"
    assert list(made.commands) == [Announce(EntityThrottled("orders", 10.0, diverted=True))]


def test_p24_with_divert_the_messages_after_it_do_so_until_the_halt_is_over() -> None:
    made, send = attempted(hiding())
    send.primary_failed(T, BUSY)
    other = begin(made, T + 9.9, sender="other")
    assert isinstance(other.step(T + 9.9), TryBacklog)
    assert other.reason == Diversion("throttled", "it answered another call that it is busy", 0.0)
    assert isinstance(made.begin("news", "s", T + 5.0, None).step(T + 5.0), TryPrimary), "another entity"
    assert isinstance(begin(made, T + 10.0).step(T + 10.0), TryPrimary), "the primary is tried after the halt"


def test_p24_with_divert_a_suspect_entity_says_why_its_message_left() -> None:
    made, failing = attempted(hiding(failover_interval=30.0))
    failing.primary_failed(T, DOWN)
    made.busy("orders", T)
    send = begin(made, T + 1.0)
    assert isinstance(send.step(T + 1.0), TryBacklog)
    assert send.reason is not None
    assert send.reason.rule == "throttled"
    assert made.state("orders") is EntityState.SUSPECT


def test_p24_with_divert_an_entity_that_has_failed_over_says_so() -> None:
    made = hiding(0)
    made.busy("orders", T)
    made.force_failover("orders", T)
    send = attempt(made, T + 1.0)
    assert send.reason is not None
    assert send.reason.rule == "failed over"


def test_p24_with_divert_busy_for_too_long_fails_over_all_the_same() -> None:
    made, send = attempted(hiding(busy_failover_after=0.0, failover_interval=0.0))
    send.primary_failed(T, BUSY)
    assert isinstance(send.step(T), TryBacklog)
    assert made.state("orders") is EntityState.FAILED_OVER
    assert send.reason is not None
    assert send.reason.rule == "busy for too long"


def test_p24_with_divert_and_no_backlog_queue_the_message_waits() -> None:
    made = Coordinator(Settings(while_throttled="divert"), choose=max)
    send = attempt(made)
    send.primary_failed(T, BUSY)
    assert send.step(T) == Wait(T + 10.0)
    assert begin(made, T + 1.0).step(T + 1.0) == Wait(T + 10.0)
    assert list(made.commands) == [Announce(EntityThrottled("orders", 10.0, diverted=False))]


@pytest.mark.parametrize("is_first", [True, False])
def test_p24_with_divert_and_no_secondary_the_halt_is_waited_for_if_it_fits(is_first: bool) -> None:
    made, send = attempted(hiding(0))
    send.primary_failed(T, BUSY)
    send = send if is_first else begin(made)
    assert isinstance(send.step(T), TryBacklog)
    send.backlog_failed(T + 1.0, DOWN)
    assert send.step(T + 1.0) == Wait(T + 10.0)
    assert isinstance(send.step(T + 10.0), TryPrimary)
    send.primary_sent(T + 11.0)
    assert (send.step(T + 11.0), send.route_word) == (Sent(), "primary")


@pytest.mark.parametrize("is_first", [True, False])
def test_p24_with_divert_and_no_secondary_the_busy_error_comes_where_it_does_not_fit(is_first: bool) -> None:
    made, send = attempted(hiding(0), timeout=8.0)
    send.primary_failed(T, BUSY)
    send = send if is_first else begin(made, timeout=8.0)
    send.step(T)
    told = SentSoFar(3, 1, ("a",), 2, ("b", "c"))
    send.backlog_failed(T + 1.0, LATE, told)
    error = error_of(send.step(T + 1.0))
    assert isinstance(error, EntityThrottledError)
    assert isinstance(error, ServiceBusServerBusyError)
    assert (error.confirmed_ids, error.outcome_unknown_ids) == (("a",), ("b", "c"))
    assert "sends halt for another 9.0 s" in str(error)
    assert "no backlog queue took it (last: OperationTimeoutError: no answer)" in str(error)
    assert error.__cause__ is (BUSY if is_first else LATE)
