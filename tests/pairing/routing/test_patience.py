"""Patience with the primary's silence (P19), callers who give up (P16), brownouts (P24), and the terms of attempts."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus.pairing.errors import NotTriedError, note_nothing_sent
from pairbus.pairing.events import SendPing
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Diversion, TryBacklog, TryPrimary
from pairbus.pairing.routing.patience import ANSWERS_KEPT, ANSWERS_MIN, CALM_S, Brownout, Patience, SlowSends
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import AS_DESCRIBED

from .rig import BUSY, DOWN, GONE, LATE, T, coordinator

FAST: dict[str, Any] = {"failover_interval": 0.0, "send_timeout": 4.0}


def learned(*took_s: float, count: int = ANSWERS_MIN) -> Patience:
    patience = Patience()
    for number in range(count):
        patience.noted(took_s[number % len(took_s)], T)
    return patience


def begun(made: Coordinator, now: float = T, timeout: float | None = None) -> tuple[Dispatch, TryPrimary]:
    send = made.begin("orders", "sender", now, timeout)
    step = send.step(now)
    assert isinstance(step, TryPrimary)
    return send, step


def used(made: Coordinator, took_s: float = 0.01, count: int = ANSWERS_MIN) -> Coordinator:
    for _ in range(count):
        send, _step = begun(made)
        send.primary_sent(T, took_s)
    return made


def state(made: Coordinator) -> EntityState:
    return made.state("orders")


# What is learned


def test_p19_with_few_answers_it_is_half_of_the_callers_time() -> None:
    patience = learned(0.01, count=ANSWERS_MIN - 1)
    assert patience.silence_s == math.inf
    patience.noted(0.01, T)
    assert patience.silence_s == 0.25, "never less"


@pytest.mark.parametrize(("took_s", "silence_s"), [(0.001, 0.25), (0.02, 0.25), (0.05, 0.6), (0.5, 6.0)])
def test_p19_it_is_a_multiple_of_what_sends_take(took_s: float, silence_s: float) -> None:
    assert learned(took_s).silence_s == pytest.approx(silence_s)


def test_p19_a_few_slow_sends_do_not_move_it() -> None:
    assert learned(*[0.01] * 19, 30.0, count=ANSWERS_KEPT).silence_s == 0.25
    assert learned(*[0.01] * 5, *[2.0] * 5).silence_s == 24.0, "many do"


def test_p19_it_forgets_and_keeps_a_fixed_number_of_answers() -> None:
    patience = learned(1.0)
    for _ in range(1000):
        patience.noted(0.01, T)
    assert patience.silence_s == 0.25
    assert len(patience._took) == ANSWERS_KEPT


def test_p19_what_nine_in_ten_sends_took_counts_from_the_first_answers_on() -> None:
    patience = learned(0.2, 0.2, *[0.01] * 18)
    assert patience.silence_s == 0.25, "two of twenty were slow, as the first ones of a new link often are"
    patience = learned(0.2, 0.2, 0.2, *[0.01] * 17)
    assert patience.silence_s == pytest.approx(2.4), "three are more than one in ten"
    for _ in range(10):
        patience.noted(0.01, T)
    assert patience.silence_s == 0.25, "and three of thirty are not"


def test_p19_a_false_alarm_widens_it_and_an_hour_of_calm_takes_that_back() -> None:
    patience = learned(0.01)
    patience.false_alarm(T)
    assert patience.silence_s == 0.5
    patience.false_alarm(T)
    assert patience.silence_s == 1.0
    for _ in range(ANSWERS_KEPT):
        patience.noted(0.01, T + CALM_S)
    assert patience.silence_s == 0.5, "one doubling an hour"
    for _ in range(ANSWERS_KEPT):
        patience.noted(0.01, T + 2 * CALM_S)
    assert patience.silence_s == 0.25


def test_p19_it_does_not_grow_without_bound() -> None:
    patience = learned(0.01)
    for _ in range(100):
        patience.false_alarm(T)
    assert patience.silence_s == 16.0


# The terms of an attempt


def test_p14_where_the_caller_sees_the_failure_nothing_ends_an_attempt_early() -> None:
    for patience in ("half", "adaptive", 0.5):
        _send, step = begun(used(coordinator(primary_patience=patience)))
        assert step.terms is None, patience


@pytest.mark.parametrize("options", [{"failover_interval": 0.0}, {"while_suspect": "divert"}])
def test_p19_where_the_backlog_is_next_a_definite_failure_ends_it(options: dict[str, Any]) -> None:
    _send, step = begun(coordinator(**options))
    assert step.terms is not None and step.terms.ends_at is not None
    assert step.terms.ends_at(DOWN)
    assert not step.terms.ends_at(LATE), "silence is waited for"
    assert not step.terms.ends_at(ServiceBusConnectionError(message="x", error=TimeoutError())), "of a connect, too"
    assert not step.terms.ends_at(GONE), "the caller's own: as the SDK has it"
    assert not step.terms.ends_at(BUSY)


def test_p18_by_the_users_table() -> None:
    _send, step = begun(coordinator(failover_interval=0.0, classifier=AS_DESCRIBED))
    assert step.terms is not None and step.terms.ends_at is not None
    assert not step.terms.ends_at(DOWN), "it does not qualify there, so the user's retries go on"

    def broken(error: BaseException) -> Any:
        raise KeyError("a user's mistake")

    _send, step = begun(coordinator(failover_interval=0.0, classifier=broken))
    assert step.terms is not None and step.terms.ends_at is not None
    assert not step.terms.ends_at(DOWN), "whoever handles the answer raises it"


def test_p19_without_any_backlog_queue_the_primary_has_no_terms() -> None:
    made = coordinator(failover_interval=0.0)
    made.set_queues(())
    assert begun(made)[1].terms is None


def test_p19_seconds_hold_for_links_that_are_opened_too() -> None:
    _send, step = begun(coordinator(primary_patience=1.5, **FAST))
    assert step.timeout_s == 2.0
    assert step.terms is not None and (step.terms.silence_s, step.terms.opening_s) == (1.5, 1.5)


ADAPTIVE: dict[str, Any] = {"primary_patience": "adaptive", "failover_interval": 0.0, "send_timeout": 60.0}


@pytest.mark.parametrize(
    ("openings", "opening_s"),
    [
        ((), 3.0),
        ((0.01,), 1.0),
        ((0.5,), 2.0),
        ((2.0,), 8.0),
        ((0.5, 0.5, 2.0), 8.0),
        ((2.0, *[0.5] * 19), 2.0),
        ((2.0, *[0.5] * 500), 2.0),
    ],
)
def test_p19_a_link_is_opened_for_as_long_as_this_clients_openings_took(
    openings: tuple[float, ...], opening_s: float
) -> None:
    made = coordinator(**ADAPTIVE)
    before, _step = begun(made)
    before.primary_sent(T)
    for took_s in openings:
        made.link_opened(T, took_s)
    for entity in ("orders", "not used yet"):
        step = made.begin(entity, "sender", T, None).step(T)
        assert isinstance(step, TryPrimary) and step.terms is not None
        assert (step.terms.opening_s, step.terms.silence_s) == (pytest.approx(opening_s), math.inf)
    _send, step = begun(used(made))
    assert step.terms is not None
    assert (step.terms.opening_s, step.terms.silence_s) == (pytest.approx(opening_s), 0.25), "sends have their own"


def test_p19_a_trial_opens_its_link_as_patiently() -> None:
    made = coordinator(probe="trial", **ADAPTIVE)
    made.link_opened(T, 0.5)
    made.force_failover("orders", T)
    _send, step = begun(made, T + 60.0)
    assert step.terms is not None and step.terms.opening_s == 2.0


@pytest.mark.parametrize(("patience", "opening_s"), [("half", math.inf), (5.0, 5.0)])
def test_p19_openings_teach_nothing_where_the_patience_is_given(patience: Any, opening_s: float) -> None:
    made = coordinator(**{**ADAPTIVE, "primary_patience": patience})
    made.link_opened(T, 0.5)
    _send, step = begun(made)
    assert step.terms is not None and step.terms.opening_s == opening_s


def not_open() -> OperationTimeoutError:
    error = OperationTimeoutError(message="the link was not open in time")
    note_nothing_sent(error)
    return error


def test_p19_a_link_that_does_not_open_in_time_is_silence() -> None:
    made = used(coordinator(**ADAPTIVE))
    made.link_opened(T, 0.5)
    send, _step = begun(made)
    other = made.begin("news", "sender", T, None)
    other.step(T)
    other.primary_sent(T + 1.5)
    send.primary_failed(T + 2.0, not_open())
    assert isinstance(send.step(T + 2.0), TryBacklog)
    assert state(made) is EntityState.FAILED_OVER
    assert made.deadline == T + 2.0, "another entity was answered meanwhile: a ping asks at once"
    made.tick(T + 2.0)
    made.ping_succeeded("orders", T + 3.0)
    _send, step = begun(made, T + 4.0)
    assert step.terms is not None and step.terms.silence_s == 0.25, "it tells nothing of how long sends take"


def test_p16_a_caller_with_less_time_than_an_opening_may_take_tells_nothing_yet() -> None:
    made = coordinator(**ADAPTIVE)
    for second in range(4):
        send, step = begun(made, T + second, timeout=2.0)
        assert step.timeout_s == 1.0
        send.primary_failed(T + second + 1.0, not_open())
        assert isinstance(send.step(T + second + 1.0), TryBacklog), "its caller sees nothing of it"
        send.backlog_sent(T + second + 1.0)
        assert state(made) is (EntityState.HEALTHY if second < 3 else EntityState.FAILED_OVER), second


def test_p19_an_answer_in_no_time_counts() -> None:
    """A loop whose clock has milliseconds, such as uvloop's, measures many of them."""
    _send, step = begun(used(coordinator(primary_patience="adaptive", **FAST), took_s=0.0))
    assert step.terms is not None and step.terms.silence_s == 0.25


@pytest.mark.parametrize("patience", ["half", 1.0, "adaptive"])
def test_p16_the_terms_of_attempts_tell_those_who_wait_of_a_failover(patience: Any) -> None:
    made = used(coordinator(primary_patience=patience, **FAST))
    waiting, step = begun(made)
    failed, _step = begun(made)
    assert step.terms is not None and step.terms.has_left is not None
    assert not step.terms.has_left()
    failed.primary_failed(T + 0.3, DOWN)
    assert step.terms.has_left()
    waiting.primary_failed(T + 0.3, NotTriedError("it failed over meanwhile"))
    assert isinstance(waiting.step(T + 0.3), TryBacklog)


def test_p31_a_trial_has_the_backlog_behind_it() -> None:
    made = coordinator(probe="trial")
    made.force_failover("orders", T)
    _send, step = begun(made, T + 60.0)
    assert step.terms is not None and step.terms.ends_at is not None and step.terms.silence_s == math.inf


# False alarms


def alarmed(heard_at: float | None = None, **options: Any) -> Coordinator:
    """After a silence of 0.25 s; `heard_at`: when the primary confirmed a message for another entity meanwhile."""
    made = used(coordinator(primary_patience="adaptive", **{**FAST, **options}))
    send, _step = begun(made)
    if heard_at is not None:
        other = made.begin("payments", "another sender", T, None)
        other.step(T)
        other.primary_sent(heard_at)
    send.primary_failed(T + 0.25, LATE)
    assert isinstance(send.step(T + 0.25), TryBacklog)
    made.commands.clear()
    return made


def test_p19_after_a_short_silence_a_ping_asks_at_once_and_a_false_alarm_is_over() -> None:
    made = alarmed(heard_at=T + 0.2)
    assert state(made) is EntityState.FAILED_OVER
    assert made.deadline == T + 0.25, "another entity was answered meanwhile: it is probably a false alarm"
    made.tick(T + 0.25)
    assert SendPing("orders") in made.commands
    made.ping_succeeded("orders", T + 0.3)
    assert state(made) is EntityState.HEALTHY
    _send, step = begun(made, T + 1.0)
    assert step.terms is not None and step.terms.silence_s == 0.5, "twice as patient"


@pytest.mark.parametrize("heard_at", [None, T + 0.1])
def test_p31_after_a_silence_in_which_nobody_was_heard_the_first_ping_comes_at_the_clients_phase(
    heard_at: float | None,
) -> None:
    made = alarmed(heard_at=heard_at)
    assert made.deadline == T + 60.25, "or a fleet that met one outage would ping in one second"
    made.tick(T + 60.25)
    made.ping_succeeded("orders", T + 60.3)
    assert state(made) is EntityState.HEALTHY
    _send, step = begun(made, T + 61.0)
    assert step.terms is not None and step.terms.silence_s == 0.5, "it may have been a false alarm"


def test_p31_an_outage_that_is_real_is_pinged_as_always() -> None:
    made = alarmed(heard_at=T + 0.2)
    made.tick(T + 0.25)
    made.ping_failed("orders", T + 2.0, LATE, reachable=False)
    assert made.deadline == T + 60.25
    made.tick(T + 60.25)
    made.ping_succeeded("orders", T + 61.0)
    _send, step = begun(made, T + 62.0)
    assert step.terms is not None and step.terms.silence_s == 0.25, "that was no false alarm"


def test_p19_a_suspect_entity_that_answers_after_all_was_a_false_alarm() -> None:
    made = alarmed(failover_interval=60.0, while_suspect="divert")
    assert state(made) is EntityState.SUSPECT
    send, _step = begun(made, T + 1.0)
    send.primary_sent(T + 1.0, 0.01)
    assert state(made) is EntityState.HEALTHY
    _send, step = begun(made, T + 2.0)
    assert step.terms is not None and step.terms.silence_s == 0.5


def test_p31_a_definite_failure_is_no_false_alarm_and_asks_nobody() -> None:
    made = used(coordinator(primary_patience="adaptive", **FAST))
    send, _step = begun(made)
    send.primary_failed(T + 0.01, DOWN)
    assert made.deadline == T + 60.01


# Callers who give up


def test_p16_given_up_sends_count_once_the_silence_is_long_enough() -> None:
    made = coordinator(failover_interval=60.0, send_timeout=60.0)
    for second in range(6):  # each caller waits for a second
        send, _step = begun(made, T + second)
        send.abandon(T + second + 1.0, given_up=True)
        expected = EntityState.HEALTHY if second < 5 else EntityState.SUSPECT
        assert state(made) is expected, second
    assert made.deadline == T + 6.0 + 60.0


def test_p16_at_interval_zero_the_next_given_up_send_fails_over() -> None:
    made = coordinator(failover_interval=0.0, primary_patience=2.0)
    first, _step = begun(made)
    first.abandon(T + 1.0, given_up=True)
    assert state(made) is EntityState.HEALTHY
    second, _step = begun(made, T + 1.5)
    second.abandon(T + 2.1, given_up=True)
    assert state(made) is EntityState.FAILED_OVER, "silent since T, and the patience is 2 s"


@pytest.mark.parametrize("error", [None, BUSY, GONE])
def test_p16_an_answer_ends_the_silence(error: Exception | None) -> None:
    made = coordinator(failover_interval=0.0)
    given_up, _step = begun(made)
    given_up.abandon(T + 4.0, given_up=True)
    answered, _step = begun(made, T + 4.0)
    if error is None:
        answered.primary_sent(T + 4.1)
    else:
        answered.primary_failed(T + 4.1, error)
    later = made.begin("orders", "sender", T + 20.0, None)
    later.step(T + 20.0)
    later.abandon(T + 21.0, given_up=True)
    assert state(made) is EntityState.HEALTHY


@pytest.mark.parametrize("returns", ["ping", "ramp", "operator"])
def test_p16_a_return_to_the_primary_ends_the_silence(returns: str) -> None:
    made = coordinator(failover_interval=0.0, return_ramp=1.0 if returns == "ramp" else 0.0)
    made._draw = lambda: 1.0
    failed, _step = begun(made)
    failed.primary_failed(T, DOWN)
    assert state(made) is EntityState.FAILED_OVER
    if returns == "operator":
        made.mark_healthy("orders", T + 3600.0)
    else:
        made.tick(T + 3600.0)
        made.ping_succeeded("orders", T + 3600.0)
        made.tick(T + 3601.0)
    hasty, _step = begun(made, T + 3602.0)
    hasty.abandon(T + 3602.002, given_up=True)
    assert state(made) is EntityState.HEALTHY, "it was silent for 2 ms, not for an hour"


def test_p16_an_interrupted_answer_is_no_silence() -> None:
    made = coordinator(failover_interval=0.0)
    send, _step = begun(made)
    send.abandon(T + 50.0)
    assert state(made) is EntityState.HEALTHY


def test_p16_a_timeout_shorter_than_the_patience_diverts_and_fails_nothing_over_at_first() -> None:
    made = coordinator(primary_patience=3.0, **FAST)
    for begins, expected in ((T, EntityState.HEALTHY), (T + 3.5, EntityState.FAILED_OVER)):
        send, step = begun(made, begins, timeout=1.0)
        assert step.timeout_s == 0.5
        send.primary_failed(begins + 0.5, LATE)
        assert isinstance(send.step(begins + 0.5), TryBacklog), "no caller sees it"
        assert state(made) is expected


# Brownout


def test_p24_more_than_a_share_of_the_last_sends_was_slow() -> None:
    slow = SlowSends(Brownout(0.5, 10, 1.0))
    assert not any(slow.noted(took) for took in [2.0] * 9)
    assert slow.noted(0.1), "nine of ten"
    assert [slow.noted(0.1) for _ in range(6)] == [True, True, True, False, False, False]
    assert "4 of 10" in repr(slow) or "3 of 10" in repr(slow)


def test_p24_a_brownout_fails_over_and_ends_with_fast_pings() -> None:
    made = coordinator(failover_interval=0.0, brownout=Brownout(0.5, 5, 1.0), pings_to_return=2)
    used(made, 0.1, 5)
    used(made, 3.0, 2)
    assert state(made) is EntityState.HEALTHY
    used(made, 3.0, 1)
    assert state(made) is EntityState.FAILED_OVER
    now = T
    for took_s, expected in (
        (0.2, EntityState.FAILED_OVER),
        (1.5, EntityState.FAILED_OVER),
        (0.2, EntityState.FAILED_OVER),
        (0.2, EntityState.HEALTHY),
    ):
        now += 60.0
        made.tick(now)
        made.ping_succeeded("orders", now, took_s)
        assert state(made) is expected, now
    used(made, 3.0, 4)
    assert state(made) is EntityState.HEALTHY, "the count begins anew"


def test_p24_a_ping_that_goes_out_forgets_no_slow_sends() -> None:
    made = coordinator(failover_interval=0.0, brownout=Brownout(0.5, 5, 1.0))
    send, _step = begun(made)
    send.primary_failed(T, DOWN)
    assert state(made) is EntityState.FAILED_OVER
    # What no backlog queue takes goes to the primary once more, and takes long.
    assert not any(made.is_brownout(send._failover, T, 3.0, False) for _ in range(3))
    made.tick(T + 61.0)
    assert any(isinstance(command, SendPing) for command in made.commands)
    assert [made.is_brownout(send._failover, T + 61.0, 0.1, False) for _ in range(2)] == [False, True]


def test_p24_with_an_interval_it_is_suspect_until_sends_are_fast_again() -> None:
    made = coordinator(failover_interval=60.0, brownout=Brownout(0.5, 5, 1.0))
    used(made, 3.0, 5)
    assert state(made) is EntityState.SUSPECT
    used(made, 0.1, 1)
    assert state(made) is EntityState.SUSPECT, "four of five"
    used(made, 0.1, 2)
    assert state(made) is EntityState.HEALTHY


# Why a message was diverted


def test_p23_a_diverted_send_says_why() -> None:
    made = coordinator(**FAST)
    send, _step = begun(made)
    assert send.reason is None
    send.primary_failed(T + 0.5, DOWN)
    send.step(T + 0.5)
    assert send.reason == Diversion("interval zero", "ServiceBusConnectionError: refused", 0.5)
    later = made.begin("orders", "sender", T + 1.0, None)
    later.step(T + 1.0)
    assert later.reason == Diversion("failed over", "failed over: send failed", 0.0)
    made = coordinator(while_suspect="divert")
    send, _step = begun(made)
    send.primary_failed(T + 30.0, LATE)
    send.step(T + 30.0)
    assert send.reason == Diversion("while suspect", "OperationTimeoutError: no answer", 30.0)


# The link that stands ready


def test_p19_a_message_goes_over_the_ready_link_and_its_sender_keeps_its_queue() -> None:
    made = coordinator(0, 1, 2)
    made.force_failover("orders", T)
    send = made.begin("orders", "sender", T, None)
    step = send.step(T)
    assert isinstance(step, TryBacklog) and step.queue == 0
    assert send.over_warm_link(2) == TryBacklog(2, step.timeout_s)
    assert send.queue == 2
    send.backlog_sent(T)
    again = made.begin("orders", "sender", T, None).step(T)
    assert isinstance(again, TryBacklog) and again.queue == 0


def test_p13_a_ready_link_that_fails_ejects_its_queue_and_is_not_tried_again() -> None:
    made = coordinator(0, 1, 2)
    made.force_failover("orders", T)
    send = made.begin("orders", "sender", T, None)
    send.step(T)
    send.over_warm_link(2)
    send.backlog_failed(T, DOWN)
    assert made.rotation.queues == (0, 1)
    step = send.step(T)
    assert isinstance(step, TryBacklog) and step.queue == 0
    assert send.over_warm_link(2) is None
    other = made.begin("orders", "other", T, None)
    other.step(T)
    assert other.over_warm_link(2) is None, "it is ejected for everyone"


# An hour of healthy traffic


@pytest.mark.parametrize(("median_s", "alarms_max"), [(0.005, 0), (0.02, 0), (0.024, 0), (0.05, 1), (0.2, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_p19_an_hour_of_latency_spikes_gives_no_false_alarm(median_s: float, alarms_max: int, seed: int) -> None:
    """Sends of a healthy entity, one in fifty takes ten times the median; adaptive patience at interval zero."""
    rng = random.Random(f"{median_s} {seed}")
    made = coordinator(primary_patience="adaptive", failover_interval=0.0, send_timeout=10.0)
    now, alarms, diverted = T, 0, 0
    while now < T + 3600.0:
        now += rng.expovariate(4.0)
        if made.deadline is not None and made.deadline <= now:
            made.tick(now)
            made.ping_succeeded("orders", now)
        send = made.begin("orders", "sender", now, None)
        step = send.step(now)
        if not isinstance(step, TryPrimary):
            diverted += 1
            send.backlog_sent(now)
            continue
        took_s = median_s * (10.0 if rng.random() < 0.02 else rng.lognormvariate(0.0, 0.25))
        silence_s = step.terms.silence_s if step.terms is not None else math.inf
        if took_s < min(silence_s, step.timeout_s):
            send.primary_sent(now + took_s, took_s)
        else:
            alarms += 1
            send.primary_failed(now + silence_s, LATE)
    assert alarms <= alarms_max
    assert state(made) is EntityState.HEALTHY
    assert diverted <= alarms * 2 * made.settings.ping_primary_interval * 4.0, "each returns by itself, by its ping"


@pytest.mark.parametrize(("median_s", "alarms_max"), [(0.005, 0), (0.024, 0), (0.05, 1), (0.2, 1)])
@pytest.mark.parametrize("interval", [0.0, 60.0])
@pytest.mark.parametrize("seed", range(5))
def test_p19_an_hour_of_pauses_restarts_idle_links_and_spikes(
    median_s: float, alarms_max: int, interval: float, seed: int
) -> None:
    """What may look like an outage: the client stands still for up to two seconds in the midst of a send, the broker
    restarts within a second, links go stale in a long silence, and one send in fifty takes ten times the median.

    A restart fails over, at interval zero, what is sent until the next ping; at interval 60 its callers see the errors,
    and nothing is diverted.
    """
    hour = Hour(random.Random(f"{median_s} {interval} {seed}"), interval, median_s)
    hour.run()
    restarts = len(hour.restarts)
    assert restarts > 5 and hour.stale > 5 and hour.pauses > 5, "all of it happened"
    assert hour.alarms <= (alarms_max if interval == 0 else 0)
    assert state(hour.made) is EntityState.HEALTHY, "it returned by itself"
    if interval:
        assert not hour.diverted
        return
    assert hour.false_diversions <= 2 * hour.alarms * (hour.PING_S + 1) * hour.SENDS_PER_S
    assert hour.diverted["interval zero"] <= restarts + hour.alarms, (
        "the first of each failover; then it has failed over"
    )


class Hour:
    """An hour of one entity that is healthy but for restarts, with what the guarded sender makes of it: a link that is
    lost is opened anew, and an answer that is there after a pause of the client is taken."""

    PING_S = 1.0
    SENDS_PER_S = 4.0

    def __init__(self, rng: random.Random, interval: float, median_s: float) -> None:
        self.rng, self.median_s = rng, median_s
        self.made = coordinator(
            primary_patience="adaptive",
            failover_interval=interval,
            send_timeout=10.0,
            ping_primary_interval=self.PING_S,
        )
        self.now = T
        self.restarts = [(at, at + rng.uniform(0.1, 1.0)) for at in (T + rng.uniform(0, 3590) for _ in range(20))]
        self.diverted: Counter[str] = Counter()
        self.false_diversions = self.alarms = self.stale = self.pauses = 0
        self._heard_at = T

    def run(self) -> None:
        rng = self.rng
        while self.now < T + 3600.0:
            self._pings_until(
                self.now + (rng.uniform(31, 200) if rng.random() < 0.002 else rng.expovariate(self.SENDS_PER_S))
            )
            self._send()
        self._pings_until(self.now + 3 * self.PING_S)

    def _is_away(self, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.restarts)

    def _pings_until(self, end: float) -> None:
        made = self.made
        while made.deadline is not None and made.deadline <= end:
            self.now = max(self.now, made.deadline)
            made.tick(self.now)
            for command in [*made.commands]:
                if isinstance(command, SendPing) and self._is_away(self.now):
                    made.ping_failed("orders", self.now, DOWN, reachable=False)
                elif isinstance(command, SendPing):
                    made.ping_succeeded("orders", self.now)
            made.commands.clear()
        self.now = max(self.now, end)

    def _send(self) -> None:
        send = self.made.begin("orders", "sender", self.now, None)
        step = send.step(self.now)
        if isinstance(step, TryPrimary):
            self._try_primary(send, step)
            step = send.step(self.now)
        if isinstance(step, TryBacklog):
            send.backlog_sent(self.now)
            assert send.reason is not None
            self.diverted[send.reason.rule] += 1
            near = any(begin <= self.now < end + 2 * self.PING_S for begin, end in self.restarts)
            self.false_diversions += not near

    def _try_primary(self, send: Dispatch, step: TryPrimary) -> None:
        rng, began = self.rng, self.now
        if self._is_away(began):  # the link is gone, and a fresh one is refused
            self.now += 0.005
            send.primary_failed(self.now, DOWN)
            return
        was_restarted = any(self._heard_at < begin < began for begin, _end in self.restarts)
        if was_restarted or began - self._heard_at > 30.0:  # a stale link: a fresh one is opened, and not measured
            self.stale += 1
            self.now += 4 * self.median_s
            send.primary_sent(self.now)
        else:
            took_s = self.median_s * (10.0 if rng.random() < 0.02 else rng.lognormvariate(0.0, 0.25))
            silence_s = min(step.terms.silence_s if step.terms is not None else math.inf, step.timeout_s)
            if rng.random() < 0.005:
                self.pauses += 1
                took_s = max(took_s, rng.uniform(0.05, 2.0))
            elif took_s >= silence_s:
                self.alarms += 1
                self.now += silence_s
                send.primary_failed(self.now, LATE)
                return
            self.now += took_s
            send.primary_sent(self.now, took_s)
        self._heard_at = self.now
