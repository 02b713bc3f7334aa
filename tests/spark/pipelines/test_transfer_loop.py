from __future__ import annotations

import pytest

from pairbus.spark.pipelines.transfer_loop import (
    FAILURES_MAX,
    ROUND_FIRST,
    ROUND_MAX,
    Look,
    Over,
    RoundResult,
    Take,
    TransferLoop,
    Wait,
    spread,
)
from pairbus.syphon.core.rate_limit import RateLimit


def rounds(chosen: int | None = None, rate: float | None = None, **options: float) -> TransferLoop:
    return TransferLoop(chosen, RateLimit(rate), 0.0, **options)


def look(run: TransferLoop, found: int, now: float) -> None:
    """It looks next, and finds so many."""
    assert run.next(now) == Look()
    run.looked(found, now)


def test_few_at_first_many_then_and_never_more_than_chosen() -> None:
    run = rounds(30_000)
    assert run.next(0) == Take(ROUND_FIRST)
    run.ended(RoundResult(ROUND_FIRST, 0, 0), 1)
    assert run.next(1) == Take(ROUND_MAX)
    run.ended(RoundResult(ROUND_MAX, 0, 0), 2)
    assert run.next(2) == Take(30_000 - ROUND_FIRST - ROUND_MAX)
    run.ended(RoundResult(30_000 - ROUND_FIRST - ROUND_MAX, 0, 0), 3)
    look(run, 0, 3)
    assert run.next(3) == Over()


def test_one_that_was_counted_twice_does_not_hide_one_that_remains() -> None:
    run = rounds(10)
    run.ended(RoundResult(10, 0, 0), 1)
    look(run, 1, 1)
    assert isinstance(run.next(1), Take)
    run.ended(RoundResult(1, 0, 0), 2)
    assert run.next(2) == Look()


def test_uncounted_it_ends_when_a_look_finds_nothing() -> None:
    run = rounds()
    run.ended(RoundResult(400, 0, 0), 1)
    assert run.next(1) == Take(ROUND_MAX)
    run.ended(RoundResult(0, 0, 0), 2)
    look(run, 0, 2)
    assert run.next(2) == Over()


def test_messages_that_somebody_holds_are_waited_for_and_then_given_up() -> None:
    run = rounds(patience_s=100)
    now = 0.0
    waits: list[float] = []
    while not isinstance(step := run.next(now), Over):
        match step:
            case Take(count):
                assert count == ROUND_FIRST if not waits else count == 1
                run.ended(RoundResult(0, 0, 0), now)
            case Look():
                run.looked(3, now)
            case Wait(seconds, why):
                assert why == "3 messages that are locked elsewhere"
                waits.append(seconds)
                now += seconds
    assert step.reason is not None and "locked by another receiver" in step.reason
    assert 100 <= now <= 108 and waits[:4] == [1, 2, 4, 8] and max(waits) == 8


def test_a_round_that_came_short_is_followed_by_a_look_and_not_by_an_empty_one() -> None:
    run = rounds(1000)
    assert run.next(0) == Take(ROUND_FIRST)
    run.ended(RoundResult(20, 0, 0), 1)
    look(run, 7, 1)
    assert run.next(1) == Take(980), "it moved some: there is no need to wait"
    run.ended(RoundResult(7, 0, 0), 2)
    look(run, 0, 2)
    assert run.next(2) == Over()


def test_one_that_comes_back_ends_the_wait() -> None:
    run = rounds(patience_s=100)
    run.ended(RoundResult(0, 0, 0), 0)
    run.looked(2, 0)
    assert run.next(1.0) == Take(1)
    run.ended(RoundResult(1, 0, 0), 90)
    assert run.next(90) == Take(ROUND_MAX)
    run.ended(RoundResult(0, 0, 0), 95)
    run.looked(1, 95)
    assert isinstance(run.next(95), Wait), "the patience begins anew with each message"


def test_a_destination_that_is_away_is_tried_with_one_and_given_up_after_three() -> None:
    run = rounds(50)
    run.ended(RoundResult(10, 15, 0, "unreachable: gone fishing"), 0)
    assert run.next(0) == Wait(1.0, "the destination: unreachable: gone fishing")
    assert run.next(1) == Take(40), "it took some: that is no strike"
    for strike in range(3):
        assert not isinstance(run.next(100.0 * strike), Over)
        run.ended(RoundResult(0, 1, 0, "unreachable: gone fishing"), 100.0 * strike)
        if strike < 2:
            assert run.next(100.0 * strike + 50) == Take(1)
    assert run.next(999) == Over("unreachable: gone fishing")


def test_p24_a_busy_destination_is_let_alone_for_ten_seconds_and_slows_the_rest() -> None:
    run = rounds()
    run.ended(RoundResult(500, 20, 0, "busy: slow down", is_busy=True), 0)
    step = run.next(0)
    assert isinstance(step, Wait) and step.seconds >= 10
    later = run.next(11)
    assert isinstance(later, Take) and later.messages < ROUND_MAX


def test_p41_the_rate_is_kept_over_the_run() -> None:
    run = rounds(1000, 100.0)
    now, moved = 0.0, 0
    while not isinstance(step := run.next(now), Over):
        match step:
            case Take(count):
                run.ended(RoundResult(count, 0, 0), now)
                moved += count
            case Look():
                run.looked(1000 - moved, now)
            case Wait(seconds, _):
                now += seconds
    assert moved == 1000 and 9 <= now <= 11


def test_what_is_refused_for_good_is_not_waited_for() -> None:
    run = rounds(10)
    run.ended(RoundResult(7, 3, 3), 0)
    look(run, 0, 0)
    assert run.next(0) == Over()


def test_a_destination_that_refuses_all_is_not_offered_the_rest() -> None:
    run = rounds(100_000)
    run.ended(RoundResult(0, ROUND_FIRST, ROUND_FIRST), 0)
    step = run.next(0)
    assert isinstance(step, Over) and step.reason is not None and "refuses them" in step.reason


def test_rounds_that_fail_are_tried_again_a_few_times() -> None:
    run = rounds()
    assert [run.failed("boom", float(now)) for now in range(FAILURES_MAX)] == [True] * (FAILURES_MAX - 1) + [False]
    assert run.next(FAILURES_MAX) == Wait(7.0, "boom")
    run.ended(RoundResult(1, 0, 0), 20)
    assert run.failed("boom", 21.0)
    assert repr(run) == "<TransferLoop 1 moved, 0 refused, 0 strikes>"


@pytest.mark.parametrize(
    ("count", "left", "counts"),
    [
        (20_000, 100_000, (5000,) * 4),
        (20_000, 11_000, (3667, 3667, 3666)),
        (7001, 100_000, (3501, 3500)),
        (20_000, 5000, (20_000,)),
        (500, 100_000, (500,)),
        (1, 100_000, (1,)),
        (20_000, 0, (20_000,)),
        (20_000, None, (20_000,)),
    ],
)
def test_a_large_round_is_spread_over_tasks_that_all_have_something_to_do(
    count: int, left: int | None, counts: tuple[int, ...]
) -> None:
    assert spread(count, left) == counts
    assert sum(counts) <= count
