from __future__ import annotations

import timeit

import pytest

from pairbus.pairing.errors import PinnedEntityError
from pairbus.pairing.events import (
    Announce,
    ControlFileChanged,
    EntityThrottled,
    OpenLinks,
    OperatorActed,
    PingFailed,
    PingSucceeded,
    SendPing,
    StateChanged,
)
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.pins import NO_PINS, parse
from pairbus.pairing.routing.states import EntityState, Route
from pairbus.pairing.routing.verdicts import Verdict

from .rig import BUSY, DOWN, OFF, T, coordinator

H, S, F, U = EntityState


def fails(made: Coordinator, entity: str, now: float, error: Exception = DOWN) -> None:
    send = made.begin(entity, "s", now, None)
    assert isinstance(send.step(now), TryPrimary)
    send.primary_failed(now, error)


def drained(made: Coordinator) -> list[object]:
    found: list[object] = list(made.commands)
    made.commands.clear()
    return found


@pytest.fixture
def made() -> Coordinator:
    return coordinator()


def test_p23_the_state_of_every_entity_met_in_the_order_of_meeting(made: Coordinator) -> None:
    made.know("news")
    fails(made, "orders", T)
    made.know("orders")
    assert made.states() == {"news": H, "orders": S}
    assert list(made.states()) == ["news", "orders"]
    assert made.state("orders") is S
    assert made.state("never met") is H
    assert "never met" not in made.states()
    assert repr(made) == "<Coordinator 2 entities, 1 not healthy, <Rotation [0, 1, 2], out [], 0 senders>>"


def test_p15_one_that_fails_says_nothing_of_another_however_alike_the_names() -> None:
    made = coordinator(failover_interval=0.0)
    fails(made, "orders", T)
    assert isinstance(made.begin("orders2", "s", T, None).step(T), TryPrimary)
    assert isinstance(made.begin("orders", "s", T, None).step(T), TryBacklog)


def test_p15_letter_case_does_not_make_another_entity(made: Coordinator) -> None:
    assert made.know("orders") == "orders"
    assert made.know("Orders") == "orders", "it is called as it was first"
    fails(made, "Orders", T)
    assert (made.state("ORDERS"), made.states()) == (S, {"orders": S})
    assert made.deadline == T + 60.0
    made.tick(T + 60.0)
    made.tick(T + 120.0)
    told = drained(made)
    assert told == [
        Announce(StateChanged("orders", H, S, "send failed")),
        Announce(StateChanged("orders", S, F, "interval over")),
        SendPing("orders"),
    ]
    assert made.route("oRDERS") is Route.BACKLOG
    made.ping_failed("ORDERS", T + 120.0, OFF, True)
    assert made.state("orders") is U and made.refusals == {"orders": OFF}
    made.mark_healthy("ORDERS", T + 130.0)
    made.force_failover("Orders", T + 140.0)
    assert made.states() == {"orders": F}


def test_p15_p24_a_halt_holds_for_every_spelling(made: Coordinator) -> None:
    made.know("Orders")
    made.busy("ORDERS", T)
    made.busy("news/Subscriptions/All", T)
    made.busy("NEWS/subscriptions/all", T + 1.0)
    assert made.halted_until("orders") == made.halted_until("Orders") == T + 10.0
    assert made.halted_until("News/Subscriptions/ALL") == T + 11.0
    assert drained(made) == [
        Announce(EntityThrottled("Orders", 10.0)),
        Announce(EntityThrottled("news/Subscriptions/All", 10.0)),
    ]
    send = made.begin("orders", "s", T, None)
    assert isinstance(send.step(T), Wait)
    send.abandon(T)
    sent = made.begin("orders", "s", T + 10.0, None)
    sent.step(T + 10.0)
    sent.primary_sent(T + 10.0)


def test_p16_the_deadline_is_that_of_the_first_entity_and_only_who_is_due_is_woken(made: Coordinator) -> None:
    fails(made, "a", T)
    fails(made, "b", T + 5.0)
    assert made.deadline == T + 60.0
    drained(made)
    made.tick(T + 59.0)
    assert drained(made) == []
    made.tick(T + 60.0)
    assert drained(made) == [Announce(StateChanged("a", S, F, "interval over"))]
    assert made.deadline == T + 65.0
    made.tick(T + 65.0)
    assert made.deadline == T + 120.0
    drained(made)
    made.tick(T + 125.0)
    assert drained(made) == [SendPing("a"), SendPing("b")]
    assert made.deadline is None


def test_p16_a_step_after_the_interval_does_not_wait_for_the_tick(made: Coordinator) -> None:
    fails(made, "orders", T)
    assert isinstance(made.begin("orders", "s", T + 60.0, None).step(T + 60.0), TryBacklog)
    assert made.state("orders") is F


def test_p21_a_good_ping_brings_every_sender_back_at_once() -> None:
    made = coordinator(failover_interval=0.0)
    fails(made, "orders", T)
    assert all(isinstance(made.begin("orders", n, T, None).step(T), TryBacklog) for n in range(100))
    made.tick(T + 60.0)
    drained(made)
    made.ping_succeeded("orders", T + 61.0)
    assert drained(made) == [
        Announce(PingSucceeded("orders", 1, 1)),
        Announce(StateChanged("orders", F, H, "ping succeeded")),
        OpenLinks("orders"),
    ]
    assert all(isinstance(made.begin("orders", n, T + 61.0, None).step(T + 61.0), TryPrimary) for n in range(100))


def test_p34_a_refused_ping_is_told_and_the_reason_kept_until_it_is_over() -> None:
    made = coordinator(failover_interval=0.0, when_unreachable="raise")
    fails(made, "orders", T)
    made.tick(T + 60.0)
    drained(made)
    made.ping_failed("orders", T + 61.0, OFF, True)
    assert drained(made) == [
        Announce(PingFailed("orders", True, OFF)),
        Announce(StateChanged("orders", F, U, "ping refused")),
    ]
    assert made.refusals == {"orders": OFF}
    assert made.route("orders") is Route.REFUSED
    made.tick(T + 120.0)
    made.ping_succeeded("orders", T + 120.0)
    assert made.refusals == {}
    assert made.route("orders") is Route.PRIMARY


def test_p31_an_unanswered_ping_is_told_and_the_next_comes_in_its_time() -> None:
    made = coordinator(failover_interval=0.0)
    fails(made, "orders", T)
    made.tick(T + 60.0)
    drained(made)
    made.ping_failed("orders", T + 70.0, DOWN, False)
    assert drained(made) == [Announce(PingFailed("orders", False, DOWN))]
    assert made.deadline == T + 120.0
    assert made.route("orders") is Route.BACKLOG


def test_p24_a_busy_ping_is_no_refusal_and_the_next_keeps_the_halt() -> None:
    made = coordinator(failover_interval=0.0, ping_primary_interval=1.0)
    fails(made, "orders", T)
    made.tick(T + 1.0)
    drained(made)
    made.ping_failed("orders", T + 2.0, BUSY, True)
    assert drained(made) == [
        Announce(EntityThrottled("orders", 10.0)),
        Announce(PingFailed("orders", False, BUSY)),
    ]
    assert made.state("orders") is F
    assert made.deadline == T + 12.0


def test_p33_answers_for_entities_that_are_well_or_unknown_are_ignored(made: Coordinator) -> None:
    made.know("orders")
    for entity in ("orders", "never met"):
        made.ping_succeeded(entity, T)
        made.ping_failed(entity, T, DOWN, False)
        made.ping_failed(entity, T, OFF, True)
    assert drained(made) == []
    assert made.refusals == {}
    assert made.states() == {"orders": H}


def test_p23_the_operator_may_be_the_first_to_name_an_entity(made: Coordinator) -> None:
    made.force_failover("orders", T, hold=True)
    made.mark_healthy("news", T)
    assert made.states() == {"orders": F, "news": H}
    assert made.deadline is None
    made.force_failover("orders", T + 1.0)
    assert made.deadline == T + 61.0
    made.mark_healthy("orders", T + 2.0)
    assert made.deadline is None
    assert [each for each in drained(made) if not isinstance(getattr(each, "event", None), OperatorActed)] == [
        Announce(StateChanged("orders", H, F, "forced")),
        Announce(StateChanged("orders", F, H, "marked healthy")),
        OpenLinks("orders"),
    ]


def test_p19_links_are_opened_again_after_a_return_and_not_before() -> None:
    made = coordinator(return_ramp=20.0)
    made._draw = lambda: 0.5
    fails(made, "orders", T)
    sent = made.begin("orders", "s", T, None)
    sent.step(T)
    sent.primary_sent(T + 1.0)
    assert OpenLinks("orders") not in drained(made), "its links were used all the time"
    made.force_failover("orders", T + 2.0)
    made.tick(T + 62.0)
    made.ping_succeeded("orders", T + 63.0)
    made.tick(T + 72.9)
    assert OpenLinks("orders") not in drained(made), "the return ramp spreads the opening of links"
    made.tick(T + 73.0)
    assert drained(made)[-1] == OpenLinks("orders")


def test_p24_halts_are_told_once_and_forgotten_when_over(made: Coordinator) -> None:
    assert made.halted_until("orders") == 0.0
    made.busy("orders", T)
    made.busy("orders", T + 4.0)
    assert made.halted_until("orders") == T + 14.0
    assert drained(made) == [Announce(EntityThrottled("orders", 10.0))]
    made.tick(T + 23.0)
    assert "orders" in made.halts
    made.tick(T + 24.0)
    assert made.halts == {}
    for n in range(100):
        made.busy(f"sub{n}", T + 30.0 * n)
    assert len(made.halts) == 1
    assert made.states() == {}, "a receiver's halt makes no entity known"
    assert made.deadline is None, "halts need no tick"


def test_p24_refusals_of_receivers_never_fail_over() -> None:
    made = coordinator(busy_failover_after=0.0, failover_interval=0.0)
    made.busy("orders", T)
    made.busy("orders", T + 5.0)
    assert made.state("orders") is H


def test_p12_senders_are_forgotten_when_closed() -> None:
    made = coordinator(failover_interval=0.0)
    made.force_failover("orders", T)
    for n in range(1000):
        made.begin("orders", n, T, None).step(T)
        made.forget_sender(n)
    assert "0 senders" in repr(made.rotation)


def test_p5_queues_can_come_later() -> None:
    made = Coordinator(Settings(), choose=max)
    made.force_failover("orders", T)
    made.set_queues([3, 4])
    assert made.begin("orders", "s", T, None).step(T) == TryBacklog(4, 26.25)


def test_p31_a_users_classifier_is_not_asked_about_pings() -> None:
    def broken(error: BaseException) -> Verdict:
        raise KeyError("not in my table")

    made = coordinator(classifier=broken)
    made.force_failover("orders", T)
    made.tick(T + 60.0)
    made.ping_failed("orders", T + 61.0, BUSY, True)
    assert made.state("orders") is F
    assert made.deadline == T + 120.0, "the pings go on"


@pytest.mark.parametrize("count", [1, 1000])
def test_p14_a_healthy_send_costs_next_to_nothing(count: int, made: Coordinator) -> None:
    for n in range(count):
        made.know(f"entity{n}")

    def send() -> None:
        dispatch = made.begin("entity0", "s", T, None)
        dispatch.step(T)
        dispatch.primary_sent(T)
        dispatch.step(T)

    # 1.2 µs here; a send through the SDK takes 340 µs and more. The best of many rounds: other work disturbs it.
    assert min(timeit.repeat(send, number=1000, repeat=20)) / 1000 < 10e-6
    assert not made.commands


def test_in_a_forked_child_nobody_waits_for_the_parents_answers() -> None:
    made = coordinator(failover_interval=0.0, ping_primary_interval=10.0)
    fails(made, "orders", T)
    made.tick(T + 10.0)
    assert SendPing("orders") in drained(made)
    assert made.deadline is None, "it waits for the ping's answer"
    made.forked()
    assert made.deadline == T + 20.0
    made.tick(T + 20.0)
    assert SendPing("orders") in drained(made)


def test_in_a_forked_child_trials_are_free_again() -> None:
    made = coordinator(failover_interval=0.0, ping_primary_interval=10.0, probe="trial", backlog_retry_interval=5.0)
    fails(made, "orders", T)
    send = made.begin("orders", "s", T, None)
    assert isinstance(step := send.step(T), TryBacklog)
    send.backlog_failed(T, DOWN)
    assert isinstance(made.begin("orders", "s", T + 6.0, None).step(T + 6.0), TryBacklog), "the queue's trial"
    assert isinstance(made.begin("orders", "s", T + 10.0, None).step(T + 10.0), TryPrimary), "the primary's trial"
    made.forked()
    assert made.begin("orders", "s", T + 12.0, None).step(T + 12.0) == TryBacklog(step.queue, 26.25)
    assert isinstance(made.begin("orders", "s", T + 20.0, None).step(T + 20.0), TryPrimary)


def test_p23_a_change_for_the_worse_carries_the_error_that_made_it() -> None:
    made = coordinator(when_unreachable="raise")

    def changes() -> list[tuple[str, BaseException | None]]:
        told = [command.event for command in drained(made) if isinstance(command, Announce)]
        return [(event.cause, event.error) for event in told if isinstance(event, StateChanged)]

    fails(made, "orders", T)
    late = TimeoutError("no answer")
    fails(made, "orders", T + 10.0, late)
    made.tick(T + 60.0)
    assert changes() == [("send failed", DOWN), ("interval over", late)]
    made.tick(T + 120.0)
    made.ping_failed("orders", T + 120.0, OFF, True)
    assert changes() == [("ping refused", OFF)]
    made.tick(T + 180.0)
    made.ping_succeeded("orders", T + 180.0)
    made.force_failover("orders", T + 200.0)
    assert changes() == [("ping succeeded", None), ("forced", None)]


def test_p24_busy_for_too_long_carries_the_refusal() -> None:
    made = coordinator(failover_interval=0.0, busy_failover_after=0.0)
    fails(made, "orders", T, BUSY)
    (change,) = [
        command.event
        for command in drained(made)
        if isinstance(command, Announce) and isinstance(command.event, StateChanged)
    ]
    assert (change.cause, change.error) == ("busy for too long", BUSY)


def test_p50_the_whole_namespace_is_gone_for_hours() -> None:
    """A message every ten seconds, to two entities, for eight hours: each is confirmed by the backlog, the primary is
    asked by one ping a minute and entity, and when it answers both are back."""
    made = coordinator(failover_interval=60.0, while_suspect="divert")
    hours, entities, sent, pings = 8 * 3600, ("orders", "news"), 0, 0
    for second in range(0, hours, 10):
        now = T + second
        made.tick(now)
        for command in drained(made):
            if isinstance(command, SendPing):
                pings += 1
                made.ping_failed(command.entity, now + 5.0, DOWN, False)
        for entity in entities:
            send = made.begin(entity, "s", now, 8.0)
            action = send.step(now)
            if isinstance(action, TryPrimary):
                send.primary_failed(now, DOWN)
                action = send.step(now)
            assert isinstance(action, TryBacklog), (second, entity)
            send.backlog_sent(now)
            assert isinstance(send.step(now), Sent)
            sent += 1
    assert sent == 2 * hours / 10
    assert pings == pytest.approx(2 * hours / 60, abs=8)
    assert set(made.states().values()) == {F}
    assert made._errors.keys() == set(entities), "what is kept does not grow with time"
    made.tick(T + hours + 60.0)
    for command in drained(made):
        if isinstance(command, SendPing):
            made.ping_succeeded(command.entity, T + hours + 60.0)
    assert set(made.states().values()) == {H}
    assert made.deadline is None


# Fleets: the control file, the phase, the ramp


def test_p23_the_control_file_pins_entities_met_and_unmet_in_any_spelling(made: Coordinator) -> None:
    made.know("Orders")
    made.set_pins(parse('orders = "failed-over"\n"*" = "healthy"'), T)
    assert drained(made) == [
        Announce(ControlFileChanged((("orders", "failed-over"), ("*", "healthy")))),
        Announce(StateChanged("Orders", H, F, "control file")),
    ]
    fails(made, "news", T)
    assert made.state("news") is H and made.deadline is None
    assert isinstance(made.begin("ORDERS", "s", T, None).step(T), TryBacklog)
    made.set_pins(parse('"*" = "failed-over"\nnews = "auto"'), T + 1.0)
    assert made.state("never-met") is F and made.route("never-met") is Route.BACKLOG
    drained(made)
    assert isinstance(made.begin("never-met", "s", T + 2.0, None).step(T + 2.0), TryBacklog)
    assert drained(made) == [Announce(StateChanged("never-met", H, F, "control file"))]
    fails(made, "news", T + 2.0)
    assert made.state("news") is S, "auto"
    made.set_pins(NO_PINS, T + 3.0)
    assert made.states() == {"Orders": F, "news": S, "never-met": F}
    made.tick(T + 63.0)
    assert drained(made).count(SendPing("Orders")) == 1


def test_p23_the_file_wins_over_the_api_which_says_so(made: Coordinator) -> None:
    made.set_pins(parse('orders = "healthy"'), T)
    drained(made)
    for call in (made.force_failover, made.mark_healthy):
        with pytest.raises(
            PinnedEntityError, match=r"Orders: can't .*, since the control file keeps it 'healthy'.*auto"
        ):
            call("Orders", T)
    assert drained(made) == []
    made.force_failover("news", T, hold=True)
    made.set_pins(NO_PINS, T)
    made.mark_healthy("orders", T)
    assert [each.event for each in drained(made) if isinstance(each, Announce)] == [
        OperatorActed("news", "force failover and hold"),
        StateChanged("news", H, F, "forced"),
        ControlFileChanged(()),
        OperatorActed("Orders", "mark healthy"),
    ]


def test_p23_a_message_that_fails_while_pinned_healthy_is_treated_as_if_suspect() -> None:
    for options, kind in (
        ({}, Failed),
        ({"while_suspect": "divert"}, TryBacklog),
        ({"failover_interval": 0}, TryBacklog),
    ):
        made = coordinator(**options)
        made.set_pins(parse('"*" = "healthy"'), T)
        send = made.begin("orders", "s", T, None)
        send.step(T)
        send.primary_failed(T, DOWN)
        assert isinstance(send.step(T), kind)
        assert made.state("orders") is H


def test_p21_p31_each_client_draws_a_phase_and_each_entity_its_share_of_the_ramp() -> None:
    numbers = iter([0.75, 0.5, 0.1])
    made = Coordinator(
        Settings(failover_interval=0, return_ramp=30.0),
        (0,),
        choose=lambda usable: usable[0],
        draw=lambda: next(numbers),
    )
    assert made.phase == 0.25
    for entity in ("orders", "news"):
        fails(made, entity, T)
    assert made.deadline == T + 15.0
    made.tick(T + 15.0)
    for entity in ("orders", "news"):
        made.ping_succeeded(entity, T + 16.0)
    assert [each.event.return_delay_s for each in drained(made) if isinstance(each, Announce) and
            isinstance(each.event, PingSucceeded)] == [15.0, 3.0]  # fmt: skip
    made.tick(T + 19.0)
    assert made.states() == {"orders": F, "news": H}
    assert isinstance(made.begin("orders", "s", T + 30.9, None).step(T + 30.9), TryBacklog)
    assert isinstance(made.begin("orders", "s", T + 31.0, None).step(T + 31.0), TryPrimary), (
        "without waiting for a tick"
    )
