"""Every state × every input, by a table written out a second time; then time, late answers, holds and trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.pairing.events import Announce, Command, PingSucceeded, SendPing, StateChanged
from pairbus.pairing.routing.failover import TABLE, Failover, Input
from pairbus.pairing.routing.states import EntityState
from tests.pairing.reference_pages import failover_diagram, failover_table

H, S, F, U = EntityState
DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "failover.md"
INTERVAL, PING = 60.0, 30.0
T = 1000.0  # when every machine of the table tests is asked


def machine(
    *, interval: float = INTERVAL, good: int = 1, probe: str = "ping", phase: float = 1.0, delay: float = 0.0
) -> Failover:
    return Failover(
        "orders",
        failover_interval=interval,
        ping_interval=PING,
        pings_to_return=good,
        probe="trial" if probe == "trial" else "ping",
        phase=phase,
        return_delay=delay,
    )


def begin_probe(made: Failover, now: float) -> None:
    if made.probe == "trial":
        assert made.trial_due(now)
        made.begin_trial(now)
    else:
        assert SendPing("orders") in made.tick(now)


def brought_to(
    state: EntityState, *, interval: float = INTERVAL, good: int = 1, probe: str = "ping", delay: float = 0.0
) -> Failover:
    """In the state shortly before T, with a probe under way if that state has any."""
    made = machine(interval=interval, good=good, probe=probe, delay=delay)
    if state is S:
        made.primary_failed(T - 1.0, 0)
    elif state is not H:
        made.forced(T - 2 * PING - 2.0, hold=False)
        begin_probe(made, T - PING - 2.0)
        if state is U:
            made.trial_failed(T - PING - 2.0, True) if probe == "trial" else made.ping_failed(T - PING - 2.0, True)
            begin_probe(made, T - 2.0)
    assert made.state is state
    return made


def changes(commands: list[Command]) -> list[tuple[EntityState, EntityState, str]]:
    return [
        (command.event.previous, command.event.state, command.event.cause)
        for command in commands
        if isinstance(command, Announce) and isinstance(command.event, StateChanged)
    ]


def ramp_from_unreachable(made: Failover) -> list[Command]:
    """No ramp begins there without the state changing first; the table holds all the same."""
    made._home_at = T
    return made.tick(T)


Fact = Callable[[Failover], list[Command]]
# Input: how it is reported, on which kind of machine, and the state after it from H, S, F, U.
FACTS: dict[Input, tuple[Fact, dict[str, object], tuple[EntityState, ...]]] = {
    Input.SEND_SUCCEEDED: (lambda m: m.primary_sent(T, m.epoch), {}, (H, H, F, U)),
    Input.SEND_FAILED: (lambda m: m.primary_failed(T, m.epoch), {}, (S, S, F, U)),
    Input.SEND_FAILED_AT_ONCE: (lambda m: m.primary_failed(T, m.epoch), {"interval": 0.0}, (F, S, F, U)),
    Input.BUSY_TOO_LONG: (lambda m: m.primary_failed(T, m.epoch, busy=True), {}, (S, S, F, U)),
    Input.BUSY_TOO_LONG_AT_ONCE: (
        lambda m: m.primary_failed(T, m.epoch, busy=True),
        {"interval": 0.0},
        (F, S, F, U),
    ),
    Input.BROWNED_OUT: (lambda m: m.browned_out(T, m.epoch), {}, (S, S, F, U)),
    Input.BROWNED_OUT_AT_ONCE: (lambda m: m.browned_out(T, m.epoch), {"interval": 0.0}, (F, S, F, U)),
    Input.INTERVAL_OVER: (lambda m: m.tick(T - 1.0 + INTERVAL), {}, (H, F, F, U)),
    Input.PING_SUCCEEDED: (lambda m: m.ping_succeeded(T), {}, (H, S, H, H)),
    Input.PING_COUNTED: (lambda m: m.ping_succeeded(T), {"good": 2}, (H, S, F, F)),
    Input.PING_REFUSED: (lambda m: m.ping_failed(T, True), {}, (H, S, U, U)),
    Input.PING_UNANSWERED: (lambda m: m.ping_failed(T, False), {}, (H, S, F, F)),
    Input.TRIAL_SUCCEEDED: (lambda m: m.trial_succeeded(T), {"probe": "trial"}, (H, S, H, H)),
    Input.TRIAL_COUNTED: (lambda m: m.trial_succeeded(T), {"probe": "trial", "good": 2}, (H, S, F, F)),
    Input.TRIAL_REFUSED: (lambda m: m.trial_failed(T, True), {"probe": "trial"}, (H, S, U, U)),
    Input.TRIAL_UNANSWERED: (lambda m: m.trial_failed(T, False), {"probe": "trial"}, (H, S, F, F)),
    Input.SENT_ONCE_MORE: (lambda m: m.sent_once_more(T, m.epoch), {}, (H, S, H, H)),
    Input.SENT_ONCE_MORE_COUNTED: (lambda m: m.sent_once_more(T, m.epoch), {"good": 2}, (H, S, F, F)),
    Input.RETURN_DELAYED: (lambda m: m.ping_succeeded(T), {"delay": 5.0}, (H, S, F, F)),
    Input.RAMP_OVER: (
        lambda m: (m.ping_succeeded(T - 5.0), m.tick(T))[1] if m.state is not U else ramp_from_unreachable(m),
        {"delay": 5.0},
        (H, S, H, H),
    ),
    Input.FORCED: (lambda m: m.forced(T, hold=False), {}, (F, F, F, F)),
    Input.MARKED_HEALTHY: (lambda m: m.marked_healthy(T), {}, (H, H, H, H)),
    Input.PINNED_FAILED_OVER: (lambda m: m.pinned(T, "failed-over"), {}, (F, F, F, F)),
    Input.PINNED_HEALTHY: (lambda m: m.pinned(T, "healthy"), {}, (H, H, H, H)),
}


@pytest.mark.parametrize("state", EntityState, ids=lambda state: state.name)
@pytest.mark.parametrize("heading", Input, ids=lambda heading: heading.name)
def test_p16_every_state_and_every_input(state: EntityState, heading: Input) -> None:
    report, kind, expected = FACTS[heading]
    if state is S and kind.get("interval") == 0.0:
        assert TABLE[heading][S] is S, "with interval zero nothing is ever suspect"
        return
    made = brought_to(state, **kind)  # type: ignore[arg-type]
    after = expected[list(EntityState).index(state)]
    commands = report(made)
    assert made.state is after
    assert TABLE[heading][state] is after
    cause = heading.value.split(",")[0]
    assert changes(commands) == ([] if after is state else [(state, after, cause)])
    if after is not state:
        assert made.since == (T - 1.0 + INTERVAL if heading is Input.INTERVAL_OVER else T)


def test_p16_the_table_is_complete() -> None:
    assert set(TABLE) == set(Input) == set(FACTS)
    assert all(set(states) == set(EntityState) for states in TABLE.values())


@pytest.mark.parametrize("state", EntityState, ids=lambda state: state.name)
def test_p21_a_stale_failure_starts_nothing(state: EntityState) -> None:
    made = brought_to(state)
    assert changes(made.primary_failed(T, made.epoch - 1)) == []
    assert made.state is state


# Fleets: the phase of pings, the return ramp, the control file


@pytest.mark.parametrize("phase", [0.001, 0.5, 1.0])
def test_p31_the_first_ping_comes_at_the_clients_phase_then_every_interval(phase: float) -> None:
    made = machine(interval=0.0, phase=phase)
    made.primary_failed(100.0, 0)
    first = 100.0 + phase * PING
    assert made.deadline == first
    assert made.tick(first - 0.001) == []
    assert made.tick(first) == [SendPing("orders")]
    made.ping_failed(first, False)
    assert made.deadline == first + PING
    made.forced(first, hold=True)
    made.forced(first + 1.0, hold=False)
    assert made.deadline == first + 1.0 + phase * PING, "and the same where pings begin anew"


def test_p31_after_a_ping_before_its_time_the_next_comes_at_the_clients_phase() -> None:
    made = machine(interval=0.0, phase=0.25)
    made.primary_failed(100.0, 0)
    made.ping_soon(100.0)
    assert made.tick(100.0) == [SendPing("orders")]
    made.ping_failed(100.5, False)
    assert made.deadline == 100.0 + PING / 4, "or a fleet that met one silence would ping together from then on"
    assert made.tick(100.0 + PING / 4) == [SendPing("orders")]
    made.ping_failed(110.0, False)
    assert made.deadline == 100.0 + PING / 4 + PING


@pytest.mark.parametrize("probe", ["ping", "trial"])
def test_p21_with_a_ramp_a_good_probe_ends_the_failover_later(probe: str) -> None:
    made = brought_to(F, probe=probe, delay=5.0)
    commands = made.trial_succeeded(T) if probe == "trial" else made.ping_succeeded(T)
    assert changes(commands) == []
    assert made.state is F and made.epoch == 0
    assert made.deadline == T + 5.0
    assert repr(made).endswith("returns at 1005.0>")
    assert not made.trial_due(T + 4.9)
    assert made.tick(T + 4.9) == [], "found healthy: no more pings (P33)"
    assert changes(made.primary_sent(T + 20.0, 0)) == [(F, H, "return ramp over")], "however late the tick"
    assert made.since == T + 5.0 and made.epoch == 1
    assert made.deadline is None


def test_p21_what_the_primary_took_once_more_ends_the_ramp() -> None:
    made = brought_to(F, delay=5.0)
    made.ping_succeeded(T)
    assert changes(made.sent_once_more(T + 1.0, made.epoch)) == [(F, H, "message sent once more")]
    assert made.tick(T + 5.0) == []


@pytest.mark.parametrize("hold", [False, True])
def test_p23_the_operator_ends_a_ramp(hold: bool) -> None:
    made = brought_to(F, delay=5.0)
    made.ping_succeeded(T)
    assert made.forced(T + 1.0, hold=hold) == []
    assert made.deadline == (None if hold else T + 1.0 + PING)
    made.ping_succeeded(T + 1.5)
    assert made.state is F, "no ping was under way"
    assert changes(made.marked_healthy(T + 2.0)) == [(F, H, "marked healthy")], "at once"


def test_p23_what_the_file_pins_healthy_does_not_fail_over() -> None:
    made = machine(interval=0.0)
    assert made.pinned(T, "healthy") == []
    assert made.primary_failed(T, 0) == made.primary_failed(T, 0, busy=True) == []
    assert made.state is H and made.deadline is None
    assert made.pinned(T + 1.0, None) == []
    assert changes(made.primary_failed(T + 2.0, 0)) == [(H, F, "send failed")], "from then on failures count"


def test_p23_what_the_file_pins_failed_over_stays_whatever_answers() -> None:
    made = brought_to(F)
    made.pinned(T, "failed-over")
    assert made.ping_succeeded(T) == made.sent_once_more(T, 0) == made.primary_sent(T, 0) == made.tick(T + 999.0) == []
    assert made.marked_healthy(T) == []
    assert made.state is F and made.deadline is None and not made.trial_due(T + 999.0)
    assert repr(made).endswith("pinned>")
    assert made.pinned(T + 1.0, None) == []
    assert made.deadline == T + 1.0 + PING, "then pings begin anew"


def test_p23_p21_a_fleet_that_the_file_sends_home_returns_as_a_ramp() -> None:
    made = machine(delay=5.0)
    made.pinned(T, "failed-over")
    assert made.pinned(T + 10.0, "healthy") == []
    assert made.deadline == T + 15.0
    assert made.primary_failed(T + 11.0, 0) == made.sent_once_more(T + 11.0, 0) == []
    assert changes(made.tick(T + 15.0)) == [(F, H, "return ramp over")]
    assert made.primary_failed(T + 16.0, made.epoch) == []


def test_p23_a_pin_lifted_during_the_ramp_leaves_the_return_to_pings() -> None:
    made = machine(delay=5.0)
    made.pinned(T, "failed-over")
    made.pinned(T + 10.0, "healthy")
    made.pinned(T + 11.0, None)
    assert made.tick(T + 15.0) == []
    assert made.deadline == T + 11.0 + PING


# Time


def test_p16_the_timer_runs_from_the_first_failure_and_fires_by_itself() -> None:
    made = machine()
    assert made.deadline is None
    made.primary_failed(100.0, 0)
    made.primary_failed(130.0, 0)
    assert made.deadline == 160.0
    assert made.tick(159.999) == []
    assert changes(made.tick(160.0)) == [(S, F, "interval over")]


def test_p16_a_success_stops_the_timer_and_the_next_failure_starts_it_anew() -> None:
    made = machine()
    made.primary_failed(100.0, 0)
    assert changes(made.primary_sent(130.0, 0)) == [(S, H, "send succeeded")]
    assert made.deadline is None
    assert made.epoch == 0, "the primary was never left"
    made.primary_failed(140.0, 0)
    assert made.deadline == 200.0


def test_p16_a_success_at_the_very_end_of_the_interval_is_too_late() -> None:
    made = machine()
    made.primary_failed(100.0, 0)
    assert changes(made.primary_sent(160.0, 0)) == [(S, F, "interval over")]


@pytest.mark.parametrize("late", [0.0, 1.0, 29.0, 30.0, 500.0])
def test_p16_a_late_tick_does_not_move_the_moment(late: float) -> None:
    made = machine()
    made.primary_failed(100.0, 0)
    commands = made.tick(160.0 + late)
    assert made.since == 160.0
    assert (SendPing("orders") in commands) == (late >= PING)


@pytest.mark.parametrize("busy", [False, True])
def test_p17_with_interval_zero_the_first_failure_fails_over(busy: bool) -> None:
    made = machine(interval=0.0)
    cause = "busy for too long" if busy else "send failed"
    assert changes(made.primary_failed(100.0, 0, busy=busy)) == [(H, F, cause)]
    assert made.deadline == 130.0


# Pings


def test_p31_the_first_ping_comes_one_interval_after_failing_over_then_every_interval() -> None:
    made = machine()
    made.primary_failed(100.0, 0)
    made.tick(160.0)
    assert made.deadline == 190.0
    assert made.tick(189.0) == []
    assert made.tick(190.0) == [SendPing("orders")]
    made.ping_failed(195.0, False)
    assert made.deadline == 220.0


def test_p33_never_two_pings_under_way() -> None:
    made = machine(interval=0.0)
    made.primary_failed(0.0, 0)
    assert made.tick(30.0) == [SendPing("orders")]
    assert made.deadline is None
    assert made.tick(500.0) == []
    made.ping_failed(500.0, False)
    assert made.deadline == 60.0, "overdue: the shell ticks at once"
    assert made.tick(500.0) == [SendPing("orders")]
    assert made.tick(500.0) == []


def test_p33_pings_stop_when_the_entity_is_healthy() -> None:
    made = brought_to(F)
    assert changes(made.ping_succeeded(T)) == [(F, H, "ping succeeded")]
    assert made.deadline is None
    assert made.tick(T + 9999.0) == []
    assert made.epoch == 1


def test_p34_a_refused_ping_goes_on_pinging_and_the_state_says_what_the_last_ping_met() -> None:
    made = brought_to(F)
    made.ping_failed(T, True)
    assert (made.state, made.deadline) == (U, T - 2.0)
    begin_probe(made, T)
    made.ping_failed(T + 1.0, False)
    assert made.state is F
    begin_probe(made, T + 30.0)
    made.ping_succeeded(T + 31.0)
    assert made.state is H


def test_p35_several_good_pings_in_a_row() -> None:
    made = brought_to(F, good=2)
    assert made.ping_succeeded(T) == [Announce(PingSucceeded("orders", 1, 2))]
    begin_probe(made, T)
    made.ping_failed(T, False)
    begin_probe(made, T + 30.0)
    assert made.ping_succeeded(T + 30.0) == [Announce(PingSucceeded("orders", 1, 2))]
    begin_probe(made, T + 60.0)
    commands = made.ping_succeeded(T + 60.0)
    assert commands[0] == Announce(PingSucceeded("orders", 2, 2))
    assert changes(commands) == [(F, H, "ping succeeded")]
    made.forced(T + 61.0, hold=False)
    begin_probe(made, T + 91.0)
    assert made.ping_succeeded(T + 91.0) == [Announce(PingSucceeded("orders", 1, 2))], "it counts anew"


def test_p35_a_good_ping_takes_back_a_refusal() -> None:
    made = brought_to(U, good=2)
    assert changes(made.ping_succeeded(T)) == [(U, F, "ping succeeded")]
    begin_probe(made, T + 30.0)
    made.ping_succeeded(T + 30.0)
    assert made.state is H


def test_p24_the_next_ping_keeps_a_halt() -> None:
    made = brought_to(F)
    made.ping_failed(T, False, not_before=T + 99.0)
    assert made.deadline == T + 99.0


def test_p33_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    made = machine(interval=0.0)
    made.primary_failed(0.0, 0)
    for answer in (made.ping_succeeded(99.0), made.ping_failed(99.0, True), made.trial_succeeded(99.0)):
        assert answer == []
    assert (made.state, made.deadline) == (F, 30.0)


def test_p33_only_a_tick_sends_a_ping_so_that_none_follows_the_operators_word() -> None:
    made = machine()
    made.forced(0.0, hold=False)
    assert SendPing("orders") not in made.marked_healthy(99.0)


def test_p33_the_answer_of_a_ping_from_an_earlier_failover_is_stale() -> None:
    made = brought_to(F)
    made.marked_healthy(T)
    made.primary_failed(T + 1.0, made.epoch)
    made.tick(T + 1.0 + INTERVAL)
    assert made.state is F
    assert made.deadline is None, "still never two under way"
    assert made.ping_succeeded(T + 70.0) == []
    assert (made.state, made.deadline) == (F, T + 1.0 + INTERVAL + PING)


# Late answers


def test_p21_a_late_success_does_not_end_a_failover() -> None:
    made = machine(interval=0.0)
    made.primary_failed(0.0, 0)
    assert made.primary_sent(1.0, 0) == []
    assert made.state is F


def test_p21_a_failure_from_before_the_return_starts_nothing_and_a_success_counts() -> None:
    made = brought_to(F)
    made.ping_succeeded(T)
    assert made.primary_failed(T + 1.0, 0) == []
    assert made.state is H
    made.primary_failed(T + 2.0, 1)
    assert changes(made.primary_sent(T + 3.0, 0)) == [(S, H, "send succeeded")], "the confirmation is of now"


def test_p23_marking_a_suspect_healthy_makes_its_attempts_stale() -> None:
    made = brought_to(S)
    made.marked_healthy(T)
    assert made.primary_failed(T + 1.0, 0) == []
    assert made.deadline is None


# The operator


def test_p23_a_forced_failover_is_ended_by_a_ping() -> None:
    made = machine()
    assert changes(made.forced(0.0, hold=False)) == [(H, F, "forced")]
    assert made.deadline == PING
    begin_probe(made, PING)
    made.ping_succeeded(PING)
    assert made.state is H


def test_p23_a_held_failover_is_ended_by_the_operator_only() -> None:
    made = machine()
    made.forced(0.0, hold=True)
    assert made.deadline is None
    assert made.tick(9999.0) == []
    assert changes(made.marked_healthy(9999.0)) == [(F, H, "marked healthy")]
    made.primary_failed(10000.0, made.epoch)
    made.tick(10060.0)
    assert made.deadline == 10090.0, "the hold is over"


def test_p23_a_hold_makes_the_ping_under_way_stale_and_its_end_starts_the_pings_anew() -> None:
    made = brought_to(F)
    made.forced(T, hold=True)
    assert made.ping_succeeded(T + 1.0) == []
    assert made.state is F
    made.forced(T + 5.0, hold=False)
    assert made.deadline == T + 5.0 + PING
    made.forced(T + 6.0, hold=False)
    assert made.deadline == T + 5.0 + PING, "forced twice is forced once"


def test_p23_a_ping_from_before_a_hold_stays_stale_after_it() -> None:
    made = brought_to(F)
    made.forced(T, hold=True)
    made.forced(T + 1.0, hold=False)
    assert made.ping_succeeded(T + 2.0) == []
    assert (made.state, made.deadline) == (F, T + 1.0 + PING)


def test_p34_the_operator_can_divert_what_refuses() -> None:
    made = brought_to(U)
    assert changes(made.forced(T, hold=True)) == [(U, F, "forced")]
    assert made.ping_failed(T + 1.0, True) == []
    assert made.state is F


# Trials


def test_p31_a_trial_is_due_one_interval_after_failing_over_and_one_at_a_time() -> None:
    made = machine(interval=0.0, probe="trial")
    assert not made.trial_due(0.0)
    made.primary_failed(0.0, 0)
    assert made.deadline is None, "a send wakes it, no timer"
    assert made.tick(500.0) == []
    assert not made.trial_due(29.9)
    assert made.trial_due(30.0)
    made.begin_trial(30.0)
    assert not made.trial_due(500.0)
    made.trial_failed(40.0, False)
    assert not made.trial_due(59.0)
    assert made.trial_due(60.0)


def test_p31_an_abandoned_trial_frees_the_place_for_the_next_in_its_time() -> None:
    made = brought_to(F, probe="trial")
    made.trial_abandoned()
    assert made.state is F
    assert not made.trial_due(T - 3.0)
    assert made.trial_due(T - 2.0)


def test_p31_no_trial_while_held() -> None:
    made = machine(probe="trial")
    made.forced(0.0, hold=True)
    assert not made.trial_due(500.0)


# What it looks like


def test_it_shows_what_it_waits_for() -> None:
    assert repr(machine()) == "<Failover orders: healthy>"
    assert repr(brought_to(S)) == "<Failover orders: suspect since 999.0, fails over at 1059.0>"
    assert repr(brought_to(F)) == "<Failover orders: failed over since 938.0, ping under way>"
    made = machine(probe="trial")
    made.forced(0.0, hold=True)
    assert repr(made) == "<Failover orders: failed over since 0.0, held>"
    made.forced(0.0, hold=False)
    assert repr(made) == "<Failover orders: failed over since 0.0, next trial at 30.0>"


@pytest.mark.parametrize(
    ("mark", "text"), [("table", failover_table()), ("diagram", f"```mermaid\n{failover_diagram()}\n```")]
)
def test_p16_the_docs_show_the_table_as_it_is(mark: str, text: str) -> None:
    found = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- /{mark} -->", DOCS.read_text(), re.DOTALL)
    assert found, mark
    assert found[1] == text, f"put this between the markers in {DOCS.name}:\n{text}"


def test_p16_the_diagram_has_every_change_of_the_table() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): (.*)$", failover_diagram(), re.MULTILINE)
    arrows = {(before, after, label) for before, after, labels in drawn for label in labels.split("<br>")}
    assert arrows == {
        (before.name, after.name, heading.value)
        for heading, states in TABLE.items()
        for before, after in states.items()
        if before is not after
    }
