"""What a send does when both namespaces say no (P13): it asks both anew, as often as the SDK would, and then fails."""

from __future__ import annotations

import pytest

from pairbus.pairing.errors import BacklogUnavailableError, NotTriedError
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.budget import Retries
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.verdicts import is_definite

from .rig import DOWN, LATE, OFF, T
from .test_dispatch import begin, error_of

REFUSED = ConnectionRefusedError(111, "refused")
RESET = ConnectionResetError(104, "reset")
#: The SDK's own: it waits 1.6 s, 3.2 s and 6.4 s.
SDK = Retries(3)


def failing(retries: Retries = SDK, queues: int = 10, **options: object) -> Coordinator:
    made = Coordinator(
        Settings(**options),  # type: ignore[arg-type]
        range(queues),
        choose=lambda usable: usable[0],
        retries=retries,
    )
    made.force_failover("orders", T)
    return made


def refuse(
    send: Dispatch, now: float, primary: BaseException, backlog: BaseException, primary_s: float = 0.0
) -> tuple[list[str], float, Step]:
    """Answer every attempt with its error; return what was asked in the order of time, the end and the last step."""
    asked = []
    while isinstance(step := send.step(now), TryPrimary | TryBacklog | Wait):
        if isinstance(step, Wait):
            assert send.step(now) == step, "an earlier step does no harm"
            asked.append(f"wait {step.until - now:.1f}")
            now = step.until
        elif isinstance(step, TryBacklog):
            asked.append(f"queue {step.queue}")
            send.backlog_failed(now, backlog)
        else:
            asked.append("primary")
            now += min(primary_s, step.timeout_s)
            send.primary_failed(now, primary)
    return asked, now, step


@pytest.mark.parametrize("retries", [Retries(), Retries(1), SDK, Retries(2, 0.5, 120.0, is_fixed=True)])
@pytest.mark.parametrize("primary", [REFUSED, RESET, DOWN, OFF])
@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_p13_where_the_host_refuses_each_round_asks_one_queue_and_the_primary(
    retries: Retries, primary: Exception, interval: float
) -> None:
    send = begin(failing(retries, failover_interval=interval))
    asked, ended, step = refuse(send, T, primary, REFUSED)
    assert isinstance(error_of(step), BacklogUnavailableError)
    waits = [retries.wait_s(done) or 0.0 for done in range(retries.total)]
    assert ended == pytest.approx(T + sum(waits))
    rounds = [each for each in asked if not each.startswith("wait")]
    assert [each.partition(" ")[0] for each in rounds] == ["queue", "primary"] * (retries.total + 1)
    assert [each for each in asked if each.startswith("wait")] == [f"wait {wait:.1f}" for wait in waits]


def test_p13_the_bare_sdk_takes_eleven_seconds_and_so_does_this() -> None:
    _, ended, step = refuse(begin(failing()), T, REFUSED, REFUSED)
    assert ended == pytest.approx(T + 11.2)
    assert "orders: the host of the 10 backlog queues refuses, each time of 4" in str(error_of(step))
    assert "Nothing was sent" in str(error_of(step))


def test_p13_the_next_send_asks_both_sides_itself_again() -> None:
    made = failing()
    first, _, _ = refuse(begin(made), T, REFUSED, REFUSED)
    for number in range(12):
        now = T + 20.0 * (number + 1)
        asked, ended, _ = refuse(begin(made, now), now, REFUSED, REFUSED)
        assert ended == pytest.approx(now + 11.2)
        assert (asked.count("primary"), len(asked)) == (first.count("primary"), len(first))


def test_p13_with_the_profile_interactive_both_are_asked_twice_a_second_apart() -> None:
    send = begin(failing(profile="interactive", send_timeout=8.0, failover_interval=0.0))
    asked, ended, _ = refuse(send, T, REFUSED, REFUSED)
    assert asked == ["queue 0", "primary", "wait 1.0", "queue 1", "primary"]
    assert ended == T + 1.0


@pytest.mark.parametrize("error", [RESET, OFF, DOWN])
def test_p13_p49_what_one_queue_says_holds_for_that_queue_and_later_rounds_ask_one(error: Exception) -> None:
    asked, ended, step = refuse(begin(failing(queues=3)), T, REFUSED, error)
    first = ["queue 0", "queue 1", "queue 2", "primary"]
    assert asked[:4] == first
    assert [each.partition(" ")[0] for each in asked[4:]] == 3 * ["wait", "queue", "primary"] or [
        each.partition(" ")[0] for each in asked[4:]
    ] == 3 * ["wait", "primary", "queue"]
    assert ended == pytest.approx(T + 11.2)
    assert "all 3 backlog queues failed" in str(error_of(step))


@pytest.mark.parametrize(("timeout", "ends"), [(1.0, 0.0), (4.0, 1.6), (8.0, 4.8), (60.0, 11.2)])
def test_p13_a_round_that_does_not_fit_into_the_time_is_not_begun(timeout: float, ends: float) -> None:
    _, ended, step = refuse(begin(failing(), timeout=timeout), T, REFUSED, REFUSED)
    assert ended == pytest.approx(T + ends)
    assert isinstance(error_of(step), BacklogUnavailableError)


def test_p13_who_is_back_in_a_later_round_takes_the_message() -> None:
    made = failing()
    for is_primary in (True, False):
        send = begin(made)
        assert isinstance(send.step(T), TryBacklog)
        send.backlog_failed(T, REFUSED)
        assert isinstance(send.step(T), TryPrimary)
        send.primary_failed(T, REFUSED)
        assert send.step(T) == Wait(T + 1.6)
        assert isinstance(send.step(T + 1.6), TryBacklog)
        if is_primary:
            send.backlog_failed(T + 1.6, REFUSED)
            assert isinstance(send.step(T + 1.6), TryPrimary)
            send.primary_sent(T + 1.6)
        else:
            send.backlog_sent(T + 1.6)
        assert send.step(T + 1.6) == Sent()
        made.force_failover("orders", T + 2.0)


def test_p13_a_primary_that_says_nothing_leaves_time_for_a_backlog_that_is_back_soon() -> None:
    send = begin(failing())
    send.step(T)
    send.backlog_failed(T, REFUSED)
    step = send.step(T)
    assert step == TryPrimary(3.75)
    assert isinstance(step, TryPrimary)
    assert step.terms is not None
    assert step.terms.ends_at is is_definite
    send.primary_failed(T + 3.75, LATE)
    assert isinstance(send.step(T + 3.75), TryBacklog), "the wait is over"


@pytest.mark.parametrize("error", [LATE, NotTriedError("others were first")])
def test_p19_what_was_not_refused_is_not_asked_anew(error: Exception) -> None:
    asked, _, step = refuse(begin(failing(queues=1)), T, REFUSED, error)
    assert asked == ["queue 0", "primary"]
    assert isinstance(step, Failed)


def test_p13_a_pinned_entity_whose_secondary_is_dead_sends_to_its_primary_at_once() -> None:
    made = failing()
    made.force_failover("orders", T, hold=True)
    for _ in range(12):
        send = begin(made)
        assert isinstance(send.step(T), TryBacklog)
        send.backlog_failed(T, REFUSED)
        assert isinstance(send.step(T), TryPrimary)
        send.primary_sent(T)
        assert send.step(T) == Sent()
