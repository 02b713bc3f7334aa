"""What moves, archives and restores share. The rounds themselves are in test_move and test_move_proof."""

from __future__ import annotations

import threading

import pytest

from pairbus.spark.options import InvalidOption
from pairbus.spark.pipelines.rounds import Over, Rounds, Told
from pairbus.spark.pipelines.transfer import Transfer, rate_of
from pairbus.syphon.rate import Rate


def test_it_goes_from_step_to_step_to_the_end() -> None:
    transfer, rounds, steps = Transfer(), Rounds(30, Rate(), 0.0), list[str]()

    def take(count: int) -> None:
        steps.append(f"take {count}")
        rounds.ended(Told(count, 0, 0), 1.0)

    def look() -> int:
        steps.append("look")
        return 0

    assert transfer._go_through(rounds, take, look) == Over()
    assert steps == ["take 30", "look"]
    assert transfer.report().moved == 0


def test_a_stop_ends_a_wait() -> None:
    transfer, rounds = Transfer(), Rounds(30, Rate(), 0.0, patience_s=1e9)
    threading.Timer(0.1, transfer.stop).start()

    def take(count: int) -> None:
        rounds.ended(Told(0, 0, 0), 1e9)

    assert transfer._go_through(rounds, take, lambda: 5) is None
    assert transfer.progress.waiting_for is None


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    assert rate_of(None) is None and rate_of(0.5) == 0.5
    with pytest.raises(InvalidOption, match="max_rate is a number of messages a second above 0, not "):
        rate_of(rate)
